//! The allowed dependencies between our crates, and modules without dependencies: arrows point down only.

use super::manifest::Section;
use super::{Finding, Tree};

/// The crate that only tests may use.
const TESTKIT: &str = "sakia-testkit";

/// Shared by experiments and the testkit.
const SUPPORT: &str = "sakia-bench-support";

/// Libraries that experiments and programs may use besides.
const LIBRARIES: &[&str] = &[
    "sakia-thread",
    "sakia-trace",
    "sakia-ring",
    "sakia-driver",
    "sakia-task",
    "sakia-macros",
    "sakia",
    "sakia-tokio",
    "sakia-copy",
    "sakia-socket",
    "sakia-preload",
];

/// Every crate with the crates of ours it may depend on, lowest layer first. Its tests may also use the
/// testkit.
const LAYERS: &[(&str, &[&[&str]])] = &[
    ("sakia-thread", &[]),
    ("sakia-trace", &[&["sakia-thread"]]),
    ("sakia-ring", &[&["sakia-trace"]]),
    ("sakia-driver", &[&["sakia-ring", "sakia-thread", "sakia-trace"]]),
    ("sakia-task", &[]),
    ("sakia-macros", &[]),
    (
        "sakia",
        &[&[
            "sakia-driver",
            "sakia-ring",
            "sakia-task",
            "sakia-thread",
            "sakia-trace",
            "sakia-macros",
        ]],
    ),
    ("sakia-tokio", &[&["sakia", "sakia-driver"]]),
    ("sakia-copy", &[&["sakia", "sakia-driver"]]),
    ("sakia-c", &[&["sakia", "sakia-copy", "sakia-driver", "sakia-ring", "sakia-thread"]]),
    ("sakia-socket-core", &[]),
    ("sakia-socket", &[&["sakia-socket-core", "sakia-driver", "sakia-ring", "sakia-thread"]]),
    ("sakia-preload", &[&["sakia-socket", "sakia-socket-core", "sakia-driver", "sakia-ring"]]),
    (SUPPORT, &[&["sakia-ring"]]),
    (TESTKIT, &[&["sakia-ring", SUPPORT]]),
    ("sakia-bench", &[LIBRARIES, &[SUPPORT]]),
    ("sakia-cli", &[LIBRARIES, &["sakia-bench"]]),
    ("sakia-check", &[&["sakia", "sakia-driver", "sakia-ring"]]),
    ("xtask", &[&[SUPPORT]]),
];

/// Every crate has its layer, and depends on crates of lower layers only.
pub(super) fn point_down(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.crates() {
        let name = manifest.name().unwrap_or_default();
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == name) else {
            let message = format!("{name} has no layer; add it to xtask/src/tidy/layers.rs");
            findings.push(Finding::new(manifest.file, 1, message));
            continue;
        };
        for dependency in manifest.dependencies() {
            let package = dependency.package.as_str();
            let message = if !is_ours(package) || allowed.concat().contains(&package) {
                continue;
            } else if package == TESTKIT && name != TESTKIT {
                if dependency.section == Section::Dev {
                    continue;
                }
                format!("{TESTKIT} may be a dev-dependency only")
            } else {
                format!("{name} must not depend on {package}: layers point down only")
            };
            findings.push(Finding::new(manifest.file, dependency.line, message));
        }
    }
}

/// A module at the bottom of its crate.
struct Leaf {
    /// The crate's sources.
    folder: &'static str,
    module: &'static str,
    /// Paths of the crate that it uses: other leaves, and plain values.
    uses: &'static [&'static [&'static str]],
}

const DRIVER: &str = "crates/sakia-driver/src/";

const LEAVES: [Leaf; 4] = [
    Leaf { folder: DRIVER, module: "mounts", uses: &[] },
    Leaf { folder: DRIVER, module: "sys", uses: &[] },
    Leaf {
        folder: DRIVER,
        module: "decide",
        uses: &[&["counters", "OpKind"], &["mounts"], &["sys", "Direction"]],
    },
    Leaf { folder: DRIVER, module: "calls", uses: &[&["call"], &["decide"], &["sys"]] },
];

/// Modules at the bottom import nothing of their crate but what they are listed with, except in tests.
pub(super) fn leaves_import_nothing(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs"]) {
        let within = |leaf: &'static Leaf| {
            let rest = file.path.strip_prefix(leaf.folder)?.strip_prefix(leaf.module)?;
            (rest == ".rs" || rest.starts_with('/')).then_some((leaf, rest))
        };
        let Some((leaf, rest)) = LEAVES.iter().find_map(within) else { continue };
        let is_root = rest == ".rs" || rest == "/mod.rs";
        let Some(tokens) = file.tokens() else { continue };
        for path in tokens.product_paths() {
            // `pub(crate)` is a path of one part.
            let [first, second, ..] = &path.segments[..] else { continue };
            let leaves = match first.as_str() {
                "crate" => {
                    let inner = &path.parts()[1..];
                    second != leaf.module && !leaf.uses.iter().any(|uses| inner.starts_with(uses))
                }
                "super" => is_root || second == "super",
                _ => false,
            };
            if leaves {
                let path_text = path.segments.join("::");
                let message = format!("`{}` imports {path_text} of its crate", leaf.module);
                findings.push(Finding::new(file, path.line, message));
            }
        }
    }
}

