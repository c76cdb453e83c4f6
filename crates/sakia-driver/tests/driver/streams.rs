//! Streams that receive by the queue or by readiness, and change from one to the other.

use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use sakia_driver::{Connection, Driver, OpKind, ShutdownHow, Streams, Wait};
use sakia_testkit::settings::patience;

use crate::support::{self, Random};

/// Returns the two ends of a connection within one driver.
fn pair(driver: &Driver) -> (Connection, Connection) {
    let (near, far) = UnixStream::pair().unwrap();
    let [near, far] = [near, far].map(|end| driver.adopt(OwnedFd::from(end)));
    (driver.connection(near), driver.connection(far))
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn run<F: Future>(driver: &Driver, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        let watch = support::Watch::new();
        driver.turn(Wait::For(patience())).unwrap();
        watch.check(|| "bytes that have arrived".to_owned());
    }
}

fn by_readiness() -> Driver {
    let driver = support::driver();
    driver.set_streams(Streams::Readiness);
    driver
}

#[test]
fn a_message_by_readiness_is_two_plain_calls() {
    let driver = by_readiness();
    let (near, far) = pair(&driver);
    assert!(poll_once(far.recv()).is_pending(), "armed");
    let before = driver.counters();
    for round in 0..100_u8 {
        run(&driver, near.send(vec![round])).0.unwrap();
        assert_eq!(*run(&driver, far.recv()).unwrap(), [round]);
        run(&driver, far.send(vec![round])).0.unwrap();
        assert_eq!(*run(&driver, near.recv()).unwrap(), [round]);
    }
    let after = driver.counters();
    let sends = after.of(OpKind::Send).inline - before.of(OpKind::Send).inline;
    // The first send of `near` preceded its first receive.
    assert_eq!(sends, 199);
    assert_eq!(after.delivered - before.delivered, 200);
}

/// The tasks that wait for some of the messages run before the next messages arrive.
#[test]
fn a_turn_brings_a_part_of_many_messages() {
    for streams in [Streams::Queue, Streams::Readiness] {
        let driver = support::driver();
        driver.set_streams(streams);
        let ends: Vec<_> = (0..300).map(|_| UnixStream::pair().unwrap()).collect();
        let (nears, fars): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        let adopt = |end: UnixStream| driver.connection(driver.adopt(OwnedFd::from(end)));
        let nears: Vec<_> = nears.into_iter().map(adopt).collect();
        let watch = support::Watch::new();
        // In the first rounds the kernel has few buffers.
        for round in 0..4 {
            for near in &nears {
                assert!(poll_once(near.recv()).is_pending());
            }
            driver.turn(Wait::Poll).unwrap();
            for mut far in &fars {
                far.write_all(b"message").unwrap();
            }
            let mut came = 0;
            while came < 300 {
                let before = driver.counters();
                driver.turn(Wait::For(patience())).unwrap();
                let after = driver.counters();
                let count = after.delivered - before.delivered;
                // Receives that begin complete in the enter that submits them, and before Linux 6.13 any
                // enter delivers all messages; but no further enter is made.
                let enters = after.enters - before.enters;
                assert!(
                    count < 64 + 32 || enters <= 1,
                    "{streams:?}, {round}: {count} by {enters} enters"
                );
                came += count;
                watch.check(|| format!("{came} of 300 messages"));
                for near in &nears {
                    let _ = poll_once(near.recv());
                }
            }
            assert_eq!(came, 300, "{streams:?}, {round}");
        }
    }
}

/// A sleeping turn is woken by bytes, each time that some arrive.
#[test]
fn bytes_wake_a_sleeping_turn() {
    let driver = by_readiness();
    let (near, far) = UnixStream::pair().unwrap();
    let connection = driver.connection(driver.adopt(near.into()));
    let peer = thread::spawn(move || {
        let mut far = far;
        for round in 0..200_u8 {
            far.write_all(&[round]).unwrap();
            let mut answer = [0];
            far.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [round]);
        }
    });
    for round in 0..200_u8 {
        assert_eq!(*run(&driver, connection.recv()).unwrap(), [round]);
        run(&driver, connection.send(vec![round])).0.unwrap();
    }
    peer.join().unwrap();
    assert!(run(&driver, connection.recv()).unwrap().is_empty(), "the end");
}

