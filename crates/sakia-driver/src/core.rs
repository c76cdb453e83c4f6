//! The driver's state machine: admission, submission, completion, cancellation, without a system call
//! and without running users' code.
//!
//! The caller of a method here holds the only borrow of the core. Actions that run users' code (waking,
//! disposing) are put on two queues, which [`Handle`](crate::Handle) works off once the borrow has ended.
//!
//! Invariant: memory of a pushed operation is touched only by the kernel until its last completion. The parts
//! have invariants of their own.
//!
//! # Layout
//!
//! Each part has its own state: `inline` has plain calls, which `plain` makes, and the way to threads,
//! `admit` decides which operations are pushed and which wait, `submit` has turns and enters, `complete`
//! results, `cancel` requests to cancel, `attention` tells whether a turn is wanted, `buffers` has memory
//! lent to the backend for good, `end` ends the driver. `trace` and `watch` report what happens; `ages` is a
//! list that `watch` keeps.

mod admit;
mod ages;
mod attention;
mod buffers;
mod cancel;
mod complete;
mod end;
mod inline;
mod plain;
mod submit;
mod trace;
mod watch;

use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use sakia_ring::Cqe;
use sakia_trace::is_watched;

use self::admit::Admission;
pub use self::attention::Attention;
use self::attention::Due;
use self::buffers::Lent;
use self::cancel::Cancels;
use self::complete::Outbox;
pub(crate) use self::end::KeepAlive;
use self::end::Keeper;
use self::inline::{Abilities, Inline};
use self::plain::PlainCalls;
use self::submit::Enters;
pub(crate) use self::submit::OwnMask;
pub use self::submit::Wait;
use self::watch::Watcher;
pub use self::watch::{Overdue, PlainCall, WatchLimits};
use crate::auto::Auto;
use crate::backend::{Backend, Calls, Features};
use crate::board::mark;
use crate::counters::{Counters, OpKind};
use crate::decide::{CallMode, Route, Rules};
use crate::key::Key;
use crate::operation::{
    Block, Cell, Class, Completion, Erased, InPlace, Operation, Placed, Storage,
};
use crate::slab::{Slab, SlotRef, SlotState, flag};

/// Completions copied out of the queue at a time.
const BATCH: usize = 256;

/// The phase of a driver's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// New operations end with `ECANCELED`; those in flight are being drained.
    Stopping,
    /// Nothing is in flight, and the backend is gone.
    Stopped,
}

pub(crate) struct Core {
    /// One that does nothing once the driver has stopped.
    pub(crate) backend: Auto,
    pub(crate) slab: Slab,
    pub(crate) phase: Phase,
    /// Entries pushed and without a last completion, requests to cancel included.
    pub(crate) in_flight: u32,
    /// A foreign loop polls a descriptor, which does not tell of messages that a turn leaves to the next one.
    pub(crate) is_polled: bool,
    pub(crate) counters: Counters,
    memory: Memory,
    /// State for the board, once the driver is watched.
    watcher: Option<Box<Watcher>>,
    abilities: Abilities,
    pub(crate) inline: Inline,
    admission: Admission,
    enters: Enters,
    cancels: Cancels,
    pub(crate) outbox: Outbox,
    pub(crate) due: Due,
    pub(crate) lent: Lent,
}

/// Numbers of entries that operations may have in flight.
struct Sizes {
    /// Requests to cancel, which must find room whatever else is in flight, on the smallest queue too.
    reserve: u32,
    /// Bounded operations.
    credits: u32,
}

impl Sizes {
    fn of(features: &Features) -> Self {
        let reserve = (features.cq_entries / 8).clamp(1, 16);
        Self { reserve, credits: features.cq_entries.saturating_sub(reserve).max(1) }
    }
}

/// Memory beside the slots.
struct Memory {
    /// Room for completions while they are dispatched; none before the backend is set up.
    batch: Box<[Cqe]>,
    blocks: Blocks,
    keeper: Keeper,
}

impl Memory {
    fn batch() -> Box<[Cqe]> {
        Box::new([Cqe::default(); BATCH])
    }
}

/// Free blocks for operations larger than a cell.
#[derive(Debug, Default)]
struct Blocks(Vec<NonNull<Block>>);

impl Blocks {
    fn take(&mut self) -> NonNull<Block> {
        self.0.pop().unwrap_or_else(Block::allocate)
    }

    /// Keeps a block that is no longer in use.
    fn give_back(&mut self, block: NonNull<Block>) {
        self.0.push(block);
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.0.drain(..) {
            // SAFETY: made by `allocate`, and free.
            unsafe { Block::free(block) };
        }
    }
}

