//! Operations that go on: accepting one connection after the other, receiving whenever there is something.
//!
//! Such an operation stays in its watch, which epoll goes on watching (level-triggered), so that a
//! message costs one `recv(2)` and its share of a wait. A receive that did not fill its buffer found the
//! end of what was there, or epoll tells; nothing is asked twice.
//!
//! Each time it is looked after it takes so much and no more, so that one peer that always sends keeps
//! nobody else waiting. What it leaves epoll reports again.
//!
//! Source: `io_uring_prep_recv_multishot(3)`, `io_uring_prep_multishot_accept(3)`.

use linux_raw_sys::io_uring::{IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, IORING_CQE_F_MORE};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_ring::CqeFlags;

use super::transfer::Try;
use crate::call::{Call, failed};
use crate::groups::Groups;
use crate::sys::{DONT_WAIT, abi, register, retry, syscall};

/// Completions of one operation each time that it is looked after.
const SHOTS_MAX: usize = 32;

/// Flags of a completion with more to come.
pub(super) const MORE: CqeFlags = CqeFlags(IORING_CQE_F_MORE);

/// Takes what is there, as far as `room` completions, and calls `post` for each. `is_own` says that this
/// backend made the socket.
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
        Call::RecvMany { raw, group, flags } => unsafe {
            receive(groups, raw, group, flags, room, post)
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
        let Some(buffer) = groups.oldest(group) else {
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
                groups.take_oldest(group);
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

/// What a receive without a buffer comes to: that matters only where there is something to put in it.
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

/// `recv(2)` without waiting.
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
