//! Streams of TCP: the moments at which delayed bytes are sent, and the bytes that a peek sees.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_socket::{Layer, When};

use crate::support::watched::Watched;
use crate::support::{MODES, delayed, layer, options, read_ahead, recv, send, tcp, unix};

#[test]
fn questions_are_sent_before_answers_are_waited_for() {
    for mode in MODES {
        let layer = layer(options(mode));
        let (a, b) = tcp(&layer);
        let server = thread::spawn(move || {
            let mut buffer = [0; 4];
            while b.recv(&mut buffer, RecvFlags::WAITALL).expect("an open connection") == 4 {
                send(&b, &buffer);
            }
        });
        for number in 0..500_u32 {
            // The request is sent as single bytes, which are gathered.
            for byte in number.to_be_bytes() {
                send(&a, &[byte]);
            }
            let mut answer = [0; 4];
            assert_eq!(a.recv(&mut answer, RecvFlags::WAITALL), Ok(4));
            assert_eq!(u32::from_be_bytes(answer), number);
        }
        drop(a);
        server.join().expect("no panic");
    }
}

#[test]
fn delayed_bytes_are_sent_while_the_program_computes() {
    let layer = layer(options((When::Never, When::Always)));
    let (a, b) = tcp(&layer);
    let reader = thread::spawn(move || {
        let mut buffer = [0; 5];
        b.recv(&mut buffer, RecvFlags::WAITALL).map(|_| buffer)
    });
    send(&a, b"hello");
    // This thread only waits for the other one, which is no call of the library.
    assert_eq!(reader.join().expect("no panic"), Ok(*b"hello"));
}

#[test]
fn bytes_that_come_after_the_clock_was_read_are_not_due() {
    let layer = Layer::new(Watched::default(), delayed());
    let (a, _b) = tcp(&layer);
    layer.host().is_late.store(true, Ordering::Relaxed);
    send(&a, b"hello");
    while layer.host().parks.load(Ordering::Relaxed) == 0 {
        thread::yield_now();
    }
    assert!(!layer.host().is_late.load(Ordering::Relaxed), "the thread has read the clock");
    assert_eq!(a.delayed(), 5);
}

#[test]
fn a_look_sees_the_bytes_behind_those_in_memory() {
    let layer = layer(options((When::Always, When::Never)));
    let (a, b) = tcp(&layer);
    send(&a, b"12");
    read_ahead(&b);
    send(&a, b"345");
    let mut seen = [0; 4];
    while b.recv(&mut seen, RecvFlags::PEEK) != Ok(4) {
        thread::yield_now();
    }
    assert_eq!(&seen, b"2345");
    assert_eq!(b.unread(), Ok(4));
    assert_eq!(b.hand_back().err(), Some(Errno::BUSY));
    let mut rest = [0; 4];
    assert_eq!(b.recv(&mut rest, RecvFlags::empty()), Ok(4));
    assert!(b.hand_back().is_ok());
}

/// Its small writes are evidence from the first on, as those of a thread that has waited.
#[test]
fn a_thread_that_never_waited_gathers() {
    /// The small writes that are not gathered.
    const DIRECT: usize = 8;
    let mut options = options((When::Never, When::OnEvidence));
    options.limits.delay = Duration::from_secs(3600);
    let layer = Layer::new(Watched::default(), options);
    let (a, b) = unix(&layer);
    // Each of these is followed by a call that may wait, and is no evidence.
    for _ in 0..5 * DIRECT {
        send(&a, b"x");
        assert_eq!((a.delayed(), recv(&b, RecvFlags::empty())), (0, Ok(b"x".into())));
    }
    let before = layer.host().calls();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5 * DIRECT {
                send(&a, b"x");
            }
        });
    });
    assert_eq!(layer.host().calls() - before, DIRECT);
}
