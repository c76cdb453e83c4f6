//! Programs made by the fuzzer, on the simulated kernel, against their models.
//!
//! `cargo +nightly fuzz run programs`; a failing program is printed as a file for `sakia-check`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sakia_check::program::Program;
use sakia_check::stats::Stats;
use sakia_check::sweep;

fuzz_target!(
    // Some panics are intended, and the fuzzer's own hook ends the process at the first.
    init: sweep::catch_panics(),
    |bytes: &[u8]| {
        let program = Program::from_bytes(bytes);
        if let Err(failure) = sweep::check(&program, false, &mut Stats::default()) {
            eprintln!("# {}\n{}", failure.what, program.to_text());
            panic!("{}", failure.what);
        }
    }
);
