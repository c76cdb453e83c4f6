//! Sakia's protocols between threads, under every interleaving that loom finds.
//!
//! `cargo test --release` in this folder runs it. The code under test is copied by `build.rs`, so that
//! neither Sakia nor its lock file knows of loom.

#![cfg(test)]

mod inbox;
mod lanes;
mod remote;
mod sync;
mod task;

/// Interleavings with more than three switches that no wait forces are left out: they add minutes.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}
