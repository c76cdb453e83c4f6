//! What waits for a stream, and is tried whenever that may be ready.

use super::job::Work;
use super::multishot::Multishot;
use super::transfer::{FileClass, Try, Ways};
use crate::call::{Call, SocketCall, Transfer};
use crate::sys::Direction;

/// An operation that can be tried without waiting, on most files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trial {
    Transfer(Transfer, FileClass),
    Socket(SocketCall),
    /// Tried in its own way: it has any number of results.
    Multishot(Multishot),
}

impl Trial {
    /// What it waits for.
    pub(super) fn direction(&self) -> Direction {
        match self {
            Self::Transfer(transfer, _) => transfer.direction,
            Self::Socket(call) => call.direction(),
            Self::Multishot(_) => Direction::Read,
        }
    }

    /// The descriptor acted on.
    pub(super) fn raw(&self) -> i32 {
        match self {
            Self::Transfer(transfer, _) => transfer.raw,
            Self::Socket(call) => call.raw,
            Self::Multishot(multishot) => multishot.raw(),
        }
    }

    /// Whether it is to fail with `EAGAIN` instead of waiting.
    pub(super) fn is_nowait(&self) -> bool {
        match self {
            Self::Transfer(transfer, _) => transfer.is_nowait(),
            Self::Socket(call) => call.is_nowait(),
            Self::Multishot(_) => false,
        }
    }

    /// Whether it waits for a thread instead of epoll, where it cannot be tried.
    pub(super) fn is_for_threads(&self) -> bool {
        matches!(self, Self::Socket(call) if call.is_for_threads())
    }

    /// Tries on the calling thread. `is_own` says that this backend made what the descriptor refers to.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(super) unsafe fn try_now(&self, ways: Ways, is_own: bool) -> Try {
        match self {
            // SAFETY: the caller's promise.
            Self::Transfer(transfer, class) => unsafe { transfer.try_now(*class, ways) },
            // SAFETY: as above.
            Self::Socket(call) => unsafe { call.try_now(is_own) },
            Self::Multishot(_) => unreachable!("what has many results is not tried for one"),
        }
    }

    /// What a thread does where nothing can be tried.
    pub(super) fn work(self) -> Work {
        match self {
            Self::Transfer(transfer, class) => Work::IfReady(transfer, class),
            Self::Socket(call) => Work::Call(Call::Socket(call)),
            Self::Multishot(multishot) => Work::Call(multishot.call()),
        }
    }
}
