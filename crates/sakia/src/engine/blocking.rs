//! Plain calls on the pool for blocking code.

use std::future::Future;
use std::io;
use std::panic::Location;

use sakia_ring::PerProcess;

use super::Engine;
use super::request::{Attempt, Call, Request};
use crate::blocking::{BlockingHandle, Pool, shared_pool};
use crate::join::JoinError;

/// Threads for calls that depend on another machine or process, which may never answer.
const REMOTE_THREADS: usize = 64;

/// A blocking call with a result of type `T`. See [`Engine::spawn_blocking`].
pub struct Blocking<T> {
    engine: Engine,
    calls: Box<dyn Calls<T>>,
    is_remote: bool,
}

/// System calls that may block.
pub(super) trait Calls<T>: Send {
    /// Makes the calls if they do not block.
    fn attempt(&mut self, _engine: &Engine) -> Option<io::Result<T>> {
        None
    }

    /// Makes the calls, however long they block.
    fn block(self: Box<Self>) -> io::Result<T>;
}

/// Code of the caller.
pub(super) struct Code<F>(pub(super) F);

impl<T, F: FnOnce() -> io::Result<T> + Send> Calls<T> for Code<F> {
    fn block(self: Box<Self>) -> io::Result<T> {
        (self.0)()
    }
}

impl Engine {
    /// Runs code that blocks on a thread of the pool that [`spawn_blocking`](crate::spawn_blocking) uses; and
    /// on the calling thread when it is [waited](Request::wait) for.
    ///
    /// # Errors
    /// Those of `f`. `ECANCELED`: the engine was stopped. `EAGAIN`: the machine has no thread for it.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// let engine = Engine::new()?;
    /// let count = engine.spawn_blocking(|| Ok(std::fs::read_dir("/proc/self/task")?.count()));
    /// assert!(sakia::block_on(count)? >= 1);
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Request<Blocking<T>> {
        self.block_on_pool(Code(f), false)
    }

    /// Runs calls as [`spawn_blocking`](Engine::spawn_blocking) does; calls that a server answers run on
    /// threads where they delay nothing else.
    #[track_caller]
    pub(super) fn block_on_pool<T: Send + 'static>(
        &self,
        calls: impl Calls<T> + 'static,
        is_remote: bool,
    ) -> Request<Blocking<T>> {
        Request::new(Blocking { engine: self.clone(), calls: Box::new(calls), is_remote })
    }
}

/// Returns the pool for calls that a server answers, separate from the shared one, so that a server that does
/// not answer delays no other work.
pub(super) fn remote_pool() -> &'static Pool {
    static POOL: PerProcess<Pool> = PerProcess::new();
    POOL.get_or_init(|| Pool::builder().threads(REMOTE_THREADS).build())
}

impl<T: Send + 'static> Call for Blocking<T> {
    type Output = io::Result<T>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn attempt(mut self) -> Attempt<Self> {
        let Some(result) = self.calls.attempt(&self.engine) else { return Attempt::Waits(self) };
        self.engine.shared.tally.count(|part| &part.now);
        Attempt::Done(result)
    }

    fn block(self) -> Result<Self::Output, Self> {
        Ok(self.calls.block())
    }

    /// Runs the call as one of [many](Engine::submit_many).
    fn run(self, _thread: usize) -> impl Future<Output = Self::Output> + 'static {
        Request::new(self)
    }

    fn submit(
        self,
        _asked_at: &'static Location<'static>,
    ) -> Result<BlockingHandle<Self::Output>, (Self, io::Error)> {
        let pass = match self.engine.pass() {
            Ok(pass) => pass,
            Err(error) => return Err((self, error)),
        };
        let pool = if self.is_remote { remote_pool() } else { shared_pool() };
        let calls = self.calls;
        Ok(pool.spawn(move || {
            let result = calls.block();
            drop(pass);
            result
        }))
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }

    fn lost(error: JoinError) -> Self::Output {
        if error.is_forked() {
            return Err(io::Error::other(error));
        }
        Err(rustix::io::Errno::AGAIN.into())
    }
}
