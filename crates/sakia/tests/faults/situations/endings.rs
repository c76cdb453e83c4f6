//! The end of a runtime with operations in the kernel.

use std::fs::File as StdFile;
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use sakia::fs::{AlignedBuf, File};
use sakia::io::PipeReader;
use sakia::{spawn, spawn_on, yield_now};
use sakia_driver::Policy;

use crate::support::{TempDir, announce_skip, on_each_backend, poll_once, runtime};

on_each_backend! {
    direct_reads_dropped_with_their_runtime
    a_forgotten_read
    a_reused_descriptor_number
    a_handle_awaited_on_another_thread
}

/// Hundreds of reads by `O_DIRECT`, for which the device writes to memory, are in flight when their futures
/// and then their runtime are dropped. The memory is used for something else, and must not change.
fn direct_reads_dropped_with_their_runtime(policy: Policy) {
    const READS: usize = 512;
    const LEN: usize = 64 << 10;
    const ROUNDS: usize = 3;
    let folder = TempDir::new();
    let path = folder.join("file");
    std::fs::write(&path, vec![0xd1; 4 * LEN]).unwrap();
    StdFile::open(&path).unwrap().sync_all().unwrap();
    let open = || StdFile::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
    if let Err(error) = open() {
        let test = "direct_reads_dropped_with_their_runtime";
        return announce_skip(test, &format!("no direct I/O: {error}"));
    }
    for _ in 0..ROUNDS {
        let runtime = runtime(policy);
        runtime.block_on(async {
            let file = Rc::new(File::from_std(open().unwrap()).unwrap());
            let mut reads: Vec<_> = (0..READS)
                .map(|read| {
                    let file = Rc::clone(&file);
                    let buf = AlignedBuf::zeroed(LEN);
                    Box::pin(async move { file.read_at(buf, (read % 4 * LEN) as u64).await })
                })
                .collect();
            let mut pending = 0;
            for read in &mut reads {
                pending += usize::from(poll_once(read).await.is_pending());
            }
            assert!(pending > READS / 2, "they were done at once");
            yield_now().await;
            drop(reads);
        });
        drop(runtime);
        let reuse: Vec<Vec<u8>> = (0..READS).map(|_| vec![0x5c; LEN]).collect();
        thread::sleep(Duration::from_millis(5));
        let is_ours = reuse.iter().all(|bytes| bytes.iter().all(|&byte| byte == 0x5c));
        assert!(is_ours, "the kernel wrote into memory that it had given back");
    }
}

/// A read is forgotten, and its data arrives: no other memory receives it.
fn a_forgotten_read(policy: Policy) {
    const LEN: usize = 4096;
    let runtime = runtime(policy);
    let (reader, writer) = std::io::pipe().unwrap();
    let reuse: Vec<Vec<u8>> = runtime.block_on(async {
        let mut reader = PipeReader::from_fd(reader.into());
        let mut read = Box::pin(async move { reader.read(vec![0; LEN]).await });
        assert!(poll_once(&mut read).await.is_pending());
        yield_now().await;
        std::mem::forget(read);
        let reuse = (0..64).map(|_| vec![0x5c; LEN]).collect();
        rustix::io::write(&writer, &[0xee; LEN]).unwrap();
        for _ in 0..10 {
            yield_now().await;
        }
        reuse
    });
    drop(runtime);
    assert!(reuse.iter().all(|bytes| bytes.iter().all(|&byte| byte == 0x5c)));
}

/// A pipe is closed while it is read, and another pipe gets its number at once: neither receives the bytes
/// of the other.
fn a_reused_descriptor_number(policy: Policy) {
    let runtime = runtime(policy);
    runtime.block_on(async {
        for turns in 0..3 {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut reader = PipeReader::from_fd(reader.into());
            let reading = spawn(async move { reader.read(vec![0; 8]).await });
            for _ in 0..turns {
                yield_now().await;
            }
            reading.cancel().await;
            let others: Vec<_> = (0..20)
                .map(|number| {
                    let (reader, writer) = std::io::pipe().unwrap();
                    rustix::io::write(&writer, &[number]).unwrap();
                    (PipeReader::from_fd(reader.into()), writer)
                })
                .collect();
            rustix::io::write(&writer, b"late").ok();
            for (number, (mut reader, _writer)) in others.into_iter().enumerate() {
                let (result, bytes) = reader.read(vec![0; 8]).await;
                assert_eq!((result.unwrap(), bytes[0]), (1, number as u8));
            }
        }
    });
}

/// Tasks on each of two threads are awaited on the other thread.
fn a_handle_awaited_on_another_thread(policy: Policy) {
    let runtime = sakia::Runtime::builder().backend(policy).threads(3).build().unwrap();
    runtime.block_on(async {
        let inner = spawn_on(1, || async {
            yield_now().await;
            21
        });
        let outer = spawn_on(2, move || async move { inner.await.unwrap() * 2 });
        assert_eq!(outer.await.unwrap(), 42);
        // A thread without a runtime waits as any executor does.
        let task = spawn_on(0, || async { 5 });
        let foreign = thread::spawn(move || {
            let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(thread::current())));
            let mut cx = std::task::Context::from_waker(&waker);
            let mut task = std::pin::pin!(task);
            loop {
                match task.as_mut().poll(&mut cx) {
                    Poll::Ready(result) => return result.unwrap(),
                    Poll::Pending => thread::park(),
                }
            }
        });
        while !foreign.is_finished() {
            yield_now().await;
        }
        assert_eq!(foreign.join().unwrap(), 5);
    });
}

struct Unpark(thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}
