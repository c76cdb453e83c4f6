//! The thread that sends delayed bytes while the program computes.
//!
//! It sleeps until the first bytes are due. Without any it looks twice more, and then sleeps until it is
//! woken. So a burst of writes costs one wake, writes that follow each other none, and an idle program no
//! processor time.

use std::mem;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Host;

/// So often the thread looks for more bytes, each time after their delay, before it waits to be woken: about
/// as much work as the wake that this saves.
const LOOKS: u32 = 2;

/// The longest sleep while bytes are delayed, whatever the host's clock said.
const LOOK: Duration = Duration::from_secs(1);

/// The time that does not come.
const NEVER: Duration = Duration::MAX;

/// Something with delayed bytes.
pub(crate) trait Delayed: Send + Sync + 'static {
    /// Sends delayed bytes, as far as there is room. Returns when the rest is due; without a rest it is not
    /// listed any more.
    fn send_due(&self, occasion: Occasion) -> Option<Duration>;
}

/// Why delayed bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// It is this time: those that are due are sent.
    Time(Duration),
    /// A thread is about to wait: all are sent, but for those for which there was no room twice. They are
    /// left to the pump, or each wait would cost a call for each peer that reads nothing.
    Wait,
    /// All are sent.
    Flush,
}

/// The list of all with delayed bytes, and the thread's state.
#[derive(Debug)]
pub(crate) struct Pump<T> {
    /// The delay of bytes.
    delay: Duration,
    state: Mutex<State<T>>,
    /// Held while the bytes of all that are listed are sent, so that a thread which is about to wait does
    /// not miss those that another one is about to send.
    turn: Mutex<()>,
    /// Not zero while anything is listed or in a turn, to be asked without the lock.
    listed: AtomicUsize,
    /// Changes with each wake.
    wakes: AtomicU32,
}

#[derive(Debug)]
struct State<T> {
    delayed: Vec<Arc<T>>,
    /// When the first of them is due; [`NEVER`] without any.
    next: Duration,
    /// When the thread looks next: zero while it is about to find out, [`NEVER`] if it sleeps until it is
    /// woken.
    looks_at: Duration,
    has_thread: bool,
    is_over: bool,
}

impl<T> State<T> {
    /// Bytes are due at the time `due`. Returns true if the thread would sleep for longer: it is to be woken.
    #[must_use]
    fn note(&mut self, due: Duration) -> bool {
        // A clock that is at its end does not make the thread sleep for ever.
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
    /// Makes an empty list, of bytes that are delayed for `delay`. Its thread starts with the first one.
    pub(crate) fn new(delay: Duration) -> Self {
        let state = State {
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

    /// Lists `item`, which is not listed and whose bytes are due at the time `due`, and makes sure that the
    /// thread looks at it then.
    pub(crate) fn list<H: Host>(self: &Arc<Self>, host: &Arc<H>, item: Arc<T>, due: Duration) {
        let mut state = self.state();
        state.delayed.push(item);
        self.listed.store(state.delayed.len(), Ordering::Relaxed);
        if !mem::replace(&mut state.has_thread, true) {
            let (pump, host) = (Arc::clone(self), Arc::clone(host));
            let thread = thread::Builder::new().name("sakia-pump".into());
            // Without a thread the bytes are sent when the program waits, or writes again.
            state.has_thread = thread.spawn(move || pump.run(&*host)).is_ok();
        }
        let is_late = state.note(due);
        drop(state);
        if is_late {
            self.wake(&**host);
        }
    }

    /// Makes sure that the thread looks at one that is listed at the time `due`, which may be before it was
    /// due when it was listed.
    pub(crate) fn hurry<H: Host>(&self, host: &H, due: Duration) {
        if self.state().note(due) {
            self.wake(host);
        }
    }

    /// Sends all delayed bytes, as far as there is room and the `occasion` says.
    pub(crate) fn send_all<H: Host>(&self, host: &H, occasion: Occasion) {
        if self.listed.load(Ordering::Relaxed) != 0 {
            self.send(host, occasion);
        }
    }

    /// The thread ends.
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

    /// Sends the bytes of all that are listed, and keeps those with a rest. Returns false if none was listed.
    fn send<H: Host>(&self, host: &H, occasion: Occasion) -> bool {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // No lock of the list is held meanwhile, since they list themselves.
        let mut state = self.state();
        let mut delayed = mem::take(&mut state.delayed);
        state.next = NEVER;
        // Without a thread no other moment comes for those that had no room.
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
        // The thread may have looked at an empty list meanwhile.
        let is_late = next.is_some_and(|next| state.note(next));
        drop((state, turn));
        if is_late {
            self.wake(host);
        }
        was_listed
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
