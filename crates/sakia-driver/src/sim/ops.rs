//! The operations.
//!
//! They take two steps, as in the kernel. [`prepare`] runs when an operation is consumed: it checks the
//! call, copies the path or the vector and keeps the open file. [`perform`] runs when the operation happens,
//! at once or much later; only then are buffers read or written. The machine performs cancels, since it has
//! the operations in flight. Operations on names are in [`names`](super::names), those on open files other
//! than reads and writes in [`files`](super::files).
//!
//! Sources: `io_uring_enter(2)`, `io_uring_prep_*(3)` and the manual page of each system call.

use std::mem::offset_of;
use std::ops::Range;
use std::rc::Rc;

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW, RWF_APPEND, RWF_DSYNC,
    RWF_NOWAIT, RWF_SYNC, STATX_BASIC_STATS,
};
use rustix::fs::{FileType, OFlags, Statx, StatxTimestamp};
use rustix::io::Errno;
use sakia_ring::CURRENT_POSITION;

use super::disk::Level;
use super::files::{self, FileOp};
use super::kernel::{Kernel, Object, OpenFile, OpenHow, poll};
use super::log::Digest;
use super::memory::{Lent, Segment, read_path, read_vector};
use super::names::{self, NameOp};
use super::sockets::{self, SocketOp};
use super::tree::{InodeId, Last, Place, Time, resolve};
use crate::buf::MAX_RW_BYTES;
use crate::call::{self, Buffers, Call, Direction, Function, System, Transfer};

/// Flags without an effect here.
const AT_WITHOUT_EFFECT: u32 = AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE;

/// A checked call and what it holds until it completes.
#[derive(Debug)]
pub(super) struct PreparedCall {
    pub(super) kind: Kind,
    /// The lent memory, without paths and vectors, which were copied.
    pub(super) lent: Lent,
    /// The open file acted on. Closing its descriptor does not end the operation.
    pub(super) file: Option<Rc<OpenFile>>,
}

/// The requested operation.
#[derive(Debug)]
pub(super) enum Kind {
    Nop,
    Open {
        place: Place,
        how: OpenHow,
    },
    Read {
        offset: u64,
        nowait: bool,
    },
    Write {
        offset: u64,
        nowait: bool,
        /// Writes to the end of the file, whatever the offset.
        appends: bool,
        syncs: Option<Level>,
    },
    Close {
        raw: i32,
    },
    Fsync {
        level: Level,
        /// The bytes that are synced.
        range: Range<usize>,
    },
    /// The status of the path or, without one, of the open file.
    Statx {
        path: Option<(Place, Last)>,
    },
    Name(NameOp),
    File(FileOp),
    Socket(SocketOp),
    Poll {
        events: u16,
    },
    Cancel {
        what: Victims,
        all: bool,
    },
}

/// The operations that a cancel selects.
#[derive(Clone, Debug)]
pub(super) enum Victims {
    UserData(u64),
    File(Rc<OpenFile>),
    Any,
}

/// The outcome of a performed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpOutcome {
    Done(i32),
    /// A completion that is not the last, and the number of the provided buffer that it used.
    Shot {
        res: i32,
        buffer: Option<u16>,
    },
    /// It has to wait for the other end of a pipe.
    WouldBlock,
}

impl From<Result<usize, Errno>> for OpOutcome {
    fn from(result: Result<usize, Errno>) -> Self {
        // No count here exceeds `MAX_RW_BYTES`.
        Self::Done(result.map_or_else(failed, |count| count as i32))
    }
}

