//! Calls on file handles that never wait, against the plain calls of the kernel.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, inotify};
use sakia_driver::{Driver, Epoll, FileHandle, Loop, OpenHow, Request, StatxResult, Value};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, pattern};
use sakia_testkit::random::Random;
use sakia_testkit::settings::patience;

use super::{on_both, path, perform};
use crate::support::{TempDir, skip};

const MORE_THAN_A_CALL: usize = (256 << 10) + 1000;

/// Tries a call until it is made. The kernel may have dropped a name from its cache, and a test that mounts
/// something may just have the table.
#[track_caller]
fn made<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    while begin.elapsed() < patience() {
        if let Some(result) = attempt() {
            return result;
        }
        thread::yield_now(); // to one that has the lock of the handle
    }
    panic!("it need not wait")
}

fn errno_of<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn how(flags: OFlags) -> OpenHow {
    OpenHow { flags: flags.bits().into(), ..OpenHow::default() }
}

fn try_open(name: &Path, flags: OFlags) -> Option<io::Result<FileHandle>> {
    FileHandle::try_open(None, &path(name), how(flags))
}

fn try_stat(name: &Path, flags: AtFlags) -> Option<io::Result<StatxResult>> {
    FileHandle::try_stat_at(None, &path(name), flags.bits())
}

/// Returns whether a name may be looked up without a wait on this kernel.
fn has_lookups() -> bool {
    (0..1000).any(|_| FileHandle::try_stat_at(None, c"/", 0).is_some())
}

/// Asserts that an attempt is refused with this error. Most of them the kernel does not tell before it could
/// wait; that a name is missing it does.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(
    mut attempt: impl FnMut() -> Option<io::Result<T>>,
    expected: i32,
    name: &str,
) {
    let result = match expected {
        libc::ENOENT => Some(made(attempt)),
        _ => (0..100).find_map(|_| attempt()),
    };
    if let Some(result) = result {
        assert_eq!(errno_of(result), expected, "{name}");
    }
}

fn fifo(name: &Path) {
    rustix::fs::mknodat(CWD, name, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
}

// ---- sockets -------------------------------------------------------------------------------------------

fn handles<T: Into<OwnedFd>>((near, far): (T, T)) -> [FileHandle; 2] {
    [near, far].map(|end| FileHandle::new(end.into()))
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    (near, far)
}

/// Bytes of both directions of a stream, as far as they have to arrive: each call moves what the kernel's own
/// call would, or nothing.
#[test]
fn streams_move_what_they_have() {
    for (seed, [near, far]) in
        [handles(UnixStream::pair().unwrap()), handles(tcp())].into_iter().enumerate()
    {
        let mut random = Random::new(seed as u64);
        let (mut under_way, mut next) = (VecDeque::<u8>::new(), 0_u8);
        let (mut was_full, mut was_empty) = (0, 0);
        for step in 0..4000 {
            let bits = random.below(20);
            let len = random.below(1 << bits) as usize + 1;
            let sends = if step / 500 % 2 == 0 { 9 } else { 3 };
            if random.below(10) < sends {
                let bytes: Vec<u8> = (0..len).map(|at| next.wrapping_add(at as u8)).collect();
                match near.try_send(&bytes, 0) {
                    Some(sent) => {
                        let sent = sent.unwrap();
                        assert!((1..=len).contains(&sent));
                        under_way.extend(&bytes[..sent]);
                        next = next.wrapping_add(sent as u8);
                    }
                    None => {
                        was_full += 1;
                        assert!(!under_way.is_empty());
                    }
                }
                continue;
            }
            let mut buf = vec![0; len];
            let peeked = far.try_recv(&mut buf[..1], libc::MSG_PEEK as u32);
            match far.try_recv(&mut buf, 0) {
                Some(count) => {
                    let count = count.unwrap();
                    assert!((1..=len).contains(&count));
                    assert!(under_way.drain(..count).eq(buf[..count].iter().copied()));
                }
                None => {
                    was_empty += 1;
                    assert!(peeked.is_none());
                    assert!(seed == 1 || under_way.is_empty(), "TCP may still be carrying them");
                }
            }
        }
        assert!(was_full > 0 && was_empty > 0);
    }
}

#[test]
fn a_stream_is_read_in_parts_and_a_message_is_not_cut() {
    let bytes = pattern(MORE_THAN_A_CALL);
    let mut room = vec![0; 2 * MORE_THAN_A_CALL];
    let room_for_all = |socket: &OwnedFd| {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 1 << 20).unwrap();
        rustix::net::sockopt::socket_send_buffer_size(socket).unwrap() > MORE_THAN_A_CALL + 4096
    };
    let (near, far) = UnixStream::pair().unwrap();
    let (near, far) = (OwnedFd::from(near), OwnedFd::from(far));
    let has_room = room_for_all(&near);
    let [near, far] = handles((near, far));
    let sent = near.try_send(&bytes, 0).unwrap().unwrap();
    assert!(sent <= 256 << 10);
    near.try_send(&bytes, 0).map(Result::unwrap);
    assert!(far.try_recv(&mut room, 0).unwrap().unwrap() <= 256 << 10);

    let (near, far) = UnixDatagram::pair().unwrap();
    let near = OwnedFd::from(near);
    if !has_room || !room_for_all(&near) {
        skip!("sockets have no room for {MORE_THAN_A_CALL} bytes");
    }
    let [near, far] = handles((near, far.into()));
    assert_eq!(near.try_send(&bytes, 0).unwrap().unwrap(), bytes.len());
    assert_eq!(far.try_recv(&mut room, 0).unwrap().unwrap(), bytes.len());
    assert_eq!(room[..bytes.len()], bytes);
    // The rest of one that is too long is lost, as with `recv(2)`.
    near.try_send(b"hello", 0).unwrap().unwrap();
    assert_eq!(far.try_recv(&mut room[..2], 0).unwrap().unwrap(), 2);
    assert!(far.try_recv(&mut room, 0).is_none());
    assert_eq!(near.try_send(b"", 0).unwrap().unwrap(), 0);
    assert_eq!(far.try_recv(&mut room, 0).unwrap().unwrap(), 0, "an empty one");
    while near.try_send(&bytes[..1000], 0).is_some() {}
    let plainly = near.with_fd(|fd| rustix::net::send(fd, b"x", rustix::net::SendFlags::DONTWAIT));
    assert_eq!(plainly.unwrap(), Err(rustix::io::Errno::AGAIN));
}

