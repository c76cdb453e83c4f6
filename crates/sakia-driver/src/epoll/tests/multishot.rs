//! Multishot operations: their completions, and their ends.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getsockname, listen,
    socket, socketpair,
};

use super::*;
use crate::Lane;
use crate::counters::OpKind;

/// One completion: result, whether more will follow, and the number of the buffer.
type Shot = (i32, bool, Option<u16>);

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// Buffers of a group.
struct Pool(Lendable, u32);

impl Pool {
    /// Makes a group with all of its buffers, which are used in the order of their numbers.
    fn new(test: &mut Loop, group: u16, count: u16, len: u32) -> Self {
        let pool = Self::empty(test, group, count, len);
        (0..count).rev().for_each(|id| pool.provide(test, group, id));
        pool
    }

    /// Makes a group without buffers, and memory for them.
    fn empty(test: &mut Loop, group: u16, count: u16, len: u32) -> Self {
        test.epoll.register_group(group, count).unwrap();
        Self(Lendable::zeroed(usize::from(count) * len as usize), len)
    }

    fn provide(&self, test: &mut Loop, group: u16, id: u16) {
        let addr = self.0.ptr().wrapping_add(usize::from(id) * self.1 as usize);
        // SAFETY: the tests keep the pool until the backend is gone, and give no buffer twice.
        unsafe { test.epoll.provide(group, id, addr, self.1) };
    }

    /// Returns the current bytes of a buffer.
    fn bytes(&self, id: u16, len: usize) -> Vec<u8> {
        let begin = usize::from(id) * self.1 as usize;
        self.0.copy()[begin..begin + len].to_vec()
    }
}

impl Loop {
    /// Reaps all completions, with the `user_data` of each.
    fn shots(&mut self) -> Vec<(u64, Shot)> {
        let mut out = [Cqe::default(); 512];
        let count = self.epoll.reap(&mut out);
        let shot = |cqe: &Cqe| (cqe.res, cqe.flags.has_more(), cqe.flags.buffer_id());
        out[..count].iter().map(|cqe| (cqe.user_data, shot(cqe))).collect()
    }

    /// Enters for this many completions, all of which belong to one operation.
    #[track_caller]
    fn enter_shots(&mut self, user_data: u64, count: usize) -> Vec<Shot> {
        let watch = Instant::now();
        let mut all = Vec::new();
        while all.len() < count {
            assert!(watch.elapsed() < PATIENCE, "waited in vain; so far {all:?}");
            self.epoll.enter(1, Some(PATIENCE), None).unwrap();
            all.extend(self.shots());
        }
        assert!(all.iter().all(|(its, _)| *its == user_data), "{all:?}");
        all.into_iter().map(|(_, shot)| shot).collect()
    }

    /// Checks for operations that are ready now.
    fn turn_shots(&mut self) -> Vec<(u64, Shot)> {
        self.epoll.enter(0, Some(Duration::ZERO), None).unwrap();
        self.shots()
    }

    /// Returns the numbers of calls that found data, and of those that did not.
    fn calls(&self, kind: OpKind) -> (u64, u64) {
        let ways = self.epoll.figures().ways[kind as usize];
        (ways.inline, ways.would_block)
    }
}

#[test]
fn each_message_comes_in_a_buffer_of_its_own_until_the_end() {
    for poll_first in [false, true] {
        let mut test = Loop::new();
        let pool = Pool::new(&mut test, 3, 4, 8);
        let (near, far) = sockets();
        let receive = Sqe::recv_multishot(near.as_raw_fd(), 3, 0);
        test.push(1, if poll_first { receive.poll_first() } else { receive });
        assert_eq!(test.turn(), []);
        for (id, text) in [(0, "ab"), (1, "cde"), (2, "fghijkl")] {
            rustix::io::write(&far, text.as_bytes()).unwrap();
            assert_eq!(test.enter_shots(1, 1), [(text.len() as i32, true, Some(id))]);
            assert_eq!(pool.bytes(id, text.len()), text.as_bytes());
        }
        pool.provide(&mut test, 3, 0);
        drop(far);
        assert_eq!(test.enter_shots(1, 1), [(0, false, None)]);
        assert_eq!(test.flights(), 0);
        // The end took no buffer, and the buffer that was returned last is used first.
        let (near, far) = sockets();
        test.push(2, Sqe::recv_multishot(near.as_raw_fd(), 3, 0));
        for id in [0, 3] {
            rustix::io::write(&far, b"x").unwrap();
            assert_eq!(test.enter_shots(2, 1), [(1, true, Some(id))]);
        }
    }
}

