//! Each request, against the call of `std` or of the kernel that does the same.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use sakia_driver::{
    Buffer, CURRENT_POSITION, DirectoryEntries, Domain, FileHandle, Foreign, Loop, OpenHow,
    PollEvents, Request, SetTime, ShutdownHow, SocketType, StatxTime, Target, Value,
};

use super::{errno, file_of, finish, next, on_both, path, perform, value};
use crate::support::TempDir;

fn open(file: &Path, flags: i32, mode: u32) -> Request {
    let how = OpenHow { flags: flags as u64, mode: mode.into(), resolve: 0 };
    Request::Open { directory: None, path: path(file), how }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

#[test]
fn files_are_opened_written_read_and_measured() {
    on_both(|ring| {
        let folder = TempDir::new();
        let name = folder.join("file");
        let file = file_of(ring, open(&name, libc::O_RDWR | libc::O_CREAT, 0o600));
        let text = bytes(10_000);
        let (count, memory) = value(ring, Request::write(&file, text.clone().into(), 100));
        assert_eq!(count, text.len());
        let Value::Buffer(Buffer::Vector(back)) = memory else { panic!("{memory:?}") };
        assert_eq!(back, text);
        assert_eq!(fs::read(&name).unwrap()[100..], text);

        let outcome = perform(ring, Request::read(&file, Vec::with_capacity(500).into(), 9_900));
        assert_eq!(outcome.result.as_ref().copied().unwrap(), 200);
        assert_eq!(outcome.into_vec().unwrap(), text[9_800..]);

        let buffers = vec![Buffer::Vector(vec![0; 3]), Buffer::Vector(vec![0; 5])];
        let parts = Request::ReadVectored { file: (&file).into(), buffers, offset: 100, flags: 0 };
        let (count, memory) = value(ring, parts);
        let Value::Buffers(parts) = memory else { panic!("{memory:?}") };
        let parts: Vec<u8> = parts.into_iter().flat_map(|part| part.into_vec().unwrap()).collect();
        assert_eq!((count, &parts[..]), (8, &text[..8]));
        let buffers = vec![Buffer::Vector(b"ab".to_vec()), Buffer::Vector(b"cde".to_vec())];
        value(ring, Request::WriteVectored { file: (&file).into(), buffers, offset: 0, flags: 0 });
        assert_eq!(fs::read(&name).unwrap()[..6], *b"abcde\0");

        value(ring, Request::Truncate { file: (&file).into(), len: 3_000 });
        value(ring, Request::Allocate { file: (&file).into(), mode: 0, offset: 0, len: 5_000 });
        value(ring, Request::Advise { file: (&file).into(), offset: 0, len: 0, advice: 0 });
        for data_only in [false, true] {
            value(ring, Request::Sync { file: (&file).into(), data_only });
        }
        let known = fs::metadata(&name).unwrap();
        for (directory, name) in [(Some((&file).into()), None), (None, Some(path(&name)))] {
            let (_, stat) = value(ring, Request::Stat { directory, path: name, flags: 0 });
            let Value::Stat(stat) = stat else { panic!("{stat:?}") };
            assert_eq!((stat.size, stat.inode, stat.size), (known.len(), known.ino(), 5_000));
        }
        let (_, facts) = value(ring, Request::StatFs { file: (&file).into() });
        assert!(
            matches!(facts, Value::StatFs(facts) if facts.block_size > 0),
            "a file system has blocks"
        );

        let copy = file_of(ring, open(&folder.join("copy"), libc::O_RDWR | libc::O_CREAT, 0o600));
        let range = Request::CopyRange {
            from: (&file).into(),
            from_offset: 1,
            to: (&copy).into(),
            to_offset: 2,
            len: 500,
        };
        let copied = value(ring, range).0;
        assert_eq!(
            fs::read(folder.join("copy")).unwrap()[2..],
            fs::read(&name).unwrap()[1..=copied]
        );
        assert!(copied > 0);
        assert_eq!(errno(ring, open(&folder.join("none"), libc::O_RDONLY, 0)), libc::ENOENT);
        assert_eq!(errno(ring, Request::read(&file, Vec::new().into(), 0)), libc::EINVAL);
    });
}

#[test]
fn names_are_made_read_and_removed() {
    on_both(|ring| {
        let folder = TempDir::new();
        let at = file_of(ring, open(folder.path(), libc::O_RDONLY | libc::O_DIRECTORY, 0));
        let directory = || Some(Target::from(&at));
        let name = |name: &str| std::ffi::CString::new(name).unwrap();
        value(
            ring,
            Request::MakeDirectory { directory: directory(), path: name("sub"), mode: 0o700 },
        );
        fs::write(folder.join("sub/one"), "1").unwrap();
        let rename = Request::Rename {
            from_directory: directory(),
            from: name("sub/one"),
            to_directory: directory(),
            to: name("two"),
            flags: 0,
        };
        value(ring, rename);
        let link = Request::Link {
            from_directory: directory(),
            from: name("two"),
            to_directory: directory(),
            to: name("three"),
            flags: 0,
        };
        value(ring, link);
        value(
            ring,
            Request::Symlink { target: name("two"), directory: directory(), link: name("four") },
        );
        let request = Request::ReadLink {
            directory: directory(),
            path: name("four"),
            buffer: Vec::with_capacity(99).into(),
        };
        let target = perform(ring, request);
        assert_eq!(
            (target.result.as_ref().copied().unwrap(), target.into_vec()),
            (3, Some(b"two".to_vec()))
        );

        let list = Request::ReadDirectory { file: (&at).into(), buffer: vec![0; 4096].into() };
        let list = perform(ring, list);
        let count = list.result.as_ref().copied().unwrap();
        let bytes = list.into_vec().unwrap();
        let mut names: Vec<_> =
            DirectoryEntries::new(&bytes[..count]).map(|entry| entry.name.to_vec()).collect();
        names.sort();
        let expected: Vec<&[u8]> = vec![b".", b"..", b"four", b"sub", b"three", b"two"];
        assert_eq!(names, expected);
        lent_memory_is_filled(ring, &at, &bytes[..count]);

        let mode =
            |path| Request::ChangeMode { directory: directory(), path, mode: 0o640, flags: 0 };
        value(ring, mode(Some(name("two"))));
        assert_eq!(
            fs::metadata(folder.join("three")).unwrap().permissions().mode() & 0o7777,
            0o640
        );
        let two = file_of(ring, open(&folder.join("two"), libc::O_RDWR, 0));
        let itself = || Some(Target::from(&two));
        value(ring, Request::ChangeMode { directory: itself(), path: None, mode: 0o600, flags: 0 });
        assert_eq!(fs::metadata(folder.join("two")).unwrap().permissions().mode() & 0o7777, 0o600);
        let (uid, gid) = (
            fs::metadata(folder.path()).unwrap().uid(),
            fs::metadata(folder.path()).unwrap().gid(),
        );
        for path in [None, Some(name(""))] {
            let flags = if path.is_some() { libc::AT_EMPTY_PATH as u32 } else { 0 };
            let (uid, gid) = (Some(uid), Some(gid));
            value(ring, Request::ChangeOwner { directory: itself(), path, uid, gid, flags });
        }
        let time = StatxTime::new(1_000, 5);
        for (directory, path) in [(itself(), None), (directory(), Some(name("two")))] {
            let (accessed, modified) = (SetTime::Keep, SetTime::To(time));
            value(ring, Request::SetTimes { directory, path, accessed, modified, flags: 0 });
            assert_eq!(fs::metadata(folder.join("two")).unwrap().mtime(), 1_000);
        }
        value(ring, Request::Unlink { directory: directory(), path: name("two"), flags: 0 });
        let removal = libc::AT_REMOVEDIR as u32;
        value(ring, Request::Unlink { directory: directory(), path: name("sub"), flags: removal });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let missing = Request::Unlink { directory: directory(), path: name("two"), flags: 0 };
        assert_eq!(errno(ring, missing), libc::ENOENT);
        let nothing = Request::Stat { directory: None, path: None, flags: 0 };
        assert_eq!(errno(ring, nothing), libc::EBADF);
    });
}

/// Lends memory to one request, whose outcome is taken before the memory is looked at.
fn foreign(memory: &mut [u8]) -> Buffer {
    // SAFETY: each request of these tests ends before the next line looks at its memory.
    Buffer::Foreign(unsafe { Foreign::new(memory.as_mut_ptr(), memory.len()) })
}

/// Reads a link and a directory into memory of another owner, as far as there is room.
fn lent_memory_is_filled(ring: &mut Loop, at: &FileHandle, listed: &[u8]) {
    let mut memory = vec![0x5a_u8; 8192];
    for (room, expected) in [(2, 2), (9, 3)] {
        let (directory, buffer) = (Some(at.into()), foreign(&mut memory[..room]));
        let request = Request::ReadLink { directory, path: c"four".into(), buffer };
        assert_eq!(value(ring, request).0, expected);
    }
    assert_eq!(memory[..5], *b"twoZZ");
    at.with_fd(|fd| rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(0))).unwrap().unwrap();
    let list = |buffer| Request::ReadDirectory { file: at.into(), buffer };
    let buffer = foreign(&mut memory);
    let (count, back) = value(ring, list(buffer));
    assert!(matches!(back, Value::Buffer(Buffer::Foreign(_))));
    let names = |bytes| DirectoryEntries::new(bytes).map(|entry| entry.name.to_vec());
    assert!(names(&memory[..count]).eq(names(listed)));
    let room = foreign(&mut memory[..8]);
    assert_eq!(value(ring, list(room)).0, 0, "the end");
}

fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

#[test]
fn streams_are_made_connected_and_shut_down() {
    on_both(|ring| {
        let socket =
            Request::Socket { domain: Domain::INET, kind: SocketType::STREAM, protocol: 0 };
        let listener = file_of(ring, socket);
        value(
            ring,
            Request::Bind { socket: (&listener).into(), address: Box::new(local().into()) },
        );
        value(ring, Request::Listen { socket: (&listener).into(), backlog: 8 });
        let address = local_address(&listener);
        let mut peer = TcpStream::connect(address).unwrap();
        let (_, connection) = value(ring, Request::Accept { socket: (&listener).into() });
        let Value::Connection(connection) = connection else { panic!("{connection:?}") };
        let (connection, from) = *connection;
        assert_eq!(from.inet(), Some(peer.local_addr().unwrap()));

        let send =
            Request::Send { socket: (&connection).into(), buffer: bytes(1000).into(), flags: 0 };
        assert_eq!(value(ring, send).0, 1000);
        let mut got = vec![0; 1000];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got, bytes(1000));
        ring.submit(Request::Poll { file: (&connection).into(), events: PollEvents::READABLE }, 5)
            .unwrap();
        ring.submit(
            Request::Receive { socket: (&connection).into(), buffer: vec![0; 10].into(), flags: 0 },
            6,
        )
        .unwrap();
        peer.write_all(b"hello").unwrap();
        let mut outcomes = finish(ring);
        let events = outcomes.remove(&5).unwrap().result.unwrap();
        assert!(PollEvents(events as u32).contains(PollEvents::READABLE));
        let received = outcomes.remove(&6).unwrap();
        assert_eq!(received.result.as_ref().copied().unwrap(), 5);
        assert_eq!(received.into_vec().unwrap()[..5], *b"hello");
        value(ring, Request::Shutdown { socket: (&connection).into(), how: ShutdownHow::Sends });
        assert_eq!(peer.read(&mut got).unwrap(), 0);
        let send =
            Request::Send { socket: (&connection).into(), buffer: bytes(9).into(), flags: 0 };
        assert_eq!(errno(ring, send), libc::EPIPE);

        let listener = TcpListener::bind(local()).unwrap();
        let socket =
            Request::Socket { domain: Domain::INET, kind: SocketType::STREAM, protocol: 0 };
        let client = file_of(ring, socket);
        let address = Box::new(listener.local_addr().unwrap().into());
        value(ring, Request::Connect { socket: (&client).into(), address });
        let from = listener.accept().unwrap().1;
        assert_eq!(from, local_address(&client));
    });
}

