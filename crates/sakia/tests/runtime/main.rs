//! Tests of the runtime, a module per subject.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod blocking;
mod budget;
mod counted;
mod files;
mod foreign;
mod macros;
mod pipes;
mod processes;
mod readiness;
mod refused;
mod shutdown;
mod signals;
mod structured;
mod tasks;
mod teardown;
mod time;
