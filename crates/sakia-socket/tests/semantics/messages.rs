//! Several buffers, control messages, urgent data.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix, SocketType};
use sakia_socket::sockopt::{SO_OOBINLINE, SO_PASSCRED, SO_SNDBUF};
use sakia_socket::{
    Control, Credentials, Kernel, ReceivedMessage, SendControl, Socket, When, control_space,
};

use crate::support::{
    MODES, PLAIN, byte, delayed, fill, layer, options, read_ahead, recv, recv_all, send, tcp, unix,
};

fn receive(
    socket: &Socket,
    room: usize,
    flags: RecvFlags,
) -> Result<(Vec<u8>, ReceivedMessage<OwnedFd>), Errno> {
    let (mut first, mut second) = ([0; 2], [0; 98]);
    let buffers = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    let message = socket.recv_message(buffers, room, flags)?;
    let mut bytes = [first.as_slice(), &second].concat();
    bytes.truncate(message.received.bytes);
    Ok((bytes, message))
}

fn pass(socket: &Socket, bytes: &[u8], fds: &[&OwnedFd], flags: SendFlags) -> Result<usize, Errno> {
    let rights = [SendControl::Rights(fds)];
    socket.send_message(&[IoSlice::new(bytes)], &rights, flags, None)
}

fn rights(message: &ReceivedMessage<OwnedFd>) -> usize {
    let count = |message: &Control<OwnedFd>| match message {
        Control::Rights(fds) => fds.len(),
        _ => 0,
    };
    message.control.iter().map(count).sum()
}

#[test]
fn more_buffers_than_the_kernel_takes_are_refused() {
    let layer = layer(delayed());
    let (a, b) = tcp(&layer);
    let many = vec![IoSlice::new(b"x"); 1025];
    assert_eq!(a.send_vectored(&many, SendFlags::empty()), Err(Errno::MSGSIZE));
    assert_eq!(a.send_vectored(&many[1..], SendFlags::empty()), Ok(1024));
    // Together with delayed bytes these are more buffers than one call takes.
    assert_eq!(a.send_vectored(&many[1..], SendFlags::MORE), Ok(1024));
    a.flush().expect("a connection");
    let mut bytes = [[0]; 1024];
    let mut buffers: Vec<IoSliceMut<'_>> =
        bytes.iter_mut().map(|byte| IoSliceMut::new(byte)).collect();
    assert_eq!(b.recv_vectored(&mut buffers, RecvFlags::WAITALL), Ok(1024));
    assert_eq!(b.recv_vectored(&mut buffers, RecvFlags::WAITALL), Ok(1024));
    assert_eq!(bytes, [[b'x']; 1024]);
}

#[test]
fn descriptors_come_with_their_byte_and_close_when_dropped() {
    let layer = layer(delayed());
    let (a, b) = unix(&layer);
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    send(&a, b"before");
    assert_eq!(a.delayed(), 6);
    assert_eq!(pass(&a, b"with", &[&writer, &reader], SendFlags::empty()), Ok(4));
    drop(writer);
    let room = control_space(2 * 4);
    let (bytes, message) = receive(&b, room, RecvFlags::CMSG_CLOEXEC).expect("bytes");
    // The kernel ends a read behind the piece with descriptors, not before.
    assert_eq!((bytes.as_slice(), rights(&message)), (b"beforewith".as_slice(), 2));
    assert!(!message.received.flags.contains(ReturnFlags::CTRUNC));
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).expect("a mode");
    let mut buffer = [0; 1];
    assert_eq!(rustix::io::read(&reader, &mut buffer), Err(Errno::AGAIN), "a writer is left");
    drop(message);
    assert_eq!(rustix::io::read(&reader, &mut buffer), Ok(0), "it was closed");
}

#[test]
fn credentials_are_those_of_the_sender() {
    let layer = layer(delayed());
    let (a, b) = unix(&layer);
    b.set_option(SO_PASSCRED, true).expect("an option");
    let mine = Credentials {
        process: rustix::thread::Pid::as_raw(Some(own_pid())),
        user: rustix_user(),
        group: rustix_group(),
    };
    let control = [SendControl::Credentials(mine)];
    assert_eq!(a.send_message(&[IoSlice::new(b"x")], &control, SendFlags::empty(), None), Ok(1));
    let (_, message) = receive(&b, control_space(12), RecvFlags::empty()).expect("a byte");
    assert!(matches!(message.control[..], [Control::Credentials(sender)] if sender == mine));
    let other = SendControl::Credentials(Credentials { process: 0, ..mine });
    let sent = a.send_message(&[IoSlice::new(b"x")], &[other], SendFlags::empty(), None);
    assert_eq!(sent, Err(Errno::SRCH));
}

