//! Requests and their loop: each request does what the system call does, each token is answered once, files
//! are closed once, and wakes and signals end a wait.

mod attempts;
mod bits;
mod closing;
mod each;
pub mod ends;
mod hostile;
mod lasting;
mod lasting_owners;
mod random;
pub mod signals;
mod threads;
pub mod wakes;

use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;

use sakia_driver::{Driver, Epoll, FileHandle, Loop, Outcome, Request, Value, Wait};

use crate::support::assert_unread;

/// Runs a test on a ring, and on epoll.
fn on_both(test: impl Fn(&mut Loop)) {
    for driver in [Driver::uring().unwrap(), Driver::new(Epoll::new().unwrap())] {
        let mut ring = Loop::on(driver).unwrap();
        test(&mut ring);
    }
}

/// Performs a request alone, and returns its outcome.
fn perform(ring: &mut Loop, request: Request) -> Outcome {
    /// A token like any other.
    const TOKEN: u64 = u64::MAX;
    assert_eq!(ring.under_way(), 0);
    ring.submit(request, TOKEN).unwrap();
    let outcome = next(ring);
    assert_eq!((outcome.token, outcome.more, ring.under_way()), (TOKEN, false, 0));
    outcome
}

/// Waits for the next outcome.
fn next(ring: &mut Loop) -> Outcome {
    loop {
        if let Some(outcome) = ring.take() {
            return outcome;
        }
        ring.wait(Wait::Forever).unwrap();
    }
}

/// Waits for outcomes until nothing is under way. Each token must have one that is the last, and no more.
fn finish(ring: &mut Loop) -> HashMap<u64, Outcome> {
    let mut outcomes = HashMap::new();
    while ring.under_way() > 0 {
        let outcome = next(ring);
        if !outcome.more {
            let earlier = outcomes.insert(outcome.token, outcome);
            assert!(earlier.is_none(), "two ends: {earlier:?}");
        }
    }
    assert!(ring.take().is_none());
    outcomes
}

/// Performs a request that must succeed, and returns its number and the rest.
fn value(ring: &mut Loop, request: Request) -> (usize, Value) {
    let outcome = perform(ring, request);
    (outcome.result.unwrap(), outcome.value)
}

/// Performs a request that must fail, and returns its errno.
fn errno(ring: &mut Loop, request: Request) -> i32 {
    perform(ring, request).result.unwrap_err().raw_os_error().unwrap()
}

fn file_of(ring: &mut Loop, request: Request) -> FileHandle {
    perform(ring, request).into_file().unwrap()
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}
