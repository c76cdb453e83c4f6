//! The queue of a thread's tasks that are ready.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::cell::Header;
use crate::handles::{Runnable, Schedule};

/// Tasks that are ready to run, in the order in which they came. It needs no memory of its own: each task's
/// cell has the place for its follower.
///
/// Dropping it drops the futures of its tasks, oldest first.
///
/// # Examples
/// ```
/// # struct Nowhere;
/// # impl sakia_task::Schedule for Nowhere {
/// #     fn here(_: sakia_task::Runnable<Self>) {}
/// #     fn elsewhere(_: sakia_task::Mail<Self>) {}
/// # }
/// let queue = sakia_task::Queue::new();
/// let (runnable, task) = sakia_task::spawn(async { 1 }, Nowhere);
/// queue.push(runnable);
/// assert_eq!(queue.len(), 1);
/// queue.pop().unwrap().run();
/// assert!(task.is_finished() && queue.is_empty());
/// ```
pub struct Queue<S: Schedule> {
    /// The oldest task, if there is one.
    first: Cell<Option<NonNull<Header>>>,
    /// The newest one. Each task but that one has its follower in its cell.
    last: Cell<Option<NonNull<Header>>>,
    len: Cell<usize>,
    /// It has runnables, so it stays on their thread.
    _has: PhantomData<Runnable<S>>,
}

impl<S: Schedule> Queue<S> {
    /// Returns an empty queue.
    pub const fn new() -> Self {
        let (first, last) = (Cell::new(None), Cell::new(None));
        Self { first, last, len: Cell::new(0), _has: PhantomData }
    }

    /// Puts a task at the end.
    #[inline(always)]
    pub fn push(&self, task: Runnable<S>) {
        let cell = task.into_cell();
        match self.last.replace(Some(cell)) {
            // SAFETY: the queue has the runnable of this cell, whose reference keeps it. It is at home, as
            // runnables do not leave their thread, nor does the queue.
            Some(last) => unsafe { last.as_ref() }.follower.set(Some(cell)),
            None => self.first.set(Some(cell)),
        }
        self.len.set(self.len.get() + 1);
    }

    /// Takes the oldest task.
    #[inline(always)]
    pub fn pop(&self) -> Option<Runnable<S>> {
        let cell = self.first.get()?;
        // SAFETY: as in `push`.
        let follower = unsafe { cell.as_ref() }.follower.take();
        self.first.set(follower);
        if follower.is_none() {
            self.last.set(None);
        }
        self.len.set(self.len.get() - 1);
        // SAFETY: the queue has taken the runnable of this cell, with its reference and access, and gives it
        // away now. It has this scheduler's type, as all that were pushed.
        Some(unsafe { Runnable::new(cell) })
    }

    /// Returns the number of tasks.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Returns whether there is no task.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }
}

impl<S: Schedule> Default for Queue<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Schedule> Drop for Queue<S> {
    fn drop(&mut self) {
        while let Some(task) = self.pop() {
            drop(task);
        }
    }
}

impl<S: Schedule> fmt::Debug for Queue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("len", &self.len()).finish()
    }
}