/// The sockets have more bytes than one look at the epoll set can take, and are more than it reports at once.
#[test]
fn no_ready_socket_is_forgotten() {
    const SOCKETS: usize = 600;
    let driver = by_readiness();
    let pairs: Vec<_> = (0..SOCKETS).map(|_| pair(&driver)).collect();
    for (_, far) in &pairs {
        assert!(poll_once(far.recv()).is_pending());
    }
    driver.turn(Wait::Poll).unwrap();
    for (near, _) in &pairs {
        // More than a receive takes, in pieces larger than a small buffer.
        run(&driver, near.send(vec![7; 9000])).0.unwrap();
    }
    for (_, far) in &pairs {
        let mut count = 0;
        while count < 9000 {
            count += run(&driver, far.recv()).unwrap().len();
        }
    }
    for (near, _) in &pairs {
        run(&driver, near.shutdown(ShutdownHow::Sends)).unwrap();
    }
    for (_, far) in &pairs {
        assert!(run(&driver, far.recv()).unwrap().is_empty());
    }
}

/// A foreign loop that polls the driver's descriptor learns of bytes.
#[test]
fn a_foreign_loop_is_told() {
    let driver = by_readiness();
    let (near, far) = pair(&driver);
    let pollable = driver.pollable().unwrap();
    assert!(poll_once(far.recv()).is_pending());
    for round in 0..20_u8 {
        while driver.turn(Wait::Poll).unwrap() > 0 {}
        driver.clear_readiness();
        driver.turn(Wait::Poll).unwrap();
        run(&driver, near.send(vec![round])).0.unwrap();
        let mut taken = None;
        while taken.is_none() {
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            let mut fds = [PollFd::new(&pollable, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "round {round}");
            driver.clear_readiness();
            driver.turn(Wait::Poll).unwrap();
            if let Poll::Ready(buf) = poll_once(far.recv()) {
                taken = Some(buf.unwrap().to_vec());
            }
        }
        assert_eq!(taken.as_deref(), Some(&[round][..]));
    }
}

/// Descriptor numbers are used again while the epoll set may still hold the old file.
#[test]
fn a_closed_connection_leaves_nothing_behind() {
    let driver = by_readiness();
    for round in 0..300_u32 {
        let (near, far) = pair(&driver);
        assert!(poll_once(far.recv()).is_pending());
        run(&driver, near.send(round.to_ne_bytes().to_vec())).0.unwrap();
        if round % 3 > 0 {
            assert_eq!(*run(&driver, far.recv()).unwrap(), round.to_ne_bytes());
        }
        if round % 2 == 0 {
            run(&driver, far.close()).unwrap();
        } else {
            drop(far);
        }
        drop(near);
        driver.turn(Wait::Poll).unwrap();
    }
    while driver.in_flight() > 0 {
        driver.turn(Wait::For(patience())).unwrap();
    }
}

/// However often the way of receiving changes, a stream's bytes arrive complete and in order.
#[test]
fn random_changes_of_the_way_lose_no_byte() {
    let settings = [Streams::Queue, Streams::Readiness];
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let driver = support::driver();
        let mut pairs: Vec<_> =
            (0..random.below(20) + 1).map(|_| (pair(&driver), 0_u64, 0_u64)).collect();
        for _ in 0..3000 {
            let index = random.below(pairs.len() as u64) as usize;
            let ((near, far), sent, received) = &mut pairs[index];
            match random.below(12) {
                0 => driver.set_streams(settings[random.below(2) as usize]),
                1 => {
                    if let Poll::Ready(buf) = poll_once(far.recv()) {
                        check(&buf.unwrap(), received);
                    }
                }
                2..=5 => {
                    let len = [1, 64, 3000, 20_000][random.below(4) as usize];
                    let bytes: Vec<u8> = (0..len).map(|at| (*sent + at) as u8).collect();
                    let mut send = pin!(near.send(bytes));
                    let mut context = Context::from_waker(Waker::noop());
                    // A send that finds no room is dropped; unless it reports bytes, it has sent none.
                    if let Poll::Ready((result, _)) = send.as_mut().poll(&mut context) {
                        *sent += result.unwrap() as u64;
                    } else {
                        driver.turn(Wait::Poll).unwrap();
                        match send.as_mut().poll(&mut context) {
                            Poll::Ready((result, _)) => *sent += result.unwrap() as u64,
                            Poll::Pending => {
                                while received < sent {
                                    let buf = run(&driver, far.recv()).unwrap();
                                    check(&buf, received);
                                }
                                *sent += run(&driver, send).0.unwrap() as u64;
                            }
                        }
                    }
                }
                6..=9 => {
                    if received < sent {
                        let buf = run(&driver, far.recv()).unwrap();
                        check(&buf, received);
                    }
                }
                10 => {
                    let (result, buf) = match received < sent {
                        true => run(&driver, far.read(vec![0; 500])),
                        false => continue,
                    };
                    check(&buf[..result.unwrap()], received);
                }
                _ => drop(driver.turn(Wait::Poll).unwrap()),
            }
        }
        for ((near, far), sent, mut received) in pairs {
            run(&driver, near.shutdown(ShutdownHow::Sends)).unwrap();
            loop {
                let buf = run(&driver, far.recv()).unwrap();
                if buf.is_empty() {
                    break;
                }
                check(&buf, &mut received);
            }
            assert_eq!(received, sent, "seed {seed}");
        }
    }
}