fn local_address(socket: &FileHandle) -> SocketAddr {
    let name = socket.with_fd(|fd| rustix::net::getsockname(fd)).unwrap();
    name.unwrap().try_into().unwrap()
}

#[test]
fn datagrams_have_addresses_and_control_messages() {
    on_both(|ring| {
        let own = UdpSocket::bind(local()).unwrap();
        let peer = UdpSocket::bind(local()).unwrap();
        let address = peer.local_addr().unwrap();
        let own_address = own.local_addr().unwrap();
        let own = FileHandle::new(own);
        let message = Request::SendMessage {
            socket: (&own).into(),
            buffer: b"ping".to_vec().into(),
            address: Box::new(address.into()),
            control: Box::default(),
            flags: 0,
        };
        assert_eq!(value(ring, message).0, 4);
        let mut got = [0; 10];
        assert_eq!(peer.recv_from(&mut got).unwrap(), (4, own_address));
        peer.send_to(b"pong!", own_address).unwrap();
        let message = Request::ReceiveMessage {
            socket: (&own).into(),
            buffer: vec![0; 10].into(),
            control_bytes: 64,
            flags: 0,
        };
        let (_, message) = value(ring, message);
        let Value::Message(message, _) = message else { panic!("{message:?}") };
        assert_eq!((message.0.len, message.0.from.inet()), (5, Some(address)));
    });
}