impl Core {
    pub(crate) fn new(backend: Auto, calls: &Rc<dyn Calls>) -> Self {
        let features = backend.features();
        let Sizes { reserve, credits } = Sizes::of(&features);
        let is_put_off = matches!(backend, Auto::Later(_));
        let due = Due::default();
        due.set_tells_news(features.tells_news);
        Self {
            slab: Slab::new(),
            phase: Phase::Running,
            in_flight: 0,
            is_polled: false,
            counters: Counters::default(),
            memory: Memory {
                batch: if is_put_off { Box::default() } else { Memory::batch() },
                blocks: Blocks::default(),
                keeper: Keeper::new(),
            },
            watcher: None,
            abilities: Abilities::of(features),
            inline: Inline::new(features.readiness, PlainCalls::of(&features, calls)),
            admission: Admission::new(credits, is_put_off),
            enters: Enters::new(features.sq_entries),
            cancels: Cancels::new(reserve),
            outbox: Outbox::default(),
            due,
            lent: Lent::default(),
            backend,
        }
    }

    /// Sets the backend up, if that was [put off](crate::Later).
    ///
    /// # Errors
    /// As for [`Auto::new`]; the next call tries again.
    #[inline]
    pub(crate) fn set_up(&mut self) -> io::Result<()> {
        match &mut self.backend {
            Auto::Later(later) => {
                self.backend = later.set_up()?;
                self.fit_backend();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adapts the parts to a backend that was just set up, with nothing in flight.
    #[cold]
    #[inline(never)]
    fn fit_backend(&mut self) {
        debug_assert_eq!(self.in_flight, 0, "operations in flight have a backend");
        let features = self.backend.features();
        let Sizes { reserve, credits } = Sizes::of(&features);
        self.memory.batch = Memory::batch();
        self.abilities.fit(features);
        self.enters = Enters::new(features.sq_entries);
        self.cancels = Cancels::new(reserve);
        self.due.set_tells_news(features.tells_news);
        if !features.readiness {
            self.inline.learn(false);
            self.lent.lack_readiness();
        }
        if self.watcher.is_some() {
            self.enters.watch();
        }
        self.admission.begin(credits);
    }

    /// Moves an operation into a slot, and performs it at once or pushes its entry if there is room. `rules`
    /// replace the driver's rules.
    #[inline(always)]
    pub(crate) fn start<O: Operation>(
        &mut self,
        operation: ManuallyDrop<O>,
        rules: Option<&Rules>,
    ) -> SlotRef {
        let (slot, class, operation) = self.place(operation);
        if self.phase == Phase::Running {
            let route = operation.route(rules.unwrap_or(&self.inline.rules));
            if !self.is_for_queue(slot, class, operation, route) {
                return slot;
            }
        }
        self.queue(slot, class, operation);
        slot
    }

    /// The same, by a route that is known.
    #[inline(always)]
    pub(crate) fn start_by<O: Operation>(
        &mut self,
        operation: ManuallyDrop<O>,
        route: Route,
    ) -> SlotRef {
        let (slot, class, operation) = self.place(operation);
        if self.is_for_queue(slot, class, operation, route) {
            self.queue(slot, class, operation);
        }
        slot
    }

    /// Performs an operation that has no slot, if a plain call is its route and does not wait.
    ///
    /// # Safety
    ///
    /// - The operation is the caller's, who does not access it before this function returns.
    #[inline(always)]
    pub(crate) unsafe fn begin<O: Operation>(&mut self, operation: NonNull<O>) -> Begun {
        // Those that are watched have slots: the number of a slot is their name.
        if self.abilities.is_special || is_watched() {
            return Begun::No;
        }
        // SAFETY: the caller's promise.
        let operation = unsafe { Placed::at(operation) };
        let route = operation.route(&self.inline.rules);
        let Route::Now(mode) = route else { return Begun::By(route) };
        if !self.has_inline_budget() {
            return Begun::By(route);
        }
        match self.perform(mode, operation) {
            Some(completion) => {
                self.counters.started += 1;
                self.counters.finished += 1;
                Begun::Done(completion)
            }
            None => Begun::By(Route::Queue),
        }
    }

    /// Moves an operation into a slot.
    #[inline(always)]
    fn place<O: Operation>(&mut self, operation: ManuallyDrop<O>) -> (SlotRef, Class, Placed<O>) {
        let slot = self.occupy(operation);
        // SAFETY: `occupy` has just filled the cell with a live operation of this type. Until it is started,
        // no other code has access to it.
        let operation = unsafe { Placed::<O>::new(slot.cell()) };
        let class = operation.class();
        self.slab.header(slot).class = class;
        self.trace_queued(slot);
        if self.abilities.is_special {
            if !self.abilities.features.fills_what_it_reports {
                operation.initialize();
            }
            self.watch_start(slot, class);
        }
        (slot, class, operation)
    }

    /// Performs an operation that has just got its slot, or sends it on its route, unless that is the queue.
    #[inline(always)]
    fn is_for_queue(
        &mut self,
        slot: SlotRef,
        class: Class,
        operation: impl InPlace,
        route: Route,
    ) -> bool {
        match route {
            Route::Queue => return true,
            Route::Now(mode) => {
                if self.has_inline_budget() {
                    if let Some(completion) = self.perform(mode, operation) {
                        self.finish(slot, completion);
                        return false;
                    }
                } else if mode == CallMode::Blocking
                    || !self.batches_well(slot)
                    || self.inline.crowded()
                {
                    // Without the plain call, the queue would hand the operation to a worker, or wait for
                    // it, or has turned out to cost more.
                    self.defer(slot);
                    return false;
                }
                self.queue_refused(slot, class);
            }
            other => self.push_elsewhere(slot, other),
        }
        false
    }

    /// Starts an operation whose result no caller waits for: its completion disposes of it.
    pub(crate) fn start_detached<O: Operation>(&mut self, operation: O) -> Key {
        let slot = self.start(ManuallyDrop::new(operation), None);
        let key = self.slab.key(slot);
        self.trace_dropped(slot, true);
        let header = self.slab.header(slot);
        header.flags |= flag::ORPHAN;
        if header.state == SlotState::Done {
            header.state = SlotState::Disposing;
            self.outbox.disposals.push_back(slot);
        } else {
            self.watch_mark(slot, mark::ORPHAN);
        }
        key
    }

    /// Counts a close that a drop makes itself.
    pub(crate) fn note_closed(&mut self) {
        self.counters.started += 1;
        self.counters.finished += 1;
        self.counters.kinds[OpKind::Close as usize].inline += 1;
    }

    /// Forgets a descriptor that is about to be closed or given away.
    ///
    /// # Safety
    ///
    /// - As for [`Backend::forget_descriptor`].
    pub(crate) unsafe fn forget_descriptor(&mut self, raw: i32) {
        if self.is_intact() {
            // SAFETY: the caller's duties are the same.
            unsafe { self.backend.forget_descriptor(raw) };
        }
    }

    /// Moves an operation into a free slot.
    #[inline(always)]
    fn occupy<O: Operation>(&mut self, operation: ManuallyDrop<O>) -> SlotRef {
        let slot = self.slab.allocate();
        self.put(slot.cell(), operation);
        self.slab.header(slot).vtable = Some(Erased::<O>::VTABLE);
        self.counters.started += 1;
        slot
    }

    /// Fills a cell, or the memory it points to.
    #[inline(always)]
    fn put<O: Operation>(&mut self, cell: NonNull<Cell>, operation: ManuallyDrop<O>) {
        let place: NonNull<ManuallyDrop<O>> = match Erased::<O>::STORAGE {
            Storage::Inline => cell.cast(),
            Storage::Pooled => {
                self.counters.pooled += 1;
                self.memory.blocks.take().cast()
            }
            Storage::Boxed => {
                self.counters.boxed += 1;
                NonNull::from(Box::leak(Box::<O>::new_uninit())).cast()
            }
        };
        // SAFETY: the slot is free, so its cell is unused memory of the slab, large enough and aligned for a
        // pointer and, if the storage is inline, for `O`. The same holds for the pooled or boxed memory.
        unsafe {
            if Erased::<O>::STORAGE != Storage::Inline {
                cell.cast::<NonNull<ManuallyDrop<O>>>().write(place);
            }
            place.write(operation);
        }
    }

    #[inline(always)]
    pub(crate) fn is_intact(&self) -> bool {
        self.backend.is_intact()
    }

    /// Returns the backend's time; zero once there is no backend.
    pub(crate) fn now(&self) -> Duration {
        self.backend.now()
    }

    /// Returns all counters, those of the backend included.
    pub(crate) fn counters(&self) -> Counters {
        let (mut counters, figures) = (self.counters, self.backend.figures());
        for (index, cell) in counters.kinds.iter_mut().enumerate() {
            counters.pushed += cell.submitted;
            let Some(ways) = figures.ways.get(index) else { continue };
            cell.inline += ways.inline;
            cell.would_block += ways.would_block;
            cell.lane += ways.lane;
            cell.punted += ways.punted;
        }
        counters.cancels = counters.of(OpKind::Cancel).submitted;
        counters.registered_files = figures.registered_files;
        counters
    }

    /// Returns the number of operations that are still in slots.
    pub(crate) fn live(&self) -> u32 {
        self.slab.live()
    }
}

/// The outcome of an attempt to perform an operation that has no slot.
pub(crate) enum Begun {
    /// It is done.
    Done(Completion),
    /// It takes this route.
    By(Route),
    /// It is to be started as any other.
    No,
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // The kernel may still use the slots and the memory that their operations own.
            std::mem::forget(std::mem::replace(&mut self.slab, Slab::new()));
        }
    }
}
