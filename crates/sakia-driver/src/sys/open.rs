//! Opens that may block, and `O_NONBLOCK`.
//!
//! The kind of the file is not known beforehand, and a FIFO must not be opened to find out: an open with
//! `O_NONBLOCK` makes a waiting open of the other side return. So [`Open::unless_it_waits`] takes these
//! steps:
//! 1. An open whose flags exclude blocking is done unchanged.
//! 2. Otherwise the path's type is looked up, within the bounds of an `openat2(2)`. A FIFO, a character
//!    device, or an unknown type may block.
//! 3. A regular file, a directory or a block device, or a missing file that is to be created, is opened with
//!    `O_NONBLOCK`, which has no effect on these, so that the thread cannot get stuck if another file is
//!    there by now.
//! 4. If another kind was opened after all, it is closed, and may block. This is the one case in which a FIFO
//!    sees an extra open.
//! 5. If a lease must be broken first (`EAGAIN`), which may take time, the open may block, too.
//! 6. Otherwise `O_NONBLOCK` is removed again.
//!
//! The ring's own inline attempt changes the semantics of a FIFO's open, so its entries always have
//! `O_NONBLOCK`; see [`open_flags`].
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
    /// The directory in which the path begins, unless it is absolute.
    pub dir: i32,
    /// The address of the NUL-terminated path.
    pub path: u64,
    /// `O_*`.
    pub flags: u64,
    /// Mode of a created file.
    pub mode: u64,
    /// The `RESOLVE_*` bits of an `openat2(2)`.
    pub resolve: Option<u64>,
}

impl Open {
    fn flags(self) -> OFlags {
        // The flags examined here are all within these bits.
        OFlags::from_bits_retain(self.flags as u32)
    }

    /// Returns whether the open may create a file.
    pub(crate) fn creates(self) -> bool {
        self.flags().contains(OFlags::CREATE)
    }

    /// Returns whether the open blocks on no kind of file.
    fn never_waits(self) -> bool {
        let flags = self.flags();
        flags.intersects(OFlags::PATH | OFlags::NONBLOCK | OFlags::DIRECTORY)
            || flags.contains(OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a file, unless that may block for ever: then it returns `None`, and a thread has to do it.
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
            // The open itself returns the error, perhaps one that is not related to the path.
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

    /// Opens a file, even if that blocks.
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
            // An `O_PATH` descriptor, which does not open the file, within the same bounds.
            let flags = OFlags::PATH | OFlags::CLOEXEC | self.flags() & OFlags::NOFOLLOW;
            let how = OpenHow { flags: flags.bits().into(), mode: 0, resolve };
            // SAFETY: the caller's promise.
            let found = unsafe { super::openat2(self.dir, self.path, &how) };
            if found.as_ref().is_err_and(|&errno| self.needs_no_openat2(errno)) {
                // SAFETY: the caller's promise.
                return unsafe { Self { resolve: None, ..self }.file_type() };
            }
            return rustix::fs::fstat(found?).map(|stat| FileType::from_raw_mode(stat.st_mode));
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
            // SAFETY: the caller's promise. An `openat(2)` has no more bits of flags and mode.
            None => unsafe { super::openat(dir, path, flags as u32, mode as u32) },
            // SAFETY: the caller's promise.
            Some(resolve) => unsafe {
                match super::openat2(dir, path, &OpenHow { flags, mode, resolve }) {
                    Err(errno) if self.needs_no_openat2(errno) => {
                        check(flags, mode)?;
                        super::openat(dir, path, flags as u32, mode as u32)
                    }
                    opened => opened,
                }
            },
        }
    }

    /// Returns whether `openat(2)` can do what `openat2(2)` failed to do: a kernel before 5.6 does not know
    /// that call, and some filters of system calls refuse it.
    fn needs_no_openat2(self, errno: Errno) -> bool {
        self.resolve == Some(0) && matches!(errno, Errno::NOSYS | Errno::PERM)
    }
}

