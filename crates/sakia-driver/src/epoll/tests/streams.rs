//! Pipes, sockets, terminals and the like: waiting, order, both directions, errors.

use std::cell::Cell;
use std::collections::VecDeque;

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sakia_ring::IoVec;

use super::*;

fn sockets(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

#[test]
fn a_read_waits_for_data_and_later_ones_for_earlier_ones() {
    for (reader, writer) in [pipe(), sockets(SocketType::STREAM)] {
        let mut test = Loop::new();
        let buffers: Vec<_> = (0..4).map(|_| Lendable::zeroed(2)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            test.push(index as u64, receive(&reader, buffer));
        }
        assert_eq!(test.submit(), []);
        assert_eq!(test.turn(), []);
        rustix::io::write(&writer, b"abc").unwrap();
        assert_eq!(test.enter(2), [(0, 2), (1, 1)]);
        rustix::io::write(&writer, b"d").unwrap();
        assert_eq!(test.enter(1), [(2, 1)]);
        assert_eq!(
            buffers.iter().map(Lendable::copy).collect::<Vec<_>>().concat(),
            b"abc\0d\0\0\0"
        );
        drop(writer);
        assert_eq!(test.enter(1), [(3, 0)], "the end");
        assert_eq!(test.run(receive(&reader, &buffers[0])), 0);
    }
}

/// Data that arrives between two submits is for the waiting read, not for the new one.
#[test]
fn a_late_read_takes_nothing_from_one_that_waits() {
    for (reader, writer) in [pipe(), sockets(SocketType::STREAM)] {
        let mut test = Loop::new();
        let (early, late) = (Lendable::zeroed(2), Lendable::zeroed(2));
        test.push(1, receive(&reader, &early));
        assert_eq!(test.submit(), []);
        rustix::io::write(&writer, b"ab").unwrap();
        test.push(2, receive(&reader, &late));
        assert_eq!(test.submit(), []);
        assert_eq!(test.enter(1), [(1, 2)]);
        rustix::io::write(&writer, b"cd").unwrap();
        assert_eq!(test.enter(1), [(2, 2)]);
        assert_eq!([early.copy(), late.copy()].concat(), b"abcd");
    }
}

#[test]
fn data_that_is_there_is_read_at_once() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    rustix::io::write(&writer, b"abc").unwrap();
    let buffer = Lendable::zeroed(8);
    test.push(1, read(&reader, &buffer, 12_345)); // a pipe has no offsets
    assert_eq!(test.submit(), [(1, 3)]);
}

#[test]
fn a_write_waits_for_room_and_both_directions_go_on_alone() {
    let (near, far) = sockets(SocketType::STREAM);
    let mut test = Loop::new();
    let much = Lendable::new(&vec![b'x'; 1 << 20]);
    let mut sent = 0;
    // Fills the socket, until a write must wait.
    let mut count = 0;
    loop {
        count += 1;
        test.push(count, send(&near, &much));
        match test.submit()[..] {
            [(_, res)] => sent += usize::try_from(res).unwrap(),
            _ => break,
        }
    }
    let buffer = Lendable::zeroed(4);
    test.push(100, receive(&near, &buffer));
    assert_eq!(test.submit(), []);
    rustix::io::write(&far, b"pong").unwrap();
    assert_eq!(test.enter(1), [(100, 4)]);
    assert_eq!(buffer.copy(), b"pong");
    let mut received = 0;
    let mut sink = vec![0; 1 << 16];
    let mut ended = VecDeque::new();
    while ended.is_empty() {
        received += rustix::io::read(&far, &mut sink).unwrap();
        ended.extend(test.turn());
    }
    assert!(ended[0].0 == count && ended[0].1 > 0);
    sent += ended[0].1 as usize;
    drop(near);
    loop {
        match rustix::io::read(&far, &mut sink).unwrap() {
            0 => break,
            more => received += more,
        }
    }
    assert_eq!(sent, received);
}

#[test]
fn descriptors_in_nonblocking_mode_wait_too() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let mut test = Loop::new();
    let buffer = Lendable::zeroed(1);
    test.push(1, receive(&reader, &buffer));
    assert_eq!(test.submit(), []);
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(test.enter(1), [(1, 1)]);
}