#[test]
fn sockets_and_other_files_refuse_as_with_the_plain_calls() {
    let mut buf = [0; 8];
    let [near, far] = handles(UnixStream::pair().unwrap());
    for flags in [libc::MSG_OOB, libc::MSG_TRUNC, libc::MSG_WAITALL, i32::MIN] {
        assert_eq!(errno_of(near.try_recv(&mut buf, flags as u32).unwrap()), libc::EINVAL);
    }
    assert_eq!(errno_of(near.try_send(&buf, libc::MSG_OOB as u32).unwrap()), libc::EINVAL);
    assert_eq!(errno_of(near.try_recv(&mut [], 0).unwrap()), libc::EINVAL);
    let dont_wait = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE) as u32;
    assert_eq!(near.try_send(b"x", dont_wait).unwrap().unwrap(), 1);
    assert_eq!(far.try_recv(&mut buf, libc::MSG_DONTWAIT as u32).unwrap().unwrap(), 1);
    drop(far);
    assert_eq!(near.try_recv(&mut buf, 0).unwrap().unwrap(), 0, "the end");
    assert_eq!(errno_of(near.try_send(&buf, 0).unwrap()), libc::EPIPE);

    let (near, far) = tcp();
    (&near).write_all(b"not read").unwrap();
    let near = FileHandle::new(OwnedFd::from(near));
    let mut poll = [rustix::event::PollFd::new(&far, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut poll, None).unwrap();
    drop(far); // resets the connection
    near.with_fd(|fd| {
        rustix::event::poll(
            &mut [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)],
            None,
        )
    })
    .unwrap()
    .unwrap();
    assert_eq!(errno_of(near.try_recv(&mut buf, 0).unwrap()), libc::ECONNRESET);

    let folder = TempDir::new();
    let file = FileHandle::new(fs::File::create(folder.join("file")).unwrap());
    let (reader, _writer) = io::pipe().unwrap();
    let listener = UnixListener::bind(folder.join("socket")).unwrap();
    let listener = FileHandle::new(OwnedFd::from(listener));
    for (file, receive, send) in [
        (file, libc::ENOTSOCK, libc::ENOTSOCK),
        (FileHandle::new(reader), libc::ENOTSOCK, libc::ENOTSOCK),
        (listener, libc::EINVAL, libc::ENOTCONN),
    ] {
        assert_eq!(errno_of(file.try_recv(&mut buf, 0).unwrap()), receive);
        assert_eq!(errno_of(file.try_send(&buf, 0).unwrap()), send);
    }
}

