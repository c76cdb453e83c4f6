//! The driver's state machine: admission, submission, completion, cancellation, without a system call
//! and without running users' code.
//!
//! Whoever calls a method here holds the only borrow of the core. What must happen afterwards in
//! users' code (waking, disposing) is left on two queues, which [`Handle`](crate::Handle) works off
//! when the borrow has ended.
//!
//! Invariants:
//! - Memory of a pushed operation is touched by nobody until its last completion.
//! - Bounded operations in flight never exceed the credits, so their completions always find room.
//! - Requests to cancel in flight never exceed the reserve.
//! - An operation that is to be canceled is on the cancel list until its request is pushed.
//! - A completion for a key that is not in flight changes nothing but a counter.

mod attention;
mod buffers;
mod plain;

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Opcode, Position};

use crate::arena::Arena;
use crate::backend::{Backend, Takes};
use crate::call::{Request, Victims};
use crate::connection::pool::Pool;
use crate::counters::{Counters, OpKind};
use crate::fd::Fd;
use crate::handle::{KeepAlive, Shared};
use crate::key::{Key, Kind};
use crate::op::{Block, Class, Completion, Erased, InPlace, Operation, Placed, Storage};
use crate::ops::close::CancelFd;
use crate::policy::{CallMode, InlineBudget, Lane, Route, Rules};
use crate::slab::{Cell, List, Notify, Slab, SlotRef, State, flag};

pub use self::attention::Attention;

/// Completions copied out of the queue at a time.
const BATCH: usize = 256;
/// Completions handled in one turn before the caller gets to run.
const TURN_COMPLETIONS_MAX: u32 = 1024;
/// Most completions that the kernel finishes in one enter unless asked for more (since 6.13).
const KERNEL_BATCH: u32 = 20;
/// Turns with many sends that go by until these are again taken to end at once.
const SENDS_DOUBTED: u8 = 16;
/// How long to leave the kernel alone after it said that it has no room.
const NAP: Duration = Duration::from_micros(50);

/// How long a turn may sleep when nothing is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// At most this long.
    For(Duration),
    /// Until something completes. A turn with nothing in flight returns at once.
    Forever,
}

/// How far the driver is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// New operations end with `ECANCELED`; those in flight are being drained.
    Stopping,
    /// Nothing is in flight, and the backend is gone.
    Stopped,
}

pub(crate) struct Core<B: Backend> {
    /// `None` once the driver has stopped.
    pub(crate) backend: Option<B>,
    pub(crate) slab: Slab,
    pub(crate) phase: Phase,
    /// Operations without an entry, by class, in the order in which they came.
    backlog: [List; 2],
    /// Which class's turn it is when both wait for room.
    next_class: Class,
    /// Operations to be canceled whose request has not been pushed yet.
    cancels: List,
    /// Bounded operations that may still be pushed.
    credits: u32,
    /// Requests to cancel that may still be pushed.
    cancel_credits: u32,
    /// How many those are when none is in flight.
    cancel_reserve: u32,
    /// Requests to cancel that went to lanes whose answers come through the queue, and have not come.
    lane_cancels: u32,
    /// Whether everything in flight is to be canceled with the next push.
    pub(crate) cancel_all: bool,
    /// Entries pushed whose last completion has not come, requests to cancel included.
    pub(crate) in_flight: u32,
    /// What is tried before the queue.
    pub(crate) rules: Rules,
    /// What plain calls may still do in this turn.
    inline_budget: InlineBudget,
    /// Turns that were waited for and not used yet: each is good for one file as a whole.
    reserved_calls: u32,
    /// Operations that wait for the plain calls of the next turns.
    deferred: List,
    /// When the last timed call of this turn was over.
    timed_until: Option<Duration>,
    /// What the queue takes.
    takes: Takes,
    /// A bit for each opcode of an entry that the queue cannot take, but threads perform.
    for_lanes: [u64; 4],
    /// The backend has no threads beside its queue.
    lacks_lanes: bool,
    /// Pending entries at which the queue is flushed without waiting for the turn.
    flush_at: u32,
    /// How sure it is that everything in flight is ready at once: 0 to 3. See [`Core::drain`].
    burst: u8,
    /// Sends pushed since the last enter of a turn.
    sends: u32,
    /// Turns with many sends for which these are not taken to end at once, since some did not.
    sends_doubted: u8,
    /// Tasks to wake and numbers to report, oldest first.
    pub(crate) wakes: VecDeque<Waker>,
    pub(crate) tokens: VecDeque<u64>,
    /// Slots in state `Disposing`, oldest first.
    pub(crate) disposals: VecDeque<SlotRef>,
    /// Free blocks for operations larger than a cell.
    pool: Vec<NonNull<Block>>,
    pub(crate) counters: Counters,
    /// Room for completions while they are dispatched.
    batch: Box<[Cqe]>,
    /// Something waits for the next turn: an entry, an operation or a request to cancel.
    wants_turn: bool,
    /// False while neither [`wants_turn`](Core::wants_turn) nor the backend can have anything new.
    pub(crate) attention: Attention,
    /// Alarms that were set and have not been told of.
    alarms: u32,
    /// The backend's alarms are not to be relied upon.
    lacks_alarms: bool,
    /// Another thread may wake this one, so that there is something to wait for with nothing in
    /// flight.
    pub(crate) can_be_woken: bool,
    /// The errno of a permanent failure of the backend.
    failure: Option<i32>,
    /// The registered memory, kept as long as the backend.
    pub(crate) arena: Option<Arena>,
    /// What the kernel receives into, likewise. `None` until something is received so.
    pub(crate) pool_of_buffers: Option<Rc<Pool>>,
    /// Keeps this memory after the driver's end for the slots that are still in use.
    kept: Option<KeepAlive<B>>,
    /// What `kept` refers to; dangling until the driver's end begins.
    shared: Weak<Shared<B>>,
}

