//! The handle by which others wake a loop, and the operation by which the loop sees that while it sleeps.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};

use crate::driver::Driver;
use crate::fd::Fd;
use crate::handle::Op;
use crate::ops::poll::{Poll, PollEvents};
use crate::request::Signal;

/// Wakes a [`Loop`](crate::Loop), from any thread. Clones wake the same loop. Costs one system call, or none
/// if the loop has not yet seen an earlier wake.
///
/// A wake takes no lock, allocates nothing and keeps `errno`, so that signal handlers may call it. After the
/// loop's end, and in a forked child, it does nothing. (The drop of the last clone closes a descriptor and
/// frees memory: it is not for signal handlers.)
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
