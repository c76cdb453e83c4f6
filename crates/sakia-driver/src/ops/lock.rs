//! Locking a file.

use crate::call::Call;
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::flock`].
#[derive(Debug)]
pub struct Flock {
    fd: Fd,
    operation: u32,
}

impl Handle {
    /// Locks or unlocks the file: `operation` is one of the kernel's `LOCK_SH`, `LOCK_EX`, `LOCK_UN`, with
    /// `LOCK_NB` so as not to wait for other holders. The lock belongs to the open file: duplicates of the
    /// descriptor share it, and it ends when the last of them is closed.
    ///
    /// May wait for ever. Canceling it, or dropping the handle, ends the wait unless a thread already waits
    /// in the kernel. In that case the lock may still be taken later, and then stays until it is unlocked or
    /// `fd` is closed. Lock through a descriptor that has no other use.
    ///
    /// # Errors
    /// - `EAGAIN`: with `LOCK_NB`, another owner holds it. `EINVAL`: no such operation.
    /// - `ECANCELED`: canceled before it began.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `flock(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `flock(2)`.
    pub fn flock(&self, fd: &Fd, operation: u32) -> Op<Flock> {
        self.start(Flock { fd: self.held(fd), operation })
    }
}

of_numbers! {
    |it: Flock| Waiting; Lock;
    call Call::Flock { raw: it.fd.raw(), operation: it.operation };
}