impl<B: Backend> Core<B> {
    /// Turns that are kept for whoever waited for them; what is not used by then was given up.
    const RESERVED_CALLS_MAX: u32 = 32;

    pub(crate) fn new(backend: B) -> Self {
        let cq_entries = backend.cq_entries();
        // Cancels must find room whatever else is in flight, on the smallest queue too.
        let reserve = (cq_entries / 8).clamp(1, 16);
        let mut for_lanes = [0; 4];
        for code in (0..=u8::MAX).filter(|&code| backend.is_for_lanes(Opcode(code))) {
            for_lanes[usize::from(code) / 64] |= 1_u64 << (code % 64);
        }
        let (sq_entries, takes) = (backend.sq_entries(), backend.takes());
        // Three quarters. Three times the number may be more than fits.
        let flush_at = (sq_entries - sq_entries.div_ceil(4)).max(1);
        Self {
            backend: Some(backend),
            slab: Slab::new(),
            phase: Phase::Running,
            backlog: [List::new(), List::new()],
            next_class: Class::Bounded,
            cancels: List::new(),
            credits: cq_entries.saturating_sub(reserve).max(1),
            cancel_credits: reserve,
            cancel_reserve: reserve,
            lane_cancels: 0,
            cancel_all: false,
            in_flight: 0,
            rules: Rules::NONE,
            inline_budget: InlineBudget::new(),
            reserved_calls: 0,
            deferred: List::new(),
            timed_until: None,
            takes,
            for_lanes,
            lacks_lanes: false,
            flush_at,
            burst: 0,
            sends: 0,
            sends_doubted: 0,
            wakes: VecDeque::new(),
            tokens: VecDeque::new(),
            disposals: VecDeque::new(),
            pool: Vec::new(),
            counters: Counters::default(),
            batch: Box::new([Cqe::default(); BATCH]),
            wants_turn: false,
            attention: Attention::default(),
            alarms: 0,
            lacks_alarms: false,
            can_be_woken: false,
            failure: None,
            arena: None,
            pool_of_buffers: None,
            kept: None,
            shared: Weak::new(),
        }
    }

    // ---- starting ------------------------------------------------------------------------------

    /// Moves an operation into a slot, and performs it at once or pushes its entry if there is room.
    /// `rules` are other ones than the driver's.
    #[inline(always)]
    pub(crate) fn start<O: Operation>(&mut self, operation: O, rules: Option<&Rules>) -> SlotRef {
        let slot = self.occupy(operation);
        // SAFETY: `occupy` has just filled the cell with a live operation of this type, to which nobody
        // else has access before this function returns.
        let operation = unsafe { Placed::<O>::new(slot.cell()) };
        let class = operation.class();
        self.slab.header(slot).class = class;
        if self.backend.as_ref().is_some_and(|backend| !backend.fills_what_it_reports()) {
            operation.initialize();
        }
        if self.phase == Phase::Running {
            match operation.route(rules.unwrap_or(&self.rules)) {
                Route::Queue => {}
                Route::Now(mode) => {
                    if self.has_inline_budget() {
                        if let Some(completion) = self.perform(mode, operation) {
                            self.finish(slot, completion);
                            return slot;
                        }
                    } else if mode == CallMode::Blocking || !self.batches_well(slot) {
                        // What is not refused here the queue hands to a worker, or waits for.
                        self.defer(slot);
                        return slot;
                    } else {
                        self.inline_budget.crowded();
                    }
                    self.queue_refused(slot, class);
                    return slot;
                }
                Route::Lane(lane) => {
                    self.push_lane(slot, lane);
                    return slot;
                }
            }
        }
        self.queue(slot, class, operation);
        slot
    }

    /// Puts an operation into the queue or, where that cannot take such, gives it to a thread; into the
    /// backlog if there is no room.
    #[inline(always)]
    fn queue(&mut self, slot: SlotRef, class: Class, operation: impl InPlace) {
        let may_push = self.phase == Phase::Running
            && self.backlog[class as usize].is_empty()
            && (class == Class::Waiting || self.credits > 0);
        if !may_push || !self.push_operation(slot, class, operation) {
            self.postpone(slot);
        }
    }

    /// Queues an operation after its plain call was refused. Not inlined, so that the direct way to the queue
    /// stays short.
    #[inline(never)]
    fn queue_refused(&mut self, slot: SlotRef, class: Class) {
        let operation = self.in_cell(slot);
        self.queue(slot, class, operation);
    }

    /// As [`start`](Core::start), but waits for [`unpark`](Core::unpark) first.
    pub(crate) fn start_parked<O: Operation>(&mut self, operation: O) -> SlotRef {
        let class = operation.class();
        let slot = self.occupy(operation);
        let header = self.slab.header(slot);
        header.class = class;
        header.state = State::Backlog;
        header.flags = flag::PARKED;
        self.keep();
        slot
    }

