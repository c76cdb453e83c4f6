//! Room within a file: allocating it, giving it back, changing the length; and how it will be used.

use sakia_ring::Sqe;

use crate::call::{Function, System};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::fallocate`].
#[derive(Debug)]
pub struct Fallocate {
    fd: Fd,
    mode: u32,
    offset: u64,
    len: u64,
}

/// See [`Handle::truncate`].
#[derive(Debug)]
pub struct Truncate {
    fd: Fd,
    len: u64,
}

/// See [`Handle::advise`].
#[derive(Debug)]
pub struct Advise {
    fd: Fd,
    offset: u64,
    len: u64,
    advice: u32,
}

impl Handle {
    /// Allocates `len` bytes from byte `offset` of `fd`, which makes the file longer if it ends before; or
    /// what else the kernel's `FALLOC_FL_*` bits in `mode` say.
    ///
    /// # Errors
    /// - `EINVAL`: no bytes, or more than a file can have. `EBADF`: not open to write.
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room.
    /// - `EOPNOTSUPP`: a bit, or the whole, that the file system does not have.
    /// - `ESPIPE`, `ENODEV`: not a regular file. Otherwise as `fallocate(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fallocate(3)`.
    pub fn fallocate(&self, fd: &Fd, mode: u32, offset: u64, len: u64) -> Op<Fallocate> {
        self.start(Fallocate { fd: self.held(fd), mode, offset, len })
    }

    /// Makes the file `len` bytes long. The part that is added reads as zeros and takes no room.
    ///
    /// # Errors
    /// - `EINVAL`: not open to write, not a regular file, or more than a file can have.
    /// - `EFBIG`: more than the file system or the limit of the process allows. Otherwise as
    ///   `ftruncate(2)`.
    ///
    /// # Kernel
    /// 6.9. Source: `io_uring_prep_ftruncate(3)`.
    #[doc(alias = "ftruncate")]
    pub fn truncate(&self, fd: &Fd, len: u64) -> Op<Truncate> {
        self.start(Truncate { fd: self.held(fd), len })
    }

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
    |it: Fallocate| Bounded, local; Allocate;
    entry Sqe::fallocate(it.fd.raw(), it.mode, it.offset, it.len);
    call {
        let args = [it.mode as usize, it.offset as usize, it.len as usize];
        System::on(Function::Fallocate, it.fd.raw(), args)
    };
}

of_numbers! {
    |it: Truncate| Bounded, local; Truncate;
    entry Sqe::ftruncate(it.fd.raw(), it.len);
    call System::on(Function::Ftruncate, it.fd.raw(), [it.len as usize]);
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
