//! Support for the tests: backends, skips, folders, random numbers.

use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use sakia::Runtime;
use sakia_driver::Policy;
use sakia_ring::Ring;

/// Makes tests of these functions, on each backend.
macro_rules! on_each_backend {
    ($($name:ident)*) => {
        mod uring {
            $(
                #[test]
                fn $name() {
                    if let Some(reason) = crate::support::why_no_ring() {
                        return crate::support::announce_skip(
                            concat!(module_path!(), "::", stringify!($name)), &reason,
                        );
                    }
                    super::$name(sakia_driver::Policy::Uring);
                }
            )*
        }
        mod poll {
            $(
                #[test]
                fn $name() {
                    super::$name(sakia_driver::Policy::Poll);
                }
            )*
        }
    };
}
pub(crate) use on_each_backend;

/// Returns the reason why this machine has no ring, or `None` if it has one.
pub fn why_no_ring() -> Option<String> {
    Ring::builder().build().err().map(|error| error.to_string())
}

/// Reports that a test proves nothing on this machine. Fails the test instead if `SAKIA_DENY_SKIPS` is set,
/// or if the test is not on the list of permitted skips.
#[track_caller]
pub fn announce_skip(test: &str, reason: &str) {
    let lines = include_str!("skips.txt").lines().filter(|line| !line.starts_with('#'));
    let mut listed = lines.filter_map(|line| line.split_once(": "));
    let may_skip = listed.any(|(name, _)| test.split("::").any(|part| part == name));
    assert!(may_skip, "{test} is not on the list of tests that may skip: {reason}");
    sakia_testkit::place::announce_skip(test, reason);
}

/// Returns a place, or `None` after a loud skip if the machine lacks a requirement.
#[track_caller]
pub fn available<T>(test: &str, place: Result<T, sakia_testkit::place::PlaceError>) -> Option<T> {
    match place {
        Ok(place) => Some(place),
        Err(error) if error.is_missing() => {
            announce_skip(test, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn runtime(policy: Policy) -> Runtime {
    Runtime::builder().backend(policy).build().unwrap()
}

/// Polls a future once, with the caller's waker.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// Returns the number of open descriptors of the process.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The folder of one test, removed with this value.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes a folder on the disk of the build.
    pub fn new() -> Self {
        Self::within(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub fn within(base: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("faults-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns the names in a folder, in order.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Pseudo-random numbers that are the same in each run: xorshift*.
#[derive(Clone, Copy)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}
