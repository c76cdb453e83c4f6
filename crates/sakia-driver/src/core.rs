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

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::task::Waker;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Position, Sqe};

use crate::arena::Arena;
use crate::backend::Backend;
use crate::counters::Counters;
use crate::key::{Key, Kind};
use crate::op::{Block, Class, Completion, Erased, Operation, Storage};
use crate::slab::{Cell, Header, List, Notify, Slab, State, flag};

/// Completions copied out of the queue at a time.
const BATCH: usize = 256;
/// Completions handled in one turn before the caller gets to run.
const TURN_COMPLETIONS_MAX: u32 = 1024;
/// Most completions that the kernel finishes in one enter unless asked for more (since 6.13).
const KERNEL_BATCH: u32 = 20;
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

pub(crate) struct Core<B> {
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
    /// Close operations that wait for their descriptor's last user; each wants that descriptor's
    /// operations canceled.
    pub(crate) closings: VecDeque<(Key, i32)>,
    /// Whether everything in flight is to be canceled with the next push.
    pub(crate) cancel_all: bool,
    /// Entries pushed whose last completion has not come, requests to cancel included.
    pub(crate) in_flight: u32,
    /// Pending entries at which the queue is flushed without waiting for the turn.
    flush_at: u32,
    /// How sure it is that everything in flight is ready at once: 0 to 3. See [`Core::drain`].
    burst: u8,
    /// Tasks to wake and numbers to report, oldest first.
    pub(crate) wakes: VecDeque<Waker>,
    pub(crate) tokens: VecDeque<u64>,
    /// Slots in state `Disposing`, oldest first.
    pub(crate) disposals: VecDeque<u32>,
    /// Free blocks for operations larger than a cell.
    pool: Vec<NonNull<Block>>,
    pub(crate) counters: Counters,
    batch: Box<[Cqe; BATCH]>,
    /// The errno of a permanent failure of the backend.
    failure: Option<i32>,
    /// The registered memory, kept as long as the backend.
    pub(crate) arena: Option<Arena>,
}

impl<B: Backend> Core<B> {
    pub(crate) fn new(backend: B) -> Self {
        let cq_entries = backend.cq_entries();
        // Cancels must find room whatever else is in flight, on the smallest queue too.
        let reserve = (cq_entries / 8).clamp(1, 16);
        let flush_at = (backend.sq_entries() * 3 / 4).max(1);
        Self {
            backend: Some(backend),
            slab: Slab::new(),
            phase: Phase::Running,
            backlog: [List::new(), List::new()],
            next_class: Class::Bounded,
            cancels: List::new(),
            credits: cq_entries.saturating_sub(reserve).max(1),
            cancel_credits: reserve,
            closings: VecDeque::new(),
            cancel_all: false,
            in_flight: 0,
            flush_at,
            burst: 0,
            wakes: VecDeque::new(),
            tokens: VecDeque::new(),
            disposals: VecDeque::new(),
            pool: Vec::new(),
            counters: Counters::default(),
            batch: Box::new([Cqe::default(); BATCH]),
            failure: None,
            arena: None,
        }
    }

    // ---- starting ------------------------------------------------------------------------------

    /// Moves an operation into a slot and pushes its entry if there is room. With `parked` it waits
    /// for [`unpark`](Core::unpark) instead.
    #[inline(always)]
    pub(crate) fn start<O: Operation>(&mut self, operation: O, parked: bool) -> Key {
        let class = operation.class();
        let index = self.slab.allocate();
        let cell = self.slab.cell(index);
        self.put(cell, operation);
        let header = self.slab.header(index);
        let key = Key::new(index, header.generation);
        header.class = class;
        header.vtable = Some(Erased::<O>::VTABLE);
        header.notify = Notify::none();
        self.counters.started += 1;
        let may_push = self.phase == Phase::Running
            && !parked
            && self.backlog[class as usize].is_empty()
            && (class == Class::Waiting || self.credits > 0);
        if may_push {
            // SAFETY: `put` has just filled the cell with a live operation of this type, to which
            // nobody else has access yet.
            let sqe = unsafe { Erased::<O>::place(cell).as_mut() }.entry();
            if self.push_operation(key, class, sqe) {
                return key;
            }
        }
        if self.phase != Phase::Running || !self.is_intact() {
            self.finish(index, Completion::CANCELED);
        } else {
            self.postpone(key, parked);
        }
        key
    }

