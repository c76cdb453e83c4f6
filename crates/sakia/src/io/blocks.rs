//! Blocks of memory that a thread keeps for its next readers and writers.
//!
//! The first access to a page costs a fault, which takes many times as long as copying 4 KiB. So the blocks
//! of a reader or writer that ends go to the next one. A thread keeps at most [`KEPT_BYTES`], in blocks of a
//! page to [`BLOCK_BYTES_MAX`]: for larger blocks, a fault per page costs little beside the bytes that are
//! read into them.
//!
//! Kept blocks are zeroed: a reader that claims bytes which it did not write must not show those of another
//! file.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::source::Block;

/// The most bytes that a thread keeps.
const KEPT_BYTES: usize = 1 << 20;
/// The smallest block that is kept: smaller ones share their pages.
const BLOCK_BYTES_MIN: usize = 4 << 10;
/// The largest block that is kept.
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// The blocks of a thread; the last one returned is at the end.
#[derive(Default)]
struct KeptBlocks {
    blocks: Vec<Block>,
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<KeptBlocks> = RefCell::default();
}

/// Returns `len` zeros: a block that the thread keeps, or a new one.
pub(crate) fn take(len: usize) -> Block {
    let kept = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let at = kept.blocks.iter().rposition(|block| block.len() == len)?;
        kept.bytes -= len;
        Some(kept.blocks.swap_remove(at))
    });
    kept.ok().flatten().unwrap_or_else(|| Block::zeroed(len))
}

/// Keeps a block for later, or frees it.
pub(crate) fn give(mut block: Block) {
    let len = block.len();
    if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&len) {
        return;
    }
    // Thread-locals are gone when the thread is about to end.
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.bytes + len <= KEPT_BYTES {
            block.fill(0);
            kept.bytes += len;
            kept.blocks.push(block);
        }
    });
}

/// Blocks of a reader or a writer; the thread keeps them when they are dropped.
#[derive(Default)]
pub(crate) struct Blocks(Vec<Block>);

/// One block or none; the thread keeps it when it is dropped.
#[derive(Default)]
pub(crate) struct Held(Option<Block>);

impl Blocks {
    /// Takes a block of this length, or makes one.
    pub(crate) fn take(&mut self, len: usize) -> Block {
        match self.0.iter().rposition(|block| block.len() == len) {
            Some(at) => self.0.swap_remove(at),
            None => take(len),
        }
    }

    /// Returns all blocks to the thread.
    pub(crate) fn give_all(&mut self) {
        self.0.drain(..).for_each(give);
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.give_all();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(give);
    }
}

impl Deref for Blocks {
    type Target = Vec<Block>;

    fn deref(&self) -> &Vec<Block> {
        &self.0
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut Vec<Block> {
        &mut self.0
    }
}

impl Deref for Held {
    type Target = Option<Block>;

    fn deref(&self) -> &Option<Block> {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Option<Block> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> (usize, usize) {
        KEPT.with_borrow(|kept| (kept.blocks.len(), kept.bytes))
    }

    #[test]
    fn a_block_is_used_again_and_has_nothing_of_before() {
        let mut block = take(4096);
        block.fill(7);
        let addr = block.as_ptr();
        give(block);
        assert_eq!(kept(), (1, 4096));
        assert_eq!(take(8192).len(), 8192);
        let block = take(4096);
        assert_eq!(block.as_ptr(), addr);
        assert!(block.iter().all(|&byte| byte == 0));
        assert_eq!(kept(), (0, 0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        give(take(BLOCK_BYTES_MAX + 1));
        give(take(BLOCK_BYTES_MIN - 1));
        give(take(0));
        assert_eq!(kept(), (0, 0));
        let blocks: Vec<_> = (0..100).map(|_| take(BLOCK_BYTES_MAX)).collect();
        blocks.into_iter().for_each(give);
        assert_eq!(kept(), (KEPT_BYTES / BLOCK_BYTES_MAX, KEPT_BYTES));
    }

    #[test]
    fn a_reader_s_blocks_come_back_when_it_is_dropped() {
        let mut blocks = Blocks::default();
        let (a, b) = (blocks.take(5000), blocks.take(5000));
        blocks.push(a);
        drop(blocks);
        drop(Held(Some(b)));
        drop(Held::default());
        assert_eq!(kept(), (2, 10_000));
    }
}
