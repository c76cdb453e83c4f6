//! The cell of a task: one allocation with its state, its future and its outcome.
//!
//! A task belongs to one thread, its *home*. There its future is polled, and then dropped, and its state
//! changes without an atomic operation. Other threads leave messages: they set flags in the cell and send a
//! [`Mail`] home. The story of a cell:
//! 1. `spawn` makes it at home: a [`Runnable`] and a [`Task`](crate::Task), its handle, have a reference
//!    each. Or another thread makes it (`spawn_to`): a mail that is [`NEW`] takes the place of the
//!    runnable.
//! 2. The runnable is run: the future is polled, with a waker that borrows the runnable's reference. Clones
//!    of the waker have one each. If the future waits, the runnable's reference is dropped.
//! 3. A wake at home makes a new runnable, unless there is one ([`SCHEDULED`]). A wake while the future is
//!    polled ([`RUNNING`]) only sets `SCHEDULED`; the polling thread then makes the runnable. So there is one
//!    at most, and it alone gives access to the future.
//! 4. A wake elsewhere sets [`MAILED`] and sends a mail, unless that was set. Home opens the mail: it
//!    clears the flag, and then does what a wake at home does. So a wake is either seen by the poll that
//!    follows the opening, or sends a mail of its own.
//! 5. An abort does the same, with [`CLOSING`], or [`CLOSE`] on another thread: the runnable drops the future
//!    instead of polling it. Dropping a runnable without running it drops the future, too.
//! 6. When the future is gone, its outcome takes its place, and [`DONE`] is set. From then on all references
//!    are in the count's atomic part; one atomic step moves them there and sets the flag. Without a handle
//!    and wakers there is no task to notify, and the cell is freed at once.
//! 7. The handle waits in one of two ways. At home it leaves its waker in `home_join`. On another thread it
//!    leaves it in `far_join` and then sets [`JOIN`]: either it finds `DONE`, or the thread that sets `DONE`
//!    finds `JOIN`, since both change the same word.
//! 8. The outcome belongs to the handle, which takes it or drops it. If the handle is dropped before, it sets
//!    [`LEFT`], and the thread that ends the task drops the outcome. Again the order of two changes to one
//!    word, or of two steps at home, decides between the two.
//!
//! Until its mail is opened at home, a new cell is used by other threads only, and its handle acts as on
//! another thread, wherever it is. So a mail that is dropped may drop its future in place: it is `Send`, no
//! thread has polled it, and no waker exists.
//!
//! If the last wakers of a task are on other threads and all of them are dropped, its future is dropped if
//! the count was merged, and leaked otherwise: only home could know that they were the last. A runtime that
//! keeps a waker of each task, to end it, has no such tasks.

use std::any::Any;
use std::future::Future;
use std::mem::{self, ManuallyDrop};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use crate::count::{Count, Settled};
use crate::handles::{Mail, Runnable, Schedule};
use crate::sync::{AssertUnwindSafe, HomeCell, Mutex, PoisonError, Slot, catch_unwind};
use crate::waker;

/// Flag of the count: the future is gone, and the outcome is in its place if there is one. Set last, by the
/// thread that had access to the future.
pub(crate) const DONE: u64 = 1 << 1;
/// There is an outcome. Set with `DONE`.
pub(crate) const VALUE: u64 = 1 << 2;
/// The handle's waker is or was in `far_join`. Set by the handle.
pub(crate) const JOIN: u64 = 1 << 3;
/// The handle is gone, and left the outcome to the thread that sets `DONE`. Set by the handle.
pub(crate) const LEFT: u64 = 1 << 4;
/// A mail is on its way, which delivers all wakes until it is opened. Set by wakers and the handle, cleared
/// by home, or with a mail that is dropped.
pub(crate) const MAILED: u64 = 1 << 5;
/// The mail asks for the end of the task. Set by the handle, or with the last waker.
pub(crate) const CLOSE: u64 = 1 << 6;
/// The mail is the first one, and gives access to the future. Set when a cell is made for another thread.
pub(crate) const NEW: u64 = 1 << 7;

