//! The state of a queue, which its clones and the engine's threads share.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use sakia_driver::{Outcome, Request};
use sakia_ring::Process;

use super::pulse::{Awake, Pulse};
use super::server::{Inbox, Letter};
use super::table::{QueueTicket, Slot, State, Table, ThreadNumber};
use crate::engine::gate::Gate;

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    process: Process,
    table: Mutex<Table>,
    /// The outcomes to take. Written under the lock, and read without.
    ready: AtomicUsize,
    /// A wake that no wait has seen.
    is_woken: AtomicBool,
    /// Requests were lost with their thread.
    has_lost: AtomicBool,
    /// For threads that wait for outcomes.
    reapers: Pulse,
    /// For threads that wait for the end of all requests.
    stoppers: Pulse,
    /// Readable while there are outcomes to take, or a wake; made when it is first asked for.
    event: OnceLock<OwnedFd>,
}

/// Requests were lost with a thread that has failed. It is told once, and whenever nothing that was sent can
/// come any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

impl Default for Shared {
    fn default() -> Self {
        Self {
            process: Process::current(),
            table: Mutex::default(),
            ready: AtomicUsize::new(0),
            is_woken: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            reapers: Pulse::default(),
            stoppers: Pulse::default(),
            event: OnceLock::new(),
        }
    }
}

impl Shared {
    pub(super) fn is_intact(&self) -> bool {
        self.process.is_intact()
    }

    /// Locks the table. Only in the process that made it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        debug_assert!(self.is_intact(), "a child may wait for ever");
        // No code panics while it holds the lock, but for assertions of the table.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the requests of a batch to a thread. Those that were canceled, or that it is too late for, end
    /// here.
    pub(super) fn send(
        self: &Arc<Self>,
        requests: Vec<(QueueTicket, Request)>,
        thread: ThreadNumber,
        inbox: &Inbox,
        gate: &Gate,
    ) {
        let mut table = self.lock();
        let is_late = |&(ticket, _): &(QueueTicket, Request)| {
            table.is_closed || table.state(ticket) == State::Batched { is_canceled: true }
        };
        let (late, timely) = match requests.iter().any(is_late) {
            true => requests.into_iter().partition(is_late),
            false => (Vec::new(), requests),
        };
        for (ticket, _) in &timely {
            table.set(ticket.slot, State::On(thread));
        }
        // Under the lock: a letter to cancel one of them comes after this one.
        let letter = Letter::Start { queue: Arc::clone(self), requests: timely };
        let (server, lost) = match inbox.add(letter) {
            Ok(server) => (server, Vec::new()),
            Err(Letter::Start { requests, .. }) => (None, requests),
            Err(_) => unreachable!("the letter was to start requests"),
        };
        let count = late.len() + lost.len();
        gate.leave_many(count);
        for (ticket, request) in late.into_iter().chain(lost) {
            table.push(ticket.refuse(request, Errno::CANCELED.into()));
        }
        if count > 0 {
            self.tell(table);
        } else {
            drop(table);
        }
        if let Some(server) = server {
            server.wake();
        }
    }

    /// Adds the outcomes of requests, which have slots for tokens, and leave the gate. Returns their number.
    pub(super) fn deliver(&self, outcomes: &mut Vec<Outcome>, gate: &Gate) -> usize {
        let count = outcomes.len();
        let mut table = self.lock();
        gate.leave_many(count); // before a thread hears of them
        if table.is_ended {
            for outcome in outcomes.iter() {
                table.end(outcome.token as Slot);
            }
            let is_over = !table.has_sent();
            drop(table);
            outcomes.clear(); // their memory may be another owner's
            if is_over {
                self.stoppers.give_all(); // of a stop after the one that gave them up
            }
            return count;
        }
        outcomes.drain(..).for_each(|outcome| table.push(outcome));
        self.tell(table);
        count
    }

    /// Makes outcomes that were added known, and ends the lock.
    fn tell(&self, table: MutexGuard<'_, Table>) {
        let count = table.ready();
        let had_none = self.ready.swap(count, Ordering::SeqCst) == 0;
        if had_none && count > 0 {
            self.write_event();
        }
        let is_over = table.is_closed && !table.has_sent();
        drop(table);
        // A reaper that leaves some wakes the next.
        if count > 0 {
            self.reapers.give();
        }
        if is_over {
            self.stoppers.give_all();
        }
    }

    /// Returns the number of outcomes to take, without a lock.
    pub(super) fn ready(&self) -> usize {
        self.ready.load(Ordering::SeqCst)
    }

    /// Takes outcomes, oldest first.
    pub(super) fn take(&self, most: usize, to: &mut Vec<Outcome>) -> usize {
        if self.ready() == 0 {
            self.settle_idle();
            return 0;
        }
        let mut table = self.lock();
        let count = table.take(most, to);
        let left = table.ready();
        self.ready.store(left, Ordering::SeqCst);
        if left == 0 {
            self.settle_event();
        }
        drop(table);
        if count > 0 && left > 0 {
            self.reapers.give();
        }
        count
    }

