//! Readiness of arbitrary descriptors.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use sakia::io::Async;
use sakia::{Runtime, block_on, spawn, yield_now};

fn pair() -> (Async<UnixStream>, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (Async::new(near).unwrap(), far)
}

/// Writes until the stream is full. Returns the number of bytes written.
fn fill(mut stream: &UnixStream) -> usize {
    let mut total = 0;
    loop {
        match stream.write(&[0; 4096]) {
            Ok(count) => total += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return total,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Polls a future once, and asserts that it is pending.
async fn assert_pending<F: Future>(mut future: std::pin::Pin<&mut F>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[test]
fn what_is_written_makes_readable() {
    block_on(async {
        let (near, mut far) = pair();
        let mut readable = pin!(near.readable());
        assert_pending(readable.as_mut()).await;
        far.write_all(b"x").unwrap();
        readable.await.unwrap();
        near.readable().await.unwrap(); // still
    });
}

#[test]
fn room_makes_writable() {
    block_on(async {
        let (near, mut far) = pair();
        near.writable().await.unwrap();
        let mut left = fill(near.get_ref());
        let mut writable = pin!(near.writable());
        assert_pending(writable.as_mut()).await;
        let mut bytes = vec![0; 1 << 16];
        while left > 0 {
            left -= far.read(&mut bytes).unwrap();
        }
        writable.await.unwrap();
    });
}

#[test]
fn all_who_wait_are_told() {
    const COUNT: usize = 50;
    block_on(async {
        let (near, mut far) = pair();
        let near = Rc::new(near);
        let told = Rc::new(Cell::new(0));
        let wait = |is_reader: bool| {
            let (near, told) = (Rc::clone(&near), Rc::clone(&told));
            spawn(async move {
                let ready = if is_reader { near.readable().await } else { near.writable().await };
                ready.unwrap();
                told.set(told.get() + 1);
            })
        };
        let handles: Vec<_> = (0..COUNT).map(|number| wait(number % 2 == 0)).collect();
        while told.get() < COUNT / 2 {
            yield_now().await; // the writers
        }
        assert_eq!(told.get(), COUNT / 2);
        far.write_all(b"x").unwrap();
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(told.get(), COUNT);
    });
}

#[test]
fn whoever_comes_late_waits_again() {
    block_on(async {
        let (near, far) = pair();
        let near = Rc::new(near);
        let read = |near: Rc<Async<UnixStream>>| async move {
            let mut byte = [0];
            near.read_with(|mut stream| stream.read_exact(&mut byte)).await.unwrap();
            byte[0]
        };
        let handles: Vec<_> = (0..10).map(|_| spawn(read(Rc::clone(&near)))).collect();
        for byte in 0..10_u8 {
            yield_now().await;
            (&far).write_all(&[byte]).unwrap();
        }
        let mut bytes = Vec::new();
        for handle in handles {
            bytes.push(handle.await.unwrap());
        }
        bytes.sort_unstable();
        assert_eq!(bytes, (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn write_with_waits_for_room() {
    block_on(async {
        let (near, mut far) = pair();
        let filled = fill(near.get_ref());
        let mut write = pin!(near.write_with(|mut stream| stream.write(b"end")));
        assert_pending(write.as_mut()).await;
        let mut all = vec![0; filled];
        far.read_exact(&mut all).unwrap();
        assert_eq!(write.await.unwrap(), 3);
        far.read_exact(&mut all[..3]).unwrap();
        assert_eq!(&all[..3], b"end");
    });
}

#[test]
fn errors_end_the_loop_and_interruptions_do_not() {
    block_on(async {
        let (near, _far) = pair();
        let mut calls = 0;
        let error = near
            .read_with(|_| {
                calls += 1;
                let kind = if calls < 5 { ErrorKind::Interrupted } else { ErrorKind::BrokenPipe };
                std::io::Result::<()>::Err(kind.into())
            })
            .await
            .unwrap_err();
        assert_eq!((calls, error.kind()), (5, ErrorKind::BrokenPipe));
    });
}

#[test]
fn a_hang_up_ends_the_wait() {
    block_on(async {
        let (near, far) = pair();
        let mut readable = pin!(near.readable());
        assert_pending(readable.as_mut()).await;
        drop(far);
        readable.await.unwrap();
        assert_eq!(near.read_with(|mut stream| stream.read(&mut [0])).await.unwrap(), 0);
    });
}

#[test]
fn regular_files_are_ready_or_refused() {
    block_on(async {
        let file = Async::new(std::fs::File::open("/proc/self/comm").unwrap()).unwrap();
        if let Err(error) = file.readable().await {
            // Some kernels do not poll files that are always ready.
            assert!(matches!(error.raw_os_error(), Some(1 | 9)), "{error}");
        }
        let mut text = String::new();
        let mut read = |mut file: &std::fs::File| file.read_to_string(&mut text);
        assert!(file.read_with(&mut read).await.unwrap() > 0);
    });
}

#[test]
fn dropped_waits_are_canceled() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (near, mut far) = pair();
        for _ in 0..100 {
            // The wait is dropped before its first poll, and after it.
            drop(near.readable());
            let mut readable = Box::pin(near.readable());
            assert_pending(readable.as_mut()).await;
            drop(readable);
        }
        // The wait is dropped after it became ready, before its next poll.
        let mut readable = Box::pin(near.readable());
        assert_pending(readable.as_mut()).await;
        far.write_all(b"x").unwrap();
        near.readable().await.unwrap();
        drop(readable);
        drop(near);
        // The peer sees the end: the descriptor and its duplicate are closed.
        let far = Async::new(far).unwrap();
        assert_eq!(far.read_with(|mut stream| stream.read(&mut [0])).await.unwrap_or(0), 0);
    });
}

#[test]
fn the_owner_comes_back() {
    block_on(async {
        let (near, mut far) = pair();
        drop(near.readable());
        let mut near = near.into_inner();
        far.write_all(b"x").unwrap();
        assert_eq!(near.read(&mut [0]).unwrap(), 1);
    });
}

#[test]
fn after_the_runtime_waits_end_with_canceled() {
    let runtime = Runtime::new().unwrap();
    let (near, _far) = runtime.block_on(async { pair() });
    drop(runtime);
    let error = block_on(near.readable()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(125));
}
