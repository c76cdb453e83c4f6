//! The bypass: operations performed by plain calls or by threads instead of the queue.
//! [`decide`](crate::decide) decides which.

use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, CqeFlags, Sqe};

use super::plain::PlainCalls;
use super::trace::Delay;
use super::{Core, Phase};
use crate::backend::{Backend, Destination, Features, Takes};
use crate::board::OperationState;
use crate::call::{Buffers, Call, Function, System, Transfer};
use crate::counters::OpKind;
use crate::decide::{
    Attempt, CallMode, Crowd, CrowdFigures, InlineBudget, Lane, Mount, Retry, Route, Rules, Timing,
    limits,
};
use crate::operation::{Class, Completion, InCell, InPlace};
use crate::slab::{List, Slab, SlotRef, SlotState, flag};
use crate::sys::abi;

/// Rules for attempts before the queue, and the budget for plain calls.
pub(crate) struct Inline {
    /// Those that perform operations instead of the backend.
    pub(super) calls: PlainCalls,
    /// The rules that select the operations to try.
    pub(crate) rules: Rules,
    /// This turn's remaining budget of plain calls.
    budget: InlineBudget,
    /// Turns that a task has waited for and not used yet. Each permits one file to be read as a whole.
    reserved: u32,
    /// Operations that wait for the next turns' plain calls.
    deferred: List,
    /// The end of the last timed call of this turn.
    timed_until: Option<Duration>,
    /// The way of the operations for which a turn has not enough plain calls.
    crowd: Crowd,
}

impl Inline {
    pub(super) fn new(learns: bool, calls: PlainCalls) -> Self {
        Self {
            calls,
            rules: Rules::NONE,
            budget: InlineBudget::new(),
            reserved: 0,
            deferred: List::new(),
            timed_until: None,
            crowd: Crowd::new(learns),
        }
    }

    /// Sets whether the way of crowds is learned.
    pub(super) fn learn(&mut self, learns: bool) {
        self.crowd = Crowd::new(learns);
    }

    /// Begins a turn.
    #[inline(always)]
    pub(super) fn renew(&mut self) {
        if self.budget.is_crowded() {
            self.end_crowd();
        }
        self.budget.renew();
        self.reserved = self.reserved.min(limits::RESERVED_MAX);
        self.timed_until = None;
    }

    /// Ends a turn with a crowd, or one after such turns.
    #[cold]
    #[inline(never)]
    fn end_crowd(&mut self) {
        let (crowd, waited) = (self.budget.crowd(), self.crowd.waits());
        let is_crowd = crowd.is_some() || waited && !self.deferred.is_empty();
        if is_crowd && !self.budget.is_late() {
            let queued = if waited { 0 } else { crowd.unwrap_or(0) };
            let count = self.budget.spent() + queued;
            self.crowd.end_turn(count, || self.calls.processor_time());
        } else {
            self.crowd.interrupt();
        }
        if self.crowd.waits() {
            self.budget.fill();
        } else if crowd.is_some() {
            self.budget.shrink();
        }
        self.budget.watch(self.crowd.is_active());
    }

    /// Counts an operation that has no budget. Returns whether it waits for the next turns; otherwise it goes
    /// to the queue.
    #[inline(always)]
    pub(super) fn crowded(&mut self) -> bool {
        self.budget.crowded();
        self.crowd.waits()
    }

    /// Returns the way of crowds and its measured costs.
    pub(crate) fn crowd_figures(&self) -> CrowdFigures {
        self.crowd.figures()
    }

    /// Returns the first operation that waits.
    pub(super) fn first_deferred(&self) -> Option<SlotRef> {
        self.deferred.first()
    }

    /// Removes an operation from the waiting ones.
    pub(super) fn undefer(&mut self, slab: &mut Slab, slot: SlotRef) {
        self.deferred.remove(slab, slot);
    }
}

/// Tells which operations the queue takes, and which go to threads.
#[derive(Debug)]
pub(super) struct Abilities {
    /// Those that the backend has named.
    pub(super) features: Features,
    /// Set if the start of an operation has extra work: the backend does not fill, the driver is watched, or
    /// it takes no more operations.
    pub(super) is_special: bool,
    /// Set if the backend has no threads beside its queue.
    lacks_lanes: bool,
    /// Set once operations were given to threads, or to an epoll set, beside the queue.
    pub(super) uses_lanes: bool,
}

