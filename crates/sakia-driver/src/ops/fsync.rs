//! Making a file durable.

use std::io;

use sakia_ring::Sqe;

use crate::backend::{Backend, Descriptors};
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Completion, Op, Operation};
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
        self.check(fd);
        self.start(Fsync { fd: fd.clone(), data_only })
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
        self.check(fd);
        self.start_private(private::SYNCFS, Syncfs { fd: fd.clone() })
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for Fsync {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Sqe {
        Sqe::fsync(self.fd.raw(), self.data_only)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.result().map(|_| ())
    }

    acts_on!(Bounded, fd);

    fn is_local(&self, _: &dyn Descriptors) -> bool {
        self.fd.is_local()
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for Syncfs {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Sqe {
        private::syncfs(self.fd.raw())
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.result().map(|_| ())
    }

    acts_on!(Bounded, fd);
}
