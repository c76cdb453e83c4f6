//! Early ends: of futures, of the engine, of a runtime that awaits.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use sakia::Builder;

use crate::support::{Folder, bytes, engine, on_each_backend, on_tokio, poll_once};

on_each_backend! {
    a_stopped_engine_refuses_and_gives_buffers_back
    a_stop_waits_for_what_is_under_way
    thousands_of_waiters_on_a_stopped_engine_end
    futures_may_be_dropped_in_every_state
    a_future_may_move_to_another_thread
    a_request_outlives_all_other_holders
    a_runtime_that_ends_midway_leaves_nothing
    the_engine_may_end_on_its_own_thread
    what_panics_there_panics_here
    a_forked_child_is_told
}

const CANCELED: Option<i32> = Some(libc::ECANCELED);

fn a_stopped_engine_refuses_and_gives_buffers_back(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.create(folder.path("x")).wait().unwrap();
    engine.stop_and_wait();
    on_tokio(1, async {
        let (result, back) = file.write_at(bytes(10), 0).await;
        assert_eq!((result.unwrap_err().raw_os_error(), back), (CANCELED, bytes(10)));
    });
    let error = on_tokio(1, engine.metadata(folder.path("x"))).unwrap_err();
    assert_eq!(error.raw_os_error(), CANCELED);
    let error = engine.run(|| async {}).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), CANCELED);
    assert_eq!(engine.statistics().refused, 3);
    // `wait` performs a plain call on this thread, which needs no engine.
    assert_eq!(engine.metadata(folder.path("x")).wait().unwrap().len(), 0);
    assert_eq!(file.write_at(bytes(10), 0).wait().0.unwrap(), 10);
    engine.stop_and_wait();
}

fn a_stop_waits_for_what_is_under_way(builder: &Builder) {
    let engine = engine(builder);
    let (sender, receiver) = async_channel::bounded::<u32>(1);
    let mut request = engine.run(move || async move { receiver.recv().await.unwrap() });
    assert!(poll_once(&mut request).is_pending());
    let stopping = thread::spawn({
        let engine = engine.clone();
        move || engine.stop_and_wait()
    });
    while engine.run(|| async {}).wait().is_ok() {
        thread::yield_now();
    }
    assert!(!stopping.is_finished());
    assert_eq!(engine.statistics().live, 1);
    sender.send_blocking(7).unwrap();
    assert_eq!(request.wait().unwrap(), 7);
    stopping.join().unwrap();
    on_tokio(1, engine.stop());
}

fn thousands_of_waiters_on_a_stopped_engine_end(builder: &Builder) {
    let engine = engine(builder);
    let (sender, receiver) = async_channel::bounded::<()>(1);
    let requests: Vec<_> = (0..5000)
        .map(|_| {
            let receiver = receiver.clone();
            let mut request = engine.run(move || async move { receiver.recv().await.is_err() });
            assert!(poll_once(&mut request).is_pending());
            request
        })
        .collect();
    let stopping = thread::spawn({
        let engine = engine.clone();
        move || engine.stop_and_wait()
    });
    drop(sender);
    on_tokio(2, async {
        for request in requests {
            assert!(request.await.unwrap());
        }
    });
    stopping.join().unwrap();
}

fn futures_may_be_dropped_in_every_state(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.create(folder.path("x")).wait().unwrap();
    // These requests are dropped before their first poll, so they do not begin.
    drop(file.write_at(bytes(10), 0));
    // These requests have begun, and some are complete.
    for round in 0..200 {
        let mut write = file.write_at(bytes(4096), 0);
        let is_over = poll_once(&mut write).is_ready();
        if round % 2 == 0 && !is_over {
            thread::sleep(Duration::from_micros(20));
        }
        drop(write);
    }
    // This future never resolves.
    let mut endless = engine.run(std::future::pending::<()>);
    assert!(poll_once(&mut endless).is_pending());
    drop(endless);
    engine.stop_and_wait();
    assert_eq!(engine.statistics().live, 0);
}

