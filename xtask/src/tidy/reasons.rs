//! Each dependency has a reason.

use super::{Finding, Tree};

/// Every dependency has a comment on the line above it. A crate that takes a dependency from the
/// workspace may leave the reason to the root; our own crates need none.
pub(super) fn are_given(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.manifests() {
        let lines: Vec<&str> = manifest.file.text.lines().collect();
        for dependency in manifest.dependencies() {
            let above = dependency.line.checked_sub(2).and_then(|index| lines.get(index));
            let commented = above.is_some_and(|line| is_comment(line));
            if !(commented || dependency.inherited || dependency.local) {
                let message = format!("no comment above says why {} is here", dependency.package);
                findings.push(Finding::new(manifest.file, dependency.line, message));
            }
        }
    }
}

/// Returns whether the line is a comment with text.
fn is_comment(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix('#');
    comment.is_some_and(|words| words.contains(char::is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    #[test]
    fn reasons_and_exceptions_pass() {
        let text = "[workspace.dependencies]\n\
                    sakia-ring = { path = \"crates/sakia-ring\" }\n\
                    # Reports with context.\n\
                    anyhow = \"1\"\n\
                    [dependencies]\n\
                    anyhow.workspace = true\n\
                    rustix = { workspace = true, features = [\"mm\"] }\n\
                    # A long reason\n\
                    # on two lines.\n\
                    [dev-dependencies.proptest]\n\
                    version = \"1\"\n";
        assert_eq!(findings(are_given, &[("Cargo.toml", text)]), [""; 0]);
    }

    #[test]
    fn missing_reasons_are_found() {
        let text = "[dependencies]\na = \"1\"\n# Why.\nb = \"1\"\nc = \"1\"\n#\nd = \"1\"\n";
        let expected = [
            "Cargo.toml:2: no comment above says why a is here",
            "Cargo.toml:5: no comment above says why c is here",
            "Cargo.toml:7: no comment above says why d is here",
        ];
        assert_eq!(findings(are_given, &[("Cargo.toml", text)]), expected);
    }

    #[test]
    fn other_tables_need_no_reasons() {
        let text = "[package]\nname = \"a\"\n[features]\nx = []\n[lints]\nworkspace = true\n";
        assert_eq!(findings(are_given, &[("crates/a/Cargo.toml", text)]), [""; 0]);
    }
}
