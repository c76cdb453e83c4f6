//! Transfers that an open file refuses, whatever their memory.
//!
//! A file may have no positions (pipes, sockets, terminals), or nothing to read or to write (epoll sets,
//! pidfds), or it was not opened for that. A plain call fails at once there. A ring does not check the first,
//! and waits for readiness before it finds the second, which may be for ever. So before the first transfer of
//! a form the file is asked, by a call that moves nothing: its memory is invalid, which the kernel looks at
//! after all of these.
//!
//! Source: `vfs_read` in `fs/read_write.c`.

use std::cell::Cell;

use rustix::io::Errno;
use sakia_ring::CURRENT_POSITION;

use crate::sys::Direction;

/// The transfers that an open file refuses, as far as they were tried.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// Cleared once the file is known to take all transfers that it was opened for: on most file systems a
    /// regular file has positions, and can be read and written.
    are_possible: Cell<bool>,
    /// By direction: at the position, and at an offset.
    found: [[Cell<Found>; 2]; 2],
}

/// The answer of a file to one form of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Unknown,
    Taken,
    Refused(Errno),
}

impl Refusals {
    /// Returns those of a file of which nothing is known.
    pub(crate) const fn unknown() -> Self {
        Self {
            are_possible: Cell::new(true),
            found: [const { [const { Cell::new(Found::Unknown) }; 2] }; 2],
        }
    }

    /// Records that the file is a socket.
    pub(crate) fn note_socket(&self) {
        for [at_position, at_offset] in &self.found {
            at_position.set(Found::Taken);
            at_offset.set(Found::Refused(Errno::SPIPE));
        }
    }

    /// Records that the file has positions, and can be read and written if it was opened for that. Otherwise
    /// the ring answers as a plain call does.
    pub(crate) fn note_positions(&self) {
        self.are_possible.set(false);
    }

    /// Returns whether a transfer may be refused.
    #[inline(always)]
    pub(crate) fn are_possible(&self) -> bool {
        self.are_possible.get()
    }

    /// Returns the errno with which the file refuses transfers in this direction at this offset. `ask` asks
    /// the file, at its position or at an offset.
    pub(crate) fn find(
        &self,
        direction: Direction,
        offset: u64,
        ask: impl FnOnce(bool) -> Option<Errno>,
    ) -> Option<Errno> {
        let is_at_offset = offset != CURRENT_POSITION;
        if is_at_offset && i64::try_from(offset).is_err() {
            return Some(Errno::INVAL); // before any look at the file
        }
        let found = &self.found[direction as usize][usize::from(is_at_offset)];
        if found.get() == Found::Unknown {
            found.set(ask(is_at_offset).map_or(Found::Taken, Found::Refused));
        }
        match found.get() {
            Found::Refused(errno) => Some(errno),
            Found::Unknown | Found::Taken => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_asked_once_for_each_form() {
        let (refusals, asked) = (Refusals::unknown(), Cell::new(0));
        let find = |direction, offset| {
            refusals.find(direction, offset, |is_at_offset| {
                asked.set(asked.get() + 1);
                is_at_offset.then_some(Errno::SPIPE)
            })
        };
        for _ in 0..2 {
            assert_eq!(find(Direction::Read, 0), Some(Errno::SPIPE));
            assert_eq!(find(Direction::Read, i64::MAX as u64), Some(Errno::SPIPE));
            assert_eq!(find(Direction::Read, CURRENT_POSITION), None);
            assert_eq!(find(Direction::Read, 1 << 63), Some(Errno::INVAL));
        }
        assert_eq!(asked.get(), 2);
        assert_eq!(find(Direction::Write, CURRENT_POSITION), None);
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn a_socket_is_not_asked() {
        let refusals = Refusals::unknown();
        refusals.note_socket();
        let find = |offset| refusals.find(Direction::Write, offset, |_| panic!("it is known"));
        assert_eq!((find(CURRENT_POSITION), find(0)), (None, Some(Errno::SPIPE)));
    }
}