/// State at home: there is a runnable, or another poll is to follow the present one.
pub(crate) const SCHEDULED: u8 = 1;
/// The future is being polled.
pub(crate) const RUNNING: u8 = 1 << 1;
/// The future is to be dropped by the next runnable, or after the present poll.
pub(crate) const CLOSING: u8 = 1 << 2;
/// The future is gone.
pub(crate) const ENDED: u8 = 1 << 3;
/// The handle was dropped at home: nothing takes the outcome.
pub(crate) const DETACHED: u8 = 1 << 4;

/// The value of a task's future, or the panic that ended it.
pub type Outcome<T> = Result<T, Box<dyn Any + Send>>;

/// The first part of every cell.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) count: Count,
    /// Touched at home only.
    pub(crate) state: HomeCell<u8>,
    /// The task after this one in the [queue](crate::Queue) that has the runnable. Touched at home only.
    pub(crate) follower: HomeCell<Option<NonNull<Header>>>,
    /// The waker of the handle, if it waits at home. Touched there only, and with the last reference.
    pub(crate) home_join: Slot<Option<Waker>>,
    /// The waker of the handle, if it waits elsewhere.
    pub(crate) far_join: Mutex<Option<Waker>>,
    pub(crate) table: &'static Table,
}

/// Functions and facts that depend on the types of a cell. Each function takes a cell of these types.
pub(crate) struct Table {
    /// Runs the runnable, and takes its reference. At home; for [`work`](crate::work) on the thread that has
    /// it.
    pub(crate) run: unsafe fn(NonNull<Header>),
    /// Drops the future, and takes the runnable's reference. At home.
    pub(crate) end: unsafe fn(NonNull<Header>),
    /// As [`end`](Self::end), for a cell that is [`NEW`], on any thread.
    pub(crate) end_new: unsafe fn(NonNull<Header>),
    /// Passes a runnable to the scheduler, with a reference of the caller's. At home.
    pub(crate) here: unsafe fn(NonNull<Header>),
    /// Passes a mail to the scheduler, with a reference of the caller's.
    pub(crate) elsewhere: unsafe fn(NonNull<Header>),
    /// Asks the scheduler whether the cell is one of a parent process. With a reference, on any thread.
    pub(crate) is_inherited: unsafe fn(NonNull<Header>) -> bool,
    /// Frees a cell that has no references, no future and no outcome.
    pub(crate) free: unsafe fn(NonNull<Header>),
    /// The offset of the outcome from the beginning of the cell, in bytes.
    pub(crate) outcome: usize,
}

/// The part of a cell that does not depend on its future.
#[repr(C)]
pub(crate) struct Prefix<S> {
    header: Header,
    pub(crate) scheduler: S,
}

/// A cell.
#[repr(C)]
struct Cell<S, F: Future> {
    prefix: Prefix<S>,
    stage: Slot<Stage<F>>,
}

/// The future until it is gone, then the outcome if there is one. Both are at its beginning.
#[repr(C)]
union Stage<F: Future> {
    future: ManuallyDrop<F>,
    outcome: ManuallyDrop<Outcome<F::Output>>,
}

impl<S: Schedule, F: Future> Cell<S, F> {
    const TABLE: Table = Self::table(run::<S, F>);
    /// The table of work, which any thread may run.
    const WORK: Table = Self::table(run_work::<S, F>);

    const fn table(run: unsafe fn(NonNull<Header>)) -> Table {
        Table {
            run,
            end: end::<S, F>,
            end_new: end_new::<S, F>,
            here: here::<S>,
            elsewhere: elsewhere::<S>,
            is_inherited: is_inherited::<S>,
            free: free::<S, F>,
            outcome: mem::offset_of!(Self, stage),
        }
    }
}

/// Makes a cell. Its references belong to the caller, as `count` says.
#[inline]
pub(crate) fn new<S, F>(count: Count, state: u8, future: F, scheduler: S) -> NonNull<Header>
where
    S: Schedule,
    F: Future + 'static,
{
    allocate(count, state, &Cell::<S, F>::TABLE, future, scheduler)
}

/// Makes a cell of work.
pub(crate) fn new_work<S, F>(count: Count, future: F, scheduler: S) -> NonNull<Header>
where
    S: Schedule,
    F: Future + Send + 'static,
{
    allocate(count, 0, &Cell::<S, F>::WORK, future, scheduler)
}

