//! Outcomes as results of C.

use std::mem;
use std::ptr;

use sakia_driver::{
    Buffer, FileHandle, Lent, Outcome, SocketAddress, StatfsResult, StatxResult, Value,
};

use crate::file::sakia_file;
use crate::guard::errno_of;
use crate::interface::{SAKIA_MORE, sakia_result};
use crate::message;
use crate::pending::{IN_TABLE, Place, Waiting};

/// Returns an outcome as the program gets it, and writes what its request asked for. `find` looks a token up
/// in the table of requests, where it stays if `more` outcomes will follow.
///
/// # Safety
///
/// - The table is that of the loop or queue that the outcome is of.
#[inline(always)]
pub(crate) unsafe fn answer(
    find: impl FnOnce(u64, bool) -> Option<Waiting>,
    memory: impl FnOnce(&Lent) -> *const u8,
    outcome: Outcome,
) -> sakia_result {
    let value = match &outcome.result {
        Ok(number) => *number as i64,
        Err(error) => -i64::from(errno_of(error).raw_os_error()),
    };
    let has_nothing = matches!(outcome.value, Value::None | Value::Buffer(Buffer::Foreign(_)));
    if has_nothing && !outcome.more && outcome.token & IN_TABLE == 0 {
        let Outcome { token, value: nothing, .. } = outcome;
        // Neither has anything to drop, which the compiler does not see.
        mem::forget(nothing);
        return sakia_result { token, value, ..sakia_result::NOTHING };
    }
    // SAFETY: the caller's promise.
    unsafe { rest(find, memory, outcome, value) }
}

/// # Safety
///
/// - As for [`answer`].
#[cold]
#[inline(never)]
unsafe fn rest(
    find: impl FnOnce(u64, bool) -> Option<Waiting>,
    memory: impl FnOnce(&Lent) -> *const u8,
    outcome: Outcome,
    mut value: i64,
) -> sakia_result {
    let Outcome { mut token, more, value: brought, .. } = outcome;
    let mut place = None;
    if token & IN_TABLE != 0
        && let Some(waiting) = find(token, more)
    {
        (token, place) = (waiting.token, waiting.place);
    }
    let mut made: Option<FileHandle> = None;
    let mut lent = None;
    // SAFETY: the place is the program's memory, which is the library's until now: the header's contract.
    unsafe {
        match (brought, place) {
            (Value::File(file), _) => made = Some(file),
            (Value::Lent(bytes), _) => lent = Some((memory(&bytes), bytes.to_bits())),
            (Value::Connection(connection), place) => {
                let (file, peer) = *connection;
                value = address(&peer, place);
                made = Some(file);
            }
            (Value::Stat(stat), Some(Place::Bytes(to, _))) => {
                to.cast::<StatxResult>().write_unaligned(*stat);
            }
            (Value::StatFs(facts), Some(Place::Bytes(to, _))) => {
                to.cast::<StatfsResult>().write_unaligned(*facts);
            }
            (Value::Message(message, _), Some(Place::Message(to))) => {
                let (received, control) = *message;
                message::fill(to, &received, control);
            }
            _ => {}
        }
    }
    let file = made.map_or(ptr::null_mut(), sakia_file::given);
    let flags = if more { SAKIA_MORE } else { 0 };
    let (memory, lent) = lent.unwrap_or((ptr::null(), 0));
    sakia_result { token, value, file, flags, reserved: 0, memory: memory.cast(), lent }
}

impl sakia_result {
    /// A result without anything.
    const NOTHING: Self = Self {
        token: 0,
        value: 0,
        file: ptr::null_mut(),
        flags: 0,
        reserved: 0,
        memory: ptr::null(),
        lent: 0,
    };
}

/// Writes the address of a peer, as far as it fits, and returns its length.
///
/// # Safety
///
/// - The place is valid for writes.
unsafe fn address(peer: &SocketAddress, place: Option<Place>) -> i64 {
    let bytes = peer.as_bytes();
    if let Some(Place::Bytes(to, len)) = place {
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(len)) };
    }
    bytes.len() as i64
}
