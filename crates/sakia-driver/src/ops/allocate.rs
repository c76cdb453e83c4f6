//! Room within a file: allocating it, giving it back.

use sakia_ring::Sqe;

use crate::call::{Function, System};
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
}

of_numbers! {
    |it: Fallocate| Bounded, local; Allocate;
    entry Sqe::fallocate(it.fd.raw(), it.mode, it.offset, it.len);
    call {
        let args = [it.mode as usize, it.offset as usize, it.len as usize];
        System::on(Function::Fallocate, it.fd.raw(), args)
    };
}
