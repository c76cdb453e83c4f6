//! Words with a meaning on one machine or one day only.

use std::sync::LazyLock;

use regex::Regex;

use super::{Finding, Tree};

/// Folders of a machine. In two parts each, so that this file does not hold them.
const FOLDERS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/tmp/bash", "_jobs")];

/// Nouns that must not have a number after them: a reader elsewhere cannot look it up.
const NUMBERED: [&str; 2] = ["issue", "session"];

/// One of them with a number, as in "noun 12" and "noun #12".
static WITH_NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let nouns = NUMBERED.join("|");
    Regex::new(&format!(r"\b({nouns}) #?[0-9]+\b")).expect("a pattern without mistakes")
});

/// No file has a path of the machine it was written on, nor a number without an address; the changelog may
/// number its entries.
pub(super) fn belong(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        let is_changelog = file.name().starts_with("CHANGELOG");
        for (number, line) in file.lines() {
            for folder in FOLDERS.iter().filter(|folder| holds_path(line, folder)) {
                let message = format!("{folder}: a path of one machine");
                findings.push(Finding::new(file, number, message));
            }
            let line = line.to_ascii_lowercase();
            if let Some(found) = WITH_NUMBER.captures(&line).filter(|_| !is_changelog) {
                let noun = &found[1];
                let message = format!("{noun} with a number; say what it is about, or link it");
                findings.push(Finding::new(file, number, message));
            }
        }
    }
}

/// Returns whether an absolute path that begins with `folder` is in the line; one that contains it elsewhere
/// does not count.
fn holds_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}/".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    #[test]
    fn paths_of_one_machine_are_found() {
        let [first, second] = FOLDERS;
        let good =
            format!("src{first}x https://a.org{first}\n$HOME{first} ${{A}}{first} /works/\n");
        assert_eq!(findings(belong, &[("a.md", &good)]), [""; 0]);
        for bad in [format!("{first}x"), format!("cd {first}main"), format!("({second}.0)")] {
            let found = findings(belong, &[("CHANGELOG.md", &bad)]);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
        }
    }

    #[test]
    fn numbers_without_address_are_found() {
        let good = "see https://github.com/a/b/issues/12\nan issue\nissues 3\nsession 3rd\n\
                    subsession 4\nsession #x\n";
        assert_eq!(findings(belong, &[("a.md", good)]), [""; 0]);
        for noun in NUMBERED {
            for bad in [format!("{noun} 12"), format!("(see {noun} #7)"), format!("X {noun} 1, y")]
            {
                let bad = bad.replace("X i", "X I");
                assert_eq!(findings(belong, &[("a.rs", &bad)]).len(), 1, "{bad}");
                assert_eq!(findings(belong, &[("CHANGELOG.md", &bad)]), [""; 0]);
            }
        }
    }
}
