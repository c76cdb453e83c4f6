//! Completion: results are copied out and dispatched, and waiting tasks are notified.
//!
//! Invariant: a completion for a key that is not in flight changes nothing but a counter.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;
use std::task::Waker;

use sakia_ring::Cqe;

use super::{BATCH, Core, Memory};
use crate::backend::Backend;
use crate::decide::{Lane, limits};
use crate::key::{Key, Kind};
use crate::operation::{Block, Completion, Storage, Vtable};
use crate::slab::{Notify, SlotRef, SlotState, flag};

/// Actions in users' code that are due once the borrow of the core ends.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Wakers of tasks to wake, oldest first.
    pub(crate) wakes: VecDeque<Waker>,
    /// The tokens of operations that are done, for a loop without wakers, oldest first.
    pub(crate) done: VecDeque<u64>,
    /// The slots of requests that are done, in state `Done`, oldest first.
    pub(crate) answered: VecDeque<SlotRef>,
    /// Woken when a request is done.
    pub(crate) asker: Option<Waker>,
    /// Slots in state `Disposing`, oldest first.
    pub(crate) disposals: VecDeque<SlotRef>,
}

impl Outbox {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.wakes.is_empty()
            && self.done.is_empty()
            && self.answered.is_empty()
            && self.disposals.is_empty()
    }

    /// Queues the answer of a request.
    #[inline(always)]
    fn answer(&mut self, slot: SlotRef) {
        self.answered.push_back(slot);
        if let Some(asker) = self.asker.take() {
            self.wakes.push_back(asker);
        }
    }

    /// Queues the notification of the waiting task or loop.
    #[inline(always)]
    fn tell(&mut self, notify: Notify) {
        match notify {
            Notify::Token(token) => self.done.push_back(token),
            Notify::Wake(waker) => self.wakes.push_back(waker),
        }
    }
}

/// Completions that were copied out and have yet to be dispatched.
struct Undispatched<'a> {
    core: &'a mut Core,
    completions: slice::Iter<'a, Cqe>,
}

/// Runs only if a panic ends the loop that dispatches them.
impl Drop for Undispatched<'_> {
    // Inlined, so that the loop keeps both fields in registers.
    #[inline(always)]
    fn drop(&mut self) {
        self.core.dispatch_after_panic(self.completions.as_slice());
    }
}

impl Core {
    /// Copies completions out and dispatches them. Returns their number.
    pub(super) fn reap(&mut self) -> u32 {
        let mut total = 0;
        let mut batch = mem::take(&mut self.memory.batch);
        loop {
            let count = self.backend.reap(&mut batch);
            let completions = batch[..count].iter();
            let mut undispatched = Undispatched { core: self, completions };
            for &cqe in undispatched.completions.by_ref() {
                undispatched.core.dispatch(cqe);
            }
            mem::forget(undispatched); // none is left
            total += count as u32;
            if count < BATCH {
                break;
            }
            if total >= limits::TURN_COMPLETIONS {
                self.want_turn();
                break;
            }
        }
        // Nothing is there, which need not be dropped.
        mem::forget(mem::replace(&mut self.memory.batch, batch));
        self.counters.completions += u64::from(total);
        total
    }

    /// Dispatches the remaining completions after a panic in one of them: no other operation loses its
    /// completion.
    #[cold]
    #[inline(never)]
    fn dispatch_after_panic(&mut self, completions: &[Cqe]) {
        self.memory.batch = Memory::batch();
        self.want_turn();
        for &cqe in completions {
            // The first panic continues; later ones come from operations with the same fault.
            drop(catch_unwind(AssertUnwindSafe(|| self.dispatch(cqe))));
        }
    }

    #[inline(always)]
    fn dispatch(&mut self, cqe: Cqe) {
        if Kind::of(cqe.user_data) != Some(Kind::Operation) {
            return self.dispatch_other(cqe);
        }
        let key = Key::from_user_data(cqe.user_data);
        let found = self.slab.find(key);
        let Some(slot) = found.filter(|&slot| self.slab.header(slot).state == SlotState::Pushed)
        else {
            self.counters.stale += 1;
            return;
        };
        if cqe.flags.has_more() {
            return self.deliver(slot, cqe);
        }
        self.in_flight -= 1;
        let completion = Completion::of(cqe.res, cqe.flags);
        let header = self.slab.header(slot);
        self.admission.give_back(header.class);
        if header.has(flag::REVOKED | flag::CANCEL_LISTED | flag::WATCHED) {
            return self.finish_marked(slot, completion);
        }
        if completion.is_canceled() && self.is_repeated(slot) {
            return;
        }
        self.finish_unwatched(slot, completion);
    }

    /// Makes a thread repeat an operation for which the kernel lacked a worker. Returns false if the
    /// completion has another meaning.
    #[cold]
    #[inline(never)]
    fn is_repeated(&mut self, slot: SlotRef) -> bool {
        let is_repeated = self.lacked_worker(slot);
        if is_repeated {
            self.slab.rename(slot);
            self.push_lane(slot, Lane::Bounded);
        }
        is_repeated
    }

    /// Handles the last completion of an operation that was taken back, is to be canceled, or is watched.
    #[cold]
    #[inline(never)]
    fn finish_marked(&mut self, slot: SlotRef, completion: Completion) {
        let header = self.slab.header(slot);
        let is_revoked = header.has(flag::REVOKED);
        if header.has(flag::CANCEL_LISTED) {
            self.cancels.remove(&mut self.slab, slot);
        } else if !is_revoked && completion.is_canceled() && self.is_repeated(slot) {
            return;
        }
        self.finish(slot, if is_revoked { Completion::REVOKED } else { completion });
    }

