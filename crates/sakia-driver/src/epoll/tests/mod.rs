//! Tests of the backend, through its queues and below a driver.
//!
//! No test asserts anything about time. Each waits patiently for its events, and after a limit it fails
//! instead of hanging.

mod cancel;
mod driver;
mod files;
mod fork;
mod lanes;
mod means;
mod multishot;
mod opens;
mod parity;
mod programs;
mod sandbox;
mod sockets;
mod streams;
mod wakes;

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use sakia_ring::{AT_FDCWD, CURRENT_POSITION, Cqe, Sqe};

use super::{Epoll, EpollOptions};
use crate::backend::{Backend, Destination};
use crate::call::{Call, Direction, Request, Verb};
use crate::counters::OpKind;
use crate::sim::entry::{Form, decode};

/// The time that a test waits for an event that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory to lend: accessed through its address only, so that no reference to it exists.
struct Lendable {
    bytes: *mut [u8],
}

impl Lendable {
    fn new(content: &[u8]) -> Self {
        Self { bytes: Box::into_raw(content.into()) }
    }

    fn zeroed(len: usize) -> Self {
        Self::new(&vec![0; len])
    }

    fn path(path: &Path) -> Self {
        Self::new(c_path(path).to_bytes_with_nul())
    }

    fn ptr(&self) -> *mut u8 {
        self.bytes.cast()
    }

    fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Returns the current bytes.
    fn copy(&self) -> Vec<u8> {
        // SAFETY: the bytes belong to `self`, and tests read them while no operation has them.
        unsafe { &*self.bytes }.to_vec()
    }
}

