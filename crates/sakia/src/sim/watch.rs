//! The loop of a runtime on the simulated kernel, which tracks which task waits for which operation.
//!
//! After each poll it looks for operations and timers that were not there before: they belong to the task
//! that was polled, whichever of its futures started them and whatever waker these use. So other backends
//! record nothing, since no test would read it. An operation that is handed to another task stays with the
//! task that started it.
//!
//! Nothing here makes a choice: the loop does the same as that of other backends, but that a round of busy
//! tasks takes some virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sakia_driver::sim::{FlightFacts, SimHandle};
use sakia_driver::{LiveOperation, Stage};

use super::failure::Cause;
use super::waiters::{PendingOperation, TaskFacts, Wait, Waiter, Waiters};
use crate::executor::{Entered, Local};
use crate::mark::Mark;
use crate::runtime::{Leaving, Main};

/// The virtual time of a round of busy tasks in which the kernel had nothing to do. It ends loops that yield
/// until a point in time.
const ROUND: Duration = Duration::from_micros(1);
/// The time limit of [`Watch::settle`], in virtual time.
const SETTLING: Duration = Duration::from_secs(1);

/// The task, or other code, that started an operation or a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The future that the runtime was given to run.
    Body,
    /// The task whose waker has this data address, which is unique until the task ends.
    Task(usize),
    /// The driver itself, or code outside of the runtime.
    Nobody,
}

impl Owner {
    fn of(waker: &Waker) -> Self {
        Self::Task(waker.data().addr())
    }
}

/// Watches a runtime on the simulated kernel.
pub(crate) struct Watch {
    kernel: SimHandle,
    /// The virtual time at which a run is given up.
    pub(super) time_limit: Cell<Duration>,
    seen: RefCell<Seen>,
}

/// The operations and timers that existed at the last look.
#[derive(Default)]
struct Seen {
    /// The number of operations that the driver had started.
    started: u64,
    /// By `user_data`: its owner, and the time of its start.
    operations: BTreeMap<u64, (Owner, Duration)>,
    /// By number and deadline.
    timers: BTreeMap<(u32, Duration), Owner>,
}

impl Watch {
    pub(crate) fn new(kernel: SimHandle) -> Self {
        let time_limit = Cell::new(Duration::MAX);
        Self { kernel, time_limit, seen: RefCell::default() }
    }

    /// Runs `future` and all tasks until it is done.
    pub(crate) fn block_on<F: Future>(
        &self,
        local: &Rc<Local>,
        future: F,
        mark: &Mark,
    ) -> Result<F::Output, Cause> {
        let _entered = Entered::new(local);
        let _leaving = local.observed().map(|observed| Leaving { observed, driver: &local.driver });
        let mut future = pin!(future);
        let main = Main::new(Arc::clone(&local.remote));
        let waker = Waker::from(Arc::clone(&main));
        let mut cx = Context::from_waker(&waker);
        self.look(local, Owner::Nobody);
        loop {
            local.begin_round();
            if main.take_wake() {
                let mut poll = || future.as_mut().poll(&mut cx);
                let poll = match local.observed() {
                    None => poll(),
                    Some(observed) => observed.poll(&local.driver, mark.origin(), poll),
                };
                if let Poll::Ready(output) = poll {
                    return Ok(output);
                }
                self.look(local, Owner::Body);
            }
            let is_busy = self.run_batch(local) || main.is_woken();
            self.drive(local, is_busy, None)?;
            if !is_busy && !main.is_woken() && is_at_rest(local) {
                return Err(Cause::Deadlock(self.waiters(local, true)));
            }
            if self.kernel.now() > self.time_limit.get() {
                return Err(Cause::TimeLimit(self.waiters(local, true)));
            }
        }
    }

    /// Lets tasks go on that are about to end: those that were aborted, and those that only wait for
    /// operations. Gives up when no event is left, or after a while.
    pub(super) fn settle(&self, local: &Rc<Local>) {
        let _entered = Entered::new(local);
        let deadline = self.kernel.now() + SETTLING;
        loop {
            local.begin_round();
            let is_busy = self.run_batch(local);
            let is_settled = local.live_tasks() == 0 && local.driver.live_operations() == 0;
            let left = deadline.saturating_sub(self.kernel.now());
            if is_settled || left.is_zero() || self.drive(local, is_busy, Some(left)).is_err() {
                break;
            }
            if !is_busy && is_at_rest(local) {
                break;
            }
        }
    }

    fn run_batch(&self, local: &Local) -> bool {
        local.run_batch_by(|runnable| {
            let owner = Owner::of(&runnable.waker());
            match local.observed() {
                None => runnable.run(),
                Some(observed) => {
                    let origin = runnable.scheduler().mark.origin();
                    observed.poll(&local.driver, origin, || runnable.run())
                }
            };
            self.look(local, owner);
        })
    }

