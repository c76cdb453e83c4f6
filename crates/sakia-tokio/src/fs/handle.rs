//! A descriptor, and facts about it.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use sakia_driver::Lane;
use sakia_driver::calls::lane_of;

/// An open file. Operations on threads hold the descriptor, too, until they end.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) std: Arc<File>,
    /// The lane of its slow operations; determined by the first.
    lane: OnceLock<Lane>,
    /// See [`is_direct`](Handle::is_direct).
    is_direct: OnceLock<bool>,
    /// The number of transfers on threads, of this file and its clones; present once it may have clones. The
    /// kernel has one position for all of them, with a lock: a call that moves the position waits for
    /// another one, even if it is non-blocking. A ring does not take the lock.
    users: OnceLock<Arc<AtomicUsize>>,
}

impl Handle {
    pub(super) fn new(std: File) -> Self {
        let (lane, is_direct, users) = Default::default();
        Self { std: Arc::new(std), lane, is_direct, users }
    }

    /// Wraps a regular file of this machine.
    pub(super) fn local(std: File) -> Self {
        Self { lane: OnceLock::from(Lane::Bounded), ..Self::new(std) }
    }

    /// Returns another descriptor of the same open file.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let users = Arc::clone(self.users.get_or_init(Arc::default));
        let (lane, users) = (OnceLock::from(self.lane()), OnceLock::from(users));
        let is_direct = self.is_direct.clone();
        Ok(Self { lane, is_direct, users, ..Self::new(self.std.try_clone()?) })
    }

    /// Returns the lane of its slow operations.
    pub(super) fn lane(&self) -> Lane {
        *self.lane.get_or_init(|| lane_of(&self.std))
    }

    /// Returns whether transfers bypass the page cache, with aligned memory. Determined once, on a thread
    /// that may block.
    pub(super) fn is_direct(&self) -> bool {
        *self.is_direct.get_or_init(|| {
            let flags = rustix::fs::fcntl_getfl(&*self.std);
            flags.is_ok_and(|flags| flags.contains(OFlags::DIRECT))
        })
    }

    /// Wraps a file that may have other descriptors.
    pub(super) fn shared(std: File) -> Self {
        Self { users: OnceLock::from(Arc::default()), ..Self::new(std) }
    }

    /// Returns whether other users may move the position, which then takes the kernel's lock.
    pub(super) fn is_shared(&self) -> bool {
        self.users.get().is_some()
    }

    /// Returns whether a clone is moving the position.
    pub(super) fn is_in_use(&self) -> bool {
        self.users.get().is_some_and(|users| users.load(Ordering::Acquire) > 0)
    }

    /// Returns the descriptor for an operation on a thread that moves the position.
    pub(super) fn lend(&self) -> Lent {
        let users = self.users.get().cloned();
        if let Some(users) = &users {
            users.fetch_add(1, Ordering::AcqRel);
        }
        Lent { std: Arc::clone(&self.std), users }
    }
}

/// See [`Handle::lend`].
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) std: Arc<File>,
    users: Option<Arc<AtomicUsize>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(users) = &self.users {
            users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Moves a file's position back by `count` bytes. Returns `false` if it has no position.
pub(super) fn step_back(file: &File, count: usize) -> io::Result<bool> {
    let back = -i64::try_from(count).expect("no buffer is that large");
    match rustix::fs::seek(file, SeekFrom::Current(back)) {
        Ok(_) => Ok(true),
        Err(Errno::SPIPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
