//! The soak: a mixed load of any duration on the real kernel, with futures dropped at random moments.
//!
//! `load` has the steps: files, directories, saves, journals, pipes, connections, timers, tasks, scopes,
//! blocking threads, child processes, and runtimes that come and go on other threads. Half of the steps are
//! dropped at a random poll or moment, and within the others some operations are. All bytes read are
//! compared with the expected ones.
//!
//! 1. A runtime does a step of each kind and is dropped, to create everything that the process keeps for
//!    ever. The state of the process then is the first *baseline*.
//! 2. The workers, each with its own runtime, do the same and wait. The state of the process then is the
//!    second baseline.
//! 3. They do random steps until the time is over. Every few seconds a [`Sample`] is printed.
//! 4. Everything is awaited. The process must be back at the second baseline: the same descriptors, threads,
//!    child processes, and live tasks and operations of each runtime. Threads of pools and lanes, which end
//!    by themselves, must have ended.
//! 5. The runtimes are dropped. The process must be back at the first baseline, and no worker of the kernel
//!    be left.
//!
//! It fails on a wrong byte, a failed operation or step, a step that takes longer than [`PATIENCE`], which
//! is the symptom of a lost wake, and any remains at the end. In the second half memory must not grow by
//! more than [`HEAP_SLOPE_MAX_MIB`] per minute; this is checked only if that half takes [`SLOPE_TIME`] or
//! more, since a short one says little.

#![forbid(unsafe_code)]

mod board;
mod give_up;
mod load;
mod process;
mod report;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use sakia::Runtime;
use sakia::process::{Command, Stdio};
use sakia_driver::Policy;

use self::board::Board;
use self::load::{Common, Counts};
use self::process::{Snapshot, slope};
use self::worker::{Event, State, Worker, warm_up};

pub use self::report::{Sample, Summary};

/// The longest time that a step may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The limit for the growth of allocated memory, in MiB per minute.
pub const HEAP_SLOPE_MAX_MIB: f64 = 0.25;
/// The limit for the growth of resident memory, which includes the C library's caches for many threads.
pub const RSS_SLOPE_MAX_MIB: f64 = 8.0;
/// The shortest time for which the growth of memory is checked.
pub const SLOPE_TIME: Duration = Duration::from_secs(60);

/// The interval of checks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The interval of samples; they are closer together if the run is short.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// The time for the process to return to its baseline: threads of pools end after 10 idle seconds.
const RETURN_TIME: Duration = Duration::from_secs(40);

/// Options of a soak.
#[derive(Clone, Debug)]
pub struct Options {
    /// The duration of the load; warming up and the end are not included.
    pub duration: Duration,
    /// Threads with a runtime each.
    pub threads: usize,
    /// The backend.
    pub policy: Policy,
    /// The seed of steps and drops; the order of events also depends on the machine.
    pub seed: u64,
    /// The folder in which a temporary folder is created.
    pub folder: PathBuf,
    /// Returns the number of bytes allocated.
    pub allocated: fn() -> u64,
}

