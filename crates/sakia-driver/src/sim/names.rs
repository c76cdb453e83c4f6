//! Operations on names, and on the objects of paths and descriptors.
//!
//! They take two steps, as in [`ops`](super::ops): paths are copied and descriptors looked up when the entry
//! is consumed; paths are resolved when the operation is performed.

use std::rc::Rc;

use linux_raw_sys::general as abi;
use linux_raw_sys::general::{AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW};
use rustix::io::Errno;
use sakia_ring::AT_FDCWD;

use super::kernel::{Kernel, Object, OpenFile};
use super::memory::{Lent, Segment, read_path, read_plain};
use super::ops::{Kind, PreparedCall};
use super::tree::{InodeId, Last, Place, Time};
use crate::call::Function;

/// The owner or group that means "unchanged".
const KEEP: u32 = u32::MAX;
const UTIME_NOW: i64 = abi::UTIME_NOW as i64;
const UTIME_OMIT: i64 = abi::UTIME_OMIT as i64;

/// An operation on names.
#[derive(Debug)]
pub(super) enum NameOp {
    Mkdir { place: Place, mode: u32 },
    Unlink { place: Place },
    Rmdir { place: Place },
    Rename { from: Place, to: Place, flags: u32 },
    Link { from: Target, to: Place },
    Symlink { target: Vec<u8>, place: Place },
    Readlink { place: Place },
    Chmod { target: Target, mode: u32 },
    Chown { target: Target, uid: u32, gid: u32 },
    Utimens { target: Target, times: [[i64; 2]; 2] },
}

/// The object of an operation.
#[derive(Debug)]
pub(super) enum Target {
    Path(Place, Last),
    Open(InodeId),
}

impl Target {
    fn path(&self) -> Option<&[u8]> {
        match self {
            Self::Path(place, _) => Some(&place.path),
            Self::Open(_) => None,
        }
    }

    fn find(&self, kernel: &Kernel) -> Result<InodeId, Errno> {
        match self {
            Self::Path(place, last) => kernel.tree.lookup(place, *last),
            Self::Open(id) => Ok(*id),
        }
    }
}

/// Returns the path at `addr`, and the directory where it begins.
///
/// # Errors
/// `EFAULT`, `ENAMETOOLONG`; `ENOENT` if it is empty; `EBADF`, `ENOTDIR` for its directory.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory that holds a NUL-terminated string.
pub(super) unsafe fn read_place(kernel: &Kernel, dir: i32, addr: u64) -> Result<Place, Errno> {
    // SAFETY: the caller's promise.
    place(kernel, dir, unsafe { read_path(addr) }?)
}

/// Returns a path with its begin: the directory, or the working directory, unless it begins at the root.
pub(super) fn place(kernel: &Kernel, dir: i32, path: Vec<u8>) -> Result<Place, Errno> {
    let start = match path.first() {
        None => return Err(Errno::NOENT),
        // The begin of the path still matters for confined lookups.
        Some(b'/') => kernel.file(dir).map_or(InodeId::ROOT, beginning),
        Some(_) if dir == AT_FDCWD => InodeId::ROOT,
        Some(_) => match kernel.file(dir)?.object {
            Object::Directory(id) => id,
            _ => return Err(Errno::NOTDIR),
        },
    };
    Ok(Place { start, path })
}

fn beginning(file: &Rc<OpenFile>) -> InodeId {
    match file.object {
        Object::Directory(id) => id,
        _ => InodeId::ROOT,
    }
}

/// Returns whether the call is one of this module's.
pub(super) const fn has(function: Function) -> bool {
    use Function as F;
    let is_change = matches!(function, F::Mkdirat | F::Unlinkat | F::Renameat | F::Linkat);
    is_change
        || matches!(function, F::Symlinkat | F::Readlinkat | F::Utimensat | F::Fchmod | F::Fchown)
        || matches!(function, F::Fchmodat | F::Fchmodat2 | F::Fchownat)
}

