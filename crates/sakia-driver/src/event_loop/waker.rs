//! Waking a loop from anywhere: another thread, a signal handler, a finalizer.
//!
//! A wake is one atomic store and, if the last one has been seen, one `write(2)` to an eventfd that the loop
//! polls. It takes no lock and allocates nothing, so a thread that a signal interrupts within a wake may wake
//! as well.
//!
//! No wake is lost: a wake that finds the mark set comes before the loop [clears](Signal::clear) it, and the
//! loop looks for work after that. Otherwise it writes, and the write stays in the eventfd until the loop
//! reads it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_ring::Process;

use crate::driver::Driver;
use crate::fd::Fd;
use crate::handle::Op;
use crate::ops::poll::{Poll, PollEvents};

/// Wakes a [`Loop`](crate::Loop), from any thread. Clones wake the same loop. Costs one system call, or none if
/// the loop has not yet seen an earlier wake.
///
/// A wake takes no lock, allocates nothing and keeps `errno`, so that signal handlers may call it. After the
/// loop's end, and in a forked child, it does nothing. (The drop of the last clone closes a descriptor and frees
/// memory: it is not for signal handlers.)
///
/// # Examples
/// ```
/// use sakia_driver::{Loop, Wait};
///
/// let mut ring = Loop::new()?;
/// let waker = ring.waker();
/// let other = std::thread::spawn(move || waker.wake());
/// // Sleeps, with nothing under way, until the other thread wakes it.
/// assert_eq!(ring.wait(Wait::Forever)?, 0);
/// other.join().expect("it does not panic");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LoopWaker {
    signal: Arc<Signal>,
}

impl LoopWaker {
    pub(super) fn new(signal: &Arc<Signal>) -> Self {
        Self { signal: Arc::clone(signal) }
    }

    /// Ends the loop's wait, or its next one.
    ///
    /// # Examples
    /// See [`LoopWaker`](LoopWaker#examples).
    pub fn wake(&self) {
        self.signal.raise();
    }
}

/// The operation that waits for a wake while the loop sleeps.
#[derive(Debug, Default)]
pub(super) struct WakePoll {
    poll: Option<Op<Poll>>,
    /// Set by its end. Of an atomic only because a [`Wake`] is for all threads.
    has_ended: Arc<Flag>,
}

#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl WakePoll {
    #[inline(always)]
    pub(super) fn is_armed(&self) -> bool {
        self.poll.is_some() && !self.has_ended.0.load(Ordering::Relaxed)
    }

    /// Waits for wakes from the next turn on.
    pub(super) fn arm(&mut self, driver: &Driver, event: &Fd) {
        self.has_ended.0.store(false, Ordering::Relaxed);
        let mut poll = driver.poll(event, PollEvents::READABLE);
        let waker = Arc::clone(&self.has_ended).into();
        if Pin::new(&mut poll).poll(&mut Context::from_waker(&waker)).is_ready() {
            self.poll = None; // the driver has ended
            return;
        }
        self.poll = Some(poll);
    }

    pub(super) fn disarm(&mut self) {
        self.poll = None;
    }
}

/// The shared part of a loop's wakers.
#[derive(Debug)]
pub(crate) struct Signal {
    /// A wake that the loop has not seen. Set before each write, and cleared before each read.
    is_raised: AtomicBool,
    /// It lives as long as any waker, so that its number is not reused.
    event: OwnedFd,
    process: Process,
}

/// For [`Driver::lend`](crate::Driver::lend).
impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Signal {
    /// # Errors
    /// As `eventfd(2)`.
    pub(super) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { is_raised: AtomicBool::new(false), event, process: Process::current() })
    }

    pub(super) fn raise(&self) {
        if !self.process.is_intact() || self.is_raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // A system call of its own, not the C library's: `errno` stays. It fails only if the eventfd is nearly
        // full, and so readable.
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok();
    }

    #[inline(always)]
    pub(super) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Acquire)
    }

    /// Takes the wakes up to now.
    pub(super) fn clear(&self) {
        self.is_raised.swap(false, Ordering::AcqRel);
        rustix::io::read(&self.event, &mut [0; 8]).ok(); // `EAGAIN`: a wake has yet to write
    }
}
