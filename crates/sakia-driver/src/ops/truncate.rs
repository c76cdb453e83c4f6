//! Changing the length of a file.

use sakia_ring::Sqe;

use crate::call::{Function, System};
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::truncate`].
#[derive(Debug)]
pub struct Truncate {
    fd: Fd,
    len: u64,
}

impl Handle {
    /// Makes the file `len` bytes long. What is added reads as zeros and takes no room.
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
}

of_numbers! {
    |it: Truncate| Bounded, local; Truncate;
    entry Sqe::ftruncate(it.fd.raw(), it.len);
    call System::on(Function::Ftruncate, it.fd.raw(), [it.len as usize]);
}
