//! The pages that a new user reads first are short.

use super::{Finding, Tree};

/// The most lines of the first page.
const README_LINES_MAX: usize = 150;
/// The line of the first page above which it shows Rust.
const RUST_ABOVE: usize = 30;
/// The most words of a version in the changelog.
const VERSION_WORDS_MAX: usize = 600;

/// The first page fits on a few screens, and the changelog says the most important of each version.
pub(super) fn are_short(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["md"]) {
        match &*file.path {
            "README.md" => {
                let lines = file.text.lines().count();
                if lines > README_LINES_MAX {
                    let message = format!("{lines} lines, more than {README_LINES_MAX}");
                    findings.push(Finding::new(file, README_LINES_MAX + 1, message));
                }
                let mut first = file.lines().take(RUST_ABOVE);
                if !first.any(|(_, line)| line.starts_with("```rust")) {
                    let message = format!("no Rust above line {RUST_ABOVE}");
                    findings.push(Finding::new(file, 1, message));
                }
            }
            "CHANGELOG.md" => {
                let mut version = (1, 0);
                for (number, line) in file.lines().chain([(0, "## ")]) {
                    if line.starts_with("## ") {
                        let (begin, words) = version;
                        if words > VERSION_WORDS_MAX {
                            let message = format!("{words} words, more than {VERSION_WORDS_MAX}");
                            findings.push(Finding::new(file, begin, message));
                        }
                        version = (number, 0);
                    }
                    version.1 += line.split_whitespace().count();
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    #[test]
    fn long_first_pages_are_found() {
        let good = format!("# Name\n```rust\n```\n{}", "x\n".repeat(README_LINES_MAX - 3));
        assert_eq!(findings(are_short, &[("README.md", &good)]), [""; 0]);
        let bad = format!("{}{good}", "x\n".repeat(RUST_ABOVE));
        let expected =
            ["README.md:1: no Rust above line 30", "README.md:151: 180 lines, more than 150"];
        assert_eq!(findings(are_short, &[("README.md", &bad)]), expected);
        assert_eq!(findings(are_short, &[("docs/README.md", &bad)]), [""; 0]);
    }

    #[test]
    fn long_versions_are_found() {
        let version = |words: usize| format!("## 0.1\n\n{}\n", "x ".repeat(words - 2));
        let good = format!("# Changelog\n\n{}{}", version(600), version(600));
        assert_eq!(findings(are_short, &[("CHANGELOG.md", &good)]), [""; 0]);
        let bad = format!("# Changelog\n\n{}{}", version(600), version(601));
        let expected = ["CHANGELOG.md:6: 601 words, more than 600"];
        assert_eq!(findings(are_short, &[("CHANGELOG.md", &bad)]), expected);
    }
}
