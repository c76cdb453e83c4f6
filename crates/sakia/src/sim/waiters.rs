//! The tasks of a runtime, and the operations and timers that each waits for, at one moment.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use sakia_driver::Stage;

/// Everything that waits in a runtime on the simulated kernel, at one moment.
///
/// # Examples
/// ```
/// use std::future::pending;
///
/// use sakia::sim::{Cause, Test};
///
/// let failure = Test::new().seeds(0..1).try_run(async |_| pending::<()>().await).unwrap_err();
/// let Cause::Deadlock(waiters) = failure.cause else { panic!("{failure}") };
/// assert_eq!(waiters.waiters.len(), 1);
/// assert!(waiters.waiters[0].task.is_none() && waiters.waiters[0].waits.is_empty(), "the body");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiters {
    /// The virtual time of that moment.
    pub now: Duration,
    /// The body first, if it has not ended, then the tasks in the order of their numbers.
    pub waiters: Vec<Waiter>,
    /// Operations under way without a waiter: their futures were dropped, or none of the waiters above holds
    /// them.
    pub orphans: Vec<PendingOperation>,
}

/// A future that the runtime runs, and the operations and timers that it waits for.
///
/// # Examples
/// See [`Waiters`](Waiters#examples).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The task; `None` for the future that the runtime was given to run, the body.
    pub task: Option<TaskFacts>,
    /// The operations and timers that it waits for. Empty if it waits for another task or a thread.
    pub waits: Vec<Wait>,
}

/// A task that has not ended.
///
/// # Examples
/// See [`Waiters`](Waiters#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskFacts {
    /// Its number, which is unique until it ends.
    pub number: usize,
    /// The source location that spawned it.
    pub spawned_at: &'static Location<'static>,
}

/// An operation or a timer that a task waits for. A task may wait for several at once, including those of its
/// scopes' children.
///
/// # Examples
/// See [`Waiters`](Waiters#examples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// An operation.
    Operation(PendingOperation),
    /// A timer that is due after so much time.
    Timer(Duration),
}

/// An operation that has not ended.
///
/// # Examples
/// See [`Waiters`](Waiters#examples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingOperation {
    /// Its name, such as `Read`.
    pub kind: &'static str,
    /// The descriptor that it acts on, or that its path is relative to.
    pub descriptor: Option<i32>,
    /// The paths in it, once the kernel has the operation.
    pub names: Vec<String>,
    /// The stage that it has reached.
    pub stage: Stage,
    /// The kernel never ends it: see [`Fault::Stuck`](super::Fault::Stuck).
    pub is_stuck: bool,
    /// The virtual time since it was started.
    pub age: Duration,
}

impl fmt::Display for PendingOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        if let Some(descriptor) = self.descriptor {
            write!(f, " of descriptor {descriptor}")?;
        }
        for name in &self.names {
            write!(f, " {name}")?;
        }
        write!(f, " for {:?}", self.age)?;
        f.write_str(match self.stage {
            _ if self.is_stuck => ", which a fault keeps from ending",
            Stage::Parked => ", until nothing uses the descriptor",
            Stage::Queued => ", not begun for want of room",
            _ => "",
        })
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation(operation) => operation.fmt(f),
            Self::Timer(left) => write!(f, "a timer, due in {left:?}"),
        }
    }
}

impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            None => f.write_str("the body")?,
            Some(TaskFacts { number, spawned_at }) => {
                write!(f, "task {number}, started at {spawned_at},")?;
            }
        }
        match &self.waits[..] {
            [] => f.write_str(" waits for another task or thread"),
            [wait] => write!(f, " waits for {wait}"),
            waits => {
                f.write_str(" waits for")?;
                waits.iter().try_for_each(|wait| write!(f, "\n    {wait}"))
            }
        }
    }
}

/// Writes a line for each waiter, indented.
impl fmt::Display for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for waiter in &self.waiters {
            write!(f, "{separator}  {waiter}")?;
            separator = "\n";
        }
        for operation in &self.orphans {
            write!(f, "{separator}  no task waits for {operation}")?;
            separator = "\n";
        }
        Ok(())
    }
}