#[track_caller]
fn check(buf: &[u8], received: &mut u64) {
    for byte in buf {
        assert_eq!(*byte, *received as u8, "at {received}");
        *received += 1;
    }
}

/// The receive that is under way brings one more message, and ends.
#[test]
fn a_connection_changes_its_mode_with_its_next_message() {
    const ROUNDS: u64 = 10;
    let driver = support::driver();
    let (near, far) = pair(&driver);
    let exchange = || {
        for (from, to) in [(&near, &far), (&far, &near)] {
            run(&driver, from.send(vec![1])).0.unwrap();
            assert_eq!(*run(&driver, to.recv()).unwrap(), [1]);
        }
    };
    for (mode, plain) in [
        (Streams::Queue, 0),
        (Streams::Readiness, 2 * ROUNDS),
        (Streams::Queue, 0),
        (Streams::Readiness, 2 * ROUNDS),
    ] {
        driver.set_streams(mode);
        assert_eq!((driver.streams(), driver.metrics().streams), (mode, mode));
        // The receive of the mode before brings the first message, and one of this mode the second.
        exchange();
        exchange();
        let before = driver.counters().of(OpKind::Send).inline;
        (0..ROUNDS).for_each(|_| exchange());
        assert_eq!(driver.counters().of(OpKind::Send).inline - before, plain, "{mode:?}");
    }
}

/// Without an io_uring there is only one mode.
#[test]
fn a_driver_without_a_ring_has_no_choice() {
    let driver = Driver::new(sakia_driver::Epoll::new().unwrap());
    for streams in [Streams::Readiness, Streams::Queue] {
        driver.set_streams(streams);
        assert_eq!((driver.streams(), driver.metrics().streams), (Streams::Queue, Streams::Queue));
    }
}

/// Takes turns that do not sleep until bytes arrive, and returns them.
#[track_caller]
fn recv_busily(driver: &Driver, connection: &Connection) -> Vec<u8> {
    let watch = support::Watch::new();
    loop {
        if let Poll::Ready(buf) = poll_once(connection.recv()) {
            return buf.unwrap().to_vec();
        }
        driver.turn(Wait::Poll).unwrap();
        watch.check(|| "bytes that have arrived".to_owned());
    }
}

/// A loop that never sleeps is notified of bytes, too: nothing is left to submit, so only the set makes a
/// turn enter.
#[test]
fn a_busy_loop_receives() {
    let driver = by_readiness();
    let (near, mut far) = UnixStream::pair().unwrap();
    let connection = driver.connection(driver.adopt(near.into()));
    for round in 0..20_u8 {
        assert!(poll_once(connection.recv()).is_pending());
        for _ in 0..10 {
            driver.turn(Wait::Poll).unwrap();
        }
        far.write_all(&[round]).unwrap();
        assert_eq!(recv_busily(&driver, &connection), [round]);
    }
}

