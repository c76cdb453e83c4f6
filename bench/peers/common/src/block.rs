//! The contents of the files' blocks.
//!
//! The first and the last eight bytes of each block identify the block and the run that wrote it. A reader
//! adds them up: this costs little compared with the read, and all readers of the same blocks get the same
//! sum.

use std::fs::File;
use std::os::unix::fs::FileExt;

pub use sakia_bench_support::mix;

use crate::{Job, fail};

/// The alignment of memory, as `O_DIRECT` requires.
pub const PAGE: usize = 4096;

/// Returns leaked page-aligned memory: the kernel may write to it at any later time.
pub fn aligned(len: usize) -> &'static mut [u8] {
    let memory = Vec::leak(vec![0; len + PAGE]);
    let begin = memory.as_ptr().align_offset(PAGE);
    &mut memory[begin..begin + len]
}

/// Returns the offset of the first page boundary in a vector that is a page longer than needed.
pub fn aligned_offset(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE)
}

/// Returns the sum of all bytes.
#[inline]
pub fn sum_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// Returns the sum of the first and the last eight bytes, as numbers.
#[inline]
pub fn marks(block: &[u8]) -> u64 {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    word(block.first_chunk()).wrapping_add(word(block.last_chunk()))
}

/// Writes the first and the last eight bytes of the block at `offset`, for the run `seed`.
#[inline]
pub fn mark(block: &mut [u8], offset: u64, seed: u64) {
    let mark = mark_of(offset, seed).to_le_bytes();
    if let Some(first) = block.first_chunk_mut() {
        *first = mark;
    }
    if let Some(last) = block.last_chunk_mut() {
        *last = mark;
    }
}

#[inline]
fn mark_of(offset: u64, seed: u64) -> u64 {
    mix(offset ^ (seed << 48))
}

/// Fills a block with its initial contents.
pub fn fill(block: &mut [u8], offset: u64) {
    let mut state = mix(offset);
    for word in block.chunks_mut(8) {
        state = mix(state);
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    mark(block, offset, 0);
}

/// Verifies the blocks that a job wrote. Returns a number that depends only on their offsets.
pub fn verify_written(job: &Job) -> u64 {
    let name = job.path.display();
    let file = File::open(&job.path).unwrap_or_else(|error| fail(&name, error));
    let mut check: u64 = 0;
    let mut word = [0; 8];
    for offset in (0..job.tasks_total()).flat_map(|task| job.offsets(task)) {
        let expected = mark_of(offset, job.seed).to_le_bytes();
        for place in [offset, offset + job.block as u64 - 8] {
            file.read_exact_at(&mut word, place).unwrap_or_else(|error| fail(&name, error));
            if word != expected {
                fail(&name, format!("what was written at {place} is not there"));
            }
        }
        check = check.wrapping_add(mix(offset));
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned() {
        assert_eq!(aligned(100).as_ptr() as usize % PAGE, 0);
    }

    #[test]
    fn marks_tell_offsets_and_runs_apart() {
        let mut block = [0; 4096];
        let mut marks_of = |offset, seed| {
            mark(&mut block, offset, seed);
            marks(&block)
        };
        assert_ne!(marks_of(0, 1), marks_of(4096, 1));
        assert_ne!(marks_of(0, 1), marks_of(0, 2));
        assert_eq!(sum_bytes(&[255; 1000]), 255_000);
    }
}
