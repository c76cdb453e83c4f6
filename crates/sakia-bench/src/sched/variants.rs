//! The ways to do a load, and the times of operations and system calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use sakia::{Builder, Engine};
use sakia_bench_support::aio::{self, Buf, CallKind, Scheduler};
use sakia_bench_support::timed_host::TimedHost;
use sakia_driver::{self as driver, AlignedBuf, Bypass, Driver, Op, Policy, Uring, Wait};
use serde::{Deserialize, Serialize};

use super::input::{Access, open};
use super::load::{Load, Operation, pattern, sample};
use super::utilization;
use crate::bytes::sum;
use crate::cell::{Counters, Done, Unavailable};
use crate::engine::{available, counters};
use crate::measure::Meter;
use crate::named::named;

named! {
    /// A way to do a load.
    pub enum Variant {
        /// Plain calls, by each thread.
        Blocking = "blocking",
        /// A scheduler thread on Linux AIO.
        Aio = "aio",
        /// The engine, as used from plain threads.
        Sakia = "sakia",
        /// The engine's thread and its ring, without plain calls.
        Ring = "ring",
        /// Tasks of a runtime, if threads compute as well.
        Runtime = "runtime",
    }
}

/// The times that are measured besides the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Timing {
    /// None: no clock is read.
    Whole,
    /// The time until each operation returns.
    Operations,
    /// The time of each system call.
    Calls,
    /// The times in which threads compute and have operations in flight.
    Utilization,
}

/// Does a load.
pub(super) fn work(
    variant: Variant,
    load: &Load,
    timing: Timing,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    if let Some(computation) = load.computation {
        return utilization::work(variant, load, computation, meter);
    }
    match variant {
        Variant::Blocking => blocking(load, timing, meter),
        Variant::Aio => scheduled(load, timing, meter),
        Variant::Sakia => through_engine(load, timing, meter, false),
        Variant::Ring if timing == Timing::Calls => on_timed_ring(load, meter),
        Variant::Ring => through_engine(load, timing, meter, true),
        Variant::Runtime => bail!("a runtime's tasks do not wait for calls one by one"),
    }
}

/// Opens the files of a load.
pub(super) fn open_files(load: &Load) -> anyhow::Result<Vec<File>> {
    let access = Access { write: load.writes.count > 0, direct: load.direct };
    load.files.iter().map(|path| open(path, access)).collect()
}

fn blocking(load: &Load, timing: Timing, meter: &mut Meter) -> anyhow::Result<Done> {
    let files = open_files(load)?;
    let mut driven = drive(load, timing, meter, |one, mut buf: AlignedBuf| {
        let file = &files[one.file];
        let result = match one.is_write {
            true => file.write_at(&buf, one.offset),
            false => file.read_at(&mut buf, one.offset),
        };
        (result, buf)
    })?;
    if timing == Timing::Calls {
        // Here the operation is one system call.
        driven.counters.extend(times("pread", &driven.times));
    }
    driven.finish(load, &[("calls", load.operations())])
}

/// Starts a scheduler on Linux AIO, which keeps the durations of its system calls if it is traced.
pub(super) fn scheduler(is_traced: bool) -> anyhow::Result<Scheduler> {
    Scheduler::builder().trace(is_traced).start().map_err(|error| match aio::is_missing(&error) {
        true => anyhow!(Unavailable(format!("Linux AIO: {error}"))),
        false => anyhow!(error).context("Linux AIO"),
    })
}

fn scheduled(load: &Load, timing: Timing, meter: &mut Meter) -> anyhow::Result<Done> {
    let scheduler = scheduler(timing == Timing::Calls)?;
    let files = open_files(load)?.into_iter().map(|file| Arc::new(OwnedFd::from(file)));
    let files: Vec<_> = files.collect();
    let mut driven = drive(load, timing, meter, |one, buf: Buf| {
        let file = &files[one.file];
        match one.is_write {
            true => scheduler.write_at(file, buf, one.offset),
            false => scheduler.read_at(file, buf, one.offset),
        }
    })?;
    let calls = scheduler.stop();
    if timing == Timing::Calls {
        for (name, kind) in [
            ("io_setup", CallKind::Setup),
            ("io_submit", CallKind::Submit),
            ("io_getevents", CallKind::GetEvents),
        ] {
            let of_kind = calls.iter().filter(|call| call.kind == kind);
            let taken: Vec<_> = of_kind.map(|call| nanoseconds(call.duration)).collect();
            driven.counters.extend(times(name, &taken));
        }
    }
    let did = scheduler.statistics();
    driven.finish(
        load,
        &[
            ("submits", did.submits),
            ("submitted", did.submitted),
            ("get_events", did.get_events),
            ("batch_max", did.batch_max),
            ("contexts", did.contexts),
            ("sleeps", did.sleeps),
            ("calls", did.submits + did.get_events),
        ],
    )
}

