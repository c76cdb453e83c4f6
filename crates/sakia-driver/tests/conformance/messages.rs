//! Messages with control messages: descriptors within the machine, and facts about packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_driver::{
    ControlMessage, ControlMessages, Domain, Driver, Fd, Received, ReceivedControl, SocketAddress,
    SocketType,
};

use crate::datagrams::bound;
use crate::sockets::connected;
use crate::stage::{Identity, Stage, errno, settle, turn_until, wait};

const PEEK: u32 = RecvFlags::PEEK.bits();
const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
/// Room for many control messages.
const ROOM: usize = 512;

/// Returns two pairs of Unix sockets: a connected stream, and datagram sockets of which the first is
/// connected to the second.
fn pairs(stage: &Stage, driver: &Driver) -> [(Fd, Fd); 2] {
    let (near, _) = bound(stage, driver, Domain::UNIX);
    let (far, to) = bound(stage, driver, Domain::UNIX);
    wait(driver, driver.connect(&near, &to)).unwrap();
    [connected(stage, driver, Domain::UNIX), (near, far)]
}

/// Sends bytes and control messages to the socket's peer.
#[track_caller]
fn send(driver: &Driver, fd: &Fd, bytes: &'static str, control: ControlMessages) {
    let sent = driver.send_message(fd, bytes, &SocketAddress::UNNAMED, control, 0);
    assert_eq!(wait(driver, sent).0.unwrap(), bytes.len());
}

/// Receives a message with `room` bytes for control messages.
#[track_caller]
fn receive(
    driver: &Driver,
    fd: &Fd,
    room: usize,
    flags: u32,
) -> (Vec<u8>, Received, ReceivedControl) {
    let (result, buf) = wait(driver, driver.recv_message(fd, vec![0; 64], room, flags));
    let (received, control) = result.unwrap();
    (buf[..received.len].to_vec(), received, control)
}

fn contents(driver: &Driver, fd: &Fd) -> Vec<u8> {
    let (result, buf) = wait(driver, driver.read(fd, vec![0; 16], 0));
    buf[..result.unwrap()].to_vec()
}

/// Makes a file. Returns it with the identity of its descriptors and their current number.
fn file(stage: &Stage, driver: &Driver) -> (Fd, Identity, usize) {
    settle(driver); // earlier closes are done
    let fd = stage.file(driver, "passed", b"content");
    let identity = stage.identify(&fd);
    let copies = stage.copies(&identity);
    (fd, identity, copies)
}

