//! The bound, cancellation, the end of a loop, and a forked child.

use std::io::Write;
use std::time::Duration;

use sakia_driver::{CURRENT_POSITION, FileHandle, Full, Loop, Request, Ticket, Wait};

use super::{assert_unread, errno, finish, next, on_both, perform};
use crate::children;

fn pipe() -> (FileHandle, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (FileHandle::new(reader), writer)
}

fn read(file: &FileHandle) -> Request {
    Request::read(file, vec![0; 8].into(), CURRENT_POSITION)
}

#[test]
fn submitters_beyond_the_bound_are_told_so_and_lose_nothing() {
    on_both(|ring| {
        let (reader, mut writer) = pipe();
        ring.set_under_way_max(10);
        let mut tickets: Vec<Ticket> = Vec::new();
        for token in 0..1000 {
            match ring.submit(read(&reader), token) {
                Ok(ticket) => tickets.push(ticket),
                Err(Full(request)) => {
                    assert!(matches!(request, Request::Read { .. }) && token >= 5)
                }
            }
            let refused = ring.submit_read(&reader, vec![0; 8].into(), 0, token);
            assert!(token < 5 || refused.is_err());
            if token < 5 {
                tickets.push(refused.unwrap());
            }
        }
        assert_eq!((ring.under_way(), tickets.len()), (10, 10));
        assert!(ring.submit_nop(1).is_err());
        // An outcome makes room for one, once it was taken.
        writer.write_all(b"12345678").unwrap();
        while ring.wait(Wait::Forever).unwrap() == 0 {}
        assert!(ring.submit_nop(1).is_err());
        drop(ring.take().unwrap());
        ring.submit_nop(1000).unwrap();
        for ticket in tickets {
            ring.cancel(ticket);
        }
        finish_any(ring);
    });
}

/// As `finish`, where tokens repeat.
fn finish_any(ring: &mut Loop) {
    while ring.under_way() > 0 {
        drop(next(ring));
    }
}

#[test]
fn tickets_name_their_request_only() {
    on_both(|ring| {
        let (reader, mut writer) = pipe();
        let old = ring.submit(read(&reader), 1).unwrap();
        writer.write_all(b"x").unwrap();
        assert_eq!(next(ring).result.unwrap(), 1);
        // It has the slot of the first one.
        let new = ring.submit(read(&reader), 2).unwrap();
        ring.wait(Wait::Poll).unwrap();
        for _ in 0..3 {
            ring.cancel(old);
        }
        ring.wait(Wait::Poll).unwrap();
        assert!(ring.take().is_none(), "a stale ticket names nothing");
        writer.write_all(b"y").unwrap();
        ring.wait(Wait::Poll).unwrap();
        ring.cancel(new); // too late, as a rule: the value wins
        assert!(matches!(next(ring).result, Ok(1)));
        ring.cancel(new);
        assert_eq!(ring.under_way(), 0);
    });
}

