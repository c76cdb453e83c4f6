//! Utilization: how much a thread computes while its reads are under way.
//!
//! Each thread reads blocks and computes with each. While it computes with one, the next `depth` reads are
//! under way, if the variant can do that: a plain call cannot. [`Ledger`] adds up three times of a thread, by
//! the same definitions as `sakia trace summary`: in which it *computed*; in which it had *operations in
//! flight*, from the request to the moment at which the thread learns that it is complete; and in which both
//! were true, the *overlap*. The utilization is the overlap relative to the time with operations in flight.
//!
//! A thread that waits learns it at the end of its wait. A thread with tasks learns it when its driver wakes
//! the task, which may have to wait for others until it has the result: [`Noting`].
//!
//! Utilization alone ranks nothing. A read that is a short copy on the own thread has none, and is fast; one
//! that is handed to another thread for the same copy has much, and is slow. So there is also the part of the
//! whole time in which threads computed, with the reads per second beside it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Instant;

use anyhow::Context as _;
use sakia::{Runtime, spawn, spawn_on};
use sakia_bench_support::aio::{Buf, Request};
use sakia_driver::{AlignedBuf, Policy};

use super::Sched;
use super::computation::Computation;
use super::ledger::{Ledger, Times};
use super::load::{Load, Operation};
use super::variants::{
    Variant, failed, nanoseconds, on_threads, open_engine, open_files, scheduler,
};
use crate::cell::{Counters, Done};
use crate::engine::{available, counters};
use crate::measure::Meter;
use crate::plot::{Plot, Series};
use crate::results::{Results, Run};

/// Notes on the method.
pub(super) const NOTES: [&str; 4] = [
    "A label has the state of the page cache (direct: it is bypassed), the bytes of a read, the number of \
     threads, and the number of reads that a thread has under way while it computes.",
    "blocking: each thread reads a block by a plain call, and then computes: nothing overlaps. aio: it hands \
     reads to a scheduler thread on Linux AIO. sakia: to the engine. ring: to the engine's thread, where \
     nothing is a plain call. runtime: on each thread of a runtime tasks read and compute, one more than \
     reads are to be under way.",
    "Utilization: the part of the time with operations of a thread in flight in which it computed. An \
     operation is in flight from its request until the thread learns that it is complete: at the end of its \
     wait, or when its driver wakes the task.",
    "The computation hashes the block; the number of steps is the same in all runs. Each read takes four \
     readings of the clock.",
];

/// The work of a thread, done so far.
#[derive(Debug)]
struct Worker {
    begin: Instant,
    ledger: Ledger,
    sum: u64,
    /// The moments of completions that are not in the ledger yet.
    completions: Arc<Mutex<Vec<u64>>>,
}

impl Worker {
    fn new() -> Self {
        let (ledger, completions) = (Ledger::default(), Arc::default());
        Self { begin: Instant::now(), ledger, sum: 0, completions }
    }

    /// Returns the present moment, with all completions before it in the ledger.
    fn now(&mut self) -> u64 {
        let mut completions = lock(&self.completions);
        completions.drain(..).for_each(|at| self.ledger.result(at));
        drop(completions);
        nanoseconds(self.begin.elapsed())
    }

    fn request(&mut self) {
        let now = self.now();
        self.ledger.request(now);
    }

    fn complete(&mut self) {
        let now = self.now();
        self.ledger.result(now);
    }

    /// Checks the result of a read. A short one is an error.
    fn check(
        &mut self,
        load: &Load,
        one: Operation,
        result: io::Result<usize>,
    ) -> anyhow::Result<()> {
        match result {
            Ok(count) if count == load.reads.size => Ok(()),
            other => failed(load, one, load.reads.size, other),
        }
    }

    /// Computes with a block.
    fn compute(&mut self, load: &Load, block: &[u8]) {
        let begin = self.now();
        self.ledger.compute(begin, true);
        self.sum = self.sum.wrapping_add(load.value(block));
        let end = self.now();
        self.ledger.compute(end, false);
    }
}

fn lock(completions: &Mutex<Vec<u64>>) -> MutexGuard<'_, Vec<u64>> {
    completions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes when a driver wakes a task: the read for which it waits is complete then.
struct Noting {
    task: Waker,
    /// The task waits, and has not been woken since.
    is_waiting: AtomicBool,
    begin: Instant,
    completions: Arc<Mutex<Vec<u64>>>,
}

impl Noting {
    fn new(worker: &Worker, task: Waker) -> Arc<Self> {
        let (begin, completions) = (worker.begin, Arc::clone(&worker.completions));
        Arc::new(Self { task, is_waiting: AtomicBool::new(false), begin, completions })
    }
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_waiting.swap(false, Ordering::Relaxed) {
            let now = nanoseconds(self.begin.elapsed());
            lock(&self.completions).push(now);
        }
        self.task.wake_by_ref();
    }
}

