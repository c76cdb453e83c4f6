//! Tests: the body and the number of its runs, and the checks after each run.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::Duration;

use sakia_driver::sim::{FaultKind, Sim, SimBuilder, SimHandle};

use super::failure::{Cause, Failure, Leaks};
use super::faults::Faults;
use super::outcome::Outcome;
use crate::mark::Mark;
use crate::runtime::{Builder, Runtime};

/// The environment variable with the seeds to run: one, `17`, or several, `0..1000`.
const SEED_VARIABLE: &str = "SAKIA_SIM_SEED";
/// Lines of the logs shown before the first in which two runs differ.
const LINES_BEFORE: usize = 5;

/// The faults that [`Test::masked_faults`] injects: no program needs to handle them.
const MASKED: [FaultKind; 14] = [
    FaultKind::PartialSubmit,
    FaultKind::EnterInterrupted,
    FaultKind::EnterAgain,
    FaultKind::EnterBusy,
    FaultKind::ShortCq,
    FaultKind::ShortTransfer,
    FaultKind::CancelTooLate,
    FaultKind::CancelAlready,
    FaultKind::Duplicate,
    FaultKind::Stale,
    FaultKind::Held,
    FaultKind::PlainBlocks,
    FaultKind::PlainEnd,
    FaultKind::PlainStall,
];

/// An action on a kernel, or a check of it.
type Act<'a> = Box<dyn Fn(&SimHandle) + 'a>;
/// A change of the description of a kernel.
type Change<'a> = Box<dyn Fn(SimBuilder) -> SimBuilder + 'a>;

/// A test that runs a program with many seeds.
///
/// # Examples
/// A relay copies bytes from a pipe, on a kernel with tiny queues on which much goes wrong:
/// ```
/// use sakia::fs::File;
/// use sakia::io::{Reader, Writer, copy, pipe};
/// use sakia::sim::Test;
///
/// Test::new()
///     .seeds(0..20)
///     .kernel(|kernel| kernel.entries(2, 4).pipe_bytes(100))
///     .masked_faults(1 << 12)
///     .before(|kernel| kernel.create_file("in", vec![7; 1000]))
///     .after(|kernel| assert_eq!(kernel.contents("out").unwrap(), [7; 1000]))
///     .run(async |_| {
///         let (reader, writer) = pipe()?;
///         let relay = sakia::spawn(async move {
///             let mut output = Writer::new(File::create("out").await?);
///             copy(&mut Reader::new(reader), &mut output).await?;
///             output.close().await
///         });
///         let (mut input, mut writer) = (Reader::new(File::open("in").await?), Writer::new(writer));
///         copy(&mut input, &mut writer).await?;
///         writer.close().await?;
///         relay.await.expect("it does not panic")
///     });
/// ```
#[must_use = "a test does nothing unless it is run"]
pub struct Test<'a> {
    seeds: Range<u64>,
    kernel: Vec<Change<'a>>,
    runtime: Builder,
    before: Vec<Act<'a>>,
    after: Vec<Act<'a>>,
    twice: u64,
    time_limit: Duration,
    allows_tasks: bool,
    allows_leaks: bool,
}

