//! Groups of provided buffers: memory that a receive takes once there are bytes for it.
//!
//! Buffers of a group are lent to the backend, from [`provide`](Groups::provide) until a completion names the
//! buffer. Only the address is kept.
//!
//! Source: `io_uring_register_buf_ring(3)`.

use std::collections::{BTreeMap, VecDeque};

use rustix::io::Errno;

/// A buffer of a group. Lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Provided {
    pub(crate) id: u16,
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

/// All groups, by number.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) by_number: BTreeMap<u16, Group>,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    /// The maximum number of buffers at a time; their ids are below it.
    entries: u16,
    /// Oldest first.
    pub(crate) buffers: VecDeque<Provided>,
}

impl Groups {
    /// Adds an empty group.
    ///
    /// # Errors
    /// `EINVAL`: the group has no room. `EEXIST`: there is a group with this number.
    pub(crate) fn register(&mut self, group: u16, entries: u16) -> Result<(), Errno> {
        if entries == 0 {
            return Err(Errno::INVAL);
        }
        if self.by_number.contains_key(&group) {
            return Err(Errno::EXIST);
        }
        let buffers = VecDeque::with_capacity(entries.into());
        self.by_number.insert(group, Group { entries, buffers });
        Ok(())
    }

    /// Returns whether there is a group with this number.
    pub(crate) fn contains(&self, group: u16) -> bool {
        self.by_number.contains_key(&group)
    }

    /// Adds a buffer behind the others.
    ///
    /// # Panics
    /// When the group is unknown or full, or the id is not below its size.
    pub(crate) fn provide(&mut self, group: u16, buffer: Provided) {
        let group = self.by_number.get_mut(&group).expect("buffers are for a registered group");
        let is_in_bounds =
            buffer.id < group.entries && group.buffers.len() < usize::from(group.entries);
        assert!(is_in_bounds, "buffer {} of {}", buffer.id, group.entries);
        group.buffers.push_back(buffer);
    }

    /// Returns the oldest buffer, which a kernel uses next.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn oldest(&self, group: u16) -> Option<Provided> {
        let buffers = &self.by_number.get(&group)?.buffers;
        buffers.front().copied()
    }

    /// Takes the oldest buffer out: a completion names it.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn take_oldest(&mut self, group: u16) {
        if let Some(group) = self.by_number.get_mut(&group) {
            group.buffers.pop_front();
        }
    }

    /// Returns the newest buffer, of which the processor's caches may still have a part.
    pub(crate) fn newest(&self, group: u16) -> Option<Provided> {
        let buffers = &self.by_number.get(&group)?.buffers;
        buffers.back().copied()
    }

    /// Takes the newest buffer out: a completion names it.
    pub(crate) fn take_newest(&mut self, group: u16) {
        if let Some(group) = self.by_number.get_mut(&group) {
            group.buffers.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(id: u16) -> Provided {
        Provided { id, addr: u64::from(id) * 8, len: 8 }
    }

    #[test]
    fn buffers_are_used_in_the_order_in_which_they_came() {
        let mut groups = Groups::default();
        groups.register(7, 2).unwrap();
        assert!(groups.contains(7) && !groups.contains(8));
        assert_eq!((groups.oldest(7), groups.oldest(8)), (None, None));
        groups.provide(7, buffer(1));
        groups.provide(7, buffer(0));
        assert_eq!(groups.oldest(7), Some(buffer(1)), "looking takes nothing");
        groups.take_oldest(7);
        groups.provide(7, buffer(1));
        for id in [0, 1] {
            assert_eq!(groups.oldest(7), Some(buffer(id)));
            groups.take_oldest(7);
        }
        assert_eq!(groups.oldest(7), None);
    }

    #[test]
    fn a_group_has_room_and_a_number_of_its_own() {
        let mut groups = Groups::default();
        assert_eq!(groups.register(0, 0), Err(Errno::INVAL));
        groups.register(0, 1).unwrap();
        assert_eq!(groups.register(0, 1), Err(Errno::EXIST));
        groups.register(u16::MAX, u16::MAX).unwrap();
    }

    #[test]
    #[should_panic(expected = "buffer 1 of 1")]
    fn a_number_beyond_the_group_is_a_mistake() {
        let mut groups = Groups::default();
        groups.register(0, 1).unwrap();
        groups.provide(0, buffer(1));
    }
}
