//! Connections: connecting, transfers, halves, ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use sakia::io::{IoBuf, IoBufMut, Level, Reader, Writer, copy_bidirectional};
use sakia::net::{ConnectOptions, TcpListener, TcpStream, lookup_host};
use sakia::{join, spawn};

use crate::support::{
    address_without_listener, bytes, echo, on_each_backend, pair, pair_with_std, poll_once,
};

on_each_backend! {
    a_lot_goes_both_ways_in_order
    addresses_are_told
    the_first_address_that_answers_is_taken
    without_an_answer_all_that_was_tried_is_named
    names_are_looked_up
    a_local_address_is_taken
    connecting_takes_only_so_long
    a_dropped_connect_leaves_nothing
    peeked_bytes_come_again
    several_buffers_go_as_one
    empty_buffers_come_back
    empty_vectors_are_read_into_up_to_their_capacity
    bytes_for_a_dropped_read_go_to_the_next
    a_dropped_write_is_followed_by_the_next
    ending_the_sends_leaves_the_receives
    the_peer_ends_its_sends_first
    ending_both_ends_a_read_that_waits
    a_dropped_write_half_ends_its_direction
    halves_become_a_stream_again
    halves_of_two_streams_stay_two
    a_stream_goes_to_std_and_back
    a_stream_that_does_not_block_is_taken
    what_was_received_ahead_goes_to_std_with_the_stream
    what_comes_for_a_dropped_vectored_read_goes_to_the_next
    readers_and_writers_have_halves
    a_proxy_passes_on_both_ends
    closing_tells
}

async fn a_lot_goes_both_ways_in_order() {
    const BYTES: usize = 3 << 20;
    let (client, server) = pair().await;
    let echoing = spawn(echo(server));
    let (mut reader, mut writer) = client.into_split();
    let writing = spawn(async move {
        writer.write_all(bytes(BYTES)).await.0.unwrap();
        writer.shutdown().await.unwrap();
        writer.write("more").await.0.unwrap_err()
    });
    let (result, received) = reader.read_to_end(b"kept ".to_vec()).await;
    assert_eq!(result.unwrap(), BYTES);
    assert!(received[..5] == *b"kept " && received[5..] == bytes(BYTES));
    assert_eq!(writing.await.unwrap().kind(), ErrorKind::BrokenPipe);
    echoing.await.unwrap().unwrap();
}

async fn addresses_are_told() {
    for on in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(on).await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(&address).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        assert_eq!((client.peer_addr().unwrap(), server.local_addr().unwrap()), (address, address));
        assert_eq!((client.local_addr().unwrap(), server.peer_addr().unwrap()), (peer, peer));
    }
}

async fn the_first_address_that_answers_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = listener.local_addr().unwrap();
    let addresses =
        [address_without_listener("127.0.0.1:0"), there, address_without_listener("127.0.0.1:0")];
    let stream = TcpStream::connect(&addresses[..]).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), there);
    // The same with a listener.
    let other = TcpListener::bind([there, "127.0.0.1:0".parse().unwrap()]).await.unwrap();
    assert_ne!(other.local_addr().unwrap(), there);
}

async fn without_an_answer_all_that_was_tried_is_named() {
    let addresses =
        [address_without_listener("127.0.0.1:0"), address_without_listener("127.0.0.1:0")];
    let error = TcpStream::connect(addresses).await.unwrap_err();
    assert_eq!((error.operation(), error.addresses()), ("connect", &addresses[..]));
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::ConnectionRefused, Some(111)));
    let [one, other] = addresses;
    let text = format!("connect {one}, {other}: Connection refused (os error 111)");
    assert_eq!(error.to_string(), text);
}

async fn names_are_looked_up() {
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    assert!(address.ip().is_loopback());
    let stream = TcpStream::connect(("localhost", address.port())).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), address);
    let all: Vec<SocketAddr> = lookup_host("localhost:7").await.unwrap().collect();
    assert!(!all.is_empty() && all.iter().all(|its| its.ip().is_loopback() && its.port() == 7));

    // No name server knows a name that begins with a dot.
    let error = TcpStream::connect(".invalid:80").await.unwrap_err();
    assert_eq!((error.operation(), error.name()), ("look up", Some(".invalid:80")));
    assert_eq!((error.addresses().len(), error.raw_os_error()), (0, None));
}