pub fn a_descriptor_is_passed_and_used(stage: &Stage) {
    let driver = stage.driver();
    for (near, far) in pairs(stage, &driver) {
        stage.create("one", b"first");
        stage.create("two", b"second");
        let [one, two] = ["one", "two"].map(|name| stage.open(&driver, name, OFlags::RDONLY));
        let control = ControlMessages::new().descriptor(&one).descriptor(&two);
        send(&driver, &near, "with two", control);
        // In transit only the kernel keeps them open.
        wait(&driver, driver.close(one)).unwrap();
        wait(&driver, driver.close(two)).unwrap();
        let (bytes, received, control) = receive(&driver, &far, ROOM, 0);
        assert_eq!((&bytes[..], received.is_truncated), (&b"with two"[..], false));
        assert!(!control.is_truncated && control.process.is_none());
        assert_eq!(control.messages().count(), 0);
        let [one, two] = &control.descriptors[..] else { panic!("{control:?}") };
        assert_eq!(contents(&driver, one), b"first");
        assert_eq!(contents(&driver, two), b"second");
        if !one.is_simulated() {
            let flags = rustix::io::fcntl_getfd(one).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let identity = stage.identify(one);
        drop(control);
        turn_until(&driver, || !stage.is_open(&identity));
    }
}

pub fn a_socket_is_passed_and_goes_on(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let (ours, theirs) = connected(stage, &driver, Domain::INET);
    send(&driver, &near, "take it", ControlMessages::new().descriptor(&theirs));
    drop(theirs);
    let (_, _, mut control) = receive(&driver, &far, ROOM, 0);
    let theirs = control.descriptors.pop().unwrap();
    wait(&driver, driver.send(&theirs, "hello", 0)).0.unwrap();
    let (result, buf) = wait(&driver, driver.recv(&ours, vec![0; 8], 0));
    assert_eq!(&buf[..result.unwrap()], b"hello");
    // The connection ends with its last descriptor, which was received and dropped.
    let (_, _, control) = {
        send(&driver, &near, "again", ControlMessages::new().descriptor(&theirs));
        wait(&driver, driver.close(theirs)).unwrap();
        receive(&driver, &far, ROOM, 0)
    };
    drop(control);
    assert_eq!(wait(&driver, driver.recv(&ours, vec![0; 8], 0)).0.unwrap(), 0);
}

pub fn control_messages_that_do_not_fit_leave_nothing_open(stage: &Stage) {
    let driver = stage.driver();
    let pairs = pairs(stage, &driver);
    let (fd, identity, copies) = file(stage, &driver);
    for (near, far) in &pairs {
        for room in (0..=ControlMessage::space(12) + 1).chain([100_000, usize::MAX]) {
            let control = ControlMessages::new().descriptor(&fd).descriptor(&fd).descriptor(&fd);
            send(&driver, near, "three", control);
            let (bytes, _, control) = receive(&driver, far, room, 0);
            assert_eq!(bytes, b"three");
            let fitting = room.saturating_sub(ControlMessage::space(0)) / 4;
            assert_eq!(control.descriptors.len(), fitting.min(3), "{room}");
            assert_eq!(control.is_truncated, fitting < 3, "{room}");
            if let Some(last) = control.descriptors.last() {
                assert_eq!(contents(&driver, last), b"content");
            }
            drop(control);
            turn_until(&driver, || stage.copies(&identity) == copies);
        }
    }
}

pub fn descriptors_that_nobody_takes_are_closed(stage: &Stage) {
    let driver = stage.driver();
    let pairs = pairs(stage, &driver);
    let (fd, identity, copies) = file(stage, &driver);
    let with_one = || ControlMessages::new().descriptor(&fd);
    for (near, far) in &pairs {
        let all_closed = || turn_until(&driver, || stage.copies(&identity) == copies);
        // The message has arrived, and its result is never taken.
        let receiving = driver.recv_message(far, vec![0; 16], ROOM, 0);
        settle(&driver);
        send(&driver, near, "done", with_one());
        settle(&driver);
        drop(receiving);
        all_closed();
        // A receive goes on without its handle, or was canceled in time.
        drop(driver.recv_message(far, vec![0; 16], ROOM, 0));
        send(&driver, near, "orphan", with_one());
        settle(&driver);
        let (result, _) = wait(&driver, driver.recv_message(far, vec![0; 16], ROOM, DONT_WAIT));
        drop(result);
        all_closed();
        // Receives without room for control messages, and one that ignores them.
        send(&driver, near, "none", with_one());
        let (bytes, _, control) = receive(&driver, far, 0, 0);
        assert_eq!((&bytes[..], control.descriptors.len()), (&b"none"[..], 0));
        assert!(control.is_truncated);
        send(&driver, near, "plain", with_one());
        assert_eq!(wait(&driver, driver.recv(far, vec![0; 16], 0)).0.unwrap(), 5);
        all_closed();
    }
    // A descriptor that was never received is closed with the socket; its peer sees this.
    for (near, far) in pairs {
        let (ours, theirs) = connected(stage, &driver, Domain::UNIX);
        send(&driver, &near, "never", ControlMessages::new().descriptor(&theirs));
        wait(&driver, driver.close(theirs)).unwrap();
        let mut recv = driver.recv(&ours, vec![0; 8], 0);
        settle(&driver);
        assert!(recv.try_take().is_none());
        wait(&driver, driver.close(far)).unwrap();
        assert_eq!(wait(&driver, recv).0.unwrap(), 0);
    }
}

pub fn a_peek_brings_copies_of_descriptors(stage: &Stage) {
    let driver = stage.driver();
    let pairs = pairs(stage, &driver);
    let (fd, identity, copies) = file(stage, &driver);
    for (near, far) in &pairs {
        send(&driver, near, "look", ControlMessages::new().descriptor(&fd));
        let (bytes, _, peeked) = receive(&driver, far, ROOM, PEEK);
        assert_eq!((&bytes[..], peeked.descriptors.len()), (&b"look"[..], 1));
        let (bytes, _, control) = receive(&driver, far, ROOM, 0);
        assert_eq!((&bytes[..], control.descriptors.len()), (&b"look"[..], 1));
        assert_eq!(stage.copies(&identity), copies + 2);
        for fd in [&peeked.descriptors[0], &control.descriptors[0]] {
            assert_eq!(contents(&driver, fd), b"content");
        }
        drop((peeked, control));
        turn_until(&driver, || stage.copies(&identity) == copies);
    }
}

pub fn descriptors_bound_what_a_stream_brings(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let (fd, ..) = file(stage, &driver);
    let with_one = || ControlMessages::new().descriptor(&fd);
    send(&driver, &near, "a", ControlMessages::new());
    send(&driver, &near, "bc", with_one());
    send(&driver, &near, "d", with_one());
    send(&driver, &near, "e", ControlMessages::new());
    let expected = [("abc", 1), ("d", 1), ("e", 0)];
    for (bytes, count) in expected {
        let (got, _, control) = receive(&driver, &far, ROOM, 0);
        assert_eq!((&got[..], control.descriptors.len()), (bytes.as_bytes(), count));
    }
    // The descriptors come with the first byte of their message.
    send(&driver, &near, "long", with_one());
    for (byte, count) in [(b'l', 1), (b'o', 0)] {
        let (result, buf) = wait(&driver, driver.recv_message(&far, vec![0; 1], ROOM, 0));
        assert_eq!((buf[0], result.unwrap().1.descriptors.len()), (byte, count));
    }
}

pub fn a_message_waits_with_its_descriptors(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let (fd, identity, copies) = file(stage, &driver);
    loop {
        match wait(&driver, driver.send(&near, vec![1; 65_536], DONT_WAIT)).0 {
            Ok(_) => {}
            result => break assert_eq!(errno(result), Errno::AGAIN),
        }
    }
    let none = SocketAddress::UNNAMED;
    let control = || ControlMessages::new().descriptor(&fd);
    // A canceled send passes no descriptor.
    let mut canceled = driver.send_message(&near, "no", &none, control(), 0);
    settle(&driver);
    assert!(canceled.try_take().is_none());
    canceled.cancel();
    assert_eq!(errno(wait(&driver, canceled).0), Errno::CANCELED);
    let mut sending = driver.send_message(&near, "late", &none, control(), 0);
    settle(&driver);
    assert!(sending.try_take().is_none());
    assert_eq!(stage.copies(&identity), copies);
    // The operation keeps the descriptor, so the close waits.
    let mut closing = driver.close(fd);
    settle(&driver);
    assert!(closing.try_take().is_none());
    let mut passed = Vec::new();
    while passed.is_empty() {
        let (result, _) = wait(&driver, driver.recv_message(&far, vec![0; 65_536], ROOM, 0));
        passed = result.unwrap().1.descriptors;
    }
    assert_eq!(wait(&driver, sending).0.unwrap(), 4);
    wait(&driver, closing).unwrap();
    assert_eq!(contents(&driver, &passed[0]), b"content");
}

pub fn messages_that_make_no_sense_are_refused(stage: &Stage) {
    let driver = stage.driver();
    let pairs = pairs(stage, &driver);
    let (fd, identity, copies) = file(stage, &driver);
    let (none, new) = (SocketAddress::UNNAMED, ControlMessages::new);
    for (near, far) in &pairs {
        let (result, _) = wait(&driver, driver.send_message(near, "x", &none, new(), PEEK));
        assert_eq!(errno(result), Errno::INVAL, "a flag");
        let (result, _) = wait(&driver, driver.recv_message(far, vec![0; 1], ROOM, 1 << 20));
        assert_eq!(errno(result), Errno::INVAL, "a flag");
        let (result, _) = wait(&driver, driver.recv_message(far, Vec::new(), ROOM, 0));
        assert_eq!(errno(result), Errno::INVAL, "no room");
        let many = (0..254).fold(new(), |control, _| control.descriptor(&fd));
        let (result, _) = wait(&driver, driver.send_message(near, "x", &none, many, 0));
        assert_eq!(errno(result), Errno::INVAL, "254 descriptors");
        let (result, _) = wait(&driver, driver.recv_message(far, vec![0; 1], ROOM, DONT_WAIT));
        assert_eq!(errno(result), Errno::AGAIN);
        let most = (0..253).fold(new(), |control, _| control.descriptor(&fd));
        send(&driver, near, "most", most);
        let (_, _, control) = receive(&driver, far, ControlMessage::space(4 * 253), 0);
        assert_eq!((control.descriptors.len(), control.is_truncated), (253, false));
        drop(control);
        turn_until(&driver, || stage.copies(&identity) == copies);
    }
    // Sockets of the network do not pass descriptors.
    let (near, far) = connected(stage, &driver, Domain::INET);
    send(&driver, &near, "bytes", new().descriptor(&fd));
    let (bytes, _, control) = receive(&driver, &far, ROOM, 0);
    assert_eq!((&bytes[..], control.descriptors.len()), (&b"bytes"[..], 0));
}

/// Sets an option by which a socket reports more about its messages. Returns false on the simulated kernel,
/// which has no options.
fn ask(fd: &Fd, level: i32, option: i32) -> bool {
    use std::os::fd::{AsFd, AsRawFd};
    if fd.is_simulated() {
        return false;
    }
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the value outlives the call.
    let result = unsafe {
        let (value, len) = (&raw const on, size_of_val(&on) as libc::socklen_t);
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, value.cast(), len)
    };
    assert_eq!(result, 0, "option {option}: {}", std::io::Error::last_os_error());
    true
}

