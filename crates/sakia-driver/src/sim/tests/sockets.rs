//! Sockets: connections, their ends and their queues; datagrams; the effects of a network.

use core::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::ReturnFlags;
use sakia_ring::{IoVec, Opcode, Sqe};

use super::super::kernel::poll;
use super::super::{Fault, FaultKind, Routes, Sim, Target};
use super::{Lendable, Loop, SEEDS, err, read, write};
use crate::address::SocketType;
use crate::address::{AddressRoom, Domain, SocketAddress};
use crate::backend::{Backend, Calls, FileKind};
use crate::call::Function;
use crate::sys::Message;

/// `SHUT_*`.
const RECEIVES: u32 = 0;
const SENDS: u32 = 1;
/// `MSG_*`.
const PEEK: u32 = 0x2;
const DONT_WAIT: u32 = 0x40;

fn small(bytes: usize) -> Loop {
    let builder = Sim::builder(1).routes(Routes::INLINE).reorders(false);
    Loop::new(builder.socket_bytes(bytes))
}

fn internet(port: u16) -> SocketAddress {
    SocketAddr::from(([127, 0, 0, 1], port)).into()
}

fn named(name: &str) -> SocketAddress {
    SocketAddress::abstract_name(name).unwrap()
}

fn recv(fd: i32, buffer: &Lendable) -> Sqe {
    Sqe::recv(fd, buffer.ptr(), buffer.len(), 0)
}

fn send(fd: i32, buffer: &Lendable) -> Sqe {
    Sqe::send(fd, buffer.ptr(), buffer.len(), 0)
}

/// Returns an accept without the peer's address.
fn accept(listener: i32) -> Sqe {
    Sqe::accept(listener, std::ptr::null_mut::<u8>(), std::ptr::null_mut(), 0)
}

impl Loop {
    #[track_caller]
    fn socket(&mut self, domain: Domain, kind: SocketType) -> i32 {
        let raw = self.run(Sqe::socket(domain.0.into(), kind.0, 0));
        assert!(raw >= 0, "{raw}");
        raw
    }

    fn bind(&mut self, raw: i32, address: &SocketAddress) -> i32 {
        let bytes = Lendable::new(address.as_bytes());
        self.run(Sqe::bind(raw, bytes.ptr(), bytes.len()))
    }

    fn connect(&mut self, raw: i32, address: &SocketAddress) -> i32 {
        let bytes = Lendable::new(address.as_bytes());
        self.run(Sqe::connect(raw, bytes.ptr(), bytes.len()))
    }

    /// Makes a listening socket.
    #[track_caller]
    fn listener(&mut self, address: &SocketAddress, backlog: u32) -> i32 {
        let raw = self.socket(address.domain(), SocketType::STREAM);
        assert_eq!(self.bind(raw, address), 0);
        assert_eq!(self.run(Sqe::listen(raw, backlog)), 0);
        raw
    }

    fn accept(&mut self, listener: i32) -> i32 {
        self.run(accept(listener))
    }

    /// Makes a connection. Returns both ends.
    #[track_caller]
    fn connected(&mut self, address: &SocketAddress) -> (i32, i32) {
        let listener = self.listener(address, 1);
        let near = self.handle.connect_peer(address).unwrap();
        let far = self.accept(listener);
        self.handle.close(listener).unwrap();
        (near, far)
    }

    /// Makes a datagram socket with an address.
    #[track_caller]
    fn datagrams(&mut self, address: &SocketAddress) -> i32 {
        let raw = self.socket(address.domain(), SocketType::DATAGRAM);
        assert_eq!(self.bind(raw, address), 0);
        raw
    }

    fn events(&mut self, raw: i32) -> u16 {
        let all = u32::from(u16::MAX);
        self.push(9, Sqe::poll_add(raw, all));
        self.turn().last().map_or(0, |&(_, events)| events as u16)
    }
}

