//! Signals of the process, told by descriptors that become readable.
//!
//! One handler serves all kinds. It may interrupt any thread anywhere, and a forked child inherits it
//! together with a copy of all memory, whatever other threads were about. So it takes no lock, and all that
//! it reads belongs to the process in which it runs:
//! 1. A process has a list of *entries*, a [`PerProcess`] value. Entries are never freed; one that has no
//!    listener is used again by the next.
//! 2. A listener fills an entry with its eventfd and its signals. The handler walks the list, and writes to
//!    the eventfd of each entry that has the signal.
//! 3. A listener that is dropped takes its signals out of the entry, and then waits until no handler uses the
//!    entry: these two steps, and the handler's count and look, have one order (sequentially consistent), so
//!    either the handler finds no signal, or the listener finds the handler. Then it closes the eventfd.
//! 4. A child finds the handler, and no list: signals have no effect on its parent's listeners, and none at
//!    all before it has a listener of its own.
//!
//! Crates for signals keep their actions behind locks, which a child may find locked for ever; that is why
//! the handler is one of our own. It calls the handler that it replaces, as theirs call it if they come
//! later. The C library's `sigaction` is not used, as everywhere in this crate. musl then does not know of
//! the handler, and keeps it until a process that it spawns runs its program: a signal to that process in
//! between tells the listeners once too often.
//!
//! Any thread may call these. Sources: `rt_sigaction(2)`, `signal-safety(7)`, `eventfd(2)`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_ring::{PerProcess, Process};

use crate::sys::{self, SignalAction};

/// The signals that the C library uses between its threads.
const RESERVED: std::ops::RangeInclusive<u32> =
    32..=if cfg!(target_env = "musl") { 34 } else { 33 };
/// The highest signal.
const SIGNAL_MAX: usize = 64;

/// The listeners of the process.
static LISTENERS: PerProcess<Listeners> = PerProcess::new();
/// By signal: what the handler has replaced. Null before; filled before the handler is installed, so that it
/// finds what it is to call. A child inherits it with the handler. Never freed.
static REPLACED: [AtomicPtr<SignalAction>; SIGNAL_MAX + 1] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNAL_MAX + 1];
/// By signal: the handler is installed, and others that came later call it. A child inherits it.
static INSTALLED: [AtomicBool; SIGNAL_MAX + 1] = [const { AtomicBool::new(false) }; SIGNAL_MAX + 1];

#[derive(Default)]
struct Listeners {
    /// The newest entry.
    first: AtomicPtr<Entry>,
    /// Held while entries are taken and handlers are installed; the signal handler does not take it.
    changes: Mutex<()>,
}

/// A place for a listener.
#[derive(Default)]
struct Entry {
    /// The next older entry; constant once the entry is on the list.
    next: AtomicPtr<Entry>,
    /// A bit for each signal of the listener; 0 without one.
    signals: AtomicU64,
    /// The listener's eventfd, which is open while the entry has signals or users.
    event: AtomicI32,
    /// The handlers that look at the entry now.
    users: AtomicUsize,
    /// Set from the taking of the entry until its listener is gone. Changed under the lock, or cleared.
    is_taken: AtomicBool,
}

/// Listens for signals of the process: readable when one has arrived since the last [`take`](Self::take).
///
/// The first listener for a signal changes the signal's effect on the process for good. In a forked child a
/// listener of the parent's hears nothing.
pub struct SignalListener {
    event: OwnedFd,
    entry: &'static Entry,
    /// The process that has the entry.
    process: Process,
}

impl SignalListener {
    /// Listens for these signals.
    ///
    /// # Errors
    /// - `EINVAL`: there is no such signal, or the kernel or the C library does not let a program handle it.
    /// - `EMFILE`, `ENFILE`: no descriptors left.
    pub fn new(signals: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let listeners = LISTENERS.get_or_init(Listeners::default);
        let _changing = listeners.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut set = 0;
        for signal in signals {
            set |= bit(signal)?;
            install(signal)?;
        }
        let entry = listeners.free_entry();
        entry.is_taken.store(true, Ordering::Relaxed);
        entry.event.store(event.as_raw_fd(), Ordering::Relaxed);
        entry.signals.store(set, Ordering::SeqCst); // publishes the descriptor
        Ok(Self { event, entry, process: Process::current() })
    }

