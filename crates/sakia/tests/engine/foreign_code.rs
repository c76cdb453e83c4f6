//! Futures of the program's own on a thread of the engine.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use sakia::Builder;
use sakia::io::PipeReader;

use crate::support::{engine, on_each_backend, on_tokio};

on_each_backend! {
    results_do_not_wait_for_code_that_takes_long
}

/// A waker that sends a message.
struct Message(Mutex<Sender<()>>);

impl Wake for Message {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().send(()).ok();
    }
}

/// Two reads end in the same turn of the driver. The code after the second one waits until the result of the
/// first one was told.
fn results_do_not_wait_for_code_that_takes_long(builder: &Builder) {
    const PATIENCE: Duration = Duration::from_secs(30);
    let engine = engine(&builder.clone().threads(1));
    let ((one, to_one), (two, to_two)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (sender, is_told) = channel();
    let read = async |reader: std::io::PipeReader| {
        let mut reader = PipeReader::from_fd(reader.into());
        reader.read(vec![0; 1]).await.0.unwrap()
    };
    let mut first = pin!(engine.run(move || async move { read(one).await }));
    let waker = Waker::from(Arc::new(Message(Mutex::new(sender))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let second = engine.run(move || async move {
        read(two).await;
        is_told.recv_timeout(PATIENCE).is_ok()
    });
    let second = second.submit();
    // Both wait in the kernel, before the thread is held up until both bytes are there.
    engine.run(sakia::yield_now).wait().unwrap();
    let (release, held) = channel::<()>();
    let holder = engine.run(move || async move { held.recv().is_err() }).submit();
    for mut writer in [to_one, to_two] {
        std::io::Write::write_all(&mut writer, b"x").unwrap();
    }
    drop(release);
    assert!(on_tokio(1, second).unwrap(), "it waited in vain");
    assert_eq!(on_tokio(1, first).unwrap(), 1);
    assert!(on_tokio(1, holder).unwrap());
}
