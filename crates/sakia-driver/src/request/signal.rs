//! Waking a loop from anywhere: another thread, a signal handler, a finalizer.
//!
//! A wake is one atomic store and, if the last one has been seen, one `write(2)` to an eventfd that the loop
//! polls. It takes no lock and allocates nothing, so a thread that a signal interrupts within a wake may wake
//! as well.
//!
//! No wake is lost: a wake that finds the mark set comes before the loop [clears](Signal::clear) it, and the
//! loop looks for work after that. Otherwise it writes, and the write stays in the eventfd until the loop
//! reads it. A write that is later than the clearing of its mark ends one wait more, and is
//! [taken](Signal::drain) before the next.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_ring::Process;

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
    pub(crate) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { is_raised: AtomicBool::new(false), event, process: Process::current() })
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_intact()
    }

    pub(crate) fn raise(&self) {
        if !self.is_of_this_process() || self.is_raised.swap(true, Ordering::AcqRel) {
            return;
        }
        self.write();
    }

    /// Makes the eventfd readable.
    pub(crate) fn write(&self) {
        // A system call of its own, not the C library's: `errno` stays. It fails only if the eventfd is
        // nearly full, and so readable.
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok();
    }

    #[inline(always)]
    pub(crate) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Acquire)
    }

    /// Takes the wakes up to now.
    pub(crate) fn clear(&self) {
        self.is_raised.swap(false, Ordering::AcqRel);
        self.drain();
    }

    /// Takes what wakes have written. The mark stays: look at it afterwards, since the wake that has set it
    /// may have written before.
    pub(crate) fn drain(&self) {
        rustix::io::read(&self.event, &mut [0; 8]).ok(); // `EAGAIN`: a wake has yet to write
    }
}
