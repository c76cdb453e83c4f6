//! `cargo xtask lines`: lines of code per crate, without comments, blank lines and tests.
//!
//! Only Rust is counted, as it is formatted. Tests are items under `cfg(test)` or `#[test]`, the files of
//! modules under it, and what lies in `tests`. The simulated kernel and the table of known bugs have rows of
//! their own.

mod count;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use self::count::Lines;
use crate::tidy::{File, Tree, test_files};

/// Tools for measuring, building and experiments.
const TOOLS: [&str; 6] =
    ["peers", "sakia-bench", "sakia-bench-support", "sakia-cli", "sakia-testkit", "xtask"];
/// Rows in no group.
const OTHERS: [&str; 7] =
    ["bench/loom", "examples", "fuzz", "sakia-check", "sakia-macros", SIMULATED_KERNEL, KNOWN_BUGS];
const SIMULATED_KERNEL: &str = "simulated kernel";
const KNOWN_BUGS: &str = "known bugs";

/// A group of rows with a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// The libraries: every crate that is in no other group, so also one that is split off from them.
    Product,
    Tools,
    Other,
}

impl Group {
    fn of(unit: &str) -> Self {
        if TOOLS.contains(&unit) {
            Self::Tools
        } else if OTHERS.contains(&unit) {
            Self::Other
        } else {
            Self::Product
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Tools => "tools",
            Self::Other => "other",
        }
    }
}

/// Returns whether the crate of this name is one of the libraries.
pub(crate) fn is_product(name: &str) -> bool {
    Group::of(name) == Group::Product
}

/// Lines of code of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Sum {
    #[serde(rename = "code")]
    product: usize,
    tests: usize,
    /// In `examples` and `benches`.
    examples: usize,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.product += other.product;
        self.tests += other.tests;
        self.examples += other.examples;
    }
}

/// Prints the lines of the tree, or of the commit `revision`.
pub(crate) fn run(root: &Path, json: bool, revision: Option<&str>) -> anyhow::Result<ExitCode> {
    let tree = match revision {
        Some(revision) => Tree::at(root, revision)?,
        None => Tree::read(root)?,
    };
    let units = count(&tree)?;
    print!("{}", if json { as_json(&units) } else { as_table(&units) });
    Ok(ExitCode::SUCCESS)
}

type Units = BTreeMap<(Group, String), Sum>;

fn count(tree: &Tree) -> anyhow::Result<Units> {
    let files: Vec<&File> = tree.files_of(&["rs"]).collect();
    let test_files: BTreeSet<&str> = test_files(&files).into_iter().collect();
    let mut units = Units::new();
    for file in tree.files_of(&["rs", "toml"]) {
        let Some((unit, inner)) = unit(&file.path, &tree.paths) else { continue };
        let sum = if file.is("rs") {
            let lines = count::count(&file.text).with_context(|| file.path.clone())?;
            sum(inner, lines, test_files.contains(file.path.as_str()))
        } else if unit == KNOWN_BUGS {
            Sum { product: toml_lines(&file.text), ..Sum::default() }
        } else {
            continue;
        };
        units.entry((Group::of(&unit), unit)).or_default().add(sum);
    }
    Ok(units)
}

/// Returns the sum that a file's lines belong to; `inner` is its path within the crate.
fn sum(inner: &str, lines: Lines, is_test: bool) -> Sum {
    let Lines { code, tests } = lines;
    let all = code + tests;
    match inner.split('/').next() {
        Some("tests") => Sum { tests: all, ..Sum::default() },
        _ if is_test => Sum { tests: all, ..Sum::default() },
        Some("examples" | "benches") => Sum { examples: all, ..Sum::default() },
        _ => Sum { product: code, tests, examples: 0 },
    }
}

/// Returns the row of a file, and its path within the crate, if it is in one.
fn unit<'a>(path: &'a str, paths: &BTreeSet<String>) -> Option<(String, &'a str)> {
    let mut folder = path;
    while !paths.contains(&format!("{folder}/Cargo.toml")) {
        folder = folder.rsplit_once('/')?.0;
    }
    let inner = path.strip_prefix(folder)?.strip_prefix('/')?;
    let unit = match (folder, inner) {
        ("crates/sakia-sim", _) => SIMULATED_KERNEL,
        ("crates/sakia-driver", _) if inner.starts_with("src/sim/") => SIMULATED_KERNEL,
        ("xtask", "src/mutants/table.rs") => KNOWN_BUGS,
        ("xtask", _) if inner.starts_with("src/mutants/") && inner.ends_with(".toml") => KNOWN_BUGS,
        _ if folder.starts_with("bench/peers") => "peers",
        _ if folder.starts_with("examples/") => "examples",
        _ => folder.strip_prefix("crates/").unwrap_or(folder),
    };
    Some((unit.to_owned(), inner))
}

/// Lines that are neither blank nor a comment.
fn toml_lines(text: &str) -> usize {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("# ") && *line != "#").count()
}

/// Each group's sum.
fn sums(units: &Units) -> BTreeMap<Group, Sum> {
    let mut sums = BTreeMap::<Group, Sum>::new();
    for (&(group, _), &sum) in units {
        sums.entry(group).or_default().add(sum);
    }
    sums
}

