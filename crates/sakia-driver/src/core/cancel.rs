//! Cancellation: requests that are never lost, and operations whose result is no longer wanted.
//!
//! Invariants:
//! - Requests to cancel in flight never exceed the reserve.
//! - An operation to be canceled is on the list until its cancel request is pushed.

use rustix::io::Errno;
use sakia_ring::Position;

use super::{Core, Phase};
use crate::backend::{Backend, Destination, Takes};
use crate::board::mark;
use crate::call::Victims;
use crate::counters::OpKind;
use crate::decide::Lane;
use crate::fd::Fd;
use crate::key::Kind;
use crate::operation::{Class, Completion, InCell, Operation};
use crate::slab::{List, Slab, SlotRef, SlotState, flag};

/// Cancel requests that wait, and those in flight.
#[derive(Debug)]
pub(super) struct Cancels {
    /// Operations to be canceled whose cancel request was not pushed yet.
    list: List,
    /// Cancel requests that may still be pushed.
    credits: u32,
    /// The value of `credits` when none is in flight.
    reserve: u32,
    /// Requests to lanes whose results come through the queue and are outstanding.
    on_lanes: u32,
    /// Set if the next push cancels everything in flight.
    all: bool,
}

impl Cancels {
    pub(super) fn new(reserve: u32) -> Self {
        Self { list: List::new(), credits: reserve, reserve, on_lanes: 0, all: false }
    }

    /// Returns the number of requests that may still be pushed, and the maximum of that number.
    pub(super) fn numbers(&self) -> (u64, u64) {
        (self.credits.into(), self.reserve.into())
    }

    /// Returns whether a request is to be pushed.
    #[inline(always)]
    pub(super) fn is_wanted(&self) -> bool {
        !self.list.is_empty() || self.all
    }

    /// Returns whether the result of a request to a lane is outstanding.
    pub(super) fn awaits_lanes(&self) -> bool {
        self.on_lanes > 0
    }

    /// Handles the result of a request to a lane. Returns false if no such request is outstanding.
    pub(super) fn answered_on_lane(&mut self) -> bool {
        let was_asked = self.on_lanes > 0;
        self.on_lanes -= u32::from(was_asked);
        was_asked
    }

    /// Handles a request's result from the queue. Returns false if no request is outstanding: it is none of
    /// the driver's.
    pub(super) fn answered(&mut self) -> bool {
        let was_asked = self.credits < self.reserve;
        self.credits += u32::from(was_asked);
        was_asked
    }

    /// Removes an operation that has ended from the list.
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: SlotRef) {
        self.list.remove(slab, slot);
    }
}

impl Core {
    /// Pushes cancel requests while there is room for them and their completions.
    pub(super) fn push_cancels(&mut self) {
        if self.cancels.all && self.push_cancel(Victims::Any, Kind::Cancel as u64) {
            self.cancels.all = false;
            self.cancel_on_lanes(Victims::Any);
        }
        while let Some(slot) = self.cancels.list.first() {
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
            self.cancels.list.remove(&mut self.slab, slot);
            let header = self.slab.header(slot);
            header.flags = header.flags & !flag::CANCEL_LISTED | flag::CANCEL_SENT;
        }
    }

    /// Pushes a cancel request. It names no descriptor: only an operation keeps the descriptor open that it
    /// names in the queue.
    fn push_cancel(&mut self, victims: Victims, user_data: u64) -> bool {
        if self.cancels.credits == 0 {
            return false;
        }
        // SAFETY: a request to cancel names no memory.
        let position = unsafe {
            match self.abilities.features.takes {
                Takes::Calls => {
                    let request = victims.request(user_data);
                    self.backend.push_call(request, Destination::Queue).ok().flatten()
                }
                Takes::Entries | Takes::Both => {
                    self.backend.push(victims.entry().user_data(user_data))
                }
            }
        };
        if position.is_none() {
            return false;
        }
        self.cancels.credits -= 1;
        self.in_flight += 1;
        self.counters.kinds[OpKind::Cancel as usize].submitted += 1;
        true
    }

    /// Sends the same request to the threads beside the queue, which handle it at once.
    fn cancel_on_lanes(&mut self, victims: Victims) {
        if self.abilities.uses_lanes {
            let _ = self.push_lane_cancel(victims); // a backend with lanes has room for this
        }
    }

    /// Cancels the operations on a descriptor that is about to be closed. The request is an operation as any
    /// other, so the descriptor's number stays this driver's until the kernel is done with the request.
    pub(crate) fn cancel_descriptor(&mut self, fd: &Fd, request: impl Operation) {
        if self.phase == Phase::Running && self.is_intact() {
            self.cancel_on_lanes(Victims::Descriptor(fd.raw()));
            self.start_detached(request);
        }
    }

    /// Requests the cancellation of operations that were given to a thread, without waiting for the result.
    /// Returns false if the backend has a queue in place of threads, and that has no room.
    fn push_lane_cancel(&mut self, victims: Victims) -> bool {
        let request = victims.request(Kind::Lane as u64);
        // SAFETY: a request to cancel names no memory.
        match unsafe { self.backend.push_call(request, Destination::Lane(Lane::Bounded)) } {
            Ok(_) => {
                self.cancels.on_lanes += u32::from(!self.abilities.uses_lanes);
                true
            }
            Err(Errno::AGAIN) => false,
            // A backend without lanes has nothing there to cancel.
            Err(_) => true,
        }
    }

