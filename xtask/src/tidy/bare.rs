//! Crates that run anywhere: in a signal handler, below a library operating system.
//!
//! They make no calls, allocate nothing, and lock nothing: their caller does.

use super::manifest::Section;
use super::{Finding, Tree};

/// These crates.
const CRATES: [&str; 1] = ["sakia-socket-core"];

/// The first segments of paths that they must not name outside of tests.
const PATHS: [&[&str]; 4] = [&["std"], &["alloc"], &["core", "sync"], &["core", "arch"]];

/// They have `#![no_std]`, and no dependency but for tests.
pub(super) fn need_nothing(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.crates() {
        let Some(name) = manifest.name().filter(|name| CRATES.contains(name)) else {
            continue;
        };
        for dependency in manifest.dependencies() {
            if dependency.section != Section::Dev {
                let message = format!("{name} must not depend on anything");
                findings.push(Finding::new(manifest.file, dependency.line, message));
            }
        }
        let root = format!("{}/src/lib.rs", manifest.folder());
        for file in tree.files.iter().filter(|file| file.path == root) {
            if !file.tokens().is_some_and(|tokens| tokens.has_inner("no_std")) {
                findings.push(Finding::new(file, 1, "no #![no_std]"));
            }
        }
    }
}

/// They name nothing of `std` and `alloc`, no atomics, and no instruction by hand.
pub(super) fn name_nothing(tree: &Tree, findings: &mut Vec<Finding>) {
    for name in CRATES {
        for file in tree.sources(&[&format!("crates/{name}/src/")]) {
            let Some(tokens) = file.tokens() else { continue };
            for path in tokens.product_paths() {
                let segments = path.parts();
                if PATHS.iter().any(|forbidden| segments.starts_with(forbidden)) {
                    let message = format!("{name} must not use {}", segments.join("::"));
                    findings.push(Finding::new(file, path.line, message));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    const MANIFEST: &str = "crates/sakia-socket-core/Cargo.toml";
    const ROOT: &str = "crates/sakia-socket-core/src/lib.rs";

    #[test]
    fn a_dependency_and_a_missing_no_std_are_found() {
        let package = "[package]\nname = \"sakia-socket-core\"\n";
        let tests = format!("{package}[dev-dependencies]\nproptest = \"1\"\n");
        let good = "//! Doc.\n#![no_std]\n";
        assert_eq!(findings(need_nothing, &[(MANIFEST, &tests), (ROOT, good)]), [""; 0]);
        let more = format!("{package}[dependencies]\nrustix = \"1\"\n");
        let expected = [
            "crates/sakia-socket-core/Cargo.toml:4: sakia-socket-core must not depend on anything",
            "crates/sakia-socket-core/src/lib.rs:1: no #![no_std]",
        ];
        assert_eq!(findings(need_nothing, &[(MANIFEST, &more), (ROOT, "//! Doc.\n")]), expected);
    }

    #[test]
    fn only_core_may_be_named() {
        let good = "use core::time::Duration;\n#[cfg(test)]\nextern crate std;\n\
                    #[cfg(test)]\nmod tests { use std::vec; }\n";
        assert_eq!(findings(name_nothing, &[(ROOT, good)]), [""; 0]);
        for code in [
            "extern crate alloc;",
            "use std::sync::Mutex;",
            "use alloc::vec::Vec;",
            "use core::sync::atomic::AtomicBool;",
            "fn f() { core::arch::asm!(\"nop\"); }",
        ] {
            assert_eq!(findings(name_nothing, &[(ROOT, code)]).len(), 1, "{code}");
        }
    }
}
