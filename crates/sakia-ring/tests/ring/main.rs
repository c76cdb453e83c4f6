//! Tests of the ring against the kernel, against an independent implementation, and against hosts that
//! misbehave. Each module covers a subject.
//!
//! A test that needs a feature the kernel lacks is a loud skip (`SKIP`); with `SAKIA_DENY_SKIPS` in the
//! environment it fails instead.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod buf_ring;
mod children;
mod differential_entries;
mod differential_programs;
mod drain;
mod fork;
mod hostile_host;
mod hosts;
mod ladder;
mod many_rings;
mod messages;
mod op_flags;
mod overflow;
mod refusal;
mod registered;
mod resize;
mod sizes;
mod support;
mod waits;
