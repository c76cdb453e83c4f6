//! The simulated kernel's sockets: within the machine by path or name, and on a loopback network.
//!
//! A socket exists as long as a descriptor or an operation in flight refers to it or, until it is accepted,
//! as long as its listener exists. The effect of its end on the peer (the end of the stream, or a reset) is
//! not applied at that time, but computed at the peer's next operation.
//!
//! Sent data is in the peer's queue at once, so the two ends' buffers are one, of
//! [`socket_bytes`](super::SimBuilder::socket_bytes).
//!
//! Unsupported: options, `SO_REUSEADDR` among them, except `SO_PEERCRED`; ports that stay taken for a while
//! after their connections; addresses beyond the loopback network; sequenced packets; control messages other
//! than descriptors and segment sizes, which are ignored. Paths of sockets are not in the file system: a path
//! can be bound again once its socket is gone. A socket in transit to itself is never gone.
//!
//! Sources: `socket(7)`, `unix(7)`, `tcp(7)`, `udp(7)`, and the system calls of these names.

mod connection;
mod datagram;
mod multishot;
mod op;
mod stream;

use std::collections::VecDeque;
use std::rc::Weak;

use rustix::io::Errno;
use rustix::net::{SocketFlags, ipproto};

pub(super) use self::datagram::Fate;
use self::datagram::{Datagram, datagram_bytes};
pub(super) use self::op::{SocketOp, prepare};
use super::kernel::{OpenFile, poll};
use crate::address::{Credentials, Domain, SocketAddress};
use crate::address::{ShutdownHow, SocketType};

/// Names a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketId(usize);

/// All sockets ever made.
#[derive(Debug)]
pub(super) struct Sockets {
    list: Vec<Socket>,
    /// The maximum number of bytes that each socket has received and not taken.
    capacity: usize,
    /// The port to try next for a socket that requests none.
    next_port: u16,
    /// The fate of the next datagram on the network. Taken by that datagram.
    pub(super) fate: Option<Fate>,
}

#[derive(Debug)]
struct Socket {
    domain: Domain,
    transport: Transport,
    holder: Holder,
    /// Unnamed until the socket has an address.
    local: SocketAddress,
    /// Others reach the socket by its address. An accepted socket has its listener's address, and is not
    /// reached by it.
    is_reachable: bool,
    role: Role,
    /// Received on a stream.
    bytes: VecDeque<u8>,
    datagrams: VecDeque<Datagram>,
    receives_ended: bool,
    sends_ended: bool,
    /// The connection was reset by a fault.
    was_reset: bool,
    /// The error that the next operation reports, once.
    error: Option<Errno>,
    /// A reset was reported.
    has_told_reset: bool,
    /// Data was sent to a peer that is gone, whose machine has answered.
    was_answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Stream,
    Datagram,
}

/// The holder of a socket.
#[derive(Debug)]
enum Holder {
    File(Weak<OpenFile>),
    /// It waits in this listener's queue to be accepted.
    Listener(SocketId),
}

#[derive(Debug)]
enum Role {
    /// The socket has no peer.
    Idle,
    Listening {
        backlog: usize,
        /// Connections that were not accepted yet, oldest first.
        waiting: VecDeque<SocketId>,
    },
    /// One end of a stream, or of a pair that exchanges datagrams.
    Connected(SocketId),
    /// Datagrams go to this address and are accepted from it only.
    Directed(SocketAddress),
}

impl Sockets {
    pub(super) fn new(capacity: usize) -> Self {
        Self { list: Vec::new(), capacity, next_port: connection::PORT_FIRST, fate: None }
    }

    /// Returns the name of the socket that [`add`](Sockets::add) makes next.
    pub(super) fn next_id(&self) -> SocketId {
        SocketId(self.list.len())
    }

