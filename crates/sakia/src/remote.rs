//! The inbox of a runtime's thread, for other threads.
//!
//! Each runtime thread has one [`Remote`]. Other threads push the mail of tasks that they have woken; the
//! thread takes it between its own tasks, and is woken only if it sleeps. The protocol makes sure that never
//! both sides miss each other:
//! 1. A sender pushes its task and sets `has_mail`, then (sequentially consistent) reads `parked`. If
//!    it is set, the sender clears it and wakes the thread through the driver; one sender does, since
//!    it swaps.
//! 2. The thread sets `parked`, then (sequentially consistent) reads `has_mail`. If it is set, it does
//!    not sleep. Otherwise it sleeps in the driver, and clears `parked` at the end of the sleep, before
//!    the driver calls wakers: their signals make no system call.
//! 3. Whatever the order, either the sender sees `parked`, or the thread sees the mail: these four operations
//!    have one order, on which all threads agree.
//! 4. A wake that comes when the thread did not sleep after all makes its next sleep short: harmless.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sakia_driver::RemoteWake;
use sakia_ring::Process;
use sakia_task::ThreadId;

use crate::gate::Mail;

/// The inbox of one runtime thread.
pub(crate) struct Remote {
    /// The process that has the thread. In its children another thread may have held the lock.
    process: Process,
    inbox: Mutex<Inbox>,
    /// Set when there is mail, or the thread is to look around; read without the lock.
    has_mail: AtomicBool,
    /// Set while the thread sleeps, or is about to.
    parked: AtomicBool,
    /// Wakes the thread's driver; set before the thread first sleeps.
    wake: OnceLock<Arc<dyn RemoteWake>>,
    /// Set when the thread is to end.
    is_stopping: AtomicBool,
    /// The thread's id; set before it takes tasks.
    thread: OnceLock<ThreadId>,
}

#[derive(Default)]
struct Inbox {
    /// Mail of tasks that were started, woken or told to end elsewhere, oldest first.
    tasks: VecDeque<Mail>,
    /// Set when the thread takes no new tasks any more.
    is_closed: bool,
    /// Set while it still takes mail from threads that wake tasks it already has: these are to end with it.
    is_draining: bool,
}

impl Default for Remote {
    fn default() -> Self {
        Self {
            process: Process::current(),
            inbox: Mutex::default(),
            has_mail: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            wake: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }
}

impl Remote {
    /// Returns whether the thread is one of this process, and not of the one that it was forked from.
    pub(crate) fn is_intact(&self) -> bool {
        self.process.is_intact()
    }

    /// Sets how the thread's driver is woken. Called once, before its first sleep.
    pub(crate) fn set_wake(&self, wake: Arc<dyn RemoteWake>) {
        let is_first = self.wake.set(wake).is_ok();
        debug_assert!(is_first, "a runtime thread has one driver");
    }

    /// Sets the thread's id. Called once.
    pub(crate) fn set_thread(&self, thread: ThreadId) {
        let is_first = self.thread.set(thread).is_ok();
        debug_assert!(is_first, "an inbox has one thread");
    }

    /// Returns the thread's id, or [`ThreadId::NONE`] before it is set.
    pub(crate) fn thread(&self) -> ThreadId {
        self.thread.get().copied().unwrap_or(ThreadId::NONE)
    }

    /// Locks the inbox. Only in the process that has the thread.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        debug_assert!(self.is_intact(), "a child may wait for ever");
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a task to run: one that `is_new` to the thread, or one that was woken. Returns it when the
    /// thread takes no more, and when it is a parent's.
    pub(crate) fn send(&self, task: Mail, is_new: bool) -> Result<(), Mail> {
        if !self.is_intact() {
            return Err(task);
        }
        {
            let mut inbox = self.lock();
            if inbox.is_closed && (is_new || !inbox.is_draining) {
                return Err(task);
            }
            inbox.tasks.push_back(task);
        }
        self.signal();
        Ok(())
    }

    /// Makes the thread look around, and wakes it if it sleeps.
    pub(crate) fn signal(&self) {
        self.has_mail.store(true, Ordering::SeqCst); // pairs with `prepare_to_park`
        // Pairs with the store in `prepare_to_park`.
        if self.parked.load(Ordering::SeqCst) && self.parked.swap(false, Ordering::SeqCst) {
            let wake = self.wake.get().expect("a thread parks only with its wake set");
            wake.wake();
        }
    }

    /// Returns whether there may be mail to take. A relaxed load: it orders no other access.
    #[inline(always)]
    pub(crate) fn may_have_mail(&self) -> bool {
        self.has_mail.load(Ordering::Relaxed)
    }

    /// Moves the tasks that were sent to the end of `queue`, oldest first.
    #[inline(always)]
    pub(crate) fn take(&self, queue: &mut VecDeque<Mail>) {
        if self.has_mail.load(Ordering::Acquire) {
            self.take_slowly(queue);
        }
    }

    #[cold]
    fn take_slowly(&self, queue: &mut VecDeque<Mail>) {
        let mut inbox = self.lock();
        // A swap, so that this thread sees all that was done before the signals it clears: a stop, and other
        // announcements made without the lock.
        self.has_mail.swap(false, Ordering::SeqCst);
        queue.append(&mut inbox.tasks);
    }

    /// Returns whether there is mail to take, or the thread is to look around.
    pub(crate) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::SeqCst)
    }

    /// Announces that the thread is about to sleep. Returns false when it must not, since there is mail or
    /// the thread is to end.
    pub(crate) fn prepare_to_park(&self) -> bool {
        self.parked.store(true, Ordering::SeqCst);
        // Pairs with the store in `send`: see the protocol.
        // The stop's own signal may have been taken with the mail, after the loop looked for a stop.
        if self.has_mail.load(Ordering::SeqCst) || self.is_stopping() {
            self.parked.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Announces that a foreign loop sleeps for the thread. If it `is_busy`, or there is mail, its driver is
    /// woken instead, which tells the loop at once.
    pub(crate) fn park_elsewhere(&self, is_busy: bool) {
        if is_busy || !self.prepare_to_park() {
            let wake = self.wake.get().expect("a thread of a runtime has its wake");
            wake.wake();
        }
    }

    /// Marks the thread as awake again.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, Ordering::SeqCst);
    }

    /// Takes the remaining mail, and refuses new tasks from now on. Mail of a parent's thread stays.
    pub(crate) fn close(&self) -> VecDeque<Mail> {
        if !self.is_intact() {
            return VecDeque::new();
        }
        let mut inbox = self.lock();
        inbox.is_closed = true;
        inbox.is_draining = true;
        std::mem::take(&mut inbox.tasks)
    }

    /// Takes the mail of tasks woken since the inbox was closed. The `last` time, refuses all mail from now
    /// on.
    pub(crate) fn drain(&self, last: bool) -> VecDeque<Mail> {
        if !self.is_intact() {
            return VecDeque::new();
        }
        let mut inbox = self.lock();
        inbox.is_draining = !last;
        std::mem::take(&mut inbox.tasks)
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.signal();
    }

    /// Returns whether the thread was asked to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}
