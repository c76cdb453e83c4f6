//! The ways to do a load, and how long operations and system calls take.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sakia::Builder;
use sakia::engine::{self as door, Engine};
use sakia_bench_support::aio::{self, CallKind, Scheduler};
use sakia_bench_support::timed_host::TimedHost;
use sakia_driver::{AlignedBuf, Bypass, Driver, Policy, Uring, Wait};
use serde::{Deserialize, Serialize};

use super::input::{Access, open};
use super::load::{Load, Operation, pattern, sample};
use super::port::{Plain, Port, Scheduled, Sent, Waiting};
use crate::bytes::sum;
use crate::cell::{Counters, Done};
use crate::engine::{counters, unless_refused};
use crate::measure::Meter;
use crate::named::named;

named! {
    /// A way to do a load.
    pub enum Variant {
        /// Plain calls, by each thread.
        Blocking = "blocking",
        /// A scheduler thread on Linux AIO.
        Aio = "aio",
        /// The engine, as programs use it from plain threads.
        Sakia = "sakia",
        /// The engine's thread and its ring, and nothing done by plain calls.
        Ring = "ring",
    }
}

/// What is measured beside the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Timing {
    /// Nothing: no clock is read.
    Whole,
    /// How long each operation takes to return.
    Operations,
    /// How long each system call takes.
    Calls,
}

/// Does a load.
pub(super) fn work(
    variant: Variant,
    load: &Load,
    timing: Timing,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    match variant {
        Variant::Blocking => blocking(load, timing, meter),
        Variant::Aio => scheduled(load, timing, meter),
        Variant::Sakia => waiting(load, timing, meter),
        Variant::Ring if timing == Timing::Calls => on_timed_ring(load, meter),
        Variant::Ring => sent(load, timing, meter),
    }
}

fn open_files(load: &Load) -> anyhow::Result<Vec<File>> {
    let access = Access { write: load.writes.count > 0, direct: load.direct };
    load.files.iter().map(|path| open(path, access)).collect()
}

fn blocking(load: &Load, timing: Timing, meter: &mut Meter) -> anyhow::Result<Done> {
    let files = Arc::new(open_files(load)?);
    let ports = (0..load.threads).map(|_| Plain::new(&files, load)).collect();
    let mut driven = drive(ports, load, timing != Timing::Whole, meter)?;
    if timing == Timing::Calls {
        // Here the operation is the call.
        driven.counters.extend(times("pread", &driven.times));
    }
    driven.finish(load, [("calls", load.operations())])
}