#[test]
fn vectors_go_to_sockets_and_pipes() {
    for (reader, writer) in [pipe(), sockets(SocketType::STREAM)] {
        let mut test = Loop::new();
        let (first, second) = (Lendable::new(b"ab"), Lendable::new(b"cde"));
        let part = |buffer: &Lendable| IoVec { base: buffer.ptr(), len: buffer.len() as usize };
        let vector = Box::leak(Box::new([part(&first), part(&second)]));
        assert_eq!(test.run(Sqe::writev(writer.as_raw_fd(), vector.as_ptr(), 2, u64::MAX)), 5);
        let vector = Box::leak(Box::new([part(&second), part(&first)]));
        assert_eq!(test.run(Sqe::readv(reader.as_raw_fd(), vector.as_ptr(), 2, u64::MAX)), 5);
        assert_eq!((second.copy(), first.copy()), (b"abc".to_vec(), b"de".to_vec()));
        assert_eq!(test.run(Sqe::readv(reader.as_raw_fd(), vector.as_ptr(), 0, u64::MAX)), 0);
    }
}

#[test]
fn sockets_have_no_offsets_and_empty_reads_succeed() {
    let (near, far) = sockets(SocketType::STREAM);
    let mut test = Loop::new();
    let buffer = Lendable::new(b"x");
    assert_eq!(test.run(read(&near, &buffer, 5)), err(Errno::SPIPE));
    assert_eq!(test.run(write(&near, &buffer, 5)), err(Errno::SPIPE));
    assert_eq!(test.run(write(&near, &buffer, 0)), 1);
    assert_eq!(test.run(Sqe::read(near.as_raw_fd(), buffer.ptr(), 0, 0)), 0);
    assert_eq!(test.run(read(&far, &buffer, 0)), 1);
}

#[test]
fn datagrams_keep_their_boundaries() {
    for kind in [SocketType::DGRAM, SocketType::SEQPACKET] {
        let (near, far) = sockets(kind);
        let mut test = Loop::new();
        let buffers: Vec<_> = (0..3).map(|_| Lendable::zeroed(4)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            test.push(index as u64, receive(&far, buffer));
        }
        assert_eq!(test.submit(), []);
        for text in [&b"a"[..], b"", b"long one"] {
            assert_eq!(test.run_beside(send(&near, &Lendable::new(text))), text.len() as i32);
        }
        let mut ends = test.others();
        while ends.len() < 3 {
            ends.extend(test.enter(1));
        }
        assert_eq!(ends, [(0, 1), (1, 0), (2, 4)]);
    }
}

impl Loop {
    /// Runs one operation that completes at once, and keeps other completions.
    #[track_caller]
    fn run_beside(&mut self, sqe: Sqe) -> i32 {
        self.push(1 << 40, sqe);
        let mut completions = self.submit();
        let index = completions.iter().position(|completion| completion.0 == 1 << 40).unwrap();
        let res = completions.remove(index).1;
        assert_eq!(completions, []);
        res
    }

    /// Returns the ready completions.
    fn others(&mut self) -> Vec<(u64, i32)> {
        self.turn()
    }
}

