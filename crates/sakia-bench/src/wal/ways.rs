//! The ways to write the log.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, anyhow};
use futures_util::stream::{FuturesUnordered, StreamExt};
use sakia::Runtime;
use sakia::engine::__private::block_on;
use sakia::engine::{self, Engine};
use sakia::fs::GroupCommit;
use sakia_driver::{AlignedBuf, Policy};

use super::admission::{Admission, Limit};
use super::record::{fill, sum_in};
use super::{BLOCK_BYTES, Load, Task, Variant};
use crate::cell::{Counters, Done};
use crate::engine::{self as runtimes, available, between, counted, counters};
use crate::measure::Meter;

/// Stack of a thread that writes.
const STACK_BYTES: usize = 128 << 10;

/// Writes the log, and reads it.
pub(super) fn work(variant: Variant, task: &Task, meter: &mut Meter) -> anyhow::Result<Done> {
    let log = Log::create(&task.directory)?;
    let load = task.load;
    let counters = match variant {
        Variant::Runtime => on_runtime(&log.0, load, false, meter),
        Variant::Direct => on_runtime(&log.0, load, true, meter),
        Variant::Engine => awaited(&log.0, load, meter),
        Variant::Wait => waited(&log.0, load, meter),
        Variant::StdGroup => by_hand(&log.0, load, meter),
        Variant::Std => each(&log.0, load, meter),
        Variant::Tokio => on_tokio(&log.0, load, meter),
        Variant::Fixed => admitted(&log.0, load, Limit::fixed(), meter),
        Variant::ByLatency => admitted(&log.0, load, Limit::by_latency(), meter),
    }?;
    let stride = match variant {
        Variant::Direct => load.record_bytes.next_multiple_of(BLOCK_BYTES),
        _ => load.record_bytes,
    };
    let contents = fs::read(&log.0).context("cannot read the log")?;
    Ok(Done { sum: sum_in(&contents, &load, stride)?, counters })
}

/// The path of a log, which is removed with the value.
struct Log(PathBuf);

