//! Multishot operations: accepting one connection after the other, and receiving repeatedly.
//!
//! Such an operation stays in its watch, which epoll continues to watch (level-triggered), so that a message
//! costs one `recv(2)` and its share of a wait. A receive that did not fill its buffer found the end of the
//! data, or epoll reports more; no call is made twice.
//!
//! Each time it is handled it takes a limited amount, so that a peer that sends continuously delays no
//! other. Epoll reports the rest again.
//!
//! Source: `io_uring_prep_recv_multishot(3)`, `io_uring_prep_multishot_accept(3)`.

use std::ptr;

use linux_raw_sys::io_uring::{IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, IORING_CQE_F_MORE};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_ring::{CqeFlags, IoVec};

use super::transfer::Try;
use crate::call::{Call, MessageRooms, failed, word};
use crate::groups::Groups;
use crate::sys::{DONT_WAIT, Message, abi, register, retry, syscall};

/// The limit of completions of one operation each time that it is handled.
const SHOTS_MAX: usize = 32;

/// Flags of a completion with more to come.
pub(super) const MORE: CqeFlags = CqeFlags(IORING_CQE_F_MORE);

/// Takes the available data, in at most `room` completions, and calls `post` for each. `is_own` says that
/// this backend made the socket.
///
/// # Safety
///
/// - The buffers in the group are lent, and so is the descriptor.
pub(super) unsafe fn shoot(
    call: &Call,
    groups: &mut Groups,
    is_own: bool,
    room: usize,
    mut post: impl FnMut(i32, CqeFlags),
) -> Try {
    let room = room.min(SHOTS_MAX);
    match *call {
        _ if room == 0 => Try::WouldBlock,
        Call::AcceptMany(call) => {
            let mut left = room;
            let post = |raw| {
                post(raw, MORE);
                left -= 1;
                left > 0
            };
            // SAFETY: the caller's promise.
            unsafe { call.accept_all(is_own, post) }
        }
        // SAFETY: the caller's promise.
        Call::RecvMany { raw, group, flags, message } => unsafe {
            match message {
                None => receive(groups, raw, group, flags, room, post),
                Some(rooms) => receive_messages(groups, rooms, raw, group, flags, room, post),
            }
        },
        _ => unreachable!("{call:?} has one completion"),
    }
}

/// # Safety
///
/// - The buffers in the group are lent, and so is the descriptor.
unsafe fn receive(
    groups: &mut Groups,
    raw: i32,
    group: u16,
    flags: u32,
    room: usize,
    mut post: impl FnMut(i32, CqeFlags),
) -> Try {
    for _ in 0..room {
        let Some(buffer) = groups.newest(group) else {
            // SAFETY: the caller's promise.
            return unsafe { without_buffer(raw) };
        };
        // SAFETY: the buffer is in the group, so it is lent: the caller's promise. It leaves the group
        // before a completion names it.
        match unsafe { recv(raw, buffer.addr, buffer.len as usize, flags) } {
            Err(Errno::AGAIN) => return Try::WouldBlock,
            Err(errno) => return Try::Done(failed(errno)),
            Ok(0) => return Try::Done(0),
            Ok(count) => {
                groups.take_newest(group);
                let number = u32::from(buffer.id) << IORING_CQE_BUFFER_SHIFT;
                // The kernel moves no more than `MAX_RW_BYTES` at a time.
                post(count as i32, CqeFlags(number | IORING_CQE_F_BUFFER | IORING_CQE_F_MORE));
                if count < buffer.len as usize {
                    return Try::WouldBlock;
                }
            }
        }
    }
    Try::WouldBlock
}

/// Receives messages into buffers of the group until none is left: nothing else shows the end of the data.
///
/// # Safety
///
/// - The buffers in the group are lent, and so is the descriptor.
unsafe fn receive_messages(
    groups: &mut Groups,
    rooms: MessageRooms,
    raw: i32,
    group: u16,
    flags: u32,
    room: usize,
    mut post: impl FnMut(i32, CqeFlags),
) -> Try {
    for _ in 0..room {
        let Some(buffer) = groups.newest(group) else {
            // SAFETY: the caller's promise.
            return match unsafe { without_buffer(raw) } {
                Try::Done(0) => Try::Done(failed(Errno::NOBUFS)), // an empty one
                tried => tried,
            };
        };
        let Some(payload) = (buffer.len as usize).checked_sub(rooms.payload_at()) else {
            return Try::Done(failed(Errno::FAULT));
        };
        let at = |offset: usize| {
            ptr::with_exposed_provenance_mut::<u8>(buffer.addr as usize).wrapping_add(offset)
        };
        let mut part = IoVec { base: at(rooms.payload_at()), len: payload };
        let name = (at(MessageRooms::NAME_AT), rooms.name);
        let mut message = Message::new(name, &raw mut part);
        (message.control, message.control_len) = (at(rooms.control_at()), rooms.control as usize);
        let header = word(&raw mut message);
        let args = [register(raw), header, (flags | DONT_WAIT) as usize, 0, 0, 0];
        // SAFETY: the message and its part outlive the call. They name the buffer, which is in the group, so
        // it is lent: the caller's promise; and its parts lie within it, as was checked just above.
        let count = match retry(|| unsafe { syscall(abi::__NR_recvmsg, args) }) {
            Err(Errno::AGAIN) => return Try::WouldBlock,
            Err(errno) => return Try::Done(failed(errno)),
            Ok(count) => count,
        };
        let facts = [message.name_len, message.control_len as u32, count as u32, message.flags];
        // SAFETY: the header lies at the front of the buffer, which is lent; it leaves the group before a
        // completion names it.
        unsafe { at(0).cast::<[u32; 4]>().write_unaligned(facts) };
        groups.take_newest(group);
        let number = u32::from(buffer.id) << IORING_CQE_BUFFER_SHIFT;
        let flags = CqeFlags(number | IORING_CQE_F_BUFFER | IORING_CQE_F_MORE);
        post((rooms.payload_at() + count) as i32, flags);
    }
    Try::WouldBlock
}

/// Returns the result of a receive without a buffer, which matters only if there is data.
///
/// # Safety
///
/// - The descriptor is lent.
unsafe fn without_buffer(raw: i32) -> Try {
    let mut byte = 0_u8;
    let addr = (&raw mut byte).expose_provenance() as u64;
    // SAFETY: the byte outlives the call; the descriptor is the caller's promise.
    match unsafe { recv(raw, addr, 1, RecvFlags::PEEK.bits()) } {
        Err(Errno::AGAIN) => Try::WouldBlock,
        Err(errno) => Try::Done(failed(errno)),
        Ok(0) => Try::Done(0),
        Ok(_) => Try::Done(failed(Errno::NOBUFS)),
    }
}

/// Calls `recv(2)` without blocking.
///
/// # Safety
///
/// - There are `len` bytes at `addr`, which are lent, and so is the descriptor.
unsafe fn recv(raw: i32, addr: u64, len: usize, flags: u32) -> Result<usize, Errno> {
    let flags = (flags | DONT_WAIT) as usize;
    let args = [register(raw), addr as usize, len, flags, 0, 0];
    // SAFETY: the kernel writes to the memory of the caller's promise, and nowhere else.
    retry(|| unsafe { syscall(abi::__NR_recvfrom, args) })
}
