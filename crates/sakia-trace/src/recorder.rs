//! The recording of this process: its threads' buffers, and the thread that writes them to the file.
//!
//! Threads put events into their own buffers and take no lock. Every 50 ms, and when a buffer is half full, a
//! thread named `sakia-trace` takes the events out, encodes them and writes them. A thread that ends does the
//! same, and so does [`flush`]: a program that returns from `main` has all its events in the file.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use sakia_thread::start_thread;

use crate::buffer::Buffer;
use crate::encode::{Encoder, ThreadInfo};
use crate::file::File;
use crate::lock::Lock;
use crate::proc::read_small;
use crate::{Event, EventType, encode, name, sample, system_calls};

/// The time after which the buffers are emptied.
const PERIOD: Duration = Duration::from_millis(50);
/// Encoded bytes that are written at a time. Their memory is used again, and stays in a processor's cache.
const CHUNK: usize = 1 << 17;

/// Set while a recording is on.
const RECORDING: u8 = 1;
/// Set while a driver measures its operations.
const MEASURING: u8 = 2;

/// Stands for the error of a forked child whose parent has the recording, or had the locks at the fork.
pub(crate) const FORKED: Errno = Errno::OWNERDEAD;
/// The text of that error.
pub(crate) const FORKED_TEXT: &str =
    "the recording belongs to the parent process, or one of its threads worked on it at the fork";

/// One byte for all event points, so that event points of operations cost the same with two purposes. Changed
/// only under the lock of [`STATE`], except in a forked child that ends its parent's recording, or has no
/// lock.
static PURPOSES: AtomicU8 = AtomicU8::new(0);
/// Nanoseconds of `CLOCK_MONOTONIC` at which the recording began.
static BASE: AtomicU64 = AtomicU64::new(0);
static STATE: Lock<State> =
    Lock::new(State { events: 0, new: Vec::new(), writer: None, measuring: 0 });
static OUTPUT: Lock<Option<Output>> = Lock::new(None);

thread_local! {
    static LOCAL: Local = const { Local(RefCell::new(None)) };
    /// The task that runs on this thread.
    static TASK: Cell<u64> = const { Cell::new(0) };
}

/// The recording, as threads see it that have something to record.
#[derive(Debug)]
struct State {
    /// The number of events of a buffer.
    events: usize,
    /// Threads that the file does not have yet.
    new: Vec<Arc<Buffer>>,
    /// The thread that writes, once it runs.
    writer: Option<Thread>,
    /// The number of drivers that measure their operations.
    measuring: usize,
}

impl State {
    fn change(&self, purpose: u8, is_on: bool) {
        match is_on {
            true => PURPOSES.fetch_or(purpose, Ordering::Relaxed),
            false => PURPOSES.fetch_and(!purpose, Ordering::Relaxed),
        };
    }
}

/// The file of a recording.
#[derive(Debug)]
struct Output {
    file: File,
    encoder: Encoder,
    threads: Vec<(Arc<Buffer>, encode::Thread)>,
    pid: u32,
    events: u64,
    lost: u64,
}

/// The buffer of this thread, with the number of its recording.
struct Local(RefCell<Option<(u64, Arc<Buffer>)>>);

impl Drop for Local {
    fn drop(&mut self) {
        if let Some((_, buffer)) = self.0.get_mut().take() {
            buffer.end();
            flush();
        }
    }
}

/// Sizes of a recording.
///
/// # Examples
/// A small buffer is full soon. Events that do not fit are counted:
/// ```
/// use sakia_trace::{EventKind, Recording, TraceOptions};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-options-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let mut options = TraceOptions::default();
/// options.buffer_events = 16;
/// let recording = Recording::to_file(dir.join("trace"), options)?;
/// let moment = EventKind::register("moment", ["number", "nothing"]);
/// for number in 0..10_000 {
///     moment.record(number, 0);
/// }
/// let summary = recording.stop()?;
/// assert_eq!(summary.events + summary.lost, 10_000);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TraceOptions {
    /// Events that the buffer of a thread holds, 32 bytes each, rounded up to a power of two: 65,536 by
    /// default. Events that find the buffer full are lost, and counted.
    pub buffer_events: usize,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { buffer_events: 1 << 16 }
    }
}

/// A recording, which ends when it is stopped or dropped. A process has one at a time. A forked child has no
/// part in its parent's, and may begin one of its own.
///
/// # Examples
/// See [`sakia_trace`](crate#examples).
#[derive(Debug)]
#[must_use = "a recording ends when this is dropped"]
pub struct Recording {
    path: PathBuf,
    number: u64,
    is_stopped: bool,
}

