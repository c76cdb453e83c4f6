//! Datagrams: UDP and Unix sockets.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sakia::io::PipeReader;
use sakia::net::{ControlMessage, ControlMessages, UCred, UdpOptions, UdpSocket, UnixDatagram};

use crate::support::{bytes, first_error, on_each_backend, poll_once, rejecting};

on_each_backend! {
    to_and_from
    with_a_peer
    empty_truncated_and_oversized
    peeks_leave_the_datagram
    dropped_receives_lose_nothing
    what_came_for_a_dropped_receive_goes_to_one_that_waits
    a_receive_that_sleeps_is_told_of_a_dropped_one
    what_a_dropped_receive_had_taken_is_the_nexts
    a_plain_receive_that_is_dropped_tells_of_descriptors
    dropped_batches_lose_nothing
    dropped_descriptors_are_kept
    errors_of_the_network_are_told_once
    batches
    errors_behind_the_first_of_a_batch_are_told
    blocks_of_a_registered_pool_are_received_into
    traffic_class_ttl_and_packet_info
    segments_are_cut_and_joined
    options_are_the_kernels
    ports_are_shared
    groups
    by_std_and_back
    by_path_and_by_name
    pairs_pass_descriptors_and_credentials
    descriptors_without_a_taker_are_closed
    a_receiver_without_room_is_waited_for
    a_plain_send_follows_those_that_are_queued
    wrong_addresses
}

const REFUSED: Option<i32> = Some(111);

fn errno<T: std::fmt::Debug, B>((result, _): (std::io::Result<T>, B)) -> Option<i32> {
    sakia::os_error(&result.unwrap_err())
}

async fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

async fn udp_pair() -> (UdpSocket, UdpSocket) {
    let (one, other) = (udp().await, udp().await);
    one.connect(other.local_addr().unwrap()).await.unwrap();
    other.connect(one.local_addr().unwrap()).await.unwrap();
    (one, other)
}

/// Returns the received bytes.
fn got<B: AsRef<[u8]>>((result, buf): (std::io::Result<usize>, B)) -> Vec<u8> {
    buf.as_ref()[..result.unwrap()].to_vec()
}

