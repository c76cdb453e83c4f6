//! Datagrams in batches, by plain calls that do not wait.
//!
//! A ring has no `recvmmsg(2)` and no `sendmmsg(2)`: there each datagram is an entry with a completion, which
//! costs more than its share of a plain call for many. So one plain call moves the datagrams that have
//! arrived, or those that the socket has room for. Waiting is left to operations.
//!
//! A single datagram is sent by a plain call, too: that takes no entry and no completion, and leaves the
//! turn's enter less to do.
//!
//! Source: `recvmmsg(2)`, `sendmmsg(2)`, `sendto(2)`.

use std::io;

use rustix::io::Errno;
use sakia_ring::IoVec;

use crate::address::{AddressRoom, SocketAddress};
use crate::buf::{IoBuf, IoBufMut, initialize};
use crate::call::{Function, System, word};
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode};
use crate::fd::Fd;
use crate::handle::Handle;
use crate::ops::{CONTROL_TRUNCATED, Received, TRUNCATED, transfer_len};
use crate::sys::{DONT_WAIT, Message, NO_SIGNAL};

/// The maximum number of datagrams in one call.
const BATCH_MAX: usize = 64;

/// `struct mmsghdr`.
#[repr(C)]
struct Header {
    message: Message,
    /// The number of bytes of the datagram that were moved.
    len: u32,
}

/// The kernel's arguments for one batch, kept for the next batch because they are large.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The bytes of each datagram.
    parts: Vec<IoVec>,
    headers: Vec<Header>,
    /// Room for the senders' addresses. It still holds those of an earlier batch.
    names: Vec<AddressRoom>,
}

