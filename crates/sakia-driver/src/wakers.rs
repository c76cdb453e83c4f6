//! Waking several tasks. Wakers are users' code.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

/// Wakes each of them, also after one that panics. The first panic continues once all are woken, unless the
/// thread is already unwinding: a second panic would end the process.
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut first: Option<Box<dyn Any + Send>> = None;
    for waker in wakers {
        match catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            Ok(()) => {}
            Err(payload) if first.is_none() => first = Some(payload),
            Err(payload) => mem::forget(payload), // its drop might panic
        }
    }
    match first {
        Some(payload) if thread::panicking() => mem::forget(payload), // as above
        Some(payload) => resume_unwind(payload),
        None => {}
    }
}

/// Several wakers as one.
struct United(Vec<Waker>);

impl Wake for United {
    fn wake(self: Arc<Self>) {
        wake_all(self.0.iter().cloned());
    }
}

/// Returns one waker that wakes all of them; `None` if there are none.
pub fn united(wakers: impl IntoIterator<Item = Waker>) -> Option<Waker> {
    let wakers: Vec<Waker> = wakers.into_iter().collect();
    (!wakers.is_empty()).then(|| Waker::from(Arc::new(United(wakers))))
}
