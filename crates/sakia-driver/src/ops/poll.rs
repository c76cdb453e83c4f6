//! Waiting for readiness.

use sakia_ring::Sqe;

use crate::call::Call;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::sys::abi;

/// Events to wait for, or that are ready: the kernel's `POLL*` bits.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// use std::io::Write;
///
/// use sakia_driver::PollEvents;
///
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
/// let (reader, mut writer) = std::io::pipe()?;
/// let reader = driver.adopt(reader.into());
/// let poll = driver.poll(&reader, PollEvents::READABLE);
/// writer.write_all(b"x")?;
/// assert!(run(&driver, poll)??.contains(PollEvents::READABLE));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEvents(pub u32);

impl PollEvents {
    /// Bytes, or the end, can be read.
    #[doc(alias = "POLLIN")]
    pub const READABLE: Self = Self(abi::POLLIN);
    /// A priority event: out-of-band data, or a notification of a kernel file.
    #[doc(alias = "POLLPRI")]
    pub const PRIORITY: Self = Self(abi::POLLPRI);
    /// There is room to write.
    #[doc(alias = "POLLOUT")]
    pub const WRITABLE: Self = Self(abi::POLLOUT);
    /// An error. Always included.
    #[doc(alias = "POLLERR")]
    pub const ERROR: Self = Self(abi::POLLERR);
    /// The other end hung up. Always included.
    #[doc(alias = "POLLHUP")]
    pub const HANG_UP: Self = Self(abi::POLLHUP);

    /// The peer has shut down its sending side. Waited for together with [`READABLE`](PollEvents::READABLE);
    /// a ring always waits for it.
    #[doc(alias = "POLLRDHUP")]
    pub const READ_HANG_UP: Self = Self(abi::POLLRDHUP);

    /// Returns the events to report of these ready ones, for a poll that waits for `self`.
    fn told(self, ready: u32) -> Self {
        let ready = Self(ready);
        let waits_for_hang_up = self.0 & (Self::READABLE.0 | Self::READ_HANG_UP.0) != 0;
        let rest = Self(ready.0 & !Self::READ_HANG_UP.0);
        if waits_for_hang_up || rest.0 == 0 { ready } else { rest }
    }

    /// Returns whether all of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

of_bits!(PollEvents);

/// See [`Handle::poll`].
#[derive(Debug)]
pub struct Poll {
    fd: Fd,
    events: PollEvents,
}

impl Handle {
    /// Waits until one of `events` is ready on `fd`, or an error or hang-up. Resolves to the ready events.
    ///
    /// # Errors
    /// - `ECANCELED`: canceled. `EBADF`: the descriptor cannot be polled. Otherwise as `poll(2)`.
    /// - `EINVAL`: nothing can wake the poll: a file that is always ready, but never for these events.
    ///
    /// # Examples
    /// See [`PollEvents`](PollEvents#examples).
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_prep_poll_add(3)`.
    pub fn poll(&self, fd: &Fd, events: PollEvents) -> Op<Poll> {
        self.start(Poll { fd: self.held(fd), events })
    }
}

of_numbers! {
    |it: Poll| Waiting; Poll;
    entry Sqe::poll_add(it.fd.raw(), it.events.0);
    call Call::Poll { raw: it.fd.raw(), events: it.events.0 };
    output PollEvents, |completion| completion.result().map(|ready| it.events.told(ready));
}