#[test]
fn a_stream_takes_what_its_buffers_hold_and_may_be_short() {
    let mut ring = small(4);
    let (near, far) = ring.handle.socket_pair();
    // SAFETY: a number of the simulated kernel.
    assert_eq!(unsafe { ring.handle.facts(near, None) }.kind, FileKind::Waiting);
    let (six, three) = (Lendable::new(b"abcdef"), Lendable::zeroed(3));
    assert_eq!(ring.run(send(near, &six)), 4);
    ring.push(1, send(near, &six));
    assert_eq!(ring.turn(), []);
    ring.push(2, recv(far, &three));
    assert_eq!(ring.enter(2), [(2, 3), (1, 3)]);
    assert_eq!(three.copy(), b"abc");
    assert_eq!(ring.handle.receive_peer(far, 9).unwrap(), b"dabc");
    // The other direction has a buffer of its own.
    assert_eq!(ring.handle.send_peer(far, b"xyz").unwrap(), 3);
    assert_eq!(ring.run(read(near, &three, 0)), 3);
    assert_eq!(ring.run(write(far, &three, 0)), 3);
}

#[test]
fn a_receive_waits_and_is_finished_by_an_enter() {
    let mut ring = small(8);
    let (near, far) = ring.handle.socket_pair();
    let buffer = Lendable::zeroed(8);
    ring.push(1, recv(far, &buffer));
    assert_eq!(ring.turn(), []);
    ring.handle.send_peer(near, b"abc").unwrap();
    assert!(ring.sim.needs_enter());
    assert_eq!(ring.submit(), [], "a submit finishes nothing that waited");
    assert_eq!(ring.turn(), [(1, 3)]);
    assert_eq!(&buffer.copy()[..3], b"abc");
    let again = err(Errno::AGAIN);
    assert_eq!(ring.run(Sqe::recv(far, buffer.ptr(), 8, DONT_WAIT)), again);
    ring.handle.send_peer(near, b"z").unwrap();
    for _ in 0..2 {
        assert_eq!(ring.run(Sqe::recv(far, buffer.ptr(), 8, PEEK)), 1);
    }
    assert_eq!(ring.run(recv(far, &buffer)), 1);
    assert_eq!(ring.handle.receive_peer(far, 1).unwrap_err().raw_os_error(), Some(-again));
}

#[test]
fn each_direction_ends_for_itself() {
    for address in [named("half"), internet(80)] {
        let mut ring = small(8);
        let (near, far) = ring.connected(&address);
        let buffer = Lendable::new(b"abcd");
        ring.push(1, recv(far, &buffer));
        assert_eq!(ring.turn(), []);
        ring.push(2, Sqe::shutdown(near, SENDS));
        assert_eq!(ring.enter(2), [(2, 0), (1, 0)]);
        assert_eq!(ring.run(send(near, &buffer)), err(Errno::PIPE));
        assert_eq!(ring.run(send(far, &buffer)), 4);
        assert_eq!(ring.run(Sqe::shutdown(near, RECEIVES)), 0);
        assert_eq!(ring.run(recv(near, &buffer)), 4, "the earlier bytes");
        assert_eq!(ring.run(recv(near, &buffer)), 0);
        // Within the machine the peer knows at once that there is no receiver.
        let refused = if address.inet().is_none() { err(Errno::PIPE) } else { 4 };
        assert_eq!(ring.run(send(far, &buffer)), refused);
        assert_eq!(ring.run(Sqe::shutdown(near, 3)), err(Errno::INVAL));
    }
}

#[test]
fn what_was_not_read_resets_the_peer_once() {
    for address in [named("reset"), internet(80)] {
        let mut ring = small(8);
        let (near, far) = ring.connected(&address);
        let buffer = Lendable::zeroed(4);
        ring.handle.send_peer(far, b"ab").unwrap();
        ring.handle.send_peer(near, b"unread").unwrap();
        ring.handle.close(far).unwrap();
        assert_eq!(ring.events(near) & (poll::IN | poll::ERR), poll::IN | poll::ERR);
        assert_eq!(ring.run(recv(near, &buffer)), 2, "the earlier bytes");
        assert_eq!(ring.run(recv(near, &buffer)), err(Errno::CONNRESET));
        assert_eq!(ring.run(recv(near, &buffer)), 0);
        assert_eq!(ring.run(send(near, &buffer)), err(Errno::PIPE));
    }
}

