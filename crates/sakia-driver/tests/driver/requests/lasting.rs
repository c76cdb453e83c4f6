//! Requests that go on after an outcome: readiness against `poll(2)`, and streams byte by byte.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sakia_driver::{FileHandle, Lent, Loop, Outcome, PollEvents, Request, Ticket, Value, Wait};

use super::{next, on_both};
use crate::support::Random;

fn poll_many(ring: &mut Loop, file: &FileHandle, events: PollEvents, token: u64) -> Ticket {
    ring.submit(Request::PollMany { file: file.into(), events }, token).unwrap()
}

fn errno(outcome: &Outcome) -> Option<i32> {
    outcome.result.as_ref().err()?.raw_os_error()
}

/// Each turn tells of readiness as `poll(2)` does at that moment.
#[test]
fn readiness_is_that_of_poll() {
    on_both(|ring| {
        let mut random = Random::new(11);
        for _ in 0..30 {
            let (near, far) = UnixStream::pair().unwrap();
            let (file, mut far) = (FileHandle::new(OwnedFd::from(near)), Some(far));
            let ticket = poll_many(ring, &file, PollEvents::READABLE, 7);
            for _ in 0..40 {
                match random.below(5) {
                    0 => drop(far.as_mut().map(|far| far.write(b"abc"))),
                    1..3 => {
                        let read = |fd: std::os::fd::BorrowedFd<'_>| {
                            rustix::net::recv(fd, &mut [0; 2][..], rustix::net::RecvFlags::DONTWAIT)
                        };
                        file.with_fd(read).unwrap().ok();
                    }
                    3 if random.below(8) == 0 => drop(far.take()),
                    _ => {}
                }
                ring.wait(Wait::Poll).unwrap();
                let told: Vec<Outcome> = std::iter::from_fn(|| ring.take()).collect();
                let expected = file.with_fd(|fd| {
                    let asked = PollFlags::IN | PollFlags::RDHUP; // told together
                    let mut polled = [PollFd::new(&fd, asked)];
                    poll(&mut polled, Some(&Timespec::default())).unwrap();
                    polled[0].revents()
                });
                let events = told.iter().map(|outcome| {
                    assert!(outcome.more && outcome.token == 7);
                    *outcome.result.as_ref().unwrap()
                });
                let expected = usize::from(expected.unwrap().bits());
                let all: Vec<usize> = events.collect();
                assert_eq!(all, if expected == 0 { vec![] } else { vec![expected] });
            }
            ring.cancel(ticket);
            ring.cancel(ticket);
            let mut last = next(ring);
            while last.more {
                last = next(ring);
            }
            assert!(matches!(errno(&last), None | Some(libc::ECANCELED)));
            ring.cancel(ticket);
            assert_eq!((ring.under_way(), ring.wait(Wait::Poll).unwrap()), (0, 0));
        }
    });
}

#[test]
fn lasting_requests_end_with_their_file_and_their_loop() {
    on_both(|ring| {
        let (near, _far) = UnixStream::pair().unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        poll_many(ring, &file, PollEvents::READABLE, 1);
        poll_many(ring, &file, PollEvents::WRITABLE, 2);
        let writable = next(ring);
        assert!(writable.token == 2 && writable.more);
        ring.submit(Request::Close { file: file.clone() }, 3).unwrap();
        let mut ends = Vec::new();
        while ring.under_way() > 0 {
            let outcome = next(ring);
            if !outcome.more {
                ends.push((outcome.token, errno(&outcome)));
            }
        }
        ends.sort();
        let canceled = Some(libc::ECANCELED);
        assert_eq!(ends, [(1, canceled), (2, canceled), (3, None)]);
        // Of a closed file, and of none.
        for request in [
            Request::PollMany { file: (&file).into(), events: PollEvents::READABLE },
            Request::ReceiveMany { socket: (&file).into() },
        ] {
            ring.submit(request, 4).unwrap();
            assert_eq!(errno(&next(ring)), Some(libc::EBADF));
        }
        let (near, _far) = UnixStream::pair().unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        poll_many(ring, &file, PollEvents::WRITABLE, 5);
        poll_many(ring, &file, PollEvents::READABLE, 6);
        ring.submit(Request::ReceiveMany { socket: file.into() }, 7).unwrap();
        ring.wait(Wait::Poll).unwrap();
        assert!(ring.stop(Duration::from_secs(60)).leaked.is_empty());
        let mut ends: Vec<u64> = std::iter::from_fn(|| ring.take())
            .filter_map(|outcome| (!outcome.more).then_some(outcome.token))
            .collect();
        ends.sort();
        assert_eq!((ends, ring.under_way()), (vec![5, 6, 7], 0));
        poll_many(
            ring,
            &FileHandle::new(std::fs::File::open("Cargo.toml").unwrap()),
            PollEvents::READABLE,
            8,
        );
        assert_eq!(errno(&next(ring)), canceled);
    });
}

