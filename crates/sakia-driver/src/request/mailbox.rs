//! Messages of file handles to the loops that have used them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::signal::Signal;

/// A message to a loop.
#[derive(Debug)]
pub(crate) enum Letter {
    /// The last handle of the file is gone, or it is being closed: operations on it are canceled then.
    Forget { file: FileId, is_closed: bool },
    /// A file that this loop was asked to close has no user any more. Its descriptor, unless an owner has
    /// lent it.
    Unused { token: u64, fd: Option<OwnedFd> },
}

/// The number of a file on a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Of its descriptor.
    pub(crate) raw: i32,
    /// Of the file, and of no other.
    pub(crate) serial: u64,
}

/// Receives the messages to a loop. Any thread may send.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// `None` once the loop has ended.
    letters: Mutex<Option<Vec<Letter>>>,
    signal: Arc<Signal>,
}

impl Mailbox {
    /// # Errors
    /// As `eventfd(2)`.
    pub(crate) fn new() -> Result<Self, Errno> {
        let letters = Mutex::new(Some(Vec::new()));
        Ok(Self { letters, signal: Arc::new(Signal::new()?) })
    }

    #[inline(always)]
    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Sends a message, and wakes the loop. After the loop's end, and in a forked child, the message is
    /// dropped.
    pub(crate) fn send(&self, letter: Letter) {
        let Some(mut letters) = self.lock() else { return };
        let Some(list) = &mut *letters else {
            drop(letters);
            return; // drops the letter, which may close a descriptor
        };
        list.push(letter);
        drop(letters);
        self.signal.raise();
    }

    /// Takes the messages, oldest first. In a forked child there are none.
    pub(crate) fn take(&self) -> Vec<Letter> {
        let Some(mut letters) = self.lock() else { return Vec::new() };
        letters.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends it: later messages are dropped.
    pub(crate) fn close(&self) {
        let letters = self.lock().and_then(|mut letters| letters.take());
        drop(letters);
    }

    /// `None` in a forked child: the loop is the parent's, and so may be the owner of the lock.
    fn lock(&self) -> Option<MutexGuard<'_, Option<Vec<Letter>>>> {
        // No code panics while it holds the lock.
        let lock = || self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        self.signal.is_of_this_process().then(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_forked_child_waits_for_no_lock_of_the_parents() {
        let mailbox = Mailbox::new().unwrap();
        let letter = || Letter::Unused { token: 1, fd: None };
        mailbox.send(letter());
        let locked = mailbox.lock();
        let child = sakia_testkit::forked::run(|| {
            mailbox.send(letter());
            assert!(mailbox.take().is_empty());
            mailbox.close();
        });
        child.unwrap();
        drop(locked);
        assert_eq!(mailbox.take().len(), 1);
        mailbox.close();
        mailbox.send(letter());
        assert!(mailbox.take().is_empty());
    }
}
