//! Canceling in every state.

use super::*;
use crate::{Lane, call::Call, epoll::transfer::Means};

const CANCELED: i32 = -125;
const ALREADY: i32 = -114;

#[test]
fn constants_are_the_kernels() {
    assert_eq!((CANCELED, ALREADY), (err(Errno::CANCELED), err(Errno::ALREADY)));
}

#[test]
fn what_never_was_or_has_ended_is_not_there() {
    let mut test = Loop::new();
    assert_eq!(test.run(Sqe::cancel(7)), err(Errno::NOENT));
    test.push(7, Sqe::nop());
    test.push(8, Sqe::cancel(7));
    assert_eq!(test.submit(), [(7, 0), (8, err(Errno::NOENT))]);
    assert_eq!(test.run(Sqe::cancel_all()), 0, "none, and that is their number");
}

#[test]
fn what_waits_is_canceled_and_leaves_the_data_alone() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    let (one, two, three) = (Lendable::zeroed(1), Lendable::zeroed(1), Lendable::zeroed(1));
    test.push(1, receive(&reader, &one));
    test.push(2, receive(&reader, &two));
    test.push(3, Sqe::poll_add(reader.as_raw_fd(), 1));
    test.push(4, receive(&reader, &three));
    assert_eq!(test.submit(), []);
    for victim in [2, 3, 1] {
        test.push(9, Sqe::cancel(victim));
        assert_eq!(test.submit(), [(victim, CANCELED), (9, 0)]);
    }
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(test.enter(1), [(4, 1)]);
    assert_eq!([one.copy(), two.copy(), three.copy()].concat(), b"\0\0x");
    assert_eq!(test.flights(), 0);
    test.push(5, receive(&reader, &one));
    assert_eq!(test.submit(), []);
    test.push(9, Sqe::cancel(5));
    assert_eq!(test.submit(), [(5, CANCELED), (9, 0)]);
    rustix::io::write(&writer, b"y").unwrap();
    assert_eq!(test.turn(), [], "no operation waits any more");
    assert_eq!(test.run(receive(&reader, &one)), 1);
    assert_eq!(one.copy(), b"y");
}

#[test]
fn ready_but_not_looked_at_is_canceled_as_well() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    let buffer = Lendable::zeroed(1);
    test.push(1, receive(&reader, &buffer));
    assert_eq!(test.submit(), []);
    rustix::io::write(&writer, b"x").unwrap();
    test.push(2, Sqe::cancel(1));
    assert_eq!(test.turn(), [(1, CANCELED), (2, 0)]);
    assert_eq!(test.run(receive(&reader, &buffer)), 1);
}

#[test]
fn by_descriptor_and_all_at_once() {
    let mut test = Loop::new();
    let ((first, _a), (second, _b)) = (pipe(), pipe());
    let buffers: Vec<_> = (0..4).map(|_| Lendable::zeroed(1)).collect();
    test.push(1, receive(&first, &buffers[0]));
    test.push(2, receive(&first, &buffers[1]));
    test.push(3, Sqe::poll_add(first.as_raw_fd(), 1));
    test.push(4, receive(&second, &buffers[2]));
    assert_eq!(test.submit(), []);
    test.push(8, Sqe::cancel_fd(first.as_raw_fd()));
    let canceled = test.submit();
    assert_eq!(canceled, [(1, CANCELED), (2, CANCELED), (3, CANCELED), (8, 3)]);
    test.push(5, receive(&first, &buffers[3]));
    test.push(9, Sqe::cancel_all());
    assert_eq!(test.submit(), [(4, CANCELED), (5, CANCELED), (9, 2)]);
    assert_eq!(test.flights(), 0);
}

#[test]
fn the_same_user_data_twice_is_canceled_one_by_one() {
    let mut test = Loop::new();
    let (reader, _writer) = pipe();
    test.push(1, Sqe::poll_add(reader.as_raw_fd(), 1));
    test.push(1, Sqe::poll_add(reader.as_raw_fd(), 1));
    test.push(2, Sqe::cancel(1));
    assert_eq!(test.submit(), [(1, CANCELED), (2, 0)]);
    test.push(2, Sqe::cancel(1).op_flags(1));
    assert_eq!(test.submit(), [(1, CANCELED), (2, 1)], "with ALL the number is reported");
}

#[test]
fn cancels_that_make_no_sense_are_refused() {
    let mut test = Loop::new();
    for flags in [2 | 4, 8, 1 << 30] {
        assert_eq!(test.run(Sqe::cancel(0).op_flags(flags)), err(Errno::INVAL));
    }
}

#[test]
fn a_job_is_canceled_in_the_queue_and_not_while_it_runs() {
    let dir = TempDir::new();
    let mut test = Loop::with(EpollOptions::new().threads_max(Lane::Elastic, 1));
    let fifo = dir.fifo("fifo");
    let lent = Lendable::path(&fifo);
    let open = Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0);
    test.push(1, open);
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).running == 1);
    test.push(2, open);
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).queued == 1);
    test.push(8, Sqe::cancel(2));
    assert_eq!(test.submit(), [(2, CANCELED), (8, 0)]);
    test.push(9, Sqe::cancel(1));
    assert_eq!(test.submit(), [(9, ALREADY)]);
    test.push(9, Sqe::cancel_all());
    assert_eq!(test.submit(), [(9, 1)]);
    let _both = open_both_ends(&fifo);
    let opened = test.enter(1);
    assert!(opened[0].0 == 1 && opened[0].1 >= 0, "it ends by itself: {opened:?}");
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(opened[0].1) });
}