/// The folder of code that decides from facts alone, and the file of its limits.
const DECIDE: &str = "crates/sakia-driver/src/decide/";
const LIMITS: &str = "crates/sakia-driver/src/decide/limits.rs";

/// Code that decides has no clock, and its limits stand in one file, except in tests.
pub(super) fn limits_are_in_one_file(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.sources(&[DECIDE]) {
        let Some(tokens) = file.tokens() else { continue };
        let is_constant = |line: usize, kind: &str| {
            let text = file.text.lines().nth(line - 1).unwrap_or_default();
            text.contains("const ") && text.contains(&format!(": {kind} ="))
        };
        for path in tokens.product_paths() {
            let message = match path.parts()[..] {
                [.., "Instant", "now"] => "a decision has no clock",
                [.., kind @ ("u16" | "u32" | "u64" | "usize" | "Duration")]
                    if is_constant(path.line, kind) && file.path != LIMITS =>
                {
                    "a limit stands in limits.rs"
                }
                _ => continue,
            };
            findings.push(Finding::new(file, path.line, message));
        }
    }
}

fn is_ours(package: &str) -> bool {
    package == "sakia" || package == "xtask" || package.starts_with("sakia-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    fn of(name: &str, dependencies: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{name}\"\n{dependencies}");
        findings(point_down, &[(&format!("crates/{name}/Cargo.toml"), &text)])
    }

    #[test]
    fn table_points_down() {
        for (index, (name, allowed)) in LAYERS.iter().enumerate() {
            for lower in allowed.concat() {
                let position = LAYERS.iter().position(|(layer, _)| *layer == lower);
                assert!(position.is_some_and(|position| position < index), "{name} on {lower}");
            }
        }
    }

    #[test]
    fn downward_and_foreign_dependencies_pass() {
        assert_eq!(of("sakia-ring", "[dependencies]\nrustix = \"1\"\n"), [""; 0]);
        assert_eq!(of("sakia-driver", "[dependencies]\nsakia-ring.workspace = true\n"), [""; 0]);
        let dev = "[dev-dependencies]\nsakia-testkit.workspace = true\n";
        assert_eq!(of("sakia-ring", dev), [""; 0]);
    }

    #[test]
    fn upward_dependencies_are_found() {
        let found = of("sakia-ring", "[dependencies]\nsakia-driver.workspace = true\n");
        let expected = "crates/sakia-ring/Cargo.toml:4: sakia-ring must not depend on \
                        sakia-driver: layers point down only";
        assert_eq!(found, [expected]);
        assert_eq!(of("sakia-copy", "[dependencies]\nsakia-tokio.workspace = true\n").len(), 1);
        assert_eq!(of("sakia-bench", "[dependencies]\nsakia-cli.workspace = true\n").len(), 1);
        let dev = "[dev-dependencies]\nsakia.workspace = true\n";
        assert_eq!(of("sakia-driver", dev).len(), 1);
        let renamed = "[dependencies]\nring = { package = \"sakia\", path = \"../sakia\" }\n";
        assert_eq!(of("sakia-ring", renamed).len(), 1);
    }

    #[test]
    fn testkit_outside_tests_is_found() {
        let found = of("sakia-cli", "[dependencies]\nsakia-testkit.workspace = true\n");
        let expected = "crates/sakia-cli/Cargo.toml:4: sakia-testkit may be a dev-dependency only";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn crate_without_a_layer_is_found() {
        let found = of("sakia-new", "");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("sakia-new has no layer"));
    }

    #[test]
    fn a_module_at_the_bottom_imports_nothing() {
        let files = [
            ("crates/sakia-driver/src/mounts.rs", "use crate::bypass;\nuse std::io;\n"),
            (
                "crates/sakia-driver/src/sys/open.rs",
                "use super::retry;\npub(crate) use crate::sys::abi;\nfn f() { crate::op::g() }\n\
                 #[cfg(test)]\nmod tests { use crate::Driver; }\n",
            ),
            ("crates/sakia-driver/src/system.rs", "use crate::op;\n"),
            (
                "crates/sakia-driver/src/decide/mod.rs",
                "use crate::sys::Direction;\nuse crate::sys::retry;\nuse super::core;\n",
            ),
        ];
        let expected = [
            "crates/sakia-driver/src/decide/mod.rs:2: `decide` imports crate::sys::retry of its crate",
            "crates/sakia-driver/src/decide/mod.rs:3: `decide` imports super::core of its crate",
            "crates/sakia-driver/src/mounts.rs:1: `mounts` imports crate::bypass of its crate",
            "crates/sakia-driver/src/sys/open.rs:3: `sys` imports crate::op::g of its crate",
        ];
        assert_eq!(findings(leaves_import_nothing, &files), expected);
    }

    #[test]
    fn a_limit_elsewhere_and_a_clock_are_found() {
        let text = "const A: Duration = Duration::from_micros(5);\nfn f() { Instant::now(); }\n\
                    #[cfg(test)]\nmod tests { fn g() { Duration::from_micros(5); } }\n";
        let files = [("crates/sakia-driver/src/decide/a.rs", text), (LIMITS, text)];
        let expected = [
            "crates/sakia-driver/src/decide/a.rs:1: a limit stands in limits.rs",
            "crates/sakia-driver/src/decide/a.rs:2: a decision has no clock",
            "crates/sakia-driver/src/decide/limits.rs:2: a decision has no clock",
        ];
        assert_eq!(findings(limits_are_in_one_file, &files), expected);
    }
}