/// Awaits a task's read, which is in flight until its driver has it. `noting` is kept for the next read.
async fn noted<F: Future>(
    worker: &RefCell<Worker>,
    noting: &mut Option<Arc<Noting>>,
    read: F,
) -> F::Output {
    let mut read = pin!(read);
    let mut is_first = true;
    poll_fn(|cx| {
        let noting =
            noting.get_or_insert_with(|| Noting::new(&worker.borrow(), cx.waker().clone()));
        let waker = Waker::from(Arc::clone(noting));
        if is_first {
            worker.borrow_mut().request();
            noting.is_waiting.store(true, Ordering::Relaxed);
        } else if noting.is_waiting.swap(false, Ordering::Relaxed) {
            worker.borrow_mut().complete(); // the wake came within the last poll
        }
        let poll = read.as_mut().poll(&mut Context::from_waker(&waker));
        if poll.is_ready() && noting.is_waiting.swap(false, Ordering::Relaxed) {
            worker.borrow_mut().complete();
        } else if poll.is_pending() && !is_first {
            // It was woken and goes on all the same.
            worker.borrow_mut().request();
            noting.is_waiting.store(true, Ordering::Relaxed);
        }
        is_first = false;
        poll
    })
    .await
}

/// Does a load of reads and computation.
pub(super) fn work(
    variant: Variant,
    load: &Load,
    computation: Computation,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    match variant {
        Variant::Blocking => blocking(load, meter),
        Variant::Aio => scheduled(load, computation, meter),
        Variant::Sakia => through_engine(load, computation, meter, false),
        Variant::Ring => through_engine(load, computation, meter, true),
        Variant::Runtime => in_runtime(load, computation, meter),
    }
}

fn blocking(load: &Load, meter: &mut Meter) -> anyhow::Result<Done> {
    let files = open_files(load)?;
    let files: &[File] = &files;
    let prepare = |_: usize| [AlignedBuf::from(&vec![1; load.reads.size][..])];
    let workers = on_threads(load.threads, meter, prepare, |index, [mut buf]| {
        let mut worker = Worker::new();
        for one in load.of_thread(index) {
            worker.request();
            let result = files[one.file].read_at(&mut buf, one.offset);
            worker.complete();
            worker.check(load, one, result)?;
            worker.compute(load, &buf);
        }
        anyhow::Ok(worker)
    })?;
    finish(load, workers, &[("calls", load.operations())])
}

fn scheduled(load: &Load, computation: Computation, meter: &mut Meter) -> anyhow::Result<Done> {
    let scheduler = scheduler(false)?;
    let files = open_files(load)?.into_iter().map(|file| Arc::new(OwnedFd::from(file)));
    let files: Vec<_> = files.collect();
    let workers = overlapped(
        load,
        computation,
        meter,
        |one, buf: Buf| scheduler.submit(Request::read(&files[one.file], buf, one.offset)),
        |ticket| {
            let (result, memory) = ticket.wait();
            (result, memory.expect("a read has memory"))
        },
    )?;
    scheduler.stop();
    let did = scheduler.statistics();
    let calls = did.submits + did.get_events;
    finish(
        load,
        workers,
        &[("submits", did.submits), ("get_events", did.get_events), ("calls", calls)],
    )
}

/// Sends reads to the engine with its defaults; or to its ring, without plain calls.
fn through_engine(
    load: &Load,
    computation: Computation,
    meter: &mut Meter,
    is_ring: bool,
) -> anyhow::Result<Done> {
    let (engine, files) = open_engine(load, is_ring)?;
    let workers = overlapped(
        load,
        computation,
        meter,
        |one, buf: AlignedBuf| files[one.file].read_at(buf, one.offset).submit(),
        |read| read.wait(),
    )?;
    let did = engine.statistics();
    finish(load, workers, &[("sent", did.submitted)])
}

