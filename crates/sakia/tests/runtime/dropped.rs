//! The effects of a dropped future: statements of the sections *Cancel safety* that no other module tests.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use sakia::fs::{File, GroupCommit};
use sakia::io::{BufResultExt, Reader, Writer, pipe};
use sakia::net::{TcpListener, TcpStream};
use sakia::{Runtime, spawn, yield_now};
use sakia_driver::Policy;

on_each_backend! {
    a_close_goes_on
    a_stream_on_its_way_to_std_is_closed
    a_writer_on_its_way_out_is_a_dropped_writer
    a_reader_consumes_nothing
    a_cancellation_goes_on_once_it_was_polled
    a_record_is_durable_once_it_was_polled
}

fn run<F: Future>(policy: Policy, future: F) -> F::Output {
    Runtime::builder().backend(policy).build().unwrap().block_on(future)
}

/// Polls a future once, and drops it. Returns whether it was not ready.
async fn give_up<F: Future>(future: F) -> bool {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    (near, far)
}

fn a_close_goes_on(policy: Policy) {
    run(policy, async {
        for is_polled in [true, false] {
            let (mut reader, writer) = pipe().unwrap();
            let (near, mut far) = connected().await;
            if is_polled {
                give_up(writer.close()).await;
                give_up(near.close()).await;
            } else {
                drop((writer.close(), near.close()));
            }
            assert_eq!(reader.read_to_end(Vec::new()).await.buffer().unwrap(), b"");
            assert!(far.recv().await.unwrap().is_empty());
        }
    });
}

fn a_stream_on_its_way_to_std_is_closed(policy: Policy) {
    run(policy, async {
        let (mut near, mut far) = connected().await;
        // A receive ahead, which has to end first.
        assert!(give_up(near.recv()).await);
        assert!(give_up(near.into_std()).await);
        assert!(far.recv().await.unwrap().is_empty());
    });
}

fn a_writer_on_its_way_out_is_a_dropped_writer(policy: Policy) {
    run(policy, async {
        let (mut reader, writer) = pipe().unwrap();
        let mut writer = Writer::new(writer);
        writer.write_all(b"all of it").await.unwrap();
        assert!(give_up(writer.into_inner()).await);
        assert_eq!(reader.read_to_end(Vec::new()).await.buffer().unwrap(), b"all of it");
    });
}

fn a_reader_consumes_nothing(policy: Policy) {
    run(policy, async {
        let (reader, mut writer) = pipe().unwrap();
        let mut reader = Reader::new(reader);
        for part in ["a", " li", "ne\nan", "d more"] {
            assert!(give_up(reader.line(80)).await);
            assert!(give_up(reader.peek(80)).await);
            writer.write_all(part).await.value().unwrap();
            if part.contains('\n') {
                assert_eq!(reader.line(80).await.unwrap(), Some("a line"));
            }
        }
        drop(writer);
        assert_eq!(reader.line(80).await.unwrap(), Some("and more"));
        assert_eq!(reader.consumed(), 15);
    });
}

fn a_cancellation_goes_on_once_it_was_polled(policy: Policy) {
    run(policy, async {
        let alive = Rc::new(Cell::new(0));
        let task = || {
            let alive = Rc::clone(&alive);
            spawn(async move {
                loop {
                    alive.set(alive.get() + 1);
                    yield_now().await;
                }
            })
        };
        let (first, second) = (task(), task());
        yield_now().await;
        drop(first.cancel());
        give_up(second.cancel()).await;
        while Rc::strong_count(&alive) > 2 {
            yield_now().await;
        }
        let before = alive.get();
        yield_now().await;
        assert!(alive.get() > before, "the other one goes on");
    });
}

fn a_record_is_durable_once_it_was_polled(policy: Policy) {
    let path =
        std::env::temp_dir().join(format!("sakia-dropped-{policy:?}-{}", std::process::id()));
    run(policy, async {
        let log = GroupCommit::new(File::create(&path).await.unwrap()).await.unwrap();
        drop(log.append_durable("never polled\n"));
        assert!(give_up(log.append_durable("polled\n")).await);
        assert!(give_up(log.commit()).await);
        log.commit().await.unwrap();
        assert_eq!(sakia::fs::read(&path).await.unwrap(), b"polled\n");
        assert!(log.syncs() > 0);
    });
    std::fs::remove_file(&path).unwrap();
}