/// Starts an engine with its defaults, or one without plain calls, and opens the files with it.
pub(super) fn open_engine(
    load: &Load,
    is_ring: bool,
) -> anyhow::Result<(Engine, Vec<sakia::engine::File>)> {
    let builder = Builder::new().backend(Policy::Uring).bypass(Bypass::Never);
    let engine = match is_ring {
        true => available(builder.build_engine())?,
        false => Engine::new().context("the engine")?,
    };
    let files = open_files(load)?.into_iter().map(|file| engine.adopt(file));
    let files: Vec<_> = files.collect::<io::Result<_>>()?;
    Ok((engine, files))
}

/// Uses the engine with its defaults, which may make plain calls on this thread; or its ring, to which each
/// request is sent, without plain calls.
fn through_engine(
    load: &Load,
    timing: Timing,
    meter: &mut Meter,
    is_ring: bool,
) -> anyhow::Result<Done> {
    let (engine, files) = open_engine(load, is_ring)?;
    let driven = drive(load, timing, meter, |one, buf: AlignedBuf| {
        let file = &files[one.file];
        match (one.is_write, is_ring) {
            (true, true) => file.write_at(buf, one.offset).submit().wait(),
            (true, false) => file.write_at(buf, one.offset).wait(),
            (false, true) => file.read_at(buf, one.offset).submit().wait(),
            (false, false) => file.read_at(buf, one.offset).wait(),
        }
    })?;
    let did = engine.statistics();
    if is_ring {
        return driven.finish(load, &[("sent", did.submitted)]);
    }
    // Each operation is waited for; one that does not go to the engine's thread is a plain call.
    let plain = did.waited.saturating_sub(did.submitted);
    driven.finish(load, &[("plain", plain), ("sent", did.submitted), ("calls", plain)])
}

/// Does one operation after the other on a ring of the calling thread, whose enters are timed.
fn on_timed_ring(load: &Load, meter: &mut Meter) -> anyhow::Result<Done> {
    let host = TimedHost::default();
    let uring = Uring::from_builder(sakia_ring::Builder::with_host(host.clone()));
    let driver = Driver::new(available(uring.map_err(io::Error::from))?);
    let files = open_files(load)?.into_iter().map(|file| driver.adopt(file.into()));
    let files: Vec<_> = files.collect();
    let mut thread = Thread::new(load, 0, true);
    host.take();
    meter.restart()?;
    thread.run(load, 0, true, |one, buf: AlignedBuf| {
        let file = &files[one.file];
        let output = match one.is_write {
            true => until_done(&driver, driver.write(file, buf, one.offset)),
            false => until_done(&driver, driver.read(file, buf, one.offset)),
        };
        output.unwrap_or_else(|error| (Err(error), AlignedBuf::default()))
    })?;
    meter.end()?;
    let enters: Vec<_> = host.take().into_iter().map(nanoseconds).collect();
    let mut driven = Driven::of([thread], true);
    driven.counters.extend(times("enter", &enters));
    driven.finish(load, &[("enters", enters.len() as u64), ("calls", enters.len() as u64)])
}

/// Gives the driver turns until an operation is done.
fn until_done<O: driver::Operation>(driver: &Driver, mut op: Op<O>) -> io::Result<O::Output> {
    loop {
        driver.turn(Wait::Forever)?;
        if let Some(output) = op.try_take() {
            return Ok(output);
        }
    }
}

/// A thread's buffers and results.
struct Thread<B> {
    /// Memory for reading, and for writing, reused for all operations. `None` while an operation has it.
    buffers: [Option<B>; 2],
    sum: u64,
    has_read: bool,
    /// The time of each operation in nanoseconds.
    times: Vec<u64>,
}

