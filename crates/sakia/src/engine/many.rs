//! Many requests as one: those that need no wait are done at once, and the rest goes to one thread of the
//! engine.

use std::future::Future;
use std::io;

use futures_util::stream::{self, StreamExt};

use super::Engine;
use super::request::{Attempt, Call};
use crate::error::copy_error;

/// The most requests of one batch that are under way at a time: enough for any device, and few enough for
/// other requests to get their turn between them.
const DEPTH: usize = 1024;

/// Many requests as one. See [`Engine::submit_many`](super::Engine::submit_many).
pub struct Many<C: Call> {
    engine: Engine,
    /// In the order of asking.
    parts: Vec<Part<C>>,
}

enum Part<C: Call> {
    Open(C),
    Done(C::Output),
}

impl<C: Call> Many<C> {
    pub(super) fn new(engine: &Engine, calls: impl Iterator<Item = C>) -> Self {
        Self { engine: engine.clone(), parts: calls.map(Part::Open).collect() }
    }

    /// Does all parts that need no wait. Returns the results if all parts are done.
    fn try_all(self) -> Result<Vec<C::Output>, Self> {
        let attempt = |part: Part<C>| match part {
            Part::Open(call) => match call.attempt() {
                Attempt::Done(output) => Part::Done(output),
                Attempt::Begun(call) | Attempt::Waits(call) => Part::Open(call),
            },
            done => done,
        };
        let parts: Vec<_> = self.parts.into_iter().map(attempt).collect();
        if parts.iter().any(|part| matches!(part, Part::Open(_))) {
            return Err(Self { parts, ..self });
        }
        let output = |part| match part {
            Part::Done(output) => Some(output),
            Part::Open(_) => None,
        };
        Ok(parts.into_iter().filter_map(output).collect())
    }
}

impl<C: Call> Call for Many<C> {
    type Output = Vec<C::Output>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn attempt(self) -> Attempt<Self> {
        self.try_all().map_or_else(Attempt::Waits, Attempt::Done)
    }

    /// Does the part that needs no wait; the rest is better left to a thread of the engine, where several
    /// operations are under way at the same time.
    fn block(self) -> Result<Self::Output, Self> {
        self.try_all()
    }

    fn run(self, thread: usize) -> impl Future<Output = Self::Output> + 'static {
        let part = move |part: Part<C>| async move {
            match part {
                Part::Open(call) => call.run(thread).await,
                Part::Done(output) => output,
            }
        };
        stream::iter(self.parts).map(part).buffered(DEPTH).collect()
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        let refuse = |part: Part<C>| match part {
            Part::Open(call) => call.refuse(copy_error(&error)),
            Part::Done(output) => output,
        };
        self.parts.into_iter().map(refuse).collect()
    }
}
