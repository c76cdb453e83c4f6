//! The thread that sends delayed bytes while the program computes.
//!
//! It sleeps until the first bytes are due. When none are left it checks twice more, and then sleeps until it
//! is woken. So a burst of writes costs one wake, writes in close succession none, and an idle program no
//! processor time.

use std::mem;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sakia_thread::start_thread;

use crate::Host;

/// The number of checks for more bytes, each after their delay, before the thread waits to be woken: about as
/// much work as the wake that this saves.
const LOOKS: u32 = 2;

/// The longest sleep while bytes are delayed, whatever the host's clock said.
const LOOK: Duration = Duration::from_secs(1);

/// A time that never comes.
const NEVER: Duration = Duration::MAX;

/// An object with delayed bytes.
pub(crate) trait Delayed: Send + Sync + 'static {
    /// Sends delayed bytes, as far as there is room. Returns the time at which the rest is due; without a
    /// rest it leaves the list.
    fn send_due(&self, occasion: Occasion) -> Option<Duration>;
}

/// The reason for sending delayed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// It is this time: due bytes are sent.
    Time(Duration),
    /// A thread is about to wait: all bytes are sent, except those that found no room twice. These are left
    /// to the pump, or each wait would cost a call for each peer that does not read.
    Wait,
    /// A flush: all bytes are sent.
    Flush,
}

/// The list of all objects with delayed bytes, and the thread's state.
#[derive(Debug)]
pub(crate) struct Pump<T> {
    /// The delay of bytes.
    delay: Duration,
    state: Mutex<PumpState<T>>,
    /// Held while the bytes of all listed objects are sent, so that a thread which is about to wait does not
    /// miss bytes that another thread is about to send.
    turn: Mutex<()>,
    /// Not zero while anything is listed or being sent; read without the lock.
    listed: AtomicUsize,
    /// Changes with each wake.
    wakes: AtomicU32,
}

#[derive(Debug)]
struct PumpState<T> {
    delayed: Vec<Arc<T>>,
    /// The time at which the first bytes are due; [`NEVER`] without any.
    next: Duration,
    /// The time of the thread's next check: zero while the thread is about to compute it, [`NEVER`] while it
    /// sleeps until it is woken.
    looks_at: Duration,
    has_thread: bool,
    is_over: bool,
}

impl<T> PumpState<T> {
    /// Notes bytes that are due at the time `due`. Returns true if the thread would sleep longer, and must be
    /// woken.
    #[must_use]
    fn note(&mut self, due: Duration) -> bool {
        // A clock at the end of its range must not make the thread sleep for ever.
        let due = due.min(NEVER - Duration::from_nanos(1));
        self.next = self.next.min(due);
        let is_late = due < self.looks_at;
        if is_late {
            self.looks_at = due;
        }
        is_late
    }
}

impl<T: Delayed> Pump<T> {
    /// Makes an empty list, for bytes that are delayed for `delay`. Its thread starts with the first listed
    /// object.
    pub(crate) fn new(delay: Duration) -> Self {
        let state = PumpState {
            delayed: Vec::new(),
            next: NEVER,
            looks_at: Duration::ZERO,
            has_thread: false,
            is_over: false,
        };
        Self {
            delay,
            state: Mutex::new(state),
            turn: Mutex::new(()),
            listed: AtomicUsize::new(0),
            wakes: AtomicU32::new(0),
        }
    }

    /// Lists `item`, which is not listed yet and whose bytes are due at the time `due`, and makes sure that
    /// the thread checks it then.
    pub(crate) fn list<H: Host>(self: &Arc<Self>, host: &Arc<H>, item: Arc<T>, due: Duration) {
        let mut state = self.state();
        state.delayed.push(item);
        self.listed.store(state.delayed.len(), Ordering::Relaxed);
        if !mem::replace(&mut state.has_thread, true) {
            let (pump, host) = (Arc::clone(self), Arc::clone(host));
            let run = Box::new(move || pump.run(&*host));
            // Without a thread the bytes are sent when the program waits, or writes again.
            state.has_thread = start_thread("sakia-pump", None, run).is_ok();
        }
        let is_late = state.note(due);
        drop(state);
        if is_late {
            self.wake(&**host);
        }
    }

    /// Makes sure that the thread checks a listed object at the time `due`, which may be earlier than the
    /// time with which it was listed.
    pub(crate) fn hurry<H: Host>(&self, host: &H, due: Duration) {
        if self.state().note(due) {
            self.wake(host);
        }
    }

    /// Sends all delayed bytes, as far as there is room and the `occasion` allows.
    pub(crate) fn send_all<H: Host>(&self, host: &H, occasion: Occasion) {
        if self.listed.load(Ordering::Relaxed) != 0 {
            self.send(host, occasion);
        }
    }

    /// Ends the thread.
    pub(crate) fn end<H: Host>(&self, host: &H) {
        self.state().is_over = true;
        self.wake(host);
    }

    fn run<H: Host>(&self, host: &H) {
        let mut looks = 0;
        loop {
            self.state().looks_at = Duration::ZERO;
            let now = host.now();
            let is_idle = !self.send(host, Occasion::Time(now));
            looks = if is_idle { looks + 1 } else { 0 };
            let mut state = self.state();
            if state.is_over {
                return;
            }
            let expected = self.wakes.load(Ordering::Relaxed);
            state.looks_at = match state.next {
                NEVER if looks >= LOOKS => NEVER,
                NEVER => now.saturating_add(self.delay),
                next => next,
            };
            let looks_at = state.looks_at;
            drop(state);
            let timeout =
                (looks_at != NEVER).then(|| looks_at.saturating_sub(host.now()).min(LOOK));
            host.park(&self.wakes, expected, timeout);
        }
    }

    fn wake<H: Host>(&self, host: &H) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        host.unpark(&self.wakes);
    }

    /// Sends the bytes of all listed objects, and keeps those with a rest. Returns false if the list was
    /// empty.
    fn send<H: Host>(&self, host: &H, occasion: Occasion) -> bool {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // The list's lock is not held meanwhile, since objects list themselves.
        let mut state = self.state();
        let mut delayed = mem::take(&mut state.delayed);
        state.next = NEVER;
        // Without a thread, bytes that found no room have no other occasion.
        let occasion = match occasion {
            Occasion::Wait if !state.has_thread => Occasion::Flush,
            occasion => occasion,
        };
        drop(state);
        let was_listed = !delayed.is_empty();
        let mut next = None;
        delayed.retain(|item| {
            let due = item.send_due(occasion);
            next = due.into_iter().chain(next).min();
            due.is_some()
        });
        let mut state = self.state();
        state.delayed.append(&mut delayed);
        self.listed.store(state.delayed.len(), Ordering::Relaxed);
        // The thread may have checked an empty list meanwhile.
        let is_late = next.is_some_and(|next| state.note(next));
        drop((state, turn));
        if is_late {
            self.wake(host);
        }
        was_listed
    }

    fn state(&self) -> MutexGuard<'_, PumpState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