impl Abilities {
    pub(super) fn of(features: Features) -> Self {
        let is_special = !features.fills_what_it_reports;
        Self { features, is_special, lacks_lanes: false, uses_lanes: false }
    }

    /// Adapts to a backend that was set up for a driver which is watched already, or not.
    pub(super) fn fit(&mut self, features: Features) {
        *self = Self { is_special: self.is_special, ..Self::of(features) };
    }

    /// Returns whether a lane performs this operation because the queue cannot.
    #[inline(always)]
    pub(super) fn is_for_lanes(&self, class: Class, kind: OpKind, sqe: &Sqe) -> bool {
        if matches!(kind, OpKind::Read | OpKind::Write) {
            return sqe.off == CURRENT_POSITION && self.is_position_for_lanes(class);
        }
        let index = usize::from(sqe.opcode.0);
        self.features.for_lanes[index / 64] >> (index % 64) & 1 != 0
    }

    /// Returns whether a lane performs transfers at a file's own position. A ring would not take the kernel's
    /// lock on that (`f_pos_lock`), and does not update the position if the transfer completes later than its
    /// submission, such as with direct I/O.
    #[cold]
    pub(super) fn is_position_for_lanes(&self, class: Class) -> bool {
        class == Class::Bounded && !self.lacks_lanes
    }
}

/// Returns the number of bytes with which a plain call is charged. A result need not be a count; an entry of
/// a directory costs more than copying it, and a byte that is not copied a quarter as much.
#[inline(always)]
fn bytes_moved(kind: OpKind, res: i32) -> u32 {
    match kind {
        OpKind::Read | OpKind::Write | OpKind::Send | OpKind::List => {
            u32::try_from(res).unwrap_or(0)
        }
        OpKind::SendFile => res.max(0) as u32 / 4,
        _ => 0,
    }
}

impl Core {
    /// Performs an operation by plain calls. Returns `None` if it has to go into the queue.
    #[inline(always)]
    pub(super) fn perform(
        &mut self,
        mut mode: CallMode,
        operation: impl InPlace,
    ) -> Option<Completion> {
        if !self.backend.is_intact() {
            return None;
        }
        let (kind, call) = (operation.kind(), operation.call());
        loop {
            let timed = if mode == CallMode::Blocking { operation.mount() } else { None };
            let attempt = match timed {
                None => {
                    // SAFETY: the call names memory and descriptors that the operation owns (its
                    // promise), which stays where it is until the call is over.
                    unsafe { self.inline.calls.try_now(call, mode) }
                }
                // SAFETY: as above.
                Some(mount) => unsafe { self.try_timed(call, &mount) }?,
            };
            match operation.classify(mode, attempt) {
                Retry::No => {
                    let Attempt::Done(res) = attempt else { return None };
                    if call.makes_socket() && res >= 0 {
                        // SAFETY: it was just made for this operation, which owns it.
                        unsafe { self.backend.note_socket(res) };
                    }
                    self.inline.budget.spend(bytes_moved(kind, res));
                    self.counters.kinds[kind as usize].inline += 1;
                    return Some(Completion::of(res, CqeFlags(0)));
                }
                Retry::InQueue => {
                    // A refused call counts as one, too.
                    self.inline.budget.spend(0);
                    let refused = attempt == Attempt::WouldBlock;
                    self.counters.kinds[kind as usize].would_block += u64::from(refused);
                    return None;
                }
                Retry::Call(other) => mode = other,
            }
        }
    }

    /// Makes a plain call that may wait on this mount, and times it. Returns `None` while the mount's breaker
    /// is open.
    ///
    /// # Safety
    ///
    /// - As for [`Calls::try_now`](crate::Calls::try_now).
    #[inline(always)]
    unsafe fn try_timed(&mut self, call: Call, mount: &Mount) -> Option<Attempt> {
        let (backend, calls, breaker) = (&self.backend, &self.inline.calls, &mount.breaker);
        if breaker.is_open() && !breaker.may_try_again(backend.now()) {
            return None;
        }
        // Usually one reading of the clock suffices: only this call was made since the previous reading.
        let watched = breaker.is_suspicious().then(|| calls.waits());
        let begin = self.inline.timed_until.filter(|_| watched.is_none());
        let begin = begin.unwrap_or_else(|| backend.now());
        // SAFETY: the caller's duties are the same.
        let attempt = unsafe { calls.try_now(call, CallMode::Blocking) };
        let end = backend.now();
        self.inline.timed_until = Some(end);
        let has_waited = watched.map(|before| calls.waits() != before);
        breaker.note(Timing { end, took: end.saturating_sub(begin), has_waited });
        Some(attempt)
    }

