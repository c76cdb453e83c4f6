//! Transfers that refuse to wait: those with `RWF_NOWAIT`.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags};
use sakia_ring::CURRENT_POSITION;

use crate::decide::{Attempt, CallMode};
use crate::sys::abi;

/// Returns the `RWF_*` flags of a transfer in this mode, which has these besides.
#[inline(always)]
pub(crate) fn flags(mode: CallMode, flags: u32) -> u32 {
    match mode {
        CallMode::NonBlocking => flags | abi::RWF_NOWAIT,
        CallMode::Blocking => flags,
    }
}

/// Reads the bytes that the page cache has, from byte `at` on or, with `None`, from the file's position,
/// which moves. Fewer than the parts hold, even none, need not be the end of the file.
///
/// # Errors
/// As `preadv2(2)`, except what [`Attempt`] says.
///
/// # Kernel
/// 4.14; unsupported below. Source: `preadv2(2)`.
///
/// # Examples
/// ```
/// use std::io::IoSliceMut;
/// use std::os::fd::AsFd;
///
/// use sakia_driver::Attempt;
/// use sakia_driver::calls::read_nowait;
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// let mut bytes = [0; 9];
/// match read_nowait(file.as_fd(), &mut [IoSliceMut::new(&mut bytes)], Some(0))? {
///     Attempt::Done(count) => assert_eq!(&bytes[..count], &b"[package]"[..count]),
///     Attempt::WouldBlock => println!("the bytes are on the disk"),
///     Attempt::Unsupported => println!("the file system has no such reads"),
/// }
/// # std::io::Result::Ok(())
/// ```
#[doc(alias = "RWF_NOWAIT")]
#[doc(alias = "preadv2")]
#[inline]
pub fn read_nowait(
    fd: BorrowedFd<'_>,
    parts: &mut [IoSliceMut<'_>],
    at: Option<u64>,
) -> Result<Attempt<usize>, Errno> {
    let at = at.unwrap_or(CURRENT_POSITION);
    Attempt::of(rustix::io::preadv2(fd, parts, at, ReadWriteFlags::NOWAIT))
}

/// Writes what the page cache takes without waiting, from byte `at` on or, with `None`, from the file's
/// position, which moves.
///
/// # Errors
/// As `pwritev2(2)`, except what [`Attempt`] says.
///
/// # Kernel
/// 4.14; unsupported below, and on most file systems. Source: `pwritev2(2)`.
///
/// # Examples
/// See [`read_nowait`].
#[doc(alias = "RWF_NOWAIT")]
#[doc(alias = "pwritev2")]
#[inline]
pub fn write_nowait(
    fd: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    at: Option<u64>,
) -> Result<Attempt<usize>, Errno> {
    let at = at.unwrap_or(CURRENT_POSITION);
    Attempt::of(rustix::io::pwritev2(fd, parts, at, ReadWriteFlags::NOWAIT))
}