/// The numbers of a finished recording.
///
/// # Examples
/// See [`sakia_trace`](crate#examples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordingSummary {
    /// The file.
    pub path: PathBuf,
    /// Events in the file.
    pub events: u64,
    /// Events that found the buffer of their thread full.
    pub lost: u64,
}

/// Returns true while a recording is on. A test of one byte: three instructions with the jump.
///
/// Programs compiled with `--cfg sakia_no_trace` have no event points. That is for measuring what these cost.
///
/// # Examples
/// ```
/// use sakia_trace::{Recording, TraceOptions, is_on};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-is-on-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// assert!(!is_on());
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// assert!(is_on());
/// recording.stop()?;
/// assert!(!is_on());
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[inline(always)]
pub fn is_on() -> bool {
    !cfg!(sakia_no_trace) && PURPOSES.load(Ordering::Relaxed) & RECORDING != 0
}

/// Returns true while a recording is on, or a driver [measures](measure) its operations. Costs what [`is_on`]
/// does.
#[inline(always)]
pub fn is_watched() -> bool {
    !cfg!(sakia_no_trace) && PURPOSES.load(Ordering::Relaxed) != 0
}

/// Keeps the event points of operations watched until it is dropped: a driver measures its operations.
#[derive(Debug)]
pub struct Measuring(());

/// Makes the event points of operations [watched](is_watched).
#[must_use]
pub fn measure() -> Measuring {
    count_measuring(1);
    Measuring(())
}

impl Drop for Measuring {
    fn drop(&mut self) {
        count_measuring(-1);
    }
}

#[inline(never)]
fn count_measuring(change: isize) {
    let Some(mut state) = state() else {
        // The count is lost: what is on stays on.
        PURPOSES.fetch_or(MEASURING, Ordering::Relaxed);
        return;
    };
    state.measuring = state.measuring.wrapping_add_signed(change);
    state.change(MEASURING, state.measuring > 0);
}

/// Records an event of the calling thread, at this time. Call it only if [`is_on`], to keep the path without
/// a recording short.
///
/// # Examples
/// An operation of a driver, from its start to the moment at which its result is taken:
/// ```
/// use sakia_trace::{EventType, Name, Queued, Recording, TraceOptions, is_on, record};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-record-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// let kind = Name::register("write").number() as u16;
/// if is_on() {
///     record(EventType::Queued, 1, Queued { kind, fd: 3, bytes: 10 }.pack(), 0);
///     record(EventType::Completed, 1, 10, 0);
///     record(EventType::Resumed, 1, 0, 0);
/// }
/// assert!(recording.stop()?.events >= 3);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[cold]
#[inline(never)]
pub fn record(kind: EventType, id: u64, a: u64, b: u64) {
    record_at(now(), kind, id, a, b);
}

/// Records a system call of the calling thread that began at `begin`, a time of [`now`].
#[cold]
#[inline(never)]
pub fn record_call(begin: u64, number: u32, first: usize, result: isize) {
    let time = now();
    let duration = time.saturating_sub(begin).min((1 << 48) - 1);
    let id = duration << 16 | u64::from(number & 0xffff);
    record_at(time, EventType::SystemCall, id, first as u64, result as u64);
}

/// Makes a call of the kernel with this name, and records it for the calling thread. Call it only if a
/// recording [is on](is_on).
///
/// # Errors
/// Those of the call.
#[cold]
pub fn system_call<T>(name: &str, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let begin = now();
    let result = call();
    let outcome = result.as_ref().map_or_else(|errno| -(errno.raw_os_error() as isize), |_| 0);
    record_call(begin, system_calls::number(name), usize::MAX, outcome);
    result
}

/// Returns the task that runs on this thread, 0 for none.
pub(crate) fn current_task() -> u64 {
    TASK.get()
}

fn record_at(time: u64, kind: EventType, id: u64, a: u64, mut b: u64) {
    if cfg!(sakia_no_trace) {
        return;
    }
    match kind {
        EventType::Queued => b = TASK.get(),
        EventType::PollBegin => TASK.set(id),
        EventType::PollEnd => TASK.set(b),
        _ => {}
    }
    let event = Event { time: time & ((1 << 48) - 1), kind, id, a, b };
    // The thread-local is gone when the thread is about to end.
    let _ = LOCAL.try_with(|local| {
        // A signal handler may interrupt the thread within this function.
        let Ok(mut local) = local.0.try_borrow_mut() else { return };
        let current = CURRENT.load(Ordering::Relaxed);
        if local.as_ref().is_none_or(|(number, _)| *number != current) {
            let Some(registered) = register() else { return };
            *local = Some(registered);
        }
        let is_half_full = local.as_ref().is_some_and(|(_, buffer)| buffer.push(event));
        if is_half_full && let Some(writer) = state().and_then(|state| state.writer.clone()) {
            writer.unpark();
        }
    });
}

