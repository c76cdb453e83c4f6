//! Telling the kernel how a file will be used.

use sakia_ring::Sqe;

use crate::backend::Backend;
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Op, Operation};
use crate::policy::{Route, Rules};

/// See [`Handle::advise`].
#[derive(Debug)]
pub struct Advise {
    fd: Fd,
    offset: u64,
    len: u64,
    advice: u32,
}

impl<B: Backend> Handle<B> {
    /// Tells the kernel how `len` bytes from byte `offset` of `fd` will be used, all from there on when
    /// `len` is 0. `advice` is one of the kernel's `POSIX_FADV_*`.
    ///
    /// # Errors
    /// - `EINVAL`: no such advice. On kernels before 6.10 also a length of 4 GiB or more.
    /// - `ESPIPE`: a pipe. Otherwise as `posix_fadvise(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fadvise(3)`.
    #[doc(alias = "posix_fadvise")]
    #[doc(alias = "fadvise64")]
    pub fn advise(&self, fd: &Fd, offset: u64, len: u64, advice: u32) -> Op<Advise, B> {
        self.start(Advise { fd: self.held(fd), offset, len, advice })
    }
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for Advise {
    fn entry(&mut self) -> Sqe {
        Sqe::fadvise(self.fd.raw(), self.offset, self.len, self.advice)
    }

    no_output!();
    acts_on!(Bounded, fd, local);

    fn route(&self, rules: &Rules) -> Route {
        self.fd.route_call(rules.of(OpKind::Advise))
    }
}
