//! Requests to the kernel: the entries of a ring, or calls.
//!
//! An entry is decoded when it is pushed, and is the equivalent call from then on. The checks here are those
//! that a ring makes before it starts an operation; errors of a descriptor, a path or an offset are found
//! when the operation is prepared or performed.
//!
//! Source: `io_uring_enter(2)` and the manual page of each operation.

use linux_raw_sys::general::{
    __NR_copy_file_range, __NR_flock, RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC,
    UIO_MAXIOV,
};
use linux_raw_sys::io_uring as abi;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_ring::{Opcode, Sqe, sqe_flags};

use super::memory::read_plain;
use crate::call::{
    Buffers, Call, Direction, Function, MessageRooms, Open, SocketCall, System, Transfer, Verb,
    Victims,
};
use crate::queue::Queued;
use crate::sys::{DONT_WAIT, Message, OpenHow, register};

/// `IORING_ASYNC_CANCEL_*` that name a victim.
const CANCEL_KINDS: u32 =
    abi::IORING_ASYNC_CANCEL_FD | abi::IORING_ASYNC_CANCEL_ANY | abi::IORING_ASYNC_CANCEL_USERDATA;
/// Flags of a transfer that Linux 4.18 knows.
const RWF_KNOWN: u32 = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND;
const ACCEPT_MULTISHOT: u16 = abi::IORING_ACCEPT_MULTISHOT as u16;
/// A hint, without effect here.
const POLL_FIRST: u16 = abi::IORING_RECVSEND_POLL_FIRST as u16;
const RECV_MULTISHOT: u16 = abi::IORING_RECV_MULTISHOT as u16;
/// Flags that make no sense for a multishot receive, which waits for some bytes, and takes them.
const REFUSED_MULTISHOT: u32 = DONT_WAIT | RecvFlags::WAITALL.bits() | RecvFlags::PEEK.bits();

/// A pending operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) name: Name,
    pub(crate) user_data: u64,
    /// A worker is to perform it.
    pub(crate) is_async: bool,
    /// The requested call, or its immediate result.
    pub(crate) call: Result<Call, Errno>,
}

impl Asked {
    /// Makes an operation from an entry. `registered` is the address and the length of the registered buffer.
    ///
    /// # Safety
    ///
    /// - The memory that the entry names is lent.
    pub(crate) unsafe fn by_entry(sqe: &Sqe, registered: Option<(u64, u64)>) -> Self {
        Self {
            name: Name(sqe.opcode.0.into()),
            user_data: sqe.user_data,
            is_async: sqe.flags & sqe_flags::ASYNC != 0,
            // SAFETY: the caller's promise.
            call: unsafe { decode(sqe, registered) },
        }
    }

    /// Makes an operation from a call.
    pub(crate) fn by_call(call: Call, user_data: u64) -> Self {
        Self { name: Name::of(&call), user_data, is_async: false, call: Ok(call) }
    }
}

impl Queued for Asked {
    fn user_data(&self) -> u64 {
        self.user_data
    }

    fn make_nop(&mut self) {
        let call = Call::Nop;
        *self = Self { name: Name::of(&call), is_async: false, call: Ok(call), ..*self };
    }
}

/// An operation in the form that tests use.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Entry(Sqe),
    Call(Call),
}

#[cfg(test)]
impl From<Sqe> for Form {
    fn from(sqe: Sqe) -> Self {
        Self::Entry(sqe)
    }
}

#[cfg(test)]
impl From<Call> for Form {
    fn from(call: Call) -> Self {
        Self::Call(call)
    }
}

/// The name of an operation: that of its entry, if there is one, otherwise that of the system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub(crate) u16);

impl Name {
    /// Numbers of system calls begin here.
    const CALLS: u16 = 0x100;
    const FLOCK: Self = Self(Self::CALLS + __NR_flock as u16);
    pub(super) const COPY_FILE_RANGE: Self = Self(Self::CALLS + __NR_copy_file_range as u16);