#[test]
fn a_message_costs_one_call() {
    let mut test = Loop::new();
    let pool = Pool::new(&mut test, 0, 4, 64);
    let (near, far) = sockets();
    test.push(1, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    assert_eq!(test.turn(), []);
    assert_eq!(test.calls(OpKind::Recv), (0, 1), "the first look");
    for _ in 0..100 {
        rustix::io::write(&far, b"message").unwrap();
        assert_eq!(test.enter_shots(1, 1), [(7, true, Some(0))], "the buffer returned last");
        pool.provide(&mut test, 0, 0);
    }
    assert_eq!(test.calls(OpKind::Recv), (100, 1));
}

#[test]
fn without_buffers_it_ends_and_the_bytes_stay() {
    let mut test = Loop::new();
    let pool = Pool::new(&mut test, 0, 1, 2);
    let (near, far) = sockets();
    rustix::io::write(&far, b"abcd").unwrap();
    test.push(1, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    let no_buffers = (err(Errno::NOBUFS), false, None);
    assert_eq!(test.enter_shots(1, 2), [(2, true, Some(0)), no_buffers]);
    assert_eq!((pool.bytes(0, 2), test.flights()), (b"ab".to_vec(), 0));
    // The error is repeated as long as there is no buffer.
    test.push(2, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    assert_eq!(test.enter_shots(2, 1), [no_buffers]);
    pool.provide(&mut test, 0, 0);
    test.push(3, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    assert_eq!(test.enter_shots(3, 1), [(2, true, Some(0))]);
    assert_eq!(pool.bytes(0, 2), b"cd");
    assert_eq!(test.turn_shots(), [], "there is nothing to put in a buffer");
    rustix::io::write(&far, b"e").unwrap();
    assert_eq!(test.enter_shots(3, 1), [no_buffers]);
}

#[test]
fn an_empty_group_matters_when_there_is_something() {
    let mut test = Loop::new();
    let pool = Pool::empty(&mut test, 0, 1, 8);
    let (near, far) = sockets();
    test.push(1, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    assert_eq!(test.turn_shots(), []);
    pool.provide(&mut test, 0, 0);
    rustix::io::write(&far, b"x").unwrap();
    assert_eq!(test.enter_shots(1, 1), [(1, true, Some(0))]);
    drop(far);
    assert_eq!(test.enter_shots(1, 1), [(0, false, None)], "the end needs none");
}

#[test]
fn what_it_cannot_do_is_told_at_once() {
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 1, 8);
    let (near, _far) = sockets();
    let raw = near.as_raw_fd();
    assert_eq!(test.run(Sqe::recv_multishot(raw, 1, 0)), err(Errno::NOBUFS), "no such group");
    let unselected = Sqe { flags: 0, ..Sqe::recv_multishot(raw, 0, 0) };
    assert_eq!(test.run(unselected), err(Errno::INVAL));
    assert_eq!(test.run(Sqe::recv_multishot(-1, 0, 0)), err(Errno::BADF));
    assert_eq!(test.run(Sqe::accept_multishot(-1, 0)), err(Errno::BADF));
    assert_eq!(test.run(Sqe::accept_multishot(raw, 0)), err(Errno::INVAL), "not a listener");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(test.run(Sqe::recv_multishot(file.as_raw_fd(), 0, 0)), err(Errno::NOTSOCK));
    assert_eq!(test.run(Sqe::accept_multishot(file.as_raw_fd(), 0)), err(Errno::NOTSOCK));
    let error = test.epoll.register_group(0, 1).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::EXIST));
    assert_eq!(test.flights(), 0);
}

#[test]
fn a_canceled_one_leaves_bytes_and_buffers() {
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 2, 8);
    let (near, far) = sockets();
    test.push(1, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    rustix::io::write(&far, b"a").unwrap();
    assert_eq!(test.enter_shots(1, 1), [(1, true, Some(0))]);
    rustix::io::write(&far, b"b").unwrap();
    test.push(2, Sqe::cancel(1));
    test.epoll.submit().unwrap();
    assert_eq!(test.shots(), [(1, (err(Errno::CANCELED), false, None)), (2, (0, false, None))]);
    let buffer = Lendable::zeroed(8);
    assert_eq!(test.run(receive(&near, &buffer)), 1);
    assert_eq!(buffer.copy()[0], b'b');
    test.push(3, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    rustix::io::write(&far, b"c").unwrap();
    assert_eq!(test.enter_shots(3, 1), [(1, true, Some(1))]);
    test.push(4, Sqe::close(near.as_raw_fd()));
    std::mem::forget(near);
    let mut ends = test.enter(2);
    ends.sort_unstable();
    assert_eq!(ends, [(3, err(Errno::CANCELED)), (4, 0)]);
}

#[test]
fn a_peer_that_always_sends_keeps_nobody_waiting() {
    const BYTES: usize = 200;
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 512, 1);
    let (pairs, count): (Vec<_>, u64) = ((0..3).map(|_| sockets()).collect(), 3);
    for (index, (near, _)) in pairs.iter().enumerate() {
        test.push(index as u64, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    }
    assert_eq!(test.turn_shots(), []);
    rustix::io::write(&pairs[0].1, &[b'x'; BYTES]).unwrap();
    rustix::io::write(&pairs[1].1, b"y").unwrap();
    rustix::io::write(&pairs[2].1, b"z").unwrap();
    let first = test.turn_shots();
    let of = |user_data| first.iter().filter(|(its, _)| *its == user_data).count();
    assert!((1..BYTES / 2).contains(&of(0)), "{} at once", of(0));
    assert!((1..count).all(|user_data| of(user_data) == 1));
    let rest = test.enter_shots(0, BYTES - of(0));
    assert_eq!(rest.len() + of(0), BYTES);
}

#[test]
fn a_full_queue_holds_it_up_and_loses_nothing() {
    let mut test = Loop::with(EpollOptions::new().entries(4, 4));
    let _pool = Pool::new(&mut test, 0, 16, 1);
    let (near, far) = sockets();
    rustix::io::write(&far, b"0123456789").unwrap();
    test.push(1, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    let mut ids = Vec::new();
    while ids.len() < 10 {
        test.epoll.enter(4, Some(Duration::from_millis(1)), None).unwrap();
        assert!(!test.epoll.is_overflowing() && test.epoll.cq_ready() <= 4);
        ids.extend(test.shots().iter().map(|(_, shot)| shot.2.unwrap()));
    }
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
    assert_eq!(test.turn_shots(), []);
}

#[test]
fn the_last_place_in_the_queue_is_used_and_no_more() {
    const ENTRIES: u32 = 8;
    for taken in [ENTRIES - 1, ENTRIES] {
        let mut test = Loop::with(EpollOptions::new().entries(ENTRIES, ENTRIES));
        let (listener, address) = foreign_listener(SocketFlags::NONBLOCK);
        let _near: Vec<_> = (0..2).map(|_| connected(&address)).collect();
        (0..taken).for_each(|_| test.push(1, Sqe::nop()));
        test.epoll.submit().unwrap();
        test.push(2, Sqe::accept_multishot(listener.as_raw_fd(), 0));
        test.epoll.enter(0, Some(Duration::ZERO), None).unwrap();
        assert_eq!((test.epoll.cq_ready(), test.epoll.is_overflowing()), (ENTRIES, false));
        let shots: Vec<_> = test.shots().into_iter().filter(|(its, _)| *its == 2).collect();
        let shots: Vec<_> = shots.into_iter().map(|(_, shot)| shot).collect();
        assert_eq!(shots.len() as u32, ENTRIES - taken);
        drop(accepted(&shots));
        drop(accepted(&test.enter_shots(2, 2 - shots.len())));
    }
}

#[test]
fn a_receive_that_came_before_goes_first() {
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 2, 8);
    let (near, far) = sockets();
    let (first, last) = (Lendable::zeroed(1), Lendable::zeroed(1));
    test.push(1, receive(&near, &first));
    test.push(2, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    test.push(3, receive(&near, &last));
    assert_eq!(test.submit(), []);
    rustix::io::write(&far, b"abc").unwrap();
    let shots = test.turn_shots();
    assert_eq!(shots, [(1, (1, false, None)), (2, (2, true, Some(0)))]);
    rustix::io::write(&far, b"de").unwrap();
    assert_eq!(test.enter_shots(2, 1), [(2, true, Some(1))]);
    // The operation behind this one is next when it ends.
    rustix::io::write(&far, b"f").unwrap();
    let shots = test.turn_shots();
    assert_eq!(shots, [(2, (err(Errno::NOBUFS), false, None)), (3, (1, false, None))]);
    assert_eq!(last.copy(), b"f");
}

#[test]
fn a_foreign_loop_is_told_of_each_message() {
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 4, 8);
    let pollable = test.epoll.pollable().unwrap();
    let is_readable = || {
        let mut polled = [PollFd::new(&pollable, PollFlags::IN)];
        let no_time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&no_time)).unwrap() > 0
    };
    let (near, far) = sockets();
    test.push(1, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    assert_eq!(test.submit(), []);
    for id in 0..2 {
        assert!(!is_readable());
        rustix::io::write(&far, b"x").unwrap();
        assert!(is_readable());
        test.epoll.clear_readiness();
        assert!(!is_readable());
        assert_eq!(test.shots(), [(1, (1, true, Some(id)))]);
    }
}

/// Starts a receive on each of `count` pairs of sockets, and sends it as many bytes. The `user_data` of each
/// is its index.
fn receives(test: &mut Loop, count: u64, bytes: usize) -> Vec<(OwnedFd, OwnedFd)> {
    let pairs: Vec<_> = (0..count).map(|_| sockets()).collect();
    for (index, (near, _)) in (0..).zip(&pairs) {
        test.push(index, Sqe::recv_multishot(near.as_raw_fd(), 0, 0));
    }
    assert_eq!(test.submit(), []);
    for (_, far) in &pairs {
        assert_eq!(rustix::io::write(far, &vec![1; bytes]), Ok(bytes));
    }
    pairs
}

#[test]
fn ready_sockets_are_received_from_in_batches() {
    for (bytes, batch) in [(10, 32), (16 << 10, 8)] {
        let mut test = Loop::new();
        let pool = Pool::new(&mut test, 0, 64, 16 << 10);
        let _pairs = receives(&mut test, 40, bytes);
        let mut seen = Vec::new();
        while seen.len() < 40 {
            let shots = test.turn_shots();
            assert_eq!(shots.len(), batch.min(40 - seen.len()), "after {}", seen.len());
            for (user_data, (count, _, id)) in shots {
                assert_eq!(count as usize, bytes);
                seen.push(user_data);
                pool.provide(&mut test, 0, id.unwrap());
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
        assert_eq!(test.turn_shots(), []);
    }
}

#[test]
fn events_that_are_left_prevent_a_sleep_and_reach_a_foreign_loop() {
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 128, 16);
    let _pairs = receives(&mut test, 70, 1);
    assert_eq!(test.turn_shots().len(), 32);
    // Nothing else would end this sleep.
    test.epoll.enter(1, None, None).unwrap();
    assert_eq!(test.shots().len(), 32);
    let pollable = test.epoll.pollable().unwrap();
    let mut polled = [PollFd::new(&pollable, PollFlags::IN)];
    let no_time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&no_time)), Ok(1));
    assert!(test.epoll.needs_enter());
    assert_eq!(test.turn_shots().len(), 6);
}

