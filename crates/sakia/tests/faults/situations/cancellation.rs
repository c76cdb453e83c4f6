//! Cancellation at the moment of completion.

use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use sakia::fs::File;
use sakia::io::{PipeReader, Reader};
use sakia::time::{sleep, timeout};
use sakia::{CancellationToken, select, spawn, yield_now};
use sakia_driver::Policy;
use sakia_testkit::children::wait_until_closed;

use crate::load;
use crate::support::{Random, TempDir, on_each_backend, open_descriptors, poll_once, runtime};

on_each_backend! {
    value_wins_over_cancel
    a_canceled_read_loses_nothing
    exit_while_a_cancel_is_in_flight
    dropped_open_closes
    dropping_waits_for_nothing
}

/// The value of a complete operation wins over a cancellation or a timeout at the same moment.
fn value_wins_over_cancel(policy: Policy) {
    let runtime = runtime(policy);
    runtime.block_on(async {
        for round in 0..100 {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let mut reader = PipeReader::from_fd(reader.into());
            let token = CancellationToken::new();
            let child = token.clone();
            let task = spawn(async move {
                child.run_until_canceled(async { reader.read(vec![0; 8]).await }).await
            });
            yield_now().await;
            writer.write_all(b"value").unwrap();
            // By now the write may have taken bytes or not.
            yield_now().await;
            while round % 2 == 0 && !task.is_finished() {
                yield_now().await;
            }
            token.cancel();
            match task.await.unwrap() {
                Some((result, bytes)) => assert_eq!(&bytes[..result.unwrap()], b"value"),
                None => assert_ne!(round % 2, 0, "a value that was there was lost"),
            }
        }
        // The handle of a completed task has its value, even after a cancel.
        let task = spawn(async { "done" });
        yield_now().await;
        assert_eq!(task.cancel().await.unwrap().unwrap(), "done");
        // If both happen at once, the value wins.
        let both = timeout(Duration::ZERO, async { 7 }).await;
        assert_eq!(both.unwrap(), 7);
        let token = CancellationToken::new();
        let by_itself = async {
            token.cancel();
            8
        };
        assert_eq!(token.run_until_canceled(by_itself).await, Some(8));
    });
}

/// Reads race with timers, drops and selects; each byte arrives once and in order.
fn a_canceled_read_loses_nothing(policy: Policy) {
    const BYTES: usize = 20_000;
    let runtime = runtime(policy);
    let sent = Random::new(9).bytes(BYTES);
    let expected = sent.clone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let feeding = std::thread::spawn(move || {
        let mut random = Random::new(10);
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + random.below(100)));
            writer.write_all(now).unwrap();
            rest = later;
            if random.below(3) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(100) as u64));
            }
        }
    });
    runtime.block_on(async {
        let mut reader = Reader::with_block_bytes(PipeReader::from_fd(reader.into()), 64);
        let mut random = Random::new(11);
        let mut received = Vec::new();
        loop {
            let pause = Duration::from_micros(random.below(50) as u64);
            let filled = select! {
                filled = reader.fill() => filled.unwrap(),
                () = sleep(pause) => continue,
            };
            if filled.is_empty() {
                break;
            }
            let count = 1 + random.below(filled.len());
            received.extend_from_slice(&filled[..count]);
            reader.consume(count);
        }
        assert!(received == expected, "bytes were lost, or came twice");
    });
    feeding.join().unwrap();
    load::assert_sound(&runtime);
}

/// The runtime ends with requests to cancel that its last turn submitted, or that are not submitted yet.
fn exit_while_a_cancel_is_in_flight(policy: Policy) {
    for turns in 0..4 {
        for count in [1, 70] {
            let runtime = runtime(policy);
            let mut writers = Vec::new();
            let mut reads = Vec::new();
            runtime.block_on(async {
                for _ in 0..count {
                    let (reader, writer) = std::io::pipe().unwrap();
                    writers.push(writer);
                    let mut reader = PipeReader::from_fd(reader.into());
                    let mut read = Box::pin(async move { reader.read(vec![0; 4096]).await });
                    assert!(poll_once(&mut read).await.is_pending());
                    reads.push(read);
                }
                yield_now().await;
                drop(reads);
                for _ in 0..turns {
                    yield_now().await;
                }
            });
            drop(runtime);
            // The runtime has closed its descriptors: no reader is left.
            for mut writer in writers {
                wait_until_closed(&writer);
                let error = writer.write(b"x").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
            }
        }
    }
}

fn dropped_open_closes(policy: Policy) {
    crate::children::run("dropped_opens", policy);
}

pub fn scene_dropped_opens(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let path = folder.join("file");
    std::fs::write(&path, "text").unwrap();
    let runtime = runtime(policy);
    let create = {
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        Rc::new(options)
    };
    runtime.block_on(async {
        File::open(&path).await.unwrap().close().await.unwrap();
        create.open(folder.join("new")).await.unwrap().close().await.unwrap();
        let before = open_descriptors();
        for round in 0..200 {
            let target = folder.join("new");
            let (mut old, mut new) = (Box::pin(File::open(&path)), Box::pin(create.open(&target)));
            drop(poll_once(&mut old).await);
            drop(poll_once(&mut new).await);
            for _ in 0..round % 4 {
                yield_now().await;
            }
            drop((old, new));
        }
        while open_descriptors() > before {
            yield_now().await;
        }
    });
    load::assert_sound(&runtime);
    Ok(())
}

/// The drop of a read that would never end takes no longer than any call.
fn dropping_waits_for_nothing(policy: Policy) {
    let runtime = runtime(policy);
    let (reader, writer) = std::io::pipe().unwrap();
    runtime.block_on(async {
        let mut reader = PipeReader::from_fd(reader.into());
        let mut read = Box::pin(reader.read(vec![0; 8]));
        assert!(poll_once(&mut read).await.is_pending());
        yield_now().await;
        let enters = runtime.counters().enters;
        drop(read);
        assert_eq!(runtime.counters().enters, enters, "the drop entered the kernel");
        // The test would not get here if the drop waited for the read.
        rustix::io::write(&writer, b"x").unwrap();
        let (result, bytes) = reader.read(vec![0; 8]).await;
        assert_eq!((result.unwrap(), bytes[0]), (1, b'x'));
    });
}
