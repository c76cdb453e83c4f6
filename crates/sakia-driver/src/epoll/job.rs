//! What lane threads do: one or a few system calls that may block.
//!
//! Everything but opening a path and locking a file ends by itself and belongs to the bounded lane. A
//! lock is tried there, and waited for on the elastic lane. So is an open that may wait; see
//! [`open`](crate::sys::open).

use std::os::fd::{IntoRawFd, OwnedFd};

use rustix::io::Errno;
use sakia_ring::Opcode;

use super::socket::SocketCall;
use super::transfer::{FileClass, Transfer, Try, failed, outcome};
use crate::call::{Call, Copy};
use crate::sys::open::{Open, Unopened, await_writer};
use crate::sys::{self, abi, borrow, retry};

/// An operation that a lane performs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) user_data: u64,
    pub(super) opcode: Opcode,
    pub(super) work: Work,
}

/// What is to be done. All addresses are of lent memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A transfer on a file on which it ends.
    Transfer(Transfer),
    /// A transfer on a stream that cannot be tried, and that was ready just now.
    TransferIfReady(Transfer, FileClass),
    /// An accept or a connect that could not be tried.
    Socket(SocketCall),
    Fsync {
        raw: i32,
        data_only: bool,
    },
    Close {
        raw: i32,
    },
    /// Waits for somebody to open a FIFO to write.
    AwaitWriter {
        raw: i32,
    },
    /// Opens what ends by itself, and passes on what may wait.
    Open(Open),
    /// The same, as the `struct open_how` at `how` says.
    Open2 {
        dir: i32,
        path: u64,
        how: u64,
        how_len: u32,
    },
    /// Opens whatever it is.
    OpenAny(Open),
    /// A system call that ends by itself.
    Call(Call),
    Copy(Copy),
    /// Locks what is free, and passes on what may wait.
    Lock {
        raw: i32,
        operation: u32,
    },
    /// Locks, however long that takes.
    LockAny {
        raw: i32,
        operation: u32,
    },
    Statx {
        dir: i32,
        path: u64,
        flags: u32,
        mask: u32,
        result: u64,
    },
}

/// What became of a job.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The result of the completion.
    Done(i32),
    /// The result is the number of this descriptor, which is closed if nobody gets to know it.
    Opened(OwnedFd),
    /// The stream was not ready any more.
    WouldBlock,
    /// To go on as this work, on the elastic lane.
    Elastic(Work),
}

impl Outcome {
    fn of(result: Result<(), Errno>) -> Self {
        Self::of_count(result.map(|()| 0))
    }

    fn of_count(result: Result<usize, Errno>) -> Self {
        // No call is asked for more than `i32::MAX`.
        Self::Done(result.map_or_else(failed, |count| count as i32))
    }

    /// The result of the completion. A descriptor is its receiver's from here on.
    pub(super) fn into_result(self) -> Option<i32> {
        match self {
            Self::Done(res) => Some(res),
            Self::Opened(fd) => Some(fd.into_raw_fd()),
            Self::WouldBlock | Self::Elastic(_) => None,
        }
    }
}

impl Work {
    /// Does the work.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptors that it names are lent, and one to be closed is given.
    pub(super) unsafe fn run(self) -> Outcome {
        match self {
            // SAFETY: the caller's promise.
            Self::Transfer(transfer) => unsafe {
                Outcome::Done(outcome(transfer.call(transfer.raw)))
            },
            Self::TransferIfReady(transfer, class) => {
                // SAFETY: the caller's promise.
                match unsafe { transfer.transfer_if_ready(class) } {
                    Try::Done(res) => Outcome::Done(res),
                    Try::WouldBlock | Try::Unable => Outcome::WouldBlock,
                }
            }
            // SAFETY: the caller's promise.
            Self::Socket(call) => unsafe { call.wait() },
            // SAFETY: as above.
            Self::Fsync { raw, data_only } => Outcome::of(unsafe { fsync(raw, data_only) }),
            // SAFETY: as above.
            Self::Close { raw } => Outcome::Done(unsafe { close(raw) }),
            // SAFETY: as above.
            Self::AwaitWriter { raw } => Outcome::of(unsafe { await_writer(raw) }),
            // SAFETY: the caller's promise.
            Self::Open(open) => unsafe { open_unless_it_waits(open) },
            Self::Open2 { dir, path, how, how_len } => {
                // SAFETY: the caller's promise.
                match unsafe { Open::of_how(dir, path, how, how_len) } {
                    // SAFETY: as above.
                    Ok(open) => unsafe { open_unless_it_waits(open) },
                    Err(errno) => Outcome::Done(failed(errno)),
                }
            }
            // SAFETY: the caller's promise.
            Self::Call(call) => Outcome::of_count(unsafe { call.run() }),
            // SAFETY: as above.
            Self::Copy(copy) => Outcome::of_count(unsafe { copy.run() }),
            // SAFETY: as above.
            Self::Lock { raw, operation } => unsafe { lock(raw, operation) },
            Self::LockAny { raw, operation } => {
                // SAFETY: as above.
                Outcome::of(unsafe { sys::flock(raw, operation) })
            }
            // SAFETY: the caller's promise.
            Self::OpenAny(open) => unsafe { open.anyway() }
                .map_or_else(|errno| Outcome::Done(failed(errno)), Outcome::Opened),
            Self::Statx { dir, path, flags, mask, result } => {
                // SAFETY: the caller's promise.
                Outcome::of(unsafe { sys::statx(dir, path, flags, mask, result) })
            }
        }
    }
}

/// # Safety
///
/// - As [`borrow`], during the call.
unsafe fn fsync(raw: i32, data_only: bool) -> Result<(), Errno> {
    // SAFETY: the caller's duties are the same.
    let fd = unsafe { borrow(raw) }?;
    if data_only { retry(|| rustix::fs::fdatasync(fd)) } else { retry(|| rustix::fs::fsync(fd)) }
}

/// Opens a file that ends by itself, and passes on what may wait.
///
/// # Safety
///
/// - The path is lent.
unsafe fn open_unless_it_waits(open: Open) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { open.unless_it_waits() } {
        Ok(fd) => Outcome::Opened(fd),
        Err(Unopened::MayWait) => Outcome::Elastic(Work::OpenAny(open)),
        Err(Unopened::Failed(errno)) => Outcome::Done(failed(errno)),
    }
}

/// Locks a file if nobody else has it locked.
///
/// # Safety
///
/// - The descriptor is lent.
unsafe fn lock(raw: i32, operation: u32) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { sys::flock(raw, operation | abi::LOCK_NB) } {
        Err(Errno::AGAIN) if operation & abi::LOCK_NB == 0 => {
            Outcome::Elastic(Work::LockAny { raw, operation })
        }
        result => Outcome::of(result),
    }
}

/// Closes a descriptor, and answers the result of the completion.
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