    /// Returns the transport that these arguments of `socket(2)` request.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`: there is no such socket here.
    fn transport(domain: Domain, kind: SocketType, protocol: u32) -> Result<Transport, Errno> {
        /// Flags without an effect here.
        const FLAGS: u32 = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC).bits();
        const PROTOCOLS: [u32; 2] = [ipproto::TCP.as_raw().get(), ipproto::UDP.as_raw().get()];
        let is_unix = domain == Domain::UNIX;
        if !is_unix && domain != Domain::INET && domain != Domain::INET6 {
            return Err(Errno::AFNOSUPPORT);
        }
        let transport = match SocketType(kind.0 & !FLAGS) {
            SocketType::STREAM => Transport::Stream,
            SocketType::DATAGRAM => Transport::Datagram,
            _ => return Err(Errno::SOCKTNOSUPPORT),
        };
        let is_usual = protocol == 0 || !is_unix && protocol == PROTOCOLS[transport as usize];
        if is_usual { Ok(transport) } else { Err(Errno::PROTONOSUPPORT) }
    }

    fn add(&mut self, domain: Domain, transport: Transport, holder: Holder) -> SocketId {
        let id = self.next_id();
        self.list.push(Socket {
            domain,
            transport,
            holder,
            local: SocketAddress::UNNAMED,
            is_reachable: false,
            role: Role::Idle,
            bytes: VecDeque::new(),
            datagrams: VecDeque::new(),
            receives_ended: false,
            sends_ended: false,
            was_reset: false,
            error: None,
            has_told_reset: false,
            was_answered: false,
        });
        id
    }

    fn get(&self, id: SocketId) -> &Socket {
        &self.list[id.0]
    }

    fn get_mut(&mut self, id: SocketId) -> &mut Socket {
        &mut self.list[id.0]
    }

    /// Returns whether the socket has no holder left.
    fn is_gone(&self, id: SocketId) -> bool {
        match &self.get(id).holder {
            Holder::File(file) => file.strong_count() == 0,
            Holder::Listener(listener) => {
                let listens = matches!(self.get(*listener).role, Role::Listening { .. });
                !listens || self.is_gone(*listener)
            }
        }
    }

    /// Returns the socket's own address.
    pub(super) fn local_address(&self, id: SocketId) -> SocketAddress {
        self.get(id).local
    }

    /// Returns the address of the socket's peer.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub(super) fn peer_address(&self, id: SocketId) -> Result<SocketAddress, Errno> {
        match &self.get(id).role {
            Role::Connected(peer) => Ok(self.get(*peer).local),
            Role::Directed(peer) => Ok(*peer),
            Role::Idle | Role::Listening { .. } => Err(Errno::NOTCONN),
        }
    }

    /// Returns the credentials for `SO_PEERCRED`. There is one process, with number 1, of user and group 0.
    pub(super) fn peer_credentials(&self, id: SocketId) -> Credentials {
        let socket = self.get(id);
        let is_known = match socket.role {
            Role::Connected(_) | Role::Listening { .. } => socket.domain == Domain::UNIX,
            Role::Idle | Role::Directed(_) => false,
        };
        match is_known {
            true => Credentials { process: 1, user: 0, group: 0 },
            false => Credentials { process: 0, user: u32::MAX, group: u32::MAX },
        }
    }

    /// Performs `shutdown(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn shutdown(&mut self, id: SocketId, how: ShutdownHow) -> Result<(), Errno> {
        let ends_receives = how != ShutdownHow::Sends;
        let socket = self.get_mut(id);
        match socket.role {
            Role::Idle if socket.domain != Domain::UNIX => return Err(Errno::NOTCONN),
            // The socket no longer listens, and connections that wait there are refused.
            Role::Listening { .. } if ends_receives => socket.role = Role::Idle,
            _ => {}
        }
        socket.receives_ended |= ends_receives;
        socket.sends_ended |= how != ShutdownHow::Receives;
        Ok(())
    }

    /// Returns the events that `poll(2)` reports.
    pub(super) fn poll_events(&self, id: SocketId) -> u16 {
        let when = |condition: bool, events| if condition { events } else { 0 };
        let socket = self.get(id);
        match (&socket.role, socket.transport) {
            (Role::Listening { waiting, .. }, _) => when(!waiting.is_empty(), poll::READABLE),
            (Role::Connected(_), Transport::Stream) => {
                let (ended, peer_ended) = (socket.sends_ended, self.has_input_ended(id));
                let is_broken = self.is_reset(id);
                let is_alone = socket.domain == Domain::UNIX && self.has_lost_peer(id);
                when(self.has_input(id), poll::READABLE)
                    | when(self.has_room(id), poll::WRITABLE)
                    | when(is_broken && !socket.has_told_reset, poll::ERR)
                    | when(is_broken || is_alone || peer_ended && ended, poll::HUP)
                    | when(peer_ended, poll::RDHUP)
            }
            (_, Transport::Stream) => poll::WRITABLE | poll::HUP,
            (_, Transport::Datagram) => {
                let has_error = socket.error.is_some();
                let is_readable = !socket.datagrams.is_empty() || socket.receives_ended;
                when(is_readable || has_error, poll::READABLE)
                    | when(has_error, poll::ERR)
                    | when(socket.receives_ended, poll::RDHUP)
                    | when(socket.receives_ended && socket.sends_ended, poll::HUP)
                    | poll::WRITABLE
            }
        }
    }

    /// Returns whether this number of bytes fits into a queue of datagrams.
    fn has_room_for_datagram(&self, id: SocketId, len: usize) -> bool {
        let queue = &self.get(id).datagrams;
        let used: usize = queue.iter().map(|its| datagram_bytes(its.bytes.len())).sum();
        used + datagram_bytes(len) <= self.capacity
    }
}