fn own_pid() -> rustix::thread::Pid {
    rustix::thread::Pid::from_raw(std::process::id() as i32).expect("a number")
}

fn rustix_user() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("a process"))
}

fn rustix_group() -> u32 {
    std::os::unix::fs::MetadataExt::gid(&std::fs::metadata("/proc/self").expect("a process"))
}

#[test]
fn control_messages_that_the_host_has_not_are_refused() {
    let layer = layer(delayed());
    let (a, b) = tcp(&layer);
    let control = [SendControl::Other { level: 0, kind: 2, data: &[64, 0, 0, 0] }];
    send(&a, b"1");
    let sent = a.send_message(&[IoSlice::new(b"x")], &control, SendFlags::empty(), None);
    assert_eq!(sent, Err(Errno::OPNOTSUPP));
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"1".into()), "and it was not delayed");
}

/// A call that must not wait does not overtake delayed bytes, and is not delayed either.
#[test]
fn what_may_not_be_delayed_waits_for_room() {
    let layer = layer(delayed());
    for (a, b, call) in
        [(unix(&layer), 0), (tcp(&layer), 1), (tcp(&layer), 2)].map(|((a, b), call)| (a, b, call))
    {
        a.set_option(SO_SNDBUF, 5000).expect("an option");
        let sent = fill(&a);
        assert!(a.delayed() > 0);
        let before = a.delayed();
        let (reader, _) = rustix::pipe::pipe().expect("a pipe");
        let flags = SendFlags::DONTWAIT;
        let result = match call {
            0 => pass(&a, b"x", &[&reader], flags),
            1 => a.send(b"x", flags | SendFlags::OOB),
            _ => a.send(b"x", flags | SendFlags::MORE),
        };
        assert_eq!(result, Err(Errno::AGAIN));
        assert!(a.delayed() <= before);
        // A call that may wait is the last one of the stream.
        let thread = std::thread::spawn(move || {
            let result = match call {
                0 => pass(&a, b"x", &[&reader], SendFlags::empty()),
                1 => a.send(b"x", SendFlags::OOB),
                _ => a.send(b"x", SendFlags::MORE),
            };
            assert_eq!(result, Ok(1));
        });
        b.set_option(SO_OOBINLINE, true).expect("an option");
        let (found, error) = recv_all(&b);
        thread.join().expect("no panic");
        assert_eq!((found.len() as u64, found.last(), error), (sent + 1, Some(&b'x'), None));
        assert!(found[..sent as usize].iter().copied().eq((0..sent).map(fill_byte)));
    }
}

/// The kernel has no room, but the queue has.
#[test]
fn an_urgent_byte_is_not_delayed() {
    let layer = layer(delayed());
    let (a, _b) = tcp(&layer);
    loop {
        match rustix::net::send(a.fd(), &[0; 4096], SendFlags::DONTWAIT) {
            Ok(_) => {}
            Err(errno) => break assert_eq!(errno, Errno::AGAIN),
        }
    }
    send(&a, b"1");
    assert_eq!(a.delayed(), 1);
    for flags in [SendFlags::OOB, SendFlags::MORE] {
        assert_eq!(a.send(b"x", flags | SendFlags::DONTWAIT), Err(Errno::AGAIN));
    }
    assert_eq!(a.delayed(), 1);
}

/// Returns byte `number` of [`fill`], which begins each piece at the end of the previous one.
fn fill_byte(number: u64) -> u8 {
    byte(number)
}

#[test]
fn a_message_of_a_stream_that_was_read_ahead_has_no_name() {
    let layer = layer(options((When::Always, When::Never)));
    let (a, b) = tcp(&layer);
    send(&a, b"12345");
    read_ahead(&b);
    let (bytes, message) = receive(&b, 100, RecvFlags::empty()).expect("bytes");
    assert_eq!(bytes, b"2345");
    assert!(message.received.from.is_none() && message.control.is_empty());
    // `MSG_TRUNC` drops bytes in memory and behind it.
    send(&a, b"6789");
    read_ahead(&b);
    let mut none = [0xee; 2];
    assert_eq!(b.recv(&mut none, RecvFlags::TRUNC), Ok(2));
    assert_eq!((none, recv(&b, RecvFlags::empty())), ([0xee; 2], Ok(b"9".into())));
    send(&a, b"abcd");
    assert_eq!(b.recv(&mut none, RecvFlags::TRUNC | RecvFlags::WAITALL), Ok(2));
    assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"cd".into()));
}

