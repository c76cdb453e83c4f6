//! Operations on open files other than reading and writing.
//!
//! They take two steps, as in [`ops`](super::ops).

use std::mem::offset_of;
use std::rc::Rc;

use linux_raw_sys::general::{
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN,
    POSIX_FADV_NOREUSE, SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE, SPLICE_F_NONBLOCK,
    TMPFS_MAGIC, XATTR_CREATE, XATTR_REPLACE, XATTR_SIZE_MAX, linux_dirent64,
};
use rustix::fs::FileType;
use rustix::io::Errno;
use sakia_ring::CURRENT_POSITION;

use super::kernel::{FILE_BYTES_MAX, Kernel, Object, OpenFile};
use super::memory::{Lent, Segment, read_path, read_plain};
use super::ops::{Kind, OpOutcome, PreparedCall, note_data};
use super::tree::{Entry, InodeId, NAME_BYTES_MAX};
use crate::buf::MAX_RW_BYTES;
use crate::call::{Call, Function, System, address};

/// Valid prefixes of the name of an extended attribute.
const XATTR_SPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
/// Bytes of a `struct linux_dirent64` before its name.
const ENTRY_HEADER_BYTES: usize = offset_of!(linux_dirent64, d_name);

/// An operation on an open file.
#[derive(Debug)]
pub(super) enum FileOp {
    Allocate {
        mode: u32,
        offset: u64,
        len: u64,
    },
    Truncate {
        len: u64,
    },
    Advise,
    List,
    /// Copies to `to`; an offset of `u64::MAX` is the file's own position.
    Copy {
        from_offset: u64,
        to: Rc<OpenFile>,
        to_offset: u64,
        len: usize,
    },
    /// Moves bytes to `to` without waiting; without an offset at the file's own position. One of the two is a
    /// pipe, unless the call sends a file to a socket.
    Splice {
        from_offset: Option<u64>,
        to: Rc<OpenFile>,
        to_offset: Option<u64>,
        len: usize,
        sends: bool,
    },
    Syncfs,
    /// Locks the file; `None` unlocks it.
    Lock {
        is_exclusive: Option<bool>,
        nowait: bool,
    },
    Statfs,
    GetXattr {
        name: Vec<u8>,
    },
    SetXattr {
        name: Vec<u8>,
        flags: u32,
    },
    ListXattr,
    RemoveXattr {
        name: Vec<u8>,
    },
}

