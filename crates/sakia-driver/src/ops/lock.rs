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
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-flock-{}", std::process::id()));
    /// let one = driver.adopt(std::fs::File::create(&path)?.into());
    /// let other = driver.adopt(std::fs::File::open(&path)?.into());
    /// run(&driver, driver.flock(&one, libc::LOCK_EX as u32))??;
    /// let at_once = driver.flock(&other, (libc::LOCK_SH | libc::LOCK_NB) as u32);
    /// assert_eq!(run(&driver, at_once)?.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
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
