//! The way of a task that was woken to its thread's queue.

use std::sync::Arc;

use sakia_task::Share;

use crate::remote::Remote;

/// A task that is ready, on its own thread. Dropping it drops the task's future.
pub(crate) type Runnable = sakia_task::Runnable<Gate>;
/// Word from another thread that a task was started, woken, or told to end.
pub(crate) type Mail = sakia_task::Mail<Gate>;
/// Code that a thread of a pool runs.
pub(crate) type Work = sakia_task::Work<Gate>;

/// Where a task belongs. Each has one.
pub(crate) enum Gate {
    /// To the thread that started it: nothing is counted atomically as long as it stays there.
    Near(Share<Arc<Remote>>),
    /// To another thread.
    Far(Arc<Remote>),
    /// To none: code that blocks is run once, and never woken.
    None,
}

impl Gate {
    /// Whether this is the inbox of its thread.
    #[inline(always)]
    pub(crate) fn is_to(&self, remote: &Arc<Remote>) -> bool {
        self.remote().is_some_and(|own| Arc::ptr_eq(own, remote))
    }

    /// The inbox of its thread.
    #[inline(always)]
    pub(crate) fn remote(&self) -> Option<&Arc<Remote>> {
        match self {
            Self::Near(remote) => Some(remote),
            Self::Far(remote) => Some(remote),
            Self::None => None,
        }
    }
}
