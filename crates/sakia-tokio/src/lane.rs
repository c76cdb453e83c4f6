//! Threads for what blocks, and the jobs on them.
//!
//! There are two lanes. What ends by itself goes to the bounded one. What may wait for ever, such as the
//! open of a FIFO or the read of a terminal, goes to the other, so that it never keeps files out.
//!
//! A job goes on when it is dropped: what was begun on files is done, as tokio has it. A runtime that ends
//! waits for it, and so does the program that ends with the runtime:
//!
//! 1. A job with effects keeps a handle of the runtime on which it began.
//! 2. Dropped while under way, it leaves a job to that runtime's own blocking pool, which waits for its end.
//!    A runtime that ends waits for that.
//! 3. If the runtime has ended already, its pool drops what it is given, at once and in place. Then the
//!    thread waits itself; but not for what may take for ever.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sakia::BlockingHandle;
use sakia::blocking::Pool;
use tokio::runtime::Handle;

/// Jobs that may wait for threads, at most. They hold no more than their callers would.
const QUEUE_MAX: usize = u32::MAX as usize;

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// It ends by itself, as far as files do.
    Bounded,
    /// Somebody else may have to do something first.
    Endless,
}

impl Lane {
    fn pool(self) -> &'static Pool {
        static BOUNDED: OnceLock<Pool> = OnceLock::new();
        static ENDLESS: OnceLock<Pool> = OnceLock::new();
        let (pool, threads) = match self {
            Self::Bounded => (&BOUNDED, 64),
            Self::Endless => (&ENDLESS, 512),
        };
        pool.get_or_init(|| Pool::builder().threads(threads).queue(QUEUE_MAX).build())
    }
}

/// Runs `f` where it may block. It goes on when the future is dropped.
pub(crate) async fn run<T: Send + 'static>(
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    Job::with_effects(Lane::Bounded, f).await?
}

/// Something that blocks, under way.
#[derive(Debug)]
pub(crate) struct Job<T: Send + 'static> {
    /// `None` once it is over.
    handle: Option<BlockingHandle<T>>,
    /// What is to wait for it if nobody else does.
    runtime: Option<Handle>,
    lane: Lane,
}

impl<T: Send + 'static> Job<T> {
    /// Begins what nobody misses when it is dropped.
    pub(crate) fn new(lane: Lane, f: impl FnOnce() -> T + Send + 'static) -> Self {
        Self { handle: Some(lane.pool().spawn(f)), runtime: None, lane }
    }

    /// Begins what is to be done even if it is dropped.
    pub(crate) fn with_effects(lane: Lane, f: impl FnOnce() -> T + Send + 'static) -> Self {
        let mut job = Self::new(lane, f);
        job.runtime = Handle::try_current().ok();
        job
    }
}

impl<T: Send + 'static> Future for Job<T> {
    type Output = io::Result<T>;

    /// Fails if there is no thread for it. Panics if it has.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let handle = self.handle.as_mut().expect("a job is not polled after its end");
        let Poll::Ready(result) = Pin::new(handle).poll(cx) else { return Poll::Pending };
        self.handle = None;
        Poll::Ready(result.map_err(|error| {
            let message = error.to_string();
            drop(error.resume_panic());
            io::Error::other(message)
        }))
    }
}

impl<T: Send + 'static> Drop for Job<T> {
    fn drop(&mut self) {
        let (Some(handle), Some(runtime)) = (self.handle.take(), self.runtime.take()) else {
            return;
        };
        if !handle.is_finished() {
            let rest = Rest { handle: Some(handle), ends: self.lane == Lane::Bounded };
            drop(runtime.spawn_blocking(move || rest.wait()));
        }
    }
}

/// A job whose end keeps a runtime.
struct Rest<T> {
    handle: Option<BlockingHandle<T>>,
    ends: bool,
}

impl<T> Rest<T> {
    fn wait(mut self) {
        wait(self.handle.take());
    }
}

impl<T> Drop for Rest<T> {
    fn drop(&mut self) {
        if self.ends {
            wait(self.handle.take());
        }
    }
}

/// Blocks the thread until a job is over.
fn wait<T>(handle: Option<BlockingHandle<T>>) {
    let Some(handle) = handle else { return };
    let mut handle = pin!(handle);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while handle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        thread::park();
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
