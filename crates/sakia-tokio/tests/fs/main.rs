//! Tests of `sakia_tokio::fs`: the names and the semantics of `tokio::fs`, on both kinds of its runtime.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod ends;
mod files;
mod forked;
mod group_commit;
mod group_commit_model;
mod paths;
mod reference;
mod remote;
mod special;
mod support;
