//! Shared helpers of the tests.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Builder, Runtime};

/// Makes tests of these functions, on a runtime of each kind.
macro_rules! on_each_flavor {
    ($($name:ident)*) => {
        mod current_thread {
            $(
                #[test]
                fn $name() {
                    crate::support::current_thread().block_on(super::$name());
                }
            )*
        }
        mod multi_thread {
            $(
                #[test]
                fn $name() {
                    // The test runs in a task, so that it is not bound to the thread of the test.
                    let runtime = crate::support::multi_thread();
                    runtime.block_on(async { tokio::spawn(super::$name()).await.unwrap() });
                }
            )*
        }
    };
}
pub(crate) use on_each_flavor;

pub fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

pub fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A private directory of a test, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Makes it on a file system in memory, if the machine has one.
    pub fn in_memory() -> Self {
        let place = Path::new("/dev/shm");
        if place.is_dir() { Self::below(place) } else { Self::new() }
    }

    fn below(place: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("sakia-tokio-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a file with these contents.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }

    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let (kind, mode) = (rustix::fs::FileType::Fifo, 0o600.into());
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Polls a future once, without a waker.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until the file has these contents.
pub fn await_contents(path: &Path, contents: &[u8]) {
    while std::fs::read(path).unwrap() != contents {
        std::thread::yield_now();
    }
}

/// Drops the file's pages from the page cache, as far as the file system supports it.
pub fn cool_down(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

pub fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 % 251) as u8).collect()
}

/// Returns the errno of an error.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}
