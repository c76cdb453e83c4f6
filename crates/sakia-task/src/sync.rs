//! All cells, locks and counters of the crate that threads share, so that a model may replace them.

use std::cell::{Cell, UnsafeCell};

pub(crate) use std::cell::Cell as HomeCell;
pub(crate) use std::panic::{AssertUnwindSafe, catch_unwind};
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, PoisonError};

/// A place in memory; each access to it states its reason. The content is at its beginning.
#[repr(transparent)]
pub(crate) struct Slot<T>(UnsafeCell<T>);

impl<T> Slot<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Returns the place, which the caller is about to read or write.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        self.0.get()
    }
}

thread_local! {
    /// The calling thread's number; 0 until it has one. Without a destructor, so that it can be read
    /// as long as the thread runs any code.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

#[inline(always)]
pub(crate) fn thread_number() -> u64 {
    NUMBER.get()
}

pub(crate) fn set_thread_number(number: u64) {
    NUMBER.set(number);
}