impl Drop for Lendable {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`. A test keeps memory for as long as it is lent.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// A minimal driver.
struct Loop {
    epoll: Epoll,
    /// The `user_data` of the next entry that [`run`](Loop::run) makes up.
    next: u64,
    /// The registered buffer: address and length.
    registered: Option<(u64, u64)>,
}

/// The kind under which an operation is counted, which the backend gets beside the call.
fn kind(call: &Call) -> OpKind {
    match call {
        Call::Nop => OpKind::Nop,
        Call::Transfer(transfer) if transfer.direction == Direction::Read => OpKind::Read,
        Call::Transfer(_) => OpKind::Write,
        Call::Open(_) => OpKind::Open,
        Call::Close { .. } => OpKind::Close,
        Call::Poll { .. } => OpKind::Poll,
        Call::Cancel { .. } => OpKind::Cancel,
        Call::AcceptMany(_) => OpKind::Accept,
        Call::RecvMany { .. } => OpKind::Recv,
        Call::Socket(call) => match call.verb {
            Verb::Accept => OpKind::Accept,
            Verb::Connect => OpKind::Connect,
            Verb::Send | Verb::SendMessage => OpKind::Send,
            Verb::Recv | Verb::RecvMessage => OpKind::Recv,
        },
        _ => OpKind::Other,
    }
}

impl Loop {
    fn new() -> Self {
        Self::with(EpollOptions::new())
    }

    fn with(options: EpollOptions) -> Self {
        Self { epoll: Epoll::with_options(options).unwrap(), next: 1 << 20, registered: None }
    }

    #[track_caller]
    fn push(&mut self, user_data: u64, form: impl Into<Form>) {
        let Some(request) = self.request(user_data, form) else { return };
        // SAFETY: the tests keep lent memory until the operation has completed, or for ever.
        let pushed = unsafe { self.epoll.push_call(request, Destination::Queue) };
        assert!(pushed.is_ok(), "the submission queue is full");
    }

    /// Returns the request of an entry or a call. An invalid entry completes at once, with its error.
    fn request(&mut self, user_data: u64, form: impl Into<Form>) -> Option<Request> {
        let call = match form.into() {
            Form::Call(call) => call,
            // SAFETY: as in `push`.
            Form::Entry(sqe) => match unsafe { decode(&sqe, self.registered) } {
                Ok(call) => call,
                Err(errno) => {
                    self.epoll.machine.queue.post(user_data, -errno.raw_os_error());
                    return None;
                }
            },
        };
        Some(Request { user_data, kind: kind(&call), call })
    }

    /// Reaps all completions, as `user_data` and result.
    fn reap(&mut self) -> Vec<(u64, i32)> {
        let mut out = [Cqe::default(); 64];
        let count = self.epoll.reap(&mut out);
        out[..count].iter().map(|cqe| (cqe.user_data, cqe.res)).collect()
    }

    /// Submits, and returns what completed at once.
    #[track_caller]
    fn submit(&mut self) -> Vec<(u64, i32)> {
        self.epoll.submit().unwrap();
        self.reap()
    }

    /// Enters for this many completions.
    #[track_caller]
    fn enter(&mut self, min_complete: u32) -> Vec<(u64, i32)> {
        let watch = Instant::now();
        let mut all = Vec::new();
        while (all.len() as u32) < min_complete {
            assert!(watch.elapsed() < PATIENCE, "waited in vain; so far {all:?}");
            let left = min_complete - all.len() as u32;
            self.epoll.enter(left, Some(PATIENCE), None).unwrap();
            all.extend(self.reap());
        }
        all
    }

    /// Enters to finish operations that are ready now.
    #[track_caller]
    fn turn(&mut self) -> Vec<(u64, i32)> {
        self.epoll.enter(0, Some(Duration::ZERO), None).unwrap();
        self.reap()
    }

    /// Enters repeatedly until `is_done`.
    #[track_caller]
    fn turn_until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let watch = Instant::now();
        while !is_done(self) {
            assert!(watch.elapsed() < PATIENCE, "waited in vain");
            self.epoll.enter(1, Some(Duration::from_millis(1)), None).unwrap();
        }
    }

    /// Runs one operation to its end. No other operation in flight may end meanwhile.
    #[track_caller]
    fn run(&mut self, form: impl Into<Form>) -> i32 {
        self.next += 1;
        let user_data = self.next;
        self.push(user_data, form);
        let completions = self.enter(1);
        assert_eq!(completions.len(), 1, "{completions:?}");
        assert_eq!(completions[0].0, user_data);
        completions[0].1
    }

    #[track_caller]
    fn open(&mut self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = Lendable::path(path);
        let flags = flags | OFlags::CLOEXEC;
        match self.run(Sqe::openat(AT_FDCWD, path.ptr(), flags.bits(), 0o640)) {
            // SAFETY: the operation has just opened it.
            raw @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
            res => Err(Errno::from_raw_os_error(-res)),
        }
    }

    /// Returns the number of operations that neither completed nor wait to be consumed.
    fn flights(&self) -> usize {
        self.epoll.machine.flights.len()
    }
}

/// Returns the result that stands for an errno.
fn err(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

/// Returns a read into all of a buffer.
fn read(fd: &impl AsRawFd, buffer: &Lendable, offset: u64) -> Sqe {
    Sqe::read(fd.as_raw_fd(), buffer.ptr(), buffer.len(), offset)
}

/// Returns a write of all of a buffer.
fn write(fd: &impl AsRawFd, buffer: &Lendable, offset: u64) -> Sqe {
    Sqe::write(fd.as_raw_fd(), buffer.ptr(), buffer.len(), offset)
}

/// Returns a read of a stream.
fn receive(fd: &impl AsRawFd, buffer: &Lendable) -> Sqe {
    read(fd, buffer, CURRENT_POSITION)
}

/// Returns a write to a stream.
fn send(fd: &impl AsRawFd, buffer: &Lendable) -> Sqe {
    write(fd, buffer, CURRENT_POSITION)
}

/// Returns the reading and the writing end of a pipe.
fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).unwrap()
}

/// A folder, removed at the end of a test.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sakia-epoll-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Opens both ends of a FIFO at once, which never waits.
fn open_both_ends(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap()
}

/// Waits until other threads have caused an event.
#[track_caller]
fn wait_until(mut is_done: impl FnMut() -> bool) {
    let watch = Instant::now();
    while !is_done() {
        assert!(watch.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A sequence of numbers that is the same in every run: xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let len = self.below(len_max + 1);
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}
