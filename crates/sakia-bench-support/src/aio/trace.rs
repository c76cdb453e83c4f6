//! Counts and durations of a scheduler's system calls, kept in memory.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// `io_setup`.
    Setup,
    /// `io_submit`.
    Submit,
    /// `io_getevents`.
    GetEvents,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The kind of call.
    pub kind: CallKind,
    /// The number of requests submitted or completions reaped.
    pub count: u64,
    /// Its duration.
    pub duration: Duration,
}

/// The counts of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Contexts made.
    pub contexts: u64,
    /// Contexts refused.
    pub refusals: u64,
    /// Requests submitted.
    pub submitted: u64,
    /// `io_submit`s.
    pub submits: u64,
    /// `io_getevents`s.
    pub get_events: u64,
    /// The largest number of requests in one `io_submit`.
    pub batch_max: u64,
    /// Sleeps of the thread.
    pub sleeps: u64,
    /// Requests in flight or waiting for room.
    pub live: u64,
}

/// Counts system calls, and keeps their durations if a trace was requested.
#[derive(Debug, Default)]
pub(super) struct Log {
    statistics: Mutex<Statistics>,
    /// `None`: only counts, without reading the clock.
    trace: Option<Mutex<Vec<Call>>>,
}

impl Log {
    pub fn new(is_traced: bool) -> Self {
        Self { trace: is_traced.then(Mutex::default), ..Self::default() }
    }

    pub fn statistics(&self) -> MutexGuard<'_, Statistics> {
        lock(&self.statistics)
    }

    /// Takes the system calls recorded since the last call.
    pub fn take(&self) -> Vec<Call> {
        let trace = self.trace.as_ref();
        trace.map(|all| std::mem::take(&mut *lock(all))).unwrap_or_default()
    }

    /// Makes a system call that returns a number of requests or completions.
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
