//! A host that lies as the fuzzer decides: the driver neither panics nor frees memory early.
//!
//! `cargo +nightly fuzz run completions`. The sanitizer detects accesses of the host to freed memory.

#![no_main]

#[path = "../../crates/sakia-driver/tests/driver/hostile_completions.rs"]
mod hostile_completions;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile_completions::play(bytes, false));
