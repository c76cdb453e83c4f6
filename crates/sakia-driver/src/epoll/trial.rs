//! What may wait for a stream, and is tried whenever that may be ready.
//!
//! - A try never blocks.
//! - An operation with one completion is tried here; one with any number of them as
//!   [`multishot`](super::multishot) says.

use std::ptr;

use rustix::event::PollFlags;

use super::transfer::{FileClass, Try, Ways, poll_now};
use crate::call::{Call, SocketCall, Transfer, Verb};
use crate::sys::{DONT_WAIT, Direction, Message, abi};

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

    /// Whether it receives from a socket whose receives were shut down, though a try says that it would wait:
    /// so the kernel answers on a socket for datagrams, where `recv(2)` without `MSG_DONTWAIT` brings 0.
    ///
    /// # Safety
    ///
    /// - `raw` is the descriptor of this call, and lent.
    #[cold]
    pub(super) unsafe fn ends_receives(&self, raw: i32) -> bool {
        let receives = match self {
            Self::Socket(SocketCall { verb, .. }) => {
                matches!(verb, Verb::Recv | Verb::RecvMessage)
            }
            _ => matches!(self, Self::RecvMany { .. }),
        };
        // SAFETY: the caller's promise.
        let ready = || unsafe { poll_now(raw, PollFlags::RDHUP) };
        receives && ready().is_ok_and(|ready| ready.contains(PollFlags::RDHUP))
    }

    /// Says in the message of a receive that nothing came, and from no one.
    ///
    /// # Safety
    ///
    /// - The memory is lent.
    pub(super) unsafe fn tell_end(&self) {
        if let Self::Socket(SocketCall { verb: Verb::RecvMessage, args, .. }) = *self {
            let message = ptr::with_exposed_provenance_mut::<Message>(args[0]);
            // SAFETY: the call's first argument is the address of its message, which is lent.
            unsafe {
                (*message).name_len = 0;
                (*message).control_len = 0;
                (*message).flags = 0;
            }
        }
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