#[test]
fn an_event_that_is_left_and_comes_once_is_not_lost() {
    let mut test = Loop::new();
    let pairs: Vec<_> = (0..40).map(|_| sockets()).collect();
    let buffers: Vec<_> = (0..40).map(|_| Lendable::zeroed(1)).collect();
    for (index, ((near, _), buffer)) in (0..).zip(pairs.iter().zip(&buffers)) {
        test.push(index, receive(near, buffer));
    }
    assert_eq!(test.submit(), []);
    for (_, far) in &pairs {
        rustix::io::write(far, b"x").unwrap();
    }
    let counts = [(); 3].map(|()| test.turn_shots().len());
    assert_eq!(counts, [32, 8, 0]);
}

#[test]
fn an_event_that_is_left_does_not_end_a_poll_for_what_was_taken_since() {
    let mut test = Loop::new();
    let _pool = Pool::new(&mut test, 0, 64, 16);
    let pairs = receives(&mut test, 32, 1);
    let (near, far) = sockets();
    test.push(100, Sqe::poll_add(near.as_raw_fd(), PollFlags::IN.bits().into()));
    assert_eq!(test.submit(), []);
    rustix::io::write(&far, b"x").unwrap();
    assert_eq!(test.turn_shots().len(), 32, "its event is left");
    rustix::io::read(&near, &mut [0; 1]).unwrap();
    assert_eq!(test.turn_shots(), []);
    rustix::io::write(&far, b"y").unwrap();
    assert_eq!(test.turn_shots(), [(100, (PollFlags::IN.bits().into(), false, None))]);
    drop(pairs);
}

