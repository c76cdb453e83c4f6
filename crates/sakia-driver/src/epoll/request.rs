//! What an entry asks for, checked.
//!
//! Checks here are those that the ring makes before it does anything; what is wrong with a
//! descriptor, a path or an offset turns out when the operation is performed, as it does there.
//!
//! Source: `io_uring_enter(2)` and the manual page of each operation.

use linux_raw_sys::general::UIO_MAXIOV;
use linux_raw_sys::io_uring as abi;
use rustix::io::Errno;
use sakia_ring::{Opcode, Sqe, sqe_flags};

use super::job::{Job, Work};
use super::multishot::Multishot;
use super::socket::SocketCall;
use super::transfer::{Buffers, RWF_KNOWN, Transfer};
use crate::call::{Call, Copy};
use crate::private;
use crate::sys::Direction;
use crate::sys::open::Open;

/// `IORING_ASYNC_CANCEL_*` that name a victim.
const CANCEL_KINDS: u32 =
    abi::IORING_ASYNC_CANCEL_FD | abi::IORING_ASYNC_CANCEL_ANY | abi::IORING_ASYNC_CANCEL_USERDATA;

/// What is asked for.
#[derive(Debug)]
pub(super) enum Request {
    Nop {
        result: i32,
    },
    Transfer(Transfer),
    /// What may wait for a socket.
    Socket(SocketCall),
    /// What may wait for a socket again and again.
    Multishot(Multishot),
    /// A call that is short and waits for nobody.
    Now(Call),
    Poll {
        raw: i32,
        events: u16,
    },
    Cancel {
        victims: Victims,
        /// All that match, and the answer is their number; otherwise one.
        all: bool,
    },
    Close {
        raw: i32,
    },
    /// Work for the bounded lane, and the descriptor whose operations it counts among.
    Lane(Job, Option<i32>),
}

/// Which operations a cancel is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Victims {
    UserData(u64),
    Descriptor(i32),
    Any,
}

/// Checks an entry. `registered` is the address and the length of the registered buffer.
///
/// # Errors
/// What the operation completes with at once.
pub(super) fn decode(sqe: &Sqe, registered: Option<(u64, u64)>) -> Result<Request, Errno> {
    let known = match sqe.opcode {
        Opcode::RECV => sqe_flags::ASYNC | sqe_flags::BUFFER_SELECT,
        _ => sqe_flags::ASYNC,
    };
    if sqe.flags & !known != 0 || sqe.personality != 0 {
        return Err(Errno::INVAL);
    }
    let job = |work| Job { user_data: sqe.user_data, opcode: sqe.opcode, work };
    match sqe.opcode {
        Opcode::NOP => decode_nop(sqe),
        Opcode::READ | Opcode::READV | Opcode::READ_FIXED => {
            decode_transfer(sqe, Direction::Read, registered)
        }
        Opcode::WRITE | Opcode::WRITEV | Opcode::WRITE_FIXED => {
            decode_transfer(sqe, Direction::Write, registered)
        }
        Opcode::FSYNC => {
            if sqe.op_flags & !abi::IORING_FSYNC_DATASYNC != 0 || sqe.addr != 0 {
                return Err(Errno::INVAL);
            }
            let data_only = sqe.op_flags & abi::IORING_FSYNC_DATASYNC != 0;
            Ok(Request::Lane(job(Work::Fsync { raw: sqe.fd, data_only }), Some(sqe.fd)))
        }
        Opcode::OPENAT => {
            if sqe.file_index != 0 {
                return Err(Errno::INVAL); // a registered file
            }
            let (flags, mode) = (sqe.op_flags.into(), sqe.len.into());
            let open = Open { dir: sqe.fd, path: sqe.addr, flags, mode, resolve: None };
            Ok(Request::Lane(job(Work::Open(open)), None))
        }
        Opcode::OPENAT2 => {
            if sqe.file_index != 0 {
                return Err(Errno::INVAL);
            }
            let Sqe { fd: dir, addr: path, off: how, len: how_len, .. } = *sqe;
            Ok(Request::Lane(job(Work::Open2 { dir, path, how, how_len }), None))
        }
        private::COPY_FILE_RANGE => Ok(Request::Lane(job(Work::Copy(Copy::of(sqe))), Some(sqe.fd))),
        private::AWAIT_WRITER => {
            Ok(Request::Lane(job(Work::AwaitWriter { raw: sqe.fd }), Some(sqe.fd)))
        }
        private::FLOCK => {
            let work = Work::Lock { raw: sqe.fd, operation: sqe.op_flags };
            Ok(Request::Lane(job(work), Some(sqe.fd)))
        }
        Opcode::CLOSE => {
            if sqe.file_index != 0 {
                return Err(Errno::INVAL);
            }
            Ok(Request::Close { raw: sqe.fd })
        }
        Opcode::STATX => {
            let Sqe { fd: dir, addr: path, op_flags: flags, len: mask, off: result, .. } = *sqe;
            Ok(Request::Lane(job(Work::Statx { dir, path, flags, mask, result }), None))
        }
        Opcode::SOCKET | Opcode::LISTEN | Opcode::SHUTDOWN => {
            Call::of(sqe).map(Request::Now).ok_or(Errno::INVAL)
        }
        Opcode::POLL_ADD => decode_poll(sqe),
        Opcode::ASYNC_CANCEL => decode_cancel(sqe),
        _ => {
            if let Some(call) = SocketCall::of(sqe) {
                let multishot = Multishot::of(sqe)?;
                return Ok(multishot.map_or(Request::Socket(call), Request::Multishot));
            }
            let call = Call::of(sqe).ok_or(Errno::INVAL)?;
            Ok(Request::Lane(job(Work::Call(call)), acts_on(sqe)))
        }
    }
}

