//! Datagrams: each arrives whole, or not at all.

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_driver::{
    Domain, Driver, Fd, IoBufMut, Received, ShutdownHow, SocketAddress, SocketType,
};

use crate::sockets::DOMAINS;
use crate::sockets::connected;
use crate::stage::{Stage, errno, settle, turn_until, wait};

const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
const PEEK: u32 = RecvFlags::PEEK.bits();
/// `MSG_TRUNC`: returns the whole length of a datagram.
const TELL_LENGTH: u32 = RecvFlags::TRUNC.bits();

/// Returns a datagram socket with an address, and the address.
pub fn bound(stage: &Stage, driver: &Driver, domain: Domain) -> (Fd, SocketAddress) {
    let socket = stage.socket(driver, domain, SocketType::DATAGRAM);
    wait(driver, driver.bind(&socket, &stage.free_address(domain))).unwrap();
    let address = driver.local_address(&socket).unwrap();
    (socket, address)
}

pub fn datagrams_keep_their_bounds(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, from) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let messages = ["one", "", "three", "4"];
        for message in messages {
            let (result, _) = wait(&driver, driver.send_to(&near, message, &to, 0));
            assert_eq!(result.unwrap(), message.len());
        }
        for message in messages {
            let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 16], 0));
            let received = result.unwrap();
            assert_eq!(&buf[..received.len], message.as_bytes());
            assert_eq!((received.from, received.is_truncated), (from, false));
        }
    }
}

pub fn a_datagram_goes_into_capacity(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, from) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        for message in ["one", "", "twice as long"] {
            wait(&driver, driver.send_to(&near, message, &to, 0)).0.unwrap();
        }
        // A receive without room takes no datagram.
        let (result, _) = wait(&driver, driver.recv_from(&far, Vec::new(), 0));
        assert_eq!(errno(result), Errno::INVAL);
        for message in [&b"one"[..], b"", b"twice"] {
            let buf = Vec::with_capacity(5).room(5);
            let (result, buf) = wait(&driver, driver.recv_from(&far, buf, 0));
            let received = result.unwrap();
            assert_eq!((received.len, &buf.into_inner()[..]), (message.len(), message));
            assert_eq!((received.from, received.is_truncated), (from, message == b"twice"));
        }
    }
}

pub fn a_datagram_is_waited_for(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (far, to) = bound(stage, &driver, domain);
        let near = stage.socket(&driver, domain, SocketType::DATAGRAM);
        let mut recv = driver.recv_from(&far, vec![0; 16], 0);
        settle(&driver);
        assert!(recv.try_take().is_none());
        wait(&driver, driver.send_to(&near, "late", &to, 0)).0.unwrap();
        let (result, buf) = wait(&driver, recv);
        let received = result.unwrap();
        assert_eq!(&buf[..received.len], b"late");
        assert_eq!(received.from.is_unnamed(), domain == Domain::UNIX);
        let (result, _) = wait(&driver, driver.recv_from(&far, vec![0; 16], DONT_WAIT));
        assert_eq!(errno(result), Errno::AGAIN);
    }
}

/// With `MSG_TRUNC` a stream delivers bytes or discards them; memory without a value is never exposed.
pub fn the_length_asked_of_a_stream_shows_no_old_memory(stage: &Stage) {
    let driver = stage.driver();
    for domain in [Domain::UNIX, Domain::INET] {
        let (near, far) = connected(stage, &driver, domain);
        wait(&driver, driver.send(&near, b"bytes".to_vec(), 0)).0.unwrap();
        let mut old = vec![7; 5];
        old.clear();
        let (result, buf) = wait(&driver, driver.recv_from(&far, old, TELL_LENGTH));
        assert_eq!(result.unwrap().len, 5);
        assert!(buf == b"bytes" || buf == [0; 5], "{buf:?}");
    }
}

