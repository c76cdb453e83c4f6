//! Every test named in `SOUNDNESS.md` exists.

use pulldown_cmark::{Event, Parser};

use super::{File, Finding, Tree};

/// The contract.
const CONTRACT: &str = "SOUNDNESS.md";

/// Name prefixes, and the folder of these tests.
const PLACES: &[(&str, &str)] = &[
    ("driver::", "crates/sakia-driver/tests/driver/"),
    ("conformance::", "crates/sakia-driver/tests/conformance/"),
    ("unit::", "crates/sakia-driver/src/"),
    ("thread::", "crates/sakia-thread/tests/"),
    ("task::", "crates/sakia-task/src/tests/"),
    ("ring::", "crates/sakia-ring/tests/"),
    ("runtime::", "crates/sakia/tests/runtime/"),
    ("simulated::", "crates/sakia/tests/simulated/"),
    ("engine::", "crates/sakia/tests/engine/"),
    ("faults::", "crates/sakia/tests/faults/"),
    ("check::", "crates/sakia-check/tests/"),
    ("net::", "crates/sakia/tests/net/"),
    ("loom::", "bench/loom/src/"),
];

/// Each name is that of a function or of a module in its folder.
pub(super) fn names_tests(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(contract) = tree.files.iter().find(|file| file.path == CONTRACT) else { return };
    for (event, range) in Parser::new(&contract.text).into_offset_iter() {
        let Event::Code(name) = event else { continue };
        let Some((place, folder)) = PLACES.iter().find(|(place, _)| name.starts_with(place)) else {
            continue;
        };
        let rest = &name[place.len()..];
        if !rest.is_empty() && !tree.files.iter().any(|file| has_test(file, folder, rest)) {
            let message = format!("no test or module {rest} is in {folder}");
            findings.push(Finding::new(contract, contract.line_at(range.start), message));
        }
    }
}

fn has_test(file: &File, folder: &str, name: &str) -> bool {
    let Some(path) = file.path.strip_prefix(folder) else { return false };
    let is_module = path.strip_suffix(".rs").is_some_and(|path| {
        let path = path.strip_suffix("/mod").unwrap_or(path);
        path.rsplit('/').next() == Some(name)
    });
    is_module || file.text.contains(&format!("fn {name}("))
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn names_lead_to_tests_and_modules() {
        let mut tree = Tree::default();
        let text = "- Yes: `driver::here`, `driver::deep`, `driver::waits`, `std::mem::forget`.\n\
                    - No:\n  `driver::gone`\n";
        tree.add(CONTRACT.to_owned(), text.into());
        tree.add("crates/sakia-driver/tests/driver/here.rs".to_owned(), "fn waits() {}".into());
        tree.add("crates/sakia-driver/tests/driver/deep/mod.rs".to_owned(), "".into());
        tree.add("crates/sakia/tests/runtime/gone.rs".to_owned(), "".into());
        let findings = check(&tree, &[names_tests]);
        let lines: Vec<_> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [3], "{findings:?}");
    }
}