/// The number of the current recording, or of the last one. Changed under the lock of [`OUTPUT`], before a
/// recording is on.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// Gives the calling thread a buffer in the current recording.
#[cold]
#[inline(never)]
fn register() -> Option<(u64, Arc<Buffer>)> {
    let mut state = state()?;
    if !is_on() {
        return None;
    }
    let tid = gettid().as_raw_nonzero().get() as u32;
    let name = sakia_thread::current_name().unwrap_or_else(|| format!("thread {tid}"));
    let info = ThreadInfo { pid: std::process::id(), tid, name };
    let buffer = Arc::new(Buffer::new(info, state.events));
    state.new.push(Arc::clone(&buffer));
    Some((CURRENT.load(Ordering::Relaxed), buffer))
}

/// Returns the time in nanoseconds since the recording began.
#[inline]
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic).saturating_sub(BASE.load(Ordering::Relaxed))
}

#[inline(never)]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes all events recorded so far to the file. No effect without a recording.
///
/// # Examples
/// ```
/// use sakia_trace::{EventKind, Recording, Trace, TraceOptions, flush};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-flush-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// EventKind::register("found", ["key", "bytes"]).record(17, 4096);
/// flush();
/// // A look at the file while the recording goes on.
/// let trace = Trace::read(&std::fs::read(recording.path())?).expect("a trace");
/// assert!(trace.tracks.iter().flat_map(|track| &track.instants).any(|i| i.name == "found"));
/// recording.stop()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
pub fn flush() {
    if cfg!(sakia_no_trace) {
        return;
    }
    empty_buffers(CURRENT.load(Ordering::Relaxed));
}

/// Writes the buffers to the file, if this recording is on. Returns whether it is.
#[inline(never)]
fn empty_buffers(number: u64) -> bool {
    let Some(mut output) = output() else { return false };
    match &mut *output {
        Some(output) if CURRENT.load(Ordering::Relaxed) == number => {
            output.empty_buffers();
            true
        }
        _ => false,
    }
}

