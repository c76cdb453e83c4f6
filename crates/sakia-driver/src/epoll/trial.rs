//! What may wait for a stream, and is tried whenever that may be ready.
//!
//! - A try never blocks.
//! - An operation with one completion is tried here; one with any number of them as
//!   [`multishot`](super::multishot) says.

use super::transfer::{FileClass, Try, Ways};
use crate::call::{Call, SocketCall, Transfer, Verb};
use crate::sys::{DONT_WAIT, Direction, abi};

impl Call {
    /// What it waits for.
    pub(super) fn direction(&self) -> Direction {
        match self {
            Self::Transfer(transfer) => transfer.direction,
            Self::Socket(SocketCall {
                verb: Verb::Connect | Verb::Send | Verb::SendMessage,
                ..
            }) => Direction::Write,
            _ => Direction::Read,
        }
    }

    /// Whether it is to fail with `EAGAIN` instead of waiting.
    pub(super) fn is_nowait(&self) -> bool {
        match *self {
            Self::Transfer(Transfer { flags, .. }) => flags & abi::RWF_NOWAIT != 0,
            Self::Socket(SocketCall { verb: Verb::Accept | Verb::Connect, .. }) => false,
            Self::Socket(SocketCall { flags, .. }) => flags & DONT_WAIT != 0,
            _ => false,
        }
    }

    /// Whether it has any number of completions.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self, Self::AcceptMany(_) | Self::RecvMany { .. })
    }

    /// Tries on the calling thread what has one result. `is_own` says that this backend made what the
    /// descriptor refers to.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    #[inline(always)]
    pub(super) unsafe fn try_now(&self, class: FileClass, ways: Ways, is_own: bool) -> Try {
        match self {
            // SAFETY: the caller's promise.
            Self::Transfer(transfer) => unsafe { transfer.try_now(class, ways) },
            // SAFETY: as above.
            Self::Socket(call) => unsafe { call.try_now(is_own) },
            _ => unreachable!("{self:?} waits for no stream"),
        }
    }
}
