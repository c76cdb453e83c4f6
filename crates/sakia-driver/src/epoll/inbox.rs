//! Messages of other threads to a backend that sleeps in epoll: results of lane threads, and wakes of any
//! thread.
//!
//! The protocol, all of it under one lock:
//! 1. A sender locks, stores its result (or the wake), and clears the mark *parked* if it is set. If it was
//!    set, the sender writes to the eventfd after it has unlocked.
//! 2. The backend locks and checks before it sleeps. If the inbox is not empty it does not sleep. If it is
//!    empty, it sets the mark, unlocks and sleeps in epoll, whose set includes the eventfd.
//! 3. When it wakes up, for any reason, it locks, clears the mark and takes everything.
//!
//! No wake is lost: either the sender or the backend in step 2 locks first. If the sender does, the backend
//! sees its result. If the backend does, the sender sees the mark and writes, and a write to the eventfd
//! before or during the sleep ends it: it is watched for edges (`EPOLLET`), and an edge is kept until a wait
//! reports it.
//!
//! Harmless races:
//! - The backend wakes up between the sender's unlock and its write. The write's edge then ends the next
//!   sleep, which finds nothing and goes on.
//! - Two senders in one sleep: the first clears the mark, the second does not write. The backend takes both
//!   results.
//!
//! Once a foreign loop polls the epoll set instead ([`Inbox::watch`]) the backend never parks, and every
//! sender writes: the set is readable from then until a wait takes the edge.
//!
//! The eventfd is never read; its count has no meaning. [`Inbox::has_news`] is a hint without the lock: it
//! may miss one result, which the next enter brings.
//!
//! Any thread may send; the backend's receives.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_ring::Process;

use super::job::Outcome;

/// Messages of other threads to a backend.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    /// The inbox is not empty. Written under the lock.
    has_news: AtomicBool,
    /// In the backend's epoll set. It lives as long as any sender, so that its number is not reused.
    event: OwnedFd,
    /// Also written to, if a foreign loop polls the ring that the backend works beside.
    foreign: OnceLock<OwnedFd>,
    process: Process,
}

#[derive(Debug, Default)]
struct InboxState {
    /// Outcomes of jobs by their tickets, oldest first.
    results: Vec<(u64, Outcome)>,
    /// A wake is pending. Set by a wake, cleared by a receive.
    is_woken: bool,
    /// The backend sleeps, or is about to. Set by it in `park`; cleared by the first sender after that, or
    /// by the backend when it wakes up.
    is_parked: bool,
    /// A foreign loop polls the epoll set. Set once; every sender writes then.
    is_watched: bool,
    /// The backend has been dropped. Set once; excludes everything else.
    is_closed: bool,
}