/// The default action of the signal ends the process, as in a program in C.
#[test]
fn no_call_raises_a_signal() {
    let child = sakia_testkit::forked::run(|| {
        // SAFETY: the child has one thread, which has set no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let writers = || {
            let socket = FileHandle::new(OwnedFd::from(UnixStream::pair().unwrap().0));
            let (near, far) = tcp();
            near.shutdown(std::net::Shutdown::Write).unwrap();
            let shut = FileHandle::new(OwnedFd::from(near));
            (FileHandle::new(io::pipe().unwrap().1), [socket, shut], far)
        };
        let (pipe, sockets, _far) = writers();
        for socket in sockets {
            assert_eq!(errno_of(socket.try_send(b"x", 0).unwrap()), libc::EPIPE);
        }
        assert_eq!(errno_of(pipe.try_write(b"x", None).unwrap()), libc::EPIPE);
        let (_, sockets, _far) = writers();
        for socket in sockets {
            assert_eq!(errno_of(socket.try_write(b"x", None).unwrap()), libc::EPIPE);
        }
    });
    child.unwrap();
}

// ---- any file ------------------------------------------------------------------------------------------

#[test]
fn a_closed_file_is_an_error_of_each_call() {
    on_both(|ring| {
        let (reader, _writer) = io::pipe().unwrap();
        let file = FileHandle::new(reader);
        perform(ring, Request::Close { file: file.clone() }).result.unwrap();
        let mut buf = [0; 8];
        assert_eq!(errno_of(file.try_read(&mut buf, None).unwrap()), libc::EBADF);
        assert_eq!(errno_of(file.try_write(&buf, None).unwrap()), libc::EBADF);
        assert_eq!(errno_of(file.try_recv(&mut buf, 0).unwrap()), libc::EBADF);
        assert_eq!(errno_of(file.try_send(&buf, 0).unwrap()), libc::EBADF);
        assert_eq!(errno_of(file.try_stat().unwrap()), libc::EBADF);
        let at = Some(&file);
        let stat = made(|| FileHandle::try_stat_at(at, c"/", 0));
        assert_eq!(errno_of(stat), libc::EBADF);
        let opened = made(|| FileHandle::try_open(at, c"x", OpenHow::default()));
        assert_eq!(errno_of(opened), libc::EBADF);
    });
}