fn scheduled(load: &Load, timing: Timing, meter: &mut Meter) -> anyhow::Result<Done> {
    let scheduler = match Scheduler::builder().trace(timing == Timing::Calls).start() {
        Ok(scheduler) => Arc::new(scheduler),
        Err(error) if aio::is_missing(&error) => {
            return Ok(Done::Unavailable(format!("Linux AIO: {error}")));
        }
        Err(error) => return Err(error).context("Linux AIO"),
    };
    let files = open_files(load)?.into_iter().map(|file| Arc::new(OwnedFd::from(file)));
    let files = Arc::new(files.collect::<Vec<_>>());
    let ports = (0..load.threads).map(|_| Scheduled::new(&scheduler, &files, load)).collect();
    let mut driven = drive(ports, load, timing != Timing::Whole, meter)?;
    let calls = scheduler.stop();
    let of = |kind| {
        let of_kind = calls.iter().filter(move |call| call.kind == kind);
        of_kind.map(|call| nanoseconds(call.duration)).collect::<Vec<_>>()
    };
    if timing == Timing::Calls {
        for (name, kind) in [
            ("io_setup", CallKind::Setup),
            ("io_submit", CallKind::Submit),
            ("io_getevents", CallKind::GetEvents),
        ] {
            driven.counters.extend(times(name, &of(kind)));
        }
    }
    let did = scheduler.statistics();
    driven.finish(
        load,
        [
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

fn waiting(load: &Load, timing: Timing, meter: &mut Meter) -> anyhow::Result<Done> {
    let engine = Engine::new().context("the engine")?;
    let files = open_files(load)?.into_iter().map(|file| engine.adopt(file));
    let files: Vec<door::File> = files.collect::<io::Result<_>>()?;
    let ports = (0..load.threads).map(|_| Waiting::new(&files, load)).collect();
    let driven = drive(ports, load, timing != Timing::Whole, meter)?;
    let did = engine.statistics();
    // All are waited for, and what does not go to the engine's thread is a plain call.
    let plain = did.waited.saturating_sub(did.submitted);
    driven.finish(load, [("plain", plain), ("sent", did.submitted), ("calls", plain)])
}

fn sent(load: &Load, timing: Timing, meter: &mut Meter) -> anyhow::Result<Done> {
    let built = Builder::new().backend(Policy::Uring).bypass(Bypass::Never).build_engine();
    let engine = match unless_refused(built)? {
        Ok(engine) => engine,
        Err(reason) => return Ok(Done::Unavailable(reason)),
    };
    Sent::open(&engine, open_files(load)?)?;
    let ports = (0..load.threads).map(|_| Sent::new(&engine, load)).collect();
    let driven = drive(ports, load, timing != Timing::Whole, meter)?;
    Sent::close(&engine)?;
    let did = engine.statistics();
    driven.finish(load, [("sent", did.submitted)])
}

/// One operation after the other on a ring of the calling thread, whose enters are timed.
fn on_timed_ring(load: &Load, meter: &mut Meter) -> anyhow::Result<Done> {
    let host = TimedHost::default();
    let uring = match Uring::from_builder(sakia_ring::Builder::with_host(host.clone())) {
        Ok(uring) => uring,
        Err(refusal) if refusal.is_refusal() => return Ok(Done::Unavailable(refusal.to_string())),
        Err(error) => return Err(error.into()),
    };
    let driver = Driver::new(uring);
    let files = open_files(load)?.into_iter().map(|file| driver.adopt(file.into()));
    let files: Vec<_> = files.collect();
    let mut read = Some(AlignedBuf::zeroed(load.reads.size));
    let mut write = Some(AlignedBuf::from(&pattern(load.writes.size)[..]));
    let mut thread = Thread::default();
    host.take();
    meter.restart()?;
    for one in load.of_thread(0) {
        let begin = Instant::now();
        let slot = if one.is_write { &mut write } else { &mut read };
        let buf = slot.take().context("the buffer of the last operation")?;
        let (result, buf) = if one.is_write {
            let mut op = driver.write(&files[one.file], buf, one.offset);
            loop {
                driver.turn(Wait::Forever)?;
                if let Some(output) = op.try_take() {
                    break output;
                }
            }
        } else {
            let mut op = driver.read(&files[one.file], buf, one.offset);
            loop {
                driver.turn(Wait::Forever)?;
                if let Some(output) = op.try_take() {
                    break output;
                }
            }
        };
        thread.times.push(nanoseconds(begin.elapsed()));
        thread.check(load, one, result, &buf)?;
        *(if one.is_write { &mut write } else { &mut read }) = Some(buf);
    }
    meter.end()?;
    if thread.has_read {
        thread.sum = thread.sum.wrapping_add(sum(read.as_deref().unwrap_or_default()));
    }
    let enters: Vec<_> = host.take().into_iter().map(nanoseconds).collect();
    let mut driven = Driven::of([thread], true);
    driven.counters.extend(times("enter", &enters));
    driven.finish(load, [("enters", enters.len() as u64), ("calls", enters.len() as u64)])
}

/// What a thread did.
#[derive(Debug, Default)]
struct Thread {
    sum: u64,
    has_read: bool,
    /// Nanoseconds of each operation.
    times: Vec<u64>,
}

impl Thread {
    /// Adds what was read. All bytes are there, or it is an error.
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
}

#[cold]
fn failed(
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

/// What all threads did.
#[derive(Debug, Default)]
struct Driven {
    sum: u64,
    times: Vec<u64>,
    counters: Counters,
}

impl Driven {
    fn of(threads: impl IntoIterator<Item = Thread>, is_timed: bool) -> Self {
        let mut driven = Self::default();
        for thread in threads {
            driven.sum = driven.sum.wrapping_add(thread.sum);
            driven.times.extend(thread.times);
        }
        if is_timed {
            driven.counters = times("op", &driven.times);
        }
        driven
    }

    /// Looks at what was written.
    fn finish<const N: usize>(
        self,
        load: &Load,
        counts: [(&'static str, u64); N],
    ) -> anyhow::Result<Done> {
        let Self { mut sum, counters: mut all, .. } = self;
        if load.writes.count > 0 {
            sum = sum.wrapping_add(written(load)?);
        }
        all.extend(counters([("operations", load.operations())]));
        all.extend(counters(counts));
        Ok(Done::Worked { sum, counters: all })
    }
}

/// The sum of what is in the files where they were written.
fn written(load: &Load) -> anyhow::Result<u64> {
    use std::os::unix::fs::FileExt;

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

/// Has the threads do their operations. What is measured begins when all are ready.
fn drive<P: Port>(
    ports: Vec<P>,
    load: &Load,
    is_timed: bool,
    meter: &mut Meter,
) -> anyhow::Result<Driven> {
    let threads = thread::scope(|scope| {
        let (ready, are_ready) = mpsc::channel();
        // Dropped without a word when not all can be started: then the others end.
        let mut starts: Vec<Sender<()>> = Vec::new();
        let mut handles = Vec::new();
        for (index, port) in ports.into_iter().enumerate() {
            let (start, begin) = mpsc::channel();
            starts.push(start);
            let ready = ready.clone();
            let body = move || run(port, load, index, is_timed, &ready, &begin);
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
            start.send(()).ok(); // one that has failed says so when it is joined
        }
        let join = |handle: thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let ended: Vec<anyhow::Result<(Thread, P)>> = handles.into_iter().map(join).collect();
        meter.end()?;
        // All bytes of what was read last, which takes its time.
        let whole = |(mut thread, port): (Thread, P)| {
            if thread.has_read {
                thread.sum = thread.sum.wrapping_add(sum(port.bytes()));
            }
            thread
        };
        ended.into_iter().map(|one| one.map(whole)).collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok(Driven::of(threads, is_timed))
}

/// The operations of one thread.
fn run<P: Port>(
    mut port: P,
    load: &Load,
    index: usize,
    is_timed: bool,
    ready: &Sender<()>,
    begin: &Receiver<()>,
) -> anyhow::Result<(Thread, P)> {
    let operations = load.count_of_thread(index) as usize;
    let times = Vec::with_capacity(if is_timed { operations } else { 0 });
    let mut thread = Thread { times, ..Thread::default() };
    ready.send(()).ok();
    if begin.recv().is_err() {
        return Ok((thread, port));
    }
    for one in load.of_thread(index) {
        let clock = is_timed.then(Instant::now);
        let result = if one.is_write {
            port.write(one.file, one.offset)
        } else {
            port.read(one.file, one.offset)
        };
        if let Some(clock) = clock {
            thread.times.push(nanoseconds(clock.elapsed()));
        }
        thread.check(load, one, result, port.bytes())?;
    }
    Ok((thread, port))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Mean, standard deviation, median and extremes of times, as counters that begin with `name`.
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
