//! Replacements of `std::sync` for the code under test.

pub(crate) use std::sync::{Arc, OnceLock, PoisonError, Weak};

pub(crate) use loom::sync::{Mutex, MutexGuard};

/// A condition variable whose waits time out on request, since loom's have no timeouts.
#[derive(Debug)]
pub(crate) struct Condvar {
    changed: loom::sync::Condvar,
    is_time_over: std::sync::atomic::AtomicBool,
}

/// The outcome of a wait with a timeout.
pub(crate) struct TimedOut(bool);

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self { changed: loom::sync::Condvar::new(), is_time_over: false.into() }
    }

    pub(crate) fn notify_one(&self) {
        self.changed.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.changed.notify_all();
    }

    /// Ends all current and later waits. The caller holds the lock.
    pub(crate) fn end_time(&self) {
        self.is_time_over.store(true, atomic::Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: std::time::Duration,
    ) -> std::sync::LockResult<(MutexGuard<'a, T>, TimedOut)> {
        let is_over = || TimedOut(self.is_time_over.load(atomic::Ordering::Relaxed));
        if is_over().0 {
            return Ok((guard, TimedOut(true)));
        }
        let guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        Ok((guard, is_over()))
    }
}

/// Replaces `std`'s wrapper for `catch_unwind`.
pub(crate) struct AssertUnwindSafe<F>(pub(crate) F);

pub(crate) fn catch_unwind<T>(run: AssertUnwindSafe<impl FnOnce() -> T>) -> Result<T, T> {
    Ok((run.0)())
}

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use Ordering::SeqCst;
    pub(crate) use loom::sync::atomic::{AtomicU64, fence};

    /// Corrects two gaps of loom's model:
    /// - Loom treats sequentially consistent accesses as acquire and release; it supports the stronger order
    ///   for fences only. So a fence follows each such store, as on a processor whose loads need none.
    /// - A store may be ordered between another thread's read-modify-write and the value that it read, so
    ///   that a third thread sees an older value last. So stores are made as swaps; without acquire these
    ///   see nothing that a store would not.
    #[derive(Debug)]
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl Default for AtomicBool {
        fn default() -> Self {
            Self::new(false)
        }
    }

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            self.0.load(if order == SeqCst { Ordering::Acquire } else { order })
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            self.0.swap(value, if order == SeqCst { Ordering::Release } else { order });
            fence_if_strong(order);
        }

        pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
            let old = self.0.swap(value, if order == SeqCst { Ordering::AcqRel } else { order });
            fence_if_strong(order);
            old
        }
    }

    fn fence_if_strong(order: Ordering) {
        if order == SeqCst {
            fence(SeqCst);
        }
    }
}