    pub(crate) const fn of_opcode(opcode: Opcode) -> Self {
        Self(opcode.0 as u16)
    }

    pub(crate) const fn of_function(function: Function) -> Self {
        Self(Self::CALLS + function as u16)
    }

    pub(crate) fn of(call: &Call) -> Self {
        let opcode = match call {
            Call::Nop => Opcode::NOP,
            Call::Transfer(Transfer { direction, buffers, .. }) => match (direction, buffers) {
                (Direction::Read, Buffers::One { .. }) => Opcode::READ,
                (Direction::Read, Buffers::Many { .. }) => Opcode::READV,
                (Direction::Write, Buffers::One { .. }) => Opcode::WRITE,
                (Direction::Write, Buffers::Many { .. }) => Opcode::WRITEV,
            },
            Call::Socket(SocketCall { verb, .. }) => match verb {
                Verb::Accept => Opcode::ACCEPT,
                Verb::Connect => Opcode::CONNECT,
                Verb::Send => Opcode::SEND,
                Verb::Recv => Opcode::RECV,
                Verb::SendMessage => Opcode::SENDMSG,
                Verb::RecvMessage => Opcode::RECVMSG,
            },
            Call::AcceptMany(_) => Opcode::ACCEPT,
            Call::RecvMany { message: None, .. } => Opcode::RECV,
            Call::RecvMany { .. } => Opcode::RECVMSG,
            Call::Open(Open { resolve: None, .. }) => Opcode::OPENAT,
            Call::Open(_) => Opcode::OPENAT2,
            Call::Close { .. } => Opcode::CLOSE,
            Call::Poll { .. } => Opcode::POLL_ADD,
            Call::Cancel { .. } => Opcode::ASYNC_CANCEL,
            Call::AwaitWriter { .. } => return Self(Self::CALLS),
            Call::Flock { .. } => return Self::FLOCK,
            Call::CopyFileRange { .. } => return Self::COPY_FILE_RANGE,
            Call::System(System { function, .. }) => match function {
                Function::Bind => Opcode::BIND,
                Function::Fadvise => Opcode::FADVISE,
                Function::Fallocate => Opcode::FALLOCATE,
                Function::Fsync | Function::Fdatasync => Opcode::FSYNC,
                Function::Fgetxattr => Opcode::FGETXATTR,
                Function::Fsetxattr => Opcode::FSETXATTR,
                Function::Ftruncate => Opcode::FTRUNCATE,
                Function::Linkat => Opcode::LINKAT,
                Function::Listen => Opcode::LISTEN,
                Function::Mkdirat => Opcode::MKDIRAT,
                Function::Renameat => Opcode::RENAMEAT,
                Function::Shutdown => Opcode::SHUTDOWN,
                Function::Socket => Opcode::SOCKET,
                Function::Statx => Opcode::STATX,
                Function::Symlinkat => Opcode::SYMLINKAT,
                Function::Unlinkat => Opcode::UNLINKAT,
                &function => return Self::of_function(function),
            },
        };
        Self::of_opcode(opcode)
    }
}

