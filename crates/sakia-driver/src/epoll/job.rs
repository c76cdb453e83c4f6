//! What lane threads do: one or a few system calls that may block.
//!
//! Everything but opening a path and locking a file ends by itself and belongs to the bounded lane. A
//! lock is tried there, and waited for on the elastic lane.
//!
//! What is going to be opened is not known beforehand, and a FIFO must not be opened to find out: an
//! open with `O_NONBLOCK` lets the other side's open return. So on the bounded lane
//! 1. what cannot wait by its flags is opened as it is;
//! 2. otherwise the path is asked for its type, within the bounds of an `openat2(2)`. A FIFO, a
//!    character device, or no answer: the job goes on to the elastic lane, and is a plain open there;
//! 3. a regular file, a directory or a block device, or nothing yet where one is to be created, is
//!    opened with `O_NONBLOCK`, which means nothing to them, so that the thread cannot get stuck if
//!    something else is there by now;
//! 4. if indeed something else was opened it is closed, and the job goes on to the elastic lane.
//!    This is the one case in which a FIFO sees a visitor;
//! 5. if a lease must be broken first (`EAGAIN`), that may take its time: elastic lane;
//! 6. else `O_NONBLOCK` is taken off again.
//!
//! Source: `open(2)`, `fifo(7)`, `fcntl(2)`.

use std::cmp::Ordering;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};
use sakia_ring::Opcode;

use super::call::{Call, Copy};
use super::socket::SocketCall;
use super::transfer::{FileClass, Transfer, Try, borrow, failed, outcome};
use crate::sys::{self, retry};

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

/// The arguments of `openat(2)`, or of `openat2(2)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) dir: i32,
    pub(super) path: u64,
    pub(super) flags: u64,
    pub(super) mode: u64,
    /// The `RESOLVE_*` bits of an `openat2(2)`.
    pub(super) resolve: Option<u64>,
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
            Self::Open(open) => unsafe { open.run() },
            // SAFETY: the caller's promise.
            Self::Open2 { dir, path, how, how_len } => match unsafe { read_how(how, how_len) } {
                // SAFETY: as above.
                Ok(how) => unsafe { Open::with(dir, path, how).run() },
                Err(errno) => Outcome::Done(failed(errno)),
            },
            // SAFETY: the caller's promise.
            Self::Call(call) => Outcome::of_count(unsafe { call.run() }),
            // SAFETY: as above.
            Self::Copy(copy) => Outcome::of_count(unsafe { copy.run() }),
            // SAFETY: as above.
            Self::Lock { raw, operation } => unsafe { lock(raw, operation) },
            Self::LockAny { raw, operation } => {
                // SAFETY: as above.
                Outcome::of(retry(|| unsafe { sys::flock(raw, operation) }))
            }
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

/// # Safety
///
/// - As [`borrow`], during the call.
unsafe fn fsync(raw: i32, data_only: bool) -> Result<(), Errno> {
    // SAFETY: the caller's duties are the same.
    let fd = unsafe { borrow(raw) }?;
    if data_only { retry(|| rustix::fs::fdatasync(fd)) } else { retry(|| rustix::fs::fsync(fd)) }
}

/// Locks a file if nobody else has it locked.
///
/// # Safety
///
/// - The descriptor is lent.
unsafe fn lock(raw: i32, operation: u32) -> Outcome {
    /// `LOCK_NB`.
    const WITHOUT_WAITING: u32 = 4;
    // SAFETY: the caller's promise.
    match retry(|| unsafe { sys::flock(raw, operation | WITHOUT_WAITING) }) {
        Err(Errno::AGAIN) if operation & WITHOUT_WAITING == 0 => {
            Outcome::Elastic(Work::LockAny { raw, operation })
        }
        result => Outcome::of(result),
    }
}

/// The `struct open_how` of this many bytes.
///
/// # Errors
/// As `openat2(2)`: `EINVAL` for a shorter one than ever was; `E2BIG` for a longer one than is known.
///
/// # Safety
///
/// - It is lent.
unsafe fn read_how(how: u64, how_len: u32) -> Result<sys::OpenHow, Errno> {
    match (how_len as usize).cmp(&size_of::<sys::OpenHow>()) {
        Ordering::Less => Err(Errno::INVAL),
        Ordering::Greater => Err(Errno::TOOBIG),
        Ordering::Equal if how == 0 => Err(Errno::FAULT),
        // SAFETY: the caller says that so many bytes are lent there, plain integers, which need not be
        // aligned.
        Ordering::Equal => Ok(unsafe {
            ptr::with_exposed_provenance::<sys::OpenHow>(how as usize).read_unaligned()
        }),
    }
}

