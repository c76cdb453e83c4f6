//! Operations in flight in the simulated kernel, and the times at which they end.
//!
//! The life of an operation:
//! 1. A submit or an enter consumes its entry, which is checked, and becomes a [`Flight`]. If the check
//!    fails, it completes at once.
//! 2. It takes one of the routes that the real kernel has. It completes *inline*, before the call returns; or
//!    it is *deferred*: ready, and finished by some enter; or it goes to a *worker* and becomes ready after a
//!    while; or, on a pipe that is not ready, it is *armed* and becomes ready once the pipe does.
//! 3. It is performed: only now are buffers and files accessed. If the pipe is no longer ready, it is armed
//!    again.
//! 4. Its completion is posted. The flight, which knows the operation's memory, is removed before that.
//!
//! A multishot operation posts a completion each time that it is performed, and is armed again.
//!
//! Ready operations finish as on a ring with `DEFER_TASKRUN`: never in a submit, and at most
//! `max(20, min_complete)` in one round of an enter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::time::Duration;

use linux_raw_sys::io_uring::{
    IORING_CQE_BUFFER_SHIFT as CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER as CQE_BUFFER,
    IORING_CQE_F_MORE as CQE_MORE,
};
use rustix::io::Errno;
use sakia_ring::{Cqe, CqeFlags, Entered};

use super::SimBuilder;
use super::entry::{Asked, Name};
use super::faults::{ERESTARTSYS, EnterFault, FaultKind, Faults, PlainFault, Plan, enter_kind};
use super::kernel::{Kernel, Object, OpenFile};
use super::log::{code, nanos};
use super::memory::Lent;
use super::ops::{self, Kind, OpOutcome, PreparedCall, failed};
use super::random::Random;
use crate::call::Call;
use crate::decide::{Attempt, CallMode};
use crate::queue::Queue;

/// `IO_LOCAL_TW_DEFAULT_MAX`: the number of ready operations that an enter finishes at least.
const ROUND: u32 = 20;

/// A whole simulated kernel with one ring. Shared between the backend and its handles.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) config: SimBuilder,
    pub(super) kernel: Kernel,
    pub(super) queue: Queue<Asked>,
    pub(super) faults: Faults,
    pub(super) random: Random,
    /// Operations in flight, in the order of consumption.
    pub(super) flights: BTreeMap<u64, Flight>,
    /// Operations in flight that wait for a pipe.
    armed: BTreeSet<u64>,
    /// The work of the next enters.
    ready: Vec<Work>,
    /// Later events, by time and then by the order of creation.
    timers: BTreeMap<(Duration, u64), Event>,
    /// Times at which a completion is to be reported although nothing else happens.
    alarms: Vec<Duration>,
    /// The number of operations consumed so far.
    consumed: u64,
    /// The number of timers set so far.
    timed: u64,
    /// Memory of entries that were pending when the backend was dropped.
    abandoned: Vec<Lent>,
    /// The number of times that the thread has waited in a plain call.
    pub(super) waits: u64,
    /// The number of buffers that were freed while they were lent.
    pub(super) freed_early: u64,
}

/// An operation in flight. While it exists, its last completion was not posted, so its memory is still lent.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) name: Name,
    pub(super) user_data: u64,
    /// The first descriptor that it names.
    pub(super) raw: i32,
    pub(super) request: PreparedCall,
    pub(super) plan: Plan,
    pub(super) stage: Stage,
    /// The result, if it does not depend on performing the operation.
    pub(super) forced: Option<i32>,
    /// A cancel reported that it came too late, so the operation must end.
    pub(super) must_end: bool,
    /// Completions so far that were not the last.
    pub(super) shots: u32,
}

/// The event that an operation in flight waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// To be performed right now.
    Inline,
    /// For an enter.
    Ready,
    /// For the worker that it was given to.
    Worker,
    /// For the other end of a pipe.
    Armed,
    /// For nothing: it never ends.
    Stuck,
}

impl fmt::Display for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, user_data, stage, .. } = self;
        write!(f, "{name} {user_data:#x} {stage:?}")
    }
}

