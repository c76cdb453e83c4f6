//! The end of a round of tasks, after which the driver has its turn and timers are checked.
//!
//! A round polls at most [`ROUND_TASKS`] tasks. It ends earlier when an event has arrived (a completion, a
//! timer, a task or a wake from another thread) or when a task has started an operation that is not submitted
//! yet. How soon:
//! 1. After each poll a few loads tell whether there is such a reason. Reading the clock would cost as much
//!    as the poll of a task that only yields.
//! 2. If there is, the round ends once it has taken [`ROUND_TIME`] by the clock; or, if an event has arrived,
//!    after [`HEARING_POLLS`] polls. If the only reason is an operation to submit, the clock is read after 1,
//!    2, 4 and so on polls, up to every [`POLLS_STRIDE`]th; and [`SUBMIT_TIME`] is enough if the kernel has
//!    no more operations than wait to be submitted, so that a device works while tasks compute.
//! 3. These loads also show a due timer where the driver can set an [alarm](Driver::set_alarm): on the ring a
//!    timeout of the kernel, which sets `IORING_SQ_TASKRUN`. The alarm is set after
//!    [`CLOCK_LOOKS`] polls with an unwatched timer, or in a turn of as many plain calls; before that the
//!    clock is read after each poll. So threads that wait a lot and work little set no alarm.
//! 4. Epoll reports nothing without a system call. There the clock is read every few polls: after each one
//!    while polls take long, else less and less often, up to every [`POLLS_STRIDE`]th.
//! 5. A single poll may go on for long: the task starts one operation after another, each of which is done at
//!    once as a plain call, and works in between. So the driver makes no more such calls once a round has
//!    taken as long, see [`Attention::begin_tasks`]; the task's next operation then waits.
//!
//! So an event is handled at most [`ROUND_TIME`] and one poll late; on epoll, if polls that took less than
//! [`LONG_POLL`] are followed by longer ones, at most [`POLLS_STRIDE`] of the longer ones late. The same
//! holds for plain calls between which a poll begins to work long, on the ring only if neither completions
//! nor an alarm show. An operation is submitted after at most twice as many polls as take [`ROUND_TIME`].
//!
//! A future that polls several children lets at least one of them run in each of its polls, and more until
//! the round is over; see [`Siblings`]. The future that `block_on` runs comes before the tasks, and is one
//! poll more.
//!
//! [`Driver::set_alarm`]: sakia_driver::Driver::set_alarm
//! [`Attention::begin_tasks`]: sakia_driver::Attention::begin_tasks

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project_lite::pin_project;
use sakia_driver::limits::{
    CLOCK_LOOKS, HEARING_POLLS, LONG_POLL, POLLS_STRIDE, ROUND_TASKS, ROUND_TIME, SUBMIT_TIME,
};
use sakia_driver::wake_all;

use crate::executor::{Local, with_current};

/// The round of one runtime thread.
#[derive(Default)]
pub(crate) struct Round {
    /// The time at which it began.
    begin: Cell<Duration>,
    /// The number of polls between two looks at the clock, if the driver reports no completions. It outlives
    /// the round.
    stride: Cell<u32>,
}

/// The progress of a round.
pub(crate) struct Progress {
    /// Tasks polled.
    polls: u32,
    /// The number of polls after which the clock is read at the latest.
    next_look: u32,
    /// The time of the last reading of the clock, on a backend that reports nothing without a system call,
    /// and the number of polls before it.
    looked: (Duration, u32),
    /// The number of times the clock was read for timers.
    looks: u32,
}

impl Local {
    /// Begins a round: events so far are handled now. Later events are a reason to end the round, also for
    /// the future that `block_on` runs, which is polled before tasks.
    pub(crate) fn begin_round(&self) {
        self.fire_timers();
        self.take_mail();
        self.begin_tasks();
    }

    /// Begins the tasks of a round, after the future that `block_on` runs: they have the time of a round to
    /// themselves.
    pub(crate) fn begin_tasks(&self) {
        let now = self.work_clock();
        self.round.begin.set(now);
        self.attention.begin_tasks(now);
    }

    /// Begins the polls of tasks.
    #[inline]
    pub(crate) fn begin_polls(&self) -> Progress {
        let next_look = if self.attention.tells_news() { ROUND_TASKS } else { 1 };
        Progress { polls: 0, next_look, looked: (self.round.begin.get(), 0), looks: 0 }
    }

    /// Notes that a task was polled. Returns whether the round is over.
    #[inline(always)]
    pub(crate) fn is_round_over(&self, progress: &mut Progress) -> bool {
        progress.polls += 1;
        let may_be = progress.polls >= progress.next_look || self.wants_turn();
        may_be && self.look(progress)
    }

    /// Returns whether completions are to be handled or operations submitted, as far as a few loads tell.
    #[inline(always)]
    fn wants_turn(&self) -> bool {
        self.attention.is_due() && self.driver.wants_turn()
            || self.remote.has_mail()
            || self.timers.is_unwatched()
    }

