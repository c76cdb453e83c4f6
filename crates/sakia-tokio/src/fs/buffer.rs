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
    memory: Vec<u8>,
    /// Where in the memory they are.
    at: Range<usize>,
}

impl Unread {
    /// These bytes of the memory.
    pub(super) fn new(memory: Vec<u8>, at: Range<usize>) -> Self {
        Self { memory, at }
    }

    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// Moves as many as there is room for.
    pub(super) fn take(&mut self, into: &mut ReadBuf<'_>) {
        let count = self.len().min(into.remaining());
        into.put_slice(&self.memory[self.at.start..][..count]);
        self.at.start += count;
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.at = 0..0;
    }

    /// Its memory. Not while there is something unread.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.memory
    }
}
