//! The route of a woken task to its thread's queue.

use std::panic::Location;
use std::sync::Arc;

use sakia_ring::Process;
use sakia_task::Share;

use crate::mark::Mark;
use crate::remote::Remote;

/// A task that is ready, on its own thread. Dropping it drops the task's future.
pub(crate) type Runnable = sakia_task::Runnable<Gate>;
/// A message from another thread that a task was started, woken, or told to end.
pub(crate) type Mail = sakia_task::Mail<Gate>;
/// Code that a thread of a pool runs.
pub(crate) type Work = sakia_task::Work<Gate>;

/// A task's route to its thread's queue, and its mark.
pub(crate) struct Gate {
    target: Target,
    /// The task's number and the place that spawned it, for inspection.
    pub(crate) mark: Mark,
}

/// The thread to which a task belongs.
enum Target {
    /// The thread that started it: no reference is counted atomically as long as the task stays there.
    Near(Share<Arc<Remote>>),
    /// Another thread.
    Far(Arc<Remote>),
    /// None: blocking code runs once, and is never woken. The process whose pool has it.
    None(Process),
}

impl Gate {
    /// Returns the gate of a task of the calling thread.
    #[inline(always)]
    pub(crate) fn near(remote: Share<Arc<Remote>>, spawned_at: &'static Location<'static>) -> Self {
        Self { target: Target::Near(remote), mark: Mark::new(spawned_at) }
    }

    /// Returns the gate of a task of another thread.
    pub(crate) fn far(remote: Arc<Remote>, spawned_at: &'static Location<'static>) -> Self {
        Self { target: Target::Far(remote), mark: Mark::new(spawned_at) }
    }

    /// Returns the gate of blocking code on a pool of this process.
    pub(crate) fn none(process: Process, spawned_at: &'static Location<'static>) -> Self {
        Self { target: Target::None(process), mark: Mark::new(spawned_at) }
    }

    /// Returns whether the task is one of a process that this one was forked from.
    pub(crate) fn is_of_parent(&self) -> bool {
        match &self.target {
            Target::Near(remote) => !remote.is_intact(),
            Target::Far(remote) => !remote.is_intact(),
            Target::None(process) => !process.is_intact(),
        }
    }

    /// Returns whether this is the inbox of the task's thread.
    #[inline(always)]
    pub(crate) fn is_to(&self, remote: &Arc<Remote>) -> bool {
        self.remote().is_some_and(|own| Arc::ptr_eq(own, remote))
    }

    /// Returns the inbox of the task's thread.
    #[inline(always)]
    pub(crate) fn remote(&self) -> Option<&Arc<Remote>> {
        match &self.target {
            Target::Near(remote) => Some(remote),
            Target::Far(remote) => Some(remote),
            Target::None(_) => None,
        }
    }
}