async fn to_and_from() {
    for on in ["127.0.0.1:0", "[::1]:0"] {
        let (one, other) = (UdpSocket::bind(on).await.unwrap(), UdpSocket::bind(on).await.unwrap());
        for len in [1, 100, 1500, 60_000] {
            let sent = one.send_to(bytes(len), other.local_addr().unwrap()).await;
            assert_eq!((sent.0.unwrap(), sent.1), (len, bytes(len)));
            let (result, buf) = other.recv_from(Vec::with_capacity(65_536)).await;
            assert_eq!(result.unwrap(), (len, one.local_addr().unwrap()));
            assert!(buf == bytes(len));
        }
        assert_eq!(errno(one.send("x").await), Some(89), "no peer");
        assert_eq!(one.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        one.close().await.unwrap();
    }
    // To a host name, and to an unknown one.
    let server = udp().await;
    let port = server.local_addr().unwrap().port();
    server.send_to("x", ("127.0.0.1", port)).await.0.unwrap();
    assert_eq!(got(server.recv(vec![0; 9]).await), b"x");
    let error = server.send_to("x", "no address").await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

async fn with_a_peer() {
    let (one, other) = udp_pair().await;
    assert_eq!(one.peer_addr().unwrap(), other.local_addr().unwrap());
    // A connected socket does not receive datagrams of other senders.
    let stranger = udp().await;
    stranger.send_to("stranger", other.local_addr().unwrap()).await.0.unwrap();
    one.send("friend").await.0.unwrap();
    assert_eq!(got(other.recv(vec![0; 100]).await), b"friend");
    let mut waits = Box::pin(other.recv(vec![0; 100]));
    assert!(poll_once(&mut waits).await.is_pending());
    one.send("later").await.0.unwrap();
    assert_eq!(got(waits.await), b"later");
}

async fn empty_truncated_and_oversized() {
    let (one, other) = udp_pair().await;
    let (near, far) = UnixDatagram::pair().unwrap();
    one.send("").await.0.unwrap();
    near.send("").await.0.unwrap();
    assert_eq!(other.recv(vec![7; 4]).await.0.unwrap(), 0);
    let (result, buf) = far.recv_message(Vec::with_capacity(4), 0).await;
    assert_eq!((result.unwrap().0.len, buf.len()), (0, 0));

    one.send("truncated").await.0.unwrap();
    near.send("truncated").await.0.unwrap();
    let (result, buf) = other.recv_message(vec![0; 5], 0).await;
    let (received, control) = result.unwrap();
    assert_eq!((received.len, received.is_truncated, &buf[..]), (5, true, &b"trunc"[..]));
    assert_eq!(received.datagram_len, 9);
    assert!(!control.is_truncated && control.messages().next().is_none());
    let (result, buf) = far.recv_message(Vec::with_capacity(5), 0).await;
    let received = result.unwrap().0;
    assert_eq!((received.len, received.is_truncated, received.datagram_len), (5, true, 9));
    assert_eq!(buf, b"trunc");
    // The datagram is exactly as long as the buffer.
    one.send("fits").await.0.unwrap();
    near.send("fits").await.0.unwrap();
    assert!(!other.recv_message(vec![0; 4], 0).await.0.unwrap().0.is_truncated);
    assert!(!far.recv_message(vec![0; 4], 0).await.0.unwrap().0.is_truncated);

    // A receive into a buffer without room fails and takes no datagram.
    one.send("x").await.0.unwrap();
    near.send("x").await.0.unwrap();
    for error in [errno(other.recv(Vec::new()).await), errno(far.recv(Vec::new()).await)] {
        assert_eq!(error, Some(22));
    }
    assert_eq!(errno(other.recv_batch(vec![vec![0; 1], vec![]]).await), Some(22));
    assert_eq!(errno(other.recv_batch(Vec::<Vec<u8>>::new()).await), Some(22));
    assert_eq!(got(other.recv(vec![0; 9]).await), b"x");
    assert_eq!(got(far.recv(vec![0; 9]).await), b"x");

    const MSGSIZE: Option<i32> = Some(90);
    assert_eq!(errno(one.send(bytes(65_508)).await), MSGSIZE);
    assert_eq!(errno(one.send_to(bytes(65_508), other.local_addr().unwrap()).await), MSGSIZE);
    assert_eq!(errno(near.send(bytes(8 << 20)).await), MSGSIZE);
    one.send(bytes(65_507)).await.0.unwrap();
    let received = other.recv(vec![0; 70_000]).await;
    assert!(got(received) == bytes(65_507));
}

async fn peeks_leave_the_datagram() {
    let (one, other) = udp_pair().await;
    one.send("first").await.0.unwrap();
    one.send("second").await.0.unwrap();
    for _ in 0..2 {
        let (result, buf) = other.peek_from(vec![0; 3]).await;
        assert_eq!((result.unwrap(), &buf[..]), ((3, one.local_addr().unwrap()), &b"fir"[..]));
    }
    assert_eq!(got(other.peek(vec![0; 9]).await), b"first");
    assert_eq!(got(other.recv(vec![0; 9]).await), b"first");
    assert_eq!(got(other.recv(vec![0; 9]).await), b"second");
    let (near, far) = UnixDatagram::pair().unwrap();
    near.send("first").await.0.unwrap();
    assert_eq!(got(far.peek(vec![0; 9]).await), b"first");
    let (result, _) = far.peek_from(vec![0; 9]).await;
    assert!(result.unwrap().1.is_unnamed());
    assert_eq!(got(far.recv(vec![0; 9]).await), b"first");
    // A dropped peek takes no datagram.
    let mut waits = Box::pin(far.peek(vec![0; 9]));
    assert!(poll_once(&mut waits).await.is_pending());
    near.send("then").await.0.unwrap();
    drop(waits);
    assert_eq!(got(far.recv(vec![0; 9]).await), b"then");
}

/// Waiting receives are dropped after a datagram has arrived.
async fn dropped_receives_lose_nothing() {
    let (one, other) = udp_pair().await;
    for round in 0..20_u8 {
        let mut waiting = Box::pin(other.recv_from(vec![0; 9]));
        let mut next = Box::pin(other.recv(vec![0; 9]));
        let mut third = Box::pin(other.recv_message(Vec::with_capacity(9), 64));
        assert!(poll_once(&mut waiting).await.is_pending());
        assert!(poll_once(&mut next).await.is_pending());
        assert!(poll_once(&mut third).await.is_pending());
        let plain = rustix::io::dup(&one).unwrap();
        for part in 0..3 {
            rustix::net::send(&plain, &[round, part], rustix::net::SendFlags::empty()).unwrap();
        }
        match round % 4 {
            // By now the kernel has filled their buffers.
            0 => sakia::time::sleep(Duration::from_millis(1)).await,
            1 => sakia::yield_now().await,
            _ => {}
        }
        drop((waiting, next, third));
        let mut all = Vec::new();
        // The datagrams are peeked, received into a short buffer, and received whole.
        assert_eq!(other.peek(vec![0; 9]).await.0.unwrap(), 2);
        for _ in 0..3 {
            let (result, buf) = other.recv_from(Vec::with_capacity(9)).await;
            assert_eq!(result.unwrap(), (2, one.local_addr().unwrap()));
            assert_eq!(buf[0], round);
            all.push(buf[1]);
        }
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    }
}

/// No other datagram is sent, and no receive begins afterwards.
async fn what_came_for_a_dropped_receive_goes_to_one_that_waits() {
    let (one, other) = udp_pair().await;
    for round in 0..30_u8 {
        let mut first = Box::pin(other.recv_from(vec![0; 9]));
        let mut waits = Box::pin(other.recv(Vec::with_capacity(9)));
        let mut also_waits = Box::pin(other.recv_message(vec![0; 9], 64));
        assert!(poll_once(&mut first).await.is_pending());
        assert!(poll_once(&mut waits).await.is_pending());
        assert!(poll_once(&mut also_waits).await.is_pending());
        if round % 2 == 0 {
            sakia::yield_now().await; // the kernel has them, in this order
        }
        let plain = rustix::io::dup(&one).unwrap();
        rustix::net::send(&plain, &[round, 1], rustix::net::SendFlags::empty()).unwrap();
        drop(first);
        if round % 3 == 0 {
            // One of the waiting receives is dropped, too.
            drop(also_waits);
            assert_eq!(got(waits.await), [round, 1]);
            continue;
        }
        rustix::net::send(&plain, &[round, 2], rustix::net::SendFlags::empty()).unwrap();
        let waits = async { got(waits.await) };
        let also_waits = async {
            let (result, buf) = also_waits.await;
            buf[..result.unwrap().0.len].to_vec()
        };
        let (waits, also_waits) = sakia::join!(waits, also_waits);
        let mut both = [waits, also_waits];
        both.sort_unstable();
        assert_eq!(both, [[round, 1], [round, 2]]);
    }
}

/// Takes some turns of the driver.
async fn turns(count: u8) {
    for _ in 0..count {
        sakia::yield_now().await;
    }
}

async fn a_receive_that_sleeps_is_told_of_a_dropped_one() {
    let (one, other) = udp_pair().await;
    let other = Rc::new(other);
    for round in 0..10_u8 {
        let mut dropped = Box::pin(other.recv(vec![0; 9]));
        let sleeper = Rc::clone(&other);
        let sleeper = async move { got(sleeper.recv(vec![0; 9]).await) };
        // The kernel gives the datagram to the first or to the last of its receives.
        let sleeper = if round % 2 == 0 {
            assert!(poll_once(&mut dropped).await.is_pending());
            sakia::spawn(sleeper)
        } else {
            let sleeper = sakia::spawn(sleeper);
            turns(2).await;
            assert!(poll_once(&mut dropped).await.is_pending());
            sleeper
        };
        turns(2).await;
        let plain = rustix::io::dup(&one).unwrap();
        rustix::net::send(&plain, &[round], rustix::net::SendFlags::empty()).unwrap();
        turns(round / 2 % 3).await;
        drop(dropped);
        let told = sakia::time::timeout(Duration::from_secs(60), sleeper).await;
        assert_eq!(told.expect("a wake").unwrap(), [round]);
    }
}

/// A receive has taken the datagram of another one that was dropped, and waits for the end of its own
/// operation. Then it is dropped, too.
async fn what_a_dropped_receive_had_taken_is_the_nexts() {
    let (one, other) = udp_pair().await;
    for round in 0..30_u8 {
        let mut first = Box::pin(other.recv(vec![0; 9]));
        let mut second = Box::pin(other.recv(vec![0; 9]));
        if round % 2 == 0 {
            assert!(poll_once(&mut first).await.is_pending());
            turns(1).await;
        }
        assert!(poll_once(&mut second).await.is_pending());
        turns(1).await;
        if round % 2 == 1 {
            assert!(poll_once(&mut first).await.is_pending());
            turns(1).await;
        }
        let plain = rustix::io::dup(&one).unwrap();
        rustix::net::send(&plain, &[round], rustix::net::SendFlags::empty()).unwrap();
        turns(round / 2 % 3).await;
        drop(first);
        turns(round / 6 % 3).await;
        match poll_once(&mut second).await {
            Poll::Ready(output) => assert_eq!(got(output), [round]),
            Poll::Pending => {
                drop(second);
                assert_eq!(got(other.recv(vec![0; 9]).await), [round]);
            }
        }
    }
}

/// The first plain receive has no room for descriptors. A plain receive that follows a receive with room
/// has room for them, too.
async fn a_plain_receive_that_is_dropped_tells_of_descriptors() {
    let room = ControlMessage::space(4);
    for _ in 0..20 {
        let (near, far) = UnixDatagram::pair().unwrap();
        for has_room in [false, true, true] {
            let mut waiting = Box::pin(far.recv(vec![0; 9]));
            assert!(poll_once(&mut waiting).await.is_pending());
            sakia::yield_now().await;
            let (mut reader, control) = pipe();
            near.send_message("take it", None, control).await.0.unwrap();
            sakia::yield_now().await;
            drop(waiting);
            let (result, buf) = far.recv_message(vec![0; 9], room).await;
            let (received, control) = result.unwrap();
            assert_eq!(&buf[..received.len], b"take it");
            if control.descriptors.is_empty() {
                assert!(!has_room, "they are lost");
                assert!(control.is_truncated, "they are lost, and it does not tell");
                continue;
            }
            write_to(control.descriptors[0].as_fd(), b"through it");
            drop(control);
            assert_eq!(read_all(&mut reader).await, b"through it");
        }
    }
}

async fn dropped_batches_lose_nothing() {
    let (one, other) = udp_pair().await;
    for polls in 0..12 {
        let mut batch =
            Box::pin(other.recv_batch((0..16).map(|_| Vec::with_capacity(9)).collect()));
        assert!(poll_once(&mut batch).await.is_pending());
        for number in 0..10_u8 {
            one.send(vec![number]).await.0.unwrap();
        }
        let mut done = Vec::new();
        for _ in 0..polls {
            sakia::yield_now().await;
            if let std::task::Poll::Ready((result, bufs)) = poll_once(&mut batch).await {
                let count = result.unwrap().len();
                done.extend(bufs[..count].concat());
                break;
            }
        }
        drop(batch);
        while done.len() < 10 {
            done.extend(got(other.recv(vec![0; 9]).await));
        }
        done.sort_unstable();
        assert_eq!(done, Vec::from_iter(0..10));
    }
}

async fn dropped_descriptors_are_kept() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let room = ControlMessage::space(4);
    let mut waiting = Box::pin(far.recv_message(vec![0; 9], room));
    assert!(poll_once(&mut waiting).await.is_pending());
    let (mut reader, control) = pipe();
    near.send_message("take it", None, control).await.0.unwrap();
    sakia::yield_now().await;
    drop(waiting);
    let (result, buf) = far.recv_message(vec![0; 4], room).await;
    let (received, control) = result.unwrap();
    assert_eq!(&buf[..received.len], b"take");
    assert_eq!((received.is_truncated, received.datagram_len), (true, 7));
    write_to(control.descriptors[0].as_fd(), b"through it");
    drop(control);
    assert_eq!(read_all(&mut reader).await, b"through it");
}

/// Returns the reading end of a pipe, and a message with the only descriptor of the writing end.
fn pipe() -> (PipeReader, ControlMessages) {
    let (reader, writer) = std::io::pipe().unwrap();
    let fd = sakia::io::adopt(writer);
    (PipeReader::from_fd(reader.into()), ControlMessages::new().descriptor(&fd))
}

fn write_to(fd: std::os::fd::BorrowedFd<'_>, bytes: &[u8]) {
    let mut file = std::fs::File::from(fd.try_clone_to_owned().unwrap());
    file.write_all(bytes).unwrap();
}

async fn read_all(reader: &mut PipeReader) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = got(reader.read(vec![0; 100]).await);
        if bytes.is_empty() {
            return all;
        }
        all.extend(bytes);
    }
}