/// Checks a call and resolves its operands.
///
/// # Errors
/// The immediate result of the operation.
///
/// # Safety
///
/// - As [`ops::prepare`](super::ops::prepare).
pub(super) unsafe fn prepare(kernel: &Kernel, call: &Call) -> Result<PreparedCall, Errno> {
    let mut lent = Lent::Nothing;
    let (raw, op) = match *call {
        Call::Flock { raw, operation } => {
            let is_exclusive = match operation & !LOCK_NB {
                LOCK_SH => Some(false),
                LOCK_EX => Some(true),
                LOCK_UN => None,
                _ => return Err(Errno::INVAL),
            };
            (raw, FileOp::Lock { is_exclusive, nowait: operation & LOCK_NB != 0 })
        }
        Call::CopyFileRange { from, from_offset, to, to_offset, len } => {
            let (to, len) = (Rc::clone(kernel.file(to)?), (len as usize).min(MAX_RW_BYTES));
            (from, FileOp::Copy { from_offset, to, to_offset, len })
        }
        Call::System(System { function, args }) => {
            let [mut raw, first, second, third, fourth, fifth] = args;
            let fill = |addr: usize, len| Lent::to_fill(vec![Segment::new(addr as u64, len)]);
            // SAFETY: the caller's promise; the first argument is the address of a name where this is called.
            let name = || unsafe { read_xattr_name(first as u64) };
            let op = match function {
                Function::Fallocate => FileOp::Allocate {
                    mode: first as u32,
                    offset: second as u64,
                    len: third as u64,
                },
                Function::Ftruncate => FileOp::Truncate { len: first as u64 },
                Function::Fadvise => {
                    if kernel.file(raw as i32)?.is_stream() {
                        return Err(Errno::SPIPE);
                    }
                    if third > POSIX_FADV_NOREUSE as usize || i64::try_from(second).is_err() {
                        return Err(Errno::INVAL);
                    }
                    FileOp::Advise
                }
                Function::Fgetxattr => {
                    let op = FileOp::GetXattr { name: name()? };
                    lent = fill(second, third)?;
                    op
                }
                Function::Fsetxattr => {
                    let op = FileOp::SetXattr { name: name()?, flags: fourth as u32 };
                    lent = Lent::to_take(vec![Segment::new(second as u64, third)])?;
                    op
                }
                Function::Flistxattr => {
                    lent = fill(first, second)?;
                    FileOp::ListXattr
                }
                Function::Fremovexattr => FileOp::RemoveXattr { name: name()? },
                Function::Getdents => {
                    // An `O_PATH` descriptor.
                    if !kernel.file(raw as i32)?.is_readable {
                        return Err(Errno::BADF);
                    }
                    lent = fill(first, second)?;
                    FileOp::List
                }
                Function::Syncfs => FileOp::Syncfs,
                Function::Splice => {
                    const KNOWN: u32 =
                        SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
                    if fourth > 0 && fifth as u32 & !KNOWN != 0 {
                        return Err(Errno::INVAL);
                    }
                    let offset = |addr: usize| match addr {
                        0 => Ok(None),
                        // SAFETY: the caller's promise; it is the address of an offset.
                        _ => unsafe { read_plain(addr as u64) }.map(Some),
                    };
                    FileOp::Splice {
                        from_offset: offset(first)?,
                        to: Rc::clone(kernel.file(second as i32)?),
                        to_offset: offset(third)?,
                        len: fourth.min(MAX_RW_BYTES),
                        sends: false,
                    }
                }
                Function::Sendfile => {
                    let to = Rc::clone(kernel.file(raw as i32)?);
                    raw = first;
                    let from = kernel.file(first as i32)?;
                    if matches!(from.object, Object::Socket(_)) {
                        return Err(Errno::SPIPE);
                    }
                    let is_pipe = matches!(from.object, Object::PipeReader(_));
                    // SAFETY: the caller's promise; it is the address of an offset.
                    let offset = unsafe { read_plain(second as u64) }?;
                    let from_offset = (!is_pipe).then_some(offset);
                    let len = third.min(MAX_RW_BYTES);
                    FileOp::Splice { from_offset, to, to_offset: None, len, sends: true }
                }
                // `sync_file_range` makes nothing durable, so it does nothing here.
                Function::SyncFileRange => {
                    let end = (first as u64).checked_add(second as u64);
                    let is_range = end.is_some_and(|end| i64::try_from(end).is_ok());
                    if third > 7 || !is_range {
                        return Err(Errno::INVAL);
                    }
                    if kernel.file(raw as i32)?.is_stream() {
                        return Err(Errno::SPIPE);
                    }
                    FileOp::Advise
                }
                Function::Fstatfs => {
                    lent = fill(first, 15 * 8)?;
                    FileOp::Statfs
                }
                _ => return Err(Errno::OPNOTSUPP),
            };
            (raw as i32, op)
        }
        _ => return Err(Errno::OPNOTSUPP),
    };
    let file = Some(Rc::clone(kernel.file(raw)?));
    Ok(PreparedCall { kind: Kind::File(op), lent, file })
}

/// # Safety
///
/// - Unless `addr` is 0, it is lent memory that holds a NUL-terminated string.
unsafe fn read_xattr_name(addr: u64) -> Result<Vec<u8>, Errno> {
    // SAFETY: the caller's promise.
    let name = match unsafe { read_path(addr) } {
        Err(Errno::NAMETOOLONG) => return Err(Errno::RANGE),
        name => name?,
    };
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Errno::RANGE);
    }
    let is_known = XATTR_SPACES.iter().any(|space| name.starts_with(space));
    if is_known { Ok(name) } else { Err(Errno::OPNOTSUPP) }
}

