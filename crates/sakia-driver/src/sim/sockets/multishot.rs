//! Multishot operations: accepting connections one after the other, receiving into provided buffers.
//!
//! Source: `io_uring_prep_recv_multishot(3)`, `io_uring_prep_multishot_accept(3)`.

use rustix::io::Errno;

use super::SocketId;
use super::op::receive;
use crate::call::MessageRooms;
use crate::sim::kernel::Kernel;
use crate::sim::memory::Lent;
use crate::sim::ops::{OpOutcome, note_data};

impl Kernel {
    /// Accepts one connection.
    pub(super) fn accept_next(&mut self, id: SocketId) -> OpOutcome {
        match self.accept(id) {
            Ok(Some((raw, _))) => {
                self.has_changed = true;
                OpOutcome::Shot { res: raw, buffer: None }
            }
            Ok(None) => OpOutcome::WouldBlock,
            Err(errno) => Err(errno).into(),
        }
    }

    /// Receives once, up to `len_max` bytes, into the oldest buffer of the group.
    ///
    /// # Safety
    ///
    /// - The buffers in the group are lent.
    pub(super) unsafe fn receive_next(
        &mut self,
        id: SocketId,
        group: u16,
        len_max: usize,
    ) -> OpOutcome {
        let Some(buffer) = self.groups.oldest(group) else {
            // A missing buffer matters only if there is data for it.
            return match receive(self, id, 1, 1, true) {
                Ok(None) => OpOutcome::WouldBlock,
                Ok(Some(received)) if received.bytes.is_empty() => OpOutcome::Done(0),
                Ok(Some(_)) => Err(Errno::NOBUFS).into(),
                Err(errno) => Err(errno).into(),
            };
        };
        let received = match receive(self, id, buffer.len as usize, len_max, false) {
            Ok(Some(received)) => received,
            Ok(None) => return OpOutcome::WouldBlock,
            Err(errno) => return Err(errno).into(),
        };
        self.has_changed = true;
        if received.bytes.is_empty() {
            return OpOutcome::Done(0);
        }
        self.groups.take_oldest(group);
        // SAFETY: the buffer was in the group, so it is lent until the completion that names it.
        unsafe { Lent::from(buffer).fill(&received.bytes) };
        note_data(self, "  received {} bytes {x}", &received.bytes);
        OpOutcome::Shot { res: received.bytes.len() as i32, buffer: Some(buffer.id) }
    }

    /// Receives one message into the oldest buffer of the group, behind these rooms.
    ///
    /// # Safety
    ///
    /// - The buffers in the group are lent.
    pub(super) unsafe fn receive_next_message(
        &mut self,
        id: SocketId,
        group: u16,
        rooms: MessageRooms,
    ) -> OpOutcome {
        if self.sockets.has_no_more_datagrams(id) {
            return OpOutcome::Done(0);
        }
        let Some(buffer) = self.groups.oldest(group) else {
            return match receive(self, id, 1, 1, true) {
                Ok(None) => OpOutcome::WouldBlock,
                Ok(Some(_)) => Err(Errno::NOBUFS).into(),
                Err(errno) => Err(errno).into(),
            };
        };
        let Some(room) = (buffer.len as usize).checked_sub(rooms.payload_at()) else {
            return Err(Errno::FAULT).into();
        };
        let received = match receive(self, id, room, room, false) {
            Ok(Some(received)) => received,
            Ok(None) => return OpOutcome::WouldBlock,
            Err(errno) => return Err(errno).into(),
        };
        self.has_changed = true;
        note_data(self, "  received {} bytes {x}", &received.bytes);
        let all = received.into_buffer(self, rooms);
        self.groups.take_oldest(group);
        // SAFETY: the buffer was in the group, so it is lent until the completion that names it.
        unsafe { Lent::from(buffer).fill(&all) };
        OpOutcome::Shot { res: all.len() as i32, buffer: Some(buffer.id) }
    }
}
