//! Pseudo-random numbers, for uses without need of quality.
//!
//! Each thread has its own sequence. If the runtime's [environment](crate::environment) has a seed, as the
//! simulated kernel has, the sequence restarts from that seed when the runtime begins: each run is the same.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// Restarts the calling thread's sequence.
pub(crate) fn reseed(seed: u64) {
    STATE.set(step(seed ^ 0x9e37_79b9_7f4a_7c15));
}

/// Returns the next number of the calling thread. The upper half is the more random one.
#[inline]
pub(crate) fn next() -> u64 {
    STATE.with(|state| state.replace(step(state.get())))
}

/// Returns the next state of Knuth's generator for MMIX.
fn step(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
}