async fn a_local_address_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = listener.local_addr().unwrap();
    let from: SocketAddr = "127.0.0.2:0".parse().unwrap();
    let options = ConnectOptions::new().local_addr(from).reuse_addr(true);
    let stream = options.connect(there).await.unwrap();
    assert_eq!(stream.local_addr().unwrap().ip(), from.ip());
    assert_eq!(listener.accept().await.unwrap().1, stream.local_addr().unwrap());

    let error = options.connect("[::1]:1").await.unwrap_err();
    assert_eq!((error.kind(), error.addresses()), (ErrorKind::InvalidInput, &[][..]));
    let elsewhere = ConnectOptions::new().local_addr("192.0.2.1:0".parse().unwrap());
    let error = elsewhere.connect(there).await.unwrap_err();
    assert_eq!((error.kind(), error.addresses()), (ErrorKind::AddrNotAvailable, &[there][..]));
}

/// Returns an address at which connections are neither accepted nor refused, and the sockets that keep it
/// that way.
async fn address_that_keeps_silent() -> (SocketAddr, impl Sized) {
    let listener = sakia::net::ListenOptions::new().backlog(0).bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // The queue of the listener has room for one connection.
    let waiting = TcpStream::connect(address).await.unwrap();
    (address, (listener, waiting))
}

async fn connecting_takes_only_so_long() {
    let (silent, _keep) = address_that_keeps_silent().await;
    let nobody = address_without_listener("127.0.0.1:0");
    let limit = Duration::from_millis(20);
    let error = TcpStream::connect_timeout(silent, limit).await.unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::TimedOut, None));
    assert_eq!(error.to_string(), format!("connect {silent}: time is up"));
    // The limit is for all addresses together.
    let error = TcpStream::connect_timeout([nobody, silent, nobody], limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!([nobody, silent].starts_with(error.addresses()), "{error}");
}

async fn a_dropped_connect_leaves_nothing() {
    let (silent, keep) = address_that_keeps_silent().await;
    for _ in 0..10 {
        let mut connect = Box::pin(TcpStream::connect(silent));
        assert!(poll_once(&mut connect).await.is_pending());
    }
    drop(keep);
}

async fn peeked_bytes_come_again() {
    let (mut client, mut server) = pair().await;
    client.write_all("abcdef").await.0.unwrap();
    let (result, buf) = server.peek(vec![0; 3]).await;
    assert_eq!((result.unwrap(), &buf[..]), (3, &b"abc"[..]));
    let (mut reader, writer) = server.into_split();
    assert_eq!(reader.peek(vec![0; 2]).await.1, b"ab");
    assert_eq!(reader.read_exact(vec![0; 6]).await.1, b"abcdef");
    drop(writer);
    let (result, buf) = client.peek(vec![1; 4]).await;
    assert_eq!((result.unwrap(), buf), (0, vec![1; 4]));
}

async fn several_buffers_go_as_one() {
    let (mut client, mut server) = pair().await;
    let parts = vec![b"one ".to_vec(), Vec::new(), b"two ".to_vec(), b"three".to_vec()];
    let (result, parts) = client.write_vectored(parts).await;
    assert_eq!((result.unwrap(), parts.len()), (13, 4));
    drop(client);
    let (result, bufs) = server.read_vectored(vec![Vec::new(), vec![0; 4], vec![0; 9]]).await;
    assert_eq!(result.unwrap(), 13);
    assert_eq!(bufs, [&b""[..], b"one ", b"two three"]);
    assert_eq!(server.read_vectored(vec![vec![0; 4]]).await.0.unwrap(), 0);
}