/// Log entries of a call.
impl Call {
    /// Returns the numbers that it names, without addresses: first the descriptor.
    pub(super) fn numbers(&self) -> [i64; 4] {
        let rest = match *self {
            Self::Transfer(Transfer { buffers, offset, flags, .. }) => {
                let (Buffers::One { len, .. } | Buffers::Many { count: len, .. }) = buffers;
                [len.into(), offset as i64, flags.into()]
            }
            Self::Socket(SocketCall { verb: Verb::Send | Verb::Recv, args, flags, .. }) => {
                [args[1] as i64, 0, flags.into()]
            }
            Self::Socket(SocketCall { flags, .. }) | Self::AcceptMany(SocketCall { flags, .. }) => {
                [0, 0, flags.into()]
            }
            Self::RecvMany { group, flags, .. } => [group.into(), 0, flags.into()],
            Self::Open(Open { flags, mode, resolve, .. }) => {
                [mode as i64, resolve.unwrap_or(0) as i64, flags as i64]
            }
            Self::Poll { events, .. } => [events.into(), 0, 0],
            Self::Flock { operation, .. } => [operation.into(), 0, 0],
            Self::CopyFileRange { from_offset, to, to_offset, len, .. } => {
                [i64::from(to) << 32 | i64::from(len), from_offset as i64, to_offset as i64]
            }
            Self::Cancel { victims, all } => match victims {
                Victims::UserData(user_data) => [all.into(), user_data as i64, 0],
                Victims::Descriptor(raw) => [all.into(), raw.into(), 1],
                Victims::Any => [all.into(), 0, 2],
            },
            Self::System(System { function, args }) => {
                let [_, first, second, third, ..] = args.map(|word| word as i64);
                match function {
                    Function::Fallocate | Function::Fadvise | Function::Ftruncate => {
                        [first, second, third]
                    }
                    Function::Fchmod | Function::Fchown | Function::Listen => [first, second, 0],
                    Function::Shutdown | Function::Socket => [first, second, 0],
                    Function::Mkdirat | Function::Unlinkat | Function::Fchmodat => [second, 0, 0],
                    Function::Fchmodat2 | Function::Fchownat => [second, third, 0],
                    _ => [0; 3],
                }
            }
            Self::Nop | Self::Close { .. } | Self::AwaitWriter { .. } => [0; 3],
        };
        [self.descriptor().unwrap_or(-1).into(), rest[0], rest[1], rest[2]]
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_mine = |function: &&Function| Self::of_function(**function) == *self;
        match (u8::try_from(self.0), Function::ALL.iter().find(is_mine)) {
            (Ok(code), _) => match Opcode(code).name() {
                Some(name) => f.write_str(name),
                None => write!(f, "op {code}"),
            },
            (_, Some(function)) => f.write_str(&format!("{function:?}").to_uppercase()),
            _ if *self == Self::FLOCK => f.write_str("FLOCK"),
            _ if *self == Self::COPY_FILE_RANGE => f.write_str("COPY_FILE_RANGE"),
            _ => write!(f, "call {}", self.0),
        }
    }
}

