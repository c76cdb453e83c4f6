//! Two threads on each socket, with tiny buffers: streams arrive whole, as far as their peers read and
//! write.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sakia_socket::Events;

use crate::api::{End, Maker, OfKernel, OfLayer, Wire};
use crate::support::{MODES, byte, options};
use crate::{each_seed, programs};

/// The way in which a writer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Shutdown,
    /// The writer closes its handle.
    Close,
    /// The writer resets the connection.
    Reset,
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug)]
struct Direction {
    seed: u64,
    bytes: u64,
    ending: Ending,
    /// The number of bytes after which the reader leaves.
    reads: u64,
    is_writer_blocking: bool,
    is_reader_blocking: bool,
    timeout: Option<Duration>,
}

/// The observations of a direction: the lengths of the prefix of the stream that was sent and read, and how
/// it ended.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sent: u64,
    write_error: Option<Errno>,
    read: u64,
    read_error: Option<Errno>,
}

/// Writes the bytes of a direction, then ends it. `is_over` is true once the other thread has left.
fn write<E: End>(end: E, direction: Direction, is_over: &AtomicBool) -> (u64, Option<Errno>) {
    let mut random = fastrand::Rng::with_seed(direction.seed);
    let mut sent = 0;
    while sent < direction.bytes {
        let most = if random.u8(..10) == 0 { 9000 } else { 200 };
        let len = random.u64(..most).min(direction.bytes - sent);
        let bytes: Vec<u8> = (sent..sent + len).map(byte).collect();
        let (first, second) = bytes.split_at(random.usize(..=bytes.len()));
        let mut flags = SendFlags::empty();
        if !direction.is_writer_blocking {
            flags |= SendFlags::DONTWAIT;
        }
        if random.u8(..30) == 0 {
            flags |= SendFlags::MORE;
        }
        match end.send(&[IoSlice::new(first), IoSlice::new(second)], flags) {
            Ok(count) => sent += count as u64,
            Err(Errno::AGAIN) if is_over.load(Ordering::Relaxed) => return (sent, None),
            // The timeout has passed, or the call must not wait.
            Err(Errno::AGAIN) => drop(end.events(Events::OUT, Duration::from_millis(2))),
            Err(errno) => return (sent, Some(errno)),
        }
        if random.u8(..200) == 0 {
            thread::sleep(Duration::from_micros(300));
        }
    }
    match direction.ending {
        Ending::Shutdown => {
            let error = end.shutdown(Shutdown::Write).err();
            return (sent, error);
        }
        Ending::Close => {}
        Ending::Reset => end.set_linger(Some(Duration::ZERO)).expect("an option"),
    }
    (sent, None)
}

fn read<E: End>(end: E, direction: Direction, is_over: &AtomicBool) -> (u64, Option<Errno>) {
    let mut random = fastrand::Rng::with_seed(direction.seed ^ 1);
    let mut got = 0;
    while got < direction.reads {
        let (mut first, mut second) = (vec![0; random.usize(1..300)], vec![0; 500]);
        second.truncate(random.usize(..500));
        let mut flags = match random.u8(..8) {
            0 => RecvFlags::PEEK,
            1 => RecvFlags::WAITALL,
            _ => RecvFlags::empty(),
        };
        if !direction.is_reader_blocking {
            flags |= RecvFlags::DONTWAIT;
        }
        let pieces = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        match end.recv(pieces, flags) {
            Ok(0) => return (got, None),
            Ok(count) => {
                let found = [first, second].concat();
                let expected = (got..).map(byte).take(count);
                assert!(expected.eq(found[..count].iter().copied()), "at {got}: {direction:?}");
                got += if flags.contains(RecvFlags::PEEK) { 0 } else { count as u64 };
            }
            Err(Errno::AGAIN) if is_over.load(Ordering::Relaxed) => return (got, None),
            Err(Errno::AGAIN) => drop(end.events(Events::IN, Duration::from_millis(2))),
            Err(errno) => return (got, Some(errno)),
        }
        if random.u8(..150) == 0 {
            thread::sleep(Duration::from_micros(500));
        }
    }
    (got, None)
}