    /// Returns whether the rules and this turn allow plain calls of all these kinds.
    pub(crate) fn may_act_now(&mut self, kinds: &[OpKind]) -> bool {
        let is_running = self.phase == Phase::Running && self.is_intact();
        if !is_running || !kinds.iter().all(|&kind| self.inline.rules.of(kind).tries_now) {
            return false;
        }
        let is_granted = !self.has_inline_budget() && self.inline.reserved > 0;
        self.inline.reserved -= u32::from(is_granted);
        is_granted || self.inline.budget.is_any_left()
    }

    /// Makes a plain call that belongs to no slot.
    ///
    /// # Safety
    ///
    /// - As for [`Calls::try_now`](crate::Calls::try_now).
    pub(crate) unsafe fn act_now(&mut self, kind: OpKind, call: Call, mode: CallMode) -> Attempt {
        // SAFETY: the caller's duties are the same.
        let attempt = unsafe { self.inline.calls.try_now(call, mode) };
        self.note_act(kind, attempt);
        attempt
    }

    /// Makes such a call, which may block on this mount. Does nothing while the mount's breaker is open.
    ///
    /// # Safety
    ///
    /// - As for [`Calls::try_now`](crate::Calls::try_now).
    pub(crate) unsafe fn act_timed(&mut self, kind: OpKind, call: Call, mount: &Mount) -> Attempt {
        // SAFETY: the caller's duties are the same.
        let attempt = unsafe { self.try_timed(call, mount) }.unwrap_or(Attempt::Unsupported);
        self.note_act(kind, attempt);
        attempt
    }

    fn note_act(&mut self, kind: OpKind, attempt: Attempt) {
        let counters = &mut self.counters.kinds[kind as usize];
        match attempt {
            Attempt::Done(_) => counters.inline += 1,
            Attempt::WouldBlock => counters.would_block += 1,
            Attempt::Unsupported => {}
        }
        self.inline.budget.spend(match attempt {
            Attempt::Done(res) => bytes_moved(kind, res),
            Attempt::WouldBlock | Attempt::Unsupported => 0,
        });
    }

    /// Charges the budget with `count` further plain calls, for one call that did the work of several.
    pub(crate) fn spend_calls(&mut self, count: usize) {
        (0..count).for_each(|_| self.inline.budget.spend(0));
    }

    /// Returns whether the queue takes entries, whose fate no call of this process shows.
    pub(crate) fn takes_entries(&self) -> bool {
        self.abilities.features.takes == Takes::Entries
    }

    /// Returns whether the backend makes a call for each operation, so that a plain call saves it the rest.
    pub(crate) fn makes_calls(&self) -> bool {
        self.abilities.features.takes == Takes::Calls
    }

    /// Returns whether the bytes that a backend reports as read were written; see
    /// [`Features::fills_what_it_reports`].
    pub(crate) fn fills(&self) -> bool {
        self.abilities.features.fills_what_it_reports
    }

    /// Returns the size of an open regular file, and moves the file's position to its end. `None` if the size
    /// cannot be told at once, or is more than a completion tells. `lseek(2)` is the cheapest call for it.
    ///
    /// # Safety
    ///
    /// - The descriptor is open and the caller's own, so that the position moved is no other owner's.
    pub(crate) unsafe fn size_now(&self, raw: i32) -> Option<u64> {
        let call = System::on(Function::Lseek, raw, [0, abi::SEEK_END as usize]);
        // SAFETY: the caller's duties are the same.
        let size = unsafe { self.inline.calls.try_now(call, CallMode::Blocking) }.done()?;
        u64::try_from(size).ok().filter(|&size| size < i32::MAX as u64)
    }

    /// Returns whether the queue performs this operation as cheaply as plain calls do, in a large batch.
    #[inline(never)]
    pub(super) fn batches_well(&mut self, slot: SlotRef) -> bool {
        let operation = self.in_cell(slot);
        let is_small = match operation.call() {
            Call::Transfer(Transfer { buffers: Buffers::One { len, .. }, .. }) => {
                len <= limits::UNIT_BYTES
            }
            // The call tells the number of parts, not their size.
            Call::Transfer(_) => false,
            // A ring hands an open that may create a file to a worker.
            Call::Open(open) => !open.creates(),
            _ => true,
        };
        is_small && self.abilities.features.batches_well >> operation.kind() as u32 & 1 != 0
    }