#[inline(always)]
fn allocate<S, F: Future>(
    count: Count,
    state: u8,
    table: &'static Table,
    future: F,
    scheduler: S,
) -> NonNull<Header> {
    let place = NonNull::from(Box::leak(Box::<Cell<S, F>>::new_uninit()));
    let cell = place.cast::<Cell<S, F>>().as_ptr();
    // Part by part, since a cell that is moved into its box as a whole is copied once more.
    // SAFETY: the box is this function's alone, as large and aligned as a cell, and each part of it is
    // written once.
    unsafe {
        let header = &raw mut (*cell).prefix.header;
        (&raw mut (*header).count).write(count);
        (&raw mut (*header).state).write(HomeCell::new(state));
        (&raw mut (*header).follower).write(HomeCell::new(None));
        (&raw mut (*header).home_join).write(Slot::new(None));
        (&raw mut (*header).far_join).write(Mutex::new(None));
        (&raw mut (*header).table).write(table);
        (&raw mut (*cell).prefix.scheduler).write(scheduler);
        (&raw mut (*cell).stage).write(Slot::new(Stage { future: ManuallyDrop::new(future) }));
    }
    // The header is the first field of the first field, in C's layout. The pointer covers the whole cell.
    place.cast()
}

/// Returns the place of the future or the outcome.
///
/// # Safety
/// - `cell` exists and is a `Cell<S, F>`.
#[inline(always)]
unsafe fn stage<S, F: Future>(cell: NonNull<Header>) -> *mut Stage<F> {
    // SAFETY: the cell exists and has this type, by the caller's promise.
    unsafe { (*cell.cast::<Cell<S, F>>().as_ptr()).stage.get() }
}

/// # Safety
/// - As of [`Table::run`]: at home, with the runnable's reference, which is taken.
unsafe fn run<S: Schedule, F: Future>(cell: NonNull<Header>) {
    // SAFETY: the runnable's reference keeps the cell until it is released, below; the borrow is not used
    // after.
    let header = unsafe { cell.as_ref() };
    let state = header.state.get();
    if state & CLOSING != 0 {
        // SAFETY: as of this function.
        return unsafe { end::<S, F>(cell) };
    }
    header.state.set((state & !SCHEDULED) | RUNNING);
    // SAFETY: the waker uses the runnable's reference, and is not dropped; clones have their own.
    let waker = ManuallyDrop::new(unsafe { waker::of(cell) });
    // SAFETY: there is one runnable at most, and it is here: nothing else reaches the future. It is there,
    // since it only goes together with `ENDED`, after which there is no runnable.
    let poll = unsafe { poll(stage::<S, F>(cell), &mut Context::from_waker(&waker)) };
    match poll {
        Ok(Poll::Pending) => {
            let state = header.state.get();
            if state & CLOSING != 0 {
                // SAFETY: the reference is still there; while the state was `RUNNING` no runnable was made,
                // so the access to the future is here.
                return unsafe { end::<S, F>(cell) };
            }
            header.state.set(state & !RUNNING);
            if state & SCHEDULED != 0 {
                // SAFETY: at home; the reference goes to the new runnable, and with it the access.
                return unsafe { here::<S>(cell) };
            }
            if header.count.release() {
                // No waker is left: the future would wait for ever.
                header.count.revive();
                // SAFETY: the reference is there again, and nothing else has any.
                unsafe { end::<S, F>(cell) };
            }
        }
        // SAFETY: as for `end`: the reference and the access to the future are here.
        Ok(Poll::Ready(value)) => unsafe { end_with::<S, F>(cell, Ok(value)) },
        // SAFETY: as above.
        Err(payload) => unsafe { end_with::<S, F>(cell, Err(payload)) },
    }
}

/// Polls the future, and catches its panic.
///
/// # Safety
/// - `stage` has the future, and nothing else reaches it meanwhile.
/// - The future stays there until it is dropped there.
#[inline(always)]
unsafe fn poll<F: Future>(stage: *mut Stage<F>, cx: &mut Context<'_>) -> Outcome<Poll<F::Output>> {
    // No code sees the future half-changed: after a panic it is only dropped.
    catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the future is there, for this call alone. It is pinned: it stays until it is dropped.
        unsafe { Pin::new_unchecked(&mut *(*stage).future) }.poll(cx)
    }))
}