async fn errors_of_the_network_are_told_once() {
    let peer = rejecting("127.0.0.1:0");
    let address = peer.local_addr().unwrap();
    let socket = udp().await;
    // A socket without a peer is not told of the error.
    socket.send_to("x", address).await.0.unwrap();
    let mut waits = Box::pin(socket.recv_from(vec![0; 9]));
    assert!(poll_once(&mut waits).await.is_pending());
    drop(waits);
    assert!(socket.take_error().unwrap().is_none());

    socket.connect(address).await.unwrap();
    socket.send("x").await.0.unwrap();
    assert_eq!(errno(socket.recv(vec![0; 9]).await), REFUSED);
    // A send and `take_error` report the error.
    socket.send("x").await.0.unwrap();
    assert_eq!(errno(socket.send("y").await), REFUSED);
    socket.send("x").await.0.unwrap();
    assert_eq!(socket.take_error().unwrap().unwrap().raw_os_error(), REFUSED);
    // A waiting receive reports it, and a dropped one keeps it for the next.
    let mut waits = Box::pin(socket.recv_message(vec![0; 9], 0));
    assert!(poll_once(&mut waits).await.is_pending());
    socket.send("x").await.0.unwrap();
    assert_eq!(errno(waits.await), REFUSED);
    let mut waits = Box::pin(socket.recv(vec![0; 9]));
    assert!(poll_once(&mut waits).await.is_pending());
    socket.send("x").await.0.unwrap();
    drop(waits);
    assert_eq!(errno(socket.recv_batch(vec![vec![0; 9]]).await), REFUSED);
    // The socket still works.
    peer.connect(socket.local_addr().unwrap()).unwrap();
    let peer = UdpSocket::from_std(peer).unwrap();
    socket.send("still here").await.0.unwrap();
    assert_eq!(got(peer.recv(vec![0; 10]).await), b"still here");

    let (near, far) = UnixDatagram::pair().unwrap();
    far.close().await.unwrap();
    let error = first_error(async || near.send("x").await.0).await;
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

async fn batches() {
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    let nobody = "127.0.0.1:0".parse().unwrap(); // no port
    let mut messages: Vec<_> = (0..40_u8).map(|number| (vec![number; 3], to)).collect();
    messages.insert(5, (bytes(70_000), to));
    messages.insert(9, (vec![9], nobody));
    let results = one.send_batch(messages).await;
    assert_eq!(results.len(), 42);
    for (index, (result, buf)) in results.iter().enumerate() {
        match index {
            5 | 9 => assert!(result.is_err()),
            _ => assert_eq!((result.as_ref().ok(), buf.len()), (Some(&3), 3)),
        }
    }
    let mut seen = Vec::new();
    let mut bufs: Vec<_> = (0..16).map(|_| Vec::with_capacity(2)).collect();
    while seen.len() < 40 {
        let (result, filled) = other.recv_batch(bufs).await;
        let received = result.unwrap();
        assert!(!received.is_empty() && filled.len() == 16);
        for (received, buf) in received.iter().zip(&filled) {
            assert_eq!((received.from, received.len), (one.local_addr().unwrap(), 2));
            assert!(received.is_truncated);
            seen.push(buf[0]);
        }
        assert!(filled[received.len()..].iter().all(Vec::is_empty), "these were not filled");
        bufs = filled.into_iter().map(|mut buf| (buf.clear(), buf).1).collect();
    }
    assert_eq!(seen, Vec::from_iter(0..40));
    assert!(one.send_batch(Vec::<(Vec<u8>, _)>::new()).await.is_empty());
}

/// An error of the network arrives when a batch has received its first datagram.
async fn errors_behind_the_first_of_a_batch_are_told() {
    let (one, other) = udp_pair().await;
    let address = one.local_addr().unwrap();
    let mut batch = Box::pin(other.recv_batch(vec![vec![0; 9]; 4]));
    assert!(poll_once(&mut batch).await.is_pending());
    one.send("first").await.0.unwrap();
    sakia::time::sleep(Duration::from_millis(1)).await;
    // The socket is its own peer from now on, and rejects all other senders.
    one.connect(address).await.unwrap();
    other.send("rejected").await.0.unwrap();
    // If the first datagram had not arrived by then, the kernel reports the error first.
    let results = [batch.await.0, other.recv_batch(vec![vec![0; 9]; 4]).await.0];
    let told = results.iter().find_map(|result| result.as_ref().err()).expect("it is told");
    assert_eq!(told.raw_os_error(), REFUSED);
    let came = results.iter().find_map(|result| result.as_ref().ok()).expect("it has come");
    assert_eq!((came.len(), came[0].from), (1, address));
}

async fn traffic_class_ttl_and_packet_info() {
    for (on, ip) in [
        ("127.0.0.1:0", IpAddr::from(Ipv4Addr::LOCALHOST)),
        ("[::1]:0", Ipv6Addr::LOCALHOST.into()),
    ] {
        let (one, other) = (UdpSocket::bind(on).await.unwrap(), UdpSocket::bind(on).await.unwrap());
        let to = other.local_addr().unwrap();
        one.send_to("nothing is asked for", to).await.0.unwrap();
        let (result, _) = other.recv_message(vec![0; 100], 128).await;
        assert_eq!(result.unwrap().1.messages().count(), 0);

        other.set_recv_tos(true).unwrap();
        other.set_recv_ttl(true).unwrap();
        other.set_recv_packet_info(true).unwrap();
        let asked = ControlMessages::new().source(ip, 0);
        let asked = match ip {
            IpAddr::V4(_) => asked.ip_tos(2).ip_ttl(33),
            IpAddr::V6(_) => asked.ipv6_traffic_class(2).ipv6_hop_limit(33),
        };
        one.send_message("all", Some(to), asked).await.0.unwrap();
        let (result, _) = other.recv_message(vec![0; 100], 128).await;
        let (received, control) = result.unwrap();
        assert_eq!(received.from, one.local_addr().unwrap());
        let class = control.messages().find_map(ControlMessage::traffic_class);
        let hops = control.messages().find_map(ControlMessage::hop_limit);
        let info = control.messages().find_map(ControlMessage::packet_info).unwrap();
        assert_eq!((class, hops, info.local), (Some(2), Some(33), ip));
        assert!(!control.is_truncated && info.interface > 0);
        // The values come from options of the socket.
        one.set_tos(3).unwrap();
        one.set_ttl(44).unwrap();
        one.connect(to).await.unwrap();
        one.send_message("peer", None, ControlMessages::new()).await.0.unwrap();
        let (_, control) = other.recv_message(vec![0; 100], 128).await.0.unwrap();
        let class = control.messages().find_map(ControlMessage::traffic_class);
        let hops = control.messages().find_map(ControlMessage::hop_limit);
        assert_eq!((class, hops), (Some(3), Some(44)));
        // The receive has no room for the control messages.
        one.send("no room").await.0.unwrap();
        let (received, control) = other.recv_message(vec![0; 100], 20).await.0.unwrap();
        assert_eq!((received.is_truncated, control.is_truncated), (false, true));
    }
}

async fn segments_are_cut_and_joined() {
    let (one, other) = udp_pair().await;
    let cut = || ControlMessages::new().segment_bytes(100);
    one.send_message(bytes(250), None, cut()).await.0.unwrap();
    for part in bytes(250).chunks(100) {
        assert_eq!(got(other.recv(vec![0; 500]).await), part);
    }
    other.set_gro(true).unwrap();
    one.send_message(bytes(250), None, cut()).await.0.unwrap();
    let mut all = Vec::new();
    while all.len() < 250 {
        let (result, buf) = other.recv_message(vec![0; 65_536], 128).await;
        let (received, control) = result.unwrap();
        let size = control.messages().find_map(ControlMessage::segment_bytes);
        assert_eq!(size.unwrap_or(received.len).min(100), received.len.min(100));
        all.extend_from_slice(&buf[..received.len]);
    }
    assert_eq!(all, bytes(250));
    // More segments than the kernel allows.
    let too_many =
        one.send_message(bytes(1000), None, ControlMessages::new().segment_bytes(1)).await;
    assert_eq!(errno(too_many), Some(22));
}

async fn options_are_the_kernels() {
    let socket = udp().await;
    assert!(!socket.broadcast().unwrap());
    let everybody = ("255.255.255.255", 9);
    assert_eq!(errno(socket.send_to("x", everybody).await), Some(13));
    socket.set_broadcast(true).unwrap();
    assert!(socket.broadcast().unwrap());
    socket.set_ttl(7).unwrap();
    socket.set_tos(0x10).unwrap();
    assert_eq!((socket.ttl().unwrap(), socket.tos().unwrap()), (7, 0x10));
    socket.set_multicast_loop_v4(false).unwrap();
    socket.set_multicast_ttl_v4(3).unwrap();
    assert!(!socket.multicast_loop_v4().unwrap());
    assert_eq!(socket.multicast_ttl_v4().unwrap(), 3);
    socket.set_send_buffer_size(10_000).unwrap();
    socket.set_recv_buffer_size(20_000).unwrap();
    assert_eq!(socket.send_buffer_size().unwrap(), 20_000);
    assert_eq!(socket.recv_buffer_size().unwrap(), 40_000);

    let options = UdpOptions::new().send_buffer_size(10_000).recv_buffer_size(20_000);
    for only_v6 in [false, true] {
        let socket = options.only_v6(only_v6).bind("[::]:0").await.unwrap();
        assert_eq!(socket.only_v6().unwrap(), only_v6);
        assert_eq!(socket.recv_buffer_size().unwrap(), 40_000);
        socket.set_multicast_loop_v6(false).unwrap();
        assert!(!socket.multicast_loop_v6().unwrap());
        socket.set_tos(0x20).unwrap();
        socket.set_ttl(9).unwrap();
        assert_eq!((socket.tos().unwrap(), socket.ttl().unwrap()), (0x20, 9));
    }
}

async fn ports_are_shared() {
    let alone = udp().await;
    let error = UdpSocket::bind(alone.local_addr().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert_eq!(error.addresses(), [alone.local_addr().unwrap()]);
    for options in [UdpOptions::new().reuse_port(true), UdpOptions::new().reuse_addr(true)] {
        let one = options.bind("127.0.0.1:0").await.unwrap();
        let other = options.bind(one.local_addr().unwrap()).await.unwrap();
        assert_eq!(one.local_addr().unwrap(), other.local_addr().unwrap());
    }
}

async fn groups() {
    let group = Ipv4Addr::new(239, 255, 77, 7);
    let member = UdpOptions::new().reuse_addr(true).bind("0.0.0.0:0").await.unwrap();
    member.join_multicast_v4(group, Ipv4Addr::LOCALHOST).unwrap();
    let again = member.join_multicast_v4(group, Ipv4Addr::LOCALHOST).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let sender = udp().await;
    rustix::net::sockopt::set_ip_multicast_if(&sender, &Ipv4Addr::LOCALHOST).unwrap();
    let port = member.local_addr().unwrap().port();
    sender.send_to("all of you", (group, port)).await.0.unwrap();
    assert_eq!(got(member.recv(vec![0; 20]).await), b"all of you");
    member.leave_multicast_v4(group, Ipv4Addr::LOCALHOST).unwrap();
    assert!(member.leave_multicast_v4(group, Ipv4Addr::LOCALHOST).is_err());

    let member = UdpSocket::bind("[::]:0").await.unwrap();
    let group: Ipv6Addr = "ff01::7:77".parse().unwrap();
    member.join_multicast_v6(group, 1).unwrap();
    assert!(member.join_multicast_v6(group, 1).is_err());
    member.leave_multicast_v6(group, 1).unwrap();
}

async fn by_std_and_back() {
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    plain.set_nonblocking(true).unwrap();
    let address = plain.local_addr().unwrap();
    let socket = UdpSocket::from_std(plain).unwrap();
    let peer = udp().await;
    // The receive waits, although the socket is non-blocking.
    let mut waits = Box::pin(socket.recv_from(vec![0; 9]));
    assert!(poll_once(&mut waits).await.is_pending());
    peer.send_to("x", address).await.0.unwrap();
    assert_eq!(waits.await.0.unwrap(), (1, peer.local_addr().unwrap()));
    let mut waits = Box::pin(socket.recv(vec![0; 9]));
    assert!(poll_once(&mut waits).await.is_pending());
    drop(waits);
    let plain = socket.into_std().await.unwrap();
    assert_eq!(plain.local_addr().unwrap(), address);

    let (one, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let one = UnixDatagram::from_std(one).unwrap();
    one.send("x").await.0.unwrap();
    assert_eq!(other.recv(&mut [0; 9]).unwrap(), 1);
    one.into_std().await.unwrap().send(b"y").unwrap();
    // Sockets of other kinds are refused.
    let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = UdpSocket::from_std(OwnedFd::from(stream).into()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(91));
    assert!(
        UnixDatagram::from_std(OwnedFd::from(udp().await.into_std().await.unwrap()).into())
            .is_err()
    );
    assert!(UdpSocket::from_std(OwnedFd::from(other).into()).is_err());
}

fn abstract_name(text: &str) -> UnixAddr {
    let name = format!("sakia-{text}-{}-{:?}", std::process::id(), std::thread::current().id());
    UnixAddr::from_abstract_name(name).unwrap()
}

async fn by_path_and_by_name() {
    let dir = std::env::temp_dir().join(format!("sakia{:?}", abstract_name("datagrams")));
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("socket");
    let server = UnixDatagram::bind(&path).await.unwrap();
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(&*path));
    let error = UnixDatagram::bind(&path).await.unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::AddrInUse, Some(&*path)));
    let name = abstract_name("name");
    let client = UnixDatagram::bind_addr(&name).await.unwrap();
    client.send_to("by path", &path).await.0.unwrap();
    let (result, buf) = server.recv_from(vec![0; 20]).await;
    let (len, from) = result.unwrap();
    assert_eq!((&buf[..len], from.as_abstract_name()), (&b"by path"[..], name.as_abstract_name()));
    server.send_to_addr("by name", &from).await.0.unwrap();
    client.connect(&path).await.unwrap();
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path));
    assert_eq!(got(client.recv(vec![0; 20]).await), b"by name");

    let unbound = UnixDatagram::unbound().await.unwrap();
    assert!(unbound.local_addr().unwrap().is_unnamed());
    assert_eq!(errno(unbound.send("x").await), Some(107));
    unbound.send_to("unnamed", &path).await.0.unwrap();
    assert!(server.recv_from(vec![0; 20]).await.0.unwrap().1.is_unnamed());
    unbound.connect_addr(&server.local_addr().unwrap()).await.unwrap();
    unbound.send("to the peer").await.0.unwrap();
    assert_eq!(got(server.recv(vec![0; 20]).await), b"to the peer");
    // The socket at this name has another peer.
    assert_eq!(errno(unbound.send_to_addr("x", &name).await), Some(1));
    // The file is still there after its socket is closed.
    server.close().await.unwrap();
    let error = first_error(async || unbound.send_to("x", &path).await.0).await;
    assert_eq!(error.raw_os_error(), REFUSED);
    std::fs::remove_dir_all(dir).unwrap();
}