/// Has each thread read by `start`, which returns while the read is under way, and `wait`; and compute
/// meanwhile.
fn overlapped<B, R>(
    load: &Load,
    Computation { depth, .. }: Computation,
    meter: &mut Meter,
    start: impl Fn(Operation, B) -> R + Sync,
    wait: impl Fn(R) -> (io::Result<usize>, B) + Sync,
) -> anyhow::Result<Vec<Worker>>
where
    B: Deref<Target = [u8]> + for<'a> From<&'a [u8]> + Send,
{
    let prepare =
        |_: usize| -> Vec<B> { (0..=depth).map(|_| B::from(&vec![1; load.reads.size])).collect() };
    on_threads(load.threads, meter, prepare, |index, mut spare| {
        let mut worker = Worker::new();
        let (mut operations, mut under_way) = (load.of_thread(index), VecDeque::new());
        let mut start_next =
            |worker: &mut Worker, under_way: &mut VecDeque<_>, buf: &mut Vec<B>| {
                let Some(one) = operations.next() else { return };
                let buf = buf.pop().expect("there is one more than reads under way");
                worker.request();
                under_way.push_back((one, start(one, buf)));
            };
        for _ in 0..depth {
            start_next(&mut worker, &mut under_way, &mut spare);
        }
        while let Some((one, read)) = under_way.pop_front() {
            let (result, block) = wait(read);
            worker.complete();
            worker.check(load, one, result)?;
            start_next(&mut worker, &mut under_way, &mut spare);
            worker.compute(load, &block);
            spare.push(block);
        }
        Ok(worker)
    })
}

/// Reads and computes in tasks, on each thread one more than reads are to be under way.
fn in_runtime(load: &Load, computation: Computation, meter: &mut Meter) -> anyhow::Result<Done> {
    let builder = Runtime::builder().backend(Policy::Uring).threads(load.threads);
    let runtime = available(builder.build())?;
    let prepare = || {
        let buffer = || AlignedBuf::from(&vec![1; load.reads.size][..]);
        let buffers: Vec<_> = (0..computation.buffers()).map(|_| buffer()).collect();
        anyhow::Ok((open_files(load)?, buffers))
    };
    let prepared = (0..load.threads).map(|_| prepare()).collect::<anyhow::Result<Vec<_>>>()?;
    let shared = Arc::new(load.clone());
    meter.note_threads();
    meter.restart()?;
    let workers = runtime.block_on(async {
        let start = |(index, (files, buffers))| {
            let load = Arc::clone(&shared);
            spawn_on(index, move || tasks_of_thread(load, index, files, buffers))
        };
        let threads: Vec<_> = prepared.into_iter().enumerate().map(start).collect();
        let mut workers = Vec::new();
        for thread in threads {
            workers.push(thread.await.context("a thread's tasks")??);
        }
        anyhow::Ok(workers)
    })?;
    meter.end()?;
    let did = runtime.counters();
    let reads = did.of(sakia_driver::OpKind::Read);
    let plain = if load.threads == 1 { vec![("plain", reads.inline)] } else { Vec::new() };
    finish(load, workers, &plain)
}

async fn tasks_of_thread(
    load: Arc<Load>,
    index: usize,
    files: Vec<File>,
    buffers: Vec<AlignedBuf>,
) -> anyhow::Result<Worker> {
    struct Shared {
        load: Arc<Load>,
        files: Vec<sakia::fs::File>,
        worker: RefCell<Worker>,
        /// The number of the thread's operations that have begun.
        begun: Cell<usize>,
        operations: Vec<Operation>,
    }
    let files = files.into_iter().map(sakia::fs::File::from_std).collect::<io::Result<_>>()?;
    let operations = load.of_thread(index).collect();
    let (worker, begun) = (RefCell::new(Worker::new()), Cell::new(0));
    let shared = Rc::new(Shared { load, files, worker, begun, operations });
    let start = |mut buf: AlignedBuf| {
        let shared = Rc::clone(&shared);
        spawn(async move {
            let Shared { load, files, worker, begun, operations } = &*shared;
            let mut noting = None;
            while let Some(&one) = operations.get(begun.replace(begun.get() + 1)) {
                let read = files[one.file].read_at(buf, one.offset);
                let (result, block) = noted(worker, &mut noting, read).await;
                buf = block;
                let mut worker = worker.borrow_mut();
                worker.check(load, one, result)?;
                worker.compute(load, &buf);
            }
            anyhow::Ok(())
        })
    };
    let tasks: Vec<_> = buffers.into_iter().map(start).collect();
    for task in tasks {
        task.await.context("a task")??;
    }
    Ok(shared.worker.replace(Worker::new()))
}