/// Work that an enter finishes.
#[derive(Debug)]
enum Work {
    Operation(u64),
    /// A completion that belongs to no operation.
    Ghost(Cqe),
}

/// An event that happens at its time.
#[derive(Debug)]
pub(super) enum Event {
    /// A worker has finished an operation.
    Worker(u64),
    /// A completion that belongs to no operation becomes ready.
    Ghost(Cqe),
    /// A write to a pipe from outside the driver, by descriptor.
    WritePipe(i32, Vec<u8>),
}

impl Machine {
    pub(super) fn new(config: SimBuilder) -> Self {
        let mut faults = Faults::new();
        for &(kind, per_65536) in &config.faults {
            faults.set(kind, per_65536);
        }
        Self {
            kernel: Kernel::new(&config),
            queue: Queue::new(config.sq_entries, config.cq_entries),
            faults,
            random: Random::new(config.seed),
            flights: BTreeMap::new(),
            armed: BTreeSet::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            alarms: Vec::new(),
            consumed: 0,
            timed: 0,
            abandoned: Vec::new(),
            waits: 0,
            freed_early: 0,
            config,
        }
    }

    // Calls of the backend.

    pub(super) fn submit(&mut self) -> io::Result<()> {
        let pending = self.queue.pending();
        self.kernel.note("submit {}", &[pending.into()]);
        let result = self.consume_pending();
        self.queue.places = self.queue.cq_entries();
        result.map(|_| ())
    }