impl Recording {
    /// Begins a recording into a new file at `path`, with mode 0600. A file that exists, a link included, is
    /// left alone. If it cannot begin, it leaves no file.
    ///
    /// # Errors
    /// - `EEXIST`: there is a file at `path`.
    /// - `EALREADY`: a recording is on.
    /// - Those of `openat(2)`, `write(2)`, and of starting a thread.
    /// - This is a forked child, and another thread of its parent was at work on a recording at the fork.
    ///
    /// # Examples
    /// See [`sakia_trace`](crate#examples).
    pub fn to_file(path: impl AsRef<Path>, options: TraceOptions) -> io::Result<Self> {
        let path = path.as_ref();
        let number = begin(path, options).map_err(|errno| error("record to", path, errno))?;
        Ok(Self { path: path.into(), number, is_stopped: false })
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the recording and completes the file.
    ///
    /// # Errors
    /// The first error of writing to the file, which lacks all later events: `EFBIG` at the limit on the size
    /// of files (`RLIMIT_FSIZE`), without a signal. In a forked child always, if the recording is its
    /// parent's.
    ///
    /// # Examples
    /// See [`sakia_trace`](crate#examples).
    pub fn stop(mut self) -> io::Result<RecordingSummary> {
        self.is_stopped = true;
        let path = mem::take(&mut self.path);
        let Some(output) = stop(self.number) else { return Err(error("write", &path, FORKED)) };
        match output.file.error {
            Some(errno) => Err(error("write", &path, errno)),
            None => Ok(RecordingSummary { path, events: output.events, lost: output.lost }),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.is_stopped {
            stop(self.number);
        }
    }
}

/// Begins a recording into a new file.
pub(crate) fn begin(path: &Path, options: TraceOptions) -> Result<u64, Errno> {
    let Some(mut output) = output().filter(|_| !name::are_lost()) else { return Err(FORKED) };
    if output.is_some() {
        return Err(Errno::ALREADY);
    }
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let (file, pid) = (File::create(&path)?, std::process::id());
    let base = nanoseconds(ClockId::Monotonic);
    let (encoder, threads) = (Encoder::new(base), Vec::new());
    let begun = output.insert(Output { file, encoder, threads, pid, events: 0, lost: 0 });
    begun.write_head();
    let result = match begun.file.error {
        Some(errno) => Err(errno),
        None => switch_on(base, options),
    };
    if result.is_err()
        && let Some(begun) = output.take()
    {
        begun.file.remove(&path);
    }
    result
}

/// Starts the writing thread, and the recording of events. Returns its number.
#[inline(never)]
fn switch_on(base: u64, options: TraceOptions) -> Result<u64, Errno> {
    let number = CURRENT.load(Ordering::Relaxed) + 1;
    CURRENT.store(number, Ordering::Relaxed);
    start_thread("sakia-trace", None, Box::new(move || run(number)))
        .map(drop)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    BASE.store(base, Ordering::Relaxed);
    let Some(mut state) = state() else { return Err(FORKED) };
    state.events = options.buffer_events.clamp(2, 1 << 24).next_power_of_two();
    state.change(RECORDING, true);
    Ok(number)
}

/// Ends the recording of this number. `None` if it is not on: it was a parent's.
fn stop(number: u64) -> Option<Output> {
    if CURRENT.load(Ordering::Relaxed) != number {
        return None;
    }
    state()?.change(RECORDING, false);
    let mut output = output()?;
    let mut ended = output.take()?;
    ended.empty_buffers();
    let mut state = state()?;
    state.new.clear();
    if let Some(writer) = state.writer.take() {
        writer.unpark();
    }
    Some(ended)
}

/// The main function of the writing thread.
fn run(number: u64) {
    let Some(mut state) = state() else { return };
    // The next recording may have begun before this thread ran.
    if CURRENT.load(Ordering::Relaxed) == number {
        state.writer = Some(thread::current());
    }
    drop(state);
    loop {
        thread::park_timeout(PERIOD);
        if !empty_buffers(number) {
            return;
        }
    }
}

impl Output {
    /// Writes the begin of the file, and a sample of the process.
    #[inline(never)]
    fn write_head(&mut self) {
        let mut room = [0; 4096];
        let other_clocks = [ClockId::Realtime, ClockId::Boottime].map(nanoseconds);
        self.encoder.begin(self.pid, &process_name(&mut room), other_clocks);
        self.sample_at(0);
    }

    /// Writes the events in the buffers, and a sample of the process.
    #[inline(never)]
    fn empty_buffers(&mut self) {
        sample::as_own_work(|| self.drain());
        self.sample_at(now());
    }

    fn drain(&mut self) {
        while let Some(buffer) = take_new() {
            let thread = self.encoder.thread(&buffer.owner);
            self.threads.push((buffer, thread));
        }
        let (time, mut index) = (now(), 0);
        while let Some((buffer, thread)) = self.threads.get_mut(index) {
            let is_over = buffer.is_over();
            buffer.drain(time, |event| {
                self.events += 1;
                self.encoder.event(thread, event);
                if self.encoder.bytes().len() >= CHUNK {
                    self.file.write(self.encoder.bytes());
                    self.encoder.clear();
                }
            });
            self.lost += self.encoder.lost(thread, now(), buffer.lost());
            if is_over {
                self.threads.swap_remove(index);
            } else {
                index += 1;
            }
        }
        self.write();
    }

    fn sample_at(&mut self, time: u64) {
        if let Some(values) = sample::take() {
            self.encoder.sample(time, &values);
        }
        self.write();
    }

    fn write(&mut self) {
        self.file.write(self.encoder.bytes());
        self.encoder.clear();
    }
}

/// Returns a thread that the file does not have yet.
#[inline(never)]
fn take_new() -> Option<Arc<Buffer>> {
    state()?.new.pop()
}

#[cold]
#[inline(never)]
fn error(what: &str, path: &Path, errno: Errno) -> io::Error {
    if errno == FORKED {
        let message = format!("cannot {what} {}: {FORKED_TEXT}", path.display());
        return io::Error::other(message);
    }
    let cause = io::Error::from(errno);
    io::Error::new(cause.kind(), format!("cannot {what} {}: {cause}", path.display()))
}

/// Returns the name of the program's file, as the program was called.
fn process_name(room: &mut [u8]) -> Cow<'_, str> {
    let arguments = read_small(CWD, c"/proc/self/cmdline", room).unwrap_or_default();
    let path = arguments.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name)
}

/// Locks the state. A forked child has no part in its parent's recording. `None` in a child that has no lock.
#[inline(never)]
fn state() -> Option<MutexGuard<'static, State>> {
    let state = STATE.lock(|state| {
        state.change(RECORDING, false);
        state.new.clear();
        state.writer = None;
    });
    if state.is_none() {
        PURPOSES.fetch_and(!RECORDING, Ordering::Relaxed);
    }
    state
}

/// Locks the file, which a forked child closes: it is its parent's. `None` as for [`state`].
#[inline(never)]
fn output() -> Option<MutexGuard<'static, Option<Output>>> {
    let output = OUTPUT.lock(|output| {
        PURPOSES.fetch_and(!RECORDING, Ordering::Relaxed);
        *output = None;
    });
    if output.is_none() {
        PURPOSES.fetch_and(!RECORDING, Ordering::Relaxed);
    }
    output
}
