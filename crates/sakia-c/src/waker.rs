//! Handles that end the waits of a loop or a queue.

use std::sync::Arc;

use sakia_driver::LoopWaker;
use sakia_runtime::engine::queue::QueueWaker;

use crate::guard::guarded;

/// Ends waits of a loop or a queue, from any thread: a counted handle, which may outlive either.
pub struct sakia_waker {
    wakes: Wakes,
}

/// The sleeper that is woken.
pub(crate) enum Wakes {
    Loop(LoopWaker),
    Queue(QueueWaker),
}

impl sakia_waker {
    /// Returns a reference for the program.
    pub(crate) fn given(wakes: Wakes) -> *mut Self {
        Arc::into_raw(Arc::new(Self { wakes })).cast_mut()
    }
}

/// Adds a reference, and returns `waker`; null for null.
///
/// Any thread. Never fails. Can break: a waker without a reference left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_waker_clone(waker: *mut sakia_waker) -> *mut sakia_waker {
    if !waker.is_null() {
        // SAFETY: it came from `Arc::into_raw`, and the program has a reference.
        unsafe { Arc::increment_strong_count(waker) };
    }
    waker
}

/// Ends the loop's wait, or that of one thread that waits for the queue, or the next one; nothing for null,
/// after the end of either, and in a forked child. Takes no lock, allocates nothing and keeps `errno`.
///
/// Any thread, signal handlers and finalizers too. Never fails. Can break: a waker without a reference left.
/// Kernel: one system call or two; none if an earlier wake was not seen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_waker_wake(waker: *const sakia_waker) {
    // SAFETY: the header's contract: null, or a waker of which the program has a reference.
    if let Some(waker) = unsafe { waker.as_ref() } {
        match &waker.wakes {
            Wakes::Loop(waker) => waker.wake(),
            Wakes::Queue(waker) => waker.wake(),
        }
    }
}

/// Gives a reference back; nothing for null.
///
/// Any thread; a signal handler may not call it. Never fails. Can break: a reference that is given back
/// twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_waker_free(waker: *mut sakia_waker) {
    guarded(|| {
        if !waker.is_null() {
            // SAFETY: it came from `Arc::into_raw`, and the program gives its reference up.
            drop(unsafe { Arc::from_raw(waker) });
        }
        Ok(0)
    });
}
