//! Event points: the events of operations and turns that go into a recording, and from which latencies are
//! computed.
//!
//! If both are off, the start of an operation and a turn test one byte each; the end of an operation and its
//! resumption test a flag that the start sets. A push costs nothing then: see
//! [`stop_at_next`](super::submit::Enters::stop_at_next).

use std::io;

use sakia_trace::{EventType, Name, Queued, StaticName, is_on, is_watched, record};

use super::submit::SleepMask;
use super::{Core, Phase, Wait};
use crate::backend::Backend;
use crate::call::{Buffers, Call, Transfer};
use crate::counters::OpKind;
use crate::decide::Lane;
use crate::operation::{Completion, InPlace};
use crate::slab::{SlotRef, flag};

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

/// The reason why an operation waits before it is started.
#[derive(Clone, Copy, Debug)]
pub(super) enum Delay {
    /// The queue has no room.
    Room,
    /// The turn has no plain calls left.
    Budget,
}

impl Core {
    /// Records the start of an operation.
    #[inline(always)]
    pub(super) fn trace_queued(&mut self, slot: SlotRef) {
        if is_watched() {
            self.record_queued(slot);
        }
    }

    /// An operation was started that waits for others before it goes on, which is no part of its latency.
    #[inline(always)]
    pub(super) fn trace_parked(&mut self, slot: SlotRef) {
        if is_on() {
            self.record_started(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_queued(&mut self, slot: SlotRef) {
        let header = self.slab.header(slot);
        let index = header.index;
        if self.slab.latencies.is_some() {
            let now = self.backend.now();
            self.slab.header(slot).flags |= flag::WATCHED;
            self.slab.latencies.iter_mut().for_each(|latencies| latencies.begin(index, now));
        }
        if is_on() {
            self.record_started(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_started(&mut self, slot: SlotRef) {
        let id = self.slab.key(slot).user_data();
        self.slab.header(slot).flags |= flag::WATCHED;
        self.enters.stop_at_next();
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

    /// Records the push of an operation. Returns true if a recording is on. Called only where each push
    /// stops, and for operations that go to an epoll set.
    pub(super) fn trace_submitted(&mut self, slot: SlotRef) -> bool {
        let is_on = is_on();
        if is_on {
            record(EventType::Submitted, self.slab.key(slot).user_data(), 0, 0);
        }
        is_on
    }

    /// Records that an operation goes to a thread. Costs nothing on other paths.
    pub(super) fn trace_to_lane(&mut self, slot: SlotRef, lane: Lane) {
        if is_on() {
            let id = self.slab.key(slot).user_data();
            let operation = self.in_cell(slot);
            let mount = operation.mount();
            let is_remote = mount.as_ref().is_some_and(|mount| mount.is_remote);
            let file_system = mount.as_ref().map(|mount| mount.file_system());
            let file_system = file_system.filter(|it| !it.is_empty());
            let file_system = file_system.map_or(u64::MAX, |it| Name::register(it).number().into());
            let reason = match lane {
                Lane::Elastic if is_remote => &NETWORK,
                Lane::Elastic => &MAY_WAIT,
                Lane::Bounded => &NO_ENTRY,
            };
            record(EventType::ToLane, id, reason.get().number().into(), file_system);
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

    /// Records a completion that is not the operation's last; it has no latency.
    #[inline(always)]
    pub(super) fn trace_delivered(&mut self, slot: SlotRef) {
        if self.slab.header(slot).has(flag::WATCHED) {
            let index = self.slab.header(slot).index;
            self.slab.latencies.iter_mut().for_each(|latencies| latencies.forget(index));
        }
    }

    /// Records the end of an operation, with or without a completion.
    #[inline(always)]
    pub(super) fn trace_completed(&mut self, slot: SlotRef, completion: Completion) {
        if self.slab.header(slot).has(flag::WATCHED) {
            self.record_completed(slot, completion);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_completed(&mut self, slot: SlotRef, completion: Completion) {
        let id = self.slab.key(slot).user_data();
        if self.slab.latencies.is_some() {
            let (now, kind) = (self.backend.now(), self.in_cell(slot).kind());
            let index = self.slab.header(slot).index;
            let is_canceled = completion.is_canceled();
            self.slab.latencies.iter_mut().for_each(|latencies| {
                if is_canceled {
                    latencies.forget(index);
                } else {
                    latencies.end(index, kind, now);
                }
            });
        }
        if is_on() {
            record(EventType::Completed, id, i64::from(completion.res) as u64, 0);
        } else {
            // Nothing more is to be recorded when the result is taken.
            self.slab.header(slot).flags &= !flag::WATCHED;
        }
    }

    /// Records that the program takes the result.
    #[inline(always)]
    pub(super) fn trace_resumed(&mut self, slot: SlotRef) {
        if self.slab.header(slot).has(flag::WATCHED) {
            self.record_resumed(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_resumed(&mut self, slot: SlotRef) {
        if is_on() {
            record(EventType::Resumed, self.slab.key(slot).user_data(), 0, 0);
        }
    }

    /// Records that the result is dropped, because the program dropped the operation or started it detached.
    pub(super) fn trace_dropped(&mut self, slot: SlotRef, is_detached: bool) {
        if is_on() {
            record(EventType::Dropped, self.slab.key(slot).user_data(), is_detached.into(), 0);
        }
    }

    /// Takes a turn and records its begin and end. By a second copy of the turn's code, so that a turn
    /// without a recording has one test instead of two.
    #[cold]
    #[inline(never)]
    pub(super) fn recorded_turn(&mut self, wait: Wait, mask: impl SleepMask) -> io::Result<u32> {
        if self.phase == Phase::Stopped {
            return Ok(0);
        }
        let pending = u64::from(self.backend.sq_pending());
        let may_sleep = wait != Wait::Poll;
        record(EventType::TurnBegin, pending, self.in_flight.into(), may_sleep.into());
        let result = self.rare_turn(wait, mask);
        let finished = result.as_ref().map_or(0, |&count| count);
        record(EventType::TurnEnd, finished.into(), 0, 0);
        result
    }
}