impl Log {
    /// Makes an empty log whose name is durable.
    fn create(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(format!("log-{}", std::process::id()));
        let created = File::create(&path).and_then(|file| {
            file.sync_all()?;
            File::open(directory)?.sync_all()
        });
        let log = Self(path);
        created.with_context(|| format!("cannot make {}", log.0.display()))?;
        Ok(log)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

fn record(load: Load, writer: usize, number: u64) -> Vec<u8> {
    let mut buf = vec![0; load.record_bytes];
    fill(&mut buf, writer, number);
    buf
}

/// The same as whole blocks.
fn padded(load: Load, writer: usize, number: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(load.record_bytes.next_multiple_of(BLOCK_BYTES));
    fill(&mut buf[..load.record_bytes], writer, number);
    buf
}

/// A runtime of one thread, and a task for each writer.
fn on_runtime(
    path: &Path,
    load: Load,
    is_direct: bool,
    meter: &mut Meter,
) -> anyhow::Result<Counters> {
    let runtime = runtimes::Engine::URING.start()?;
    let opened = runtime.block_on(async {
        let mut options = sakia::fs::OpenOptions::new();
        options.write(true).direct(is_direct);
        GroupCommit::new(options.open(path).await?).await
    });
    let log = Rc::new(opened.context("cannot open the log")?);
    let before = counted(&runtime);
    meter.restart()?;
    runtime.block_on(async {
        let write = |writer| {
            let log = Rc::clone(&log);
            sakia::spawn(async move {
                for number in 0..load.records {
                    if is_direct {
                        log.append_durable(padded(load, writer, number)).await.0?;
                    } else {
                        log.append_durable(record(load, writer, number)).await.0?;
                    }
                }
                io::Result::Ok(())
            })
        };
        let writers: Vec<_> = (0..load.writers).map(write).collect();
        for writer in writers {
            writer.await.map_err(|error| anyhow!(error))??;
        }
        anyhow::Ok(())
    })?;
    meter.end()?;
    let mut did = between(&before, counted(&runtime));
    did.insert("syncs".into(), log.syncs());
    Ok(did)
}

fn engine_log(path: &Path) -> anyhow::Result<(Engine, engine::GroupCommit)> {
    let engine = available(Runtime::builder().backend(Policy::Auto).build_engine())?;
    let mut options = sakia::fs::OpenOptions::new();
    options.write(true);
    let file = engine.open_with(path, &options).wait().context("cannot open the log")?;
    let log = engine::GroupCommit::new(file).wait()?;
    Ok((engine, log))
}

fn engine_counters(engine: &Engine, log: &engine::GroupCommit) -> Counters {
    let did = engine.statistics();
    counters([("syncs", log.syncs()), ("submitted", did.submitted), ("waited", did.waited)])
}

/// An engine, and one plain thread that awaits all writers.
fn awaited(path: &Path, load: Load, meter: &mut Meter) -> anyhow::Result<Counters> {
    let (engine, log) = engine_log(path)?;
    meter.restart()?;
    let log = &log;
    let write = |writer| async move {
        for number in 0..load.records {
            log.append_durable(record(load, writer, number)).await.0?;
        }
        io::Result::Ok(())
    };
    let mut writers: FuturesUnordered<_> = (0..load.writers).map(write).collect();
    block_on(async {
        while let Some(result) = writers.next().await {
            result?;
        }
        io::Result::Ok(())
    })?;
    meter.end()?;
    Ok(engine_counters(&engine, log))
}

/// An engine, and a plain thread for each writer.
fn waited(path: &Path, load: Load, meter: &mut Meter) -> anyhow::Result<Counters> {
    let (engine, log) = engine_log(path)?;
    let writes = log.clone();
    on_threads(load, meter, move |record| writes.append_durable(record).wait().0.map(drop))?;
    Ok(engine_counters(&engine, &log))
}

/// A thread for each writer, which has its records written by `write`.
fn on_threads(
    load: Load,
    meter: &mut Meter,
    write: impl Fn(Vec<u8>) -> io::Result<()> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let write = Arc::new(write);
    let begin = Arc::new(Barrier::new(load.writers + 1));
    let end = Arc::clone(&begin);
    let start = |writer| {
        let (write, begin) = (Arc::clone(&write), Arc::clone(&begin));
        let work = move || {
            begin.wait();
            let mut numbers = 0..load.records;
            let result = numbers.try_for_each(|number| write(record(load, writer, number)));
            begin.wait();
            result
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn(work).context("cannot start a thread")
    };
    let threads: Vec<_> = (0..load.writers).map(start).collect::<anyhow::Result<_>>()?;
    meter.restart()?;
    end.wait();
    end.wait();
    meter.end()?;
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a writer has panicked"))??;
    }
    Ok(())
}

/// A group commit by hand.
struct Group {
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
    /// A writer writes.
    is_writing: bool,
    failure: Option<io::ErrorKind>,
}

impl Group {
    fn append(&self, record: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.gathered.extend_from_slice(record);
        let group = state.group;
        loop {
            if let Some(kind) = state.failure {
                return Err(kind.into());
            }
            if state.durable > group {
                return Ok(());
            }
            if state.is_writing {
                state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let spare = std::mem::take(&mut state.spare);
            let mut records = std::mem::replace(&mut state.gathered, spare);
            state.group += 1;
            state.is_writing = true;
            drop(state);
            // Others gather meanwhile.
            let written = (&self.file).write_all(&records);
            let result = written.and_then(|()| self.file.sync_data());
            records.clear();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.spare = records;
            state.is_writing = false;
            match result {
                Ok(()) => state.durable += 1,
                Err(error) => state.failure = Some(error.kind()),
            }
            self.written.notify_all();
        }
    }
}

fn by_hand(path: &Path, load: Load, meter: &mut Meter) -> anyhow::Result<Counters> {
    let file = File::options().write(true).open(path).context("cannot open the log")?;
    let group = Group { file, state: Mutex::default(), written: Condvar::new() };
    let group = Arc::new(group);
    let writes = Arc::clone(&group);
    on_threads(load, meter, move |record| writes.append(&record))?;
    let state = group.state.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(counters([("syncs", state.durable)]))
}

fn each(path: &Path, load: Load, meter: &mut Meter) -> anyhow::Result<Counters> {
    let file = File::options().append(true).open(path).context("cannot open the log")?;
    on_threads(load, meter, move |record| {
        (&file).write_all(&record)?;
        file.sync_data()
    })?;
    Ok(counters([("syncs", load.all())]))
}

/// The group commit of `sakia-tokio`, and a task of tokio's runtime of several threads for each writer.
fn on_tokio(path: &Path, load: Load, meter: &mut Meter) -> anyhow::Result<Counters> {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().context("tokio's runtime")?;
    let opened = runtime.block_on(async {
        let file = sakia_tokio::fs::OpenOptions::new().write(true).open(path).await?;
        sakia_tokio::fs::GroupCommit::new(file).await
    });
    let log = opened.context("cannot open the log")?;
    meter.restart()?;
    runtime.block_on(async {
        let write = |writer| {
            let log = log.clone();
            tokio::spawn(async move {
                for number in 0..load.records {
                    log.append_durable(record(load, writer, number)).await?;
                }
                io::Result::Ok(())
            })
        };
        let writers: Vec<_> = (0..load.writers).map(write).collect();
        for writer in writers {
            writer.await??;
        }
        anyhow::Ok(())
    })?;
    meter.end()?;
    Ok(counters([("syncs", log.syncs())]))
}

/// A runtime of one thread and a task for each writer, whose records are written and synced one by one: as
/// many at a time as `limit` admits, each by a thread of the pool for blocking calls.
fn admitted(path: &Path, load: Load, limit: Limit, meter: &mut Meter) -> anyhow::Result<Counters> {
    let runtime = runtimes::Engine::URING.start()?;
    let file = File::options().write(true).open(path).context("cannot open the log")?;
    let file = Arc::new(file);
    let admission = Rc::new(Admission::new(limit));
    let end = Rc::new(Cell::new(0));
    meter.restart()?;
    runtime.block_on(async {
        let write = |writer| {
            let (file, admission, end) =
                (Arc::clone(&file), Rc::clone(&admission), Rc::clone(&end));
            sakia::spawn(async move {
                for number in 0..load.records {
                    let permit = admission.enter().await;
                    // The records of a writer are in order, since it has one at a time.
                    let at = end.replace(end.get() + load.record_bytes as u64);
                    let (file, record) = (Arc::clone(&file), record(load, writer, number));
                    let written = sakia::spawn_blocking(move || {
                        file.write_all_at(&record, at)?;
                        file.sync_data()
                    });
                    let result = written.await;
                    admission.leave(permit);
                    result.map_err(|error| anyhow!(error))??;
                }
                anyhow::Ok(())
            })
        };
        let writers: Vec<_> = (0..load.writers).map(write).collect();
        for writer in writers {
            writer.await.map_err(|error| anyhow!(error))??;
        }
        anyhow::Ok(())
    })?;
    meter.end()?;
    let mut did = admission.counters();
    did.insert("syncs".into(), load.all());
    Ok(did)
}