#[test]
fn a_peer_on_the_network_is_missed_by_the_second_send() {
    let mut ring = small(8);
    let buffer = Lendable::new(b"abc");
    let (near, far) = ring.connected(&internet(80));
    ring.handle.close(far).unwrap();
    assert_eq!(ring.run(send(near, &buffer)), 3);
    assert_eq!(ring.run(send(near, &buffer)), err(Errno::PIPE));
    assert_eq!(ring.run(recv(near, &buffer)), 0);
    let (near, far) = ring.connected(&named("near"));
    ring.handle.close(far).unwrap();
    assert_eq!(ring.run(send(near, &buffer)), err(Errno::PIPE));
}

#[test]
fn connections_wait_at_the_listener_and_then_outside() {
    for address in [named("backlog"), internet(80)] {
        let mut ring = small(8);
        let listener = ring.listener(&address, 1);
        let peers = [(); 2].map(|()| ring.handle.connect_peer(&address).unwrap());
        let full = ring.handle.connect_peer(&address).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
        let late = ring.socket(address.domain(), SocketType::STREAM);
        let bytes = Lendable::new(address.as_bytes());
        ring.push(1, Sqe::connect(late, bytes.ptr(), bytes.len()));
        assert_eq!(ring.turn(), []);
        // The clients may send before they are accepted.
        ring.handle.send_peer(peers[0], b"early").unwrap();
        ring.push(2, accept(listener));
        let completions = ring.enter(2);
        let [(2, first), (1, 0)] = completions[..] else { panic!("{completions:?}") };
        assert_eq!(ring.handle.receive_peer(first, 9).unwrap(), b"early");
        // A connection still in the queue when the listener is closed is rejected.
        ring.handle.close(listener).unwrap();
        let buffer = Lendable::zeroed(4);
        for raw in [peers[1], late] {
            assert_eq!(ring.run(recv(raw, &buffer)), err(Errno::CONNRESET));
            assert_eq!(ring.run(recv(raw, &buffer)), 0);
        }
        assert_eq!(ring.handle.send_peer(peers[0], b"still").unwrap(), 5);
    }
}

#[test]
fn an_accept_tells_who_came_and_how_long_that_is() {
    let mut ring = small(8);
    let listener = ring.listener(&internet(0), 1);
    let calls = ring.sim.calls();
    // SAFETY: numbers of the simulated kernel.
    let local = |raw| unsafe { calls.address(raw, Function::Getsockname) };
    // SAFETY: likewise.
    let of_peer = |raw| unsafe { calls.address(raw, Function::Getpeername) };
    let address = local(listener).unwrap();
    let port = address.inet().unwrap().port();
    assert_eq!(port, 32_768, "the first that is free");
    let room = Box::into_raw(Box::new(AddressRoom::new()));
    // SAFETY: the room has no other user before the operation has completed.
    let (bytes, len) = unsafe { (*room).pointers() };
    ring.push(1, Sqe::accept(listener, bytes, len, 0));
    assert_eq!(ring.turn(), []);
    let peer = ring.handle.connect_peer(&address).unwrap();
    let completions = ring.turn();
    let [(1, raw)] = completions[..] else { panic!("{completions:?}") };
    // SAFETY: made above, and lent no more.
    let told = unsafe { Box::from_raw(room) }.address();
    assert_eq!((told, told), (local(peer).unwrap(), of_peer(raw).unwrap()));
    assert_eq!(of_peer(peer).unwrap(), address);
    assert!(local(99).is_err());
}

