//! Admission: decides which operations are pushed now, and which wait for room.
//!
//! Invariants:
//! - Bounded operations in flight never exceed the credits, so that their completions always find room.
//! - Within each class, operations are pushed in the order of their arrival.

use std::io;
use std::mem::ManuallyDrop;

use rustix::io::Errno;
use sakia_ring::Position;
use sakia_trace::is_on;

use super::trace::Delay;
use super::{Core, Phase};
use crate::auto::NoBackend;
use crate::backend::{Backend, Destination, Takes};
use crate::board::OperationState;
use crate::call::Request;
use crate::counters::OpKind;
use crate::decide::Lane;
use crate::key::Key;
use crate::operation::{Class, Completion, InPlace, Operation};
use crate::slab::{List, Slab, SlotRef, SlotState, flag};

/// Returns the errno with which an operation ends if there is no backend for it.
fn set_up_errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or_else(|| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<NoBackend>());
        let raw = inner.and_then(NoBackend::raw_os_error);
        raw.map_or(Errno::NOMEM, Errno::from_raw_os_error)
    })
}

/// Operations that wait to be pushed, and the number of further ones that may be pushed.
#[derive(Debug)]
pub(super) struct Admission {
    /// Operations without an entry, by class, in the order of their arrival.
    backlog: [List; 2],
    /// The number of operations in `backlog`.
    listed: u32,
    /// The class that is served next if both wait for room.
    next_class: Class,
    /// Bounded operations that may still be pushed.
    credits: u32,
    /// The value of `credits` when none is in flight.
    credits_max: u32,
    /// Set for a class whose operations need not wait: the driver is running, no operation of the class
    /// waits, and there is a credit.
    is_open: [bool; 2],
    is_running: bool,
    /// The backend is not set up yet: operations wait for that.
    is_put_off: bool,
}

impl Admission {
    pub(super) fn new(credits: u32, is_put_off: bool) -> Self {
        let backlog = [List::new(), List::new()];
        let next_class = Class::Bounded;
        Self {
            backlog,
            listed: 0,
            next_class,
            credits,
            credits_max: credits,
            is_open: [!is_put_off; 2],
            is_running: true,
            is_put_off,
        }
    }

    /// Returns whether an operation of this class need not wait for earlier ones.
    #[inline(always)]
    pub(super) fn may_push(&self, class: Class) -> bool {
        self.is_open[class as usize]
    }

    /// Admits nothing new.
    pub(super) fn close(&mut self) {
        (self.is_running, self.is_open) = (false, [false; 2]);
    }

    /// Lets operations be pushed, once the backend is set up.
    pub(super) fn begin(&mut self, credits: u32) {
        self.is_put_off = false;
        (self.credits, self.credits_max) = (credits, credits);
        [Class::Bounded, Class::Waiting].into_iter().for_each(|class| self.look(class));
    }

    /// Returns whether the backend is still to be set up.
    #[inline]
    pub(super) fn is_put_off(&self) -> bool {
        self.is_put_off
    }

    /// Updates whether an operation of this class need not wait.
    fn look(&mut self, class: Class) {
        let is_free = self.backlog[class as usize].is_empty() && self.has_credit(class);
        self.is_open[class as usize] = self.is_running && !self.is_put_off && is_free;
    }

    #[inline(always)]
    fn has_credit(&self, class: Class) -> bool {
        class == Class::Waiting || self.credits > 0
    }

    /// Returns whether no operation waits.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Adds an operation behind those of its class.
    fn list(&mut self, slab: &mut Slab, slot: SlotRef, class: Class) {
        self.backlog[class as usize].push_back(slab, slot);
        self.listed += 1;
        self.look(class);
    }

    /// Removes a waiting operation from the list of its class.
    fn unlist(&mut self, slab: &mut Slab, slot: SlotRef, class: Class) {
        self.backlog[class as usize].remove(slab, slot);
        self.listed -= 1;
        self.look(class);
    }

    /// Returns the number of operations that wait.
    pub(super) fn listed(&self) -> u32 {
        self.listed
    }

    /// Returns the number of bounded operations that may still be pushed, and the maximum of that number.
    pub(super) fn numbers(&self) -> (u64, u64) {
        (self.credits.into(), self.credits_max.into())
    }

    /// Returns one of the operations that wait.
    pub(super) fn first(&self) -> Option<SlotRef> {
        self.backlog.iter().find_map(List::first)
    }

    /// Returns the operation to push next, if one waits and has a credit. The two classes alternate.
    fn next(&mut self) -> Option<(SlotRef, Class)> {
        let first = |class: Class| {
            let slot = self.backlog[class as usize].first();
            slot.filter(|_| self.has_credit(class)).map(|slot| (slot, class))
        };
        let (bounded, waiting) = (first(Class::Bounded), first(Class::Waiting));
        let next = match (bounded, waiting) {
            (Some(_), Some(_)) if self.next_class == Class::Waiting => waiting,
            (bounded, waiting) => bounded.or(waiting),
        };
        let (_, class) = next?;
        self.next_class = match class {
            Class::Bounded => Class::Waiting,
            Class::Waiting => Class::Bounded,
        };
        next
    }