#[test]
fn a_request_canceled_before_the_kernel_has_it_ends_at_once() {
    on_both(|ring| {
        let (reader, _writer) = pipe();
        let ticket = ring.submit(read(&reader), 1).unwrap();
        ring.cancel(ticket);
        let outcome = next(ring);
        assert_eq!(outcome.result.as_ref().unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(outcome.into_vec().unwrap().len(), 8, "the memory is back");
    });
}

#[test]
fn after_a_stop_results_can_be_taken_and_requests_are_refused() {
    on_both(|ring| {
        let (reader, _writer) = pipe();
        for token in 0..20 {
            if token % 2 == 0 {
                ring.submit(read(&reader), token).unwrap();
            } else {
                ring.submit(Request::Nop, token).unwrap();
            }
        }
        ring.wait(Wait::Poll).unwrap();
        assert_eq!(ring.stop(Duration::from_secs(60)).leaked, []);
        assert_eq!(ring.under_way(), 20);
        ring.submit(read(&reader), 20).unwrap();
        let outcomes = finish_after_stop(ring);
        assert_eq!(outcomes.len(), 21);
        for (token, result) in outcomes {
            let is_canceled = result == Err(Some(libc::ECANCELED));
            assert!(is_canceled || token % 2 == 1 && result == Ok(0), "{token}: {result:?}");
        }
        // Harmless.
        assert_eq!(ring.stop(Duration::ZERO).leaked, []);
        ring.waker().wake();
        assert_eq!(ring.wait(Wait::Forever).unwrap(), 0);
    });
}

fn finish_after_stop(ring: &mut Loop) -> Vec<(u64, Result<usize, Option<i32>>)> {
    let take = |ring: &mut Loop| {
        let outcome = ring.take()?;
        Some((outcome.token, outcome.result.map_err(|error| error.raw_os_error())))
    };
    std::iter::from_fn(|| take(ring)).collect()
}

#[test]
fn a_stop_closes_what_it_was_asked_to_close_and_keeps_connections() {
    on_both(|ring| {
        let (reader, writer) = pipe();
        ring.submit(read(&reader), 1).unwrap();
        ring.wait(Wait::Poll).unwrap();
        ring.submit(Request::Close { file: reader }, 2).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = FileHandle::new(listener);
        ring.submit(Request::AcceptMany { socket: (&listener).into() }, 3).unwrap();
        ring.wait(Wait::Poll).unwrap();
        let _peer = std::net::TcpStream::connect(address).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            // The connection and the read; the close may be there, too.
            match ring.take() {
                Some(outcome) if outcome.more => seen.push(outcome.into_file().is_some()),
                Some(outcome) => seen.push(outcome.token == 1 || outcome.result.is_ok()),
                None => drop(ring.wait(Wait::Forever).unwrap()),
            }
        }
        assert!(seen.iter().all(|is_right| *is_right));
        let _other = std::net::TcpStream::connect(address).unwrap();
        while ring.wait(Wait::Forever).unwrap() == 0 {}
        assert_eq!(ring.stop(Duration::from_secs(60)).leaked, []);
        assert_unread(&writer);
        while let Some(outcome) = ring.take() {
            match (outcome.token, outcome.more) {
                (2, false) => outcome.result.map(drop).unwrap(),
                (3, true) => assert!(outcome.into_file().is_some()),
                (3, false) => assert!(outcome.result.is_err()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ring.under_way(), 0);
    });
}

#[test]
fn dropping_the_loop_closes_what_was_not_taken() {
    on_both(|_| {
        let (reader, writer) = pipe();
        let mut ring = Loop::new().unwrap();
        ring.submit(read(&reader), 1).unwrap();
        drop(reader);
        ring.wait(Wait::Poll).unwrap();
        drop(ring);
        assert_unread(&writer);
    });
}

#[test]
fn a_forked_child_gets_an_error_and_makes_its_own_loop() {
    children::run("requests_fork");
}

pub fn scene_fork() {
    on_both(|ring| {
        let (reader, mut writer) = pipe();
        ring.submit(read(&reader), 1).unwrap();
        ring.wait(Wait::Poll).unwrap();
        let waker = ring.waker();
        let child = sakia_testkit::forked::run(|| {
            waker.wake();
            assert!(ring.wait(Wait::Forever).is_err());
            ring.submit(read(&reader), 2).unwrap();
            let outcome = ring.take().unwrap();
            assert!(outcome.result.unwrap_err().to_string().contains("parent"));
            assert!(ring.take().is_none());
            let (own_reader, mut own_writer) = pipe();
            let mut own = Loop::new().unwrap();
            own_writer.write_all(b"own").unwrap();
            assert_eq!(perform(&mut own, read(&own_reader)).result.unwrap(), 3);
            drop(own);
        });
        child.unwrap();
        // The child has neither woken nor changed the parent's.
        assert_eq!(ring.wait(Wait::For(Duration::from_millis(1))).unwrap(), 0);
        writer.write_all(b"abc").unwrap();
        assert_eq!(finish(ring).remove(&1).unwrap().result.unwrap(), 3);
        assert_eq!(
            errno(ring, Request::read(&reader, Vec::new().into(), CURRENT_POSITION)),
            libc::EINVAL
        );
    });
}
