//! A cheap check whether the next turn has something to do, for busy loops that ask after each poll of a
//! task.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;

use super::Core;
use crate::backend::Backend;

/// Tells, at the price of one load, whether a driver may have something to do; see [`Driver::attention`].
///
/// [`Driver::attention`]: crate::Driver::attention
#[derive(Clone, Debug, Default)]
pub struct Attention(Rc<Shared>);

/// The state shared by a driver and the loop around it.
#[derive(Debug, Default)]
struct Shared {
    is_due: Cell<bool>,
    /// Since when tasks are polled, on the backend's clock. `None` during a turn and until the loop says so.
    begin: Cell<Option<Duration>>,
}

impl Attention {
    /// False while nothing is in flight, nothing waits for a turn, and no alarm is set.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.0.is_due.get()
    }

    /// Tells the driver that tasks are polled since `now`, the [backend's time](crate::Driver::now). Once they
    /// have taken half a millisecond nothing more is done as a plain call until the next turn, so that a task
    /// waits which starts one operation after the other and works in between. The clock is not read before
    /// each call: where many were close to each other, up to 32 more may be late.
    #[inline(always)]
    pub fn begin_tasks(&self, now: Duration) {
        self.0.begin.set(Some(now));
    }

    #[inline(always)]
    pub(super) fn begin(&self) -> Option<Duration> {
        self.0.begin.get()
    }
}

/// Why there may be something to do.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Something waits for the next turn: an entry, an operation or a request to cancel.
    wants_turn: bool,
    /// False while neither `wants_turn` nor the backend can have anything new.
    pub(crate) attention: Attention,
    /// Alarms that were set and have not been told of.
    alarms: u32,
    /// The backend's alarms are not to be relied upon.
    lacks_alarms: bool,
    /// Another thread may wake this one, so that there is something to wait for with nothing in flight.
    pub(crate) can_be_woken: bool,
}

impl Due {
    /// An alarm has told of itself with this result. False when none was set.
    pub(super) fn note_alarm(&mut self, res: i32) -> bool {
        let was_set = self.alarms > 0;
        if was_set {
            self.alarms -= 1;
            let expected = [Errno::TIME, Errno::CANCELED].map(|errno| -errno.raw_os_error());
            self.lacks_alarms |= !expected.contains(&res);
        }
        was_set
    }
}

impl Core {
    /// Something waits for the next turn.
    #[inline(always)]
    pub(crate) fn want_turn(&mut self) {
        self.due.wants_turn = true;
        self.due.attention.0.is_due.set(true);
    }

    /// Before a turn, which does all that it was wanted for. What it has to leave over asks for another with
    /// [`want_turn`](Core::want_turn): plain calls without inline_budget, a full queue, an enter that was refused,
    /// and completions beyond those of one turn. What waits for a completion does not.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) {
        self.due.wants_turn = false;
        self.due.attention.0.begin.set(None);
        self.inline.renew();
    }

    /// After a turn.
    #[inline(always)]
    pub(super) fn end_turn(&mut self) {
        self.due
            .attention
            .0
            .is_due
            .set(self.due.wants_turn || self.in_flight > 0 || self.due.alarms > 0);
    }

    /// Returns whether the next turn has something to do, as far as a few loads from memory tell.
    #[inline(always)]
    pub(crate) fn wants_turn(&self) -> bool {
        self.due.wants_turn || self.backend.has_news()
    }

    /// Returns whether a turn would bring completions, as far as a few loads tell.
    pub(crate) fn has_news(&self) -> bool {
        self.backend.cq_ready() > 0 || self.backend.has_news()
    }

    /// A turn is to be taken though there may be nothing to do; see [`Backend::look_again`].
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
