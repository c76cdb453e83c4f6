//! A loop of requests, for one thread.
//!
//! It is a [`Driver`] whose operations are [requests] with tokens. The rest is here: the descriptors of file
//! handles ([`files`]), requests that go on after an outcome ([`lasting`]) and their news ([`told`]), and
//! wakes ([`waker`]).

mod files;
mod lasting;
mod requests;
mod told;
mod waker;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sakia_ring::SignalMask;

pub use self::requests::{Requests, Ticket};
pub use self::waker::LoopWaker;
use crate::auto::{Auto, Choice};
use crate::core::Wait;
use crate::counters::Counters;
use crate::decide::{Bypass, Rules, limits};
use crate::driver::{DRAIN_LIMIT, Driver};
use crate::readable;
use crate::request::{Buffer, FileHandle, Lent, Outcome, Request};

/// Performs requests for the thread that made it. Submitting and waiting are one system call, and results are
/// taken without one.
///
/// A request that ends at once, such as a read of bytes in memory, is done within [`submit`](Loop::submit),
/// and its outcome is there. Everything else is under way until its outcome was taken. Dropping the loop is a
/// [`stop`](Loop::stop) with a limit of one second.
///
/// # Examples
/// ```
/// use sakia_driver::{FileHandle, Loop, Request, Wait};
///
/// let mut ring = Loop::new()?;
/// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
/// for token in 0..4 {
///     ring.submit(Request::read(&file, vec![0; 8].into(), token * 8), token)?;
/// }
/// let mut parts = vec![Vec::new(); 4];
/// for _ in 0..4 {
///     let outcome = loop {
///         match ring.take() {
///             Some(outcome) => break outcome,
///             None => ring.wait(Wait::Forever)?,
///         };
///     };
///     let token = outcome.token;
///     assert!(!outcome.more && matches!(outcome.result, Ok(8)));
///     parts[token as usize] = outcome.into_vec().expect("the vector that it had");
/// }
/// assert_eq!(parts.concat(), std::fs::read("Cargo.toml")?[..32]);
/// # std::io::Result::Ok(())
/// ```
pub struct Loop {
    /// Dropped first: they are the driver's.
    requests: Requests,
    driver: Driver,
    under_way_max: usize,
    is_polled: bool,
}

/// A request that was not submitted, since the most that a loop may have are under way.
///
/// # Examples
/// See [`Loop::set_under_way_max`].
pub struct Full(pub Request);

impl fmt::Debug for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full")
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many requests are under way as the loop may have: take outcomes first")
    }
}

impl std::error::Error for Full {}

impl From<Full> for io::Error {
    fn from(full: Full) -> Self {
        Self::new(io::ErrorKind::WouldBlock, full.to_string())
    }
}

/// The end of a loop or a queue of requests.
///
/// # Examples
/// See [`Loop::stop`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the memory of requests that leaked must stay"]
pub struct RequestsEnd {
    /// The tokens of the requests that did not end. The kernel may use their memory for ever.
    pub leaked: Vec<u64>,
}

