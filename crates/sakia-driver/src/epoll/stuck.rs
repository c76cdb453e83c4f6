//! Jobs that take suspiciously long: when to look for them, and who is to be told.
//!
//! Those who are told are users' code, which may use the very driver that this backend belongs to. So what
//! was found waits here until the driver, no longer borrowed, asks for
//! [`take_callback`](Stuck::take_callback).

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::lanes::{Pool, StuckWorker};

/// Called with each job that has become stuck.
pub(super) type OnStuck = Rc<dyn Fn(&StuckWorker)>;

/// What there is to know about stuck jobs.
pub(super) struct Stuck {
    hook: Option<OnStuck>,
    /// When a running job counts as stuck.
    after: Option<Duration>,
    /// When to look. `None` when there is nothing with a lane.
    pub(super) at: Option<Instant>,
    /// Those of whom the hook was not told yet, oldest first.
    found: VecDeque<StuckWorker>,
}

impl Stuck {
    pub(super) fn new(hook: Option<OnStuck>, after: Option<Duration>) -> Self {
        Self { hook, after, at: None, found: VecDeque::new() }
    }

    /// There is something with a lane.
    pub(super) fn begin(&mut self) {
        if let Some(limit) = self.after
            && self.at.is_none()
        {
            self.at = Instant::now().checked_add(limit);
        }
    }

    /// Looks for stuck jobs, if it is time to.
    pub(super) fn look(&mut self, pool: &Pool, now: Instant) {
        if self.at.is_some_and(|at| now >= at) {
            let mut found = Vec::new();
            self.at = pool.find_stuck(now, &mut found);
            if self.hook.is_some() {
                self.found.extend(found);
            }
        }
    }

    /// Whether the hook is to be told of something.
    pub(super) fn has_callback(&self) -> bool {
        !self.found.is_empty()
    }

    /// Tells the hook of the next one, when it is called.
    pub(super) fn take_callback(&mut self) -> Option<Box<dyn FnOnce()>> {
        let hook = Rc::clone(self.hook.as_ref()?);
        let stuck = self.found.pop_front()?;
        Some(Box::new(move || hook(&stuck)))
    }
}
