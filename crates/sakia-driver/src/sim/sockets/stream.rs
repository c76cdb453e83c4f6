//! Bytes on connected streams.

use rustix::io::Errno;

use super::{Holder, Role, SocketId, Sockets, Transport};
use crate::address::Domain;

/// The state of a stream for a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// No bytes can be sent.
    Refused(Errno),
    /// The peer is gone, and its machine will answer with a reset. Sent bytes are lost.
    Lost,
    /// This many bytes can be sent.
    Bytes(usize),
}

impl Sockets {
    /// Returns the other end of a stream.
    fn peer(&self, id: SocketId) -> Option<SocketId> {
        let socket = self.get(id);
        match socket.role {
            Role::Connected(peer) if socket.transport == Transport::Stream => Some(peer),
            _ => None,
        }
    }

    /// Returns whether the connection was reset: the peer ended with unread bytes or before it was accepted,
    /// or a fault reset it.
    pub(super) fn is_reset(&self, id: SocketId) -> bool {
        let is_left = |peer| {
            let its = self.get(peer);
            let was_accepted = matches!(its.holder, Holder::File(_));
            self.is_gone(peer) && (!its.bytes.is_empty() || !was_accepted)
        };
        self.get(id).was_reset || self.peer(id).is_some_and(is_left)
    }

    /// Returns whether the other end is gone.
    pub(super) fn has_lost_peer(&self, id: SocketId) -> bool {
        self.peer(id).is_some_and(|peer| self.is_gone(peer))
    }

    /// Returns whether no more data will arrive.
    pub(super) fn has_input_ended(&self, id: SocketId) -> bool {
        let has_ended = |peer| self.is_gone(peer) || self.get(peer).sends_ended;
        self.get(id).receives_ended || self.peer(id).is_none_or(has_ended) || self.is_reset(id)
    }

    /// Returns whether a receive would not wait.
    pub(super) fn has_input(&self, id: SocketId) -> bool {
        !self.get(id).bytes.is_empty() || self.has_input_ended(id)
    }

    /// Returns whether a send would not wait.
    pub(super) fn has_room(&self, id: SocketId) -> bool {
        self.room(id) != Room::Bytes(0)
    }

    fn room(&self, id: SocketId) -> Room {
        let socket = self.get(id);
        let is_unix = socket.domain == Domain::UNIX;
        let Some(peer) = self.peer(id) else {
            return Room::Refused(if is_unix { Errno::NOTCONN } else { Errno::PIPE });
        };
        if self.is_reset(id) && !socket.has_told_reset && !is_unix {
            return Room::Refused(Errno::CONNRESET);
        }
        let is_shut = is_unix && (self.is_gone(peer) || self.get(peer).receives_ended);
        if socket.sends_ended || self.is_reset(id) || socket.was_answered || is_shut {
            return Room::Refused(Errno::PIPE);
        }
        if self.is_gone(peer) {
            return Room::Lost;
        }
        Room::Bytes(self.capacity.saturating_sub(self.get(peer).bytes.len()))
    }

    /// Returns how many of `len` bytes a send would take now. `None` if it has to wait.
    ///
    /// # Errors
    /// `ECONNRESET`, once; `EPIPE`, `ENOTCONN`.
    pub(super) fn stream_room(&mut self, id: SocketId, len: usize) -> Result<Option<usize>, Errno> {
        match self.room(id) {
            Room::Refused(errno) => {
                self.get_mut(id).has_told_reset |= errno == Errno::CONNRESET;
                Err(errno)
            }
            Room::Bytes(0) if len > 0 => Ok(None),
            Room::Bytes(room) => Ok(Some(len.min(room))),
            Room::Lost => Ok(Some(len)),
        }
    }

    /// Sends bytes for which there is room.
    pub(super) fn stream_send(&mut self, id: SocketId, bytes: &[u8]) {
        match (self.room(id), self.peer(id)) {
            (Room::Bytes(room), Some(peer)) => {
                assert!(bytes.len() <= room, "{} bytes for {room}", bytes.len());
                self.get_mut(peer).bytes.extend(bytes);
            }
            _ => self.get_mut(id).was_answered |= !bytes.is_empty(),
        }
    }

    /// Takes up to `len_max` bytes, or copies them. `None` if a receiver has to wait; no bytes at the end.
    ///
    /// # Errors
    /// `ECONNRESET`, once; `ENOTCONN`, or `EINVAL` within the machine.
    pub(super) fn stream_receive(
        &mut self,
        id: SocketId,
        len_max: usize,
        peeks: bool,
    ) -> Result<Option<Vec<u8>>, Errno> {
        if self.peer(id).is_none() {
            let is_unix = self.get(id).domain == Domain::UNIX;
            return Err(if is_unix { Errno::INVAL } else { Errno::NOTCONN });
        }
        if !self.has_input(id) {
            return Ok(None);
        }
        let is_reset = self.is_reset(id);
        let socket = self.get_mut(id);
        if socket.bytes.is_empty() && is_reset && !socket.has_told_reset {
            socket.has_told_reset = true;
            return Err(Errno::CONNRESET);
        }
        let len = socket.bytes.len().min(len_max);
        Ok(Some(if peeks {
            socket.bytes.iter().copied().take(len).collect()
        } else {
            socket.bytes.drain(..len).collect()
        }))
    }

    /// Resets a connection: data in transit is lost. Returns false if there is none.
    pub(in super::super) fn break_off(&mut self, id: SocketId) -> bool {
        let Some(peer) = self.peer(id).filter(|&peer| !self.is_gone(peer)) else { return false };
        if self.get(id).was_reset {
            return false;
        }
        for end in [id, peer] {
            let socket = self.get_mut(end);
            socket.was_reset = true;
            socket.bytes.clear();
        }
        true
    }
}
