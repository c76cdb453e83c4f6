//! Hostile callers of the safe interface: thousands of receives at a time, futures that are dropped or
//! forgotten at any point, descriptors that contain each other, odd sizes, descriptors that are not files.

use std::fs::File as StdFile;
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::Shutdown;
use sakia::fs::File;
use sakia::io::{BufResultExt, Fd, PipeReader, adopt};
use sakia::net::{
    ControlMessage, ControlMessages, TcpStream, UdpOptions, UdpSocket, UnixDatagram, UnixListener,
    UnixStream,
};
use sakia::{Runtime, join, spawn, yield_now};

use sakia_driver::Policy;

use crate::support::{bytes, on_each_backend, pair, poll_once, runtime, why_no_ring};

on_each_backend! {
    thousands_of_receives_wait
    thousands_of_receives_are_dropped
    all_that_wait_for_a_dropped_receive_go_on
    the_receive_that_looks_for_others_may_go
    datagrams_are_hoarded
    futures_are_dropped_at_each_point
    rooms_for_control_messages_have_any_size
    a_descriptor_goes_twice_and_through_itself
    descriptors_for_those_who_are_gone_are_closed
    names_have_any_bytes
    a_member_of_a_group_ends
    sockets_change_their_runtime
    what_is_no_file_is_sent
    a_file_is_truncated_at_any_point
    a_stream_is_spliced_into_the_file_that_is_sent
    directions_are_shut_down_behind_the_back
    batches_have_any_size
}

async fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

async fn turns() {
    for _ in 0..8 {
        yield_now().await;
    }
}

/// Returns the reader of a pipe, which ends when the returned writer is closed in every place.
fn probe() -> (PipeReader, Fd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (PipeReader::from_fd(reader.into()), adopt(writer))
}

/// Waits until all descriptors of the pipe's writer are closed.
async fn assert_closed(mut probe: PipeReader) {
    assert_eq!(probe.read(vec![0; 1]).await.value().unwrap(), 0);
}

fn number(buf: &[u8]) -> u32 {
    u32::from_ne_bytes(buf.try_into().unwrap())
}

const MANY: u32 = 10_000;
const EAFNOSUPPORT: i32 = 97;

async fn thousands_of_receives_wait() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let far = std::rc::Rc::new(far);
    let receiving: Vec<_> = (0..MANY)
        .map(|_| {
            let far = far.clone();
            spawn(async move {
                let (len, buf) = far.recv(vec![0; 9]).await.both().unwrap();
                number(&buf[..len])
            })
        })
        .collect();
    yield_now().await;
    for sent in 0..MANY {
        near.send(sent.to_ne_bytes().to_vec()).await.value().unwrap();
    }
    let mut received = Vec::new();
    for task in receiving {
        received.push(task.await.unwrap());
    }
    received.sort_unstable();
    assert!(received.into_iter().eq(0..MANY));
}

async fn thousands_of_receives_are_dropped() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut waiting: Vec<_> = (0..MANY).map(|_| Box::pin(far.recv(vec![0; 9]))).collect();
    for receive in &mut waiting {
        assert!(poll_once(receive).await.is_pending());
    }
    // Every other receive is dropped; the datagrams that arrive meanwhile go to the remaining ones.
    let mut index = 0;
    waiting.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    near.send(7_u32.to_ne_bytes().to_vec()).await.value().unwrap();
    let mut first = waiting.swap_remove(17);
    drop(waiting);
    let (len, buf) = (&mut first).await.both().unwrap();
    assert_eq!(number(&buf[..len]), 7);
    near.send(8_u32.to_ne_bytes().to_vec()).await.value().unwrap();
    let (len, buf) = far.recv(vec![0; 9]).await.both().unwrap();
    assert_eq!(number(&buf[..len]), 8);
}