    /// Counts an operation of this class that was pushed.
    #[inline(always)]
    fn take(&mut self, class: Class) {
        if class == Class::Bounded {
            self.credits -= 1;
            if self.credits == 0 {
                self.look(class);
            }
        }
    }

    /// Counts the last completion of an operation of this class.
    #[inline(always)]
    pub(super) fn give_back(&mut self, class: Class) {
        if class == Class::Bounded {
            self.credits += 1;
            if !self.may_push(class) {
                self.look(class);
            }
        }
    }
}

impl Core {
    /// Puts an operation into the queue or, if the queue cannot take it, gives it to a thread. Without room
    /// it goes into the backlog.
    #[inline(always)]
    pub(super) fn queue(&mut self, slot: SlotRef, class: Class, operation: impl InPlace) {
        if !self.admission.may_push(class) || !self.push_operation(slot, class, operation) {
            self.postpone(slot);
        }
    }

    /// Queues an operation after its plain call was refused. Not inlined, so that the direct way to the queue
    /// stays short.
    #[inline(never)]
    pub(super) fn queue_refused(&mut self, slot: SlotRef, class: Class) {
        let operation = self.in_cell(slot);
        self.queue(slot, class, operation);
    }

    /// Pushes an operation, or gives it to a thread if the queue cannot take it. Returns false if the queue
    /// has no room.
    #[inline(always)]
    pub(super) fn push_operation(
        &mut self,
        slot: SlotRef,
        class: Class,
        operation: impl InPlace,
    ) -> bool {
        if self.abilities.features.takes == Takes::Calls {
            return self.push_as_call(slot, class);
        }
        let Some(sqe) = operation.entry() else {
            return self.push_as_call(slot, class);
        };
        if self.abilities.is_for_lanes(class, operation.kind(), &sqe) {
            self.push_lane(slot, Lane::Bounded);
            return true;
        }
        if cfg!(debug_assertions) {
            // SAFETY: both belong to the operation, which is in its slot.
            unsafe { self.backend.compare(&sqe, operation.call()) };
        }
        let key = self.slab.key(slot);
        // SAFETY: the entry names memory and descriptors that the operation owns (its promise), and the
        // operation stays in its slot until its last completion: only `dispatch` leaves the state `Pushed`. A
        // driver that ends earlier leaks the slot.
        let Some(position) = (unsafe { self.backend.push(sqe.user_data(key.user_data())) }) else {
            return false;
        };
        self.note_pushed(slot, class, operation.kind(), position);
        true
    }

    /// As [`push_operation`](Core::push_operation), for an operation that is pushed as a call or not at all.
    #[cold]
    #[inline(never)]
    fn push_as_call(&mut self, slot: SlotRef, class: Class) -> bool {
        let request = self.request(slot);
        let is_bound = request.call.is_at_position() && self.abilities.is_position_for_lanes(class);
        if is_bound || self.abilities.features.takes == Takes::Entries {
            self.push_lane(slot, Lane::Bounded);
            return true;
        }
        // SAFETY: as in `push_operation`.
        let pushed = unsafe { self.backend.push_call(request, Destination::Queue) };
        let Ok(Some(position)) = pushed else {
            return false;
        };
        self.note_pushed(slot, class, request.kind, position);
        true
    }

    /// Returns the operation of a slot as a call.
    pub(super) fn request(&mut self, slot: SlotRef) -> Request {
        let (key, operation) = (self.slab.key(slot), self.in_cell(slot));
        Request { user_data: key.user_data(), kind: operation.kind(), call: operation.call() }
    }

    /// Records that an operation is in the queue.
    #[inline(always)]
    fn note_pushed(&mut self, slot: SlotRef, class: Class, kind: OpKind, position: Position) {
        let header = self.slab.header(slot);
        header.state = SlotState::Pushed;
        header.position = position.to_raw();
        self.admission.take(class);
        self.in_flight += 1;
        self.counters.kinds[kind as usize].submitted += 1;
        self.want_turn();
        if self.enters.note_pushed(kind) {
            self.pushed_at_stop(slot);
        }
    }

    /// Handles an entry that was pushed at a stop: it is recorded or shown on the board, or it is the last
    /// before the queue is flushed.
    #[cold]
    #[inline(never)]
    fn pushed_at_stop(&mut self, slot: SlotRef) {
        let is_recorded = self.trace_submitted(slot);
        let is_shown = self.watch_pushed(slot);
        if self.enters.go_on() {
            self.flush();
            self.tell_submitted();
        }
        if is_recorded || is_shown {
            self.enters.stop_at_next();
        }
    }

