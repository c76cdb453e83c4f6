//! Addresses of sockets, and connecting two sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::VecDeque;
use std::rc::Rc;

use rustix::io::Errno;

use super::{Holder, Role, SocketId, Sockets, Transport};
use crate::address::SocketType;
use crate::address::{Domain, SocketAddress};
use crate::sim::kernel::{Kernel, Object, OpenFile};

/// The first and the last of the ports for sockets that request none.
pub(super) const PORT_FIRST: u16 = 32_768;
const PORT_LAST: u16 = 60_999;

impl Sockets {
    /// Checks that an address is valid, and of the socket's family.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`; `EINVAL` within the machine, and for an invalid address.
    pub(super) fn check_domain(&self, id: SocketId, address: &SocketAddress) -> Result<(), Errno> {
        let domain = self.get(id).domain;
        let is_one = address.inet().is_some() || !address.is_unnamed() && domain == Domain::UNIX;
        match address.domain() == domain {
            true if is_one => Ok(()),
            false if domain != Domain::UNIX && !address.is_unnamed() => Err(Errno::AFNOSUPPORT),
            _ => Err(Errno::INVAL),
        }
    }

    /// Performs `bind(2)`.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`, `EADDRNOTAVAIL`, `EADDRINUSE`.
    pub(super) fn bind(&mut self, id: SocketId, mut address: SocketAddress) -> Result<(), Errno> {
        self.check_domain(id, &address)?;
        if !self.get(id).local.is_unnamed() {
            return Err(Errno::INVAL);
        }
        if let Some(inet) = address.inet() {
            if !inet.ip().is_loopback() && !inet.ip().is_unspecified() {
                return Err(Errno::ADDRNOTAVAIL);
            }
            if inet.port() == 0 {
                address = self.with_free_port(id, inet)?;
            }
        }
        if self.is_taken(id, &address) {
            return Err(Errno::ADDRINUSE);
        }
        let socket = self.get_mut(id);
        (socket.local, socket.is_reachable) = (address, true);
        Ok(())
    }

    /// Returns whether another socket has this address, or one that conflicts with it.
    fn is_taken(&self, id: SocketId, address: &SocketAddress) -> bool {
        let (domain, transport) = (self.get(id).domain, self.get(id).transport);
        let ids = (0..self.list.len()).map(SocketId);
        ids.filter(|&other| other != id && !self.is_gone(other)).any(|other| {
            let other = self.get(other);
            match (address.inet(), other.local.inet()) {
                (Some(ours), Some(its)) => {
                    let is_any = ours.ip().is_unspecified() || its.ip().is_unspecified();
                    let is_same_ip = is_any || ours.ip() == its.ip();
                    let is_same_kind = other.transport == transport && other.domain == domain;
                    is_same_kind && is_same_ip && ours.port() == its.port()
                }
                _ => other.is_reachable && other.local == *address,
            }
        })
    }

    /// # Errors
    /// `EADDRINUSE`: no port is left.
    fn with_free_port(&mut self, id: SocketId, inet: SocketAddr) -> Result<SocketAddress, Errno> {
        for _ in PORT_FIRST..=PORT_LAST {
            let port = self.next_port;
            self.next_port = if port == PORT_LAST { PORT_FIRST } else { port + 1 };
            let address = SocketAddress::from(SocketAddr::new(inet.ip(), port));
            if !self.is_taken(id, &address) {
                return Ok(address);
            }
        }
        Err(Errno::ADDRINUSE)
    }

    /// Gives a network socket a port if it has none.
    pub(super) fn take_port(&mut self, id: SocketId) -> Result<(), Errno> {
        let socket = self.get(id);
        if !socket.local.is_unnamed() {
            return Ok(());
        }
        let address = self.with_free_port(id, SocketAddr::new(loopback(socket.domain), 0))?;
        let socket = self.get_mut(id);
        (socket.local, socket.is_reachable) = (address, true);
        Ok(())
    }

    /// Returns the socket that others reach at an address.
    pub(super) fn find(
        &self,
        domain: Domain,
        transport: Transport,
        address: &SocketAddress,
    ) -> Option<SocketId> {
        let is_it = |id: &SocketId| {
            let socket = self.get(*id);
            let has_address = match (address.inet(), socket.local.inet()) {
                (Some(wanted), Some(its)) => {
                    let is_any = its.ip().is_unspecified() || wanted.ip().is_unspecified();
                    wanted.port() == its.port() && (is_any || wanted.ip() == its.ip())
                }
                _ => socket.local == *address,
            };
            let is_same_kind = socket.transport == transport && socket.domain == domain;
            is_same_kind && socket.is_reachable && has_address && !self.is_gone(*id)
        };
        (0..self.list.len()).map(SocketId).find(is_it)
    }

