//! Threads for what blocks, and what goes on when nobody waits for it.
//!
//! There are two lanes. What ends by itself, on a local file system, goes to the narrow one. What may wait
//! for ever, such as the open of a FIFO, or for another machine, goes to the wide one, and never keeps files
//! out.
//!
//! What was begun is done when its future is dropped, as tokio has it. A runtime that ends waits for it, and
//! so does a program that ends with its runtime:
//!
//! 1. [`Lasting`] work has a handle of the runtime on which it began.
//! 2. Dropped while under way, it is left to that runtime's own blocking pool, a thread of which waits for
//!    its end. A runtime that ends waits for that.
//! 3. If the runtime has ended already, its pool drops what it is given, at once and in place. Then the
//!    thread waits itself; but not for what may take for ever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use sakia::blocking::Pool;
use sakia::engine::__private::block_on;
use sakia::{BlockingHandle, Engine};
use tokio::runtime::Handle;
use tokio::task::coop::consume_budget;

/// Jobs that may wait for threads: as many as callers have.
const QUEUE_MAX: usize = u32::MAX as usize;

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// It ends by itself.
    Narrow,
    /// Somebody else may have to do something first.
    Wide,
}

impl Lane {
    fn pool(self) -> &'static Pool {
        static NARROW: OnceLock<Pool> = OnceLock::new();
        static WIDE: OnceLock<Pool> = OnceLock::new();
        let (pool, threads) = match self {
            Self::Narrow => (&NARROW, 64),
            Self::Wide => (&WIDE, 512),
        };
        pool.get_or_init(|| Pool::builder().threads(threads).queue(QUEUE_MAX).build())
    }

    /// Begins something that blocks. Dropped, it goes on.
    pub(crate) fn begin<T: Send + 'static>(self, f: impl FnOnce() -> T + Send + 'static) -> Job<T> {
        Job(self.pool().spawn(f))
    }

    /// Does something that blocks. Dropped, it goes on; if it `changes` something, a runtime that ends waits
    /// for it.
    pub(crate) async fn finish<T: Send + 'static>(
        self,
        changes: bool,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if changes { self.begin_lasting(f).await } else { self.begin(f).await }
    }

    /// As [`begin`](Lane::begin), for something that a runtime should wait for when it ends.
    pub(crate) fn begin_lasting<T: Send + 'static>(
        self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Lasting<Job<T>> {
        Lasting::new(self, self.begin(f))
    }
}

/// Asks the engine of the process for something. Its errors are those of the kernel.
pub(crate) async fn ask<F, T>(request: impl FnOnce(&'static Engine) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    consume_budget().await;
    request(Engine::global()?).await.map_err(plain)
}

/// Has it change something, which is done even if the future is dropped.
pub(crate) async fn order<F, T>(request: impl FnOnce(&'static Engine) -> F) -> io::Result<T>
where
    F: Work<Output = io::Result<T>>,
{
    ask(|engine| Lasting::new(Lane::Narrow, request(engine))).await
}

/// The error without the names that the engine gives it.
fn plain(error: io::Error) -> io::Error {
    sakia::fs::os_error(&error).map_or(error, io::Error::from_raw_os_error)
}

/// Something that blocks, under way on a thread of a lane.
#[derive(Debug)]
pub(crate) struct Job<T>(BlockingHandle<T>);

impl<T> Future for Job<T> {
    type Output = io::Result<T>;

    /// Fails if the machine has no thread for it. Panics if it has.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|error| io::Error::other(error.resume_panic()))
    }
}

/// A future that another thread can wait for.
pub(crate) trait Work: Future<Output: Send> + Unpin + Send + 'static {}

impl<F: Future<Output: Send> + Unpin + Send + 'static> Work for F {}

/// Something under way that is done to its end even if it is dropped.
#[derive(Debug)]
pub(crate) struct Lasting<F: Work> {
    /// `None` once it is over.
    work: Option<F>,
    lane: Lane,
    runtime: Option<Handle>,
}

impl<F: Work> Lasting<F> {
    fn new(lane: Lane, work: F) -> Self {
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
        let rest = Rest { work: Some(work), ends: self.lane == Lane::Narrow };
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(move || rest.wait())),
            None => Lane::Wide.pool().spawn(move || rest.wait()).detach(),
        }
    }
}

/// What is left to do of something, which keeps a runtime.
struct Rest<F: Work> {
    work: Option<F>,
    ends: bool,
}

impl<F: Work> Rest<F> {
    fn wait(mut self) {
        self.work.take().map(block_on);
    }
}

/// It was not waited for, since the runtime has ended.
impl<F: Work> Drop for Rest<F> {
    fn drop(&mut self) {
        if self.ends {
            self.work.take().map(block_on);
        }
    }
}
