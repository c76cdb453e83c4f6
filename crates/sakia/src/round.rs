//! When a round of tasks is over, so that the driver gets its turn and timers are looked at.
//!
//! A round polls at most [`ROUND_MAX`] tasks. It ends earlier when something is to be heard: a completion, a
//! timer, a task or a wake from another thread; or when a task has started something that is not submitted.
//! How soon:
//! 1. After each poll a few loads tell whether anything is. A clock would cost as much as the poll of a task
//!    that only yields.
//! 2. If so, the round ends once it has taken [`ROUND_TIME`], which the clock is asked for; or, where
//!    something has come, after [`HEARING_MAX`] polls.
//! 3. Those loads tell of a due timer where the driver can set an [alarm](Driver::set_alarm): on the ring a
//!    timeout of the kernel, which sets `IORING_SQ_TASKRUN`. It is set only in a round of more than
//!    [`LOOKS_MAX`] polls or plain calls; before, the clock is read after each poll. So threads that wait a
//!    lot and work little set none.
//! 4. Epoll tells nothing without a call. There the clock is read every few polls: after each one while polls
//!    take long, else less and less often, up to every [`STRIDE_MAX`]th.
//!
//! 5. A poll may go on for long by itself: a task asks for one operation after the other, each of which is
//!    done at once as a plain call, and works in between. So the driver makes no more such calls once a
//!    round has taken as long, see [`Attention::begin_tasks`]; then the task waits.
//!
//! So whatever waits is heard at most [`ROUND_TIME`] and one poll late; on epoll, where polls that took less
//! than [`LONG_POLL`] are followed by longer ones, at most [`STRIDE_MAX`] of these late. The same holds for
//! plain calls between which a poll begins to work long, on the ring only while neither its completions nor
//! an alarm tell.
//!
//! Futures that poll several of their own let one of these run in each of their polls, and others until the
//! round is over; see [`Siblings`]. The future that `block_on` runs comes before the tasks, and is one poll
//! more.
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
use sakia_driver::wake_all;

use crate::executor::{Local, with_current};

/// Tasks polled in one round.
pub(crate) const ROUND_MAX: u32 = 256;
/// Tasks polled after which what has come is heard, whatever they take.
const HEARING_MAX: u32 = 32;
/// How long a round lasts, at least, if there is a reason to end it.
const ROUND_TIME: Duration = Duration::from_micros(500);
/// Looks at the clock in one round for the sake of timers, before the kernel is asked to tell.
const LOOKS_MAX: u32 = 8;
/// Polls between two looks at the clock, at most, on a backend that tells nothing.
const STRIDE_MAX: u32 = 32;
/// Polls that take longer make the clock be read after each.
const LONG_POLL: Duration = Duration::from_micros(4);

/// The round of one runtime thread.
#[derive(Default)]
pub(crate) struct Round {
    /// When it began.
    begin: Cell<Duration>,
    /// The number of polls between two looks at the clock, if the driver reports no completions. It outlives
    /// the round.
    stride: Cell<u32>,
}

/// The progress of a round.
pub(crate) struct Progress {
    /// Tasks polled.
    polls: u32,
    /// After how many the clock is read at the latest.
    next_look: u32,
    /// When it was read last on a backend that tells nothing, and after how many polls.
    looked: (Duration, u32),
    /// The number of times it was read for the sake of timers.
    looks: u32,
}

impl Local {
    /// A round begins: what has come from timers and other threads is heard now. What comes from now on is
    /// a reason to end the round, for the future that `block_on` runs as well, which is polled before tasks.
    pub(crate) fn begin_round(&self) {
        self.fire_timers();
        self.take_mail();
        self.begin_tasks();
    }

    /// The future that `block_on` runs was polled: the tasks have the time of a round to themselves.
    pub(crate) fn begin_tasks(&self) {
        let now = self.work_clock();
        self.round.begin.set(now);
        self.attention.begin_tasks(now);
    }

    /// Tasks are about to be polled.
    #[inline]
    pub(crate) fn begin_polls(&self) -> Progress {
        let next_look = if self.tells_news { ROUND_MAX } else { 1 };
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

    /// The same with a clock.
    #[cold]
    #[inline(never)]
    fn look(&self, progress: &mut Progress) -> bool {
        if progress.polls >= ROUND_MAX {
            return true;
        }
        let has_come = self.driver.has_news() || self.remote.has_mail();
        if progress.polls >= HEARING_MAX && has_come {
            return true;
        }
        let now = self.work_clock();
        if now.saturating_sub(self.round.begin.get()) >= ROUND_TIME {
            self.driver.look_again();
            return true;
        }
        if !self.tells_news {
            self.stride(progress, now);
            return self.is_timer_due();
        }
        if self.timers.is_unwatched() {
            if self.is_timer_due() {
                return true;
            }
            progress.looks += 1;
            if progress.looks >= LOOKS_MAX || self.driver.plain_calls() >= LOOKS_MAX {
                self.watch_timers();
                progress.looks = 0;
            }
        }
        false
    }

    /// Says when the clock is read next.
    fn stride(&self, progress: &mut Progress, now: Duration) {
        let (looked, polls) = progress.looked;
        progress.looked = (now, progress.polls);
        let taken = now.saturating_sub(looked);
        let is_long = taken >= LONG_POLL * (progress.polls - polls);
        let longer = (self.round.stride.get() * 2).clamp(1, STRIDE_MAX);
        self.round.stride.set(if is_long { 1 } else { longer });
        progress.next_look = ROUND_MAX.min(progress.polls + self.round.stride.get());
    }
}

/// Returns whether the round of the calling thread's runtime has taken long enough, and has a reason to end:
/// for futures that poll several of their own. False outside of a runtime.
pub(crate) fn is_over() -> bool {
    with_current(|local| {
        let may_be = !local.tells_news || local.wants_turn();
        may_be && local.work_clock().saturating_sub(local.round.begin.get()) >= ROUND_TIME
    })
    .unwrap_or(false)
}

/// The state that the children of one future share. When the round is over, those that have not had their
/// turn let go; in the next poll of their parent they come first, in the same order, whichever are woken
/// before.
#[derive(Default)]
pub(crate) struct Siblings {
    /// Set if a child was polled in this poll of the parent.
    has_polled: Cell<bool>,
    /// How many that let go before are still to be polled in this poll of the parent, or let go again.
    owed: Cell<usize>,
    /// The wakers of those that let go again, oldest first.
    again: RefCell<Vec<Waker>>,
    /// The same of those that have been polled since.
    once: RefCell<Vec<Waker>>,
}

impl Siblings {
    /// The parent is about to poll its children.
    pub(crate) fn begin(&self) {
        self.has_polled.set(false);
        let mut waiting = self.again.take();
        waiting.append(&mut self.once.borrow_mut());
        self.owed.set(waiting.len());
        wake_all(waiting); // those of a set of futures, the first of which may wake the parent
    }

    /// Returns whether some have let go, so that the parent has to be polled again.
    pub(crate) fn have_let_go(&self) -> bool {
        !(self.again.borrow().is_empty() && self.once.borrow().is_empty())
    }

    /// Returns whether a child lets go instead of being polled. `has_let_go` says whether it did last time.
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
    /// One of several futures that are polled by one: lets go when the round is over.
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
