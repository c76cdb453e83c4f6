//! On the simulated kernel, with many seeds.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use sakia::fs::File;
use sakia::io::BufResultExt;
use sakia::net::{
    ConnectOptions, ControlMessage, ControlMessages, Keepalive, ListenOptions, ServeOptions,
    TcpListener, TcpStream, UnixDatagram, UnixListener, UnixStream, lookup_host, serve,
};
use sakia::sim::{FaultKind, Test};
use sakia::time::sleep;
use sakia::{CancellationToken, join, spawn};

use crate::support::{bytes, echo, pair};

/// Returns a test on kernels that are as awkward as a correct kernel may be, with room for a few bytes per
/// socket.
fn awkward() -> Test<'static> {
    Test::new()
        .seeds(0..100)
        .kernel(|kernel| kernel.entries(2, 4).late_writes(1 << 13).socket_bytes(64))
        .masked_faults(1 << 12)
}

#[test]
fn a_lot_goes_both_ways_in_order() {
    awkward().run(async |_| {
        let (client, server) = pair().await;
        let echoing = spawn(echo(server));
        let (mut reader, mut writer) = client.into_split();
        let writing = spawn(async move {
            writer.write_all(bytes(1000)).await.0?;
            writer.shutdown().await
        });
        let (result, received) = reader.read_to_end(Vec::new()).await;
        assert_eq!((result?, received), (1000, bytes(1000)));
        writing.await.unwrap()?;
        echoing.await.unwrap()
    });
}

#[test]
fn half_closed_both_ways() {
    awkward().run(async |_| {
        let (mut client, mut server) = pair().await;
        client.write_all("question").await.0?;
        client.shutdown(Shutdown::Write).await?;
        assert_eq!(server.read_to_end(Vec::new()).await.1, b"question");
        server.write_all("answer").await.0?;
        server.shutdown(Shutdown::Write).await?;
        assert_eq!(client.read_to_end(Vec::new()).await.1, b"answer");
        io::Result::Ok(())
    });
}

#[test]
fn a_dropped_write_half_ends_its_direction() {
    awkward().run(async |_| {
        let (client, mut server) = pair().await;
        let (mut reader, writer) = client.into_split();
        drop(writer);
        assert!(server.recv().await?.is_empty());
        server.write_all("and still").await.0?;
        assert_eq!(reader.read_exact(vec![0; 9]).await.1, b"and still");
        io::Result::Ok(())
    });
}

#[test]
fn bytes_for_dropped_reads_are_not_lost() {
    awkward().run(async |_| {
        let (mut client, mut server) = pair().await;
        let writing = spawn(async move {
            for chunk in bytes(500).chunks(7) {
                client.write_all(chunk.to_vec()).await.0?;
                sleep(Duration::from_millis(1)).await;
            }
            io::Result::Ok(())
        });
        let mut received = Vec::new();
        loop {
            sakia::select! {
                result = server.recv() => {
                    let bytes = result?;
                    if bytes.is_empty() {
                        break;
                    }
                    received.extend_from_slice(&bytes);
                },
                () = sleep(Duration::from_millis(1)) => {},
            }
        }
        assert_eq!(received, bytes(500));
        writing.await.unwrap()
    });
}

#[test]
fn who_does_not_read_is_sent_no_more_than_there_is_room_for() {
    awkward().run(async |_| {
        let (mut client, mut server) = pair().await;
        let mut taken = 0;
        // Simulated time passes only while no task can run.
        while let Ok((result, _)) =
            sakia::time::timeout(Duration::from_secs(1), client.write(bytes(50))).await
        {
            taken += result?;
            assert!(taken <= 64);
        }
        assert_eq!(taken, 64);
        let writing = async move {
            client.write_all("then").await.0?;
            client.close().await
        };
        let (written, (result, received)) = join!(writing, server.read_to_end(Vec::new()));
        // A dropped send may still find room, for all of its bytes or none.
        assert!((64 + 4..=64 + 50 + 4).contains(&result?) && received.ends_with(b"then"));
        written
    });
}

