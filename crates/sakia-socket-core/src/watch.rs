//! Readiness: the kernel's answer, corrected by bytes and errors that wait in memory.

use core::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// A set of events, with the bits of `EPOLLIN` and so on, which are also those of `poll(2)` as far as it has
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Events(pub u32);

impl Events {
    /// No event.
    pub const NONE: Self = Self(0);
    /// Bytes can be read.
    pub const IN: Self = Self(0x1);
    /// Urgent data can be read.
    pub const PRI: Self = Self(0x2);
    /// Bytes can be written.
    pub const OUT: Self = Self(0x4);
    /// An error is pending; reported whether it is wanted or not.
    pub const ERR: Self = Self(0x8);
    /// Both directions have ended; reported whether it is wanted or not.
    pub const HUP: Self = Self(0x10);
    /// `EPOLLRDNORM`: the same as [`IN`](Events::IN) for sockets.
    pub const RDNORM: Self = Self(0x40);
    /// `EPOLLRDBAND`.
    pub const RDBAND: Self = Self(0x80);
    /// `EPOLLWRNORM`: the same as [`OUT`](Events::OUT) for sockets.
    pub const WRNORM: Self = Self(0x100);
    /// `EPOLLWRBAND`.
    pub const WRBAND: Self = Self(0x200);
    /// The peer has ended its direction.
    pub const RDHUP: Self = Self(0x2000);
    /// `EPOLLEXCLUSIVE`, no event: of several sets with the file at least one wakes its waiters.
    pub const EXCLUSIVE: Self = Self(1 << 28);
    /// `EPOLLWAKEUP`, no event: the machine does not sleep while an event is served.
    pub const WAKEUP: Self = Self(1 << 29);
    /// `EPOLLONESHOT`, no event: the entry reports once, until it is modified.
    pub const ONE_SHOT: Self = Self(1 << 30);
    /// `EPOLLET`, no event: the entry reports new events only, not as long as it is ready.
    pub const EDGE: Self = Self(1 << 31);

    /// The bits for the behavior of an entry of an `epoll` set.
    const BEHAVIOR: Self = Self(0xf << 28);
    /// All events that `has_room` withholds.
    pub(crate) const WRITABLE: Self = Self(0x4 | 0x100 | 0x200);

    /// Returns true if all of `other` are among these.
    pub fn contains(self, other: Self) -> bool {
        self & other == other
    }

    /// Returns true if there is none.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Events {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Events {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Events {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// The changes that data in memory makes to the kernel's answer about a socket: events added, and events
/// withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InMemory {
    /// The events that the kernel does not see.
    pub ready: Events,
    /// The number of times that bytes or an error came to memory. Must be read before `ready` is computed: an
    /// arrival in between is then reported once more, and not lost.
    pub arrivals: u32,
    /// False while the write queue is so full that the socket must not count as writable.
    pub has_room: bool,
    /// The number of times that the write queue got room after it had none; must be read before `has_room`.
    pub rooms: u32,
}

impl InMemory {
    /// A socket without a byte in memory.
    pub const NONE: Self = Self { ready: Events::NONE, arrivals: 0, has_room: true, rooms: 0 };

    /// Returns the result of `poll(2)`, given the kernel's part of it.
    pub fn correct(self, kernel: Events) -> Events {
        self.permit(kernel) | self.ready
    }

    /// Returns `kernel` without the events that wait until the write queue has room.
    fn permit(self, kernel: Events) -> Events {
        if self.has_room { kernel } else { kernel & !Events::WRITABLE }
    }
}

/// The trigger mode of an entry of an `epoll` set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is ready.
    #[default]
    Level,
    /// When it becomes ready, and with each new event (`EPOLLET`).
    Edge,
}

