//! Streams: connections, their bytes, and their end.

use std::io::ErrorKind;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_driver::{
    CURRENT_POSITION, Domain, Driver, Fd, OpKind, PollEvents, ShutdownHow, SocketAddress,
    SocketType,
};

use crate::stage::{Stage, errno, settle, turn_until, wait};

const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
const PEEK: u32 = RecvFlags::PEEK.bits();

/// The address families that every machine has.
pub const DOMAINS: [Domain; 2] = [Domain::UNIX, Domain::INET];

/// Returns the two ends of a new connection: the one that connected, and the accepted one.
pub fn connected(stage: &Stage, driver: &Driver, domain: Domain) -> (Fd, Fd) {
    let (listener, address) = stage.listener(driver, domain);
    let near = stage.socket(driver, domain, SocketType::STREAM);
    let accept = driver.accept(&listener);
    wait(driver, driver.connect(&near, &address)).unwrap();
    let (far, _) = wait(driver, accept).unwrap();
    (near, far)
}

/// Receives until `len` bytes have arrived, or the stream is at its end.
fn receive(driver: &Driver, fd: &Fd, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let (result, buf) = wait(driver, driver.recv(fd, vec![0; len - bytes.len()], 0));
        match result.unwrap() {
            0 => break,
            count => bytes.extend(&buf[..count]),
        }
    }
    bytes
}

fn send_all(driver: &Driver, fd: &Fd, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += wait(driver, driver.send(fd, bytes[sent..].to_vec(), 0)).0.unwrap();
    }
}

/// Sends until there is no more room, even after bytes in transit have arrived.
fn fill(driver: &Driver, fd: &Fd) {
    let mut was_full = false;
    loop {
        match wait(driver, driver.send(fd, vec![1; 65_536], DONT_WAIT)).0 {
            Ok(count) => {
                assert!(count > 0);
                was_full = false;
            }
            result => {
                assert_eq!(errno(result), Errno::AGAIN);
                if was_full {
                    return;
                }
                was_full = true;
                settle(driver);
            }
        }
    }
}

pub fn a_stream_carries_bytes_both_ways(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        for (from, to) in [(&near, &far), (&far, &near)] {
            let mut recv = driver.recv(to, vec![0; 16], 0);
            settle(&driver);
            assert!(recv.try_take().is_none());
            assert_eq!(wait(&driver, driver.send(from, "hello", 0)).0.unwrap(), 5);
            let (result, buf) = wait(&driver, recv);
            assert_eq!(&buf[..result.unwrap()], b"hello");
        }
    }
}

pub fn what_is_sent_in_turn_arrives_in_order(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let mut expected = Vec::new();
        for number in 0..50_u8 {
            let message = vec![number; usize::from(number) + 1];
            send_all(&driver, &near, &message);
            expected.extend(message);
        }
        assert_eq!(receive(&driver, &far, expected.len()), expected);
    }
}

pub fn much_goes_through_little_room(stage: &Stage) {
    let driver = stage.driver();
    let bytes: Vec<u8> = (0..3_000_000_usize).map(|index| (index / 7) as u8).collect();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let (mut sent, mut received) = (0, Vec::<u8>::new());
        let mut send = Some(driver.send(&near, bytes.clone(), 0));
        let mut recv = Some(driver.recv(&far, vec![0; 10_000], 0));
        turn_until(&driver, || {
            if let Some((result, _)) = send.as_mut().and_then(|op| op.try_take()) {
                sent += result.unwrap();
                let rest = bytes[sent..].to_vec();
                send = (!rest.is_empty()).then(|| driver.send(&near, rest, 0));
            }
            if let Some((result, buf)) = recv.as_mut().and_then(|op| op.try_take()) {
                received.extend(&buf[..result.unwrap()]);
                recv = (received.len() < bytes.len()).then(|| driver.recv(&far, buf, 0));
            }
            recv.is_none()
        });
        assert!(received == bytes, "{domain:?}");
    }
}

pub fn an_end_of_sending_is_one_of_receiving(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        send_all(&driver, &near, b"last");
        wait(&driver, driver.shutdown_socket(&near, ShutdownHow::Sends)).unwrap();
        assert_eq!(receive(&driver, &far, 16), b"last");
        assert_eq!(wait(&driver, driver.recv(&far, vec![0; 16], 0)).0.unwrap(), 0);
        assert_eq!(errno(wait(&driver, driver.send(&near, "x", 0)).0), Errno::PIPE);
        // The other direction still works.
        send_all(&driver, &far, b"answer");
        assert_eq!(receive(&driver, &near, 6), b"answer");
    }
}