#[test]
fn a_full_table_leaves_the_connection_where_it_is() {
    let mut ring = Loop::new(Sim::builder(1).routes(Routes::INLINE).descriptors_max(5));
    let listener = ring.listener(&named("full"), 1);
    let peer = ring.handle.connect_peer(&named("full")).unwrap();
    assert_eq!(ring.accept(listener), err(Errno::MFILE));
    let any = Domain::UNIX.0.into();
    assert_eq!(ring.run(Sqe::socket(any, SocketType::STREAM.0, 0)), err(Errno::MFILE));
    ring.handle.send_peer(peer, b"x").unwrap();
    ring.handle.close(peer).unwrap();
    assert_eq!(ring.accept(listener), peer, "the lowest number");
    assert_eq!(ring.handle.receive_peer(peer, 9).unwrap(), b"x");
}

#[test]
fn addresses_are_taken_and_become_free() {
    let mut ring = small(8);
    let any = SocketAddress::from(SocketAddr::from(([0, 0, 0, 0], 80)));
    let remote = SocketAddress::from(SocketAddr::from(([192, 0, 2, 1], 80)));
    let listener = ring.listener(&any, 1);
    let other = ring.socket(Domain::INET, SocketType::STREAM);
    assert_eq!(ring.bind(other, &internet(80)), err(Errno::ADDRINUSE));
    assert_eq!(ring.bind(other, &remote), err(Errno::ADDRNOTAVAIL));
    assert_eq!(ring.bind(other, &named("x")), err(Errno::AFNOSUPPORT));
    assert_eq!(ring.bind(other, &SocketAddress::UNNAMED), err(Errno::INVAL));
    assert_eq!(ring.bind(listener, &internet(81)), err(Errno::INVAL), "it has one");
    ring.datagrams(&internet(80)); // another protocol
    // A connection keeps its listener's port.
    ring.handle.connect_peer(&internet(80)).unwrap();
    let far = ring.accept(listener);
    ring.handle.close(listener).unwrap();
    assert_eq!(ring.bind(other, &any), err(Errno::ADDRINUSE));
    ring.handle.close(far).unwrap();
    assert_eq!(ring.bind(other, &any), 0);
    assert_eq!(ring.connect(other, &internet(99)), err(Errno::CONNREFUSED));
}

#[test]
fn what_is_no_socket_and_what_it_cannot_do_is_refused() {
    let mut ring = small(8);
    let (pipe, _) = ring.handle.pipe();
    let buffer = Lendable::zeroed(4);
    assert_eq!(ring.run(recv(pipe, &buffer)), err(Errno::NOTSOCK));
    assert_eq!(ring.accept(99), err(Errno::BADF));
    let stream = ring.socket(Domain::INET, SocketType::STREAM);
    let local = ring.socket(Domain::UNIX, SocketType::STREAM);
    let datagrams = ring.socket(Domain::INET, SocketType::DATAGRAM);
    for (raw, sends, receives) in
        [(stream, Errno::PIPE, Errno::NOTCONN), (local, Errno::NOTCONN, Errno::INVAL)]
    {
        assert_eq!(ring.run(send(raw, &buffer)), err(sends));
        assert_eq!(ring.run(recv(raw, &buffer)), err(receives));
        assert_eq!(ring.accept(raw), err(Errno::INVAL));
        assert_eq!(ring.events(raw), poll::WRITABLE | poll::HUP);
    }
    assert_eq!(ring.accept(datagrams), err(Errno::OPNOTSUPP));
    assert_eq!(ring.run(Sqe::listen(datagrams, 1)), err(Errno::OPNOTSUPP));
    assert_eq!(ring.run(Sqe::listen(local, 1)), err(Errno::INVAL), "no client could find it");
    assert_eq!(ring.run(send(datagrams, &buffer)), err(Errno::DESTADDRREQ));
    assert_eq!(ring.run(Sqe::shutdown(stream, SENDS)), err(Errno::NOTCONN));
    let unknown = Sqe::recv(stream, buffer.ptr(), 4, 1 << 20);
    assert_eq!(ring.run(unknown), err(Errno::OPNOTSUPP));
    for (domain, kind, protocol, errno) in [
        (77, 1, 0, Errno::AFNOSUPPORT),
        (2, 5, 0, Errno::SOCKTNOSUPPORT),
        (2, 1, 17, Errno::PROTONOSUPPORT),
        (1, 1, 6, Errno::PROTONOSUPPORT),
    ] {
        assert_eq!(ring.run(Sqe::socket(domain, kind, protocol)), err(errno));
    }
    assert!(ring.run(Sqe::socket(2, 2, 17)) > 0);
}

