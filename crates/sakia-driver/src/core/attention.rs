//! A cheap check whether the next turn has work, for busy loops that ask after each poll of a task.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;

use super::Core;
use crate::backend::Backend;

/// Tells, for the price of one load, whether a driver may have work; see [`Driver::attention`].
///
/// [`Driver::attention`]: crate::Driver::attention
#[derive(Clone, Debug, Default)]
pub struct Attention(Rc<Shared>);

/// The state shared by a driver and the loop around it.
#[derive(Debug, Default)]
struct Shared {
    is_due: Cell<bool>,
    /// The time since which tasks are polled, on the backend's clock. `None` during a turn and until the loop
    /// sets it.
    begin: Cell<Option<Duration>>,
    /// See [`Attention::tells_news`].
    tells_news: Cell<bool>,
}

impl Attention {
    /// Returns false while nothing is in flight, nothing waits for a turn, and no alarm is set.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.0.is_due.get()
    }

    /// Tells the driver that tasks are polled since `now`, the [backend's time](crate::Driver::now). Once
    /// they have taken half a millisecond, no more plain calls are made until the next turn, so that a task
    /// that alternates between operations and long work has to wait. The clock is not read before each call:
    /// if many calls were close to each other, up to 32 more may be made too late.
    #[inline(always)]
    pub fn begin_tasks(&self, now: Duration) {
        self.0.begin.set(Some(now));
    }

    /// Returns whether [`Driver::wants_turn`](crate::Driver::wants_turn) reports every completion. If not, a
    /// busy loop calls [`Driver::look_again`](crate::Driver::look_again) and takes a turn from time to time.
    #[inline(always)]
    pub fn tells_news(&self) -> bool {
        self.0.tells_news.get()
    }

    #[inline(always)]
    pub(super) fn begin(&self) -> Option<Duration> {
        self.0.begin.get()
    }
}

/// The reasons why there may be work.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Something waits for the next turn: an entry, an operation or a request to cancel.
    wants_turn: bool,
    /// False while `wants_turn` is not set and the backend cannot have completions.
    pub(crate) attention: Attention,
    /// The number of alarms that were set and have not expired.
    alarms: u32,
    /// Set if the backend's alarms are unreliable.
    lacks_alarms: bool,
    /// Set if another thread may wake this one, so that a turn may sleep with nothing in flight.
    pub(crate) can_be_woken: bool,
    /// Something came between two turns: the next one does not sleep.
    pub(super) came_between: bool,
}

impl Due {
    /// Sets whether the backend [reports](Backend::tells_news) every completion.
    pub(super) fn set_tells_news(&self, tells_news: bool) {
        self.attention.0.tells_news.set(tells_news);
    }

    /// Handles an alarm that expired with this result. Returns false if none was set.
    pub(super) fn note_alarm(&mut self, res: i32) -> bool {
        let was_set = self.alarms > 0;
        self.came_between = true; // within a turn it has no effect
        if was_set {
            self.alarms -= 1;
            let expected = [Errno::TIME, Errno::CANCELED].map(|errno| -errno.raw_os_error());
            self.lacks_alarms |= !expected.contains(&res);
        }
        was_set
    }
}

impl Core {
    /// Records that something waits for the next turn.
    #[inline(always)]
    pub(crate) fn want_turn(&mut self) {
        self.due.wants_turn = true;
        self.due.attention.0.is_due.set(true);
    }

    /// Prepares a turn, which does all waiting work. Work that it has to leave over requests another turn
    /// with [`want_turn`](Core::want_turn): plain calls beyond the budget, a full queue, a refused enter, and
    /// completions beyond those of one turn. Operations that wait for a completion do not.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) {
        self.due.wants_turn = false;
        self.enters.turn_bytes = 0;
        self.lent.begin_turn();
        self.due.attention.0.begin.set(None);
        self.inline.renew();
    }

    /// Updates the attention after a turn.
    #[inline(always)]
    pub(super) fn end_turn(&mut self) {
        self.due.came_between = false;
        self.due
            .attention
            .0
            .is_due
            .set(self.due.wants_turn || self.in_flight > 0 || self.due.alarms > 0);
    }

    /// Returns whether the next turn has work, as far as a few loads from memory tell.
    #[inline(always)]
    pub(crate) fn wants_turn(&self) -> bool {
        self.due.wants_turn || self.backend.has_news()
    }

    /// Returns whether a turn would bring completions, as far as a few loads from memory tell.
    pub(crate) fn has_news(&self) -> bool {
        self.backend.cq_ready() > 0 || self.backend.has_news()
    }

    /// Returns whether at least half of the operations in flight are not submitted yet.
    pub(crate) fn is_mostly_unsubmitted(&self) -> bool {
        let pending = self.backend.sq_pending();
        pending > 0 && pending >= self.in_flight.saturating_sub(pending)
    }

    /// Requests a turn even if there may be no work; see [`Backend::look_again`].
    pub(crate) fn look_again(&self) {
        self.backend.look_again();
    }

    /// See [`Backend::set_alarm`].
    pub(crate) fn set_alarm(&mut self, after: Duration) -> bool {
        let is_set = !self.due.lacks_alarms && self.backend.set_alarm(after);
        self.counters.enters += u64::from(is_set);
        if is_set {
            self.due.alarms += 1;
            self.want_turn(); // the kernel may have refused it
        }
        is_set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alarm_expires_once() {
        let mut due = Due { alarms: 2, ..Due::default() };
        let results =
            [Errno::TIME, Errno::CANCELED, Errno::TIME].map(|errno| -errno.raw_os_error());
        // The third one was not set.
        assert_eq!(results.map(|res| due.note_alarm(res)), [true, true, false]);
        assert_eq!((due.alarms, due.lacks_alarms, due.came_between), (0, false, true));
        due.alarms = 1;
        assert!(due.note_alarm(-Errno::INVAL.raw_os_error()) && due.lacks_alarms);
    }
}
