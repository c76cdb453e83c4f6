//! Public methods say what their future leaves behind when it is dropped.

use super::{File, Finding, Tree};

/// The heading of the section that says it.
const HEADING: &str = "# Cancel safety";
/// The crates whose methods have it.
const SOURCES: &[&str] = &[
    "crates/sakia/src/",
    "crates/sakia-copy/src/",
    "crates/sakia-driver/src/",
    "crates/sakia-tokio/src/",
];
/// Modules whose documentation has the heading, and a rule for the methods of the files that begin like this.
const RULES: [(&str, &[&str]); 2] = [
    (
        "crates/sakia/src/fs/mod.rs",
        &[
            "crates/sakia/src/fs/dir.rs",
            "crates/sakia/src/fs/manage.rs",
            "crates/sakia/src/fs/paths.rs",
        ],
    ),
    ("crates/sakia-tokio/src/fs/mod.rs", &["crates/sakia-tokio/src/fs/"]),
];

/// Every public `async fn` whose documentation has sections has this one, too.
pub(super) fn is_stated(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.sources(SOURCES) {
        let is_module = RULES.iter().any(|(module, _)| *module == file.path);
        if is_module && !file.text.contains(&format!("//! {HEADING}\n")) {
            let message = format!("the module has no section `{HEADING}`");
            findings.push(Finding::new(file, 1, message));
        }
        let mut ruled = RULES.iter().flat_map(|(_, files)| *files);
        if ruled.any(|begin| file.path.starts_with(begin)) {
            continue;
        }
        for (line, name) in silent(file) {
            let message = format!("{name}: no section `{HEADING}`");
            findings.push(Finding::new(file, line, message));
        }
    }
}

/// Returns the lines and names of the functions without the section. Functions without any section are not
/// public outside of the crate.
fn silent(file: &File) -> Vec<(usize, &str)> {
    let mut silent = Vec::new();
    let (mut has_sections, mut has_it) = (false, false);
    for (number, line) in file.lines() {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("///").map(str::trim) {
            has_sections |= text.starts_with("# ");
            has_it |= text == HEADING;
        } else if !line.starts_with("#[") {
            if let Some(name) = line.strip_prefix("pub async fn ")
                && has_sections
                && !has_it
            {
                silent.push((number, name.split(['(', '<']).next().unwrap_or(name)));
            }
            (has_sections, has_it) = (false, false);
        }
    }
    silent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    #[test]
    fn methods_that_do_not_say_it_are_found() {
        let path = "crates/sakia/src/net/a.rs";
        let good = "/// Reads.\n///\n/// # Cancel safety\n/// Loses nothing.\n///\n/// # Errors\n/// None.\n\
                    #[inline]\npub async fn read(&self) {}\n\
                    /// Within the crate.\npub async fn inner() {}\n\
                    /// # Errors\n/// None.\npub fn plain() {}\n";
        assert_eq!(findings(is_stated, &[(path, good)]), [""; 0]);
        let bad = "/// # Cancel safety\n/// Loses nothing.\npub fn other() {}\n\
                   /// Reads.\n///\n/// # Errors\n/// None.\n#[inline]\npub async fn read<T>(&self) {}\n";
        let expected = [format!("{path}:9: read: no section `# Cancel safety`")];
        assert_eq!(findings(is_stated, &[(path, bad)]), expected);
        assert_eq!(findings(is_stated, &[("crates/other/src/a.rs", bad)]), [""; 0]);
    }

    #[test]
    fn a_module_says_it_for_its_files() {
        let method = "/// # Errors\n/// None.\npub async fn remove() {}\n";
        let file = ("crates/sakia/src/fs/paths.rs", method);
        let module = "crates/sakia/src/fs/mod.rs";
        let files = [file, (module, "//! Files.\n//!\n//! # Cancel safety\n//! A rule.\n")];
        assert_eq!(findings(is_stated, &files), [""; 0]);
        let expected = [format!("{module}:1: the module has no section `# Cancel safety`")];
        assert_eq!(findings(is_stated, &[file, (module, "//! Files.\n")]), expected);
    }
}
