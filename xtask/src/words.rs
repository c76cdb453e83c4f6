//! `cargo xtask words`: the wording of the comments in the product's sources.
//!
//! A sample is stable. A comment's place in it follows from the seed, the file and the code below the
//! comment, so the same seed draws the same places before and after a rewrite.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use crate::tidy::plain::{self, Sign};
use crate::tidy::{File, Tree};

/// Prints the counts of signs per crate.
///
/// # Errors
/// The repository cannot be read.
pub(crate) fn counts(root: &Path) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(root)?;
    let mut units: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for found in plain::signs(&tree) {
        let (clauses, pronouns) = units.entry(unit(found.path)).or_default();
        match found.sign {
            Sign::Clause => *clauses += 1,
            Sign::Pronoun => *pronouns += 1,
        }
    }
    println!("{:24} {:>8} {:>8}", "", "clauses", "pronouns");
    for (unit, (clauses, pronouns)) in units {
        println!("{unit:24} {clauses:8} {pronouns:8}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints each line that is counted.
///
/// # Errors
/// The repository cannot be read.
pub(crate) fn lines(root: &Path) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(root)?;
    for found in plain::signs(&tree) {
        println!("{}:{}: {}", found.path, found.line, found.text.trim_start());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints `count` comments that the seed draws, by path and line, each with the line of code below it.
///
/// # Errors
/// The repository cannot be read.
pub(crate) fn sample(root: &Path, count: usize, seed: u64) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(root)?;
    let mut comments: Vec<_> = plain::sources(&tree).into_iter().flat_map(comments).collect();
    println!("{count} of {} comments, by the seed {seed}", comments.len());
    comments.sort_by_key(|comment| comment.place(seed));
    comments.truncate(count);
    comments.sort_by_key(|comment| (comment.path, comment.line));
    for Comment { path, line, text, code, .. } in comments {
        println!("\n{path}:{line}\n{}\n    {code}", text.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The crate or folder of a file.
fn unit(path: &str) -> &str {
    let path = path.strip_prefix("crates/").unwrap_or(path);
    path.split_once("/src").map_or(path, |(unit, _)| unit)
}

/// Comment lines in a row, without their markers.
struct Comment<'t> {
    path: &'t str,
    /// The first line, from 1.
    line: usize,
    text: Vec<&'t str>,
    /// The first line of code below.
    code: &'t str,
    /// The number of earlier comments in this file above the same text.
    earlier: usize,
}

impl Comment<'_> {
    /// FNV-1a of the seed and the place, with its bits mixed.
    fn place(&self, seed: u64) -> u64 {
        let key = format!("{seed} {} {} {}", self.path, self.code, self.earlier);
        let mut hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^ (hash >> 31)
    }
}

fn comments(file: &File) -> Vec<Comment<'_>> {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let mut comments: Vec<Comment<'_>> = Vec::new();
    let mut index = 0;
    while index < lines.len() {
        let length = lines[index..].iter().take_while(|line| line.starts_with("//")).count();
        if length > 0 {
            let is_code = |line: &&&str| !line.is_empty() && !line.starts_with(['/', '#']);
            let code = lines[index + length..].iter().find(is_code).copied().unwrap_or_default();
            let text = lines[index..index + length].iter();
            comments.push(Comment {
                path: &file.path,
                line: index + 1,
                text: text.map(|line| plain::words(line).unwrap_or_default()).collect(),
                code,
                earlier: comments.iter().filter(|comment| comment.code == code).count(),
            });
        }
        index += length.max(1);
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_keeps_its_place_when_its_words_change() {
        let before = File::new("a.rs", "//! A\n\n// B\n// C\nfn f() {}\n// D\nfn f() {}\n");
        let after = File::new("a.rs", "//! X\n//! Y\n\n// Z\nfn f() {}\n// D\nfn f() {}\n");
        let places = |file| -> Vec<u64> { comments(file).iter().map(|c| c.place(7)).collect() };
        assert_eq!(places(&before), places(&after));
        assert_eq!(comments(&before)[1].text, ["B", "C"]);
        let mut places = places(&before);
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 3);
    }
}
