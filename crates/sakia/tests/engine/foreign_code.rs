//! Futures of the program on a thread of the engine.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use sakia::Builder;
use sakia::io::PipeReader;

use crate::support::{engine, on_each_backend, on_tokio};

on_each_backend! {
    results_do_not_wait_for_code_that_takes_long
    a_thread_that_would_wait_for_itself_panics
    wakers_that_panic_do_not_keep_others_from_being_called
}

const PATIENCE: Duration = Duration::from_secs(30);

/// A waker that sends a message.
struct Message(Mutex<Sender<()>>);

impl Wake for Message {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().send(()).ok();
    }
}

/// Two reads end in the same turn of the driver. The code that runs after the later one waits until the
/// result of the earlier one is reported.
fn results_do_not_wait_for_code_that_takes_long(builder: &Builder) {
    let engine = engine(&builder.clone().threads(1));
    let (sender, told) = channel();
    let waker = Waker::from(Arc::new(Message(Mutex::new(sender))));
    let (ended, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(told)));
    let (outcomes, outcome) = channel();
    let begin = || {
        let (reader, writer) = std::io::pipe().unwrap();
        let (ended, told, outcomes) = (Arc::clone(&ended), Arc::clone(&told), outcomes.clone());
        let work = move || async move {
            let mut reader = PipeReader::from_fd(reader.into());
            reader.read(vec![0; 1]).await.0.unwrap();
            let is_first = ended.fetch_add(1, Ordering::Relaxed) == 0;
            let is_told = is_first || told.lock().unwrap().recv_timeout(PATIENCE).is_ok();
            outcomes.send(is_told).unwrap();
        };
        let mut request = Box::pin(engine.run(work));
        assert!(request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        (request, writer)
    };
    let (requests, writers): (Vec<_>, Vec<_>) = [begin(), begin()].into_iter().unzip();
    // Both reads wait in the kernel. Then the thread is blocked until both bytes are there.
    engine.run(sakia::yield_now).wait().unwrap();
    let (release, held) = channel::<()>();
    let holder = engine.run(move || async move { held.recv().is_err() }).submit();
    for mut writer in writers {
        std::io::Write::write_all(&mut writer, b"x").unwrap();
    }
    drop(release);
    // Their wakers are not replaced until both have ended.
    for _ in &requests {
        assert!(outcome.recv().unwrap(), "it waited in vain");
    }
    for request in requests {
        on_tokio(1, request).unwrap();
    }
    assert!(on_tokio(1, holder).unwrap());
}

fn a_thread_that_would_wait_for_itself_panics(builder: &Builder) {
    let engine = engine(&builder.clone().threads(1));
    let same = engine.clone();
    let waits = move || async move {
        let wait = AssertUnwindSafe(|| same.run(|| async {}).wait());
        catch_unwind(wait).is_err()
    };
    assert!(engine.run(waits).wait().unwrap());
}

/// The first panic ends the thread, which reports the other results as it unwinds.
fn wakers_that_panic_do_not_keep_others_from_being_called(builder: &Builder) {
    let engine = engine(&builder.clone().threads(1));
    let (release, held) = channel::<()>();
    let (begins, has_begun) = channel();
    let holder = engine.run(move || async move {
        begins.send(()).unwrap();
        held.recv().is_err()
    });
    let holder = holder.submit();
    has_begun.recv().unwrap();
    let calls: Vec<_> = (0..70).map(|number| Arc::new(Call { number, count: 0.into() })).collect();
    let requests: Vec<_> = calls
        .iter()
        .map(|call| {
            let mut request = Box::pin(engine.run(|| async {}));
            let waker = Waker::from(Arc::clone(call));
            assert!(request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            request
        })
        .collect();
    drop(release);
    let begin = Instant::now();
    while calls.iter().any(|call| call.count.load(Ordering::Relaxed) == 0) {
        assert!(begin.elapsed() < PATIENCE, "some were never called");
        thread::sleep(Duration::from_millis(1));
    }
    drop((requests, holder));
}

/// A waker that counts its calls, and panics if it is one of two.
struct Call {
    number: usize,
    count: AtomicUsize,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        assert!(self.number != 1 && self.number != 60, "on purpose");
    }
}
