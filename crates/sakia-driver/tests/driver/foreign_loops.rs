//! Each descriptor for a foreign loop belongs to its caller: whatever safe code does with it, the holders of
//! others are notified, and the driver neither waits for it nor loses anything.

use std::future::Future;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use sakia_driver::{CURRENT_POSITION, Driver, Epoll, Lane, Streams, Uring, Wait};
use sakia_testkit::settings::patience;

use crate::hosts::rigged;
use crate::support::{finish, pipe_ends, turn_until, write_all};

/// Returns whether the descriptor is readable, or becomes so within this many seconds.
fn is_readable(fd: &OwnedFd, seconds: u64) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let timeout = Timespec { tv_sec: seconds as i64, tv_nsec: 0 };
    poll(&mut polled, Some(&timeout)).unwrap() == 1
}

/// Does to a descriptor all that safe code can do.
fn abuse(fd: &OwnedFd) {
    let (reader, writer) = pipe_ends();
    // An eventfd would accept both: a read would take away another holder's signal, a write would add one too
    // many.
    assert!(rustix::io::write(fd, &1_u64.to_ne_bytes()).is_err(), "it cannot be written to");
    assert!(rustix::io::read(fd, &mut [0; 8]).is_err(), "nor read");
    // In blocking mode, a read of an empty eventfd would wait for ever.
    rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
    // An epoll set can be waited for, which takes its events, and other descriptors can be added to it.
    let _ = epoll::add(fd, reader.as_fd(), EventData::new_u64(9), EventFlags::IN);
    write_all(&writer, b"x");
    for _ in 0..4 {
        let mut events = Vec::with_capacity(8);
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        let _ = epoll::wait(fd, spare, Some(&no_time));
    }
}

fn whoever_has_one_breaks_it_for_himself(
    driver: &Driver,
    adopt: impl Fn(&Driver, OwnedFd) -> sakia_driver::Fd,
) {
    let (broken, good) = (driver.pollable().unwrap(), driver.pollable().unwrap());
    abuse(&broken);
    let (reader, writer) = pipe_ends();
    let reader = adopt(driver, reader);
    for _ in 0..3 {
        driver.clear_readiness(); // does not wait
        assert!(!is_readable(&good, 0), "nothing has come");
        let mut read = driver.read(&reader, vec![0; 1], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        driver.clear_readiness();
        write_all(&writer, b"x");
        assert!(is_readable(&good, patience().as_secs()), "a byte has arrived");
        abuse(&broken);
        assert!(is_readable(&good, 0), "abuse of the other descriptor takes nothing away");
        driver.clear_readiness();
        assert_eq!(finish(driver, &mut read).0.unwrap(), 1);
    }
    drop((broken, good));
    // The driver goes on without any such descriptor.
    let mut read = driver.read(&reader, vec![0; 1], CURRENT_POSITION);
    write_all(&writer, b"y");
    let mut output = None;
    turn_until(driver, || {
        output = output.take().or_else(|| read.try_take());
        output.is_some()
    });
    assert_eq!(output.unwrap().0.unwrap(), 1);
}

#[test]
fn break_nothing_of_a_ring() {
    let driver = Driver::new(Uring::new().unwrap());
    whoever_has_one_breaks_it_for_himself(&driver, |driver, fd| driver.adopt(fd));
}

#[test]
fn break_nothing_of_epoll() {
    let driver = Driver::new(Epoll::new().unwrap());
    whoever_has_one_breaks_it_for_himself(&driver, |driver, fd| {
        driver.lend(std::sync::Arc::new(fd))
    });
}

/// Takes turns as a foreign loop does, one each time that the descriptor becomes readable, until `is_done`
/// returns true.
fn turn_when_told(driver: &Driver, pollable: &OwnedFd, mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        // Operations that were started since the last turn may be done at once, without a notification.
        if !driver.wants_turn() {
            assert!(is_readable(pollable, patience().as_secs()), "no notification arrives");
        }
        driver.clear_readiness();
        driver.turn(Wait::Poll).unwrap();
    }
}

