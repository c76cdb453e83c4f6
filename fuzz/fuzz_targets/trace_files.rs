//! Files that a fuzzer makes up: `sakia trace` reads, tells and draws them, or says that they are no trace.
//!
//! `cargo +nightly fuzz run trace_files`. The same from seeds is in `crates/sakia-trace/tests/hostile.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sakia_trace::{Stretch, Summary, Trace, plot};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = Trace::read(bytes) {
        let _ = Summary::of(&trace).to_string();
        let _ = plot(&trace, Stretch { from: 1, to: Some(1_000_000) });
    }
});
