//! Pseudo-random numbers from a seed.
//!
//! xoshiro256** (Blackman, Vigna), with its state filled by splitmix64. Every choice of the simulation takes
//! its numbers from such a stream, so that a seed determines a whole run.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: [u64; 4],
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
    }

    pub(super) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number less than `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        // The high half of the product; the bias is far below the resolution of any test.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with probability `per_65536` in 65536; always for `u16::MAX`. Takes no number from the
    /// stream for 0, so that disabled choices change nothing.
    pub(super) fn chance(&mut self, per_65536: u16) -> bool {
        per_65536 != 0 && {
            let number = self.next() >> 48;
            per_65536 == u16::MAX || number < u64::from(per_65536)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_sequence() {
        // splitmix64 from 0, and the first number of xoshiro256** in that state.
        let mut random = Random::new(0);
        assert_eq!(random.state[0], 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.state[1], 0x6e78_9e6a_a1b9_65f4);
        let expected = random.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        assert_eq!(random.next(), expected);
    }

    #[test]
    fn bounds_and_chances_hold() {
        let mut random = Random::new(1);
        let mut seen = [0_u32; 7];
        for _ in 0..700 {
            seen[random.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        let hits = (0..1000).filter(|_| random.chance(1 << 15)).count();
        assert!((400..600).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| random.chance(u16::MAX)));
        let before = random.clone().next();
        assert!((0..1000).all(|_| !random.chance(0)));
        assert_eq!(random.next(), before);
    }
}
