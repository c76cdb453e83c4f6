//! Datagrams received one after the other: none is lost, and each has only its own control messages.

use std::pin::pin;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use sakia_driver::{
    ControlMessages, DatagramOptions, Domain, Driver, Fd, ShutdownHow, SocketAddress, SocketType,
};

use crate::connections::{poll, run};
use crate::datagrams::bound;
use crate::sockets::DOMAINS;
use crate::stage::{Stage, errno, settle, turn_until, wait};

/// Room for a few descriptors.
const CONTROL: usize = 64;

fn send(driver: &Driver, near: &Fd, to: &SocketAddress, bytes: &[u8]) {
    let (result, _) = wait(driver, driver.send_to(near, bytes.to_vec(), to, 0));
    assert_eq!(result.unwrap(), bytes.len());
}

pub fn a_receiver_brings_datagrams_whole_and_in_order(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, from) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let receiver = driver.datagrams(far, DatagramOptions::default());
        for round in 0..3 {
            if round == 1 {
                assert!(poll(pin!(receiver.recv())).is_pending());
                settle(&driver);
            }
            // More datagrams than one turn may bring, some of them empty.
            let messages: Vec<Vec<u8>> =
                (0..8).map(|at: u8| vec![at; 100 * usize::from(at % 4)]).collect();
            for message in &messages {
                send(&driver, &near, &to, message);
            }
            for message in &messages {
                let datagram = run(&driver, receiver.recv()).unwrap();
                assert_eq!(&datagram.bytes[..], message);
                assert_eq!((datagram.from, datagram.is_truncated), (from, false));
                assert_eq!(datagram.control.descriptors.len(), 0);
            }
        }
    }
}

pub fn a_dropped_receive_of_a_receiver_loses_no_datagram(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, _) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        // With and without buffers of the driver.
        for datagram_bytes_max in [1, 200_000] {
            let options = DatagramOptions { datagram_bytes_max, ..Default::default() };
            let receiver = driver.datagrams(far.clone(), options);
            for round in 0..12_u8 {
                let mut recv = Box::pin(receiver.recv());
                assert!(poll(recv.as_mut()).is_pending());
                if round % 2 == 0 {
                    settle(&driver);
                }
                send(&driver, &near, &to, &[round]);
                if round % 3 == 0 {
                    settle(&driver);
                }
                drop(recv);
                assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], [round]);
            }
            drop(receiver);
            turn_until(&driver, || driver.in_flight() == 0);
        }
    }
}

pub fn a_receiver_tells_what_it_cut(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, _) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let cases = [(1500, 1500), (1500, 4000), (30_000, 30_000), (usize::MAX, 4000)];
        for (datagram_bytes_max, len) in cases {
            let options = DatagramOptions { datagram_bytes_max, ..Default::default() };
            let receiver = driver.datagrams(far.clone(), options);
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            send(&driver, &near, &to, &bytes);
            send(&driver, &near, &to, b"next");
            let datagram = run(&driver, receiver.recv()).unwrap();
            assert_eq!(datagram.is_truncated, len > datagram_bytes_max, "{len}");
            assert!(datagram.bytes.len() >= datagram_bytes_max.min(len));
            assert_eq!(datagram.bytes[..], bytes[..datagram.bytes.len()]);
            assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], b"next");
            drop((receiver, datagram));
            turn_until(&driver, || driver.in_flight() == 0);
        }
    }
}

pub fn a_receiver_holds_back_a_bounded_number(stage: &Stage) {
    let driver = stage.driver();
    let (near, _) = bound(stage, &driver, Domain::UNIX);
    let (far, to) = bound(stage, &driver, Domain::UNIX);
    let receiver = driver.datagrams(far, DatagramOptions::default());
    assert!(poll(pin!(receiver.recv())).is_pending());
    settle(&driver);
    // A sender within the machine waits for room, so no datagram is lost.
    let mut sent = 0_u32;
    loop {
        let mut send = driver.send_to(&near, vec![sent as u8; 100], &to, 0);
        settle(&driver);
        let Some((result, _)) = send.try_take() else { break drop(send) };
        result.unwrap();
        sent += 1;
        assert!(sent < 100_000, "it receives without bound");
    }
    settle(&driver);
    for at in 0..sent {
        assert_eq!(run(&driver, receiver.recv()).unwrap().bytes[..], [at as u8; 100]);
    }
}