impl Handle {
    /// Receives datagrams that have arrived at the socket `fd`, one into each buffer from the first on, by a
    /// plain call. Appends the facts about each to `received`, and returns their number. `None`: the rules,
    /// this turn's plain calls or the backend do not allow the call.
    ///
    /// An empty `Vec` is filled up to its capacity. At most the first 64 buffers are used, and only those
    /// before one without room.
    ///
    /// # Errors
    /// As [`recv_from`](Handle::recv_from): the socket's pending error, which the call clears (`SO_ERROR`).
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    #[doc(alias = "recvmmsg")]
    pub fn recv_batch_now<T: IoBufMut>(
        &self,
        fd: &Fd,
        bufs: &mut [T],
        received: &mut Vec<Received>,
    ) -> io::Result<Option<usize>> {
        let count = bufs.iter().take(BATCH_MAX).take_while(|buf| buf.bytes_room() > 0).count();
        let bufs = &mut bufs[..count];
        if !self.may_move_batch(fd, OpKind::Recv) {
            return Ok(None);
        }
        if !self.shared.core.borrow().fills() {
            bufs.iter_mut().for_each(initialize);
        }
        let part = |buf: &mut T| IoVec {
            base: buf.stable_mut_ptr(),
            len: transfer_len(buf.bytes_room()) as usize,
        };
        let mut scratch = self.shared.batch.take();
        let Scratch { parts, headers, names } = &mut scratch;
        parts.extend(bufs.iter_mut().map(part));
        names.resize_with(names.len().max(count), AddressRoom::new);
        let rooms = names.iter_mut().map(|name| (name.pointers().0, AddressRoom::BYTES));
        headers.extend(describe(rooms, parts));
        // SAFETY: each header names a buffer and the room for an address, which are borrowed for the call.
        let moved = unsafe { self.move_batch(OpKind::Recv, fd, headers, DONT_WAIT) };
        received.reserve(moved.unwrap_or(0));
        let told = names.iter().zip(&*parts).zip(&*headers);
        for (buf, ((name, part), header)) in bufs.iter_mut().zip(told).take(moved.unwrap_or(0)) {
            let Header { message, len } = header;
            let len = (*len as usize).min(part.len);
            // SAFETY: the call has received `len` bytes, so they were written, or were initialized before;
            // the buffer has room for them.
            unsafe { buf.set_init(len) };
            let from = name.address_of(message.name_len);
            received.push(Received {
                len,
                from,
                is_truncated: message.flags & TRUNCATED != 0,
                is_control_truncated: message.flags & CONTROL_TRUNCATED != 0,
                datagram_len: len,
            });
        }
        self.keep(scratch);
        match moved {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN) => Ok(Some(0)),
            // A seccomp filter answers `EPERM` to a call that it does not know.
            Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends datagrams to their addresses by a plain call, from the first on, until the socket has no more
    /// room or a datagram fails. Returns the number sent. An operation for the next datagram reports why it
    /// was not sent. `None`: the rules, this turn's plain calls or the backend do not allow the call.
    ///
    /// At most the first 64 are sent. A pending error of the socket is lost if it comes up between two
    /// datagrams, unless the socket has a peer.
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    #[doc(alias = "sendmmsg")]
    pub fn send_batch_now<T: IoBuf>(
        &self,
        fd: &Fd,
        messages: &[(T, SocketAddress)],
    ) -> Option<usize> {
        if !self.may_move_batch(fd, OpKind::Send) {
            return None;
        }
        let messages = &messages[..messages.len().min(BATCH_MAX)];
        let part = |(buf, _): &(T, SocketAddress)| IoVec {
            base: buf.stable_ptr().cast_mut(),
            len: transfer_len(buf.bytes_len()) as usize,
        };
        let names = messages.iter().map(|(_, to)| {
            let name = to.as_bytes();
            (name.as_ptr().cast_mut(), name.len() as u32)
        });
        let mut scratch = self.shared.batch.take();
        let Scratch { parts, headers, .. } = &mut scratch;
        parts.extend(messages.iter().map(part));
        headers.extend(describe(names, parts));
        // SAFETY: each header names a buffer and an address, which are borrowed for the call, and which it
        // only reads.
        let moved = unsafe { self.move_batch(OpKind::Send, fd, headers, DONT_WAIT | NO_SIGNAL) };
        self.keep(scratch);
        match moved {
            Err(Errno::OPNOTSUPP | Errno::PERM) => None,
            moved => Some(moved.unwrap_or(0)),
        }
    }

    /// Sends one datagram to its address, or to the peer if that is unnamed, by a plain call. `None`: it was
    /// not sent, because the socket has no room for it, or because the rules, this turn's plain calls or the
    /// backend do not allow the call. Then an operation sends it, or reports the reason.
    ///
    /// # Errors
    /// As [`send_to`](Handle::send_to): the socket's pending error, which the call clears (`SO_ERROR`).
    ///
    /// # Panics
    /// When the descriptor belongs to another driver.
    #[doc(alias = "sendto")]
    pub fn send_datagram_now<T: IoBuf>(
        &self,
        fd: &Fd,
        buf: &T,
        to: &SocketAddress,
    ) -> Option<io::Result<usize>> {
        if !self.may_move_batch(fd, OpKind::Send) {
            return None;
        }
        let len = transfer_len(buf.bytes_len()) as usize;
        let name = to.as_bytes();
        let name_at = if name.is_empty() { 0 } else { word(name.as_ptr()) };
        let flags = (DONT_WAIT | NO_SIGNAL) as usize;
        let args = [word(buf.stable_ptr()), len, flags, name_at, name.len()];
        let call = System::on(Function::Sendto, fd.raw(), args);
        let mut core = self.shared.core.borrow_mut();
        // SAFETY: the call reads the buffer and the address, which are borrowed for it; `fd` keeps the
        // descriptor open.
        match unsafe { core.act_now(OpKind::Send, call, CallMode::Blocking) } {
            Attempt::Done(count) if count >= 0 => Some(Ok((count as usize).min(len))),
            // A seccomp filter answers `EPERM` to a call that it does not know.
            Attempt::Done(res) => match Errno::from_raw_os_error(-res) {
                Errno::AGAIN | Errno::OPNOTSUPP | Errno::PERM | Errno::INTR => None,
                errno => Some(Err(errno.into())),
            },
            Attempt::WouldBlock | Attempt::Unsupported => None,
        }
    }

    /// Keeps the memory of a batch for the next one.
    fn keep(&self, mut scratch: Scratch) {
        scratch.parts.clear();
        scratch.headers.clear();
        self.shared.batch.set(scratch);
    }

    fn may_move_batch(&self, fd: &Fd, kind: OpKind) -> bool {
        self.check(fd);
        // The simulated kernel has no such calls.
        let is_possible = !self.queues_all && !fd.is_simulated() && !fd.is_closing();
        is_possible && self.shared.core.borrow_mut().may_act_now(&[kind])
    }

    /// Moves datagrams, and returns their number.
    ///
    /// # Errors
    /// As `recvmmsg(2)` and `sendmmsg(2)`; `EOPNOTSUPP`: the kernel has no such call.
    ///
    /// # Safety
    ///
    /// - The headers name memory that is lent for the call; a receive may write to it.
    unsafe fn move_batch(
        &self,
        kind: OpKind,
        fd: &Fd,
        headers: &mut [Header],
        flags: u32,
    ) -> Result<usize, Errno> {
        let function = if kind == OpKind::Recv { Function::Recvmmsg } else { Function::Sendmmsg };
        let vector = word(headers.as_mut_ptr());
        let call = System::on(function, fd.raw(), [vector, headers.len(), flags as usize, 0]);
        let mut core = self.shared.core.borrow_mut();
        // SAFETY: the caller's promise; the headers outlive the call, and `fd` keeps the descriptor open.
        match unsafe { core.act_now(kind, call, CallMode::Blocking) } {
            Attempt::Done(count) if count >= 0 => {
                let count = (count as usize).min(headers.len());
                core.spend_calls(count.saturating_sub(1));
                Ok(count)
            }
            Attempt::Done(res) => Err(Errno::from_raw_os_error(-res)),
            Attempt::WouldBlock | Attempt::Unsupported => Err(Errno::OPNOTSUPP),
        }
    }
}

/// Returns the headers of datagrams with these addresses (or rooms for addresses) and parts.
fn describe(
    names: impl Iterator<Item = (*mut u8, u32)>,
    parts: &mut [IoVec],
) -> impl Iterator<Item = Header> {
    let header = |(name, part)| Header { message: Message::new(name, part), len: 0 };
    names.zip(parts.iter_mut().map(|part| &raw mut *part)).map(header)
}
