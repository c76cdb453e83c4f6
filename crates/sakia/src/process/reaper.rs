//! Reaps children that were dropped before they had ended.
//!
//! One thread reaps all of them; the first such child starts it. It polls their pidfds, and an eventfd that
//! announces new ones. Children without a pidfd are checked from time to time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use sakia_ring::PerProcess;
use sakia_trace::start_thread;

use super::pid_of;
use crate::blocking::spawn_blocking;

/// The time between checks of children without a pidfd.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The interface to the thread.
struct Reaper {
    /// Children that the thread has not taken.
    inbox: Mutex<Vec<Child>>,
    /// An eventfd, written to after a change of the inbox.
    wake: OwnedFd,
}

/// A child whose handle was dropped.
struct Orphan {
    child: Child,
    /// `None` if the kernel has no pidfds.
    pidfd: Option<OwnedFd>,
}

/// Has `child` reaped when it ends, without blocking.
pub(super) fn reap(mut child: Child) {
    // A forked child has a thread of its own: its parent's is not there, and reaps the parent's children.
    static REAPER: PerProcess<OnceLock<Option<Arc<Reaper>>>> = PerProcess::new();
    match REAPER.get_or_init(OnceLock::new).get_or_init(|| Reaper::start().ok()) {
        Some(reaper) => reaper.send(child),
        // No descriptor or thread was left for the reaper: a thread of the pool waits.
        None => spawn_blocking(move || drop(child.wait())).detach(),
    }
}

impl Reaper {
    fn start() -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let reaper = Arc::new(Self { inbox: Mutex::new(Vec::new()), wake });
        let thread_reaper = Arc::clone(&reaper);
        let thread = thread::Builder::new().name("sakia-reaper".into());
        start_thread(thread, Box::new(move || thread_reaper.run()))?;
        Ok(reaper)
    }

    fn send(&self, child: Child) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        // A write fails only when the counter is full, and then the thread is woken already.
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).ok();
    }

    /// Reaps children: the thread's main function. It runs as long as the process.
    fn run(&self) {
        let mut orphans: Vec<Orphan> = Vec::new();
        loop {
            self.sleep(&orphans);
            let mut count = [0; 8];
            rustix::io::read(&self.wake, &mut count).ok(); // fails when the counter is 0
            let new =
                std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
            orphans.extend(new.into_iter().map(Orphan::new));
            // An error means that other code has reaped it.
            orphans.retain_mut(|orphan| matches!(orphan.child.try_wait(), Ok(None)));
        }
    }

    /// Blocks until there may be something to do.
    fn sleep(&self, orphans: &[Orphan]) {
        let pidfds = orphans.iter().filter_map(|orphan| orphan.pidfd.as_ref());
        let all = std::iter::once(&self.wake).chain(pidfds);
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        let must_look = orphans.iter().any(|orphan| orphan.pidfd.is_none());
        let timeout = must_look.then_some(&LOOK_INTERVAL);
        if poll(&mut fds, timeout).is_err() {
            // The process has too many descriptors, or no memory is left: check after a while instead.
            thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

impl Orphan {
    fn new(child: Child) -> Self {
        let pidfd = pidfd_open(pid_of(&child), PidfdFlags::empty()).ok();
        Self { child, pidfd }
    }
}
