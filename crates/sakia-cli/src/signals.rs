//! Signals that end the program, and the thread that receives them.
//!
//! The kernel delivers a signal to the main thread, if that can take it. A thread in an unanswered call (a
//! dead file server) takes none, and further signals of that number are dropped meanwhile. So the main
//! thread only waits for signals, and another one does the work.
//!
//! 1. The first signal tells the work to end: see [`Signals::on_first`]. The handler itself only writes to a
//!    socket.
//! 2. Work that has not ended some time later ([`Role::grace`]) is given up: the program prints the current
//!    entries, and dies of the signal.
//! 3. A second signal ends the program within its handler, unless another process waits for it, and ends so.
//!
//! Everything that may block, messages on standard error included, is done by other threads.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::conclude;
use crate::exit::Exit;
use crate::output::complain;

/// The signals that end the program.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// The time for the work to end after the first signal: enough for a part of a file on a slow disk.
const GRACE: Duration = Duration::from_secs(1);
/// The time for work on a file system that may never answer.
const GRACE_KEPT: Duration = Duration::from_millis(80);
/// The message about work that is given up, without its current entries.
pub const GIVEN_UP: &str = "gave up waiting for an answer";
/// The time limit of the last message.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// More than the length of `/proc/self/status`.
const STATUS_BYTES: usize = 4 << 10;
/// The stack size of the working thread. All of it counts if the address space is limited.
const STACK_BYTES: usize = 2 << 20;

/// The role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It does the work.
    Alone,
    /// It waits for a process that does the work: see [`keeper`](crate::keeper).
    Keeper,
    /// It does the work of its keeper, which passes signals on.
    Kept,
}

impl Role {
    /// Returns the time for the work to end after the first signal.
    fn grace(self) -> Duration {
        match self {
            Self::Alone => GRACE,
            Self::Keeper | Self::Kept => GRACE_KEPT,
        }
    }

    /// Returns the time limit of the last message: a keeper's only waits until the other process has written
    /// its own.
    fn last_words(self) -> Duration {
        if self == Self::Keeper { GRACE } else { LAST_WORDS }
    }
}

/// The signals received. Clones share them.
#[derive(Clone)]
pub struct Signals {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The last signal; 0 before the first.
    received: Arc<AtomicUsize>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// The first signal was received and handled.
    is_over: bool,
    on_first: Vec<Box<dyn FnOnce() + Send>>,
    /// Returns the current entries of work that does not end.
    held: Option<Box<dyn Fn() -> Vec<String> + Send>>,
}

impl Signals {
    /// Returns the last signal.
    pub fn received(&self) -> Option<i32> {
        let signal = self.shared.received.load(Ordering::SeqCst);
        (signal != 0).then_some(signal as i32)
    }

    /// Calls `act`, which must not block, at the first signal; at once if it has come.
    pub fn on_first(&self, act: impl FnOnce() + Send + 'static) {
        let mut told = self.lock();
        if told.is_over {
            drop(told);
            act();
        } else {
            told.on_first.push(Box::new(act));
        }
    }

    /// Returns a descriptor that becomes readable at the first signal.
    ///
    /// # Errors
    /// `EMFILE`: no descriptor left.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        let (reader, writer) = UnixStream::pair()?;
        self.on_first(move || drop(writer));
        Ok(reader.into())
    }

    /// Calls `held`, on a new thread, if the work has to be given up: it returns the current entries.
    pub fn on_giving_up(&self, held: impl Fn() -> Vec<String> + Send + 'static) {
        self.lock().held = Some(Box::new(held));
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.shared.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        let mut told = self.lock();
        told.is_over = true;
        let acts = std::mem::take(&mut told.on_first);
        drop(told);
        acts.into_iter().for_each(|act| act());
    }

    /// Prints the current entries of the work, if that takes little time.
    fn last_words(&self, limit: Duration) {
        let signals = self.clone();
        let (sender, said) = mpsc::channel();
        let speak = move || {
            let held = signals.lock().held.take();
            for line in held.map_or_else(|| vec![GIVEN_UP.to_owned()], |held| held()) {
                complain(format_args!("{line}"));
            }
            sender.send(()).ok();
        };
        if thread::Builder::new().spawn(speak).is_ok() {
            said.recv_timeout(limit).ok();
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("received", &self.received()).finish_non_exhaustive()
    }
}

