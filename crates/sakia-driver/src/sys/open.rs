//! Opening files, some of which make their openers wait, and `O_NONBLOCK`.
//!
//! What is going to be opened is not known beforehand, and a FIFO must not be opened to find out: an
//! open with `O_NONBLOCK` lets the other side's open return. So [`Open::unless_it_waits`] goes these steps:
//! 1. a file that cannot wait by its flags is opened as it is;
//! 2. otherwise the path is asked for its type, within the bounds of an `openat2(2)`. A FIFO, a
//!    character device, or no answer: it may wait;
//! 3. a regular file, a directory or a block device, or nothing yet where one is to be created, is
//!    opened with `O_NONBLOCK`, which means nothing to them, so that the thread cannot get stuck if
//!    something else is there by now;
//! 4. if indeed something else was opened it is closed, and may wait. This is the one case in
//!    which a FIFO sees a visitor;
//! 5. if a lease must be broken first (`EAGAIN`), that may take its time: the same;
//! 6. else `O_NONBLOCK` is taken off again.
//!
//! The ring's own inline attempt changes the meaning of a FIFO's open, so entries for it always have the
//! flag; see [`open_flags`].
//!
//! Any thread may call these. Source: `open(2)`, `fifo(7)`, `fcntl(2)`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};

use super::{OpenHow, borrow, retry};

/// The arguments of `openat(2)`, or of `openat2(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Where the path begins, unless that is the root.
    pub dir: i32,
    /// The address of the path, which ends with a NUL.
    pub path: u64,
    /// `O_*`.
    pub flags: u64,
    /// Permissions of a file that is made.
    pub mode: u64,
    /// The `RESOLVE_*` bits of an `openat2(2)`.
    pub resolve: Option<u64>,
}

impl Open {
    fn flags(self) -> OFlags {
        // No flag that is looked at is beyond.
        OFlags::from_bits_retain(self.flags as u32)
    }

    /// Whether it may make a file.
    pub(crate) fn creates(self) -> bool {
        self.flags().contains(OFlags::CREATE)
    }

    /// Whether no file makes this wait for somebody else.
    fn never_waits(self) -> bool {
        let flags = self.flags();
        flags.intersects(OFlags::PATH | OFlags::NONBLOCK | OFlags::DIRECTORY)
            || flags.contains(OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a file, unless that may wait for ever: then there is none, and it is for a thread that may.
    ///
    /// # Safety
    ///
    /// - The path is lent.
    pub(crate) unsafe fn unless_it_waits(self) -> Result<Option<OwnedFd>, Errno> {
        if self.never_waits() {
            // SAFETY: the caller's promise.
            return unsafe { self.anyway() }.map(Some);
        }
        // SAFETY: as above.
        match unsafe { self.file_type() } {
            Ok(kind) if may_wait(kind) => return Ok(None),
            Ok(_) => {}
            Err(Errno::NOENT) if self.flags().contains(OFlags::CREATE) => {}
            // The open itself says what is wrong: perhaps with more than the path.
            Err(Errno::NOENT | Errno::XDEV | Errno::LOOP) if self.resolve.is_some() => {}
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)) => {
                return Err(errno);
            }
            Err(_) => return Ok(None),
        }
        // SAFETY: as above.
        let opened = match unsafe { self.any(self.flags | u64::from(OFlags::NONBLOCK.bits())) } {
            Err(Errno::AGAIN) => return Ok(None),
            opened => opened?,
        };
        let kind = rustix::fs::fstat(&opened).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if !kind.is_ok_and(|kind| !may_wait(kind)) {
            return Ok(None); // closes it
        }
        make_blocking(opened.as_fd())?;
        Ok(Some(opened))
    }

