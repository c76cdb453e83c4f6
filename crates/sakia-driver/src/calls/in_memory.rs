//! Creation of names in directories in memory, which waits for no device.
//!
//! The directory is looked up in the cache, and its file system is queried. The name is created relative to
//! the directory, through no symbolic link and on no other file system. In all other cases the result is
//! [`Attempt::Unsupported`], and nothing was created.
//!
//! Source: `openat2(2)`, `fstatfs(2)`.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;

use super::{O_CLOEXEC, O_CREAT, O_PATH, open_in_cache};
use crate::call::{Call, Function, Open, System, address, failed, outcome, word};
use crate::decide::Attempt;
use crate::sys::{self, OpenHow, abi};

const O_DIRECTORY: u64 = abi::O_DIRECTORY as u64;
const O_EXCL: u64 = abi::O_EXCL as u64;
const O_TRUNC: u64 = abi::O_TRUNC as u64;

/// The longest directory path that is tried, in bytes, with its NUL.
const DIRECTORY_BYTES_MAX: usize = 512;

/// Creates a directory, with the arguments of `mkdirat(2)`.
///
/// # Safety
///
/// - The path is lent.
pub(super) unsafe fn mkdir(args: [usize; 6]) -> Attempt {
    let [dir, path, mode, ..] = args;
    // SAFETY: the caller says that the path can be read.
    let Some((parent, name)) = (unsafe { parent(dir as i32, path as u64) }) else {
        return Attempt::Unsupported;
    };
    let args = [word(name.as_ptr()), mode];
    let Call::System(system) = System::on(Function::Mkdirat, parent.as_raw_fd(), args) else {
        return Attempt::Unsupported;
    };
    // SAFETY: the name is part of the path, and the directory is open.
    Attempt::Done(outcome(unsafe { system.run() }))
}

/// Opens a file, and creates it if needed. An existing file is not truncated here: that may take long.
///
/// # Safety
///
/// - The path is lent.
pub(super) unsafe fn create(open: Open) -> Attempt {
    let Open { dir, path, flags, mode, .. } = open;
    // SAFETY: the caller says that the path can be read.
    let Some((parent, name)) = (unsafe { parent(dir, path) }) else {
        return Attempt::Unsupported;
    };
    let cuts_off = flags & (O_EXCL | O_TRUNC) == O_TRUNC;
    let flags = flags | O_CREAT | O_CLOEXEC | if cuts_off { O_EXCL } else { 0 };
    let resolve = abi::RESOLVE_NO_SYMLINKS | abi::RESOLVE_NO_XDEV;
    let how = OpenHow { flags, mode, resolve: resolve.into() };
    // SAFETY: the name is part of the path.
    match unsafe { sys::openat2(parent.as_raw_fd(), address(name.as_ptr()), &how) } {
        Ok(fd) => Attempt::Done(fd.into_raw_fd()),
        Err(Errno::EXIST) if cuts_off => Attempt::Unsupported,
        // A symbolic link or a mount in the way, or flags that `openat2(2)` does not take.
        Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN | Errno::INVAL) => Attempt::Unsupported,
        Err(Errno::NOSYS | Errno::TOOBIG | Errno::PERM) => Attempt::Unsupported,
        Err(errno) => Attempt::Done(failed(errno)),
    }
}

/// Returns the directory of a path, if it is in memory and the cache has it, and the path's last part.
///
/// # Safety
///
/// - The path is lent.
unsafe fn parent<'p>(dir: i32, path: u64) -> Option<(OwnedFd, &'p CStr)> {
    if path == 0 {
        return None;
    }
    // SAFETY: the bytes end with a NUL and stay in place until the call ends, by the caller's promise; the
    // result is not kept beyond that.
    let path = unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(path as usize)) };
    let bytes = path.to_bytes_with_nul();
    let name_at = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let name = CStr::from_bytes_with_nul(&bytes[name_at..]).ok()?;
    if matches!(name.to_bytes(), b"" | b"." | b"..") || name_at >= DIRECTORY_BYTES_MAX {
        return None;
    }
    let mut directory = [0; DIRECTORY_BYTES_MAX];
    let before = if name_at == 0 { &b"."[..] } else { &bytes[..name_at] };
    directory[..before.len()].copy_from_slice(before);
    let flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    let how = OpenHow { flags, mode: 0, resolve: 0 };
    // SAFETY: the bytes end with a NUL: the array has one more than are used.
    let fd = unsafe { open_in_cache(dir, address(directory.as_ptr()), how) }.ok()?;
    let kind = rustix::fs::fstatfs(&fd).ok()?.f_type;
    matches!(kind as u32, abi::TMPFS_MAGIC | abi::RAMFS_MAGIC).then_some((fd, name))
}
