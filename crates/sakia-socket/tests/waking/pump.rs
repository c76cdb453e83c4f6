//! The thread that sends delayed bytes, on a clock that stands still: its sleeps, and the events that wake
//! it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::sockopt::{SO_RCVTIMEO, SO_SNDTIMEO};
use sakia_socket::{Events, Layer, Options, Socket, When};

use crate::host::{Doored, State};
use crate::{NOW, event, layer_of, tcp, unix, wait};

const DELAY: Duration = Duration::from_micros(100);

/// Returns a layer that gathers all writes, on a clock that stands still.
fn gathering() -> (Layer<Doored>, Arc<State>) {
    let mut options = Options::default();
    options.gather = When::Always;
    let (layer, state) = layer_of(options);
    state.parking.stop_clock();
    (layer, state)
}

fn write(socket: &Socket<Doored>) {
    assert_eq!(socket.send(b".", SendFlags::NOSIGNAL), Ok(1));
}

fn calls(state: &State) -> u32 {
    state.calls.load(Ordering::SeqCst)
}

fn unparks(state: &State) -> u32 {
    state.parking.unparks.load(Ordering::SeqCst)
}

#[test]
fn a_burst_of_writes_wakes_once_and_an_idle_thread_sleeps_for_ever() {
    let (layer, state) = gathering();
    let (a, b) = unix(&layer);
    for burst in 0..5 {
        let (woken, called) = (unparks(&state), calls(&state));
        for _ in 0..1000 {
            write(&a);
        }
        // The first burst starts the thread.
        assert_eq!(unparks(&state) - woken, u32::from(burst > 0));
        assert_eq!(calls(&state), called, "all are delayed");
        assert_eq!(state.parking.sleep_over(), Some(DELAY), "since the first of them");
        assert_eq!(b.recv(&mut [0; 2000], RecvFlags::DONTWAIT), Ok(1000));
        assert_eq!(calls(&state), called + 2, "one sent them, one received them");
        // The thread looks twice more; writes in that time need no wake.
        for _ in 0..2 {
            assert_eq!(state.parking.sleep_over(), Some(DELAY));
        }
        assert_eq!(state.parking.until_asleep(), None, "until it is woken");
    }
}

#[test]
fn writes_that_follow_each_other_wake_no_thread() {
    let (layer, state) = gathering();
    let (a, b) = unix(&layer);
    write(&a);
    for _ in 0..100 {
        assert_eq!(state.parking.sleep_over(), Some(DELAY));
        // A wait of the program sends the bytes.
        write(&a);
        layer.flush();
        write(&a);
    }
    assert_eq!(unparks(&state), 0);
    layer.flush();
    assert_eq!(b.recv(&mut [0; 2000], RecvFlags::DONTWAIT), Ok(201));
}

/// For a peer that reads nothing, 10 seconds cost few calls, and the waits of the program cost none.
#[test]
fn a_peer_that_reads_nothing_costs_few_calls() {
    let (layer, state) = gathering();
    let (a, b) = unix(&layer);
    let set = layer.epoll().expect("a set");
    set.add(&b, event(Events::IN, 1)).expect("an entry");
    state.send_error.store(Errno::AGAIN.raw_os_error(), Ordering::SeqCst);
    write(&a);
    let (mut passed, before) = (Duration::ZERO, calls(&state));
    while passed < Duration::from_secs(10) {
        passed += state.parking.sleep_over().expect("bytes wait");
    }
    let looks = calls(&state) - before;
    assert!((10..170).contains(&looks), "{looks}");
    for _ in 0..100 {
        assert_eq!(wait(&set, 8, NOW), []);
    }
    assert_eq!(calls(&state), before + looks + 100, "no more than the waits themselves");
    // The program may request a send.
    state.send_error.store(0, Ordering::SeqCst);
    layer.flush();
    assert_eq!(wait(&set, 8, NOW), [(1, Events::IN)]);
}

