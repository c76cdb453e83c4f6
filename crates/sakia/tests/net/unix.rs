//! Unix sockets: addresses, transfers, descriptors and credentials.

use std::fs::File as StdFile;
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};

use sakia::fs::File;
use sakia::io::{BufResultExt, Fd, adopt};
use sakia::net::{
    ControlMessage, ControlMessages, OwnedWriteHalf, ReceivedControl, ServeError, ServeOptions,
    TcpStream, UCred, UnixListener, UnixStream, serve,
};
use sakia::{CancellationToken, join, spawn};
use sakia_testkit::children::wait_until_closed;

use crate::support::{bytes, first_error, on_each_backend, pair as tcp_pair, poll_once};

on_each_backend! {
    a_path_is_made_and_stays
    names_need_no_file
    what_is_no_path_is_refused
    errors_name_the_path
    an_unnamed_address_is_none
    a_full_queue_is_waited_for
    a_pair_talks_both_ways
    a_dropped_write_half_ends_its_direction
    halves_of_two_streams_stay_two
    borrowed_halves_leave_the_stream_open
    who_never_reads_makes_writers_wait
    the_peer_is_gone
    streams_and_listeners_go_to_std_and_back
    other_sockets_are_refused
    a_server_serves_and_names_its_peers
    descriptors_are_passed
    descriptors_become_streams
    a_descriptor_is_owned_once
    descriptors_that_nobody_receives_are_closed
    descriptors_that_nobody_takes_are_closed
    too_many_descriptors_are_cut_off
    a_dropped_receive_loses_no_descriptor
    what_was_received_ahead_has_no_descriptors
    a_message_needs_bytes
    credentials_are_told
}

const ENAMETOOLONG: Option<i32> = Some(36);
const EINVAL: Option<i32> = Some(22);

/// A path without a file. A file made there is removed.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sakia-unix-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl AsRef<Path> for Place {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

fn room_for(descriptors: usize) -> usize {
    ControlMessage::space(4 * descriptors)
}

/// Returns the reader of a pipe, which ends when the returned writer is closed in every place.
fn probe() -> (std::io::PipeReader, Fd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader, adopt(writer))
}

/// Waits until all descriptors of the pipe's writer are closed.
async fn assert_closed(mut probe: std::io::PipeReader) {
    // The read is on another thread, so that the runtime can close the descriptor.
    let end = sakia::spawn_blocking(move || probe.read(&mut [0]).unwrap());
    assert_eq!(end.await.unwrap(), 0);
}

async fn send(stream: &mut UnixStream, text: &'static str, descriptors: &[Fd]) {
    let control = descriptors.iter().fold(ControlMessages::new(), |all, fd| all.descriptor(fd));
    assert_eq!(stream.send_message(text, control).await.value().unwrap(), text.len());
}

async fn receive(stream: &mut UnixStream, room: usize) -> (Vec<u8>, ReceivedControl) {
    let ((count, control), buf) =
        stream.recv_message(Vec::with_capacity(100), room).await.both().unwrap();
    assert_eq!(count, buf.len());
    (buf, control)
}

async fn a_path_is_made_and_stays() {
    let place = Place::new();
    let listener = UnixListener::bind(&place).await.unwrap();
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(place.as_ref()));
    let client = UnixStream::connect(&place).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert!(peer.is_unnamed() && client.local_addr().unwrap().is_unnamed());
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(place.as_ref()));
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(place.as_ref()));

    // Any file at the path is in the way until it is removed.
    let error = UnixListener::bind(&place).await.unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::AddrInUse, Some(place.as_ref())));
    listener.close().await.unwrap();
    let error = UnixListener::bind(&place).await.unwrap_err();
    let text = format!("bind {}: Address already in use (os error 98)", place.0.display());
    assert_eq!(error.to_string(), text);
    let error = first_error(async || UnixStream::connect(&place).await).await;
    assert_eq!((error.kind(), error.path()), (ErrorKind::ConnectionRefused, Some(place.as_ref())));
}

