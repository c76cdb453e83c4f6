//! The least recording: what any program needs to write a trace of Perfetto itself, and nothing else. It
//! shows how much code that is, against the same program without it (`--cfg sakia_no_trace`):
//!
//! ```text
//! for flags in "--cfg sakia_no_trace" ""; do
//!     RUSTFLAGS="$flags" cargo build --release -p sakia-trace --example least &&
//!     size -A target/release/examples/least | grep text
//! done
//! ```
//!
//! It has a new file with mode 0600, a buffer per thread without a lock on the way of an event, a count of
//! lost events, a thread that writes, names that are interned, and tracks for operations in flight. It has
//! none of this: names registered at run time, samples of the process, the environment, several recordings,
//! errors that are reported, a check of what it is given, or a cost of an event that was measured.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::time::{ClockId, clock_gettime};

/// The number of a name is its place and one.
const NAMES: [&str; 12] = [
    "operation",
    "turn",
    "task",
    "system call",
    "in the kernel",
    "on a lane thread",
    "delayed",
    "scope",
    "span",
    "events lost",
    "task spawned",
    "value",
];
const VALUE: u64 = 12;
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;

/// A type of event: the schema's type, the name, and whether it is on the track of its operation.
struct Shape(u64, u64, bool);

static SHAPES: [Shape; 18] = [
    Shape(BEGIN, 1, true),
    Shape(BEGIN, 5, true),
    Shape(BEGIN, 6, true),
    Shape(INSTANT, 7, true),
    Shape(END, 5, true),
    Shape(END, 1, true),
    Shape(END, 1, true),
    Shape(BEGIN, 4, false),
    Shape(BEGIN, 2, false),
    Shape(END, 2, false),
    Shape(INSTANT, 11, false),
    Shape(BEGIN, 3, false),
    Shape(END, 3, false),
    Shape(INSTANT, 8, false),
    Shape(INSTANT, 8, false),
    Shape(BEGIN, 9, false),
    Shape(END, 9, false),
    Shape(INSTANT, 10, false),
];

/// Events of a buffer.
const LEN: usize = 1 << 12;

/// Time, and type, operation and value of an event.
type Slot = [AtomicU64; 4];

struct Buffer {
    tid: u64,
    slots: Box<[Slot]>,
    begin: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicU64,
}

struct Local(RefCell<Option<Arc<Buffer>>>);

impl Drop for Local {
    fn drop(&mut self) {
        flush();
    }
}

thread_local! {
    static LOCAL: Local = const { Local(RefCell::new(None)) };
}

struct Thread {
    buffer: Arc<Buffer>,
    track: u64,
    /// The operations in flight, each at its track.
    rows: Vec<u64>,
}

struct Output {
    file: std::os::fd::OwnedFd,
    bytes: Vec<u8>,
    threads: Vec<Thread>,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static NEW: Mutex<Vec<Arc<Buffer>>> = Mutex::new(Vec::new());
static OUTPUT: Mutex<Option<Output>> = Mutex::new(None);

/// Begins the recording.
#[inline(never)]
pub fn begin(path: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    let mut bytes = Vec::new();
    nested(&mut bytes, 1, |out| {
        uint(out, 10, 1);
        uint(out, 13, 1);
        nested(out, 59, |out| uint(out, 58, 3));
        nested(out, 12, |out| {
            for (iid, name) in (1..).zip(NAMES) {
                for field in [1, 2, 3] {
                    nested(out, field, |out| {
                        uint(out, 1, iid);
                        text(out, 2, name);
                    });
                }
            }
        });
    });
    *OUTPUT.lock().expect("no panic") = Some(Output { file, bytes, threads: Vec::new() });
    IS_ON.store(true, Ordering::Relaxed);
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(50));
            flush();
        }
    });
    Ok(())
}

/// Records an event of the calling thread, if the recording is on.
#[inline(always)]
pub fn event(kind: u64, operation: u64, value: u64) {
    if !cfg!(sakia_no_trace) && IS_ON.load(Ordering::Relaxed) {
        record(kind, operation, value);
    }
}