/// Bytes that are there when the receive begins make it change to larger buffers at once.
#[test]
fn bytes_that_wait_are_all_received() {
    for len in [100, 5_000, 50_000, 200_000] {
        let driver = by_readiness();
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let sent = (&far).write(&vec![7; len]).unwrap();
        let connection = driver.connection(driver.adopt(near.into()));
        let mut received = 0;
        while received < sent {
            received += recv_busily(&driver, &connection).len();
        }
        assert_eq!(received, sent);
    }
}

/// The drop itself takes the result of its request to cancel, since a loop may not take a turn for a long
/// time.
#[test]
fn a_dropped_connection_is_closed_there_and_then() {
    let driver = by_readiness();
    let (near, far) = pair(&driver);
    assert!(poll_once(far.recv()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    let before = driver.counters().finished;
    drop(far);
    assert_eq!(
        driver.counters().finished - before,
        2,
        "the receive has ended, and so has the close"
    );
    assert_eq!(driver.counters().of(OpKind::Close).inline, 1);
    assert!(run(&driver, near.recv()).unwrap().is_empty(), "the peer has closed");
}

/// A turn takes the results of its own requests to cancel. A foreign loop may not take another one for a long
/// time, and there the drop leaves them to the turn.
#[test]
fn a_dropped_connection_of_a_foreign_loop_is_closed_by_one_turn() {
    let driver = by_readiness();
    let _pollable = driver.pollable().unwrap();
    let (near, far) = pair(&driver);
    assert!(poll_once(far.recv()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    let before = driver.counters().finished;
    drop(far);
    assert_eq!(driver.counters().finished, before);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.counters().finished - before, 2, "the receive and the close");
    assert!(run(&driver, near.recv()).unwrap().is_empty(), "the peer has closed");
}

/// Epoll reports a socket with an error that no receive takes all the time.
#[test]
fn an_error_that_stays_keeps_no_turn_from_sleeping() {
    let driver = by_readiness();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    // Each send leaves a timestamp in the socket's error queue.
    let flags: libc::c_uint = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    // SAFETY: the option's value is an integer, which the kernel reads during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            size_of_val(&flags) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
    let connection = driver.connection(driver.adopt(socket.into()));
    assert!(poll_once(connection.recv()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    run(&driver, connection.send(vec![1])).0.unwrap();
    let (begin, mut turns) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(300) {
        driver.turn(Wait::For(Duration::from_millis(20))).unwrap();
        turns += 1;
    }
    assert!(turns < 300, "{turns} turns that should have slept");
    (&peer).write_all(b"x").unwrap();
    assert_eq!(*run(&driver, connection.recv()).unwrap(), *b"x");
}

/// The loop asks after the drop, and sleeps only if its operation is not done.
#[test]
fn an_operation_that_ends_at_the_drop_of_another_object_is_not_slept_through() {
    for driver in [by_readiness(), support::driver()] {
        let (one, _one_far) = pair(&driver);
        assert!(poll_once(one.recv()).is_pending());
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = driver.adopt(near.into());
        let mut recv = driver.recv(&near, vec![0; 8], 0);
        driver.turn(Wait::Poll).unwrap();
        far.write_all(b"x").unwrap();
        let wake = driver.remote_wake().unwrap();
        assert!(recv.try_take().is_none(), "no turn has brought it");
        drop(one);
        driver.turn(Wait::Forever).unwrap();
        while recv.try_take().is_none() {
            driver.turn(Wait::Forever).unwrap();
        }
        // The wake comes before the drop of another one.
        let (one, _one_far) = pair(&driver);
        assert!(poll_once(one.recv()).is_pending());
        driver.turn(Wait::Poll).unwrap();
        let wakes = driver.counters().remote_wakes;
        thread::spawn(move || wake.wake()).join().unwrap();
        drop(one);
        driver.turn(Wait::Forever).unwrap();
        let counters = driver.counters();
        assert_eq!((counters.remote_wakes, counters.stale), (wakes + 1, 0));
    }
}
