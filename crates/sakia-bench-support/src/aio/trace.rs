//! What a scheduler did, and how long its system calls took: kept in memory until somebody asks.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Which system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// `io_setup`.
    Setup,
    /// `io_submit`.
    Submit,
    /// `io_getevents`.
    GetEvents,
}

/// A system call that was made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which.
    pub kind: CallKind,
    /// Requests submitted, completions that came.
    pub count: u64,
    /// How long it took.
    pub duration: Duration,
}

/// What a scheduler did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Contexts that were made.
    pub contexts: u64,
    /// Contexts that were refused.
    pub refusals: u64,
    /// Requests that were submitted.
    pub submitted: u64,
    /// `io_submit`s.
    pub submits: u64,
    /// `io_getevents`s.
    pub get_events: u64,
    /// The most requests that one `io_submit` took.
    pub batch_max: u64,
    /// Times that the thread went to sleep.
    pub sleeps: u64,
    /// Requests that it has, in flight or waiting for room.
    pub live: u64,
}

/// Counts what is done, and keeps what system calls took if it was told to.
#[derive(Debug, Default)]
pub(super) struct Log {
    statistics: Mutex<Statistics>,
    /// `None`: only counts. A clock that nobody reads is not read.
    trace: Option<Mutex<Vec<Call>>>,
}

impl Log {
    pub fn new(is_traced: bool) -> Self {
        Self { trace: is_traced.then(Mutex::default), ..Self::default() }
    }

    pub fn statistics(&self) -> MutexGuard<'_, Statistics> {
        lock(&self.statistics)
    }

    /// What was kept of system calls since the last time that this was asked.
    pub fn take(&self) -> Vec<Call> {
        let trace = self.trace.as_ref();
        trace.map(|all| std::mem::take(&mut *lock(all))).unwrap_or_default()
    }

    /// Makes a system call, whose result is how many requests or completions it took.
    pub fn call(
        &self,
        kind: CallKind,
        call: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let begin = self.trace.is_some().then(Instant::now);
        let result = call();
        let duration = begin.map(|begin| begin.elapsed());
        let count = *result.as_ref().unwrap_or(&0) as u64;
        if let (Some(trace), Some(duration)) = (&self.trace, duration) {
            lock(trace).push(Call { kind, count, duration });
        }
        let mut did = self.statistics();
        match kind {
            CallKind::Setup if result.is_ok() => did.contexts += 1,
            CallKind::Setup => did.refusals += 1,
            CallKind::Submit => {
                did.submits += 1;
                did.submitted += count;
                did.batch_max = did.batch_max.max(count);
            }
            CallKind::GetEvents => did.get_events += 1,
        }
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