#[test]
fn are_told_of_results_of_threads() {
    for is_first in [true, false] {
        let driver = Driver::new(Uring::new().unwrap());
        let pollable = is_first.then(|| driver.pollable().unwrap());
        let file = driver.adopt(std::fs::File::open("/proc/self/exe").unwrap().into());
        // A read at the file's own position is performed by a thread.
        let read = || driver.read(&file, vec![0; 4], CURRENT_POSITION);
        if !is_first {
            assert_eq!(finish(&driver, &mut read()).0.unwrap(), 4);
        }
        let pollable = pollable.unwrap_or_else(|| driver.pollable().unwrap());
        for _ in 0..3 {
            let (mut read, mut output) = (read(), None);
            driver.turn(Wait::Poll).unwrap();
            turn_when_told(&driver, &pollable, || {
                output = output.take().or_else(|| read.try_take());
                output.is_some()
            });
            assert_eq!(output.unwrap().0.unwrap(), 4);
        }
        let statistics = |ring: &Uring| ring.lane_statistics(Lane::Bounded).finished;
        assert!(driver.with_backend(statistics).unwrap() > 0, "threads made them");
    }
}

#[test]
fn are_told_of_messages_by_readiness_since_the_last_turn() {
    let driver = Driver::new(Uring::new().unwrap());
    driver.set_streams(Streams::Readiness);
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = driver.connection(driver.adopt(near.into()));
    let mut context = Context::from_waker(Waker::noop());
    for byte in [b'a', b'b'] {
        let mut recv = pin!(near.recv());
        assert!(recv.as_mut().poll(&mut context).is_pending());
        far.write_all(&[byte]).unwrap();
        let mut output = None;
        if byte == b'a' {
            // After this the ring no longer polls the set of sockets.
            turn_until(&driver, || match recv.as_mut().poll(&mut context) {
                Poll::Ready(result) => {
                    output = Some(result);
                    true
                }
                Poll::Pending => false,
            });
        } else {
            let pollable = driver.pollable().unwrap();
            turn_when_told(&driver, &pollable, || match recv.as_mut().poll(&mut context) {
                Poll::Ready(result) => {
                    output = Some(result);
                    true
                }
                Poll::Pending => false,
            });
        }
        assert_eq!(*output.unwrap().unwrap(), [byte]);
    }
}

#[test]
fn are_told_of_all_messages_of_a_crowd() {
    for streams in [Streams::Queue, Streams::Readiness] {
        let driver = Driver::new(Uring::new().unwrap());
        driver.set_streams(streams);
        let (nears, fars): (Vec<_>, Vec<_>) = (0..300).map(|_| UnixStream::pair().unwrap()).unzip();
        let adopt = |end: UnixStream| driver.connection(driver.adopt(end.into()));
        let nears: Vec<_> = nears.into_iter().map(adopt).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> = nears.iter().map(|near| Box::pin(near.recv())).collect();
        waiting.retain_mut(|recv| recv.as_mut().poll(&mut context).is_pending());
        driver.turn(Wait::Poll).unwrap();
        let pollable = driver.pollable().unwrap();
        driver.clear_readiness();
        driver.turn(Wait::Poll).unwrap();
        for mut far in &fars {
            far.write_all(b"x").unwrap();
        }
        turn_when_told(&driver, &pollable, || {
            waiting.retain_mut(|recv| recv.as_mut().poll(&mut context).is_pending());
            waiting.is_empty()
        });
    }
}

/// The kernel sets its flag for work that another thread has added, perhaps after an enter has taken the
/// work. It stays then, and no enter brings anything.
#[test]
fn sleep_although_the_kernel_was_late_with_its_flag() {
    let (driver, rig) = rigged(8, 16);
    let pollable = driver.pollable().unwrap();
    driver.clear_readiness();
    driver.turn(Wait::Poll).unwrap();
    rig.leaves_flag.set(true);
    driver.turn(Wait::Poll).unwrap();
    finish(&driver, &mut driver.nop()).unwrap();
    driver.clear_readiness();
    driver.turn(Wait::Poll).unwrap();
    assert!(!driver.wants_turn() && !driver.has_news(), "the last enter found nothing");
    assert!(!is_readable(&pollable, 0));
    // It is told of what comes, flag or not.
    let (reader, writer) = pipe_ends();
    let reader = driver.adopt(reader);
    let mut read = pin!(driver.read(&reader, vec![0; 1], CURRENT_POSITION));
    let mut context = Context::from_waker(Waker::noop());
    assert!(read.as_mut().poll(&mut context).is_pending());
    driver.turn(Wait::Poll).unwrap();
    for _ in 0..3 {
        driver.clear_readiness();
        driver.turn(Wait::Poll).unwrap();
    }
    assert!(!driver.wants_turn() && !is_readable(&pollable, 0));
    write_all(&writer, b"x");
    turn_when_told(&driver, &pollable, || read.as_mut().poll(&mut context).is_ready());
}
