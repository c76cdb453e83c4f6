//! The shape of text: widths, lengths, white space.

use super::{File, Finding, Tree};

/// The most characters in a line.
const COLUMNS_MAX: usize = 110;
/// The most lines in a Rust file.
const LINES_MAX: usize = 1200;

/// Extensions of hand-written files, which end in a newline.
const BY_HAND: &[&str] = &["rs", "md", "toml", "yml", "yaml", "sh", "py", "c", "h", "txt"];

/// Lines of Rust and Markdown fit, except tables and links, which cannot be broken.
pub(super) fn lines_fit(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs", "md"]) {
        for (number, line) in file.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !is_unbreakable(line) {
                let message = format!("{columns} columns, more than {COLUMNS_MAX}");
                findings.push(Finding::new(file, number, message));
            }
        }
    }
}

/// Returns whether the line, perhaps in a comment, is a row of a table or has a link.
fn is_unbreakable(line: &str) -> bool {
    let words = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    words.starts_with('|') || line.contains("://") || line.contains("](") || line.contains("]: ")
}

/// Rust files are short enough to be about one subject.
pub(super) fn files_are_short(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs"]) {
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            let message = format!("{lines} lines, more than {LINES_MAX}; split it by subject");
            findings.push(Finding::new(file, LINES_MAX + 1, message));
        }
    }
}

/// No tabs, nothing at the end of a line, and a newline at the end of a file.
pub(super) fn whitespace_is_clean(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs", "md", "toml"]) {
        for (number, line) in file.lines() {
            if line.contains('\t') {
                findings.push(Finding::new(file, number, "tab"));
            }
            if line.trim_end() != line {
                findings.push(Finding::new(file, number, "trailing whitespace"));
            }
        }
    }
    for file in tree.files_of(BY_HAND).filter(|file| lacks_newline(file)) {
        let last = file.lines().count();
        findings.push(Finding::new(file, last, "no newline at the end of the file"));
    }
}

fn lacks_newline(file: &File) -> bool {
    !file.text.is_empty() && !file.text.ends_with('\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    #[test]
    fn long_lines_are_found() {
        let fits = format!("{}\n", "ä".repeat(COLUMNS_MAX));
        assert_eq!(findings(lines_fit, &[("a.rs", &fits), ("a.md", &fits)]), [""; 0]);
        let long = format!("x\n{}\n", "x".repeat(COLUMNS_MAX + 1));
        let files = [("a.rs", &*long), ("a.md", &long), ("a.json", &long)];
        let expected = ["a.md:2: 111 columns, more than 110", "a.rs:2: 111 columns, more than 110"];
        assert_eq!(findings(lines_fit, &files), expected);
    }

    #[test]
    fn tables_and_links_may_be_long() {
        let tail = "x".repeat(COLUMNS_MAX);
        for head in ["| a | ", "/// | a | ", "//! | a | ", "https://x/", "[a](", "[a]: "] {
            let line = format!("{head}{tail}\n");
            assert_eq!(findings(lines_fit, &[("a.md", &line)]), [""; 0], "{head}");
        }
    }

    #[test]
    fn long_files_are_found() {
        let fits = "x\n".repeat(LINES_MAX);
        assert_eq!(findings(files_are_short, &[("a.rs", &fits)]), [""; 0]);
        let long = "x\n".repeat(LINES_MAX + 1);
        let expected = ["a.rs:1201: 1201 lines, more than 1200; split it by subject"];
        assert_eq!(findings(files_are_short, &[("a.rs", &long), ("a.md", &long)]), expected);
    }

    #[test]
    fn unclean_whitespace_is_found() {
        assert_eq!(findings(whitespace_is_clean, &[("a.rs", "  x\n\ny\n")]), [""; 0]);
        assert_eq!(findings(whitespace_is_clean, &[("a.rs", "")]), [""; 0]);
        // A Makefile needs tabs, and a data file has its program's format.
        let others = [("Makefile", "\tx \n"), ("a.json", "{}")];
        assert_eq!(findings(whitespace_is_clean, &others), [""; 0]);
        let expected = [
            "a.md:1: trailing whitespace",
            "a.md:2: tab",
            "a.md:3: no newline at the end of the file",
            "a.md:3: trailing whitespace",
        ];
        assert_eq!(findings(whitespace_is_clean, &[("a.md", "x \n\ty\nz\r")]), expected);
    }
}
