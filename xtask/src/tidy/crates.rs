//! Common properties of the workspace's crates: names, lints, and the use of `unsafe`.

use super::manifest::Manifest;
use super::{Finding, Tree};

/// The crates that may use `unsafe`; the table in the design says why.
const UNSAFE_ALLOWED: &[&str] = &[
    "sakia-thread",
    "sakia-ring",
    "sakia-driver",
    "sakia-task",
    "sakia-socket",
    "sakia-preload",
    // The boundary to C: addresses of the program's, by the header's contract.
    "sakia-c",
    "sakia-bench-support",
    "sakia-testkit",
];

/// The lints for `unsafe` code, in the workspace's root.
const UNSAFE_LINTS: [(&str, &str); 2] =
    [("rust", "unsafe_op_in_unsafe_fn"), ("clippy", "undocumented_unsafe_blocks")];

/// A crate is found in the folder of its name.
pub(super) fn names_match_folders(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.crates() {
        let folder = manifest.folder().rsplit('/').next();
        if manifest.name() != folder {
            let message =
                format!("the folder is not named {}", manifest.name().unwrap_or("at all"));
            findings.push(Finding::new(manifest.file, 1, message));
        }
    }
}

/// Every crate takes its lints from the workspace, which denies careless `unsafe`.
pub(super) fn lints_are_inherited(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.crates().filter(|manifest| !manifest.inherits_lints()) {
        let message = "lints are not inherited; add [lints] with workspace = true";
        findings.push(Finding::new(manifest.file, 1, message));
    }
    for root in tree.manifests().filter(|manifest| manifest.folder().is_empty()) {
        for (tool, lint) in UNSAFE_LINTS {
            if !matches!(root.workspace_lint(tool, lint), Some("deny" | "forbid")) {
                let message = format!("[workspace.lints.{tool}] does not deny {lint}");
                findings.push(Finding::new(root.file, 1, message));
            }
        }
    }
}

/// Every crate that need not be unsafe forbids it, in each of its root files.
pub(super) fn unsafe_is_forbidden(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.crates() {
        if manifest.name().is_some_and(|name| UNSAFE_ALLOWED.contains(&name)) {
            continue;
        }
        let is_root = |path: &str| is_crate_root(&manifest, path);
        let mut roots = tree.files.iter().filter(|file| is_root(&file.path)).peekable();
        if roots.peek().is_none() {
            let message = "neither src/lib.rs nor src/main.rs is there to forbid unsafe_code";
            findings.push(Finding::new(manifest.file, 1, message));
        }
        for file in roots {
            if !file.tokens().is_some_and(|tokens| tokens.has_inner("forbid(unsafe_code)")) {
                findings.push(Finding::new(file, 1, "no #![forbid(unsafe_code)]"));
            }
        }
    }
}

/// Returns whether `path` is the root file of the crate's library or of one of its programs.
fn is_crate_root(manifest: &Manifest<'_>, path: &str) -> bool {
    let inner = path.strip_prefix(manifest.folder()).and_then(|path| path.strip_prefix("/src/"));
    match inner.unwrap_or_default().split('/').collect::<Vec<_>>()[..] {
        ["lib.rs" | "main.rs"] | ["bin", _, "main.rs"] => true,
        ["bin", program] => program.ends_with(".rs"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    const SAFE: (&str, &str) = ("crates/sakia/Cargo.toml", "[package]\nname = \"sakia\"\n");
    const FORBID: &str = "//! Doc.\n#![forbid(unsafe_code)]\n";

    #[test]
    fn folder_must_have_the_name() {
        assert_eq!(findings(names_match_folders, &[SAFE]), [""; 0]);
        let moved = [("crates/core/Cargo.toml", SAFE.1)];
        let expected = ["crates/core/Cargo.toml:1: the folder is not named sakia"];
        assert_eq!(findings(names_match_folders, &moved), expected);
    }

    #[test]
    fn lints_must_be_inherited() {
        let good = "[package]\nname = \"sakia\"\n[lints]\nworkspace = true\n";
        assert_eq!(findings(lints_are_inherited, &[(SAFE.0, good)]), [""; 0]);
        let expected = "crates/sakia/Cargo.toml:1: lints are not inherited; \
                        add [lints] with workspace = true";
        assert_eq!(findings(lints_are_inherited, &[SAFE]), [expected]);
        // Other workspaces in this repository have their own rules.
        let peers = ("bench/peers/Cargo.toml", "[package]\nname = \"peers\"\n");
        assert_eq!(findings(lints_are_inherited, &[peers]), [""; 0]);
    }

    #[test]
    fn root_must_deny_careless_unsafe() {
        let good = "[workspace.lints]\n\
                    rust.unsafe_op_in_unsafe_fn = \"deny\"\n\
                    clippy.undocumented_unsafe_blocks = { level = \"forbid\" }\n";
        assert_eq!(findings(lints_are_inherited, &[("Cargo.toml", good)]), [""; 0]);
        let bad = "[workspace.lints]\nrust.unsafe_op_in_unsafe_fn = \"warn\"\n";
        let expected = [
            "Cargo.toml:1: [workspace.lints.clippy] does not deny undocumented_unsafe_blocks",
            "Cargo.toml:1: [workspace.lints.rust] does not deny unsafe_op_in_unsafe_fn",
        ];
        assert_eq!(findings(lints_are_inherited, &[("Cargo.toml", bad)]), expected);
    }

    #[test]
    fn safe_crates_must_forbid_unsafe() {
        let good = [SAFE, ("crates/sakia/src/lib.rs", FORBID)];
        assert_eq!(findings(unsafe_is_forbidden, &good), [""; 0]);

        let commented = "//! Doc.\n// #![forbid(unsafe_code)]\n";
        let bad = [
            SAFE,
            ("crates/sakia/src/lib.rs", commented),
            ("crates/sakia/src/main.rs", FORBID),
            ("crates/sakia/src/bin/a.rs", "fn main() {}\n"),
            ("crates/sakia/src/bin/b/main.rs", "fn main() {}\n"),
            ("crates/sakia/src/bin/b/other.rs", ""),
            ("crates/sakia/src/other.rs", ""),
        ];
        let expected = [
            "crates/sakia/src/bin/a.rs:1: no #![forbid(unsafe_code)]",
            "crates/sakia/src/bin/b/main.rs:1: no #![forbid(unsafe_code)]",
            "crates/sakia/src/lib.rs:1: no #![forbid(unsafe_code)]",
        ];
        assert_eq!(findings(unsafe_is_forbidden, &bad), expected);
        assert_eq!(findings(unsafe_is_forbidden, &[SAFE]).len(), 1);
    }

    #[test]
    fn listed_crates_may_be_unsafe() {
        let ring = ("crates/sakia-ring/Cargo.toml", "[package]\nname = \"sakia-ring\"\n");
        let files = [ring, ("crates/sakia-ring/src/lib.rs", "")];
        assert_eq!(findings(unsafe_is_forbidden, &files), [""; 0]);
    }
}