pub fn a_long_datagram_is_cut(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (far, to) = bound(stage, &driver, domain);
        let near = stage.socket(&driver, domain, SocketType::DATAGRAM);
        for _ in 0..2 {
            wait(&driver, driver.send_to(&near, "too long", &to, 0)).0.unwrap();
        }
        wait(&driver, driver.send_to(&near, "next", &to, 0)).0.unwrap();
        let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 3], 0));
        let received = result.unwrap();
        assert_eq!((received.len, &buf[..], received.is_truncated), (3, &b"too"[..], true));
        let (result, buf) = wait(&driver, driver.recv(&far, vec![0; 3], 0));
        assert_eq!((result.unwrap(), &buf[..]), (3, &b"too"[..]));
        for flags in [PEEK, PEEK | TELL_LENGTH, 0] {
            let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 8], flags));
            assert_eq!(&buf[..result.unwrap().len], b"next");
        }
        // The length of the whole datagram is reported, also for memory without a value.
        for buf in [vec![7; 3], Vec::with_capacity(3), vec![0; 20]] {
            wait(&driver, driver.send_to(&near, "too long", &to, 0)).0.unwrap();
            let (result, buf) = wait(&driver, driver.recv_message(&far, buf, 0, TELL_LENGTH));
            let received = result.unwrap().0;
            assert_eq!((received.datagram_len, received.is_truncated), (8, received.len < 8));
            assert_eq!(&buf[..received.len], &b"too long"[..received.len]);
        }
        let much = vec![0; 1 << 20];
        let (result, _) = wait(&driver, driver.send_to(&near, much, &to, 0));
        assert_eq!(errno(result), Errno::MSGSIZE);
    }
}

pub fn a_socket_of_datagrams_gets_a_peer(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, from) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let (result, _) = wait(&driver, driver.send(&near, "x", 0));
        let expected = if domain == Domain::UNIX { Errno::NOTCONN } else { Errno::DESTADDRREQ };
        assert_eq!(errno(result), expected, "it has none");
        wait(&driver, driver.connect(&near, &to)).unwrap();
        assert_eq!(driver.peer_address(&near).unwrap(), to);
        wait(&driver, driver.send(&near, "ping", 0)).0.unwrap();
        let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 8], 0));
        let received = result.unwrap();
        assert_eq!((&buf[..received.len], received.from), (&b"ping"[..], from));
        wait(&driver, driver.send_to(&far, "pong", &from, 0)).0.unwrap();
        let (result, buf) = wait(&driver, driver.recv(&near, vec![0; 8], 0));
        assert_eq!(&buf[..result.unwrap()], b"pong");
    }
}

pub fn a_datagram_to_nobody_is_refused(stage: &Stage) {
    let driver = stage.driver();
    let gone = |domain| {
        let (far, to) = bound(stage, &driver, domain);
        wait(&driver, driver.close(far)).unwrap();
        to
    };
    let near = stage.socket(&driver, Domain::UNIX, SocketType::DATAGRAM);
    let (result, _) = wait(&driver, driver.send_to(&near, "x", &gone(Domain::UNIX), 0));
    assert_eq!(errno(result), Errno::CONNREFUSED);
    // On the network the error is known only afterwards, and only a connected socket reports it.
    let near = stage.socket(&driver, Domain::INET, SocketType::DATAGRAM);
    let to = gone(Domain::INET);
    assert_eq!(wait(&driver, driver.send_to(&near, "x", &to, 0)).0.unwrap(), 1);
    wait(&driver, driver.connect(&near, &to)).unwrap();
    assert_eq!(wait(&driver, driver.send(&near, "x", 0)).0.unwrap(), 1);
    let (result, _) = wait(&driver, driver.recv(&near, vec![0; 8], 0));
    assert_eq!(errno(result), Errno::CONNREFUSED);
}

pub fn a_dropped_receive_leaves_the_datagram(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (far, to) = bound(stage, &driver, domain);
        let near = stage.socket(&driver, domain, SocketType::DATAGRAM);
        let recv = driver.recv_from(&far, vec![0; 16], 0);
        settle(&driver);
        drop(recv);
        turn_until(&driver, || driver.live_operations() == 0);
        wait(&driver, driver.send_to(&near, "kept", &to, 0)).0.unwrap();
        let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 16], 0));
        assert_eq!(&buf[..result.unwrap().len], b"kept");
    }
}