    /// Starts an operation whose result nobody waits for.
    pub(crate) fn start_detached<O: Operation>(&mut self, operation: O) {
        let key = self.start(operation, false);
        let header = self.slab.header(key.index());
        if header.state == State::Done {
            header.state = State::Disposing;
            self.disposals.push_back(key.index());
        }
        self.slab.header(key.index()).flags |= flag::ORPHAN;
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

    /// Pushes an operation's entry. False when the queue has no room.
    #[inline(always)]
    fn push_operation(&mut self, key: Key, class: Class, sqe: Sqe) -> bool {
        let Some(backend) = &mut self.backend else {
            return false;
        };
        // SAFETY: the entry names memory and a descriptor that the operation owns (its promise),
        // and the operation stays in its slot until its last completion: `dispatch` is the only
        // way out of the state `Pushed`. A driver that ends before leaks the slot.
        let Some(position) = (unsafe { backend.push(sqe.user_data(key.user_data())) }) else {
            return false;
        };
        let header = self.slab.header(key.index());
        header.state = State::Pushed;
        header.position = position.to_raw();
        if class == Class::Bounded || mutant!("waiting_holds_credit") {
            self.credits = self.credits.saturating_sub(1);
        }
        self.in_flight += 1;
        self.counters.pushed += 1;
        if backend.sq_pending() >= self.flush_at {
            self.flush();
        }
        true
    }

    /// Takes an operation that could not be pushed at once.
    #[cold]
    #[inline(never)]
    fn postpone(&mut self, key: Key, parked: bool) {
        let index = key.index();
        self.counters.backlogged += u64::from(!parked);
        let header = self.slab.header(index);
        header.state = State::Backlog;
        let class = header.class;
        if parked {
            header.flags |= flag::PARKED;
        } else {
            self.backlog[class as usize].push_back(&mut self.slab, index);
        }
    }

    /// Lets a parked operation go on.
    pub(crate) fn unpark(&mut self, key: Key) {
        if let Some(class) = self.leave_park(key) {
            self.backlog[class as usize].push_back(&mut self.slab, key.index());
        }
    }

    /// Ends a parked operation, since nothing new is let in any more.
    pub(crate) fn finish_parked(&mut self, key: Key) {
        if self.leave_park(key).is_some() {
            self.finish(key.index(), Completion::CANCELED);
        }
    }

    fn leave_park(&mut self, key: Key) -> Option<Class> {
        let header = self.slab.find(key).filter(|header| header.has(flag::PARKED))?;
        header.flags &= !flag::PARKED;
        Some(header.class)
    }

    // ---- one turn ------------------------------------------------------------------------------

    /// Submits what is queued, fetches what is ready, and sleeps if that is nothing. Returns the
    /// number of operations that finished.
    pub(crate) fn turn(&mut self, wait: Wait) -> io::Result<u32> {
        self.check()?;
        let finished_before = self.counters.finished;
        self.admit();
        self.reap();
        let idle = self.counters.finished == finished_before
            && self.wakes.is_empty()
            && self.tokens.is_empty()
            && self.disposals.is_empty();
        let result = match wait {
            Wait::Forever if idle && self.in_flight > 0 => self.drain(Some(None)),
            Wait::For(timeout) if idle && !timeout.is_zero() => self.drain(Some(Some(timeout))),
            _ => self.drain(None),
        };
        let finished = (self.counters.finished - finished_before) as u32;
        match result {
            Err(error) if finished == 0 => Err(error),
            _ => Ok(finished),
        }
    }

    /// Enters as often as it takes to submit everything and fetch what is ready. `sleep` says
    /// whether to wait for a first completion, and how long.
    ///
    /// The kernel finishes at most `max(20, min_complete)` operations per enter. Asking for all in
    /// flight with a zero timeout fetches everything at once, but a wait that is not satisfied costs
    /// a timer interrupt (15 us were measured, against 0.2 us for an enter). So it is done only
    /// where the last turns found everything ready: a counter from 0 to 3 tells.
    fn drain(&mut self, sleep: Option<Option<Duration>>) -> io::Result<()> {
        let Some(backend) = &mut self.backend else {
            return Ok(());
        };
        let mut sleep = sleep;
        if backend.sq_pending() == 0 && !backend.needs_enter() && sleep.is_none() {
            return Ok(());
        }
        let in_flight = self.in_flight;
        let mut reaped = 0;
        loop {
            let all = self.in_flight.min(BATCH as u32);
            let speculate = self.burst > 0 && all > KERNEL_BATCH;
            let (min_complete, timeout) = match sleep {
                _ if speculate => (all, Some(Duration::ZERO)),
                Some(timeout) => (1, timeout),
                None => (0, None),
            };
            if let Err(error) = self.enter(min_complete, timeout, speculate) {
                self.reap();
                return Err(error);
            }
            let fresh = self.reap();
            reaped += fresh;
            self.admit();
            if fresh > 0 {
                sleep = None;
            } else if !speculate {
                break; // slept, or there is nothing
            }
            let Some(backend) = &self.backend else { break };
            let more = backend.sq_pending() > 0 || backend.needs_enter() || sleep.is_some();
            if !more || reaped >= TURN_COMPLETIONS_MAX {
                break;
            }
        }
        if in_flight > KERNEL_BATCH {
            if reaped >= in_flight {
                self.burst = (self.burst + 1).min(3);
            } else {
                self.burst = self.burst.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// One enter. A temporary failure is a success that brought nothing.
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
            Ok(entered) => {
                if speculate && entered.timed_out {
                    self.counters.drains_missed += 1;
                    self.burst = 0;
                }
                Ok(())
            }
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
        match Errno::from_io_error(&error) {
            // A signal: the caller's loop comes back. What was not consumed is still pending.
            Some(Errno::INTR) => {
                self.counters.retries += 1;
                if mutant!("eintr_forgets_in_flight") {
                    self.in_flight = 0;
                }
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

    /// Refuses to go on after a permanent failure, or in a forked child.
    fn check(&mut self) -> io::Result<()> {
        if let Some(errno) = self.failure {
            return Err(io::Error::from_raw_os_error(errno));
        }
        match &mut self.backend {
            Some(backend) if !backend.is_intact() => {
                // The backend's own error says what is wrong.
                backend.enter(0, None).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_intact(&self) -> bool {
        self.backend.as_ref().is_none_or(Backend::is_intact)
    }

    // ---- admission -----------------------------------------------------------------------------

    /// Pushes what waits for room: requests to cancel first, then both classes by turns.
    fn admit(&mut self) {
        if !self.cancels.is_empty() || !self.closings.is_empty() || self.cancel_all {
            self.push_cancels();
        }
        while let Some((index, class)) = self.next_in_backlog() {
            let cell = self.slab.cell(index);
            let header = self.slab.header(index);
            let key = Key::new(index, header.generation);
            let vtable = header.vtable.expect("a slot in the backlog holds an operation");
            // SAFETY: the cell holds a live operation of the table's type, the driver's alone.
            if unsafe { (vtable.is_closing)(cell) } {
                self.unlist(index, class);
                self.finish(index, Completion::CANCELED);
                continue;
            }
            // SAFETY: as above.
            let sqe = unsafe { (vtable.entry)(cell) };
            self.unlist(index, class);
            if !self.push_operation(key, class, sqe) {
                // `next_in_backlog` saw room; a backend that refuses all the same gets it back.
                self.postpone(key, false);
                break;
            }
        }
    }

    fn unlist(&mut self, index: u32, class: Class) {
        self.backlog[class as usize].remove(&mut self.slab, index);
    }

    /// The operation that may be pushed next, if there is one and room for it.
    fn next_in_backlog(&mut self) -> Option<(u32, Class)> {
        let backend = self.backend.as_ref()?;
        if backend.sq_pending() >= backend.sq_entries() {
            return None;
        }
        let bounded = self.backlog[Class::Bounded as usize].first().filter(|_| self.credits > 0);
        let waiting = self.backlog[Class::Waiting as usize].first();
        let waiting = waiting.filter(|_| !mutant!("waiting_holds_credit") || self.credits > 0);
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
        let index = if class == Class::Bounded { bounded } else { waiting };
        index.map(|index| (index, class))
    }

    /// Pushes requests to cancel as long as there is room for them and their completions.
    fn push_cancels(&mut self) {
        if self.cancel_all && self.push_cancel(Sqe::cancel_all(), Kind::Cancel as u64) {
            self.cancel_all = false;
        }
        while let Some(&(key, raw)) = self.closings.front() {
            // The descriptor's number is still ours as long as its close operation is parked.
            let parked = self.slab.find(key).is_some_and(|header| header.has(flag::PARKED));
            if parked && !self.push_cancel(Sqe::cancel_fd(raw), Kind::Cancel as u64) {
                break;
            }
            self.closings.pop_front();
        }
        while let Some(index) = self.cancels.first() {
            let key = Key::new(index, self.slab.header(index).generation);
            if !self.push_cancel(Sqe::cancel(key.user_data()), key.cancel_user_data()) {
                if mutant!("cancel_dropped_when_full") {
                    self.cancels.remove(&mut self.slab, index);
                    self.slab.header(index).flags &= !flag::CANCEL_LISTED;
                    continue;
                }
                break;
            }
            self.cancels.remove(&mut self.slab, index);
            let header = self.slab.header(index);
            header.flags = header.flags & !flag::CANCEL_LISTED | flag::CANCEL_SENT;
        }
    }

    fn push_cancel(&mut self, sqe: Sqe, user_data: u64) -> bool {
        let Some(backend) = &mut self.backend else {
            return false;
        };
        if self.cancel_credits == 0 {
            return false;
        }
        // SAFETY: a request to cancel names no memory.
        if unsafe { backend.push(sqe.user_data(user_data)) }.is_none() {
            return false;
        }
        self.cancel_credits -= 1;
        self.in_flight += 1;
        self.counters.pushed += 1;
        self.counters.cancels += 1;
        true
    }

    // ---- completion ----------------------------------------------------------------------------

    /// Copies completions out and dispatches them. Returns how many.
    fn reap(&mut self) -> u32 {
        let mut total = 0;
        while let Some(backend) = &mut self.backend {
            let count = backend.reap(&mut self.batch[..]);
            for place in 0..count {
                let cqe = self.batch[place];
                self.dispatch(cqe);
            }
            total += count as u32;
            if count < BATCH || total >= TURN_COMPLETIONS_MAX {
                break;
            }
        }
        self.counters.completions += u64::from(total);
        total
    }

    #[inline(always)]
    fn dispatch(&mut self, cqe: Cqe) {
        let key = Key::from_user_data(cqe.user_data);
        match Kind::of(cqe.user_data) {
            Some(Kind::Operation) => {}
            Some(Kind::Cancel) if self.in_flight > 0 => {
                self.cancel_credits += 1;
                self.in_flight -= 1;
                return;
            }
            _ => {
                self.counters.stale += 1;
                return;
            }
        }
        let found = if mutant!("no_generation_check") {
            let known = self.slab.indices().contains(&key.index());
            known.then(|| self.slab.header(key.index()))
        } else {
            self.slab.find(key)
        };
        let Some(header) = found.filter(|header| header.state == State::Pushed) else {
            self.counters.stale += 1;
            return;
        };
        if cqe.flags.has_more() && !mutant!("more_is_last") {
            return; // the memory is still the kernel's
        }
        let mut completion = Completion { res: cqe.res, flags: cqe.flags };
        if header.has(flag::REVOKED) && !mutant!("revoked_succeeds") {
            completion = Completion::CANCELED;
        }
        let had_credit = header.class == Class::Bounded || mutant!("waiting_holds_credit");
        if had_credit && !mutant!("credit_not_returned") {
            self.credits += 1;
        }
        if header.has(flag::CANCEL_LISTED) {
            self.cancels.remove(&mut self.slab, key.index());
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        self.finish(key.index(), completion);
    }

    /// The operation is over, and its memory the driver's again: tells whoever waits.
    #[inline(always)]
    fn finish(&mut self, index: u32, completion: Completion) {
        self.counters.finished += 1;
        let header = self.slab.header(index);
        header.completion = completion;
        if header.has(flag::ORPHAN) {
            header.state = State::Disposing;
            self.disposals.push_back(index);
            return;
        }
        header.state = State::Done;
        match std::mem::replace(&mut header.notify, Notify::none()) {
            Notify::Token(Notify::NONE) => {}
            Notify::Token(token) => self.tokens.push_back(token),
            Notify::Wake(waker) => self.wakes.push_back(waker),
        }
    }

    // ---- the handle's side ---------------------------------------------------------------------

    /// Takes the operation and its result out of a slot that is done.
    #[inline(always)]
    pub(crate) fn take<O: Operation>(&mut self, key: Key) -> Option<(O, Completion)> {
        let header = self.owned(key);
        if header.state != State::Done {
            return None;
        }
        let completion = header.completion;
        let cell = self.slab.cell(key.index());
        // SAFETY: the handle's type parameter is that of the operation it started; in the state
        // `Done` the cell holds that operation, and the driver alone has access. `release` marks
        // the cell as empty.
        let operation = unsafe { Erased::<O>::take(cell) };
        self.release(key.index());
        Some((operation, completion))
    }

    /// The slot of a handle that still owns its result.
    #[inline(always)]
    pub(crate) fn owned(&mut self, key: Key) -> &mut Header {
        let header = self.slab.header(key.index());
        debug_assert_eq!(header.generation, key.generation(), "the handle owns its slot");
        header
    }

    /// Frees a slot whose cell holds no operation any more.
    #[inline(always)]
    pub(crate) fn release(&mut self, index: u32) {
        let storage = self.slab.header(index).vtable.take().map(|vtable| vtable.storage);
        if storage == Some(Storage::Pooled) {
            // SAFETY: with this storage the cell holds the address of a block that `put` took from
            // the pool, and whose operation was moved out.
            let block = unsafe { self.slab.cell(index).cast::<NonNull<Block>>().read() };
            self.pool.push(block);
        }
        self.slab.release(index);
    }

    /// The handle was dropped. Answers true when the operation is over already and its slot is to
    /// be disposed of right away.
    pub(crate) fn abandon(&mut self, key: Key) -> bool {
        let index = key.index();
        let header = self.slab.header(index);
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
                self.counters.orphaned += 1;
                self.unlist(index, class);
                self.counters.finished += 1;
                let header = self.slab.header(index);
                header.completion = Completion::CANCELED;
                header.state = State::Disposing;
                true
            }
            State::Pushed => {
                self.counters.orphaned += 1;
                let position = Position::from_raw(header.position);
                let revoked = self.is_intact()
                    && self
                        .backend
                        .as_mut()
                        .is_some_and(|backend| backend.make_nop(position, key.user_data()));
                if revoked {
                    self.counters.revoked += 1;
                    self.slab.header(index).flags |= flag::REVOKED;
                } else if class == Class::Waiting {
                    self.list_cancel(key);
                }
                mutant!("free_on_drop")
            }
            State::Lost => false,
            state @ (State::Free | State::Disposing) => {
                unreachable!("a handle's slot is {state:?}")
            }
        }
    }

    /// Has an operation in flight canceled, once.
    pub(crate) fn list_cancel(&mut self, key: Key) {
        let header = self.slab.header(key.index());
        if header.state != State::Pushed
            || header.has(flag::REVOKED | flag::CANCEL_LISTED | flag::CANCEL_SENT)
        {
            return;
        }
        header.flags |= flag::CANCEL_LISTED;
        self.cancels.push_back(&mut self.slab, key.index());
    }

    /// Cancels an operation whose handle goes on waiting for it.
    pub(crate) fn cancel(&mut self, key: Key) {
        let header = self.owned(key);
        let class = header.class;
        match header.state {
            State::Backlog if header.has(flag::PARKED) => {}
            State::Backlog => {
                self.unlist(key.index(), class);
                self.finish(key.index(), Completion::CANCELED);
            }
            State::Pushed => self.list_cancel(key),
            _ => {}
        }
    }

    // ---- the end -------------------------------------------------------------------------------

    /// Lets nothing new in, ends what the kernel has not seen, and has all else canceled.
    pub(crate) fn stop_intake(&mut self) {
        self.phase = Phase::Stopping;
        for class in [Class::Bounded, Class::Waiting] {
            while let Some(index) = self.backlog[class as usize].first() {
                self.unlist(index, class);
                self.finish(index, Completion::CANCELED);
            }
        }
        self.cancel_all = self.in_flight > 0;
    }

    /// Asks once more for everything to be canceled: operations may have been waiting to be pushed,
    /// or out of the kernel's reach.
    pub(crate) fn cancel_again(&mut self) {
        self.cancel_all = self.in_flight > 0;
    }

    /// Whether something is left to drain.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight > 0
            || self.backlog.iter().any(|list| !list.is_empty())
            || !self.disposals.is_empty()
    }

    /// The backend's time; zero once there is none.
    pub(crate) fn now(&self) -> Duration {
        self.backend.as_ref().map_or(Duration::ZERO, Backend::now)
    }

    /// Gives up what is still in flight: its slots are never used or freed again. Returns how many.
    pub(crate) fn give_up(&mut self) -> u64 {
        let mut lost = 0;
        for index in self.slab.indices() {
            let header = self.slab.header(index);
            if header.state != State::Pushed {
                continue;
            }
            if mutant!("teardown_frees") {
                header.state = State::Disposing;
                self.disposals.push_back(index);
                continue;
            }
            header.state = State::Lost;
            if let Notify::Wake(waker) = std::mem::replace(&mut header.notify, Notify::none()) {
                self.wakes.push_back(waker);
            }
            lost += 1;
        }
        self.counters.leaked += lost;
        lost
    }

    /// Operations that are still in slots.
    pub(crate) fn live(&self) -> u32 {
        self.slab.live()
    }
}

impl<B> Drop for Core<B> {
    fn drop(&mut self) {
        if self.in_flight > 0 && !mutant!("teardown_frees") {
            // The kernel may still use the slots and what their operations own.
            std::mem::forget(std::mem::replace(&mut self.slab, Slab::new()));
        }
        for block in self.pool.drain(..) {
            // SAFETY: blocks in the pool are free.
            unsafe { Block::free(block) };
        }
    }
}
