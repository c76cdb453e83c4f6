//! Support for the tests.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};

use sakia::{Builder, Engine};
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
                        return sakia_testkit::place::announce_skip(
                            concat!(module_path!(), "::", stringify!($name)), &reason,
                        );
                    }
                    super::$name(&crate::support::builder(sakia_driver::Policy::Uring));
                }
            )*
        }
        mod poll {
            $(
                #[test]
                fn $name() {
                    super::$name(&crate::support::builder(sakia_driver::Policy::Poll));
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

pub fn builder(policy: Policy) -> Builder {
    Builder::new().backend(policy)
}

pub fn engine(builder: &Builder) -> Engine {
    builder.clone().build_engine().unwrap()
}

/// Read-locked by tests with a remote mount, write-locked by tests that need local mounts only: an engine
/// follows no links while there is a remote mount.
static REMOTE_MOUNTS: RwLock<()> = RwLock::new(());

/// Returns the guard of a test that mounts a remote file system. It outlives the mount.
pub fn with_remote_mounts() -> RwLockReadGuard<'static, ()> {
    REMOTE_MOUNTS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the guard of a test whose engine has to follow links.
pub fn without_remote_mounts() -> RwLockWriteGuard<'static, ()> {
    REMOTE_MOUNTS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The directory of one test, removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Not on tmpfs, where no read is cold.
        let name = format!("engine-{}-{number}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        // The path has no links: while there are remote mounts, links are followed on the engine's thread.
        Self(path.canonicalize().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file with these contents, and returns its path.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future on tokio, with one thread or several of them.
pub fn on_tokio<T>(threads: usize, future: impl Future<Output = T>) -> T {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.build().unwrap().block_on(future)
}

pub fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 % 251) as u8).collect()
}
