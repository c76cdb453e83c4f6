//! The figures of the first page: its table beside other runtimes, and its picture, both from the pages in
//! `docs/results`.
//!
//! A test compares them with the pages, so that the first page never claims what no page has.

mod picture;
mod results;
mod table;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use self::results::Results;

/// The first page.
const PAGE: &str = "README.md";
/// The picture, which the first page shows.
const PICTURE: &str = "docs/results/small-files.svg";
/// The line of the first page after which the table stands, up to the next line that has no cell.
const MARK: &str = "<!-- The table: `cargo xtask figures` writes it from docs/results. -->";

/// Draws the picture, and writes the table into the first page.
///
/// # Errors
/// A figure is missing in the pages, the first page has no place for the table, or a file cannot be read or
/// written.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    for (path, text) in contents(root)? {
        let path = root.join(path);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns both files as they should be.
fn contents(root: &Path) -> anyhow::Result<[(&'static str, String); 2]> {
    let results = Results::read(root)?;
    let page = root.join(PAGE);
    let page =
        fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    let page = with_table(&page, &table::of(&results)?)?;
    Ok([(PAGE, page), (PICTURE, picture::of(&results)?)])
}

/// Returns the page with this table in the place of its own.
fn with_table(page: &str, table: &str) -> anyhow::Result<String> {
    let Some((before, after)) = page.split_once(&format!("{MARK}\n")) else {
        bail!("{PAGE} has no line {MARK:?}");
    };
    let is_row = |line: &&str| line.trim().is_empty() || line.starts_with('|');
    let old: usize = after.split_inclusive('\n').take_while(is_row).map(str::len).sum();
    Ok(format!("{before}{MARK}\n\n{table}\n{}", &after[old..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_page_has_the_figures_of_the_results() {
        let root = crate::repository_root();
        for (path, text) in contents(&root).unwrap() {
            let is = fs::read_to_string(root.join(path)).unwrap();
            assert!(is == text, "{path} differs from docs/results: run `cargo xtask figures`");
        }
    }

    #[test]
    fn table_replaces_the_old_one_only() {
        let page = format!("a\n{MARK}\n\n| old |\n|---|\n\nb\n| c |\n");
        let expected = format!("a\n{MARK}\n\n| new |\n\nb\n| c |\n");
        assert_eq!(with_table(&page, "| new |\n").unwrap(), expected);
        assert_eq!(with_table(&expected, "| new |\n").unwrap(), expected);
        assert!(with_table("no place", "").is_err());
    }
}
