//! Helpers of the tests: skips, random numbers, short ways to push and reap.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_ring::{Cqe, Entered, Host, Opcode, Position, Ring, Sqe};

/// Ends the calling test, which cannot run on this machine. Makes it fail instead if `SAKIA_DENY_SKIPS` is
/// set.
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::support::announce_skip(module_path!(), &format!($($reason)*));
        return;
    }};
}
pub(crate) use skip;

pub fn announce_skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("SAKIA_DENY_SKIPS").is_none(),
        "skips are denied, and {test} must skip: {reason}"
    );
    eprintln!("SKIP {test}: {reason}");
}

/// The limit of a wait for an event that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Pushes an entry that names no memory, for which `push` requires no promise about memory.
pub fn push<H: Host>(ring: &mut Ring<H>, sqe: Sqe) -> Option<Position> {
    let memoryless =
        [Opcode::NOP, Opcode::FSYNC, Opcode::POLL_ADD, Opcode::ASYNC_CANCEL, Opcode::MSG_RING];
    assert!(memoryless.contains(&sqe.opcode), "{sqe:?} names memory");
    // SAFETY: checked above: the entry names no memory. The kernel takes its reference to the
    // descriptor when it consumes the entry, and no test closes one before.
    unsafe { ring.push(sqe) }
}

/// Pushes a no-op for each `user_data`.
pub fn push_nops<H: Host>(ring: &mut Ring<H>, user_data: impl IntoIterator<Item = u64>) {
    for user_data in user_data {
        let position = push(ring, Sqe::nop().user_data(user_data));
        assert!(position.is_some(), "the submission queue is full");
    }
}

/// Enters, and repeats an interrupted enter: the kernel also interrupts waits for its own reasons, such as a
/// new worker. An enter that consumed entries returns no error in that case, so nothing is consumed twice.
pub fn enter<H: Host>(ring: &mut Ring<H>, min_complete: u32, timeout: Option<Duration>) -> Entered {
    loop {
        match ring.enter(min_complete, timeout) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result.unwrap(),
        }
    }
}

/// Enters until `count` completions are reaped, and returns them in order.
pub fn complete<H: Host>(ring: &mut Ring<H>, count: usize) -> Vec<Cqe> {
    let start = Instant::now();
    let mut all = Vec::new();
    let mut chunk = [Cqe::default(); 64];
    while all.len() < count {
        let room = chunk.len().min(count - all.len());
        let reaped = ring.reap(&mut chunk[..room]);
        all.extend_from_slice(&chunk[..reaped]);
        if all.len() < count && ring.cq_ready() == 0 {
            enter(ring, 1, Some(Duration::from_secs(1)));
        }
        assert!(start.elapsed() < PATIENCE, "{count} awaited, got {all:?}");
    }
    all
}

/// Returns all ready completions.
pub fn reap_all<H: Host>(ring: &mut Ring<H>) -> Vec<Cqe> {
    let mut out = vec![Cqe::default(); ring.cq_ready() as usize];
    let count = ring.reap(&mut out);
    assert_eq!(count, out.len());
    out
}

pub fn user_data(completions: &[Cqe]) -> Vec<u64> {
    completions.iter().map(|cqe| cqe.user_data).collect()
}

/// Asserts that the ring moves entries and completions.
pub fn assert_works<H: Host>(ring: &mut Ring<H>) {
    push_nops(ring, [0x5ac1a]);
    let completions = complete(ring, 1);
    assert_eq!((completions[0].user_data, completions[0].res), (0x5ac1a, 0));
}

pub fn errno_of(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// A sequence of numbers that is the same in every run: xorshift64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// A directory that is removed at the end of a test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ring-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
