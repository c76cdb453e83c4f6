//! Making a file durable.

use std::io;

use sakia_ring::Sqe;

use crate::backend::Backend;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};

/// See [`Handle::fsync`].
#[derive(Debug)]
pub struct Fsync {
    fd: Fd,
    data_only: bool,
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
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for Fsync {
    type Output = io::Result<()>;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Sqe {
        Sqe::fsync(self.fd.raw(), self.data_only)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.result().map(|_| ())
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(&self.fd)
    }
}
