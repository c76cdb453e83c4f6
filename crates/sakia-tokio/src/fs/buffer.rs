//! Bytes between a file and its readers.

use std::ops::Range;

use sakia::fs::AlignedBuf;
use tokio::io::ReadBuf;

/// Makes room for `count` bytes, with space before them for the alignment of direct I/O. Returns the size of
/// that space: 0 for other files.
pub(super) fn make_room(memory: &mut Vec<u8>, count: usize, is_direct: bool) -> usize {
    memory.clear();
    if !is_direct {
        memory.reserve(count);
        return 0;
    }
    memory.reserve(count + AlignedBuf::ALIGN);
    let start = memory.as_ptr().align_offset(AlignedBuf::ALIGN);
    memory.resize(start, 0);
    start
}

/// Bytes that were read and not taken yet, in reusable memory.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// Free for other use while nothing is unread.
    pub(super) memory: Vec<u8>,
    /// Their range in the memory.
    pub(super) at: Range<usize>,
}

impl Unread {
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// Moves as many as `into` has room for.
    pub(super) fn take(&mut self, into: &mut ReadBuf<'_>) {
        let count = self.len().min(into.remaining());
        into.put_slice(&self.memory[self.at.start..][..count]);
        self.at.start += count;
    }
}