    /// Submits requests to cancel and fetches completions, without a wait. Returns false if there is no such
    /// request.
    pub(crate) fn hurry_cancels(&mut self) -> bool {
        if self.phase != Phase::Running || !self.is_intact() {
            return false;
        }
        // A foreign loop that polls the descriptor of such a backend would not be told of what comes here.
        if self.is_polled && self.abilities.uses_lanes {
            return false;
        }
        if self.cancels.is_wanted() {
            self.push_cancels();
        } else if self.backend.sq_pending() == 0 && !self.backend.needs_enter() {
            return false;
        }
        self.enter_once();
        true
    }

    /// Takes an operation on this descriptor off the list of those to be disposed of.
    pub(crate) fn take_disposal(&mut self, fd: &Fd) -> Option<SlotRef> {
        let on_it = |slot: &SlotRef| {
            let vtable = self.slab.header(*slot).vtable.expect("it holds an operation");
            // SAFETY: in the state `Disposing` the cell holds a live operation of the table's type, which no
            // code accesses before it is disposed of.
            unsafe { InCell::new(vtable, slot.cell()) }.is_on(fd)
        };
        let at = self.outbox.disposals.iter().position(on_it)?;
        self.outbox.disposals.remove(at)
    }

    /// Handles the drop of the slot's handle. Returns true if the operation has already ended, so that its
    /// slot is to be disposed of right away.
    pub(crate) fn abandon(&mut self, slot: SlotRef) -> bool {
        self.trace_dropped(slot, false);
        let header = self.slab.header(slot);
        header.flags |= flag::ORPHAN;
        let class = header.class;
        match header.state {
            SlotState::Done => {
                header.state = SlotState::Disposing;
                true
            }
            // A parked close continues by itself: its descriptor still has to be closed.
            SlotState::Backlog if header.has(flag::PARKED) => {
                self.watch_mark(slot, mark::ORPHAN);
                false
            }
            SlotState::Backlog => {
                header.set_completion(Completion::REVOKED);
                header.state = SlotState::Disposing;
                if header.has(flag::SHOWN) {
                    self.watch_end(slot);
                }
                self.unlist(slot);
                self.counters.orphaned += 1;
                self.counters.finished += 1;
                self.trace_completed(slot, Completion::REVOKED);
                true
            }
            SlotState::Pushed => {
                self.counters.orphaned += 1;
                self.watch_mark(slot, mark::ORPHAN);
                if self.revoke(slot) {
                    self.counters.revoked += 1;
                } else if class == Class::Waiting {
                    self.list_cancel(slot);
                }
                false
            }
            SlotState::Lost => false,
            state @ (SlotState::Free | SlotState::Disposing) => {
                unreachable!("a handle's slot is {state:?}")
            }
        }
    }

    /// Takes an entry back that the kernel has not seen yet. Returns false if the kernel has seen it.
    fn revoke(&mut self, slot: SlotRef) -> bool {
        let key = self.slab.key(slot);
        let header = self.slab.header(slot);
        if header.has(flag::LANE) {
            return false;
        }
        let position = Position::from_raw(header.position);
        let revoked = self.backend.is_intact() && self.backend.make_nop(position, key.user_data());
        if revoked {
            header.flags |= flag::REVOKED;
        }
        revoked
    }

    /// Requests the cancellation of an operation in flight, once.
    pub(super) fn list_cancel(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        let may_cancel = header.vtable.is_some_and(|vtable| vtable.is_cancelable);
        if !may_cancel || header.has(flag::REVOKED | flag::CANCEL_LISTED | flag::CANCEL_SENT) {
            return;
        }
        header.flags |= flag::CANCEL_LISTED;
        self.watch_mark(slot, mark::CANCEL_ASKED);
        self.want_turn();
        self.cancels.list.push_back(&mut self.slab, slot);
    }

    /// Cancels an operation whose handle still waits for it.
    pub(crate) fn cancel(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        match header.state {
            SlotState::Backlog if header.has(flag::PARKED) => {}
            SlotState::Backlog => {
                self.unlist(slot);
                self.finish(slot, Completion::REVOKED);
            }
            SlotState::Pushed => self.list_cancel(slot),
            _ => {}
        }
    }

    /// Requests the cancellation of everything that may be canceled. It is called repeatedly, since
    /// operations may have been waiting to be pushed, or out of the kernel's reach.
    pub(crate) fn cancel_everything(&mut self) {
        let mut may_cancel_all = true;
        for slot in self.slab.slots() {
            let header = self.slab.header(slot);
            let is_cancelable = header.vtable.is_none_or(|vtable| vtable.is_cancelable);
            may_cancel_all &= header.state != SlotState::Pushed || is_cancelable;
        }
        // One request for all would also hit a close that a worker performs, and then it could not be told
        // whether the close had begun.
        if may_cancel_all {
            self.cancels.all = self.in_flight > 0;
            for slot in self.slab.slots() {
                if self.slab.header(slot).state == SlotState::Pushed {
                    self.watch_mark(slot, mark::CANCEL_ASKED);
                }
            }
            return;
        }
        for slot in self.slab.slots() {
            if self.slab.header(slot).state == SlotState::Pushed {
                self.list_cancel(slot);
            }
        }
    }
}
