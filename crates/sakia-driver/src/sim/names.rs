//! Operations on names, and on what a path or a descriptor leads to.
//!
//! As in [`ops`](super::ops) in two steps: paths are copied and descriptors looked up when the entry is
//! consumed; where a path leads is found out when the operation is performed.

use std::rc::Rc;

use linux_raw_sys::general as abi;
use linux_raw_sys::general::{AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW};
use rustix::io::Errno;
use sakia_ring::{AT_FDCWD, Opcode, Sqe};

use super::kernel::{Kernel, Object, OpenFile};
use super::memory::{Lent, Segment, read_path, read_plain};
use super::ops::{Kind, Request};
use super::tree::{InodeId, Last, Place, Time};
use crate::private;

/// The owner or group that means "as it is".
const KEEP: u32 = u32::MAX;
const UTIME_NOW: i64 = abi::UTIME_NOW as i64;
const UTIME_OMIT: i64 = abi::UTIME_OMIT as i64;

/// What to do with names.
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

/// What an operation acts on.
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

/// The path at `addr`, and where it begins.
///
/// # Errors
/// `EFAULT`, `ENAMETOOLONG`; `ENOENT` when it is empty; `EBADF`, `ENOTDIR` for its directory.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory that holds a NUL-terminated string.
pub(super) unsafe fn read_place(kernel: &Kernel, dir: i32, addr: u64) -> Result<Place, Errno> {
    // SAFETY: the caller's promise.
    place(kernel, dir, unsafe { read_path(addr) }?)
}

/// A path that does not begin at the root begins at the directory, or at the working directory.
pub(super) fn place(kernel: &Kernel, dir: i32, path: Vec<u8>) -> Result<Place, Errno> {
    let start = match path.first() {
        None => return Err(Errno::NOENT),
        // Where it begins still counts for those that are confined.
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

/// Checks an entry and takes hold of what it names. `None` for one that is not about names.
///
/// # Errors
/// What the operation completes with at once.
///
/// # Safety
///
/// - As [`ops::prepare`](super::ops::prepare).
pub(super) unsafe fn prepare(kernel: &Kernel, sqe: &Sqe) -> Result<Option<Request>, Errno> {
    let Sqe { fd, addr, off, len, op_flags: flags, .. } = *sqe;
    // SAFETY: the caller's promise.
    let first = || unsafe { read_place(kernel, fd, addr) };
    // SAFETY: the caller's promise; the second address is that of a path wherever this is called.
    let second = || unsafe { read_place(kernel, len as i32, off) };
    let mut lent = Lent::Nothing;
    let op = match sqe.opcode {
        Opcode::MKDIRAT => NameOp::Mkdir { place: first()?, mode: len },
        Opcode::UNLINKAT => match flags {
            0 => NameOp::Unlink { place: first()? },
            AT_REMOVEDIR => NameOp::Rmdir { place: first()? },
            _ => return Err(Errno::INVAL),
        },
        Opcode::RENAMEAT => NameOp::Rename { from: first()?, to: second()?, flags },
        Opcode::LINKAT => {
            if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
                return Err(Errno::INVAL);
            }
            let last = if flags & AT_SYMLINK_FOLLOW != 0 { Last::Follow } else { Last::NoFollow };
            // SAFETY: the caller's promise.
            let from = unsafe { target(kernel, sqe, last, flags & AT_EMPTY_PATH != 0) }?;
            NameOp::Link { from, to: second()? }
        }
        Opcode::SYMLINKAT => {
            // SAFETY: the caller's promise.
            let (target, place) = unsafe { (read_path(addr)?, read_place(kernel, fd, off)?) };
            NameOp::Symlink { target, place }
        }
        private::READLINK => {
            if len == 0 {
                return Err(Errno::INVAL);
            }
            lent = Lent::to_fill(vec![Segment::new(off, len as usize)])?;
            NameOp::Readlink { place: first()? }
        }
        private::CHMOD | private::CHOWN | private::UTIMENS => {
            if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
                return Err(Errno::INVAL);
            }
            let last = if flags & AT_SYMLINK_NOFOLLOW != 0 { Last::NoFollow } else { Last::Follow };
            let may_be_empty = addr == 0 || flags & AT_EMPTY_PATH != 0;
            // SAFETY: the caller's promise.
            let target = unsafe { target(kernel, sqe, last, may_be_empty) }?;
            match sqe.opcode {
                private::CHMOD => NameOp::Chmod { target, mode: len },
                private::CHOWN => {
                    NameOp::Chown { target, uid: off as u32, gid: (off >> 32) as u32 }
                }
                // SAFETY: the caller's promise; two of `struct timespec` are four numbers.
                _ => NameOp::Utimens { target, times: unsafe { read_plain(off) }? },
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(Request { kind: Kind::Name(op), lent, file: None }))
}

/// What the entry's first descriptor and path lead to.
///
/// # Safety
///
/// - As [`prepare`].
unsafe fn target(
    kernel: &Kernel,
    sqe: &Sqe,
    last: Last,
    may_be_empty: bool,
) -> Result<Target, Errno> {
    let path = match sqe.addr {
        0 if may_be_empty => Vec::new(),
        // SAFETY: the caller's promise.
        addr => unsafe { read_path(addr) }?,
    };
    if path.is_empty() && may_be_empty {
        return kernel.file(sqe.fd)?.inode().map(Target::Open);
    }
    Ok(Target::Path(place(kernel, sqe.fd, path)?, last))
}

impl NameOp {
    /// The paths that it names.
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

    /// Performs it. Returns the result of the completion.
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

/// `utimensat(2)`.
fn utimens(kernel: &mut Kernel, target: &Target, times: &[[i64; 2]; 2]) -> Result<(), Errno> {
    let now = kernel.time();
    if times.iter().all(|&[_, nanos]| nanos == UTIME_OMIT) {
        return Ok(()); // the path does not even have to be there
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