/// Checks a call about names and resolves its operands.
///
/// # Errors
/// The immediate result of the operation.
///
/// # Safety
///
/// - As [`ops::prepare`](super::ops::prepare).
pub(super) unsafe fn prepare(
    kernel: &Kernel,
    function: Function,
    args: [usize; 6],
) -> Result<PreparedCall, Errno> {
    let [dir, first, second, third, fourth, _] = args;
    // SAFETY: the caller's promise; every use passes a directory and the address of a path.
    let at = |dir: usize, path: usize| unsafe { read_place(kernel, dir as i32, path as u64) };
    // SAFETY: as above.
    let target = |path, flags| unsafe { target(kernel, dir as i32, path as u64, flags) };
    let mut lent = Lent::Nothing;
    let op = match function {
        Function::Mkdirat => NameOp::Mkdir { place: at(dir, first)?, mode: second as u32 },
        Function::Unlinkat => match second as u32 {
            0 => NameOp::Unlink { place: at(dir, first)? },
            AT_REMOVEDIR => NameOp::Rmdir { place: at(dir, first)? },
            _ => return Err(Errno::INVAL),
        },
        Function::Renameat => {
            let (from, to) = (at(dir, first)?, at(second, third)?);
            NameOp::Rename { from, to, flags: fourth as u32 }
        }
        Function::Linkat => {
            let flags = fourth as u32;
            if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
                return Err(Errno::INVAL);
            }
            let last = if flags & AT_SYMLINK_FOLLOW != 0 { Last::Follow } else { Last::NoFollow };
            let from = target(first, (last, flags & AT_EMPTY_PATH != 0))?;
            NameOp::Link { from, to: at(second, third)? }
        }
        Function::Symlinkat => {
            // SAFETY: the caller's promise; the link's target comes before the link's path.
            let target = unsafe { read_path(dir as u64)? };
            NameOp::Symlink { target, place: at(first, second)? }
        }
        Function::Readlinkat => {
            if third == 0 {
                return Err(Errno::INVAL);
            }
            lent = Lent::to_fill(vec![Segment::new(second as u64, third)])?;
            NameOp::Readlink { place: at(dir, first)? }
        }
        Function::Fchmod => {
            NameOp::Chmod { target: target(0, (Last::Follow, true))?, mode: first as u32 }
        }
        Function::Fchmodat | Function::Fchmodat2 => {
            NameOp::Chmod { target: target(first, last_of(third)?)?, mode: second as u32 }
        }
        Function::Fchown => {
            let target = target(0, (Last::Follow, true))?;
            NameOp::Chown { target, uid: first as u32, gid: second as u32 }
        }
        Function::Fchownat => {
            let target = target(first, last_of(fourth)?)?;
            NameOp::Chown { target, uid: second as u32, gid: third as u32 }
        }
        Function::Utimensat => {
            let (last, may_be_empty) = last_of(third)?;
            let target = target(first, (last, may_be_empty || first == 0))?;
            // SAFETY: the caller's promise; two `struct timespec` are four numbers.
            NameOp::Utimens { target, times: unsafe { read_plain(second as u64) }? }
        }
        _ => return Err(Errno::OPNOTSUPP),
    };
    Ok(PreparedCall { kind: Kind::Name(op), lent, file: None })
}

/// Returns the meaning of these flags for the last part of a path, and whether the path may be empty.
fn last_of(flags: usize) -> Result<(Last, bool), Errno> {
    let flags = flags as u32;
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::INVAL);
    }
    let last = if flags & AT_SYMLINK_NOFOLLOW != 0 { Last::NoFollow } else { Last::Follow };
    Ok((last, flags & AT_EMPTY_PATH != 0))
}

