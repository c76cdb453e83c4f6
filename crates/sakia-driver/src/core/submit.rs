//! Turns: what is queued is submitted, what is ready is fetched, and where that is nothing the thread sleeps.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use super::{Core, Phase, TURN_COMPLETIONS_MAX};
use crate::backend::Backend;

/// How long to leave the kernel alone after it said that it has no room.
const NAP: Duration = Duration::from_micros(50);

/// How long a turn may sleep when nothing is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// At most this long.
    For(Duration),
    /// Until something completes. A turn with nothing in flight returns at once.
    Forever,
}

/// When the queue is flushed, and whether that still works.
#[derive(Debug)]
pub(super) struct Enters {
    /// Entries that may yet be pushed before the queue is flushed without waiting for the turn.
    until_flush: u32,
    /// The same after an enter.
    flush_at: u32,
    /// The errno of a permanent failure of the backend.
    failure: Option<i32>,
}

impl Enters {
    pub(super) fn new(sq_entries: u32) -> Self {
        // Three quarters. Three times the number may be more than fits.
        let flush_at = (sq_entries - sq_entries.div_ceil(4)).max(1);
        Self { until_flush: flush_at, flush_at, failure: None }
    }

    /// An entry was pushed. Returns whether there are now as many as the queue is to hold.
    #[inline(always)]
    pub(super) fn note_pushed(&mut self) -> bool {
        self.until_flush -= 1;
        self.until_flush == 0
    }

    /// The kernel was given what is pending. If it did not take all, the queue may get full, which is seen
    /// when an entry finds no room.
    #[inline(always)]
    fn note_entered(&mut self) {
        self.until_flush = self.flush_at;
    }
}

impl Core {
    /// Submits what is queued, fetches what is ready, and sleeps if that is nothing. Returns the
    /// number of operations that finished, and of completions that were not their last.
    #[inline]
    pub(crate) fn turn(&mut self, wait: Wait) -> io::Result<u32> {
        let (came_before, finished_before) = (self.came(), self.counters.finished);
        if self.phase == Phase::Stopped {
            return Ok(0);
        }
        if self.enters.failure.is_some() || !self.is_intact() {
            return Err(self.refuse());
        }
        let is_ready = self.backend.cq_ready() > 0;
        self.begin_turn();
        if self.has_deferred() {
            self.run_deferred();
        }
        if self.lent.has_free() {
            self.refill();
        }
        let is_held_up = self.is_anything_listed() && self.admit();
        if is_ready {
            self.reap();
        }
        // A completion that nobody waits for, with more to come, is no reason to stay awake.
        let idle = self.counters.finished == finished_before
            && !self.has_deferred()
            && !is_held_up
            && !self.is_unsettled();
        let result = match wait {
            Wait::Forever if idle && (self.in_flight > 0 || self.due.can_be_woken) => {
                self.drain(true, None)
            }
            Wait::For(timeout) if idle && !timeout.is_zero() => self.drain(true, Some(timeout)),
            _ => self.drain(false, None),
        };
        self.end_turn();
        let came = (self.came() - came_before) as u32;
        match result {
            Err(error) if came == 0 => Err(error),
            _ => Ok(came),
        }
    }

    #[inline(always)]
    fn came(&self) -> u64 {
        self.counters.finished + self.counters.delivered
    }

    /// Whether users' code is to be run for what has happened already.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.outbox.is_empty() || self.backend.has_callback()
    }

    /// Enters as often as it takes to submit everything and fetch what is ready. With `sleep` waits
    /// for a first completion, at most for `timeout`.
    ///
    /// The kernel finishes at most 20 operations per enter (since 6.13), unless it is to wait for more. To
    /// ask for all that may be ready, with a zero timeout, saves enters and no time; and a wait that is not
    /// satisfied costs a timer interrupt, 15 us.
    #[inline]
    fn drain(&mut self, mut sleep: bool, timeout: Option<Duration>) -> io::Result<()> {
        let mut reaped = 0;
        while sleep || self.backend.sq_pending() > 0 || self.backend.needs_enter() {
            let entered = self.enter(u32::from(sleep), timeout.filter(|_| sleep));
            let fresh = self.reap();
            reaped += fresh;
            entered?;
            if self.is_anything_listed() {
                self.admit();
            }
            if fresh == 0 {
                break; // slept, or there is nothing
            }
            sleep = false;
            if reaped >= TURN_COMPLETIONS_MAX {
                self.want_turn();
                break;
            }
        }
        Ok(())
    }

    /// One enter. A temporary failure is a success that brought nothing.
    #[inline(always)]
    fn enter(&mut self, min: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.counters.enters += 1;
        self.counters.waits += u64::from(min > 0);
        if self.backend.is_overflowing() {
            self.counters.overflows += 1;
        }
        self.enters.note_entered();
        match self.backend.enter(min, timeout) {
            Ok(_) => Ok(()),
            Err(error) => self.tolerate(error),
        }
    }

    /// Gives pending entries to the kernel in the middle of a turn.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&mut self) {
        self.counters.enters += 1;
        self.enters.note_entered();
        if let Err(error) = self.backend.submit() {
            // A permanent failure is kept, and told by the next turn.
            self.tolerate(error).ok();
        }
    }

    /// The one place that says what an errno of an enter means.
    #[cold]
    fn tolerate(&mut self, error: io::Error) -> io::Result<()> {
        self.want_turn(); // entries may be left
        match Errno::from_io_error(&error) {
            // A signal: the caller's loop comes back. Entries that were not consumed are still pending.
            Some(Errno::INTR) => {
                self.counters.retries += 1;
                Ok(())
            }
            // No memory, or completions must be fetched first: they are, and then it is retried.
            Some(Errno::AGAIN | Errno::BUSY) => {
                self.counters.retries += 1;
                if self.backend.cq_ready() == 0 {
                    self.backend.nap(NAP);
                }
                Ok(())
            }
            errno => {
                self.enters.failure = errno.map(Errno::raw_os_error);
                Err(error)
            }
        }
    }

    /// Whether there can be another turn.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        if self.enters.failure.is_none() && self.is_intact() { Ok(()) } else { Err(self.refuse()) }
    }

    /// Why there are no more turns: a permanent failure, or this is a forked child.
    #[cold]
    fn refuse(&mut self) -> io::Error {
        match self.enters.failure {
            Some(errno) => io::Error::from_raw_os_error(errno),
            // The backend's own error says what is wrong.
            None => match self.backend.enter(0, None) {
                Err(error) => error,
                Ok(_) => Errno::OPNOTSUPP.into(),
            },
        }
    }
}
