//! Loops that never block: what a runtime that does its work inline could at most reach.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use peers_common::block::{aligned, marks};
use peers_common::files::{expect_whole, small_file_check};
use peers_common::{Job, Tally, fail};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
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

/// Reads a file into the memory that `memory` gives for its length, and answers that memory.
fn whole<'b>(
    path: &Path,
    memory: impl FnOnce(usize) -> Option<&'b mut [u8]>,
) -> io::Result<&'b mut [u8]> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Err(Errno::AGAIN) => rustix::fs::open(path, flags, Mode::empty())?,
        other => other?,
    };
    // A read of so many bytes ends at the end of the file, so that no second one has to ask for it.
    let len = rustix::io::ioctl_fionread(file.as_fd())? as usize;
    let buffer = memory(len).ok_or(io::ErrorKind::FileTooLarge)?;
    let len = read(&File::from(file), buffer, 0)?;
    Ok(&mut buffer[..len])
}
