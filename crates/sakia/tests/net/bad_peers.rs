//! Peers that reset, stay silent, do not read or do not exist, with one test for each case, and a server
//! that continues to serve others.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use sakia::net::{self, TcpListener, TcpStream};
use sakia::spawn;
use sakia::time::timeout;

use crate::support::{
    address_without_listener, assert_echoes, bytes, echo, on_each_backend, pair, pair_with_std,
    play, poll_once, reset,
};

on_each_backend! {
    reset_before_it_is_accepted
    reset_while_a_read_waits
    reset_while_a_write_waits
    reset_while_nothing_is_under_way
    reset_after_its_bytes
    reset_between_the_halves
    reset_after_half_of_the_ends
    gone_with_unread_bytes
    sends_slowly
    never_reads
    sends_more_than_is_read
    nobody_listens
    the_address_is_in_use
    the_address_is_elsewhere
    the_network_is_unreachable
    a_server_meets_all_of_them
}

const ECONNRESET: Option<i32> = Some(104);

async fn reset_before_it_is_accepted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..3 {
        reset(std::net::TcpStream::connect(address).unwrap());
    }
    let client = TcpStream::connect(address).await.unwrap();
    let (_, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap(), "the others cannot be told any more");
}

async fn reset_while_a_read_waits() {
    let (mut stream, peer) = pair_with_std().await;
    let reading = spawn(async move { (stream.read(vec![7; 3]).await, stream) });
    sakia::yield_now().await;
    reset(peer);
    let ((result, buf), mut stream) = reading.await.unwrap();
    assert_eq!((result.unwrap_err().raw_os_error(), buf), (ECONNRESET, vec![7; 3]));
    // The error is reported once; afterwards the stream is at its end.
    assert!(stream.recv().await.unwrap().is_empty());
    let error = stream.write("x").await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(stream.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(stream.shutdown(Shutdown::Write).await.unwrap_err().kind(), ErrorKind::NotConnected);
    stream.close().await.unwrap();
}

async fn reset_while_a_write_waits() {
    let (mut stream, peer) = pair_with_std().await;
    let mut write = Box::pin(stream.write_all(vec![7; 32 << 20]));
    assert!(poll_once(&mut write).await.is_pending());
    reset(peer);
    let (result, buf) = write.await;
    assert_eq!((result.unwrap_err().raw_os_error(), buf.len()), (ECONNRESET, 32 << 20));
}

async fn reset_while_nothing_is_under_way() {
    let (mut stream, peer) = pair_with_std().await;
    reset(peer);
    assert_eq!(stream.recv().await.unwrap_err().raw_os_error(), ECONNRESET);
    let (mut stream, peer) = pair_with_std().await;
    reset(peer);
    let (result, buf) = stream.write_all("unheard").await;
    assert_eq!((result.unwrap_err().raw_os_error(), buf), (ECONNRESET, "unheard"));
}

async fn reset_after_its_bytes() {
    let (mut stream, mut peer) = pair_with_std().await;
    peer.write_all(b"last words").unwrap();
    reset(peer);
    let (result, heard) = stream.read_to_end(Vec::new()).await;
    assert_eq!(result.unwrap_err().raw_os_error(), ECONNRESET);
    assert_eq!(heard, b"last words", "what came before the error is there");
}

async fn reset_between_the_halves() {
    let (stream, peer) = pair_with_std().await;
    let (mut reader, mut writer) = stream.into_split();
    let reading = spawn(async move { reader.recv().await });
    let writing = spawn(async move { writer.write_all(vec![1; 32 << 20]).await.0 });
    sakia::yield_now().await;
    reset(peer);
    // The kernel reports the error to one of the halves; the other sees its consequence.
    let read = reading.await.unwrap().map(|bytes| bytes.is_empty());
    let written = writing.await.unwrap().unwrap_err();
    match read {
        Ok(is_empty) => assert!(is_empty && written.raw_os_error() == ECONNRESET),
        Err(error) => assert_eq!(error.raw_os_error(), ECONNRESET),
    }
    assert!(matches!(written.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
}

async fn reset_after_half_of_the_ends() {
    // Our side has ended its sends, and the peer resets.
    let (mut stream, peer) = pair_with_std().await;
    stream.shutdown(Shutdown::Write).await.unwrap();
    reset(peer);
    assert_eq!(stream.recv().await.unwrap_err().raw_os_error(), ECONNRESET);
    // The peer has ended its sends, and resets.
    let (mut stream, peer) = pair_with_std().await;
    peer.shutdown(Shutdown::Write).unwrap();
    assert!(stream.recv().await.unwrap().is_empty());
    reset(peer);
    let error = loop {
        match stream.write("x").await.0 {
            Ok(_) => sakia::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

async fn gone_with_unread_bytes() {
    let (mut stream, peer) = pair_with_std().await;
    stream.write_all("unread").await.0.unwrap();
    let mut byte = [0];
    assert_eq!(peer.peek(&mut byte).unwrap(), 1);
    drop(peer);
    assert_eq!(stream.recv().await.unwrap_err().raw_os_error(), ECONNRESET);
}

async fn sends_slowly() {
    let (mut client, mut server) = pair().await;
    let dripping = spawn(async move {
        for byte in bytes(500) {
            client.write_all(vec![byte]).await.0.unwrap();
            for _ in 0..byte % 4 {
                sakia::yield_now().await;
            }
        }
        client
    });
    // Meanwhile another client is served.
    let (mut other, other_server) = pair().await;
    let echoing = spawn(echo(other_server));
    let (result, received) = server.read_exact(vec![0; 250]).await;
    result.unwrap();
    other.write_all("and me?").await.0.unwrap();
    assert_eq!(other.read_exact(vec![0; 7]).await.1, b"and me?");
    let (result, rest) = server.read_exact(vec![0; 250]).await;
    result.unwrap();
    assert!([received, rest].concat() == bytes(500));
    drop((other, dripping.await.unwrap()));
    echoing.await.unwrap().unwrap();
}

async fn never_reads() {
    let listener = net::ListenOptions::new().recv_buffer_size(4096).bind("127.0.0.1:0").await;
    let listener = listener.unwrap();
    let connect = net::ConnectOptions::new().send_buffer_size(4096);
    let mut client = connect.connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    // The stream takes no more than it has room for, even if more is offered.
    let mut taken = 0;
    while let Ok((result, _)) =
        timeout(Duration::from_millis(100), client.write(vec![5; 1 << 20])).await
    {
        taken += result.unwrap();
        assert!(taken < 1 << 20, "{taken} bytes are kept for a peer that does not read");
    }
    // The other clients are served, and so is this one once it reads.
    let (mut other, mut other_server) = pair().await;
    other.write_all("x").await.0.unwrap();
    assert_eq!(&*other_server.recv().await.unwrap(), b"x");
    let (result, _) = server.read_exact(vec![0; taken]).await;
    result.unwrap();
    client.write_all("then").await.0.unwrap();
    drop(client);
    let (result, rest) = server.read_to_end(Vec::new()).await;
    result.unwrap();
    assert!(rest.ends_with(b"then"));
}

async fn sends_more_than_is_read() {
    let listener = net::ListenOptions::new().recv_buffer_size(4096).bind("127.0.0.1:0").await;
    let listener = listener.unwrap();
    let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&peer, 4096).unwrap();
    peer.set_nonblocking(true).unwrap();
    // One piece is read, and then no more; the peer sends until the buffers are full.
    peer.write_all(b"first").unwrap();
    assert_eq!(&*stream.recv().await.unwrap(), b"first");
    let (mut sent, mut before) = (0, usize::MAX);
    while before != sent {
        before = sent;
        while let Ok(count) = peer.write(&bytes(10_000)[sent % 10_000..]) {
            sent += count;
            assert!(sent < 2 << 20, "{sent} bytes are kept that nobody reads");
            sakia::time::sleep(Duration::from_millis(1)).await;
        }
        sakia::time::sleep(Duration::from_millis(50)).await;
    }
    // The transfer continues when the bytes are read.
    let (result, received) = stream.read_exact(vec![0; sent]).await;
    result.unwrap();
    assert!(received.chunks(10_000).all(|chunk| *chunk == bytes(10_000)[..chunk.len()]));
    peer.set_nonblocking(false).unwrap();
    peer.write_all(b"last").unwrap();
    drop(peer);
    assert_eq!(stream.read_to_end(Vec::new()).await.1, b"last");
}

async fn nobody_listens() {
    let address = address_without_listener("[::1]:0");
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!((error.raw_os_error(), error.addresses()), (Some(111), &[address][..]));
    assert!(!error.is_canceled());
    let error = std::io::Error::from(error);
    assert_eq!((error.kind(), net::os_error(&error)), (ErrorKind::ConnectionRefused, Some(111)));
    assert_eq!(sakia::fs::os_error(&error), Some(111));
}

async fn the_address_is_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = TcpListener::bind(address).await.unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::AddrInUse, Some(98)));
    let text = error.to_string();
    assert!(text.ends_with(&format!(" {address}: Address already in use (os error 98)")), "{text}");
    // The accepted connection continues, and another listener may bind the address at once.
    let client = TcpStream::connect(address).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    listener.close().await.unwrap();
    drop((server, client));
    TcpListener::bind(address).await.unwrap();
}

async fn the_address_is_elsewhere() {
    let error = TcpListener::bind("192.0.2.1:0").await.unwrap_err();
    assert_eq!((error.operation(), error.raw_os_error()), ("bind", Some(99)));
    let text = "bind 192.0.2.1:0: Cannot assign requested address (os error 99)";
    assert_eq!(error.to_string(), text);
}

async fn the_network_is_unreachable() {
    // TCP cannot connect to the broadcast address.
    let error = TcpStream::connect("255.255.255.255:80").await.unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::NetworkUnreachable, Some(101)));
    let text = "connect 255.255.255.255:80: Network is unreachable (os error 101)";
    assert_eq!(error.to_string(), text);
}

