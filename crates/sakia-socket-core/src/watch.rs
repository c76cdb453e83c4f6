//! Readiness: the kernel's answer, corrected by bytes and errors that wait in memory.

use core::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// A set of events, with the bits of `EPOLLIN` and its kin, which are also those of `poll(2)` as far as
/// that has them.
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
    /// An error waits; reported whether it is wanted or not.
    pub const ERR: Self = Self(0x8);
    /// Both directions have ended; reported whether it is wanted or not.
    pub const HUP: Self = Self(0x10);
    /// The peer has ended its direction.
    pub const RDHUP: Self = Self(0x2000);

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

/// When an entry of an `epoll` set reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is ready.
    #[default]
    Level,
    /// When it becomes ready, and when more comes (`EPOLLET`).
    Edge,
}

/// One entry of an `epoll` set, as far as memory is concerned: the kernel keeps the same entry, and
/// reports what it sees.
///
/// The kernel does not see bytes that were read ahead. With [`Trigger::Level`] they are reported as long
/// as they wait. With [`Trigger::Edge`] they are reported once for each call that brought some, since that
/// call may have taken the bytes of an event which the kernel had not reported yet: so an event may be
/// reported that the kernel alone would not have, and never the other way around.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    wanted: Events,
    trigger: Trigger,
    is_one_shot: bool,
    /// A one-shot entry that has reported says nothing until it is modified.
    is_armed: bool,
    /// The arrivals that were reported.
    reported: Option<u32>,
}

impl Watch {
    /// Makes an entry as `EPOLL_CTL_ADD` does, and `EPOLL_CTL_MOD` in place of another: what is ready is
    /// reported at the next wait.
    pub fn new(wanted: Events, trigger: Trigger, is_one_shot: bool) -> Self {
        let wanted = wanted | Events::ERR | Events::HUP;
        Self { wanted, trigger, is_one_shot, is_armed: true, reported: None }
    }

    /// Returns true if a wait must not sleep, with `memory` ready in memory after this number of
    /// `arrivals`.
    pub fn is_ready(&self, memory: Events, arrivals: u32) -> bool {
        !self.of_memory(memory, arrivals).is_empty()
    }

    /// Returns the events to report: those of the kernel, and those in `memory` after this number of
    /// `arrivals` (calls that left bytes there). Nothing more is reported of what this returns, if the
    /// entry says so.
    pub fn report(&mut self, kernel: Events, memory: Events, arrivals: u32) -> Events {
        let events = (kernel & self.wanted) | self.of_memory(memory, arrivals);
        if !self.is_armed || events.is_empty() {
            return Events::NONE;
        }
        self.reported = Some(arrivals);
        self.is_armed = !self.is_one_shot;
        events
    }

    fn of_memory(&self, memory: Events, arrivals: u32) -> Events {
        let is_new = self.trigger == Trigger::Level || self.reported != Some(arrivals);
        if self.is_armed && is_new { memory & self.wanted } else { Events::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_reports_as_long_as_bytes_wait() {
        let mut watch = Watch::new(Events::IN, Trigger::Level, false);
        for _ in 0..3 {
            assert!(watch.is_ready(Events::IN, 1));
            assert_eq!(watch.report(Events::NONE, Events::IN, 1), Events::IN);
        }
        assert_eq!(watch.report(Events::NONE, Events::NONE, 1), Events::NONE);
    }

    #[test]
    fn edge_reports_each_arrival_once() {
        let mut watch = Watch::new(Events::IN, Trigger::Edge, false);
        assert_eq!(watch.report(Events::NONE, Events::IN, 1), Events::IN);
        assert!(!watch.is_ready(Events::IN, 1));
        assert_eq!(watch.report(Events::NONE, Events::IN, 1), Events::NONE);
        assert_eq!(watch.report(Events::NONE, Events::IN, 2), Events::IN);
        assert_eq!(watch.report(Events::IN, Events::NONE, 2), Events::IN, "the kernel saw an edge");
    }

    #[test]
    fn one_shot_reports_until_it_is_modified() {
        for trigger in [Trigger::Level, Trigger::Edge] {
            let mut watch = Watch::new(Events::IN | Events::OUT, trigger, true);
            assert_eq!(watch.report(Events::OUT, Events::IN, 1), Events::IN | Events::OUT);
            assert!(!watch.is_ready(Events::IN, 2));
            assert_eq!(watch.report(Events::OUT, Events::IN, 2), Events::NONE);
            watch = Watch::new(Events::IN, trigger, true);
            assert_eq!(watch.report(Events::OUT, Events::IN, 2), Events::IN);
        }
    }

    #[test]
    fn only_wanted_events_are_reported_and_errors_always() {
        let mut watch = Watch::new(Events::OUT, Trigger::Level, false);
        assert_eq!(watch.report(Events::RDHUP, Events::IN, 1), Events::NONE);
        assert_eq!(watch.report(Events::NONE, Events::ERR, 1), Events::ERR);
        assert_eq!(watch.report(Events::HUP, Events::NONE, 1), Events::HUP);
    }
}
