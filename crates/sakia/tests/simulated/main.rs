//! The runtime on the simulated kernel, tested as a user would test a program: by `sakia::sim`.
//!
//! Each test runs with many seeds and with faults that a correct program does not notice, and has the same
//! outcome each time. `harness` tests the test tools themselves: their findings and messages.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod after_errors;
mod deadlocks;
mod files;
mod harness;
mod inspecting;
mod pipes;
mod rounds;
mod structured;
mod tasks;
mod time;

use sakia::sim::Test;

/// Returns a test on kernels that are as awkward as a correct kernel may be.
fn awkward() -> Test<'static> {
    Test::new()
        .seeds(0..150)
        .kernel(|kernel| kernel.entries(2, 4).late_writes(1 << 13))
        .masked_faults(1 << 12)
}
