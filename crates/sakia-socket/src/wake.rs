//! Notifications of changes in memory: bytes or an error came there, or the write queue got room.
//!
//! The kernel wakes a thread that sleeps in `poll(2)` or `epoll_wait(2)` when it sees an event, but it does
//! not see changes in memory. So each file keeps a list of its *listeners*: the sets that have it as an
//! entry, and the threads that sleep in a poll.
//!
//! 1. A thread that is about to sleep puts itself on the lists (a set is on them from the beginning), and
//!    then checks memory.
//! 2. A thread that changes memory does so first, and then checks the list.
//!
//! So at least one of them sees the other. Only if a thread sleeps, a call of the host wakes it: a signal to
//! an event descriptor, which is in the sleeper's set or poll.
//!
//! A poll of sockets that read ahead on evidence alone has neither list nor event: while a thread sleeps in
//! one, [nothing comes to memory](Undisturbed), and the host tells all.
//!
//! Locks: the list of a file is taken under the locks of its directions, and under that of a set's state; the
//! mail of a set is taken under that list. No other lock is taken under either.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use sakia_socket_core::InMemory;

use crate::Host;

/// A file that can be waited for.
pub(crate) trait Source<H: Host>: Debug + Send + Sync {
    /// Returns the host's descriptor.
    fn fd(&self) -> &H::Fd;

    /// Returns the listeners to changes in its memory.
    fn news(&self) -> &News;

    /// Returns the corrections to the host's answer about it.
    fn memory(&self) -> InMemory;

    /// Notes that the host has room: sends delayed bytes, if they are why [`memory`](Source::memory) has
    /// none.
    fn make_room(&self) {}

    /// Returns true if its memory is ever used.
    fn may_keep(&self) -> bool;

    /// Returns true if nothing comes to its memory while a thread [waits](Source::wait_began) for it.
    fn can_be_undisturbed(&self) -> bool {
        false
    }

    /// A thread is about to sleep until the host has news of it.
    fn wait_began(&self) {}

    /// That is over.
    fn wait_ended(&self) {}

    /// Returns true if it is an `epoll` set.
    fn is_set(&self) -> bool {
        false
    }

    /// Returns true if the set at the address `target` is an entry of this set, or of one within it, or
    /// this is more than `depth` sets away.
    fn leads_to(&self, target: usize, depth: u32) -> bool {
        let _ = (target, depth);
        false
    }
}

/// A set, or a thread that sleeps.
pub(crate) trait Listener: Debug + Send + Sync {
    /// Notes a change of the file that the listener knows as `token`.
    fn tell(&self, token: u64);

    /// Notes that the file which the listener knows as `token` is closed.
    fn closed(&self, token: u64) {
        let _ = token;
    }
}

/// The listeners of a file, and the numbers of changes.
#[derive(Debug, Default)]
pub(crate) struct News {
    arrivals: AtomicU32,
    rooms: AtomicU32,
    /// The length of the list, read without the lock.
    count: AtomicUsize,
    listeners: Mutex<Vec<(Weak<dyn Listener>, u64)>>,
}

impl News {
    /// Notes that bytes or an error came to memory.
    pub(crate) fn arrived(&self) {
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        self.tell();
    }

    /// Notes that the write queue got room.
    pub(crate) fn got_room(&self) {
        self.rooms.fetch_add(1, Ordering::SeqCst);
        self.tell();
    }