/// Returns a listener that was made outside the driver, and its address.
fn foreign_listener(flags: SocketFlags) -> (OwnedFd, SocketAddrAny) {
    let flags = flags | SocketFlags::CLOEXEC;
    let listener = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let listener = listener.unwrap();
    bind(&listener, &core::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 64).unwrap();
    let address = getsockname(&listener).unwrap();
    (listener, address)
}

/// Connects, and returns this end.
fn connected(address: &SocketAddrAny) -> OwnedFd {
    let near = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    connect(&near, address).unwrap();
    near
}

/// Takes the descriptors from the completions of accepts.
fn accepted(shots: &[Shot]) -> Vec<OwnedFd> {
    let adopt = |&(raw, has_more, buffer): &Shot| {
        assert!(raw >= 0 && has_more && buffer.is_none(), "{raw} {has_more}");
        // SAFETY: the operation has just made it.
        unsafe { OwnedFd::from_raw_fd(raw) }
    };
    shots.iter().map(adopt).collect()
}

#[test]
fn each_connection_is_accepted_until_it_is_canceled() {
    const CLOEXEC: u32 = SocketFlags::CLOEXEC.bits();
    for flags in [SocketFlags::empty(), SocketFlags::NONBLOCK] {
        let mut test = Loop::new();
        let (listener, address) = foreign_listener(flags);
        let raw = listener.as_raw_fd();
        test.push(1, Sqe::accept_multishot(raw, CLOEXEC));
        assert_eq!(test.turn(), []);
        let is_threads = flags.is_empty();
        let elastic = |test: &Loop| test.epoll.statistics(Lane::Elastic).finished;
        assert_eq!(elastic(&test), 0, "there is nothing to accept");
        // More fruitless events than the limit after which a watch rests.
        for count in [1, 20] {
            let _near: Vec<_> = (0..count).map(|_| connected(&address)).collect();
            for far in accepted(&test.enter_shots(1, count)) {
                let flags = rustix::io::fcntl_getfd(&far).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
                assert!(test.epoll.machine.registry.is_own(far.as_raw_fd()));
                // SAFETY: the socket is open, and nothing waits for it.
                unsafe { test.epoll.forget_descriptor(far.as_raw_fd()) };
            }
        }
        // A thread may be checking once more.
        let reports = |test: &Loop| test.epoll.statistics(Lane::Elastic).running;
        test.turn_until(|test| reports(test) == 0);
        assert_eq!(elastic(&test) > 0, is_threads);
        assert_eq!(test.turn_shots(), []);
        test.push(2, Sqe::cancel(1));
        let ends = test.enter(2);
        assert!(ends.contains(&(1, err(Errno::CANCELED))), "{ends:?}");
        let _near = connected(&address);
        assert_eq!(test.turn_shots(), [], "it is for the next one");
        test.push(3, Sqe::accept_multishot(raw, CLOEXEC));
        accepted(&test.enter_shots(3, 1));
    }
}

