//! The experiment `costs`: the cost of the parts of waiting for I/O: a system call, a thread switch, a ring
//! entry, a wake, a task switch, an event of a recording.
//!
//! Each part is a variant, repeated the same number of times; the figures are those of one repetition.

use std::future::poll_fn;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

use anyhow::{Context, ensure};
use sakia::engine::{Many, ReadAt, Request};
use sakia::io::BufResult;
use sakia::trace::{EventKind, Recording, TraceOptions};
use sakia_driver::{Driver, OpKind, Wait};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cell::{self, Counters, Done, Outcome, Spec, Unavailable};
use crate::engine::{Engine, counters};
use crate::experiment::{About, Experiment, Focus, Params, Point, Work};
use crate::machine::{keep_to, processors};
use crate::measure::Meter;
use crate::named::{Named, named};
use crate::results::Row;
use crate::scratch;

/// The name of the experiment.
pub const NAME: &str = "costs";

/// The number of repetitions of each part in a run, a multiple of the largest batch.
pub const OPERATIONS: u64 = 102_400;
/// The same in a quick look.
pub const QUICK_OPERATIONS: u64 = 12_800;
/// The most repetitions: all events of a recording are kept in memory until they are written.
pub const OPERATIONS_MAX: u64 = 1 << 20;
/// The largest batch of entries.
pub const BATCH_MAX: u64 = 64;
/// The most events of a recorded operation and of the turn around it.
const EVENTS_OF_OPERATION: u64 = 8;
/// Names of counters.
const EVENTS: &str = "events";
const LOST: &str = "events_lost";
/// The bytes of a read.
const BLOCK_BYTES: usize = 4096;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Repetitions of each part in a run; rounded up to a multiple of [`BATCH_MAX`].
    pub operations: u64,
    /// The parts, in the order in which they are shown.
    pub variants: Vec<Variant>,
}

named! {
    /// A part.
    pub enum Variant {
        /// A system call that does nothing: `getppid(2)`.
        Call = "call",
        /// A thread wakes another one on the same processor, and sleeps.
        Switch = "switch",
        /// A task wakes a task of a runtime on another thread, which sleeps.
        Wake = "wake",
        /// A task lets another one of its thread run.
        Yield = "yield",
        /// A no-op through the ring.
        Nop1 = "nop-1",
        /// Eight no-ops at a time.
        Nop8 = "nop-8",
        /// 64 no-ops at a time.
        Nop64 = "nop-64",
        /// 64 no-ops at a time while a recording is on.
        Recorded64 = "nop-64-recorded",
        /// 64 no-ops at a time while latencies are measured.
        Measured64 = "nop-64-measured",
        /// An event of the program's own while a recording is on.
        Event = "event",
        /// The same event without a recording.
        EventOff = "event-off",
        /// A cached read of an engine, 16 as one request for which a thread waits.
        ReadsWait = "reads-16-wait",
        /// The same, awaited by a runtime of their own.
        ReadsBlockOn = "reads-16-block-on",
    }
}

impl Variant {
    /// Those measured by default.
    pub const DEFAULT: [Self; 13] = Self::ALL;
}

/// The experiment.
#[derive(Debug)]
pub struct Costs {
    operations: u64,
    about: About,
    /// The directory for recordings.
    _directory: TempDir,
}

/// The input of a run.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    operations: u64,
}

impl Costs {
    /// Makes a directory for recordings.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let directory = scratch::directory("sakia-bench-", &std::env::temp_dir())?;
        let operations = options.operations.next_multiple_of(BATCH_MAX);
        let mut params = Params::new();
        params.insert("operations".into(), operations.into());
        let work = Work { operations, bytes: 0 };
        let about = About {
            title: "the cost of the parts of waiting for I/O".into(),
            notes: notes(),
            points: vec![Point { params, label: format!("one of {operations}"), work }],
            pairs: pairs(&options.variants),
            variants: Variant::names(&options.variants),
            ..About::new(NAME, Focus::Costs, directory.path())
        };
        Ok(Self { operations, about, _directory: directory })
    }
}