async fn pairs_pass_descriptors_and_credentials() {
    let (near, far) = UnixDatagram::pair().unwrap();
    assert!(near.local_addr().unwrap().is_unnamed() && near.peer_addr().unwrap().is_unnamed());
    let (mut reader, control) = pipe();
    // The same with an empty datagram.
    near.send_message("", None, control).await.0.unwrap();
    let (received, mut control) =
        far.recv_message(vec![0; 1], ControlMessage::space(4)).await.0.unwrap();
    assert_eq!((received.len, control.descriptors.len(), control.is_truncated), (0, 1, false));
    let fd = control.descriptors.remove(0).into_owned().unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    write_to(fd.as_fd(), b"passed");
    drop(fd);
    assert_eq!(read_all(&mut reader).await, b"passed");

    assert!(!far.passcred().unwrap());
    far.set_passcred(true).unwrap();
    assert!(far.passcred().unwrap());
    near.send("who?").await.0.unwrap();
    let (_, control) = far.recv_message(vec![0; 9], ControlMessage::space(12)).await.0.unwrap();
    let sender = UCred::of(&control).unwrap();
    assert_eq!(sender.pid(), Some(std::process::id() as i32));
    assert_eq!(sender.uid(), rustix::process::getuid().as_raw());
}

async fn descriptors_without_a_taker_are_closed() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut readers = Vec::new();
    for _ in 0..5 {
        let (reader, control) = pipe();
        near.send_message("x", None, control).await.0.unwrap();
        readers.push(reader);
    }
    // The descriptors are closed by a receive without control messages, by one without room, by the drop of
    // a result, by the receive after a dropped one, and with the socket.
    far.recv(vec![0; 9]).await.0.unwrap();
    assert!(far.recv_message(vec![0; 9], 0).await.0.unwrap().1.is_truncated);
    drop(far.recv_message(vec![0; 9], 64).await);
    {
        let mut dropped = Box::pin(far.recv_message(vec![0; 9], 64));
        let is_pending = poll_once(&mut dropped).await.is_pending();
        drop(dropped);
        if is_pending {
            far.recv(vec![0; 9]).await.0.unwrap();
        }
    }
    drop(far);
    for mut reader in readers {
        // The pipe is at its end: no writer is left.
        assert_eq!(read_all(&mut reader).await, b"");
    }
}