/// Does `work` on a new thread, and waits for signals on this one, which has to be the main thread. Without a
/// signal, the program ends with the work. Signals ignored at the start (`nohup`, a shell's `&`) stay
/// ignored. If there is no thread (`RLIMIT_NPROC`), this one does the work, and a signal ends the program at
/// once.
///
/// # Errors
/// Those of `work`; there are no descriptors.
pub fn hear(
    role: Role,
    work: impl FnOnce(&Signals) -> anyhow::Result<Exit> + Send + 'static,
) -> anyhow::Result<Exit> {
    let (reader, writer) = UnixStream::pair().context("signals")?;
    let (sender, result) = mpsc::channel();
    let (start, started) = mpsc::channel::<Box<dyn FnOnce() -> anyhow::Result<Exit> + Send>>();
    let waking = writer.try_clone().context("signals")?;
    let worker = thread::Builder::new().name("work".into()).stack_size(STACK_BYTES).spawn({
        move || {
            // Dropped in this order, even after a panic: the result is there when this wakes the other
            // thread.
            let _wake = Wake(waking);
            let sender = sender;
            if let Ok(work) = started.recv() {
                sender.send(work()).ok();
            }
        }
    });
    let Ok(worker) = worker else {
        return work(&Signals { shared: Arc::default() });
    };
    let signals = watch(&writer, role).context("signals")?;
    let told = signals.clone();
    let works = move || {
        let result = work(&told);
        if told.received().is_none() {
            conclude(result).leave_now();
        }
        result
    };
    start.send(Box::new(works)).ok();
    let mut deadline = None;
    loop {
        match result.try_recv() {
            Ok(result) => return result,
            Err(TryRecvError::Disconnected) => match worker.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => anyhow::bail!("the work ended without a result"),
            },
            Err(TryRecvError::Empty) => {}
        }
        if let Some(signal) = signals.received() {
            let first = deadline.is_none();
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + role.grace());
            if first {
                signals.tell();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                signals.last_words(role.last_words());
                return Ok(Exit::Signal(signal));
            }
            reader.set_read_timeout(Some(left)).context("signals")?;
        }
        // A signal, the end of the work, or the time limit.
        let _ = (&reader).read(&mut [0]);
    }
}

/// Records signals and writes to this socket when one comes. A second one ends the program at once, unless
/// it is kept.
fn watch(writer: &UnixStream, role: Role) -> io::Result<Signals> {
    let shared = Shared::default();
    let ignored = ignored();
    let heard = ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0);
    let came: Vec<_> = heard.map(|signal| (signal, Arc::new(AtomicBool::new(false)))).collect();
    for (signal, own) in &came {
        // In this order: a signal in between is recorded.
        flag::register_usize(*signal, Arc::clone(&shared.received), *signal as usize)?;
        low_level::pipe::register(*signal, writer.try_clone()?)?;
        if role == Role::Kept {
            continue;
        }
        // Two threads may handle two signals at the same time. Each sets its own flag before it looks at the
        // others', so that at least one sees the other.
        flag::register_conditional_default(*signal, Arc::clone(own))?;
        flag::register(*signal, Arc::clone(own))?;
        for (_, other) in came.iter().filter(|(other, _)| other != signal) {
            flag::register_conditional_default(*signal, Arc::clone(other))?;
        }
    }
    Ok(Signals { shared: Arc::new(shared) })
}

/// Wakes the thread that waits for signals.
struct Wake(UnixStream);

impl Drop for Wake {
    fn drop(&mut self) {
        // It waits while the socket is full, and fails if the other thread no longer reads.
        let _ = self.0.write(&[0]);
    }
}

/// Returns the mask of ignored signals; 0 if `/proc` does not have it.
fn ignored() -> u64 {
    // With room for all of it, it takes two calls to read.
    let mut status = String::with_capacity(STATUS_BYTES);
    let file = File::open("/proc/self/status");
    file.and_then(|mut file| file.read_to_string(&mut status)).ok();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
