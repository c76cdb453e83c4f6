//! Operations that may wait for a stream, and are tried whenever it may be ready.
//!
//! - A try never blocks.
//! - An operation with one completion is tried here; a multishot one in [`multishot`](super::multishot).

use std::ptr;

use rustix::event::PollFlags;

use super::transfer::{FileClass, Means, Try, poll_now};
use crate::call::{Call, SocketCall, Transfer, Verb};
use crate::sys::{DONT_WAIT, Direction, Message, abi};

impl Call {
    /// Returns the direction that it waits for.
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

    /// Returns whether it fails with `EAGAIN` instead of waiting.
    pub(super) fn is_nowait(&self) -> bool {
        match *self {
            Self::Transfer(Transfer { flags, .. }) => flags & abi::RWF_NOWAIT != 0,
            Self::Socket(SocketCall { verb: Verb::Accept | Verb::Connect, .. }) => false,
            Self::Socket(SocketCall { flags, .. }) => flags & DONT_WAIT != 0,
            _ => false,
        }
    }

    /// Returns whether it depends on the socket's mode: there is no flag that makes it not wait.
    pub(super) fn depends_on_mode(&self) -> bool {
        match self {
            Self::Socket(SocketCall { verb, .. }) => {
                matches!(verb, Verb::Accept | Verb::Connect)
            }
            _ => matches!(self, Self::AcceptMany(_)),
        }
    }

    /// Returns whether it is multishot: any number of completions.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self, Self::AcceptMany(_) | Self::RecvMany { .. })
    }

    /// Returns whether it receives from a socket whose receives were shut down, although a try returns that
    /// it would block: so does the kernel on a datagram socket, where `recv(2)` without `MSG_DONTWAIT`
    /// returns 0.
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

    /// Marks the message of a receive as empty, without a sender.
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

    /// Tries an operation with one result on the calling thread. `is_own` says that this backend made the
    /// descriptor's file.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    #[inline(always)]
    pub(super) unsafe fn try_now(&self, class: FileClass, means: Means, is_own: bool) -> Try {
        match self {
            // SAFETY: the caller's promise.
            Self::Transfer(transfer) => unsafe { transfer.try_now(class, means) },
            // SAFETY: as above.
            Self::Socket(call) => unsafe { call.try_now(is_own) },
            _ => unreachable!("{self:?} waits for no stream"),
        }
    }
}