/// Returns the pairs of variants to compare: they show the cost of observing operations, and of a runtime for
/// a request.
fn pairs(variants: &[Variant]) -> Vec<(&'static str, &'static str)> {
    let all = [
        (Variant::Recorded64, Variant::Nop64),
        (Variant::Measured64, Variant::Nop64),
        (Variant::Switch, Variant::Yield),
        (Variant::ReadsBlockOn, Variant::ReadsWait),
    ];
    let is_measured =
        |&(one, two): &(Variant, Variant)| variants.contains(&one) && variants.contains(&two);
    all.into_iter().filter(is_measured).map(|(one, two)| (one.name(), two.name())).collect()
}

/// Returns the notes on the method.
fn notes() -> Vec<String> {
    vec![
        "call: getppid. switch: two threads on one processor, each of which unparks the other and parks; one \
         is half a round. wake: two runtimes on two threads, a task each; a task wakes the other and waits. \
         The thread of that one sleeps by then, unless it has a processor of its own and is still about to."
            .into(),
        "yield: two tasks of a thread that let each other run. nop-1, nop-8, nop-64: no-ops through a \
         driver on the ring, so many at a time, with all that it does for an operation."
            .into(),
        "event: an event of the program's own into a recording with room for all; the time is that of the \
         thread, while another one writes the file. nop-64-recorded has four events and more per operation. \
         event-off: the test whether a recording is on."
            .into(),
        "reads-16-wait, reads-16-block-on: a read of 4 KiB from the page cache, 16 as one request of an \
         engine (submit_many), for which the thread waits, or for which block_on makes a runtime."
            .into(),
    ]
}

impl Experiment for Costs {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, _point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        Ok(self.operations)
    }

    fn input(&self, _point: usize) -> Value {
        json!(Task { operations: self.operations })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let of_each = |count: u64| count as f64 / self.operations as f64;
        let events = row.counters.get(EVENTS)?;
        Some(format!("{:.2} events each, {} lost", of_each(*events), row.count(LOST)))
    }
}

/// See [`cell::run_cell`].
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let Task { operations } = spec.task()?;
    let is_whole = operations.is_multiple_of(BATCH_MAX);
    ensure!(is_whole && (1..=OPERATIONS_MAX).contains(&operations), "{operations} operations");
    cell::measure(|meter| work(variant, operations, meter))
}

fn work(variant: Variant, count: u64, meter: &mut Meter) -> anyhow::Result<Done> {
    match variant {
        Variant::Call => {
            meter.restart()?;
            let parents = (0..count).map(|_| black_box(rustix::process::getppid()));
            let sum = parents.count() as u64;
            meter.end()?;
            Ok(done(sum))
        }
        Variant::Switch => switch(count, meter),
        Variant::Wake => wake(count, meter),
        Variant::Yield => yields(count, meter),
        Variant::Nop1 => nops(count, 1, meter),
        Variant::Nop8 => nops(count, 8, meter),
        Variant::Nop64 => nops(count, 64, meter),
        Variant::Recorded64 => recorded(count, meter, |meter| nops(count, 64, meter)),
        Variant::Measured64 => measured(count, meter),
        Variant::Event => recorded(count, meter, |meter| events(count, meter)),
        Variant::EventOff => events(count, meter),
        Variant::ReadsWait => reads(count, meter, |request| request.wait()),
        Variant::ReadsBlockOn => reads(count, meter, sakia::block_on),
    }
}

fn done(sum: u64) -> Done {
    Done { sum, counters: Counters::new() }
}

/// Runs two threads that take turns.
fn switch(count: u64, meter: &mut Meter) -> anyhow::Result<Done> {
    let first = processors()?.next().context("no processor")?;
    keep_to(&[first])?;
    let turn = AtomicU64::new(0);
    let play = |me: u64, other: &thread::Thread| {
        loop {
            let now = turn.load(Ordering::SeqCst);
            if now >= count {
                return other.unpark();
            }
            if now % 2 == me {
                turn.store(now + 1, Ordering::SeqCst);
                other.unpark();
            } else {
                thread::park();
            }
        }
    };
    let main = thread::current();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            thread::park();
            play(1, &main);
        });
        meter.restart()?;
        meter.note_threads();
        other.thread().unpark();
        play(0, other.thread());
        meter.end()?;
        other.thread().unpark();
        Ok(done(turn.load(Ordering::SeqCst)))
    })
}