pub fn a_pair_exchanges_datagrams(stage: &Stage) {
    let driver = stage.driver();
    let (near, far) = driver.socket_pair(SocketType::DATAGRAM).unwrap();
    for (from, to) in [(&near, &far), (&far, &near)] {
        let recv = driver.recv_from(to, vec![0; 2], 0);
        for message in ["one", "", "two"] {
            assert_eq!(wait(&driver, driver.send(from, message, 0)).0.unwrap(), message.len());
        }
        let (result, buf) = wait(&driver, recv);
        let received = result.unwrap();
        assert_eq!((&buf[..received.len], received.is_truncated), (&b"on"[..], true));
        assert!(received.from.is_unnamed());
        for message in [&b""[..], b"two"] {
            let (result, buf) = wait(&driver, driver.recv(to, vec![0; 8], 0));
            assert_eq!(&buf[..result.unwrap()], message);
        }
    }
    let (alone, _) = bound(stage, &driver, Domain::UNIX);
    wait(&driver, driver.close(far)).unwrap();
    for expected in [Errno::CONNREFUSED, Errno::NOTCONN] {
        assert_eq!(errno(wait(&driver, driver.send(&near, "x", 0)).0), expected);
    }
    let address = driver.local_address(&alone).unwrap();
    assert_eq!(wait(&driver, driver.send_to(&near, "x", &address, 0)).0.unwrap(), 1);
}

/// Returns two Unix sockets, of which the first is connected to the second, and the second's address.
fn directed(stage: &Stage, driver: &Driver) -> (Fd, Fd, SocketAddress) {
    let (near, _) = bound(stage, driver, Domain::UNIX);
    let (far, to) = bound(stage, driver, Domain::UNIX);
    wait(driver, driver.connect(&near, &to)).unwrap();
    (near, far, to)
}

pub fn a_shutdown_ends_receives_of_datagrams(stage: &Stage) {
    let driver = stage.driver();
    let end = |result: std::io::Result<Received>| {
        let received = result.unwrap();
        assert!(received.from.is_unnamed(), "{received:?}");
        assert_eq!((received.len, received.is_truncated), (0, false));
    };
    for how in [ShutdownHow::Receives, ShutdownHow::Both] {
        let (near, far, _) = directed(stage, &driver);
        let mut waits = driver.recv_from(&far, vec![0; 16], 0);
        let with_control = driver.recv_message(&far, vec![0; 16], 64, 0);
        settle(&driver);
        assert!(waits.try_take().is_none());
        wait(&driver, driver.shutdown_socket(&far, how)).unwrap();
        end(wait(&driver, waits).0);
        let (result, _) = wait(&driver, with_control);
        let (received, control) = result.unwrap();
        end(Ok(received));
        assert!(control.descriptors.is_empty() && !control.is_truncated);
        end(wait(&driver, driver.recv_from(&far, vec![0; 16], 0)).0);
        assert_eq!(wait(&driver, driver.recv(&far, vec![0; 16], 0)).0.unwrap(), 0);
        let at_once = driver.recv_from(&far, vec![0; 16], DONT_WAIT);
        assert_eq!(errno(wait(&driver, at_once).0), Errno::AGAIN);
        assert_eq!(errno(wait(&driver, driver.send(&near, "x", 0)).0), Errno::PIPE);
    }
    // A datagram that arrived before the shutdown is received.
    let (near, far, _) = directed(stage, &driver);
    wait(&driver, driver.send(&near, "before", 0)).0.unwrap();
    wait(&driver, driver.shutdown_socket(&far, ShutdownHow::Receives)).unwrap();
    let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 16], 0));
    assert_eq!(&buf[..result.unwrap().len], b"before");
    end(wait(&driver, driver.recv_from(&far, vec![0; 16], 0)).0);
    // The socket can still send.
    let answer = driver.send_to(&far, "behind", &driver.local_address(&near).unwrap(), 0);
    wait(&driver, answer).0.unwrap();
}