pub fn a_closed_connection_is_at_its_end(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let mut recv = driver.recv(&near, vec![0; 16], 0);
        settle(&driver);
        assert!(recv.try_take().is_none());
        wait(&driver, driver.close(far)).unwrap();
        assert_eq!(wait(&driver, recv).0.unwrap(), 0);
        // The network may take bytes until it learns that the peer is gone. No signal is raised.
        let mut results = (0..100).map(|_| {
            settle(&driver);
            wait(&driver, driver.send(&near, "x", 0)).0
        });
        let refused = results.find(Result::is_err).expect("the peer is gone");
        assert_eq!(errno(refused), Errno::PIPE);
    }
}

pub fn unread_bytes_break_a_connection_off(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        send_all(&driver, &near, b"never read");
        settle(&driver);
        wait(&driver, driver.close(far)).unwrap();
        let (result, _) = wait(&driver, driver.recv(&near, vec![0; 16], 0));
        assert_eq!(errno(result), Errno::CONNRESET);
        assert_eq!(wait(&driver, driver.recv(&near, vec![0; 16], 0)).0.unwrap(), 0);
        assert_eq!(errno(wait(&driver, driver.send(&near, "x", 0)).0), Errno::PIPE);
    }
}

pub fn where_nobody_listens_is_refused(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        wait(&driver, driver.close(listener)).unwrap();
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        let refused = wait(&driver, driver.connect(&near, &address));
        assert_eq!(errno(refused), Errno::CONNREFUSED, "{domain:?}");
    }
    let path = stage.socket_path("missing");
    let near = stage.socket(&driver, Domain::UNIX, SocketType::STREAM);
    assert_eq!(errno(wait(&driver, driver.connect(&near, &path))), Errno::NOENT);
}

pub fn an_address_is_taken_once(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let other = stage.socket(&driver, domain, SocketType::STREAM);
        assert_eq!(errno(wait(&driver, driver.bind(&other, &address))), Errno::ADDRINUSE);
        let again = wait(&driver, driver.bind(&listener, &stage.free_address(domain)));
        assert_eq!(errno(again), Errno::INVAL, "it has an address");
        drop(listener);
        turn_until(&driver, || driver.live_operations() == 0);
        wait(&driver, driver.bind(&other, &address)).unwrap();
    }
    let remote = std::net::SocketAddr::from(([192, 0, 2, 1], 0)).into();
    let other = stage.socket(&driver, Domain::INET, SocketType::STREAM);
    assert_eq!(errno(wait(&driver, driver.bind(&other, &remote))), Errno::ADDRNOTAVAIL);
    let wrong = wait(&driver, driver.bind(&other, &stage.free_address(Domain::UNIX)));
    assert_eq!(errno(wrong), Errno::AFNOSUPPORT);
}

pub fn a_path_is_an_address(stage: &Stage) {
    let driver = stage.driver();
    let path = stage.socket_path("socket");
    let listener = stage.socket(&driver, Domain::UNIX, SocketType::STREAM);
    wait(&driver, driver.bind(&listener, &path)).unwrap();
    assert_eq!(driver.local_address(&listener).unwrap(), path);
    let near = stage.socket(&driver, Domain::UNIX, SocketType::STREAM);
    let early = wait(&driver, driver.connect(&near, &path));
    assert_eq!(errno(early), Errno::CONNREFUSED, "it does not listen yet");
    wait(&driver, driver.listen(&listener, 1)).unwrap();
    wait(&driver, driver.connect(&near, &path)).unwrap();
    let (far, peer) = wait(&driver, driver.accept(&listener)).unwrap();
    assert!(peer.is_unnamed(), "{peer:?}");
    assert_eq!(driver.peer_address(&near).unwrap(), path);
    send_all(&driver, &far, b"there");
    assert_eq!(receive(&driver, &near, 5), b"there");
}

pub fn addresses_are_told(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        assert_eq!(errno(driver.peer_address(&near)), Errno::NOTCONN);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        let (far, peer) = wait(&driver, driver.accept(&listener)).unwrap();
        assert_eq!(driver.peer_address(&near).unwrap(), address);
        assert_eq!(driver.local_address(&far).unwrap(), address);
        assert_eq!(driver.peer_address(&far).unwrap(), peer);
        assert_eq!(driver.local_address(&near).unwrap(), peer);
        let port = peer.inet().map(|inet| inet.port());
        assert_eq!(port.is_some_and(|port| port != 0), domain == Domain::INET, "{peer:?}");
    }
    let (pipe, _) = stage.pipe(&driver);
    assert_eq!(errno(driver.local_address(&pipe)), Errno::NOTSOCK);
}