/// Returns the call equivalent to an entry.
///
/// # Errors
/// The immediate result of the operation.
///
/// # Safety
///
/// - The memory that the entry names is lent.
pub(crate) unsafe fn decode(sqe: &Sqe, registered: Option<(u64, u64)>) -> Result<Call, Errno> {
    let receives = matches!(sqe.opcode, Opcode::RECV | Opcode::RECVMSG);
    let selects = if receives { sqe_flags::BUFFER_SELECT } else { 0 };
    if sqe.flags & !(sqe_flags::ASYNC | selects) != 0 || sqe.personality != 0 {
        return Err(Errno::INVAL);
    }
    let Sqe { fd, addr, off, len, op_flags: flags, .. } = *sqe;
    let (path, second, count) = (addr as usize, off as usize, len as usize);
    // The second directory of an entry with two paths.
    let to_dir = register(len as i32);
    let system = |function, args: [usize; 4]| Ok(System::on(function, fd, args));
    match sqe.opcode {
        Opcode::NOP if flags == 0 => Ok(Call::Nop),
        Opcode::NOP if flags == abi::IORING_NOP_INJECT_RESULT => {
            let errno = (len as i32).checked_neg().filter(|errno| (1..4096).contains(errno));
            Err(errno.map_or(Errno::INVAL, Errno::from_raw_os_error))
        }
        Opcode::READ | Opcode::READV | Opcode::READ_FIXED => {
            decode_transfer(sqe, Direction::Read, registered)
        }
        Opcode::WRITE | Opcode::WRITEV | Opcode::WRITE_FIXED => {
            decode_transfer(sqe, Direction::Write, registered)
        }
        Opcode::FSYNC if flags & !abi::IORING_FSYNC_DATASYNC == 0 && addr == 0 => {
            let data_only = flags & abi::IORING_FSYNC_DATASYNC != 0;
            let function = if data_only { Function::Fdatasync } else { Function::Fsync };
            Ok(System::on(function, fd, [second, count]))
        }
        Opcode::OPENAT if sqe.file_index == 0 => {
            let (flags, mode) = (flags.into(), len.into());
            Ok(Call::Open(Open { dir: fd, path: addr, flags, mode, resolve: None }))
        }
        Opcode::OPENAT2 if sqe.file_index == 0 => {
            match count.cmp(&size_of::<OpenHow>()) {
                std::cmp::Ordering::Less => return Err(Errno::INVAL),
                std::cmp::Ordering::Greater => return Err(Errno::TOOBIG),
                std::cmp::Ordering::Equal => {}
            }
            // SAFETY: the caller's promise; the second address is that of a `struct open_how`, three numbers.
            let [flags, mode, resolve]: [u64; 3] = unsafe { read_plain(off) }?;
            Ok(Call::Open(Open { dir: fd, path: addr, flags, mode, resolve: Some(resolve) }))
        }
        Opcode::CLOSE if sqe.file_index == 0 => Ok(Call::Close { raw: fd }),
        Opcode::STATX => system(Function::Statx, [path, flags as usize, count, second]),
        Opcode::MKDIRAT => system(Function::Mkdirat, [path, count, 0, 0]),
        Opcode::UNLINKAT => system(Function::Unlinkat, [path, flags as usize, 0, 0]),
        Opcode::RENAMEAT => system(Function::Renameat, [path, to_dir, second, flags as usize]),
        Opcode::LINKAT => system(Function::Linkat, [path, to_dir, second, flags as usize]),
        Opcode::SYMLINKAT => Ok(System::of(Function::Symlinkat, [path, register(fd), second])),
        Opcode::FALLOCATE => system(Function::Fallocate, [count, second, addr as usize, 0]),
        Opcode::FTRUNCATE => system(Function::Ftruncate, [second, 0, 0, 0]),
        Opcode::FADVISE => {
            let len = if addr != 0 { addr as usize } else { count };
            system(Function::Fadvise, [second, len, flags as usize, 0])
        }
        Opcode::FGETXATTR => system(Function::Fgetxattr, [path, second, count, 0]),
        Opcode::FSETXATTR => system(Function::Fsetxattr, [path, second, count, flags as usize]),
        Opcode::SOCKET => system(Function::Socket, [second, count, 0, 0]),
        Opcode::BIND => system(Function::Bind, [path, second, 0, 0]),
        Opcode::LISTEN => system(Function::Listen, [count, 0, 0, 0]),
        Opcode::SHUTDOWN => system(Function::Shutdown, [count, 0, 0, 0]),
        Opcode::POLL_ADD if len == 0 && addr == 0 && off == 0 && sqe.buf_index == 0 => {
            let is_big = cfg!(target_endian = "big");
            Ok(Call::Poll { raw: fd, events: if is_big { flags.rotate_left(16) } else { flags } })
        }
        Opcode::ASYNC_CANCEL => decode_cancel(sqe),
        // SAFETY: the caller's promise.
        _ => unsafe { decode_socket(sqe) },
    }
}

fn decode_transfer(
    sqe: &Sqe,
    direction: Direction,
    registered: Option<(u64, u64)>,
) -> Result<Call, Errno> {
    let Sqe { fd: raw, addr, off: offset, len, op_flags: flags, .. } = *sqe;
    if flags & !RWF_KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let buffers = match sqe.opcode {
        Opcode::READV | Opcode::WRITEV if len > UIO_MAXIOV => return Err(Errno::INVAL),
        Opcode::READV | Opcode::WRITEV => Buffers::Many { vector: addr, count: len },
        _ => Buffers::One { addr, len },
    };
    if let Opcode::READ_FIXED | Opcode::WRITE_FIXED = sqe.opcode {
        let (begin, size) = registered.ok_or(Errno::FAULT)?;
        let skipped = addr.checked_sub(begin).ok_or(Errno::FAULT)?;
        let end = skipped.checked_add(len.into());
        if sqe.buf_index != 0 || end.is_none_or(|end| end > size) {
            return Err(Errno::FAULT);
        }
    }
    Ok(Call::Transfer(Transfer { raw, direction, buffers, offset, flags }))
}

