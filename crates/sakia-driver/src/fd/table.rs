//! The descriptors of a driver, by number.
//!
//! A driver has one [`Fd`] for a number, however the number came: opened, accepted, received with a message,
//! adopted or lent. So the facts that belong to a descriptor are kept once, and what backends keep by number
//! (registered files, watches) is forgotten only at the end of the last user.
//!
//! A place finds a number's `Fd` as long as there are clones of it, and no longer: the last one is gone
//! before the number is closed, given away, or its lender's alone. So a number that is reused has none.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use super::{Fd, Inner};

/// Numbers below have a place in an array, as in the kernel's own table, which is no shorter.
const NUMBERS: usize = 1 << 20;
/// The array grows by a multiple of this.
const STEP: usize = 64;

/// The living descriptors of a driver.
#[derive(Default)]
pub(crate) struct Table {
    places: RefCell<Places>,
}

#[derive(Default)]
struct Places {
    by_number: Vec<Option<Weak<Inner>>>,
    /// Those beyond the array, which only an embedder's host or a raised limit brings.
    far: BTreeMap<i32, Weak<Inner>>,
}

impl Table {
    /// Records the descriptor that has its number from now on.
    #[inline(always)]
    pub(super) fn insert(&self, inner: &Rc<Inner>) {
        let mut places = self.places.borrow_mut();
        let fresh = Rc::downgrade(inner);
        match places.by_number.get_mut(inner.raw as usize) {
            Some(place) => *place = Some(fresh),
            None => places.insert_far(inner.raw, fresh),
        }
    }

    /// Forgets a descriptor, whose last clone is gone: its memory is freed.
    #[inline(always)]
    pub(super) fn remove(&self, inner: &Inner) {
        let mut places = self.places.borrow_mut();
        match places.by_number.get_mut(inner.raw as usize) {
            Some(place) => *place = None,
            None => drop(places.far.remove(&inner.raw)),
        }
    }

    /// Returns a clone of the driver's descriptor with this number.
    pub(crate) fn find(&self, raw: i32) -> Option<Fd> {
        let places = self.places.borrow();
        let place = match places.by_number.get(raw as usize) {
            Some(place) => place.as_ref(),
            None => places.far.get(&raw),
        };
        place.and_then(Weak::upgrade).map(|inner| Fd { inner })
    }
}

impl Places {
    #[cold]
    #[inline(never)]
    fn insert_far(&mut self, raw: i32, inner: Weak<Inner>) {
        match usize::try_from(raw) {
            Ok(number) if number < NUMBERS => {
                self.by_number.resize_with((number + 1).next_multiple_of(STEP), || None);
                self.by_number[number] = Some(inner);
            }
            _ => drop(self.far.insert(raw, inner)),
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}
