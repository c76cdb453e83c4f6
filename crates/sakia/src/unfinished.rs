//! Closures of blocking code, for which the end of their runtime waits.
//!
//! A closure belongs to the runtime whose code has started it. Outside of one it belongs to the call of
//! `block_on` that has made no runtime and runs on this thread, or to the owner of the closure that runs
//! there.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sakia_ring::Process;

thread_local! {
    /// It has no destructor, so that destructors of other variables of the thread may run closures.
    static OWNER: RefCell<ManuallyDrop<Owner>> = const {
        RefCell::new(ManuallyDrop::new(Owner::None))
    };
}

/// The owner of the closures that a thread starts outside of a runtime.
#[derive(Default)]
enum Owner {
    #[default]
    None,
    /// A call that has started none yet.
    Call,
    Known(Arc<Unfinished>),
}

/// Counts the closures that have been handed to a pool, and have not ended.
#[derive(Debug)]
pub(crate) struct Unfinished {
    process: Process,
    count: Mutex<usize>,
    all_ended: Condvar,
}

impl Default for Unfinished {
    fn default() -> Self {
        let process = Process::current();
        Self { process, count: Mutex::default(), all_ended: Condvar::new() }
    }
}

impl Unfinished {
    /// Returns those of what the calling thread runs outside of a runtime; `None` if no end will wait for
    /// them.
    pub(crate) fn outside() -> Option<Arc<Self>> {
        OWNER.with_borrow_mut(|owner| match &mut **owner {
            Owner::None => None,
            Owner::Known(its) => Some(Arc::clone(its)),
            owner @ Owner::Call => {
                let its = Arc::<Self>::default();
                *owner = Owner::Known(Arc::clone(&its));
                Some(its)
            }
        })
    }

    /// Returns whether these are of this process. No end in a forked child waits for what its parent has
    /// begun, whose lock may be taken there for ever.
    pub(crate) fn is_intact(&self) -> bool {
        self.process.is_intact()
    }

    /// Counts a closure until the claim is dropped.
    pub(crate) fn claim(self: Arc<Self>) -> Claim {
        *self.lock() += 1;
        Claim(self)
    }

    /// Returns the number of closures that have not ended.
    pub(crate) fn count(&self) -> usize {
        if self.is_intact() { *self.lock() } else { 0 }
    }

    /// Blocks the thread until all have ended, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        if !self.is_intact() {
            return;
        }
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut count = self.lock();
        while *count > 0 {
            count = match end {
                None => self.all_ended.wait(count).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return;
                    }
                    let waited = self.all_ended.wait_timeout(count, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A closure that has not ended.
pub(crate) struct Claim(Arc<Unfinished>);

impl Claim {
    /// Lets closures that the calling thread starts belong to the same, until the result is dropped.
    pub(crate) fn enter(&self) -> OfClosure {
        OfClosure { outer: replace(Owner::Known(Arc::clone(&self.0))) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.0.is_intact() {
            return; // the closure goes on in a forked child
        }
        let mut count = self.0.lock();
        *count -= 1;
        if *count == 0 {
            self.0.all_ended.notify_all();
        }
    }
}

/// Lets the calling thread's closures belong to the owner of the one that it runs.
pub(crate) struct OfClosure {
    outer: Owner,
}

impl Drop for OfClosure {
    fn drop(&mut self) {
        drop(replace(mem::take(&mut self.outer)));
    }
}

/// Lets the calling thread's closures belong to this call, whose end waits for them.
pub(crate) struct OfCall {
    outer: Owner,
}

impl OfCall {
    pub(crate) fn new() -> Self {
        Self { outer: replace(Owner::Call) }
    }
}

impl Drop for OfCall {
    fn drop(&mut self) {
        if let Owner::Known(its) = replace(mem::take(&mut self.outer)) {
            its.wait(None);
        }
    }
}

/// The end of a runtime: waits for its closures when it is dropped.
pub(crate) struct AtEnd {
    pub(crate) closures: Arc<Unfinished>,
    /// The longest wait.
    pub(crate) timeout: Option<Duration>,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.closures.wait(self.timeout);
    }
}

fn replace(owner: Owner) -> Owner {
    ManuallyDrop::into_inner(OWNER.replace(ManuallyDrop::new(owner)))
}