    /// Returns the operation that a slot holds, whose type is unknown here.
    pub(crate) fn in_cell(&mut self, slot: SlotRef) -> InCell {
        let vtable = self.slab.header(slot).vtable.expect("the slot holds an operation");
        // SAFETY: the cell holds a live operation of the table's type, the driver's alone. The caller does
        // not keep the value beyond its next use of the operation.
        unsafe { InCell::new(vtable, slot.cell()) }
    }

    /// Performs an operation that was parked, or queues it for the next turns or for the kernel.
    pub(super) fn go_on(&mut self, slot: SlotRef) {
        self.watch_unparked(slot);
        let operation = self.in_cell(slot);
        match operation.route(&self.inline.rules) {
            Route::Now(_) if !self.has_inline_budget() => self.defer(slot),
            Route::Now(mode) => match self.perform(mode, operation) {
                Some(completion) => self.finish(slot, completion),
                None => self.list(slot),
            },
            other => self.push_elsewhere(slot, other),
        }
    }

    /// Puts an operation into the backlog, gives it to a thread or to the epoll set, or ends it.
    #[cold]
    #[inline(never)]
    pub(super) fn push_elsewhere(&mut self, slot: SlotRef, route: Route) {
        match route {
            Route::Lane(lane) => self.push_lane(slot, lane),
            Route::Readiness => self.push_readiness(slot),
            Route::Refused(refusal) => {
                self.keep();
                self.finish(slot, Completion::error(refusal.errno()));
            }
            Route::Queue | Route::Now(_) => self.list(slot),
        }
    }

    /// Makes an operation wait for the next turns' plain calls.
    #[cold]
    #[inline(never)]
    pub(super) fn defer(&mut self, slot: SlotRef) {
        self.counters.deferred += 1;
        self.trace_delayed(slot, Delay::Budget);
        let header = self.slab.header(slot);
        header.state = SlotState::Backlog;
        header.flags |= flag::DEFERRED;
        self.watch_state(slot, OperationState::Delayed);
        self.want_turn();
        self.inline.deferred.push_back(&mut self.slab, slot);
    }

    /// Returns whether this turn has plain calls left.
    #[inline(always)]
    pub(crate) fn has_inline_budget(&mut self) -> bool {
        let is_left =
            self.inline.budget.is_left() && !(self.has_come() && self.inline.budget.listens());
        is_left || self.look()
    }

    /// Returns whether completions have come since the last turn, as far as a few loads from memory tell.
    #[inline(always)]
    fn has_come(&self) -> bool {
        self.due.attention.is_due() && self.backend.has_news()
    }

    /// Returns whether this turn has budget left, reading the clock if that is due.
    #[cold]
    #[inline(never)]
    fn look(&mut self) -> bool {
        let has_come = self.has_come();
        self.inline.budget.look(self.due.attention.begin(), || self.backend.now(), has_come)
    }

    /// Returns the number of plain calls in this turn, with a longer one counted as several small ones.
    pub(crate) fn plain_calls(&self) -> u32 {
        self.inline.budget.spent()
    }

