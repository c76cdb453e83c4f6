//! Queues of requests: each token is answered once, whichever threads submit and take, and at every end.

mod ends;
mod hostile;
mod sleeps;
mod tokens_model;

use sakia::engine::Queue;
use sakia::engine::queue::{Outcome, Submitted};

/// Waits for the next outcome.
fn next(queue: &Queue) -> Outcome {
    let mut outcomes = Vec::new();
    while queue.take(1, &mut outcomes) == 0 {
        queue.wait(None).unwrap();
    }
    outcomes.pop().unwrap()
}

/// Returns the outcome of a request that was submitted alone.
fn outcome(queue: &Queue, submitted: Submitted) -> Outcome {
    match submitted {
        Submitted::Done(outcome) => outcome,
        Submitted::UnderWay(_) => next(queue),
    }
}

fn errno<T>(result: &std::io::Result<T>) -> Option<i32> {
    result.as_ref().err()?.raw_os_error()
}