/// A stream of which the receiver gives some memory back late, and some never.
#[test]
fn streams_bring_each_byte_once() {
    on_both(|ring| {
        for seed in 0..24 {
            let mut random = Random::new(seed);
            let (near, mut far) = UnixStream::pair().unwrap();
            let file = FileHandle::new(OwnedFd::from(near));
            let ticket =
                ring.submit(Request::ReceiveMany { socket: (&file).into() }, seed).unwrap();
            let total = random.below(600_000) as usize;
            let sender = std::thread::spawn(move || {
                let mut random = Random::new(seed + 1000);
                let mut sent = 0;
                while sent < total {
                    let count = (1 + random.below(40_000) as usize).min(total - sent);
                    let bytes: Vec<u8> = (sent..sent + count).map(|at| (at % 251) as u8).collect();
                    far.write_all(&bytes).unwrap();
                    sent += count;
                    if random.below(4) == 0 {
                        std::thread::yield_now();
                    }
                }
                // Answered by the receiver, if that does not wait for the end.
                far.shutdown(Shutdown::Write).unwrap();
                far.read_to_end(&mut Vec::new()).ok();
            });
            let cancels = seed % 3 == 0;
            let (mut received, mut kept): (usize, Vec<Lent>) = (0, Vec::new());
            let end = loop {
                let outcome = next(ring);
                assert_eq!(outcome.token, seed);
                if !outcome.more {
                    break outcome;
                }
                let Value::Lent(lent) = outcome.value else { panic!("{:?}", outcome.value) };
                let bytes = ring.bytes(&lent);
                assert_eq!(bytes.len(), outcome.result.unwrap());
                for &byte in bytes {
                    assert_eq!(byte, (received % 251) as u8, "byte {received}");
                    received += 1;
                }
                match random.below(6) {
                    0 => kept.push(lent),
                    _ => ring.give_back(lent),
                }
                if random.below(3) == 0
                    && let Some(lent) = kept.pop()
                {
                    ring.give_back(lent);
                }
                if cancels && received > total / 2 {
                    ring.cancel(ticket);
                }
            };
            match errno(&end) {
                None => assert!(end.result.unwrap() == 0 && received == total),
                errno => assert!(errno == Some(libc::ECANCELED) && cancels),
            }
            // The rest of a canceled one is still in the socket.
            if received < total {
                let mut rest = vec![0; 100_000];
                while received < total {
                    let count = file.with_fd(|fd| rustix::io::read(fd.as_fd(), &mut rest)).unwrap();
                    for &byte in &rest[..count.unwrap()] {
                        assert_eq!(byte, (received % 251) as u8, "byte {received}");
                        received += 1;
                    }
                }
            }
            drop(file);
            ring.wait(Wait::Poll).unwrap(); // closes it
            sender.join().unwrap();
            assert_eq!(ring.under_way(), 0);
        }
    });
}

/// Memory that is lent for ever does not end a stream.
#[test]
fn a_hoarder_gets_all_bytes() {
    on_both(|ring| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        ring.submit(Request::ReceiveMany { socket: file.into() }, 1).unwrap();
        let mut hoard: Vec<Lent> = Vec::new();
        let mut received = 0;
        for round in 0..2_000_u32 {
            far.write_all(&round.to_ne_bytes()).unwrap();
            let mut bytes = Vec::new();
            while bytes.len() < 4 {
                let Value::Lent(lent) = next(ring).value else { panic!("bytes") };
                bytes.extend_from_slice(ring.bytes(&lent));
                hoard.push(lent);
            }
            assert_eq!(bytes, round.to_ne_bytes());
            received += bytes.len();
        }
        let all: usize = hoard.iter().map(|lent| ring.bytes(lent).len()).sum();
        assert_eq!(all, received);
        // That of another loop is nothing here, and its own stays.
        let mut other = Loop::new().unwrap();
        let first = hoard.pop().unwrap();
        let bits = first.to_bits();
        assert!(other.bytes(&first).is_empty());
        other.give_back(first);
        assert_eq!(ring.bytes(&Lent::from_bits(bits)).len(), 4);
        ring.give_back(Lent::from_bits(bits));
        ring.give_back(Lent::from_bits(bits));
        assert!(ring.bytes(&Lent::from_bits(bits)).is_empty());
        // The next bytes have its place, and not its name.
        far.write_all(b"new").unwrap();
        let Value::Lent(lent) = next(ring).value else { panic!("bytes") };
        assert_eq!(lent.to_bits() as u32, bits as u32);
        ring.give_back(Lent::from_bits(bits));
        assert!(ring.bytes(&Lent::from_bits(bits)).is_empty());
        assert_eq!(ring.bytes(&lent), b"new");
        ring.give_back(lent);
        drop(far);
        assert!(!next(ring).more);
    });
}

#[test]
fn a_stream_is_for_one_request_at_a_time() {
    on_both(|ring| {
        let (near, mut far) = UnixStream::pair().unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        for round in 0..3 {
            let first = ring.submit(Request::ReceiveMany { socket: (&file).into() }, 1).unwrap();
            if round == 1 {
                ring.wait(Wait::Poll).unwrap();
            }
            let second = ring.submit(Request::ReceiveMany { socket: (&file).into() }, 2).unwrap();
            ring.cancel(second);
            let busy = next(ring);
            assert_eq!((busy.token, busy.more, errno(&busy)), (2, false, Some(libc::EBUSY)));
            if round == 2 {
                far.write_all(b"abc").unwrap();
                let piece = next(ring);
                assert!(piece.more && piece.token == 1);
            }
            ring.cancel(first);
            let end = next(ring);
            assert_eq!((end.token, end.more, errno(&end)), (1, false, Some(libc::ECANCELED)));
        }
    });
}

#[test]
fn what_is_no_stream_socket_is_an_error() {
    on_both(|ring| {
        let file = FileHandle::new(std::fs::File::open("Cargo.toml").unwrap());
        ring.submit(Request::ReceiveMany { socket: file.into() }, 1).unwrap();
        let end = next(ring);
        assert_eq!((end.more, errno(&end)), (false, Some(libc::ENOTSOCK)));
    });
}
