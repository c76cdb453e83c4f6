//! Experiments on tasks, written once for all runtimes.
//!
//! Spawned tasks do all the work, since some runtimes treat the future of `block_on` in a special way.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use crate::measure::on_threads;
use crate::{Cell, Gate, Job, Runtime, Tally};

/// A runtime of one thread.
pub trait Peer: Runtime {
    /// Spawns a task. The returned future waits for it.
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static;

    /// Yields to other tasks, by the runtime's own function or by [`yield_now`].
    fn yield_now() -> impl Future<Output = ()> {
        yield_now()
    }
}

/// Runs a job on a runtime's tasks.
pub(crate) fn run<P: Peer>(job: Job) {
    let work = move |gate: Arc<Gate>, _| {
        let Job { cell, tasks, ops, .. } = job;
        P::block_on(&job, async move {
            gate.begin();
            let ops = match cell {
                Cell::Yield => yields::<P>(tasks, ops).await,
                _ => spawns::<P>(ops).await,
            };
            gate.end();
            // No bytes are read: the number of operations is the check.
            Tally { ops, check: ops }
        })
    };
    on_threads(1, work, |tally| tally);
}

/// Lets `tasks` tasks yield in turn, `count` times together.
async fn yields<P: Peer>(tasks: u64, count: u64) -> u64 {
    let each = count / tasks;
    let task = move |_| {
        P::spawn(async move {
            let mut done = 0;
            for _ in 0..each {
                P::yield_now().await;
                done += 1;
            }
            done
        })
    };
    let handles: Vec<_> = (0..tasks).map(task).collect();
    let mut done: u64 = 0;
    for handle in handles {
        done += handle.await;
    }
    done
}

/// Lets a task start `count` tasks, one after the other, and take the value of each.
async fn spawns<P: Peer>(count: u64) -> u64 {
    let parent = P::spawn(async move {
        let mut done = 0;
        for _ in 0..count {
            done += P::spawn(async { std::hint::black_box(1) }).await;
        }
        done
    });
    parent.await
}

/// Returns the output of a task that neither panics nor is aborted.
pub async fn joined<T, E>(handle: impl Future<Output = Result<T, E>>) -> T {
    let Ok(value) = handle.await else { panic!("no task here panics or is aborted") };
    value
}

/// Wakes the task that polls it, and is ready at the next poll.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut has_yielded = false;
    poll_fn(move |cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
