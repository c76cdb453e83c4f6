//! Sakia's protocols between threads, under every interleaving that loom finds.
//!
//! Run it with `cargo test --release` in this folder. `build.rs` copies the code under test, so that neither
//! Sakia nor its lock file depends on loom.

#![cfg(test)]

mod inbox;
mod lanes;
mod record;
mod remote;
mod sync;
mod task;

/// Limits a run to three preemptions, since more take minutes.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}
