//! A driver that is watched: the records on its board, and the operations that take too long.
//!
//! A driver that is not watched executes nothing of this. Each check on the hot path shares a branch that is
//! there anyway:
//! - the start tests whether anything is special about the driver, such as a kernel that is not trusted to
//!   fill memory;
//! - a push counts down to the next flush: a watched driver stops at each push, and counts it then;
//! - the end tests whether the operation is an orphan or watched: both are flags in the same word.
//!
//! Other checks concern operations that are delayed, given to a thread, dropped or canceled. They test a flag
//! of the slot, which the start has set. So operations that were started before the driver was watched are
//! not on its board.

use std::sync::Arc;
use std::time::Duration;

use super::ages::Ages;
use super::{Core, Phase};
use crate::backend::Backend;
use crate::board::{
    Board, Doing, DriverStatus, Noted, ObservedOperation, OperationState, mark, task_words,
};
use crate::counters::OpKind;
use crate::decide::Lane;
use crate::epoll::StuckWorker;
use crate::operation::{Class, InPlace};
use crate::slab::{SlotRef, flag};

/// The times after which a driver that is [watched](crate::Driver::watch) reports an operation; `None` for
/// never.
///
/// # Examples
/// See [`Driver::watch`](crate::Driver::watch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchLimits {
    /// For an operation that should end by itself, such as a read of a file, and has not.
    pub operation: Option<Duration>,
    /// For an operation that keeps a lane's thread busy, of any class.
    pub lane: Option<Duration>,
}

impl WatchLimits {
    /// Returns limits for operations that end by themselves, and for operations on lanes.
    pub fn new(operation: Option<Duration>, lane: Option<Duration>) -> Self {
        Self { operation, lane }
    }
}

/// An operation that has taken too long. Each is reported once for each limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overdue {
    /// The operation, as of the moment it was found.
    pub operation: ObservedOperation,
    /// The lane whose thread it occupies, if it is reported for that.
    pub lane: Option<Lane>,
}

/// A plain call, and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlainCall {
    /// The kind of its operation.
    pub kind: OpKind,
    /// The descriptor that it named.
    pub descriptor: Option<i32>,
    /// The time from the operation's start, or of a close from the end of the descriptor's last other use, to
    /// its end.
    pub took: Duration,
}

/// The state of the driver's thread beside the board.
#[derive(Debug)]
pub(super) struct Watcher {
    board: Arc<Board>,
    limits: WatchLimits,
    /// The running task, as the words of a record.
    task: [u64; 2],
    /// Operations that end by themselves and have not been reported.
    ages: Ages,
    /// The number of operations that have been pushed since the driver is watched.
    pushes: u64,
    turns: u64,
    /// The longest plain call since the last query.
    longest: Option<PlainCall>,
}

impl Watcher {
    fn change(&self, index: u32, change: impl FnOnce(&mut Noted)) {
        if let Some(mut noted) = self.board.noted(index) {
            change(&mut noted);
            self.board.note(index, &noted);
        }
    }

    /// Reports the operations that have become overdue by `now`. Returns the time until another may become
    /// so.
    fn find_overdue(&mut self, now: Duration, found: &mut Vec<Overdue>) -> Option<Duration> {
        let limit = self.limits.operation?;
        while let Some((index, since)) = self.ages.oldest() {
            let due = since.saturating_add(limit);
            if due > now {
                return Some(due - now);
            }
            self.ages.remove(index);
            let noted = self.board.noted(index);
            found.extend(noted.map(|noted| self.overdue(&noted, None)));
        }
        None
    }

    fn overdue(&self, noted: &Noted, lane: Option<Lane>) -> Overdue {
        Overdue { operation: self.board.observed(noted), lane }
    }
}

impl Core {
    /// Shows the driver's activity on a board from now on, the same board at each call.
    pub(crate) fn watch(&mut self, limits: WatchLimits, is_virtual: bool) -> Arc<Board> {
        if let Some(watcher) = &mut self.watcher {
            watcher.limits = limits;
            return Arc::clone(&watcher.board);
        }
        let board = Arc::new(Board::new(self.now(), is_virtual));
        let watcher = Watcher {
            board: Arc::clone(&board),
            limits,
            task: [0; 2],
            ages: Ages::new(),
            pushes: 0,
            turns: 0,
            longest: None,
        };
        self.watcher = Some(Box::new(watcher));
        self.abilities.is_special = true;
        self.enters.watch();
        self.publish();
        board
    }

