//! Experiments on tasks, written once for all runtimes.
//!
//! A program names its runtime by [`Peer`] and calls [`main`]. All of the work is done by spawned
//! tasks, since the future given to `block_on` is special in some runtimes. `cargo xtask peers`
//! runs the programs and compares them.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};
use std::time::Instant;

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

/// Runs the experiment that the arguments name: `yield TASKS COUNT` or `spawn COUNT`. `COUNT` is that
/// of all operations together. Prints the nanoseconds that they took, and a number that shows that
/// they were done.
pub fn main<P: Peer>() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().skip(1).filter_map(|text| text.parse().ok()).collect();
    match (arguments.first().map(String::as_str), numbers.as_slice()) {
        (Some("yield"), &[tasks, count]) if tasks > 0 => P::block_on(yields::<P>(tasks, count)),
        (Some("spawn"), &[count]) => P::block_on(spawns::<P>(count)),
        _ => {
            eprintln!("usage: yield TASKS COUNT | spawn COUNT");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// `tasks` tasks yield in turn, `count` times together.
async fn yields<P: Peer>(tasks: u64, count: u64) {
    let begin = Instant::now();
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
    report(begin, done);
}

/// A task starts `count` tasks, one after the other, and takes the value of each.
async fn spawns<P: Peer>(count: u64) {
    let begin = Instant::now();
    let parent = P::spawn(async move {
        let mut done = 0;
        for _ in 0..count {
            done += P::spawn(async { std::hint::black_box(1) }).await;
        }
        done
    });
    report(begin, parent.await);
}

fn report(begin: Instant, done: u64) {
    println!("{} {done}", begin.elapsed().as_nanos());
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
