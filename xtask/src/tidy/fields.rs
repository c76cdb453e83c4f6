//! Structs with few fields: more are several things, which belong in structs of their own.

use syn::ItemStruct;
use syn::visit::{self, Visit};

use super::{Finding, Tree};

/// The most fields of a struct.
const FIELDS: usize = 16;

/// Structs with more, with the reason.
const LISTED: [(&str, &str); 7] = [
    ("StatxResult", "a record of the kernel"),
    ("SimBuilder", "options"),
    ("CpArgs", "arguments"),
    ("SchedArgs", "arguments"),
    ("Options", "options"),
    ("Counters", "independent sums, each with its name in the output"),
    ("Runner", "a program under test beside the models of all its objects"),
];

/// No struct has more than [`FIELDS`] fields, unless it is listed, and each that is listed does.
pub(super) fn are_few(tree: &Tree, findings: &mut Vec<Finding>) {
    check(tree, &LISTED, findings);
}

fn check(tree: &Tree, listed: &[(&str, &str)], findings: &mut Vec<Finding>) {
    let mut used = vec![false; listed.len()];
    let sources = tree.sources(&["crates/", "xtask/src/"]);
    for file in sources.iter().filter(|file| !file.path.contains("/tests/")) {
        let Some(parsed) = file.parsed() else { continue };
        let mut large = Large::default();
        large.visit_file(parsed);
        for (name, fields, line) in large.0 {
            match listed.iter().position(|(its, _)| *its == name) {
                Some(index) => used[index] = true,
                None => {
                    let message = format!("`{name}` has {fields} fields, more than {FIELDS}");
                    findings.push(Finding::new(file, line, message));
                }
            }
        }
    }
    for ((name, _), used) in listed.iter().zip(used) {
        if !used && !sources.is_empty() {
            let message = format!("`{name}` is listed, and has no more than {FIELDS} fields");
            findings.push(Finding::new(sources[0], 1, message));
        }
    }
}

/// The structs with more fields: name, number and line.
#[derive(Default)]
struct Large(Vec<(String, usize, usize)>);

impl<'ast> Visit<'ast> for Large {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if item.fields.len() > FIELDS {
            self.0.push((
                item.ident.to_string(),
                item.fields.len(),
                item.ident.span().start().line,
            ));
        }
        visit::visit_item_struct(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with a struct of this many fields.
    fn of(fields: usize) -> String {
        let fields: String = (0..fields).map(|number| format!("    f{number}: u8,\n")).collect();
        format!("\nstruct Large {{\n{fields}}}\n")
    }

    fn found(fields: usize, listed: &[(&str, &str)]) -> Vec<String> {
        let mut tree = Tree::default();
        tree.add("crates/sakia/src/a.rs".to_owned(), of(fields).into_bytes());
        let mut findings = Vec::new();
        check(&tree, listed, &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn only_large_structs_that_are_not_listed_are_found() {
        let expected = "crates/sakia/src/a.rs:2: `Large` has 17 fields, more than 16";
        assert_eq!(found(17, &[]), [expected]);
        assert_eq!(found(16, &[]), [""; 0]);
        assert_eq!(found(17, &[("Large", "a reason")]), [""; 0]);
        let expected = "crates/sakia/src/a.rs:1: `Large` is listed, and has no more than 16 fields";
        assert_eq!(found(16, &[("Large", "a reason")]), [expected]);
    }
}
