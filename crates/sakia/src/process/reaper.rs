//! Reaps children that were dropped before they had ended.
//!
//! One thread reaps all of them; the first such child starts it. It polls their pidfds, and an eventfd that
//! announces new ones. Children without a pidfd are checked from time to time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sakia_ring::PerProcess;
use sakia_thread::start_thread;

use super::identity::Identity;
use crate::blocking;

/// The time between checks of children without a pidfd.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The interface to the thread.
struct Reaper {
    /// Children that the thread has not taken.
    inbox: Mutex<Vec<Identity>>,
    /// An eventfd, written to after a change of the inbox.
    wake: OwnedFd,
}

/// Has `child` reaped when it ends, without blocking.
pub(super) fn reap(child: Identity) {
    // A forked child has a thread of its own: its parent's is not there, and reaps the parent's children.
    static REAPER: PerProcess<OnceLock<Option<Arc<Reaper>>>> = PerProcess::new();
    match REAPER.get_or_init(OnceLock::new).get_or_init(|| Reaper::start().ok()) {
        Some(reaper) => reaper.send(child),
        // No descriptor or thread was left for the reaper: a thread of the pool waits.
        None => {
            let wait = move || {
                child.wait();
                child.try_reap().ok();
            };
            blocking::shared().spawn(wait).detach();
        }
    }
}

impl Reaper {
    fn start() -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let reaper = Arc::new(Self { inbox: Mutex::new(Vec::new()), wake });
        let thread_reaper = Arc::clone(&reaper);
        start_thread("sakia-reaper", None, Box::new(move || thread_reaper.run()))?;
        Ok(reaper)
    }

    fn send(&self, child: Identity) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        // A write fails only when the counter is full, and then the thread is woken already.
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).ok();
    }

    /// Reaps children: the thread's main function. It runs as long as the process.
    fn run(&self) {
        let mut orphans: Vec<Identity> = Vec::new();
        loop {
            self.sleep(&orphans);
            let mut count = [0; 8];
            rustix::io::read(&self.wake, &mut count).ok(); // fails when the counter is 0
            let new =
                std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
            orphans.extend(new);
            // An error means that other code has reaped it.
            orphans.retain(|orphan| matches!(orphan.try_reap(), Ok(None)));
        }
    }

    /// Blocks until there may be something to do.
    fn sleep(&self, orphans: &[Identity]) {
        let pidfds = orphans.iter().filter_map(|orphan| orphan.pidfd().map(|pidfd| pidfd.as_fd()));
        let all = std::iter::once(self.wake.as_fd()).chain(pidfds);
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let must_look = orphans.iter().any(|orphan| orphan.pidfd().is_none());
        let timeout = must_look.then_some(&LOOK_INTERVAL);
        if poll(&mut fds, timeout).is_err() {
            // The process has too many descriptors, or no memory is left: check after a while instead.
            thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}
