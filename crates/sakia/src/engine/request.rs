//! A request: an operation, and the three ways to perform it.

use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Engine;
use crate::blocking::BlockingHandle;
use crate::join::JoinError;
use crate::parked::block_on;

/// An operation that an engine can perform. Implemented by its own types only.
pub trait Call: Sized + Send + 'static {
    /// The type of its result.
    type Output: Send + 'static;

    /// Returns the engine that performs it.
    #[doc(hidden)]
    fn engine(&self) -> &Engine;

    /// Performs it on this thread if that needs no wait, as far as is known, and counts it.
    #[doc(hidden)]
    fn attempt(self) -> Tried<Self> {
        Tried::Waits(self)
    }

    /// Performs it by plain calls on this thread, however long they take. Returns itself if there are none.
    #[doc(hidden)]
    fn block(self) -> Result<Self::Output, Self> {
        Err(self)
    }

    /// Performs it on the engine's thread number `thread`.
    #[doc(hidden)]
    fn run(self, thread: usize) -> impl Future<Output = Self::Output> + 'static;

    /// Sends it to the thread that performs it, or returns it with the reason why not. `asked_at` is shown as
    /// the place of its task.
    #[doc(hidden)]
    fn submit(
        self,
        asked_at: &'static Location<'static>,
    ) -> Result<BlockingHandle<Self::Output>, (Self, io::Error)> {
        match self.engine().pass() {
            Ok(pass) => Ok(pass.send(self, asked_at).into()),
            Err(error) => Err((self, error)),
        }
    }

    /// Returns the result when the request is refused: its buffers come back.
    #[doc(hidden)]
    fn refuse(self, error: io::Error) -> Self::Output;

    /// Returns the result when no thread could be started for it, or this is a forked child and its thread is
    /// the parent's.
    ///
    /// # Panics
    /// If the result needs a value that is lost.
    #[doc(hidden)]
    fn lost(error: JoinError) -> Self::Output {
        panic!("a request of the engine is lost: {}", error_of_lost(error))
    }
}

/// Returns the error of a lost request whose result needs nothing of what is lost.
///
/// # Panics
/// If this is no forked child: the engine's thread has failed for good.
pub(super) fn error_of_lost(error: JoinError) -> io::Error {
    if error.is_forked() {
        return io::Error::other(error);
    }
    panic!("a thread of the engine has failed")
}

/// The outcome of an [attempt](Call::attempt): its result, or the call for another way.
#[doc(hidden)]
pub enum Tried<C: Call> {
    /// It is complete.
    Done(C::Output),
    /// A part of it is done; other tasks are to have a turn before the next.
    Begun(C),
    /// It needs a wait, or may need one.
    Waits(C),
}

/// An operation for an engine. Nothing happens before it is awaited or waited for.
///
/// When awaited, on any executor, it is performed on the caller's thread if that needs no wait, and by the
/// engine's threads otherwise. A large transfer is done in parts, between which other tasks have their turn.
///
/// # Cancel safety
/// Dropping a request cancels a part of it that may wait for ever, and a part that has not begun; a part that
/// has begun on a file runs to its end. Buffers stay with the kernel until it is done with them.
///
/// # Panics
/// The future panics when it is polled after its end, and when the engine's thread failed for good. In a
/// forked child a request of its parent's that was under way resolves to an error that says so, and panics if
/// its result needs a buffer, which the parent has.
///
/// # Examples
/// ```
/// use sakia::Engine;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-request-{}", std::process::id()));
/// let engine = Engine::new()?;
/// // Waited for on a plain thread.
/// engine.write(&path, "hello").wait()?;
/// // Under way while this thread does other work.
/// let read = engine.read_to_string(&path).submit();
/// assert_eq!(read.wait()?, "hello");
/// // Awaited, on any executor.
/// assert_eq!(sakia::block_on(engine.read(&path))?, b"hello");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[must_use = "nothing happens before a request is awaited or waited for"]
pub struct Request<C: Call> {
    state: State<C>,
    /// The place that made it.
    asked_at: &'static Location<'static>,
}

enum State<C: Call> {
    New(C),
    Submitted(BlockingHandle<C::Output>),
    /// It could not be sent; its result.
    Refused(C::Output),
    Over,
}

/// No field is pinned.
impl<C: Call> Unpin for Request<C> {}

impl<C: Call> Request<C> {
    #[track_caller]
    pub(super) fn new(call: C) -> Self {
        Self::new_at(call, Location::caller())
    }

    fn new_at(call: C, asked_at: &'static Location<'static>) -> Self {
        Self { state: State::New(call), asked_at }
    }

    /// Blocks the thread until it is done. If there is a plain call for the operation, that call is made on
    /// this thread and needs no engine: it works after a stop too.
    ///
    /// # Panics
    /// On a thread of the engine, if there is no plain call for the operation: it would wait for itself. A
    /// request that has begun must not be waited for there, either.
    ///
    /// # Examples
    /// See [`Request`](Request#examples).
    #[inline]
    pub fn wait(mut self) -> C::Output {
        let Some(call) = self.take_new() else { return block_on(self) };
        call.engine().shared.tally.count(|part| &part.waited);
        match call.block() {
            Ok(output) => output,
            Err(call) => {
                assert!(!call.engine().is_on_own_thread(), "a request waits for its own thread");
                block_on(Self::new_at(call, self.asked_at).submit())
            }
        }
    }

    /// Sends it to the engine's threads now, without trying it on this thread. It is then under way, to be
    /// awaited or waited for later.
    ///
    /// A request that has begun stays as it is.
    ///
    /// # Examples
    /// See [`Request`](Request#examples).
    pub fn submit(mut self) -> Self {
        if let Some(call) = self.take_new() {
            self.state = match call.submit(self.asked_at) {
                Ok(submitted) => State::Submitted(submitted),
                Err((call, error)) => State::Refused(call.refuse(error)),
            };
        }
        self
    }

    /// Takes the call, if it has not begun.
    pub(super) fn take_new(&mut self) -> Option<C> {
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
            if let Err(error) = call.engine().check() {
                return Poll::Ready(call.refuse(error));
            }
            match call.attempt() {
                Tried::Done(output) => return Poll::Ready(output),
                Tried::Begun(call) => {
                    this.state = State::New(call);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Tried::Waits(call) => *this = Self::new_at(call, this.asked_at).submit(),
            }
        }
        let submitted = match &mut this.state {
            State::Submitted(submitted) => submitted,
            _ => match std::mem::replace(&mut this.state, State::Over) {
                State::Refused(output) => return Poll::Ready(output),
                _ => panic!("a request was polled after its end"),
            },
        };
        let Poll::Ready(result) = Pin::new(submitted).poll(cx) else { return Poll::Pending };
        this.state = State::Over;
        Poll::Ready(result.unwrap_or_else(|error| C::lost(error.resume_panic())))
    }
}

impl<C: Call> Drop for Request<C> {
    fn drop(&mut self) {
        if let State::Submitted(submitted) = &mut self.state {
            submitted.abort();
        }
    }
}
