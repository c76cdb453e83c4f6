//! Sockets, and connections, each of which is two streams.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{Domain, Driver, Fd, Incoming, Op, Operation, SocketAddress, SocketType};

use super::pipes::{Ask, Receiver, StreamKind};
use super::transfers::brought;
use super::{Check, Role, Runner, pick};
use crate::env::Env;
use crate::held::{Output, Pending, driven, pending};
use crate::program::Place;
use crate::stats::Outcome;

/// The default backlog of listeners.
const BACKLOG: u32 = 4;

/// A listener within the machine, and its clients.
pub(crate) struct ListenerModel {
    fd: Option<Fd>,
    /// The accept stream, used in place of single operations.
    incoming: Option<Rc<Incoming>>,
    address: SocketAddress,
    backlog: usize,
    clients: Vec<Client>,
    /// The number of accepts that may have taken a connection without returning it.
    given_up: usize,
}

/// A socket that connects to a listener.
struct Client {
    /// `None` once the program has given it up.
    fd: Option<Fd>,
    name: SocketAddress,
    state: ClientState,
    server: Option<Fd>,
    was_accepted: bool,
    /// The accept queue was full when the connect began.
    waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    Connecting,
    Connected,
    /// The connect was canceled or given up, and may have succeeded.
    Unknown,
    Failed,
}

/// The purpose of an operation on a listener.
pub(crate) enum ListenerRole {
    Connect { listener: usize, client: usize },
    Accept { listener: usize, keeps: bool },
}

impl ListenerRole {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Accept { .. } => "accept",
        }
    }

    pub(crate) fn listener(&self) -> usize {
        match *self {
            Self::Connect { listener, .. } | Self::Accept { listener, .. } => listener,
        }
    }
}

impl ListenerModel {
    /// Drops the listener, and clients that are not connected.
    pub(crate) fn part_with_ends(&mut self) {
        self.fd = None;
        self.incoming = None;
        for client in &mut self.clients {
            (client.fd, client.server) = (None, None);
        }
    }

    /// Records that the program gives up an operation's result.
    pub(crate) fn give_up(&mut self, role: &ListenerRole) {
        match *role {
            ListenerRole::Connect { client, .. } => {
                let client = &mut self.clients[client];
                (client.fd, client.server) = (None, None);
                client.state = ClientState::Unknown;
            }
            ListenerRole::Accept { keeps: true, .. } => {}
            ListenerRole::Accept { .. } => self.given_up += 1,
        }
    }

    /// Returns the number of clients that are certainly connected and that the program has not accepted.
    fn waiting(&self) -> usize {
        let is_waiting =
            |client: &&Client| client.state == ClientState::Connected && !client.was_accepted;
        self.clients.iter().filter(is_waiting).count()
    }
}

