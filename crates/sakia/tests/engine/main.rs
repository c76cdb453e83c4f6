//! Tests of `sakia::engine`: files by requests from plain threads and from other runtimes.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod ends;
mod errors;
mod files;
mod foreign_code;
mod group_commit;
mod group_commit_model;
mod paths;
mod queue;
mod remote;
mod support;
