//! How an answer comes back to who waits for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::request::{Done, Memory};

/// A request that was given to a scheduler. Dropping it forgets the answer, not the request.
#[derive(Debug)]
#[must_use = "the answer has to be waited for"]
pub struct Ticket {
    shared: Arc<Shared>,
}

/// The other end. An answer is given once; to drop it without one is an answer too.
#[derive(Debug)]
pub(super) struct Answerer {
    shared: Arc<Shared>,
    answer: Option<Done>,
}

#[derive(Debug, Default)]
struct Shared {
    answer: Mutex<Option<Done>>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Done>> {
        // No code that may panic runs while it is locked.
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn ticket() -> (Ticket, Answerer) {
    let shared = Arc::<Shared>::default();
    (Ticket { shared: Arc::clone(&shared) }, Answerer { shared, answer: None })
}

impl Ticket {
    /// Sleeps until it is done.
    pub fn wait(self) -> Done {
        let Shared { changed, .. } = &*self.shared;
        let answer = changed.wait_while(self.shared.lock(), |answer| answer.is_none());
        let mut answer = answer.unwrap_or_else(PoisonError::into_inner);
        answer.take().expect("it was waited for, and nobody else takes it")
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.shared.lock().is_some()
    }
}

impl Answerer {
    pub fn answer(mut self, done: Done) {
        self.answer = Some(done);
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        let failed = || (Err(std::io::Error::other("the scheduler has failed")), Memory::None);
        *self.shared.lock() = Some(self.answer.take().unwrap_or_else(failed));
        self.shared.changed.notify_one();
    }
}
