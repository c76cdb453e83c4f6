//! The operations that a thread has in flight, in rows of which each is a track of the file.
//!
//! An operation is found by its id, which the program gives. The table is written out here for the sake of
//! its size: each program on Sakia has it, and one of the standard library's takes six times as much code.

/// An operation that the program has not taken or dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    /// The number of the name of the way on which it went.
    pub(crate) way: u32,
    /// It was put into the queue, and no call has submitted it yet.
    pub(crate) is_queued: bool,
    /// A slice within the operation's is open.
    pub(crate) is_inner_open: bool,
    pub(crate) is_dropped: bool,
    pub(crate) result: Option<i64>,
}

/// The operations of a thread.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    rows: Vec<Operation>,
    /// Rows that are not in use.
    free: Vec<u32>,
    /// By hash of the id, or behind that place: the row and one, or zero. More than half of them are zero;
    /// the number of places is a power of two, or zero.
    places: Vec<u32>,
}

impl InFlight {
    /// Returns the row of an operation.
    pub(crate) fn find(&self, id: u64) -> Option<usize> {
        self.place(id).ok().map(|place| self.places[place] as usize - 1)
    }

    /// Returns the operation of a row in use.
    pub(crate) fn get(&mut self, row: usize) -> &mut Operation {
        &mut self.rows[row]
    }

    /// Adds an operation. One that has its id already is replaced. Returns its row, and whether this row is
    /// in use for the first time.
    #[inline(never)]
    pub(crate) fn insert(&mut self, operation: Operation) -> (usize, bool) {
        if 2 * (self.rows.len() - self.free.len() + 1) > self.places.len() {
            self.grow();
        }
        match self.place(operation.id) {
            Ok(place) => {
                let row = self.places[place] as usize - 1;
                self.rows[row] = operation;
                (row, false)
            }
            Err(place) => {
                let row = self.free.pop().unwrap_or(self.rows.len() as u32);
                self.places[place] = row + 1;
                let row = row as usize;
                if row < self.rows.len() {
                    self.rows[row] = operation;
                    return (row, false);
                }
                self.rows.push(operation);
                (row, true)
            }
        }
    }

    /// Removes an operation. Returns it with its row.
    #[inline(never)]
    pub(crate) fn remove(&mut self, id: u64) -> Option<(usize, Operation)> {
        let mut hole = self.place(id).ok()?;
        let row = self.places[hole] - 1;
        self.free.push(row);
        // Those behind it that stand there because of it move up.
        let mask = self.places.len() - 1;
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let Some(its_row) = (self.places[next] as usize).checked_sub(1) else { break };
            let home = self.home(self.rows[its_row].id);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[next];
                hole = next;
            }
        }
        self.places[hole] = 0;
        Some((row as usize, self.rows[row as usize]))
    }

    /// Returns the place of an id, or the one where it would stand. There is a place that is zero.
    #[inline(never)]
    fn place(&self, id: u64) -> Result<usize, usize> {
        if self.places.is_empty() {
            return Err(0);
        }
        let mut place = self.home(id);
        while let Some(row) = (self.places[place] as usize).checked_sub(1) {
            if self.rows[row].id == id {
                return Ok(place);
            }
            place = (place + 1) & (self.places.len() - 1);
        }
        Err(place)
    }

    /// Fibonacci hashing: the upper half of the product depends on all of the id.
    fn home(&self, id: u64) -> usize {
        (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.places.len() - 1)
    }

    #[inline(never)]
    fn grow(&mut self) {
        let count = (2 * self.places.len()).max(16);
        let before = std::mem::replace(&mut self.places, vec![0; count]);
        for place in before {
            if place != 0
                && let Err(free) = self.place(self.rows[place as usize - 1].id)
            {
                self.places[free] = place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn operation(id: u64, result: i64) -> Operation {
        let result = Some(result);
        Operation { id, result, ..Operation::default() }
    }

    proptest! {
        /// The table holds the same rows as a map of the standard library, and no row twice.
        #[test]
        fn operations_are_found_by_their_id(
            steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u32..2), 0..400),
        ) {
            let mut table = InFlight::default();
            let mut model: HashMap<u64, (usize, i64)> = HashMap::new();
            let mut rows = HashSet::new();
            for (number, (inserts, id, shift)) in steps.into_iter().enumerate() {
                let id = id << (32 * shift);
                if inserts {
                    let (row, is_new) = table.insert(operation(id, number as i64));
                    prop_assert_eq!(is_new, rows.insert(row));
                    if let Some((before, _)) = model.insert(id, (row, number as i64)) {
                        prop_assert_eq!(before, row);
                    }
                } else {
                    let removed = table.remove(id).map(|(row, its)| (row, its.result.unwrap()));
                    prop_assert_eq!(removed, model.remove(&id));
                }
                for id in (0..40).flat_map(|id| [id, id << 32]) {
                    prop_assert_eq!(table.find(id), model.get(&id).map(|(row, _)| *row));
                }
                let used: HashSet<_> = model.values().map(|(row, _)| row).collect();
                prop_assert_eq!(used.len(), model.len());
            }
            for (id, (row, result)) in model {
                prop_assert_eq!((table.get(row).id, table.get(row).result), (id, Some(result)));
            }
        }
    }
}
