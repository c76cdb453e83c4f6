//! Numbers that look random, where any will do.
//!
//! A sequence for each thread. Where the runtime's [environment](crate::environment) has a seed, as the
//! simulated kernel has, the sequence begins with the runtime, from the seed: each run is the same.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// Begins the calling thread's sequence anew.
pub(crate) fn reseed(seed: u64) {
    STATE.set(step(seed ^ 0x9e37_79b9_7f4a_7c15));
}

/// The next number of the calling thread. Its upper half is the good one.
#[inline]
pub(crate) fn next() -> u64 {
    STATE.with(|state| state.replace(step(state.get())))
}

/// Knuth's generator for MMIX.
fn step(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
}
