//! Turns: submitting queued entries, fetching ready completions, and sleeping if there are none.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::SignalMask;
use sakia_trace::is_on;

use super::{BATCH, Core, Phase};
use crate::backend::Backend;
use crate::counters::OpKind;
use crate::decide::limits;

/// Maximum number of completions that the kernel finishes in one enter unless asked for more (since 6.13).
const KERNEL_BATCH: u32 = 20;
/// The number of turns with many sends after which sends are again assumed to end at once.
const SENDS_DOUBTED: u8 = 16;
/// The pause after the kernel reported that it has no room.
const NAP: Duration = Duration::from_micros(50);

/// The time that a turn may sleep if nothing is ready.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
///
/// use sakia_driver::{Auto, CURRENT_POSITION, Driver, Wait};
///
/// let driver = Driver::new(Auto::detect()?.0);
/// let (reader, _writer) = std::io::pipe()?;
/// let reader = driver.adopt(reader.into());
/// let mut read = driver.read(&reader, vec![0; 16], CURRENT_POSITION);
/// driver.turn(Wait::Poll)?;
/// driver.turn(Wait::For(Duration::from_millis(2)))?;
/// assert!(read.try_take().is_none(), "nothing was written");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// At most this long.
    For(Duration),
    /// Until something completes. A turn with nothing in flight returns at once.
    Forever,
}

/// The signal mask of a turn's sleep.
pub(crate) trait SleepMask: Copy {
    /// Returns it; `None` for the thread's own.
    fn mask(&self) -> Option<&SignalMask>;
}

/// The thread's own mask. It is a type, so that turns without another mask carry nothing and ask nothing.
#[derive(Clone, Copy)]
pub(crate) struct OwnMask;

impl SleepMask for OwnMask {
    #[inline(always)]
    fn mask(&self) -> Option<&SignalMask> {
        None
    }
}

impl SleepMask for &SignalMask {
    fn mask(&self) -> Option<&SignalMask> {
        Some(self)
    }
}

/// The state that decides when the queue is flushed, whether enters work, and what the next enter is expected
/// to bring.
#[derive(Debug)]
pub(super) struct Enters {
    /// Entries that may be pushed before `Core::pushed_at_stop` is called. It is called to flush the queue in
    /// the middle of a turn, or to note each pushed entry while a recording is on or the driver is watched.
    /// This way, a push costs nothing more otherwise.
    stops: Stops,
    /// The value of `stops` after an enter.
    at_enter: Stops,
    /// The errno of a permanent failure of the backend.
    failure: Option<i32>,
    /// Sends pushed since the last enter of a turn.
    sends: u32,
    /// The remaining number of turns with many sends in which sends are not assumed to end at once, since
    /// some did not.
    sends_doubted: u8,
    /// Bytes that receives with more to come have brought in this turn.
    pub(super) turn_bytes: usize,
}

/// Numbers of entries that may be pushed. Both are copied at once.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Stops {
    /// Entries before the next stop.
    until: u32,
    /// Further entries before the queue is to be flushed.
    after: u32,
}

impl Stops {
    /// Returns the same numbers with a stop at the next entry.
    #[inline]
    fn at_next(self) -> Self {
        Self { until: 1, after: self.after + self.until - 1 }
    }
}

impl Enters {
    pub(super) fn new(sq_entries: u32) -> Self {
        // Three quarters of the queue. Three times its size may overflow.
        let flush_at = (sq_entries - sq_entries.div_ceil(4)).max(1);
        let at_enter = Stops { until: flush_at, after: 0 };
        Self { stops: at_enter, at_enter, failure: None, sends: 0, sends_doubted: 0, turn_bytes: 0 }
    }

    /// Makes the next push call `Core::pushed_at_stop`.
    #[inline]
    pub(super) fn stop_at_next(&mut self) {
        self.stops = self.stops.at_next();
    }

    /// Makes the first push after each enter call `Core::pushed_at_stop`.
    pub(super) fn stop_after_enters(&mut self) {
        self.at_enter = self.at_enter.at_next();
    }

    /// Makes each push call `Core::pushed_at_stop`, for a driver that is watched.
    pub(super) fn watch(&mut self) {
        self.stop_after_enters();
        self.stop_at_next();
    }

    /// Continues after a stop. Returns true if the queue is to be flushed.
    #[inline]
    pub(super) fn go_on(&mut self) -> bool {
        self.stops = Stops { until: self.stops.after, after: 0 };
        self.stops.until == 0
    }

    /// Counts a pushed entry. Returns whether to stop for it.
    #[inline(always)]
    pub(super) fn note_pushed(&mut self, kind: OpKind) -> bool {
        self.sends += u32::from(kind == OpKind::Send);
        self.stops.until -= 1;
        self.stops.until == 0
    }