async fn empty_buffers_come_back() {
    let (mut client, mut server) = pair().await;
    // A read of 0 bytes would mean that the peer has ended its sends.
    assert_eq!(client.read(Vec::new()).await.0.unwrap_err().raw_os_error(), Some(22));
    assert_eq!(client.peek(Vec::new()).await.0.unwrap_err().raw_os_error(), Some(22));
    let (result, _) = client.read_vectored(vec![Vec::new()]).await;
    assert_eq!(result.unwrap_err().raw_os_error(), Some(22));
    assert_eq!(client.write(Vec::new()).await.0.unwrap(), 0);
    client.write_all(Vec::new()).await.0.unwrap();
    client.read_exact(Vec::new()).await.0.unwrap();
    client.write_all("x").await.0.unwrap();
    assert_eq!(&*server.recv().await.unwrap(), b"x");
}

async fn empty_vectors_are_read_into_up_to_their_capacity() {
    let (mut client, mut server) = pair().await;
    client.write_all("hello, world").await.0.unwrap();
    let (result, buf) = server.peek(Vec::with_capacity(64)).await;
    assert_eq!(result.unwrap(), buf.len());
    assert!(!buf.is_empty() && b"hello, world".starts_with(&buf));
    let (result, buf) = server.read_exact(Vec::with_capacity(7).room(7)).await;
    result.unwrap();
    assert_eq!(buf.into_inner(), b"hello, ");
    let (result, bufs) = server.read_vectored(vec![vec![0; 1], Vec::with_capacity(64)]).await;
    assert_eq!((result.unwrap(), &bufs.concat()[..]), (5, &b"world"[..]));
    // Bytes before an early end of the stream stay in the buffer.
    client.write_all("end").await.0.unwrap();
    client.close().await.unwrap();
    let (result, buf) = server.read_exact(Vec::with_capacity(64)).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(buf, b"end");
}

async fn bytes_for_a_dropped_read_go_to_the_next() {
    let (mut client, mut server) = pair().await;
    let mut received = Vec::new();
    for number in 0..100 {
        {
            let mut read = pin!(server.read(vec![0; 5]));
            assert!(poll_once(&mut read).await.is_pending());
            client.write_all(bytes(number)).await.0.unwrap();
            // The read is dropped before or after the bytes arrive.
        }
        let (result, buf) = server.read_exact(vec![0; number]).await;
        result.unwrap();
        received.extend(buf);
    }
    let sent: Vec<u8> = (0..100).flat_map(bytes).collect();
    assert!(received == sent);
}

async fn a_dropped_write_is_followed_by_the_next() {
    let (client, mut server) = pair().await;
    let (_reader, mut writer) = client.into_split();
    {
        let mut write = pin!(writer.write_all(vec![1; 32 << 20]));
        assert!(poll_once(&mut write).await.is_pending());
    }
    let after = spawn(async move { writer.write_all(vec![2; 1000]).await.0 });
    let (result, received) = server.read_to_end(Vec::new()).await;
    result.unwrap();
    let ones = received.len() - 1000;
    assert!(received[..ones].iter().all(|&byte| byte == 1) && ones < 32 << 20);
    assert!(received[ones..].iter().all(|&byte| byte == 2));
    after.await.unwrap().unwrap();
}

async fn ending_the_sends_leaves_the_receives() {
    let (mut client, mut server) = pair().await;
    client.write_all("question").await.0.unwrap();
    client.shutdown(Shutdown::Write).await.unwrap();
    assert_eq!(client.write("more").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(server.read_to_end(Vec::new()).await.1, b"question");
    server.write_all("answer").await.0.unwrap();
    server.close().await.unwrap();
    assert_eq!(client.read_to_end(Vec::new()).await.1, b"answer");
}

async fn the_peer_ends_its_sends_first() {
    let (mut stream, mut peer) = pair_with_std().await;
    peer.write_all(b"last words").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read_to_end(Vec::new()).await.1, b"last words");
    assert!(stream.recv().await.unwrap().is_empty(), "the end is told again");
    stream.write_all("heard").await.0.unwrap();
    drop(stream);
    // The peer runs on another thread, so that the runtime can close the connection.
    let heard = sakia::spawn_blocking(move || {
        let mut heard = String::new();
        peer.read_to_string(&mut heard).map(|_| heard)
    });
    assert_eq!(heard.await.unwrap().unwrap(), "heard");
}