    /// Returns whether the round is over, by counts and by the clock.
    #[cold]
    #[inline(never)]
    fn look(&self, progress: &mut Progress) -> bool {
        if progress.polls >= ROUND_TASKS {
            return true;
        }
        let has_come = self.driver.has_news() || self.remote.has_mail();
        if progress.polls >= HEARING_POLLS && has_come {
            return true;
        }
        let is_between =
            !progress.polls.is_power_of_two() && !progress.polls.is_multiple_of(POLLS_STRIDE);
        if is_between && self.attention.tells_news() && !has_come && !self.timers.is_unwatched() {
            return false;
        }
        let now = self.work_clock();
        let taken = now.saturating_sub(self.round.begin.get());
        if taken >= ROUND_TIME {
            self.driver.look_again();
            return true;
        }
        if taken >= SUBMIT_TIME
            && self.attention.tells_news()
            && self.driver.is_mostly_unsubmitted()
        {
            return true;
        }
        if !self.attention.tells_news() {
            self.stride(progress, now);
            return self.is_timer_due();
        }
        if self.timers.is_unwatched() {
            if self.is_timer_due() {
                return true;
            }
            progress.looks += 1;
            if progress.looks >= CLOCK_LOOKS || self.driver.plain_calls() >= CLOCK_LOOKS {
                self.watch_timers();
                progress.looks = 0;
            }
        }
        false
    }

    /// Sets when the clock is read next.
    fn stride(&self, progress: &mut Progress, now: Duration) {
        let (looked, polls) = progress.looked;
        progress.looked = (now, progress.polls);
        let taken = now.saturating_sub(looked);
        let stride = next_stride(self.round.stride.get(), taken, progress.polls - polls);
        self.round.stride.set(stride);
        progress.next_look = ROUND_TASKS.min(progress.polls + stride);
    }
}

/// Returns after how many polls the clock is read next: rarely as long as polls are short. `polls` of them
/// have taken this long since the last look, `stride` polls before.
fn next_stride(stride: u32, taken: Duration, polls: u32) -> u32 {
    let is_long = taken >= LONG_POLL * polls;
    let longer = (stride * 2).clamp(1, POLLS_STRIDE);
    if is_long { 1 } else { longer }
}

/// Returns whether the round of the calling thread's runtime has taken long enough, and has a reason to end:
/// for futures that poll several of their own. False outside of a runtime.
pub(crate) fn is_over() -> bool {
    with_current(|local| {
        let may_be = !local.attention.tells_news() || local.wants_turn();
        may_be && local.work_clock().saturating_sub(local.round.begin.get()) >= ROUND_TIME
    })
    .unwrap_or(false)
}

/// The state that the children of one future share. When the round is over, those that have not been polled
/// yet let go: they give up this poll. In the next poll of their parent they come first, in the same order,
/// whichever children are woken before.
#[derive(Default)]
pub(crate) struct Siblings {
    /// Set if a child was polled in this poll of the parent.
    has_polled: Cell<bool>,
    /// The number of children that let go before and are still to be polled in this poll of the parent, or
    /// let go again.
    owed: Cell<usize>,
    /// The wakers of children that let go again, oldest first.
    again: RefCell<Vec<Waker>>,
    /// The wakers of children that let go after having been polled, oldest first.
    once: RefCell<Vec<Waker>>,
}

impl Siblings {
    /// Begins a poll of the parent.
    pub(crate) fn begin(&self) {
        self.has_polled.set(false);
        let mut waiting = self.again.take();
        waiting.append(&mut self.once.borrow_mut());
        self.owed.set(waiting.len());
        wake_all(waiting); // wakers in a set of futures: the first may wake the parent
    }

    /// Returns whether children have let go, so that the parent has to be polled again.
    pub(crate) fn have_let_go(&self) -> bool {
        !(self.again.borrow().is_empty() && self.once.borrow().is_empty())
    }

    /// Returns whether a child lets go instead of being polled. `has_let_go` says whether it did so last
    /// time.
    fn let_go(&self, has_let_go: bool, waker: &Waker) -> bool {
        let owed = self.owed.get().saturating_sub(usize::from(has_let_go));
        self.owed.set(owed);
        let lets_go = !has_let_go && owed > 0 || self.has_polled.get() && is_over();
        if lets_go {
            let list = if has_let_go { &self.again } else { &self.once };
            list.borrow_mut().push(waker.clone());
        } else {
            self.has_polled.set(true);
        }
        lets_go
    }
}

pin_project! {
    /// One of several children of a future: lets go when the round is over.
    pub(crate) struct Child<F> {
        #[pin]
        future: F,
        siblings: Rc<Siblings>,
        has_let_go: bool,
    }
}

impl<F> Child<F> {
    pub(crate) fn new(future: F, siblings: &Rc<Siblings>) -> Self {
        Self { future, siblings: Rc::clone(siblings), has_let_go: false }
    }
}

impl<F: Future> Future for Child<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        *this.has_let_go = this.siblings.let_go(*this.has_let_go, cx.waker());
        if *this.has_let_go {
            return Poll::Pending;
        }
        this.future.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_read_rarely_only_while_polls_are_short() {
        let mut stride = 1;
        for expected in [2, 4, 8, 16, POLLS_STRIDE, POLLS_STRIDE] {
            stride = next_stride(stride, LONG_POLL * stride - Duration::from_nanos(1), stride);
            assert_eq!(stride, expected);
        }
        assert_eq!(next_stride(stride, LONG_POLL * stride, stride), 1);
    }
}
