//! Datagrams that the runtime receives ahead into its own memory, and the end of receives.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::AsFd;

use sakia::net::{ControlMessage, ControlMessages, UdpSocket, UnixDatagram};
use sakia::yield_now;

use crate::support::{bytes, on_each_backend, poll_once, rejecting};

on_each_backend! {
    whole_with_sender_and_control_messages
    other_receives_go_on_in_order
    a_batch_follows_what_was_received_ahead
    a_batch_follows_what_came_for_dropped_receives
    a_batch_follows_what_a_dropped_receive_had
    a_peek_sees_what_comes_for_nobody
    dropped_receives_ahead_lose_nothing
    an_error_is_told_once_and_receives_go_on
    sockets_that_do_not_wait
    a_shutdown_ends_receives
    a_shutdown_ends_sends
}

async fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

/// Lets the kernel deliver the datagrams that have arrived.
async fn turns() {
    for _ in 0..8 {
        yield_now().await;
    }
}

async fn whole_with_sender_and_control_messages() {
    let (one, other) = (udp().await, udp().await);
    other.set_datagram_room(40_000, 128).unwrap();
    other.set_recv_ttl(true).unwrap();
    for len in [0, 1, 1500, 40_000] {
        one.send_to(bytes(len), other.local_addr().unwrap()).await.0.unwrap();
        let datagram = other.recv_datagram().await.unwrap();
        assert!(*datagram.bytes == bytes(len));
        assert_eq!((datagram.from, datagram.is_truncated), (one.local_addr().unwrap(), false));
        assert_eq!(datagram.control.messages().count(), 1);
    }
    // The room is fixed while a receive is under way (`EBUSY`). The buffers are somewhat larger than the
    // requested room.
    let error = other.set_datagram_room(1, 0).unwrap_err();
    assert_eq!(sakia::os_error(&error), Some(16));
    one.send_to(bytes(60_000), other.local_addr().unwrap()).await.0.unwrap();
    assert_eq!(other.recv_datagram().await.unwrap().bytes.len(), 60_000);
    let short = udp().await;
    one.send_to(bytes(60_000), short.local_addr().unwrap()).await.0.unwrap();
    let datagram = short.recv_datagram().await.unwrap();
    assert!(datagram.is_truncated && datagram.bytes.len() >= 1500);
    assert!(bytes(60_000).starts_with(&datagram.bytes));

    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_datagram_room(100, ControlMessage::space(8)).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let control = ControlMessages::new().descriptor(&sakia::io::adopt(reader));
    near.send_message("with", None, control).await.0.unwrap();
    near.send("without").await.0.unwrap();
    let mut with = far.recv_datagram().await.unwrap();
    assert!(&*with.bytes == b"with" && with.from.is_unnamed());
    assert_eq!(with.control.descriptors.drain(..).count(), 1);
    let without = far.recv_datagram().await.unwrap();
    assert!(&*without.bytes == b"without" && without.control.descriptors.is_empty());
}

async fn other_receives_go_on_in_order() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    let mut next = 0_u8;
    for round in 0..4 {
        // Receives before and during the kernel's receive ahead.
        for number in next..next + 8 {
            near.send(vec![number]).await.0.unwrap();
            one.send_to(vec![number], to).await.0.unwrap();
        }
        assert_eq!(*far.recv_datagram().await.unwrap().bytes, [next]);
        assert_eq!(*other.recv_datagram().await.unwrap().bytes, [next]);
        if round % 2 == 0 {
            turns().await;
        }
        assert_eq!(far.peek(vec![0; 9]).await.1[0], next + 1);
        assert_eq!(far.recv(vec![0; 9]).await.1[0], next + 1);
        let (result, buf) = other.recv_from(vec![0; 9]).await;
        assert_eq!((result.unwrap(), buf[0]), ((1, one.local_addr().unwrap()), next + 1));
        assert_eq!(*far.recv_datagram().await.unwrap().bytes, [next + 2]);
        let (result, _) = far.recv_message(vec![0; 9], 64).await;
        assert_eq!(result.unwrap().0.len, 1);
        let mut left = next + 2..next + 8;
        while !left.is_empty() {
            let (received, bufs) = other.recv_batch(vec![vec![0; 9]; 3]).await;
            for buf in &bufs[..received.unwrap().len()] {
                assert_eq!(Some(buf[0]), left.next());
            }
        }
        for number in next + 4..next + 8 {
            assert_eq!(far.recv_from(vec![0; 9]).await.1[0], number);
        }
        next += 8;
    }
    // No datagram is left.
    assert!(poll_once(&mut Box::pin(far.recv(vec![0; 9]))).await.is_pending());
}