fn decode_cancel(sqe: &Sqe) -> Result<Call, Errno> {
    let flags = sqe.op_flags;
    let kinds = flags & CANCEL_KINDS;
    let is_known = flags & !(CANCEL_KINDS | abi::IORING_ASYNC_CANCEL_ALL) == 0;
    if !is_known || sqe.off != 0 || kinds.count_ones() > 1 {
        return Err(Errno::INVAL);
    }
    let victims = match kinds {
        abi::IORING_ASYNC_CANCEL_FD => Victims::Descriptor(sqe.fd),
        abi::IORING_ASYNC_CANCEL_ANY => Victims::Any,
        _ => Victims::UserData(sqe.addr),
    };
    // `ANY` means all, with or without `ALL`.
    let of_all = abi::IORING_ASYNC_CANCEL_ALL | abi::IORING_ASYNC_CANCEL_ANY;
    Ok(Call::Cancel { victims, all: flags & of_all != 0 })
}

/// # Safety
///
/// - The memory that the entry names can be read.
unsafe fn decode_socket(sqe: &Sqe) -> Result<Call, Errno> {
    let Sqe { fd: raw, addr, off, len, op_flags: flags, ioprio, .. } = *sqe;
    let (verb, second, known) = match sqe.opcode {
        Opcode::ACCEPT => (Verb::Accept, off, ACCEPT_MULTISHOT),
        Opcode::CONNECT => (Verb::Connect, off, 0),
        Opcode::SEND => (Verb::Send, len.into(), POLL_FIRST),
        Opcode::RECV => (Verb::Recv, len.into(), RECV_MULTISHOT | POLL_FIRST),
        Opcode::SENDMSG => (Verb::SendMessage, 0, POLL_FIRST),
        Opcode::RECVMSG => (Verb::RecvMessage, 0, RECV_MULTISHOT | POLL_FIRST),
        _ => return Err(Errno::INVAL),
    };
    let is_multishot = match verb {
        Verb::Accept => ioprio & ACCEPT_MULTISHOT != 0,
        Verb::Recv | Verb::RecvMessage => ioprio & RECV_MULTISHOT != 0,
        _ => false,
    };
    let selects = sqe.flags & sqe_flags::BUFFER_SELECT != 0;
    if ioprio & !known != 0 || selects != (is_multishot && verb != Verb::Accept) {
        return Err(Errno::INVAL);
    }
    let args = [addr as usize, second as usize];
    let call = SocketCall { raw, verb, args, flags };
    if !is_multishot {
        return Ok(Call::Socket(call));
    }
    let mut message = None;
    if verb == Verb::RecvMessage {
        // SAFETY: the caller's promise; the address is that of a `struct msghdr`.
        let rooms: Message = unsafe { read_plain(addr) }?;
        let (name, control) = (rooms.name_len, rooms.control_len as u32);
        message = Some(MessageRooms { name, control });
    } else if addr != 0 || len != 0 {
        return Err(Errno::INVAL);
    }
    if off != 0 || sqe.file_index != 0 {
        return Err(Errno::INVAL);
    }
    match verb {
        Verb::Accept => Ok(Call::AcceptMany(call)),
        _ if flags & REFUSED_MULTISHOT != 0 => Err(Errno::INVAL),
        _ => Ok(Call::RecvMany { raw, group: sqe.buf_index, flags, message }),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn of(sqe: Sqe) -> Result<Call, Errno> {
        // SAFETY: these entries name no memory that decoding reads.
        unsafe { decode(&sqe, None) }
    }

    #[test]
    fn flags_that_are_not_there_are_refused() {
        let nop = Sqe::nop();
        assert_eq!(of(nop.flags(sqe_flags::ASYNC)), Ok(Call::Nop));
        for flags in [sqe_flags::LINK, sqe_flags::DRAIN, sqe_flags::FIXED_FILE] {
            assert_eq!(of(nop.flags(flags)), Err(Errno::INVAL), "{flags}");
        }
        let read = Sqe::read(0, ptr::null_mut(), 0, 0).op_flags(1 << 30);
        assert_eq!(of(read), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn fixed_transfers_stay_within_the_registered_buffer() {
        let result = |addr: usize, len, index| {
            let addr = ptr::without_provenance_mut(addr);
            let sqe = Sqe::read_fixed(0, addr, len, 0, index);
            // SAFETY: decoding reads no memory.
            unsafe { decode(&sqe, Some((4096, 8192))) }
        };
        for (addr, len) in [(4096, 8192), (4096, 0), (12_287, 1), (12_288, 0)] {
            assert!(result(addr, len, 0).is_ok(), "{addr} {len}");
        }
        for (addr, len) in [(4095, 1), (4096, 8193), (12_288, 1), (usize::MAX, u32::MAX)] {
            assert_eq!(result(addr, len, 0), Err(Errno::FAULT), "{addr} {len}");
        }
        assert_eq!(result(4096, 1, 1), Err(Errno::FAULT));
        assert_eq!(of(Sqe::read_fixed(0, ptr::null_mut(), 0, 0, 0)), Err(Errno::FAULT));
    }

    #[test]
    fn what_goes_on_is_told_from_what_does_not() {
        let goes_on = |sqe| of(sqe).map(|call| !matches!(call, Call::Socket(_)));
        let (buf, null) = (ptr::dangling_mut(), ptr::null_mut::<u8>());
        assert_eq!(goes_on(Sqe::accept(3, null, ptr::null_mut(), 0)), Ok(false));
        assert_eq!(goes_on(Sqe::accept_multishot(3, 0)), Ok(true));
        assert_eq!(goes_on(Sqe::recv(3, buf, 1, 0)), Ok(false));
        assert_eq!(goes_on(Sqe::recv(3, buf, 1, 0).poll_first()), Ok(false));
        assert_eq!(goes_on(Sqe::recv_multishot(3, 0, 0)), Ok(true));
        assert_eq!(goes_on(Sqe::recv_multishot(3, 0, 0).poll_first()), Ok(true));
        assert_eq!(goes_on(Sqe::send(3, buf, 1, 0).poll_first()), Ok(false));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let receive = Sqe::recv_multishot(3, 0, 0);
        let accept = Sqe::accept_multishot(3, 0);
        for sqe in [
            Sqe { flags: 0, ..receive },
            Sqe { len: 1, ..receive },
            Sqe { addr: 8, ..receive },
            Sqe { ioprio: 1 << 1 | 1 << 2, ..receive },
            Sqe { ioprio: 0, ..receive },
            Sqe { op_flags: RecvFlags::WAITALL.bits(), ..receive },
            Sqe { op_flags: RecvFlags::PEEK.bits(), ..receive },
            Sqe { op_flags: RecvFlags::DONTWAIT.bits(), ..receive },
            Sqe { addr: 8, ..accept },
            Sqe { off: 8, ..accept },
            Sqe { file_index: 1, ..accept },
            Sqe { ioprio: 1 << 1, ..accept },
            accept.buffer_group(0),
            Sqe { ioprio: 1 << 1, ..Sqe::send(3, ptr::dangling(), 1, 0) },
        ] {
            assert_eq!(of(sqe), Err(Errno::INVAL), "{sqe:?}");
        }
    }

    #[test]
    fn names_are_those_of_entries_and_else_of_system_calls() {
        let names = [
            Name::of(&System::on(Function::Ftruncate, 3, [])),
            Name::of(&System::on(Function::Getdents, 3, [])),
            Name::of(&Call::Flock { raw: 3, operation: 0 }),
            Name::of_opcode(Opcode(200)),
        ];
        assert_eq!(
            names.map(|name| name.to_string()),
            ["FTRUNCATE", "GETDENTS", "FLOCK", "op 200"]
        );
    }
}