pub fn packets_tell_their_class_and_their_way(stage: &Stage) {
    let driver = stage.driver();
    let (near, from) = bound(stage, &driver, Domain::INET);
    let (far, to) = bound(stage, &driver, Domain::INET);
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let tells = ask(&far, libc::IPPROTO_IP, libc::IP_RECVTOS)
        && ask(&far, libc::IPPROTO_IP, libc::IP_PKTINFO);
    for class in [0, 1, 2, 3] {
        let control = ControlMessages::new().ip_tos(class).source(loopback, 0);
        let sent = driver.send_message(&near, "packet", &to, control, 0);
        assert_eq!(wait(&driver, sent).0.unwrap(), 6);
        let (bytes, received, control) = receive(&driver, &far, ROOM, 0);
        assert_eq!((&bytes[..], received.from), (&b"packet"[..], from));
        let got = control.messages().find_map(ControlMessage::traffic_class);
        assert_eq!(got, tells.then_some(class));
        let info = control.messages().find_map(ControlMessage::packet_info);
        assert_eq!(info.map(|its| its.destination), tells.then_some(loopback));
        assert_eq!(info.map(|its| its.local), tells.then_some(loopback));
        assert!(info.is_none_or(|its| its.interface > 0));
    }
    // A control message without room is cut, and at most the one that fits is read.
    for room in [0, ControlMessage::space(0), ControlMessage::space(1)] {
        let control = ControlMessages::new().ip_tos(2);
        wait(&driver, driver.send_message(&near, "packet", &to, control, 0)).0.unwrap();
        let (.., control) = receive(&driver, &far, room, 0);
        assert_eq!(control.is_truncated, tells, "{room}");
        assert!(control.messages().count() <= 1);
    }
}