impl<B: Deref<Target = [u8]> + for<'a> From<&'a [u8]>> Thread<B> {
    /// Touches all of its memory, so that the measured section does not begin with page faults.
    fn new(load: &Load, index: usize, is_timed: bool) -> Self {
        let buffers = [vec![1; load.reads.buffer_bytes()], pattern(load.writes.buffer_bytes())];
        let operations = load.count_of_thread(index) as usize;
        let times = Vec::with_capacity(if is_timed { operations } else { 0 });
        let buffers = buffers.map(|bytes| Some(B::from(&bytes)));
        Self { buffers, sum: 0, has_read: false, times }
    }

    /// Does the operations of the thread with this index by `operate`, one after the other.
    fn run(
        &mut self,
        load: &Load,
        index: usize,
        is_timed: bool,
        operate: impl Fn(Operation, B) -> (io::Result<usize>, B),
    ) -> anyhow::Result<()> {
        for one in load.of_thread(index) {
            let lent = self.buffers[usize::from(one.is_write)].take();
            let lent = lent.expect("every operation gives it back");
            let clock = is_timed.then(Instant::now);
            let (result, buf) = operate(one, lent);
            if let Some(clock) = clock {
                self.times.push(nanoseconds(clock.elapsed()));
            }
            self.check(load, one, result, &buf)?;
            self.buffers[usize::from(one.is_write)] = Some(buf);
        }
        Ok(())
    }

    /// Adds the bytes of a read to the sum. A short read is an error.
    #[inline]
    fn check(
        &mut self,
        load: &Load,
        one: Operation,
        result: io::Result<usize>,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let size = if one.is_write { load.writes.size } else { load.reads.size };
        match result {
            Ok(count) if count == size => {
                if !one.is_write {
                    self.has_read = true;
                    self.sum = self.sum.wrapping_add(sample(bytes));
                }
                Ok(())
            }
            other => failed(load, one, size, other),
        }
    }

    /// Returns the sum with all bytes of the last read, which takes a while.
    fn whole_sum(&self) -> u64 {
        let last = self.buffers[0].as_deref().filter(|_| self.has_read);
        self.sum.wrapping_add(last.map_or(0, sum))
    }
}

/// Returns the error of an operation that did not transfer all its bytes.
#[cold]
pub(super) fn failed(
    load: &Load,
    one: Operation,
    size: usize,
    result: io::Result<usize>,
) -> anyhow::Result<()> {
    let what = if one.is_write { "write" } else { "read" };
    let path = load.files[one.file].display();
    let place = format!("{what} of {size} bytes at {} of {path}", one.offset);
    match result {
        Ok(count) => bail!("{place}: no more than {count} bytes"),
        Err(error) if load.direct && error.raw_os_error() == Some(22) => {
            Err(error).context(format!("{place}: not aligned for this file, or no direct I/O"))
        }
        Err(error) => Err(error).context(place),
    }
}

/// The results of all threads.
#[derive(Debug, Default)]
struct Driven {
    sum: u64,
    times: Vec<u64>,
    counters: Counters,
}

impl Driven {
    fn of<B>(threads: impl IntoIterator<Item = Thread<B>>, is_timed: bool) -> Self
    where
        B: Deref<Target = [u8]> + for<'a> From<&'a [u8]>,
    {
        let mut driven = Self::default();
        for thread in threads {
            driven.sum = driven.sum.wrapping_add(thread.whole_sum());
            driven.times.extend(thread.times);
        }
        if is_timed {
            driven.counters = times("op", &driven.times);
        }
        driven
    }

