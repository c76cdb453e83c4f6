//! Threads that park until a future can go on.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns a waker that unparks the calling thread.
pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}
