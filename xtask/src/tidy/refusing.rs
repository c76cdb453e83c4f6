//! Calls that refuse to wait are made in one file for each flag, so that one place says what a refusal means.

use super::{Finding, Tree};

/// A flag, by the ends of the paths that name it; the file that passes it; and those that only look at a
/// user's flags.
struct Flag {
    names: [&'static [&'static str]; 2],
    made_in: &'static str,
    seen_in: &'static [&'static str],
}

const FLAGS: [Flag; 2] = [
    Flag {
        names: [&["RWF_NOWAIT"], &["ReadWriteFlags", "NOWAIT"]],
        made_in: "crates/sakia-driver/src/calls/nowait.rs",
        seen_in: &[
            "crates/sakia-driver/src/epoll/transfer.rs",
            "crates/sakia-driver/src/epoll/trial.rs",
            "crates/sakia-driver/src/ops/mod.rs",
        ],
    },
    Flag {
        names: [&["RESOLVE_CACHED"], &["ResolveFlags", "CACHED"]],
        made_in: "crates/sakia-driver/src/calls/cached.rs",
        seen_in: &["crates/sakia-driver/src/ops/open.rs"],
    },
];

/// Our products' sources. The simulated kernel is a kernel, and knows the flags; the testkit measures them.
const PRODUCTS: [&str; 8] = [
    "crates/sakia-ring/src/",
    "crates/sakia-driver/src/",
    "crates/sakia/src/",
    "crates/sakia-tokio/src/",
    "crates/sakia-copy/src/",
    "crates/sakia-socket/src/",
    "crates/sakia-cli/src/",
    "crates/sakia-trace/src/",
];
const SIMULATED: &str = "crates/sakia-driver/src/sim/";

/// No other file names the flags, outside of tests.
pub(super) fn are_in_one_file(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.sources(&PRODUCTS) {
        if file.path.starts_with(SIMULATED) {
            continue;
        }
        let Some(tokens) = file.tokens() else { continue };
        for Flag { names, made_in, seen_in } in &FLAGS {
            if file.path == *made_in || seen_in.contains(&&*file.path) {
                continue;
            }
            for path in tokens.product_paths() {
                let segments = path.parts();
                if names.iter().any(|name| segments.ends_with(name)) {
                    let message = format!("{} is for {made_in} alone", segments.join("::"));
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

    const CALL: &str =
        "fn f() { preadv2(ReadWriteFlags::NOWAIT); openat2(abi::RESOLVE_CACHED); }\n";

    #[test]
    fn flags_elsewhere_are_found() {
        let expected = [
            "crates/sakia/src/a.rs:1: ReadWriteFlags::NOWAIT is for \
             crates/sakia-driver/src/calls/nowait.rs alone",
            "crates/sakia/src/a.rs:1: abi::RESOLVE_CACHED is for \
             crates/sakia-driver/src/calls/cached.rs alone",
        ];
        assert_eq!(findings(are_in_one_file, &[("crates/sakia/src/a.rs", CALL)]), expected);
    }

    #[test]
    fn their_files_tests_and_the_simulated_kernel_pass() {
        let tests = format!("#[cfg(test)]\nmod tests {{ {CALL} }}\n");
        for (path, text) in [
            ("crates/sakia/src/a.rs", &*tests),
            ("crates/sakia/tests/a.rs", CALL),
            ("crates/sakia-driver/src/sim/ops.rs", CALL),
        ] {
            assert_eq!(findings(are_in_one_file, &[(path, text)]), [""; 0], "{path}");
        }
        let call = "fn f() { preadv2(ReadWriteFlags::NOWAIT) }\n";
        let made = ("crates/sakia-driver/src/calls/nowait.rs", call);
        assert_eq!(findings(are_in_one_file, &[made]), [""; 0]);
    }
}