    /// Opens a file, however long that takes.
    ///
    /// # Safety
    ///
    /// - The path is lent.
    pub(crate) unsafe fn anyway(self) -> Result<OwnedFd, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.any(self.flags) }
    }

    /// # Safety
    ///
    /// - The path is lent.
    unsafe fn file_type(self) -> Result<FileType, Errno> {
        if let Some(resolve) = self.resolve {
            // A descriptor of what the path names, which opens nothing, and within the same bounds.
            let flags = OFlags::PATH | OFlags::CLOEXEC | self.flags() & OFlags::NOFOLLOW;
            let how = OpenHow { flags: flags.bits().into(), mode: 0, resolve };
            // SAFETY: the caller's promise.
            let found = unsafe { super::openat2(self.dir, self.path, &how) }?;
            return rustix::fs::fstat(found).map(|stat| FileType::from_raw_mode(stat.st_mode));
        }
        let follows = !self.flags().contains(OFlags::NOFOLLOW);
        let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        // SAFETY: the caller's promise.
        let mode = unsafe { super::file_mode(self.dir, self.path, flags.bits()) }?;
        Ok(FileType::from_raw_mode(mode))
    }

    /// # Safety
    ///
    /// - The path is lent.
    unsafe fn any(self, flags: u64) -> Result<OwnedFd, Errno> {
        let Self { dir, path, mode, resolve, .. } = self;
        match resolve {
            // SAFETY: the caller's promise. An `openat(2)` has no more flags and modes than that.
            None => unsafe { super::openat(dir, path, flags as u32, mode as u32) },
            // SAFETY: the caller's promise.
            Some(resolve) => unsafe {
                super::openat2(dir, path, &OpenHow { flags, mode, resolve })
            },
        }
    }
}

/// Whether opening such a file may wait for ever. A link that is not followed, and a socket, are
/// refused at once.
fn may_wait(kind: FileType) -> bool {
    matches!(kind, FileType::Fifo | FileType::CharacterDevice | FileType::Unknown)
}

/// The flags with which a file is opened that must not wait, and whether `O_NONBLOCK` was added to the
/// caller's. `O_CLOEXEC` always is.
pub(crate) fn open_flags(flags: u32) -> (u32, bool) {
    let given = OFlags::from_bits_retain(flags);
    // With a path's descriptor the flag would be refused, and it never waits.
    let is_nonblock_added = !given.intersects(OFlags::NONBLOCK | OFlags::PATH);
    let nonblock = if is_nonblock_added { OFlags::NONBLOCK } else { OFlags::empty() };
    ((given | OFlags::CLOEXEC | nonblock).bits(), is_nonblock_added)
}

/// Takes `O_NONBLOCK` off what was opened with it.
pub(crate) fn make_blocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags - OFlags::NONBLOCK)
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
pub(crate) unsafe fn await_writer(raw: i32) -> Result<(), Errno> {
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

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, Mode};

    use super::*;

    /// A name that is now a file, now a FIFO, while it is opened.
    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_fifo_that_takes_the_place_of_a_file_is_not_opened_to_the_end() {
        let folder = std::env::temp_dir().join(format!("sakia-open-{}", std::process::id()));
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
                match unsafe { open.unless_it_waits() } {
                    Ok(Some(fd)) => fd,
                    // As a FIFO is opened: elsewhere.
                    Ok(None) | Err(_) => std::fs::File::open(&file).unwrap().into(),
                }
            });
            let kind = |fd| FileType::from_raw_mode(rustix::fs::fstat(fd).unwrap().st_mode);
            let found = opened.map(kind).find(|kind| *kind != FileType::RegularFile);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(found, None, "without a writer");
        });
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_what_may_wait_is_opened_without_waiting() {
        let (nonblock, path) = (OFlags::NONBLOCK.bits(), OFlags::PATH.bits());
        let cloexec = OFlags::CLOEXEC.bits();
        assert_eq!(open_flags(0), (cloexec | nonblock, true));
        assert_eq!(open_flags(nonblock), (cloexec | nonblock, false));
        assert_eq!(open_flags(path), (cloexec | path, false));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_file_that_was_opened_so_blocks_again() {
        let (reader, _writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        make_blocking(reader.as_fd()).unwrap();
        assert_eq!(rustix::fs::fcntl_getfl(&reader), Ok(OFlags::RDONLY));
    }
}