pub fn a_receiver_tells_an_error_once_and_goes_on(stage: &Stage) {
    let driver = stage.driver();
    let (near, from) = bound(stage, &driver, Domain::INET);
    let (far, to) = bound(stage, &driver, Domain::INET);
    wait(&driver, driver.connect(&near, &to)).unwrap();
    wait(&driver, driver.close(far)).unwrap();
    let receiver = driver.datagrams(near.clone(), DatagramOptions::default());
    for _ in 0..3 {
        let mut recv = Box::pin(receiver.recv());
        assert!(poll(recv.as_mut()).is_pending());
        settle(&driver);
        wait(&driver, driver.send(&near, "x", 0)).0.unwrap();
        assert_eq!(errno(run(&driver, recv)), Errno::CONNREFUSED);
    }
    let far = stage.socket(&driver, Domain::INET, SocketType::DATAGRAM);
    wait(&driver, driver.bind(&far, &to)).unwrap();
    send(&driver, &far, &from, b"here");
    assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], b"here");
}

pub fn descriptors_come_to_a_receiver_once(stage: &Stage) {
    let driver = stage.driver();
    let (near, _) = bound(stage, &driver, Domain::UNIX);
    let (far, to) = bound(stage, &driver, Domain::UNIX);
    let fd = stage.file(&driver, "passed", b"content");
    let identity = stage.identify(&fd);
    let copies = stage.copies(&identity);
    let pass = |bytes: &'static str, count: usize| {
        let control = (0..count).fold(ControlMessages::new(), |all, _| all.descriptor(&fd));
        let sent = driver.send_message(&near, bytes, &to, control, 0);
        assert_eq!(wait(&driver, sent).0.unwrap(), bytes.len());
    };
    for datagram_bytes_max in [1500, 200_000] {
        let options = DatagramOptions { datagram_bytes_max, control_bytes: CONTROL };
        let receiver = driver.datagrams(far.clone(), options);
        // Buffers are used again and again: a datagram shows nothing of the one before.
        for round in 0..100 {
            let count = [2, 0, 1, 0][round % 4];
            pass("datagram", count);
            let mut datagram = run(&driver, receiver.recv()).unwrap();
            assert_eq!(&datagram.bytes[..], b"datagram");
            assert_eq!(datagram.control.descriptors.len(), count);
            assert!(!datagram.control.is_truncated);
            if let Some(fd) = datagram.control.descriptors.pop() {
                turn_until(&driver, || stage.copies(&identity) == copies + count);
                let (result, buf) = wait(&driver, driver.read(&fd, vec![0; 16], 0));
                assert_eq!(&buf[..result.unwrap()], b"content");
            }
        }
        turn_until(&driver, || stage.copies(&identity) == copies);
        // More descriptors than there is room for.
        pass("many", 20);
        let datagram = run(&driver, receiver.recv()).unwrap();
        assert!(datagram.control.is_truncated && datagram.control.descriptors.len() < 20);
        drop(datagram);
        turn_until(&driver, || stage.copies(&identity) == copies);
        // Datagrams that no caller gets: not taken, received by a dropped call, and left in the socket's
        // queue.
        assert!(poll(pin!(receiver.recv())).is_pending()); // dropped at once
        pass("one", 1);
        pass("two", 2);
        settle(&driver);
        drop(receiver);
        settle(&driver);
        let receiver = driver.datagrams(far.clone(), DatagramOptions::default());
        pass("last", 1);
        while &run(&driver, receiver.recv()).unwrap().bytes[..] != b"last" {}
        drop(receiver);
        settle(&driver); // what comes before the end of its receive is lost
        turn_until(&driver, || stage.copies(&identity) == copies);
    }
}

pub fn a_close_ends_a_receiver(stage: &Stage) {
    let driver = stage.driver();
    let (far, _) = bound(stage, &driver, Domain::UNIX);
    let receiver = driver.datagrams(far.clone(), DatagramOptions::default());
    let mut recv = Box::pin(receiver.recv());
    assert!(poll(recv.as_mut()).is_pending());
    settle(&driver);
    let closing = driver.close(far);
    assert_eq!(errno(run(&driver, recv)), Errno::CANCELED);
    drop(receiver);
    wait(&driver, closing).unwrap();
}