impl FileOp {
    /// Returns whether the operation may wait for ever.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self, Self::Lock { is_exclusive: Some(_), nowait: false })
    }

    /// Returns whether the operation would not have to wait now.
    pub(super) fn is_ready(&self, kernel: &Kernel, file: &Rc<OpenFile>) -> bool {
        match self {
            Self::Lock { is_exclusive: Some(is_exclusive), .. } => {
                !kernel.is_locked_out(file, *is_exclusive)
            }
            _ => true,
        }
    }

    /// Performs the operation, moving at most `len_max` bytes.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    pub(super) unsafe fn perform(
        &self,
        kernel: &mut Kernel,
        file: &Rc<OpenFile>,
        lent: &Lent,
        len_max: usize,
    ) -> OpOutcome {
        let done = |result: Result<(), Errno>| OpOutcome::from(result.map(|()| 0));
        match self {
            Self::Allocate { mode, offset, len } => {
                done(allocate(kernel, file, *mode, *offset, *len))
            }
            Self::Truncate { len } => done(truncate(kernel, file, *len)),
            Self::Advise => done(Ok(())),
            Self::Syncfs => done(kernel.sync_file_system(file)),
            // SAFETY: the caller's promise.
            Self::List => unsafe { list(kernel, file, lent) }.into(),
            Self::Copy { from_offset, to, to_offset, len } => {
                let ends = [(&**file, *from_offset), (&**to, *to_offset)];
                copy(kernel, ends, (*len).min(len_max)).into()
            }
            Self::Splice { from_offset, to, to_offset, len, sends } => {
                let ends = [(&**file, *from_offset), (&**to, *to_offset)];
                splice(kernel, ends, (*len).min(len_max), *sends).into()
            }
            Self::Lock { is_exclusive, nowait } => {
                match (kernel.lock(file, *is_exclusive), *nowait) {
                    (true, _) => done(Ok(())),
                    (false, true) => done(Err(Errno::AGAIN)),
                    (false, false) => OpOutcome::WouldBlock,
                }
            }
            Self::Statfs => {
                // SAFETY: the caller's promise.
                unsafe { lent.fill(&statfs_record(kernel)) };
                done(Ok(()))
            }
            // SAFETY: the caller's promise.
            Self::GetXattr { name } => unsafe { get_xattr(kernel, file, name, lent) }.into(),
            Self::SetXattr { name, flags } => {
                // SAFETY: the caller's promise.
                let value = unsafe { lent.take(usize::MAX) };
                done(set_xattr(kernel, file, name, value, *flags))
            }
            // SAFETY: the caller's promise.
            Self::ListXattr => unsafe { list_xattr(kernel, file, lent) }.into(),
            Self::RemoveXattr { name } => done(remove_xattr(kernel, file, name)),
        }
    }
}

/// Performs `fallocate(2)`.
fn allocate(
    kernel: &mut Kernel,
    file: &OpenFile,
    mode: u32,
    offset: u64,
    len: u64,
) -> Result<(), Errno> {
    let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
    if len == 0 || i64::try_from(offset).is_err() || i64::try_from(len).is_err() {
        return Err(Errno::INVAL);
    }
    let punches = mode & FALLOC_FL_PUNCH_HOLE != 0;
    let keeps_size = mode & FALLOC_FL_KEEP_SIZE != 0;
    if mode & !(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE) != 0 || punches && !keeps_size {
        return Err(Errno::OPNOTSUPP);
    }
    if !file.is_writable {
        return Err(Errno::BADF);
    }
    let id = match file.object {
        Object::File(id) => id,
        Object::Directory(_) => return Err(Errno::ISDIR),
        Object::PipeReader(_) | Object::PipeWriter(_) => return Err(Errno::SPIPE),
        Object::Socket(_) => return Err(Errno::NODEV),
    };
    let end = end.filter(|&end| end <= FILE_BYTES_MAX).ok_or(Errno::FBIG)? as usize;
    let (now, range) = (kernel.time(), offset as usize..end);
    if punches {
        kernel.tree.content_mut(id, now).punch(range);
        return Ok(());
    }
    if kernel.fitting(id, range.clone()) < range.len() {
        return Err(Errno::NOSPC);
    }
    let content = kernel.tree.content_mut(id, now);
    content.reserve(range);
    if !keeps_size {
        content.extend(end);
    }
    Ok(())
}