    /// Records the start of an operation, if the driver is watched.
    #[cold]
    #[inline(never)]
    pub(super) fn watch_start(&mut self, slot: SlotRef, class: Class) {
        let now = self.now();
        let (user_data, operation) = (self.slab.key(slot).user_data(), self.in_cell(slot));
        let (kind, descriptor) = (operation.kind(), operation.call().descriptor().unwrap_or(-1));
        let Some(watcher) = &mut self.watcher else { return };
        let header = self.slab.header(slot);
        header.flags |= flag::SHOWN;
        let bounded = if class == Class::Bounded { mark::BOUNDED } else { 0 };
        let noted = Noted {
            user_data,
            since: now,
            kind,
            descriptor,
            state: OperationState::Plain,
            marks: mark::PRESENT | bounded,
            push: 0,
            task: watcher.task,
        };
        watcher.board.set_time(now);
        watcher.board.note(header.index, &noted);
        if class == Class::Bounded {
            watcher.ages.push(header.index, now);
        }
    }

    /// Records the push of an entry. Returns true if the driver is watched. Called only where each push
    /// stops.
    pub(super) fn watch_pushed(&mut self, slot: SlotRef) -> bool {
        let index = self.slab.header(slot).index;
        let Some(watcher) = &mut self.watcher else { return false };
        watcher.pushes += 1;
        let push = watcher.pushes;
        watcher.change(index, |noted| {
            (noted.state, noted.push) = (OperationState::Queued, push);
        });
        true
    }

    /// Records the state of an operation that is not in the queue.
    #[inline]
    pub(super) fn watch_state(&mut self, slot: SlotRef, state: OperationState) {
        if self.slab.header(slot).has(flag::SHOWN) {
            self.note_change(slot, |noted| noted.state = state);
        }
    }

    /// Records that an operation was given to a thread of this lane.
    pub(super) fn watch_lane(&mut self, slot: SlotRef, lane: Lane) {
        let header = self.slab.header(slot);
        if !header.has(flag::SHOWN) {
            return;
        }
        let index = header.index;
        let is_remote = self.in_cell(slot).mount().is_some_and(|mount| mount.is_remote);
        // For example the open of a FIFO. A request to a file server is expected to end.
        let may_wait = lane == Lane::Elastic && !is_remote;
        self.note_change(slot, |noted| {
            noted.state = OperationState::Lane(lane);
            if may_wait {
                noted.marks &= !mark::BOUNDED;
            }
        });
        if let Some(watcher) = self.watcher.as_mut().filter(|_| may_wait) {
            watcher.ages.remove(index);
        }
    }

    /// Records that a parked operation continues, and ends by itself from now on.
    pub(super) fn watch_unparked(&mut self, slot: SlotRef) {
        let (class, index) = {
            let header = self.slab.header(slot);
            if !header.has(flag::SHOWN) {
                return;
            }
            (header.class, header.index)
        };
        let now = self.now();
        let bounded = if class == Class::Bounded { mark::BOUNDED } else { 0 };
        self.note_change(slot, |noted| {
            (noted.state, noted.since) = (OperationState::Plain, now);
            noted.marks |= bounded;
        });
        if let Some(watcher) = self.watcher.as_mut().filter(|_| bounded != 0) {
            watcher.ages.push(index, now);
        }
    }