    /// Returns whether operations wait for the plain calls of the next turns.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.inline.deferred.is_empty()
    }

    /// Performs the first of the operations that wait for this turn's plain calls. The others keep their
    /// places: a served task continues as long as the turn's budget lasts, so that most of its operations
    /// need not wait.
    pub(super) fn run_deferred(&mut self) {
        let mut count = 0;
        while count < limits::DEFERRED_AT_A_TIME && self.inline.budget.is_any_left() {
            let Some(slot) = self.inline.deferred.first() else { break };
            self.inline.deferred.remove(&mut self.slab, slot);
            self.slab.header(slot).flags &= !flag::DEFERRED;
            self.watch_state(slot, OperationState::Plain);
            let operation = self.in_cell(slot);
            if operation.is_closing() {
                self.finish(slot, Completion::REVOKED);
                continue;
            }
            let is_turn = operation.kind() == OpKind::Nop;
            count += if is_turn { limits::DEFERRED_TURN } else { 1 };
            match operation.route(&self.inline.rules) {
                Route::Now(mode) => match self.perform(mode, operation) {
                    Some(completion) => {
                        // A task that waited for its turn may make a call even if other tasks use up the
                        // budget.
                        self.inline.reserved += u32::from(is_turn);
                        self.finish(slot, completion);
                    }
                    None => self.list(slot),
                },
                other => self.push_elsewhere(slot, other),
            }
        }
        if !self.inline.deferred.is_empty() {
            self.want_turn();
        }
    }

    /// Gives an operation to a thread.
    #[cold]
    #[inline(never)]
    pub(super) fn push_lane(&mut self, slot: SlotRef, lane: Lane) {
        let request = self.request(slot);
        if self.phase == Phase::Stopped || !self.is_intact() {
            return self.finish(slot, self.refusal());
        }
        if !self.is_set_up_for(slot) {
            return;
        }
        // SAFETY: as in `push_operation`.
        match unsafe { self.backend.push_call(request, Destination::Lane(lane)) } {
            Ok(_) => {}
            Err(Errno::AGAIN) => return self.list(slot), // a queue in place of threads, which is full
            // An embedder's host has no threads, either: its ring performs what a ring can.
            Err(Errno::OPNOTSUPP) if self.in_cell(slot).entry().is_some() => {
                self.abilities.lacks_lanes = true;
                return self.list(slot);
            }
            Err(errno) => return self.finish(slot, Completion::unstarted(errno)),
        }
        self.trace_to_lane(slot, lane);
        self.watch_lane(slot, lane);
        self.note_beside_queue(slot, request.kind);
    }

    /// Gives an operation to the backend's epoll set. Where that is refused, a transfer goes to the queue. A
    /// multishot receive ends as one that finds no buffer: it begins again, by the queue from then on.
    #[cold]
    #[inline(never)]
    pub(super) fn push_readiness(&mut self, slot: SlotRef) {
        let request = self.request(slot);
        if self.phase == Phase::Stopped || !self.is_intact() {
            return self.finish(slot, self.refusal());
        }
        if !self.is_set_up_for(slot) {
            return;
        }
        // SAFETY: as in `push_operation`.
        if unsafe { self.backend.push_call(request, Destination::Readiness) }.is_err() {
            if matches!(request.call, Call::Transfer(_)) {
                return self.list(slot);
            }
            self.give_up_readiness();
            return self.finish(slot, Completion::unstarted(Errno::NOBUFS));
        }
        self.trace_submitted(slot);
        self.watch_state(slot, OperationState::Readiness);
        self.note_beside_queue(slot, request.kind);
        self.want_turn();
    }

    /// Counts an operation that is in flight beside the queue.
    fn note_beside_queue(&mut self, slot: SlotRef, kind: OpKind) {
        self.abilities.uses_lanes = self.abilities.features.lanes_apart;
        let header = self.slab.header(slot);
        header.state = SlotState::Pushed;
        header.flags |= flag::LANE;
        // Its completion needs no room in a queue; a drop cancels an operation that may wait for ever.
        header.class = Class::Waiting;
        self.in_flight += 1;
        self.counters.kinds[kind as usize].submitted += 1;
    }

    /// Returns whether an operation that ended with `ECANCELED` without a cancel request goes to a thread.
    /// Either the kernel had no worker for it, and nothing was done; or a file server returned that error,
    /// and may have done all of it. So the operation must be a read that may be done twice, or reach only
    /// file systems that never return that error. An operation that a thread has already performed is of the
    /// waiting class.
    #[cold]
    pub(super) fn lacked_worker(&mut self, slot: SlotRef) -> bool {
        let header = self.slab.header(slot);
        let was_wanted =
            header.class == Class::Bounded && !header.has(flag::ORPHAN | flag::CANCEL_SENT);
        let vtable = header.vtable.expect("a slot in flight holds an operation");
        if !was_wanted || self.phase != Phase::Running || !self.abilities.features.may_lack_workers
        {
            return false;
        }
        // SAFETY: the cell holds a live operation of the table's type, which is the driver's alone again.
        unsafe {
            let cell = slot.cell();
            vtable.is_cancelable
                && !(vtable.is_closing)(cell)
                && ((vtable.call)(cell).is_pure_read()
                    || (vtable.is_local)(cell, &*self.backend.calls()))
        }
    }
}