/// Performs `ftruncate(2)`.
fn truncate(kernel: &mut Kernel, file: &OpenFile, len: u64) -> Result<(), Errno> {
    let Object::File(id) = file.object else { return Err(Errno::INVAL) };
    if !file.is_writable || i64::try_from(len).is_err() {
        return Err(Errno::INVAL);
    }
    if len > FILE_BYTES_MAX {
        return Err(Errno::FBIG);
    }
    let now = kernel.time();
    kernel.tree.resize(id, len as usize, now);
    Ok(())
}

/// Performs `getdents64(2)`.
///
/// # Safety
///
/// - `lent` is still lent.
unsafe fn list(kernel: &Kernel, file: &OpenFile, lent: &Lent) -> Result<usize, Errno> {
    let Object::Directory(id) = file.object else { return Err(Errno::NOTDIR) };
    let mut bytes = Vec::new();
    for entry in kernel.tree.list(id, file.position.get())? {
        let record = entry_record(&entry);
        if bytes.len() + record.len() > lent.len() {
            if bytes.is_empty() {
                return Err(Errno::INVAL);
            }
            break;
        }
        bytes.extend(record);
        file.position.set(entry.position);
    }
    // SAFETY: the caller's promise.
    unsafe { lent.fill(&bytes) };
    Ok(bytes.len())
}

/// Returns a `struct linux_dirent64`.
fn entry_record(entry: &Entry) -> Vec<u8> {
    let len = (ENTRY_HEADER_BYTES + entry.name.len() + 1).next_multiple_of(8);
    let kind: u8 = match entry.kind {
        FileType::Directory => 4,
        FileType::RegularFile => 8,
        FileType::Symlink => 10,
        _ => 0,
    };
    let mut record = Vec::with_capacity(len);
    record.extend(entry.id.number().to_ne_bytes());
    record.extend(entry.position.to_ne_bytes());
    record.extend((len as u16).to_ne_bytes());
    record.push(kind);
    record.extend(&entry.name);
    record.resize(len, 0);
    record
}

/// Performs `copy_file_range(2)` from the first to the second.
fn copy(kernel: &mut Kernel, ends: [(&OpenFile, u64); 2], len: usize) -> Result<usize, Errno> {
    let [(from, _), (to, _)] = ends;
    let (from_id, to_id) = match (from.object, to.object) {
        (Object::Directory(_), _) | (_, Object::Directory(_)) => return Err(Errno::ISDIR),
        (Object::File(from_id), Object::File(to_id)) => (from_id, to_id),
        _ => return Err(Errno::INVAL),
    };
    if !from.is_readable || !to.is_writable || to.appends {
        return Err(Errno::BADF);
    }
    let begins = ends.map(|(file, offset)| match offset {
        CURRENT_POSITION => file.position.get(),
        offset => offset,
    });
    let is_sane = |begin: &u64| begin.checked_add(len as u64).is_some_and(|end| end >> 63 == 0);
    if begins.iter().any(|&begin| i64::try_from(begin).is_err()) {
        return Err(Errno::INVAL);
    }
    if !begins.iter().all(is_sane) {
        return Err(Errno::OVERFLOW);
    }
    let content = kernel.tree.content(from_id);
    let first = begins[0].min(content.len() as u64) as usize;
    let bytes = content[first..first.saturating_add(len).min(content.len())].to_vec();
    if from_id == to_id && overlaps(begins, bytes.len()) {
        return Err(Errno::INVAL);
    }
    let count = put(kernel, to_id, begins[1], &bytes)?;
    if let Some(level) = to.durability.syncs {
        let begin = begins[1] as usize;
        kernel.sync(to, level, begin..begin + count)?;
    }
    for (file, offset) in ends {
        if offset == CURRENT_POSITION {
            file.position.set(file.position.get() + count as u64);
        }
    }
    Ok(count)
}

fn overlaps([a, b]: [u64; 2], len: usize) -> bool {
    a.abs_diff(b) < len as u64
}