/// Runs the soak, and passes each sample to `show`.
///
/// # Errors
/// A failed check, see the [module](self), or the error of `show`. Threads and files may be left then: the
/// process should end.
pub fn soak(
    options: &Options,
    mut show: impl FnMut(&Sample) -> anyhow::Result<()>,
) -> anyhow::Result<Summary> {
    let folder = options.folder.join(format!("sakia-soak-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let (board, counts) = (Arc::new(Board::default()), Counts::default());
    let common = Arc::new(Common { policy: options.policy, folder: folder.clone(), board, counts });
    let run = Run { common, samples: Vec::new(), begin: Instant::now() };
    let summary = run.all(options, &mut show)?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    Ok(summary)
}

/// A run under way.
struct Run {
    common: Arc<Common>,
    samples: Vec<Sample>,
    /// The begin of the load.
    begin: Instant,
}

impl Run {
    fn all(
        mut self,
        options: &Options,
        show: &mut impl FnMut(&Sample) -> anyhow::Result<()>,
    ) -> anyhow::Result<Summary> {
        let seed = options.seed;
        let choice = self.warm_process(seed)?;
        let without_runtimes = self.settled()?;
        let stop = Arc::new(AtomicBool::new(false));
        let workers = (0..options.threads)
            .map(|number| Worker::start(number, seed, Arc::clone(&self.common), Arc::clone(&stop)));
        let workers = workers.collect::<anyhow::Result<Vec<_>>>()?;
        self.wait_until_quiet(&workers)?;
        let with_runtimes = self.settled()?;
        let states: Vec<State> = workers.iter().map(Worker::state).collect();

        self.begin = Instant::now();
        workers.iter().for_each(Worker::go_on);
        self.sample(options, &workers, show)?;
        stop.store(true, Ordering::Relaxed);
        let elapsed = self.begin.elapsed();
        self.wait_until_quiet(&workers)?;
        for (number, (worker, before)) in workers.iter().zip(&states).enumerate() {
            let found = worker.state().differences(before);
            ensure!(found.is_empty(), "runtime {number} has something left: {found:?}");
        }
        self.must_return_to(&with_runtimes, "after the load")?;

        workers.iter().for_each(Worker::go_on);
        self.wait_until(|| workers.iter().all(Worker::has_ended), "the end of the runtimes")?;
        for worker in &workers {
            if let Ok(Event::Failed(what)) = worker.events.try_recv() {
                bail!("at a runtime's end: {what}");
            }
        }
        let end = self.must_return_to(&without_runtimes, "after the runtimes")?;
        ensure!(end.io_workers == 0, "{} workers of the kernel are left", end.io_workers);
        self.summary(choice, elapsed)
    }

    /// Does a step of each kind on a new runtime, and returns the name of its backend.
    fn warm_process(&self, seed: u64) -> anyhow::Result<String> {
        let runtime = Runtime::builder().backend(self.common.policy).build()?;
        let mut random = fastrand::Rng::with_seed(!seed);
        runtime.block_on(async {
            // The thread that reaps children lasts as long as the process. It starts with the first child
            // that is dropped while it runs: this one ends only after its input is closed.
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn()?;
            let input = child.stdin.take();
            drop(child);
            drop(input);
            warm_up(&self.common, &mut random).await
        })?;
        Ok(runtime.choice().to_string())
    }

    /// Returns the state of the idle process: two equal snapshots, some time apart. Threads that end by
    /// themselves are no part of a baseline, so they may still exist.
    fn settled(&self) -> anyhow::Result<Snapshot> {
        let without_memory =
            |snapshot: &Snapshot| (snapshot.descriptors.clone(), snapshot.threads.clone());
        let mut last = Snapshot::take()?;
        let end = Instant::now() + RETURN_TIME;
        loop {
            sleep(LOOK_INTERVAL * 4);
            let now = Snapshot::take()?;
            let is_quiet = self.common.board.len() == 0 && now.children == 0;
            if is_quiet && without_memory(&now) == without_memory(&last) {
                return Ok(now);
            }
            ensure!(Instant::now() < end, "the process does not come to rest: {now:?}");
            last = now;
        }
    }

    /// Waits until the process is back at a baseline.
    fn must_return_to(&self, baseline: &Snapshot, when: &str) -> anyhow::Result<Snapshot> {
        let end = Instant::now() + RETURN_TIME;
        loop {
            let now = Snapshot::take()?;
            let found = now.differences(baseline);
            if found.is_empty() {
                return Ok(now);
            }
            ensure!(Instant::now() < end, "{when} something is left: {}", found.join("; "));
            sleep(LOOK_INTERVAL);
        }
    }

    /// Waits until all workers have reported that they are quiet, and nothing else is under way.
    fn wait_until_quiet(&self, workers: &[Worker]) -> anyhow::Result<()> {
        let mut quiet = vec![false; workers.len()];
        while !quiet.iter().all(|&is_quiet| is_quiet) || self.common.board.len() > 0 {
            for (worker, is_quiet) in workers.iter().zip(&mut quiet) {
                let state = || format!("a runtime has {:?}", worker.state());
                *is_quiet |= self.look_at(worker).with_context(state)?;
            }
            sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    fn wait_until(&self, condition: impl Fn() -> bool, what: &'static str) -> anyhow::Result<()> {
        let _step = self.common.board.begin(what);
        while !condition() {
            self.check_steps()?;
            sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Returns whether a worker has become quiet.
    ///
    /// # Errors
    /// It failed, or a step does not end.
    fn look_at(&self, worker: &Worker) -> anyhow::Result<bool> {
        self.check_steps()?;
        match worker.events.try_recv() {
            Ok(Event::Quiet) => Ok(true),
            Ok(Event::Failed(what)) => bail!(what),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => bail!("a thread has ended early"),
        }
    }

    fn check_steps(&self) -> anyhow::Result<()> {
        let stuck = self.common.board.stuck(PATIENCE);
        ensure!(stuck.is_empty(), "{stuck}");
        Ok(())
    }

    /// Takes samples as long as the load lasts.
    fn sample(
        &mut self,
        options: &Options,
        workers: &[Worker],
        show: &mut impl FnMut(&Sample) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let duration = options.duration;
        let interval = SAMPLE_INTERVAL.min(duration / 10).max(LOOK_INTERVAL);
        let mut next = interval;
        let mut heap_bytes = u64::MAX;
        while self.begin.elapsed() < duration {
            for worker in workers {
                ensure!(!self.look_at(worker)?, "a thread has stopped early");
            }
            heap_bytes = heap_bytes.min((options.allocated)());
            if self.begin.elapsed() >= next {
                next += interval;
                let states = workers.iter().map(Worker::state).collect();
                let elapsed = self.begin.elapsed();
                let sample = Sample::new(elapsed, &self.common.counts, states, heap_bytes)?;
                heap_bytes = u64::MAX;
                show(&sample)?;
                self.samples.push(sample);
            }
            sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Returns the summary of the run.
    fn summary(self, driver: String, elapsed: Duration) -> anyhow::Result<Summary> {
        let half = elapsed.as_secs_f64() / 2.0;
        let growth = |bytes: fn(&Sample) -> u64| {
            let late = self.samples.iter().filter(|sample| sample.elapsed_s >= half);
            let points: Vec<_> =
                late.map(|sample| (sample.elapsed_s / 60.0, bytes(sample) as f64)).collect();
            slope(&points) / f64::from(1 << 20)
        };
        let heap = growth(|sample| sample.heap_bytes);
        let resident = growth(|sample| sample.rss_bytes);
        let is_long = elapsed / 2 >= SLOPE_TIME;
        if is_long && (heap > HEAP_SLOPE_MAX_MIB || resident > RSS_SLOPE_MAX_MIB) {
            bail!("memory grows by {heap:.2} MiB a minute, {resident:.2} MiB are resident of it");
        }
        Ok(Summary::new(driver, elapsed, &self.common.counts, heap, resident))
    }
}
