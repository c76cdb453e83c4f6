//! Bytes and signals in transit.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::thread;

use rustix::net::sockopt;
use sakia::fs::{self, File};
use sakia::io::{Async, Level, PipeReader, PipeWriter, Writer};
use sakia::signal::{SignalKind, signal};
use sakia::{spawn, yield_now};
use sakia_driver::Policy;

use crate::load;
use crate::support::{Random, TempDir, on_each_backend, runtime};

on_each_backend! {
    signal_between_submit_and_wait
    flush_means_accepted
    writer_has_backpressure
    vectors_longer_than_iov_max
    partial_sends_go_on_where_they_ended
    short_reads_never_panic
    a_created_file_has_the_mode_asked_for
}

/// Signals arrive at any moment between the last check for ready work and the sleep.
fn signal_between_submit_and_wait(policy: Policy) {
    const SIGNALS: usize = 1000;
    let kind = if policy == Policy::Poll { SignalKind::USER_1 } else { SignalKind::USER_2 };
    let (answer, next) = sync_channel(0);
    let raising = thread::spawn(move || {
        let mut random = Random::new(3);
        while next.recv().is_ok() {
            for _ in 0..random.below(3000) {
                std::hint::spin_loop();
            }
            // SAFETY: takes numbers only; the process has a handler for the signal.
            assert_eq!(unsafe { libc::kill(libc::getpid(), kind.as_raw()) }, 0);
        }
    });
    runtime(policy).block_on(async {
        let mut signals = signal(kind).unwrap();
        for _ in 0..SIGNALS {
            answer.send(()).unwrap();
            signals.recv().await.unwrap(); // a lost one would never come again
        }
    });
    drop(answer);
    raising.join().unwrap();
}

fn flush_means_accepted(policy: Policy) {
    let folder = TempDir::new();
    let path = folder.join("file");
    runtime(policy).block_on(async {
        let mut writer = Writer::at(File::create(&path).await.unwrap(), 0);
        let mut expected = Vec::new();
        for round in 1..50 {
            let piece = vec![round as u8; round * 997 % 5000];
            writer.write_all(&piece).await.unwrap();
            expected.extend_from_slice(&piece);
            assert_eq!(writer.flush(Level::Accepted).await.unwrap(), Level::Accepted);
            // A reader outside the runtime finds all flushed bytes.
            assert!(std::fs::read(&path).unwrap() == expected);
            assert_eq!(writer.written(), expected.len() as u64);
        }
        let (mut reader, pipe) = std::io::pipe().unwrap();
        let mut writer = Writer::new(PipeWriter::from_fd(pipe.into()));
        writer.write_all(b"flushed").await.unwrap();
        writer.flush(Level::Accepted).await.unwrap();
        let mut bytes = [0; 7];
        reader.read_exact(&mut bytes).unwrap(); // does not wait, or this thread would for ever
        assert_eq!(&bytes, b"flushed");
    });
}

/// Without a reader, the writer buffers no more than its limit.
fn writer_has_backpressure(policy: Policy) {
    const BOUND: usize = 64 << 10;
    let runtime = runtime(policy);
    let (mut reader, pipe) = std::io::pipe().unwrap();
    let capacity = rustix::pipe::fcntl_getpipe_size(&pipe).unwrap();
    let accepted = Rc::new(Cell::new(0));
    let counting = Rc::clone(&accepted);
    let writing = runtime.spawn(async move {
        let sink = PipeWriter::from_fd(pipe.into());
        let mut writer = Writer::new(sink).block_bytes(4096).bound_bytes(BOUND);
        for _ in 0..1000 {
            writer.write_all(&[5; 1000]).await.unwrap();
            counting.set(counting.get() + 1000);
        }
        writer.close().await.unwrap();
    });
    runtime.block_on(async {
        let mut unchanged = 0;
        while unchanged < 1000 {
            let before = accepted.get();
            yield_now().await;
            unchanged = if accepted.get() == before { unchanged + 1 } else { 0 };
        }
    });
    // One block is on its way to the pipe, and one is being filled.
    assert!(accepted.get() <= capacity + BOUND + 2 * 4096, "{} were taken", accepted.get());
    assert!(!writing.is_finished());
    let reading = thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        all
    });
    runtime.block_on(writing).unwrap();
    assert!(reading.join().unwrap() == [5; 1_000_000]);
}