    /// Returns the result of the run, with the sum of the written bytes added.
    fn finish(self, load: &Load, counts: &[(&'static str, u64)]) -> anyhow::Result<Done> {
        let Self { mut sum, counters: mut all, .. } = self;
        if load.writes.count > 0 {
            sum = sum.wrapping_add(written(load)?);
        }
        all.extend(counters([("operations", load.operations())]));
        all.extend(counters(counts.iter().copied()));
        Ok(Done { sum, counters: all })
    }
}

/// Returns the sum of the files' bytes where they were written.
fn written(load: &Load) -> anyhow::Result<u64> {
    const PART_BYTES: u64 = 1 << 20;
    let mut part = vec![0; PART_BYTES as usize];
    let mut total = 0u64;
    for (index, path) in load.files.iter().enumerate() {
        let file = open(path, Access::default())?;
        let (begin, bytes) = (load.writes_begin(), load.written_bytes(index));
        let mut done = 0;
        while done < bytes {
            let part = &mut part[..(bytes - done).min(PART_BYTES) as usize];
            file.read_exact_at(part, begin + done)
                .with_context(|| format!("what was written to {}", path.display()))?;
            total = total.wrapping_add(sum(part));
            done += part.len() as u64;
        }
    }
    Ok(total)
}

/// Has the threads do their operations, each by `operate`. The measured section begins when all are ready.
fn drive<B>(
    load: &Load,
    timing: Timing,
    meter: &mut Meter,
    operate: impl Fn(Operation, B) -> (io::Result<usize>, B) + Sync,
) -> anyhow::Result<Driven>
where
    B: Deref<Target = [u8]> + for<'a> From<&'a [u8]> + Send,
{
    let (is_timed, operate) = (timing != Timing::Whole, &operate);
    let prepare = |index| Thread::new(load, index, is_timed);
    let threads = on_threads(load.threads, meter, prepare, |index, mut thread: Thread<B>| {
        thread.run(load, index, is_timed, operate)?;
        anyhow::Ok(thread)
    })?;
    Ok(Driven::of(threads, is_timed))
}

/// Has `count` threads `run` with their numbers and a value made by `prepare`, and returns their results in
/// order. The measured section begins when all are ready.
pub(super) fn on_threads<S: Send, T: Send>(
    count: usize,
    meter: &mut Meter,
    prepare: impl Fn(usize) -> S,
    run: impl Fn(usize, S) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let run = &run;
    thread::scope(|scope| {
        let (ready, are_ready) = mpsc::channel();
        // If not all threads can be started, the senders are dropped, and the others end.
        let mut starts: Vec<Sender<()>> = Vec::new();
        let mut handles = Vec::new();
        for index in 0..count {
            let (start, begin) = mpsc::channel();
            starts.push(start);
            let (ready, prepared) = (ready.clone(), prepare(index));
            let body = move || {
                ready.send(()).ok();
                begin.recv().context("not all threads could be started")?;
                run(index, prepared)
            };
            let spawned = thread::Builder::new().spawn_scoped(scope, body);
            handles.push(spawned.with_context(|| format!("thread {index}"))?);
        }
        drop(ready);
        for _ in &handles {
            are_ready.recv().context("a thread ended early")?;
        }
        meter.note_threads();
        meter.restart()?;
        for start in &starts {
            start.send(()).ok(); // a thread that has failed reports it when it is joined
        }
        let join = |handle: thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let ended: Vec<anyhow::Result<T>> = handles.into_iter().map(join).collect();
        meter.end()?;
        ended.into_iter().collect()
    })
}

/// Returns a duration in nanoseconds.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns mean, standard deviation, median and extremes of times, as counters that begin with `name`.
fn times(name: &str, values: &[u64]) -> Counters {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let count = sorted.len().max(1) as f64;
    let mean = sorted.iter().map(|&value| value as f64).sum::<f64>() / count;
    let squares = sorted.iter().map(|&value| (value as f64 - mean).powi(2)).sum::<f64>();
    let at = |part: usize| sorted.get(sorted.len() * part / 100).copied().unwrap_or(0);
    BTreeMap::from([
        (format!("{name}_count"), sorted.len() as u64),
        (format!("{name}_ns_mean"), mean.round() as u64),
        (format!("{name}_ns_deviation"), (squares / count).sqrt().round() as u64),
        (format!("{name}_ns_median"), at(50)),
        (format!("{name}_ns_p99"), at(99)),
        (format!("{name}_ns_max"), sorted.last().copied().unwrap_or(0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::Named;

    #[test]
    fn names_lead_back_to_variants() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
        assert_eq!(Variant::by_name("bio"), None);
    }

    #[test]
    fn times_have_mean_and_deviation() {
        let counters = times("x", &[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!((counters["x_ns_mean"], counters["x_ns_deviation"]), (5, 2));
        assert_eq!((counters["x_count"], counters["x_ns_max"], counters["x_ns_median"]), (8, 9, 5));
        assert_eq!(times("x", &[])["x_ns_p99"], 0);
    }
}
