//! Signals. Each test uses its own kinds, since signals concern the whole process.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::task::Poll;

use sakia::block_on;
use sakia::signal::{Signal, SignalKind, ctrl_c, signal};

async fn assert_pending<F: Future>(mut future: std::pin::Pin<&mut F>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

fn raise(kind: SignalKind) {
    signal_hook::low_level::raise(kind.as_raw()).unwrap();
}

#[test]
fn signals_before_and_during_the_wait_arrive() {
    block_on(async {
        let mut signals = signal(SignalKind::USER_1).unwrap();
        raise(SignalKind::USER_1);
        signals.recv().await.unwrap();
        let mut recv = pin!(signals.recv());
        assert_pending(recv.as_mut()).await;
        raise(SignalKind::USER_1);
        recv.await.unwrap();
    });
}

#[test]
fn many_signals_are_one() {
    block_on(async {
        let mut signals = signal(SignalKind::USER_2).unwrap();
        for _ in 0..10_000 {
            raise(SignalKind::USER_2);
        }
        signals.recv().await.unwrap();
        assert_pending(pin!(signals.recv())).await;
        raise(SignalKind::USER_2);
        signals.recv().await.unwrap(); // the dropped wait lost nothing
    });
}

#[test]
fn every_listener_is_told_and_a_dropped_one_is_not() {
    block_on(async {
        let kind = SignalKind::HANG_UP;
        let mut listeners: Vec<Signal> = (0..10).map(|_| signal(kind).unwrap()).collect();
        drop(listeners.swap_remove(3));
        raise(kind);
        for listener in &mut listeners {
            listener.recv().await.unwrap();
        }
        drop(listeners);
        raise(kind); // has no effect: the default, which is death, does not come back
        let mut late = signal(kind).unwrap();
        assert_pending(pin!(late.recv())).await;
    });
}

#[test]
fn one_listener_for_several_kinds() {
    block_on(async {
        let mut signals = Signal::of_any(&[SignalKind::WINDOW_CHANGE, SignalKind::ALARM]).unwrap();
        for kind in [SignalKind::ALARM, SignalKind::WINDOW_CHANGE] {
            raise(kind);
            signals.recv().await.unwrap();
        }
    });
}

#[test]
fn ctrl_c_waits_for_one() {
    block_on(async {
        let mut interrupt = pin!(ctrl_c());
        assert_pending(interrupt.as_mut()).await;
        raise(SignalKind::INTERRUPT);
        interrupt.await.unwrap();
    });
}

#[test]
fn impossible_kinds_are_refused() {
    block_on(async {
        for raw in [4, 8, 9, 11, 19] {
            let error = signal(SignalKind::from_raw(raw)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{raw}");
        }
        assert_eq!(signal(SignalKind::from_raw(1000)).unwrap_err().raw_os_error(), Some(22));
    });
}
