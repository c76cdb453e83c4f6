//! Turns: what is queued is submitted, what is ready is fetched, and where that is nothing the thread sleeps.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use super::{BATCH, Core, TURN_COMPLETIONS_MAX};
use crate::backend::Backend;
use crate::counters::OpKind;

/// Most completions that the kernel finishes in one enter unless asked for more (since 6.13).
const KERNEL_BATCH: u32 = 20;
/// Turns with many sends that go by until these are again taken to end at once.
const SENDS_DOUBTED: u8 = 16;
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

/// What enters have brought, and what the next one is likely to bring.
#[derive(Debug)]
pub(super) struct Enters {
    /// Pending entries at which the queue is flushed without waiting for the turn.
    flush_at: u32,
    /// The errno of a permanent failure of the backend.
    failure: Option<i32>,
    /// How sure it is that everything in flight is ready at once: 0 to 3. See [`Core::drain`].
    burst: u8,
    /// Sends pushed since the last enter of a turn.
    sends: u32,
    /// Turns with many sends for which these are not taken to end at once, since some did not.
    sends_doubted: u8,
}

impl Enters {
    pub(super) fn new(sq_entries: u32) -> Self {
        // Three quarters. Three times the number may be more than fits.
        let flush_at = (sq_entries - sq_entries.div_ceil(4)).max(1);
        Self { flush_at, failure: None, burst: 0, sends: 0, sends_doubted: 0 }
    }

    /// Whether so many pending entries are as many as the queue is to hold.
    #[inline(always)]
    pub(super) fn is_flush_due(&self, pending: u32) -> bool {
        pending >= self.flush_at
    }

    /// An operation was pushed.
    #[inline(always)]
    pub(super) fn note_pushed(&mut self, kind: OpKind) {
        self.sends += u32::from(kind == OpKind::Send);
    }

    /// How many completions the next enter is likely to find ready, and whether it is to ask for as many.
    #[inline]
    fn expected(&mut self, in_flight: u32) -> (u32, bool) {
        let sends = std::mem::take(&mut self.sends);
        let all = in_flight.min(BATCH as u32);
        if self.burst > 0 && all > KERNEL_BATCH {
            return (all, true);
        }
        self.sends_doubted = self.sends_doubted.saturating_sub(u8::from(sends > KERNEL_BATCH));
        let are_sends = sends > KERNEL_BATCH && self.sends_doubted == 0;
        (sends.min(BATCH as u32), are_sends)
    }

    /// What was expected was not there.
    fn doubt(&mut self) {
        self.burst = 0;
        self.sends_doubted = SENDS_DOUBTED;
    }

    /// A turn has brought so many completions of those in flight before it.
    #[inline]
    fn note_drained(&mut self, in_flight: u32, reaped: u32) {
        if in_flight > KERNEL_BATCH {
            let was_all = reaped >= in_flight;
            self.burst =
                if was_all { (self.burst + 1).min(3) } else { self.burst.saturating_sub(1) };
        }
    }
}

impl<B: Backend> Core<B> {
    /// Submits what is queued, fetches what is ready, and sleeps if that is nothing. Returns the
    /// number of operations that finished, and of completions that were not their last.
    #[inline]
    pub(crate) fn turn(&mut self, wait: Wait) -> io::Result<u32> {
        let (came_before, finished_before) = (self.came(), self.counters.finished);
        let Some(backend) = &self.backend else {
            return Ok(0);
        };
        if self.enters.failure.is_some() || !backend.is_intact() {
            return Err(self.refuse());
        }
        let is_ready = backend.cq_ready() > 0;
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
        !self.outbox.is_empty() || self.backend.as_ref().is_some_and(B::has_callback)
    }

    /// Enters as often as it takes to submit everything and fetch what is ready. With `sleep` waits
    /// for a first completion, at most for `timeout`.
    ///
    /// The kernel finishes at most `max(20, min_complete)` operations per enter. Asking for all in
    /// flight with a zero timeout fetches everything at once, but a wait that is not satisfied costs
    /// a timer interrupt (15 us were measured, against 0.2 us for an enter). So it is done only
    /// where the last turns found everything ready: a counter from 0 to 3 tells.
    #[inline]
    fn drain(&mut self, mut sleep: bool, timeout: Option<Duration>) -> io::Result<()> {
        let in_flight = self.in_flight;
        let mut reaped = 0;
        while let Some(backend) = &self.backend {
            let nothing = !sleep && backend.sq_pending() == 0 && !backend.needs_enter();
            if nothing {
                break;
            }
            let (all, speculate) = self.enters.expected(self.in_flight);
            let entered = if speculate {
                self.enter(all, Some(Duration::ZERO), true)
            } else {
                self.enter(u32::from(sleep), timeout.filter(|_| sleep), false)
            };
            let fresh = self.reap();
            reaped += fresh;
            entered?;
            if self.is_anything_listed() && self.admit() {
                sleep = false;
            }
            if speculate && fresh < all {
                // Also so that a kernel that has no room is not asked for ever.
                self.counters.drains_missed += 1;
                self.enters.doubt();
            }
            if fresh > 0 {
                sleep = false;
            } else if !speculate {
                break; // slept, or there is nothing
            }
            if reaped >= TURN_COMPLETIONS_MAX {
                self.want_turn();
                break;
            }
        }
        self.enters.note_drained(in_flight, reaped);
        Ok(())
    }

    /// One enter. A temporary failure is a success that brought nothing.
    #[inline]
    fn enter(&mut self, min: u32, timeout: Option<Duration>, speculate: bool) -> io::Result<()> {
        let Some(backend) = &mut self.backend else {
            return Ok(());
        };
        self.counters.enters += 1;
        self.counters.waits += u64::from(min > 0 && !speculate);
        if backend.is_overflowing() {
            self.counters.overflows += 1;
        }
        match backend.enter(min, timeout) {
            Ok(_) => Ok(()),
            Err(error) => self.tolerate(error),
        }
    }

    /// Gives pending entries to the kernel in the middle of a turn.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&mut self) {
        let Some(backend) = &mut self.backend else {
            return;
        };
        self.counters.enters += 1;
        if let Err(error) = backend.submit() {
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
                if let Some(backend) = &mut self.backend
                    && backend.cq_ready() == 0
                {
                    backend.nap(NAP);
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
        match (self.enters.failure, &mut self.backend) {
            (Some(errno), _) => io::Error::from_raw_os_error(errno),
            // The backend's own error says what is wrong.
            (None, Some(backend)) => match backend.enter(0, None) {
                Err(error) => error,
                Ok(_) => Errno::OPNOTSUPP.into(),
            },
            (None, None) => Errno::CANCELED.into(),
        }
    }
}
