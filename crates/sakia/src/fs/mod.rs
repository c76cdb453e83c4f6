//! Files and directories: the names and the meaning of [`std::fs`], and additions for asynchronous programs.
//!
//! - [`File`]: reads and writes at an offset, any number at a time, or at the file's position; whole,
//!   vectored, durable, appended. Locks, times, room, advice.
//! - [`read`], [`write()`], [`copy`] and the others, by path.
//! - [`Dir`]: lookups that cannot leave a directory. [`ReadDir`]: its entries, with their kinds.
//! - [`save`], [`AtomicFile`]: contents that are replaced as a whole. [`write_durable`],
//!   [`GroupCommit`]: contents that are there after a power failure.
//! - [`OpenOptions::direct`]: I/O past the page cache, with [`AlignedBuf`].
//!
//! Buffers go in by value and come back with the result, on error too: the kernel has them meanwhile, even
//! if the future is dropped. See [`BufResult`](crate::io::BufResult).
//!
//! An operation on a path fails with an [`Error`] that names operation and path; `?` turns it into an
//! [`std::io::Error`]. Errors of an open file are the kernel's. [`os_error`] finds the errno in
//! either.
//!
//! All of it belongs to the runtime thread on which it was made, and never blocks that thread.
//!
//! # Cancel safety
//! Dropping a future does not take its operation back. An operation that has begun on a file or a name is
//! carried out to its end, perhaps after later ones; one that has not begun is left out. So a dropped
//! [`rename`] or [`remove_file`] leaves unknown whether it was done, and a dropped query changes nothing. A
//! buffer lives until the kernel is done with it, and a descriptor that was opened meanwhile is closed.
//! Methods to which more applies say so.

mod commit;
mod cursor;
mod dir;
mod direct;
mod file;
mod manage;
mod metadata;
mod options;
mod paths;
mod read_dir;
mod save;
mod traits;
mod tree;
mod whole;

pub use commit::GroupCommit;
pub use dir::Dir;
pub use direct::{DirectAlignment, Misaligned};
pub use file::File;
pub use manage::Advice;
pub use metadata::{FileTimes, FileType, Metadata, Permissions};
pub use options::{OpenOptions, Resolve};
pub use paths::{
    canonicalize, chown, create_dir, create_dir_all, exists, hard_link, metadata, read_dir,
    read_link, remove_dir, remove_file, rename, set_permissions, set_times, symlink,
    symlink_metadata, try_exists,
};
pub use read_dir::{DirEntry, ReadDir};
pub use sakia_driver::{AlignedBuf, SyncRange};
pub use save::{AtomicFile, save};
pub use tree::remove_dir_all;
#[cfg(feature = "sim")]
pub(crate) use whole::forget_sizes;
pub use whole::{copy, read, read_to_string, write, write_durable};
pub(crate) use whole::{finish_opening, into_text, read_opened};

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::path::Arg;
use sakia_driver::Handle;

pub use crate::error::{Error, Result, os_error};
use crate::io::transfer::uninterrupted;

use metadata::stat;
pub(crate) use metadata::stat_open;

/// Returns a path as the kernel takes it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| zero_byte())
}

/// Calls `f` with a path as the kernel takes it, without an allocation for a short one.
pub(crate) fn with_c_path<T>(path: &Path, f: impl FnOnce(&CStr) -> T) -> io::Result<T> {
    path.into_with_c_str(|path| Ok(f(path))).map_err(|_| zero_byte())
}

fn zero_byte() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the path contains a zero byte")
}

/// Returns the handle for operations on the calling thread's runtime.
///
/// # Panics
/// Outside of a runtime.
fn driver() -> Handle {
    crate::executor::current().driver.handle().clone()
}