#[test]
fn many_connections_are_accepted_by_one_request() {
    on_both(|ring| {
        let listener = TcpListener::bind(local()).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = FileHandle::new(listener);
        let ticket = ring.submit(Request::AcceptMany { socket: (&listener).into() }, 1).unwrap();
        for _ in 0..5 {
            let peer = TcpStream::connect(address).unwrap();
            let outcome = next(ring);
            assert_eq!((outcome.token, outcome.more, ring.under_way()), (1, true, 1));
            let connection = outcome.into_file().unwrap();
            let name = connection.with_fd(|fd| rustix::net::getpeername(fd)).unwrap();
            assert_eq!(
                SocketAddr::try_from(name.unwrap().unwrap()).unwrap(),
                peer.local_addr().unwrap()
            );
        }
        ring.cancel(ticket);
        let end = finish(ring).remove(&1).unwrap();
        assert_eq!(end.result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        // Connections that nobody takes are closed with the loop.
        let ticket = ring.submit(Request::AcceptMany { socket: (&listener).into() }, 2).unwrap();
        let mut peer = TcpStream::connect(address).unwrap();
        ring.wait(sakia_driver::Wait::Forever).unwrap();
        ring.cancel(ticket);
        drop(ring.take().unwrap());
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        finish(ring);
    });
}

#[test]
fn attempts_without_a_loop_do_what_they_do_with_one() {
    let folder = TempDir::new();
    let name = folder.join("file");
    fs::write(&name, bytes(5_000)).unwrap();
    let options = fs::File::options().read(true).write(true).open(&name).unwrap();
    let file = FileHandle::new(options);
    let mut buf = [0; 100];
    for (offset, expected) in [(0, 100), (4_950, 50), (6_000, 0)] {
        let result = file.try_read(&mut buf, Some(offset));
        let count = result.expect("it was just written").unwrap();
        assert_eq!(count, expected);
        assert_eq!(buf[..count], bytes(6_000)[offset as usize..][..count]);
    }
    assert_eq!(file.try_read(&mut buf, None).unwrap().unwrap(), 100);
    assert_eq!(file.try_read(&mut buf, None).unwrap().unwrap(), 100);
    assert_eq!(buf, bytes(200)[100..]);
    let error = file.try_read(&mut [], Some(0)).unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    if let Some(result) = file.try_write(b"xyz", Some(10)) {
        assert_eq!(result.unwrap(), 3);
        let mut got = [0; 3];
        fs::File::open(&name).unwrap().read_exact_at(&mut got, 10).unwrap();
        assert_eq!(&got, b"xyz");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let reader = FileHandle::new(reader);
    assert!(reader.try_read(&mut buf, None).is_none(), "it would wait");
    drop(writer);
}

#[test]
fn a_request_for_a_stream_takes_no_offset_but_the_position() {
    on_both(|ring: &mut Loop| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = FileHandle::new(reader);
        assert_eq!(errno(ring, Request::read(&reader, vec![0; 4].into(), 0)), libc::ESPIPE);
        writer.write_all(b"abc").unwrap();
        let read = perform(ring, Request::read(&reader, vec![0; 4].into(), CURRENT_POSITION));
        assert_eq!(read.result.unwrap(), 3);
    });
}