    /// Waits for outcomes to take. Returns without any after a wake, after a signal, and when the time is
    /// over.
    ///
    /// # Errors
    /// See [`Lost`].
    pub(super) fn wait(&self, until: Option<Instant>) -> Result<usize, Lost> {
        loop {
            let sleeper = self.reapers.begin();
            let is_woken =
                self.is_woken.load(Ordering::SeqCst) && self.is_woken.swap(false, Ordering::SeqCst);
            // After the mark is gone: the thread that takes the last one either finds it gone, or is seen.
            let ready = self.ready();
            let is_over = is_woken || ready > 0;
            if !is_over && self.has_lost.load(Ordering::SeqCst) && self.lock().tells_of_lost() {
                return Err(Lost);
            }
            if is_over || sleeper.sleep(until) != Awake::Pulse {
                let ready = if is_over { ready } else { self.ready() };
                if ready == 0 {
                    self.settle_idle();
                }
                return Ok(ready);
            }
        }
    }

    /// Ends a wait, or the next one. Takes no lock and allocates nothing.
    pub(super) fn wake(&self) {
        if !self.is_intact() || self.is_woken.swap(true, Ordering::SeqCst) {
            return;
        }
        fence(Ordering::SeqCst); // either this thread sees a new event, or its maker the wake
        self.write_event();
        self.reapers.give();
    }

    /// Waits until all requests that were sent have ended, or that time.
    pub(super) fn wait_for_all(&self, until: Option<Instant>) {
        loop {
            let sleeper = self.stoppers.begin();
            if !self.lock().has_sent() || sleeper.sleep(until) == Awake::Time {
                return;
            }
        }
    }

    /// Notes that a thread has failed which had requests of the queue: they will not end.
    pub(super) fn fail(&self, thread: ThreadNumber) {
        if self.lock().lose(thread) {
            self.has_lost.store(true, Ordering::SeqCst);
        }
        self.reapers.give_all();
        self.stoppers.give_all();
    }

    /// Returns the event, which is made if there is none.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub(super) fn event(&self) -> std::io::Result<OwnedFd> {
        use rustix::event::{EventfdFlags, eventfd};
        if self.event.get().is_none() {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let _table = self.lock();
            self.event.set(event).ok(); // another thread was quicker
            fence(Ordering::SeqCst); // pairs with that of a wake
            if self.ready() > 0 || self.is_woken.load(Ordering::SeqCst) {
                self.write_event();
            }
        }
        self.event.get().expect("it is set").as_fd().try_clone_to_owned()
    }

    /// Makes the event readable.
    fn write_event(&self) {
        if let Some(event) = self.event.get() {
            // It fails only if the event is nearly full, and so readable.
            rustix::io::write(event, &1_u64.to_ne_bytes()).ok();
        }
    }

    /// Makes the event unreadable if there is nothing to tell: a wake may have written after it was seen.
    fn settle_idle(&self) {
        if self.event.get().is_some() {
            let _table = self.lock();
            self.settle_event();
        }
    }

    /// Makes the event unreadable if there is nothing to tell. Under the lock of the table.
    fn settle_event(&self) {
        let Some(event) = self.event.get() else { return };
        rustix::io::read(event, &mut [0; 8]).ok(); // `EAGAIN`: it is not readable
        // A wake may have written before the read, and sets its mark before that.
        if self.is_woken.load(Ordering::SeqCst) || self.ready() > 0 {
            self.write_event();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_intact() {
            // Another thread of the parent may have been changing it: it is left as it is.
            let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget(mem::take(table));
        }
    }
}

// All these tests make system calls.
#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Another thread has seen the wake between its mark and its write.
    #[test]
    fn a_late_write_of_a_wake_is_seen_once() {
        let shared = Shared::default();
        let event = shared.event().unwrap();
        let is_readable = || {
            let mut events = [PollFd::new(&event, PollFlags::IN)];
            poll(&mut events, Some(&Timespec::default())).unwrap() == 1
        };
        let now = Some(Instant::now());
        let looks: [&dyn Fn() -> usize; 2] =
            [&|| shared.take(1, &mut Vec::new()), &|| shared.wait(now).unwrap()];
        for look in looks {
            assert!(!is_readable());
            shared.write_event();
            assert_eq!((is_readable(), look()), (true, 0));
        }
        assert!(!is_readable());
        // That of a wake whose mark is there stays, until a wait has seen it.
        shared.wake();
        assert_eq!((shared.take(1, &mut Vec::new()), is_readable()), (0, true));
        assert_eq!((shared.wait(None), is_readable()), (Ok(0), false));
    }
}
