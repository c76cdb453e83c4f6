//! Sockets: connections, which are two streams, and datagrams, which come whole or not at all.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{Domain, Driver, Fd, Op, Operation, Received, SocketAddress, SocketType};

use super::files::text;
use super::pipes::Receiver;
use super::transfers::brought;
use super::{Check, Role, Runner, pick};
use crate::env::Env;
use crate::held::{Output, driven, pending};

/// Connections that wait to be accepted at most.
const BACKLOG: u32 = 4;

/// The bytes by which a datagram is known.
const TELLING: usize = 16;

/// Two sockets for datagrams: one sends to the other.
#[derive(Debug)]
pub(crate) struct DatagramModel {
    sender: Option<Fd>,
    receiver: Option<Fd>,
    address: SocketAddress,
    sent: Vec<Sent>,
}

/// A datagram that was sent, or is about to be.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    /// How often it came.
    count: u32,
}

/// What an operation on datagrams is to do.
pub(crate) enum DatagramRole {
    Send { pair: usize, index: usize },
    Receive { pair: usize, len: usize },
}

impl DatagramRole {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Send { .. } => "datagram send",
            Self::Receive { .. } => "datagram receive",
        }
    }
}

impl DatagramModel {
    /// Drops both sockets.
    pub(crate) fn part_with_ends(&mut self) {
        self.sender = None;
        self.receiver = None;
    }
}