    fn drive(&self, local: &Local, is_busy: bool, timeout: Option<Duration>) -> Result<(), Cause> {
        let before = self.kernel.now();
        let result = local.drive_by(local.observed(), is_busy, timeout);
        self.look(local, Owner::Nobody);
        if is_busy && self.kernel.now() == before {
            self.kernel.advance(ROUND);
        }
        match result {
            Err(error) if error.kind() == io::ErrorKind::Deadlock => {
                Err(Cause::Deadlock(self.waiters(local, true)))
            }
            Err(error) => Err(Cause::Kernel(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Looks for new operations and timers, and records `owner` as theirs.
    fn look(&self, local: &Local, owner: Owner) {
        let mut seen = self.seen.borrow_mut();
        let started = local.driver.counters().started;
        if mem::replace(&mut seen.started, started) != started {
            let now = self.kernel.now();
            let old = mem::take(&mut seen.operations);
            let keys = local.driver.operations().into_iter().map(|live| live.user_data);
            seen.operations =
                keys.map(|key| (key, *old.get(&key).unwrap_or(&(owner, now)))).collect();
        }
        let timers = local.timers.armed();
        if timers.is_empty() {
            seen.timers.clear();
        } else {
            let old = mem::take(&mut seen.timers);
            seen.timers =
                timers.into_iter().map(|key| (key, *old.get(&key).unwrap_or(&owner))).collect();
        }
    }

    /// Returns the waits of each task now, and those of the body if it has not ended.
    pub(super) fn waiters(&self, local: &Local, with_body: bool) -> Waiters {
        let now = self.kernel.now();
        let mut waits = self.waits(local);
        let mut waiters = Vec::new();
        if with_body {
            let own = take_of(&mut waits, Owner::Body);
            waiters.push(Waiter { task: None, waits: own });
        }
        for (number, waker, spawned_at) in local.listed_tasks() {
            let own = take_of(&mut waits, Owner::of(&waker));
            waiters.push(Waiter { task: Some(TaskFacts { number, spawned_at }), waits: own });
        }
        let orphans = waits.into_iter().filter_map(|(_, wait)| match wait {
            Wait::Operation(operation) => Some(operation),
            Wait::Timer(_) => None,
        });
        Waiters { now, waiters, orphans: orphans.collect() }
    }

    /// Returns all waits, each with its owner unless that no longer waits.
    fn waits(&self, local: &Local) -> Vec<(Owner, Wait)> {
        let (seen, now) = (self.seen.borrow(), self.kernel.now());
        let flights = self.kernel.flights();
        let flight =
            |user_data| flights.iter().find(|flight: &&FlightFacts| flight.user_data == user_data);
        let mut waits = Vec::new();
        for live in local.driver.operations() {
            if matches!(live.stage, Stage::Done | Stage::Lost) {
                continue;
            }
            let (owner, since) =
                *seen.operations.get(&live.user_data).unwrap_or(&(Owner::Nobody, now));
            let owner = if live.is_orphan { Owner::Nobody } else { owner };
            let age = now.saturating_sub(since);
            waits.push((owner, Wait::Operation(pending(&live, flight(live.user_data), age))));
        }
        for (&(_, deadline), &owner) in &seen.timers {
            waits.push((owner, Wait::Timer(deadline.saturating_sub(now))));
        }
        waits
    }
}

/// Returns whether no event is left that could wake a task, not even an operation that the driver starts
/// next.
fn is_at_rest(local: &Local) -> bool {
    let is_queued = |live: LiveOperation| live.stage == Stage::Queued;
    local.is_at_rest() && !local.driver.operations().into_iter().any(is_queued)
}

/// Takes the waits of `owner` out of `waits`, in order.
fn take_of(waits: &mut Vec<(Owner, Wait)>, owner: Owner) -> Vec<Wait> {
    waits.extract_if(.., |(whose, _)| *whose == owner).map(|(_, wait)| wait).collect()
}

/// Combines the driver's facts about an operation with the kernel's, if the kernel has it.
fn pending(live: &LiveOperation, flight: Option<&FlightFacts>, age: Duration) -> PendingOperation {
    let names = flight.map(|flight| &flight.names[..]).unwrap_or_default();
    PendingOperation {
        kind: live.kind,
        descriptor: flight.map_or(live.descriptor, |flight| flight.descriptor),
        names: names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        stage: live.stage,
        is_stuck: flight.is_some_and(|flight| flight.is_stuck),
        age,
    }
}
