//! Datagrams: each received one was sent, and none is missing.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags};
use sakia::net::{UdpSocket, UnixDatagram};
use sakia_driver::sim::FaultKind;
use sakia_driver::{
    ControlMessage, ControlMessages, DatagramOptions, DatagramReceiver, Fd, Received,
    ReceivedControl, SocketAddress, SocketType, Wait,
};

use super::files::text;
use super::{Check, NAP, Role, Runner, pick};
use crate::env::Env;
use crate::held::{Arrival, Output, Pending, driven, pending};
use crate::mailbox::{Mailbox, Receipt, Way};
use crate::program::{Form, Owner, Place};
use crate::stats::Outcome;

const PEEK: u32 = RecvFlags::PEEK.bits();
/// `MSG_TRUNC`.
const TELL_LENGTH: u32 = ReturnFlags::TRUNC.bits();
/// The longest datagram of a network.
const NETWORK_BYTES_MAX: usize = 65_507;
/// The number of datagrams in a batch.
const BATCH: usize = 3;
/// The size of each of the datagrams that one send makes, in bytes.
const SEGMENT_BYTES: u16 = 200;
/// Longer ones are not segmented: the segments would be too many.
const SEGMENTED_BYTES_MAX: usize = 10_000;
/// The smallest room of a driver's receiver, in bytes.
const RECEIVER_BYTES: usize = 120;
/// The number of turns without a datagram after which missing ones are lost.
const TURNS_WITHOUT: u32 = 60;
/// Room for any datagram of a valid length.
const ROOM: u16 = u16::MAX;

/// A socket, in the form that its user needs.
#[derive(Clone)]
enum Socket {
    Fd(Fd),
    Receiver(Rc<DatagramReceiver>),
    Udp(Rc<UdpSocket>),
    Unix(Rc<UnixDatagram>),
}

/// Two sockets for datagrams: one sends to the other.
pub(crate) struct DatagramModel {
    mailbox: Mailbox,
    place: Place,
    owner: Owner,
    is_connected: bool,
    is_shared: bool,
    sender: Option<Socket>,
    receiver: Option<Socket>,
    from: SocketAddress,
    to: SocketAddress,
    /// Receives that are held.
    receiving: u32,
    /// The room of dropped receives; their datagrams go to later ones.
    dropped_rooms: Vec<usize>,
    /// A receive without room for descriptors was dropped.
    may_lack_descriptors: bool,
    /// Datagrams may be missing for a reason that the model does not follow.
    is_spoiled: bool,
}

/// The purpose of an operation on datagrams.
pub(crate) enum DatagramRole {
    /// For each send, the numbers of its datagrams, and its bytes.
    Send {
        pair: usize,
        owner: Owner,
        sends: Vec<(Vec<usize>, Vec<u8>)>,
    },
    Receive {
        pair: usize,
        owner: Owner,
        room: usize,
        began: u64,
        is_peek: bool,
        takes_all: bool,
    },
}

impl DatagramRole {
    pub(crate) fn kind(&self) -> &'static str {
        match *self {
            Self::Send { owner: Owner::Runtime, .. } => "socket send",
            Self::Send { .. } => "datagram send",
            Self::Receive { owner: Owner::Runtime, is_peek: true, .. } => "socket peek",
            Self::Receive { owner: Owner::Runtime, .. } => "socket receive",
            Self::Receive { owner: Owner::Receiver, .. } => "receiver receive",
            Self::Receive { is_peek: true, .. } => "datagram peek",
            Self::Receive { .. } => "datagram receive",
        }
    }

    pub(crate) fn pair(&self) -> usize {
        match *self {
            Self::Send { pair, .. } | Self::Receive { pair, .. } => pair,
        }
    }
}

impl DatagramModel {
    /// Drops both sockets.
    pub(crate) fn part_with_ends(&mut self) {
        self.sender = None;
        self.receiver = None;
    }

