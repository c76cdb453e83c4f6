//! Bytes between a file and those who read it.

use std::ops::Range;

use sakia::fs::AlignedBuf;
use tokio::io::ReadBuf;

/// Makes room for `count` bytes, and for as many before them that direct I/O may begin behind these. Returns
/// how many that are: none for other files.
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

/// Bytes that were read and not taken yet, in memory that is used again.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// Free for other use while nothing is unread.
    pub(super) memory: Vec<u8>,
    /// Where in the memory they are.
    pub(super) at: Range<usize>,
}

impl Unread {
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// Moves as many as there is room for.
    pub(super) fn take(&mut self, into: &mut ReadBuf<'_>) {
        let count = self.len().min(into.remaining());
        into.put_slice(&self.memory[self.at.start..][..count]);
        self.at.start += count;
    }
}