    /// Handles an operation that could not be pushed at once.
    #[cold]
    #[inline(never)]
    fn postpone(&mut self, slot: SlotRef) {
        if self.phase != Phase::Running || !self.is_intact() {
            self.keep();
            return self.finish(slot, self.refusal());
        }
        if self.admission.is_put_off() {
            if self.is_set_up_for(slot) {
                let (class, operation) = (self.slab.header(slot).class, self.in_cell(slot));
                self.queue(slot, class, operation);
            }
            return;
        }
        self.counters.backlogged += 1;
        self.trace_delayed(slot, Delay::Room);
        self.list(slot);
    }

    /// Puts an operation at the end of its class's backlog.
    pub(super) fn list(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        header.state = SlotState::Backlog;
        let class = header.class;
        self.watch_state(slot, OperationState::Delayed);
        self.want_turn();
        self.admission.list(&mut self.slab, slot, class);
    }

    /// Takes an operation out of the backlog.
    pub(super) fn unlist(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        if header.has(flag::DEFERRED) {
            self.inline.undefer(&mut self.slab, slot);
        } else {
            let class = header.class;
            self.admission.unlist(&mut self.slab, slot, class);
        }
        self.slab.header(slot).flags &= !flag::DEFERRED;
    }

    /// Returns whether [`admit`](Core::admit) has something to do.
    #[inline]
    pub(super) fn is_anything_listed(&self) -> bool {
        !self.admission.is_empty() || self.cancels.is_wanted()
    }

    /// Pushes operations that wait for room: requests to cancel first, then the two classes in turn. Returns
    /// true if some are left because the queue is full, which happens if the kernel could not take its
    /// entries. The next enter makes room then, and must not sleep: the completions that it would wait for
    /// may depend on the operations that are left.
    #[inline(never)]
    pub(super) fn admit(&mut self) -> bool {
        if is_on() {
            self.enters.stop_at_next();
        }
        if self.admission.is_put_off()
            && let Err(error) = self.set_up()
        {
            self.finish_backlog(set_up_errno(&error));
            return false;
        }
        if self.cancels.is_wanted() {
            self.push_cancels();
        }
        while let Some((slot, class)) = self.next_in_backlog() {
            self.admission.unlist(&mut self.slab, slot, class);
            let operation = self.in_cell(slot);
            if operation.is_closing() {
                self.finish(slot, Completion::REVOKED);
            } else if !self.push_operation(slot, class, operation) {
                self.list(slot); // `next_in_backlog` saw room, but the backend had none
                break;
            }
        }
        let is_held_up = self.is_full() && self.is_anything_listed();
        if is_held_up {
            self.want_turn();
        }
        is_held_up
    }

    /// Ends all operations that wait for room, which no backend gets.
    #[cold]
    fn finish_backlog(&mut self, errno: Errno) {
        while let Some(slot) = self.admission.first() {
            self.unlist(slot);
            self.finish(slot, Completion::unstarted(errno));
        }
    }

    /// Sets the backend up for an operation, if that was put off. Returns false if that failed: then the
    /// operation has ended with the error.
    #[cold]
    #[inline(never)]
    pub(super) fn is_set_up_for(&mut self, slot: SlotRef) -> bool {
        let result = self.set_up();
        if let Err(error) = &result {
            self.keep();
            self.finish(slot, Completion::unstarted(set_up_errno(error)));
        }
        result.is_ok()
    }

    /// Returns the operation that may be pushed next, if there is one and room for it.
    fn next_in_backlog(&mut self) -> Option<(SlotRef, Class)> {
        if self.is_full() { None } else { self.admission.next() }
    }

    /// Returns whether the queue has no room.
    fn is_full(&self) -> bool {
        self.backend.sq_pending() >= self.abilities.features.sq_entries
    }

    /// As [`start`](Core::start), but the operation first waits for [`unpark`](Core::unpark).
    pub(crate) fn start_parked<O: Operation>(&mut self, operation: O) -> SlotRef {
        let class = operation.class();
        let slot = self.occupy(ManuallyDrop::new(operation));
        let header = self.slab.header(slot);
        header.class = class;
        header.state = SlotState::Backlog;
        header.flags = flag::PARKED;
        self.trace_parked(slot);
        if self.watcher.is_some() {
            // Other operations determine how long it stays parked.
            self.watch_start(slot, Class::Waiting);
            self.watch_state(slot, OperationState::Parked);
        }
        self.keep();
        slot
    }

    /// Lets a parked operation continue: as a plain call, if the rules say so.
    pub(crate) fn unpark(&mut self, key: Key) {
        let Some(slot) = self.leave_park(key) else {
            return;
        };
        self.go_on(slot);
    }

    /// Ends a parked operation without the kernel. Returns false if it is no longer parked.
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
}