/// Receives batches until this number of datagrams has come, which must be in order.
async fn batches(socket: &UdpSocket, numbers: std::ops::Range<u8>) {
    let mut left = numbers;
    while !left.is_empty() {
        let (received, bufs) = socket.recv_batch(vec![vec![0; 9]; 8]).await;
        for buf in &bufs[..received.unwrap().len()] {
            assert_eq!(Some(buf[0]), left.next());
        }
    }
}

async fn a_batch_follows_what_was_received_ahead() {
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    for number in 0..4_u8 {
        one.send_to(vec![number], to).await.0.unwrap();
    }
    assert_eq!(*other.recv_datagram().await.unwrap().bytes, [0]);
    turns().await;
    for number in 4..6_u8 {
        one.send_to(vec![number], to).await.0.unwrap();
    }
    batches(&other, 1..6).await;
}

async fn a_batch_follows_what_came_for_dropped_receives() {
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    for round in 0..4_u8 {
        let first = 4 * round;
        let mut waiting = Box::pin(other.recv(vec![0; 9]));
        assert!(poll_once(&mut waiting).await.is_pending());
        turns().await;
        one.send_to(vec![first], to).await.0.unwrap();
        if round % 2 == 0 {
            turns().await;
        }
        drop(waiting);
        for number in first + 1..first + 4 {
            one.send_to(vec![number], to).await.0.unwrap();
        }
        batches(&other, first..first + 4).await;
    }
}

/// A receive has ended when it is dropped, and a batch could be received at once.
async fn a_batch_follows_what_a_dropped_receive_had() {
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    for number in 0..4 {
        one.send_to(vec![number], to).await.0.unwrap();
    }
    batches(&other, 0..4).await;
    for number in (4..16).step_by(2) {
        let mut receive = Box::pin(other.recv_from(vec![0; 9]));
        assert!(poll_once(&mut receive).await.is_pending());
        one.send_to(vec![number], to).await.0.unwrap();
        turns().await;
        drop(receive);
        one.send_to(vec![number + 1], to).await.0.unwrap();
        batches(&other, number..number + 2).await;
    }
}

/// A peek and a receive into memory of the runtime wait. When the receive is dropped, the peek goes on.
async fn a_peek_sees_what_comes_for_nobody() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut peek = Box::pin(far.peek(vec![0; 9]));
    assert!(poll_once(&mut peek).await.is_pending());
    let mut receive = Box::pin(far.recv_datagram());
    assert!(poll_once(&mut receive).await.is_pending());
    drop(receive);
    turns().await;
    near.send("shown").await.0.unwrap();
    assert_eq!(peek.await.1[..5], *b"shown");
    assert_eq!(*far.recv_datagram().await.unwrap().bytes, *b"shown");
}

async fn dropped_receives_ahead_lose_nothing() {
    let (near, far) = UnixDatagram::pair().unwrap();
    for round in 0..8_u8 {
        let mut waits = Box::pin(far.recv_datagram());
        assert!(poll_once(&mut waits).await.is_pending());
        if round % 2 == 0 {
            turns().await;
        }
        near.send(vec![round]).await.0.unwrap();
        drop(waits);
        match round % 4 {
            0 | 1 => assert_eq!(far.recv(vec![0; 9]).await.1[0], round),
            _ => assert_eq!(*far.recv_datagram().await.unwrap().bytes, [round]),
        }
        // The same with a receive of another kind.
        let mut waits = Box::pin(far.recv_from(vec![0; 9]));
        assert!(poll_once(&mut waits).await.is_pending());
        turns().await;
        near.send(vec![round + 100]).await.0.unwrap();
        drop(waits);
        assert_eq!(*far.recv_datagram().await.unwrap().bytes, [round + 100]);
    }
}

