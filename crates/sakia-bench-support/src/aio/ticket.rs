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
    shared: Option<Arc<Shared>>,
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
    (Ticket { shared: Arc::clone(&shared) }, Answerer { shared: Some(shared) })
}

impl Ticket {
    /// Sleeps until it is done.
    pub fn wait(self) -> Done {
        let mut answer = self.shared.lock();
        loop {
            match answer.take() {
                Some(done) => return done,
                None => {
                    let waited = self.shared.changed.wait(answer);
                    answer = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.shared.lock().is_some()
    }
}

impl Answerer {
    pub fn answer(mut self, done: Done) {
        if let Some(shared) = self.shared.take() {
            *shared.lock() = Some(done);
            shared.changed.notify_one();
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let error = std::io::Error::other("the scheduler has failed");
            *shared.lock() = Some((Err(error), Memory::None));
            shared.changed.notify_one();
        }
    }
}
