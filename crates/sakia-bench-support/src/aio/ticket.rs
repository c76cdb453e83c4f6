//! How an answer comes back to who waits for it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::request::Done;

/// Set once, and taken once.
type Answer = Arc<OnceLock<Mutex<Option<Done>>>>;

/// A request that was given to a scheduler. Dropping it forgets the answer, not the request.
#[derive(Debug)]
#[must_use = "the answer has to be waited for"]
pub struct Ticket(Answer);

/// The other end. An answer is given once; to drop it without one is an answer too.
#[derive(Debug)]
pub(super) struct Answerer(Answer);

pub(super) fn ticket() -> (Ticket, Answerer) {
    let answer = Answer::default();
    (Ticket(Arc::clone(&answer)), Answerer(answer))
}

impl Ticket {
    /// Sleeps until it is done.
    pub fn wait(self) -> Done {
        let mut done = self.0.wait().lock().unwrap_or_else(PoisonError::into_inner);
        done.take().expect("nobody else takes it")
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.0.get().is_some()
    }
}

impl Answerer {
    pub fn answer(self, done: Done) {
        self.set(done);
    }

    fn set(&self, done: Done) {
        let is_first = self.0.set(Mutex::new(Some(done))).is_ok();
        debug_assert!(is_first, "it was answered before");
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        if self.0.get().is_none() {
            self.set((Err(std::io::Error::other("the scheduler has failed")), None));
        }
    }
}
