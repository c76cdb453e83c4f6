//! The three sets of `select(2)`.

use crate::Events;

/// The sets of `select(2)` that a descriptor is in: those to wait for, or those that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The first set. It is ready with bytes, the end of them, a hang-up or an error: the next read does not
    /// wait.
    pub readable: bool,
    /// The second set. It is ready with room or an error: the next write does not wait. A hang-up alone does
    /// not make it ready.
    pub writable: bool,
    /// The third set. It is ready with urgent data only, not with errors.
    pub exceptional: bool,
}

impl Selection {
    /// Returns the events to ask `poll(2)` for.
    pub fn wanted(self) -> Events {
        self.events(Events::NONE, Events::NONE)
    }

    /// Returns the events that end the wait. `poll(2)` reports errors and hang-ups in any case; they are
    /// included only if they make one of the sets ready.
    pub fn ending(self) -> Events {
        self.events(Events::HUP | Events::ERR, Events::ERR)
    }

    /// Returns those of these sets that are ready, with the events that `poll(2)` found.
    pub fn ready(self, found: Events) -> Self {
        let is = |events: Events| !(events & found).is_empty();
        let one = |readable, writable, exceptional| Self { readable, writable, exceptional };
        Self {
            readable: self.readable && is(one(true, false, false).ending()),
            writable: self.writable && is(one(false, true, false).ending()),
            exceptional: self.exceptional && is(one(false, false, true).ending()),
        }
    }

    /// Returns the number of sets; `select(2)` returns the sum of these numbers.
    pub fn count(self) -> usize {
        [self.readable, self.writable, self.exceptional].into_iter().filter(|&is| is).count()
    }

    fn events(self, with_readable: Events, with_writable: Events) -> Events {
        let mut events = Events::NONE;
        if self.readable {
            events |= Events::IN | Events::RDNORM | Events::RDBAND | with_readable;
        }
        if self.writable {
            events |= Events::WRITABLE | with_writable;
        }
        if self.exceptional {
            events |= Events::PRI;
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Selection = Selection { readable: true, writable: true, exceptional: true };

    #[test]
    fn each_event_is_in_the_sets_of_select() {
        for (found, readable, writable, exceptional) in [
            (Events::NONE, false, false, false),
            (Events::IN, true, false, false),
            (Events::HUP, true, false, false),
            (Events::OUT, false, true, false),
            (Events::ERR, true, true, false),
            (Events::PRI, false, false, true),
            (Events::RDHUP, false, false, false),
            (Events::IN | Events::OUT | Events::PRI, true, true, true),
        ] {
            let expected = Selection { readable, writable, exceptional };
            assert_eq!(ALL.ready(found), expected, "{found:?}");
            assert_eq!(expected.count(), ALL.ready(found).count());
            assert_eq!(Selection::default().ready(found), Selection::default());
        }
        assert_eq!(ALL.count(), 3);
    }

    #[test]
    fn a_hang_up_ends_no_wait_for_room_or_urgent_data() {
        let only = Selection { readable: false, ..ALL };
        assert!((only.ending() & Events::HUP).is_empty());
        assert_eq!(only.ready(Events::HUP), Selection::default());
        assert!((only.wanted() & (Events::IN | Events::ERR)).is_empty());
        let urgent = Selection { writable: false, ..only };
        assert_eq!((urgent.wanted(), urgent.ending()), (Events::PRI, Events::PRI));
    }
}