    pub(super) fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
    ) -> io::Result<Entered> {
        let (pending, now) = (self.queue.pending(), self.kernel.now);
        self.alarms.retain(|&alarm| alarm > now);
        let numbers = [pending.into(), min_complete.into(), timeout.map_or(-1, nanos)];
        self.kernel.note("enter with {}, wait for {} or {} ns", &numbers);
        let result = self.consume_pending().and_then(|consumed| {
            let timed_out = match consumed {
                // As in the kernel, a call whose submission stopped early does not wait.
                Consumed::Part(_) => false,
                Consumed::All(_) => self.complete_and_wait(min_complete, timeout)?,
            };
            let (Consumed::All(consumed) | Consumed::Part(consumed)) = consumed;
            Ok(Entered { consumed, timed_out })
        });
        self.queue.places = self.queue.cq_entries();
        let [consumed, timed_out] = match &result {
            Ok(entered) => [entered.consumed.into(), entered.timed_out.into()],
            Err(error) => [-1, error.raw_os_error().unwrap_or(0).into()],
        };
        let numbers = [consumed, timed_out, self.queue.ready().into()];
        self.kernel.note("entered: {} {}, {} ready", &numbers);
        result
    }

    /// Performs an operation as a plain call.
    ///
    /// # Safety
    ///
    /// - The memory that the call names is lent until this returns.
    pub(super) unsafe fn try_now(&mut self, call: &Call, mode: CallMode) -> Attempt {
        // SAFETY: the caller's promise.
        let attempt = unsafe { self.call(call, mode) };
        let (outcome, res) = match attempt {
            Attempt::Done(res) => (0, res),
            Attempt::WouldBlock => (1, 0),
            Attempt::Unsupported => (2, 0),
        };
        let nowait = i64::from(mode == CallMode::NonBlocking);
        let [raw, first, second, third] = call.numbers();
        let name = Name::of(call).0.into();
        let numbers = [name, nowait, raw, first, second, third, outcome, res.into()];
        self.kernel.note("plain {op}, nowait {}, on {} with {} {x} {x}: {} {}", &numbers);
        self.settle();
        attempt
    }

    /// # Safety
    ///
    /// - As [`try_now`](Machine::try_now).
    unsafe fn call(&mut self, call: &Call, mode: CallMode) -> Attempt {
        let nowait = mode == CallMode::NonBlocking;
        if matches!(call, Call::Transfer(_)) && nowait && !self.config.refuses_to_wait {
            return Attempt::Unsupported;
        }
        let mut len_max = usize::MAX;
        match self.faults.for_plain(call, nowait, &mut self.random) {
            Some(PlainFault::WouldBlock) if nowait => {
                self.count(FaultKind::PlainBlocks);
                return Attempt::WouldBlock;
            }
            Some(PlainFault::End) if nowait => {
                self.count(FaultKind::PlainEnd);
                return Attempt::Done(0);
            }
            Some(PlainFault::Short(len)) => {
                self.count(FaultKind::ShortTransfer);
                len_max = len.max(1) as usize;
            }
            Some(PlainFault::Errno(errno)) => {
                self.count(FaultKind::Errno);
                return Attempt::Done(-errno);
            }
            Some(PlainFault::Stall(duration)) => {
                self.count(FaultKind::PlainStall);
                self.waits += 1;
                self.advance(duration);
            }
            Some(PlainFault::Busy(duration)) => self.advance(duration),
            Some(PlainFault::WouldBlock | PlainFault::End) | None => {}
        }
        // SAFETY: the caller's promise.
        let request = match unsafe { ops::prepare(&self.kernel, call) } {
            Ok(request) => request,
            Err(errno) => return Attempt::Done(failed(errno)),
        };
        let is_cancel = matches!(request.kind, Kind::Cancel { .. });
        // Creating is work on the device, which no cache avoids.
        let creates =
            matches!(&request.kind, Kind::Open { how, .. } if how.creates || how.truncates);
        if is_cancel || creates || request.may_wait() {
            return Attempt::Unsupported;
        }
        let loses_sync = self.faults.loses_sync(call, &mut self.random);
        self.kernel.device.loses_sync = loses_sync;
        // SAFETY: the caller's promise.
        let outcome = unsafe { ops::perform(&mut self.kernel, &request, len_max) };
        self.count_lost_sync(loses_sync);
        match outcome {
            OpOutcome::Done(res) => Attempt::Done(res),
            OpOutcome::WouldBlock => Attempt::WouldBlock,
            OpOutcome::Shot { .. } => unreachable!("a multishot operation may wait"),
        }
    }

    /// Counts a lost sync, after an operation that was to lose its data, or not. The kernel knows whether the
    /// loss took place.
    fn count_lost_sync(&mut self, was_to_lose: bool) {
        if was_to_lose && !std::mem::take(&mut self.kernel.device.loses_sync) {
            self.count(FaultKind::FsyncFailed);
        }
    }

    /// Returns whether an enter would finish an operation or move overflowed completions.
    pub(super) fn needs_enter(&self) -> bool {
        let is_due = |alarm: &Duration| *alarm <= self.kernel.now;
        !self.ready.is_empty() || self.queue.is_overflowing() || self.alarms.iter().any(is_due)
    }

    /// Makes [`needs_enter`](Machine::needs_enter) return true from this time until the next enter.
    pub(super) fn set_alarm(&mut self, after: Duration) {
        let at = self.kernel.now.saturating_add(after);
        self.kernel.note("alarm in {} ns", &[nanos(after)]);
        self.alarms.push(at);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Lets time pass. Operations that become ready stay so until an enter.
    pub(super) fn advance(&mut self, duration: Duration) {
        self.advance_to(self.kernel.now.saturating_add(duration));
    }

    /// Handles the drop of the backend. The ring stays: the kernel keeps the memory that it was lent.
    pub(super) fn abandon(&mut self) {
        let pending = self.queue.pending();
        self.kernel.note("abandoned with {}", &[pending.into()]);
        let mut groups = BTreeSet::new();
        while let Some(asked) = self.queue.consume() {
            // SAFETY: the entry was pushed, which lends its memory until a completion was reaped; there will
            // be none.
            let prepared = asked.call.and_then(|call| unsafe { ops::prepare(&self.kernel, &call) });
            if let Ok(request) = prepared {
                groups.extend(request.group());
                self.abandoned.push(request.lent);
            }
        }
        // All other buffers are the driver's again.
        groups.extend(self.flights.values().filter_map(|flight| flight.request.group()));
        self.kernel.groups.by_number.retain(|group, _| groups.contains(group));
    }

    /// Uses all memory that is still lent. Returns the number of operations with such memory.
    pub(super) fn disturb_all(&mut self) -> usize {
        let lent = self.flights.values().map(|flight| &flight.request.lent);
        // SAFETY: a flight's memory is lent as long as the flight exists; an abandoned entry's memory for
        // ever, since it has no completion.
        let count = lent.chain(&self.abandoned).filter(|lent| unsafe { lent.disturb() }).count();
        for (_, _, lent) in self.kernel.provided() {
            // SAFETY: a buffer is lent as long as it is in its group.
            unsafe { lent.disturb() };
        }
        count
    }

    /// Returns whether any of these bytes is lent to an operation in flight or to a group, or was lent to an
    /// operation that never ends.
    pub(super) fn is_lent(&self, addr: u64, len: usize) -> bool {
        let lent = self.flights.values().map(|flight| &flight.request.lent);
        lent.chain(&self.abandoned).any(|lent| lent.overlaps(addr, len))
            || self.kernel.provided().any(|(_, _, lent)| lent.overlaps(addr, len))
    }

    // Consuming.

    /// Consumes pending entries, as many as the faults of this call allow.
    fn consume_pending(&mut self) -> io::Result<Consumed> {
        self.advance(self.config.enter_cost);
        let pending = self.queue.pending();
        if self.config.busy_on_overflow && pending > 0 && self.queue.is_overflowing() {
            self.flush_overflow();
            if self.queue.is_overflowing() {
                return Err(Errno::BUSY.into());
            }
        }
        let free = self.queue.cq_entries() - self.queue.ready();
        match self.faults.for_enter(pending, free, &mut self.random) {
            Some(EnterFault::Partial(0)) if pending > 0 => {
                self.count(FaultKind::PartialSubmit);
                return Err(Errno::AGAIN.into());
            }
            Some(EnterFault::Partial(count)) if count < pending => {
                self.count(FaultKind::PartialSubmit);
                return Ok(Consumed::Part(self.consume(count)));
            }
            Some(EnterFault::Errno(errno)) => return self.fail_enter(0, errno),
            Some(EnterFault::ErrnoAfter(count, errno)) => return self.fail_enter(count, errno),
            Some(EnterFault::ShortCq(free)) => {
                self.count(FaultKind::ShortCq);
                let places = self.queue.ready().saturating_add(free);
                self.queue.places = places.min(self.queue.cq_entries());
            }
            Some(EnterFault::Partial(_)) | None => {}
        }
        Ok(Consumed::All(self.consume(u32::MAX)))
    }

    fn fail_enter(&mut self, count: u32, errno: i32) -> io::Result<Consumed> {
        self.count(enter_kind(errno));
        self.consume(count);
        Err(io::Error::from_raw_os_error(errno))
    }

    fn consume(&mut self, count_max: u32) -> u32 {
        let mut count = 0;
        while count < count_max
            && let Some(asked) = self.queue.consume()
        {
            self.start(&asked);
            count += 1;
        }
        count
    }

    /// Starts an operation in flight, and performs it if its route is inline.
    fn start(&mut self, asked: &Asked) {
        let id = self.consumed;
        self.consumed += 1;
        let [raw, rest @ ..] = asked.call.map_or([-1, 0, 0, 0], |call| call.numbers());
        let [first, second, third] = rest;
        let (name, user_data) = (asked.name.0.into(), asked.user_data as i64);
        let numbers = [id as i64, name, user_data, raw, first, second, third];
        self.kernel.note("#{} {op} {x} on {} with {} {x} {x}", &numbers);
        let plan = self.faults.for_op(asked, &mut self.random);
        // SAFETY: the entry was pushed, which lends its memory until its completion was reaped, and that is
        // posted only after the flight is gone.
        let prepared = asked.call.and_then(|call| unsafe { ops::prepare(&self.kernel, &call) });
        for name in prepared.iter().flat_map(PreparedCall::names) {
            self.kernel.note_name("  named", &name);
        }
        let (request, forced) = match prepared {
            Ok(request) => (request, None),
            Err(errno) => {
                let request = PreparedCall { kind: Kind::Nop, lent: Lent::Nothing, file: None };
                (request, Some(failed(errno)))
            }
        };
        let flight = Flight {
            name: asked.name,
            user_data: asked.user_data,
            raw: asked.call.ok().and_then(|call| call.descriptor()).unwrap_or(-1),
            request,
            plan,
            stage: Stage::Inline,
            forced,
            must_end: false,
            shots: 0,
        };
        self.route(id, flight, asked.is_async);
        self.settle();
    }

    fn note_stage(&mut self, id: u64, stage: Stage) {
        let template = match stage {
            Stage::Inline => "#{} inline",
            Stage::Ready => "#{} ready",
            Stage::Worker => "#{} with a worker",
            Stage::Armed => "#{} armed",
            Stage::Stuck => "#{} stuck",
        };
        self.kernel.note(template, &[id as i64]);
    }

    /// Chooses the route by which an operation completes, and starts it.
    fn route(&mut self, id: u64, mut flight: Flight, is_async: bool) {
        let Plan { stuck, delay, errno, .. } = flight.plan;
        let waits =
            flight.request.may_wait() && errno.is_none() && !flight.request.is_ready(&self.kernel);
        if flight.forced.is_some() {
            return self.perform(id, flight);
        }
        if stuck {
            self.count(FaultKind::Stuck);
            flight.stage = Stage::Stuck;
        } else if let Some(delay) = delay {
            flight.stage = Stage::Worker;
            self.at(delay, Event::Worker(id));
        } else if waits && !is_async {
            flight.stage = Stage::Armed;
            self.armed.insert(id);
        } else {
            flight.stage = if is_async { Stage::Worker } else { self.draw_route() };
            match flight.stage {
                Stage::Inline => return self.perform(id, flight),
                Stage::Worker => {
                    let delay = self.draw_delay();
                    self.at(delay, Event::Worker(id));
                }
                _ => self.ready.push(Work::Operation(id)),
            }
        }
        self.note_stage(id, flight.stage);
        self.flights.insert(id, flight);
    }

    fn draw_route(&mut self) -> Stage {
        let weights = self.config.routes;
        let (inline, deferred) = (u64::from(weights.inline), u64::from(weights.deferred));
        let sum = inline + deferred + u64::from(weights.worker);
        assert!(sum > 0, "no route has a weight");
        match self.random.below(sum) {
            number if number < inline => Stage::Inline,
            number if number < inline + deferred => Stage::Ready,
            _ => Stage::Worker,
        }
    }

    fn draw_delay(&mut self) -> Duration {
        let max = u64::try_from(self.config.worker_delay_max.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.random.below(max.saturating_add(1)))
    }

    // Completing.

    /// Finishes ready operations and waits as an enter does. Returns whether the time ran out.
    fn complete_and_wait(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        let round = min_complete.max(ROUND);
        self.flush_overflow();
        self.finish_ready(round);
        let wanted = min_complete.min(self.queue.cq_entries());
        // A deadline beyond the range of times means none.
        let deadline = timeout.and_then(|timeout| self.kernel.now.checked_add(timeout));
        // An enter sees at least the completions that it waits for, however short the queue is made.
        while self.queue.ready() < wanted {
            self.queue.places = self.queue.places.max(wanted);
            if self.queue.is_overflowing() {
                self.flush_overflow();
            } else if !self.ready.is_empty() {
                self.finish_ready(round);
            } else if let Some(at) = self.next_event(deadline) {
                self.advance_to(at);
            } else if let Some(deadline) = deadline {
                self.advance_to(deadline);
                return Ok(true);
            } else {
                return Err(self.deadlock(wanted));
            }
        }
        Ok(false)
    }

    fn flush_overflow(&mut self) {
        let count = self.queue.flush_overflow();
        if count > 0 {
            self.kernel.note("flushed {}", &[count.into()]);
        }
    }

    /// Finishes up to `count_max` of the ready operations, in any order.
    fn finish_ready(&mut self, count_max: u32) {
        let mut count = 0;
        while count < count_max && !self.ready.is_empty() {
            count += 1;
            let index = if self.config.reorders {
                self.random.below(self.ready.len() as u64) as usize
            } else {
                0
            };
            match self.ready.remove(index) {
                // A second operation with the same `user_data` must not seem finished.
                Work::Ghost(cqe) if self.is_known(cqe.user_data) => {}
                Work::Ghost(cqe) => self.post(cqe, false),
                Work::Operation(id) => {
                    let flight = self.flights.remove(&id).expect("a ready operation is in flight");
                    self.perform(id, flight);
                }
            }
            self.settle();
        }
    }

    /// Performs an operation that was removed from the flights, and completes it or arms it.
    fn perform(&mut self, id: u64, mut flight: Flight) {
        self.kernel.device.loses_sync = flight.plan.loses_sync;
        match self.outcome(&flight) {
            OpOutcome::Done(res) => self.complete(id, flight, res, 0),
            OpOutcome::Shot { res, buffer } => self.shoot(id, flight, res, buffer),
            OpOutcome::WouldBlock if flight.must_end => {
                self.complete(id, flight, failed(Errno::CANCELED), 0);
            }
            OpOutcome::WouldBlock => {
                flight.stage = Stage::Armed;
                self.note_stage(id, flight.stage);
                self.armed.insert(id);
                self.flights.insert(id, flight);
            }
        }
    }

    fn outcome(&mut self, flight: &Flight) -> OpOutcome {
        if let Some(res) = flight.forced {
            return OpOutcome::Done(res);
        }
        if let Some(errno) = flight.plan.errno {
            let is_restart = errno == ERESTARTSYS;
            self.count(if is_restart { FaultKind::Restart } else { FaultKind::Errno });
            if let Kind::Close { raw } = flight.request.kind {
                // As in the kernel, the number is free afterwards in any case.
                self.kernel.close(raw).ok();
            }
            return OpOutcome::Done(-errno);
        }
        if let Kind::Cancel { what, all } = &flight.request.kind {
            return OpOutcome::Done(self.cancel(what, *all, flight.plan.cancel));
        }
        if flight.plan.no_buffers_after.is_some_and(|after| flight.shots >= after)
            && flight.request.group().is_some()
            && flight.request.is_ready(&self.kernel)
        {
            self.count(FaultKind::NoBuffers);
            return OpOutcome::Done(failed(Errno::NOBUFS));
        }
        self.act_as_network(flight);
        let answered = flight.plan.server_errno.filter(|_| self.is_served(&flight.request));
        let len_max = flight.plan.short.map_or(usize::MAX, |len| len as usize);
        // SAFETY: the flight has not completed, so its memory is lent.
        let outcome = unsafe { ops::perform(&mut self.kernel, &flight.request, len_max) };
        if let Some(fate) = flight.plan.fate
            && self.kernel.sockets.fate.take().is_none()
        {
            self.count(fate.kind());
        }
        if let OpOutcome::Done(count) = outcome
            && flight.request.is_transfer()
            && usize::try_from(count) == Ok(len_max)
            && len_max < flight.request.lent.len()
        {
            self.count(FaultKind::ShortTransfer);
        }
        match (outcome, answered) {
            (OpOutcome::Done(res @ 0..), Some(errno)) => {
                self.count(FaultKind::ServerErrno);
                if let Kind::Open { .. } = flight.request.kind {
                    self.kernel.close(res).ok();
                }
                OpOutcome::Done(-errno)
            }
            (outcome, _) => outcome,
        }
    }

    /// Returns whether a file server handles the request.
    fn is_served(&self, request: &PreparedCall) -> bool {
        let is_file = |file: &OpenFile| !file.is_stream();
        match &request.kind {
            Kind::Close { raw } => self.kernel.file(*raw).is_ok_and(|file| is_file(file)),
            Kind::Open { .. } | Kind::Name(_) | Kind::Statx { path: Some(_) } => true,
            Kind::Nop | Kind::Poll { .. } | Kind::Cancel { .. } | Kind::Socket(_) => false,
            _ => request.file.as_ref().is_some_and(|file| is_file(file)),
        }
    }

    /// Applies the faults of a network to the data that an operation is about to move.
    fn act_as_network(&mut self, flight: &Flight) {
        self.kernel.sockets.fate = flight.plan.fate;
        if let Some(file) = &flight.request.file
            && let Object::Socket(id) = file.object
            && flight.plan.reset
            && flight.request.is_transfer()
            && self.kernel.sockets.break_off(id)
        {
            self.kernel.has_changed = true;
            self.count(FaultKind::Reset);
        }
    }

    /// Posts one completion of a multishot operation, which continues unless this is its last: a fault ends
    /// it, or the completion queue is full.
    fn shoot(&mut self, id: u64, mut flight: Flight, res: i32, buffer: Option<u16>) {
        let flags = buffer.map_or(0, |id| u32::from(id) << CQE_BUFFER_SHIFT | CQE_BUFFER);
        let is_cut = flight.plan.ends_after.is_some_and(|after| flight.shots >= after);
        if is_cut {
            self.count(FaultKind::MultishotEnded);
        }
        if is_cut || flight.must_end || flight.plan.held || self.queue.room() == 0 {
            return self.complete(id, flight, res, flags);
        }
        flight.shots += 1;
        let numbers = [id as i64, flight.name.0.into(), flight.user_data as i64, res.into()];
        self.kernel.note("#{} {op} {x} goes on: {}", &numbers);
        let flags = CqeFlags(flags | CQE_MORE);
        self.post(Cqe { user_data: flight.user_data, res, flags }, false);
        flight.stage = if self.draw_route() == Stage::Worker {
            let delay = self.draw_delay();
            self.at(delay, Event::Worker(id));
            Stage::Worker
        } else {
            self.armed.insert(id);
            // The next one may be ready already.
            self.kernel.has_changed = true;
            Stage::Armed
        };
        self.note_stage(id, flight.stage);
        self.flights.insert(id, flight);
    }

    /// Ends an operation and posts its completion, with the completions that faults add.
    fn complete(&mut self, id: u64, flight: Flight, res: i32, flags: u32) {
        let Flight { name, user_data, plan, .. } = flight;
        let numbers = [id as i64, name.0.into(), user_data as i64, res.into()];
        self.kernel.note("#{} {op} {x} done: {}", &numbers);
        // With the flight, a pipe may lose an end, or a lock its holder; a cancel request may hold one, too.
        self.kernel.has_changed |= match flight.request.kind {
            Kind::Cancel { .. } => true,
            _ => {
                self.kernel.has_locks()
                    || flight.request.file.as_ref().is_some_and(|file| file.is_stream())
            }
        };
        // Its memory is the driver's again as soon as the completion is posted.
        drop(flight);
        self.count_lost_sync(plan.loses_sync);
        if plan.held {
            self.count(FaultKind::Held);
        }
        let cqe = Cqe { user_data, res, flags: CqeFlags(flags) };
        self.post(cqe, plan.held);
        if plan.duplicate {
            self.count(FaultKind::Duplicate);
            self.haunt(cqe);
        }
        if plan.stale
            && let Some(user_data) = self.unknown_user_data(user_data)
        {
            self.count(FaultKind::Stale);
            self.haunt(Cqe { user_data, ..cqe });
        }
    }

    fn post(&mut self, cqe: Cqe, held: bool) {
        let template =
            if self.queue.post_cqe(cqe, held) { "overflowed {x}: {}" } else { "posted {x}: {}" };
        self.kernel.note(template, &[cqe.user_data as i64, cqe.res.into()]);
        if cqe.flags != CqeFlags(0) {
            self.kernel.note("  with flags {x}", &[cqe.flags.0.into()]);
        }
    }

    /// Schedules a completion that belongs to no operation.
    fn haunt(&mut self, cqe: Cqe) {
        let delay = self.draw_delay();
        self.at(delay, Event::Ghost(cqe));
    }

    /// Returns a `user_data` that no operation has, close to one that an operation had, or far from it.
    fn unknown_user_data(&mut self, known: u64) -> Option<u64> {
        let user_data = if self.random.chance(1 << 15) {
            // One of the highest bits, which numbers that count up do not reach.
            known ^ (1 << (56 + self.random.below(8)))
        } else {
            self.random.next()
        };
        (!self.is_known(user_data)).then_some(user_data)
    }

    /// Returns whether an operation in flight, or a pending entry, has this `user_data`.
    fn is_known(&self, user_data: u64) -> bool {
        self.queue.pending.iter().any(|asked| asked.user_data == user_data)
            || self.flights.values().any(|flight| flight.user_data == user_data)
    }

    /// Makes operations ready that no longer have to wait.
    pub(super) fn settle(&mut self) {
        if !std::mem::take(&mut self.kernel.has_changed) {
            return;
        }
        let is_ready = |id: &u64| self.flights[id].request.is_ready(&self.kernel);
        let ready: Vec<u64> = self.armed.iter().copied().filter(is_ready).collect();
        for id in ready {
            self.make_ready(id);
        }
    }

    /// Marks an operation as ready for an enter to finish.
    pub(super) fn make_ready(&mut self, id: u64) {
        let flight = self.flights.get_mut(&id).expect("the operation is in flight");
        assert!(!matches!(flight.stage, Stage::Ready | Stage::Inline), "{flight} is made ready");
        flight.stage = Stage::Ready;
        self.armed.remove(&id);
        self.ready.push(Work::Operation(id));
        self.note_stage(id, Stage::Ready);
    }

    // Time.

    /// Schedules an event after `delay`.
    pub(super) fn at(&mut self, delay: Duration, event: Event) {
        let key = (self.kernel.now.saturating_add(delay), self.timed);
        self.timed += 1;
        self.timers.insert(key, event);
    }

    /// Returns the time of the next event, if that is not after the deadline.
    fn next_event(&self, deadline: Option<Duration>) -> Option<Duration> {
        let (&(at, _), _) = self.timers.first_key_value()?;
        deadline.is_none_or(|deadline| at <= deadline).then_some(at)
    }

    fn advance_to(&mut self, time: Duration) {
        self.disturb_some();
        self.kernel.write_back_some();
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= time
        {
            let ((at, _), event) = entry.remove_entry();
            self.kernel.now = self.kernel.now.max(at);
            self.happen(event);
            self.settle();
            self.disturb_some();
            self.kernel.write_back_some();
        }
        self.kernel.now = self.kernel.now.max(time);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ghost(cqe) => self.ready.push(Work::Ghost(cqe)),
            // A cancel may have been faster.
            Event::Worker(id) => {
                if self.flights.get(&id).is_some_and(|flight| flight.stage == Stage::Worker) {
                    self.make_ready(id);
                }
            }
            Event::WritePipe(raw, bytes) => {
                let numbers = [raw.into(), code(self.write_pipe(raw, &bytes))];
                self.kernel.note("write to pipe {}: {}", &numbers);
            }
        }
    }

    /// Uses lent memory at a random moment.
    fn disturb_some(&mut self) {
        if self.config.late_writes == 0 {
            return;
        }
        let mut provided = Vec::new();
        for (group, id, lent) in self.kernel.provided() {
            if self.random.chance(self.config.late_writes) {
                // SAFETY: a buffer is lent as long as it is in its group.
                unsafe { lent.disturb() };
                provided.push([group.into(), id.into()]);
            }
        }
        for numbers in provided {
            self.kernel.note("group {} buffer {} disturbed", &numbers);
        }
        for (id, flight) in &self.flights {
            if !self.random.chance(self.config.late_writes) {
                continue;
            }
            // SAFETY: a flight's memory is lent as long as there is the flight.
            let had_some = unsafe { flight.request.lent.disturb() };
            if had_some {
                self.kernel.note("#{} disturbed", &[*id as i64]);
            }
        }
    }

    // Helpers.

    pub(super) fn count(&mut self, kind: FaultKind) {
        self.faults.count(kind);
        self.kernel.note_name("fault", format!("{kind:?}").as_bytes());
    }

    /// Returns the error for an enter that waits for an impossible event.
    fn deadlock(&mut self, wanted: u32) -> io::Error {
        use fmt::Write as _;
        let ready = self.queue.ready();
        let mut message = format!("deadlock: waiting for {wanted} completions, {ready} ready");
        for (id, flight) in &self.flights {
            // Writing to a string never fails.
            write!(message, "; #{id} {flight}").ok();
        }
        self.kernel.note("deadlock, wait for {}", &[wanted.into()]);
        io::Error::new(io::ErrorKind::Deadlock, message)
    }
}

/// The number of entries that a submit has consumed, and whether it stopped early.
#[derive(Clone, Copy, Debug)]
enum Consumed {
    All(u32),
    /// It stopped early, and the call ends with it.
    Part(u32),
}
