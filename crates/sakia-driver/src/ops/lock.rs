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
    /// Locks the file, or unlocks it: `operation` is one of the kernel's `LOCK_SH`, `LOCK_EX`, `LOCK_UN`,
    /// with `LOCK_NB` so as not to wait for other holders. The lock belongs to the open file: it is shared by
    /// duplicates of the descriptor, and ends when the last one is closed.
    ///
    /// May wait for ever. Canceling it, or dropping the handle, ends the wait where nothing waits in the
    /// kernel yet; otherwise the lock may come later, and then stays until it is given up, or `fd` closed.
    /// Lock by a descriptor that is used for nothing else.
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
