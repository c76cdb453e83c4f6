//! Experiments on tasks, written once for all runtimes.
//!
//! All of the work is done by spawned tasks, since the future given to `block_on` is special in some
//! runtimes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::measure::on_threads;
use crate::{Cell, Gate, Job, Tally};

/// A runtime of one thread.
pub trait Peer: 'static {
    /// Builds the runtime as its documentation recommends, and runs a future on it.
    fn block_on(future: impl Future<Output = ()> + 'static);

    /// Starts a task; the future answered waits for it.
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static;

    /// Lets other tasks run: the runtime's own function, or [`yield_now`] if it has none.
    fn yield_now() -> impl Future<Output = ()>;
}

/// Runs a job on a runtime's tasks.
pub(crate) fn run<P: Peer>(job: Job) {
    let work = move |gate: Arc<Gate>, _| {
        let (job, at_gate) = (job.clone(), gate.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        P::block_on(async move {
            at_gate.begin();
            let done = match job.cell {
                Cell::Yield => yields::<P>(job.tasks, job.ops).await,
                _ => spawns::<P>(job.ops).await,
            };
            at_gate.end();
            sender.send(done).ok();
        });
        // Nothing is read: the count of what was done is the check.
        let ops = receiver.recv().unwrap_or_default();
        Tally { ops, check: ops }
    };
    on_threads(1, work, |tally| tally);
}

/// `tasks` tasks yield in turn, `count` times together.
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

/// A task starts `count` tasks, one after the other, and takes the value of each.
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

/// Wakes the task that polls it, and is ready when polled again.
pub fn yield_now() -> impl Future<Output = ()> {
    YieldNow { has_yielded: false }
}

struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
