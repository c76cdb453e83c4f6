//! A request: what is to be done, and the three ways to have it done.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::Engine;
use crate::join::{JoinError, JoinHandle};

/// What an engine can do. Its own types only.
pub trait Call: Sized + Send + 'static {
    /// What it comes to.
    type Output: Send + 'static;

    /// Does it on this thread if that takes no wait, as far as is known. Otherwise gives itself back.
    #[doc(hidden)]
    fn attempt(self) -> Result<Self::Output, Self> {
        Err(self)
    }

    /// Does it by plain calls on this thread, however long they take. Gives itself back where there are none.
    #[doc(hidden)]
    fn block(self) -> Result<Self::Output, Self> {
        Err(self)
    }

    /// Does it on a thread of the engine, of this number.
    #[doc(hidden)]
    fn run(self, thread: usize) -> impl Future<Output = Self::Output> + 'static;

    /// What it comes to when it cannot be done: its buffers come back.
    #[doc(hidden)]
    fn refuse(self, error: io::Error) -> Self::Output;
}

/// Something that an engine is to do. Nothing happens before it is awaited or waited for.
///
/// Awaited, on any executor, it is done at once if that takes no wait, and by the engine's threads otherwise.
/// Dropping it then cancels what may wait for ever; what has begun on a file ends by itself. Buffers stay
/// with the kernel until it is done with them.
///
/// # Panics
/// The future panics when it is polled after its end, and when the engine's thread failed for good.
#[must_use = "nothing happens before a request is awaited or waited for"]
pub struct Request<C: Call> {
    engine: Engine,
    state: State<C>,
}

enum State<C: Call> {
    New(C),
    Submitted(JoinHandle<C::Output>),
    Over,
}

/// No field is pinned.
impl<C: Call> Unpin for Request<C> {}

impl<C: Call> Request<C> {
    pub(super) fn new(engine: &Engine, call: C) -> Self {
        Self { engine: engine.clone(), state: State::New(call) }
    }

    /// Blocks the thread until it is done. A transfer of bytes is the plain call, on this thread.
    ///
    /// # Panics
    /// On a thread of the engine, if it is none of these.
    pub fn wait(mut self) -> C::Output {
        let Some(call) = self.take_new() else { return block_on(self) };
        match call.block() {
            Ok(output) => {
                self.engine.shared.tally.waited.fetch_add(1, Ordering::Relaxed);
                output
            }
            Err(call) => match self.engine.submit(call) {
                Ok(handle) => {
                    self.state = State::Submitted(handle);
                    block_on(self)
                }
                Err((call, error)) => call.refuse(error),
            },
        }
    }

    /// The call, if it was not begun.
    pub(super) fn into_call(mut self) -> Option<C> {
        self.take_new()
    }

    fn take_new(&mut self) -> Option<C> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::New(call) => Some(call),
            begun => {
                self.state = begun;
                None
            }
        }
    }
}

impl<C: Call> Future for Request<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        if let Some(call) = this.take_new() {
            match call.attempt() {
                Ok(output) => {
                    this.engine.shared.tally.now.fetch_add(1, Ordering::Relaxed);
                    return Poll::Ready(output);
                }
                Err(call) => match this.engine.submit(call) {
                    Ok(handle) => this.state = State::Submitted(handle),
                    Err((call, error)) => return Poll::Ready(call.refuse(error)),
                },
            }
        }
        let State::Submitted(handle) = &mut this.state else {
            panic!("a request was polled after its end");
        };
        let Poll::Ready(result) = Pin::new(handle).poll(cx) else { return Poll::Pending };
        this.state = State::Over;
        Poll::Ready(result.unwrap_or_else(|error| lost(error)))
    }
}

/// The task on the engine's thread has no value.
fn lost(error: JoinError) -> ! {
    drop(error.resume_panic());
    panic!("a thread of the engine has failed");
}

impl<C: Call> Drop for Request<C> {
    fn drop(&mut self) {
        if let State::Submitted(handle) = &mut self.state {
            handle.abort();
        }
    }
}

/// A future on a thread of the engine, and what it comes to. See [`Engine::run`].
pub struct Work<T> {
    start: Start<T>,
}

/// Makes the future, on the thread whose number it is told.
type Start<T> = Box<dyn FnOnce(usize) -> Pin<Box<dyn Future<Output = io::Result<T>>>> + Send>;

impl<T> Work<T> {
    pub(super) fn new<F>(start: impl FnOnce(usize) -> F + Send + 'static) -> Self
    where
        F: Future<Output = io::Result<T>> + 'static,
    {
        Self { start: Box::new(move |thread| Box::pin(start(thread))) }
    }
}

impl<T: Send + 'static> Call for Work<T> {
    type Output = io::Result<T>;

    fn run(self, thread: usize) -> impl Future<Output = Self::Output> + 'static {
        (self.start)(thread)
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the thread until a future is ready.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}
