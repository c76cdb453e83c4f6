//! The failure of a run, and the command that repeats it.

use std::error::Error;
use std::fmt;

use super::faults::Faults;
use super::waiters::Waiters;

/// A run that failed. From [`Test::try_run`](super::Test::try_run).
///
/// # Examples
/// See [`Test::try_run`](super::Test::try_run).
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The cause of the failure.
    pub cause: Cause,
    /// The faults that the kernel had injected.
    pub faults: Faults,
}

/// The cause of a run's failure.
///
/// # Examples
/// See [`Test::try_run`](super::Test::try_run).
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The body, or the test's code before or after it, panicked with this message.
    Panic(String),
    /// The body ended with this error.
    Error(String),
    /// All tasks waited, and no event could happen any more.
    Deadlock(Waiters),
    /// The body took more virtual time than it may.
    TimeLimit(Waiters),
    /// The kernel failed for good, by [`FaultKind::EnterFailed`](super::FaultKind::EnterFailed).
    Kernel(std::io::Error),
    /// The body was done, and resources were left behind.
    Leaks(Leaks),
    /// Two runs with the seed differed, at this place in the kernel's log.
    Diverged(String),
}

/// The resources that a run left behind.
///
/// # Examples
/// See [`Test::allow_tasks`](super::Test::allow_tasks).
#[derive(Debug)]
#[non_exhaustive]
pub struct Leaks {
    /// Tasks that had not ended when the body had, and the operations they waited for.
    pub tasks: Waiters,
    /// The number of these tasks: more than are listed, if some never waited.
    pub task_count: usize,
    /// Operations whose results were never taken, after the end of the runtime.
    pub operations: u32,
    /// Operations that the kernel did not give back.
    pub in_flight: usize,
    /// Descriptors that are still open.
    pub descriptors: Vec<i32>,
}

impl Leaks {
    /// Fails if any resource was left behind.
    pub(super) fn check(self) -> Result<(), Cause> {
        let Self { task_count, operations, in_flight, ref descriptors, .. } = self;
        let is_clean =
            task_count == 0 && operations == 0 && in_flight == 0 && descriptors.is_empty();
        if is_clean { Ok(()) } else { Err(Cause::Leaks(self)) }
    }
}

impl Failure {
    /// Returns the command that runs this seed alone.
    fn command(&self) -> String {
        let package = std::env::var("CARGO_PKG_NAME");
        let package = package.map_or_else(|_| String::new(), |name| format!(" -p {name}"));
        // The test harness names a test's thread after the test, unless it has one thread only.
        let thread = std::thread::current();
        let test = match thread.name() {
            None | Some("main") => String::from(" --"),
            Some(name) => format!(" --tests -- --exact {name}"),
        };
        format!("SAKIA_SIM_SEED={} cargo test{package}{test} --nocapture", self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, cause, faults } = self;
        write!(f, "seed {seed} failed: {cause}\n\nfaults injected: {faults}\n\n")?;
        write!(f, "run it alone, with what the kernel saw:\n    {}", self.command())
    }
}

impl Error for Failure {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(message) => f.write_str(message),
            Self::Error(error) => write!(f, "the body ended with an error: {error}"),
            Self::Deadlock(waiters) => {
                let now = waiters.now;
                write!(f, "deadlock: after {now:?} nothing can happen any more\n{waiters}")
            }
            Self::TimeLimit(waiters) => {
                write!(f, "not done after {:?} of virtual time\n{waiters}", waiters.now)
            }
            Self::Kernel(error) => write!(f, "the kernel failed: {error}"),
            Self::Leaks(leaks) => leaks.fmt(f),
            Self::Diverged(place) => {
                write!(f, "two runs with this seed differ, as the kernel saw them\n{place}")
            }
        }
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body is done, and this is left")?;
        if self.task_count > 0 {
            write!(f, "\n{} tasks\n{}", self.task_count, self.tasks)?;
        }
        if self.operations > 0 {
            write!(f, "\n{} operations whose results no task has taken", self.operations)?;
        }
        if self.in_flight > 0 {
            write!(f, "\n{} operations that the kernel has not given back", self.in_flight)?;
        }
        if !self.descriptors.is_empty() {
            write!(f, "\nopen descriptors {:?}", self.descriptors)?;
        }
        Ok(())
    }
}