/// Drops the future, and discards a panic of its destructor: no handle is left that could report it.
///
/// # Safety
/// - As of [`poll`]; the future is not used afterwards.
#[inline(always)]
unsafe fn drop_future<F: Future>(stage: *mut Stage<F>) {
    if mem::needs_drop::<F>() {
        // SAFETY: the future is there, for this call alone, which is the last one that uses it.
        contain(|| unsafe { ManuallyDrop::drop(&mut (*stage).future) });
    }
}

/// Calls foreign code whose panic would leave the protocol halfway. The panic hook has reported it.
#[inline(always)]
fn contain(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        mem::forget(payload); // its destructor may panic, too
    }
}

/// # Safety
/// - As of [`Table::end`]: at home, with the runnable's reference, which is taken, and its access to the
///   future.
unsafe fn end<S: Schedule, F: Future>(cell: NonNull<Header>) {
    // SAFETY: the access to the future is the caller's, and ends here.
    unsafe { drop_future(stage::<S, F>(cell)) };
    // SAFETY: at home with the reference; the future is gone, and there is no outcome.
    unsafe { settle::<S, F>(cell, false) };
}

/// Ends the task as [`end`] does, with an outcome.
///
/// # Safety
/// - As of [`end`].
#[inline(always)]
unsafe fn end_with<S: Schedule, F: Future>(cell: NonNull<Header>, outcome: Outcome<F::Output>) {
    // SAFETY: the access to the future is the caller's, and ends here.
    let is_detached = unsafe {
        drop_future(stage::<S, F>(cell));
        cell.as_ref().state.get() & DETACHED != 0
    };
    if is_detached {
        contain(|| drop(outcome));
    } else {
        // SAFETY: the future is gone, so the place is free, and the caller's as the future was.
        unsafe { (*stage::<S, F>(cell)).outcome = ManuallyDrop::new(outcome) };
    }
    // SAFETY: at home with the reference; the place holds what is said.
    unsafe { settle::<S, F>(cell, !is_detached) };
}

/// Publishes that a task has ended.
///
/// # Safety
/// - At home with the runnable's reference, which is taken. The future is gone, and the outcome in its
///   place if there is one.
#[inline(always)]
unsafe fn settle<S: Schedule, F: Future>(cell: NonNull<Header>, has_value: bool) {
    // SAFETY: the reference keeps the cell until it is dropped; the borrow is not used after.
    let header = unsafe { cell.as_ref() };
    header.state.set(ENDED);
    // SAFETY: at home, and no borrow of the slot outlives the function that makes it.
    let join = unsafe { (*header.home_join.get()).take() };
    let flags = if has_value { DONE | VALUE } else { DONE };
    match header.count.settle(flags, JOIN | LEFT) {
        Settled::Done => {}
        Settled::Last => {
            if has_value {
                // The handle was forgotten, or it would have a reference or have said that it leaves.
                // SAFETY: nothing else reaches the outcome.
                contain(|| unsafe { drop_outcome::<S, F>(cell) });
            }
            // SAFETY: that was the last reference; future and outcome are gone.
            unsafe { free::<S, F>(cell) };
        }
        Settled::Not => {
            header.count.merge();
            // SAFETY: with the reference, and the place as it was.
            unsafe { publish::<S, F>(cell, flags) };
        }
    }
    if let Some(join) = join {
        join.wake();
    }
}

/// As [`settle`], when other threads may use the cell at the same time.
///
/// # Safety
/// - The count is merged, and the caller has a reference, which is taken.
/// - The future is gone, and the outcome in its place if `flags`, which become the cell's, have [`VALUE`].
#[cold]
unsafe fn publish<S: Schedule, F: Future>(cell: NonNull<Header>, flags: u64) {
    // SAFETY: the reference keeps the cell until it is released; the borrow is not used after.
    let header = unsafe { cell.as_ref() };
    // One change of the word decides: a handle that came before it has filled `far_join`; a handle that comes
    // after it takes the outcome.
    let before = header.count.set(flags);
    let join = if before & JOIN != 0 { take_far_join(header) } else { None };
    if before & LEFT != 0 && flags & VALUE != 0 {
        // SAFETY: the handle went before `DONE` was set, so the outcome is this function's.
        contain(|| unsafe { drop_outcome::<S, F>(cell) });
    }
    if header.count.release() {
        // SAFETY: that was the last reference. The future is gone, and the outcome taken, or dropped here.
        unsafe { free::<S, F>(cell) };
    }
    if let Some(join) = join {
        S::ended(join);
    }
}

