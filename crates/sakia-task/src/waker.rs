//! Wakers of tasks.

use std::ptr::NonNull;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::cell::{CLOSE, CLOSING, DONE, ENDED, Header, MAILED, RUNNING, SCHEDULED};

/// One table for all types of tasks, so that equal wakers are known to be equal.
static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// Returns a waker of the task.
///
/// # Safety
/// - The waker takes a reference of the caller's, or is not dropped and not used for longer than that exists.
#[inline(always)]
pub(crate) unsafe fn of(cell: NonNull<Header>) -> Waker {
    // SAFETY: the functions of the table do what wakers have to do, on any thread: `clone` counts a
    // reference, `wake` and `drop_waker` take one, and all of them need the one that the waker has.
    unsafe { Waker::from_raw(raw(cell)) }
}

#[inline(always)]
fn raw(cell: NonNull<Header>) -> RawWaker {
    RawWaker::new(cell.as_ptr().cast_const().cast(), &TABLE)
}

/// Returns the cell of a waker's data.
///
/// # Safety
/// - `data` is that of a waker made by [`raw`], which exists.
#[inline(always)]
unsafe fn cell(data: *const ()) -> NonNull<Header> {
    // SAFETY: `raw` made it of a pointer that is not null.
    unsafe { NonNull::new_unchecked(data.cast_mut().cast()) }
}

/// # Safety
/// - As [`RawWakerVTable`] says: `data` is that of a waker, which exists.
unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: the waker's reference keeps the cell.
    let cell = unsafe { cell(data) };
    // SAFETY: as above.
    unsafe { cell.as_ref() }.count.retain();
    raw(cell)
}

/// # Safety
/// - As for [`clone`]; the waker's reference is taken.
unsafe fn wake(data: *const ()) {
    // SAFETY: the waker exists.
    let cell = unsafe { cell(data) };
    // SAFETY: the waker's reference keeps the cell; the borrow is not used after it is given away.
    let header = unsafe { cell.as_ref() };
    if header.count.is_home() {
        let state = header.state.get();
        if state & (SCHEDULED | ENDED) == 0 {
            header.state.set(state | SCHEDULED);
            if state & RUNNING == 0 {
                // SAFETY: at home; the waker's reference goes to the runnable, the first since the last poll.
                return unsafe { (header.table.here)(cell) };
            }
        }
    } else {
        // SAFETY: the waker's reference keeps the cell.
        unsafe { send(cell, 0) };
    }
    // SAFETY: the waker's reference, which is not used any more.
    unsafe { release(cell) };
}

/// # Safety
/// - As for [`clone`].
unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the waker exists.
    let cell = unsafe { cell(data) };
    // SAFETY: the waker's reference keeps the cell.
    let header = unsafe { cell.as_ref() };
    if header.count.is_home() {
        let state = header.state.get();
        if state & (SCHEDULED | ENDED) == 0 {
            header.state.set(state | SCHEDULED);
            if state & RUNNING == 0 {
                header.count.retain();
                // SAFETY: at home; the runnable, the first since the last poll, has the reference just made.
                unsafe { (header.table.here)(cell) };
            }
        }
    } else {
        // SAFETY: the waker's reference keeps the cell.
        unsafe { send(cell, 0) };
    }
}

/// # Safety
/// - As for [`clone`]; the waker's reference is taken.
unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the waker exists, and its reference is not used any more.
    unsafe { release(cell(data)) };
}

/// Sends a mail home with `flags`, or adds them to the mail that is on its way.
///
/// # Safety
/// - The caller has a reference.
#[cold]
pub(crate) unsafe fn send(cell: NonNull<Header>, flags: u64) {
    // SAFETY: the caller's reference keeps the cell.
    let header = unsafe { cell.as_ref() };
    // The word changes even if a mail is on its way: the thread that opens it sees all that was done before
    // this wake.
    let before = header.count.set(MAILED | flags);
    if before & (MAILED | DONE) == 0 {
        header.count.retain();
        // SAFETY: the mail, the only one, has the reference just made.
        unsafe { (header.table.elsewhere)(cell) };
    }
}

/// Drops a reference.
///
/// # Safety
/// - The reference is the caller's, and not used afterwards. It is neither a runnable's nor a mail's.
#[inline(always)]
pub(crate) unsafe fn release(cell: NonNull<Header>) {
    // SAFETY: the reference keeps the cell until it is released; the borrow ends within the call.
    if unsafe { cell.as_ref() }.count.release() {
        // SAFETY: it was the last.
        unsafe { end_unreferenced(cell) };
    }
}

/// Drops a reference to a task that has ended.
///
/// # Safety
/// - As of [`release`]. The task has ended; its outcome was taken or dropped.
#[inline(always)]
pub(crate) unsafe fn release_ended(cell: NonNull<Header>) {
    // SAFETY: the reference keeps the cell until it is released; the borrow ends within the call.
    if unsafe { cell.as_ref() }.count.release_merged() {
        // SAFETY: no reference is left; future and outcome are gone.
        unsafe { (cell.as_ref().table.free)(cell) };
    }
}

/// Frees a cell, or has its task end if the future still exists.
///
/// # Safety
/// - No reference is left.
#[cold]
unsafe fn end_unreferenced(cell: NonNull<Header>) {
    // SAFETY: nothing else reaches the cell, and it is not freed but below.
    let header = unsafe { cell.as_ref() };
    if header.count.flags() & DONE != 0 {
        // SAFETY: no reference is left. The future is gone; the handle took or dropped the outcome, or the
        // thread that set `DONE` did. If the handle was forgotten, the outcome is leaked.
        return unsafe { (header.table.free)(cell) };
    }
    header.count.revive();
    if header.count.is_home() {
        // There is no runnable, which would have a reference.
        header.state.set(header.state.get() | SCHEDULED | CLOSING);
        // SAFETY: at home; the runnable, the only one, has the revived reference.
        unsafe { (header.table.here)(cell) };
    } else {
        header.count.set(MAILED | CLOSE);
        // SAFETY: the mail, the only one, since another would have a reference, has the revived one.
        unsafe { (header.table.elsewhere)(cell) };
    }
}
