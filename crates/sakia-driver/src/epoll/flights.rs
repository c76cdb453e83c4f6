//! Operations in flight, by number and by `user_data`.
//!
//! - A flight is here from its consumption to its final completion. In between its last completion is not
//!   posted, so its memory is still lent.
//! - Numbers grow in the order of consumption, and none is used twice.
//! - Both tables have the same flights.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use super::transfer::FileClass;
use crate::call::{Request, Victims};

/// All operations in flight.
#[derive(Debug, Default)]
pub(super) struct Flights {
    by_id: BTreeMap<u64, Flight>,
    /// Each entry begins with its `user_data`.
    by_user_data: BTreeSet<(u64, u64)>,
    /// The number of the next flight.
    next: u64,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: Request,
    pub(super) stage: Stage,
    /// A cancellation came while a lane thread tried it: it must not wait again.
    pub(super) is_canceled: bool,
}

/// The event that an operation in flight waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// For readiness of its descriptor, which is of this class and has the watch at this place, and for
    /// earlier operations.
    Waiting { place: usize, class: FileClass },
    /// For an event at the watch at this place.
    Polling { place: usize },
    /// For a lane.
    Lane,
}

impl Flights {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of the next flight.
    pub(super) fn next_id(&self) -> u64 {
        self.next
    }

    /// Makes a request a flight. Returns its number.
    pub(super) fn take_off(&mut self, request: Request, stage: Stage) -> u64 {
        let id = self.next;
        self.next += 1;
        self.by_user_data.insert((request.user_data, id));
        self.by_id.insert(id, Flight { request, stage, is_canceled: false });
        id
    }

    pub(super) fn get(&self, id: u64) -> Option<&Flight> {
        self.by_id.get(&id)
    }

    /// # Panics
    /// Unless there is such a flight.
    pub(super) fn get_mut(&mut self, id: u64) -> &mut Flight {
        self.by_id.get_mut(&id).expect("the operation is in flight")
    }

    /// Removes a finished flight.
    ///
    /// # Panics
    /// Unless there is such a flight.
    pub(super) fn land(&mut self, id: u64) -> Request {
        let Flight { request, .. } =
            self.by_id.remove(&id).expect("an operation that ends is in flight");
        self.by_user_data.remove(&(request.user_data, id));
        request
    }

    /// Returns the flights that a cancel request selects, oldest first.
    pub(super) fn victims(&self, victims: Victims) -> Vec<u64> {
        match victims {
            Victims::UserData(user_data) => {
                let range = (user_data, 0)..=(user_data, u64::MAX);
                self.by_user_data.range(range).map(|&(_, id)| id).collect()
            }
            Victims::Descriptor(raw) => {
                let acts_on = |flight: &Flight| flight.request.call.acts_on();
                let its = self.by_id.iter().filter(|(_, flight)| acts_on(flight) == Some(raw));
                its.map(|(&id, _)| id).collect()
            }
            Victims::Any => self.by_id.keys().copied().collect(),
        }
    }
}

impl Index<u64> for Flights {
    type Output = Flight;

    fn index(&self, id: u64) -> &Flight {
        &self.by_id[&id]
    }
}
