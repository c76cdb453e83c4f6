//! A gate that admits requests until it is closed, and then reports when the last one is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;

use super::Engine;
use crate::task::wait_until;

/// Counts requests under way. Once closed, it admits none.
#[derive(Default)]
pub(super) struct Gate {
    /// Requests under way, and [`CLOSED`].
    state: AtomicUsize,
    /// Notified when the gate is closed and the last request is over.
    empty: Event,
}

/// Set in the state when no request is to be admitted any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Gate {
    /// Returns the number of requests under way.
    pub(super) fn live(&self) -> usize {
        self.state.load(Ordering::Relaxed) & !CLOSED
    }

    /// Returns whether it is closed.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Admits a request. False if the gate is closed.
    pub(super) fn enter(&self) -> bool {
        let may_enter = self.state.fetch_add(1, Ordering::AcqRel) & CLOSED == 0;
        if !may_enter {
            self.leave();
        }
        may_enter
    }

    fn leave(&self) {
        self.leave_many(1);
    }

    /// Notes that so many requests are over.
    pub(super) fn leave_many(&self, count: usize) {
        if count > 0 && self.state.fetch_sub(count, Ordering::AcqRel) == CLOSED + count {
            self.empty.notify(usize::MAX);
        }
    }

    /// Closes the gate, and waits until the last request is over.
    pub(super) async fn stop(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        wait_until(&self.empty, || self.state.load(Ordering::Acquire) == CLOSED).await;
    }
}

/// A request under way. It keeps the engine alive, whose threads would end otherwise.
pub(super) struct Pass {
    pub(super) engine: Engine,
}

impl Pass {
    /// Admits a request. `None` when the engine was stopped.
    pub(super) fn new(engine: &Engine) -> Option<Self> {
        engine.shared.gate.enter().then(|| Self { engine: engine.clone() })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // The gate outlives the engine, which may go with this pass.
        let gate = Arc::clone(&self.engine.shared.gate);
        gate.leave();
    }
}