#[test]
fn datagrams_have_the_name_of_their_sender() {
    let layer = layer(delayed());
    let make = || {
        let socket = layer.socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        socket
    };
    let (a, b): (Socket<Kernel>, _) = (make(), make());
    let (from, to) = (a.local_address().ok(), b.local_address().expect("an address"));
    let pieces = [IoSlice::new(b"two "), IoSlice::new(b"pieces")];
    assert_eq!(a.send_message(&pieces, &[], SendFlags::empty(), Some(&to)), Ok(10));
    assert_eq!(a.send_to(b"next", SendFlags::empty(), &to), Ok(4));
    let (bytes, message) = receive(&b, 0, RecvFlags::empty()).expect("one");
    assert_eq!((bytes.as_slice(), message.received.from), (&b"two pieces"[..], from.clone()));
    let received = b.recv_from(&mut [0; 9], RecvFlags::empty()).expect("one");
    assert_eq!((received.bytes, received.from), (4, from));
}

/// A stream of TCP ignores an address, and one of another family refuses it; the layer never loses it.
#[test]
fn an_address_of_a_stream_is_for_the_kernel_to_judge() {
    for mode in [PLAIN].into_iter().chain(MODES) {
        let layer = layer(options(mode));
        let to = SocketAddrUnix::new("/nowhere").expect("a path").into();
        let (a, b) = unix(&layer);
        let fd = a.fd();
        let none = SendFlags::NOSIGNAL;
        assert_eq!(rustix::net::sendto(fd, b"x", none, &to), Err(Errno::ISCONN), "the kernel");
        send(&a, b"before");
        let (reader, _) = rustix::pipe::pipe().expect("a pipe");
        let rights = [SendControl::Rights(&[&reader])];
        for control in [&[][..], &rights[..]] {
            let sent =
                a.send_message(&[IoSlice::new(b"x")], control, SendFlags::empty(), Some(&to));
            assert_eq!(sent, Err(Errno::ISCONN), "{mode:?}");
        }
        assert_eq!(recv(&b, RecvFlags::empty()), Ok(b"before".into()));

        let (a, b) = tcp(&layer);
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 9)).into();
        for _ in 0..20 {
            assert_eq!(a.send_to(b"12", SendFlags::empty(), &elsewhere), Ok(2));
        }
        layer.flush();
        let mut bytes = [0; 40];
        assert_eq!(b.recv(&mut bytes, RecvFlags::WAITALL), Ok(40), "{mode:?}");
        // With `MSG_FASTOPEN` the address is the peer's.
        let listener = crate::support::listener(&layer);
        let c = layer.socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let fast_open = SendFlags::from_bits_retain(0x2000_0000);
        let to = listener.local_address().expect("an address");
        match c.send_to(b"first", fast_open, &to) {
            Ok(count) => {
                assert_eq!(count, 5);
                let d = listener.accept().expect("a connection").0;
                assert_eq!(recv(&d, RecvFlags::empty()), Ok(b"first".into()));
            }
            // The administrator may have disabled it.
            Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP),
        }
    }
}

/// A file server sends a header by `write(2)` and the file by `sendfile(2)` in this way.
#[test]
fn what_the_kernel_sends_itself_follows_what_is_delayed() {
    let path = std::env::temp_dir().join(format!("sakia-sendfile-{}", std::process::id()));
    std::fs::write(&path, b"the file").expect("a file");
    let file = std::fs::File::open(&path).expect("a file");
    std::fs::remove_file(&path).expect("a file");
    for mode in [PLAIN].into_iter().chain(MODES) {
        let layer = layer(options(mode));
        for (a, b) in [unix(&layer), tcp(&layer)] {
            send(&a, b"header ");
            let fd = a.hand_back().expect("room");
            let mut offset = 0;
            assert_eq!(rustix::fs::sendfile(fd, &file, Some(&mut offset), 8), Ok(8));
            send(&a, b" end");
            assert_eq!(a.delayed(), 0, "{mode:?}: it is the kernel's");
            let mut found = [0; 19];
            assert_eq!(b.recv(&mut found, RecvFlags::WAITALL), Ok(19));
            assert_eq!(&found, b"header the file end", "{mode:?}");
        }
    }
}