pub fn an_accept_waits_for_a_connection(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let mut accepts: Vec<_> = (0..3).map(|_| driver.accept(&listener)).collect();
        settle(&driver);
        assert!(accepts.iter_mut().all(|accept| accept.try_take().is_none()));
        let nears: Vec<_> =
            (0..3).map(|_| stage.socket(&driver, domain, SocketType::STREAM)).collect();
        for near in &nears {
            wait(&driver, driver.connect(near, &address)).unwrap();
            send_all(&driver, near, b"x");
        }
        for accept in accepts {
            let (far, _) = wait(&driver, accept).unwrap();
            assert_eq!(receive(&driver, &far, 1), b"x");
        }
    }
}

pub fn a_dropped_accept_takes_no_connection_along(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let accept = driver.accept(&listener);
        settle(&driver);
        drop(accept);
        turn_until(&driver, || driver.live_operations() == 0);
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        let (far, _) = wait(&driver, driver.accept(&listener)).unwrap();
        send_all(&driver, &far, b"kept");
        assert_eq!(receive(&driver, &near, 4), b"kept");
    }
}

pub fn a_late_connection_is_closed(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        let accept = driver.accept(&listener);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        settle(&driver);
        drop(accept); // done, and its result is never taken
        turn_until(&driver, || driver.live_operations() == 0);
        // The peer sees the end of the stream, so no descriptor was left open.
        let (result, _) = wait(&driver, driver.recv(&near, vec![0; 1], 0));
        assert_eq!(result.unwrap(), 0);
    }
}

pub fn a_dropped_receive_leaves_the_bytes(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let recv = driver.recv(&far, vec![0; 16], 0);
        settle(&driver);
        drop(recv);
        turn_until(&driver, || driver.live_operations() == 0);
        let mut canceled = driver.recv(&far, vec![5; 16], 0);
        settle(&driver);
        canceled.cancel();
        let (result, buf) = wait(&driver, canceled);
        assert_eq!((errno(result), buf), (Errno::CANCELED, vec![5; 16]));
        send_all(&driver, &near, b"kept");
        assert_eq!(receive(&driver, &far, 4), b"kept");
    }
}

pub fn a_canceled_send_says_so(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, _far) = connected(stage, &driver, domain);
        fill(&driver, &near);
        // The network may find room for some of the bytes after all.
        let canceled = (0..100).find_map(|_| {
            let mut send = driver.send(&near, vec![2; stage.socket_bytes()], 0);
            settle(&driver);
            send.cancel();
            let (result, buf) = wait(&driver, send);
            assert_eq!(buf.len(), stage.socket_bytes());
            result.err()
        });
        let error = canceled.expect("it waits for room");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    }
}

pub fn a_shutdown_ends_what_waits(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, _far) = connected(stage, &driver, domain);
        let mut recv = driver.recv(&near, vec![0; 16], 0);
        settle(&driver);
        assert!(recv.try_take().is_none());
        wait(&driver, driver.shutdown_socket(&near, ShutdownHow::Receives)).unwrap();
        assert_eq!(wait(&driver, recv).0.unwrap(), 0);
        fill(&driver, &near);
        let send = driver.send(&near, vec![3; stage.socket_bytes()], 0);
        settle(&driver);
        wait(&driver, driver.shutdown_socket(&near, ShutdownHow::Both)).unwrap();
        // Some of the bytes may have found room before.
        if let (Err(error), _) = wait(&driver, send) {
            assert_eq!(Errno::from_io_error(&error), Some(Errno::PIPE));
        }
        assert_eq!(errno(wait(&driver, driver.send(&near, "x", 0)).0), Errno::PIPE);
    }
    let unconnected = stage.socket(&driver, Domain::INET, SocketType::STREAM);
    let result = wait(&driver, driver.shutdown_socket(&unconnected, ShutdownHow::Both));
    assert_eq!(errno(result), Errno::NOTCONN);
}

pub fn a_close_ends_an_accept(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let accept = driver.accept(&listener);
        settle(&driver);
        let mut close = driver.close(listener);
        assert!(close.try_take().is_none());
        assert_eq!(errno(wait(&driver, accept)), Errno::CANCELED);
        wait(&driver, close).unwrap();
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        let refused = wait(&driver, driver.connect(&near, &address));
        assert_eq!(errno(refused), Errno::CONNREFUSED);
    }
}

