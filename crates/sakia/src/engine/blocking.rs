//! Plain calls on the pool for blocking code.

use std::future::Future;
use std::io;
use std::panic::Location;

use sakia_ring::PerProcess;

use super::Engine;
use super::request::{Call, Request, Tried};
use crate::blocking::{BlockingHandle, Pool, shared};
use crate::join::JoinError;

/// Threads for calls that depend on another machine or process, which may never answer.
const REMOTE_THREADS: usize = 64;

/// A blocking call with a result of type `T`. See [`Engine::spawn_blocking`].
pub struct Blocking<T> {
    engine: Engine,
    calls: Box<dyn Calls<T>>,
    kind: Kind,
}

/// Decides where calls run, and what waits for them.
enum Kind {
    /// Code of the caller: the end of the caller's runtime waits for it.
    Code,
    /// Calls of the library, which may block for ever.
    Call,
    /// The same, on the pool for calls that a server answers.
    RemoteCall,
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
    /// Runs code that blocks as [`spawn_blocking`](crate::spawn_blocking) does; and on the calling thread when
    /// it is [waited](Request::wait) for.
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
        Request::new(Blocking { engine: self.clone(), calls: Box::new(Code(f)), kind: Kind::Code })
    }

    /// Runs calls on a thread of a pool; calls that a server answers where they delay nothing else.
    #[track_caller]
    pub(super) fn block_on_pool<T: Send + 'static>(
        &self,
        calls: impl Calls<T> + 'static,
        is_remote: bool,
    ) -> Request<Blocking<T>> {
        let kind = if is_remote { Kind::RemoteCall } else { Kind::Call };
        Request::new(Blocking { engine: self.clone(), calls: Box::new(calls), kind })
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

    fn attempt(mut self) -> Tried<Self> {
        let Some(result) = self.calls.attempt(&self.engine) else { return Tried::Waits(self) };
        self.engine.shared.tally.count(|part| &part.now);
        Tried::Done(result)
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
        let calls = self.calls;
        let call = move || {
            let result = calls.block();
            drop(pass);
            result
        };
        Ok(match self.kind {
            Kind::Code => shared().spawn_finished(call),
            Kind::Call => shared().spawn(call),
            Kind::RemoteCall => remote_pool().spawn(call),
        })
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