/// Resolves a descriptor and a path.
///
/// # Safety
///
/// - As [`prepare`].
unsafe fn target(
    kernel: &Kernel,
    dir: i32,
    path: u64,
    (last, may_be_empty): (Last, bool),
) -> Result<Target, Errno> {
    let path = match path {
        0 if may_be_empty => Vec::new(),
        // SAFETY: the caller's promise.
        addr => unsafe { read_path(addr) }?,
    };
    if path.is_empty() && may_be_empty {
        return kernel.file(dir)?.inode().map(Target::Open);
    }
    Ok(Target::Path(place(kernel, dir, path)?, last))
}

impl NameOp {
    /// Returns the paths that the operation names.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let (first, second) = match self {
            Self::Mkdir { place, .. }
            | Self::Unlink { place }
            | Self::Rmdir { place }
            | Self::Readlink { place } => (Some(&place.path[..]), None),
            Self::Rename { from, to, .. } => (Some(&from.path[..]), Some(&to.path[..])),
            Self::Link { from, to } => (from.path(), Some(&to.path[..])),
            Self::Symlink { target, place } => (Some(&target[..]), Some(&place.path[..])),
            Self::Chmod { target: its, .. }
            | Self::Chown { target: its, .. }
            | Self::Utimens { target: its, .. } => (its.path(), None),
        };
        first.into_iter().chain(second)
    }

    /// Performs the operation. Returns the result of the completion.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    pub(super) unsafe fn perform(&self, kernel: &mut Kernel, lent: &Lent) -> Result<usize, Errno> {
        let now = kernel.time();
        let tree = &mut kernel.tree;
        match self {
            Self::Mkdir { place, mode } => tree.mkdir(place, *mode, now)?,
            Self::Unlink { place } => tree.unlink(place, now)?,
            Self::Rmdir { place } => tree.rmdir(place, now)?,
            Self::Rename { from, to, flags } => tree.rename(from, to, *flags, now)?,
            Self::Link { from, to } => {
                let id = from.find(kernel)?;
                kernel.tree.link(id, to, now)?;
            }
            Self::Symlink { target, place } => tree.symlink(target, place, now)?,
            Self::Readlink { place } => {
                let target = tree.readlink(place)?;
                let bytes = &target[..target.len().min(lent.len())];
                // SAFETY: the caller's promise.
                unsafe { lent.fill(bytes) };
                return Ok(bytes.len());
            }
            Self::Chmod { target, mode } => {
                let id = target.find(kernel)?;
                if kernel.tree.inode(id).kind() == rustix::fs::FileType::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                kernel.tree.change(id, now, |attributes| attributes.mode = mode & 0o7777);
            }
            Self::Chown { target, uid, gid } => {
                let id = target.find(kernel)?;
                kernel.tree.change(id, now, |attributes| {
                    let owners = [(&mut attributes.uid, *uid), (&mut attributes.gid, *gid)];
                    for (owner, value) in owners {
                        *owner = if value == KEEP { *owner } else { value };
                    }
                });
            }
            Self::Utimens { target, times } => utimens(kernel, target, times)?,
        }
        Ok(0)
    }
}

/// Performs `utimensat(2)`.
fn utimens(kernel: &mut Kernel, target: &Target, times: &[[i64; 2]; 2]) -> Result<(), Errno> {
    let now = kernel.time();
    if times.iter().all(|&[_, nanos]| nanos == UTIME_OMIT) {
        return Ok(()); // the path need not even exist
    }
    let time = |[seconds, nanos]: [i64; 2]| match nanos {
        UTIME_OMIT => Ok(None),
        UTIME_NOW => Ok(Some(now)),
        0..1_000_000_000 => Ok(Some(Time { seconds, nanos: nanos as u32 })),
        _ => Err(Errno::INVAL),
    };
    let (accessed, modified) = (time(times[0])?, time(times[1])?);
    let id = target.find(kernel)?;
    kernel.tree.change(id, now, |attributes| {
        attributes.accessed = accessed.unwrap_or(attributes.accessed);
        attributes.modified = modified.unwrap_or(attributes.modified);
    });
    Ok(())
}
