//! Many requests as one: those that need no wait are done at once, and the rest goes to one thread of the
//! engine.

use std::future::Future;
use std::io;

use futures_util::stream::{self, StreamExt};

use super::Engine;
use super::request::{Call, Tried};
use crate::error::copy_error;

/// The most requests of one batch that are under way at a time: enough for any device, and few enough for
/// other requests to get their turn between them.
const DEPTH: usize = 1024;

/// Many requests as one. See [`Engine::submit_many`](super::Engine::submit_many).
pub struct Many<C: Call> {
    engine: Engine,
    /// In the order of asking: the results of those that are done, and the others.
    parts: Vec<Result<C::Output, C>>,
}

impl<C: Call> Many<C> {
    pub(super) fn new(engine: &Engine, calls: impl Iterator<Item = C>) -> Self {
        Self { engine: engine.clone(), parts: calls.map(Err).collect() }
    }

    /// Does all parts that need no wait. Returns the results if all parts are done.
    fn try_all(self) -> Result<Vec<C::Output>, Self> {
        let attempt = |call: C| match call.attempt() {
            Tried::Done(output) => Ok(output),
            Tried::Begun(call) | Tried::Waits(call) => Err(call),
        };
        let parts: Vec<_> = self.parts.into_iter().map(|part| part.or_else(attempt)).collect();
        if parts.iter().any(Result::is_err) {
            return Err(Self { parts, ..self });
        }
        Ok(parts.into_iter().filter_map(Result::ok).collect())
    }
}

impl<C: Call> Call for Many<C> {
    type Output = Vec<C::Output>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn attempt(self) -> Tried<Self> {
        self.try_all().map_or_else(Tried::Waits, Tried::Done)
    }

    /// Does the part that needs no wait; the rest is better left to a thread of the engine, where several
    /// operations are under way at the same time.
    fn block(self) -> Result<Self::Output, Self> {
        self.try_all()
    }

    fn run(self, thread: usize) -> impl Future<Output = Self::Output> + 'static {
        let part = move |part| async move {
            match part {
                Ok(output) => output,
                Err(call) => C::run(call, thread).await,
            }
        };
        stream::iter(self.parts).map(part).buffered(DEPTH).collect()
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        let refuse = |call: C| call.refuse(copy_error(&error));
        self.parts.into_iter().map(|part| part.unwrap_or_else(refuse)).collect()
    }
}
