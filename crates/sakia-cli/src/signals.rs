//! Signals that end the program, and the thread that hears them.
//!
//! The kernel gives a signal to the thread that began the program, if that can take it. A thread in a call
//! that is not answered (a dead file server) takes none, and more signals of that number are dropped
//! meanwhile. So that thread does nothing but hear them, and the work is on another one.
//!
//! 1. A first signal tells the work to end: see [`Signals::on_first`]. The handler itself only writes to a
//!    socket.
//! 2. Work that has not ended [`GRACE`] later is given up: the program says what it was at, and dies of the
//!    signal.
//! 3. A second signal ends the program within its handler.
//!
//! Whatever may wait, words on standard error too, is done by other threads.

use std::fmt;
use std::fs;
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

use crate::exit::Exit;
use crate::output::complain;

/// The signals that end the program.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// How long work may take to end after the first signal.
const GRACE: Duration = Duration::from_secs(1);
/// What is said of work that is given up, where it cannot be said what it is at.
pub const GIVEN_UP: &str = "gave up waiting for what is not answered";
/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The stack of the thread that works. All of it counts where the address space is limited.
const STACK_BYTES: usize = 2 << 20;

/// What was heard. Clones are the same.
#[derive(Clone)]
pub struct Signals {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The last one that came; 0 when none has.
    received: Arc<AtomicUsize>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// The first signal was heard, and what follows was done.
    is_over: bool,
    on_first: Vec<Box<dyn FnOnce() + Send>>,
    /// What work is at that does not end.
    held: Option<Box<dyn Fn() -> Vec<String> + Send>>,
}

impl Signals {
    /// The last signal that came.
    pub fn received(&self) -> Option<i32> {
        let signal = self.shared.received.load(Ordering::SeqCst);
        (signal != 0).then_some(signal as i32)
    }

    /// Calls `act`, which must not wait, when the first signal is heard; at once if it was.
    pub fn on_first(&self, act: impl FnOnce() + Send + 'static) {
        let mut told = self.lock();
        if told.is_over {
            drop(told);
            act();
        } else {
            told.on_first.push(Box::new(act));
        }
    }

    /// A descriptor that becomes readable when the first signal is heard.
    ///
    /// # Errors `EMFILE`: no descriptor left.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        let (reader, writer) = UnixStream::pair()?;
        self.on_first(move || drop(writer));
        Ok(reader.into())
    }

    /// Calls `held`, on a thread of its own, if the work has to be given up: what it is at.
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

    /// Says what the work is at, if that can be said soon.
    fn last_words(&self) {
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
            said.recv_timeout(LAST_WORDS).ok();
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("received", &self.received()).finish_non_exhaustive()
    }
}

/// Does `work` on a thread of its own, and hears signals on this one, which has to be the one that began the
/// program. Signals that the program was started to ignore (`nohup`, a shell's `&`) stay ignored.
///
/// # Errors
/// Those of `work`; there are no descriptors or threads.
pub fn hear(
    work: impl FnOnce(&Signals) -> anyhow::Result<Exit> + Send + 'static,
) -> anyhow::Result<Exit> {
    let (reader, writer) = UnixStream::pair().context("signals")?;
    let signals = watch(&writer).context("signals")?;
    let (sender, result) = mpsc::channel();
    let worker = thread::Builder::new().name("work".into()).stack_size(STACK_BYTES).spawn({
        let signals = signals.clone();
        move || {
            // Dropped in this order, after a panic too: the result is there when this wakes the other thread.
            let _wake = Wake(writer);
            let sender = sender;
            sender.send(work(&signals)).ok();
        }
    });
    let worker = worker.context("a thread")?;
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
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
            if first {
                signals.tell();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                signals.last_words();
                return Ok(Exit::Signal(signal));
            }
            reader.set_read_timeout(Some(left)).context("signals")?;
        }
        // A signal, the end of the work, or of the time.
        let _ = (&reader).read(&mut [0]);
    }
}

/// Has signals noted, and this socket written to when one comes. A second one ends the program at once.
fn watch(writer: &UnixStream) -> io::Result<Signals> {
    let shared = Shared::default();
    let armed = Arc::new(AtomicBool::new(false));
    let ignored = ignored();
    for signal in ENDING.into_iter().filter(|signal| ignored & 1 << (signal - 1) == 0) {
        // In this order: a signal that comes in between is noted. The first one finds the flag down, and
        // raises it.
        flag::register_usize(signal, Arc::clone(&shared.received), signal as usize)?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
        flag::register_conditional_default(signal, Arc::clone(&armed))?;
        flag::register(signal, Arc::clone(&armed))?;
    }
    Ok(Signals { shared: Arc::new(shared) })
}

/// Wakes the thread that hears signals.
struct Wake(UnixStream);

impl Drop for Wake {
    fn drop(&mut self) {
        // It fails when the socket is full, which wakes as well.
        let _ = self.0.write(&[0]);
    }
}

/// The mask of ignored signals; none where `/proc` does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
