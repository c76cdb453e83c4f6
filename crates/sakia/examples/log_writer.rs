//! A log that plain threads write: what `append_durable` has returned for is there after a power failure.
//!
//! One write and one sync serve all records that have queued meanwhile (group commit): that is
//! `sakia::engine::GroupCommit`. A thread that waits while no other one writes does so for all.
//!
//! Run it with `cargo run --release -p sakia --example log_writer -- LOG [THREADS [RECORDS]]`. It checks the
//! log at the end, and prints how many syncs the records took.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Instant;

use sakia::Engine;
use sakia::engine::GroupCommit;
use sakia::fs::OpenOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("usage: log_writer LOG [THREADS [RECORDS]]")?;
    let path = Path::new(&path);
    let mut number = |default: u64| -> Result<u64, Box<dyn Error>> {
        let Some(text) = arguments.next() else { return Ok(default) };
        let text = text.to_str().ok_or("a number, please")?;
        Ok(text.parse().map_err(|error| format!("{text}: {error}"))?)
    };
    let (threads, records) = (number(8)?, number(200)?);

    let engine = Engine::global()?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let log = GroupCommit::new(engine.open_with(path, &options).wait()?).wait()?;
    let begin = Instant::now();
    let write = |thread: u64| {
        let log = log.clone();
        thread::spawn(move || {
            (0..records).try_for_each(|record| {
                let record = format!("thread {thread} record {record}\n");
                log.append_durable(record).wait().0.map(drop)
            })
        })
    };
    let writers: Vec<_> = (0..threads).map(write).collect();
    for writer in writers {
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    let took = begin.elapsed();

    // Every record is there, and those of each thread are in order.
    let text = engine.read_to_string(path).wait()?;
    let mut next = vec![0; threads as usize];
    for line in text.lines() {
        let mut words = line.split(' ').skip(1).step_by(2).map(str::parse::<u64>);
        let (Some(Ok(thread)), Some(Ok(record))) = (words.next(), words.next()) else {
            return Err(format!("no record: {line}").into());
        };
        assert_eq!(next[thread as usize], record, "a record is missing before {line}");
        next[thread as usize] += 1;
    }
    assert!(next.iter().all(|&count| count == records), "records are missing");
    println!("{} durable records in {} syncs and {took:.1?}", threads * records, log.syncs());
    Ok(())
}
