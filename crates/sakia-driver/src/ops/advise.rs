//! Telling the kernel how a file will be used.

use sakia_ring::Sqe;

use crate::call::{Function, System};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::advise`].
#[derive(Debug)]
pub struct Advise {
    fd: Fd,
    offset: u64,
    len: u64,
    advice: u32,
}

impl Handle {
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
    pub fn advise(&self, fd: &Fd, offset: u64, len: u64, advice: u32) -> Op<Advise> {
        self.start(Advise { fd: self.held(fd), offset, len, advice })
    }
}

of_numbers! {
    |it: Advise| Bounded, local; Advise;
    entry Sqe::fadvise(it.fd.raw(), it.offset, it.len, it.advice);
    call {
        let args = [it.offset as usize, it.len as usize, it.advice as usize];
        System::on(Function::Fadvise, it.fd.raw(), args)
    };
    route |rules| it.fd.route_call(rules.of(OpKind::Advise));
}
