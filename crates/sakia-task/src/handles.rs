//! An executor's handles of a task: access to its future, or a message about it from another thread.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;
use std::task::Waker;

use crate::cell::{CLOSE, CLOSING, DONE, Header, MAILED, NEW, Prefix, RUNNING, SCHEDULED};
use crate::waker;

/// Takes tasks to their thread's queue. A task has its scheduler in its cell.
///
/// Neither function is called while the task's future is polled, but `here` may be called from everywhere
/// else where a waker is used, also from destructors.
pub trait Schedule: Send + Sync + Sized + 'static {
    /// Takes a task that was woken on its own thread, the calling one. Dropping the runnable drops the task's
    /// future, at once.
    fn here(task: Runnable<Self>);

    /// Takes a mail about a task that was woken, or told to end, perhaps on another thread. It must be
    /// [opened](Mail::open) on the task's own thread. Dropping it loses its wakes.
    fn elsewhere(mail: Mail<Self>);

    /// Takes the waker of a handle on another thread that awaits a task, once the task has ended. It is to be
    /// woken, now or soon.
    fn ended(waker: Waker) {
        waker.wake();
    }

    /// Returns whether the task is one of another process, which this one was forked from: it has no thread
    /// here. A handle on another thread than the task's then takes no lock, and does not wait.
    fn is_inherited(&self) -> bool {
        false
    }
}

/// A task that is ready to run, on its own thread. It has the only access to the task's future.
///
/// Dropping it drops the future: the task is canceled.
pub struct Runnable<S: Schedule> {
    cell: NonNull<Header>,
    /// It stays on its thread.
    _stays: PhantomData<(*const (), S)>,
}

impl<S: Schedule> Runnable<S> {
    /// # Safety
    /// - At home of the cell, which has a scheduler of this type, and the state `SCHEDULED`.
    /// - The runnable takes a reference of the caller's and the access to the future, which nothing else has.
    #[inline(always)]
    pub(crate) unsafe fn new(cell: NonNull<Header>) -> Self {
        Self { cell, _stays: PhantomData }
    }

    /// Polls the task's future once. If it waits, the task is scheduled again when it is woken; at once, at
    /// the end of this call, if it was woken meanwhile. A panic of the future goes to its handle.
    ///
    /// # Panics
    /// When the scheduler panics, or the waker of a task that awaits this one.
    #[inline(always)]
    pub fn run(self) {
        let cell = self.into_cell();
        // SAFETY: a runnable is at home, since it is not `Send`. Its reference and its access are given on.
        unsafe { (cell.as_ref().table.run)(cell) };
    }

    /// Returns the cell, with the reference and the access of the runnable.
    #[inline(always)]
    pub(crate) fn into_cell(self) -> NonNull<Header> {
        let cell = self.cell;
        mem::forget(self);
        cell
    }

    /// Returns the task's scheduler.
    #[inline(always)]
    pub fn scheduler(&self) -> &S {
        // SAFETY: the runnable's reference keeps the cell, which begins with a `Prefix<S>`; its scheduler
        // is only read until the cell is freed.
        unsafe { &(*self.cell.cast::<Prefix<S>>().as_ptr()).scheduler }
    }

    /// Returns a waker of the task. All of its wakers have the same data, which is unique as long as one
    /// exists.
    pub fn waker(&self) -> Waker {
        // SAFETY: the runnable's reference keeps the cell. The waker has the reference just made.
        unsafe {
            self.cell.as_ref().count.retain();
            waker::of(self.cell)
        }
    }

    /// Converts it to mail, to be opened later on this thread. `None` if a mail is on its way, which has the
    /// same effect.
    pub fn into_mail(self) -> Option<Mail<S>> {
        let cell = self.into_cell();
        // SAFETY: the runnable's reference keeps the cell until it is given on.
        let header = unsafe { cell.as_ref() };
        // The access is given up: the next wake, or the opening of a mail, makes a new runnable. `CLOSING`
        // stays.
        header.state.set(header.state.get() & !SCHEDULED);
        if header.count.set(MAILED) & MAILED != 0 {
            // SAFETY: the runnable's reference, which is not used any more.
            unsafe { waker::release(cell) };
            return None;
        }
        // SAFETY: the reference goes to the mail, which is the only one.
        Some(unsafe { Mail::new(cell) })
    }
}

impl<S: Schedule> Drop for Runnable<S> {
    fn drop(&mut self) {
        // SAFETY: as in `run`.
        unsafe { (self.cell.as_ref().table.end)(self.cell) };
    }
}