async fn a_receiver_without_room_is_waited_for() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut sent = 0;
    let mut waits = loop {
        let mut sending = Box::pin(near.send(bytes(10_000)));
        match sakia::time::timeout(Duration::from_millis(20), &mut sending).await {
            Ok((result, _)) => sent += result.unwrap(),
            Err(_) => break sending,
        }
    };
    assert!(sent >= 10_000);
    // A dropped message is not sent.
    let dropped = Box::pin(near.send("dropped"));
    drop(dropped);
    assert!(poll_once(&mut waits).await.is_pending());
    for _ in 0..sent / 10_000 {
        assert!(got(far.recv(vec![0; 20_000]).await) == bytes(10_000));
    }
    waits.await.0.unwrap();
    assert!(got(far.recv(vec![0; 20_000]).await) == bytes(10_000));
}

async fn wrong_addresses() {
    let long = "x".repeat(108);
    let error = UnixDatagram::bind(&long).await.unwrap_err();
    assert_eq!((error.raw_os_error(), error.path()), (Some(36), Some(long.as_ref())));
    let socket = UnixDatagram::unbound().await.unwrap();
    assert_eq!(socket.connect(&long).await.unwrap_err().raw_os_error(), Some(36));
    assert_eq!(errno(socket.send_to("x", &long).await), Some(36));
    assert_eq!(errno(socket.send_to("x", "").await), Some(22));
    assert_eq!(errno(socket.send_to("x", "/nowhere/at/all").await), Some(2));
    let unnamed = socket.local_addr().unwrap();
    assert_eq!(errno(socket.send_to_addr("x", &unnamed).await), Some(22));
    assert_eq!(
        errno(socket.send_message("x", Some(&unnamed), ControlMessages::new()).await),
        Some(22)
    );
    assert!(UnixDatagram::bind_addr(&unnamed).await.is_err());
    assert!(socket.connect_addr(&unnamed).await.is_err());
    // The address has another IP version than the socket.
    let socket = udp().await;
    assert!(socket.connect("[::1]:9").await.is_err());
    assert!(socket.send_to("x", "[::1]:9").await.0.is_err());
    let error = UdpSocket::bind("192.0.2.1:0").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    let many = ["[::1]:9".parse().unwrap(), "127.0.0.1:9".parse().unwrap()];
    socket.connect(&many[..]).await.unwrap();
    assert_eq!(socket.peer_addr().unwrap(), many[1]);
}