#[cold]
#[inline(never)]
fn record(kind: u64, operation: u64, value: u64) {
    let time = clock_gettime(ClockId::Monotonic);
    let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let _ = LOCAL.try_with(|local| {
        let Ok(mut local) = local.0.try_borrow_mut() else { return };
        let buffer = local.get_or_insert_with(register);
        let end = buffer.end.load(Ordering::Relaxed);
        if end.wrapping_sub(buffer.begin.load(Ordering::Acquire)) >= LEN {
            buffer.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        for (word, value) in buffer.slots[end % LEN].iter().zip([time, kind, operation, value]) {
            word.store(value, Ordering::Relaxed);
        }
        buffer.end.store(end.wrapping_add(1), Ordering::Release);
    });
}

#[cold]
#[inline(never)]
fn register() -> Arc<Buffer> {
    let buffer = Arc::new(Buffer {
        tid: rustix::thread::gettid().as_raw_nonzero().get() as u64,
        slots: (0..LEN).map(|_| [const { AtomicU64::new(0) }; 4]).collect(),
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicU64::new(0),
    });
    NEW.lock().expect("no panic").push(Arc::clone(&buffer));
    buffer
}

/// Writes the events so far to the file.
#[inline(never)]
pub fn flush() {
    if cfg!(sakia_no_trace) {
        return;
    }
    let mut output = OUTPUT.lock().expect("no panic");
    let Some(Output { file, bytes, threads }) = &mut *output else { return };
    for buffer in std::mem::take(&mut *NEW.lock().expect("no panic")) {
        let track = (threads.len() as u64 + 1) << 32;
        nested(bytes, 1, |out| {
            nested(out, 60, |out| {
                uint(out, 1, track);
                nested(out, 4, |out| {
                    uint(out, 1, std::process::id().into());
                    uint(out, 2, buffer.tid);
                });
            });
        });
        threads.push(Thread { buffer, track, rows: Vec::new() });
    }
    for thread in threads {
        let buffer = Arc::clone(&thread.buffer);
        let (mut at, end) =
            (buffer.begin.load(Ordering::Relaxed), buffer.end.load(Ordering::Acquire));
        while at != end {
            let slot = &buffer.slots[at % LEN];
            encode(bytes, thread, [0, 1, 2, 3].map(|index| slot[index].load(Ordering::Relaxed)));
            at = at.wrapping_add(1);
        }
        buffer.begin.store(at, Ordering::Release);
        let lost = buffer.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            encode(bytes, thread, [0, 17, 0, lost]);
        }
    }
    let mut rest = &bytes[..];
    while let Ok(count @ 1..) = rustix::io::write(&*file, rest) {
        rest = &rest[count..];
    }
    bytes.clear();
}

#[inline(never)]
fn encode(out: &mut Vec<u8>, thread: &mut Thread, event: [u64; 4]) {
    let [time, kind, operation, value] = event;
    let Some(&Shape(kind, name, is_on_operation)) = SHAPES.get(kind as usize) else { return };
    let mut track = thread.track;
    if is_on_operation {
        let known = thread.rows.iter().position(|row| *row == operation);
        let row = known.or_else(|| thread.rows.iter().position(|row| *row == 0));
        let row = row.unwrap_or_else(|| {
            let row = thread.rows.len();
            thread.rows.push(0);
            nested(out, 1, |out| {
                nested(out, 60, |out| {
                    uint(out, 1, thread.track + 1 + row as u64);
                    uint(out, 5, thread.track);
                });
            });
            row
        });
        track += 1 + row as u64;
        thread.rows[row] = if kind == END && name == 1 { 0 } else { operation };
    }
    nested(out, 1, |out| {
        uint(out, 8, time);
        uint(out, 10, 1);
        uint(out, 13, 2);
        nested(out, 11, |out| {
            uint(out, 9, kind);
            uint(out, 11, track);
            uint(out, 10, name);
            uint(out, 3, name);
            nested(out, 4, |out| {
                uint(out, 1, VALUE);
                uint(out, 3, value);
            });
        });
    });
}

#[inline(never)]
fn uint(out: &mut Vec<u8>, field: u64, value: u64) {
    for mut number in [field << 3, value] {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    }
}

#[inline(never)]
fn text(out: &mut Vec<u8>, field: u64, text: &str) {
    nested(out, field, |out| out.extend_from_slice(text.as_bytes()));
}

/// Adds a nested message, with a length of four bytes.
fn nested(out: &mut Vec<u8>, field: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    // Tag and first byte of the length are those of a number of zero, but for the type.
    let tag = out.len();
    uint(out, field, 0);
    out[tag] |= 2;
    let begin = out.len() - 1;
    out.extend_from_slice(&[0; 3]);
    fill(out);
    let len = out.len() - begin - 4;
    for (index, byte) in out[begin..begin + 4].iter_mut().enumerate() {
        *byte = (len >> (7 * index)) as u8 & 0x7f | if index < 3 { 0x80 } else { 0 };
    }
}

/// Adds numbers on two threads, with or without a recording into the file of the first argument.
fn main() {
    if !cfg!(sakia_no_trace)
        && let Some(path) = std::env::args_os().nth(1).map(PathBuf::from)
    {
        begin(&path).expect("a new file");
    }
    let sum = Arc::new(Mutex::new(0));
    let threads = [1_u64, 2].map(|number| {
        let sum = Arc::clone(&sum);
        thread::spawn(move || {
            event(0, number, 7);
            *sum.lock().expect("no panic") += number;
            event(5, number, 0);
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    println!("{}", sum.lock().expect("no panic"));
}
