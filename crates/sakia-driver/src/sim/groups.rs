//! Groups of provided buffers.
//!
//! A buffer in a group is lent, with or without an operation that could use it, until a completion names
//! it. The kernel may write to it all the while.
//!
//! Source: `io_uring_register_buf_ring(3)`.

use std::collections::{BTreeMap, VecDeque};

use rustix::io::Errno;

use super::memory::{Lent, Segment};

/// All groups, by number.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: BTreeMap<u16, Group>,
}

/// One group.
#[derive(Debug)]
struct Group {
    /// The most buffers that it has at a time; their numbers are below.
    entries: u16,
    /// Oldest first.
    buffers: VecDeque<Provided>,
}

/// A buffer of a group.
#[derive(Debug)]
pub(super) struct Provided {
    pub(super) id: u16,
    pub(super) lent: Lent,
}

impl Groups {
    /// Adds an empty group, unless there are `count_max` already.
    ///
    /// # Errors
    /// `EINVAL`: without room. `EEXIST`: there is one. `ENOMEM`: too many.
    pub(super) fn register(
        &mut self,
        group: u16,
        entries: u16,
        count_max: u32,
    ) -> Result<(), Errno> {
        if entries == 0 {
            return Err(Errno::INVAL);
        }
        if self.groups.contains_key(&group) {
            return Err(Errno::EXIST);
        }
        if self.groups.len() >= count_max as usize {
            return Err(Errno::NOMEM);
        }
        self.groups.insert(group, Group { entries, buffers: VecDeque::new() });
        Ok(())
    }

    /// Whether there is such a group.
    pub(super) fn contains(&self, group: u16) -> bool {
        self.groups.contains_key(&group)
    }

    /// Adds a buffer behind those that are there.
    ///
    /// # Panics
    /// When no driver may do so: the group is unknown, the number is not below its size or in use, or
    /// there is no memory.
    pub(super) fn provide(&mut self, group: u16, id: u16, segment: Segment) {
        let known = self.groups.get_mut(&group);
        let its = known.unwrap_or_else(|| panic!("a buffer for group {group}, which is not there"));
        assert!(id < its.entries, "buffer {id} for group {group}, which has {}", its.entries);
        let is_there = its.buffers.iter().any(|buffer| buffer.id == id);
        assert!(!is_there, "buffer {id} is in group {group} already");
        let lent = Lent::to_fill(vec![segment]).expect("a buffer has an address");
        its.buffers.push_back(Provided { id, lent });
    }

    /// The buffer that is to be used next.
    pub(super) fn oldest(&self, group: u16) -> Option<&Provided> {
        self.groups.get(&group)?.buffers.front()
    }

    /// Takes it out, for a completion that names it.
    pub(super) fn take_oldest(&mut self, group: u16) -> Option<Provided> {
        self.groups.get_mut(&group)?.buffers.pop_front()
    }

    /// What is in the groups, with their numbers and its own.
    pub(super) fn buffers(&self) -> impl Iterator<Item = (u16, u16, &Lent)> {
        self.groups.iter().flat_map(|(&group, its)| {
            its.buffers.iter().map(move |buffer| (group, buffer.id, &buffer.lent))
        })
    }

    /// Forgets the groups, and their memory, that nobody will use.
    pub(super) fn retain(&mut self, is_used: impl Fn(u16) -> bool) {
        self.groups.retain(|&group, _| is_used(group));
    }
}