async fn names_need_no_file() {
    let name = format!("sakia-test\0{}", Place::new().0.display());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).await.unwrap();
    let local = listener.local_addr().unwrap();
    assert_eq!(local.as_abstract_name(), Some(name.as_bytes()));
    let mut client = UnixStream::connect_addr(&local).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    client.write_all("hello").await.value().unwrap();
    assert_eq!(server.read_exact(vec![0; 5]).await.buffer().unwrap(), b"hello");
    let error = UnixListener::bind_addr(&address).await.unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::AddrInUse, None));
    assert!(error.name().unwrap().contains("sakia-test\\x00"), "{error}");
    listener.close().await.unwrap();
    let listener = UnixListener::bind_addr(&address).await;
    assert!(listener.is_ok(), "the name is gone with its socket");
}

async fn what_is_no_path_is_refused() {
    let long = PathBuf::from("x".repeat(108));
    for (path, errno) in [(long.as_path(), ENAMETOOLONG), (Path::new(""), EINVAL)] {
        for error in [
            UnixListener::bind(path).await.unwrap_err(),
            UnixStream::connect(path).await.unwrap_err(),
        ] {
            assert_eq!((error.raw_os_error(), error.path()), (errno, Some(path)), "{error}");
        }
    }
    assert_eq!(UnixStream::connect("a\0b").await.unwrap_err().raw_os_error(), EINVAL);
    // The longest possible path.
    let place = Place::new();
    let path = format!("{:x<107}", place.0.display());
    let listener = UnixListener::bind(&path).await.unwrap();
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(path.as_ref()));
    UnixStream::connect(&path).await.unwrap();
    std::fs::remove_file(path).unwrap();
}