#[test]
fn a_server_serves_and_stops() {
    awkward().run(async |_| {
        let listener = TcpListener::bind("localhost:0").await?;
        let address = listener.local_addr()?;
        let token = CancellationToken::new();
        let stop = token.clone();
        let options = ServeOptions::new()
            .max_connections(2)
            .stop(async move { stop.canceled().await })
            .deadline(Duration::from_secs(1));
        let server = spawn(serve(listener, options, |stream, _| echo(stream)));
        let client = async |count: usize| {
            let mut client = TcpStream::connect(("localhost", address.port())).await?;
            client.write_all(bytes(count)).await.0?;
            client.shutdown(Shutdown::Write).await?;
            assert_eq!(client.read_to_end(Vec::new()).await.1, bytes(count));
            io::Result::Ok(())
        };
        let results = join!(client(10), client(20), client(30), client(0));
        results.0.and(results.1).and(results.2).and(results.3)?;
        let mut lasting = TcpStream::connect(address).await?;
        lasting.write_all("x").await.0?;
        lasting.read_exact(vec![0; 1]).await.0?;
        token.cancel();
        let served = server.await.unwrap()?;
        assert_eq!((served.accepted, served.completed, served.canceled), (5, 4, 1));
        assert!(lasting.recv().await?.is_empty());
        assert!(TcpStream::connect(address).await.is_err());
        io::Result::Ok(())
    });
}

#[test]
fn connections_break_off_at_any_moment() {
    let test = awkward().kernel(|kernel| kernel.fault(FaultKind::Reset, 1 << 12));
    let summary = test.run(async |_| {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let token = CancellationToken::new();
        let stop = token.clone();
        let options = ServeOptions::new()
            .max_connections(3)
            .stop(async move { stop.canceled().await })
            .on_error(|error| {
                let sakia::net::ServeError::Failed { error, .. } = error else { panic!("{error}") };
                assert!(is_of_a_reset(&error), "{error}");
            });
        let server = spawn(serve(listener, options, |stream, _| echo(stream)));
        let mut clients = sakia::JoinSet::new();
        for number in 1..10 {
            clients.spawn(async move {
                let (mut reader, mut writer) = TcpStream::connect(address).await?.into_split();
                let writing = async move {
                    writer.write_all(bytes(number * 20)).await.0?;
                    writer.shutdown().await
                };
                let (written, (read, received)) = join!(writing, reader.read_to_end(Vec::new()));
                // The received bytes are a prefix, and without an error all of them.
                assert_eq!(received, bytes(number * 20)[..received.len()]);
                written?;
                assert_eq!(read?, number * 20);
                io::Result::Ok(())
            });
        }
        let mut broken = 0;
        while let Some(outcome) = clients.join_next().await {
            if let Err(error) = outcome.unwrap() {
                assert!(is_of_a_reset(&error), "{error}");
                broken += 1;
            }
        }
        token.cancel();
        let served = server.await.unwrap()?;
        assert_eq!(served.accepted, served.completed + served.failed);
        assert!(served.failed <= broken, "who was reset here was there, too");
        io::Result::Ok(())
    });
    assert!(summary.injected(FaultKind::Reset) > 0);
}

fn is_of_a_reset(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

#[test]
fn descriptors_are_exhausted_and_released() {
    let test = Test::new().seeds(0..50).kernel(|kernel| kernel.descriptors_max(3 + 5));
    test.run(async |_| {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let token = CancellationToken::new();
        let stop = token.clone();
        let (errors, seen) = async_channel::unbounded();
        let options = ServeOptions::new()
            .stop(async move { stop.canceled().await })
            .on_error(move |error| errors.try_send(error).unwrap());
        // A single descriptor is free.
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await?);
        }
        let server = spawn(serve(listener, options, |stream, _| echo(stream)));
        let error = seen.recv().await.unwrap();
        assert!(matches!(error, sakia::net::ServeError::Accept(_)), "{error}");
        for mut client in clients {
            client.write_all("x").await.0?;
            assert_eq!(client.read_exact(vec![0; 1]).await.1, b"x");
            client.close().await?;
        }
        token.cancel();
        let served = server.await.unwrap()?;
        assert_eq!((served.accepted, served.completed), (3, 3));
        io::Result::Ok(())
    });
}

#[test]
fn errors_have_their_addresses() {
    awkward().run(async |_| {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let error = TcpListener::bind(address).await.unwrap_err();
        assert_eq!((error.kind(), error.addresses()), (ErrorKind::AddrInUse, &[address][..]));
        listener.close().await?;
        // The name has two addresses, and the error reports both.
        let error = TcpStream::connect(("localhost", address.port())).await.unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::ConnectionRefused, Some(111)));
        let all: Vec<_> = lookup_host(("localhost", address.port())).await?.collect();
        assert_eq!((error.addresses(), all.len()), (&all[..], 2));
        let error = TcpStream::connect("example.org:80").await.unwrap_err();
        assert_eq!((error.kind(), error.name()), (ErrorKind::NotFound, Some("example.org:80")));
        io::Result::Ok(())
    });
}

