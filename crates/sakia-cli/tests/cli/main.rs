//! The program as its users run it. A module per subject.
//!
//! A test that lacks a kernel feature says so loudly (`SKIP`); with `SAKIA_DENY_SKIPS` in the environment it
//! fails instead.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod against_cp;
mod bench;
mod bench_copytree;
mod bench_machine;
mod bench_threads;
mod broken_pipe;
mod copying;
mod devices_and_pipes;
mod doctor;
mod failing_files;
mod hanging;
mod interrupted;
mod json;
mod mktree;
mod operands;
mod refused_ring;
mod signals;
mod slow;
mod standard_input;
mod sums;
mod support;
mod terminal;
mod trace;
mod usage;