/// One entry of an `epoll` set, as far as memory is concerned: the kernel keeps the same entry, and
/// reports what it sees.
///
/// The kernel does not see bytes that were read ahead. With [`Trigger::Level`] they are reported as long
/// as they wait. With [`Trigger::Edge`] they are reported once for each call that brought some, since that
/// call may have taken the bytes of an event which the kernel had not reported yet: so an event may be
/// reported that the kernel alone would not have, and never the other way around.
///
/// Nor does the kernel see the write queue. While it has no room, the kernel's `EPOLLOUT` is withheld.
/// With [`Trigger::Edge`] the kernel may have no reason to repeat it, so room in the queue is an edge of
/// its own, if `poll(2)` [finds](Watch::take_room) room in the kernel, too. If not, the kernel sees an
/// edge when it has some.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    wanted: Events,
    trigger: Trigger,
    is_one_shot: bool,
    /// False for a one-shot entry that has reported: it reports nothing until it is modified.
    is_armed: bool,
    /// The arrivals that were reported.
    reported: Option<u32>,
    /// The number of times the write queue got room, as far as that was treated as an edge.
    rooms: u32,
}

impl Watch {
    /// Makes an entry as `EPOLL_CTL_ADD` does, and `EPOLL_CTL_MOD` in place of another: current events are
    /// reported at the next wait. `events` are those of `epoll_ctl(2)`, with the bits for the entry's
    /// behavior.
    pub fn new(events: Events, memory: InMemory) -> Self {
        let has = |bit| events.contains(bit);
        Self {
            wanted: (events & !Events::BEHAVIOR) | Events::ERR | Events::HUP,
            trigger: if has(Events::EDGE) { Trigger::Edge } else { Trigger::Level },
            is_one_shot: has(Events::ONE_SHOT),
            is_armed: true,
            reported: None,
            rooms: memory.rooms,
        }
    }

    /// Returns the events that it waits for, errors and hang-ups included.
    pub fn wanted(&self) -> Events {
        self.wanted
    }

