//! A file system in this process, whose every answer a test can script.
//!
//! It speaks the kernel's protocol on `/dev/fuse` itself, on a thread of its own: one directory of regular
//! files, kept in memory, that can be read, written, created, renamed and removed. A request that matches a
//! [`Rule`] is answered late, short, with an error, never, or when a [`Gate`] opens. All requests are
//! counted. Writes reach the server before `write` returns: there is no write-back.
//!
//! Nothing hangs for ever: dropping the file system ends the connection, and all calls that still wait for
//! it get an error; the end of the process does the same, however it comes.
//!
//! 1. A request arrives, is counted, and is matched with the first fitting [`Rule`].
//! 2. It waits at the rule's gate, then the rule's delay. Other requests are answered meanwhile.
//! 3. The rule decides whether it is done or fails, on the files in their state *then*.
//!
//! A kernel thread, or a process in an uninterruptible sleep, may hang on a closed gate: `sync` of the whole
//! machine for example. Open gates soon. A gate for [`Rule::any`] also holds the test's own incidental
//! requests: attributes, a close.
//!
//! ```
//! use std::fs;
//!
//! use sakia_bench_support::available;
//! use sakia_bench_support::fuse::{Fuse, Opcode, Rule};
//!
//! # fn main() {
//! let fuse = available!(Fuse::builder().file("a", b"content".to_vec()).mount());
//! assert_eq!(fs::read(fuse.join("a")).unwrap(), b"content");
//!
//! const EIO: i32 = 5;
//! fuse.script(Rule::on(Opcode::OPEN).file("a").times(1).errno(EIO));
//! assert_eq!(fs::read(fuse.join("a")).unwrap_err().raw_os_error(), Some(EIO));
//!
//! let gate = fuse.hold(Rule::on(Opcode::READ));
//! std::thread::scope(|scope| {
//!     let reader = scope.spawn(|| fs::read(fuse.join("a")));
//!     gate.wait_held(1);
//!     assert!(!reader.is_finished());
//!     gate.open();
//!     assert_eq!(reader.join().unwrap().unwrap(), b"content");
//! });
//! # }
//! ```

mod protocol;
mod script;
mod server;
mod shared;

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
pub use script::{Gate, HeldRequest, Opcode, Rule};
use shared::{Node, Options, Shared};

use crate::place::{Mounted, PlaceError, Scratch};

/// Returns bytes to fill a file with: no two pages, and no two neighboring words of 8 bytes, are equal.
///
/// Byte `i` is a function of `i` only, so that a piece read from any offset can be checked.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(pattern_byte).collect()
}

