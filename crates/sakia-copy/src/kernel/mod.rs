//! The system calls of this crate, except those left to the runtime.
//!
//! The crate's own tests use the calls of [`sim`], which fail, or do less than requested, on command.

#[macro_use]
mod calls;
#[cfg(test)]
mod exchanged;
mod fd;
#[cfg(test)]
mod killed;
#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
pub(crate) mod tests;

use rustix::io::Result;
use sakia::trace;

pub(crate) use self::fd::OwnedFd;
#[cfg(not(test))]
pub(crate) use self::real::*;
#[cfg(test)]
pub(crate) use self::sim::calls::*;

/// Makes a call, and records it under the kernel's name.
#[inline(always)]
fn traced<T>(name: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    if trace::is_on() { trace::system_call(name, call) } else { call() }
}

#[cfg(not(test))]
mod real {
    use std::ffi::CString;
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;
    use std::num::NonZeroU64;

    use rustix::fd::{AsFd, BorrowedFd};
    use rustix::fs::{
        Advice, AtFlags, Dev, FileType, Gid, IFlags, Mode, OFlags, RawDir, RawDirEntry,
        RenameFlags, ResolveFlags, SeekFrom, Stat, Timestamps, Uid, XattrFlags,
    };
    use rustix::io::{Errno, Result};
    use rustix::path::Arg;
    use sakia_driver::{Attempt, calls};

    use super::{OwnedFd, traced};

    macro_rules! plain {
        ($($number:ident fn $name:ident($($argument:ident: $kind:ty),*) -> $value:ty;)*) => {$(
            #[inline]
            pub(crate) fn $name($($argument: $kind),*) -> Result<$value> {
                traced(stringify!($number), || rustix::fs::$name($($argument),*)).map(Into::into)
            }
        )*};
    }

    calls_of_fs!(plain);

    #[inline]
    pub(crate) fn pread(file: impl AsFd, buf: &mut [u8], offset: u64) -> Result<usize> {
        traced("pread64", || rustix::io::pread(file, buf, offset))
    }

    /// Returns the kernel's answer, for the record.
    fn answer<T>(attempt: Attempt<T>) -> Result<T> {
        match attempt {
            Attempt::Done(value) => Ok(value),
            Attempt::WouldBlock => Err(Errno::AGAIN),
            Attempt::Unsupported => Err(Errno::OPNOTSUPP),
        }
    }

    /// Opens what the dentry cache has.
    #[inline]
    pub(crate) fn open_cached(
        dir: impl AsFd,
        path: impl Arg,
        flags: OFlags,
    ) -> Result<Attempt<OwnedFd>> {
        let call = || calls::open_cached(dir, path, flags, ResolveFlags::empty()).and_then(answer);
        Attempt::of(traced("openat2", call).map(Into::into))
    }

    /// Reads what the page cache has.
    #[inline]
    pub(crate) fn read_nowait(
        file: BorrowedFd<'_>,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<Attempt<usize>> {
        let mut parts = [IoSliceMut::new(buf)];
        let call = || calls::read_nowait(file, &mut parts, Some(offset)).and_then(answer);
        Attempt::of(traced("preadv2", call))
    }

    #[inline]
    pub(crate) fn read(file: impl AsFd, buf: &mut [u8]) -> Result<usize> {
        traced("read", || rustix::io::read(file, buf))
    }

    #[inline]
    pub(crate) fn write(file: impl AsFd, buf: &[u8]) -> Result<usize> {
        traced("write", || rustix::io::write(file, buf))
    }

    #[inline]
    pub(crate) fn pwrite(file: impl AsFd, buf: &[u8], offset: u64) -> Result<usize> {
        traced("pwrite64", || rustix::io::pwrite(file, buf, offset))
    }

    #[inline]
    pub(crate) fn copy_file_range(
        from: impl AsFd,
        offset: Option<&mut u64>,
        to: impl AsFd,
        place: Option<&mut u64>,
        len: usize,
    ) -> Result<usize> {
        traced("copy_file_range", || rustix::fs::copy_file_range(from, offset, to, place, len))
    }

    #[inline]
    pub(crate) fn sendfile(
        to: impl AsFd,
        from: impl AsFd,
        offset: Option<&mut u64>,
        len: usize,
    ) -> Result<usize> {
        traced("sendfile", || rustix::fs::sendfile(to, from, offset, len))
    }

    /// Returns the entries of a directory, by `getdents64`.
    pub(crate) fn entries<F: AsFd>(
        dir: F,
        space: &mut [MaybeUninit<u8>],
    ) -> Result<Entries<'_, F>> {
        Ok(Entries(RawDir::new(dir, space)))
    }

    /// The entries of a directory.
    pub(crate) struct Entries<'a, F: AsFd>(RawDir<'a, F>);

    impl<F: AsFd> Entries<'_, F> {
        /// Returns the next entry, after a call if the buffer is empty.
        pub(crate) fn next(&mut self) -> Option<Result<RawDirEntry<'_>>> {
            if !self.0.is_buffer_empty() {
                return self.0.next();
            }
            // The end is no error.
            match traced("getdents64", || self.0.next().transpose()) {
                Ok(entry) => entry.map(Ok),
                Err(errno) => Some(Err(errno)),
            }
        }

        /// Returns true if the next entry takes a call.
        pub(crate) fn is_buffer_empty(&self) -> bool {
            self.0.is_buffer_empty()
        }
    }
}
