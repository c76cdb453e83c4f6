//! Which entries are for operations that go on, for the backends that are not the kernel's ring.
//!
//! Source: `io_uring_prep_recv_multishot(3)`, `io_uring_prep_multishot_accept(3)`.

use linux_raw_sys::io_uring::{
    IORING_ACCEPT_MULTISHOT, IORING_RECV_MULTISHOT, IORING_RECVSEND_POLL_FIRST,
};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_ring::{Opcode, Sqe, sqe_flags};

use crate::sys::DONT_WAIT;

const ACCEPT_MULTISHOT: u16 = IORING_ACCEPT_MULTISHOT as u16;
/// A hint.
const POLL_FIRST: u16 = IORING_RECVSEND_POLL_FIRST as u16;
const RECV_MULTISHOT: u16 = IORING_RECV_MULTISHOT as u16;
/// Flags that make no sense for a receive that goes on: it waits for some bytes, and takes them.
const REFUSED: u32 = DONT_WAIT | RecvFlags::WAITALL.bits() | RecvFlags::PEEK.bits();

/// What goes on.
pub(crate) enum Asked {
    /// Accepting, without telling addresses.
    Accept,
    /// Receiving into the buffers of a group, with these `MSG_*`.
    Recv { group: u16, flags: u32 },
}

/// Checks what an entry for a socket asks for beside the operation. `None`: one completion.
///
/// # Errors
/// `EINVAL`: what is not there, or makes no sense.
pub(crate) fn decode(sqe: &Sqe) -> Result<Option<Asked>, Errno> {
    let Sqe { opcode, ioprio, flags, .. } = *sqe;
    let is_multishot = match opcode {
        Opcode::ACCEPT => ioprio & ACCEPT_MULTISHOT != 0,
        Opcode::RECV => ioprio & RECV_MULTISHOT != 0,
        _ => false,
    };
    let known = match opcode {
        Opcode::ACCEPT => ACCEPT_MULTISHOT,
        Opcode::RECV => RECV_MULTISHOT | POLL_FIRST,
        Opcode::SEND | Opcode::SENDMSG | Opcode::RECVMSG => POLL_FIRST,
        _ => 0,
    };
    let selects = flags & sqe_flags::BUFFER_SELECT != 0;
    if ioprio & !known != 0 || selects != (is_multishot && opcode == Opcode::RECV) {
        return Err(Errno::INVAL);
    }
    if !is_multishot {
        return Ok(None);
    }
    if sqe.addr != 0 || sqe.off != 0 || sqe.len != 0 || sqe.file_index != 0 {
        return Err(Errno::INVAL);
    }
    match opcode {
        Opcode::ACCEPT => Ok(Some(Asked::Accept)),
        _ if sqe.op_flags & REFUSED != 0 => Err(Errno::INVAL),
        _ => Ok(Some(Asked::Recv { group: sqe.buf_index, flags: sqe.op_flags })),
    }
}