async fn an_error_is_told_once_and_receives_go_on() {
    let (one, other) = (udp().await, rejecting("127.0.0.1:0"));
    one.connect(other.local_addr().unwrap()).await.unwrap();
    let mut waits = Box::pin(one.recv_datagram());
    assert!(poll_once(&mut waits).await.is_pending());
    turns().await;
    one.send("x").await.0.unwrap();
    assert_eq!(waits.await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    other.connect(one.local_addr().unwrap()).unwrap();
    other.send(b"back").unwrap();
    assert_eq!(*one.recv_datagram().await.unwrap().bytes, *b"back");
}

async fn sockets_that_do_not_wait() {
    let (one, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    let other = UnixDatagram::from_std(other).unwrap();
    for _ in 0..3 {
        let mut waits = Box::pin(other.recv_datagram());
        assert!(poll_once(&mut waits).await.is_pending());
        turns().await;
        one.send(b"x").unwrap();
        assert_eq!(*waits.await.unwrap().bytes, *b"x");
    }
    assert!(other.as_fd().try_clone_to_owned().is_ok());
}

async fn a_shutdown_ends_receives() {
    for how in [Shutdown::Read, Shutdown::Both] {
        for is_ahead in [false, true] {
            let (near, far) = UnixDatagram::pair().unwrap();
            near.send("before").await.0.unwrap();
            if is_ahead {
                assert_eq!(*far.recv_datagram().await.unwrap().bytes, *b"before");
                near.send("between").await.0.unwrap();
                turns().await;
            }
            far.shutdown(how).await.unwrap();
            let (result, buf) = far.recv_from(vec![0; 9]).await;
            let expected: &[u8] = if is_ahead { b"between" } else { b"before" };
            assert_eq!(&buf[..result.unwrap().0], expected);
            for _ in 0..2 {
                let (result, _) = far.recv_from(vec![0; 9]).await;
                let (len, from) = result.unwrap();
                assert!(len == 0 && from.is_unnamed());
                let end = far.recv_datagram().await.unwrap();
                assert!(end.bytes.is_empty() && end.from.is_unnamed() && !end.is_truncated);
            }
            let error = near.send("x").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        }
        // Waiting receives end, too.
        let (near, far) = UnixDatagram::pair().unwrap();
        let (_near, ahead) = UnixDatagram::pair().unwrap();
        let mut waits = Box::pin(far.recv(vec![0; 9]));
        let mut too = Box::pin(far.recv_message(vec![0; 9], 64));
        let mut waits_ahead = Box::pin(ahead.recv_datagram());
        assert!(poll_once(&mut waits).await.is_pending());
        assert!(poll_once(&mut too).await.is_pending());
        assert!(poll_once(&mut waits_ahead).await.is_pending());
        turns().await;
        far.shutdown(how).await.unwrap();
        ahead.shutdown(how).await.unwrap();
        assert_eq!(waits.await.0.unwrap(), 0);
        assert_eq!(too.await.0.unwrap().0.len, 0);
        assert!(waits_ahead.await.unwrap().bytes.is_empty());
        assert_eq!(far.send("y").await.0.is_ok(), how == Shutdown::Read);
        drop(near);
    }
}

async fn a_shutdown_ends_sends() {
    let (near, far) = UnixDatagram::pair().unwrap();
    near.send("before").await.0.unwrap();
    near.shutdown(Shutdown::Write).await.unwrap();
    assert_eq!(near.send("x").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(far.recv(vec![0; 9]).await.0.unwrap(), 6);
    assert!(poll_once(&mut Box::pin(far.recv(vec![0; 9]))).await.is_pending());
    far.send("to it").await.0.unwrap();
    assert_eq!(near.recv(vec![0; 9]).await.0.unwrap(), 5);
}