/// Performs `splice(2)` from the first to the second, without waiting. Offsets are not written back, since
/// callers do not read them.
fn splice(
    kernel: &mut Kernel,
    ends: [(&OpenFile, Option<u64>); 2],
    len: usize,
    sends: bool,
) -> Result<usize, Errno> {
    let [(from, from_offset), (to, to_offset)] = ends;
    if len == 0 {
        return Ok(0);
    }
    if !from.is_readable || !to.is_writable {
        return Err(Errno::BADF);
    }
    match (from.object, to.object) {
        (Object::PipeReader(source), Object::PipeWriter(target)) if source == target => {
            return Err(Errno::INVAL);
        }
        (Object::PipeReader(_), _) if to.appends => return Err(Errno::INVAL),
        (Object::PipeReader(_), _) | (_, Object::PipeWriter(_)) => {}
        (Object::File(_), Object::Socket(_)) if sends => {}
        _ => return Err(Errno::INVAL),
    }
    let (from_begin, to_begin) = (splice_begin(from, from_offset)?, splice_begin(to, to_offset)?);
    // The kernel examines a pipe that is the source before it examines the target.
    if let Object::PipeReader(id) = from.object {
        kernel.pipe_peek(id, len).ok_or(Errno::AGAIN)?;
    }
    let room = match to.object {
        Object::PipeWriter(id) => kernel.pipe_room(id, usize::MAX)?.ok_or(Errno::AGAIN)?,
        _ => len,
    };
    let len = len.min(room);
    let bytes = match from.object {
        Object::PipeReader(id) => kernel.pipe_peek(id, len).ok_or(Errno::AGAIN)?,
        Object::Socket(id) => kernel.socket_read(id, len)?.ok_or(Errno::AGAIN)?,
        Object::File(id) => {
            let content = kernel.tree.content(id);
            let begin = from_begin.min(content.len() as u64) as usize;
            content[begin..begin.saturating_add(len).min(content.len())].to_vec()
        }
        Object::Directory(_) | Object::PipeWriter(_) => return Err(Errno::INVAL),
    };
    if bytes.is_empty() {
        return Ok(0);
    }
    let count = match to.object {
        Object::PipeWriter(id) => {
            kernel.pipe_write(id, &bytes);
            bytes.len()
        }
        Object::Socket(id) => {
            let lent = Lent::to_take(vec![Segment::new(address(bytes.as_ptr()), bytes.len())])?;
            // SAFETY: the bytes outlive the call.
            unsafe { kernel.socket_write(id, &lent, usize::MAX) }?.ok_or(Errno::AGAIN)?
        }
        Object::File(id) => {
            let count = put(kernel, id, to_begin, &bytes)?;
            if let Some(level) = to.durability.syncs {
                kernel.sync(to, level, to_begin as usize..to_begin as usize + count)?;
            }
            count
        }
        Object::Directory(_) | Object::PipeReader(_) => return Err(Errno::INVAL),
    };
    if let Object::PipeReader(id) = from.object {
        kernel.pipe_read(id, count);
    }
    for (file, offset) in ends {
        if offset.is_none() && !file.is_stream() {
            file.position.set(file.position.get() + count as u64);
        }
    }
    note_data(kernel, "  spliced {} bytes {x}", &bytes[..count]);
    Ok(count)
}

/// Returns the offset at which a splice begins in a file.
fn splice_begin(file: &OpenFile, offset: Option<u64>) -> Result<u64, Errno> {
    match (file.object, offset) {
        (_, None) => Ok(file.position.get()),
        (Object::PipeReader(_) | Object::PipeWriter(_), Some(_)) => Err(Errno::SPIPE),
        (Object::Socket(_), Some(_)) => Err(Errno::INVAL),
        (_, Some(offset)) if i64::try_from(offset).is_err() => Err(Errno::INVAL),
        (_, Some(offset)) => Ok(offset),
    }
}