    /// Returns the error for an address within the machine that no socket has.
    pub(super) fn missing(&self, address: &SocketAddress) -> Errno {
        let was_there = || self.list.iter().any(|its| its.is_reachable && its.local == *address);
        let is_missing = address.path().is_some() && !was_there();
        if is_missing { Errno::NOENT } else { Errno::CONNREFUSED }
    }

    /// Performs `listen(2)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EINVAL`, `EADDRINUSE`.
    pub(super) fn listen(&mut self, id: SocketId, backlog: u32) -> Result<(), Errno> {
        let socket = self.get(id);
        if socket.transport != Transport::Stream {
            return Err(Errno::OPNOTSUPP);
        }
        if socket.local.is_unnamed() {
            match socket.domain {
                Domain::UNIX => return Err(Errno::INVAL),
                Domain::INET => self.bind(id, SocketAddr::from(([0; 4], 0)).into())?,
                _ => self.bind(id, SocketAddr::from(([0; 16], 0)).into())?,
            }
        }
        let limit = backlog as usize;
        match &mut self.get_mut(id).role {
            Role::Listening { backlog, .. } => *backlog = limit,
            role @ Role::Idle => {
                *role = Role::Listening { backlog: limit, waiting: VecDeque::new() };
            }
            Role::Connected(_) | Role::Directed(_) => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// Returns whether a connect would not wait.
    pub(super) fn takes_connection(&self, id: SocketId, address: &SocketAddress) -> bool {
        let socket = self.get(id);
        let target = self.find(socket.domain, Transport::Stream, address);
        let is_full = |target| match &self.get(target).role {
            // As on Linux, one more than requested.
            Role::Listening { backlog, waiting } => waiting.len() > *backlog,
            _ => false,
        };
        socket.transport == Transport::Datagram
            || matches!(socket.role, Role::Connected(_))
            || !target.is_some_and(is_full)
    }

    /// Performs `connect(2)`. Returns false if it has to wait until others were accepted.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub(super) fn connect(&mut self, id: SocketId, address: SocketAddress) -> Result<bool, Errno> {
        let is_unix = self.get(id).domain == Domain::UNIX;
        let is_stream = self.get(id).transport == Transport::Stream;
        let refusal = match self.get(id).role {
            Role::Connected(_) => Some(Errno::ISCONN),
            Role::Listening { .. } => Some(if is_unix { Errno::INVAL } else { Errno::ISCONN }),
            Role::Idle | Role::Directed(_) => None,
        };
        match refusal.filter(|_| !is_unix) {
            Some(errno) => return Err(errno),
            None => self.check_domain(id, &address)?,
        }
        if !is_stream {
            return self.direct(id, address).map(|()| true);
        }
        let target = self.find(self.get(id).domain, Transport::Stream, &address);
        let listens = |&target: &SocketId| matches!(self.get(target).role, Role::Listening { .. });
        let missing = if is_unix { self.missing(&address) } else { Errno::CONNREFUSED };
        let target = match target {
            Some(target) if listens(&target) => target,
            Some(_) => return Err(Errno::CONNREFUSED),
            None => return Err(missing),
        };
        // Within the machine, the listener is looked up first.
        if let Some(errno) = refusal {
            return Err(errno);
        }
        if !self.takes_connection(id, &address) {
            return Ok(false);
        }
        if !is_unix {
            self.take_port(id)?;
        }
        self.join(id, target, address);
        Ok(true)
    }

    /// Sets the peer of a datagram socket.
    fn direct(&mut self, id: SocketId, address: SocketAddress) -> Result<(), Errno> {
        let domain = self.get(id).domain;
        if domain != Domain::UNIX {
            self.take_port(id)?;
        } else if self.find(domain, Transport::Datagram, &address).is_none() {
            return Err(self.missing(&address));
        }
        self.get_mut(id).role = Role::Directed(address);
        Ok(())
    }

    /// Connects a socket to a new socket that waits to be accepted.
    fn join(&mut self, id: SocketId, listener: SocketId, address: SocketAddress) {
        let domain = self.get(id).domain;
        let other = self.add(domain, Transport::Stream, Holder::Listener(listener));
        self.get_mut(id).role = Role::Connected(other);
        let socket = self.get_mut(other);
        socket.role = Role::Connected(id);
        socket.local = match address.inet() {
            Some(inet) if inet.ip().is_unspecified() => {
                SocketAddr::new(loopback(domain), inet.port()).into()
            }
            _ => address,
        };
        if let Role::Listening { waiting, .. } = &mut self.get_mut(listener).role {
            waiting.push_back(other);
        }
    }

    /// Returns whether an accept would not wait.
    pub(super) fn has_connection(&self, id: SocketId) -> bool {
        match &self.get(id).role {
            Role::Listening { waiting, .. } => !waiting.is_empty(),
            _ => true,
        }
    }
}

/// Returns the address by which a machine reaches itself.
fn loopback(domain: Domain) -> IpAddr {
    match domain {
        Domain::INET6 => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

impl Kernel {
    /// Performs `socket(2)`.
    ///
    /// # Errors
    /// As `socket(2)`.
    pub(in super::super) fn socket(
        &mut self,
        domain: Domain,
        kind: SocketType,
        protocol: u32,
    ) -> Result<i32, Errno> {
        let transport = Sockets::transport(domain, kind, protocol)?;
        let id = self.sockets.next_id();
        let (raw, file) = self.install(OpenFile::of_socket(id))?;
        self.sockets.add(domain, transport, Holder::File(file));
        Ok(raw)
    }

    /// Performs `socketpair(2)` within the machine.
    ///
    /// # Errors
    /// As `socket(2)`.
    pub(in super::super) fn socket_pair(&mut self, kind: SocketType) -> Result<[i32; 2], Errno> {
        let make = |kernel: &mut Self| kernel.socket(Domain::UNIX, kind, 0);
        let first = self.sockets.next_id();
        let first_raw = make(self)?;
        let second = self.sockets.next_id();
        let second_raw = match make(self) {
            Ok(raw) => raw,
            Err(errno) => {
                self.close(first_raw)?;
                return Err(errno);
            }
        };
        self.sockets.get_mut(first).role = Role::Connected(second);
        self.sockets.get_mut(second).role = Role::Connected(first);
        Ok([first_raw, second_raw])
    }

    /// Connects a new stream to an address without waiting. Returns its descriptor.
    ///
    /// # Errors
    /// As `connect(2)`; `EAGAIN` if it would have to wait.
    pub(in super::super) fn connect_to(&mut self, address: SocketAddress) -> Result<i32, Errno> {
        let id = self.sockets.next_id();
        let raw = self.socket(address.domain(), SocketType::STREAM, 0)?;
        self.has_changed = true;
        match self.sockets.connect(id, address) {
            Ok(true) => Ok(raw),
            result => {
                self.close(raw)?;
                Err(result.err().unwrap_or(Errno::AGAIN))
            }
        }
    }

    /// Performs `accept(2)`. Returns the connection's descriptor and its peer's address; `None` if no
    /// connection waits.
    ///
    /// # Errors
    /// `EMFILE`, `EINVAL`, `EOPNOTSUPP`.
    pub(super) fn accept(&mut self, id: SocketId) -> Result<Option<(i32, SocketAddress)>, Errno> {
        let socket = self.sockets.get(id);
        let next = match &socket.role {
            _ if socket.transport == Transport::Datagram => return Err(Errno::OPNOTSUPP),
            Role::Listening { waiting, .. } => waiting.front().copied(),
            _ => return Err(Errno::INVAL),
        };
        // The number comes first: with a full table the connection goes on waiting.
        self.free_index()?;
        let Some(next) = next else { return Ok(None) };
        let (raw, file) = self.install(OpenFile::of_socket(next))?;
        self.sockets.get_mut(next).holder = Holder::File(file);
        if let Role::Listening { waiting, .. } = &mut self.sockets.get_mut(id).role {
            waiting.pop_front();
        }
        let peer = self.sockets.peer_address(next)?;
        Ok(Some((raw, peer)))
    }

    /// Returns the socket that a descriptor refers to.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub(in super::super) fn socket_of(&self, raw: i32) -> Result<(SocketId, Rc<OpenFile>), Errno> {
        let file = self.file(raw)?;
        match file.object {
            Object::Socket(id) => Ok((id, Rc::clone(file))),
            _ => Err(Errno::NOTSOCK),
        }
    }
}