/// Checks flags and mode as `openat2(2)` does, and `openat(2)` does not.
///
/// # Errors
/// `EINVAL`: an unknown flag or mode, or one that the others exclude.
fn check(flags: u64, mode: u64) -> Result<(), Errno> {
    /// `FASYNC`.
    const ASYNC: u32 = 0o20000;
    /// `O_TMPFILE` without `O_DIRECTORY`, which it includes.
    const TEMPORARY: u32 = OFlags::TMPFILE.bits() & !OFlags::DIRECTORY.bits();
    /// `O_LARGEFILE`, which a 64-bit program need not set.
    const LARGE: u32 = if cfg!(target_arch = "aarch64") { 0o400000 } else { 0o100000 };
    /// Those that go with `O_PATH`.
    const PATH: u32 = OFlags::PATH.bits()
        | OFlags::DIRECTORY.bits()
        | OFlags::NOFOLLOW.bits()
        | OFlags::CLOEXEC.bits();
    const KNOWN: u32 = OFlags::ACCMODE.bits()
        | OFlags::CREATE.bits()
        | OFlags::EXCL.bits()
        | OFlags::NOCTTY.bits()
        | OFlags::TRUNC.bits()
        | OFlags::APPEND.bits()
        | OFlags::NONBLOCK.bits()
        | OFlags::SYNC.bits()
        | OFlags::DIRECT.bits()
        | OFlags::NOATIME.bits()
        | OFlags::TMPFILE.bits()
        | ASYNC
        | LARGE
        | PATH;
    let has = |some: u32| flags & u64::from(some) != 0;
    let modes = if has(OFlags::CREATE.bits() | TEMPORARY) { 0o7777 } else { 0 };
    let known = if has(OFlags::PATH.bits()) { PATH } else { KNOWN };
    match flags & !u64::from(known) | mode & !modes {
        0 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Returns whether opening such a file may block for ever. A symbolic link that is not followed, and a
/// socket, are refused at once.
fn may_wait(kind: FileType) -> bool {
    matches!(kind, FileType::Fifo | FileType::CharacterDevice | FileType::Unknown)
}

/// Returns whether such a file is opened, or refused, without waiting for a device or for another opener,
/// given that its name is in the cache.
pub(crate) fn opens_at_once(kind: FileType) -> bool {
    matches!(
        kind,
        FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Socket
    )
}

/// Returns the flags for a non-blocking open, and whether `O_NONBLOCK` was added to the caller's.
/// `O_CLOEXEC` is always added.
pub(crate) fn open_flags(flags: u32) -> (u32, bool) {
    let given = OFlags::from_bits_retain(flags);
    // `O_PATH` excludes the flag, and such an open never blocks.
    let is_nonblock_added = !given.intersects(OFlags::NONBLOCK | OFlags::PATH);
    let nonblock = if is_nonblock_added { OFlags::NONBLOCK } else { OFlags::empty() };
    ((given | OFlags::CLOEXEC | nonblock).bits(), is_nonblock_added)
}

/// Removes `O_NONBLOCK` from a file opened with it.
pub(crate) fn make_blocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags - OFlags::NONBLOCK)
}

/// Waits until a FIFO, opened for reading with `O_NONBLOCK`, has a writer. Also returns if a writer has
/// written or left meanwhile: at that point an open without `O_NONBLOCK` returns.
///
/// A poll only ends on bytes, or after a writer has left. A silent writer is found by a `tee(2)` of the
/// available bytes, which consumes none: it fails with `EAGAIN` if more may come, and returns 0 if there is
/// no writer.
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
        // The first call detects a file that is no FIFO.
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

    /// A name alternates between a file and a FIFO while it is opened.
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
                        // Renaming onto another name of the same file would leave that name in place.
                        std::fs::remove_file(&new).ok();
                    }
                }
            });
            let opened = (0..10_000).map(|_| {
                // SAFETY: the path outlives the call.
                match unsafe { open.unless_it_waits() } {
                    Ok(Some(fd)) => fd,
                    // The driver would open this on another thread, like a FIFO.
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