#[test]
fn options_that_change_nothing_are_accepted() {
    awkward().run(async |_| {
        let keepalive = Keepalive::new().probes(3);
        let listening = ListenOptions::new().nodelay(true).keepalive(keepalive).recv_buffer_size(1);
        let listener = listening.bind("127.0.0.1:0").await?;
        listener.set_ttl(3)?;
        let address = listener.local_addr()?;
        let from = "127.0.0.1:0".parse().unwrap();
        let options = ConnectOptions::new().nodelay(true).local_addr(from).reuse_addr(true);
        let stream = options.connect(address).await?;
        stream.set_quickack(true)?;
        stream.set_user_timeout(Some(Duration::from_secs(1)))?;
        stream.set_send_buffer_size(1)?;
        for error in [
            stream.nodelay().unwrap_err(),
            stream.set_linger(None).unwrap_err(),
            listening.reuse_port(true).bind(from).await.unwrap_err().into_io_error(),
            ListenOptions::new().only_v6(true).bind("[::1]:0").await.unwrap_err().into_io_error(),
        ] {
            assert_eq!(error.raw_os_error(), Some(95), "{error}");
        }
        io::Result::Ok(())
    });
}

async fn unix_pair() -> io::Result<(UnixStream, UnixStream)> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name("here")?).await?;
    let client = UnixStream::connect_addr(&listener.local_addr()?).await?;
    let (server, peer) = listener.accept().await?;
    assert!(peer.is_unnamed());
    Ok((client, server))
}

#[test]
fn within_the_machine_bytes_go_as_they_do_elsewhere() {
    awkward().run(async |_| {
        let (mut client, mut server) = unix_pair().await?;
        let echoing = spawn(async move {
            loop {
                let bytes = server.recv().await?;
                if bytes.is_empty() {
                    return io::Result::Ok(());
                }
                server.write_all(bytes).await.value()?;
            }
        });
        {
            let (mut reader, mut writer) = client.split();
            let writing = async {
                writer.write_all(bytes(1000)).await.value()?;
                writer.shutdown().await
            };
            let (written, received) = join!(writing, reader.read_to_end(Vec::new()));
            written?;
            assert_eq!(received.both()?, (1000, bytes(1000)));
        }
        echoing.await.unwrap()?;
        assert!(client.recv().await?.is_empty());
        io::Result::Ok(())
    });
}

#[test]
fn unix_sockets_fail_as_they_do_elsewhere() {
    awkward().run(async |_| {
        let listener = UnixListener::bind("/socket").await?;
        assert_eq!(listener.local_addr()?.as_pathname(), Some("/socket".as_ref()));
        let error = UnixListener::bind("/socket").await.unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::AddrInUse, Some("/socket".as_ref())));
        let client = UnixStream::connect("/socket").await?;
        let credentials = client.peer_cred()?;
        assert_eq!((credentials.pid(), credentials.uid(), credentials.gid()), (Some(1), 0, 0));
        listener.close().await?;
        let nobody = SocketAddr::from_abstract_name("nobody")?;
        let error = UnixStream::connect_addr(&nobody).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.name()),
            (ErrorKind::ConnectionRefused, Some("@\"nobody\""))
        );
        let long = "x".repeat(108);
        assert_eq!(UnixStream::connect(&long).await.unwrap_err().raw_os_error(), Some(36));
        io::Result::Ok(())
    });
}

#[test]
fn pairs_are_connected() {
    awkward().run(async |_| {
        let (mut near, mut far) = UnixStream::pair()?;
        assert_eq!(near.peer_cred()?, far.peer_cred()?);
        near.write_all(bytes(60)).await.value()?;
        near.shutdown(Shutdown::Write).await?;
        assert_eq!(far.read_to_end(Vec::new()).await.both()?.1, bytes(60));
        let (one, other) = UnixDatagram::pair()?;
        for message in ["first", "", "third"] {
            assert_eq!(one.send(message).await.value()?, message.len());
        }
        for message in ["first", "", "third"] {
            let ((len, from), buf) = other.recv_from(vec![0; 8]).await.both()?;
            assert_eq!((&buf[..len], from.is_unnamed()), (message.as_bytes(), true));
        }
        one.close().await?;
        let error = other.send("x").await.value().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        io::Result::Ok(())
    });
}