pub fn a_peek_leaves_the_bytes(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        send_all(&driver, &near, b"look");
        for flags in [PEEK, PEEK | DONT_WAIT, 0] {
            let (result, buf) = wait(&driver, driver.recv(&far, vec![0; 4], flags));
            assert_eq!((result.unwrap(), &buf[..]), (4, &b"look"[..]));
        }
    }
}

/// A dropped receive that is not canceled yet does not hide bytes from one that does not wait.
pub fn a_receive_that_does_not_wait_goes_ahead_of_one_that_does(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let waiting = driver.recv(&far, vec![0; 4], 0);
    settle(&driver);
    drop(waiting);
    let send = driver.send(&near, b"data".to_vec(), 0);
    let recv = driver.recv(&far, vec![0; 4], DONT_WAIT);
    assert_eq!(wait(&driver, send).0.unwrap(), 4);
    let (result, buf) = match wait(&driver, recv) {
        // The send came second.
        (Err(error), buf) if stage.reorders() && error.kind() == ErrorKind::WouldBlock => {
            wait(&driver, driver.recv(&far, buf, DONT_WAIT))
        }
        done => done,
    };
    assert_eq!((result.unwrap(), &buf[..]), (4, &b"data"[..]));
}

pub fn a_socket_is_received_from_into_capacity(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        send_all(&driver, &near, b"look");
        for flags in [PEEK, DONT_WAIT] {
            let (result, buf) = wait(&driver, driver.recv(&far, Vec::with_capacity(16), flags));
            assert_eq!((result.unwrap(), &buf[..]), (4, &b"look"[..]));
        }
        let (result, buf) = wait(&driver, driver.recv(&far, Vec::with_capacity(16), DONT_WAIT));
        assert_eq!((errno(result), buf.len()), (Errno::AGAIN, 0));
        send_all(&driver, &near, b"again");
        let bufs = vec![vec![b'.'; 1], Vec::new(), Vec::with_capacity(16)];
        let (result, bufs) = wait(&driver, driver.recv_vectored(&far, bufs, 0));
        assert_eq!((result.unwrap(), bufs), (5, vec![b"a".to_vec(), vec![], b"gain".to_vec()]));
    }
}

pub fn a_receive_without_room_is_refused(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        for is_there in [false, true] {
            if is_there {
                send_all(&driver, &near, b"x");
            }
            for flags in [0, PEEK, DONT_WAIT] {
                let (result, _) = wait(&driver, driver.recv(&far, Vec::new(), flags));
                assert_eq!(errno(result), Errno::INVAL);
                let (result, _) = wait(&driver, driver.recv_from(&far, Vec::new(), flags));
                assert_eq!(errno(result), Errno::INVAL);
                let (result, _) = wait(&driver, driver.recv_vectored(&far, vec![vec![]; 2], flags));
                assert_eq!(errno(result), Errno::INVAL);
            }
        }
        assert_eq!(wait(&driver, driver.recv(&far, vec![0; 4], 0)).0.unwrap(), 1);
        assert_eq!(wait(&driver, driver.send(&near, Vec::new(), 0)).0.unwrap(), 0);
        assert_eq!(wait(&driver, driver.send_vectored(&near, vec![""; 2], 0)).0.unwrap(), 0);
    }
}

pub fn what_must_not_wait_does_not(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let (result, buf) = wait(&driver, driver.recv(&far, vec![7; 4], DONT_WAIT));
        assert_eq!((errno(result), buf), (Errno::AGAIN, vec![7; 4]));
        fill(&driver, &near);
    }
}

