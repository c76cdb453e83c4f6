//! The list of statics and dependencies, with what a forked child gets of each.
//!
//! A child has a copy of all memory, and one thread. A static that another thread of its parent serves, locks
//! or makes at that moment is of no use to it, and a descriptor is its parent's too. So each static of the
//! product is listed, with what a child gets; so is each dependency. A reader decides whether the line is
//! right, this check only that it is there.

use std::collections::BTreeMap;

use super::manifest::Section;
use super::{File, Finding, Tree};

/// The list: tables with a file or a dependency in the first column, statics in the second, and what a child
/// gets in the last.
const LIST: &str = "FORK.md";

/// The crates that programs are built with.
const CRATES: [&str; 12] = [
    "sakia",
    "sakia-c",
    "sakia-cli",
    "sakia-copy",
    "sakia-driver",
    "sakia-ring",
    "sakia-socket",
    "sakia-socket-core",
    "sakia-task",
    "sakia-thread",
    "sakia-tokio",
    "sakia-trace",
];

/// Each static of the product is in the list, and the list has no others.
pub(super) fn are_listed(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some((list, rows)) = rows(tree) else { return };
    let mut listed: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.subject.ends_with(".rs")) {
        listed.extend(row.names.iter().map(|&name| ((row.subject, name), row.line)));
    }
    let folders: Vec<String> = CRATES.iter().map(|name| format!("crates/{name}/src/")).collect();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let mut gone = listed.clone();
    for file in tree.sources(&folders) {
        let Some(tokens) = file.tokens() else { continue };
        for found in tokens.statics.iter().filter(|found| !found.in_test) {
            let name = found.segments[0].as_str();
            gone.remove(&(file.path.as_str(), name));
            if !listed.contains_key(&(file.path.as_str(), name)) {
                let message = format!("{LIST} does not say what a forked child gets of `{name}`");
                findings.push(Finding::new(file, found.line, message));
            }
        }
    }
    for ((path, name), line) in gone {
        findings.push(Finding::new(list, line, format!("{path} has no static `{name}`")));
    }
}

/// Each dependency of the product that is not its own is in the list, and the list has no others.
pub(super) fn of_dependencies(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some((list, rows)) = rows(tree) else { return };
    let mut gone: BTreeMap<&str, usize> = rows
        .iter()
        .filter(|row| !row.subject.contains('/'))
        .map(|row| (row.subject, row.line))
        .collect();
    let listed = gone.clone();
    for manifest in tree.crates() {
        if !manifest.name().is_some_and(|name| CRATES.contains(&name)) {
            continue;
        }
        for dependency in manifest.dependencies() {
            let package = dependency.package.as_str();
            if dependency.section != Section::Normal || package.starts_with("sakia") {
                continue;
            }
            gone.remove(package);
            if !listed.contains_key(package) {
                let message = format!("{LIST} does not say what a forked child gets of {package}");
                findings.push(Finding::new(manifest.file, dependency.line, message));
            }
        }
    }
    for (package, line) in gone {
        findings.push(Finding::new(list, line, format!("nothing depends on {package}")));
    }
}

/// A line of a table.
struct Row<'a> {
    line: usize,
    /// A file or a dependency.
    subject: &'a str,
    /// The statics.
    names: Vec<&'a str>,
}

/// Returns the list, and the rows of its tables that begin with a name in backticks.
fn rows(tree: &Tree) -> Option<(&File, Vec<Row<'_>>)> {
    let list = tree.files.iter().find(|file| file.path == LIST)?;
    let rows = list.lines().filter_map(|(line, text)| {
        let mut cells = text.strip_prefix("| `")?.split(" | ");
        let subject = cells.next()?.trim_end().strip_suffix('`')?;
        let names = cells.next()?.split(", ");
        let names = names.filter_map(|name| name.strip_prefix('`')?.strip_suffix('`')).collect();
        // Without this cell the row says nothing.
        cells.last().filter(|text| text.contains(char::is_alphabetic))?;
        Some(Row { line, subject, names })
    });
    Some((list, rows.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    const CODE: &str = "static A: u8 = 1;\n\
                        fn f(x: &'static str) { static mut B: u8 = 1; }\n\
                        thread_local! { static C: u8 = const { 1 }; }\n\
                        macro_rules! m { ($name:ident) => { static $name: u8 = 1; } }\n\
                        #[cfg(test)]\nmod tests { static D: u8 = 1; }\n";
    const FILE: &str = "crates/sakia-ring/src/lib.rs";

    fn of_list(list: &str, code: &str) -> Vec<String> {
        let tests = ("crates/sakia-ring/tests/a.rs", "static E: u8 = 1;");
        findings(
            are_listed,
            &[(LIST, list), (FILE, code), tests, ("crates/sakia-check/src/a.rs", CODE)],
        )
    }

    #[test]
    fn a_static_that_is_not_listed_is_found() {
        let list = format!("| `{FILE}` | `A`, `B`, `C`, `$name` | a copy |\n");
        assert_eq!(of_list(&list, CODE), [""; 0]);
        let expected = [1, 2, 3, 4].map(|line| {
            format!("{FILE}:{line}: FORK.md does not say what a forked child gets of `")
        });
        let found = of_list("| `other.rs` | `A` |\n", CODE);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found.iter().zip(expected).all(|(found, begin)| found.starts_with(&begin)),
            "{found:?}"
        );
        // A row that says nothing does not count.
        assert_eq!(of_list(&format!("| `{FILE}` | `A`, `B`, `C`, `$name` | |\n"), CODE).len(), 4);
    }

    #[test]
    fn a_listed_static_that_is_gone_is_found() {
        let list = format!("# Fork\n\n| `{FILE}` | `A`, `GONE` | a copy |\n");
        let expected = format!("FORK.md:3: {FILE} has no static `GONE`");
        assert_eq!(of_list(&list, "static A: u8 = 1;\n"), [expected]);
    }

    #[test]
    fn dependencies_are_listed_too() {
        let path = "crates/sakia-ring/Cargo.toml";
        let head = "[package]\nname = \"sakia-ring\"\n[dependencies]\nsakia-trace = \"1\"\n";
        let manifest = format!("{head}rustix = \"1\"\n[dev-dependencies]\nlibc = \"1\"\n");
        let of = |list: &str| findings(of_dependencies, &[(LIST, list), (path, &manifest)]);
        assert_eq!(of("| `rustix` | none | nothing to say |\n"), [""; 0]);
        let expected = [
            "FORK.md:1: nothing depends on libc",
            "crates/sakia-ring/Cargo.toml:5: FORK.md does not say what a forked child gets of rustix",
        ];
        assert_eq!(of("| `libc` | locks | its own |\n"), expected);
    }
}
