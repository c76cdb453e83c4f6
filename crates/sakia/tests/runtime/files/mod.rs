//! Files: the same programs on each backend, compared with `std::fs` where possible.
//!
//! `SAKIA_DRIVER` selects the backend; `on_the_simulated_kernel` has the tests on the simulated kernel.

mod bad_places;
#[cfg(feature = "sim")]
mod crashes;
mod direct_io;
mod directories;
mod durable_writes;
mod group_commit;
mod group_commit_model;
#[cfg(feature = "sim")]
mod on_the_simulated_kernel;
mod open_files;
mod registered;
mod saving;
mod whole_files;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sakia::{Runtime, fs};
use sakia_driver::Policy;

/// Returns a runtime on the backend that the environment selects. If that lacks required operations, the
/// runtime uses epoll and threads.
fn runtime() -> Runtime {
    let runtime = Runtime::new().unwrap();
    let is_complete = runtime.block_on(async {
        let mut entries = fs::read_dir("/proc/self").await.unwrap();
        !entries.next_entry().await.is_err_and(|error| error.is_unsupported())
    });
    if is_complete {
        return runtime;
    }
    Runtime::builder().backend(Policy::Poll).build().unwrap()
}

/// Runs `future` on such a runtime.
fn run<T>(future: impl AsyncFnOnce() -> T) -> T {
    runtime().block_on(async { future().await })
}

/// The folder of one test, removed with this value.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        Self::within(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    fn within(base: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the names in the folder, in order.
    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Pseudo-random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        number as usize % bound
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}