pub fn what_makes_no_sense_is_refused(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let unknown = RecvFlags::WAITALL.bits();
    assert_eq!(errno(wait(&driver, driver.recv(&far, vec![0; 4], unknown)).0), Errno::INVAL);
    assert_eq!(errno(wait(&driver, driver.send(&near, "x", unknown)).0), Errno::INVAL);
    let quiet = SendFlags::NOSIGNAL.bits() | SendFlags::MORE.bits();
    assert_eq!(wait(&driver, driver.send(&near, "x", quiet)).0.unwrap(), 1);

    let (pipe, _sender) = stage.pipe(&driver);
    assert_eq!(errno(wait(&driver, driver.recv(&pipe, vec![0; 4], 0)).0), Errno::NOTSOCK);
    assert_eq!(errno(wait(&driver, driver.send(&pipe, "x", 0)).0), Errno::NOTSOCK);
    assert_eq!(errno(wait(&driver, driver.accept(&pipe))), Errno::NOTSOCK);
    assert_eq!(errno(wait(&driver, driver.listen(&pipe, 1))), Errno::NOTSOCK);
    let address = stage.free_address(Domain::INET);
    assert_eq!(errno(wait(&driver, driver.connect(&pipe, &address))), Errno::NOTSOCK);

    let idle = stage.socket(&driver, Domain::INET, SocketType::STREAM);
    assert_eq!(errno(wait(&driver, driver.recv(&idle, vec![0; 4], 0)).0), Errno::NOTCONN);
    assert_eq!(errno(wait(&driver, driver.send(&idle, "x", 0)).0), Errno::PIPE);
    assert_eq!(errno(wait(&driver, driver.accept(&idle))), Errno::INVAL);
    for domain in DOMAINS {
        let (near, _far) = connected(stage, &driver, domain);
        let (_listener, address) = stage.listener(&driver, domain);
        assert_eq!(errno(wait(&driver, driver.connect(&near, &address))), Errno::ISCONN);
    }
    let none = wait(&driver, driver.socket(Domain(9999), SocketType::STREAM, 0));
    assert_eq!(errno(none), Errno::AFNOSUPPORT);
}

pub fn messages_go_over_streams(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        let (far, _) = wait(&driver, driver.accept(&listener)).unwrap();
        let (result, _) = wait(&driver, driver.send_to(&near, "direct", &address, 0));
        if domain == Domain::UNIX {
            assert_eq!(errno(result), Errno::ISCONN);
            send_all(&driver, &near, b"direct");
        } else {
            assert_eq!(result.unwrap(), 6, "the address is ignored");
        }
        send_all(&driver, &far, b"back");
        for (fd, expected, from) in [(&far, &b"direct"[..], None), (&near, b"back", Some(address))]
        {
            let (result, buf) = wait(&driver, driver.recv_from(fd, vec![0; 16], 0));
            let received = result.unwrap();
            assert_eq!((&buf[..received.len], received.is_truncated), (expected, false));
            let from = from.filter(|_| domain == Domain::UNIX);
            assert_eq!(received.from, from.unwrap_or(SocketAddress::UNNAMED), "{domain:?}");
        }
    }
}

pub fn several_buffers_go_and_come_as_one(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let parts = vec![b"one ".to_vec(), Vec::new(), b"two".to_vec()];
        let (result, parts) = wait(&driver, driver.send_vectored(&near, parts, 0));
        assert_eq!((result.unwrap(), parts.len()), (7, 3));
        let room = || vec![vec![0; 3], Vec::new(), vec![0; 9]];
        let peek = RecvFlags::PEEK.bits();
        for flags in [peek, 0] {
            let (result, bufs) = wait(&driver, driver.recv_vectored(&far, room(), flags));
            assert_eq!((result.unwrap(), &bufs[0][..]), (7, &b"one"[..]));
            assert_eq!(bufs[2], b" two\0\0\0\0\0");
        }
        let (result, bufs) = wait(&driver, driver.recv_vectored(&far, room(), u32::MAX));
        assert_eq!((errno(result), bufs), (Errno::INVAL, room()));
        let (result, _) = wait(&driver, driver.send_vectored(&near, room(), u32::MAX));
        assert_eq!(errno(result), Errno::INVAL);
    }
}

pub fn sockets_are_read_and_written(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, far) = connected(stage, &driver, domain);
        let mut read = driver.read(&far, vec![0; 16], CURRENT_POSITION);
        settle(&driver);
        assert!(read.try_take().is_none());
        assert_eq!(wait(&driver, driver.write(&near, "plain", CURRENT_POSITION)).0.unwrap(), 5);
        let (result, buf) = wait(&driver, read);
        assert_eq!(&buf[..result.unwrap()], b"plain");
        wait(&driver, driver.close(near)).unwrap();
        assert_eq!(wait(&driver, driver.read(&far, vec![0; 16], CURRENT_POSITION)).0.unwrap(), 0);
    }
}