#[test]
fn a_listener_made_here_keeps_its_mode() {
    let mut test = Loop::new();
    let raw = test.run(Sqe::socket(2, SocketType::STREAM.as_raw(), 0));
    // SAFETY: the operation has just made it.
    let listener = unsafe { OwnedFd::from_raw_fd(raw) };
    bind(&listener, &core::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 64).unwrap();
    let address = getsockname(&listener).unwrap();
    test.push(1, Sqe::accept_multishot(raw, 0));
    let _near: Vec<_> = (0..40).map(|_| connected(&address)).collect();
    let far = accepted(&test.enter_shots(1, 40));
    let mode = rustix::fs::fcntl_getfl(&listener).unwrap();
    assert!(!mode.contains(OFlags::NONBLOCK));
    assert_eq!(test.epoll.statistics(Lane::Elastic).finished, 0);
    for fd in [&listener].into_iter().chain(&far) {
        // SAFETY: the socket is open, and nothing waits for it.
        unsafe { test.epoll.forget_descriptor(fd.as_raw_fd()) };
    }
}

/// A socket of the backend's own is watched as long as it is open.
#[test]
fn a_number_of_our_own_that_was_closed_is_watched_anew() {
    let mut test = Loop::new();
    let buffer = Lendable::zeroed(8);
    for round in 0..3 {
        let (listener, address) = foreign_listener(SocketFlags::NONBLOCK);
        let near = connected(&address);
        let raw = test.run(Sqe::accept(
            listener.as_raw_fd(),
            std::ptr::null_mut::<u8>(),
            std::ptr::null_mut(),
            0,
        ));
        assert!(raw >= 0);
        for text in [&b"a"[..], b"bcd"] {
            let user_data = 100 + round;
            test.push(user_data, Sqe::recv(raw, buffer.ptr(), buffer.len(), 0));
            assert_eq!(test.submit(), []);
            rustix::io::write(&near, text).unwrap();
            assert_eq!(test.enter(1), [(user_data, text.len() as i32)]);
        }
        // Data that comes without a receiver is there later.
        rustix::io::write(&near, b"ef").unwrap();
        assert_eq!(test.turn(), []);
        assert_eq!(test.run(Sqe::recv(raw, buffer.ptr(), buffer.len(), 0)), 2);
        // SAFETY: the socket is open, and nothing waits for it.
        unsafe { test.epoll.forget_descriptor(raw) };
        // SAFETY: the descriptor has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(raw) });
    }
}