    /// Returns how often bytes or an error came, and how often the queue got room. Must be called before
    /// memory is checked.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.arrivals.load(Ordering::SeqCst), self.rooms.load(Ordering::SeqCst))
    }

    /// Adds `listener`, which knows the file as `token`.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>, token: u64) {
        let mut listeners = self.listeners();
        listeners.push((listener, token));
        self.count.store(listeners.len(), Ordering::SeqCst);
    }

    /// Removes `listener`, which knows the file as `token`.
    pub(crate) fn remove(&self, listener: &Weak<dyn Listener>, token: u64) {
        let mut listeners = self.listeners();
        let is = |other: &(Weak<dyn Listener>, u64)| {
            other.1 == token && Weak::ptr_eq(&other.0, listener)
        };
        if let Some(place) = listeners.iter().position(is) {
            listeners.swap_remove(place);
        }
        self.count.store(listeners.len(), Ordering::SeqCst);
    }

    /// Removes all listeners, since the file is closed, although the host may keep its descriptor.
    pub(crate) fn close(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let listeners = std::mem::take(&mut *self.listeners());
        self.count.store(0, Ordering::SeqCst);
        // Without the lock, since listeners take their own.
        for (listener, token) in listeners {
            if let Some(listener) = listener.upgrade() {
                listener.closed(token);
            }
        }
    }

    /// Notifies all listeners that still exist.
    fn tell(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for (listener, token) in &*self.listeners() {
            if let Some(listener) = listener.upgrade() {
                listener.tell(*token);
            }
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<(Weak<dyn Listener>, u64)>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event descriptors of threads that sleep in a poll, for the next ones.
#[derive(Debug)]
pub(crate) struct Beds<H: Host> {
    free: Mutex<Vec<Arc<Bed<H>>>>,
}

impl<H: Host> Default for Beds<H> {
    fn default() -> Self {
        Self { free: Mutex::new(Vec::new()) }
    }
}

/// An event descriptor, which wakes the thread that has it in its poll.
#[derive(Debug)]
struct Bed<H: Host> {
    host: Arc<H>,
    event: H::Fd,
    /// Set once it was signaled, so that a further signal is unnecessary.
    is_signaled: AtomicBool,
}

impl<H: Host> Listener for Bed<H> {
    fn tell(&self, _: u64) {
        if !self.is_signaled.swap(true, Ordering::SeqCst) {
            // It only fails if the event is signaled already.
            let _ = self.host.signal(&self.event);
        }
    }
}

/// Keeps bytes from coming to the memory of these files until it is dropped. The caller looks at memory next.
#[derive(Debug)]
pub(crate) struct Undisturbed<'a, H: Host>(Vec<&'a dyn Source<H>>);

impl<'a, H: Host> Undisturbed<'a, H> {
    pub(crate) fn new(files: Vec<&'a dyn Source<H>>) -> Self {
        files.iter().for_each(|file| file.wait_began());
        Self(files)
    }
}

impl<H: Host> Drop for Undisturbed<'_, H> {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.wait_ended());
    }
}

/// A thread that is about to sleep; it is notified of its files' changes until this is dropped.
#[derive(Debug)]
pub(crate) struct Sleeper<'a, H: Host> {
    beds: &'a Beds<H>,
    bed: Arc<Bed<H>>,
    files: Vec<&'a dyn Source<H>>,
}

impl<'a, H: Host> Sleeper<'a, H> {
    /// Registers with `files`; `None` if the host cannot wake the thread.
    pub(crate) fn new(
        host: &Arc<H>,
        beds: &'a Beds<H>,
        files: Vec<&'a dyn Source<H>>,
    ) -> Result<Option<Self>, Errno> {
        let free = beds.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bed = match free {
            Some(bed) => bed,
            None => match host.event() {
                Ok(event) => {
                    let (host, is_signaled) = (Arc::clone(host), AtomicBool::new(false));
                    Arc::new(Bed { host, event, is_signaled })
                }
                Err(Errno::NOSYS) => return Ok(None),
                Err(errno) => return Err(errno),
            },
        };
        let listener = listener(&bed);
        for file in &files {
            file.news().add(Weak::clone(&listener), 0);
        }
        Ok(Some(Self { beds, bed, files }))
    }

    /// Returns the descriptor that becomes readable after a change.
    pub(crate) fn event(&self) -> &H::Fd {
        &self.bed.event
    }

    /// Takes the signals. Must be followed by a check of memory.
    pub(crate) fn drain(&self) {
        let _ = self.bed.host.drain(&self.bed.event);
        // In this order: a thread that found the flag set has changed memory before this. A thread that finds
        // it cleared signals; if its signal is too late for this wait, it wakes the next one needlessly.
        self.bed.is_signaled.swap(false, Ordering::SeqCst);
    }
}

impl<H: Host> Drop for Sleeper<'_, H> {
    fn drop(&mut self) {
        let listener = listener(&self.bed);
        for file in &self.files {
            file.news().remove(&listener, 0);
        }
        if self.bed.is_signaled.load(Ordering::SeqCst) {
            self.drain();
        }
        let mut free = self.beds.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(Arc::clone(&self.bed));
    }
}

fn listener<H: Host>(bed: &Arc<Bed<H>>) -> Weak<dyn Listener> {
    let weak: Weak<Bed<H>> = Arc::downgrade(bed);
    weak
}