/// Two tasks on two threads that take turns.
#[derive(Debug, Default)]
struct Relay {
    turn: AtomicU64,
    wakers: [Mutex<Option<Waker>>; 2],
}

impl Relay {
    async fn play(&self, me: u64, count: u64) {
        loop {
            let turn = poll_fn(|cx| {
                *self.wakers[me as usize].lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(cx.waker().clone());
                let turn = self.turn.load(Ordering::SeqCst);
                if turn >= count || turn % 2 == me { Poll::Ready(turn) } else { Poll::Pending }
            })
            .await;
            if turn < count {
                self.turn.store(turn + 1, Ordering::SeqCst);
            }
            let mut other =
                self.wakers[1 - me as usize].lock().unwrap_or_else(PoisonError::into_inner);
            let waker = other.take();
            drop(other);
            waker.into_iter().for_each(Waker::wake);
            if turn >= count {
                return;
            }
        }
    }
}

fn wake(count: u64, meter: &mut Meter) -> anyhow::Result<Done> {
    let relay = Relay::default();
    let runtime = Engine::URING.start()?;
    thread::scope(|scope| {
        let other = scope.spawn(|| -> anyhow::Result<()> {
            Engine::URING.start()?.block_on(relay.play(1, count));
            Ok(())
        });
        meter.restart()?;
        meter.note_threads();
        runtime.block_on(relay.play(0, count));
        meter.end()?;
        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(done(relay.turn.load(Ordering::SeqCst)))
    })
}

fn yields(count: u64, meter: &mut Meter) -> anyhow::Result<Done> {
    let runtime = Engine::URING.start()?;
    let sum = runtime.block_on(async {
        let task = |count: u64| {
            sakia::spawn(async move {
                for _ in 0..count {
                    sakia::yield_now().await;
                }
                count
            })
        };
        let tasks = [task(count / 2), task(count - count / 2)];
        meter.restart()?;
        let mut sum = 0;
        for task in tasks {
            sum += task.await.context("a task")?;
        }
        meter.end()?;
        anyhow::Ok(sum)
    })?;
    Ok(done(sum))
}

/// Returns a driver on the ring.
///
/// # Errors
/// [`Unavailable`] if this machine refuses a ring.
fn driver() -> anyhow::Result<Driver> {
    Driver::uring().map_err(|error| match error.is_refusal() {
        true => Unavailable(error.to_string()).into(),
        false => error.into(),
    })
}

fn nops(count: u64, batch: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let driver = driver()?;
    meter.restart()?;
    let sum = in_batches(&driver, count, batch)?;
    meter.end()?;
    Ok(done(sum))
}

/// Runs `count` no-ops, and returns the number of those that succeeded.
fn in_batches(driver: &Driver, count: u64, batch: usize) -> anyhow::Result<u64> {
    let mut ops = Vec::with_capacity(batch);
    let mut sum = 0;
    for _ in 0..count / batch as u64 {
        ops.extend((0..batch).map(|_| driver.nop()));
        while let Some(mut op) = ops.pop() {
            let result = loop {
                match op.try_take() {
                    Some(result) => break result,
                    None => drop(driver.turn(Wait::Forever)?),
                }
            };
            sum += u64::from(result.is_ok());
        }
    }
    Ok(sum)
}

fn measured(count: u64, meter: &mut Meter) -> anyhow::Result<Done> {
    let driver = driver()?;
    driver.measure_latencies();
    // Allocates the memory of the histogram.
    in_batches(&driver, 1, 1)?;
    meter.restart()?;
    in_batches(&driver, count, 64)?;
    meter.end()?;
    let metrics = driver.metrics();
    let latency = metrics.latency(OpKind::Nop).context("no latency was measured")?;
    let nanoseconds = |percent| latency.percentile(percent).as_nanos() as u64;
    let pairs = [("latency_ns_p50", nanoseconds(50.0)), ("latency_ns_p99", nanoseconds(99.0))];
    Ok(Done { sum: latency.count() - 1, counters: counters(pairs) })
}

