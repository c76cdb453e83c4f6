//! Threads for blocking work, which continues when its future is dropped.
//!
//! Each [`Lane`] has its own. Work on a local file system, which ends by itself, goes to the bounded one.
//! Work that may block for ever, such as the open of a FIFO, or that depends on another machine, goes to the
//! elastic one, and never delays local files.
//!
//! Work that was started is finished even if its future is dropped, as in tokio. A runtime that ends waits
//! for it, and so does a program that ends with its runtime:
//!
//! 1. [`Lasting`] work has a handle of the runtime on which it began.
//! 2. If it is dropped in flight, it moves to that runtime's own blocking pool, a thread of which waits for
//!    its end. A runtime that ends waits for that thread.
//! 3. If the runtime has ended already, its pool drops the new task, at once and in place. Then the dropping
//!    thread waits itself, but not for work that may block for ever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sakia::blocking::Pool;
use sakia::engine::__private::{PerProcess, block_on};
use sakia::{BlockingHandle, Engine};
use sakia_driver::Lane;
use tokio::runtime::Handle;
use tokio::task::coop::consume_budget;

/// The limit of queued jobs: that of their callers.
const QUEUE_MAX: usize = u32::MAX as usize;

/// Returns the threads of a lane.
fn pool(lane: Lane) -> &'static Pool {
    static BOUNDED: PerProcess<Pool> = PerProcess::new();
    static ELASTIC: PerProcess<Pool> = PerProcess::new();
    let (pool, threads) = match lane {
        Lane::Bounded => (&BOUNDED, 64),
        Lane::Elastic => (&ELASTIC, 512),
    };
    pool.get_or_init(|| Pool::builder().threads(threads).queue(QUEUE_MAX).build())
}

/// Starts blocking work. It continues if the handle is dropped.
pub(crate) fn begin<T: Send + 'static>(
    lane: Lane,
    f: impl FnOnce() -> T + Send + 'static,
) -> Job<T> {
    Job(pool(lane).spawn(f))
}

/// As [`begin`], for work that an ending runtime should wait for.
pub(crate) fn begin_lasting<T: Send + 'static>(
    lane: Lane,
    f: impl FnOnce() -> T + Send + 'static,
) -> Lasting<Job<T>> {
    Lasting::new(lane, begin(lane, f))
}

/// Sends a request to the process's engine. Its errors are the kernel's.
pub(crate) async fn ask<F, T>(request: impl FnOnce(&'static Engine) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    consume_budget().await;
    request(Engine::global()?).await.map_err(plain)
}

/// Sends a request that changes a file, which is finished even if the future is dropped.
pub(crate) async fn order<F, T>(request: impl FnOnce(&'static Engine) -> F) -> io::Result<T>
where
    F: Work<Output = io::Result<T>>,
{
    ask(|engine| Lasting::new(Lane::Bounded, request(engine))).await
}

/// Returns the error without the context that the engine adds.
pub(crate) fn plain(error: io::Error) -> io::Error {
    sakia::fs::os_error(&error).map_or(error, io::Error::from_raw_os_error)
}

/// Blocking work on a thread of a lane.
#[derive(Debug)]
pub(crate) struct Job<T>(BlockingHandle<T>);

impl<T> Future for Job<T> {
    type Output = io::Result<T>;

    /// Fails if the machine has no thread for it. Panics if the work panicked.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|error| io::Error::other(error.resume_panic()))
    }
}

/// A future that another thread can wait for.
pub(crate) trait Work: Future<Output: Send> + Unpin + Send + 'static {}

impl<F: Future<Output: Send> + Unpin + Send + 'static> Work for F {}

/// Work that is finished even if it is dropped.
#[derive(Debug)]
pub(crate) struct Lasting<F: Work> {
    /// `None` once it is over.
    work: Option<F>,
    lane: Lane,
    runtime: Option<Handle>,
}

impl<F: Work> Lasting<F> {
    pub(crate) fn new(lane: Lane, work: F) -> Self {
        Self { work: Some(work), lane, runtime: Handle::try_current().ok() }
    }
}

impl<F: Work> Future for Lasting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("nothing is polled after its end");
        let Poll::Ready(output) = Pin::new(work).poll(cx) else { return Poll::Pending };
        self.work = None;
        Poll::Ready(output)
    }
}

impl<F: Work> Drop for Lasting<F> {
    fn drop(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        if Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        let rest = Rest { work: Some(work), ends: self.lane == Lane::Bounded };
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(move || rest.wait())),
            None => pool(Lane::Elastic).spawn(move || rest.wait()).detach(),
        }
    }
}

/// The rest of dropped work, which keeps a runtime alive.
struct Rest<F: Work> {
    work: Option<F>,
    ends: bool,
}

impl<F: Work> Rest<F> {
    fn wait(mut self) {
        self.work.take().map(block_on);
    }
}

/// No thread waited for it, since the runtime has ended.
impl<F: Work> Drop for Rest<F> {
    fn drop(&mut self) {
        if self.ends {
            self.work.take().map(block_on);
        }
    }
}