    /// Records that the program gives up an operation's result.
    pub(crate) fn give_up(&mut self, role: &DatagramRole) {
        self.note_canceled(role);
        if let DatagramRole::Receive { owner, is_peek, .. } = *role {
            self.receiving -= 1;
            if owner == Owner::Operations && !is_peek {
                self.mailbox.lost_sight();
            }
        }
    }

    /// Records that a receive of the runtime was canceled: its datagram may go to a later one.
    pub(crate) fn note_canceled(&mut self, role: &DatagramRole) {
        if let DatagramRole::Receive { owner: Owner::Runtime, room, is_peek, takes_all, .. } = *role
            && !is_peek
        {
            self.dropped_rooms.push(room);
            self.may_lack_descriptors |= !takes_all;
        }
    }

    /// Records that the handle of an operation was forgotten: its datagram, and those it blocks, are
    /// unknown.
    pub(crate) fn forget(&mut self, role: &DatagramRole) {
        self.note_canceled(role);
        self.is_spoiled = true;
        self.mailbox.lost_sight();
    }
}

/// Converts an address to that of `std`.
fn unix(address: &SocketAddress) -> UnixAddr {
    let std = match (address.path(), address.name()) {
        (Some(path), _) => UnixAddr::from_pathname(path),
        (_, Some(name)) => UnixAddr::from_abstract_name(name),
        _ => UnixAddr::from_pathname(""),
    };
    std.expect("it is an address")
}

fn of_unix(address: &UnixAddr) -> SocketAddress {
    let own = match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => SocketAddress::unix(path),
        (_, Some(name)) => SocketAddress::abstract_name(name),
        _ => return SocketAddress::UNNAMED,
    };
    own.expect("it is an address")
}

/// Returns a datagram that filled a buffer. With memory filled up to its capacity, the buffer's length must
/// be the number of bytes; otherwise this returns an impossible datagram.
fn arrival(is_capacity: bool, room: usize, len: usize, buf: &[u8]) -> Arrival {
    let is_wrong = is_capacity && buf.len() != len || buf.len() < len;
    let bytes = if is_wrong { vec![0x77; room + 1] } else { buf[..len].to_vec() };
    let receipt = Receipt { bytes, room, ..Receipt::default() };
    Arrival { receipt, from: None, control: None }
}

impl Arrival {
    fn from(mut self, from: SocketAddress, is_cut: Option<bool>) -> Self {
        (self.from, self.receipt.is_cut) = (Some(from), is_cut);
        self
    }

    fn with(mut self, control: ReceivedControl, len: Option<usize>) -> Self {
        (self.control, self.receipt.len) = (Some(control), len);
        self
    }
}

fn one(result: io::Result<Arrival>) -> Output {
    Output::Datagrams(result.map(|arrival| vec![arrival]))
}

