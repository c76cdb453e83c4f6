//! Linux AIO and the scheduler on it.
//!
//! A request that has to stay in flight for a while is a poll of an eventfd: buffered files are read and
//! written within the submission. Without AIO, each test is a loud skip.

mod contexts;
mod operations;
mod scheduling;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// The event of a poll of an eventfd.
const POLLIN: u16 = libc::POLLIN as u16;

/// Unwraps the result; skips the test if the machine has no AIO.
macro_rules! aio {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(error) if sakia_bench_support::aio::is_missing(&error) => {
                sakia_bench_support::skip!("Linux AIO: {error}")
            }
            Err(error) => panic!("{error}"),
        }
    };
}
use aio;

/// A temporary file with some bytes.
struct TempFile(PathBuf);

impl TempFile {
    fn new(content: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sakia-aio-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, content).expect("a file for the test");
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn open(&self) -> Arc<OwnedFd> {
        let file = fs::File::options().read(true).write(true).open(&self.0).expect("it is there");
        Arc::new(file.into())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns bytes that all differ from their neighbors.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// Returns an eventfd that is not ready.
fn event() -> Arc<OwnedFd> {
    Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"))
}

/// Makes an eventfd ready.
fn raise(event: &OwnedFd) {
    rustix::io::write(event, &1u64.to_ne_bytes()).expect("there is room in it");
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an error of the kernel")
}