/// A program receives into blocks of its own registered pool, and the runtime keeps none of them
/// afterwards.
async fn blocks_of_a_registered_pool_are_received_into() {
    const BLOCKS: u32 = 4;
    let pool = sakia::io::register_buffers(BLOCKS, 4096).unwrap();
    let take = || -> Vec<_> { std::iter::from_fn(|| pool.block()).collect() };
    let (one, other) = udp_pair().await;
    for round in 0..3 {
        let blocks = take();
        assert_eq!(blocks.len(), BLOCKS as usize, "round {round}");
        one.send("first").await.0.unwrap();
        one.send("second").await.0.unwrap();
        let (result, blocks) = other.recv_batch(blocks).await;
        let mut received = result.unwrap();
        if received.len() == 1 {
            let (result, rest) = other.recv_batch(take()).await;
            assert!(result.is_err() && rest.is_empty(), "all are in use");
            let (result, _) = other.recv_batch(vec![vec![0; 9]]).await;
            received.extend(result.unwrap());
        }
        assert_eq!(received.iter().map(|its| its.len).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(&blocks[0][..5], b"first");
        // The blocks are sent as they are, and dropped while their sends wait.
        let mut blocks = blocks.into_iter();
        assert_eq!(one.send(blocks.next().unwrap()).await.0.unwrap(), 4096);
        assert_eq!(other.recv(vec![0; 5000]).await.0.unwrap(), 4096);
        let mut waits = Box::pin(other.recv(blocks.next().unwrap()));
        assert!(poll_once(&mut waits).await.is_pending());
        drop((waits, blocks));
        one.send("last").await.0.unwrap();
        assert_eq!(got(other.recv(vec![0; 9]).await), b"last");
    }
}

/// A send with control messages is an operation, which the kernel gets with the next turn.
async fn a_plain_send_follows_those_that_are_queued() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut first = Box::pin(near.send_message("first", None, ControlMessages::new()));
    assert!(poll_once(&mut first).await.is_pending());
    near.send("second").await.0.unwrap();
    first.await.0.unwrap();
    assert_eq!(got(far.recv(vec![0; 9]).await), b"first");
    assert_eq!(got(far.recv(vec![0; 9]).await), b"second");
}
