//! Making a file durable.

use sakia_ring::Sqe;

use crate::backend::Backend;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Op, Operation};
use crate::private;

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

impl<B: Backend> Handle<B> {
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
    pub fn fsync(&self, fd: &Fd, data_only: bool) -> Op<Fsync, B> {
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
    pub fn syncfs(&self, fd: &Fd) -> Op<Syncfs, B> {
        self.start_private(private::SYNCFS, Syncfs { fd: self.held(fd) })
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for Fsync {
    fn entry(&mut self) -> Sqe {
        Sqe::fsync(self.fd.raw(), self.data_only)
    }

    no_output!();
    acts_on!(Bounded, fd, local);
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for Syncfs {
    fn entry(&mut self) -> Sqe {
        private::syncfs(self.fd.raw())
    }

    no_output!();
    acts_on!(Bounded, fd);
}
