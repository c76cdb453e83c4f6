//! The arrivals at an object that several receives may share: datagrams at a socket, connections at a
//! listener.
//!
//! A receive under way may hold arrivals that no result shows yet: as many as it has room for, and one that
//! came for a dropped one. So a receive that overlaps with it may get later ones first. Otherwise each
//! receive gets the earliest that no receive got before: that holds for what was received ahead, and for what
//! came for dropped receives.

use std::cell::RefCell;
use std::rc::Rc;

/// The arrivals and the receives. Clones share them.
#[derive(Clone, Default)]
pub struct Arrivals {
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    /// For each arrival, the time at which a receive got it.
    taken: Vec<Option<u64>>,
    receives: Vec<Receive>,
    clock: u64,
}

struct Receive {
    /// The most arrivals that it takes.
    most: usize,
    began: u64,
    end: End,
}

impl Receive {
    fn held_max(&self) -> usize {
        if self.most > 0 { self.most + 1 } else { 0 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    UnderWay,
    Dropped {
        at: u64,
    },
    /// It may have left one that came for it, in place of one that came for a dropped receive.
    Done {
        at: u64,
    },
}

/// A receive under way. Dropping it before its end gives back what it held.
pub struct UnderWay {
    arrivals: Arrivals,
    number: usize,
}

impl Arrivals {
    /// Returns the number of the next arrival.
    pub fn next(&self) -> usize {
        self.state.borrow().taken.len()
    }

    /// Notes an arrival.
    pub fn add(&self) {
        self.state.borrow_mut().taken.push(None);
    }

    /// Begins a receive of `most` arrivals; 0 for one that takes none.
    pub fn begin(&self, most: usize) -> UnderWay {
        let mut state = self.state.borrow_mut();
        state.clock += 1;
        let began = state.clock;
        state.receives.push(Receive { most, began, end: End::UnderWay });
        UnderWay { arrivals: self.clone(), number: state.receives.len() - 1 }
    }

    /// Returns the number of arrivals that no receive got.
    pub fn left(&self) -> usize {
        self.state.borrow().taken.iter().filter(|taken| taken.is_none()).count()
    }

    /// Returns the number of receives under way.
    pub fn under_way(&self) -> usize {
        let state = self.state.borrow();
        state.receives.iter().filter(|receive| receive.end == End::UnderWay).count()
    }

    /// Returns the number of arrivals that receives under way may hold.
    pub fn held_max(&self) -> usize {
        let state = self.state.borrow();
        let under_way = state.receives.iter().filter(|receive| receive.end == End::UnderWay);
        under_way.map(Receive::held_max).sum()
    }
}

impl State {
    /// Returns the number of arrivals that others may have held during this receive, and not returned.
    fn held_by_others(&self, number: usize) -> usize {
        let began = self.receives[number].began;
        let others = self.receives.iter().enumerate().filter(|(other, _)| *other != number);
        let overlap = others.filter(|(_, other)| match other.end {
            End::UnderWay => true,
            End::Dropped { at } => at > began,
            End::Done { at } => at > began,
        });
        let held = |other: &Receive| match other.end {
            End::Done { .. } => usize::from(other.most > 0),
            _ => other.held_max(),
        };
        overlap.map(|(_, other)| held(other)).sum()
    }

    #[track_caller]
    fn check(&self, number: usize, arrival: usize) {
        assert!(arrival < self.taken.len(), "{arrival} was never sent");
        let earlier = (0..arrival).filter(|&earlier| self.taken[earlier].is_none());
        let earlier: Vec<usize> = earlier.collect();
        let held = self.held_by_others(number);
        assert!(
            earlier.len() <= held,
            "{arrival} overtook {earlier:?}, of which others held {held}"
        );
    }
}

impl UnderWay {
    /// Ends the receive, which got these.
    #[track_caller]
    pub fn end(self, got: &[usize]) {
        let state = &mut *self.arrivals.state.borrow_mut();
        let most = state.receives[self.number].most;
        assert!(got.len() <= most && !got.is_empty(), "{got:?}, at most {most}");
        for &arrival in got {
            state.check(self.number, arrival);
            state.clock += 1;
            let before = state.taken[arrival].replace(state.clock);
            assert!(before.is_none(), "{arrival} came twice");
        }
        state.receives[self.number].end = End::Done { at: state.clock };
    }

    /// Ends a receive that saw one without taking it.
    #[track_caller]
    pub fn saw(self, arrival: usize) {
        let state = &mut *self.arrivals.state.borrow_mut();
        state.check(self.number, arrival);
        let began = state.receives[self.number].began;
        assert!(state.taken[arrival].is_none_or(|at| at > began), "{arrival} was taken before");
        state.clock += 1;
        state.receives[self.number].end = End::Done { at: state.clock };
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Ok(mut state) = self.arrivals.state.try_borrow_mut() else { return };
        if state.receives[self.number].end == End::UnderWay {
            state.clock += 1;
            state.receives[self.number].end = End::Dropped { at: state.clock };
        }
    }
}
