//! Loops that never block: what a runtime that does its work inline could at most reach.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use peers_common::block::{aligned, marks};
use peers_common::files::{expect_whole, small_file_check};
use peers_common::{Job, Tally, fail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Reads at random places: 64 slots, each with its buffer and its place in its task's order.
pub(crate) fn reads(job: &Job, file: &File, offsets: &mut [impl Iterator<Item = u64>]) -> Tally {
    let mut buffers: Vec<_> = offsets.iter().map(|_| aligned(job.block)).collect();
    let mut tally = Tally::default();
    for _ in 0..job.ops_per_task() {
        for (offset, buffer) in offsets.iter_mut().filter_map(Iterator::next).zip(&mut buffers) {
            expect_whole(job, read(file, buffer, offset));
            tally.count(marks(buffer));
        }
    }
    tally
}

/// Reads what is cached at once, and the rest as it comes.
fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut parts = [IoSliceMut::new(buffer)];
    match rustix::io::preadv2(file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
        Ok(len) if len == buffer.len() => Ok(len),
        // Not all of it is cached, or this file system never says that it is.
        Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP) => file.read_at(buffer, offset),
        Err(error) => Err(error.into()),
    }
}

/// Reads a small file whose path, inode and pages are all cached.
pub(crate) fn small_file(job: &Job, path: &Path, buffer: &mut [u8]) -> u64 {
    let len = whole(path, |len| buffer.get_mut(..len)).map(|part| part.len());
    let len = len.unwrap_or_else(|error| fail(path.display(), error));
    small_file_check(job, &buffer[..len])
}

/// The same into a vector of its own, which is what a function has to do that returns the contents.
pub(crate) fn small_file_owned(job: &Job, path: &Path) -> u64 {
    let mut whole_file = Vec::new();
    let read = whole(path, |len| {
        whole_file.resize(len, 0);
        Some(&mut whole_file[..])
    });
    if let Err(error) = read {
        fail(path.display(), error);
    }
    small_file_check(job, &whole_file)
}

/// The same where the mount decides whether a read may be tried: it is queried together with the length.
pub(crate) fn small_file_of_mount(job: &Job, path: &Path) -> u64 {
    let read = || {
        let file = File::from(open(path)?);
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(&file, "", flags, wanted)?;
        let mut whole_file = vec![0; stat.stx_size as usize];
        let len = file.read_at(&mut whole_file, 0)?;
        whole_file.truncate(len);
        io::Result::Ok(whole_file)
    };
    let whole_file = read().unwrap_or_else(|error| fail(path.display(), error));
    small_file_check(job, &whole_file)
}

/// Opens a file whose path is cached.
fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Err(Errno::AGAIN) => Ok(rustix::fs::open(path, flags, Mode::empty())?),
        other => Ok(other?),
    }
}

/// Reads a file into the memory that `memory` gives for its length, and answers that memory.
fn whole<'b>(
    path: &Path,
    memory: impl FnOnce(usize) -> Option<&'b mut [u8]>,
) -> io::Result<&'b mut [u8]> {
    let file = open(path)?;
    // A read of so many bytes ends at the end of the file, so that no second one has to ask for it.
    let len = rustix::io::ioctl_fionread(file.as_fd())? as usize;
    let buffer = memory(len).ok_or(io::ErrorKind::FileTooLarge)?;
    let len = read(&File::from(file), buffer, 0)?;
    Ok(&mut buffer[..len])
}
