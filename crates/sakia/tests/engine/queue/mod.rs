//! Queues of requests: each token is answered once, whichever threads submit and take, and at every end.

mod ends;
mod hostile;
mod sleeps;
mod tokens_model;

use std::io::PipeWriter;
use std::os::fd::OwnedFd;

use sakia::engine::Queue;
use sakia::engine::queue::{FileHandle, Outcome, Request, Submitted};
use sakia_driver::CURRENT_POSITION;

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

/// Returns a read that only bytes or a cancellation end.
fn endless(pipe: &FileHandle) -> Request {
    Request::read(pipe, vec![0; 8].into(), CURRENT_POSITION)
}

fn pipe() -> (FileHandle, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (FileHandle::new(OwnedFd::from(reader)), writer)
}
