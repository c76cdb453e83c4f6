//! Tests of the copy: against `cp`, on bad file systems, at bad moments.
//!
//! A test that lacks a requirement on this machine says so loudly (`SKIP`); with `SAKIA_DENY_SKIPS` in the
//! environment it fails instead. No test depends on time.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod apart;
mod children;
mod differential;
mod existing;
mod faults;
mod killed;
mod limits;
mod links;
mod looking_on;
mod races;
mod ranges;
mod removing;
mod same_file;
mod sharing;
mod sharing_blocks;
mod support;
mod tree;
mod umasks;
