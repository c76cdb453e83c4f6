//! Source locations of the program by number, since a record has room for a number only.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sakia_ring::PerProcess;

/// All locations that this process has seen so far, each once: at most one for each place in the program that
/// starts tasks. Numbers that a parent gave mean nothing in its child, which has no drivers of its parent's.
static PLACES: PerProcess<Mutex<Places>> = PerProcess::new();

#[derive(Default)]
struct Places {
    numbers: HashMap<&'static Location<'static>, u64>,
    /// By number, from 1.
    places: Vec<&'static Location<'static>>,
}

fn lock() -> MutexGuard<'static, Places> {
    PLACES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of a location; never zero.
pub(super) fn number_of(place: &'static Location<'static>) -> u64 {
    let mut known = lock();
    let next = known.places.len() as u64 + 1;
    let number = *known.numbers.entry(place).or_insert(next);
    if number == next {
        known.places.push(place);
    }
    number
}

/// Returns the location with this number; `None` for zero, and for an unused number.
pub(super) fn place_of(number: u64) -> Option<&'static Location<'static>> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    lock().places.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_number() {
        let (here, there) = (Location::caller(), Location::caller());
        let number = number_of(here);
        assert_ne!(number, number_of(there));
        assert_eq!((number_of(here), place_of(number)), (number, Some(here)));
        assert_eq!((place_of(0), place_of(u64::MAX)), (None, None));
    }
}
