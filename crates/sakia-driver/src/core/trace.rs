//! Event points: what a recording is told of operations and turns.
//!
//! Without a recording each point tests one byte, and its arguments are not computed.

use sakia_trace::{EventType, Queued, StaticName, is_on, record};

use super::Core;
use crate::call::{Buffers, Call, Transfer};
use crate::counters::OpKind;
use crate::operation::{Completion, InPlace};
use crate::policy::Lane;
use crate::slab::SlotRef;

/// The names of the kinds, by number.
static KINDS: [StaticName; OpKind::COUNT] = {
    let mut names = [const { StaticName::new("") }; OpKind::COUNT];
    let mut index = 0;
    while index < OpKind::COUNT {
        names[index] = StaticName::new(OpKind::ALL[index].name());
        index += 1;
    }
    names
};

static NETWORK: StaticName = StaticName::new("on a network or FUSE file system");
static MAY_WAIT: StaticName = StaticName::new("may wait without bound");
static NO_ENTRY: StaticName = StaticName::new("the ring has no such operation");
static NO_ROOM: StaticName = StaticName::new("the queue has no room");
static NO_BUDGET: StaticName = StaticName::new("the turn's plain calls are used up");

/// Why an operation waits before it is started.
#[derive(Clone, Copy, Debug)]
pub(super) enum Delay {
    /// The queue has no room.
    Room,
    /// The turn has no plain calls left.
    Budget,
}

impl Core {
    #[inline(always)]
    pub(super) fn trace_queued(&mut self, slot: SlotRef) {
        if is_on() {
            self.record_queued(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_queued(&mut self, slot: SlotRef) {
        let id = self.slab.key(slot).user_data();
        let operation = self.in_cell(slot);
        let (kind, call) = (KINDS[operation.kind() as usize].get(), operation.call());
        let bytes = match call {
            Call::Transfer(Transfer { buffers: Buffers::One { len, .. }, .. })
            | Call::CopyFileRange { len, .. } => len,
            _ => 0,
        };
        let fd = call.descriptor().unwrap_or(-1);
        let start = Queued { kind: kind.number() as u16, fd, bytes };
        record(EventType::Queued, id, start.pack(), 0);
    }

    #[inline(always)]
    pub(super) fn trace_submitted(&mut self, slot: SlotRef) {
        if is_on() {
            record(EventType::Submitted, self.slab.key(slot).user_data(), 0, 0);
        }
    }

    /// Only where it goes to a thread, which is a call by itself.
    pub(super) fn trace_to_lane(&mut self, slot: SlotRef, lane: Lane) {
        if is_on() {
            let id = self.slab.key(slot).user_data();
            let operation = self.in_cell(slot);
            let is_remote = operation.mount().is_some_and(|mount| mount.is_remote);
            let reason = match lane {
                Lane::Elastic if is_remote => &NETWORK,
                Lane::Elastic => &MAY_WAIT,
                Lane::Bounded => &NO_ENTRY,
            };
            record(EventType::ToLane, id, reason.get().number().into(), 0);
        }
    }

    pub(super) fn trace_delayed(&mut self, slot: SlotRef, why: Delay) {
        if is_on() {
            let reason = match why {
                Delay::Room => &NO_ROOM,
                Delay::Budget => &NO_BUDGET,
            };
            let id = self.slab.key(slot).user_data();
            record(EventType::Delayed, id, reason.get().number().into(), 0);
        }
    }

    #[inline(always)]
    pub(super) fn trace_completed(&mut self, slot: SlotRef, completion: Completion) {
        if is_on() {
            let result = i64::from(completion.res);
            record(EventType::Completed, self.slab.key(slot).user_data(), result as u64, 0);
        }
    }

    #[inline(always)]
    pub(super) fn trace_resumed(&mut self, slot: SlotRef) {
        if is_on() {
            record(EventType::Resumed, self.slab.key(slot).user_data(), 0, 0);
        }
    }

    /// The result is not for the program: it dropped the operation, or has started it detached.
    pub(super) fn trace_dropped(&mut self, slot: SlotRef, is_detached: bool) {
        if is_on() {
            record(EventType::Dropped, self.slab.key(slot).user_data(), is_detached.into(), 0);
        }
    }

    #[inline(always)]
    pub(super) fn trace_turn_begin(&self, may_sleep: bool) {
        if is_on() {
            let pending = u64::from(crate::backend::Backend::sq_pending(&self.backend));
            record(EventType::TurnBegin, pending, self.in_flight.into(), may_sleep.into());
        }
    }

    #[inline(always)]
    pub(super) fn trace_turn_end(&self, finished: u32) {
        if is_on() {
            record(EventType::TurnEnd, finished.into(), 0, 0);
        }
    }
}