#[test]
fn a_shutdown_of_a_listener_ends_its_accepts() {
    let mut ring = small(8);
    let listener = ring.listener(&named("closing"), 1);
    ring.push(1, accept(listener));
    assert_eq!(ring.turn(), []);
    ring.push(2, Sqe::shutdown(listener, RECEIVES));
    assert_eq!(ring.enter(2), [(2, 0), (1, err(Errno::INVAL))]);
    let refused = ring.handle.connect_peer(&named("closing")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// A message and what it names, lent together.
struct Letter {
    bytes: Lendable,
    address: Lendable,
    vector: Lendable,
    message: Lendable,
}

impl Letter {
    fn new(content: &[u8], address: &[u8]) -> Self {
        let (bytes, address) = (Lendable::new(content), Lendable::new(address));
        let part = IoVec { base: bytes.ptr(), len: content.len() };
        let vector = Lendable::zeroed(size_of::<IoVec>());
        // SAFETY: as many bytes as are written, at any alignment.
        unsafe { vector.ptr().cast::<IoVec>().write_unaligned(part) };
        let name = (address.ptr(), address.len());
        let letter = Message::new(name, vector.ptr().cast());
        let message = Lendable::zeroed(size_of::<Message>());
        // SAFETY: as above.
        unsafe { message.ptr().cast::<Message>().write_unaligned(letter) };
        Self { bytes, address, vector, message }
    }

    fn send(&self, raw: i32) -> Sqe {
        Sqe::sendmsg(raw, self.message.ptr(), 0)
    }

    fn recv(&self, raw: i32) -> Sqe {
        Sqe::recvmsg(raw, self.message.ptr(), 0)
    }

    /// Returns the sender, and whether the datagram was cut.
    fn told(&self) -> (SocketAddress, bool) {
        assert_eq!(self.vector.len() as usize, size_of::<IoVec>());
        // SAFETY: a message was written there, and completed by now.
        let message = unsafe { self.message.ptr().cast::<Message>().read_unaligned() };
        let address = &self.address.copy()[..message.name_len as usize];
        (SocketAddress::from_bytes(address), message.flags & ReturnFlags::TRUNC.bits() != 0)
    }
}

#[test]
fn datagrams_keep_their_bounds_and_say_whence() {
    for (from, to) in [(named("from"), named("to")), (internet(1000), internet(2000))] {
        let mut ring = small(16);
        let (near, far) = (ring.datagrams(&from), ring.datagrams(&to));
        for content in [&b"one"[..], b"", b"longer"] {
            let letter = Letter::new(content, to.as_bytes());
            assert_eq!(ring.run(letter.send(near)), content.len() as i32);
        }
        for (expected, is_cut) in [(&b"one"[..], false), (b"", false), (b"long", true)] {
            let letter = Letter::new(&[0; 4], &[0; 110]);
            assert_eq!(ring.run(letter.recv(far)), expected.len() as i32);
            assert_eq!(&letter.bytes.copy()[..expected.len()], expected);
            assert_eq!(letter.told(), (from, is_cut));
        }
        let letter = Letter::new(&[0; 4], &[0; 110]);
        ring.push(1, letter.recv(far));
        assert_eq!(ring.turn(), []);
        assert_eq!(ring.connect(near, &to), 0);
        assert_eq!(ring.handle.send_peer(near, b"late").unwrap(), 4);
        assert_eq!(ring.turn(), [(1, 4)]);
        assert_eq!(letter.told(), (from, false));
    }
}

#[test]
fn a_full_queue_is_waited_for_within_the_machine_and_overflows_beyond() {
    let three = Lendable::new(b"abc");
    let mut ring = small(4);
    let (near, far) = (ring.datagrams(&named("a")), ring.datagrams(&named("b")));
    assert_eq!(ring.connect(near, &named("b")), 0);
    assert_eq!(ring.run(send(near, &three)), 3);
    ring.push(1, send(near, &three));
    assert_eq!(ring.turn(), []);
    assert_eq!(ring.handle.receive_peer(far, 9).unwrap(), b"abc");
    assert_eq!(ring.turn(), [(1, 3)]);
    let much = Lendable::zeroed(5);
    assert_eq!(ring.run(send(near, &much)), err(Errno::MSGSIZE));

    let (near, far) = (ring.datagrams(&internet(1)), ring.datagrams(&internet(2)));
    assert_eq!(ring.connect(near, &internet(2)), 0);
    for _ in 0..3 {
        assert_eq!(ring.run(send(near, &three)), 3);
    }
    assert_eq!(ring.handle.receive_peer(far, 9).unwrap(), b"abc");
    assert!(ring.handle.receive_peer(far, 9).is_err(), "the others found no room");
    // A connected socket accepts only datagrams of its peer.
    assert_eq!(ring.connect(far, &internet(3)), 0);
    assert_eq!(ring.run(send(near, &three)), 3);
    assert_eq!(ring.run(send(near, &three)), err(Errno::CONNREFUSED));
}

#[test]
fn datagrams_to_nobody_are_refused_as_far_as_that_is_known() {
    let mut ring = small(8);
    let three = Lendable::new(b"abc");
    let near = ring.socket(Domain::INET, SocketType::DATAGRAM);
    let letter = Letter::new(b"x", internet(9).as_bytes());
    assert_eq!(ring.run(letter.send(near)), 1, "no error is reported");
    assert_eq!(ring.connect(near, &internet(9)), 0);
    assert_eq!(ring.run(send(near, &three)), 3);
    assert_eq!(ring.events(near) & poll::ERR, poll::ERR);
    assert_eq!(ring.run(recv(near, &three)), err(Errno::CONNREFUSED));
    assert_eq!(ring.events(near), poll::WRITABLE);

    let near = ring.socket(Domain::UNIX, SocketType::DATAGRAM);
    let path = SocketAddress::unix("/nobody").unwrap();
    assert_eq!(ring.run(Letter::new(b"x", path.as_bytes()).send(near)), err(Errno::NOENT));
    let far = ring.datagrams(&path);
    assert_eq!(ring.run(Letter::new(b"x", path.as_bytes()).send(near)), 1);
    ring.handle.close(far).unwrap();
    assert_eq!(ring.run(Letter::new(b"x", path.as_bytes()).send(near)), err(Errno::CONNREFUSED));
}

#[test]
fn a_network_breaks_connections_off() {
    for address in [named("broken"), internet(80)] {
        let mut ring = small(8);
        let (near, far) = ring.connected(&address);
        let buffer = Lendable::new(b"abc");
        ring.handle.send_peer(near, b"lost").unwrap();
        ring.push(1, Sqe::poll_add(near, u32::from(poll::IN)));
        assert_eq!(ring.turn(), []);
        ring.handle.script(Target::opcode(Opcode::RECV), Fault::Reset);
        ring.push(2, Sqe::recv(far, buffer.ptr(), 3, DONT_WAIT));
        let completions = ring.enter(2);
        assert_eq!(completions[0], (2, err(Errno::CONNRESET)));
        assert_eq!(completions[1].0, 1, "the other end hears of it");
        assert_eq!(ring.run(recv(near, &buffer)), err(Errno::CONNRESET));
        for raw in [near, far] {
            assert_eq!(ring.run(recv(raw, &buffer)), 0);
            assert_eq!(ring.run(send(raw, &buffer)), err(Errno::PIPE));
        }
        assert_eq!(ring.handle.injected(FaultKind::Reset), 1);
    }
}

#[test]
fn a_network_loses_doubles_and_swaps_datagrams() {
    let mut ring = small(100);
    let (near, far) = (ring.datagrams(&internet(1)), ring.datagrams(&internet(2)));
    assert_eq!(ring.connect(near, &internet(2)), 0);
    for (content, fault) in [
        ("a", None),
        ("b", Some(Fault::DatagramLost)),
        ("c", Some(Fault::DatagramDuplicated)),
        ("d", Some(Fault::DatagramReordered)),
    ] {
        if let Some(fault) = fault {
            ring.handle.script(Target::opcode(Opcode::SEND), fault);
        }
        assert_eq!(ring.run(send(near, &Lendable::new(content.as_bytes()))), 1);
    }
    let received: Vec<u8> =
        (0..4).flat_map(|_| ring.handle.receive_peer(far, 9).unwrap()).collect();
    assert_eq!(received, b"acdc");
    assert!(ring.handle.receive_peer(far, 9).is_err());
    for kind in &FaultKind::NETWORK[1..] {
        assert_eq!(ring.handle.injected(*kind), 1, "{kind:?}");
    }
}

#[test]
fn errors_of_sockets_come_by_chance() {
    let mut ring = Loop::new(Sim::builder(3).fault(FaultKind::Errno, 1 << 14));
    let listener = ring.handle.socket_pair().0;
    let buffer = Lendable::zeroed(4);
    let mut errnos = Vec::new();
    for _ in 0..if cfg!(miri) { 50 } else { 400 } {
        let sqe = Sqe::recv(listener, buffer.ptr(), 4, DONT_WAIT);
        errnos.push(-ring.run(sqe));
        let made = ring.run(Sqe::socket(1, 1, 0));
        match made {
            0.. => ring.handle.close(made).unwrap(),
            _ => errnos.push(-made),
        }
    }
    errnos.sort_unstable();
    errnos.dedup();
    for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NOBUFS] {
        assert!(errnos.contains(&errno.raw_os_error()), "{errno:?}");
    }
}

/// A stream carries its bytes in any order of operations and with any faults of single calls, and the same
/// seed gives the same run.
#[test]
fn a_stream_carries_its_bytes_through_short_transfers_in_any_order() {
    let run = |seed| {
        let builder = Sim::builder(seed).socket_bytes(3).late_writes(1 << 14);
        let mut ring = Loop::new(builder.fault(FaultKind::ShortTransfer, 1 << 15));
        let (near, far) = ring.handle.socket_pair();
        let content = b"through the eye of a needle";
        let (mut sent, mut received) = (0, Vec::<u8>::new());
        while received.len() < content.len() {
            let (from, to) = (Lendable::new(&content[sent..]), Lendable::zeroed(5));
            let mut wanted = 1;
            ring.push(1, recv(far, &to));
            if sent < content.len() {
                ring.push(2, send(near, &from));
                wanted = 2;
            }
            for (user_data, res) in ring.enter(wanted) {
                match user_data {
                    1 => received.extend(&to.copy()[..res as usize]),
                    _ => sent += res as usize,
                }
            }
        }
        assert_eq!(received, content);
        assert!(ring.handle.injected(FaultKind::ShortTransfer) > 0);
        ring.handle.log_hash()
    };
    for seed in 0..SEEDS / 4 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn a_canceled_receive_leaves_the_bytes() {
    let mut ring = small(8);
    let (near, far) = ring.handle.socket_pair();
    let buffer = Lendable::zeroed(4);
    ring.push(1, recv(far, &buffer));
    assert_eq!(ring.turn(), []);
    ring.push(2, Sqe::cancel(1));
    let mut completions = ring.enter(2);
    completions.sort_unstable();
    assert_eq!(completions, [(1, err(Errno::CANCELED)), (2, 0)]);
    ring.handle.send_peer(near, b"kept").unwrap();
    assert_eq!(ring.run(recv(far, &buffer)), 4);
    // An operation in flight keeps its end open.
    ring.push(3, recv(far, &buffer));
    assert_eq!(ring.turn(), []);
    ring.handle.close(far).unwrap();
    ring.handle.send_peer(near, b"late").unwrap();
    assert_eq!(ring.turn(), [(3, 4)]);
    assert_eq!(
        ring.handle.send_peer(near, b"x").unwrap_err().kind(),
        std::io::ErrorKind::BrokenPipe
    );
}