fn a_future_may_move_to_another_thread(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", bytes(1 << 20))).wait().unwrap();
    for _ in 0..20 {
        // The read is too large for a single plain call.
        let mut read = file.read_at(vec![0; 1 << 20], 0);
        let (result, read) = match poll_once(&mut read) {
            Poll::Ready(done) => done,
            Poll::Pending => thread::spawn(move || on_tokio(1, read)).join().unwrap(),
        };
        assert_eq!(result.unwrap(), 1 << 20);
        assert!(read == bytes(1 << 20));
    }
}

fn a_request_outlives_all_other_holders(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", bytes(1 << 20))).wait().unwrap();
    let (sender, receiver) = async_channel::bounded::<()>(1);
    let mut slow = engine.run(move || async move { receiver.recv().await.unwrap() });
    assert!(poll_once(&mut slow).is_pending());
    let read = file.read_at(vec![0; 1 << 20], 0);
    drop((file, engine));
    let (result, read) = on_tokio(1, read);
    assert_eq!(result.unwrap(), 1 << 20);
    assert!(read == bytes(1 << 20));
    sender.send_blocking(()).unwrap();
    slow.wait().unwrap();
}

fn a_runtime_that_ends_midway_leaves_nothing(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.create(folder.path("x")).wait().unwrap();
    for _ in 0..5 {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        for part in 0..200 {
            runtime.spawn(file.write_at(bytes(64 << 10), part * (64 << 10)));
        }
        runtime.shutdown_background();
    }
    engine.stop_and_wait();
    assert_eq!(engine.statistics().live, 0);
}

fn the_engine_may_end_on_its_own_thread(builder: &Builder) {
    let engine = engine(&builder.clone().threads(2));
    let (go, told) = async_channel::bounded::<()>(1);
    let (sender, receiver) = mpsc::channel();
    let held = engine.clone();
    let mut request = engine.run(move || async move {
        told.recv().await.unwrap();
        drop(held);
        sender.send(()).unwrap();
    });
    assert!(poll_once(&mut request).is_pending());
    drop(engine);
    go.send_blocking(()).unwrap();
    receiver.recv().unwrap();
    drop(request);
}

fn what_panics_there_panics_here(builder: &Builder) {
    let engine = engine(builder);
    let mut request = engine.run(|| async { panic!("on purpose") });
    let result = thread::spawn(move || {
        let _: std::io::Result<()> = loop {
            if let Poll::Ready(result) = poll_once(&mut request) {
                break result;
            }
        };
    });
    assert!(result.join().is_err());
    assert_eq!(engine.run(|| async { 1 }).wait().unwrap(), 1);
    assert_eq!(engine.open("/nowhere").wait().unwrap_err().kind(), ErrorKind::NotFound);
}

fn a_forked_child_is_told(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.create(folder.path("x")).wait().unwrap();
    // SAFETY: the child has this thread only. It takes no lock that another thread may have held, allocates,
    // which the C library allows for, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(|| {
            let Poll::Ready((result, back)) = poll_once(&mut file.write_at(b"no".to_vec(), 0))
            else {
                panic!("it waits for threads that are not here");
            };
            assert!(result.unwrap_err().to_string().contains("parent"));
            assert_eq!(back, b"no");
            let mut submitted = file.write_at(b"no".to_vec(), 0).submit();
            let Poll::Ready((result, back)) = poll_once(&mut submitted) else {
                panic!("it waits for threads that are not here");
            };
            assert!(result.unwrap_err().to_string().contains("parent"));
            assert_eq!(back, b"no");
            // An answer from the caches is no exception.
            let Poll::Ready(result) = poll_once(&mut engine.metadata(folder.path("x"))) else {
                panic!("it waits for threads that are not here");
            };
            assert!(result.unwrap_err().to_string().contains("parent"));
            // A plain call needs no thread of the engine.
            file.write_at(b"child".to_vec(), 0).wait().0.unwrap();
        }));
        // SAFETY: ends the child at once, without what the parent has registered for its exit.
        unsafe { libc::_exit(i32::from(ended_well.is_err())) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
    assert_eq!(std::fs::read(folder.path("x")).unwrap(), b"child");
    assert_eq!(engine.run(|| async { 1 }).wait().unwrap(), 1);
}