/// Returns the result of a run.
fn finish(
    load: &Load,
    workers: Vec<Worker>,
    counts: &[(&'static str, u64)],
) -> anyhow::Result<Done> {
    let (mut times, mut sum) = (Times::default(), 0u64);
    for worker in workers {
        times.add(worker.ledger.times);
        sum = sum.wrapping_add(worker.sum);
    }
    let mut all = times.counters();
    all.extend(counters([("operations", load.operations())]));
    all.extend(counters(counts.iter().copied()));
    Ok(Done { sum, counters: all })
}

/// Returns the state of the page cache in a label.
pub(super) fn cache(load: &Load) -> &'static str {
    match (load.direct, load.scattered) {
        (true, _) => "direct",
        (false, true) => "cold",
        (false, false) => "hot",
    }
}

/// Returns a run's times as text, in the words of `sakia trace summary`.
pub(super) fn in_words(all: &Counters) -> String {
    let times = Times::of_counters(all);
    let operations = all.get("operations").copied().unwrap_or(0).max(1) as f64;
    let us_of_each = |time: u64| time as f64 / operations / 1e3;
    let mean = times.operations as f64 / times.in_flight.max(1) as f64;
    format!(
        "an operation: computed for {:.2} us; operations in flight for {:.2} us, {mean:.1} on average; \
         utilization {:.0} %",
        us_of_each(times.computing),
        us_of_each(times.in_flight),
        100.0 * times.utilization()
    )
}

/// Returns two plots for each kind of reads, by depth: the utilization, and the part of the time in which
/// threads computed.
pub(super) fn plots(sched: &Sched, results: &Results) -> Vec<Plot> {
    let kind = |load: &Load| (cache(load), load.reads.size, load.threads);
    let mut kinds: Vec<_> = Vec::new();
    for load in &sched.loads {
        if !kinds.contains(&kind(load)) {
            kinds.push(kind(load));
        }
    }
    let mut plots = Vec::new();
    for of in kinds {
        let (cache, size, threads) = of;
        let points = || {
            let loads = sched.loads.iter().enumerate().filter(move |(_, load)| kind(load) == of);
            loads.map(|(point, load)| (point, load.computation.map_or(0, |of| of.depth)))
        };
        let series = |value: &dyn Fn(&Run) -> f64| {
            let line = |variant: &&'static str| line(results, variant, points(), value);
            results.about.variants.iter().map(line).collect::<Vec<_>>()
        };
        let utilization =
            series(&|run| 100.0 * Times::of_counters(&run.measured.counters).utilization());
        let computing = series(&|run| {
            let computing = Times::of_counters(&run.measured.counters).computing;
            let whole = run.measured.section.wall_ns * threads as u64;
            100.0 * computing as f64 / whole.max(1) as f64
        });
        let reads = format!("{cache} reads of {size} bytes, threads: {threads}");
        for (series, y_label) in [
            (utilization, "utilization in %, mean"),
            (computing, "% of the time in which threads computed, mean"),
        ] {
            plots.push(Plot {
                title: reads.clone(),
                x_label: "reads under way while a thread computes".into(),
                y_label: y_label.into(),
                series,
                ..Plot::default()
            });
        }
    }
    plots
}

/// Returns the line of a variant: at each point, which has a depth, the mean of `value` over all runs.
fn line(
    results: &Results,
    variant: &str,
    points: impl Iterator<Item = (usize, usize)>,
    value: &dyn Fn(&Run) -> f64,
) -> Series {
    let mean = |(point, depth): (usize, usize)| {
        let runs = results.runs.iter().filter(|run| run.point == point && run.variant == variant);
        let values: Vec<f64> = runs.map(value).collect();
        let count = values.len();
        (count > 0).then(|| (depth as f64, values.iter().sum::<f64>() / count as f64))
    };
    Series { name: variant.into(), points: points.filter_map(mean).collect(), ..Series::default() }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[test]
    fn a_read_is_in_flight_until_its_task_is_woken_and_not_until_it_runs() {
        let runtime = Runtime::new().unwrap();
        let worker = RefCell::new(Worker::new());
        let mut noting = None;
        let flying = || {
            let mut worker = worker.borrow_mut();
            worker.now();
            worker.ledger.flying
        };
        runtime.block_on(async {
            // A future that is ready at once.
            noted(&worker, &mut noting, async {}).await;
            assert_eq!(flying(), 0);
            let mut polls = 0;
            let read = poll_fn(|cx| {
                let is_new = polls == 0;
                assert_eq!(flying(), u64::from(is_new), "poll {polls}");
                polls += 1;
                if polls == 4 {
                    return Poll::Ready(());
                }
                // Two wakes complete the request once.
                cx.waker().wake_by_ref();
                cx.waker().wake_by_ref();
                assert_eq!(flying(), 0);
                Poll::Pending
            });
            noted(&worker, &mut noting, read).await;
        });
        assert_eq!(flying(), 0);
    }

    #[test]
    fn times_are_told_in_the_words_of_a_trace() {
        let times =
            Times { computing: 60_000, in_flight: 100_000, overlap: 50_000, operations: 250_000 };
        let mut all = times.counters();
        assert_eq!((Times::of_counters(&all), all["utilization_permille"]), (times, 500));
        all.extend(counters([("operations", 10)]));
        assert_eq!(
            in_words(&all),
            "an operation: computed for 6.00 us; operations in flight for 10.00 us, 2.5 on average; \
             utilization 50 %"
        );
    }
}
