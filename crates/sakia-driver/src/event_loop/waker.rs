//! The handle by which others wake a loop, and the operation by which the loop sees that while it sleeps.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};

use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::ops::poll::{Poll as PollOperation, PollEvents};
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
    poll: Option<Op<PollOperation>>,
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
    pub(super) fn arm(&mut self, driver: &Handle, event: &Fd) {
        self.has_ended.0.store(false, Ordering::Relaxed);
        let waker = Arc::clone(&self.has_ended).into();
        self.poll = Some(driver.poll(event, PollEvents::READABLE));
        if self.poll_op(&mut Context::from_waker(&waker)).is_ready() {
            self.poll = None; // the driver has ended
        }
    }

    /// Completes at a wake, for the task of an executor.
    ///
    /// # Errors
    /// `ECANCELED`: the driver has ended.
    pub(super) fn poll(
        &mut self,
        driver: &Handle,
        event: &Fd,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.poll.is_none() {
            self.poll = Some(driver.poll(event, PollEvents::READABLE));
        }
        let poll = self.poll_op(cx);
        if poll.is_ready() {
            self.poll = None;
        }
        poll
    }

    fn poll_op(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let op = self.poll.as_mut().expect("it was just started");
        Pin::new(op).poll(cx).map_ok(|_| ())
    }

    pub(super) fn disarm(&mut self) {
        self.poll = None;
    }
}
