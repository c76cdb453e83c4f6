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

use super::socket::Listener;
use super::transfer::{Try, failed};
use crate::call::{Call, SocketCall};
use crate::groups::Groups;
use crate::sys::{DONT_WAIT, abi, register, retry, syscall};

/// Completions of one operation each time that it is looked after.
const SHOTS_MAX: usize = 32;

/// An operation with any number of completions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Multishot {
    /// Accepts connections, and tells nobody's address.
    Accept(SocketCall),
    /// Receives into the buffers of a group.
    Recv { raw: i32, group: u16, flags: u32 },
}

/// What looking after one came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It waits for epoll, which tells if there is something left.
    Waits,
    /// It is over, with this result.
    Over(i32),
    /// This descriptor cannot be tried without a risk to block.
    Unable,
}

impl Multishot {
    /// The descriptor acted on.
    pub(super) fn raw(&self) -> i32 {
        match self {
            Self::Accept(call) => call.raw,
            Self::Recv { raw, .. } => *raw,
        }
    }

    /// Whether what it answers are descriptors.
    pub(super) fn accepts(&self) -> bool {
        matches!(self, Self::Accept(_))
    }

    /// Whether it needs a group that is not there.
    pub(super) fn lacks_group(&self, groups: &Groups) -> bool {
        matches!(self, Self::Recv { group, .. } if !groups.contains(*group))
    }

    /// What a thread does where it cannot be tried.
    pub(super) fn call(self) -> Call {
        match self {
            Self::Accept(call) => Call::Socket(call),
            Self::Recv { .. } => unreachable!("every socket can be asked not to wait"),
        }
    }

    /// Takes what is there, as far as `room` completions, and calls `post` for each. `is_own` says that
    /// this backend made the socket.
    ///
    /// # Safety
    ///
    /// - The buffers in the group are lent, and so is the descriptor.
    pub(super) unsafe fn shoot(
        &self,
        groups: &mut Groups,
        is_own: bool,
        room: usize,
        mut post: impl FnMut(i32, CqeFlags),
    ) -> Step {
        let room = room.min(SHOTS_MAX);
        match *self {
            _ if room == 0 => Step::Waits,
            Self::Accept(call) => {
                let mut left = room;
                let mut post = |raw| {
                    post(raw, CqeFlags(IORING_CQE_F_MORE));
                    left -= 1;
                    left > 0
                };
                // SAFETY: the caller's promise.
                match unsafe { (Listener { call, is_own }).accept_all(&mut post) } {
                    Try::WouldBlock | Try::Done(0..) => Step::Waits,
                    Try::Done(res) => Step::Over(res),
                    Try::Unable => Step::Unable,
                }
            }
            // SAFETY: the caller's promise.
            Self::Recv { raw, group, flags } => unsafe {
                receive(groups, raw, group, flags, room, &mut post)
            },
        }
    }
}

/// Flags of a completion with more to come, as those of a connection that a thread accepted.
pub(super) fn more() -> CqeFlags {
    CqeFlags(IORING_CQE_F_MORE)
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
    post: &mut dyn FnMut(i32, CqeFlags),
) -> Step {
    for _ in 0..room {
        let Some(buffer) = groups.oldest(group) else {
            // SAFETY: the caller's promise.
            return unsafe { without_buffer(raw) };
        };
        // SAFETY: the buffer is in the group, so it is lent: the caller's promise. It leaves the group
        // before a completion names it.
        match unsafe { recv(raw, buffer.addr, buffer.len as usize, flags) } {
            Err(Errno::AGAIN) => return Step::Waits,
            Err(errno) => return Step::Over(failed(errno)),
            Ok(0) => return Step::Over(0),
            Ok(count) => {
                groups.take_oldest(group);
                let number = u32::from(buffer.id) << IORING_CQE_BUFFER_SHIFT;
                // The kernel moves no more than `MAX_RW_BYTES` at a time.
                post(count as i32, CqeFlags(number | IORING_CQE_F_BUFFER | IORING_CQE_F_MORE));
                if count < buffer.len as usize {
                    return Step::Waits;
                }
            }
        }
    }
    Step::Waits
}

/// What a receive without a buffer comes to: that matters only where there is something to put in it.
///
/// # Safety
///
/// - The descriptor is lent.
unsafe fn without_buffer(raw: i32) -> Step {
    let mut byte = 0_u8;
    let addr = (&raw mut byte).expose_provenance() as u64;
    // SAFETY: the byte outlives the call; the descriptor is the caller's promise.
    match unsafe { recv(raw, addr, 1, RecvFlags::PEEK.bits()) } {
        Err(Errno::AGAIN) => Step::Waits,
        Err(errno) => Step::Over(failed(errno)),
        Ok(0) => Step::Over(0),
        Ok(_) => Step::Over(failed(Errno::NOBUFS)),
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
