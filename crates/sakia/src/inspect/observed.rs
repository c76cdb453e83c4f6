//! The loop's part of inspection and warnings.
//!
//! A thread that is neither inspected nor warns has no such state, and only checks for it once per round.
//! Otherwise the loop records the running task and the thread's sleep on the driver's board, measures its
//! turns, and looks for overdue operations before each turn. It sleeps only until the next operation may be
//! overdue; with no operation under way that ends by itself, an idle thread stays idle.
//!
//! A callback may use the runtime: nothing is borrowed while it runs. A warning that comes up meanwhile, in a
//! loop within the callback, is delivered after the callback returns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use sakia_driver::{Doing, Driver, Overdue, TaskOrigin};

use super::inspector::operation;
use super::{Warning, Warnings};
use crate::executor::Local;

/// The state of a thread that is inspected or warns.
pub(crate) struct Observed {
    /// The thread's number.
    thread: usize,
    warnings: Warnings,
    /// Set if the descriptors are those of the process.
    has_paths: bool,
    /// The thread's activity.
    doing: Cell<Doing>,
    turn: Cell<Turn>,
    /// The time at which the next operation may be overdue, on the driver's clock.
    next: Cell<Option<Duration>>,
    /// Warnings not delivered yet, oldest first.
    waiting: RefCell<VecDeque<Warning>>,
    /// Set while a warning is being delivered.
    is_telling: Cell<bool>,
}

/// The polls since the driver's last turn.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// The time at which that turn ended; `None` if the loop has just begun.
    begin: Option<Duration>,
    polls: u32,
    longest: Option<(TaskOrigin, Duration)>,
}

/// Restores the thread's previous activity when its poll ends, by a panic too.
struct Polling<'a> {
    observed: &'a Observed,
    driver: &'a Driver,
    task: TaskOrigin,
    begin: Duration,
    before: Doing,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let Self { observed, driver, task, begin, before } = *self;
        let end = driver.now();
        observed.set_doing(driver, before, end);
        let took = end.saturating_sub(begin);
        let mut turn = observed.turn.get();
        turn.polls = turn.polls.saturating_add(1);
        if turn.longest.is_none_or(|(_, longest)| longest < took) {
            turn.longest = Some((task, took));
        }
        observed.turn.set(turn);
    }
}

impl Observed {
    pub(crate) fn new(thread: usize, warnings: Warnings, has_paths: bool) -> Self {
        Self {
            thread,
            warnings,
            has_paths,
            doing: Cell::new(Doing::Outside),
            turn: Cell::default(),
            next: Cell::new(None),
            waiting: RefCell::default(),
            is_telling: Cell::new(false),
        }
    }

    fn set_doing(&self, driver: &Driver, doing: Doing, now: Duration) {
        self.doing.set(doing);
        driver.set_doing(doing, now);
    }

    /// Polls a task by `run`.
    pub(crate) fn poll<T>(&self, driver: &Driver, task: TaskOrigin, run: impl FnOnce() -> T) -> T {
        let (begin, before) = (driver.now(), self.doing.get());
        let mut turn = self.turn.get();
        turn.begin.get_or_insert(begin);
        self.turn.set(turn);
        self.set_doing(driver, Doing::Task(task), begin);
        let _polling = Polling { observed: self, driver, task, begin, before };
        run()
    }

    /// Gives the driver a turn, as [`Local::drive`] does.
    pub(crate) fn drive(
        &self,
        local: &Local,
        is_busy: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let driver = &local.driver;
        let begin = driver.now();
        self.end_turn(driver, begin);
        let mut found = Vec::new();
        let next = driver.find_overdue(&mut found);
        self.next.set(next.map(|next| begin.saturating_add(next)));
        self.note_overdue(found);
        self.tell();
        // The callback may have woken a task.
        let is_busy = is_busy || local.has_ready();
        let timeout = [timeout, next].into_iter().flatten().min();
        let before = self.doing.get();
        driver.publish();
        self.set_doing(driver, if is_busy { Doing::Loop } else { Doing::Asleep }, begin);
        let result = local.drive(is_busy, timeout);
        let end = driver.now();
        self.set_doing(driver, if before == Doing::Outside { Doing::Loop } else { before }, end);
        driver.publish();
        let took = end.saturating_sub(begin);
        if is_busy && self.warnings.turn_limit().is_some_and(|limit| took >= limit) {
            let call = driver.longest_plain_call().filter(|call| call.took >= took / 2);
            self.note(Warning::Turn { thread: self.thread, took, polls: 0, longest: None, call });
        }
        self.turn.set(Turn { begin: Some(end), ..Turn::default() });
        result
    }

    /// Notes that the loop returns to its caller.
    pub(crate) fn leave(&self, driver: &Driver) {
        let now = driver.now();
        self.end_turn(driver, now);
        self.turn.set(Turn::default());
        self.set_doing(driver, Doing::Outside, now);
        driver.publish();
        self.tell();
    }

    /// Returns how long a foreign loop may sleep before an operation may be overdue.
    pub(crate) fn sleep_limit(&self, driver: &Driver) -> Option<Duration> {
        self.next.get().map(|next| next.saturating_sub(driver.now()))
    }

    /// Ends the turn of the tasks, which have had the thread until `now`.
    fn end_turn(&self, driver: &Driver, now: Duration) {
        let Turn { begin, polls, longest } = self.turn.take();
        let call = driver.longest_plain_call();
        let (Some(begin), Some(limit)) = (begin, self.warnings.turn_limit()) else { return };
        let took = now.saturating_sub(begin);
        if polls > 0 && took >= limit {
            let call = call.filter(|call| call.took >= took / 2);
            self.note(Warning::Turn { thread: self.thread, took, polls, longest, call });
        }
    }

    fn note_overdue(&self, found: Vec<Overdue>) {
        for Overdue { operation: observed, lane, .. } in found {
            let (thread, operation) = (self.thread, operation(&observed, self.has_paths));
            self.note(match lane {
                None => Warning::Operation { thread, operation },
                Some(lane) => Warning::Lane { thread, lane, operation },
            });
        }
    }

    fn note(&self, warning: Warning) {
        if !self.warnings.is_off() {
            self.waiting.borrow_mut().push_back(warning);
        }
    }

    /// Delivers the warnings, with nothing borrowed.
    fn tell(&self) {
        if self.is_telling.replace(true) {
            return;
        }
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            let Some(warning) = next else { break };
            self.warnings.tell(&warning);
        }
        self.is_telling.set(false);
    }
}