impl Inbox {
    pub(super) fn new(process: Process) -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (state, has_news) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { state, has_news, event, foreign: OnceLock::new(), process })
    }

    /// Returns the descriptor that becomes readable when a sleep is to end; it is watched for edges.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    // The senders' side.

    /// Delivers the outcome of a job. If the backend has been dropped, the outcome is dropped, and a
    /// descriptor in it closed.
    pub(super) fn deliver(&self, ticket: u64, outcome: Outcome) {
        self.send(|state| state.results.push((ticket, outcome)));
    }

    /// Ends the backend's sleep, or its next one.
    pub(super) fn wake(&self) {
        // In a forked child another thread of the parent may have held the lock, which then stays locked.
        if self.process.is_intact() {
            self.send(|state| state.is_woken = true);
        }
    }

    fn send(&self, leave: impl FnOnce(&mut InboxState)) {
        let mut state = self.lock();
        if state.is_closed {
            return; // drops what was to be left
        }
        leave(&mut state);
        self.has_news.store(true, Ordering::Relaxed);
        let is_asleep = std::mem::take(&mut state.is_parked) || state.is_watched;
        drop(state);
        if is_asleep {
            self.ring();
        }
    }

    fn ring(&self) {
        // The counter is never near its maximum, the only reason for which this could fail.
        let written = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        debug_assert!(written.is_ok(), "{written:?}");
        if let Some(foreign) = self.foreign.get() {
            rustix::io::write(foreign, &1_u64.to_ne_bytes()).ok();
        }
    }

    // The backend's side.

    /// Returns whether the inbox is not empty, without the lock.
    pub(super) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Makes every sender write to the eventfd from now on. Earlier results are signaled as well.
    pub(super) fn watch(&self) {
        let mut state = self.lock();
        state.is_watched = true;
        let has_news = !state.results.is_empty() || state.is_woken;
        drop(state);
        if has_news {
            self.ring();
        }
    }

    /// As [`watch`](Inbox::watch), and every sender writes to this eventfd, too: that of a ring, which a foreign
    /// loop polls.
    pub(super) fn watch_with(&self, foreign: OwnedFd) {
        let _ = self.foreign.set(foreign);
        self.watch();
    }

    /// Prepares a sleep. Returns false if the inbox is not empty.
    pub(super) fn park(&self) -> bool {
        let mut state = self.lock();
        let is_empty = state.results.is_empty() && !state.is_woken;
        state.is_parked = is_empty;
        state.is_parked
    }

    /// Moves the results to the end of `results`, and returns whether there was a wake.
    pub(super) fn receive(&self, results: &mut Vec<(u64, Outcome)>) -> bool {
        let mut state = self.lock();
        state.is_parked = false;
        results.append(&mut state.results);
        self.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.is_woken)
    }

    /// Ends the backend: drops the messages, and all later ones.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let results = std::mem::take(&mut state.results);
        drop(state);
        drop(results); // closes new descriptors whose caller is gone
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// All these tests make system calls.
#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use rustix::event::epoll;

    use super::*;

    /// A backend that only receives.
    struct Receiver {
        epoll: OwnedFd,
        inbox: Arc<Inbox>,
    }

    impl Receiver {
        fn new() -> Self {
            let inbox = Arc::new(Inbox::new(Process::current()).unwrap());
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, inbox.event(), epoll::EventData::new_u64(0), edges).unwrap();
            Self { epoll, inbox }
        }

        /// Sleeps without a limit, until it has received something.
        fn receive(&self, results: &mut Vec<(u64, Outcome)>) -> bool {
            let before = results.len();
            loop {
                if self.inbox.receive(results) {
                    return true;
                }
                if results.len() > before {
                    return false;
                }
                if self.inbox.park() {
                    let mut events = Vec::with_capacity(4);
                    let spare = rustix::buffer::spare_capacity(&mut events);
                    sys_wait(&self.epoll, spare);
                }
            }
        }
    }

    fn sys_wait(epoll: &OwnedFd, events: rustix::buffer::SpareCapacity<'_, epoll::Event>) {
        match epoll::wait(epoll, events, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("{errno}"),
        }
    }

    /// A lost wake would hang this test: each side waits for the other's last move.
    #[test]
    fn each_of_many_single_results_ends_a_sleep() {
        let receiver = Receiver::new();
        let (ask, asked) = std::sync::mpsc::channel::<u64>();
        let inbox = Arc::clone(&receiver.inbox);
        let sender = thread::spawn(move || {
            for ticket in asked {
                inbox.deliver(ticket, Outcome::Done(0));
            }
        });
        let mut results = Vec::new();
        for ticket in 0..20_000 {
            ask.send(ticket).unwrap();
            receiver.receive(&mut results);
            assert_eq!(results.pop().unwrap().0, ticket);
        }
        drop(ask);
        sender.join().unwrap();
    }

    #[test]
    fn results_of_many_senders_all_arrive_and_wakes_too() {
        const SENDERS: u64 = 4;
        const RESULTS: u64 = 5_000;
        let receiver = Receiver::new();
        let senders = (0..SENDERS).map(|sender| {
            let inbox = Arc::clone(&receiver.inbox);
            thread::spawn(move || {
                for result in 0..RESULTS {
                    inbox.deliver(sender * RESULTS + result, Outcome::Done(0));
                    if result % 7 == 0 {
                        thread::yield_now();
                        inbox.wake();
                    }
                }
                inbox.wake();
            })
        });
        let senders: Vec<_> = senders.collect();
        let mut results = Vec::new();
        let mut wakes = 0;
        while (results.len() as u64) < SENDERS * RESULTS || wakes == 0 {
            wakes += u32::from(receiver.receive(&mut results));
        }
        let mut tickets: Vec<u64> = results.iter().map(|(ticket, _)| *ticket).collect();
        tickets.sort_unstable();
        assert!(tickets.into_iter().eq(0..SENDERS * RESULTS));
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    }

    #[test]
    fn a_wake_before_the_sleep_is_not_lost() {
        let receiver = Receiver::new();
        receiver.inbox.wake();
        assert!(!receiver.inbox.park());
        assert!(receiver.receive(&mut Vec::new()));
        assert!(receiver.inbox.park());
    }

    #[test]
    fn a_closed_inbox_closes_what_is_opened_for_nobody() {
        let receiver = Receiver::new();
        let watched = || {
            let (reader, writer) =
                rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
            (reader, Outcome::Opened(writer))
        };
        // Its writing end is closed when a read finds the end.
        let is_closed = |reader: OwnedFd| rustix::io::read(&reader, &mut [0; 1]) == Ok(0);
        let (before, outcome) = watched();
        receiver.inbox.deliver(1, outcome);
        receiver.inbox.close();
        assert!(is_closed(before));
        let (after, outcome) = watched();
        receiver.inbox.deliver(2, outcome);
        assert!(is_closed(after));
    }
}