fn events(count: u64, meter: &mut Meter) -> anyhow::Result<Done> {
    let kind = EventKind::register("costs", ["number", "nothing"]);
    kind.record(0, 0); // allocates the thread's buffer
    meter.restart()?;
    (0..count).for_each(|number| black_box(kind).record(black_box(number), 0));
    meter.end()?;
    Ok(done(count))
}

/// Reads a block of a file again and again, 16 reads as one request, whose results `take` returns.
fn reads(
    count: u64,
    meter: &mut Meter,
    take: impl Fn(Request<Many<ReadAt<Vec<u8>>>>) -> Vec<BufResult<usize, Vec<u8>>>,
) -> anyhow::Result<Done> {
    const BATCH: u64 = 16;
    let path = Path::new("read").with_extension(std::process::id().to_string());
    std::fs::write(&path, [7; BLOCK_BYTES]).context("the file to read")?;
    let engine = sakia::Engine::new()?;
    let file = engine.open(&path).wait()?;
    let mut buffers: Vec<_> = (0..BATCH).map(|_| vec![0; BLOCK_BYTES]).collect();
    let mut sum = 0;
    meter.restart()?;
    for _ in 0..count / BATCH {
        let requests = buffers.drain(..).map(|buffer| file.read_at(buffer, 0));
        for (result, buffer) in take(engine.submit_many(requests)) {
            sum += u64::from(result? == BLOCK_BYTES);
            buffers.push(buffer);
        }
    }
    meter.end()?;
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(done(sum))
}

/// Does `work` while a recording is on, whose buffers have room for all events.
fn recorded(
    count: u64,
    meter: &mut Meter,
    work: impl FnOnce(&mut Meter) -> anyhow::Result<Done>,
) -> anyhow::Result<Done> {
    let path = Path::new("recording").with_extension(std::process::id().to_string());
    let mut options = TraceOptions::default();
    options.buffer_events = (count * EVENTS_OF_OPERATION) as usize;
    let recording = Recording::to_file(&path, options)?;
    let done = work(meter)?;
    let summary = recording.stop()?;
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(Done { counters: counters([(EVENTS, summary.events), (LOST, summary.lost)]), ..done })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_so_many_times() {
        let options = Options { operations: 100, variants: Variant::ALL.to_vec() };
        let mut experiment = Costs::new(options).unwrap();
        assert_eq!(experiment.prepare(0, &|| false).unwrap(), 128);
        // Recordings go to the working directory, and a process makes one at a time.
        for variant in Variant::ALL {
            let input = experiment.input(0);
            let spec = Spec { experiment: NAME.into(), variant: variant.name().into(), input };
            match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                Outcome::Measured(measured) => {
                    assert_eq!(measured.sum, 128, "{}", spec.variant);
                    // The recording may contain events of other tests of this process.
                    let events = measured.counters.get(EVENTS).copied();
                    match variant {
                        Variant::Recorded64 => assert!(events >= Some(4 * 128), "{measured:?}"),
                        Variant::Event => assert!(events >= Some(128), "{measured:?}"),
                        _ => assert_eq!(events, None, "{}", spec.variant),
                    }
                }
                Outcome::Unavailable(reason) => {
                    let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                    assert!(!denied, "skips are denied, and {} must skip: {reason}", spec.variant);
                    eprintln!("SKIP {}: {reason}", spec.variant);
                }
            }
        }
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for operations in [0, 63, OPERATIONS_MAX + 64] {
            let spec = Spec {
                experiment: NAME.into(),
                variant: "call".into(),
                input: json!({"operations": operations}),
            };
            assert!(run_cell(&spec).is_err(), "{operations}");
        }
    }

    #[test]
    fn only_what_is_measured_is_compared() {
        assert_eq!(pairs(&Variant::ALL).len(), 4);
        assert_eq!(pairs(&[Variant::Nop64, Variant::Yield, Variant::Event]), []);
        assert!(OPERATIONS.is_multiple_of(BATCH_MAX) && QUICK_OPERATIONS.is_multiple_of(BATCH_MAX));
    }
}
