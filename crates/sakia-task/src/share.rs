//! Values that are shared with tasks of their own thread without an atomic operation.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::count::Count;

/// A value and its references.
struct Shared<T> {
    count: Count,
    value: T,
}

/// A value of the calling thread. Its [shares](Root::share) may go to any thread; those that are made and
/// dropped on this one cost no atomic operation.
///
/// The value is dropped with the last of its root and shares, on whichever thread that is. A root that is
/// forgotten keeps it for good.
///
/// # Examples
/// ```
/// let root = sakia_task::Root::new(String::from("shared"));
/// let share = root.share();
/// drop(root);
/// let thread = std::thread::spawn(move || share.len());
/// assert_eq!(thread.join().unwrap(), 6);
/// ```
pub struct Root<T> {
    shared: NonNull<Shared<T>>,
    /// It stays on its thread, which is home, and has a `T`.
    _stays: PhantomData<(*const (), T)>,
}

impl<T> Root<T> {
    /// Returns the root of a value, on the calling thread.
    pub fn new(value: T) -> Self {
        let shared = Box::new(Shared { count: Count::biased(1), value });
        Self { shared: NonNull::from(Box::leak(shared)), _stays: PhantomData }
    }

    /// Returns one more share.
    #[inline(always)]
    pub fn share(&self) -> Share<T> {
        // SAFETY: a root never leaves the thread that made it, which is home; only its end merges the count.
        unsafe { self.shared().count.retain_at_home() };
        Share { shared: self.shared, _has: PhantomData }
    }

    #[inline(always)]
    fn shared(&self) -> &Shared<T> {
        // SAFETY: the root has a reference, so the box exists, and is only read while there are references.
        unsafe { self.shared.as_ref() }
    }
}

impl<T> Deref for Root<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.shared().value
    }
}

impl<T> Drop for Root<T> {
    fn drop(&mut self) {
        // From now on, shares that were dropped on other threads count. The root is at home, and has a
        // reference.
        self.shared().count.merge();
        // SAFETY: the root's own reference, which it does not use any more.
        unsafe { release(self.shared) };
    }
}

/// A share of a value whose [root](Root) is on some thread.
pub struct Share<T> {
    shared: NonNull<Shared<T>>,
    /// It may be the last, and then drops the value.
    _has: PhantomData<T>,
}

// SAFETY: a share gives `&T` to the threads that have it, so `T` is `Sync`, and may drop the value on any of
// them, so it is `Send`. The count may be used from any thread.
unsafe impl<T: Send + Sync> Send for Share<T> {}

// SAFETY: as above; a shared reference to a share makes further ones.
unsafe impl<T: Send + Sync> Sync for Share<T> {}

impl<T> Share<T> {
    #[inline(always)]
    fn shared(&self) -> &Shared<T> {
        // SAFETY: the share has a reference, so the box exists, and is only read while there are references.
        unsafe { self.shared.as_ref() }
    }
}

impl<T> Clone for Share<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        self.shared().count.retain();
        Self { shared: self.shared, _has: PhantomData }
    }
}

impl<T> Deref for Share<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.shared().value
    }
}

impl<T> Drop for Share<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the share's own reference, which it does not use any more.
        unsafe { release(self.shared) };
    }
}

/// Drops a reference, and with the last one the value.
///
/// # Safety
/// - The caller has a reference to `shared`, and does not use it afterwards.
#[inline(always)]
unsafe fn release<T>(shared: NonNull<Shared<T>>) {
    // SAFETY: the caller's reference keeps the box until it is released; the borrow ends within the call.
    if unsafe { shared.as_ref() }.count.release() {
        // SAFETY: that was the last reference, so the box that `Root::new` leaked is this function's alone.
        unsafe { free(shared) };
    }
}

/// # Safety
/// - No reference to `shared` is left.
#[cold]
unsafe fn free<T>(shared: NonNull<Shared<T>>) {
    // SAFETY: `Root::new` made it of a box; by the caller's promise nothing else reaches it.
    drop(unsafe { Box::from_raw(shared.as_ptr()) });
}

impl<T: fmt::Debug> fmt::Debug for Root<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&**self).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Share<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Share").field(&**self).finish()
    }
}
