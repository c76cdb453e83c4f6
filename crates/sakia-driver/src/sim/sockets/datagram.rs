//! Datagrams.

use rustix::io::Errno;

use super::{Role, SocketId, Sockets, Transport};
use crate::address::{Domain, SocketAddress};
use crate::sim::faults::FaultKind;

/// Maximum number of bytes of a datagram on the network.
const NETWORK_BYTES_MAX: usize = 65_507;

/// A datagram in a queue.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) from: SocketAddress,
    pub(super) bytes: Vec<u8>,
}

/// The effect of the network on a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Fate {
    Lost,
    Duplicated,
    /// It overtakes the one before it.
    Reordered,
}

impl Fate {
    /// Returns the fault of this fate.
    pub(in super::super) fn kind(self) -> FaultKind {
        match self {
            Self::Lost => FaultKind::DatagramLost,
            Self::Duplicated => FaultKind::DatagramDuplicated,
            Self::Reordered => FaultKind::DatagramReordered,
        }
    }
}

/// Returns the space that a datagram of this length takes: an empty one takes some, too.
pub(super) fn datagram_bytes(len: usize) -> usize {
    len.max(1)
}

/// The destination of a datagram.
enum Destination {
    To(SocketId),
    /// It is lost without an error.
    Nowhere,
    /// It is rejected, which the sender's next operation reports.
    Refused,
}

impl Sockets {
    /// Sends a datagram. Returns false if the sender has to wait.
    ///
    /// # Errors
    /// As `send(2)`.
    pub(super) fn datagram_send(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        to: Option<SocketAddress>,
    ) -> Result<bool, Errno> {
        let is_unix = self.get(id).domain == Domain::UNIX;
        let destination = self.destination(id, bytes.len(), to);
        if is_unix && to.is_none() && matches!(destination, Err(Errno::CONNREFUSED)) {
            // The peer is gone, which is reported once.
            self.get_mut(id).role = Role::Idle;
        }
        let destination = destination?;
        if let Some(errno) = self.get_mut(id).error.take() {
            return Err(errno);
        }
        if !is_unix {
            self.take_port(id)?;
        }
        match destination {
            Destination::To(target) if self.has_room_for_datagram(target, bytes.len()) => {
                let datagram = Datagram { from: self.get(id).local, bytes: bytes.to_vec() };
                self.deliver(target, datagram, is_unix);
            }
            Destination::To(_) if is_unix => return Ok(false),
            Destination::Refused => self.get_mut(id).error = Some(Errno::CONNREFUSED),
            Destination::To(_) | Destination::Nowhere => {}
        }
        Ok(true)
    }

    /// Returns whether a send of a datagram would not wait.
    pub(super) fn takes_datagram(
        &self,
        id: SocketId,
        len: usize,
        to: Option<SocketAddress>,
    ) -> bool {
        match self.destination(id, len, to) {
            Ok(Destination::To(target)) if self.get(id).domain == Domain::UNIX => {
                self.has_room_for_datagram(target, len)
            }
            _ => true,
        }
    }

    fn destination(
        &self,
        id: SocketId,
        len: usize,
        to: Option<SocketAddress>,
    ) -> Result<Destination, Errno> {
        let socket = self.get(id);
        let is_unix = socket.domain == Domain::UNIX;
        if socket.sends_ended {
            return Err(Errno::PIPE);
        }
        let len_max = if is_unix { self.capacity } else { NETWORK_BYTES_MAX };
        let is_too_long = datagram_bytes(len) > len_max;
        let to = match (to, &socket.role) {
            (Some(to), _) => to,
            (None, Role::Directed(to)) => *to,
            (None, Role::Connected(_)) if is_too_long => return Err(Errno::MSGSIZE),
            (None, Role::Connected(peer)) if self.is_gone(*peer) => return Err(Errno::CONNREFUSED),
            (None, Role::Connected(peer)) => return Ok(Destination::To(*peer)),
            (None, _) if is_unix => return Err(Errno::NOTCONN),
            (None, _) => return Err(Errno::DESTADDRREQ),
        };
        self.check_domain(id, &to)?;
        if is_too_long {
            return Err(Errno::MSGSIZE);
        }
        let from = socket.local;
        let takes = |target: SocketId| match &self.get(target).role {
            Role::Directed(peer) => *peer == from,
            Role::Connected(peer) => *peer == id,
            _ => true,
        };
        match self.find(socket.domain, Transport::Datagram, &to) {
            Some(target) if takes(target) && is_unix && self.get(target).receives_ended => {
                Err(Errno::PIPE)
            }
            Some(target) if takes(target) => Ok(Destination::To(target)),
            Some(_) if is_unix => Err(Errno::PERM),
            None if is_unix => Err(self.missing(&to)),
            _ if matches!(socket.role, Role::Directed(_)) => Ok(Destination::Refused),
            _ => Ok(Destination::Nowhere),
        }
    }

    /// Puts a datagram into a queue, unless the network changes its fate.
    fn deliver(&mut self, target: SocketId, datagram: Datagram, is_unix: bool) {
        let fate = self.fate.filter(|_| !is_unix);
        let queue = &mut self.get_mut(target).datagrams;
        match fate {
            Some(Fate::Lost) => {}
            Some(Fate::Duplicated) => queue.extend([datagram.clone(), datagram]),
            Some(Fate::Reordered) if !queue.is_empty() => queue.insert(queue.len() - 1, datagram),
            // There is no datagram to overtake.
            Some(Fate::Reordered) | None => return queue.push_back(datagram),
        }
        self.fate = None;
    }

    /// Returns whether receives were shut down, and no earlier datagram is left.
    pub(super) fn has_no_more_datagrams(&self, id: SocketId) -> bool {
        let socket = self.get(id);
        let is_left = !socket.datagrams.is_empty() || socket.error.is_some();
        socket.transport == Transport::Datagram && socket.receives_ended && !is_left
    }

    /// Takes the oldest datagram, or copies it. `None` if a receiver has to wait.
    ///
    /// # Errors
    /// `ECONNREFUSED`: an earlier datagram was rejected.
    pub(super) fn datagram_receive(
        &mut self,
        id: SocketId,
        peeks: bool,
    ) -> Result<Option<Datagram>, Errno> {
        let socket = self.get_mut(id);
        if let Some(errno) = socket.error.take() {
            return Err(errno);
        }
        let datagram =
            if peeks { socket.datagrams.front().cloned() } else { socket.datagrams.pop_front() };
        let end = || Datagram { from: SocketAddress::UNNAMED, bytes: Vec::new() };
        Ok(datagram.or_else(|| socket.receives_ended.then(end)))
    }
}
