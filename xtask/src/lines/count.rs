//! Lines of one Rust file.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Context, Result};
use proc_macro2::{Span, TokenStream, TokenTree};

use crate::test_code::TestCode;

/// The number of lines with code. Comments, documentation and blank lines, also within strings, do not
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) code: usize,
    /// Those of items for test builds only, their attributes included.
    pub(super) tests: usize,
}

/// # Errors
/// The text is not Rust.
pub(super) fn count(text: &str) -> Result<Lines> {
    let stream = TokenStream::from_str(text).ok().context("is not Rust tokens")?;
    let file: syn::File = syn::parse2(stream.clone()).context("is not Rust")?;
    let mut covered = BTreeSet::new();
    cover(stream, text, &mut covered);
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            covered.remove(&(index + 1));
        }
    }
    let for_tests: Vec<_> = TestCode::of(&file).spans.into_iter().map(lines).collect();
    let is_test = |line: &&usize| for_tests.iter().any(|lines| lines.contains(line));
    let tests = covered.iter().filter(is_test).count();
    Ok(Lines { code: covered.len() - tests, tests })
}

/// Adds the lines of all tokens except those of doc comments.
fn cover(stream: TokenStream, text: &str, covered: &mut BTreeSet<usize>) {
    for token in stream {
        match token {
            // A doc comment is the tokens `#[doc = "…"]`, perhaps with `!`, all with the comment's span.
            TokenTree::Punct(punct) if is_comment(punct.span(), text) => {}
            TokenTree::Group(group) if is_comment(group.span(), text) => {}
            TokenTree::Group(group) => {
                covered.extend(lines(group.span_open()));
                covered.extend(lines(group.span_close()));
                cover(group.stream(), text, covered);
            }
            other => covered.extend(lines(other.span())),
        }
    }
}

/// Returns whether it is the span of a doc comment.
fn is_comment(span: Span, text: &str) -> bool {
    let source = text.get(span.byte_range()).unwrap_or_default();
    ["///", "//!", "/**", "/*!"].iter().any(|begin| source.starts_with(begin))
}

fn lines(span: Span) -> RangeInclusive<usize> {
    span.start().line..=span.end().line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_lines(text: &str, code: usize, tests: usize) {
        assert_eq!(count(text).unwrap(), Lines { code, tests }, "{text}");
    }

    #[test]
    fn comments_and_blank_lines_hold_no_code() {
        assert_lines("", 0, 0);
        assert_lines("//! A.\n\n/// B.\n// C\nfn f() {\n\n    // D\n    g(); // E\n}\n", 3, 0);
        assert_lines(
            "/* a /* b */\n c */\n/** d\n e */\nfn f() {}\n/* g */ fn h() {} /*\n*/\n",
            2,
            0,
        );
        assert_lines("mod a {\n    //! B.\n    /*! C\n    */\n}\n", 2, 0);
    }

    #[test]
    fn what_looks_like_a_comment_in_a_string_is_code() {
        assert_lines("const A: &str = \"// a\n// b\n\n/* c\";\n// d\n", 3, 0);
        assert_lines(
            "const A: &str = r#\"\n/// \"a\"\n*/\n\"#;\nconst B: &[u8] = b\"//\";\n",
            5,
            0,
        );
        assert_lines("const A: char = '\"'; // \"\nconst B: &str = \"\\\"//\";\n", 2, 0);
    }

    #[test]
    fn attributes_are_code_and_documentation_by_one_too() {
        assert_lines("#[doc(alias = \"a\")]\n#[doc = \"b\"]\nfn f() {}\n", 3, 0);
        assert_lines(
            "#![doc = include_str!(\"a.md\")]\n#[derive(\n    Debug,\n)]\nstruct A;\n",
            5,
            0,
        );
    }

    #[test]
    fn macros_are_code() {
        assert_lines("m! {\n    // a\n    /// b\n    c => \"d\";\n}\n", 3, 0);
    }

    #[test]
    fn test_items_are_told_apart_with_their_attributes() {
        assert_lines("fn f() {}\n#[cfg(test)]\n#[path = \"a.rs\"]\nmod tests;\n", 1, 3);
        assert_lines("#[cfg(test)]\nuse a::{\n    b,\n};\nuse c;\n", 1, 4);
        assert_lines("/// A.\n#[cfg(all(test, unix))]\n/// B.\nfn f() {\n\n    g();\n}\n", 0, 4);
        assert_lines("#[cfg(any(test, unix))]\nfn f() {}\n#[cfg(not(test))]\nfn g() {}\n", 4, 0);
        assert_lines("#![cfg(test)]\nfn f() {}\n", 0, 2);
        assert_lines("mod a {\n    #![cfg(test)]\n    fn f() {}\n}\nfn g() {}\n", 1, 4);
        assert_lines("#[cfg(test)]\nmod a {\n    #[cfg(test)]\n    mod b {}\n}\n", 0, 5);
    }

    #[test]
    fn parts_of_items_may_be_for_tests() {
        assert_lines("struct A {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n", 3, 2);
        assert_lines("enum A {\n    #[cfg(test)]\n    B { c: u8 },\n    D,\n}\n", 3, 2);
        assert_lines("impl A {\n    #[cfg(test)]\n    fn f() {\n    }\n    fn g() {}\n}\n", 3, 3);
        let text = "fn f() {\n    #[cfg(test)]\n    let a = B {\n        c,\n    };\n    #[cfg(test)]\n    \
                    g(\n        1,\n    );\n    h();\n}\n";
        assert_lines(text, 3, 8);
        let arms = "#[cfg(test)]\nB { c } => d(\n    c,\n),\n_ => e,\n";
        assert_lines(&format!("fn f() {{\n    match a {{\n{arms}    }}\n}}\n"), 5, 4);
    }

    #[test]
    fn other_text_is_refused() {
        assert!(count("fn f( {").is_err());
        assert!(count("this is prose").is_err());
    }
}
