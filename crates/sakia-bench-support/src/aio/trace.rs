//! How long system calls take, kept in memory until somebody asks.

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
    /// Events asked for, requests submitted, completions that came.
    pub count: u64,
    /// How long it took.
    pub duration: Duration,
}

/// Counts system calls, and keeps what they took if it was told to.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub setups: u64,
    pub submits: u64,
    pub get_events: u64,
    /// Requests that were submitted.
    pub submitted: u64,
    /// The most at a time.
    pub batch_max: u64,
    /// `None`: only counts. A clock that nobody reads is not read.
    pub trace: Option<Vec<Call>>,
}

impl Calls {
    /// Begins a call.
    pub fn begin(&self) -> Option<Instant> {
        self.trace.is_some().then(Instant::now)
    }

    /// Ends it. `count` is what it came to.
    pub fn end(&mut self, begin: Option<Instant>, kind: CallKind, count: u64) {
        let duration = begin.map(|begin| begin.elapsed());
        match kind {
            CallKind::Setup => self.setups += 1,
            CallKind::Submit => {
                self.submits += 1;
                self.submitted += count;
                self.batch_max = self.batch_max.max(count);
            }
            CallKind::GetEvents => self.get_events += 1,
        }
        if let (Some(duration), Some(trace)) = (duration, &mut self.trace) {
            trace.push(Call { kind, count, duration });
        }
    }
}