impl<E: Env> Runner<'_, E> {
    /// Makes two sockets for datagrams.
    pub(super) fn make_datagrams(
        &mut self,
        place: Place,
        owner: Owner,
        is_connected: bool,
        is_shared: bool,
    ) -> Check {
        let kind = SocketType::DATAGRAM;
        let ((receiver, to), (sender, from)) = if place == Place::Pair {
            let Ok((receiver, sender)) = self.driver.socket_pair(kind) else { return Ok(()) };
            ((receiver, SocketAddress::UNNAMED), (sender, SocketAddress::UNNAMED))
        } else {
            let Some(receiver) = self.bound(place, kind)? else { return Ok(()) };
            let Some(sender) = self.bound(place, kind)? else { return Ok(()) };
            (receiver, sender)
        };
        let is_connected = is_connected && place != Place::Pair;
        if is_connected
            && (self.done(|driver| driver.connect(&sender, &to))?.is_none()
                || self.done(|driver| driver.connect(&receiver, &from))?.is_none())
        {
            return Ok(());
        }
        let is_network = place == Place::Network;
        let way = Way {
            loses: is_network && self.has(FaultKind::DatagramLost),
            duplicates: is_network && self.has(FaultKind::DatagramDuplicated),
            reorders: is_network && self.has(FaultKind::DatagramReordered),
        };
        let driver = self.driver.handle();
        let socket = |fd: Fd| match owner {
            Owner::Runtime if is_network => {
                Socket::Udp(Rc::new(UdpSocket::of_driver(fd, driver.clone())))
            }
            Owner::Runtime => Socket::Unix(Rc::new(UnixDatagram::of_driver(fd, driver.clone()))),
            _ => Socket::Fd(fd),
        };
        let receiver = if owner == Owner::Receiver {
            let control_bytes = ControlMessage::space(8);
            let options = DatagramOptions { datagram_bytes_max: RECEIVER_BYTES, control_bytes };
            Socket::Receiver(Rc::new(self.driver.datagrams(receiver, options)))
        } else {
            socket(receiver)
        };
        let (sender, receiver) = (Some(socket(sender)), Some(receiver));
        self.datagrams.push(DatagramModel {
            mailbox: Mailbox::new(way, !is_shared || owner == Owner::Receiver),
            place,
            owner,
            is_connected: is_connected || place == Place::Pair,
            // With a receiver, one task at a time receives.
            is_shared: is_shared && owner != Owner::Receiver,
            sender,
            receiver,
            from,
            to,
            receiving: 0,
            dropped_rooms: Vec::new(),
            may_lack_descriptors: false,
            is_spoiled: false,
        });
        Ok(())
    }

    fn pick_pair(&self, number: u8) -> Option<usize> {
        pick(number.into(), self.datagrams.len())
    }

    pub(super) fn send_datagram(
        &mut self,
        number: u8,
        len: u16,
        form: Form,
        descriptors: u8,
    ) -> Check {
        let Some(pair) = self.pick_pair(number) else { return Ok(()) };
        let its = &self.datagrams[pair];
        let (is_network, to, owner) = (its.place == Place::Network, its.to, its.owner);
        let Some(sender) = its.sender.clone() else { return Ok(()) };
        let form = match form {
            Form::Bytes | Form::Addressed if !its.is_connected => Form::Addressed,
            Form::Addressed | Form::Batch if to.is_unnamed() => Form::Bytes,
            form => form,
        };
        let target = if its.is_connected { SocketAddress::UNNAMED } else { to };
        let id = self.started + 1;
        let count = if form == Form::Batch && owner == Owner::Runtime { BATCH } else { 1 };
        let texts: Vec<Vec<u8>> =
            (0..count as u64).map(|index| text(id << 8 | index, len.into())).collect();
        let (mut control, mut numbers) = (ControlMessages::new(), Vec::new());
        let mut segment = usize::MAX;
        if form == Form::Message && !is_network {
            (control, numbers) = self.probes(descriptors)?;
        } else if form == Form::Message
            && descriptors > 0
            && (usize::from(SEGMENT_BYTES)..SEGMENTED_BYTES_MAX).contains(&len.into())
        {
            control = control.segment_bytes(SEGMENT_BYTES);
            segment = SEGMENT_BYTES.into();
        }
        let its = &mut self.datagrams[pair];
        let mut sends = Vec::new();
        for text in &texts {
            let datagrams: Vec<&[u8]> =
                if text.is_empty() { vec![&[][..]] } else { text.chunks(segment).collect() };
            let mut send = |bytes: &&[u8]| its.mailbox.send(bytes.to_vec(), numbers.clone());
            sends.push((datagrams.iter().map(&mut send).collect(), text.clone()));
        }
        // Some datagrams take up to twice their bytes in the buffer of the socket.
        if is_network && its.mailbox.bytes_sent() * 2 > self.config.socket_bytes {
            its.mailbox.overflows();
        }
        let mut bufs: Vec<E::Buf> = texts.into_iter().map(|text| self.env.buffer(text)).collect();
        let op = match sender {
            Socket::Fd(fd) => {
                self.send_by_operation(&fd, bufs.swap_remove(0), form, target, to, control)
            }
            Socket::Receiver(_) => unreachable!("it receives only"),
            Socket::Udp(socket) => driven(async move {
                let to = to.inet().expect("it is on the network");
                let target = target.inet();
                Output::Sent(match form {
                    Form::Batch => {
                        let messages = bufs.into_iter().map(|buf| (buf, to)).collect();
                        let results = socket.send_batch(messages).await;
                        results.into_iter().map(|(result, buf)| (result, buf.to_vec())).collect()
                    }
                    _ => {
                        let buf = bufs.swap_remove(0);
                        let (result, buf) = match form {
                            Form::Bytes => socket.send(buf).await,
                            Form::Message => socket.send_message(buf, target, control).await,
                            _ => socket.send_to(buf, to).await,
                        };
                        vec![(result, buf.to_vec())]
                    }
                })
            }),
            Socket::Unix(socket) => driven(async move {
                let mut results = Vec::new();
                let target = (!target.is_unnamed()).then(|| unix(&target));
                for buf in bufs {
                    let (result, buf) = match form {
                        Form::Bytes => socket.send(buf).await,
                        Form::Message => {
                            socket.send_message(buf, target.as_ref(), control.clone()).await
                        }
                        _ => socket.send_to_addr(buf, &unix(&to)).await,
                    };
                    results.push((result, buf.to_vec()));
                }
                Output::Sent(results)
            }),
        };
        self.hold(Role::Datagram(DatagramRole::Send { pair, owner, sends }), op);
        Ok(())
    }

    fn send_by_operation(
        &self,
        fd: &Fd,
        buf: E::Buf,
        form: Form,
        target: SocketAddress,
        to: SocketAddress,
        control: ControlMessages,
    ) -> Box<dyn Pending> {
        let driver = &self.driver;
        let sent = |(result, buf): (_, E::Buf)| Output::Sent(vec![(result, buf.to_vec())]);
        match form {
            Form::Bytes => pending(driver.send(fd, buf, 0), sent),
            Form::Message => pending(driver.send_message(fd, buf, &target, control, 0), sent),
            Form::Addressed | Form::Batch => pending(driver.send_to(fd, buf, &to, 0), sent),
        }
    }

    pub(super) fn receive_datagram(&mut self, number: u8, len: u16, form: Form, is_peek: bool) {
        let Some(pair) = self.pick_pair(number) else { return };
        let its = &mut self.datagrams[pair];
        let owner = its.owner;
        let Some(receiver) = its.receiver.clone() else { return };
        if !its.is_shared && its.receiving > 0 || is_peek && owner == Owner::Receiver {
            return;
        }
        let began = its.mailbox.now();
        its.receiving += 1;
        let (room, is_capacity) = (usize::from(len), self.fills_capacity());
        let control_bytes = ControlMessage::space(4 * (self.started % 4) as usize);
        let takes_all = form == Form::Message && control_bytes >= ControlMessage::space(12);
        let is_batch = form == Form::Batch && matches!(receiver, Socket::Udp(_));
        if is_batch {
            self.datagrams[pair].mailbox.lose_order();
        }
        let count = if is_batch { BATCH } else { 1 };
        let bufs: Vec<E::Buf> = (0..count).map(|_| self.room(room)).collect();
        let op = match receiver {
            Socket::Fd(fd) => {
                let flags = if is_peek { PEEK } else { 0 };
                self.receive_by_operation(&fd, room, form, control_bytes, flags)
            }
            Socket::Receiver(receiver) => driven(async move {
                one(receiver.recv().await.map(|datagram| {
                    let bytes = datagram.bytes.to_vec();
                    let is_cut = datagram.is_truncated;
                    let room = if is_cut { bytes.len() } else { usize::MAX };
                    let receipt = Receipt { bytes, room, ..Receipt::default() };
                    let arrival = Arrival { receipt, from: None, control: None };
                    arrival.from(datagram.from, Some(is_cut)).with(datagram.control, None)
                }))
            }),
            Socket::Udp(socket) => driven(async move {
                let from = |from| SocketAddress::from(from);
                let mut bufs = bufs;
                if form == Form::Batch && !is_peek {
                    let (result, bufs) = socket.recv_batch(bufs).await;
                    return Output::Datagrams(result.map(|all| {
                        let both = all.into_iter().zip(&bufs);
                        let arrival = |(its, buf): (sakia::net::Received<_>, &E::Buf)| {
                            arrival(is_capacity, room, its.len, buf)
                                .from(from(its.from), Some(its.is_truncated))
                        };
                        both.map(arrival).collect()
                    }));
                }
                let buf = bufs.swap_remove(0);
                if is_peek {
                    let (result, buf) = socket.peek_from(buf).await;
                    return one(result.map(|(len, address)| {
                        arrival(is_capacity, room, len, &buf).from(from(address), None)
                    }));
                }
                match form {
                    Form::Bytes => {
                        let (result, buf) = socket.recv(buf).await;
                        one(result.map(|len| arrival(is_capacity, room, len, &buf)))
                    }
                    Form::Message => {
                        let (result, buf) = socket.recv_message(buf, control_bytes).await;
                        one(result.map(|(its, control)| {
                            arrival(is_capacity, room, its.len, &buf)
                                .from(from(its.from), Some(its.is_truncated))
                                .with(control, Some(its.datagram_len))
                        }))
                    }
                    _ => {
                        let (result, buf) = socket.recv_from(buf).await;
                        one(result.map(|(len, address)| {
                            arrival(is_capacity, room, len, &buf).from(from(address), None)
                        }))
                    }
                }
            }),
            Socket::Unix(socket) => driven(async move {
                let mut bufs = bufs;
                let buf = bufs.swap_remove(0);
                let (result, buf) = match form {
                    _ if is_peek => socket.peek_from(buf).await,
                    Form::Message => {
                        let (result, buf) = socket.recv_message(buf, control_bytes).await;
                        return one(result.map(|(its, control)| {
                            arrival(is_capacity, room, its.len, &buf)
                                .from(of_unix(&its.from), Some(its.is_truncated))
                                .with(control, Some(its.datagram_len))
                        }));
                    }
                    Form::Bytes => {
                        let (result, buf) = socket.recv(buf).await;
                        return one(result.map(|len| arrival(is_capacity, room, len, &buf)));
                    }
                    _ => socket.recv_from(buf).await,
                };
                one(result.map(|(len, from)| {
                    arrival(is_capacity, room, len, &buf).from(of_unix(&from), None)
                }))
            }),
        };
        let role = DatagramRole::Receive { pair, owner, room, began, is_peek, takes_all };
        self.hold(Role::Datagram(role), op);
    }

    fn receive_by_operation(
        &self,
        fd: &Fd,
        room: usize,
        form: Form,
        control_bytes: usize,
        flags: u32,
    ) -> Box<dyn Pending> {
        let (driver, is_capacity, buf) = (&self.driver, self.fills_capacity(), self.room(room));
        let filled = move |received: &Received, buf: &E::Buf| {
            let Received { len, from, is_truncated, .. } = *received;
            arrival(is_capacity, room, len, buf).from(from, Some(is_truncated))
        };
        match form {
            Form::Bytes => {
                pending(driver.recv(fd, buf, flags), move |(result, buf): (_, E::Buf)| {
                    one(result.map(|len| arrival(is_capacity, room, len, &buf)))
                })
            }
            Form::Message => {
                let flags =
                    if self.started.is_multiple_of(3) { flags } else { flags | TELL_LENGTH };
                let tells = flags & TELL_LENGTH != 0;
                let op = driver.recv_message(fd, buf, control_bytes, flags);
                pending(op, move |(result, buf): (io::Result<(_, _)>, E::Buf)| {
                    one(result.map(|(received, control)| {
                        let len = tells.then_some(received.datagram_len);
                        filled(&received, &buf).with(control, len)
                    }))
                })
            }
            Form::Addressed | Form::Batch => {
                pending(driver.recv_from(fd, buf, flags), move |(result, buf): (_, E::Buf)| {
                    one(result.map(|received| filled(&received, &buf)))
                })
            }
        }
    }

    pub(super) fn close_datagrams(&mut self, number: u8) {
        let Some(pair) = self.pick_pair(number) else { return };
        self.datagrams[pair].receiver = None;
    }

    /// Handles the end of an operation on datagrams.
    pub(super) fn end_datagram(
        &mut self,
        role: DatagramRole,
        is_canceled: bool,
        output: Output,
    ) -> Check {
        match (role, output) {
            // A dropped future; dropping is the only way to cancel it.
            (role, Output::Bytes(Err(_), _)) if is_canceled => {
                self.datagrams[role.pair()].give_up(&role);
                Ok(())
            }
            (DatagramRole::Send { pair, sends, .. }, Output::Sent(results)) => {
                if results.len() != sends.len() {
                    return Err(format!("{} sends, {} results", sends.len(), results.len()));
                }
                for ((letters, bytes), (result, buffer)) in sends.into_iter().zip(results) {
                    if buffer != bytes {
                        return Err("the buffer came back with other bytes".to_owned());
                    }
                    self.end_send(pair, &letters, result, bytes.len(), is_canceled)?;
                }
                Ok(())
            }
            (DatagramRole::Receive { pair, room, began, is_peek, owner, .. }, output) => {
                self.datagrams[pair].receiving -= 1;
                let Output::Datagrams(result) = output else {
                    return Err("no result of its kind".to_owned());
                };
                match result {
                    Err(error) if room == 0 && owner != Owner::Receiver => {
                        self.excuse(&error, is_canceled, &[Errno::INVAL])
                    }
                    Err(error) => self.excuse(&error, is_canceled, &[]),
                    Ok(_) if room == 0 && owner != Owner::Receiver => {
                        Err("without room it was not refused".to_owned())
                    }
                    Ok(arrivals) if arrivals.is_empty() => Err("a batch of none".to_owned()),
                    Ok(arrivals) => {
                        if arrivals.len() > 1 {
                            self.stats.outcome(Outcome::BatchOfSeveral);
                        }
                        for arrival in arrivals {
                            self.arrived(pair, arrival, began, is_peek)?;
                        }
                        Ok(())
                    }
                }
            }
            _ => Err("no result of its kind".to_owned()),
        }
    }

    fn end_send(
        &mut self,
        pair: usize,
        letters: &[usize],
        result: io::Result<usize>,
        len: usize,
        is_canceled: bool,
    ) -> Check {
        let its = &mut self.datagrams[pair];
        match result {
            Ok(count) if count == len => {
                letters.iter().for_each(|&letter| its.mailbox.sent(letter));
                if letters.len() > 1 {
                    self.stats.outcome(Outcome::DatagramSegments);
                }
                Ok(())
            }
            Ok(count) => Err(format!("{count} of {len} bytes")),
            Err(error) => {
                letters.iter().try_for_each(|&letter| its.mailbox.refused(letter))?;
                let is_network = its.place == Place::Network;
                let limit = if is_network { NETWORK_BYTES_MAX } else { self.config.socket_bytes };
                let mut known = Vec::new();
                if len > limit {
                    known.push(Errno::MSGSIZE);
                }
                if its.receiver.is_none() {
                    known.push(Errno::CONNREFUSED);
                }
                if its.receiver.is_none() && !is_network {
                    // The receiver's datagrams are discarded first, and then the connection ends.
                    known.extend([Errno::CONNRESET, Errno::NOTCONN]);
                }
                match Errno::from_io_error(&error) {
                    Some(Errno::MSGSIZE) => self.stats.outcome(Outcome::DatagramTooLong),
                    Some(Errno::CONNREFUSED) => self.stats.outcome(Outcome::DatagramRefused),
                    _ => {}
                }
                self.excuse(&error, is_canceled, &known)
            }
        }
    }

    /// Checks a datagram that was received or peeked.
    fn arrived(&mut self, pair: usize, arrival: Arrival, began: u64, is_peek: bool) -> Check {
        let Arrival { mut receipt, from, control } = arrival;
        let its = &self.datagrams[pair];
        let (owner, sender) = (its.owner, its.from);
        if from.is_some_and(|from| from != sender) {
            return Err(format!("it is from {from:?}, and {sender:?} has sent it"));
        }
        let is_cut = receipt.is_cut == Some(true);
        if owner == Owner::Receiver && is_cut && receipt.bytes.len() < RECEIVER_BYTES {
            return Err("it was cut though there was room".to_owned());
        }
        receipt.other_rooms.clone_from(&its.dropped_rooms);
        let may_lack_descriptors = its.may_lack_descriptors;
        if let Some(control) = control {
            let numbers = self.numbers(&control.descriptors)?;
            if control.is_truncated {
                self.stats.outcome(Outcome::DescriptorCut);
            }
            receipt.descriptors = Some((numbers, control.is_truncated || may_lack_descriptors));
            // Half of the programs keep descriptors for a while.
            if self.config.seed.is_multiple_of(2) {
                self.kept.push(control);
            }
        }
        let its = &mut self.datagrams[pair];
        if is_peek {
            // A peek returns copies of descriptors, and not all of them if the descriptor table is full.
            self.stats.outcome(Outcome::Peeked);
            return its.mailbox.peeked(receipt, began);
        }
        let is_empty = receipt.bytes.is_empty();
        let is_for_later = owner == Owner::Runtime && !its.dropped_rooms.is_empty();
        let (repeated, overtaken) = (its.mailbox.repeated(), its.mailbox.has_overtaken());
        its.mailbox.received(receipt, began)?;
        let facts = [
            (is_empty, Outcome::DatagramEmpty),
            (is_cut, Outcome::DatagramCut),
            (is_for_later, Outcome::KeptForLater),
            (owner == Owner::Receiver, Outcome::ReceiverBrings),
            (its.mailbox.repeated() > repeated, Outcome::DatagramRepeated),
            (!overtaken && its.mailbox.has_overtaken(), Outcome::DatagramOvertakes),
        ];
        let true_ones = facts.into_iter().filter(|&(is_true, _)| is_true);
        true_ones.for_each(|(_, outcome)| self.stats.outcome(outcome));
        Ok(())
    }

    /// Receives all remaining datagrams: none may be missing.
    pub(super) fn drain_datagrams(&mut self) -> Check {
        for pair in 0..self.datagrams.len() {
            let mut turns = 0;
            while self.datagrams[pair].misses_some() && !self.may_hang() {
                let before = self.datagrams[pair].mailbox.missing();
                // The datagram of a dropped receive goes to the next one that begins, not to those that
                // wait.
                let begins = self.datagrams[pair].is_shared && turns % 8 == 1;
                if begins || self.datagrams[pair].receiving == 0 {
                    self.receive_datagram(pair as u8, ROOM, Form::Message, false);
                }
                self.turn(Wait::For(NAP))?;
                self.take_done()?;
                turns = if self.datagrams[pair].mailbox.missing() < before { 0 } else { turns + 1 };
                if turns > TURNS_WITHOUT {
                    let missing = self.datagrams[pair].mailbox.missing();
                    let of = self.datagrams[pair].owner;
                    return Err(format!("{missing} datagrams never came to a socket of {of:?}"));
                }
            }
            if self.datagrams[pair].mailbox.has_lost() {
                self.stats.outcome(Outcome::DatagramMissing);
            }
        }
        Ok(())
    }
}

impl DatagramModel {
    /// Returns whether certainly sent datagrams are still to come.
    fn misses_some(&self) -> bool {
        self.receiver.is_some() && !self.is_spoiled && self.mailbox.missing() > 0
    }
}