/// Moves bytes in both directions at the same time, with a thread for each direction of each end.
fn run<M: Maker>(maker: &M, wire: Wire, buffers: usize, directions: [Direction; 2]) -> [Seen; 2] {
    let (a, b) = maker.pair(wire);
    for end in [&a, &b] {
        end.set_buffers(buffers);
    }
    let start = |from: &M::End, to: &M::End, direction: Direction| {
        from.set_timeout(true, direction.timeout).expect("an option");
        to.set_timeout(false, direction.timeout).expect("an option");
        let (from, to) = (from.another(), to.another());
        let is_over = Arc::new(AtomicBool::new(false));
        let [over, other] = [is_over.clone(), is_over];
        let writer = thread::spawn(move || {
            let result = write(from, direction, &over);
            // After a shutdown, the end of the stream tells the reader.
            over.fetch_or(direction.ending != Ending::Shutdown, Ordering::Relaxed);
            result
        });
        let reader = thread::spawn(move || {
            let result = read(to, direction, &other);
            other.store(true, Ordering::Relaxed);
            result
        });
        (writer, reader)
    };
    let started = [start(&a, &b, directions[0]), start(&b, &a, directions[1])];
    // The threads have the only handles.
    drop((a, b));
    started.map(|(writer, reader)| {
        let (sent, write_error) = writer.join().expect("no panic");
        let (read, read_error) = reader.join().expect("no panic");
        Seen { sent, write_error, read, read_error }
    })
}

fn direction(random: &mut fastrand::Rng, is_whole: bool, bytes: u64) -> Direction {
    let bytes = random.u64(1..bytes);
    let leaves = !is_whole && random.u8(..4) == 0;
    let endings = [Ending::Shutdown, Ending::Close, Ending::Reset];
    Direction {
        seed: random.u64(..),
        bytes,
        ending: if is_whole { Ending::Shutdown } else { random.choice(endings).expect("three") },
        reads: if leaves { random.u64(..bytes) } else { u64::MAX },
        is_writer_blocking: random.bool(),
        is_reader_blocking: random.bool(),
        // An end that leaves is noticed only by a call that does not wait for ever.
        timeout: (!is_whole || random.bool()).then_some(Duration::from_millis(3)),
    }
}

/// Checks the properties of a direction that do not depend on time.
fn check(seen: &Seen, direction: Direction, is_whole: bool, what: &str) {
    let ended = |error: Option<Errno>| {
        matches!(error, None | Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN))
    };
    assert!(ended(seen.write_error) && ended(seen.read_error), "{what}: {seen:?}");
    assert!(seen.read <= direction.bytes && seen.sent <= direction.bytes, "{what}: {seen:?}");
    if is_whole {
        let bytes = direction.bytes;
        let all = Seen { sent: bytes, write_error: None, read: bytes, read_error: None };
        assert_eq!(*seen, all, "{what}: {direction:?}");
    }
}

fn compare(seeds: std::ops::Range<u64>, is_whole: bool) {
    each_seed(seeds, |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let wire = [Wire::Unix, Wire::Tcp][seed as usize % 2];
        let buffers = random.choice([1, 5000, 100_000]).expect("some");
        // With a tiny window the kernel acknowledges each packet after 40 ms.
        let bytes = if wire == Wire::Tcp && buffers < 10_000 { 4000 } else { 40_000 };
        let directions = [(); 2].map(|()| direction(&mut random, is_whole, bytes));
        let seen = run(&OfKernel, wire, buffers, directions);
        for (seen, direction) in seen.iter().zip(directions) {
            check(seen, direction, is_whole, &format!("seed {seed}, the kernel"));
        }
        let mut options = options(MODES[seed as usize / 2 % MODES.len()]);
        options.limits.bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
        options.ahead_bytes = random.choice([1, 50, 3000, 64 << 10]).expect("some");
        let seen = run(&OfLayer::new(options), wire, buffers, directions);
        for (seen, direction) in seen.iter().zip(directions) {
            check(seen, direction, is_whole, &format!("seed {seed}, {wire:?}, {options:?}"));
        }
    });
}

#[test]
fn streams_through_tiny_buffers_arrive_whole() {
    compare(0..programs(150), true);
}

#[test]
fn streams_whose_ends_leave_arrive_as_far_as_they_do() {
    compare(1000..1000 + programs(150), false);
}