    /// Returns whether a signal has arrived since the last call.
    ///
    /// # Errors
    /// In a forked child, if the listener is its parent's.
    pub fn take(&self) -> io::Result<bool> {
        if !self.process.is_intact() {
            let message =
                "the parent process listens for these signals: a forked child must listen itself";
            return Err(io::Error::other(message));
        }
        match rustix::io::read(&self.event, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for SignalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for SignalListener {
    fn drop(&mut self) {
        // A child's handler does not look at its parent's entries, and a count there may never become zero.
        if !self.process.is_intact() {
            return;
        }
        self.entry.signals.store(0, Ordering::SeqCst); // pairs with the look in `tell`
        while self.entry.users.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        self.entry.is_taken.store(false, Ordering::Release); // pairs with the look in `free_entry`
    }
}

impl fmt::Debug for SignalListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signals = self.entry.signals.load(Ordering::Relaxed);
        f.debug_struct("SignalListener").field("signals", &signals).finish_non_exhaustive()
    }
}

impl Listeners {
    fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        // SAFETY: null, or a leaked box: a pointer on the list was made by `free_entry`, which stores it with
        // release after it has filled the entry.
        let at = |pointer: &AtomicPtr<Entry>| unsafe { pointer.load(Ordering::Acquire).as_ref() };
        std::iter::successors(at(&self.first), move |entry: &&'static Entry| at(&entry.next))
    }

    /// Returns an entry without a listener. Called under the lock.
    fn free_entry(&self) -> &'static Entry {
        // The listener before has closed its descriptor, or is about to.
        if let Some(free) = self.entries().find(|entry| !entry.is_taken.load(Ordering::Acquire)) {
            return free;
        }
        let entry: &'static Entry = Box::leak(Box::default());
        entry.next.store(self.first.load(Ordering::Relaxed), Ordering::Relaxed);
        self.first.store(ptr::from_ref(entry).cast_mut(), Ordering::Release); // pairs with `entries`
        entry
    }

