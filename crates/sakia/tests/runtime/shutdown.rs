//! An orderly end of a program.

use std::future::{pending, ready};
use std::thread;

use sakia::shutdown::{Shutdown, StillRunning, on_signals};
use sakia::signal::SignalKind;
use sakia::{block_on, spawn, yield_now};

#[test]
fn everybody_is_asked_once_and_for_all() {
    block_on(async {
        let shutdown = Shutdown::new();
        let ask = || {
            let shutdown = shutdown.clone();
            spawn(async move { shutdown.requested().await })
        };
        let handles: Vec<_> = (0..10).map(|_| ask()).collect();
        yield_now().await;
        assert!(!shutdown.is_requested());
        shutdown.trigger();
        shutdown.trigger();
        for handle in handles {
            handle.await.unwrap();
        }
        shutdown.requested().await;
    });
}

#[test]
fn another_thread_may_ask() {
    block_on(async {
        let shutdown = Shutdown::new();
        let other = shutdown.clone();
        let thread = thread::spawn(move || other.trigger());
        shutdown.requested().await;
        thread.join().unwrap();
    });
}

#[test]
fn nothing_to_drain_is_drained_whatever_the_deadline() {
    block_on(async {
        let shutdown = Shutdown::new();
        assert_eq!(shutdown.drain(ready(())).await, Ok(()));
        assert!(shutdown.is_requested());
        assert_eq!(shutdown.drain(pending()).await, Ok(()));
    });
}

#[test]
fn work_is_waited_for_on_any_thread() {
    block_on(async {
        let shutdown = Shutdown::new();
        let tracker = shutdown.tracker();
        let here = spawn(tracker.track({
            let shutdown = shutdown.clone();
            async move { shutdown.requested().await }
        }));
        let guard = tracker.begin();
        let asked = shutdown.clone();
        let there = thread::spawn(move || {
            block_on(asked.requested());
            drop(guard);
        });
        assert_eq!(tracker.running(), 2);
        assert_eq!(shutdown.drain(pending()).await, Ok(()));
        assert_eq!(tracker.running(), 0);
        here.await.unwrap();
        there.join().unwrap();
    });
}

#[test]
fn the_deadline_tells_how_much_still_runs() {
    block_on(async {
        let shutdown = Shutdown::new();
        let tracker = shutdown.tracker();
        let mut guards: Vec<_> = (0..3).map(|_| tracker.begin()).collect();
        let error = shutdown.drain(yield_now()).await.unwrap_err();
        assert_eq!(error, StillRunning { count: 3 });
        assert_eq!(error.to_string(), "still running at the deadline: 3");
        drop(guards.pop());
        assert_eq!(shutdown.drain(ready(())).await, Err(StillRunning { count: 2 }));
        drop(guards);
        assert_eq!(shutdown.drain(pending()).await, Ok(()));
    });
}

#[test]
fn work_that_is_dropped_or_panics_is_not_waited_for() {
    block_on(async {
        let shutdown = Shutdown::new();
        let tracker = shutdown.tracker();
        drop(tracker.track(pending::<()>()));
        let aborted = spawn(tracker.track(pending::<()>()));
        yield_now().await;
        aborted.abort();
        let panicked = spawn(tracker.track(async { panic!("a reason") }));
        assert!(panicked.await.unwrap_err().is_panic());
        assert_eq!(shutdown.drain(pending()).await, Ok(()));
    });
}

#[test]
fn a_dropped_drain_can_be_repeated() {
    block_on(async {
        let shutdown = Shutdown::new();
        let guard = shutdown.tracker().begin();
        drop(shutdown.drain(pending()));
        assert!(!shutdown.is_requested()); // it never began
        let draining = shutdown.clone();
        let handle = spawn(async move { draining.drain(pending()).await });
        yield_now().await;
        handle.abort();
        drop(guard);
        assert_eq!(shutdown.drain(pending()).await, Ok(()));
    });
}

#[test]
fn a_signal_triggers() {
    block_on(async {
        let kinds = [SignalKind::TERMINATE, SignalKind::QUIT];
        let shutdown = on_signals(kinds).unwrap();
        yield_now().await;
        assert!(!shutdown.is_requested());
        signal_hook::low_level::raise(SignalKind::QUIT.as_raw()).unwrap();
        shutdown.requested().await;
        signal_hook::low_level::raise(SignalKind::TERMINATE.as_raw()).unwrap(); // no effect
        assert_eq!(shutdown.drain(pending()).await, Ok(()));
    });
}

#[test]
fn listening_ends_with_the_last_clone() {
    let runtime = sakia::Runtime::new().unwrap();
    runtime.block_on(async {
        let shutdown = on_signals([SignalKind::PIPE]).unwrap();
        let clone = shutdown.clone();
        yield_now().await;
        drop(shutdown);
        thread::spawn(move || drop(clone)).join().unwrap();
        while runtime.live_tasks() > 0 {
            yield_now().await;
        }
    });
}

#[test]
fn what_cannot_be_listened_for_is_an_error() {
    block_on(async {
        assert!(on_signals([SignalKind::from_raw(9)]).is_err());
    });
}