impl fmt::Debug for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loop").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl Loop {
    /// Makes a loop on a ring or, where the machine offers none, on epoll and threads.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory left. Otherwise as [`Auto::detect`].
    ///
    /// # Examples
    /// See [`Loop`](Loop#examples).
    pub fn new() -> io::Result<Self> {
        Self::detect().map(|(ring, _)| ring)
    }

    /// As [`new`](Loop::new), and tells which backend it is and why.
    ///
    /// # Errors
    /// As [`new`](Loop::new).
    ///
    /// # Examples
    /// ```
    /// let (ring, choice) = sakia_driver::Loop::detect()?;
    /// println!("{choice}");
    /// # drop(ring);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn detect() -> io::Result<(Self, Choice)> {
        let (backend, choice) = Auto::detect()?;
        Ok((Self::on(Driver::new(backend))?, choice))
    }

    /// Makes a loop of a driver of the kernel's, which makes [plain calls](Bypass) by the default rules from
    /// now on.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory left.
    ///
    /// # Panics
    /// On the simulated kernel, to which a descriptor of the process means nothing.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Driver, Epoll, Loop};
    ///
    /// let ring = Loop::on(Driver::new(Epoll::new()?))?;
    /// # drop(ring);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn on(driver: Driver) -> io::Result<Self> {
        driver.set_bypass(Bypass::Rules(Rules::default()));
        let requests = Requests::on(&driver)?;
        Ok(Self { requests, driver, under_way_max: limits::UNDER_WAY_MAX, is_polled: false })
    }

    /// Sets whether operations may be done as plain calls where that is cheaper, from now on, as
    /// [`Handle::set_bypass`](crate::Handle::set_bypass). A new loop has the default rules.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Bypass, Loop};
    ///
    /// let ring = Loop::new()?;
    /// ring.set_bypass(Bypass::Never);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_bypass(&self, bypass: Bypass) {
        self.driver.set_bypass(bypass);
    }

    /// Returns the counters of its activity so far.
    ///
    /// # Examples
    /// See [`Loop::submit`].
    pub fn counters(&self) -> Counters {
        self.driver.counters()
    }

    /// Sets the most requests that may be under way, 65,536 by default, to bound the memory that they hold.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Full, Loop, Request};
    ///
    /// let mut ring = Loop::new()?;
    /// ring.set_under_way_max(1);
    /// ring.submit(Request::Nop, 1)?;
    /// let Err(Full(request)) = ring.submit(Request::Nop, 2) else { panic!("there is no room") };
    /// while ring.take().is_none() {
    ///     ring.wait(sakia_driver::Wait::Forever)?;
    /// }
    /// ring.submit(request, 2)?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_under_way_max(&mut self, most: usize) {
        self.under_way_max = most;
    }

    /// Returns the number of requests whose last outcome was not taken.
    ///
    /// # Examples
    /// See [`Loop::stop`].
    pub fn under_way(&self) -> usize {
        self.requests.under_way()
    }

    /// Submits a request, which reaches the kernel with the next [`wait`](Loop::wait) at the latest. Its
    /// outcome has this token; an error of the operation is an outcome, too.
    ///
    /// # Errors
    /// As many requests are under way as may be: the request comes back.
    ///
    /// # Examples
    /// A read of the page cache is done by then:
    /// ```
    /// use sakia_driver::{FileHandle, Loop, OpKind, Request};
    ///
    /// let mut ring = Loop::new()?;
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// # std::fs::read("Cargo.toml")?;
    /// ring.submit(Request::read(&file, vec![0; 8].into(), 0), 7)?;
    /// // In the page cache, as a rule.
    /// if ring.counters().of(OpKind::Read).inline == 1 {
    ///     assert_eq!(ring.take().expect("it is done").token, 7);
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    pub fn submit(&mut self, request: Request, token: u64) -> Result<Ticket, Full> {
        if !self.has_room() {
            return Err(Full(request));
        }
        Ok(self.requests.submit(request, token))
    }

    /// Submits a [`Request::Nop`], in fewer instructions.
    ///
    /// # Errors
    /// As [`submit`](Loop::submit).
    ///
    /// # Examples
    /// See [`Loop::submit_read`].
    #[inline(always)]
    pub fn submit_nop(&mut self, token: u64) -> Result<Ticket, Full> {
        if !self.has_room() {
            return Err(Full(Request::Nop));
        }
        Ok(self.requests.submit_nop(token))
    }

    /// Submits a [`Request::Read`] of a file handle, in fewer instructions.
    ///
    /// # Errors
    /// As [`submit`](Loop::submit).
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{FileHandle, Loop, Wait};
    ///
    /// let mut ring = Loop::new()?;
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// ring.submit_read(&file, vec![0; 9].into(), 0, 1)?;
    /// ring.submit_nop(2)?;
    /// let mut tokens = 0;
    /// while ring.under_way() > 0 {
    ///     match ring.take() {
    ///         Some(outcome) => tokens += outcome.token,
    ///         None => drop(ring.wait(Wait::Forever)?),
    ///     }
    /// }
    /// assert_eq!(tokens, 3);
    /// # std::io::Result::Ok(())
    /// ```
    #[inline(always)]
    pub fn submit_read(
        &mut self,
        file: &FileHandle,
        buffer: Buffer,
        offset: u64,
        token: u64,
    ) -> Result<Ticket, Full> {
        if !self.has_room() {
            return Err(Full(Request::read(file, buffer, offset)));
        }
        Ok(self.requests.submit_read(file, buffer, offset, token))
    }

    /// Submits a [`Request::Write`] of a file handle, in fewer instructions.
    ///
    /// # Errors
    /// As [`submit`](Loop::submit).
    ///
    /// # Examples
    /// See [`Loop::submit_read`].
    #[inline(always)]
    pub fn submit_write(
        &mut self,
        file: &FileHandle,
        buffer: Buffer,
        offset: u64,
        token: u64,
    ) -> Result<Ticket, Full> {
        if !self.has_room() {
            return Err(Full(Request::write(file, buffer, offset)));
        }
        Ok(self.requests.submit_write(file, buffer, offset, token))
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.requests.under_way() < self.under_way_max
    }

    /// Takes the outcome of a request, oldest first as far as they came one after the other. Makes no system
    /// call.
    ///
    /// # Examples
    /// See [`Loop`](Loop#examples).
    #[inline(always)]
    pub fn take(&mut self) -> Option<Outcome> {
        self.requests.take()
    }

    /// Submits what was not, and waits for an outcome, if there is none to [take](Loop::take). It may return
    /// without one: after a wake, after a signal, when the time is over. Returns the number of outcomes to
    /// take.
    ///
    /// # Errors
    /// A permanent failure of the backend, after which the loop is of no more use; always an error in a
    /// forked child.
    ///
    /// # Examples
    /// See [`Loop`](Loop#examples).
    #[inline]
    pub fn wait(&mut self, wait: Wait) -> io::Result<usize> {
        let wait = self.begin_wait(wait);
        self.driver.turn(wait)?;
        Ok(self.end_wait())
    }

    /// As [`wait`](Loop::wait), with another signal mask while the thread sleeps, as `ppoll(2)`: for a
    /// program that blocks its signals, so that their handlers run within its waits and nowhere else. The
    /// kernel sets the mask and puts the thread to sleep in one step. So no signal is missed between a look
    /// at what a handler has noted and the sleep.
    ///
    /// A signal that the mask lets through ends the wait, perhaps without an outcome, after its handler has
    /// run; one that was pending before ends it at once. A wait that need not sleep handles pending signals,
    /// too, so a busy loop does not put them off. Signals that the mask blocks stay pending.
    ///
    /// Costs a further system call unless a signal ends it.
    ///
    /// # Errors
    /// As [`wait`](Loop::wait). [`Unsupported`](io::ErrorKind::Unsupported): the driver's backend, or the
    /// host of its ring, cannot do it; nothing was submitted.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Loop, SignalMask, Wait};
    ///
    /// # fn block(signal: libc::c_int) {
    /// #     unsafe {
    /// #         let mut set = std::mem::zeroed();
    /// #         libc::sigaddset(&mut set, signal);
    /// #         libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    /// #     }
    /// # }
    /// # fn has_asked_to_end() -> bool { true }
    /// let mut ring = Loop::new()?;
    /// block(libc::SIGTERM); // its handler sets a flag
    /// let mask = SignalMask::of_thread()?.without([libc::SIGTERM])?;
    /// while !has_asked_to_end() {
    ///     // A signal that comes here stays pending, and ends the wait.
    ///     ring.wait_with_signals(Wait::Forever, &mask)?;
    ///     while let Some(outcome) = ring.take() {
    ///         println!("{outcome:?}");
    ///     }
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Kernel
    /// On epoll 4.18; the timeout is in whole milliseconds, rounded up, before 5.11.
    #[doc(alias = "ppoll")]
    #[doc(alias = "epoll_pwait")]
    pub fn wait_with_signals(&mut self, wait: Wait, mask: &SignalMask) -> io::Result<usize> {
        let wait = self.begin_wait(wait);
        self.driver.turn_with_signals(wait, mask)?;
        Ok(self.end_wait())
    }

    /// Requests that a request be canceled. Its outcome comes in any case: its value, if it was quicker, or
    /// `ECANCELED`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{CURRENT_POSITION, FileHandle, Loop, Request, Wait};
    /// use std::os::fd::OwnedFd;
    ///
    /// let mut ring = Loop::new()?;
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = FileHandle::new(reader);
    /// // It would wait for ever.
    /// let ticket = ring.submit(Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION), 1)?;
    /// ring.wait(Wait::Poll)?;
    /// ring.cancel(ticket);
    /// let outcome = loop {
    ///     match ring.take() {
    ///         Some(outcome) => break outcome,
    ///         None => ring.wait(Wait::Forever)?,
    ///     };
    /// };
    /// assert_eq!(outcome.result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn cancel(&mut self, ticket: Ticket) {
        self.requests.cancel(ticket);
    }

    /// Returns the bytes of a [`Request::ReceiveMany`] that are lent; none if they are another loop's.
    ///
    /// # Examples
    /// See [`Request::ReceiveMany`].
    pub fn bytes(&self, lent: &Lent) -> &[u8] {
        self.requests.bytes(lent)
    }

    /// Gives memory back to which bytes were received. Nothing happens if it is another loop's.
    ///
    /// # Examples
    /// See [`Request::ReceiveMany`].
    pub fn give_back(&mut self, lent: Lent) {
        self.requests.give_back(lent);
    }

    /// Returns the means to end a [`wait`](Loop::wait) from anywhere.
    ///
    /// # Examples
    /// See [`LoopWaker`](LoopWaker#examples).
    pub fn waker(&self) -> LoopWaker {
        LoopWaker::new(self.requests.signal())
    }

    /// Returns a descriptor that becomes readable when a [`wait`](Loop::wait) would bring something, for a
    /// foreign loop to poll. Before the foreign loop sleeps, call `wait` with [`Wait::Poll`], and take all
    /// outcomes.
    ///
    /// # Errors
    /// As [`Driver::pollable`].
    ///
    /// # Examples
    /// ```
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use sakia_driver::{Loop, Request, Wait};
    ///
    /// let mut ring = Loop::new()?;
    /// let pollable = ring.pollable()?;
    /// ring.submit(Request::Nop, 1)?;
    /// while ring.wait(Wait::Poll)? == 0 {
    ///     poll(&mut [PollFd::new(&pollable, PollFlags::IN)], None)?;
    /// }
    /// assert_eq!(ring.take().expect("it is done").token, 1);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn pollable(&mut self) -> io::Result<OwnedFd> {
        let pollable = self.driver.pollable()?;
        // Of wakes their own descriptor tells: its poll is over once the loop has seen one.
        let pollable = readable::or(pollable, self.requests.signal().as_fd())?;
        self.is_polled = true;
        Ok(pollable)
    }

    /// Ends the loop: cancels what is under way, and waits at most `limit` for the kernel to give all memory
    /// back. The outcomes of what has ended by then can still be taken. Later requests end with `ECANCELED`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{CURRENT_POSITION, FileHandle, Loop, Request, Wait};
    /// use std::os::fd::OwnedFd;
    ///
    /// let mut ring = Loop::new()?;
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = FileHandle::new(reader);
    /// ring.submit(Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION), 1)?;
    /// ring.wait(Wait::Poll)?;
    /// assert!(ring.stop(std::time::Duration::from_secs(10)).leaked.is_empty());
    /// assert_eq!((ring.under_way(), ring.take().map(|outcome| outcome.token)), (1, Some(1)));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn stop(&mut self, limit: Duration) -> RequestsEnd {
        self.requests.begin_end();
        let leaked = self.driver.end_requests(limit);
        self.requests.end();
        RequestsEnd { leaked }
    }

    /// Does what is due before a wait, and returns how long it may sleep.
    #[inline(always)]
    fn begin_wait(&mut self, wait: Wait) -> Wait {
        if self.is_polled || !self.requests.is_wake_armed() || self.requests.is_lasting_due() {
            self.prepare_turn();
        }
        if matches!(wait, Wait::Poll) {
            self.driver.look_again(); // on epoll turns without a sleep look every second time
        }
        let is_woken = self.requests.signal().is_raised();
        if is_woken || self.requests.ready() > 0 { Wait::Poll } else { wait }
    }

    /// Takes wakes that have come. Returns the number of outcomes to take.
    #[inline(always)]
    fn end_wait(&mut self) -> usize {
        if self.requests.signal().is_raised() {
            self.requests.note_wake(self.is_polled);
        }
        self.requests.run_lasting();
        self.requests.ready()
    }

    /// Does what is rarely due before a turn.
    #[cold]
    #[inline(never)]
    fn prepare_turn(&mut self) {
        if self.is_polled {
            self.driver.clear_readiness();
        }
        if !self.requests.is_wake_armed() {
            self.requests.arm_wake();
        }
        self.requests.prepare_lasting();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.stop(DRAIN_LIMIT);
    }
}

// All these tests make system calls.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::epoll::Epoll;

    /// A wake that is taken between its mark and its write leaves the write. The loop must not take that for
    /// one wake after the other.
    #[test]
    fn a_late_write_of_a_wake_ends_one_wait() {
        for driver in [Driver::uring().unwrap(), Driver::new(Epoll::new().unwrap())] {
            let mut ring = Loop::on(driver).unwrap();
            ring.wait(Wait::Poll).unwrap();
            let signal = Arc::clone(ring.requests.signal());
            rustix::io::write(&signal, &1_u64.to_ne_bytes()).unwrap();
            assert_eq!(ring.wait(Wait::Forever).unwrap(), 0);
            ring.wait(Wait::Poll).unwrap();
            let mut readable = [PollFd::new(&signal, PollFlags::IN)];
            assert_eq!(poll(&mut readable, Some(&Timespec::default())), Ok(0), "it was taken");
            // The next wake is seen all the same, and so is one whose write was taken before its mark was
            // seen.
            ring.waker().wake();
            assert_eq!(ring.wait(Wait::Forever).unwrap(), 0);
            ring.waker().wake();
            signal.drain();
            assert_eq!(ring.wait(Wait::Forever).unwrap(), 0);
        }
    }
}
