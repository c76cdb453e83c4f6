//! Returns results to the threads that wait for them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::request::Done;

/// Set once, and taken once.
type Answer = Arc<OnceLock<Mutex<Option<Done>>>>;

/// The result of a submitted request. Dropping it forgets the result, not the request.
#[derive(Debug)]
#[must_use = "the answer has to be waited for"]
pub struct Ticket(Answer);

/// The sender of a result, used once; dropping it unused sends an error.
#[derive(Debug)]
pub(super) struct Answerer(Answer);

pub(super) fn ticket() -> (Ticket, Answerer) {
    let answer = Answer::default();
    (Ticket(Arc::clone(&answer)), Answerer(answer))
}

impl Ticket {
    /// Sleeps until the request is done, and returns its result.
    pub fn wait(self) -> Done {
        let mut done = self.0.wait().lock().unwrap_or_else(PoisonError::into_inner);
        done.take().expect("a ticket is used once")
    }

    /// Returns whether the request is done.
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