thread_local! {
    static SIGPIPES: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn count_sigpipe(_: i32) {
    SIGPIPES.set(SIGPIPES.get() + 1);
}

/// A write without a reader fails and raises no signal. The handler counts signals of the raising thread
/// only.
#[test]
fn writing_to_nobody_says_so_and_raises_no_signal() {
    // SAFETY: the handler only touches a thread-local counter without a destructor.
    unsafe { libc::signal(libc::SIGPIPE, count_sigpipe as *const () as libc::sighandler_t) };
    for (reader, writer) in [pipe(), sockets(SocketType::STREAM)] {
        let mut test = Loop::new();
        let buffer = Lendable::new(&vec![b'x'; 1 << 20]);
        // One write waits when the other end goes away; another one begins after that.
        while test.run_or_wait(send(&writer, &buffer)) {}
        drop(reader);
        assert_eq!(test.enter(1)[0].1, err(Errno::PIPE));
        assert_eq!(test.run(send(&writer, &buffer)), err(Errno::PIPE));
    }
    let (reader, writer) = pipe();
    drop(reader);
    // SAFETY: an ordinary write, to show that the handler counts.
    unsafe { libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1) };
    assert_eq!(SIGPIPES.get(), 1);
    // SAFETY: restores the handler that the runtime has set.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

impl Loop {
    /// Returns whether the operation completed at once.
    #[track_caller]
    fn run_or_wait(&mut self, sqe: Sqe) -> bool {
        self.push(1 << 40, sqe);
        !self.submit().is_empty()
    }
}

#[test]
fn polls_answer_what_is_ready_and_wait_otherwise() {
    const IN: u32 = 1;
    const OUT: u32 = 4;
    const HUP: i32 = 16;
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    assert_eq!(test.run(Sqe::poll_add(writer.as_raw_fd(), OUT)), OUT as i32);
    test.push(1, Sqe::poll_add(reader.as_raw_fd(), IN));
    test.push(2, Sqe::poll_add(reader.as_raw_fd(), 0));
    assert_eq!(test.submit(), []);
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(test.enter(1), [(1, IN as i32)]);
    test.push(3, Sqe::poll_add(reader.as_raw_fd(), IN));
    assert_eq!(test.submit(), [(3, IN as i32)], "the data is still there");
    drop(writer);
    assert_eq!(test.enter(1), [(2, HUP)], "hang-ups are always reported");
    // Files are always ready, and events that they never have are not waited for.
    let file = test.open(Path::new("/proc/self/exe"), OFlags::RDONLY).unwrap();
    assert_eq!(test.run(Sqe::poll_add(file.as_raw_fd(), IN | OUT)), (IN | OUT) as i32);
    assert_eq!(test.run(Sqe::poll_add(file.as_raw_fd(), 2)), err(Errno::INVAL));
    let mut multishot = Sqe::poll_add(reader.as_raw_fd(), IN);
    multishot.len = 1;
    assert_eq!(test.run(multishot), err(Errno::INVAL));
}

#[test]
fn a_poll_for_one_direction_is_not_answered_for_the_other() {
    let (near, far) = sockets(SocketType::STREAM);
    let mut test = Loop::new();
    test.push(1, Sqe::poll_add(near.as_raw_fd(), 1));
    let buffer = Lendable::zeroed(1);
    assert_eq!(test.submit(), []);
    test.push(2, Sqe::poll_add(near.as_raw_fd(), 4));
    assert_eq!(test.submit(), [(2, 4)]);
    assert_eq!(test.turn(), []);
    rustix::io::write(&far, b"x").unwrap();
    assert_eq!(test.enter(1), [(1, 1)]);
    assert_eq!(test.run(receive(&near, &buffer)), 1);
}

/// A longer buffer takes the value, too, whatever was in it.
#[test]
fn eventfds_are_read_and_written_whatever_there_is_to_try_it() {
    for means in super::means::MEANS {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut test = Loop::with(EpollOptions::new().means(means));
        let (value, one) = (Lendable::new(&[0xff; 16]), Lendable::new(&1_u64.to_ne_bytes()));
        test.push(1, receive(&event, &value));
        assert_eq!(test.submit(), [], "{means:?}");
        test.push(2, send(&event, &one));
        let mut ends = test.enter(2);
        ends.sort_unstable();
        assert_eq!(ends, [(1, 8), (2, 8)], "{means:?}");
        assert_eq!(value.copy()[..8], one.copy());
        assert_eq!(test.run(send(&event, &Lendable::new(&[0xff; 8]))), err(Errno::INVAL));
        if !means.nowait {
            assert_eq!(test.run(send(&event, &one)), 8); // it is only tried once it is readable
        }
        assert_eq!(test.run(receive(&event, &Lendable::zeroed(4))), err(Errno::INVAL));
    }
}

#[test]
fn a_number_that_is_used_again_means_the_new_file() {
    let mut test = Loop::new();
    for round in 0..50 {
        let (reader, writer) = pipe();
        let raw = std::os::fd::IntoRawFd::into_raw_fd(reader);
        // Keeps the file, and epoll's entry for it, beyond the number.
        let copy = rustix::io::dup(unsafe_borrow(raw)).unwrap();
        let buffer = Lendable::zeroed(1);
        test.push(1, Sqe::read(raw, buffer.ptr(), 1, CURRENT_POSITION));
        assert_eq!(test.submit(), []);
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(test.enter(1), [(1, 1)]);
        if round % 2 == 0 {
            assert_eq!(test.run(Sqe::close(raw)), 0);
        } else {
            // SAFETY: the test's own descriptor, closed without the queues.
            unsafe { test.epoll.calls().close(raw, true) }.unwrap();
        }
        rustix::io::write(&writer, b"y").unwrap();
        drop(copy);
    }
    assert_eq!(test.turn(), []);
}

fn unsafe_borrow(raw: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: open, as long as the test uses it.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(raw) }
}

