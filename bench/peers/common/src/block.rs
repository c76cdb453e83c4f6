//! Contents of the blocks of files, and the work on them.
//!
//! The first and the last eight bytes of each block say which block it is, and by which run it was
//! written. A reader adds both up: little work beside the read, and all readers of the same blocks
//! come to the same sum.

use std::fs::File;
use std::os::unix::fs::FileExt;

pub use sakia_bench_support::mix;

use crate::{Job, fail};

/// Memory is aligned to this, as `O_DIRECT` wants it.
pub const PAGE: usize = 4096;

/// Page-aligned memory, never given back: the kernel may write to it as long as it likes.
pub fn aligned(len: usize) -> &'static mut [u8] {
    let memory = Vec::leak(vec![0; len + PAGE]);
    let begin = memory.as_ptr().align_offset(PAGE);
    &mut memory[begin..begin + len]
}

/// Returns the offset of page-aligned memory in a vector that is a page longer than needed.
pub fn aligned_offset(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE)
}

/// The sum of all bytes.
#[inline]
pub fn sum_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// The sum of the first and the last eight bytes, as numbers.
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

/// Fills a block of the file as it is made.
pub fn fill(block: &mut [u8], offset: u64) {
    let mut state = mix(offset);
    for word in block.chunks_mut(8) {
        state = mix(state);
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    mark(block, offset, 0);
}

/// Reads back what a job wrote. Answers a number that depends on where it wrote only.
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