pub fn a_shutdown_ends_a_receiver(stage: &Stage) {
    let driver = stage.driver();
    // With and without buffers of the driver.
    for datagram_bytes_max in [1, 200_000] {
        let options = DatagramOptions { datagram_bytes_max, ..Default::default() };
        for is_waiting in [false, true] {
            let (near, _) = bound(stage, &driver, Domain::UNIX);
            let (far, to) = bound(stage, &driver, Domain::UNIX);
            let receiver = driver.datagrams(far.clone(), options);
            if is_waiting {
                assert!(poll(pin!(receiver.recv())).is_pending());
                settle(&driver);
            }
            if !is_waiting {
                send(&driver, &near, &to, b"before");
            }
            receiver.receive_singly();
            wait(&driver, driver.shutdown_socket(&far, ShutdownHow::Receives)).unwrap();
            if !is_waiting {
                assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], b"before");
            }
            for _ in 0..2 {
                let end = run(&driver, receiver.recv()).unwrap();
                assert!(end.bytes.is_empty() && end.from.is_unnamed(), "{end:?}");
            }
        }
    }
}

/// A receiver ends when its socket is shut down through a copy of the descriptor, as in another process.
pub fn a_receiver_is_told_that_others_have_ended_it(stage: &Stage) {
    let driver = stage.driver();
    for is_waiting in [false, true] {
        let (near, _) = bound(stage, &driver, Domain::UNIX);
        let (far, to) = bound(stage, &driver, Domain::UNIX);
        if far.is_simulated() {
            return; // its descriptors cannot be copied
        }
        let receiver = driver.datagrams(far.clone(), DatagramOptions::default());
        send(&driver, &near, &to, b"first");
        assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], b"first");
        if is_waiting {
            assert!(poll(pin!(receiver.recv())).is_pending());
            settle(&driver);
        }
        send(&driver, &near, &to, b"before");
        shutdown(&far, Shutdown::Read).unwrap();
        assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], b"before");
        for _ in 0..2 {
            let end = run(&driver, receiver.recv()).unwrap();
            assert!(end.bytes.is_empty() && end.from.is_unnamed(), "{end:?}");
        }
        drop(receiver);
        settle(&driver);
        wait(&driver, driver.close(far)).unwrap();
    }
}

/// A receiver on a socket for packets in order (`SOCK_SEQPACKET`) ends when its peer closes.
pub fn a_receiver_of_packets_is_told_that_its_peer_has_left(stage: &Stage) {
    let driver = stage.driver();
    for is_waiting in [false, true] {
        let (near, far) = driver.socket_pair(SocketType::SEQUENCED).unwrap();
        let receiver = driver.datagrams(far, DatagramOptions::default());
        if is_waiting {
            assert!(poll(pin!(receiver.recv())).is_pending());
            settle(&driver);
        }
        wait(&driver, driver.send(&near, "before", 0)).0.unwrap();
        wait(&driver, driver.close(near)).unwrap();
        assert_eq!(&run(&driver, receiver.recv()).unwrap().bytes[..], b"before");
        for _ in 0..2 {
            let end = run(&driver, receiver.recv()).unwrap();
            assert!(end.bytes.is_empty() && end.from.is_unnamed(), "{end:?}");
        }
    }
}

pub fn what_a_receiver_brought_is_taken_in_order(stage: &Stage) {
    let driver = stage.driver();
    for domain in DOMAINS {
        let (near, _) = bound(stage, &driver, domain);
        let (far, to) = bound(stage, &driver, domain);
        let receiver = driver.datagrams(far.clone(), DatagramOptions::default());
        assert!(receiver.is_idle());
        assert!(run(&driver, receiver.take_ahead()).is_none());
        for round in 0..3_u8 {
            for at in 0..4_u8 {
                send(&driver, &near, &to, &[round, at]);
            }
            assert_eq!(run(&driver, receiver.recv()).unwrap().bytes[..], [round, 0]);
            assert!(!receiver.is_idle());
            settle(&driver);
            send(&driver, &near, &to, &[round, 4]);
            let mut next = 1;
            while let Some(datagram) = run(&driver, receiver.take_ahead()) {
                assert_eq!(datagram.unwrap().bytes[..], [round, next]);
                next += 1;
            }
            assert!(receiver.is_idle());
            for at in next..5 {
                let (result, buf) = wait(&driver, driver.recv_from(&far, vec![0; 9], 0));
                assert_eq!(buf[..result.unwrap().len], [round, at]);
            }
        }
    }
}