/// Waits until somebody has opened a FIFO to write that was opened to read with `O_NONBLOCK`; also when
/// they have written or left meanwhile. That is when an open without that flag returns.
///
/// Bytes, and a writer that has left, end a poll. A writer that is there and silent is only found by
/// asking: a copy of what there is, none of it taken, fails with `EAGAIN` where more may come, and
/// is empty where nobody is there.
///
/// # Safety
///
/// - As [`borrow`], during the call.
unsafe fn await_writer(raw: i32) -> Result<(), Errno> {
    const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    // SAFETY: the caller's duties are the same.
    let fifo = unsafe { borrow(raw) }?;
    let (_reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    loop {
        // First of all this tells what is no FIFO.
        match tee(fifo, &writer, 1, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let mut polled = [PollFd::new(&fifo, PollFlags::IN)];
        if retry(|| rustix::event::poll(&mut polled, Some(&BETWEEN_LOOKS)))? > 0 {
            return Ok(());
        }
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

impl Open {
    fn with(dir: i32, path: u64, how: sys::OpenHow) -> Self {
        let sys::OpenHow { flags, mode, resolve } = how;
        Self { dir, path, flags, mode, resolve: Some(resolve) }
    }

    fn flags(self) -> OFlags {
        // No flag that is looked at is beyond.
        OFlags::from_bits_retain(self.flags as u32)
    }

    /// Whether no file makes this wait for somebody else.
    fn never_waits(self) -> bool {
        let flags = self.flags();
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
            Err(Errno::NOENT) if self.flags().contains(OFlags::CREATE) => {}
            // The open itself says what is wrong: perhaps with more than the path.
            Err(Errno::NOENT | Errno::XDEV | Errno::LOOP) if self.resolve.is_some() => {}
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)) => {
                return done(errno);
            }
            Err(_) => return Outcome::Elastic(Work::OpenAny(self)),
        }
        // SAFETY: as above.
        let opened = match unsafe { self.any(self.flags | u64::from(OFlags::NONBLOCK.bits())) } {
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
        if let Some(resolve) = self.resolve {
            // A descriptor of what the path names, which opens nothing, and within the same bounds.
            let flags = OFlags::PATH | OFlags::CLOEXEC | self.flags() & OFlags::NOFOLLOW;
            let how = sys::OpenHow { flags: flags.bits().into(), mode: 0, resolve };
            // SAFETY: the caller's promise.
            let found = unsafe { Self::with(self.dir, self.path, how).any(how.flags) }?;
            return rustix::fs::fstat(found).map(|stat| FileType::from_raw_mode(stat.st_mode));
        }
        let follows = !self.flags().contains(OFlags::NOFOLLOW);
        let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        // SAFETY: the caller's promise.
        let mode = retry(|| unsafe { sys::file_mode(self.dir, self.path, flags.bits()) })?;
        Ok(FileType::from_raw_mode(mode))
    }

    /// # Safety
    ///
    /// - The path is lent.
    unsafe fn any(self, flags: u64) -> Result<OwnedFd, Errno> {
        let Self { dir, path, mode, resolve, .. } = self;
        let raw = retry(|| match resolve {
            // SAFETY: the caller's promise. An `openat(2)` has no more flags and modes than that.
            None => unsafe { sys::openat(dir, path, flags as u32, mode as u32) },
            // SAFETY: the caller's promise.
            Some(resolve) => unsafe {
                sys::openat2(dir, path, &sys::OpenHow { flags, mode, resolve })
            },
        })?;
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

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, Mode};

    use super::*;

    /// A name that is now a file, now a FIFO, while it is opened.
    #[test]
    fn a_fifo_that_takes_the_place_of_a_file_is_not_opened_to_the_end() {
        let folder = std::env::temp_dir().join(format!("sakia-job-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [file, fifo, new, name] = ["file", "fifo", "new", "name"].map(|name| folder.join(name));
        std::fs::write(&file, "").unwrap();
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::hard_link(&file, &name).unwrap();
        let path = CString::new(name.to_str().unwrap()).unwrap();
        let flags = (OFlags::RDONLY | OFlags::CLOEXEC).bits();
        let (dir, addr) = (sakia_ring::AT_FDCWD, path.as_ptr().expose_provenance() as u64);
        let open = Open { dir, path: addr, flags: flags.into(), mode: 0, resolve: None };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for other in [&fifo, &file] {
                        std::fs::hard_link(other, &new).unwrap();
                        std::fs::rename(&new, &name).unwrap();
                        // Another name of the same file is left where it is.
                        std::fs::remove_file(&new).ok();
                    }
                }
            });
            let opened = (0..10_000).map(|_| {
                // SAFETY: the path outlives the call.
                match unsafe { open.run() } {
                    Outcome::Opened(fd) => fd,
                    // As a FIFO is opened: elsewhere.
                    _ => std::fs::File::open(&file).unwrap().into(),
                }
            });
            let kind = |fd| FileType::from_raw_mode(rustix::fs::fstat(fd).unwrap().st_mode);
            let found = opened.map(kind).find(|kind| *kind != FileType::RegularFile);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(found, None, "without a writer");
        });
        std::fs::remove_dir_all(folder).unwrap();
    }
}
