//! Numbers of threads, which cost a load to compare.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{set_thread_number, thread_number};

/// A thread of this process. Each thread has another one, even if it begins after an earlier one has ended.
///
/// # Examples
/// ```
/// use sakia_task::ThreadId;
///
/// let here = ThreadId::current();
/// assert!(here.is_current());
/// assert!(!std::thread::spawn(move || here.is_current()).join().unwrap());
/// assert!(!ThreadId::NONE.is_current());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(u64);

impl ThreadId {
    /// No thread: the home of tasks that never run.
    pub const NONE: Self = Self(u64::MAX);

    /// Returns the calling thread.
    #[inline]
    pub fn current() -> Self {
        match thread_number() {
            0 => Self::first(),
            number => Self(number),
        }
    }

    /// Gives the calling thread its number, and returns it.
    #[cold]
    fn first() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // A process cannot start 2^64 threads, so no number comes twice, nor that of `NONE`.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        set_thread_number(number);
        Self(number)
    }

    /// Returns whether this is the calling thread.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        // A thread without a number has 0, which is no thread's.
        thread_number() == self.0
    }
}