/// Returns byte `index` of [`pattern`].
pub fn pattern_byte(index: usize) -> u8 {
    let word = (index as u64 / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes()[index % 8]
}

/// The configuration of a file system; see [`Fuse::builder`].
#[derive(Debug, Default)]
#[must_use = "nothing is mounted yet"]
pub struct Builder {
    nodes: Vec<Node>,
    options: Options,
}

impl Builder {
    /// Adds a file of this name and content.
    pub fn file(mut self, name: &str, content: Vec<u8>) -> Self {
        self.nodes.push(Node::new(name.as_bytes(), content));
        self
    }

    /// Adds a symbolic link of this name to `target`.
    pub fn link(mut self, name: &str, target: &Path) -> Self {
        self.nodes.push(Node::link(name.as_bytes(), target.as_os_str().as_bytes().to_vec()));
        self
    }

    /// Sets whether reads and writes bypass the page cache (`FOPEN_DIRECT_IO`): each reaches the server
    /// unchanged, and none is answered from memory. Off by default.
    pub fn direct_io(mut self, direct_io: bool) -> Self {
        self.options.direct_io = direct_io;
        self
    }

    /// Sets whether pages stay cached from one open to the next (`FOPEN_KEEP_CACHE`). Off by default: each
    /// open then starts cold.
    pub fn keep_cache(mut self, keep_cache: bool) -> Self {
        self.options.keep_cache = keep_cache;
        self
    }

    /// Sets whether the kernel requests attributes again each time it needs them, so that it notices the
    /// changes of [`Fuse::edit`]. Off by default: it then requests them once.
    pub fn attributes_expire(mut self, expire: bool) -> Self {
        self.options.attributes_expire = expire;
        self
    }

    /// Adds this number of entries to the directory, which are made up while it is read: `invented-0` is a
    /// file, `invented-1` a directory, `invented-2` a link, and so on. They cannot be opened.
    pub fn invented(mut self, count: u64) -> Self {
        self.options.invented = count;
        self
    }

    /// Mounts the file system in a new directory.
    ///
    /// # Errors
    /// Without `/dev/fuse`, or the privilege to mount, the error says what is missing.
    pub fn mount(self) -> Result<Fuse, PlaceError> {
        let scratch = Scratch::new()?;
        let fifo = scratch.path().join("wake");
        let waker = make_waker(&fifo).map_err(|errno| PlaceError::failed("make a FIFO", errno))?;
        let shared = Arc::new(Shared::new(self.options, self.nodes, waker));
        let (sender, mounted) = mpsc::sync_channel(1);
        let server = {
            let (shared, point) = (Arc::clone(&shared), scratch.path().join("mnt"));
            server::start(move || server::run(shared, point, fifo, sender))?
        };
        match mounted.recv().expect("the server tells before it ends") {
            Ok(()) => Ok(Fuse { shared, server: Some(server), mounted: Mounted::adopt(scratch) }),
            Err(error) => {
                // This thread then closes the waker, for which the server's table has no number.
                let _ = server.join();
                Err(error)
            }
        }
    }
}

/// Returns the test's end of the server's waker. It can also read, so that a write never lacks a reader.
fn make_waker(fifo: &Path) -> rustix::io::Result<OwnedFd> {
    mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    open(fifo, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// A mounted file system. It is unmounted with the value; see the [module](self).
#[derive(Debug)]
pub struct Fuse {
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
    mounted: Mounted,
}

impl Fuse {
    /// Returns the configuration of a file system without files, through the page cache.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Returns the path of the file `name`.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Appends a rule to the existing ones.
    pub fn script(&self, rule: Rule) {
        self.shared.lock().rules.push((rule, 0));
    }

    /// Appends a rule whose requests wait at a gate, which is closed. The rest of the rule applies to them
    /// after the gate.
    pub fn hold(&self, rule: Rule) -> Gate {
        let id = self.shared.lock().add_gate(rule);
        Gate { shared: Arc::clone(&self.shared), id }
    }

    /// Removes all rules, opens all gates, and fails with `EIO` the requests that would never be answered.
    pub fn release(&self) {
        self.shared.lock().release();
        self.shared.wake();
    }

    /// Returns the number of requests of that kind so far.
    pub fn count(&self, opcode: Opcode) -> u64 {
        self.shared.lock().count(opcode)
    }

    /// Returns a number for each descriptor that was closed so far (`FLUSH`), oldest first: the same for all
    /// descriptors of one table. A child of the process has a table of its own, and closes the descriptors in
    /// it when it executes a program.
    pub fn closers(&self) -> Vec<u64> {
        self.shared.lock().closers.clone()
    }

    /// Returns the number of waiting requests: at gates, in delays, or for ever.
    pub fn waiting(&self) -> usize {
        self.shared.lock().parked.len()
    }

    /// Waits until at least `count` requests wait.
    ///
    /// # Panics
    /// If there are fewer after [`PATIENCE`](crate::blocked::PATIENCE).
    #[track_caller]
    pub fn wait_waiting(&self, count: usize) {
        let reached = self.shared.wait_until(|state| state.parked.len() >= count);
        assert!(reached, "{} requests wait, not {count}", self.waiting());
    }

    /// Returns the server's bytes of the file `name`.
    ///
    /// # Panics
    /// If there is no such file.
    #[track_caller]
    pub fn content(&self, name: &str) -> Vec<u8> {
        let state = self.shared.lock();
        state.content(name).unwrap_or_else(|| panic!("no file {name}")).to_vec()
    }

    /// Changes the file `name` behind the kernel's back, as another client of a network file
    /// system would.
    ///
    /// # Panics
    /// If there is no such file.
    #[track_caller]
    pub fn edit<T>(&self, name: &str, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut state = self.shared.lock();
        change(state.content_mut(name).unwrap_or_else(|| panic!("no file {name}")))
    }
}

/// Ends the connection at once, as the death of a server does: all waiting and later calls get `ENOTCONN` or
/// `ECONNABORTED`.
impl Drop for Fuse {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake();
        if let Some(server) = self.server.take()
            && server.join().is_err()
            && !thread::panicking()
        {
            panic!("the server of {} has panicked", self.path().display());
        }
    }
}
