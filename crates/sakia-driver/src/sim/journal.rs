//! Changes that become durable in order: changes of names and attributes, and truncations.
//!
//! An entry is one operation. A crash keeps an entry as a whole or not at all, and keeps the oldest ones.
//! File systems with a journal do this (ext4, XFS); POSIX promises less.

use std::collections::VecDeque;

use super::tree::{Attributes, InodeId};

/// A part of a journaled operation.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A directory's entry: its name, its target, and its position.
    Link {
        parent: InodeId,
        name: Vec<u8>,
        id: InodeId,
        position: u64,
    },
    Unlink {
        parent: InodeId,
        name: Vec<u8>,
    },
    /// All attributes of an inode, as of the operation.
    Attributes {
        id: InodeId,
        attributes: Attributes,
    },
    /// A file was truncated; the file's content has the length.
    Cut {
        id: InodeId,
    },
}

/// A journaled operation.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) changes: Vec<Change>,
}

/// Operations that the disk may not have, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    entries: VecDeque<Entry>,
    /// The number of the last operation. Numbers count up from 1.
    last: u64,
}

impl Journal {
    /// Adds an operation. Returns its number.
    pub(super) fn add(&mut self, changes: Vec<Change>) -> u64 {
        self.last += 1;
        self.entries.push_back(Entry { number: self.last, changes });
        self.last
    }

    /// Returns the number of the last operation so far.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number of operations that the disk may not have.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of the last operation that has changed the entries of a directory, if the disk may
    /// not have it.
    pub(super) fn last_in(&self, directory: InodeId) -> Option<u64> {
        let is_in = |change: &Change| match change {
            Change::Link { parent, .. } | Change::Unlink { parent, .. } => *parent == directory,
            Change::Attributes { .. } | Change::Cut { .. } => false,
        };
        let is_in = |entry: &&Entry| entry.changes.iter().any(is_in);
        self.entries.iter().rev().find(is_in).map(|entry| entry.number)
    }

    /// Takes out the oldest operation, if its number is not above `up_to`.
    pub(super) fn take(&mut self, up_to: u64) -> Option<Entry> {
        self.entries.pop_front_if(|entry| entry.number <= up_to)
    }
}
