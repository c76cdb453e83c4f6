//! The handle of a task: waits for it, and ends it.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use crate::cell::{
    CLOSE, CLOSING, DETACHED, DONE, Header, JOIN, LEFT, Outcome, RUNNING, SCHEDULED, VALUE,
};
use crate::count::MERGED;
use crate::sync::{AtomicU8, Ordering, PoisonError};
use crate::waker;

/// Mark of the handle: the outcome was taken, or was dropped.
const TAKEN: u8 = 1;
/// Mark of the handle: it was told to abort its task.
const ABORTED: u8 = 1 << 1;

/// Awaits a task. Dropping it lets the task go on by itself.
///
/// Resolves to the value of the task's future, or to its panic; to `None` if the task was canceled, and
/// ever after the first time.
///
/// It may go to another thread if the value may.
pub struct Task<T> {
    cell: NonNull<Header>,
    /// Flags: the outcome is gone; the task was aborted. Changed atomically where the handle is shared.
    marks: AtomicU8,
    /// It may have the value.
    _has: PhantomData<T>,
}

// SAFETY: all that the handle touches elsewhere than at the task's home is the count, `far_join`, and the
// outcome, which it may take or drop there, since `T` is `Send`. What it touches at home only, it touches
// only there.
unsafe impl<T: Send> Send for Task<T> {}

// SAFETY: as above. Of what a shared reference offers, `abort` may drop the outcome; `marks` says which
// call does. None gives access to a `T`.
unsafe impl<T: Send> Sync for Task<T> {}

impl<T> Unpin for Task<T> {}
// A panic leaves nothing half-changed: the outcome is taken, or is not.
impl<T> UnwindSafe for Task<T> {}
impl<T> RefUnwindSafe for Task<T> {}

impl<T> Task<T> {
    /// # Safety
    /// - The handle takes a reference of the caller's, and is the cell's only one. The future's output is a
    ///   `T`.
    /// - If `T` is not `Send`, the calling thread is home.
    #[inline(always)]
    pub(crate) unsafe fn new(cell: NonNull<Header>) -> Self {
        Self { cell, marks: AtomicU8::new(0), _has: PhantomData }
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: the handle's reference keeps the cell.
        unsafe { self.cell.as_ref() }
    }

    /// Returns whether this thread may use the cell's home state, given flags without `DONE`.
    #[inline(always)]
    fn is_home(&self, flags: u64) -> bool {
        // A cell that was merged before it was done is one for another thread.
        flags & MERGED == 0 && self.header().count.is_home()
    }

    #[inline(always)]
    fn outcome(&self) -> *mut ManuallyDrop<Outcome<T>> {
        let cell = self.cell;
        // SAFETY: the cell exists, and its table says where within it the outcome is: at the beginning of its
        // slot and of the union there. The pointer is that to the whole cell.
        unsafe { cell.byte_add(cell.as_ref().table.outcome) }.cast().as_ptr()
    }

    /// Ends the task: its future is dropped on its thread, in place of its next poll. The handle resolves to
    /// `None` when that is done. If the task has ended, its value is dropped.
    pub fn abort(&self) {
        self.marks.fetch_or(ABORTED, Ordering::Relaxed);
        let flags = self.header().count.flags();
        if flags & DONE == 0 {
            self.close();
        } else if flags & VALUE != 0 && self.marks.fetch_or(TAKEN, Ordering::Relaxed) & TAKEN == 0 {
            // SAFETY: the task has ended with an outcome, which is the handle's, and the mark is set once.
            // `T` is `Send`, or this is the handle's only thread.
            unsafe { ManuallyDrop::drop(&mut *self.outcome()) };
        }
    }

    /// Ends the task as [`abort`](Self::abort) does, but the handle resolves to the value if there was one
    /// before.
    pub fn close(&self) {
        let header = self.header();
        let flags = header.count.flags();
        if flags & DONE != 0 {
            return;
        }
        if !self.is_home(flags) {
            // SAFETY: the handle has a reference.
            return unsafe { waker::send(self.cell, CLOSE) };
        }
        let state = header.state.get();
        header.state.set(state | CLOSING | SCHEDULED);
        if state & (SCHEDULED | RUNNING) == 0 {
            header.count.retain();
            // SAFETY: at home; the runnable, the first since the last poll, has the reference just made.
            unsafe { (header.table.here)(self.cell) };
        }
    }

    /// Returns whether the task has ended, its future included.
    pub fn is_finished(&self) -> bool {
        self.header().count.flags() & DONE != 0
    }