impl Default for Test<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Test<'a> {
    /// Returns a test with 100 seeds.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    pub fn new() -> Self {
        Self {
            seeds: 0..100,
            kernel: Vec::new(),
            runtime: Runtime::builder(),
            before: Vec::new(),
            after: Vec::new(),
            twice: 2,
            time_limit: Duration::from_secs(3600),
            allows_tasks: false,
            allows_leaks: false,
        }
    }

    /// Sets the seeds, one run for each. Default `0..100`.
    ///
    /// The environment variable `SAKIA_SIM_SEED` overrides this for all tests: `17` runs that seed alone, and
    /// prints the kernel's log afterwards; `0..10000` runs these.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    pub fn seeds(mut self, seeds: Range<u64>) -> Self {
        self.seeds = seeds;
        self
    }

    /// Changes the kernel of each run: its queues, routes, limits and faults. Calls add up.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    pub fn kernel(mut self, change: impl Fn(SimBuilder) -> SimBuilder + 'a) -> Self {
        self.kernel.push(Box::new(change));
        self
    }

    /// Injects every fault that `sakia::fs` and `sakia::io` mask, with this probability in 65536 wherever it
    /// could happen: a program behaves the same with and without them, but perhaps later. Operations that may
    /// bring less than requested, such as [`File::read`](crate::fs::File::read), do so more often.
    ///
    /// [`SimBuilder::chaos`] is for programs that handle errors: with it operations fail, too.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    pub fn masked_faults(self, per_65536: u16) -> Self {
        self.kernel(move |kernel| {
            MASKED.iter().fold(kernel, |kernel, &kind| kernel.fault(kind, per_65536))
        })
    }

    /// Sets the options for the runtime of each run, as far as they apply to the simulated kernel: see
    /// [`Builder::build_simulated`].
    ///
    /// # Examples
    /// ```
    /// use sakia::Runtime;
    /// use sakia::sim::Test;
    /// use sakia_driver::Bypass;
    ///
    /// // Each read by the queue, and none as a plain call.
    /// let options = Runtime::builder().bypass(Bypass::Never);
    /// Test::new().seeds(0..5).runtime(options).run(async |kernel| {
    ///     kernel.create_file("in", "text");
    ///     sakia::fs::read("in").await.map(drop)
    /// });
    /// ```
    pub fn runtime(mut self, builder: Builder) -> Self {
        self.runtime = builder;
        self
    }

    /// Prepares the kernel before each run: makes files, scripts faults. Calls add up.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    pub fn before(mut self, act: impl Fn(&SimHandle) + 'a) -> Self {
        self.before.push(Box::new(act));
        self
    }

    /// Checks the result of each run, when the runtime has ended: the contents of files, say. Calls add up.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    pub fn after(mut self, check: impl Fn(&SimHandle) + 'a) -> Self {
        self.after.push(Box::new(check));
        self
    }

    /// Sets how many of the first seeds are run twice. Default 2.
    ///
    /// Both runs must look the same to the kernel. If they do not, the program depends on something besides
    /// the seed: on real time, on the order of a hash map, on addresses, on threads. The failure shows the
    /// first difference.
    ///
    /// # Examples
    /// ```
    /// use sakia::sim::{Cause, Test};
    ///
    /// // The runs of a seed differ: the body counts them.
    /// let count = std::cell::Cell::new(0);
    /// let test = Test::new().seeds(0..1).twice(1);
    /// let failure = test.try_run(async |kernel| {
    ///     count.set(count.get() + 1);
    ///     let name = format!("file {}", count.get());
    ///     kernel.create_file(&name, "text");
    ///     sakia::fs::metadata(&name).await.map(drop)
    /// });
    /// assert!(matches!(failure.unwrap_err().cause, Cause::Diverged(_)));
    /// ```
    pub fn twice(mut self, count: u64) -> Self {
        self.twice = count;
        self
    }

    /// Sets the most virtual time that a run may take. Default one hour.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia::sim::{Cause, Test};
    /// use sakia::time::sleep;
    ///
    /// let hour = Duration::from_secs(3600);
    /// let test = Test::new().seeds(0..1).time_limit(hour);
    /// assert!(test.try_run(async |_| sleep(hour / 2).await).is_ok());
    /// let failure = test.try_run(async |_| sleep(hour * 2).await).unwrap_err();
    /// assert!(matches!(failure.cause, Cause::TimeLimit(_)));
    /// ```
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Lets tasks go on when the body is done; they end with the runtime. Without this call they fail the
    /// run, after a wait of at most one second of virtual time for tasks that are about to end.
    ///
    /// # Examples
    /// ```
    /// use std::future::pending;
    ///
    /// use sakia::sim::{Cause, Test};
    ///
    /// let body = async |_| sakia::spawn(pending::<()>()).detach();
    /// let failure = Test::new().seeds(0..1).try_run(body).unwrap_err();
    /// assert!(matches!(failure.cause, Cause::Leaks(_)));
    /// assert!(Test::new().seeds(0..1).allow_tasks().try_run(body).is_ok());
    /// ```
    pub fn allow_tasks(mut self) -> Self {
        self.allows_tasks = true;
        self
    }

    /// Lets operations and descriptors be left when the runtime has ended. Without this call they fail the
    /// run, even descriptors that the test itself opened and did not [close](SimHandle::close).
    pub fn allow_leaks(mut self) -> Self {
        self.allows_leaks = true;
        self
    }

    /// Runs `body` with each seed. Returns the counts of all runs together.
    ///
    /// # Panics
    /// When a run fails, with a message that says how to repeat it; no further seeds are run. When
    /// `SAKIA_SIM_SEED` is neither a number nor a range of numbers.
    ///
    /// # Examples
    /// See [`Test`](Test#examples).
    #[track_caller]
    pub fn run<F, R>(&self, body: F) -> Summary
    where
        F: AsyncFn(SimHandle) -> R,
        R: Outcome,
    {
        match self.try_run(body) {
            Ok(summary) => summary,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// As [`run`](Test::run), but returns the failure.
    ///
    /// # Errors
    /// The first run that failed.
    ///
    /// # Panics
    /// When `SAKIA_SIM_SEED` is neither a number nor a range of numbers.
    ///
    /// # Examples
    /// ```
    /// use std::future::pending;
    ///
    /// use sakia::sim::{Cause, Test};
    ///
    /// let failure = Test::new().seeds(0..3).try_run(async |_| pending::<()>().await).unwrap_err();
    /// assert_eq!(failure.seed, 0);
    /// assert!(matches!(failure.cause, Cause::Deadlock(_)));
    /// println!("{failure}"); // with the command that runs this seed alone
    /// ```
    #[expect(clippy::result_large_err, reason = "a test fails once")]
    pub fn try_run<F, R>(&self, body: F) -> Result<Summary, Failure>
    where
        F: AsyncFn(SimHandle) -> R,
        R: Outcome,
    {
        let asked = std::env::var(SEED_VARIABLE).ok().map(|text| parse_seeds(&text));
        let prints = matches!(asked, Some(Asked::One(_)));
        let seeds = match asked {
            None => self.seeds.clone(),
            Some(Asked::One(seed)) => seed..seed.saturating_add(1),
            Some(Asked::Several(seeds)) => seeds,
        };
        let mut summary = Summary::default();
        for (count, seed) in seeds.enumerate() {
            let is_twice = (count as u64) < self.twice;
            let kernel = self.build_kernel(seed, is_twice || prints);
            let handle = kernel.handle();
            let mut result = self.run_once(kernel, &body);
            let faults = Faults::of(&handle);
            if prints {
                eprintln!("seed {seed}, as the kernel saw it:\n{}", handle.log_text());
                eprintln!("faults injected: {faults}");
            }
            if is_twice && result.is_ok() {
                let second = self.build_kernel(seed, true);
                let second_handle = second.handle();
                let second_result = self.run_once(second, &body);
                result = compare(&handle, &second_handle).and(second_result);
            }
            if let Err(cause) = result {
                return Err(Failure { seed, cause, faults });
            }
            summary.runs += 1;
            summary.faults.add(&faults);
        }
        Ok(summary)
    }

    fn build_kernel(&self, seed: u64, keep_log: bool) -> Sim {
        let kernel = Sim::builder(seed);
        let kernel = self.kernel.iter().fold(kernel, |kernel, change| change(kernel));
        if keep_log { kernel.keep_log(true).build() } else { kernel.build() }
    }

    /// Makes one run, with the actions before and the checks after it.
    fn run_once<F, R>(&self, kernel: Sim, body: &F) -> Result<(), Cause>
    where
        F: AsyncFn(SimHandle) -> R,
        R: Outcome,
    {
        let handle = kernel.handle();
        // Only a test that fails because of a panic sees the state that the panic left half-changed.
        let run = AssertUnwindSafe(|| {
            self.before.iter().for_each(|act| act(&handle));
            self.run_body(kernel, body)?;
            self.after.iter().for_each(|check| check(&handle));
            Ok(())
        });
        catch_unwind(run).unwrap_or_else(|payload| Err(Cause::Panic(message(&*payload))))
    }

    /// Runs the body on a runtime of its own, and checks for leaks of both.
    fn run_body<F, R>(&self, kernel: Sim, body: &F) -> Result<(), Cause>
    where
        F: AsyncFn(SimHandle) -> R,
        R: Outcome,
    {
        let handle = kernel.handle();
        let runtime = self.runtime.clone().build_simulated(kernel).map_err(Cause::Kernel)?;
        let watch = runtime.watch.as_ref().expect("the runtime is on the simulated kernel");
        let local = &runtime.local;
        watch.time_limit.set(self.time_limit);
        let mark = Mark::new(Location::caller());
        let outcome = watch.block_on(local, async { body(handle.clone()).await }, &mark)?;
        if let Some(error) = outcome.into_error() {
            return Err(Cause::Error(error));
        }
        if !self.allows_tasks {
            watch.settle(local);
        }
        let tasks = watch.waiters(local, false);
        let task_count = if self.allows_tasks { 0 } else { local.live_tasks() };
        let driver = local.driver.handle().clone();
        drop(runtime);
        let mut leaks =
            Leaks { tasks, task_count, operations: 0, in_flight: 0, descriptors: Vec::new() };
        if !self.allows_leaks {
            leaks.operations = driver.live_operations();
            leaks.in_flight = in_flight(&handle);
            leaks.descriptors = open_descriptors(&handle);
        }
        leaks.check()
    }
}

impl fmt::Debug for Test<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

/// The counts of all runs of a test together.
///
/// # Examples
/// ```
/// use sakia::fs;
/// use sakia::sim::{FaultKind, Test};
///
/// let summary = Test::new().seeds(0..5).masked_faults(1 << 14).run(async |kernel| {
///     kernel.create_file("in", vec![7; 5000]);
///     assert_eq!(fs::read("in").await?.len(), 5000);
///     Ok::<_, fs::Error>(())
/// });
/// assert_eq!(summary.runs(), 5);
/// // A test that is about a fault asserts that it came.
/// assert!(summary.injected(FaultKind::ShortTransfer) > 0);
/// for (kind, count) in summary.faults().iter() {
///     assert!(summary.to_string().contains(&format!("{kind:?} {count}")));
/// }
/// println!("{summary}"); // `5 runs; faults injected: PartialSubmit 9, ShortTransfer 4, …`
/// ```
#[derive(Clone, Debug, Default)]
pub struct Summary {
    runs: u64,
    faults: Faults,
}

impl Summary {
    /// Returns the number of seeds that were run; those that were run twice count once.
    ///
    /// # Examples
    /// See [`Summary`](Summary#examples).
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns how often a fault of this kind took effect. A test of a fault asserts that it is not 0.
    ///
    /// # Examples
    /// See [`Summary`](Summary#examples).
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.faults.count(kind)
    }

    /// Returns all faults that took effect.
    ///
    /// # Examples
    /// See [`Summary`](Summary#examples).
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, faults } = self;
        write!(f, "{runs} runs; faults injected: {faults}")
    }
}

