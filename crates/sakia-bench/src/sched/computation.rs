//! The computation of threads between their reads.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The bytes of a step of the computation.
pub(super) const WORD_BYTES: u64 = 8;

/// The computation of each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Computation {
    /// The number of reads under way meanwhile.
    pub depth: usize,
    /// The steps for each block.
    pub steps: u64,
}

impl Computation {
    /// Returns the number of a thread's buffers: one is computed with, the others are read into.
    pub fn buffers(self) -> usize {
        self.depth + 1
    }
}

/// Hashes the words of a block, again and again until it has done these many steps. Each step depends on the
/// last one. A rest of less than a word is left out.
#[inline(never)]
pub(super) fn compute(block: &[u8], steps: u64) -> u64 {
    // The constants of FNV-1a.
    let (basis, prime) = (0xcbf2_9ce4_8422_2325, 0x100_0000_01b3);
    let words = block.chunks_exact(WORD_BYTES as usize).filter_map(|word| word.first_chunk());
    let step = |hash: u64, word: &[u8; 8]| (hash ^ u64::from_le_bytes(*word)).wrapping_mul(prime);
    words.cycle().take(steps as usize).fold(basis, step)
}

/// The speed of computation on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    steps_per_ms: u64,
}

impl Speed {
    /// Measures it: the fastest of several tries, a few milliseconds in all.
    pub fn measure() -> Self {
        const STEPS: u64 = 100_000;
        const TRIES: usize = 20;
        let block = vec![7; 4096];
        let time = || {
            let begin = Instant::now();
            black_box(compute(black_box(&block), STEPS));
            begin.elapsed().as_nanos() as u64
        };
        let least = (0..TRIES).map(|_| time()).min().unwrap_or(0).max(1);
        Self { steps_per_ms: (STEPS * 1_000_000 / least).max(1) }
    }

    /// Returns the number of steps that take this time; at least one.
    pub fn steps_in(self, time: Duration) -> u64 {
        let steps = u128::from(self.steps_per_ms) * time.as_nanos() / 1_000_000;
        u64::try_from(steps).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computation_depends_on_the_block_and_on_the_number_of_steps() {
        let block: Vec<u8> = (0..64).collect();
        let mut other = block.clone();
        other[0] ^= 1;
        let hashes = [compute(&block, 8), compute(&block, 9), compute(&block, 16)];
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
        assert_ne!(compute(&other, 8), hashes[0]);
        assert_eq!(compute(&block[..8], 2), compute(&[&block[..8], &block[..8]].concat(), 2));
        let speed = Speed::measure();
        assert!(speed.steps_in(Duration::from_millis(1)) >= speed.steps_in(Duration::ZERO));
        assert_eq!(Speed { steps_per_ms: 500_000 }.steps_in(Duration::from_micros(20)), 10_000);
    }
}