    /// Resolves when the future of a task that was aborted is dropped; at once if its outcome was taken.
    #[cold]
    fn poll_marked(&mut self, cx: &mut Context<'_>) -> Poll<Option<Outcome<T>>> {
        let is_taken = self.marks.load(Ordering::Relaxed) & TAKEN != 0;
        if !is_taken && self.poll_flags(cx.waker()).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(None)
    }

    /// Returns what the task's scheduler says: whether the task is one of a parent process, which can end no
    /// more. See [`Schedule::is_inherited`](crate::Schedule::is_inherited).
    #[cold]
    pub fn is_inherited(&self) -> bool {
        // SAFETY: the handle has a reference.
        unsafe { (self.header().table.is_inherited)(self.cell) }
    }

    /// Returns whether [`abort`](Self::abort) was called.
    pub fn is_aborted(&self) -> bool {
        self.marks.load(Ordering::Relaxed) & ABORTED != 0
    }

    /// Returns the flags once the task has ended, or leaves the waker.
    #[inline(always)]
    fn poll_flags(&self, waker: &Waker) -> Poll<u64> {
        let mut flags = self.header().count.flags();
        if flags & DONE == 0 {
            if self.is_home(flags) {
                self.wait_at_home(waker);
                return Poll::Pending;
            }
            flags = self.wait_elsewhere(waker);
            if flags & DONE == 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(flags)
    }

    /// Leaves the waker at home.
    #[inline(always)]
    fn wait_at_home(&self, waker: &Waker) {
        let slot = self.header().home_join.get();
        // SAFETY: at home, and no borrow of the slot outlives the statement that makes it.
        let is_there = unsafe { (*slot).as_ref().is_some_and(|old| old.will_wake(waker)) };
        if !is_there {
            let waker = waker.clone(); // foreign code, which may use the handle
            // SAFETY: as above.
            let old = unsafe { (*slot).replace(waker) };
            drop(old);
        }
    }

    /// Leaves the waker for another thread. Returns the flags after that.
    #[cold]
    fn wait_elsewhere(&self, waker: &Waker) -> u64 {
        let header = self.header();
        if self.is_inherited() {
            return header.count.flags(); // another thread of the parent may have held the lock
        }
        let waker = waker.clone(); // foreign code, before the lock
        let lock = || header.far_join.lock().unwrap_or_else(PoisonError::into_inner);
        let old = lock().replace(waker);
        drop(old);
        header.count.set(JOIN)
    }
}

impl<T> Future for Task<T> {
    type Output = Option<Outcome<T>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.marks.load(Ordering::Relaxed) != 0 {
            return this.poll_marked(cx);
        }
        let Poll::Ready(flags) = this.poll_flags(cx.waker()) else { return Poll::Pending };
        if flags & VALUE == 0 {
            return Poll::Ready(None);
        }
        this.marks.store(TAKEN, Ordering::Relaxed);
        // SAFETY: the task has ended with an outcome, which is the handle's, borrowed here alone. It was
        // not taken before, and the mark keeps it from being taken or dropped again.
        Poll::Ready(Some(unsafe { ManuallyDrop::take(&mut *this.outcome()) }))
    }
}

impl<T> Drop for Task<T> {
    #[inline]
    fn drop(&mut self) {
        /// The handle's reference, which is dropped also if the value's destructor panics.
        struct Reference(NonNull<Header>);

        impl Drop for Reference {
            #[inline(always)]
            fn drop(&mut self) {
                // SAFETY: the handle's reference, which is not used any more.
                unsafe { waker::release(self.0) };
            }
        }

        if self.marks.load(Ordering::Relaxed) == TAKEN {
            // SAFETY: the outcome was taken, so the task has ended; the handle's reference is not used any
            // more.
            return unsafe { waker::release_ended(self.cell) };
        }
        let _reference = Reference(self.cell);
        let header = self.header();
        let mut flags = header.count.flags();
        if flags & DONE == 0 {
            if self.is_home(flags) {
                header.state.set(header.state.get() | DETACHED);
                // SAFETY: at home, and no borrow of the slot outlives the statement that makes it.
                let join = unsafe { (*header.home_join.get()).take() };
                drop(join);
                return;
            }
            flags = header.count.set(LEFT);
        }
        let has_value = flags & DONE != 0 && flags & VALUE != 0;
        if has_value && self.marks.load(Ordering::Relaxed) & TAKEN == 0 {
            // SAFETY: as in `abort`; nothing else has the handle.
            unsafe { ManuallyDrop::drop(&mut *self.outcome()) };
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("is_finished", &self.is_finished()).finish()
    }
}