/// Returns a terminal and its other end; `None` if there are none.
pub(super) fn terminal() -> Option<(OwnedFd, OwnedFd)> {
    let path = std::path::Path::new("/dev/ptmx");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
    let mut name = [0; 64];
    // SAFETY: the descriptor is open and the buffer as long as it says.
    let slave = unsafe {
        let raw = master.as_raw_fd();
        if libc::unlockpt(raw) != 0 || libc::ptsname_r(raw, name.as_mut_ptr(), name.len()) != 0 {
            return None;
        }
        std::ffi::CStr::from_ptr(name.as_ptr())
    };
    let slave = rustix::fs::open(slave, flags, rustix::fs::Mode::empty()).ok()?;
    Some((master, slave))
}

/// Returns a socket with an entry in its error queue, which reading does not fetch, so that epoll reports it
/// again and again, and a socket to send it bytes from. `None` if there are none.
pub(super) fn erring_socket() -> Option<(OwnedFd, OwnedFd)> {
    let bind = || {
        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).ok()?;
        let address = socket.local_addr().ok()?;
        Some((socket, address))
    };
    let ((near, near_address), (far, far_address)) = (bind()?, bind()?);
    near.connect(far_address).ok()?;
    far.connect(near_address).ok()?;
    // The kernel adds only the time at which it took a datagram.
    let stamps = libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_SOFTWARE;
    // SAFETY: the descriptor is open, and the value as long as it says.
    let set = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING);
        let len = size_of_val(&stamps) as libc::socklen_t;
        libc::setsockopt(near.as_raw_fd(), level, name, (&raw const stamps).cast(), len)
    };
    near.send(b"x").ok()?;
    far.recv(&mut [0; 1]).ok()?;
    let near = OwnedFd::from(near);
    let (raw, wanted) = (near.as_raw_fd(), PollFlags::IN);
    // SAFETY: the socket is open.
    let ready = unsafe { crate::epoll::transfer::poll_now(raw, wanted) }.unwrap();
    (set == 0 && ready == PollFlags::ERR).then_some((near, far.into()))
}

#[test]
fn a_watch_that_rests_goes_on_by_itself() {
    let Some((near, far)) = erring_socket() else {
        eprintln!("SKIP {}: no sockets with a queue of errors", module_path!());
        return;
    };
    let mut test = Loop::new();
    let buffer = Lendable::zeroed(3);
    for round in 0..3 {
        test.push(round, receive(&near, &buffer));
        assert_eq!(test.submit(), []);
        // After enough fruitless events the watch rests.
        (0..100).for_each(|_| assert_eq!(test.turn(), []));
        rustix::io::write(&far, b"abc").unwrap();
        // Only its own timeout ends this sleep.
        assert_eq!(test.enter(1), [(round, 3)]);
        assert_eq!(buffer.copy(), b"abc");
    }
}

#[test]
fn terminals_wait_for_a_line() {
    let Some((master, slave)) = terminal() else {
        eprintln!("SKIP {}: no pseudo-terminals", module_path!());
        return;
    };
    let mut test = Loop::new();
    let (line, hello) = (Lendable::zeroed(16), Lendable::new(b"hi\n"));
    test.push(1, receive(&slave, &line));
    assert_eq!(test.submit(), []);
    rustix::io::write(&master, b"half").unwrap();
    assert_eq!(test.turn(), [], "a line is not over before its end");
    rustix::io::write(&master, b"\n").unwrap();
    assert_eq!(test.enter(1), [(1, 5)]);
    assert_eq!(&line.copy()[..5], b"half\n");
    assert_eq!(test.run(send(&slave, &hello)), 3);
    let echo = Lendable::zeroed(64);
    let count = test.run(receive(&master, &echo)) as usize;
    assert!(echo.copy()[..count].starts_with(b"half"), "the echo, and then perhaps the greeting");
}
