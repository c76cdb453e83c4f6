//! Handles that end a loop's wait.

use std::sync::Arc;

use sakia_driver::LoopWaker;

use crate::guard::guarded;

/// Ends waits of a loop, from any thread: a counted handle, which may outlive the loop.
pub struct sakia_waker {
    pub(crate) waker: LoopWaker,
}

impl sakia_waker {
    /// Returns a reference for the program.
    pub(crate) fn given(waker: LoopWaker) -> *mut Self {
        Arc::into_raw(Arc::new(Self { waker })).cast_mut()
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

/// Ends the loop's wait, or its next one; nothing for null, after the loop's end, and in a forked child.
/// Takes no lock, allocates nothing and keeps `errno`.
///
/// Any thread, signal handlers and finalizers too. Never fails. Can break: a waker without a reference left.
/// Kernel: one `write(2)`, or none if the loop has not seen an earlier wake.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_waker_wake(waker: *const sakia_waker) {
    // SAFETY: the header's contract: null, or a waker of which the program has a reference.
    if let Some(waker) = unsafe { waker.as_ref() } {
        waker.waker.wake();
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
