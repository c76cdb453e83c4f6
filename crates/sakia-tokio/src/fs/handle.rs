//! A descriptor, and what is known of it.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;

use crate::lane::Lane;
use crate::now;

/// An open file. What is under way on threads has the descriptor, too, as long as it takes.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) std: Arc<File>,
    /// Where its slow operations run; found out by the first.
    lane: OnceLock<Lane>,
    /// See [`is_direct`](Handle::is_direct).
    is_direct: OnceLock<bool>,
    /// Transfers under way on threads, of this file and its clones; there once it may have clones. The kernel
    /// has one position for all of them, and a lock on it: who moves the position waits for whoever does so
    /// already, though asked not to wait. A ring does not take the lock.
    users: OnceLock<Arc<AtomicUsize>>,
}

impl Handle {
    pub(super) fn new(std: File) -> Self {
        let (lane, is_direct, users) = Default::default();
        Self { std: Arc::new(std), lane, is_direct, users }
    }

    /// A regular file of this machine.
    pub(super) fn local(std: File) -> Self {
        Self { lane: OnceLock::from(Lane::Narrow), ..Self::new(std) }
    }

    /// Another descriptor of the same open file.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let users = Arc::clone(self.users.get_or_init(Arc::default));
        let (lane, users) = (OnceLock::from(self.lane()), OnceLock::from(users));
        let is_direct = self.is_direct.clone();
        Ok(Self { lane, is_direct, users, ..Self::new(self.std.try_clone()?) })
    }

    /// Where its slow operations run.
    pub(super) fn lane(&self) -> Lane {
        *self.lane.get_or_init(|| match now::ends_by_itself(&self.std) {
            true => Lane::Narrow,
            false => Lane::Wide,
        })
    }

    /// Whether transfers go past the page cache, with aligned memory. Asked once, where they may wait.
    pub(super) fn is_direct(&self) -> bool {
        *self.is_direct.get_or_init(|| {
            let flags = rustix::fs::fcntl_getfl(&*self.std);
            flags.is_ok_and(|flags| flags.contains(OFlags::DIRECT))
        })
    }

    /// Of a file that others may have a descriptor of.
    pub(super) fn shared(std: File) -> Self {
        Self { users: OnceLock::from(Arc::default()), ..Self::new(std) }
    }

    /// Whether others may move the position, which takes the kernel's lock then.
    pub(super) fn is_shared(&self) -> bool {
        self.users.get().is_some()
    }

    /// Whether a clone is moving the position.
    pub(super) fn is_in_use(&self) -> bool {
        self.users.get().is_some_and(|users| users.load(Ordering::Acquire) > 0)
    }

    /// For something that moves the position on a thread: the descriptor, until it has.
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
