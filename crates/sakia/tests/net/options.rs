//! Options: the kernel reports the values that were set.

use std::io::ErrorKind;
use std::time::Duration;

use sakia::net::{
    ConnectOptions, Keepalive, ListenOptions, TcpListener, TcpStream, UdpOptions, UdpSocket,
};

use crate::support::{on_each_backend, pair};

on_each_backend! {
    of_a_stream
    of_a_listener_are_those_of_its_connections
    of_connecting_are_set_before
    of_addresses
    what_is_no_address_is_refused
}

const SECOND: Duration = Duration::from_secs(1);

async fn of_a_stream() {
    let (stream, _peer) = pair().await;
    assert!(!stream.nodelay().unwrap());
    stream.set_nodelay(true).unwrap();
    assert!(stream.nodelay().unwrap());
    stream.set_quickack(false).unwrap();
    assert!(!stream.quickack().unwrap());
    stream.set_quickack(true).unwrap();
    assert!(stream.quickack().unwrap());
    stream.set_ttl(7).unwrap();
    assert_eq!(stream.ttl().unwrap(), 7);

    assert_eq!(stream.linger().unwrap(), None);
    stream.set_linger(Some(SECOND)).unwrap();
    assert_eq!(stream.linger().unwrap(), Some(SECOND));
    stream.set_linger(None).unwrap();
    assert_eq!(stream.linger().unwrap(), None);

    assert_eq!(stream.keepalive().unwrap(), None);
    let keepalive = Keepalive::new().idle(60 * SECOND).interval(5 * SECOND).probes(3);
    stream.set_keepalive(Some(keepalive)).unwrap();
    assert_eq!(stream.keepalive().unwrap(), Some(keepalive));
    stream.set_keepalive(None).unwrap();
    assert_eq!(stream.keepalive().unwrap(), None);

    assert_eq!(stream.user_timeout().unwrap(), None);
    stream.set_user_timeout(Some(SECOND / 2)).unwrap();
    assert_eq!(stream.user_timeout().unwrap(), Some(SECOND / 2));
    stream.set_user_timeout(None).unwrap();
    assert_eq!(stream.user_timeout().unwrap(), None);

    stream.set_send_buffer_size(10_000).unwrap();
    assert_eq!(stream.send_buffer_size().unwrap(), 20_000);
    stream.set_recv_buffer_size(20_000).unwrap();
    assert_eq!(stream.recv_buffer_size().unwrap(), 40_000);
    assert!(stream.take_error().unwrap().is_none());
}

async fn of_a_listener_are_those_of_its_connections() {
    let keepalive = Keepalive::new().idle(60 * SECOND);
    let options = ListenOptions::new()
        .nodelay(true)
        .keepalive(keepalive)
        .send_buffer_size(10_000)
        .recv_buffer_size(20_000);
    let listener = options.bind("127.0.0.1:0").await.unwrap();
    listener.set_ttl(9).unwrap();
    assert_eq!(listener.ttl().unwrap(), 9);
    assert!(listener.take_error().unwrap().is_none());
    let client = ConnectOptions::new().connect(listener.local_addr().unwrap()).await.unwrap();
    assert!(!client.nodelay().unwrap());
    let (stream, _) = listener.accept().await.unwrap();
    assert!(stream.nodelay().unwrap());
    let its = stream.keepalive().unwrap().unwrap();
    assert_eq!(its, keepalive.interval(75 * SECOND).probes(9)); // what the system has
    assert_eq!(stream.send_buffer_size().unwrap(), 20_000);
    assert_eq!(stream.recv_buffer_size().unwrap(), 40_000);
}

async fn of_connecting_are_set_before() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ConnectOptions::new()
        .nodelay(true)
        .keepalive(Keepalive::new())
        .send_buffer_size(10_000)
        .recv_buffer_size(20_000);
    let stream = options.connect(listener.local_addr().unwrap()).await.unwrap();
    assert!(stream.nodelay().unwrap() && stream.keepalive().unwrap().is_some());
    assert_eq!(stream.send_buffer_size().unwrap(), 20_000);
    assert_eq!(stream.recv_buffer_size().unwrap(), 40_000);
}

async fn of_addresses() {
    for only_v6 in [false, true] {
        let options = ListenOptions::new().only_v6(only_v6);
        let listener = options.bind("[::]:0").await.unwrap();
        assert_eq!(listener.only_v6().unwrap(), only_v6);
        let port = listener.local_addr().unwrap().port();
        let by_v4 = ConnectOptions::new().connect(("127.0.0.1", port)).await;
        assert_eq!(by_v4.is_err(), only_v6);
        ConnectOptions::new().connect(("::1", port)).await.unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert!(rustix::net::sockopt::socket_reuseaddr(&listener).unwrap());
    let plain = ListenOptions::new().reuse_addr(false).bind("127.0.0.1:0").await.unwrap();
    assert!(!rustix::net::sockopt::socket_reuseaddr(&plain).unwrap());
}

async fn what_is_no_address_is_refused() {
    macro_rules! refuse {
        ($($call:expr;)*) => {$(
            let error = $call.await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}: {error}", stringify!($call));
        )*};
    }
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for text in ["", "localhost", "localhost:http", "[::1]", "127.0.0.1:65536"] {
        refuse! {
            TcpListener::bind(text);
            ListenOptions::new().bind(text);
            TcpStream::connect(text);
            ConnectOptions::new().connect(text);
            UdpSocket::bind(text);
            UdpOptions::new().bind(text);
            socket.connect(text);
        }
        let sent = socket.send_to("x", text).await.0;
        assert_eq!(sent.map(drop).unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
    }
}