/// A connection of [`receives_of_every_sort_get_all_bytes_in_order`].
struct Stream {
    raw: i32,
    buffer: Lendable,
    /// The operation that receives, if there is one, and whether it is multishot.
    current: Option<(u64, bool)>,
    received: Vec<u8>,
    is_over: bool,
}

/// No operation waits for data that is there, however a socket of the backend is watched and however that
/// changes.
#[test]
fn receives_of_every_sort_get_all_bytes_in_order() {
    const STREAMS: usize = 6;
    const BYTES: usize = 6000;
    let mut test = Loop::new();
    let pool = Pool::new(&mut test, 0, 8, 16);
    let (listener, address) = foreign_listener(SocketFlags::NONBLOCK);
    test.push(1, Sqe::accept_multishot(listener.as_raw_fd(), 0));
    let text: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let mut streams = Vec::new();
    let mut peers = Vec::new();
    for index in 0..STREAMS {
        let near = connected(&address);
        let [(raw, true, None)] = test.enter_shots(1, 1)[..] else { panic!("none was accepted") };
        let text = text.clone();
        peers.push(std::thread::spawn(move || {
            let mut random = Random::new(index as u64);
            let mut rest = &text[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(1 + random.below(40) as usize));
                rustix::io::write(&near, now).unwrap();
                rest = later;
                if random.below(4) == 0 {
                    std::thread::sleep(Duration::from_micros(random.below(200)));
                }
            }
        }));
        let buffer = Lendable::zeroed(24);
        streams.push(Stream { raw, buffer, current: None, received: Vec::new(), is_over: false });
    }
    let mut random = Random::new(99);
    let mut next = 2;
    let watch = Instant::now();
    while streams.iter().any(|stream| !stream.is_over) {
        assert!(watch.elapsed() < PATIENCE, "bytes are waited for in vain");
        for stream in &mut streams {
            next += 1;
            match stream.current {
                None if !stream.is_over => {
                    let goes_on = random.below(2) == 0;
                    let buffer = &stream.buffer;
                    let sqe = match goes_on {
                        true => Sqe::recv_multishot(stream.raw, 0, 0),
                        false => Sqe::recv(stream.raw, buffer.ptr(), buffer.len(), 0),
                    };
                    test.push(next, sqe);
                    stream.current = Some((next, goes_on));
                }
                // No cancels towards the end, so that a receive that was forgotten does not begin anew.
                Some((victim, _)) if stream.received.len() < BYTES / 2 && random.below(8) == 0 => {
                    test.push(next, Sqe::cancel(victim));
                }
                _ => {}
            }
        }
        test.epoll.enter(1, Some(Duration::from_millis(50)), None).unwrap();
        for (user_data, (res, has_more, buffer)) in test.shots() {
            let is_its =
                |stream: &&mut Stream| stream.current.is_some_and(|its| its.0 == user_data);
            let Some(stream) = streams.iter_mut().find(is_its) else { continue };
            let goes_on = stream.current.is_some_and(|its| its.1);
            match buffer {
                Some(id) => {
                    stream.received.extend(pool.bytes(id, res as usize));
                    pool.provide(&mut test, 0, id);
                }
                None if res >= 0 => {
                    let bytes = if goes_on { Vec::new() } else { stream.buffer.copy() };
                    stream.received.extend(&bytes[..res as usize]);
                    stream.is_over = res == 0;
                }
                None => assert!([Errno::CANCELED, Errno::NOBUFS].map(err).contains(&res), "{res}"),
            }
            if !has_more {
                stream.current = None;
            }
        }
    }
    peers.into_iter().for_each(|peer| peer.join().unwrap());
    for stream in streams {
        assert_eq!(stream.received, text);
        test.push(0, Sqe::close(stream.raw));
        assert_eq!(test.enter(1), [(0, 0)]);
    }
}
