//! The end: no new operations, and memory that the kernel does not give back stays valid for ever.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Entered, Position, SignalMask, Sqe};

use super::plain::PlainCalls;
use super::{Core, Phase};
use crate::auto::Auto;
use crate::backend::{Backend, Calls, Features, RemoteWake};
use crate::descriptors::KernelCalls;
use crate::operation::Completion;
use crate::slab::{Notify, SlotState, flag};

/// A reference that keeps a driver's memory, which this core is part of, for slots that are still in use
/// after the driver's end.
///
/// Handles of operations do not count as references: the driver keeps the memory while it lives, and this
/// reference does afterwards, until the last slot is freed.
pub(crate) struct KeepAlive(#[expect(dead_code, reason = "held for its drop")] Rc<dyn Any>);

/// Keeps the driver's memory after its end, for the slots that are still in use.
pub(super) struct Keeper {
    kept: Option<KeepAlive>,
    /// The memory that `kept` refers to; dangling until the driver's end begins.
    shared: Weak<dyn Any>,
}

impl Keeper {
    pub(super) fn new() -> Self {
        Self { kept: None, shared: Weak::<()>::new() }
    }
}

/// The backend of a driver that has stopped: accepts nothing, and has nothing.
struct Stopped;

// SAFETY: no entry is ever pushed.
unsafe impl Backend for Stopped {
    fn features(&self) -> Features {
        Features::new(1, 1)
    }

    fn sq_pending(&self) -> u32 {
        0
    }

    unsafe fn push(&mut self, _: Sqe) -> Option<Position> {
        None
    }

    fn make_nop(&mut self, _: Position, _: u64) -> bool {
        false
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn enter(
        &mut self,
        _: u32,
        _: Option<Duration>,
        _: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        Err(Errno::CANCELED.into())
    }

    fn cq_ready(&self) -> u32 {
        0
    }

    fn reap(&mut self, _: &mut [Cqe]) -> usize {
        0
    }

    fn needs_enter(&self) -> bool {
        false
    }

    fn is_overflowing(&self) -> bool {
        false
    }

    fn is_intact(&self) -> bool {
        true
    }

    unsafe fn register_buffer(&mut self, _: *mut u8, _: usize) -> io::Result<()> {
        Err(Errno::CANCELED.into())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn nap(&mut self, _: Duration) {}

    fn remote_wake(&mut self) -> io::Result<Arc<dyn RemoteWake>> {
        Err(Errno::CANCELED.into())
    }

    fn pollable(&mut self) -> io::Result<OwnedFd> {
        Err(Errno::CANCELED.into())
    }

    fn calls(&self) -> Rc<dyn Calls> {
        Rc::new(KernelCalls)
    }
}

impl Core {
    /// Refuses new operations, ends those that the kernel has not seen, and cancels all others.
    pub(crate) fn stop_intake(&mut self, shared: Weak<dyn Any>) {
        (self.phase, self.abilities.is_special) = (Phase::Stopping, true);
        self.admission.close();
        self.memory.keeper.shared = shared;
        self.keep();
        while let Some(slot) = self.inline.first_deferred().or_else(|| self.admission.first()) {
            self.unlist(slot);
            self.finish(slot, Completion::REVOKED);
        }
        self.cancel_everything();
    }

    /// Returns the end of an operation that finds no backend: the driver has ended, or is a parent's.
    pub(super) fn refusal(&self) -> Completion {
        if self.is_intact() { Completion::REVOKED } else { Completion::FORKED }
    }

    /// Returns whether operations that are under way can end no more, since the driver is a parent's.
    pub(crate) fn is_inherited(&self) -> bool {
        self.phase != Phase::Stopped && !self.is_intact()
    }

    /// Returns whether operations or requests are still to be drained.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight > 0
            || self.cancels.awaits_lanes()
            || !self.admission.is_empty()
            || self.has_deferred()
            || !self.outbox.disposals.is_empty()
    }

    /// Takes the backend and the plain calls out of a driver that has ended.
    pub(crate) fn leave_backend(&mut self) -> Auto {
        (self.phase, self.inline.calls) = (Phase::Stopped, PlainCalls::None);
        std::mem::replace(&mut self.backend, Auto::Other(Box::new(Stopped)))
    }

    /// Gives up the operations still in flight: their slots are never reused or freed. Returns their number.
    pub(crate) fn give_up(&mut self) -> u64 {
        let mut lost = 0;
        for slot in self.slab.slots() {
            let header = self.slab.header(slot);
            if header.state != SlotState::Pushed {
                continue;
            }
            header.state = SlotState::Lost;
            if !header.has(flag::REQUEST)
                && let Notify::Wake(waker) = std::mem::replace(&mut header.notify, Notify::none())
            {
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

    /// Returns the tokens of the requests that were given up.
    pub(crate) fn lost_requests(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        for slot in self.slab.slots() {
            let header = self.slab.header(slot);
            if header.state == SlotState::Lost
                && header.has(flag::REQUEST)
                && let Notify::Token(token) = header.notify
            {
                tokens.push(token);
            }
        }
        tokens
    }

    /// Ends the closes that wait for their descriptor, whose last user may be an operation that was given up.
    /// If the last user is another one, it closes the descriptor later, and the result is not reported.
    fn finish_all_parked(&mut self) {
        for slot in self.slab.slots() {
            let key = self.slab.key(slot);
            self.finish_parked(key, Completion::error(Errno::BUSY));
        }
    }

    /// Keeps this memory after the driver's end until the last slot is freed: slots in use at the end, and
    /// those of operations that are started in vain afterwards.
    pub(super) fn keep(&mut self) {
        let Keeper { kept, shared } = &mut self.memory.keeper;
        if kept.is_none() {
            *kept = shared.upgrade().map(KeepAlive);
        }
    }

    /// Returns the reference that keeps this memory, once the driver has ended and the last slot was freed.
    #[inline(always)]
    pub(crate) fn last_kept(&mut self) -> Option<KeepAlive> {
        if self.slab.live() == 0 { self.memory.keeper.kept.take() } else { None }
    }
}