/// A loopback address with a port that the kernel chooses.
fn any_port() -> SocketAddress {
    SocketAddress::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

impl<E: Env> Runner<'_, E> {
    /// Starts an operation and takes turns until it is done. `None` when it failed, or never ends.
    fn done<O, T>(&mut self, start: impl FnOnce(&Driver) -> Op<O>) -> Result<Option<T>, String>
    where
        O: Operation<Output = io::Result<T>>,
    {
        let mut op = start(&self.driver);
        // That it fails is no news here: faults are everywhere.
        Ok(self.finish_now(|| op.try_take())?.and_then(Result::ok))
    }

    /// A socket with an address, or nothing where something fails.
    fn bound(&mut self, kind: SocketType) -> Result<Option<(Fd, SocketAddress)>, String> {
        let Some(fd) = self.done(|driver| driver.socket(Domain::INET, kind, 0))? else {
            return Ok(None);
        };
        if self.done(|driver| driver.bind(&fd, &any_port()))?.is_none() {
            return Ok(None);
        }
        let address = self.driver.local_address(&fd).ok();
        Ok(address.map(|address| (fd, address)))
    }

    /// Makes a connection, whose directions are two more pipes.
    pub(super) fn make_connection(&mut self) -> Check {
        let Some((listener, address)) = self.bound(SocketType::STREAM)? else { return Ok(()) };
        if self.done(|driver| driver.listen(&listener, BACKLOG))?.is_none() {
            return Ok(());
        }
        let kind = SocketType::STREAM;
        let Some(client) = self.done(|driver| driver.socket(Domain::INET, kind, 0))? else {
            return Ok(());
        };
        let keeps = !self.started.is_multiple_of(3);
        let incoming = self.driver.incoming(listener.clone());
        let mut accept = if keeps {
            driven(async move { Output::Opened(incoming.accept().await) })
        } else {
            pending(self.driver.accept(&listener), |accepted| {
                Output::Opened(accepted.map(|(server, _)| server))
            })
        };
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
        // Where a connection can be broken off, it may have been.
        let peer = self.driver.peer_address(&server).ok();
        if peer.is_some_and(|peer| peer != name) {
            return Err(format!("{peer:?} was accepted, and {name:?} has connected"));
        }
        for (reader, writer) in [(client.clone(), server.clone()), (server, client)] {
            let receiver = keeps.then(|| self.receiver(&reader));
            self.add_stream(reader, receiver, writer, true);
        }
        Ok(())
    }

    /// What receives on a connection, and keeps what comes for nobody.
    fn receiver(&self, fd: &Fd) -> Receiver {
        let connection = self.driver.connection(fd.clone());
        Box::new(move |len| {
            let connection = connection.clone();
            driven(async move {
                match len {
                    Some(len) => {
                        let (result, buf) = connection.read(Vec::with_capacity(len)).await;
                        brought(true, result, buf)
                    }
                    None => match connection.recv().await {
                        Ok(buf) => Output::Bytes(Ok(buf.len()), buf.to_vec()),
                        Err(error) => Output::Bytes(Err(error), Vec::new()),
                    },
                }
            })
        })
    }

    /// Makes two sockets for datagrams.
    pub(super) fn make_datagrams(&mut self) -> Check {
        let Some((receiver, address)) = self.bound(SocketType::DATAGRAM)? else { return Ok(()) };
        let Some((sender, _)) = self.bound(SocketType::DATAGRAM)? else { return Ok(()) };
        let (sender, receiver, sent) = (Some(sender), Some(receiver), Vec::new());
        self.datagrams.push(DatagramModel { sender, receiver, address, sent });
        Ok(())
    }

    fn pick_pair(&self, number: u8) -> Option<usize> {
        pick(number.into(), self.datagrams.len())
    }

    pub(super) fn send_datagram(&mut self, number: u8, len: u16) {
        let Some(pair) = self.pick_pair(number) else { return };
        let bytes = text(self.started + 1, len.into());
        let its = &mut self.datagrams[pair];
        let Some(sender) = &its.sender else { return };
        let buf = self.env.buffer(bytes.clone());
        let op = self.driver.send_to(sender, buf, &its.address, 0);
        let index = its.sent.len();
        its.sent.push(Sent { bytes, count: 0 });
        let op = pending(op, |(result, buf)| Output::Bytes(result, buf.to_vec()));
        self.hold(Role::Datagram(DatagramRole::Send { pair, index }), op);
    }

    pub(super) fn receive_datagram(&mut self, number: u8, len: u16) {
        let Some(pair) = self.pick_pair(number) else { return };
        let Some(receiver) = &self.datagrams[pair].receiver else { return };
        let len = usize::from(len);
        let is_capacity = self.fills_capacity();
        let op = self.driver.recv_from(receiver, self.room(len), 0);
        let op = pending(op, move |(result, buf)| {
            let came = result.as_ref().map_or(0, |received| received.len);
            let is_wrong = is_capacity && buf.len() != came;
            // Then it is one that cannot be.
            if is_wrong { Output::Done(Ok(())) } else { Output::Message(result, buf.to_vec()) }
        });
        self.hold(Role::Datagram(DatagramRole::Receive { pair, len }), op);
    }

    pub(super) fn close_datagrams(&mut self, number: u8) {
        let Some(pair) = self.pick_pair(number) else { return };
        self.datagrams[pair].receiver = None;
    }

    /// An operation on datagrams ended.
    pub(super) fn end_datagram(
        &mut self,
        role: DatagramRole,
        is_canceled: bool,
        output: Output,
    ) -> Check {
        match (role, output) {
            (DatagramRole::Send { pair, index }, Output::Bytes(result, _)) => {
                let len = self.datagrams[pair].sent[index].bytes.len();
                match result {
                    Ok(count) if count == len => Ok(()),
                    Ok(count) => Err(format!("{count} of {len} bytes")),
                    Err(error) => {
                        // The peer may be gone, and a long one not fit.
                        let known = [Errno::CONNREFUSED, Errno::MSGSIZE];
                        self.excuse(&error, is_canceled, &known)
                    }
                }
            }
            (DatagramRole::Receive { pair, len }, Output::Message(result, bytes)) => match result {
                Ok(_) if len == 0 => Err("without room it was not refused".to_owned()),
                Err(error) if len == 0 => self.excuse(&error, is_canceled, &[Errno::INVAL]),
                Ok(Received { len: count, .. }) if count > len => {
                    Err("more than there is room for".to_owned())
                }
                Ok(received) => {
                    let comes_again = self.has(FaultKind::DatagramDuplicated);
                    let bytes = &bytes[..received.len];
                    // A transfer that is cut short is one with less room.
                    let is_short = received.is_truncated && self.has(FaultKind::ShortTransfer);
                    let len = if is_short { bytes.len() } else { len };
                    let is_it = |sent: &&mut Sent| {
                        let is_truncated = sent.bytes.len() > len;
                        (sent.count == 0 || comes_again)
                            && sent.bytes[..sent.bytes.len().min(len)] == *bytes
                            && received.is_truncated == is_truncated
                    };
                    match self.datagrams[pair].sent.iter_mut().find(is_it) {
                        // A few bytes do not tell which it was.
                        Some(sent) => sent.count += u32::from(bytes.len() >= TELLING),
                        None => return Err("nobody sent that".to_owned()),
                    }
                    Ok(())
                }
                Err(error) => self.excuse(&error, is_canceled, &[Errno::CONNREFUSED]),
            },
            _ => Err("no result of its kind".to_owned()),
        }
    }
}