/// Writes bytes to a file, as far as the largest file size and the disk allow.
///
/// # Errors
/// `EFBIG`, `ENOSPC`: no byte fits.
pub(super) fn put(
    kernel: &mut Kernel,
    id: InodeId,
    begin: u64,
    bytes: &[u8],
) -> Result<usize, Errno> {
    if bytes.is_empty() {
        return Ok(0);
    }
    if begin >= FILE_BYTES_MAX {
        return Err(Errno::FBIG);
    }
    let count = bytes.len().min((FILE_BYTES_MAX - begin) as usize);
    let begin = begin as usize;
    let count = kernel.fitting(id, begin..begin + count);
    if count == 0 {
        return Err(Errno::NOSPC);
    }
    let now = kernel.time();
    kernel.tree.content_mut(id, now).write(begin, &bytes[..count]);
    Ok(count)
}

/// Returns the bytes of a `struct statfs`. An unlimited disk reports 4 TiB.
fn statfs_record(kernel: &mut Kernel) -> Vec<u8> {
    const BLOCKS: u64 = 1 << 30;
    let (blocks, free) = kernel.blocks().unwrap_or((BLOCKS, BLOCKS));
    let fields =
        [TMPFS_MAGIC.into(), 4096, blocks, free, free, 0, 0, 0, NAME_BYTES_MAX as u64, 4096];
    let mut record: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    record.resize(15 * 8, 0);
    record
}

/// Returns the inode whose extended attributes are meant.
fn with_xattrs(file: &OpenFile) -> Result<InodeId, Errno> {
    file.inode().map_err(|_| Errno::OPNOTSUPP)
}

/// Performs `fgetxattr(2)`.
///
/// # Safety
///
/// - `lent` is still lent.
unsafe fn get_xattr(
    kernel: &Kernel,
    file: &OpenFile,
    name: &[u8],
    lent: &Lent,
) -> Result<usize, Errno> {
    let inode = kernel.tree.inode(with_xattrs(file)?);
    let value = inode.attributes.extended.get(name).ok_or(Errno::NODATA)?;
    // SAFETY: the caller's promise.
    unsafe { fill_all(lent, value) }
}

/// Performs `flistxattr(2)`.
///
/// # Safety
///
/// - `lent` is still lent.
unsafe fn list_xattr(kernel: &Kernel, file: &OpenFile, lent: &Lent) -> Result<usize, Errno> {
    let inode = kernel.tree.inode(with_xattrs(file)?);
    let names = inode.attributes.extended.keys().flat_map(|name| name.iter().copied().chain([0]));
    // SAFETY: the caller's promise.
    unsafe { fill_all(lent, &names.collect::<Vec<u8>>()) }
}

/// Fills in all of `bytes`. Without memory it fills nothing, and only returns their number.
///
/// # Safety
///
/// - `lent` is still lent.
unsafe fn fill_all(lent: &Lent, bytes: &[u8]) -> Result<usize, Errno> {
    if lent.len() > 0 {
        if bytes.len() > lent.len() {
            return Err(Errno::RANGE);
        }
        // SAFETY: the caller's promise.
        unsafe { lent.fill(bytes) };
    }
    Ok(bytes.len())
}

/// Performs `fsetxattr(2)`.
fn set_xattr(
    kernel: &mut Kernel,
    file: &OpenFile,
    name: &[u8],
    value: Vec<u8>,
    flags: u32,
) -> Result<(), Errno> {
    if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(Errno::INVAL);
    }
    if value.len() > XATTR_SIZE_MAX as usize {
        return Err(Errno::TOOBIG);
    }
    let (now, id) = (kernel.time(), with_xattrs(file)?);
    match kernel.tree.inode(id).attributes.extended.contains_key(name) {
        true if flags & XATTR_CREATE != 0 => return Err(Errno::EXIST),
        false if flags & XATTR_REPLACE != 0 => return Err(Errno::NODATA),
        _ => {}
    }
    kernel.tree.change(id, now, |attributes| {
        attributes.extended.insert(name.to_vec(), value);
    });
    Ok(())
}

/// Performs `fremovexattr(2)`.
fn remove_xattr(kernel: &mut Kernel, file: &OpenFile, name: &[u8]) -> Result<(), Errno> {
    let (now, id) = (kernel.time(), with_xattrs(file)?);
    if !kernel.tree.inode(id).attributes.extended.contains_key(name) {
        return Err(Errno::NODATA);
    }
    kernel.tree.change(id, now, |attributes| {
        attributes.extended.remove(name);
    });
    Ok(())
}
