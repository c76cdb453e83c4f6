//! Tests of the driver on the real ring, on a ring whose host misbehaves, and on a scripted backend. Each
//! module covers a situation.
//!
//! A test that needs a feature the machine lacks is a loud skip (`SKIP`); with `SAKIA_DENY_SKIPS` in the
//! environment it fails instead. No test measures time: `SAKIA_TEST_PATIENCE_S` limits the wait for an event
//! that must happen.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod arena;
mod bypass;
mod bypass_lanes;
mod cancel_of_each;
mod children;
mod counted;
mod descriptor_lent;
mod descriptor_reused;
mod drop_in_every_state;
mod drop_of_sockets;
mod endless_waiters;
mod file_servers;
mod foreign_loops;
mod forgotten_read;
mod forked_child;
#[cfg(feature = "sim")]
mod full_queue;
mod handles_after_the_end;
mod hostile_completions;
mod hosts;
mod injected_results;
mod interruptions;
mod latencies;
mod many_drivers;
mod many_lenders;
mod multishot;
mod names_in_memory;
mod numbers;
mod opening;
mod page_guard;
mod polling;
mod queued_cancel;
mod random_programs;
mod reading;
mod recorded;
mod reentrancy;
mod registered_files;
mod requests;
mod scripted;
#[cfg(feature = "sim")]
mod simulated_descriptors;
mod stale_and_duplicate;
mod statx;
mod streams;
mod support;
mod teardown_direct_io;
mod thread_exit;
mod tiny_ring;
mod unasked_cancel;
mod undrainable;
mod vectored;
mod waker_panics;
#[cfg(feature = "sim")]
mod without_entries;
mod writing;

#[cfg(not(feature = "sim"))]
#[test]
fn without_the_simulated_kernel() {
    let left_out =
        "the conformance suite and the tests on the simulated kernel: they need the feature `sim`";
    support::announce_skip(module_path!(), left_out);
}