/// The descriptor whose operations one that is a plain call counts among: as with the ring, none if
/// it only says where a path begins.
fn acts_on(sqe: &Sqe) -> Option<i32> {
    let by_path = [Opcode::MKDIRAT, Opcode::UNLINKAT, Opcode::RENAMEAT, Opcode::LINKAT];
    let is_path = by_path.contains(&sqe.opcode)
        || matches!(sqe.opcode, Opcode::SYMLINKAT | private::READLINK)
        || matches!(sqe.opcode, private::CHMOD | private::CHOWN | private::UTIMENS)
            && sqe.addr != 0;
    (!is_path).then_some(sqe.fd)
}

fn decode_nop(sqe: &Sqe) -> Result<Request, Errno> {
    match sqe.op_flags {
        0 => Ok(Request::Nop { result: 0 }),
        abi::IORING_NOP_INJECT_RESULT => Ok(Request::Nop { result: sqe.len as i32 }),
        _ => Err(Errno::INVAL),
    }
}

fn decode_transfer(
    sqe: &Sqe,
    direction: Direction,
    registered: Option<(u64, u64)>,
) -> Result<Request, Errno> {
    if sqe.op_flags & !RWF_KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let one = Buffers::One { addr: sqe.addr, len: sqe.len };
    let buffers = match sqe.opcode {
        Opcode::READV | Opcode::WRITEV if sqe.len > UIO_MAXIOV => return Err(Errno::INVAL),
        Opcode::READV | Opcode::WRITEV => Buffers::Many { vector: sqe.addr, count: sqe.len },
        Opcode::READ_FIXED | Opcode::WRITE_FIXED => {
            let (begin, len) = registered.ok_or(Errno::FAULT)?;
            let skipped = sqe.addr.checked_sub(begin).ok_or(Errno::FAULT)?;
            let end = skipped.checked_add(u64::from(sqe.len));
            if sqe.buf_index != 0 || end.is_none_or(|end| end > len) {
                return Err(Errno::FAULT);
            }
            one
        }
        _ => one,
    };
    let flags = sqe.op_flags;
    Ok(Request::Transfer(Transfer { raw: sqe.fd, direction, buffers, offset: sqe.off, flags }))
}

fn decode_poll(sqe: &Sqe) -> Result<Request, Errno> {
    if sqe.len != 0 || sqe.addr != 0 || sqe.off != 0 || sqe.buf_index != 0 {
        return Err(Errno::INVAL); // multishot and updates
    }
    let bits =
        if cfg!(target_endian = "big") { sqe.op_flags.rotate_left(16) } else { sqe.op_flags };
    Ok(Request::Poll { raw: sqe.fd, events: bits as u16 })
}

fn decode_cancel(sqe: &Sqe) -> Result<Request, Errno> {
    let flags = sqe.op_flags;
    let kinds = flags & CANCEL_KINDS;
    if flags & !(CANCEL_KINDS | abi::IORING_ASYNC_CANCEL_ALL) != 0
        || sqe.off != 0
        || kinds.count_ones() > 1
    {
        return Err(Errno::INVAL);
    }
    let victims = match kinds {
        abi::IORING_ASYNC_CANCEL_FD => Victims::Descriptor(sqe.fd),
        abi::IORING_ASYNC_CANCEL_ANY => Victims::Any,
        _ => Victims::UserData(sqe.addr),
    };
    // `ANY` means all, whether it says so or not.
    let of_all = abi::IORING_ASYNC_CANCEL_ALL | abi::IORING_ASYNC_CANCEL_ANY;
    Ok(Request::Cancel { victims, all: flags & of_all != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PERFORMED;
    use std::ptr;

    #[test]
    fn what_is_supported_is_decoded_and_nothing_else() {
        for code in 0..=u8::MAX {
            let opcode = Opcode(code);
            let result = decode(&Sqe::new(opcode, 0, 0, 0, 0), Some((0, 1)));
            assert_eq!(result.is_ok(), PERFORMED.contains(&opcode), "{opcode:?}: {result:?}");
        }
    }

    #[test]
    fn flags_that_are_not_there_are_refused() {
        let nop = Sqe::nop();
        assert!(decode(&nop.flags(sqe_flags::ASYNC), None).is_ok());
        for flags in [sqe_flags::LINK, sqe_flags::DRAIN, sqe_flags::FIXED_FILE] {
            assert!(matches!(decode(&nop.flags(flags), None), Err(Errno::INVAL)), "{flags}");
        }
        let read = Sqe::read(0, ptr::null_mut(), 0, 0).op_flags(1 << 30);
        assert!(matches!(decode(&read, None), Err(Errno::OPNOTSUPP)));
    }

    #[test]
    fn fixed_transfers_stay_within_the_registered_buffer() {
        let result = |addr: usize, len, index| {
            let addr = ptr::without_provenance_mut(addr);
            decode(&Sqe::read_fixed(0, addr, len, 0, index), Some((4096, 8192)))
        };
        for (addr, len) in [(4096, 8192), (4096, 0), (12_287, 1), (12_288, 0)] {
            assert!(result(addr, len, 0).is_ok(), "{addr} {len}");
        }
        for (addr, len) in [(4095, 1), (4096, 8193), (12_288, 1), (usize::MAX, u32::MAX)] {
            assert!(matches!(result(addr, len, 0), Err(Errno::FAULT)), "{addr} {len}");
        }
        assert!(matches!(result(4096, 1, 1), Err(Errno::FAULT)));
        let unregistered = decode(&Sqe::read_fixed(0, ptr::null_mut(), 0, 0, 0), None);
        assert!(matches!(unregistered, Err(Errno::FAULT)));
    }
}
