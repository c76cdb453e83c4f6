//! What lane threads do: one or a few system calls that may block.
//!
//! Everything but opening a path ends by itself and belongs to the bounded lane. What is going to be
//! opened is not known beforehand, and a FIFO must not be opened to find out: an open with
//! `O_NONBLOCK` lets the other side's open return. So on the bounded lane
//! 1. what cannot wait by its flags is opened as it is;
//! 2. otherwise the path is asked for its type. A FIFO, a character device, or no answer: the job
//!    goes on to the elastic lane, and is a plain open there;
//! 3. a regular file, a directory or a block device, or nothing yet where one is to be created, is
//!    opened with `O_NONBLOCK`, which means nothing to them, so that the thread cannot get stuck if
//!    something else is there by now;
//! 4. if indeed something else was opened it is closed, and the job goes on to the elastic lane.
//!    This is the one case in which a FIFO sees a visitor;
//! 5. if a lease must be broken first (`EAGAIN`), that may take its time: elastic lane;
//! 6. else `O_NONBLOCK` is taken off again.
//!
//! Source: `open(2)`, `fifo(7)`, `fcntl(2)`.

use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use sakia_ring::Opcode;

use super::sys::{self, retry};
use super::transfer::{FileClass, Transfer, Try, borrow, failed, outcome};

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
    Fsync {
        raw: i32,
        data_only: bool,
    },
    Close {
        raw: i32,
    },
    /// Opens what ends by itself, and passes on what may wait.
    Open(Open),
    /// Opens whatever it is.
    OpenAny(Open),
    Statx {
        dir: i32,
        path: u64,
        flags: u32,
        mask: u32,
        result: u64,
    },
}

/// The arguments of `openat(2)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) dir: i32,
    pub(super) path: u64,
    pub(super) flags: u32,
    pub(super) mode: u32,
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
        Self::Done(result.map_or_else(failed, |()| 0))
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
    /// - The memory that it names is lent.
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
            Self::Fsync { raw, data_only } => Outcome::of(fsync(raw, data_only)),
            Self::Close { raw } => Outcome::Done(close(raw)),
            // SAFETY: the caller's promise.
            Self::Open(open) => unsafe { open.run() },
            // SAFETY: the caller's promise.
            Self::OpenAny(open) => unsafe { open.any(open.flags) }
                .map_or_else(|errno| Outcome::Done(failed(errno)), Outcome::Opened),
            Self::Statx { dir, path, flags, mask, result } => {
                // SAFETY: the caller's promise.
                Outcome::of(retry(|| unsafe { sys::statx(dir, path, flags, mask, result) }))
            }
        }
    }
}

fn fsync(raw: i32, data_only: bool) -> Result<(), Errno> {
    let fd = borrow(raw)?;
    if data_only { retry(|| rustix::fs::fdatasync(fd)) } else { retry(|| rustix::fs::fsync(fd)) }
}

/// Closes a descriptor, and answers the result of the completion.
pub(super) fn close(raw: i32) -> i32 {
    if raw < 0 {
        return failed(Errno::BADF);
    }
    // Never repeated: the number is free after an error too.
    // SAFETY: whoever pushed the entry owns the descriptor, and gives it up with it.
    unsafe { rustix::io::try_close(raw) }.map_or_else(failed, |()| 0)
}

impl Open {
    /// Whether no file makes this wait for somebody else.
    fn never_waits(self) -> bool {
        let flags = OFlags::from_bits_retain(self.flags);
        flags.intersects(OFlags::PATH | OFlags::NONBLOCK | OFlags::DIRECTORY)
            || flags.contains(OFlags::CREATE | OFlags::EXCL)
    }

    /// # Safety
    ///
    /// - The path is lent.
    unsafe fn run(self) -> Outcome {
        let done = |errno| Outcome::Done(failed(errno));
        if self.never_waits() {
            // SAFETY: the caller's promise.
            return unsafe { self.any(self.flags) }.map_or_else(done, Outcome::Opened);
        }
        // SAFETY: as above.
        match unsafe { self.file_type() } {
            Ok(kind) if may_wait(kind) => return Outcome::Elastic(Work::OpenAny(self)),
            Ok(_) => {}
            Err(Errno::NOENT) if self.flags & OFlags::CREATE.bits() != 0 => {}
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)) => {
                return done(errno);
            }
            Err(_) => return Outcome::Elastic(Work::OpenAny(self)),
        }
        // SAFETY: as above.
        let opened = match unsafe { self.any(self.flags | OFlags::NONBLOCK.bits()) } {
            Ok(opened) => opened,
            Err(Errno::AGAIN) => return Outcome::Elastic(Work::OpenAny(self)),
            Err(errno) => return done(errno),
        };
        let kind = rustix::fs::fstat(&opened).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if !kind.is_ok_and(|kind| !may_wait(kind)) {
            return Outcome::Elastic(Work::OpenAny(self)); // closes it
        }
        let mode = rustix::fs::fcntl_getfl(opened.as_fd());
        if mutant!("opened_files_nonblocking") {
            return Outcome::Opened(opened);
        }
        let mode = mode.and_then(|mode| rustix::fs::fcntl_setfl(&opened, mode - OFlags::NONBLOCK));
        mode.map_or_else(done, |()| Outcome::Opened(opened))
    }

    /// # Safety
    ///
    /// - The path is lent.
    unsafe fn file_type(self) -> Result<FileType, Errno> {
        let follows = self.flags & OFlags::NOFOLLOW.bits() == 0;
        let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        // SAFETY: the caller's promise.
        let mode = retry(|| unsafe { sys::file_mode(self.dir, self.path, flags.bits()) })?;
        Ok(FileType::from_raw_mode(mode))
    }

    /// # Safety
    ///
    /// - The path is lent.
    unsafe fn any(self, flags: u32) -> Result<OwnedFd, Errno> {
        // SAFETY: the caller's promise.
        let raw = retry(|| unsafe { sys::openat(self.dir, self.path, flags, self.mode) })?;
        // SAFETY: a descriptor that the kernel has just made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }
}

/// Whether opening such a file may wait for ever. A link that is not followed, and a socket, are
/// refused at once.
fn may_wait(kind: FileType) -> bool {
    !mutant!("fifo_opened_to_find_out")
        && matches!(kind, FileType::Fifo | FileType::CharacterDevice | FileType::Unknown)
}