pub fn a_batch_is_moved_by_a_plain_call(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, from) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let messages: Vec<_> = ["one", "", "three"].map(|its| (its, to)).to_vec();
        let mut bufs: Vec<Vec<u8>> = (0..4).map(|_| Vec::with_capacity(4)).collect();
        let mut received = Vec::new();
        let Some(sent) = driver.send_batch_now(&near, &messages) else {
            assert!(!stage.bypasses() || near.is_simulated());
            assert!(driver.recv_batch_now(&far, &mut bufs, &mut received).unwrap().is_none());
            continue;
        };
        assert!(stage.bypasses());
        assert_eq!(sent, 3);
        assert!(driver.without_bypass().send_batch_now(&near, &messages).is_none());
        let count = driver.recv_batch_now(&far, &mut bufs, &mut received).unwrap();
        assert_eq!(count, Some(3));
        assert_eq!(bufs, [&b"one"[..], b"", b"thre", b""]);
        for (its, (buf, is_truncated)) in received.iter().zip(bufs.iter().zip([false, false, true]))
        {
            assert_eq!((its.from, its.len, its.is_truncated), (from, buf.len(), is_truncated));
        }
        let count = driver.recv_batch_now(&far, &mut bufs, &mut received).unwrap();
        assert_eq!((count, received.len()), (Some(0), 3));
        // The batch ends before the first message that fails, and before a buffer without room.
        let far_away = SocketAddress::unix("/nowhere/at/all").unwrap();
        let messages = [("a", to), ("b", far_away), ("c", to)];
        assert_eq!(driver.send_batch_now(&near, &messages), Some(1));
        assert_eq!(driver.send_batch_now(&near, &messages[1..]), Some(0));
        let mut bufs = [Vec::with_capacity(4), Vec::new()];
        assert_eq!(driver.recv_batch_now(&far, &mut bufs, &mut received).unwrap(), Some(1));
        assert_eq!(bufs[0], b"a");
    }
}

pub fn a_datagram_is_sent_by_a_plain_call(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, _) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let receive = || wait(&driver, driver.recv_from(&far, Vec::with_capacity(9), 0));
        let send = |text: &'static str, to| driver.send_datagram_now(&near, &text, to);
        let Some(sent) = send("one", &to) else {
            assert!(!stage.bypasses() || near.is_simulated());
            continue;
        };
        assert!(stage.bypasses());
        assert_eq!((sent.unwrap(), receive().1), (3, b"one".to_vec()));
        assert_eq!(send("", &to).unwrap().unwrap(), 0);
        assert_eq!(receive().0.unwrap().len, 0);
        assert!(driver.without_bypass().send_datagram_now(&near, &"x", &to).is_none());
        let nobody = SocketAddress::unix("/nowhere/at/all").unwrap();
        assert!(send("x", &nobody).unwrap().is_err());
        assert!(send("x", &SocketAddress::UNNAMED).unwrap().is_err(), "it has no peer");
        wait(&driver, driver.connect(&near, &to)).unwrap();
        assert_eq!(send("peer", &SocketAddress::UNNAMED).unwrap().unwrap(), 4);
        assert_eq!(receive().1, b"peer");
        // If the receiver has no room, nothing is sent, and the call does not wait.
        if domain == Domain::UNIX {
            let full = (0..10_000).find(|_| {
                if !driver.has_inline_budget() {
                    wait(&driver, driver.next_turn()).unwrap();
                }
                send("x", &to).is_none()
            });
            assert!(full.is_some());
        }
    }
}

pub fn a_batch_counts_as_many_plain_calls(stage: &Stage) {
    let driver = stage.driver();
    let (near, _) = bound(stage, &driver, Domain::INET);
    let (_far, to) = bound(stage, &driver, Domain::INET);
    wait(&driver, driver.next_turn()).unwrap();
    settle(&driver);
    let messages = vec![("x", to); 64];
    if let Some(sent) = driver.send_batch_now(&near, &messages) {
        assert_eq!(sent, 64);
        assert!(!driver.has_inline_budget());
        assert!(driver.send_batch_now(&near, &messages).is_none());
    }
}
