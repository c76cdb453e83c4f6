//! The close of a descriptor when the object that it is in is dropped.

use std::ops::Deref;

use crate::fd::Fd;
use crate::handle::Handle;

/// The clone of a descriptor that its object drops last, after all operations on it.
///
/// Its drop gets those operations back at once, as far as the backend does that without a wait, and closes
/// the descriptor there and then if nothing else uses it: a socket that does not linger, or an end of a pipe.
/// So a peer sees the end before the thread's next turn. If the driver works without a ring and a foreign
/// loop [polls](crate::Driver::pollable) it, that turn brings the end. Linux before 6.4 may have a file that
/// was [registered](crate::Counters::registered_files) for a second longer.
///
/// # Examples
/// ```
/// use std::io::Read;
///
/// use sakia_driver::{Auto, CURRENT_POSITION, Driver, LastFd, Wait};
///
/// let driver = Driver::new(Auto::detect()?.0);
/// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
/// let fd = LastFd::new(driver.adopt(near.into()), driver.handle().clone());
/// let read = driver.read(&fd, vec![0; 16], CURRENT_POSITION);
/// driver.turn(Wait::Poll)?;
/// drop(read); // the kernel still has it
/// drop(fd);
/// assert_eq!(far.read(&mut [0])?, 0, "the end has come");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct LastFd {
    /// `None` once it was taken out.
    fd: Option<Fd>,
    driver: Handle,
}

impl LastFd {
    /// Wraps a descriptor of this driver.
    pub fn new(fd: Fd, driver: Handle) -> Self {
        Self { fd: Some(fd), driver }
    }

    /// Returns the descriptor, which is dropped as any other.
    pub fn into_fd(mut self) -> Fd {
        self.fd.take().expect("it is taken once")
    }
}

impl Deref for LastFd {
    type Target = Fd;

    #[inline(always)]
    fn deref(&self) -> &Fd {
        self.fd.as_ref().expect("it was not taken out")
    }
}

impl Drop for LastFd {
    fn drop(&mut self) {
        if let Some(fd) = &self.fd {
            self.driver.shared.withdraw(fd);
        }
    }
}