async fn ending_both_ends_a_read_that_waits() {
    let (client, mut server) = pair().await;
    let (mut reader, writer) = client.into_split();
    let reading =
        spawn(async move { reader.read(vec![0; 9]).await.0.map(|count| (count, reader)) });
    sakia::yield_now().await;
    rustix::net::shutdown(writer.as_ref(), rustix::net::Shutdown::Both).unwrap();
    let (count, reader) = reading.await.unwrap().unwrap();
    assert_eq!(count, 0);
    let mut stream = reader.reunite(writer).unwrap();
    assert_eq!(stream.write("x").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert!(server.recv().await.unwrap().is_empty());
}

async fn a_dropped_write_half_ends_its_direction() {
    let (client, mut server) = pair().await;
    let (mut reader, mut writer) = client.into_split();
    writer.write_all("all").await.0.unwrap();
    drop(writer);
    assert_eq!(server.read_to_end(Vec::new()).await.1, b"all");
    server.write_all("answer").await.0.unwrap();
    assert_eq!(reader.read_exact(vec![0; 6]).await.1, b"answer");
    drop(reader);
    // The peer is closed now, but the first write may still find room.
    while server.write_all("more").await.0.is_ok() {
        sakia::yield_now().await;
    }
}

async fn halves_become_a_stream_again() {
    let (client, mut server) = pair().await;
    let (reader, writer) = client.into_split();
    assert_eq!(reader.local_addr().unwrap(), writer.local_addr().unwrap());
    assert_eq!(reader.peer_addr().unwrap(), server.local_addr().unwrap());
    assert_eq!(writer.peer_addr().unwrap(), server.local_addr().unwrap());
    reader.as_ref().set_nodelay(true).unwrap();
    assert!(writer.as_ref().nodelay().unwrap());
    let (reader, writer) = writer.reunite(reader).unwrap().into_split();
    let mut client = reader.reunite(writer).unwrap();
    client.write_all("still open").await.0.unwrap();
    assert_eq!(server.read_exact(vec![0; 10]).await.1, b"still open");
    server.write_all("both ways").await.0.unwrap();
    assert_eq!(client.read_exact(vec![0; 9]).await.1, b"both ways");
}

async fn halves_of_two_streams_stay_two() {
    let (client, server) = pair().await;
    let ((client_reader, client_writer), (server_reader, server_writer)) =
        (client.into_split(), server.into_split());
    let error = client_reader.reunite(server_writer).unwrap_err();
    assert_eq!(error.to_string(), "the halves are of different connections");
    let (client_reader, server_writer) = (error.0, error.1);
    let mut client = client_reader.reunite(client_writer).unwrap();
    let mut server = server_reader.reunite(server_writer).unwrap();
    client.write_all("x").await.0.unwrap();
    assert_eq!(&*server.recv().await.unwrap(), b"x");
}

async fn a_stream_goes_to_std_and_back() {
    let (mut client, mut server) = pair().await;
    client.write_all("before").await.0.unwrap();
    assert_eq!(server.read_exact(vec![0; 6]).await.1, b"before");
    {
        let mut read = pin!(server.read(vec![0; 5]));
        assert!(poll_once(&mut read).await.is_pending());
    }
    let address = server.peer_addr().unwrap();
    let (mut server, ahead) = server.into_std().await.unwrap();
    assert_eq!(ahead, b"");
    assert_eq!(server.peer_addr().unwrap(), address);
    client.write_all("between").await.0.unwrap();
    let mut buf = [0; 7];
    server.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"between");
    let mut server = TcpStream::from_std(server).unwrap();
    client.write_all("after").await.0.unwrap();
    assert_eq!(server.read_exact(vec![0; 5]).await.1, b"after");
}

async fn a_stream_that_does_not_block_is_taken() {
    let (mut client, server) = pair().await;
    let (server, _) = server.into_std().await.unwrap();
    server.set_nonblocking(true).unwrap();
    let mut server = TcpStream::from_std(server).unwrap();
    let reading = spawn(async move {
        let (result, buf) = server.read_exact(vec![0; 5]).await;
        result.unwrap();
        assert_eq!(buf, b"hello");
        // More bytes than there is room for.
        server.write_all(bytes(4 << 20)).await.0.unwrap();
    });
    sakia::yield_now().await;
    client.write_all("hello").await.0.unwrap();
    assert!(client.read_to_end(Vec::new()).await.1 == bytes(4 << 20));
    reading.await.unwrap();
}