    /// Tells the listeners of a signal. Called by the handler.
    fn tell(&self, signal: u64) {
        for entry in self.entries() {
            entry.users.fetch_add(1, Ordering::SeqCst);
            if entry.signals.load(Ordering::SeqCst) & signal != 0 {
                // SAFETY: the listener closes it only after it has taken the signals out and has then seen no
                // user. This use was counted before the signals were found.
                let event = unsafe { BorrowedFd::borrow_raw(entry.event.load(Ordering::Relaxed)) };
                // By instruction: `errno` stays. It fails if the counter is full: then the listener knows.
                rustix::io::write(event, &1_u64.to_ne_bytes()).ok();
            }
            entry.users.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Returns the bit of a signal.
fn bit(signal: u32) -> io::Result<u64> {
    match signal {
        1..=64 if !RESERVED.contains(&signal) => Ok(1 << (signal - 1)),
        _ => Err(Errno::INVAL.into()),
    }
}

/// Installs the handler, unless it is. Called under the lock of the listeners.
fn install(signal: u32) -> io::Result<()> {
    let now = sys::signal_action(signal)?;
    let is_installed = &INSTALLED[signal as usize];
    // A later handler calls ours, and ours must not call it. The default action calls nothing.
    let is_called = is_installed.load(Ordering::Relaxed) && now.is_function();
    if !now.is(handle) && !is_called {
        REPLACED[signal as usize].store(Box::into_raw(Box::new(now)), Ordering::Release);
        // SAFETY: the handler is safe at any time, on any thread, and in any child: it takes no lock,
        // allocates nothing, changes no `errno`, and calls besides only the one that it replaces.
        unsafe { sys::set_signal_handler(signal, handle) }?;
    }
    is_installed.store(true, Ordering::Relaxed);
    Ok(())
}

/// The handler.
unsafe extern "C" fn handle(signal: i32, info: *mut sys::SignalInfo, context: *mut sys::Context) {
    let Some(replaced) = usize::try_from(signal).ok().and_then(|signal| REPLACED.get(signal))
    else {
        return;
    };
    // SAFETY: null, or a leaked box that nothing changes, stored with release.
    if let Some(replaced) = unsafe { replaced.load(Ordering::Acquire).as_ref() } {
        // SAFETY: the arguments are those of the kernel, for a handler of this signal.
        unsafe { replaced.call(signal, info, context) };
    }
    if let (Some(listeners), Ok(bit)) = (LISTENERS.get(), bit(signal as u32)) {
        listeners.tell(bit);
    }
}

// All of them change the process's handlers.
#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;

    fn raise(signal: i32) {
        // SAFETY: a handler is installed for it.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn each_listener_hears_its_signals_once_and_a_dropped_one_none() {
        let signals = [libc::SIGWINCH as u32, libc::SIGURG as u32];
        let listeners: Vec<_> = (0..3).map(|_| SignalListener::new(signals).unwrap()).collect();
        raise(libc::SIGURG);
        raise(libc::SIGWINCH);
        for listener in &listeners {
            assert_eq!([listener.take().unwrap(), listener.take().unwrap()], [true, false]);
        }
        drop(listeners);
        // Their numbers, unless another test is quicker.
        let others: Vec<_> =
            (0..3).map(|_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)).collect();
        raise(libc::SIGURG);
        for other in others {
            assert_eq!(rustix::io::read(other.unwrap(), &mut [0; 8]), Err(Errno::AGAIN));
        }
        let late = SignalListener::new(signals).unwrap();
        assert!(!late.take().unwrap());
        raise(libc::SIGURG);
        assert!(late.take().unwrap());
    }

    #[test]
    fn handlers_before_and_after_ours_are_called_too() {
        static BEFORE: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn before(_: i32) {
            BEFORE.fetch_add(1, Ordering::Relaxed);
        }
        let signal = libc::SIGUSR1;
        // SAFETY: a handler that adds to an atomic.
        unsafe { libc::signal(signal, before as extern "C" fn(i32) as usize) };
        let listener = SignalListener::new([signal as u32]).unwrap();
        let again = SignalListener::new([signal as u32]).unwrap();
        raise(signal);
        assert_eq!(BEFORE.load(Ordering::Relaxed), 1);
        assert!(listener.take().unwrap() && again.take().unwrap());
        // The default action may come back, and a new listener then hears again.
        // SAFETY: the default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        let late = SignalListener::new([signal as u32]).unwrap();
        raise(signal);
        assert!(late.take().unwrap() && BEFORE.load(Ordering::Relaxed) == 1);
    }

    #[test]
    fn what_cannot_be_handled_is_refused_and_leaves_nothing() {
        for signal in [0, 9, 19, 32, 33, 65, u32::MAX] {
            let error = SignalListener::new([signal]).map(drop).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{signal}");
        }
    }

    /// A descriptor that is closed while a handler uses it would be another test's.
    #[test]
    fn listeners_come_and_go_while_signals_arrive() {
        let is_over = AtomicBool::new(false);
        let listening = SignalListener::new([libc::SIGUSR2 as u32]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        raise(libc::SIGUSR2);
                    }
                });
            }
            for _ in 0..500 {
                let listener = SignalListener::new([libc::SIGUSR2 as u32]).unwrap();
                while !listener.take().unwrap() {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(listening.take().unwrap());
        let entries = LISTENERS.get().unwrap().entries().count();
        assert!(entries < 20, "{entries} entries");
    }
}