fn as_table(units: &Units) -> String {
    let mut text = String::new();
    writeln!(text, "{:<20} {:>8} {:>8} {:>9}", "lines", "code", "tests", "examples").ok();
    let mut row = |name: &str, sum: Sum| {
        let Sum { product, tests, examples } = sum;
        writeln!(text, "{name:<20} {product:>8} {tests:>8} {examples:>9}").ok();
    };
    for (group, sum) in sums(units) {
        for ((_, unit), &sum) in units.iter().filter(|((of, _), _)| *of == group) {
            row(unit, sum);
        }
        if group != Group::Other {
            row(&format!("= {}", group.name()), sum);
        }
    }
    text
}

fn as_json(units: &Units) -> String {
    let mut text = String::new();
    for ((group, unit), Sum { product, tests, examples }) in units {
        let line = json!({
            "type": "result", "experiment": "lines", "crate": unit, "group": group.name(),
            "code": product, "tests": tests, "examples": examples,
        });
        writeln!(text, "{line}").ok();
    }
    let sums = sums(units).into_iter().map(|(group, sum)| (group.name(), json!(sum)));
    let groups = Value::from_iter(sums);
    let line = json!({"type": "summary", "experiment": "lines", "groups": groups});
    writeln!(text, "{line}").ok();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(files: &[(&str, &str)]) -> Vec<(Group, String, [usize; 3])> {
        let mut tree = Tree::default();
        for &(path, text) in files {
            tree.add(path.to_owned(), text.as_bytes().to_vec());
        }
        let units = count(&tree).unwrap();
        let numbers = |sum: Sum| [sum.product, sum.tests, sum.examples];
        units.into_iter().map(|((group, unit), sum)| (group, unit, numbers(sum))).collect()
    }

    #[test]
    fn files_are_told_apart_by_their_places() {
        let files = [
            ("crates/a/Cargo.toml", "[package]\n"),
            ("crates/a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod checks;\n"),
            ("crates/a/src/b.rs", "fn f() {}\n\n#[cfg(all(test, unix))]\nmod deep;\n"),
            ("crates/a/src/b/deep.rs", "mod deeper;\n"),
            ("crates/a/src/b/deep/deeper.rs", "fn f() {}\n"),
            ("crates/a/src/checks.rs", "fn f() {}\n"),
            ("crates/a/build.rs", "fn main() {}\n"),
            ("crates/a/tests/c.rs", "fn f() {}\n#[cfg(test)]\nfn g() {}\n"),
            ("crates/a/examples/d.rs", "fn main() {}\n"),
            ("crates/a/benches/e.rs", "fn main() {}\n"),
            ("crates/a/src/tests.md", "text\n"),
        ];
        // In code: `mod b;`, `f` of `b`, `main` of `build.rs`.
        assert_eq!(units(&files), [(Group::Product, "a".into(), [3, 10, 2])]);
    }

    #[test]
    fn the_simulated_kernel_and_the_known_bugs_have_rows_of_their_own() {
        let files = [
            ("crates/sakia-driver/Cargo.toml", ""),
            ("crates/sakia-driver/src/simple.rs", "fn f() {}\n"),
            ("crates/sakia-driver/src/sim/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests {}\n"),
            ("crates/sakia-sim/Cargo.toml", ""),
            ("crates/sakia-sim/src/lib.rs", "fn f() {}\n"),
            ("xtask/Cargo.toml", "[package]\n"),
            ("xtask/src/mutants/table.rs", "fn f() {}\n"),
            ("xtask/src/mutants/known.toml", "# a\n\n[[bug]]\ntext = '''\n#[b]\n'''\n"),
            ("xtask/src/mutants/known.rs", "fn f() {}\n"),
            ("bench/peers/Cargo.toml", ""),
            ("bench/peers/a/Cargo.toml", ""),
            ("bench/peers/a/src/main.rs", "fn f() {}\n"),
            ("examples/Cargo.toml", ""),
            ("examples/a/Cargo.toml", ""),
            ("examples/a/src/main.rs", "fn f() {}\n"),
        ];
        let expected = [
            (Group::Product, "sakia-driver".into(), [1, 0, 0]),
            (Group::Tools, "peers".into(), [1, 0, 0]),
            (Group::Tools, "xtask".into(), [1, 0, 0]),
            (Group::Other, "examples".into(), [1, 0, 0]),
            (Group::Other, KNOWN_BUGS.into(), [5, 0, 0]),
            (Group::Other, SIMULATED_KERNEL.into(), [2, 2, 0]),
        ];
        assert_eq!(units(&files), expected);
    }

    #[test]
    fn sums_are_of_groups() {
        let sum = |product| Sum { product, tests: 1, examples: 0 };
        let units: Units = [
            ((Group::Product, "a".to_owned()), sum(2)),
            ((Group::Product, "b".to_owned()), sum(3)),
            ((Group::Other, "c".to_owned()), sum(4)),
        ]
        .into();
        let product = r#""product":{"code":5,"examples":0,"tests":2}"#;
        assert!(as_json(&units).contains(product), "{}", as_json(&units));
        let table = as_table(&units);
        assert!(table.contains("\n= product                   5        2         0\n"), "{table}");
    }
}
