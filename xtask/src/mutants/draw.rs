//! Draws lines for new known bugs, and their changes, by a seed.
//!
//! The draw is from all lines with a possible change: in functions of [`PATHS`], outside of tests and
//! assertions. Of a drawn line one operator is drawn, and of that operator one change. The order of lines
//! does not depend on their number: an entry that does not compile is replaced by the next one.

mod operators;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use self::operators::Change;
use super::places::{self, Function};
use crate::tidy::{File, Tree};

/// Path prefixes of the files from which lines are drawn, unless the caller names others.
const PATHS: &[&str] = &[
    "crates/sakia-driver/src/core",
    "crates/sakia-driver/src/uring",
    "crates/sakia-driver/src/epoll/",
    "crates/sakia-driver/src/queue.rs",
    "crates/sakia-driver/src/groups.rs",
    "crates/sakia-driver/src/connection/",
    "crates/sakia/src/engine/",
    "crates/sakia/src/fs/",
    "crates/sakia/src/group.rs",
    "crates/sakia/src/net/",
    "crates/sakia/src/task/",
    "crates/sakia/src/time/",
    "crates/sakia-tokio/src/",
    "crates/sakia-trace/src/",
    "crates/sakia-socket/src/",
    "crates/sakia-socket-core/src/",
];

/// Prints `count` entries for `known.toml`, on lines that `seed` draws: of the files with these path
/// prefixes, or of [`PATHS`] without any; changes of `operator` alone, if it is given.
///
/// # Errors
/// A file cannot be read, or there are too few lines.
pub(crate) fn run(
    root: &Path,
    count: usize,
    seed: u64,
    within: &[String],
    operator: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(root)?;
    let mut lines = Vec::new();
    let within: Vec<&str> = within.iter().map(String::as_str).collect();
    for file in tree.sources(if within.is_empty() { PATHS } else { &within }) {
        let mut by_line: BTreeMap<usize, Vec<Change>> = BTreeMap::new();
        let is_wanted = |change: &Change| operator.is_none_or(|wanted| change.operator == wanted);
        for change in operators::changes(&file.text)?.into_iter().filter(is_wanted) {
            by_line.entry(change.line).or_default().push(change);
        }
        lines.extend(by_line.into_iter().map(|(line, changes)| Line { file, line, changes }));
    }
    println!("# {count} of {} lines, by the seed {seed}.", lines.len());
    let mut random = Random(seed);
    let mut number = 0;
    while number < count {
        if lines.is_empty() {
            bail!("there are only {number} lines");
        }
        let line = lines.swap_remove(random.below(lines.len()));
        if let Some(entry) = entry(&line, &mut random, number + 1) {
            number += 1;
            println!("{entry}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A line with possible changes.
struct Line<'t> {
    file: &'t File,
    line: usize,
    changes: Vec<Change>,
}

/// Draws a change of this line. `None` if nothing around it makes its text unique in its function, or no bug
/// can be switched on there.
fn entry(line: &Line<'_>, random: &mut Random, number: usize) -> Option<String> {
    let mut operators: Vec<&str> = line.changes.iter().map(|change| change.operator).collect();
    operators.sort_unstable();
    operators.dedup();
    let operator = operators[random.below(operators.len())];
    let of_it: Vec<_> = line.changes.iter().filter(|change| change.operator == operator).collect();
    let change = of_it[random.below(of_it.len())];
    let text = &line.file.text;
    let functions = places::functions(text).ok()?;
    let function = places::innermost(&functions, &change.range)?;
    if function.is_const || function.is_opaque {
        return None;
    }
    let path = function.path.as_str();
    let range = widen(text, path, function, change.range.clone())?;
    let wrong = format!(
        "{}{}{}",
        &text[range.start..change.range.start],
        change.wrong,
        &text[change.range.end..range.end]
    );
    let name = path.rsplit("::").next()?;
    let (file, text, wrong) = (&line.file.path, quoted(&text[range]), quoted(&wrong));
    let line = line.line;
    Some(format!(
        "\
[[bug]]
name = \"drawn_{number:02}_{name}\"
what = \"{operator}\"
file = \"{file}\"
function = \"{path}\"
text = {text}
wrong = {wrong}
drawn = \"{operator}, line {line}\"
"
    ))
}

/// Returns the smallest unique part of the function around a change: the change itself, its lines, or more.
fn widen(text: &str, path: &str, function: &Function, range: Range<usize>) -> Option<Range<usize>> {
    let inside = function.body.start + 1..function.body.end - 1;
    let functions = places::functions(text).ok()?;
    let is_once = |range: &Range<usize>| {
        let place = places::find(text, &functions, path, &text[range.clone()]);
        place.is_ok_and(|place| place.range == *range)
    };
    // A change of a few characters is shown with its line.
    if text[range.clone()].len() >= 8 && is_once(&range) {
        return Some(range);
    }
    let (mut begin, mut end) = (range.start, range.end);
    for turn in 0..8 {
        if turn % 2 == 0 {
            begin = text[..begin].trim_end().rfind('\n').map_or(0, |at| at + 1).max(inside.start);
            if turn == 0 {
                begin = text[..range.start].rfind('\n').map_or(0, |at| at + 1).max(inside.start);
                end = range.end + text[range.end..].find('\n').unwrap_or(0);
            }
        } else {
            end += 1 + text[end + 1..].find('\n').unwrap_or(0);
        }
        end = end.min(inside.end);
        let whole = &text[begin..end];
        let start = begin + (whole.len() - whole.trim_start().len());
        let range = start..start + whole.trim().len();
        if is_once(&range) {
            return Some(range);
        }
    }
    None
}

fn quoted(text: &str) -> String {
    if text.contains(['\n', '\'']) { format!("'''{text}'''") } else { format!("'{text}'") }
}

/// `SplitMix64`.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number from 0 that is smaller than `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "fn f(a: u32) -> u32 {\n    if a < 3 {\n        g();\n    }\n    g();\n    a\n}\n";

    fn entry_of(line: usize, seed: u64) -> Option<String> {
        let changes = operators::changes(SOURCE).unwrap();
        let changes = changes.into_iter().filter(|change| change.line == line).collect();
        let file = File::new("a.rs", SOURCE);
        entry(&Line { file: &file, line, changes }, &mut Random(seed), 7)
    }

    #[test]
    fn an_entry_has_a_text_that_is_there_once() {
        let entry = entry_of(5, 1).unwrap();
        assert!(entry.contains("name = \"drawn_07_f\""), "{entry}");
        assert!(entry.contains("text = '''g();\n    a'''"), "{entry}");
        assert!(entry.contains("drawn = \"delete a statement, line 5\""), "{entry}");
    }

    #[test]
    fn a_seed_draws_the_same_again() {
        let entries = |seed| -> Vec<_> {
            [2, 3, 5].into_iter().filter_map(|line| entry_of(line, seed)).collect()
        };
        assert_eq!(entries(3), entries(3));
        assert!((0..20).any(|seed| entries(seed) != entries(3)));
    }
}