fn vectors_longer_than_iov_max(policy: Policy) {
    const PARTS: usize = 3000; // IOV_MAX is 1024
    let folder = TempDir::new();
    runtime(policy).block_on(async {
        let file = File::options().read(true).write(true).create(true).to_owned();
        let file = file.open(folder.join("file")).await.unwrap();
        let parts: Vec<Vec<u8>> = (0..PARTS).map(|part| vec![part as u8; 1 + part % 5]).collect();
        let expected = parts.concat();
        let (result, parts) = file.write_all_vectored_at(parts, 0).await;
        result.unwrap();
        assert_eq!(parts.len(), PARTS);
        let (result, bytes) = file.read_to_end_at(Vec::new(), 0).await;
        assert_eq!(result.unwrap(), expected.len());
        assert!(bytes == expected);
        // A read fills as many buffers as one call can, and returns all of them.
        let parts: Vec<Vec<u8>> = (0..PARTS).map(|_| vec![0; 2]).collect();
        let (result, parts) = file.read_vectored_at(parts, 0).await;
        let count = result.unwrap();
        assert!(count > 0 && parts.len() == PARTS);
        assert!(parts.concat()[..count] == expected[..count]);
    });
}

/// The socket's buffer holds only a fraction of the sent bytes.
fn partial_sends_go_on_where_they_ended(policy: Policy) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    sockopt::set_socket_send_buffer_size(&near, 4096).unwrap();
    for stream in [&near, &far] {
        stream.set_nonblocking(true).unwrap();
    }
    let sent = Random::new(5).bytes(1 << 20);
    let expected = sent.clone();
    runtime(policy).block_on(async {
        let (near, far) = (Async::new(near).unwrap(), Async::new(far).unwrap());
        let sending = spawn(async move {
            let mut rest = &sent[..];
            let mut partial = 0;
            while !rest.is_empty() {
                let count = near.write_with(|mut stream| stream.write(rest)).await.unwrap();
                rest = &rest[count..];
                partial += u32::from(!rest.is_empty());
            }
            partial
        });
        let mut received = Vec::new();
        let mut buf = vec![0; 3000];
        loop {
            match far.read_with(|mut stream| stream.read(&mut buf)).await.unwrap() {
                0 => break,
                count => received.extend_from_slice(&buf[..count]),
            }
        }
        assert!(received == expected);
        assert!(sending.await.unwrap() > 10, "everything was sent at once");
    });
}

/// Reads return fewer bytes than requested, none, or the end of the file, each where it belongs.
fn short_reads_never_panic(policy: Policy) {
    let folder = TempDir::new();
    let path = folder.join("file");
    std::fs::write(&path, "0123456789").unwrap();
    let runtime = runtime(policy);
    runtime.block_on(async {
        let file = File::open(&path).await.unwrap();
        let (result, bytes) = file.read_at(vec![1; 100], 5).await;
        assert_eq!((result.unwrap(), bytes.len()), (5, 100));
        assert_eq!(&bytes[..5], b"56789");
        assert_eq!(file.read_at(vec![1; 100], 10).await.0.unwrap(), 0);
        assert_eq!(file.read_at(vec![1; 100], 1 << 40).await.0.unwrap(), 0);
        let (result, _) = file.read_at(Vec::new(), 0).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL)); // there is no room
        let (result, bytes) = file.read_at(Vec::with_capacity(100), 5).await;
        assert_eq!((result.unwrap(), &bytes[..]), (5, &b"56789"[..]));
        let error = file.read_exact_at(vec![1; 100], 5).await.0.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        // A file of `/proc` that reports a length of 0, and a pipe that delivers a few bytes at a time.
        assert!(!fs::read("/proc/self/mountinfo").await.unwrap().is_empty());
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut reader = PipeReader::from_fd(reader.into());
        writer.write_all(b"ab").unwrap();
        let (result, bytes) = reader.read(vec![1; 1 << 20]).await;
        assert_eq!((result.unwrap(), &bytes[..2]), (2, &b"ab"[..]));
        drop(writer);
        assert_eq!(reader.read(vec![1; 10]).await.0.unwrap(), 0);
    });
    load::assert_sound(&runtime);
}

fn a_created_file_has_the_mode_asked_for(policy: Policy) {
    let folder = TempDir::new();
    let path = folder.join("file");
    runtime(policy).block_on(async {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o640).open(&path).await.unwrap();
        file.close().await.unwrap();
    });
    let mode = std::fs::metadata(&path).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o640 & !umask());
}

fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}