async fn a_server_meets_all_of_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (errors, seen) = async_channel::unbounded();
    let token = sakia::CancellationToken::new();
    let stop = token.clone();
    let options = net::ServeOptions::new()
        .stop(async move { stop.canceled().await })
        .deadline(Duration::ZERO)
        .on_error(move |error| errors.try_send(error).unwrap());
    let server = spawn(net::serve(listener, options, |stream, _| echo(stream)));
    let connect = || std::net::TcpStream::connect(address).unwrap();

    reset(connect());
    assert_echoes(address).await;
    let mut peer = connect();
    peer.write_all(b"x").unwrap();
    let peer = sakia::spawn_blocking(move || peer.read_exact(&mut [0]).map(|()| peer));
    let peer = peer.await.unwrap().unwrap();
    let its_address = peer.local_addr().unwrap();
    reset(peer);
    let error = seen.recv().await.unwrap();
    // The first client may have been accepted before it reset.
    let error = if error.peer() == Some(its_address) { error } else { seen.recv().await.unwrap() };
    assert_eq!(error.peer(), Some(its_address));
    let net::ServeError::Failed { error, .. } = error else { panic!("{error}") };
    assert_eq!(error.raw_os_error(), ECONNRESET);

    // This client sends and never reads the answers.
    let silent = connect();
    silent.set_nonblocking(true).unwrap();
    let mut rounds = 0;
    while rounds < 3 {
        // Any part of the bytes may be accepted; the loop ends when the buffers are full.
        if let Err(error) = (&silent).write_all(&[3; 100_000]) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert_echoes(address).await;
            rounds += 1;
        }
    }
    let half = connect();
    half.shutdown(Shutdown::Write).unwrap();
    assert_echoes(address).await;
    token.cancel();
    let served = server.await.unwrap().unwrap();
    assert!(
        served.canceled >= 1 && served.panicked == 0 && served.accept_errors == 0,
        "{served:?}"
    );
    drop((silent, half));
}

mod in_a_process_of_its_own {
    use sakia_driver::Policy;

    use super::play;
    use crate::support::why_no_ring;

    fn on_both(scene: &str) {
        match why_no_ring() {
            Some(reason) => sakia_testkit::place::announce_skip(scene, &reason),
            None => play(scene, Policy::Uring),
        }
        play(scene, Policy::Poll);
    }

    #[test]
    fn many_never_read() {
        on_both("many_never_read");
    }

    #[test]
    fn no_descriptors_are_left() {
        on_both("no_descriptors_are_left");
    }

    #[test]
    fn many_wait_to_be_connected() {
        on_both("many_wait_to_be_connected");
    }
}