pub fn readiness_of_sockets_is_told(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (listener, address) = stage.listener(&driver, domain);
        let poll = driver.poll(&listener, PollEvents::READABLE);
        let near = stage.socket(&driver, domain, SocketType::STREAM);
        wait(&driver, driver.connect(&near, &address)).unwrap();
        assert!(wait(&driver, poll).unwrap().contains(PollEvents::READABLE));
        let (far, _) = wait(&driver, driver.accept(&listener)).unwrap();
        let events = wait(&driver, driver.poll(&near, PollEvents::WRITABLE)).unwrap();
        assert_eq!(events, PollEvents::WRITABLE);
        let mut poll = driver.poll(&far, PollEvents::READABLE);
        settle(&driver);
        assert!(poll.try_take().is_none());
        send_all(&driver, &near, b"x");
        assert!(wait(&driver, poll).unwrap().contains(PollEvents::READABLE));
        assert_eq!(receive(&driver, &far, 1), b"x");
        let mut poll = driver.poll(&far, PollEvents::READABLE);
        settle(&driver);
        assert!(poll.try_take().is_none());
        wait(&driver, driver.close(near)).unwrap();
        let events = wait(&driver, poll).unwrap();
        assert!(events.contains(PollEvents::READABLE | PollEvents::READ_HANG_UP), "{events:?}");
        assert_eq!(events.contains(PollEvents::HANG_UP), domain == Domain::UNIX, "{events:?}");
    }
}

pub fn both_versions_of_the_internet_work(stage: &Stage) {
    let driver = stage.driver();
    let Some(address) = stage.address_of_version_6() else { return };
    let listener = stage.socket(&driver, Domain::INET6, SocketType::STREAM);
    wait(&driver, driver.bind(&listener, &address)).unwrap();
    wait(&driver, driver.listen(&listener, 1)).unwrap();
    let address = driver.local_address(&listener).unwrap();
    let near = stage.socket(&driver, Domain::INET6, SocketType::STREAM);
    wait(&driver, driver.connect(&near, &address)).unwrap();
    let (far, peer) = wait(&driver, driver.accept(&listener)).unwrap();
    assert!(peer.inet().unwrap().is_ipv6());
    send_all(&driver, &far, b"six");
    assert_eq!(receive(&driver, &near, 3), b"six");
}

pub fn a_pair_of_streams_is_connected(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = driver.socket_pair(SocketType::STREAM).unwrap();
    for (from, to) in [(&near, &far), (&far, &near)] {
        assert!(driver.local_address(from).unwrap().is_unnamed());
        assert!(driver.peer_address(from).unwrap().is_unnamed());
        send_all(&driver, from, b"hello");
        assert_eq!(receive(&driver, to, 5), b"hello");
    }
    let recv = driver.recv(&near, vec![0; 8], 0);
    drop(far);
    assert_eq!(wait(&driver, recv).0.unwrap(), 0);
    assert_eq!(errno(driver.socket_pair(SocketType(4))), Errno::SOCKTNOSUPPORT);
}

pub fn a_peer_tells_its_credentials(stage: &Stage) {
    let driver = stage.driver();
    let expected = stage.credentials();
    let (near, far) = connected(stage, &driver, Domain::UNIX);
    let pairs = [SocketType::STREAM, SocketType::DATAGRAM].map(|kind| driver.socket_pair(kind));
    let [(one, other), (third, fourth)] = pairs.map(Result::unwrap);
    for fd in [&near, &far, &one, &other, &third, &fourth] {
        assert_eq!(driver.peer_credentials(fd).unwrap(), expected);
    }
    let alone = stage.socket(&driver, Domain::UNIX, SocketType::STREAM);
    let (inet, _far) = connected(stage, &driver, Domain::INET);
    for fd in [&alone, &inet] {
        assert_eq!(errno(driver.peer_credentials(fd)), Errno::NOTCONN);
    }
    let (pipe, _writer) = stage.pipe(&driver);
    assert_eq!(errno(driver.peer_credentials(&pipe)), Errno::NOTSOCK);
}

pub fn operations_on_sockets_are_counted(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = connected(stage, &driver, Domain::INET);
    wait(&driver, driver.send(&near, "x", 0)).0.unwrap();
    wait(&driver, driver.recv(&far, vec![0; 1], 0)).0.unwrap();
    wait(&driver, driver.shutdown_socket(&near, ShutdownHow::Both)).unwrap();
    let counters = driver.counters();
    for (kind, expected) in [
        (OpKind::Socket, 5),
        (OpKind::Accept, 1),
        (OpKind::Connect, 1),
        (OpKind::Send, 1),
        (OpKind::Recv, 1),
        (OpKind::Other, 0),
    ] {
        stage.assert_count(kind, counters.of(kind), expected);
    }
}