fn take_far_join(header: &Header) -> Option<Waker> {
    header.far_join.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// # Safety
/// - The outcome is there, and the caller's; it is not used afterwards.
unsafe fn drop_outcome<S: Schedule, F: Future>(cell: NonNull<Header>) {
    // SAFETY: the outcome is there, for this call alone, which is the last one that uses it.
    unsafe { ManuallyDrop::drop(&mut (*stage::<S, F>(cell)).outcome) };
}

/// # Safety
/// - As of [`Table::end_new`]: the caller has the mail that is new, and with it a reference, which is
///   taken. The future is `Send`.
unsafe fn end_new<S: Schedule, F: Future>(cell: NonNull<Header>) {
    // SAFETY: the new mail alone gives access to the future, which this thread may drop, as it is `Send`.
    unsafe { drop_future(stage::<S, F>(cell)) };
    // SAFETY: cells for other threads are merged from the start; the reference is the caller's, the future
    // gone.
    unsafe { publish::<S, F>(cell, DONE) };
}

/// # Safety
/// - As of [`Table::run`] for work: as of [`end_new`].
unsafe fn run_work<S: Schedule, F: Future>(cell: NonNull<Header>) {
    // SAFETY: the reference is the caller's.
    if unsafe { cell.as_ref() }.count.flags() & CLOSE != 0 {
        // SAFETY: as of this function.
        return unsafe { end_new::<S, F>(cell) };
    }
    // SAFETY: the new mail alone gives access to the future. It is `Send`, so this thread may poll it, and it
    // stays where it is until it is dropped.
    let poll = unsafe { poll(stage::<S, F>(cell), &mut Context::from_waker(Waker::noop())) };
    let outcome = match poll {
        Ok(Poll::Ready(value)) => Ok(value),
        Err(payload) => Err(payload),
        // SAFETY: as of this function. Work does not wait; if it did, it would have ended here.
        Ok(Poll::Pending) => return unsafe { end_new::<S, F>(cell) },
    };
    // SAFETY: the access is here. The future goes, and its place is free for the outcome, which is `Send`.
    unsafe {
        drop_future(stage::<S, F>(cell));
        (*stage::<S, F>(cell)).outcome = ManuallyDrop::new(outcome);
    }
    // SAFETY: merged from the start, with the reference; the outcome is in its place.
    unsafe { publish::<S, F>(cell, DONE | VALUE) };
}

/// # Safety
/// - As of [`Table::here`]: at home, with a reference, which the runnable takes; the state is `SCHEDULED`,
///   and was not before, nor `RUNNING`.
unsafe fn here<S: Schedule>(cell: NonNull<Header>) {
    // SAFETY: the reference and the access to the future go to the runnable.
    S::here(unsafe { Runnable::new(cell) });
}

/// # Safety
/// - As of [`Table::elsewhere`]: with a reference, which the mail takes; `MAILED` was not set before.
unsafe fn elsewhere<S: Schedule>(cell: NonNull<Header>) {
    // SAFETY: the reference goes to the mail.
    S::elsewhere(unsafe { Mail::new(cell) });
}

/// # Safety
/// - As of [`Table::is_inherited`]: with a reference.
unsafe fn is_inherited<S: Schedule>(cell: NonNull<Header>) -> bool {
    // SAFETY: the reference keeps the cell, which begins with its scheduler's prefix and was made with this
    // table, so for this type. A scheduler may be used on any thread.
    unsafe { cell.cast::<Prefix<S>>().as_ref() }.scheduler.is_inherited()
}

/// # Safety
/// - As of [`Table::free`].
unsafe fn free<S: Schedule, F: Future>(cell: NonNull<Header>) {
    // SAFETY: the cell was made by `allocate` of a box of this type, and nothing reaches it any more. The
    // future and the outcome are not dropped with it.
    drop(unsafe { Box::from_raw(cell.cast::<Cell<S, F>>().as_ptr()) });
}