/// The request in `SAKIA_SIM_SEED`.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    One(u64),
    Several(Range<u64>),
}

fn parse_seeds(text: &str) -> Asked {
    let number = |text: &str| text.parse::<u64>().ok();
    let asked = match text.split_once("..") {
        None => number(text).map(Asked::One),
        Some((first, end)) => {
            number(first).zip(number(end)).map(|(first, end)| Asked::Several(first..end))
        }
    };
    asked.unwrap_or_else(|| {
        panic!("{SEED_VARIABLE} is {text:?}, neither a seed nor a range of them")
    })
}

/// Returns an error with the first difference if two runs looked different to their kernels.
fn compare(first: &SimHandle, second: &SimHandle) -> Result<(), Cause> {
    if first.log_hash() == second.log_hash() {
        return Ok(());
    }
    let (first, second) = (first.log_text(), second.log_text());
    let first: Vec<&str> = first.lines().collect();
    let second: Vec<&str> = second.lines().collect();
    let same = first.iter().zip(&second).take_while(|(first, second)| first == second).count();
    let line =
        |log: &[&str]| log.get(same).map_or_else(|| "the end".to_owned(), |&line| line.into());
    let mut place = String::new();
    for line in &first[same.saturating_sub(LINES_BEFORE)..same] {
        place.push_str(&format!("  both:   {line}\n"));
    }
    place.push_str(&format!("  first:  {}\n  second: {}", line(&first), line(&second)));
    Err(Cause::Diverged(place))
}

/// Returns the number of operations that hold resources of the driver. Cancel requests do not; one may be
/// left if an unrequested completion was taken for its answer.
fn in_flight(kernel: &SimHandle) -> usize {
    kernel.flights().iter().filter(|flight| flight.name != "ASYNC_CANCEL").count()
}

/// Returns the open descriptors, in order.
fn open_descriptors(kernel: &SimHandle) -> Vec<i32> {
    (0..).filter(|&raw| kernel.is_open(raw)).take(kernel.open_descriptors()).collect()
}

/// Returns the message of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&'static str>().map(|&text| text.to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_one_or_a_range() {
        assert_eq!(parse_seeds("17"), Asked::One(17));
        assert_eq!(parse_seeds("3..9"), Asked::Several(3..9));
        for text in ["", "x", "1..", "-1"] {
            let panic = catch_unwind(|| parse_seeds(text)).unwrap_err();
            assert!(message(&*panic).contains(SEED_VARIABLE), "{text}");
        }
    }
}