/// Threads try calls on a socket while a loop closes it: each is made on that socket, or finds it closed.
#[test]
fn a_file_may_be_closed_meanwhile() {
    for round in 0..100 {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&[7; 100]).unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        let is_closed = AtomicBool::new(false);
        thread::scope(|scope| {
            for index in 0..2 {
                let (file, is_closed) = (file.clone(), &is_closed);
                scope.spawn(move || {
                    let mut buf = [0; 3];
                    loop {
                        let was_closed = is_closed.load(Ordering::Acquire);
                        let (received, stat) = (file.try_recv(&mut buf, 0), file.try_stat());
                        match received {
                            Some(Ok(count)) => assert_eq!(buf[..count], [7; 3][..count]),
                            Some(Err(error)) => assert_eq!(error.raw_os_error(), Some(libc::EBADF)),
                            None => {}
                        }
                        match stat {
                            Some(Ok(stat)) => {
                                assert_eq!(u32::from(stat.mode) & libc::S_IFMT, libc::S_IFSOCK)
                            }
                            Some(Err(error)) => assert_eq!(error.raw_os_error(), Some(libc::EBADF)),
                            None => {}
                        }
                        if was_closed {
                            assert_eq!(errno_of(made(|| file.try_send(b"x", 0))), libc::EBADF);
                            return;
                        }
                        if index == 1 {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut ring = match round % 2 {
                0 => Loop::new().unwrap(),
                _ => Loop::on(Driver::new(Epoll::new().unwrap())).unwrap(),
            };
            perform(&mut ring, Request::Close { file: file.clone() }).result.unwrap();
            is_closed.store(true, Ordering::Release);
        });
        assert!(matches!(far.read(&mut [0]), Ok(0) | Err(_)), "the other end is closed");
    }
}

/// Compares the fields that each kernel and file has.
#[track_caller]
fn assert_same(stat: &StatxResult, expected: &rustix::fs::Statx) {
    let time = |time: &rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
    let ours = |time: &sakia_driver::StatxTime| (time.seconds, time.nanoseconds);
    assert_eq!(
        (stat.inode, stat.mode, stat.size),
        (expected.stx_ino, expected.stx_mode, expected.stx_size)
    );
    assert_eq!((stat.dev_major, stat.dev_minor), (expected.stx_dev_major, expected.stx_dev_minor));
    assert_eq!(
        (stat.rdev_major, stat.rdev_minor),
        (expected.stx_rdev_major, expected.stx_rdev_minor)
    );
    assert_eq!(
        (stat.uid, stat.gid, stat.links),
        (expected.stx_uid, expected.stx_gid, expected.stx_nlink)
    );
    assert_eq!(ours(&stat.modified), time(&expected.stx_mtime));
    assert_eq!(ours(&stat.changed), time(&expected.stx_ctime));
}

#[test]
fn open_files_have_the_status_that_fstat_tells() {
    let folder = TempDir::new();
    let name = folder.join("file");
    fs::write(&name, pattern(1234)).unwrap();
    let shared = Path::new("/dev/shm").join(format!("sakia-attempts-{}", std::process::id()));
    fs::write(&shared, "in memory").unwrap();
    let open = |name: &Path| OwnedFd::from(fs::File::open(name).unwrap());
    let files: Vec<OwnedFd> = vec![
        open(&name),
        open(folder.path()),
        open(&shared),
        open(Path::new("/dev/null")),
        open(Path::new("/")),
        io::pipe().unwrap().0.into(),
        UnixStream::pair().unwrap().0.into(),
        UnixDatagram::unbound().unwrap().into(),
        rustix::fs::memfd_create(c"memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        rustix::event::eventfd(7, rustix::event::EventfdFlags::CLOEXEC).unwrap(),
        rustix::fs::open(&name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap(),
    ];
    fs::remove_file(shared).unwrap();
    for file in files {
        let file = FileHandle::new(file);
        for _ in 0..2 {
            let expected = file.with_fd(|fd| {
                rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap()
            });
            assert_same(&made(|| file.try_stat()).unwrap(), &expected.unwrap());
        }
    }
    let file = FileHandle::new(fs::File::options().append(true).open(&name).unwrap());
    for len in 1235..1300 {
        file.with_fd(|fd| rustix::io::write(fd, b"x")).unwrap().unwrap();
        assert_eq!(made(|| file.try_stat()).unwrap().size, len);
    }
    let made_up = FileHandle::new(fs::File::open("/proc/self/stat").unwrap());
    assert!(made(|| made_up.try_stat()).unwrap().is_file());
}

#[test]
fn paths_have_the_status_that_stat_tells() {
    if !has_lookups() {
        skip!("the kernel has no lookups that refuse to wait");
    }
    let folder = TempDir::new();
    let at = |name: &str| folder.join(name);
    fs::write(at("file"), "content").unwrap();
    fs::create_dir(at("inner")).unwrap();
    fifo(&at("fifo"));
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let directory = FileHandle::new(fs::File::open(folder.path()).unwrap());
    for name in ["file", "inner", "fifo", "link", "."] {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let expected = rustix::fs::statx(CWD, at(name), flags, StatxFlags::BASIC_STATS).unwrap();
        assert_same(&made(|| try_stat(&at(name), flags)).unwrap(), &expected);
        let name = CString::new(name).unwrap();
        let stat = made(|| FileHandle::try_stat_at(Some(&directory), &name, flags.bits()));
        assert_same(&stat.unwrap(), &expected);
    }
    for (name, expected) in
        [("missing", libc::ENOENT), ("file/x", libc::ENOTDIR), ("loop/x", libc::ELOOP)]
    {
        // A name that is missing has to be known as such.
        for _ in 0..2 {
            fs::symlink_metadata(at(name)).unwrap_err();
        }
        assert_refused(|| try_stat(&at(name), AtFlags::empty()), expected, name);
    }
    // Links and ways up are not followed if there is a mount that has a server, such as that of another test.
    for (name, size) in [("link", 7), ("inner/../file", 7)] {
        if let Some(stat) = (0..100).find_map(|_| try_stat(&at(name), AtFlags::empty())) {
            assert_eq!(stat.unwrap().size, size, "{name}");
        }
    }
    let empty = AtFlags::EMPTY_PATH.bits();
    let itself = made(|| FileHandle::try_stat_at(Some(&directory), c"", empty)).unwrap();
    assert_eq!(itself.inode, rustix::fs::stat(folder.path()).unwrap().st_ino);
    let here = made(|| FileHandle::try_stat_at(None, c"", empty)).unwrap();
    assert_eq!(here.inode, rustix::fs::stat(".").unwrap().st_ino);
    let nothing = made(|| FileHandle::try_stat_at(Some(&directory), c"", 0));
    assert_eq!(errno_of(nothing), libc::ENOENT);
    let no_directory = FileHandle::new(fs::File::open(at("file")).unwrap());
    let below = || FileHandle::try_stat_at(Some(&no_directory), c"x", 0);
    assert_refused(below, libc::ENOTDIR, "below a file");
    for flags in [1 << 20, (AtFlags::STATX_FORCE_SYNC | AtFlags::STATX_DONT_SYNC).bits()] {
        let stat = made(|| FileHandle::try_stat_at(Some(&directory), c"file", flags));
        assert_eq!(errno_of(stat), libc::EINVAL);
    }
}

// ---- opens ---------------------------------------------------------------------------------------------

#[test]
fn files_are_opened_as_by_open() {
    if !has_lookups() {
        skip!("the kernel has no lookups that refuse to wait");
    }
    let folder = TempDir::new();
    let at = |name: &str| folder.join(name);
    fs::write(at("file"), "content").unwrap();
    fs::create_dir(at("inner")).unwrap();
    fs::write(at("inner/file"), "inner").unwrap();
    let flags_of = |file: &FileHandle| {
        file.with_fd(|fd| {
            (rustix::fs::fcntl_getfl(fd).unwrap(), rustix::io::fcntl_getfd(fd).unwrap())
        })
        .unwrap()
    };
    for flags in [
        OFlags::RDONLY,
        OFlags::WRONLY,
        OFlags::RDWR | OFlags::APPEND,
        OFlags::RDONLY | OFlags::NONBLOCK,
        OFlags::RDWR | OFlags::DSYNC,
        OFlags::RDONLY | OFlags::NOFOLLOW,
        OFlags::PATH,
    ] {
        let file = made(|| try_open(&at("file"), flags)).unwrap();
        let plain = rustix::fs::open(at("file"), flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(flags_of(&file), flags_of(&FileHandle::new(plain)), "{flags:?}");
        let expected = fs::metadata(at("file")).unwrap();
        let stat = made(|| file.try_stat()).unwrap();
        assert_eq!(stat.inode, std::os::unix::fs::MetadataExt::ino(&expected));
    }
    let file = made(|| try_open(&at("file"), OFlags::RDWR)).unwrap();
    file.with_fd(|fd| rustix::io::write(fd, b"CON")).unwrap().unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), b"CONtent");
    let directory = made(|| try_open(folder.path(), OFlags::DIRECTORY)).unwrap();
    let inner = made(|| FileHandle::try_open(Some(&directory), c"inner/file", OpenHow::default()));
    let mut buf = [0; 8];
    assert_eq!(inner.unwrap().with_fd(|fd| rustix::io::read(fd, &mut buf)).unwrap(), Ok(5));
    assert_eq!(&buf[..5], b"inner");
}

#[test]
fn opens_are_refused_as_by_open() {
    if !has_lookups() {
        skip!("the kernel has no lookups that refuse to wait");
    }
    let folder = TempDir::new();
    let at = |name: &str| folder.join(name);
    fs::write(at("file"), "content").unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    for _ in 0..2 {
        fs::metadata(at("missing")).unwrap_err();
    }
    let cases = [
        ("missing", OFlags::RDONLY, libc::ENOENT),
        ("file/x", OFlags::RDONLY, libc::ENOTDIR),
        ("file", OFlags::DIRECTORY, libc::ENOTDIR),
        ("socket", OFlags::RDONLY, libc::ENXIO),
        (".", OFlags::RDWR, libc::EISDIR),
        ("loop", OFlags::RDONLY, libc::ELOOP),
        ("link", OFlags::NOFOLLOW, libc::ELOOP),
    ];
    for (name, flags, expected) in cases {
        let plainly = rustix::fs::open(at(name), flags, Mode::empty()).unwrap_err();
        assert_eq!(plainly.raw_os_error(), expected, "{name}");
        assert_refused(|| try_open(&at(name), flags), expected, name);
    }
    let directory = FileHandle::new(fs::File::open(folder.path()).unwrap());
    let beneath = OpenHow { resolve: OpenHow::BENEATH, ..OpenHow::default() };
    for name in [c"..", c"/"] {
        let open = || FileHandle::try_open(Some(&directory), name, beneath);
        assert_refused(open, libc::EXDEV, "out of the bounds");
    }
    let in_root = OpenHow { resolve: OpenHow::IN_ROOT, ..OpenHow::default() };
    made(|| FileHandle::try_open(Some(&directory), c"/file", in_root)).unwrap();
}

#[test]
fn an_open_that_makes_or_cuts_off_is_not_tried() {
    let folder = TempDir::new();
    let name = folder.join("file");
    fs::write(&name, "content").unwrap();
    for flags in [
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::CREATE,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
    ] {
        assert!(try_open(&name, flags).is_none());
        assert!(try_open(&folder.join("new"), flags).is_none());
    }
    assert!(try_open(folder.path(), OFlags::TMPFILE | OFlags::RDWR).is_none());
    for odd in [
        OpenHow { flags: 1 << 40, ..OpenHow::default() },
        OpenHow { mode: 0o600, ..OpenHow::default() },
        OpenHow { resolve: 1 << 40, ..OpenHow::default() },
    ] {
        assert!(FileHandle::try_open(None, &path(&name), odd).is_none(), "{odd:?}");
    }
    assert_eq!(fs::read(&name).unwrap(), b"content");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Even a moment of an open would let a waiting opener of the other end go on.
#[test]
fn fifos_and_devices_are_not_opened() {
    let folder = TempDir::new();
    let name = folder.join("fifo");
    fifo(&name);
    let watch =
        inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, &name, inotify::WatchFlags::OPEN).unwrap();
    let is_opened = || rustix::io::read(&watch, &mut [0; 4096]) != Err(rustix::io::Errno::AGAIN);
    for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::NONBLOCK] {
        for _ in 0..10 {
            assert!(try_open(&name, flags).is_none());
        }
        assert!(try_open(Path::new("/dev/null"), flags).is_none());
        assert!(try_open(Path::new("/dev/tty"), flags).is_none());
    }
    assert!(!is_opened());
    if has_lookups() {
        made(|| try_open(&name, OFlags::PATH)).unwrap();
        made(|| try_stat(&name, AtFlags::empty())).unwrap();
        assert!(!is_opened());
    }
    drop(rustix::fs::open(&name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap());
    assert!(is_opened());
}

/// A name alternates between a file and a FIFO while it is opened.
#[test]
fn what_was_opened_is_a_file() {
    let folder = TempDir::new();
    let [file, fifo_name, new, name] =
        ["file", "fifo", "new", "name"].map(|name| folder.join(name));
    fs::write(&file, "content").unwrap();
    fifo(&fifo_name);
    fs::hard_link(&file, &name).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for other in [&fifo_name, &file] {
                    fs::hard_link(other, &new).unwrap();
                    fs::rename(&new, &name).unwrap();
                    fs::remove_file(&new).ok();
                }
            }
        });
        let opened = (0..10_000).filter_map(|_| try_open(&name, OFlags::RDONLY));
        let is_odd = |file: &FileHandle| !made(|| file.try_stat()).unwrap().is_file();
        let odd = opened.filter_map(Result::ok).find(is_odd);
        is_over.store(true, Ordering::Relaxed);
        assert!(odd.is_none(), "a FIFO without a writer");
    });
}