#[test]
fn descriptors_come_for_whoever_receives_next() {
    awkward().run(async |_| {
        let (mut near, mut far) = unix_pair().await?;
        let (mut client, server) = pair().await;
        let sending = spawn(async move {
            let file = File::create("/file").await?;
            file.write_all_at("content", 0).await.value()?;
            drop(file);
            let file = File::open("/file").await?;
            let control =
                ControlMessages::new().descriptor(file.as_ref()).descriptor(server.as_ref());
            let sent = near.send_message("both", control).await.value()?;
            // The receiver owns the stream from now on, but the sender still has it, too.
            drop(server);
            near.write_all(b"both"[sent..].to_vec()).await.value()?;
            io::Result::Ok(near)
        });
        let room = ControlMessage::space(8);
        let (mut text, mut descriptors) = (Vec::new(), Vec::new());
        while text.len() < 4 {
            sakia::select! {
                received = far.recv_message(vec![0; 3], room) => {
                    let ((count, control), buf) = received.both()?;
                    text.extend_from_slice(&buf[..count]);
                    descriptors.extend(control.descriptors);
                },
                () = sakia::yield_now() => {},
            }
        }
        assert_eq!((&text[..], descriptors.len()), (&b"both"[..], 2));
        let mut stream = TcpStream::try_from(descriptors.remove(1))?;
        let file = File::try_from(descriptors.remove(0))?;
        stream.write_all(file.read_exact_at(vec![0; 7], 0).await.buffer()?).await.value()?;
        assert_eq!(client.read_exact(vec![0; 7]).await.buffer()?, b"content");
        drop(stream);
        assert!(client.recv().await?.is_empty(), "no other has it");
        let near = sending.await.unwrap()?;
        drop((near, far));
        io::Result::Ok(())
    });
}

#[cfg(feature = "tokio")]
#[test]
fn code_for_tokio_runs_without_buffers() {
    use sakia::compat::Compat;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    awkward().run(async |_| {
        let (near, mut far) = unix_pair().await?;
        let (mut reader, mut writer) = tokio::io::split(Compat::unbuffered(near));
        let writing = spawn(async move {
            writer.write_all(&bytes(1000)).await?;
            writer.shutdown().await?;
            assert!(writer.write(b"x").await.is_err());
            io::Result::Ok(())
        });
        let echoing = spawn(async move {
            // The stream's earlier operation ends first.
            let first = far.recv().await?;
            far.write_all(first).await.value()?;
            let (mut reader, mut writer) = tokio::io::split(Compat::unbuffered(far));
            tokio::io::copy(&mut reader, &mut writer).await?;
            writer.shutdown().await
        });
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await?;
        assert_eq!(received, bytes(1000));
        writing.await.unwrap()?;
        echoing.await.unwrap()
    });
}

#[test]
fn files_are_sent_whole() {
    awkward().run(async |_| {
        sakia::fs::write("file", bytes(3000)).await?;
        let (mut client, mut server) = pair().await;
        let sending = spawn(async move {
            let file = File::open("file").await?;
            let sent = server.send_file(&file, ..).await.buffer()?;
            let part = server.send_file(&file, 2990..5000).await.buffer()?;
            io::Result::Ok((sent, part))
        });
        let received = client.read_to_end(Vec::new()).await.buffer()?;
        assert_eq!(sending.await.unwrap()?, (3000, 10));
        assert!(received == [bytes(3000), bytes(3000)[2990..].to_vec()].concat());
        io::Result::Ok(())
    });
}

#[test]
fn what_was_sent_of_a_file_is_counted_on_error() {
    let test = Test::new().seeds(0..300).kernel(|kernel| kernel.fault(FaultKind::Errno, 1 << 13));
    let summary = test.run(async |_| {
        // This test ignores failures of the preparation.
        let Ok(()) = sakia::fs::write("file", bytes(3000)).await else { return Ok(()) };
        let Ok(file) = File::open("file").await else { return Ok(()) };
        let Ok(listener) = TcpListener::bind("127.0.0.1:80").await else { return Ok(()) };
        let Ok(mut client) = TcpStream::connect("127.0.0.1:80").await else { return Ok(()) };
        let Ok((mut server, _)) = listener.accept().await else { return Ok(()) };
        let (result, sent) = server.send_file(&file, 1..).await;
        assert!(sent == 2999 || result.is_err());
        let (result, received) = client.read_exact(vec![0; sent as usize]).await;
        if result.is_ok() {
            assert!(received == bytes(3000)[1..1 + sent as usize], "other bytes came");
        }
        io::Result::Ok(())
    });
    assert!(summary.injected(FaultKind::Errno) > 0);
}
