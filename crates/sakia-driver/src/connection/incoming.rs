//! Accepting one connection after the other.

use std::fmt;
use std::io;

use crate::backend::Backend;
use crate::fd::Fd;
use crate::handle::Handle;

/// The connections of a socket that listens.
pub struct Incoming<B: Backend> {
    fd: Fd,
    driver: Handle<B>,
}

impl<B: Backend> fmt::Debug for Incoming<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl<B: Backend> Handle<B> {
    /// The connections that come to `fd`, which [listens](Handle::listen).
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    pub fn incoming(&self, fd: Fd) -> Incoming<B> {
        self.check(&fd);
        Incoming { fd, driver: self.clone() }
    }
}

impl<B: Backend> Incoming<B> {
    /// The descriptor that listens.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Waits for a connection. Dropping the future loses none: one that comes for it goes to the next call.
    ///
    /// # Errors
    /// As [`Handle::accept`]. The next call tries again.
    ///
    /// # Kernel
    /// 5.5; 5.19 to accept several with one entry. Source: `io_uring_prep_multishot_accept(3)`.
    pub async fn accept(&self) -> io::Result<Fd> {
        let (connection, _) = self.driver.accept(&self.fd).await?;
        Ok(connection)
    }
}
