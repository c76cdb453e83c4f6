//! The way into a runtime's thread from other threads.
//!
//! Each runtime thread has one [`Remote`]. Other threads push the mail of tasks that they have woken; the
//! thread takes it between its own tasks, and is woken only if it sleeps. The protocol, whose two sides
//! must not both look away:
//! 1. A sender pushes its task and sets `has_mail`, then (sequentially consistent) reads `parked`. If
//!    it is set, the sender clears it and wakes the thread through the driver; one sender does, since
//!    it swaps.
//! 2. The thread sets `parked`, then (sequentially consistent) reads `has_mail`. If it is set, it does
//!    not sleep. Otherwise it sleeps in the driver, and clears `parked` afterwards.
//! 3. Whatever the order, either the sender sees `parked`, or the thread sees the mail: both
//!    operations of both are in the one order that all threads agree on.
//! 4. A wake that comes when the thread did not sleep after all makes its next sleep short: harmless.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sakia_driver::RemoteWake;
use sakia_task::ThreadId;

use crate::gate::Mail;

/// The inbox of one runtime thread.
#[derive(Default)]
pub(crate) struct Remote {
    inbox: Mutex<Inbox>,
    /// Something is in the inbox, or the thread is to look around; read without the lock.
    has_mail: AtomicBool,
    /// The thread sleeps, or is about to.
    parked: AtomicBool,
    /// The thread's driver can be woken by this; set before the thread first sleeps.
    wake: OnceLock<Arc<dyn RemoteWake>>,
    /// The thread is to end.
    is_stopping: AtomicBool,
    /// The thread; set before it takes tasks.
    thread: OnceLock<ThreadId>,
}

#[derive(Default)]
struct Inbox {
    /// Of tasks that were started, woken or told to end elsewhere, oldest first.
    tasks: VecDeque<Mail>,
    /// The thread takes no more tasks.
    is_closed: bool,
    /// It still takes those that it has, from threads that wake them: they are to end with it.
    is_draining: bool,
}

impl Remote {
    /// Says how the thread's driver is woken. Before its first sleep, once.
    pub(crate) fn set_wake(&self, wake: Arc<dyn RemoteWake>) {
        let is_first = self.wake.set(wake).is_ok();
        debug_assert!(is_first, "a runtime thread has one driver");
    }

    /// Says which thread it is. Once.
    pub(crate) fn set_thread(&self, thread: ThreadId) {
        let is_first = self.thread.set(thread).is_ok();
        debug_assert!(is_first, "an inbox has one thread");
    }

    /// The thread; none if there is none yet.
    pub(crate) fn thread(&self) -> ThreadId {
        self.thread.get().copied().unwrap_or(ThreadId::NONE)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a task to run, which is `new` to the thread or was woken; gives it back when the thread takes no
    /// more.
    pub(crate) fn send(&self, task: Mail, is_new: bool) -> Result<(), Mail> {
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
        // A swap, so that what was done before the signals that it ends is seen afterwards: a stop, and
        // what else is announced without the lock.
        self.has_mail.swap(false, Ordering::SeqCst);
        queue.append(&mut inbox.tasks);
    }

    /// Returns whether there is mail to take, or the thread is to look around.
    pub(crate) fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::SeqCst)
    }

    /// Announces that the thread is about to sleep. False when it must not, since there is mail or the
    /// thread is to end.
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

    /// The thread is awake again.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, Ordering::SeqCst);
    }

    /// Takes what is left, and lets no new tasks in any more.
    pub(crate) fn close(&self) -> VecDeque<Mail> {
        let mut inbox = self.lock();
        inbox.is_closed = true;
        inbox.is_draining = true;
        std::mem::take(&mut inbox.tasks)
    }

    /// Takes what was woken since the inbox was closed. The `last` time, lets nothing in any more.
    pub(crate) fn drain(&self, last: bool) -> VecDeque<Mail> {
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
