//! The mode of a socket, blocking or not, and its owner.

use super::Fd;
use crate::sys::send_file;

/// The owner of a socket's mode, and the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketMode {
    /// No socket that the driver has made.
    Foreign,
    /// One that the driver has made, in blocking mode. No other program, and no operation, goes by its mode.
    Own,
    /// The same, left in non-blocking mode by a send of a file.
    NonBlocking,
    /// One that the driver has made, in blocking mode, by which others may go.
    Shared,
}

/// The changes that sending a file may make to the socket's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Only look at it.
    Given = send_file::GIVEN as isize,
    /// Change it for the call.
    Changed = send_file::CHANGED as isize,
    /// Change it, and leave it so if the call succeeds or finds no room.
    Kept = send_file::KEPT as isize,
    /// It is in non-blocking mode, and stays so.
    NonBlocking = send_file::NON_BLOCKING as isize,
}

impl Fd {
    /// Returns the changes that a send of a file may make to the socket's mode.
    pub(crate) fn mode_for_sends(&self) -> SendMode {
        match self.inner.mode.get() {
            SocketMode::Foreign => SendMode::Given,
            SocketMode::Own => SendMode::Kept,
            SocketMode::NonBlocking => SendMode::NonBlocking,
            SocketMode::Shared => SendMode::Changed,
        }
    }

    /// A send of a file has left the socket in non-blocking mode.
    pub(crate) fn note_nonblocking(&self) {
        match self.inner.mode.get() {
            SocketMode::Own => self.inner.mode.set(SocketMode::NonBlocking),
            // Meanwhile it was handed out.
            SocketMode::Shared => self.make_blocking(),
            SocketMode::Foreign | SocketMode::NonBlocking => {}
        }
    }

    /// The socket's mode matters to others from now on: it is in blocking mode, unless a call is under way
    /// that changes it for a moment. They may set `SO_LINGER`, too.
    #[inline(always)]
    pub(crate) fn share_mode(&self) {
        if matches!(self.inner.mode.get(), SocketMode::Own | SocketMode::NonBlocking) {
            self.end_own_mode();
        }
    }

    #[cold]
    fn end_own_mode(&self) {
        self.note_linger();
        if self.inner.mode.replace(SocketMode::Shared) == SocketMode::NonBlocking {
            self.make_blocking();
        }
    }

    fn make_blocking(&self) {
        // SAFETY: a clone keeps the descriptor open: `self`. The driver made the socket, and has changed its
        // mode itself.
        unsafe { self.inner.owner.calls().make_blocking(self.inner.raw) };
    }
}
