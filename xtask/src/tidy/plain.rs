//! Limits on signs of unclear comments, which can only shrink.
//!
//! Two signs are counted: in all sources comment lines that begin with a relative pronoun and are no
//! question; and in the product's sources pronouns that stand for a task, a caller, a peer or a user.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{File, Finding, Tree};

/// The path prefixes of the product's sources; of crates, only their `src`.
const SOURCES: &[&str] = &["crates/", "xtask/src/", "fuzz/", "bench/loom/"];

/// The limit for [`Sign::Clause`]. Lower it when the count falls.
const CLAUSES_MAX: usize = 0;
/// The limit for [`Sign::Pronoun`]. Lower it when the count falls.
const PRONOUNS_MAX: usize = 12;

/// A comment line whose first word names a thing by a clause.
static CLAUSE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^\s*//[/!]?\s*(What|Whether|Whoever|Who|Where)\b").expect("a valid pattern")
});

/// Spelled so that this file does not hold them.
static PRONOUN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:[Nn]o|[Ss]ome)body\b|\b[Ww]hoever\b").expect("a valid pattern")
});

/// A sign of a sentence that has to be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// A comment line begins with a relative pronoun, and its sentence is no question.
    Clause,
    /// A pronoun stands for a task, a caller, a peer or a user.
    Pronoun,
}

/// One line with a sign.
#[derive(Debug)]
pub(crate) struct Found<'t> {
    pub(crate) sign: Sign,
    pub(crate) path: &'t str,
    /// The line, from 1.
    pub(crate) line: usize,
    pub(crate) text: &'t str,
}

/// Returns the product's sources: no tests, examples or benchmarks.
pub(crate) fn sources(tree: &Tree) -> Vec<&File> {
    let mut files = tree.sources(SOURCES);
    files.retain(|file| !file.path.starts_with("crates/") || file.path.contains("/src/"));
    files
}

/// Returns the signs by path and line: of pronouns only those in the product's sources.
pub(crate) fn signs(tree: &Tree) -> Vec<Found<'_>> {
    let mut signs: Vec<_> = tree.sources(&[""]).into_iter().flat_map(signs_in).collect();
    let product: HashSet<_> = sources(tree).into_iter().map(|file| &*file.path).collect();
    signs.retain(|found| found.sign == Sign::Clause || product.contains(found.path));
    signs
}

/// Reports a count above its limit.
pub(super) fn shrink(tree: &Tree, findings: &mut Vec<Finding>) {
    let signs = signs(tree);
    for (sign, max) in [(Sign::Clause, CLAUSES_MAX), (Sign::Pronoun, PRONOUNS_MAX)] {
        let count = count(&signs, sign);
        if count > max {
            let message = format!(
                "{count} {}, more than {max}; `cargo xtask words --lines` lists them",
                sign.name()
            );
            findings.push(Finding { path: "xtask/src/tidy/plain.rs".into(), line: 1, message });
        }
    }
}

/// Returns a line with both counts and their limits.
pub(super) fn summary(tree: &Tree) -> String {
    let signs = signs(tree);
    let part = |sign: Sign, max| format!("{} {} (limit {max})", count(&signs, sign), sign.name());
    format!("{}; {}", part(Sign::Clause, CLAUSES_MAX), part(Sign::Pronoun, PRONOUNS_MAX))
}

fn count(signs: &[Found<'_>], sign: Sign) -> usize {
    signs.iter().filter(|found| found.sign == sign).count()
}

impl Sign {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clause => "comment lines that begin with What, Whether, Who, Whoever or Where",
            Self::Pronoun => {
                concat!("times \"no", "body\", \"some", "body\" or \"who", "ever\"")
            }
        }
    }
}

fn signs_in(file: &File) -> Vec<Found<'_>> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (index, &text) in lines.iter().enumerate() {
        let at = |sign| Found { sign, path: &file.path, line: index + 1, text };
        if CLAUSE.is_match(text) && !is_question(&lines[index..]) {
            found.push(at(Sign::Clause));
        }
        found.extend(PRONOUN.find_iter(text).map(|_| at(Sign::Pronoun)));
    }
    found
}

/// Returns whether the sentence at the start of these comment lines ends in a question mark.
fn is_question(lines: &[&str]) -> bool {
    let comment = lines.iter().map_while(|line| words(line));
    let end = comment.flat_map(str::split_whitespace).find_map(|word| {
        let word = word.trim_end_matches(['"', ')', '*', '`']);
        word.ends_with(['.', '?', '!', ':']).then(|| word.ends_with('?'))
    });
    end.unwrap_or(false)
}

/// Returns the text of a line that is a comment, without its marker; `None` for code and empty comments.
pub(crate) fn words(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs_of(path: &str, text: &str) -> Vec<(usize, Sign)> {
        let mut tree = Tree::default();
        tree.add(path.into(), text.into());
        signs(&tree).iter().map(|found| (found.line, found.sign)).collect()
    }

    #[test]
    fn clauses_are_found_and_questions_are_not() {
        let text = "//! What is it?\n/// Whether it\n/// is. Is it?\n// Who waits\n// for it?\n\
                    fn f() {} // Where\n    // Whatever\n/// what\n// Where (\"x\")\n";
        let expected = [(2, Sign::Clause), (9, Sign::Clause)];
        assert_eq!(signs_of("crates/a/src/a.rs", text), expected);
    }

    #[test]
    fn pronouns_are_found_each_time_they_stand_there() {
        let [first, second] = [concat!("No", "body"), concat!("who", "ever")];
        let text = format!("// {first} knows, {second} asks\nfn f_{second}() {{}}\n");
        assert_eq!(signs_of("xtask/src/a.rs", &text), [(1, Sign::Pronoun), (1, Sign::Pronoun)]);
    }

    #[test]
    fn pronouns_are_counted_in_the_product_only() {
        let text = format!("// What\n// {}\n", concat!("some", "body"));
        let clause = (1, Sign::Clause);
        assert_eq!(signs_of("crates/a/tests/a.rs", &text), [clause]);
        assert_eq!(signs_of("examples/src/a.rs", &text), [clause]);
        assert_eq!(signs_of("crates/a/src/a.rs", &text), [clause, (2, Sign::Pronoun)]);
    }
}