/// A receive that waits only for a dropped one learns that this brought no datagram, although another
/// receive looked last.
async fn all_that_wait_for_a_dropped_receive_go_on() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let far = std::rc::Rc::new(far);
    let receive = |far: std::rc::Rc<UnixDatagram>| async move {
        let (len, buf) = far.recv(vec![0; 4]).await.both().unwrap();
        buf[..len].to_vec()
    };
    let first = spawn(receive(far.clone()));
    yield_now().await;
    let mut dropped = Box::pin(far.recv(vec![0; 4]));
    assert!(poll_once(&mut dropped).await.is_pending());
    // This task runs before the one that the drop wakes, and after the drop.
    let ahead = spawn({
        let far = far.clone();
        async move { far.recv_datagram().await.unwrap().bytes.to_vec() }
    });
    drop(dropped);
    turns().await;
    near.send("1").await.value().unwrap();
    near.send("2").await.value().unwrap();
    let mut received = [first.await.unwrap(), ahead.await.unwrap()];
    received.sort_unstable();
    assert_eq!(received, [b"1", b"2"]);
}

/// One of the waiting receives checks whether a dropped receive has brought a datagram. When it is dropped,
/// another one does so.
async fn the_receive_that_looks_for_others_may_go() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let far = std::rc::Rc::new(far);
    let mut dropped = Box::pin(far.recv(vec![0; 4]));
    assert!(poll_once(&mut dropped).await.is_pending());
    let mut looks = Box::pin(far.recv(vec![0; 4]));
    assert!(poll_once(&mut looks).await.is_pending());
    let waits = spawn({
        let far = far.clone();
        async move { far.recv(vec![0; 4]).await.value().unwrap() }
    });
    turns().await;
    // Both are dropped within the same turn.
    rustix::net::send(&near, b"a", rustix::net::SendFlags::empty()).unwrap();
    drop(dropped);
    assert!(poll_once(&mut looks).await.is_pending());
    drop(looks);
    assert_eq!(waits.await.unwrap(), 1);
}

/// The runtime's memory for datagrams is limited, and receives still work beyond the limit.
async fn datagrams_are_hoarded() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut hoard = Vec::new();
    for sent in 0..3000_u32 {
        near.send(sent.to_ne_bytes().repeat(350)).await.value().unwrap();
        hoard.push(far.recv_datagram().await.unwrap());
    }
    for (sent, datagram) in hoard.iter().enumerate() {
        assert_eq!((datagram.bytes.len(), number(&datagram.bytes[..4])), (1400, sent as u32));
    }
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let mut pieces = Vec::new();
    for sent in 0..3000_u32 {
        near.write_all(sent.to_ne_bytes().to_vec()).await.value().unwrap();
        pieces.push(far.recv().await.unwrap());
    }
    for (sent, piece) in pieces.iter().enumerate() {
        assert_eq!(number(piece), sent as u32);
    }
    assert_eq!(hoard.len(), pieces.len());
}

/// Polls a future this number of times, with a turn after each poll, and drops it.
async fn begin(future: impl Future, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if poll_once(&mut future.as_mut()).await.is_ready() {
            return;
        }
        yield_now().await;
    }
}