async fn what_was_received_ahead_goes_to_std_with_the_stream() {
    let (mut server, mut client) = pair_with_std().await;
    client.write_all(b"first").unwrap();
    assert_eq!(*server.recv().await.unwrap(), *b"first");
    client.write_all(b"second").unwrap();
    // By now the runtime may have received these bytes ahead.
    sakia::time::sleep(Duration::from_millis(20)).await;
    client.write_all(b"third").unwrap();
    let (mut server, mut bytes) = server.into_std().await.unwrap();
    assert!(b"secondthird".starts_with(&bytes));
    client.shutdown(Shutdown::Write).unwrap();
    server.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"secondthird");
}

async fn what_comes_for_a_dropped_vectored_read_goes_to_the_next() {
    let (mut server, mut client) = pair_with_std().await;
    for round in 0..20 {
        {
            let mut reading = pin!(server.read_vectored(vec![vec![0; 3], vec![0; 3]]));
            assert!(poll_once(&mut reading).await.is_pending());
            client.write_all(b"abcdef").unwrap();
            if round % 2 == 0 {
                sakia::yield_now().await;
            }
        }
        let mut bytes = Vec::new();
        while bytes.len() < 6 {
            let (result, bufs) = server.read_vectored(vec![vec![0; 1], vec![0; 1]]).await;
            bytes.extend_from_slice(&bufs.concat()[..result.unwrap()]);
        }
        assert_eq!(bytes, b"abcdef");
    }
}

async fn readers_and_writers_have_halves() {
    let (client, server) = pair().await;
    let (reader, writer) = client.into_split();
    let (mut reader, mut writer) = (Reader::new(reader), Writer::new(writer));
    let answering = spawn(async move {
        let (reader, writer) = server.into_split();
        let (mut reader, mut writer) = (Reader::new(reader), Writer::new(writer));
        while let Some(line) = reader.line(100).await.unwrap() {
            let answer = format!("{} bytes\n", line.len());
            writer.write_all(answer.as_bytes()).await.unwrap();
            writer.flush(Level::Accepted).await.unwrap();
        }
        writer.close().await.unwrap();
    });
    for line in ["one\n", "three\n"] {
        writer.write_all(line.as_bytes()).await.unwrap();
    }
    writer.close().await.unwrap();
    let mut lines = reader.lines(100);
    assert_eq!(lines.next().await.unwrap(), Some("3 bytes"));
    assert_eq!(lines.next().await.unwrap(), Some("5 bytes"));
    assert_eq!(lines.next().await.unwrap(), None);
    answering.await.unwrap();
}

async fn a_proxy_passes_on_both_ends() {
    let ((mut client, inner), (outer, mut server)) = (pair().await, pair().await);
    let proxy = spawn(async move {
        let ((a_reader, a_writer), (b_reader, b_writer)) = (inner.into_split(), outer.into_split());
        let a = (&mut Reader::new(a_reader), &mut Writer::new(a_writer));
        let b = (&mut Reader::new(b_reader), &mut Writer::new(b_writer));
        copy_bidirectional(a, b).await
    });
    let asking = async {
        client.write_all(bytes(1 << 20)).await.0.unwrap();
        client.shutdown(Shutdown::Write).await.unwrap();
        assert_eq!(client.read_to_end(Vec::new()).await.1, b"that was a lot");
    };
    let answering = async {
        assert!(server.read_to_end(Vec::new()).await.1 == bytes(1 << 20));
        server.write_all("that was a lot").await.0.unwrap();
        server.shutdown(Shutdown::Write).await.unwrap();
    };
    join!(asking, answering);
    assert_eq!(proxy.await.unwrap().unwrap(), (1 << 20, 14));
}

async fn closing_tells() {
    let (mut client, server) = pair().await;
    server.close().await.unwrap();
    let (result, slice) = client.read(vec![0; 9].slice(3..)).await;
    assert_eq!((result.unwrap(), slice.into_inner()), (0, vec![0; 9]));
    client.close().await.unwrap();
}