/// Returns the result of a completion for a failed operation.
pub(super) fn failed(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

impl PreparedCall {
    fn new(kind: Kind) -> Self {
        Self { kind, lent: Lent::Nothing, file: None }
    }

    fn on(kind: Kind, file: &Rc<OpenFile>) -> Self {
        Self { kind, lent: Lent::Nothing, file: Some(Rc::clone(file)) }
    }

    /// Returns the paths and addresses that the operation names.
    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        match &self.kind {
            Kind::Open { place, .. } | Kind::Statx { path: Some((place, _)) } => {
                vec![place.path.clone()]
            }
            Kind::Name(op) => op.paths().map(<[u8]>::to_vec).collect(),
            Kind::Socket(op) => {
                op.address().map(|it| format!("{it:?}").into()).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether the operation may wait for ever, and thus can be canceled meanwhile.
    pub(super) fn may_wait(&self) -> bool {
        let is_stream = self.file.as_ref().is_some_and(|file| file.is_stream());
        match &self.kind {
            Kind::Read { nowait, .. } | Kind::Write { nowait, .. } => is_stream && !*nowait,
            Kind::Poll { .. } => true,
            Kind::File(op) => op.may_wait(),
            Kind::Socket(op) => op.may_wait(),
            _ => false,
        }
    }

    /// Returns the group whose buffers the operation takes.
    pub(super) fn group(&self) -> Option<u16> {
        match self.kind {
            Kind::Socket(SocketOp::RecvMultishot { group, .. }) => Some(group),
            _ => None,
        }
    }

    /// Returns whether the operation moves bytes, and may move fewer than requested.
    pub(super) fn is_transfer(&self) -> bool {
        match &self.kind {
            Kind::Read { .. } | Kind::Write { .. } => true,
            Kind::Socket(op) => op.is_transfer(),
            _ => false,
        }
    }

    /// Returns whether the operation would not have to wait now.
    pub(super) fn is_ready(&self, kernel: &Kernel) -> bool {
        let Some(file) = &self.file else { return true };
        let len = self.lent.len();
        match (&self.kind, file.object) {
            (Kind::Read { .. }, Object::PipeReader(_)) => {
                let events = kernel.poll_events(file);
                len == 0 || events & (poll::IN | poll::HUP) != 0
            }
            (Kind::Write { .. }, Object::PipeWriter(id)) => kernel.pipe_room(id, len) != Ok(None),
            (Kind::Read { .. }, Object::Socket(id)) => len == 0 || kernel.sockets.can_receive(id),
            (Kind::Write { .. }, Object::Socket(id)) => kernel.sockets.can_send(id, len, None),
            (Kind::File(op), _) => op.is_ready(kernel, file),
            (Kind::Socket(op), _) => op.is_ready(kernel, file, len),
            (Kind::Poll { events }, _) => ready_events(kernel, file, *events) != 0,
            _ => true,
        }
    }
}

/// Checks a call and resolves its operands.
///
/// # Errors
/// The immediate result of the operation.
///
/// # Safety
///
/// - The memory that the call names is lent to the simulation until it completes the operation.
pub(super) unsafe fn prepare(kernel: &Kernel, call: &Call) -> Result<PreparedCall, Errno> {
    // SAFETY: the caller's promise is that of each function.
    unsafe {
        match *call {
            Call::Nop => Ok(PreparedCall::new(Kind::Nop)),
            Call::Open(open) => prepare_open(kernel, open),
            Call::Transfer(transfer) => prepare_transfer(kernel, transfer),
            Call::Close { raw } => Ok(PreparedCall::new(Kind::Close { raw })),
            Call::Poll { raw, events } => {
                Ok(PreparedCall::on(Kind::Poll { events: events as u16 }, kernel.file(raw)?))
            }
            Call::Cancel { victims, all } => prepare_cancel(kernel, victims, all),
            Call::Socket(_) | Call::AcceptMany(_) | Call::RecvMany { .. } => {
                sockets::prepare(kernel, call)
            }
            Call::Flock { .. } | Call::CopyFileRange { .. } => files::prepare(kernel, call),
            Call::System(System { function, args }) => match function {
                Function::Fsync => prepare_fsync(kernel, args, Level::All),
                Function::Fdatasync => prepare_fsync(kernel, args, Level::Data),
                Function::Statx => prepare_statx(kernel, args),
                Function::Socket | Function::Bind | Function::Listen | Function::Shutdown => {
                    sockets::prepare(kernel, call)
                }
                function if names::has(function) => names::prepare(kernel, function, args),
                _ => files::prepare(kernel, call),
            },
            // There are no FIFOs with names, so no operation waits for their writers.
            Call::AwaitWriter { .. } => Err(Errno::OPNOTSUPP),
        }
    }
}

/// # Safety
///
/// - As [`prepare`].
unsafe fn prepare_open(kernel: &Kernel, open: call::Open) -> Result<PreparedCall, Errno> {
    let call::Open { dir, path, flags, mode, .. } = open;
    let bounds = open.resolve.unwrap_or(0);
    let creates = flags & u64::from(OFlags::CREATE.bits()) != 0;
    if open.resolve.is_some() {
        let is_contradictory = bounds & resolve::BENEATH != 0 && bounds & resolve::IN_ROOT != 0;
        if bounds & !resolve::KNOWN != 0 || is_contradictory || mode & !0o7777 != 0 {
            return Err(Errno::INVAL);
        }
        if mode != 0 && !creates {
            return Err(Errno::INVAL);
        }
    }
    let how = open_how(flags, mode, bounds)?;
    // A lookup in the cache can neither create nor truncate.
    if bounds & resolve::CACHED != 0 && (creates || how.truncates) {
        return Err(Errno::AGAIN);
    }
    // SAFETY: the caller's promise; the address is that of a path.
    let place = unsafe { names::read_place(kernel, dir, path) }?;
    Ok(PreparedCall::new(Kind::Open { place, how }))
}

/// Checks the flags of an open.
fn open_how(flags: u64, mode: u64, bounds: u64) -> Result<OpenHow, Errno> {
    // Unlisted flags, such as `O_DIRECT` and `O_TMPFILE`, are unsupported; `O_PATH` is but for directories.
    let known = OFlags::ACCMODE
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::TRUNC
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NONBLOCK
        | OFlags::LARGEFILE
        | OFlags::DIRECTORY
        | OFlags::NOFOLLOW
        | OFlags::NOCTTY
        | OFlags::NOATIME
        | OFlags::DSYNC
        | OFlags::SYNC;
    let flags = OFlags::from_bits_retain(u32::try_from(flags).map_err(|_| Errno::INVAL)?);
    let of_path = OFlags::PATH | OFlags::DIRECTORY;
    let is_path = flags.contains(OFlags::PATH);
    if is_path && !(flags - of_path - OFlags::CLOEXEC - OFlags::NOFOLLOW).is_empty() {
        return Err(Errno::INVAL);
    }
    let flags = if is_path { flags - OFlags::PATH } else { flags };
    let access = flags & OFlags::ACCMODE;
    if !(flags - known).is_empty()
        || access == OFlags::ACCMODE
        || flags.contains(OFlags::CREATE | OFlags::DIRECTORY)
    {
        return Err(Errno::INVAL);
    }
    Ok(OpenHow {
        is_readable: access != OFlags::WRONLY && !is_path,
        is_writable: access != OFlags::RDONLY,
        creates: flags.contains(OFlags::CREATE),
        is_exclusive: flags.contains(OFlags::EXCL),
        truncates: flags.contains(OFlags::TRUNC),
        appends: flags.contains(OFlags::APPEND),
        is_nofollow: flags.contains(OFlags::NOFOLLOW),
        is_directory: flags.contains(OFlags::DIRECTORY),
        is_path,
        syncs: match () {
            () if flags.contains(OFlags::SYNC) => Some(Level::All),
            () if flags.contains(OFlags::DSYNC) => Some(Level::Data),
            () => None,
        },
        mode: mode as u32 & 0o7777,
        bounds,
    })
}

/// # Safety
///
/// - As [`prepare`].
unsafe fn prepare_transfer(kernel: &Kernel, transfer: Transfer) -> Result<PreparedCall, Errno> {
    let Transfer { raw, direction, buffers, offset, flags } = transfer;
    let file = kernel.file(raw)?;
    let (may, is_read) = match direction {
        Direction::Read => (file.is_readable, true),
        Direction::Write => (file.is_writable, false),
    };
    if !may {
        return Err(Errno::BADF);
    }
    let nowait = check_transfer(file, &transfer)?;
    let segments = match buffers {
        Buffers::One { addr, len } => vec![Segment::new(addr, (len as usize).min(MAX_RW_BYTES))],
        // SAFETY: the caller's promise; the address is that of a vector with `count` entries.
        Buffers::Many { vector, count } => unsafe { read_vector(vector, count) }?,
    };
    if is_read {
        let mut request = PreparedCall::on(Kind::Read { offset, nowait }, file);
        request.lent = Lent::to_fill(segments)?;
        return Ok(request);
    }
    let appends = file.appends || flags & RWF_APPEND != 0;
    let syncs = match flags {
        flags if flags & RWF_SYNC != 0 => Some(Level::All),
        flags if flags & RWF_DSYNC != 0 => Some(Level::Data),
        _ => None,
    };
    let syncs = syncs.max(file.durability.syncs);
    let mut request = PreparedCall::on(Kind::Write { offset, nowait, appends, syncs }, file);
    request.lent = Lent::to_take(segments)?;
    Ok(request)
}

/// Checks offset and flags of a read or write. Returns whether it must not wait.
fn check_transfer(file: &OpenFile, transfer: &Transfer) -> Result<bool, Errno> {
    let &Transfer { offset, flags, .. } = transfer;
    if flags & !(RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if matches!(file.object, Object::Socket(_)) && !matches!(offset, 0 | CURRENT_POSITION) {
        return Err(Errno::SPIPE);
    }
    let is_negative = offset > i64::MAX as u64 && offset != CURRENT_POSITION;
    if is_negative && !file.is_stream() {
        return Err(Errno::INVAL);
    }
    Ok(flags & RWF_NOWAIT != 0)
}

/// The arguments are the descriptor, and the begin and the length of a range, or zeros.
fn prepare_fsync(
    kernel: &Kernel,
    [raw, begin, len, ..]: [usize; 6],
    level: Level,
) -> Result<PreparedCall, Errno> {
    let file = kernel.file(raw as i32)?;
    let end = begin.checked_add(len).ok_or(Errno::INVAL)?;
    if file.is_stream() || i64::try_from(begin).is_err() {
        return Err(Errno::INVAL);
    }
    let range = begin..if end == 0 { usize::MAX } else { end };
    Ok(PreparedCall::on(Kind::Fsync { level, range }, file))
}

/// # Safety
///
/// - As [`prepare`].
unsafe fn prepare_statx(kernel: &Kernel, args: [usize; 6]) -> Result<PreparedCall, Errno> {
    let [dir, addr, flags, _, result, _] = args;
    let (dir, addr, flags) = (dir as i32, addr as u64, flags as u32);
    let known = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_WITHOUT_EFFECT;
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    let is_nofollow = flags & AT_SYMLINK_NOFOLLOW != 0;
    let last = if is_nofollow { Last::NoFollow } else { Last::Follow };
    let may_be_empty = flags & AT_EMPTY_PATH != 0;
    let path = if may_be_empty && addr == 0 {
        Vec::new()
    } else {
        // SAFETY: the caller's promise; the first address of a statx is that of its path.
        unsafe { read_path(addr) }?
    };
    let mut request = if path.is_empty() && may_be_empty {
        PreparedCall::on(Kind::Statx { path: None }, kernel.file(dir)?)
    } else {
        let place = names::place(kernel, dir, path)?;
        PreparedCall::new(Kind::Statx { path: Some((place, last)) })
    };
    request.lent = Lent::to_fill(vec![Segment::new(result as u64, size_of::<Statx>())])?;
    Ok(request)
}

fn prepare_cancel(
    kernel: &Kernel,
    victims: call::Victims,
    all: bool,
) -> Result<PreparedCall, Errno> {
    let what = match victims {
        call::Victims::Descriptor(raw) => Victims::File(Rc::clone(kernel.file(raw)?)),
        call::Victims::Any => Victims::Any,
        call::Victims::UserData(user_data) => Victims::UserData(user_data),
    };
    Ok(PreparedCall::new(Kind::Cancel { what, all }))
}

/// Performs an operation that is not a cancel, moving at most `len_max` bytes.
///
/// # Safety
///
/// - The memory that the request holds is still lent: its last completion was not reaped.
pub(super) unsafe fn perform(
    kernel: &mut Kernel,
    request: &PreparedCall,
    len_max: usize,
) -> OpOutcome {
    let (lent, file) = (&request.lent, request.file.as_ref());
    match (&request.kind, file) {
        (Kind::Nop, _) => OpOutcome::Done(0),
        (Kind::Open { place, how }, _) => {
            OpOutcome::Done(kernel.open(place, *how).unwrap_or_else(failed))
        }
        // SAFETY: the caller's promise.
        (Kind::Read { offset, nowait }, Some(file)) => unsafe {
            or_again(*nowait, read(kernel, file, *offset, lent, len_max))
        },
        // SAFETY: the caller's promise.
        (Kind::Write { offset, nowait, appends, syncs }, Some(file)) => unsafe {
            let write = Write { offset: *offset, appends: *appends, syncs: *syncs };
            or_again(*nowait, write.perform(kernel, file, lent, len_max))
        },
        // SAFETY: the caller's promise.
        (Kind::Name(op), _) => unsafe { op.perform(kernel, lent) }.into(),
        // SAFETY: the caller's promise.
        (Kind::File(op), Some(file)) => unsafe { op.perform(kernel, file, lent, len_max) },
        // SAFETY: the caller's promise.
        (Kind::Socket(op), file) => unsafe {
            op.perform(kernel, file.map(|file| &**file), lent, len_max)
        },
        (Kind::Close { raw }, _) => kernel.close(*raw).map(|()| 0).into(),
        // SAFETY: the caller's promise.
        (Kind::Statx { path }, file) => unsafe {
            statx(kernel, path.as_ref(), file, lent).map(|()| 0).into()
        },
        (Kind::Poll { events }, Some(file)) => poll_once(kernel, file, *events),
        (Kind::Fsync { level, range }, Some(file)) => {
            kernel.sync(file, *level, range.clone()).map(|()| 0).into()
        }
        (
            Kind::Read { .. }
            | Kind::Write { .. }
            | Kind::Fsync { .. }
            | Kind::File(_)
            | Kind::Poll { .. }
            | Kind::Cancel { .. },
            _,
        ) => unreachable!("prepared with a file, or performed by the machine"),
    }
}

fn or_again(nowait: bool, outcome: OpOutcome) -> OpOutcome {
    match outcome {
        OpOutcome::WouldBlock if nowait => OpOutcome::Done(failed(Errno::AGAIN)),
        outcome => outcome,
    }
}

/// # Safety
///
/// - `lent` is still lent.
unsafe fn read(
    kernel: &mut Kernel,
    file: &OpenFile,
    offset: u64,
    lent: &Lent,
    len_max: usize,
) -> OpOutcome {
    let len = lent.len().min(len_max).min(MAX_RW_BYTES);
    let bytes = match file.object {
        Object::File(id) => {
            let content = kernel.tree.content(id);
            let begin = start(file, offset).min(content.len() as u64) as usize;
            let end = begin.saturating_add(len).min(content.len());
            let bytes = content[begin..end].to_vec();
            advance(file, offset, bytes.len());
            bytes
        }
        Object::Directory(_) => return OpOutcome::Done(failed(Errno::ISDIR)),
        Object::PipeReader(id) | Object::PipeWriter(id) => match kernel.pipe_read(id, len) {
            Some(bytes) => bytes,
            None => return OpOutcome::WouldBlock,
        },
        Object::Socket(id) => match kernel.socket_read(id, len) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return OpOutcome::WouldBlock,
            Err(errno) => return OpOutcome::Done(failed(errno)),
        },
    };
    // SAFETY: the caller's promise.
    unsafe { lent.fill(&bytes) };
    note_data(kernel, "  read {} bytes {x}", &bytes);
    Ok(bytes.len()).into()
}

/// The target of a write.
#[derive(Clone, Copy, Debug)]
struct Write {
    offset: u64,
    appends: bool,
    syncs: Option<Level>,
}

impl Write {
    /// # Safety
    ///
    /// - `lent` is still lent.
    unsafe fn perform(
        self,
        kernel: &mut Kernel,
        file: &OpenFile,
        lent: &Lent,
        len_max: usize,
    ) -> OpOutcome {
        let len = lent.len().min(MAX_RW_BYTES);
        let result = match file.object {
            // SAFETY: the caller's promise.
            Object::File(id) => unsafe {
                self.to_file(kernel, file, id, &lent.take(len.min(len_max)))
            },
            Object::Directory(_) => Err(Errno::BADF),
            Object::PipeReader(id) | Object::PipeWriter(id) => match kernel.pipe_room(id, len) {
                Ok(None) => return OpOutcome::WouldBlock,
                Ok(Some(room)) => {
                    // SAFETY: the caller's promise.
                    let bytes = unsafe { lent.take(room.min(len_max)) };
                    kernel.pipe_write(id, &bytes);
                    note_data(kernel, "  wrote {} bytes {x}", &bytes);
                    Ok(bytes.len())
                }
                Err(errno) => Err(errno),
            },
            // SAFETY: the caller's promise.
            Object::Socket(id) => match unsafe { kernel.socket_write(id, lent, len_max) } {
                Ok(None) => return OpOutcome::WouldBlock,
                result => result.map(Option::unwrap_or_default),
            },
        };
        result.into()
    }

    fn to_file(
        self,
        kernel: &mut Kernel,
        file: &OpenFile,
        id: InodeId,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let size = kernel.tree.content(id).len() as u64;
        let begin = if self.appends { size } else { start(file, self.offset) };
        let count = files::put(kernel, id, begin, bytes)?;
        if count == 0 {
            return Ok(0);
        }
        if self.appends && self.offset == CURRENT_POSITION {
            file.position.set(begin + count as u64);
        } else {
            advance(file, self.offset, count);
        }
        note_data(kernel, "  wrote {} bytes {x}", &bytes[..count]);
        if let Some(level) = self.syncs {
            kernel.sync(file, level, begin as usize..begin as usize + count)?;
        }
        Ok(count)
    }
}

/// Returns the offset at which a read or write with this offset begins.
fn start(file: &OpenFile, offset: u64) -> u64 {
    if offset == CURRENT_POSITION { file.position.get() } else { offset }
}

/// Moves the file's position after a read or write that began there.
fn advance(file: &OpenFile, offset: u64, count: usize) {
    if offset == CURRENT_POSITION {
        file.position.set(file.position.get() + count as u64);
    }
}

/// Logs data as its hash, so that runs that move other bytes differ in the log.
pub(super) fn note_data(kernel: &mut Kernel, template: &str, bytes: &[u8]) {
    let numbers = [bytes.len() as i64, Digest::of(bytes) as i64];
    kernel.note(template, &numbers);
}

/// # Safety
///
/// - `lent` is still lent.
unsafe fn statx(
    kernel: &Kernel,
    path: Option<&(Place, Last)>,
    file: Option<&Rc<OpenFile>>,
    lent: &Lent,
) -> Result<(), Errno> {
    let inode = match (path, file) {
        (Some((place, last)), _) => Some(kernel.tree.lookup(place, *last)?),
        (None, Some(file)) => file.inode().ok(),
        (None, None) => return Err(Errno::BADF),
    };
    // SAFETY: the caller's promise.
    unsafe { lent.fill(&statx_record(kernel, inode, file)) };
    Ok(())
}

/// Returns the bytes of a `struct statx`, also for a pipe or a socket, which have no inode. It has all basic
/// fields, whatever the requested mask, as the kernel may return them.
fn statx_record(
    kernel: &Kernel,
    inode: Option<InodeId>,
    file: Option<&Rc<OpenFile>>,
) -> [u8; size_of::<Statx>()] {
    let mut record = [0; size_of::<Statx>()];
    let mut put = |offset: usize, bytes: &[u8]| {
        record[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(offset_of!(Statx, stx_mask), &STATX_BASIC_STATS.to_ne_bytes());
    put(offset_of!(Statx, stx_blksize), &4096_u32.to_ne_bytes());
    let Some(id) = inode else {
        let is_socket = file.is_some_and(|file| matches!(file.object, Object::Socket(_)));
        let kind = if is_socket { FileType::Socket } else { FileType::Fifo };
        let mode = (kind.as_raw_mode() | 0o600) as u16;
        put(offset_of!(Statx, stx_mode), &mode.to_ne_bytes());
        put(offset_of!(Statx, stx_nlink), &1_u32.to_ne_bytes());
        return record;
    };
    let inode = kernel.tree.inode(id);
    let attributes = &inode.attributes;
    let (mode, size) = ((inode.kind().as_raw_mode() | attributes.mode) as u16, inode.size());
    put(offset_of!(Statx, stx_nlink), &inode.links.to_ne_bytes());
    put(offset_of!(Statx, stx_uid), &attributes.uid.to_ne_bytes());
    put(offset_of!(Statx, stx_gid), &attributes.gid.to_ne_bytes());
    put(offset_of!(Statx, stx_mode), &mode.to_ne_bytes());
    put(offset_of!(Statx, stx_ino), &id.number().to_ne_bytes());
    put(offset_of!(Statx, stx_size), &size.to_ne_bytes());
    put(offset_of!(Statx, stx_blocks), &size.div_ceil(512).to_ne_bytes());
    let times = [
        (offset_of!(Statx, stx_atime), attributes.accessed),
        (offset_of!(Statx, stx_ctime), attributes.changed),
        (offset_of!(Statx, stx_mtime), attributes.modified),
    ];
    for (field, Time { seconds, nanos }) in times {
        put(field + offset_of!(StatxTimestamp, tv_sec), &seconds.to_ne_bytes());
        put(field + offset_of!(StatxTimestamp, tv_nsec), &nanos.to_ne_bytes());
    }
    record
}

fn poll_once(kernel: &Kernel, file: &OpenFile, events: u16) -> OpOutcome {
    let ready = ready_events(kernel, file, events);
    if ready == 0 { OpOutcome::WouldBlock } else { OpOutcome::Done(i32::from(ready)) }
}

/// Returns the events that have occurred, of `events` and those that are always reported.
fn ready_events(kernel: &Kernel, file: &OpenFile, events: u16) -> u16 {
    kernel.poll_events(file) & (events | poll::ALWAYS)
}
