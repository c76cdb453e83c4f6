//! A log that plain threads write: what `append` has returned for is there after a power failure.
//!
//! One durable write serves all records that have queued meanwhile (group commit). There is no thread for it:
//! of those who wait, the first writes for all, and the next group gathers behind it. The log is a file of
//! `sakia::Engine`; a thread that waits for a request makes the plain call itself.
//!
//! Run it with `cargo run --release -p sakia --example log_writer -- LOG [THREADS [RECORDS]]`. It checks the
//! log at the end, and prints how many writes the records took.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use sakia::Engine;
use sakia::engine::File;
use sakia::fs::OpenOptions;

/// A log in one file.
struct Log {
    file: File,
    state: Mutex<State>,
    /// A group is durable, or will never be.
    written: Condvar,
}

#[derive(Default)]
struct State {
    /// Records that are to be written next, one after the other.
    gathered: Vec<u8>,
    /// Memory for those after them.
    spare: Vec<u8>,
    /// The number of the group that gathers.
    group: u64,
    /// Groups below this number are durable.
    durable: u64,
    /// Where the next group begins in the file.
    end: u64,
    /// Somebody writes.
    is_writing: bool,
    /// What kept a group from being durable. The log takes nothing more: where it ends is not known.
    failure: Option<(io::ErrorKind, String)>,
}

impl Log {
    fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let file = Engine::global()?.open_with(path, &options).wait()?;
        Ok(Self { file, state: Mutex::default(), written: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record, and returns when it is durable.
    fn append(&self, record: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.gathered.extend_from_slice(record);
        let group = state.group;
        loop {
            if let Some((kind, message)) = &state.failure {
                return Err(io::Error::new(*kind, message.clone()));
            }
            if state.durable > group {
                return Ok(());
            }
            if state.is_writing {
                state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state = self.write_group(state);
            }
        }
    }

    /// Writes what has gathered.
    fn write_group<'l>(&'l self, mut state: MutexGuard<'l, State>) -> MutexGuard<'l, State> {
        let spare = std::mem::take(&mut state.spare);
        let records = std::mem::replace(&mut state.gathered, spare);
        let (offset, len) = (state.end, records.len() as u64);
        state.group += 1;
        state.is_writing = true;
        drop(state);
        // Others gather meanwhile.
        let (result, mut records) = self.file.write_durable_at(records, offset).wait();
        records.clear();
        let mut state = self.lock();
        state.spare = records;
        state.is_writing = false;
        match result {
            Ok(()) => {
                state.end += len;
                state.durable += 1;
            }
            Err(error) => state.failure = Some((error.kind(), error.to_string())),
        }
        self.written.notify_all();
        state
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("usage: log_writer LOG [THREADS [RECORDS]]")?;
    let mut number = |default: u64| -> Result<u64, Box<dyn Error>> {
        let Some(text) = arguments.next() else { return Ok(default) };
        let text = text.to_str().ok_or("a number, please")?;
        Ok(text.parse().map_err(|error| format!("{text}: {error}"))?)
    };
    let (threads, records) = (number(8)?, number(200)?);

    let log = Log::create(Path::new(&path))?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let write = |thread: u64| {
            let log = &log;
            scope.spawn(move || {
                (0..records).try_for_each(|record| {
                    log.append(format!("thread {thread} record {record}\n").as_bytes())
                })
            })
        };
        let writers: Vec<_> = (0..threads).map(write).collect();
        writers.into_iter().try_for_each(|writer| {
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let took = begin.elapsed();

    // Every record is there, and those of each thread are in order.
    let text = Engine::global()?.read_to_string(&path).wait()?;
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
    let (count, groups) = (threads * records, log.lock().durable);
    println!("{count} durable records in {groups} writes and {took:.1?}");
    Ok(())
}