/// The thread sleeps for long because of the first connection.
#[test]
fn bytes_are_not_late_because_others_have_no_room() {
    let (layer, state) = gathering();
    let (a, _b) = unix(&layer);
    let (c, d) = unix(&layer);
    state.send_error.store(Errno::AGAIN.raw_os_error(), Ordering::SeqCst);
    write(&a);
    while state.parking.sleep_over() < Some(Duration::from_millis(60)) {}
    state.send_error.store(0, Ordering::SeqCst);
    for round in 1..3 {
        write(&c);
        assert_eq!(unparks(&state), round);
        // The delay holds from the next sleep on.
        while state.parking.until_asleep() != Some(DELAY) {
            std::thread::yield_now();
        }
        assert_eq!(state.parking.sleep_over(), Some(DELAY));
        assert_eq!(d.recv(&mut [0; 9], RecvFlags::DONTWAIT), Ok(1));
    }
    // The same for a queue that is listed: it had no room, and now has some.
    state.send_error.store(Errno::AGAIN.raw_os_error(), Ordering::SeqCst);
    write(&c);
    while state.parking.sleep_over() < Some(Duration::from_millis(60)) {}
    state.send_error.store(0, Ordering::SeqCst);
    assert_eq!(c.flush(), Ok(0));
    let woken = unparks(&state);
    write(&c);
    assert_eq!(unparks(&state), woken + 1);
}

#[test]
fn a_write_that_may_wait_sends_what_is_delayed_elsewhere_first() {
    let (layer, _state) = gathering();
    let (a, b) = unix(&layer);
    let (c, d) = tcp(&layer);
    write(&a);
    c.set_nonblocking(false).expect("a mode");
    assert_eq!(c.send(&[1; 5000], SendFlags::NOSIGNAL), Ok(5000));
    assert_eq!(b.recv(&mut [0; 9], RecvFlags::DONTWAIT), Ok(1));
    // A call that does not wait leaves the delayed bytes of other sockets.
    write(&a);
    assert_eq!(c.send(&[1; 5000], SendFlags::NOSIGNAL | SendFlags::DONTWAIT), Ok(5000));
    assert_eq!(a.delayed(), 1);
    drop(d);
}

#[test]
fn idle_connections_hold_no_memory() {
    let mut options = Options::default();
    options.gather = When::OnEvidence;
    let (layer, state) = layer_of(options);
    let pairs: Vec<_> = (0..50).map(|_| tcp(&layer)).collect();
    for (a, b) in &pairs {
        // A burst of small writes, and small reads of a backlog.
        for _ in 0..200 {
            assert_eq!(a.send(&[1; 20], SendFlags::NOSIGNAL), Ok(20));
        }
        layer.flush();
        let mut got = 0;
        while got < 4000 {
            got += b.recv(&mut [0; 20], RecvFlags::DONTWAIT).unwrap_or(0);
        }
        assert_eq!(b.recv(&mut [0; 20], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
    }
    let held = state.held.load(Ordering::SeqCst);
    assert!((1..=16).contains(&held), "{held}: only those for the next bursts");
    drop(pairs);
}

/// A wait that found nothing ends the call, though no time seems to have passed.
#[test]
fn a_call_ends_with_its_wait() {
    let (layer, _) = gathering();
    let (a, b) = unix(&layer);
    let limit = Some(Duration::from_millis(1));
    a.set_option(SO_SNDTIMEO, limit).expect("an option");
    b.set_option(SO_RCVTIMEO, limit).expect("an option");
    a.set_nonblocking(false).expect("a mode");
    b.set_nonblocking(false).expect("a mode");
    while a.send(&[1; 1 << 16], SendFlags::DONTWAIT).is_ok() {}
    write(&a);
    assert_eq!(a.send(&[1; 1 << 16], SendFlags::NOSIGNAL), Err(Errno::AGAIN), "behind the byte");
    let received = b.recv(&mut vec![0; 1 << 24], RecvFlags::WAITALL);
    assert!(received.is_ok_and(|count| count > 1 << 16), "{received:?}");
}