/// Returns a loopback address with a port that the kernel chooses.
fn any_port() -> SocketAddress {
    SocketAddress::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

impl<E: Env> Runner<'_, E> {
    /// Starts an operation and takes turns until it is done. `None` when it failed, or never ends.
    pub(super) fn done<O, T>(
        &mut self,
        start: impl FnOnce(&Driver) -> Op<O>,
    ) -> Result<Option<T>, String>
    where
        O: Operation<Output = io::Result<T>>,
    {
        let mut op = start(&self.driver);
        // Failures are expected here, since any step may have a fault.
        Ok(self.finish_now(|| op.try_take())?.and_then(Result::ok))
    }

    /// Returns a socket with an address, or `None` if a step fails.
    pub(super) fn bound(
        &mut self,
        place: Place,
        kind: SocketType,
    ) -> Result<Option<(Fd, SocketAddress)>, String> {
        let is_network = place == Place::Network;
        let domain = if is_network { Domain::INET } else { Domain::UNIX };
        let Some(fd) = self.done(|driver| driver.socket(domain, kind, 0))? else {
            return Ok(None);
        };
        self.sockets += 1;
        let address = if is_network {
            any_port()
        } else {
            self.env.socket(self.sockets, place == Place::Path)
        };
        if self.done(|driver| driver.bind(&fd, &address))?.is_none() {
            return Ok(None);
        }
        let address = self.driver.local_address(&fd).ok();
        Ok(address.map(|address| (fd, address)))
    }

    /// Makes a connection, whose directions become two pipes.
    pub(super) fn make_connection(&mut self, place: Place) -> Check {
        let keeps = !self.started.is_multiple_of(3);
        if place == Place::Pair {
            if let Ok((one, other)) = self.driver.socket_pair(SocketType::STREAM) {
                self.add_connection(one, other, keeps, true);
            }
            return Ok(());
        }
        let is_network = place == Place::Network;
        let kind = SocketType::STREAM;
        let Some((listener, address)) = self.bound(place, kind)? else { return Ok(()) };
        if self.done(|driver| driver.listen(&listener, BACKLOG))?.is_none() {
            return Ok(());
        }
        let domain = if is_network { Domain::INET } else { Domain::UNIX };
        let Some(client) = self.done(|driver| driver.socket(domain, kind, 0))? else {
            return Ok(());
        };
        let mut accept = self.accept_on(&listener, keeps.then(|| self.incoming(&listener)));
        let is_early = accept.try_take();
        if self.done(|driver| driver.connect(&client, &address))?.is_none() {
            return Ok(());
        }
        let accepted = match is_early {
            Some(accepted) => Some(accepted),
            None => self.finish_now(|| accept.try_take())?,
        };
        let Some(Output::Opened(Ok(server))) = accepted else { return Ok(()) };
        let name =
            self.driver.local_address(&client).map_err(|error| format!("no name: {error}"))?;
        // If connections can be reset, this one may have been.
        let peer = self.driver.peer_address(&server).ok();
        if peer.is_some_and(|peer| peer != name) {
            return Err(format!("{peer:?} was accepted, and {name:?} has connected"));
        }
        self.add_connection(client, server, keeps, !is_network);
        Ok(())
    }

    fn incoming(&self, listener: &Fd) -> Rc<Incoming> {
        Rc::new(self.driver.incoming(listener.clone()))
    }

    fn accept_on(&self, listener: &Fd, incoming: Option<Rc<Incoming>>) -> Box<dyn Pending> {
        match incoming {
            Some(incoming) => driven(async move { Output::Opened(incoming.accept().await) }),
            None => pending(self.driver.accept(listener), |accepted| {
                Output::Opened(accepted.map(|(server, _)| server))
            }),
        }
    }

    /// Makes two pipes of the directions of a connection.
    fn add_connection(&mut self, client: Fd, server: Fd, keeps: bool, is_unix: bool) {
        for (reader, writer) in [(client.clone(), server.clone()), (server, client)] {
            let receiver = keeps.then(|| self.receiver(&reader));
            let kind = if is_unix { StreamKind::Unix } else { StreamKind::Network };
            self.add_stream(reader, receiver, writer, kind);
        }
    }

    /// Returns a receiver on a connection, which keeps the bytes of dropped receives.
    fn receiver(&self, fd: &Fd) -> Receiver {
        let connection = self.driver.connection(fd.clone());
        Box::new(move |ask| {
            let connection = connection.clone();
            driven(async move {
                match ask {
                    Ask::Room(len) => {
                        let (result, buf) = connection.read(Vec::with_capacity(len)).await;
                        brought(true, result, buf)
                    }
                    Ask::Message(len, control_bytes) => {
                        let buf = Vec::with_capacity(len);
                        let (result, buf) = connection.recv_message(buf, control_bytes).await;
                        match result {
                            Ok((len, control)) => Output::Message(Ok(len), buf, control),
                            Err(error) => Output::Bytes(Err(error), buf),
                        }
                    }
                    Ask::Whatever => match connection.recv().await {
                        Ok(buf) => Output::Bytes(Ok(buf.len()), buf.to_vec()),
                        Err(error) => Output::Bytes(Err(error), Vec::new()),
                    },
                }
            })
        })
    }

    // Listeners within the machine.

    pub(super) fn listen(&mut self, place: Place, backlog: u8) -> Check {
        let Some((fd, address)) = self.bound(place, SocketType::STREAM)? else { return Ok(()) };
        if self.done(|driver| driver.listen(&fd, backlog.into()))?.is_none() {
            return Ok(());
        }
        let incoming = self.started.is_multiple_of(3).then(|| self.incoming(&fd));
        let (backlog, clients) = (backlog.into(), Vec::new());
        let fd = Some(fd);
        let model = ListenerModel { fd, incoming, address, backlog, clients, given_up: 0 };
        self.listeners.push(model);
        Ok(())
    }

    fn pick_listener(&self, number: u8) -> Option<usize> {
        pick(number.into(), self.listeners.len())
    }

    pub(super) fn connect(&mut self, number: u8) -> Check {
        let Some(listener) = self.pick_listener(number) else { return Ok(()) };
        // It gets a unique name, by which accept identifies it.
        let bound = self.bound(Place::Name, SocketType::STREAM)?;
        let Some((fd, name)) = bound else { return Ok(()) };
        let its = &mut self.listeners[listener];
        let waits = its.fd.is_some() && its.waiting() > its.backlog;
        let op = pending(self.driver.connect(&fd, &its.address), Output::Done);
        its.clients.push(Client {
            fd: Some(fd),
            name,
            state: ClientState::Connecting,
            server: None,
            was_accepted: false,
            waits,
        });
        let client = its.clients.len() - 1;
        self.hold(Role::Listener(ListenerRole::Connect { listener, client }), op);
        Ok(())
    }

    pub(super) fn accept(&mut self, number: u8) {
        let Some(listener) = self.pick_listener(number) else { return };
        let its = &self.listeners[listener];
        let Some(fd) = &its.fd else { return };
        let keeps = its.incoming.is_some();
        let op = self.accept_on(fd, its.incoming.clone());
        self.hold(Role::Listener(ListenerRole::Accept { listener, keeps }), op);
    }

    pub(super) fn close_listener(&mut self, number: u8) {
        let Some(listener) = self.pick_listener(number) else { return };
        let its = &mut self.listeners[listener];
        (its.fd, its.incoming) = (None, None);
    }

    /// Handles the end of an operation on a listener.
    pub(super) fn end_listener(
        &mut self,
        role: ListenerRole,
        is_canceled: bool,
        output: Output,
    ) -> Check {
        let listener = role.listener();
        match (role, output) {
            (role, Output::Bytes(Err(_), _)) if is_canceled => {
                self.listeners[listener].give_up(&role);
                Ok(())
            }
            (ListenerRole::Connect { client, .. }, Output::Done(Ok(()))) => {
                let its = &mut self.listeners[listener];
                its.clients[client].state = ClientState::Connected;
                if its.clients[client].waits {
                    self.stats.outcome(Outcome::ConnectWaited);
                }
                self.join(listener, client);
                self.check_queue(listener)
            }
            // A kernel worker that waits for room is canceled by a signal.
            (role @ ListenerRole::Connect { .. }, Output::Done(Err(error)))
                if is_canceled && Errno::from_io_error(&error) == Some(Errno::INTR) =>
            {
                self.listeners[listener].give_up(&role);
                Ok(())
            }
            (ListenerRole::Connect { client, .. }, Output::Done(Err(error))) => {
                let its = &mut self.listeners[listener];
                let was_accepted = its.clients[client].was_accepted;
                its.clients[client].state = ClientState::Failed;
                its.clients[client].server = None;
                if was_accepted {
                    return Err("it was accepted, and failed".to_owned());
                }
                // Clients still in the queue of a dropped listener are rejected.
                let is_gone = its.fd.is_none();
                let known = [Errno::CONNREFUSED, Errno::CONNRESET];
                let is_known =
                    is_gone && Errno::from_io_error(&error).is_some_and(|its| known.contains(&its));
                if !is_known && self.is_made_up(&error) {
                    self.excused += 1;
                    return Ok(());
                }
                self.excuse(&error, is_canceled, if is_gone { &known } else { &[] })
            }
            (ListenerRole::Accept { .. }, Output::Opened(result)) => match result {
                Ok(server) => self.accepted(listener, server),
                Err(error) if self.is_made_up(&error) => {
                    self.excused += 1;
                    Ok(())
                }
                Err(error) => {
                    let known = self.errors_of_full_table();
                    self.excuse(&error, is_canceled, known)
                }
            },
            _ => Err("no result of its kind".to_owned()),
        }
    }

    /// Returns whether the error is an injected one of a network, which does not exist here.
    fn is_made_up(&self, error: &io::Error) -> bool {
        let of_networks = [
            Errno::CONNREFUSED,
            Errno::CONNABORTED,
            Errno::TIMEDOUT,
            Errno::NETUNREACH,
            Errno::HOSTUNREACH,
            Errno::ADDRNOTAVAIL,
        ];
        let errno = Errno::from_io_error(error);
        self.has(FaultKind::Errno) && errno.is_some_and(|errno| of_networks.contains(&errno))
    }

    fn accepted(&mut self, listener: usize, server: Fd) -> Check {
        let Ok(peer) = self.driver.peer_address(&server) else { return Ok(()) };
        let its = &mut self.listeners[listener];
        let client = its.clients.iter().position(|client| client.name == peer);
        let Some(client) = client else { return Err(format!("{peer:?} has not connected")) };
        let found = &mut its.clients[client];
        if found.was_accepted || found.state == ClientState::Failed {
            return Err(format!("{peer:?} is {:?}, and was accepted", found.state));
        }
        found.was_accepted = true;
        if found.state != ClientState::Unknown {
            found.server = Some(server);
        }
        self.stats.outcome(Outcome::Accepted);
        self.join(listener, client);
        Ok(())
    }

    /// Makes pipes of a connection when both ends exist.
    fn join(&mut self, listener: usize, client: usize) {
        let found = &mut self.listeners[listener].clients[client];
        if found.state != ClientState::Connected || found.server.is_none() {
            return;
        }
        let (Some(client), Some(server)) = (found.fd.take(), found.server.take()) else { return };
        let keeps = !self.started.is_multiple_of(3);
        self.add_connection(client, server, keeps, true);
    }

    /// Checks that no more connections wait than the queue has room for.
    fn check_queue(&self, listener: usize) -> Check {
        let its = &self.listeners[listener];
        let is_accept = |role: &Role| match role {
            Role::Listener(ListenerRole::Accept { listener: of, .. }) => *of == listener,
            _ => false,
        };
        let accepting = self.held.iter().filter(|held| is_accept(&held.role)).count();
        // As on Linux, one more than the backlog.
        let room = its.backlog + 1 + accepting + its.given_up;
        if its.incoming.is_none() && its.fd.is_some() && its.waiting() > room {
            return Err(format!("{} wait where there is room for {room}", its.waiting()));
        }
        Ok(())
    }
}