/// Neither a lookup nor a query needs a descriptor, as far as a program can tell.
#[test]
fn a_query_needs_no_descriptor() {
    let child = sakia_testkit::forked::run(|| {
        let known = FileHandle::new(fs::File::open("/").unwrap());
        made(|| known.try_stat()).unwrap();
        let mut ring = Loop::on(Driver::new(Epoll::new().unwrap())).unwrap();
        let stat = || Request::Stat { directory: None, path: Some(c"/".into()), flags: 0 };
        perform(&mut ring, stat()).result.unwrap();
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = Some(0);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        assert!(FileHandle::try_stat_at(None, c"/", 0).is_none());
        assert_eq!(errno_of(made(|| try_open(Path::new("/"), OFlags::RDONLY))), libc::EMFILE);
        made(|| known.try_stat()).unwrap();
        let Value::Stat(stat) = perform(&mut ring, stat()).value else { panic!("no status") };
        assert!(stat.is_directory());
    });
    child.unwrap();
}

// ---- servers -------------------------------------------------------------------------------------------

#[test]
fn a_file_server_is_asked_nothing() {
    let fuse = available!(
        Fuse::builder()
            .file("a", pattern(100))
            .link("link", Path::new("a"))
            .attributes_expire(true)
            .mount()
    );
    let folder = TempDir::new();
    std::os::unix::fs::symlink(fuse.join("a"), folder.join("away")).unwrap();
    let file = FileHandle::new(fs::File::open(fuse.join("a")).unwrap());
    let root = FileHandle::new(fs::File::open(fuse.path()).unwrap());
    let above = FileHandle::new(fs::File::open(fuse.path().parent().unwrap()).unwrap());
    let mount = CString::new(fuse.path().file_name().unwrap().as_encoded_bytes()).unwrap();
    let below = CString::new([mount.to_bytes(), b"/a"].concat()).unwrap();
    fs::metadata(folder.join("away")).unwrap();
    let opcodes = [Opcode::GETATTR, Opcode::LOOKUP, Opcode::OPEN, Opcode::OPENDIR, Opcode::STATFS];
    let counts = || opcodes.map(|opcode| fuse.count(opcode));
    let before = counts();
    let fresh = || {
        FileHandle::new(fs::File::from(
            file.with_fd(|fd| fd.try_clone_to_owned()).unwrap().unwrap(),
        ))
    };
    for _ in 0..20 {
        assert!(
            file.try_stat().is_none() && fresh().try_stat().is_none() && root.try_stat().is_none()
        );
        for name in [fuse.join("a"), fuse.join("link"), fuse.path().into(), folder.join("away")] {
            assert!(try_stat(&name, AtFlags::empty()).is_none(), "{name:?}");
            assert!(try_open(&name, OFlags::RDONLY).is_none(), "{name:?}");
        }
        for (directory, name) in
            [(&root, c"a"), (&root, c"."), (&above, &*mount), (&above, &*below)]
        {
            let directory = Some(directory);
            assert!(FileHandle::try_stat_at(directory, name, 0).is_none(), "{name:?}");
            assert!(
                FileHandle::try_open(directory, name, OpenHow::default()).is_none(),
                "{name:?}"
            );
        }
    }
    assert_eq!(counts(), before);
}

/// The table of mounts is not watched: a file on a new mount tells that there is one.
#[test]
fn a_mount_that_is_new_is_noticed() {
    let folder = TempDir::new();
    fs::write(folder.join("file"), "").unwrap();
    try_stat(&folder.join("file"), AtFlags::empty());
    let fuse = available!(Fuse::builder().file("a", pattern(100)).attributes_expire(true).mount());
    fs::metadata(fuse.join("a")).unwrap();
    let before = [Opcode::GETATTR, Opcode::OPEN].map(|opcode| fuse.count(opcode));
    for _ in 0..2 {
        assert!(try_open(&fuse.join("a"), OFlags::RDONLY).is_none());
        assert!(try_stat(&fuse.join("a"), AtFlags::empty()).is_none());
    }
    assert_eq!([Opcode::GETATTR, Opcode::OPEN].map(|opcode| fuse.count(opcode)), before);
}