pub fn packets_of_version_6_tell_theirs(stage: &Stage) {
    let driver = stage.driver();
    let Some(address) = stage.address_of_version_6() else { return };
    let [near, far] = [(); 2].map(|()| {
        let socket = stage.socket(&driver, Domain::INET6, SocketType::DATAGRAM);
        wait(&driver, driver.bind(&socket, &address)).unwrap();
        socket
    });
    let to = driver.local_address(&far).unwrap();
    let loopback = to.inet().as_ref().map(SocketAddr::ip).unwrap();
    let tells = ask(&far, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
        && ask(&far, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO);
    let control = ControlMessages::new().ipv6_traffic_class(2).source(loopback, 0);
    wait(&driver, driver.send_message(&near, "six", &to, control, 0)).0.unwrap();
    let (bytes, _, control) = receive(&driver, &far, ROOM, 0);
    assert_eq!(bytes, b"six");
    let class = control.messages().find_map(ControlMessage::traffic_class);
    assert_eq!(class, tells.then_some(2));
    let info = control.messages().find_map(ControlMessage::packet_info);
    assert_eq!(info.map(|its| its.destination), tells.then_some(loopback));
}

pub fn a_message_is_cut_into_segments(stage: &Stage) {
    let driver = stage.driver();
    let (near, _) = bound(stage, &driver, Domain::INET);
    let (far, to) = bound(stage, &driver, Domain::INET);
    let parts = || ControlMessages::new().ip_tos(1).segment_bytes(3);
    let (result, _) = wait(&driver, driver.send_message(&near, "abcdefgh", &to, parts(), 0));
    match result {
        Ok(count) => assert_eq!(count, 8),
        Err(error) => {
            let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
            assert!(!denied, "skips are denied, and segments are refused here: {error}");
            return eprintln!("SKIP: segments are refused here: {error}");
        }
    }
    for part in ["abc", "def", "gh"] {
        assert_eq!(receive(&driver, &far, ROOM, 0).0, part.as_bytes());
    }
    // The segments of one message may arrive as one message, which tells their length.
    const UDP_GRO: i32 = 104;
    ask(&far, libc::IPPROTO_UDP, UDP_GRO);
    wait(&driver, driver.send_message(&near, "abcdefgh", &to, parts(), 0)).0.unwrap();
    let mut all = Vec::new();
    while all.len() < 8 {
        let (bytes, _, control) = receive(&driver, &far, ROOM, 0);
        let segment = control.messages().find_map(ControlMessage::segment_bytes);
        assert!(bytes.len() <= 3 || segment == Some(3), "{control:?}");
        all.extend(bytes);
    }
    assert_eq!(all, b"abcdefgh");
}