    /// Starts an operation whose result nobody waits for: it is disposed of.
    pub(crate) fn start_detached<O: Operation>(&mut self, operation: O) -> Key {
        let slot = self.start(operation, None);
        let key = self.slab.key(slot);
        let header = self.slab.header(slot);
        header.flags |= flag::ORPHAN;
        if header.state == State::Done {
            header.state = State::Disposing;
            self.disposals.push_back(slot);
        }
        key
    }

    /// A descriptor is about to be closed or given away.
    ///
    /// # Safety
    ///
    /// - As for [`Backend::forget_descriptor`].
    pub(crate) unsafe fn forget_descriptor(&mut self, raw: i32) {
        if let Some(backend) = self.backend.as_mut().filter(|backend| backend.is_intact()) {
            // SAFETY: the caller's duties are the same.
            unsafe { backend.forget_descriptor(raw) };
        }
    }

    /// Moves an operation into a free slot.
    #[inline(always)]
    fn occupy<O: Operation>(&mut self, operation: O) -> SlotRef {
        let slot = self.slab.allocate();
        self.put(slot.cell(), operation);
        self.slab.header(slot).vtable = Some(Erased::<O>::VTABLE);
        self.counters.started += 1;
        slot
    }

    /// Fills a cell, or the memory it points to.
    #[inline(always)]
    fn put<O: Operation>(&mut self, cell: NonNull<Cell>, operation: O) {
        let place: NonNull<O> = match Erased::<O>::STORAGE {
            Storage::Inline => cell.cast(),
            Storage::Pooled => {
                self.counters.pooled += 1;
                self.pool.pop().unwrap_or_else(Block::allocate).cast()
            }
            Storage::Boxed => {
                self.counters.boxed += 1;
                NonNull::from(Box::leak(Box::<O>::new_uninit())).cast()
            }
        };
        // SAFETY: the slot is free, so its cell is unused memory of the slab, large enough and
        // aligned for a pointer and, when the storage is inline, for `O`. So is the other memory.
        unsafe {
            if Erased::<O>::STORAGE != Storage::Inline {
                cell.cast::<NonNull<O>>().write(place);
            }
            place.write(operation);
        }
    }

    /// Pushes an operation, or gives it to a thread where the queue cannot take such. False when the queue
    /// has no room.
    #[inline(always)]
    fn push_operation(&mut self, slot: SlotRef, class: Class, operation: impl InPlace) -> bool {
        if self.takes == Takes::Calls {
            return self.push_as_call(slot, class);
        }
        let Some(sqe) = operation.entry() else {
            return self.push_as_call(slot, class);
        };
        if self.is_for_lanes(class, operation.kind(), &sqe) {
            self.push_lane(slot, Lane::Bounded);
            return true;
        }
        let Some(backend) = &mut self.backend else {
            return false;
        };
        let key = self.slab.key(slot);
        // SAFETY: the entry names memory and descriptors that the operation owns (its promise),
        // and the operation stays in its slot until its last completion: `dispatch` is the only
        // way out of the state `Pushed`. A driver that ends before leaks the slot.
        let Some(position) = (unsafe { backend.push(sqe.user_data(key.user_data())) }) else {
            return false;
        };
        self.note_pushed(slot, class, operation.kind(), position);
        true
    }

    /// As [`push_operation`](Core::push_operation), where the operation is pushed as a call or not at all.
    #[cold]
    #[inline(never)]
    fn push_as_call(&mut self, slot: SlotRef, class: Class) -> bool {
        let request = self.request(slot);
        let is_bound =
            request.call.is_at_position() && class == Class::Bounded && !self.lacks_lanes;
        if is_bound || self.takes == Takes::Entries {
            self.push_lane(slot, Lane::Bounded);
            return true;
        }
        // SAFETY: as in `push_operation`.
        let push = |backend: &mut B| unsafe { backend.push_call(request) };
        let Some(position) = self.backend.as_mut().and_then(push) else {
            return false;
        };
        self.note_pushed(slot, class, request.kind, position);
        true
    }

    /// The operation of a slot as a call.
    fn request(&mut self, slot: SlotRef) -> Request {
        let (key, operation) = (self.slab.key(slot), self.in_cell(slot));
        Request { user_data: key.user_data(), kind: operation.kind(), call: operation.call() }
    }

    /// An operation is in the queue now.
    #[inline(always)]
    fn note_pushed(&mut self, slot: SlotRef, class: Class, kind: OpKind, position: Position) {
        let header = self.slab.header(slot);
        header.state = State::Pushed;
        header.position = position.to_raw();
        if class == Class::Bounded {
            self.credits = self.credits.saturating_sub(1);
        }
        self.in_flight += 1;
        self.counters.kinds[kind as usize].submitted += 1;
        self.sends += u32::from(kind == OpKind::Send);
        self.want_turn();
        if self.backend.as_ref().is_some_and(|backend| backend.sq_pending() >= self.flush_at) {
            self.flush();
        }
    }

    /// Takes an operation that could not be pushed at once.
    #[cold]
    #[inline(never)]
    fn postpone(&mut self, slot: SlotRef) {
        if self.phase != Phase::Running || !self.is_intact() {
            self.keep();
            return self.finish(slot, Completion::REVOKED);
        }
        self.counters.backlogged += 1;
        self.list(slot);
    }

