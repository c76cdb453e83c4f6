//! Errors that the network reports for datagrams.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use sakia::net::{UdpError, UdpErrorOrigin, UdpSocket};
use sakia::yield_now;

use crate::support::{on_each_backend, poll_once, rejecting};

on_each_backend! {
    an_unreachable_port_is_told
    an_unreachable_port_of_version_6_is_told
    a_datagram_that_is_too_long_for_the_way_is_told
    an_error_is_waited_for
    without_the_option_nothing_is_kept
    a_batch_loses_no_error
    each_way_to_receive_tells_a_pending_error_once
}

const REFUSED: i32 = 111;

fn check(error: &UdpError, origin: UdpErrorOrigin, [kind, code]: [u8; 2], to: SocketAddr) {
    assert_eq!((error.errno, error.origin), (REFUSED, origin), "{error:?}");
    assert_eq!([error.kind, error.code], [kind, code]);
    assert_eq!((error.to, error.offender), (to, Some(to.ip())));
}

async fn an_unreachable_port_is_told() {
    let far = rejecting("127.0.0.1:0");
    let to = far.local_addr().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.set_recv_errors(true).unwrap();
    for text in ["first", ""] {
        socket.send_to(text, to).await.0.unwrap();
        let error = socket.recv_error().await.unwrap();
        // ICMP type 3, code 3: destination unreachable, port unreachable.
        check(&error, UdpErrorOrigin::Icmp, [3, 3], to);
        assert_eq!(error.datagram, text.as_bytes());
    }
    // The socket has no pending error left, and still works.
    assert!(socket.take_error().unwrap().is_none());
    let own = socket.local_addr().unwrap();
    socket.send_to("on", own).await.0.unwrap();
    assert_eq!(socket.recv(vec![0; 9]).await.0.unwrap(), 2);
}

async fn an_unreachable_port_of_version_6_is_told() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return sakia_testkit::place::announce_skip(module_path!(), "no version 6 here");
    }
    let far = rejecting("[::1]:0");
    let to = far.local_addr().unwrap();
    let socket = UdpSocket::bind("[::]:0").await.unwrap();
    socket.set_recv_errors(true).unwrap();
    socket.send_to("six", to).await.0.unwrap();
    check(&socket.recv_error().await.unwrap(), UdpErrorOrigin::Icmp6, [1, 4], to);
    // An IPv4 datagram on the same socket.
    let far = rejecting("127.0.0.1:0");
    let four = far.local_addr().unwrap();
    let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), four.port());
    socket.send_to("four", mapped).await.0.unwrap();
    let error = socket.recv_error().await.unwrap();
    assert_eq!((error.errno, error.origin), (REFUSED, UdpErrorOrigin::Icmp));
    assert_eq!((error.to, error.offender), (mapped, Some(four.ip())));
    assert_eq!(error.datagram, b"four");
}

async fn a_datagram_that_is_too_long_for_the_way_is_told() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.set_recv_errors(true).unwrap();
    let to = socket.local_addr().unwrap();
    let error = socket.send_to(vec![0; 65_508], to).await.0.unwrap_err();
    assert_eq!(sakia::os_error(&error), Some(90));
    let error = socket.recv_error().await.unwrap();
    assert_eq!((error.errno, error.origin), (90, UdpErrorOrigin::Local), "{error:?}");
    // The kernel knows the port only of a connected peer.
    assert_eq!((error.to, error.offender), (SocketAddr::new(to.ip(), 0), None));
    assert!(error.info >= 1500, "what the way takes");
    assert!(poll_once(&mut Box::pin(socket.recv_error())).await.is_pending());
}

async fn an_error_is_waited_for() {
    let far = rejecting("127.0.0.1:0");
    let to = far.local_addr().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.set_recv_errors(true).unwrap();
    // A dropped wait does not take an error from the queue.
    let mut dropped = Box::pin(socket.recv_error());
    assert!(poll_once(&mut dropped).await.is_pending());
    yield_now().await;
    socket.send_to("x", to).await.0.unwrap();
    drop(dropped);
    check(&socket.recv_error().await.unwrap(), UdpErrorOrigin::Icmp, [3, 3], to);
    let mut waits = Box::pin(socket.recv_error());
    assert!(poll_once(&mut waits).await.is_pending());
    yield_now().await;
    socket.send_to("y", to).await.0.unwrap();
    assert_eq!(waits.await.unwrap().datagram, b"y");
}

async fn without_the_option_nothing_is_kept() {
    let far = rejecting("127.0.0.1:0");
    let to = far.local_addr().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(to).await.unwrap();
    let mut waits = Box::pin(socket.recv_error());
    assert!(poll_once(&mut waits).await.is_pending());
    yield_now().await;
    socket.send("x").await.0.unwrap();
    // A socket without the option has its own pending error.
    assert_eq!(waits.await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(socket.take_error().unwrap().is_none());
}

async fn a_batch_loses_no_error() {
    let far = rejecting("127.0.0.1:0");
    let to = far.local_addr().unwrap();
    for has_peer in [true, false] {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if has_peer {
            socket.connect(to).await.unwrap();
        } else {
            socket.set_recv_errors(true).unwrap();
        }
        let results = socket.send_batch(vec![("a", to), ("b", to)]).await;
        assert_eq!(results[0].0.as_ref().ok(), Some(&1));
        let error = results[1].0.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

/// Also while batches have made the socket receive ahead.
async fn each_way_to_receive_tells_a_pending_error_once() {
    for way in 0..5 {
        let far = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(far.local_addr().unwrap()).await.unwrap();
        for _ in 0..3 {
            for _ in 0..3 {
                far.send_to(b"x", socket.local_addr().unwrap()).unwrap();
            }
            let mut left = 3;
            while left > 0 {
                left -= socket.recv_batch(vec![vec![0; 9]; left]).await.0.unwrap().len();
            }
        }
        // With another peer it rejects what this one sends.
        far.connect("127.0.0.1:9").unwrap();
        socket.send("x").await.0.unwrap();
        let error = match way {
            0 => socket.recv(vec![0; 9]).await.0.unwrap_err(),
            1 => socket.recv_from(vec![0; 9]).await.0.unwrap_err(),
            2 => socket.peek(vec![0; 9]).await.0.unwrap_err(),
            3 => socket.recv_batch(vec![vec![0; 9]; 3]).await.0.unwrap_err(),
            _ => socket.recv_batch(vec![vec![0; 9]]).await.0.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{way}");
        assert!(socket.take_error().unwrap().is_none(), "{way}");
    }
}