async fn errors_name_the_path() {
    let place = Place::new();
    let error = UnixStream::connect(&place).await.unwrap_err();
    assert_eq!((error.operation(), error.kind()), ("connect", ErrorKind::NotFound));
    assert_eq!(error.path(), Some(place.as_ref()));
    let below = place.0.join("socket");
    let error = UnixListener::bind(&below).await.unwrap_err();
    assert_eq!((error.operation(), error.kind()), ("bind", ErrorKind::NotFound));
    assert_eq!(error.path(), Some(below.as_path()));
    // A file that is not a socket, and a socket of another kind.
    std::fs::write(&place, "").unwrap();
    assert_eq!(UnixStream::connect(&place).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    std::fs::remove_file(&place).unwrap();
    let _datagrams = std::os::unix::net::UnixDatagram::bind(&place).unwrap();
    assert_eq!(UnixStream::connect(&place).await.unwrap_err().raw_os_error(), Some(91));
}

async fn an_unnamed_address_is_none() {
    let none = pair().0.local_addr().unwrap();
    assert!(none.is_unnamed());
    assert_eq!(UnixListener::bind_addr(&none).await.unwrap_err().raw_os_error(), EINVAL);
    assert_eq!(UnixStream::connect_addr(&none).await.unwrap_err().raw_os_error(), EINVAL);
}

async fn a_full_queue_is_waited_for() {
    let place = Place::new();
    let listener = std::os::unix::net::UnixListener::bind(&place).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let listener = UnixListener::from_std(listener).unwrap();
    // The queue of the listener has room for one connection.
    let first = UnixStream::connect(&place).await.unwrap();
    let second = spawn(UnixStream::connect(place.0.clone()));
    let dropped = {
        let mut connect = Box::pin(UnixStream::connect(&place));
        poll_once(&mut connect).await.is_pending()
    };
    assert!(dropped);
    sakia::yield_now().await;
    let mut accepted = Vec::new();
    while !second.is_finished() {
        accepted.push(listener.accept().await.unwrap());
        sakia::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let mut second = second.await.unwrap().unwrap();
    assert!(!accepted.is_empty());
    drop((first, accepted, listener));
    assert!(matches!(second.read(vec![0; 1]).await.value(), Ok(0) | Err(_)));
}

async fn a_pair_talks_both_ways() {
    const BYTES: usize = 3 << 20;
    let (client, mut server) = pair();
    let echoing = spawn(async move {
        loop {
            let bytes = server.recv().await?;
            if bytes.is_empty() {
                return server.close().await;
            }
            server.write_all(bytes).await.value()?;
        }
    });
    let (mut reader, mut writer) = client.into_split();
    let writing = spawn(async move {
        writer.write_all(bytes(BYTES)).await.value().unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    let (count, received) = reader.read_to_end(b"kept ".to_vec()).await.both().unwrap();
    assert!((count, &received[5..]) == (BYTES, &bytes(BYTES)[..]));
    let client = reader.reunite(writing.await.unwrap()).unwrap();
    assert!(client.take_error().unwrap().is_none());
    echoing.await.unwrap().unwrap();
}

async fn a_dropped_write_half_ends_its_direction() {
    let (client, mut server) = pair();
    let (mut reader, mut writer) = client.into_split();
    writer.write_vectored(vec!["a", "ll"]).await.value().unwrap();
    drop(writer);
    assert_eq!(server.read_to_end(Vec::new()).await.1, b"all");
    server.write_all("answer").await.value().unwrap();
    assert_eq!(reader.peek(vec![0; 2]).await.buffer().unwrap(), b"an");
    assert_eq!(reader.read_exact(vec![0; 6]).await.buffer().unwrap(), b"answer");
}

async fn halves_of_two_streams_stay_two() {
    let (client, server) = pair();
    let ((client_reader, client_writer), (server_reader, server_writer)) =
        (client.into_split(), server.into_split());
    let error = client_reader.reunite(server_writer).unwrap_err();
    let server_writer: OwnedWriteHalf<UnixStream> = error.1;
    error.0.reunite(client_writer).unwrap();
    server_reader.reunite(server_writer).unwrap();
}

/// For either family.
async fn borrowed_halves_leave_the_stream_open() {
    let (mut client, mut server) = pair();
    let (mut reader, mut writer) = client.split();
    let asking = async { writer.write_all(bytes(1 << 20)).await.value().unwrap() };
    let answering = async {
        let bytes = server.read_exact(vec![0; 1 << 20]).await.buffer().unwrap();
        server.write_all(bytes).await.value().unwrap();
    };
    let reading = async { reader.read_exact(vec![0; 1 << 20]).await.buffer().unwrap() };
    let ((), (), received) = join!(asking, answering, reading);
    assert!(received == bytes(1 << 20));
    client.write_all("more").await.value().unwrap();
    assert_eq!(server.read_exact(vec![0; 4]).await.buffer().unwrap(), b"more");

    let (mut client, mut server) = tcp_pair().await;
    let (reader, mut writer) = client.split();
    assert_eq!(reader.peer_addr().unwrap(), server.local_addr().unwrap());
    reader.as_ref().set_nodelay(true).unwrap();
    assert!(writer.as_ref().nodelay().unwrap());
    writer.write_all("all").await.value().unwrap();
    writer.shutdown().await.unwrap();
    assert_eq!(server.read_to_end(Vec::new()).await.1, b"all");
    assert_eq!(client.write("x").await.value().unwrap_err().kind(), ErrorKind::BrokenPipe);
    server.write_all("answer").await.value().unwrap();
    assert_eq!(&*client.split().0.recv().await.unwrap(), b"answer");
}

async fn who_never_reads_makes_writers_wait() {
    let (mut client, mut server) = pair();
    {
        let mut write = pin!(client.write_all(vec![1; 16 << 20]));
        for _ in 0..10 {
            assert!(poll_once(&mut write).await.is_pending());
            sakia::yield_now().await;
        }
    }
    // The dropped write has sent a part of its bytes; these follow them.
    let after = spawn(async move { client.write_all(vec![2; 1000]).await.value() });
    let received = server.read_to_end(Vec::new()).await.1;
    after.await.unwrap().unwrap();
    let ones = received.len() - 1000;
    assert!(ones < 16 << 20 && received[..ones].iter().all(|&byte| byte == 1));
    assert!(received[ones..].iter().all(|&byte| byte == 2));
}

async fn the_peer_is_gone() {
    let (mut client, mut server) = pair();
    client.shutdown(Shutdown::Write).await.unwrap();
    assert!(server.recv().await.unwrap().is_empty());
    server.write_all("still").await.value().unwrap();
    assert_eq!(client.read_exact(vec![0; 5]).await.buffer().unwrap(), b"still");
    client.close().await.unwrap();
    wait_until_closed(&server);
    assert_eq!(server.write("x").await.value().unwrap_err().kind(), ErrorKind::BrokenPipe);
    let error = server.send_message("x", ControlMessages::new()).await.value().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    let ((count, control), _) = server.recv_message(vec![0; 9], 100).await.both().unwrap();
    assert!(count == 0 && control.descriptors.is_empty());
    // A close with unread bytes resets the connection for the peer.
    let (client, mut server) = pair();
    server.write_all("unread").await.value().unwrap();
    client.close().await.unwrap();
    let error = server.read(vec![0; 1]).await.value().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn streams_and_listeners_go_to_std_and_back() {
    let place = Place::new();
    let listener = UnixListener::bind(&place).await.unwrap().into_std().await.unwrap();
    let mut client = UnixStream::connect(&place).await.unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = UnixListener::from_std(listener).unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let (mut server, ahead) = server.into_std().await.unwrap();
    assert_eq!(ahead, b"");
    client.write_all("hello").await.value().unwrap();
    let mut buf = [0; 5];
    server.read_exact(&mut buf).unwrap();
    server.write_all(&buf).unwrap();
    let mut server = UnixStream::from_std(server).unwrap();
    assert_eq!(&*client.recv().await.unwrap(), b"hello");
    server.write_all("on").await.value().unwrap();
    assert_eq!(&*client.recv().await.unwrap(), b"on");
}

async fn other_sockets_are_refused() {
    let (tcp, _peer) = tcp_pair().await;
    let (tcp, _) = tcp.into_std().await.unwrap();
    assert_eq!(UnixStream::try_from(adopt(tcp)).unwrap_err().raw_os_error(), Some(97));
    let (unix, _) = pair().0.into_std().await.unwrap();
    assert_eq!(TcpStream::try_from(adopt(unix)).unwrap_err().raw_os_error(), Some(97));
    let (datagrams, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
    assert_eq!(UnixStream::try_from(adopt(datagrams)).unwrap_err().raw_os_error(), Some(91));
    let file = adopt(file(b""));
    assert_eq!(UnixStream::try_from(file).unwrap_err().raw_os_error(), Some(88));
    let place = Place::new();
    let listener = std::os::unix::net::UnixListener::bind(&place).unwrap();
    let error = UnixStream::try_from(adopt(listener)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    let (unix, _) = pair().0.into_std().await.unwrap();
    let unix = std::os::fd::OwnedFd::from(unix);
    assert_eq!(UnixListener::from_std(unix.into()).unwrap_err().raw_os_error(), EINVAL);
}

async fn a_server_serves_and_names_its_peers() {
    let place = Place::new();
    let listener = std::rc::Rc::new(UnixListener::bind(&place).await.unwrap());
    let token = CancellationToken::new();
    let stop = token.clone();
    let (errors, seen) = async_channel::unbounded();
    let options = ServeOptions::new()
        .max_connections(2)
        .stop(async move { stop.canceled().await })
        .on_error(move |error: ServeError<std::io::Error, SocketAddr>| {
            errors.try_send((error.peer().unwrap().is_unnamed(), error.to_string())).unwrap();
        });
    let server = spawn(serve(listener, options, async |mut stream: UnixStream, _| {
        let bytes = stream.read_to_end(Vec::new()).await.buffer()?;
        stream.write_all(bytes).await.value()?;
        Err(std::io::Error::other("on purpose"))
    }));
    for number in 0..5 {
        let mut client = UnixStream::connect(&place).await.unwrap();
        client.write_all(bytes(number)).await.value().unwrap();
        client.shutdown(Shutdown::Write).await.unwrap();
        assert_eq!(client.read_to_end(Vec::new()).await.1, bytes(number));
        let text = "connection from (unnamed): on purpose".to_owned();
        assert_eq!(seen.recv().await.unwrap(), (true, text));
    }
    token.cancel();
    let served = server.await.unwrap().unwrap();
    assert_eq!((served.accepted, served.failed), (5, 5));
}

/// Creates an unnamed file with these bytes, at position 0.
fn file(bytes: &[u8]) -> StdFile {
    let place = Place::new();
    let mut file = StdFile::options().read(true).write(true).create_new(true).open(&place).unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

async fn descriptors_are_passed() {
    let (mut near, mut far) = pair();
    let own = File::from_std(file(b"one")).unwrap();
    let control = ControlMessages::new().descriptor(own.as_ref()).descriptor(&adopt(file(b"two")));
    assert_eq!(near.send_message("two files", control).await.value().unwrap(), 9);
    near.write_all("and more").await.value().unwrap();
    // The passed descriptor does not depend on the sender's.
    own.close().await.unwrap();
    let (text, control) = receive(&mut far, room_for(2)).await;
    assert_eq!((&text[..], control.descriptors.len()), (&b"two files"[..], 2));
    assert!(!control.is_truncated);
    let mut contents = Vec::new();
    for fd in control.descriptors {
        let file = File::try_from(fd).unwrap();
        contents.push(file.read_exact_at(vec![0; 3], 0).await.buffer().unwrap());
    }
    assert_eq!(contents, [b"one", b"two"]);
    let (text, control) = receive(&mut far, room_for(2)).await;
    assert_eq!((&text[..], control.descriptors.len()), (&b"and more"[..], 0));
}

async fn descriptors_become_streams() {
    let (mut near, mut far) = pair();
    let (mut client, server) = tcp_pair().await;
    let (mut unix_client, unix_server) = pair();
    let server = adopt(server.into_std().await.unwrap().0);
    let unix_server = adopt(unix_server.into_std().await.unwrap().0);
    send(&mut near, "take over", &[server, unix_server]).await;
    let (_, control) = receive(&mut far, room_for(2)).await;
    let [tcp, unix] = <[Fd; 2]>::try_from(control.descriptors).unwrap();
    let (mut tcp, mut unix) =
        (TcpStream::try_from(tcp).unwrap(), UnixStream::try_from(unix).unwrap());
    tcp.write_all("by tcp").await.value().unwrap();
    assert_eq!(client.read_exact(vec![0; 6]).await.buffer().unwrap(), b"by tcp");
    unix.write_all("near by").await.value().unwrap();
    assert_eq!(unix_client.read_exact(vec![0; 7]).await.buffer().unwrap(), b"near by");
}

async fn a_descriptor_is_owned_once() {
    let (mut near, mut far) = pair();
    let (probe, fd) = probe();
    send(&mut near, "x", &[fd]).await;
    let (_, mut control) = receive(&mut far, room_for(1)).await;
    let fd = control.descriptors.remove(0);
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let other = fd.clone();
    let fd = fd.into_owned().unwrap_err();
    drop(other);
    let owned = fd.into_owned().unwrap();
    // Descriptors that were taken out stay open after the drop of the rest.
    drop((control, near, far));
    sakia::yield_now().await;
    StdFile::from(owned).write_all(b"open").unwrap();
    let mut probe = probe;
    let mut buf = Vec::new();
    probe.read_to_end(&mut buf).unwrap();
    assert_eq!(buf, b"open");
}

async fn descriptors_that_nobody_receives_are_closed() {
    // The descriptors are in transit when the connection ends.
    let (mut near, far) = pair();
    let (reader, fd) = probe();
    send(&mut near, "x", &[fd]).await;
    drop(far);
    assert_closed(reader).await;
    // The bytes are received by each call that has no room for descriptors.
    let (mut near, mut far) = pair();
    for way in 0..4 {
        let (reader, fd) = probe();
        send(&mut near, "x", &[fd]).await;
        match way {
            0 => assert_eq!(far.read(vec![0; 1]).await.value().unwrap(), 1),
            1 => assert_eq!(far.read_vectored(vec![vec![0; 1]]).await.value().unwrap(), 1),
            2 => assert_eq!(receive(&mut far, 0).await.1.descriptors.len(), 0),
            _ => assert_eq!(&*far.recv().await.unwrap(), b"x"),
        }
        assert_closed(reader).await;
    }
}

async fn descriptors_that_nobody_takes_are_closed() {
    let (mut near, mut far) = pair();
    let (reader, fd) = probe();
    send(&mut near, "x", &[fd]).await;
    drop(receive(&mut far, room_for(1)).await);
    assert_closed(reader).await;
    // The descriptors were received for a future that was dropped, and then for a stream that was.
    let (reader, fd) = probe();
    {
        let mut receiving = pin!(far.recv_message(vec![0; 1], room_for(1)));
        assert!(poll_once(&mut receiving).await.is_pending());
        send(&mut near, "x", &[fd]).await;
    }
    drop(far);
    assert_closed(reader).await;
}

async fn too_many_descriptors_are_cut_off() {
    let (mut near, mut far) = pair();
    let ((kept, kept_fd), (cut, cut_fd), (last, last_fd)) = (probe(), probe(), probe());
    send(&mut near, "x", &[kept_fd, cut_fd, last_fd]).await;
    // The buffer has room for one descriptor, and its padding for another.
    let (_, control) = receive(&mut far, room_for(1)).await;
    assert!(control.is_truncated && (1..=2).contains(&control.descriptors.len()));
    assert_closed(last).await;
    drop(control);
    assert_closed(kept).await;
    assert_closed(cut).await;
}

async fn a_dropped_receive_loses_no_descriptor() {
    let (mut near, mut far) = pair();
    for round in 0..20 {
        let (reader, fd) = probe();
        {
            let mut receiving = pin!(far.recv_message(vec![0; 5], room_for(1)));
            assert!(poll_once(&mut receiving).await.is_pending());
            send(&mut near, "hello", &[fd]).await;
            if round % 2 == 0 {
                sakia::yield_now().await;
            }
        }
        // The message is received in two pieces: the descriptors belong to the first byte.
        let ((count, control), _) = far.recv_message(vec![0; 2], room_for(1)).await.both().unwrap();
        assert_eq!((count, control.descriptors.len()), (2, 1), "{round}");
        let (rest, none) = receive(&mut far, room_for(1)).await;
        assert_eq!((&rest[..], none.descriptors.len()), (&b"llo"[..], 0));
        drop(control);
        assert_closed(reader).await;
    }
    // The bytes are received without their descriptors, which the next bytes must not get.
    let (reader, fd) = probe();
    {
        let mut receiving = pin!(far.recv_message(vec![0; 5], room_for(1)));
        assert!(poll_once(&mut receiving).await.is_pending());
        send(&mut near, "hello", &[fd]).await;
        sakia::yield_now().await;
    }
    assert_eq!(far.peek(vec![0; 5]).await.buffer().unwrap(), b"hello");
    assert_eq!(far.read_exact(vec![0; 5]).await.buffer().unwrap(), b"hello");
    assert_closed(reader).await;
    send(&mut near, "next", &[]).await;
    let (text, control) = receive(&mut far, room_for(1)).await;
    assert_eq!((&text[..], control.descriptors.len()), (&b"next"[..], 0));
}

async fn what_was_received_ahead_has_no_descriptors() {
    let (mut near, mut far) = pair();
    near.write_all("one").await.value().unwrap();
    assert_eq!(&*far.recv().await.unwrap(), b"one");
    let (reader, fd) = probe();
    send(&mut near, "two", &[fd]).await;
    // The bytes may have been received ahead by now.
    let (text, control) = receive(&mut far, room_for(1)).await;
    assert!(text == b"two" && control.descriptors.len() <= 1);
    drop(control);
    assert_closed(reader).await;
    // From here on nothing is received ahead.
    let (reader, fd) = probe();
    let mut receiving = pin!(receive(&mut far, room_for(1)));
    assert!(poll_once(&mut receiving).await.is_pending());
    send(&mut near, "three", &[fd]).await;
    let (text, control) = receiving.await;
    assert!(text == b"three" && control.descriptors.len() <= 1);
    drop(control);
    assert_closed(reader).await;
}

async fn a_message_needs_bytes() {
    let (mut near, mut far) = pair();
    let (reader, fd) = probe();
    let control = ControlMessages::new().descriptor(&fd);
    drop(fd);
    let error = near.send_message("", control).await.value().unwrap_err();
    assert_eq!(error.raw_os_error(), EINVAL);
    assert_closed(reader).await;
    let error = far.recv_message(Vec::new(), 100).await.value().unwrap_err();
    assert_eq!(error.raw_os_error(), EINVAL);
}

async fn credentials_are_told() {
    let own = (Some(rustix::process::getpid().as_raw_nonzero().get()), {
        (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    });
    let (mut near, mut far) = pair();
    let told = |cred: UCred| (cred.pid(), (cred.uid(), cred.gid()));
    assert_eq!(told(near.peer_cred().unwrap()), own);
    send(&mut near, "x", &[]).await;
    assert!(UCred::of(&receive(&mut far, 100).await.1).is_none(), "not asked for");
    assert!(!far.passcred().unwrap());
    far.set_passcred(true).unwrap();
    assert!(far.passcred().unwrap());
    let (reader, fd) = probe();
    send(&mut near, "x", &[fd]).await;
    let (_, control) = receive(&mut far, ControlMessage::space(12) + room_for(1)).await;
    assert_eq!(UCred::of(&control).map(told), Some(own));
    assert_eq!(control.descriptors.len(), 1);
    drop(control);
    assert_closed(reader).await;
}