    /// Puts an operation at the end of its class's backlog.
    fn list(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        header.state = State::Backlog;
        let class = header.class;
        self.want_turn();
        self.backlog[class as usize].push_back(&mut self.slab, slot);
    }

    /// Takes an operation out of the backlog.
    fn unlist(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        let list = if header.has(flag::DEFERRED) {
            &mut self.deferred
        } else {
            &mut self.backlog[header.class as usize]
        };
        list.remove(&mut self.slab, slot);
        self.slab.header(slot).flags &= !flag::DEFERRED;
    }

    /// Lets a parked operation go on: as a plain call, if it is for one.
    pub(crate) fn unpark(&mut self, key: Key) {
        let Some(slot) = self.leave_park(key) else {
            return;
        };
        self.go_on(slot);
    }

    /// Ends a parked operation without the kernel. False when it is not parked any more.
    pub(crate) fn finish_parked(&mut self, key: Key, completion: Completion) -> bool {
        let slot = self.leave_park(key);
        if let Some(slot) = slot {
            self.finish(slot, completion);
        }
        slot.is_some()
    }

    fn leave_park(&mut self, key: Key) -> Option<SlotRef> {
        let slot = self.slab.find(key)?;
        let header = self.slab.header(slot);
        let was_parked = header.has(flag::PARKED);
        header.flags &= !flag::PARKED;
        was_parked.then_some(slot)
    }

    // ---- one turn ------------------------------------------------------------------------------

    /// Submits what is queued, fetches what is ready, and sleeps if that is nothing. Returns the
    /// number of operations that finished, and of completions that were not their last.
    #[inline]
    pub(crate) fn turn(&mut self, wait: Wait) -> io::Result<u32> {
        let (came_before, finished_before) = (self.came(), self.counters.finished);
        let Some(backend) = &self.backend else {
            return Ok(0);
        };
        if self.failure.is_some() || !backend.is_intact() {
            return Err(self.refuse());
        }
        let is_ready = backend.cq_ready() > 0;
        self.begin_turn();
        self.reserved_calls = self.reserved_calls.min(Self::RESERVED_CALLS_MAX);
        self.timed_until = None;
        if !self.deferred.is_empty() {
            self.run_deferred();
        }
        if self.pool_of_buffers.as_ref().is_some_and(|pool| pool.has_free()) {
            self.refill();
        }
        let is_held_up = self.is_anything_listed() && self.admit();
        if is_ready {
            self.reap();
        }
        // What more follows after, and nobody waits for, is no reason to stay awake.
        let idle = self.counters.finished == finished_before
            && self.deferred.is_empty()
            && !is_held_up
            && !self.is_unsettled();
        let result = match wait {
            Wait::Forever if idle && (self.in_flight > 0 || self.can_be_woken) => {
                self.drain(true, None)
            }
            Wait::For(timeout) if idle && !timeout.is_zero() => self.drain(true, Some(timeout)),
            _ => self.drain(false, None),
        };
        self.end_turn();
        let came = (self.came() - came_before) as u32;
        match result {
            Err(error) if came == 0 => Err(error),
            _ => Ok(came),
        }
    }

    #[inline(always)]
    fn came(&self) -> u64 {
        self.counters.finished + self.counters.delivered
    }