    /// Records that an operation is an orphan, or to be canceled.
    #[inline]
    pub(super) fn watch_mark(&mut self, slot: SlotRef, mark: u8) {
        if self.slab.header(slot).has(flag::SHOWN) {
            self.note_change(slot, |noted| noted.marks |= mark);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_change(&mut self, slot: SlotRef, change: impl FnOnce(&mut Noted)) {
        let (key, index) = (self.slab.key(slot), self.slab.header(slot).index);
        let Some(watcher) = &mut self.watcher else { return };
        watcher.change(index, |noted| {
            // An operation that goes to a thread after all has a new key.
            noted.user_data = key.user_data();
            change(noted);
        });
    }

    /// Records the end of an operation.
    #[cold]
    #[inline(never)]
    pub(super) fn watch_end(&mut self, slot: SlotRef) {
        let now = self.now();
        let index = self.slab.header(slot).index;
        let Some(watcher) = &mut self.watcher else { return };
        watcher.ages.remove(index);
        if let Some(noted) = watcher.board.noted(index) {
            let took = now.saturating_sub(noted.since);
            let is_longer = watcher.longest.is_none_or(|longest| longest.took < took);
            if noted.state == OperationState::Plain && is_longer {
                let descriptor = Some(noted.descriptor).filter(|&raw| raw >= 0);
                watcher.longest = Some(PlainCall { kind: noted.kind, descriptor, took });
            }
        }
        watcher.board.set_time(now);
        watcher.board.clear(index);
    }

    /// Notes the thread's activity from now on, and the task for which operations are started.
    pub(crate) fn set_doing(&mut self, doing: Doing, now: Duration) {
        let Some(watcher) = &mut self.watcher else { return };
        watcher.task = match doing {
            Doing::Task(task) => task_words(Some(task)),
            _ => [0; 2],
        };
        watcher.board.set_doing(doing, now);
    }

    /// Returns the longest plain call since the last query, if the driver is watched.
    pub(crate) fn longest_plain_call(&mut self) -> Option<PlainCall> {
        self.watcher.as_mut()?.longest.take()
    }

    /// Writes the driver's numbers to the board, and the progress of the queue.
    pub(crate) fn publish(&mut self) {
        if self.watcher.is_none() {
            return;
        }
        self.tell_submitted();
        let mut status = self.status();
        if let Some(watcher) = &mut self.watcher {
            watcher.turns += 1;
            status.turns_total = watcher.turns - 1;
            watcher.board.set_status(&status);
        }
    }

    pub(super) fn tell_submitted(&mut self) {
        let pending = u64::from(self.backend.sq_pending());
        if let Some(watcher) = &self.watcher {
            watcher.board.set_submitted(watcher.pushes.saturating_sub(pending));
        }
    }

    /// Returns the driver in numbers, except the number of turns, which only a watched driver counts.
    pub(crate) fn status(&self) -> DriverStatus {
        let backend = &self.backend;
        let (arena_blocks, arena_free) =
            self.lent.arena.as_ref().map_or((0, 0), |arena| arena.numbers());
        let [pool_buffers, pool_provided, pool_free] = self.lent.numbers();
        let (features, [bounded, elastic]) = (&self.abilities.features, backend.figures().lanes);
        let (credits, credits_max) = self.admission.numbers();
        let (cancel_credits, cancel_credits_max) = self.cancels.numbers();
        DriverStatus {
            sq_pending: backend.sq_pending().into(),
            sq_entries: features.sq_entries.into(),
            cq_ready: backend.cq_ready().into(),
            cq_entries: features.cq_entries.into(),
            overflows_total: self.counters.overflows,
            in_flight: self.in_flight.into(),
            live_operations: self.slab.live().into(),
            backlog: self.admission.listed().into(),
            credits,
            credits_max,
            cancel_credits,
            cancel_credits_max,
            arena_blocks,
            arena_free,
            pool_buffers,
            pool_provided,
            pool_free,
            bounded_threads: bounded.threads.into(),
            bounded_threads_max: bounded.threads_max.into(),
            bounded_queued: bounded.queued,
            bounded_running: bounded.running,
            elastic_threads: elastic.threads.into(),
            elastic_threads_max: elastic.threads_max.into(),
            elastic_queued: elastic.queued,
            elastic_running: elastic.running,
            turns_total: 0,
        }
    }

    /// Adds overdue operations to `found`. Returns the time after which another may become overdue.
    pub(crate) fn find_overdue(&mut self, found: &mut Vec<Overdue>) -> Option<Duration> {
        if self.phase == Phase::Stopped || !self.is_intact() {
            return None;
        }
        self.tell_submitted();
        let now = self.now();
        let watcher = self.watcher.as_mut()?;
        watcher.board.set_time(now);
        let next = watcher.find_overdue(now, found);
        let Some(limit) = watcher.limits.lane else { return next };
        let mut stuck = Vec::new();
        let next_stuck = self.backend.find_stuck(limit, &mut stuck);
        for StuckWorker { user_data, lane, .. } in stuck {
            let key = crate::key::Key::from_user_data(user_data);
            let noted = watcher.board.noted(key.index());
            let noted = noted.filter(|noted| noted.user_data == key.user_data());
            found.extend(noted.map(|noted| watcher.overdue(&noted, Some(lane))));
        }
        [next, next_stuck].into_iter().flatten().min()
    }

    /// Marks the driver as ended. The board changes no more.
    pub(crate) fn end_watch(&mut self) {
        let lost = self.slab.slots().filter(|&slot| {
            let header = self.slab.header(slot);
            header.state == crate::slab::SlotState::Lost && header.has(flag::SHOWN)
        });
        let lost: Vec<SlotRef> = lost.collect();
        for slot in lost {
            self.note_change(slot, |noted| noted.state = OperationState::Lost);
        }
        if let Some(watcher) = &self.watcher {
            watcher.board.end();
        }
    }
}
