//! The end: nothing new comes in, and what the kernel does not give back stays valid for ever.

use std::rc::{Rc, Weak};

use rustix::io::Errno;

use super::{Core, Phase};
use crate::backend::Backend;
use crate::handle::{KeepAlive, Shared};
use crate::op::Completion;
use crate::slab::{Notify, State};

/// Keeps the driver's memory after the driver's end for the slots that are still in use.
pub(super) struct Keeper<B: Backend> {
    kept: Option<KeepAlive<B>>,
    /// The memory that `kept` refers to; dangling until the driver's end begins.
    shared: Weak<Shared<B>>,
}

impl<B: Backend> Keeper<B> {
    pub(super) fn new() -> Self {
        Self { kept: None, shared: Weak::new() }
    }
}

impl<B: Backend> Core<B> {
    /// Lets nothing new in, ends what the kernel has not seen, and has all else canceled.
    pub(crate) fn stop_intake(&mut self, shared: &Rc<Shared<B>>) {
        self.phase = Phase::Stopping;
        self.keeper.shared = Rc::downgrade(shared);
        self.keep();
        while let Some(slot) = self.inline.first_deferred().or_else(|| self.admission.first()) {
            self.unlist(slot);
            self.finish(slot, Completion::REVOKED);
        }
        self.cancel_everything();
    }

    /// Whether something is left to drain.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight > 0
            || self.cancels.awaits_lanes()
            || !self.admission.is_empty()
            || self.has_deferred()
            || !self.outbox.disposals.is_empty()
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
                self.outbox.wakes.push_back(waker);
            }
            let vtable = header.vtable.expect("a slot in flight holds an operation");
            // SAFETY: the cell holds a live operation of the table's type.
            let waker = unsafe { (vtable.lose)(slot.cell()) };
            self.outbox.wakes.extend(waker);
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
    pub(super) fn keep(&mut self) {
        let Keeper { kept, shared } = &mut self.keeper;
        if kept.is_none() {
            *kept = shared.upgrade().map(KeepAlive);
        }
    }

    /// What keeps this memory, once the driver has ended and the last slot was freed.
    #[inline(always)]
    pub(crate) fn last_kept(&mut self) -> Option<KeepAlive<B>> {
        if self.slab.live() == 0 { self.keeper.kept.take() } else { None }
    }
}