    /// Returns its trigger mode.
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }

    /// Returns true if a wait must not sleep because of `memory`.
    pub fn is_ready(&self, memory: InMemory) -> bool {
        !self.of_memory(memory).is_empty()
    }

    /// Returns true once when the write queue got room, if that may be an edge: then ask the kernel by
    /// `poll(2)`, and [report](Watch::report) its answer.
    pub fn take_room(&mut self, memory: InMemory) -> bool {
        let is_edge = self.trigger == Trigger::Edge && memory.has_room;
        let is_taken = is_edge && self.rooms != memory.rooms;
        if is_taken {
            self.rooms = memory.rooms;
        }
        is_taken && self.is_armed && !(self.wanted & Events::WRITABLE).is_empty()
    }

    /// Returns the events to report: those of the kernel, corrected by `memory`. An edge-triggered or
    /// one-shot entry does not report them again.
    pub fn report(&mut self, kernel: Events, memory: InMemory) -> Events {
        let events = (memory.permit(kernel) & self.wanted) | self.of_memory(memory);
        if !self.is_armed || events.is_empty() {
            return Events::NONE;
        }
        self.reported = Some(memory.arrivals);
        self.is_armed = !self.is_one_shot;
        events
    }

    fn of_memory(&self, memory: InMemory) -> Events {
        if !self.is_armed {
            return Events::NONE;
        }
        let is_new = self.trigger == Trigger::Level || self.reported != Some(memory.arrivals);
        if is_new { memory.ready & self.wanted } else { Events::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE_IN: Events = Events(Events::IN.0 | Events::EDGE.0);

    /// Returns a state in which bytes are ready to be read, after this number of arrivals.
    fn bytes(arrivals: u32) -> InMemory {
        InMemory { ready: Events::IN, arrivals, ..InMemory::NONE }
    }

    /// Returns a state of the write queue, which has room or not, and had room again this number of times.
    fn queue(has_room: bool, rooms: u32) -> InMemory {
        InMemory { has_room, rooms, ..InMemory::NONE }
    }

    #[test]
    fn level_reports_as_long_as_bytes_wait() {
        let mut watch = Watch::new(Events::IN, InMemory::NONE);
        for _ in 0..3 {
            assert!(watch.is_ready(bytes(1)));
            assert_eq!(watch.report(Events::NONE, bytes(1)), Events::IN);
        }
        assert_eq!(watch.report(Events::NONE, InMemory::NONE), Events::NONE);
    }

    #[test]
    fn edge_reports_each_arrival_once() {
        let mut watch = Watch::new(EDGE_IN, InMemory::NONE);
        assert_eq!(watch.report(Events::NONE, bytes(1)), Events::IN);
        assert!(!watch.is_ready(bytes(1)));
        assert_eq!(watch.report(Events::NONE, bytes(1)), Events::NONE);
        assert_eq!(watch.report(Events::NONE, bytes(2)), Events::IN);
        assert_eq!(watch.report(Events::IN, InMemory::NONE), Events::IN, "the kernel saw an edge");
    }

    #[test]
    fn an_arrival_behind_an_event_of_the_kernel_is_an_edge() {
        let mut watch = Watch::new(EDGE_IN, InMemory::NONE);
        assert_eq!(watch.report(Events::IN, InMemory::NONE), Events::IN);
        assert_eq!(watch.report(Events::NONE, bytes(1)), Events::IN);
    }

    #[test]
    fn one_shot_reports_until_it_is_modified() {
        for trigger in [Events::NONE, Events::EDGE] {
            let events = Events::IN | Events::OUT | Events::ONE_SHOT | trigger;
            let mut watch = Watch::new(events, InMemory::NONE);
            assert_eq!(watch.report(Events::OUT, bytes(1)), Events::IN | Events::OUT);
            assert!(!watch.is_ready(bytes(2)));
            assert_eq!(watch.report(Events::OUT, bytes(2)), Events::NONE);
            watch = Watch::new(Events::IN | trigger, bytes(2));
            assert_eq!(watch.report(Events::OUT, bytes(2)), Events::IN);
        }
    }

    #[test]
    fn only_wanted_events_are_reported_and_errors_always() {
        let mut watch = Watch::new(Events::OUT, InMemory::NONE);
        assert_eq!(watch.report(Events::RDHUP, bytes(1)), Events::NONE);
        let error = InMemory { ready: Events::ERR, arrivals: 1, ..InMemory::NONE };
        assert_eq!(watch.report(Events::NONE, error), Events::ERR);
        assert_eq!(watch.report(Events::HUP, InMemory::NONE), Events::HUP);
    }

    #[test]
    fn how_an_entry_behaves_is_no_event() {
        let all = Events(u32::MAX);
        assert_eq!(Watch::new(all, InMemory::NONE).report(all, InMemory::NONE).0, 0x0fff_ffff);
        assert_eq!(Watch::new(all, InMemory::NONE).trigger(), Trigger::Edge);
    }

    #[test]
    fn room_in_the_kernel_is_withheld_until_the_queue_has_some() {
        for trigger in [Events::NONE, Events::EDGE] {
            let mut watch = Watch::new(Events::OUT | Events::WRNORM | trigger, queue(false, 3));
            let out = Events::OUT | Events::WRNORM;
            assert_eq!(watch.report(out, queue(false, 3)), Events::NONE);
            assert_eq!(watch.report(out, queue(true, 4)), out);
        }
        assert_eq!(queue(false, 0).correct(Events::OUT | Events::HUP), Events::HUP);
        assert_eq!(bytes(1).correct(Events::OUT), Events::OUT | Events::IN);
    }

    #[test]
    fn room_in_the_queue_is_an_edge_if_the_kernel_has_room() {
        let mut edge = Watch::new(Events::OUT | Events::EDGE, queue(false, 3));
        assert!(!edge.take_room(queue(false, 3)));
        assert_eq!(edge.report(Events::OUT, queue(false, 3)), Events::NONE, "an edge that is owed");
        assert!(edge.take_room(queue(true, 4)));
        assert!(!edge.take_room(queue(true, 4)), "once");
        assert_eq!(edge.report(Events::OUT, queue(true, 4)), Events::OUT);
        assert!(!edge.take_room(queue(false, 5)), "full again before the query");
        assert!(edge.take_room(queue(true, 6)));
        assert_eq!(edge.report(Events::NONE, queue(true, 6)), Events::NONE, "the kernel is full");
    }

    #[test]
    fn room_in_the_queue_is_asked_about_only_where_it_is_an_edge_to_report() {
        for events in [Events::OUT, Events::IN | Events::EDGE] {
            assert!(!Watch::new(events, queue(false, 0)).take_room(queue(true, 1)));
        }
        let events = Events::OUT | Events::EDGE | Events::ONE_SHOT;
        let mut one_shot = Watch::new(events, queue(true, 0));
        assert_eq!(one_shot.report(Events::OUT, queue(true, 0)), Events::OUT);
        assert!(!one_shot.take_room(queue(true, 1)));
    }
}
