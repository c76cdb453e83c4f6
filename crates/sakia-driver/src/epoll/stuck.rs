//! Jobs that take suspiciously long: the time of the checks, and the hook.
//!
//! The hook is user code, which may use the very driver that this backend belongs to. So stuck jobs wait
//! here until the driver, no longer borrowed, calls [`take_callback`](Stuck::take_callback).

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::lanes::{Pool, StuckWorker};

/// Called with each job that has become stuck.
pub(super) type OnStuck = Rc<dyn Fn(&StuckWorker)>;

/// The state of the detection.
pub(super) struct Stuck {
    hook: Option<OnStuck>,
    /// The running time after which a job counts as stuck.
    after: Option<Duration>,
    /// The time of the next check. `None` if no job is with a lane.
    pub(super) at: Option<Instant>,
    /// Stuck jobs that the hook has not received yet, oldest first.
    found: VecDeque<StuckWorker>,
}

impl Stuck {
    pub(super) fn new(hook: Option<OnStuck>, after: Option<Duration>) -> Self {
        Self { hook, after, at: None, found: VecDeque::new() }
    }

    /// Records that a job is with a lane.
    pub(super) fn begin(&mut self) {
        if let Some(limit) = self.after
            && self.at.is_none()
        {
            self.at = Instant::now().checked_add(limit);
        }
    }

    /// Checks for stuck jobs, if it is time.
    pub(super) fn look(&mut self, pool: &Pool, now: Instant) {
        if self.at.is_some_and(|at| now >= at) {
            let mut found = Vec::new();
            self.at = pool.find_stuck(now, &mut found);
            if self.hook.is_some() {
                self.found.extend(found);
            }
        }
    }

    /// Returns whether the hook has a pending call.
    pub(super) fn has_callback(&self) -> bool {
        !self.found.is_empty()
    }

    /// Returns the hook's next call.
    pub(super) fn take_callback(&mut self) -> Option<Box<dyn FnOnce()>> {
        let hook = Rc::clone(self.hook.as_ref()?);
        let stuck = self.found.pop_front()?;
        Some(Box::new(move || hook(&stuck)))
    }
}