    /// Returns the number of completions that the next enter is sure to find ready, unless a peer does not
    /// read; 0 if the enter brings as many anyway.
    #[inline]
    fn expected(&mut self) -> u32 {
        let sends = std::mem::take(&mut self.sends);
        if sends <= KERNEL_BATCH {
            return 0;
        }
        self.sends_doubted = self.sends_doubted.saturating_sub(1);
        if self.sends_doubted == 0 { sends.min(BATCH as u32) } else { 0 }
    }

    /// Handles a submission of the pending entries. If the kernel did not take all, the queue may become
    /// full, which a push without room detects.
    #[inline(always)]
    fn note_entered(&mut self) {
        self.stops = self.at_enter;
    }
}

impl Core {
    /// Takes a [turn](Core::turn), and records it if a recording is on.
    #[inline]
    pub(crate) fn take_turn(&mut self, wait: Wait) -> io::Result<u32> {
        if is_on() { self.recorded_turn(wait, OwnMask) } else { self.turn(wait, OwnMask) }
    }

    /// As [`take_turn`](Core::take_turn), by the copy of the code that turns of a recording have, or turns
    /// with a signal mask.
    #[cold]
    pub(crate) fn take_rare_turn(&mut self, wait: Wait, mask: impl SleepMask) -> io::Result<u32> {
        if is_on() { self.recorded_turn(wait, mask) } else { self.rare_turn(wait, mask) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn rare_turn(&mut self, wait: Wait, mask: impl SleepMask) -> io::Result<u32> {
        self.turn(wait, mask)
    }

    /// Submits queued entries, fetches ready completions, and sleeps if there are none. Returns the number of
    /// finished operations, plus that of completions that were not their operation's last.
    #[inline]
    pub(super) fn turn(&mut self, wait: Wait, mask: impl SleepMask) -> io::Result<u32> {
        let (came_before, finished_before) = (self.came(), self.counters.finished);
        if self.phase == Phase::Stopped {
            return Ok(0);
        }
        if self.enters.failure.is_some() || !self.is_intact() {
            return Err(self.refuse());
        }
        let is_ready = self.backend.cq_ready() > 0;
        let came_between = std::mem::take(&mut self.due.came_between);
        self.begin_turn();
        if self.has_deferred() {
            self.run_deferred();
        }
        if self.lent.has_work() {
            self.refill();
        }
        let is_held_up = self.is_anything_listed() && self.admit();
        if is_ready {
            self.reap();
        }
        // A multishot completion without a waiter is no reason to stay awake.
        let idle = self.counters.finished == finished_before
            && !self.has_deferred()
            && !is_held_up
            && !came_between
            && !self.is_unsettled();
        let result = match wait {
            Wait::Forever if idle && (self.in_flight > 0 || self.due.can_be_woken) => {
                self.drain(true, None, mask)
            }
            Wait::For(timeout) if idle && !timeout.is_zero() => {
                self.drain(true, Some(timeout), mask)
            }
            _ => self.drain(false, None, OwnMask),
        };
        self.end_turn();
        let came = (self.came() - came_before) as u32;
        match result {
            Err(error) if came == 0 => Err(error),
            _ => Ok(came),
        }
    }

    /// Returns the number of ends and deliveries so far.
    #[inline(always)]
    pub(crate) fn came(&self) -> u64 {
        self.counters.finished + self.counters.delivered
    }

    /// Returns whether users' code has yet to run for earlier completions.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Enters until everything is submitted and the ready completions are fetched. With `sleep` it waits for
    /// a first completion, at most for `timeout`, with this signal mask. Enters that do not sleep have the
    /// thread's own: a signal that they let through would not end the sleep after them.
    ///
    /// The kernel finishes at most `max(20, min_complete)` operations per enter. So with more than 20 sends
    /// `min_complete` is their number, with a zero timeout: sends end at once, unless a peer does not read. A
    /// wait that is not satisfied costs a timer interrupt (measured as 15 us, against 0.2 us for an enter).
    #[inline]
    fn drain(
        &mut self,
        mut sleep: bool,
        timeout: Option<Duration>,
        mask: impl SleepMask,
    ) -> io::Result<()> {
        let (mut reaped, delivered) = (0, self.counters.delivered);
        while sleep || self.backend.sq_pending() > 0 || self.backend.needs_enter() {
            let expected = self.enters.expected();
            let entered = if expected > 0 {
                self.enter(expected, Some(Duration::ZERO), None)
            } else {
                self.counters.waits += u64::from(sleep);
                let mask = mask.mask().filter(|_| sleep);
                self.enter(u32::from(sleep), timeout.filter(|_| sleep), mask)
            };
            let fresh = self.reap();
            reaped += fresh;
            entered?;
            if self.is_anything_listed() {
                self.admit();
            }
            if fresh < expected {
                // This also avoids retrying for ever if the kernel has no room.
                self.counters.drains_missed += 1;
                self.enters.sends_doubted = SENDS_DOUBTED;
            }
            if fresh > 0 {
                sleep = false;
            } else if expected == 0 {
                break; // has slept, or nothing is ready
            }
            let messages = self.counters.delivered - delivered;
            let is_full =
                messages >= limits::TURN_MESSAGES || self.enters.turn_bytes >= limits::TURN_BYTES;
            if is_full && !self.is_polled || reaped >= limits::TURN_COMPLETIONS {
                self.want_turn();
                break;
            }
        }
        Ok(())
    }

    /// Makes one enter. A temporary failure counts as a success without completions.
    #[inline(always)]
    fn enter(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<()> {
        self.counters.enters += 1;
        if self.backend.is_overflowing() {
            self.counters.overflows += 1;
        }
        self.enters.note_entered();
        match self.backend.enter(min, timeout, signals) {
            Ok(_) => Ok(()),
            Err(error) => self.tolerate(error),
        }
    }

    /// Makes one enter between turns, and fetches completions. A permanent failure is kept: the next turn
    /// returns it.
    #[cold]
    pub(super) fn enter_once(&mut self) {
        self.enters.sends = 0;
        let entered = self.enter(0, None, None);
        self.reap();
        entered.ok();
        // Wakes of other threads may have come with it, which leave no completion.
        self.due.came_between |= self.abilities.uses_lanes;
    }

    /// Keeps the next turn from sleeping if more has come than [`came`](Core::came) was to be by now: its
    /// caller has not seen that.
    pub(crate) fn note_came_between(&mut self, expected: u64) {
        self.due.came_between |= self.came() > expected;
        if self.due.came_between {
            self.want_turn();
        }
    }

    /// Submits pending entries in the middle of a turn.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&mut self) {
        self.counters.enters += 1;
        self.enters.note_entered();
        if let Err(error) = self.backend.submit() {
            // A permanent failure is kept, and the next turn returns it.
            self.tolerate(error).ok();
        }
    }

    /// Interprets the errno of an enter; the only place that does.
    #[cold]
    fn tolerate(&mut self, error: io::Error) -> io::Result<()> {
        self.want_turn(); // entries may still be pending
        match Errno::from_io_error(&error) {
            // A signal: the caller's loop enters again. Entries that were not consumed are still pending.
            Some(Errno::INTR) => {
                self.counters.retries += 1;
                Ok(())
            }
            // No memory, or completions must be fetched first: the turn fetches them and retries.
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

    /// Returns an error if no turn can have a signal mask.
    pub(crate) fn check_masks(&self) -> io::Result<()> {
        if self.abilities.features.masks_signals {
            return Ok(());
        }
        let message = "the backend of this driver cannot wait with a signal mask";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    /// Returns an error if there can be no further turn.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        if self.enters.failure.is_none() && self.is_intact() { Ok(()) } else { Err(self.refuse()) }
    }

    /// Returns the reason why there are no more turns: a permanent failure, or this is a forked child.
    #[cold]
    fn refuse(&mut self) -> io::Error {
        match self.enters.failure {
            Some(errno) => io::Error::from_raw_os_error(errno),
            // The backend's own error names the cause.
            None => match self.backend.enter(0, None, None) {
                Err(error) => error,
                Ok(_) => Errno::OPNOTSUPP.into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of entries to push before the queue is to be flushed. `stops` gets the number of
    /// earlier pushes, and returns whether the next push is made to stop.
    fn pushes(enters: &mut Enters, stops: impl Fn(u32) -> bool) -> u32 {
        enters.note_entered();
        let mut count = 0;
        loop {
            if stops(count) {
                enters.stop_at_next();
            }
            count += 1;
            if enters.note_pushed(OpKind::Nop) && enters.go_on() {
                return count;
            }
        }
    }

    #[test]
    fn stops_do_not_change_when_the_queue_is_flushed() {
        for (entries, expected) in [(1, 1), (2, 1), (4, 3), (8, 6), (256, 192)] {
            let mut enters = Enters::new(entries);
            assert_eq!(pushes(&mut enters, |_| false), expected);
            assert_eq!(pushes(&mut enters, |_| true), expected);
            for at in 0..expected {
                assert_eq!(pushes(&mut enters, |count| count == at), expected, "{at} of {entries}");
            }
            enters.note_entered();
            enters.stop_at_next(); // without effect after the next enter
            assert_eq!(pushes(&mut enters, |_| false), expected);
            // Every push after an enter stops if each stop requests the next one.
            enters.stop_after_enters();
            enters.note_entered();
            for count in 1..=expected {
                assert!(enters.note_pushed(OpKind::Nop));
                assert_eq!(enters.go_on(), count == expected);
                if count < expected {
                    enters.stop_at_next();
                }
            }
        }
    }
}