async fn futures_are_dropped_at_each_point() {
    let (mut file, path) = temporary("dropped");
    file.write_all(&bytes(3 << 20)).unwrap();
    for polls in 0..6 {
        let (one, other) = UnixDatagram::pair().unwrap();
        let room = ControlMessage::space(4);
        begin(other.recv(vec![0; 4]), polls).await;
        begin(other.recv_message(vec![0; 4], room), polls).await;
        begin(other.recv_datagram(), polls).await;
        begin(other.peek(vec![0; 4]), polls).await;
        let (reader, fd) = probe();
        one.send_message("kept", None, ControlMessages::new().descriptor(&fd)).await.0.unwrap();
        drop(fd);
        begin(other.recv_datagram(), polls).await;
        if polls == 0 {
            let (len, buf) = other.recv(vec![0; 9]).await.both().unwrap();
            assert_eq!(&buf[..len], b"kept");
        }
        drop((one, other));
        assert_closed(reader).await;

        let (mut near, mut far) = UnixStream::pair().unwrap();
        let source = File::open(&path).await.unwrap();
        begin(near.send_file(&source, ..), polls).await;
        begin(far.recv_message(vec![0; 4], room), polls).await;
        begin(near.write_all(vec![1; 1 << 20]), polls).await;
        begin(far.recv(), polls).await;
        let (reader, fd) = probe();
        begin(near.send_message("x", ControlMessages::new().descriptor(&fd)), polls).await;
        drop((fd, near));
        // All operations end.
        far.read_to_end(Vec::new()).await.value().unwrap();
        drop(far);
        assert_closed(reader).await;

        let (one, other) = (udp().await, udp().await);
        let to = other.local_addr().unwrap();
        begin(one.send_batch((0..100_u8).map(|n| (vec![n], to)).collect()), polls).await;
        begin(other.recv_batch(vec![vec![0; 1]; 100]), polls).await;
        begin(one.connect(to), polls).await;
        one.connect(to).await.unwrap();
        one.send("last").await.value().unwrap();
        loop {
            let (len, buf) = other.recv(vec![0; 9]).await.both().unwrap();
            if &buf[..len] == b"last" {
                break;
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}

fn temporary(name: &str) -> (StdFile, std::path::PathBuf) {
    let thread = format!("{:?}", std::thread::current().id());
    let name = format!("hostile-{name}-{}-{thread}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = StdFile::options().read(true).write(true).create(true).truncate(true).open(&path);
    (file.unwrap(), path)
}

/// A receive whose future is forgotten keeps its socket, but the runtime ends.
#[test]
fn forgotten_receives_hold_up_no_end() {
    fn forget(future: impl Future, cx: &mut Context<'_>) {
        let mut future = Box::pin(future);
        assert!(future.as_mut().poll(cx).is_pending());
        mem::forget(future);
    }
    for policy in [Policy::Uring, Policy::Poll] {
        if policy == Policy::Uring
            && let Some(reason) = why_no_ring()
        {
            sakia_testkit::place::announce_skip("forgotten receives", &reason);
            continue;
        }
        for way in 0..4 {
            let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
            let runtime = runtime(policy);
            runtime.block_on(async {
                let far = UnixDatagram::from_std(far).unwrap();
                poll_fn(|cx| {
                    match way {
                        0 => forget(far.recv(vec![0; 4]), cx),
                        1 => forget(far.recv_message(vec![0; 4], 64), cx),
                        2 => forget(far.recv_datagram(), cx),
                        _ => forget(far.peek(vec![0; 4]), cx),
                    }
                    Poll::Ready(())
                })
                .await;
                turns().await;
                drop(far);
                turns().await;
            });
            drop(runtime);
            // A forgotten future keeps its descriptors open.
            let _ = near.send(b"x");
        }
    }
}

async fn rooms_for_control_messages_have_any_size() {
    const SENT: usize = 5;
    let message = || {
        let (readers, fds): (Vec<_>, Vec<_>) = (0..SENT).map(|_| probe()).unzip();
        let control = fds.iter().fold(ControlMessages::new(), |all, fd| all.descriptor(fd));
        (readers, control)
    };
    let sizes = (0..60).chain([100, 127, 128, 129, 1000, 65_535, 65_536, 65_537, usize::MAX]);
    for room in sizes {
        let (near, far) = UnixDatagram::pair().unwrap();
        let (ahead_near, ahead_far) = UnixDatagram::pair().unwrap();
        let (mut stream_near, mut stream_far) = UnixStream::pair().unwrap();
        far.set_passcred(room % 2 == 0).unwrap();
        ahead_far.set_passcred(room % 3 == 0).unwrap();
        ahead_far.set_datagram_room(1, room).unwrap();
        let mut probes = Vec::new();
        for way in 0..3 {
            let (readers, control) = message();
            probes.extend(readers);
            let received = match way {
                0 => {
                    near.send_message("x", None, control).await.value().unwrap();
                    far.recv_message(vec![0; 1], room).await.value().unwrap().1
                }
                1 => {
                    ahead_near.send_message("x", None, control).await.value().unwrap();
                    ahead_far.recv_datagram().await.unwrap().control
                }
                _ => {
                    stream_near.send_message("x", control).await.value().unwrap();
                    stream_far.recv_message(vec![0; 1], room).await.value().unwrap().1
                }
            };
            let count = received.descriptors.len();
            assert!(count <= SENT, "{room}");
            assert!(count == SENT || received.is_truncated, "{room}, way {way}: {count}");
            assert!(room < 1000 || count == SENT, "{room}, way {way}: {count}");
            // Each received descriptor is open and distinct.
            for fd in &received.descriptors {
                let flags = rustix::io::fcntl_getfd(fd).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            }
        }
        for probe in probes {
            assert_closed(probe).await;
        }
    }
}

async fn a_descriptor_goes_twice_and_through_itself() {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let (reader, fd) = probe();
    let control = (0..253).fold(ControlMessages::new(), |all, _| all.descriptor(&fd));
    near.send_message("x", control.clone()).await.value().unwrap();
    let error = near.send_message("x", control.descriptor(&fd)).await.value().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    drop(fd);
    let room = ControlMessage::space(4 * 253);
    let (_, mut received) = far.recv_message(vec![0; 1], room).await.value().unwrap();
    assert_eq!(received.descriptors.len(), 253);
    received.descriptors.truncate(1);
    // The last descriptor is passed to and fro.
    for _ in 0..3 {
        let control = ControlMessages::new().descriptor(&received.descriptors[0]);
        far.send_message("x", control).await.value().unwrap();
        received = near.recv_message(vec![0; 1], room).await.value().unwrap().1;
        mem::swap(&mut near, &mut far);
    }
    drop(received);
    assert_closed(reader).await;

    // Sockets that wait in each other's queues with another descriptor: the kernel finds such cycles.
    let (one, other) = UnixDatagram::pair().unwrap();
    let ends = [&one, &other].map(|end| adopt(end.as_fd().try_clone_to_owned().unwrap()));
    let (reader, fd) = probe();
    let control = ControlMessages::new().descriptor(&ends[0]).descriptor(&ends[1]).descriptor(&fd);
    one.send_message("x", None, control.clone()).await.value().unwrap();
    other.send_message("x", None, control).await.value().unwrap();
    drop((one, other, ends, fd));
    // The kernel looks for cycles when another such socket is closed.
    let closing = async {
        loop {
            drop(UnixDatagram::pair().unwrap());
            sakia::time::sleep(Duration::from_millis(1)).await;
        }
    };
    sakia::select! {
        () = assert_closed(reader) => {},
        () = closing => {},
    }
}

async fn descriptors_for_those_who_are_gone_are_closed() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let (reader, fd) = probe();
    drop(far);
    turns().await;
    let control = ControlMessages::new().descriptor(&fd);
    drop(fd);
    assert!(near.send_message("x", None, control).await.value().is_err());
    assert_closed(reader).await;
    let (mut near, far) = UnixStream::pair().unwrap();
    let (reader, fd) = probe();
    let control = ControlMessages::new().descriptor(&fd);
    rustix::net::shutdown(&far, Shutdown::Both).unwrap();
    drop(fd);
    let error = near.send_message("x", control).await.value().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_closed(reader).await;
    // A send that waits for room is dropped with its message.
    let (near, far) = UnixDatagram::pair().unwrap();
    let full = || rustix::net::send(&near, b"x", rustix::net::SendFlags::DONTWAIT).is_err();
    while !full() {}
    let (reader, fd) = probe();
    let mut sending =
        Box::pin(near.send_message("y", None, ControlMessages::new().descriptor(&fd)));
    drop(fd);
    assert!(poll_once(&mut sending).await.is_pending());
    turns().await;
    drop(sending);
    drop(far);
    assert_closed(reader).await;
}

async fn names_have_any_bytes() {
    let own = format!("{}-{:?}", std::process::id(), std::thread::current().id());
    for content in ["", "\0", "\0\0\0", "a\0b", "\0a"] {
        let name = |bytes: &str| {
            let mut name = format!("{bytes}hostile-{own}{bytes}").into_bytes();
            name.resize(107, 0);
            UnixAddr::from_abstract_name(name).unwrap()
        };
        let address = name(content);
        let one = UnixDatagram::bind_addr(&address).await.unwrap();
        assert_eq!(
            one.local_addr().unwrap().as_abstract_name(),
            address.as_abstract_name(),
            "{content:?}"
        );
        let other = UnixDatagram::unbound().await.unwrap();
        other.send_to_addr("x", &address).await.value().unwrap();
        let (_, from) = one.recv_from(vec![0; 1]).await.value().unwrap();
        assert!(from.is_unnamed());
        other.connect_addr(&address).await.unwrap();
        assert_eq!(other.peer_addr().unwrap().as_abstract_name(), address.as_abstract_name());
        let error = UnixDatagram::bind_addr(&address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        // Streams have their own name space.
        UnixListener::bind_addr(&address).await.unwrap();
        // A name that differs only in the last byte is another name.
        let mut longer = address.as_abstract_name().unwrap().to_vec();
        *longer.last_mut().unwrap() ^= 1;
        let longer = UnixAddr::from_abstract_name(longer).unwrap();
        assert!(other.send_to_addr("x", &longer).await.value().is_err());
    }
    assert!(UnixAddr::from_abstract_name([0; 108]).is_err());
    // For an empty name, the kernel chooses one.
    let empty = UnixAddr::from_abstract_name(b"").unwrap();
    if let Ok(socket) = UnixDatagram::bind_addr(&empty).await {
        let name = socket.local_addr().unwrap();
        let other = UnixDatagram::unbound().await.unwrap();
        other.send_to_addr("x", &name).await.value().unwrap();
        assert_eq!(socket.recv(vec![0; 2]).await.value().unwrap(), 1);
    }
}

async fn a_member_of_a_group_ends() {
    let options = UdpOptions::new().reuse_port(true);
    let mut members = vec![options.bind("127.0.0.1:0").await.unwrap()];
    let address = members[0].local_addr().unwrap();
    for _ in 0..3 {
        members.push(options.bind(address).await.unwrap());
    }
    let senders: Vec<_> = {
        let mut senders = Vec::new();
        for _ in 0..32 {
            senders.push(udp().await);
        }
        senders
    };
    // Receives of all kinds are in flight on the closed members.
    while members.len() > 1 {
        let member = members.remove(0);
        let _ = poll_once(&mut Box::pin(member.recv_datagram())).await;
        let mut waiting = Box::pin(member.recv(vec![0; 4]));
        let _ = poll_once(&mut waiting).await;
        for sender in &senders {
            sender.send_to("lost", address).await.value().unwrap();
        }
        drop(waiting);
        match members.len() {
            1 => drop(member),
            2 => member.close().await.unwrap(),
            _ => drop(member.into_std().await.unwrap()),
        }
        turns().await;
    }
    let last = &members[0];
    for (index, sender) in senders.iter().enumerate() {
        sender.send_to(format!("to the last {index}"), address).await.value().unwrap();
    }
    let mut count = 0;
    while count < senders.len() {
        let (received, bufs) = last.recv_batch(vec![vec![0; 32]; 8]).await.both().unwrap();
        count += received.iter().zip(bufs).filter(|(_, buf)| buf.starts_with(b"to the")).count();
    }
}

/// Sockets with receives in flight move to another thread, which receives the later datagrams and bytes.
async fn sockets_change_their_runtime() {
    let (udp, sender) = (udp().await, udp().await);
    let to = udp.local_addr().unwrap();
    let (near, far) = UnixDatagram::pair().unwrap();
    let (mut stream_near, mut stream_far) = UnixStream::pair().unwrap();
    let (mut tcp_near, mut tcp_far) = pair().await;
    let _ = poll_once(&mut Box::pin(udp.recv_datagram())).await;
    let _ = poll_once(&mut Box::pin(far.recv_datagram())).await;
    let _ = poll_once(&mut Box::pin(stream_far.recv())).await;
    let _ = poll_once(&mut Box::pin(tcp_far.recv())).await;
    yield_now().await;
    // Another runtime gets the same open sockets while this one still receives on them.
    let shared = far.as_fd().try_clone_to_owned().unwrap();
    let moved: [OwnedFd; 4] = [
        udp.into_std().await.unwrap().into(),
        shared,
        stream_far.into_std().await.unwrap().0.into(),
        tcp_far.into_std().await.unwrap().0.into(),
    ];
    sender.send_to("udp", to).await.value().unwrap();
    near.send("unix").await.value().unwrap();
    near.send("unix").await.value().unwrap();
    stream_near.write_all("stream").await.value().unwrap();
    tcp_near.write_all("tcp").await.value().unwrap();
    let there = sakia::spawn_blocking(move || {
        let [udp, unix, stream, tcp] = moved;
        Runtime::new().unwrap().block_on(async {
            let udp = UdpSocket::from_std(udp.into()).unwrap();
            assert_eq!(&*udp.recv_datagram().await.unwrap().bytes, b"udp");
            let unix = UnixDatagram::from_std(unix.into()).unwrap();
            // The other descriptor's receive may have taken the datagram.
            let _ = poll_once(&mut Box::pin(unix.recv_datagram())).await;
            let mut stream = UnixStream::from_std(stream.into()).unwrap();
            assert_eq!(stream.read_exact(vec![0; 6]).await.buffer().unwrap(), b"stream");
            let mut tcp = TcpStream::from_std(tcp.into()).unwrap();
            assert_eq!(tcp.read_exact(vec![0; 3]).await.buffer().unwrap(), b"tcp");
        });
    });
    there.await.unwrap();
    drop(far);
    while near.send("x").await.value().is_ok() {
        yield_now().await;
    }
}

async fn what_is_no_file_is_sent() {
    let (mut client, mut server) = pair().await;
    let own = |fd: &dyn AsFdOf| File::from_std(StdFile::from(fd.clone_fd()));
    // A directory, a descriptor with `O_PATH`, a write-only file, and other descriptors without readable
    // bytes.
    let folder = File::open("/").await.unwrap();
    let (result, sent) = server.send_file(&folder, 0..10).await;
    assert_eq!((result.unwrap_err().kind(), sent), (ErrorKind::IsADirectory, 0));
    let path = rustix::fs::open("/proc/self/comm", rustix::fs::OFlags::PATH, 0o0.into()).unwrap();
    if let Ok(path) = own(&path) {
        let (result, sent) = server.send_file(&path, 0..10).await;
        assert!(result.is_err() && sent == 0);
    }
    let null = File::open("/dev/null").await.unwrap();
    assert_eq!(server.send_file(&null, ..).await.buffer().unwrap(), 0);
    // An endless send to a peer that does not read is dropped.
    let zero = File::open("/dev/zero").await.unwrap();
    let mut sending = Box::pin(server.send_file(&zero, ..));
    for _ in 0..100 {
        if poll_once(&mut sending).await.is_ready() {
            panic!("it has no end");
        }
        yield_now().await;
    }
    drop(sending);
    drop(server);
    let rest = client.read_to_end(Vec::new()).await.buffer().unwrap();
    assert!(rest.iter().all(|&byte| byte == 0));

    // A stream in the place of the file: its received bytes are sent.
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let (mut client, mut server) = pair().await;
    if let Ok(source) = own(&near) {
        far.write_all("through").await.value().unwrap();
        let (result, sent) = server.send_file(&source, 0..7).await;
        if result.is_ok() && sent > 0 {
            let count = sent as usize;
            assert_eq!(client.read_exact(vec![0; count]).await.1, b"through"[..count]);
        }
        // The stream sends its own bytes to itself.
        far.write_all("back").await.value().unwrap();
        let (result, sent) = near.send_file(&source, 0..4).await;
        if result.is_ok() && sent > 0 {
            let count = sent as usize;
            assert_eq!(far.read_exact(vec![0; count]).await.1.len(), count);
        }
    }
}

/// A value whose descriptor can be cloned.
trait AsFdOf {
    fn clone_fd(&self) -> OwnedFd;
}

impl<T: AsFd> AsFdOf for T {
    fn clone_fd(&self) -> OwnedFd {
        self.as_fd().try_clone_to_owned().unwrap()
    }
}

async fn a_file_is_truncated_at_any_point() {
    const LEN: u64 = 4 << 20;
    let (file, path) = temporary("truncated");
    for round in 0..12 {
        file.set_len(LEN).unwrap();
        let source = File::open(&path).await.unwrap();
        let (mut client, mut server) = pair().await;
        let changing = file.try_clone().unwrap();
        let changing = spawn(async move {
            for _ in 0..round {
                yield_now().await;
            }
            changing.set_len(LEN / 3).unwrap();
            yield_now().await;
            changing.set_len(0).unwrap();
        });
        let sending = async {
            let (result, sent) = server.send_file(&source, ..).await;
            drop(server);
            result.unwrap();
            sent
        };
        let (sent, (result, received)) = join!(sending, client.read_to_end(Vec::new()));
        result.unwrap();
        assert!(sent <= LEN && received.len() as u64 == sent, "{sent} {}", received.len());
        changing.await.unwrap();
    }
    std::fs::remove_file(path).unwrap();
}

/// Sending the file appends the sent bytes to it. The range is resolved at the beginning.
async fn a_stream_is_spliced_into_the_file_that_is_sent() {
    let (mut file, path) = temporary("circle");
    file.write_all(&bytes(300_000)).unwrap();
    let source = File::open(&path).await.unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    let far = far.into_std().await.unwrap().0;
    let appending = sakia::spawn_blocking(move || {
        let mut appended = StdFile::options().append(true).open(&path).unwrap();
        let mut far = far;
        let count = std::io::copy(&mut far, &mut appended).unwrap();
        let mut all = Vec::new();
        StdFile::open(&path).unwrap().read_to_end(&mut all).unwrap();
        std::fs::remove_file(path).unwrap();
        (count, all)
    });
    assert_eq!(near.send_file(&source, ..).await.buffer().unwrap(), 300_000);
    drop(near);
    let (count, all) = appending.await.unwrap();
    assert!(count == 300_000 && all == [bytes(300_000), bytes(300_000)].concat());
}

async fn directions_are_shut_down_behind_the_back() {
    // A connected datagram socket is shut down with each kind of receive in flight. Receives that report a
    // sender fail.
    for way in 0..4 {
        let (one, other) = (udp().await, udp().await);
        one.connect(other.local_addr().unwrap()).await.unwrap();
        let mut receiving: Pin<Box<dyn Future<Output = std::io::Result<usize>>>> = match way {
            0 => Box::pin(async { one.recv(vec![0; 4]).await.0 }),
            1 => Box::pin(async { Ok(one.recv_message(vec![0; 4], 64).await.0?.0.len) }),
            2 => Box::pin(async { Ok(one.recv_datagram().await?.bytes.len()) }),
            _ => Box::pin(async { Ok(one.recv_batch(vec![vec![0; 4]; 3]).await.0?.len()) }),
        };
        assert!(poll_once(&mut receiving).await.is_pending());
        turns().await;
        rustix::net::shutdown(&one, Shutdown::Read).unwrap();
        let told = receiving.await.map_err(|error| error.raw_os_error());
        assert_eq!(told, if way == 0 { Ok(0) } else { Err(Some(EAFNOSUPPORT)) }, "way {way}");
    }
    // The shutdown does not lose earlier datagrams.
    let (one, other) = (udp().await, udp().await);
    one.connect(other.local_addr().unwrap()).await.unwrap();
    other.send_to("before", one.local_addr().unwrap()).await.value().unwrap();
    rustix::net::shutdown(&one, Shutdown::Read).unwrap();
    let (received, bufs) = one.recv_batch(vec![vec![0; 9]; 9]).await.both().unwrap();
    assert_eq!((received.len(), &bufs[0][..6]), (1, &b"before"[..]));
    // A Unix socket is shut down by a second descriptor, as another process might do.
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut receiving = Box::pin(far.recv_datagram());
    assert!(poll_once(&mut receiving).await.is_pending());
    turns().await;
    let other = far.as_fd().try_clone_to_owned().unwrap();
    rustix::net::shutdown(&other, Shutdown::Both).unwrap();
    assert_eq!(receiving.await.unwrap().bytes.len(), 0);
    assert!(near.send("x").await.value().is_err());
    // A stream is shut down while it sends a file.
    let (mut client, mut server) = pair().await;
    let zero = File::open("/dev/zero").await.unwrap();
    let other = server.as_fd().try_clone_to_owned().unwrap();
    let sending = spawn(async move { server.send_file(&zero, 0..1 << 40).await.0 });
    turns().await;
    rustix::net::shutdown(&other, Shutdown::Write).unwrap();
    let reading = client.read_to_end(Vec::new());
    let (result, (read, _)) = join!(sending, reading);
    assert_eq!(result.unwrap().unwrap_err().kind(), ErrorKind::BrokenPipe);
    read.unwrap();
}

async fn batches_have_any_size() {
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    assert!(one.send_batch(Vec::<(Vec<u8>, _)>::new()).await.is_empty());
    assert!(other.recv_batch(Vec::<Vec<u8>>::new()).await.0.is_err());
    // Messages that cannot be sent, empty ones and overlong ones are in the middle.
    let nowhere = "[::1]:9".parse().unwrap();
    let messages: Vec<_> = (0..200_usize)
        .map(|index| match index % 10 {
            3 => (vec![0; 70_000], to),
            5 => (vec![1], nowhere),
            7 => (Vec::new(), to),
            _ => (vec![index as u8], to),
        })
        .collect();
    let results = one.send_batch(messages).await;
    for (index, (result, buf)) in results.iter().enumerate() {
        let is_sent = index % 10 != 3 && index % 10 != 5;
        assert_eq!(result.is_ok(), is_sent, "{index} {result:?}");
        assert!(result.as_ref().is_ok_and(|&len| len == buf.len()) || !is_sent);
    }
    let expected: Vec<_> = (0..200_usize)
        .filter(|index| index % 10 != 3 && index % 10 != 5)
        .map(|index| if index % 10 == 7 { Vec::new() } else { vec![index as u8] })
        .collect();
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let bufs = (0..1000).map(|_| Vec::with_capacity(4)).collect();
        let (batch, bufs) = other.recv_batch(bufs).await.both().unwrap();
        assert_eq!(bufs.len(), 1000);
        received.extend(bufs.into_iter().take(batch.len()));
    }
    assert!(received == expected);
    // One of the buffers has no room.
    one.send_to("x", to).await.value().unwrap();
    let mut bufs = vec![vec![0; 4]; 5];
    bufs[3] = Vec::new();
    let (result, bufs) = other.recv_batch(bufs).await;
    assert!(result.is_err() && bufs[3].is_empty() && bufs.len() == 5);
    assert_eq!(other.recv(vec![0; 4]).await.value().unwrap(), 1);
}
