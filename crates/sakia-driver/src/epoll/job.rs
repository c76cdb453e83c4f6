//! Jobs of lane threads: one or a few system calls that may block.
//!
//! Everything but opening a path and locking a file ends by itself and belongs to the bounded lane. A lock
//! is tried there, and waited for on the elastic lane. So is an open that may block; see
//! [`open`](crate::sys::open).

use std::os::fd::{IntoRawFd, OwnedFd};

use rustix::io::Errno;

use super::transfer::{FileClass, Try};
use crate::call::{Call, Transfer, failed, outcome};
use crate::decide::Lane;
use crate::sys::open::await_writer;
use crate::sys::{self, abi};

/// The work of a job. All addresses are of lent memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A call, to its end. If it would block for ever, the bounded lane passes it to the elastic one.
    Call(Call),
    /// A transfer on a stream that cannot be tried, and that was just reported ready.
    IfReady(Transfer, FileClass),
}

/// The outcome of a job.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The result of the completion.
    Done(i32),
    /// The result is the number of this descriptor, which is closed if the outcome is dropped.
    Opened(OwnedFd),
    /// The stream was not ready any more.
    WouldBlock,
    /// It may block for ever, and is for the elastic lane.
    Elastic,
}

impl Outcome {
    fn of(result: Result<(), Errno>) -> Self {
        Self::of_count(result.map(|()| 0))
    }

    fn of_count(result: Result<usize, Errno>) -> Self {
        Self::Done(outcome(result))
    }

    fn opened(result: Result<OwnedFd, Errno>) -> Self {
        result.map_or_else(|errno| Self::Done(failed(errno)), Self::Opened)
    }

    /// Returns the result of the completion. From here on the receiver owns a descriptor in it.
    pub(super) fn into_result(self) -> Option<i32> {
        match self {
            Self::Done(res) => Some(res),
            Self::Opened(fd) => Some(fd.into_raw_fd()),
            Self::WouldBlock | Self::Elastic => None,
        }
    }
}

impl From<Try> for Outcome {
    fn from(tried: Try) -> Self {
        match tried {
            Try::Done(res) => Self::Done(res),
            Try::WouldBlock | Try::Unable => Self::WouldBlock,
        }
    }
}

impl Work {
    /// Returns a thread's work for a descriptor that epoll reports ready and that cannot be tried.
    pub(super) fn when_ready(call: Call, class: FileClass) -> Self {
        match call {
            Call::Transfer(transfer) => Self::IfReady(transfer, class),
            call => Self::Call(call),
        }
    }

    /// Does the work, on a thread of this lane.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptors that it names are lent, and one to be closed is given.
    pub(super) unsafe fn run(self, lane: Lane) -> Outcome {
        match self {
            // SAFETY: the caller's promise.
            Self::Call(call) => unsafe { run(call, lane) },
            // SAFETY: as above.
            Self::IfReady(transfer, class) => unsafe { transfer.transfer_if_ready(class) }.into(),
        }
    }

    /// Returns whether it closes a descriptor.
    pub(super) fn is_close(&self) -> bool {
        matches!(self, Self::Call(Call::Close { .. }))
    }
}

/// # Safety
///
/// - As [`Work::run`].
unsafe fn run(call: Call, lane: Lane) -> Outcome {
    // SAFETY: the caller's promise is that of each.
    unsafe {
        match call {
            Call::Transfer(transfer) => Outcome::of_count(transfer.call(transfer.raw)),
            Call::Socket(call) | Call::AcceptMany(call) => call.wait(),
            Call::Open(open) if lane == Lane::Elastic => Outcome::opened(open.anyway()),
            Call::Open(open) => match open.unless_it_waits().transpose() {
                Some(opened) => Outcome::opened(opened),
                None => Outcome::Elastic,
            },
            Call::Close { raw } => Outcome::Done(close(raw)),
            Call::AwaitWriter { raw } => Outcome::of(await_writer(raw)),
            Call::Flock { raw, operation } if lane == Lane::Elastic => {
                Outcome::of(sys::flock(raw, operation))
            }
            // Locks a free file.
            Call::Flock { raw, operation } => match sys::flock(raw, operation | abi::LOCK_NB) {
                Err(Errno::AGAIN) if operation & abi::LOCK_NB == 0 => Outcome::Elastic,
                result => Outcome::of(result),
            },
            Call::CopyFileRange { from, from_offset, to, to_offset, len } => {
                let len = len as usize;
                Outcome::of_count(sys::copy_file_range(from, from_offset, to, to_offset, len))
            }
            Call::System(system) => Outcome::of_count(system.run()),
            Call::Nop | Call::RecvMany { .. } | Call::Poll { .. } | Call::Cancel { .. } => {
                unreachable!("{call:?} is not for a thread")
            }
        }
    }
}

/// Closes a descriptor, and returns the result of the completion.
///
/// # Safety
///
/// - The descriptor is given up: nothing uses the number afterwards.
pub(super) unsafe fn close(raw: i32) -> i32 {
    if raw < 0 {
        return failed(Errno::BADF);
    }
    // Never repeated: the number is free after an error too.
    // SAFETY: the caller's promise.
    unsafe { rustix::io::try_close(raw) }.map_or_else(failed, |()| 0)
}