    /// Handles a completion that is not the operation's last: the memory is still the kernel's.
    #[inline(never)]
    fn deliver(&mut self, slot: SlotRef, cqe: Cqe) {
        self.counters.delivered += 1;
        if cqe.flags.buffer_id().is_some() {
            self.enters.turn_bytes += cqe.res.max(0) as usize;
        }
        self.trace_delivered(slot);
        let vtable = self.slab.header(slot).vtable;
        let deliver = vtable.expect("a slot in flight holds an operation").deliver;
        let completion = Completion::of(cqe.res, cqe.flags);
        // SAFETY: the cell holds a live operation of the table's type.
        let delivered = unsafe { deliver(slot.cell(), completion) };
        if let Some(waker) = delivered.waker {
            self.outbox.wakes.push_back(waker);
        }
        if delivered.is_enough {
            self.list_cancel(slot);
        }
    }

    /// Handles a completion that belongs to no slot.
    #[cold]
    fn dispatch_other(&mut self, cqe: Cqe) {
        match Kind::of(cqe.user_data) {
            Some(Kind::Wake) => {
                self.counters.remote_wakes += 1;
                self.due.came_between = true; // within a turn it has no effect
                return;
            }
            Some(Kind::Alarm) if self.due.note_alarm(cqe.res) => return,
            Some(Kind::Lane) if self.abilities.uses_lanes => return,
            Some(Kind::Lane) if self.cancels.answered_on_lane() => return,
            Some(Kind::Cancel) if self.cancels.answered() => {
                self.in_flight -= 1;
                return;
            }
            _ => {}
        }
        self.counters.stale += 1;
    }

    /// Ends an operation: its memory is the driver's again, and the waiting task or loop is notified.
    #[inline(always)]
    pub(super) fn finish(&mut self, slot: SlotRef, completion: Completion) {
        self.trace_completed(slot, completion);
        self.finish_unwatched(slot, completion);
    }

    /// Ends an operation that is known not to be watched.
    #[inline(always)]
    fn finish_unwatched(&mut self, slot: SlotRef, completion: Completion) {
        self.counters.finished += 1;
        let header = self.slab.header(slot);
        header.set_completion(completion);
        if header.has(flag::ORPHAN | flag::SHOWN) && self.finish_specially(slot) {
            return;
        }
        let header = self.slab.header(slot);
        header.state = SlotState::Done;
        if header.has(flag::REQUEST) {
            return self.outbox.answer(slot);
        }
        if !matches!(header.notify, Notify::Token(Notify::NONE)) {
            self.outbox.tell(mem::replace(&mut header.notify, Notify::none()));
        }
    }

    /// Ends an operation that is an orphan or watched. Returns whether all is done for it.
    #[inline(never)]
    fn finish_specially(&mut self, slot: SlotRef) -> bool {
        if self.slab.header(slot).has(flag::SHOWN) {
            self.watch_end(slot);
        }
        let header = self.slab.header(slot);
        let is_orphan = header.has(flag::ORPHAN);
        if is_orphan {
            header.state = SlotState::Disposing;
            self.outbox.disposals.push_back(slot);
        }
        is_orphan
    }

    /// Makes the operation in a slot, whose handle gives it up, a request with this table. Returns its name.
    ///
    /// # Safety
    ///
    /// - The cell holds an operation of the table's type, and the slot no longer has a handle.
    #[inline(always)]
    pub(crate) unsafe fn make_request(
        &mut self,
        slot: SlotRef,
        vtable: &'static Vtable,
        token: u64,
    ) -> Key {
        let header = self.slab.header(slot);
        header.flags |= flag::REQUEST;
        header.vtable = Some(vtable);
        header.notify = Notify::Token(token);
        if header.state == SlotState::Done {
            self.outbox.answer(slot);
        }
        self.slab.key(slot)
    }

    /// Returns the result of a slot that is done.
    #[inline(always)]
    pub(crate) fn result(&mut self, slot: SlotRef) -> Option<Completion> {
        let header = self.slab.header(slot);
        let completion = (header.state == SlotState::Done).then(|| header.completion());
        if completion.is_some() {
            self.trace_resumed(slot);
        }
        completion
    }

    /// Returns whether `waker` is woken when the operation in a slot is done, which it is not.
    ///
    /// # Panics
    /// If it will never be.
    #[inline(always)]
    pub(crate) fn is_registered(&mut self, slot: SlotRef, waker: &Waker) -> bool {
        let header = self.slab.header(slot);
        header.assert_not_lost();
        matches!(&header.notify, Notify::Wake(old) if old.will_wake(waker))
    }

    /// Frees a slot whose cell no longer holds an operation.
    #[inline(always)]
    pub(crate) fn release(&mut self, slot: SlotRef, storage: Storage) {
        if storage == Storage::Pooled {
            // SAFETY: with this storage the cell holds the address of a block that `put` took from the pool.
            // The block's operation was moved out.
            let block = unsafe { slot.cell().cast::<NonNull<Block>>().read() };
            self.memory.blocks.give_back(block);
        }
        self.slab.release(slot);
    }
}
