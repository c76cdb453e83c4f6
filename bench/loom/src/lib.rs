//! Sakia's protocols between threads, under every interleaving that loom finds.
//!
//! `cargo test --release` in this folder runs it. The code under test is copied by `build.rs`, so that
//! neither Sakia nor its lock file knows of loom.

#![cfg(test)]

mod remote;
mod sync;