    /// Whether users' code is to be run for what has happened already.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        !(self.wakes.is_empty() && self.tokens.is_empty() && self.disposals.is_empty())
            || self.backend.as_ref().is_some_and(B::has_callback)
    }

    /// Enters as often as it takes to submit everything and fetch what is ready. With `sleep` waits
    /// for a first completion, at most for `timeout`.
    ///
    /// The kernel finishes at most `max(20, min_complete)` operations per enter. Asking for all in
    /// flight with a zero timeout fetches everything at once, but a wait that is not satisfied costs
    /// a timer interrupt (15 us were measured, against 0.2 us for an enter). So it is done only
    /// where the last turns found everything ready: a counter from 0 to 3 tells.
    #[inline]
    fn drain(&mut self, mut sleep: bool, timeout: Option<Duration>) -> io::Result<()> {
        let in_flight = self.in_flight;
        let mut reaped = 0;
        while let Some(backend) = &self.backend {
            let nothing = !sleep && backend.sq_pending() == 0 && !backend.needs_enter();
            if nothing {
                break;
            }
            let (all, speculate) = self.expected();
            let entered = if speculate {
                self.enter(all, Some(Duration::ZERO), true)
            } else {
                self.enter(u32::from(sleep), timeout.filter(|_| sleep), false)
            };
            let fresh = self.reap();
            reaped += fresh;
            entered?;
            if self.is_anything_listed() && self.admit() {
                sleep = false;
            }
            if speculate && fresh < all {
                // Also so that a kernel that has no room is not asked for ever.
                self.counters.drains_missed += 1;
                self.burst = 0;
                self.sends_doubted = SENDS_DOUBTED;
            }
            if fresh > 0 {
                sleep = false;
            } else if !speculate {
                break; // slept, or there is nothing
            }
            if reaped >= TURN_COMPLETIONS_MAX {
                self.want_turn();
                break;
            }
        }
        if in_flight > KERNEL_BATCH {
            let was_all = reaped >= in_flight;
            self.burst =
                if was_all { (self.burst + 1).min(3) } else { self.burst.saturating_sub(1) };
        }
        Ok(())
    }

    /// How many completions the next enter is likely to find ready, and whether it is to ask for as many.
    #[inline]
    fn expected(&mut self) -> (u32, bool) {
        let sends = std::mem::take(&mut self.sends);
        let all = self.in_flight.min(BATCH as u32);
        if self.burst > 0 && all > KERNEL_BATCH {
            return (all, true);
        }
        self.sends_doubted = self.sends_doubted.saturating_sub(u8::from(sends > KERNEL_BATCH));
        let are_sends = sends > KERNEL_BATCH && self.sends_doubted == 0;
        (sends.min(BATCH as u32), are_sends)
    }

    /// One enter. A temporary failure is a success that brought nothing.
    #[inline]
    fn enter(&mut self, min: u32, timeout: Option<Duration>, speculate: bool) -> io::Result<()> {
        let Some(backend) = &mut self.backend else {
            return Ok(());
        };
        self.counters.enters += 1;
        self.counters.waits += u64::from(min > 0 && !speculate);
        if backend.is_overflowing() {
            self.counters.overflows += 1;
        }
        match backend.enter(min, timeout) {
            Ok(_) => Ok(()),
            Err(error) => self.tolerate(error),
        }
    }

    /// Gives pending entries to the kernel in the middle of a turn.
    #[cold]
    #[inline(never)]
    fn flush(&mut self) {
        let Some(backend) = &mut self.backend else {
            return;
        };
        self.counters.enters += 1;
        if let Err(error) = backend.submit() {
            // A permanent failure is kept, and told by the next turn.
            self.tolerate(error).ok();
        }
    }

    /// The one place that says what an errno of an enter means.
    #[cold]
    fn tolerate(&mut self, error: io::Error) -> io::Result<()> {
        self.want_turn(); // entries may be left
        match Errno::from_io_error(&error) {
            // A signal: the caller's loop comes back. What was not consumed is still pending.
            Some(Errno::INTR) => {
                self.counters.retries += 1;
                Ok(())
            }
            // No memory, or completions must be fetched first: they are, and then it is retried.
            Some(Errno::AGAIN | Errno::BUSY) => {
                self.counters.retries += 1;
                if let Some(backend) = &mut self.backend
                    && backend.cq_ready() == 0
                {
                    backend.nap(NAP);
                }
                Ok(())
            }
            errno => {
                self.failure = errno.map(Errno::raw_os_error);
                Err(error)
            }
        }
    }

    /// Whether there can be another turn.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        if self.failure.is_none() && self.is_intact() { Ok(()) } else { Err(self.refuse()) }
    }

    /// Why there are no more turns: a permanent failure, or this is a forked child.
    #[cold]
    fn refuse(&mut self) -> io::Error {
        match (self.failure, &mut self.backend) {
            (Some(errno), _) => io::Error::from_raw_os_error(errno),
            // The backend's own error says what is wrong.
            (None, Some(backend)) => match backend.enter(0, None) {
                Err(error) => error,
                Ok(_) => Errno::OPNOTSUPP.into(),
            },
            (None, None) => Errno::CANCELED.into(),
        }
    }

    pub(crate) fn is_intact(&self) -> bool {
        self.backend.as_ref().is_none_or(Backend::is_intact)
    }

    // ---- admission -----------------------------------------------------------------------------

    /// Whether [`admit`](Core::admit) has something to do.
    #[inline]
    fn is_anything_listed(&self) -> bool {
        !(self.backlog[0].is_empty() && self.backlog[1].is_empty() && self.cancels.is_empty())
            || self.cancel_all
    }

    /// Pushes what waits for room: requests to cancel first, then both classes by turns. Answers whether
    /// something is left because the queue is full, which it is when the kernel was not able to take what
    /// is there. Then there is room after the next enter, which must not sleep: what it would wait for may
    /// depend on what is left.
    #[inline(never)]
    fn admit(&mut self) -> bool {
        if !self.cancels.is_empty() || self.cancel_all {
            self.push_cancels();
        }
        while let Some((slot, class)) = self.next_in_backlog() {
            self.backlog[class as usize].remove(&mut self.slab, slot);
            let operation = self.in_cell(slot);
            if operation.is_closing() {
                self.finish(slot, Completion::REVOKED);
            } else if !self.push_operation(slot, class, operation) {
                self.list(slot); // `next_in_backlog` saw room, but the backend had none
                break;
            }
        }
        let is_full = |backend: &B| backend.sq_pending() >= backend.sq_entries();
        let is_held_up = self.backend.as_ref().is_some_and(is_full) && self.is_anything_listed();
        if is_held_up {
            self.want_turn();
        }
        is_held_up
    }

    /// The operation that may be pushed next, if there is one and room for it.
    fn next_in_backlog(&mut self) -> Option<(SlotRef, Class)> {
        let backend = self.backend.as_ref()?;
        if backend.sq_pending() >= backend.sq_entries() {
            return None;
        }
        let first = |class: Class| self.backlog[class as usize].first();
        let bounded = first(Class::Bounded).filter(|_| self.credits > 0);
        let waiting = first(Class::Waiting);
        let class = match (bounded, waiting) {
            (Some(_), Some(_)) => self.next_class,
            (Some(_), None) => Class::Bounded,
            (None, Some(_)) => Class::Waiting,
            (None, None) => return None,
        };
        self.next_class = match class {
            Class::Bounded => Class::Waiting,
            Class::Waiting => Class::Bounded,
        };
        let slot = if class == Class::Bounded { bounded } else { waiting };
        slot.map(|slot| (slot, class))
    }

    /// Pushes requests to cancel as long as there is room for them and their completions.
    fn push_cancels(&mut self) {
        if self.cancel_all && self.push_cancel(Victims::Any, Kind::Cancel as u64) {
            self.cancel_all = false;
            self.cancel_on_lanes(Victims::Any);
        }
        while let Some(slot) = self.cancels.first() {
            let key = self.slab.key(slot);
            let victim = Victims::UserData(key.user_data());
            let is_laned = self.slab.header(slot).has(flag::LANE);
            let pushed = if is_laned {
                self.push_lane_cancel(victim)
            } else {
                self.push_cancel(victim, key.cancel_user_data())
            };
            if !pushed {
                break;
            }
            self.cancels.remove(&mut self.slab, slot);
            let header = self.slab.header(slot);
            header.flags = header.flags & !flag::CANCEL_LISTED | flag::CANCEL_SENT;
        }
    }

    /// Pushes a request to cancel. It names no descriptor: what has a number in the queue is an operation,
    /// which keeps it open.
    fn push_cancel(&mut self, victims: Victims, user_data: u64) -> bool {
        let Some(backend) = &mut self.backend else {
            return false;
        };
        if self.cancel_credits == 0 {
            return false;
        }
        // SAFETY: a request to cancel names no memory.
        let position = unsafe {
            match self.takes {
                Takes::Calls => backend.push_call(victims.request(user_data)),
                Takes::Entries | Takes::Both => backend.push(victims.entry().user_data(user_data)),
            }
        };
        if position.is_none() {
            return false;
        }
        self.cancel_credits -= 1;
        self.in_flight += 1;
        self.counters.kinds[OpKind::Cancel as usize].submitted += 1;
        true
    }

    /// Requests the same of threads beside the queue, which do so at once.
    fn cancel_on_lanes(&mut self, victims: Victims) {
        if self.backend.as_ref().is_some_and(Backend::has_lanes) {
            let _ = self.push_lane_cancel(victims); // what has lanes has room for this
        }
    }

    /// Has what is under way on a descriptor that is about to be closed canceled. The request is an operation
    /// as any other, and so the number stays this driver's until the kernel is done with the request.
    pub(crate) fn cancel_descriptor(&mut self, fd: &Fd) {
        if self.phase == Phase::Running && self.is_intact() {
            self.cancel_on_lanes(Victims::Descriptor(fd.raw()));
            self.start_detached(CancelFd::new(fd.clone()));
        }
    }

    /// Requests that operations which were given to a thread be canceled. Nothing waits for the answer.
    /// False when the backend has a queue in place of threads, without room.
    fn push_lane_cancel(&mut self, victims: Victims) -> bool {
        let Some(backend) = &mut self.backend else { return true };
        let request = victims.request(Kind::Lane as u64);
        // SAFETY: a request to cancel names no memory.
        match unsafe { backend.push_lane(request, Lane::Bounded) } {
            Ok(()) => {
                self.lane_cancels += u32::from(!backend.has_lanes());
                true
            }
            Err(Errno::AGAIN) => false,
            // A backend that has no lanes any more has nothing there to cancel.
            Err(_) => true,
        }
    }

    // ---- completion ----------------------------------------------------------------------------

    /// Copies completions out and dispatches them. Returns how many.
    fn reap(&mut self) -> u32 {
        let mut total = 0;
        let mut batch = std::mem::take(&mut self.batch);
        while let Some(backend) = &mut self.backend {
            let count = backend.reap(&mut batch);
            for &cqe in &batch[..count] {
                self.dispatch(cqe);
            }
            total += count as u32;
            if count < BATCH {
                break;
            }
            if total >= TURN_COMPLETIONS_MAX {
                self.want_turn();
                break;
            }
        }
        self.batch = batch;
        self.counters.completions += u64::from(total);
        total
    }

    #[inline(always)]
    fn dispatch(&mut self, cqe: Cqe) {
        if Kind::of(cqe.user_data) != Some(Kind::Operation) {
            return self.dispatch_other(cqe);
        }
        let key = Key::from_user_data(cqe.user_data);
        let found = self.slab.find(key);
        let Some(slot) = found.filter(|&slot| self.slab.header(slot).state == State::Pushed) else {
            self.counters.stale += 1;
            return;
        };
        if cqe.flags.has_more() {
            return self.deliver(slot, cqe);
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut completion = Completion::of(cqe.res, cqe.flags);
        let header = self.slab.header(slot);
        if header.class == Class::Bounded {
            self.credits += 1;
        }
        if header.has(flag::REVOKED | flag::CANCEL_LISTED) {
            if header.has(flag::REVOKED) {
                completion = Completion::REVOKED;
            }
            if header.has(flag::CANCEL_LISTED) {
                self.cancels.remove(&mut self.slab, slot);
            }
        }
        if completion.is_canceled() && self.lacked_worker(slot) {
            return self.push_lane(slot, Lane::Bounded);
        }
        self.finish(slot, completion);
    }

    /// A completion that is not the operation's last: the memory is still the kernel's.
    #[inline(never)]
    fn deliver(&mut self, slot: SlotRef, cqe: Cqe) {
        self.counters.delivered += 1;
        let vtable = self.slab.header(slot).vtable;
        let deliver = vtable.expect("a slot in flight holds an operation").deliver;
        let completion = Completion::of(cqe.res, cqe.flags);
        // SAFETY: the cell holds a live operation of the table's type.
        let delivered = unsafe { deliver(slot.cell(), completion) };
        if let Some(waker) = delivered.waker {
            self.wakes.push_back(waker);
        }
        if delivered.is_enough {
            self.list_cancel(slot);
        }
    }

    /// A completion that belongs to no slot.
    #[cold]
    fn dispatch_other(&mut self, cqe: Cqe) {
        match Kind::of(cqe.user_data) {
            Some(Kind::Wake) => {
                self.counters.remote_wakes += 1;
                return;
            }
            Some(Kind::Alarm) if self.alarms > 0 => {
                self.alarms -= 1;
                let expected = [Errno::TIME, Errno::CANCELED].map(|errno| -errno.raw_os_error());
                self.lacks_alarms |= !expected.contains(&cqe.res);
                return;
            }
            Some(Kind::Lane) if self.backend.as_ref().is_some_and(Backend::has_lanes) => return,
            Some(Kind::Lane) if self.lane_cancels > 0 => {
                self.lane_cancels -= 1;
                return;
            }
            _ => {}
        }
        let is_cancel = Kind::of(cqe.user_data) == Some(Kind::Cancel);
        // More of them than requests are none of ours: `in_flight` would forget an operation.
        let is_ours = self.cancel_credits < self.cancel_reserve;
        if is_cancel && is_ours {
            self.cancel_credits += 1;
            self.in_flight -= 1;
        } else {
            self.counters.stale += 1;
        }
    }

    /// The operation is over, and its memory the driver's again: tells whoever waits.
    #[inline(always)]
    fn finish(&mut self, slot: SlotRef, completion: Completion) {
        self.counters.finished += 1;
        let header = self.slab.header(slot);
        header.set_completion(completion);
        if header.has(flag::ORPHAN) {
            header.state = State::Disposing;
            self.disposals.push_back(slot);
            return;
        }
        header.state = State::Done;
        if matches!(header.notify, Notify::Token(Notify::NONE)) {
            return;
        }
        match std::mem::replace(&mut header.notify, Notify::none()) {
            Notify::Token(token) => self.tokens.push_back(token),
            Notify::Wake(waker) => self.wakes.push_back(waker),
        }
    }

    // ---- the handle's side ---------------------------------------------------------------------

    /// The result of a slot that is done.
    #[inline(always)]
    pub(crate) fn result(&mut self, slot: SlotRef) -> Option<Completion> {
        let header = self.slab.header(slot);
        (header.state == State::Done).then(|| header.completion())
    }

    /// Frees a slot whose cell holds no operation any more.
    #[inline(always)]
    pub(crate) fn release(&mut self, slot: SlotRef, storage: Storage) {
        if storage == Storage::Pooled {
            // SAFETY: with this storage the cell holds the address of a block that `put` took from
            // the pool, and whose operation was moved out.
            let block = unsafe { slot.cell().cast::<NonNull<Block>>().read() };
            self.pool.push(block);
        }
        self.slab.release(slot);
    }

    /// The slot's handle was dropped. Answers true when the operation is over already, and its slot
    /// is to be disposed of right away.
    pub(crate) fn abandon(&mut self, slot: SlotRef) -> bool {
        let header = self.slab.header(slot);
        header.flags |= flag::ORPHAN;
        let class = header.class;
        match header.state {
            State::Done => {
                header.state = State::Disposing;
                true
            }
            // A parked close goes on by itself: its descriptor still has to be closed.
            State::Backlog if header.has(flag::PARKED) => false,
            State::Backlog => {
                header.set_completion(Completion::REVOKED);
                header.state = State::Disposing;
                self.unlist(slot);
                self.counters.orphaned += 1;
                self.counters.finished += 1;
                true
            }
            State::Pushed => {
                self.counters.orphaned += 1;
                if self.revoke(slot) {
                    self.counters.revoked += 1;
                } else if class == Class::Waiting {
                    self.list_cancel(slot);
                }
                false
            }
            State::Lost => false,
            state @ (State::Free | State::Disposing) => {
                unreachable!("a handle's slot is {state:?}")
            }
        }
    }

    /// Takes an entry back that the kernel has not seen yet. False when it has.
    fn revoke(&mut self, slot: SlotRef) -> bool {
        let key = self.slab.key(slot);
        let header = self.slab.header(slot);
        if header.has(flag::LANE) {
            return false;
        }
        let position = Position::from_raw(header.position);
        let backend = self.backend.as_mut().filter(|backend| backend.is_intact());
        let revoked = backend.is_some_and(|backend| backend.make_nop(position, key.user_data()));
        if revoked {
            header.flags |= flag::REVOKED;
        }
        revoked
    }

    /// Has an operation in flight canceled, once.
    fn list_cancel(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        let may_cancel = header.vtable.is_some_and(|vtable| vtable.is_cancelable);
        if !may_cancel || header.has(flag::REVOKED | flag::CANCEL_LISTED | flag::CANCEL_SENT) {
            return;
        }
        header.flags |= flag::CANCEL_LISTED;
        self.want_turn();
        self.cancels.push_back(&mut self.slab, slot);
    }

    /// Cancels an operation whose handle goes on waiting for it.
    pub(crate) fn cancel(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        match header.state {
            State::Backlog if header.has(flag::PARKED) => {}
            State::Backlog => {
                self.unlist(slot);
                self.finish(slot, Completion::REVOKED);
            }
            State::Pushed => self.list_cancel(slot),
            _ => {}
        }
    }

    // ---- the end -------------------------------------------------------------------------------

    /// Lets nothing new in, ends what the kernel has not seen, and has all else canceled.
    pub(crate) fn stop_intake(&mut self, shared: &Rc<Shared<B>>) {
        self.phase = Phase::Stopping;
        self.shared = Rc::downgrade(shared);
        self.keep();
        let first = |core: &Self| {
            let lists = [&core.deferred, &core.backlog[0], &core.backlog[1]];
            lists.into_iter().find_map(List::first)
        };
        while let Some(slot) = first(self) {
            self.unlist(slot);
            self.finish(slot, Completion::REVOKED);
        }
        self.cancel_everything();
    }

    /// Asks for everything to be canceled that may be; and once more, since operations may have been waiting
    /// to be pushed, or out of the kernel's reach.
    pub(crate) fn cancel_everything(&mut self) {
        let mut may_cancel_all = true;
        for slot in self.slab.slots() {
            let header = self.slab.header(slot);
            let is_cancelable = header.vtable.is_none_or(|vtable| vtable.is_cancelable);
            may_cancel_all &= header.state != State::Pushed || is_cancelable;
        }
        // One request for all would hit a close that is with a worker, of which nobody could tell then
        // whether it was begun.
        if may_cancel_all {
            self.cancel_all = self.in_flight > 0;
            return;
        }
        for slot in self.slab.slots() {
            if self.slab.header(slot).state == State::Pushed {
                self.list_cancel(slot);
            }
        }
    }

    /// Whether something is left to drain.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight > 0
            || self.lane_cancels > 0
            || self.backlog.iter().any(|list| !list.is_empty())
            || !self.deferred.is_empty()
            || !self.disposals.is_empty()
    }

    /// The backend's time; zero once there is none.
    pub(crate) fn now(&self) -> Duration {
        self.backend.as_ref().map_or(Duration::ZERO, Backend::now)
    }

    /// Gives up what is still in flight: its slots are never used or freed again. Returns how many.
    pub(crate) fn give_up(&mut self) -> u64 {
        let mut lost = 0;
        for slot in self.slab.slots() {
            let header = self.slab.header(slot);
            if header.state != State::Pushed {
                continue;
            }
            header.state = State::Lost;
            if let Notify::Wake(waker) = std::mem::replace(&mut header.notify, Notify::none()) {
                self.wakes.push_back(waker);
            }
            let vtable = header.vtable.expect("a slot in flight holds an operation");
            // SAFETY: the cell holds a live operation of the table's type.
            let waker = unsafe { (vtable.lose)(slot.cell()) };
            self.wakes.extend(waker);
            lost += 1;
        }
        self.counters.leaked += lost;
        if lost > 0 {
            self.finish_all_parked();
        }
        lost
    }

    /// Ends the closes that wait for their descriptor: its last user may be an operation that was
    /// given up. If it is another, that closes the descriptor yet, and nobody is told.
    fn finish_all_parked(&mut self) {
        for slot in self.slab.slots() {
            let key = self.slab.key(slot);
            self.finish_parked(key, Completion::error(Errno::BUSY));
        }
    }

    /// Keeps this memory from the driver's end on until the last slot is freed: those in use then, and
    /// those of operations that are started in vain afterwards.
    fn keep(&mut self) {
        if self.kept.is_none() {
            self.kept = self.shared.upgrade().map(KeepAlive);
        }
    }

    /// What keeps this memory, once the driver has ended and the last slot was freed.
    #[inline(always)]
    pub(crate) fn last_kept(&mut self) -> Option<KeepAlive<B>> {
        if self.slab.live() == 0 { self.kept.take() } else { None }
    }

    /// All counters, with what the backend counts itself.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        for &kind in OpKind::ALL {
            let cell = &mut counters.kinds[kind as usize];
            counters.pushed += cell.submitted;
            if let Some(backend) = &self.backend {
                let ways = backend.ways(kind);
                cell.inline += ways.inline;
                cell.would_block += ways.would_block;
                cell.lane += ways.lane;
                cell.punted += ways.punted;
            }
        }
        counters.cancels = counters.of(OpKind::Cancel).submitted;
        counters.registered_files = self.backend.as_ref().map_or(0, B::registered_files);
        counters
    }

    /// Operations that are still in slots.
    pub(crate) fn live(&self) -> u32 {
        self.slab.live()
    }
}

impl<B: Backend> Drop for Core<B> {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // The kernel may still use the slots and what their operations own.
            std::mem::forget(std::mem::replace(&mut self.slab, Slab::new()));
        }
        for block in self.pool.drain(..) {
            // SAFETY: blocks in the pool are free.
            unsafe { Block::free(block) };
        }
    }
}