/// A canceled operation must not wait again after a thread has tried it. No thread can try it without
/// blocking.
#[test]
fn an_operation_that_a_thread_tries_ends_canceled_when_it_would_wait_again() {
    let means = Means { nowait: false, reopen: false, flags: true };
    let options = EpollOptions::new().threads_max(Lane::Elastic, 1).means(means);
    let (dir, mut test) = (TempDir::new(), Loop::with(options));
    let fifo = dir.fifo("fifo");
    let lent = Lendable::path(&fifo);
    // Occupies the only thread, so that the try waits in the queue.
    test.push(1, Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0));
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).running == 1);
    let (reader, writer) = pipe();
    let buffer = Lendable::zeroed(1);
    for end in [2, 3] {
        test.push(end, receive(&reader, &buffer));
        assert_eq!(test.submit(), []);
        rustix::io::write(&writer, b"x").unwrap();
        test.turn_until(|test| test.epoll.statistics(Lane::Elastic).queued == 1);
        if end == 2 {
            test.push(9, Sqe::cancel(2));
            assert_eq!(test.submit(), [(2, CANCELED), (9, 0)], "out of the queue");
        }
    }
    // There are two bytes by now; another reader takes them before the thread does.
    rustix::io::read(&reader, &mut [0; 2]).unwrap();
    let _both = open_both_ends(&fifo);
    wait_until(|| {
        let elastic = test.epoll.statistics(Lane::Elastic);
        (elastic.queued, elastic.running) == (0, 0)
    });
    // The thread has finished both, and neither was reported yet.
    test.push(9, Sqe::cancel(3));
    assert_eq!(test.submit(), [(9, ALREADY)]);
    let mut ends = test.enter(2);
    ends.sort_unstable();
    assert_eq!(ends[1], (3, CANCELED));
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(ends[0].1) });
    assert_eq!(test.flights(), 0);
}

#[test]
fn closing_what_is_in_use_ends_it() {
    let mut test = Loop::new();
    let (reader, _writer) = pipe();
    let raw = std::os::fd::IntoRawFd::into_raw_fd(reader);
    let buffer = Lendable::zeroed(1);
    test.push(1, Sqe::read(raw, buffer.ptr(), 1, CURRENT_POSITION));
    test.push(2, Sqe::poll_add(raw, 1));
    test.push(3, Sqe::close(raw));
    assert_eq!(test.submit(), [(1, CANCELED), (2, CANCELED), (3, 0)]);
    assert_eq!(test.flights(), 0);
}

/// The lock was tried, and waits for a thread that is occupied.
#[test]
fn a_lock_is_found_by_its_descriptor() {
    const EXCLUSIVE: u32 = 2;
    let dir = TempDir::new();
    let mut test = Loop::with(EpollOptions::new().threads_max(Lane::Elastic, 1));
    let (fifo, path) = (dir.fifo("fifo"), dir.file("file", b""));
    let lent = Lendable::path(&fifo);
    test.push(1, Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0));
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).running == 1);
    let (locked, other) =
        (std::fs::File::open(&path).unwrap(), std::fs::File::open(&path).unwrap());
    locked.lock().unwrap();
    let raw = other.as_raw_fd();
    test.push(2, Call::Flock { raw, operation: EXCLUSIVE });
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).queued == 1);
    test.push(8, Sqe::cancel_fd(raw));
    assert_eq!(test.submit(), [(2, CANCELED), (8, 1)]);
    let _both = open_both_ends(&fifo);
    let opened = test.enter(1);
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(opened[0].1) });
}

/// A close cannot be canceled: the result could not tell a close that never began from an interrupted one.
#[test]
fn a_close_that_waits_for_a_thread_is_not_taken_back() {
    let (dir, (reader, writer)) = (TempDir::new(), pipe());
    let mut test = Loop::with(EpollOptions::new().threads_max(Lane::Bounded, 1));
    let fifo = dir.fifo("fifo");
    let lent = Lendable::path(&fifo);
    // The only thread waits for the other end to be opened.
    let open = Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0).user_data(1);
    let close = Sqe::close(std::os::fd::IntoRawFd::into_raw_fd(writer)).user_data(2);
    for sqe in [open, close] {
        let request = test.request(sqe.user_data, sqe).unwrap();
        // SAFETY: the path is lent until the open is over; the descriptor is given away.
        unsafe { test.epoll.push_call(request, Destination::Lane(Lane::Bounded)) }.unwrap();
    }
    test.push(3, Sqe::cancel(2));
    assert_eq!(test.submit(), [(3, err(Errno::ALREADY))]);
    let _both = open_both_ends(&fifo);
    let mut ends = test.enter(2);
    ends.sort_unstable();
    assert_eq!(ends[1], (2, 0));
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(ends[0].1) });
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0), "no writer is left");
}
