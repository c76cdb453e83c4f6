//! Making a file durable.

use sakia_ring::Sqe;

use crate::call::{Function, System};
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::fsync`].
#[derive(Debug)]
pub struct Fsync {
    fd: Fd,
    data_only: bool,
}

/// See [`Handle::syncfs`].
#[derive(Debug)]
pub struct Syncfs {
    fd: Fd,
}

impl Handle {
    /// Makes durable what was written to `fd` by operations that were done before this one was
    /// started. With `data_only` only what is needed to read the data back, as `fdatasync(2)`.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost. The kernel tells this once: trying again
    /// may succeed without the data being safe. Otherwise as `fsync(2)`.
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_fsync(3)`.
    #[doc(alias = "fdatasync")]
    pub fn fsync(&self, fd: &Fd, data_only: bool) -> Op<Fsync> {
        self.start(Fsync { fd: self.held(fd), data_only })
    }

    /// Makes durable all that was written to the file system that `fd` lies on.
    ///
    /// # Errors
    /// - `EIO`, `ENOSPC`, `EDQUOT`: earlier writes were lost; told once, and on kernels before 5.8 not at
    ///   all.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `syncfs(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `syncfs(2)`.
    pub fn syncfs(&self, fd: &Fd) -> Op<Syncfs> {
        self.start(Syncfs { fd: self.held(fd) })
    }
}

of_numbers! {
    |it: Fsync| Bounded, local; Fsync;
    entry Sqe::fsync(it.fd.raw(), it.data_only);
    call {
        let function = if it.data_only { Function::Fdatasync } else { Function::Fsync };
        System::on(function, it.fd.raw(), [])
    };
}

of_numbers! {
    |it: Syncfs| Bounded; Fsync;
    call System::on(Function::Syncfs, it.fd.raw(), []);
}
