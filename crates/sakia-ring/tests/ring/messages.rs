//! Messages from ring to ring, and from a plain thread to a ring.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Kernel, Ring, Sqe, send_message};

use crate::support::{PATIENCE, assert_works, complete, enter, errno_of, push, push_nops, skip};

/// Sends a message from this thread to a ring whose owner expects it.
fn send(target: BorrowedFd<'_>, user_data: u64, result: i32) -> Result<(), Option<Errno>> {
    // SAFETY: no owner in these tests frees anything because of a completion.
    unsafe { send_message(&Kernel, target, user_data, result) }.map_err(|error| errno_of(&error))
}

/// Returns whether the kernel has this call (6.13).
fn can_send() -> bool {
    let ring = Ring::builder().build().unwrap();
    send(ring.as_fd(), 0, 0) != Err(Some(Errno::INVAL))
}

#[test]
fn a_ring_sends_to_another_on_its_thread() {
    let mut target = Ring::builder().build().unwrap();
    let mut source = Ring::builder().build().unwrap();
    for (user_data, result) in [(1, 2), (u64::MAX, i32::MAX), (0, -5)] {
        let sqe = Sqe::msg_ring(target.as_fd().as_raw_fd(), user_data, result);
        push(&mut source, sqe.user_data(77)).unwrap();
        let sent = complete(&mut source, 1)[0];
        assert_eq!((sent.user_data, sent.res), (77, 0));
        let message = complete(&mut target, 1)[0];
        assert_eq!((message.user_data, message.res), (user_data, result));
    }
}

#[test]
fn a_ring_wakes_another_on_its_thread() {
    let mut source = Ring::builder().build().unwrap();
    let disabled = Ring::builder().build_disabled().unwrap();
    let (to_main, from_owner) = mpsc::channel();
    let owner = thread::spawn(move || {
        let mut ring = disabled.enable().unwrap();
        to_main.send(ring.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let message = complete(&mut ring, 1)[0];
        assert_eq!((message.user_data, message.res), (5, 6));
    });
    let target = from_owner.recv().unwrap();
    thread::sleep(Duration::from_millis(10)); // lets it wait; the test is correct without it
    push(&mut source, Sqe::msg_ring(target.as_raw_fd(), 5, 6)).unwrap();
    assert_eq!(complete(&mut source, 1)[0].res, 0);
    owner.join().unwrap();
}

#[test]
fn a_plain_thread_wakes_a_waiting_ring() {
    if !can_send() {
        skip!("no messages without a ring (kernel 6.13)");
    }
    let mut ring = Ring::builder().build().unwrap();
    let target = ring.as_fd().try_clone_to_owned().unwrap();
    let sender = thread::spawn(move || {
        for number in 0..100 {
            thread::sleep(Duration::from_micros(100));
            send(target.as_fd(), number, number as i32 + 1).unwrap();
        }
    });
    for number in 0..100 {
        let entered = enter(&mut ring, 1, Some(PATIENCE));
        assert!(!entered.timed_out);
        let message = complete(&mut ring, 1)[0];
        assert_eq!((message.user_data, message.res), (number, number as i32 + 1));
    }
    sender.join().unwrap();
}

#[test]
fn many_threads_send_to_a_small_ring_and_nothing_is_lost() {
    const EACH: u64 = 200;
    const THREADS: u64 = 4;
    if !can_send() {
        skip!("no messages without a ring (kernel 6.13)");
    }
    let mut ring = Ring::builder().sq_entries(2).cq_entries(4).build().unwrap();
    let mut seen = Vec::new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let target = ring.as_fd().try_clone_to_owned().unwrap();
            scope.spawn(move || {
                for number in 0..EACH {
                    send(target.as_fd(), thread << 32 | number, 0).unwrap();
                }
            });
        }
        seen = complete(&mut ring, (EACH * THREADS) as usize);
    });
    for thread in 0..THREADS {
        let mine = seen.iter().filter(|cqe| cqe.user_data >> 32 == thread);
        let numbers: Vec<u64> = mine.map(|cqe| cqe.user_data & 0xffff_ffff).collect();
        assert_eq!(numbers.len(), EACH as usize);
    }
    push_nops(&mut ring, [1]);
    assert_eq!(complete(&mut ring, 1)[0].user_data, 1);
    assert_eq!(ring.cq_lost(), 0);
}

#[test]
fn messages_go_to_enabled_rings_only() {
    if !can_send() {
        skip!("no messages without a ring (kernel 6.13)");
    }
    let (read, _write) = rustix::pipe::pipe().unwrap();
    assert_eq!(send(read.as_fd(), 1, 1), Err(Some(Errno::BADFD)));
    let mut ring = Ring::builder().build().unwrap();
    assert_works(&mut ring);
}
