//! The thread that sends delayed bytes while the program computes.
//!
//! It sleeps until the next bytes are due; without any for 10 milliseconds it sleeps until it is woken. So
//! a burst of writes costs one wake, and an idle program none.

use std::mem;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Host;

/// How long the thread looks for more bytes before it waits to be woken.
const LINGER: Duration = Duration::from_millis(10);

/// How long it sleeps at most while bytes are delayed, whatever the host's clock said.
const LOOK: Duration = Duration::from_secs(1);

/// Something with delayed bytes.
pub(crate) trait Delayed: Send + Sync + 'static {
    /// Sends the delayed bytes that are due at `now`, or all with `None`, as far as there is room. Returns
    /// when the rest is due; without a rest it is not listed any more.
    fn send_due(&self, now: Option<Duration>) -> Option<Duration>;
}

/// The list of all with delayed bytes, and the thread's state.
#[derive(Debug)]
pub(crate) struct Pump<T> {
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
    has_thread: bool,
    is_asleep: bool,
    is_over: bool,
}

impl<T> Default for Pump<T> {
    fn default() -> Self {
        let state =
            State { delayed: Vec::new(), has_thread: false, is_asleep: false, is_over: false };
        Self {
            state: Mutex::new(state),
            turn: Mutex::new(()),
            listed: AtomicUsize::new(0),
            wakes: AtomicU32::new(0),
        }
    }
}

impl<T: Delayed> Pump<T> {
    /// Lists `item`, which is not listed, and makes sure that the thread looks at it.
    pub(crate) fn list<H: Host>(self: &Arc<Self>, host: &Arc<H>, item: Arc<T>) {
        let mut state = self.state();
        state.delayed.push(item);
        self.listed.store(state.delayed.len(), Ordering::Relaxed);
        let is_asleep = mem::replace(&mut state.is_asleep, false);
        if !mem::replace(&mut state.has_thread, true) {
            let (pump, host) = (Arc::clone(self), Arc::clone(host));
            let thread = thread::Builder::new().name("sakia-pump".into());
            // Without a thread the bytes are sent when the program waits, or writes again.
            state.has_thread = thread.spawn(move || pump.run(&*host)).is_ok();
        }
        drop(state);
        if is_asleep {
            self.wake(&**host);
        }
    }

    /// Sends all delayed bytes, as far as there is room.
    pub(crate) fn send_all(&self) {
        if self.listed.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.send(|item| item.send_due(None).is_some());
    }

    /// The thread ends.
    pub(crate) fn end<H: Host>(&self, host: &H) {
        self.state().is_over = true;
        self.wake(host);
    }

    fn run<H: Host>(&self, host: &H) {
        let mut looked_since = host.now();
        loop {
            let now = host.now();
            let mut next = None::<Duration>;
            self.send(|item| {
                looked_since = now;
                let due = item.send_due(Some(now));
                next = next.into_iter().chain(due).min();
                due.is_some()
            });
            let is_idle = now.saturating_sub(looked_since) >= LINGER;
            let mut state = self.state();
            if state.is_over {
                return;
            }
            let expected = self.wakes.load(Ordering::Relaxed);
            state.is_asleep = is_idle && state.delayed.is_empty();
            let is_asleep = state.is_asleep;
            drop(state);
            if is_asleep {
                host.park(&self.wakes, expected, None);
            } else {
                let until = next.unwrap_or(now.saturating_add(Duration::from_micros(100)));
                let timeout = until.saturating_sub(host.now()).min(LOOK);
                host.park(&self.wakes, expected, Some(timeout));
            }
        }
    }

    fn wake<H: Host>(&self, host: &H) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        host.unpark(&self.wakes);
    }

    /// Calls `send` with each that is listed, and keeps those for which it returns true.
    fn send(&self, mut send: impl FnMut(&T) -> bool) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // No lock of the list is held meanwhile, since they list themselves.
        let mut delayed = mem::take(&mut self.state().delayed);
        delayed.retain(|item| send(item));
        let mut state = self.state();
        state.delayed.append(&mut delayed);
        self.listed.store(state.delayed.len(), Ordering::Relaxed);
        drop((state, turn));
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