/// A message about a task from another thread: it was woken, is to end, or is new. There is one at a time.
///
/// Dropping it loses its wakes; a new task is canceled.
pub struct Mail<S: Schedule> {
    cell: NonNull<Header>,
    _of: PhantomData<S>,
}

// SAFETY: elsewhere than at home a mail touches the count and, if it is new, the future, which is `Send`
// then.
unsafe impl<S: Schedule> Send for Mail<S> {}

// SAFETY: a shared reference to a mail gives the scheduler, which is `Sync`.
unsafe impl<S: Schedule> Sync for Mail<S> {}

impl<S: Schedule> Mail<S> {
    /// # Safety
    /// - The cell has a scheduler of this type. `MAILED` is set, and this is the only mail.
    /// - The mail takes a reference of the caller's. If the cell is new, it takes the access to the future.
    #[inline(always)]
    pub(crate) unsafe fn new(cell: NonNull<Header>) -> Self {
        Self { cell, _of: PhantomData }
    }

    /// Returns the task's scheduler.
    pub fn scheduler(&self) -> &S {
        // SAFETY: as of a runnable.
        unsafe { &(*self.cell.cast::<Prefix<S>>().as_ptr()).scheduler }
    }

    /// Applies the mail on the task's thread. `None` if the task has ended, or is scheduled already.
    ///
    /// # Errors
    /// On another thread: the mail.
    pub fn open(self) -> Result<Option<Runnable<S>>, Self> {
        // SAFETY: the mail's reference keeps the cell until it is given on.
        let header = unsafe { self.cell.as_ref() };
        if !header.count.is_home() {
            return Err(self);
        }
        let cell = self.cell;
        mem::forget(self);
        // Pairs with the threads that set flags: the poll that follows sees all that they did before.
        let before = header.count.clear(MAILED | CLOSE | NEW);
        let mut state = header.state.get();
        if before & CLOSE != 0 {
            state |= CLOSING;
        }
        let is_due = before & DONE == 0 && state & (SCHEDULED | RUNNING) == 0;
        if before & DONE == 0 {
            header.state.set(state | SCHEDULED);
        }
        if is_due {
            // SAFETY: at home. The reference goes to the runnable, the only one: none is there, and the
            // future is not being polled. If the mail was new, its access goes on.
            return Ok(Some(unsafe { Runnable::new(cell) }));
        }
        // SAFETY: the mail's reference, which is not used any more.
        unsafe { waker::release(cell) };
        Ok(None)
    }
}

impl<S: Schedule> Drop for Mail<S> {
    fn drop(&mut self) {
        // SAFETY: the mail's reference keeps the cell until it is given on; the borrow is not used after.
        let header = unsafe { self.cell.as_ref() };
        // Later wakes may try again.
        let before = header.count.clear(MAILED | CLOSE | NEW);
        if before & NEW != 0 {
            // SAFETY: a new mail has the access to the future, which is `Send`, and a reference.
            unsafe { (header.table.end_new)(self.cell) };
        } else if header.count.release() && before & DONE != 0 {
            // SAFETY: that was the last reference, and the task has ended. If it has not, it is leaked: its
            // future may not be dropped here, and its scheduler has refused to send it home.
            unsafe { (header.table.free)(self.cell) };
        }
    }
}

/// Code to be called once, on any thread. Dropping it cancels it.
pub struct Work<S: Schedule> {
    /// It stays new until it is run.
    mail: Mail<S>,
}

impl<S: Schedule> Work<S> {
    pub(crate) fn new(mail: Mail<S>) -> Self {
        Self { mail }
    }

    /// Calls the code, unless its handle has canceled it.
    ///
    /// # Panics
    /// When the waker of a task that awaits it panics.
    pub fn run(self) {
        let cell = self.mail.cell;
        mem::forget(self);
        // SAFETY: the mail is new, as no thread is home of work to open it, and `Work::run` is the only one
        // to run it. So the access to the future and the reference are here, and go on. The table is that
        // of work.
        unsafe { (cell.as_ref().table.run)(cell) };
    }
}

impl<S: Schedule> fmt::Debug for Runnable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runnable").field(&self.cell).finish()
    }
}

impl<S: Schedule> fmt::Debug for Mail<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mail").field(&self.cell).finish()
    }
}

impl<S: Schedule> fmt::Debug for Work<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.mail.cell).finish()
    }
}
