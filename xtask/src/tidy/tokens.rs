//! Rust files as tokens: paths, macros and attributes, without comments and strings.
//!
//! Full parsing would not see into macro calls; it identifies the code for tests only. A path is a run of
//! names with `::` between them, and a list in braces after `::` is the end of several paths at once.

use std::ops::Range;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};

use super::{File, Finding, Tree};
use crate::test_code::TestCode;

/// Reports files that are not Rust tokens; the other checks pass over them.
pub(super) fn parse(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files_of(&["rs"]) {
        if let Err(line) = Tokens::scan(&file.text) {
            findings.push(Finding::new(file, line, "not Rust"));
        }
    }
}

/// Facts from a Rust file for the checks.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The paths in the code, each as long as it is written. A single name, even a keyword, is a path too.
    pub(super) paths: Vec<Named>,
    /// The statics, by their names; those of threads and of macros too.
    pub(super) statics: Vec<Named>,
    /// The attributes, in tests too.
    pub(super) attributes: Vec<Attribute>,
    /// The modules in files of their own that are for tests only.
    test_modules: Vec<String>,
    /// The bytes of code that is for tests only.
    for_tests: Vec<Range<usize>>,
}

/// A path in the code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The names between the `::`; `*` is the last of a path that means all names.
    pub(super) segments: Vec<String>,
    /// A `!` and a macro's arguments follow.
    pub(super) is_macro: bool,
    /// It is in code for tests only.
    pub(super) in_test: bool,
    /// The line that the path ends in, from 1.
    pub(super) line: usize,
}

impl Named {
    /// Returns the names between the `::`.
    pub(super) fn parts(&self) -> Vec<&str> {
        self.segments.iter().map(String::as_str).collect()
    }
}

/// `#[text]` or `#![text]`.
#[derive(Debug)]
pub(super) struct Attribute {
    /// The text between the brackets, without spaces.
    pub(super) text: String,
    /// It has the `!`.
    is_inner: bool,
    /// The line it begins at, from 1.
    pub(super) line: usize,
}

impl Tokens {
    /// # Errors
    /// The line at which `text` stops being Rust.
    pub(super) fn scan(text: &str) -> Result<Self, usize> {
        let stream = TokenStream::from_str(text).map_err(|error| error.span().start().line)?;
        let file = syn::parse2(stream.clone()).map_err(|error| error.span().start().line)?;
        let TestCode { spans, modules, .. } = TestCode::of(&file);
        let for_tests = spans.iter().map(Span::byte_range).collect();
        let mut tokens = Self { for_tests, test_modules: modules, ..Self::default() };
        tokens.walk(stream);
        Ok(tokens)
    }

    /// Returns the paths in the code that is not for tests only.
    pub(super) fn product_paths(&self) -> impl Iterator<Item = &Named> {
        self.paths.iter().filter(|path| !path.in_test)
    }

    /// Returns whether `#![text]` is present; `text` has no spaces.
    pub(super) fn has_inner(&self, text: &str) -> bool {
        self.attributes.iter().any(|attribute| attribute.is_inner && attribute.text == text)
    }

    fn walk(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut index = 0;
        while let Some(token) = tokens.get(index) {
            let is_lifetime =
                index.checked_sub(1).is_some_and(|last| is_punct(tokens.get(last), '\''));
            if matches!(token, TokenTree::Ident(name) if name == "static") && !is_lifetime {
                self.static_of(&tokens[index + 1..]);
            }
            index += match token {
                TokenTree::Group(group) => {
                    self.walk(group.stream());
                    1
                }
                TokenTree::Ident(_) => self.path(&tokens[index..], &[]),
                _ => self.attribute(&tokens[index..]).unwrap_or(1),
            };
        }
    }

    /// Records the static whose declaration goes on with `tokens`. In a macro's text the name may be `$name`.
    fn static_of(&mut self, tokens: &[TokenTree]) {
        let is_name = |token: &&TokenTree| matches!(token, TokenTree::Ident(name) if name != "mut");
        let Some((place, name)) =
            tokens.iter().enumerate().take(2).find(|(_, token)| is_name(token))
        else {
            return;
        };
        let sign = if place == 1 && is_punct(tokens.first(), '$') { "$" } else { "" };
        let span = name.span();
        let in_test = self.is_for_tests(span);
        let segments = vec![format!("{sign}{name}")];
        let line = span.start().line;
        self.statics.push(Named { segments, is_macro: false, in_test, line });
    }

    fn is_for_tests(&self, span: Span) -> bool {
        self.for_tests.iter().any(|part| part.contains(&span.byte_range().start))
    }

    /// Records the attribute that `tokens` begin with; returns its length in tokens.
    fn attribute(&mut self, tokens: &[TokenTree]) -> Option<usize> {
        if !is_punct(tokens.first(), '#') {
            return None;
        }
        let is_inner = is_punct(tokens.get(1), '!');
        let length = if is_inner { 3 } else { 2 };
        let group = group_of(tokens.get(length - 1), Delimiter::Bracket)?;
        let mut text = group.stream().to_string();
        text.retain(|c| !c.is_whitespace());
        let line = group.span_open().start().line;
        self.attributes.push(Attribute { text, is_inner, line });
        Some(length)
    }

    /// Records the path, or the list of paths, that `tokens` begin with, after `prefix`; returns its length
    /// in tokens, at least 1.
    fn path(&mut self, tokens: &[TokenTree], prefix: &[String]) -> usize {
        let mut segments = prefix.to_vec();
        let mut index = 0;
        loop {
            match tokens.get(index) {
                Some(TokenTree::Ident(name)) => segments.push(name.to_string()),
                Some(TokenTree::Punct(star)) if star.as_char() == '*' && !segments.is_empty() => {
                    segments.push("*".to_owned());
                }
                Some(TokenTree::Group(list)) if list.delimiter() == Delimiter::Brace => {
                    let tokens: Vec<TokenTree> = list.stream().into_iter().collect();
                    let parts = tokens.split(|token| is_punct(Some(token), ','));
                    for part in parts.filter(|part| !part.is_empty()) {
                        self.path(part, &segments);
                    }
                    return index + 1;
                }
                _ => return index.max(1),
            }
            let span = tokens[index].span();
            index += 1;
            let continues = is_punct(tokens.get(index), ':')
                && is_punct(tokens.get(index + 1), ':')
                && is_path_part(tokens.get(index + 2));
            if !continues {
                let is_macro = is_punct(tokens.get(index), '!')
                    && matches!(tokens.get(index + 1), Some(TokenTree::Group(_)));
                let in_test = self.is_for_tests(span);
                self.paths.push(Named { segments, is_macro, in_test, line: span.start().line });
                return index;
            }
            index += 2;
        }
    }
}

/// Returns the Rust files among `files` that are compiled for tests only, because of a `mod` under
/// `#[cfg(test)]`.
pub(crate) fn test_files<'a>(files: &[&'a File]) -> Vec<&'a str> {
    let mut places = Vec::new();
    for file in files {
        let Some(tokens) = file.tokens() else { continue };
        let folder = match file.path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder,
            _ => file.path.trim_end_matches(".rs"),
        };
        places.extend(tokens.test_modules.iter().map(|module| format!("{folder}/{module}")));
    }
    let is_test = |path: &str| {
        places.iter().any(|place| {
            let rest = path.strip_prefix(place.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    files.iter().map(|file| file.path.as_str()).filter(|path| is_test(path)).collect()
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// Returns whether a path continues with this after `::`. Type arguments end it: the checked paths have
/// none.
fn is_path_part(token: Option<&TokenTree>) -> bool {
    is_punct(token, '*')
        || matches!(token, Some(TokenTree::Ident(_)))
        || group_of(token, Delimiter::Brace).is_some()
}

fn group_of(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    /// Returns the paths of two names and more, outside tests, as they would be written one by one.
    fn paths(text: &str) -> Vec<String> {
        let tokens = Tokens::scan(text).unwrap();
        let long = tokens.paths.iter().filter(|path| path.segments.len() > 1 && !path.in_test);
        long.map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn broken_rust_is_found() {
        assert_eq!(findings(parse, &[("a.rs", "fn a() {}\n")]), [""; 0]);
        assert_eq!(findings(parse, &[("a.rs", "fn a() {}\nfn b( {\n")]).len(), 1);
    }

    #[test]
    fn comments_and_strings_hold_no_paths() {
        let text = "//! a::b\n/// a::b\n// a::b\n/* a::b */\nconst A: &str = \"a::b\";\n\
                    const B: &str = r#\"a::b\"#;\n";
        assert_eq!(paths(text), [""; 0]);
    }

    #[test]
    fn lists_are_taken_apart() {
        let text = "use std::{fs, io::{self, Read as _, prelude::*}, sync::Arc};\n";
        let expected =
            ["std::fs", "std::io::self", "std::io::Read", "std::io::prelude::*", "std::sync::Arc"];
        assert_eq!(paths(text), expected);
    }

    #[test]
    fn paths_in_types_blocks_and_macros_are_seen() {
        let text =
            "fn f(x: ::a::b<c::d>) -> <e::f as g::h>::I {\n  j!(k::l);\n  m::<n::o>::p(x)\n}\n";
        assert_eq!(paths(text), ["a::b", "c::d", "e::f", "g::h", "k::l", "n::o"]);
    }

    #[test]
    fn macros_are_told_from_negations() {
        let tokens = Tokens::scan("fn f() {\n  a!(b != c, !(d));\n  e::g! {}\n}\n").unwrap();
        let macros = tokens.paths.iter().filter(|path| path.is_macro);
        let found: Vec<_> = macros.map(|path| (path.segments.join("::"), path.line)).collect();
        assert_eq!(found, [("a".to_owned(), 2), ("e::g".to_owned(), 3)]);
    }

    #[test]
    fn test_code_is_told_apart() {
        let text = "use a::a;\n\
                    #[cfg(test)]\n#[allow(x)]\nmod tests { use b::b; fn f() { b::c() } }\n\
                    #[cfg(all(test, unix))]\nfn f<T, U>(x: b::b) { b::c() }\n\
                    #[cfg(test)] use b::b;\n\
                    struct S { #[cfg(test)] x: b::b, y: a::b }\n\
                    #[cfg(not(test))]\nuse a::c;\n\
                    #[cfg(any(test, unix))]\nuse a::d;\n";
        assert_eq!(paths(text), ["a::a", "a::b", "a::c", "a::d"]);
        assert_eq!(paths("#![cfg(test)]\nuse a::a;\nmod m { use a::a; }\n"), [""; 0]);
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_followed() {
        let file = |path: &str, text: &str| File::new(path, text);
        let files = [
            file("c/src/lib.rs", "mod a;\n#[cfg(test)]\npub(crate) mod tests;\n"),
            file("c/src/tests.rs", "mod deep;\n"),
            file("c/src/tests/deep.rs", ""),
            file("c/src/testsuite.rs", ""),
            file("c/src/a.rs", "#[cfg(test)]\nmod tests;\n"),
            file("c/src/a/tests.rs", ""),
        ];
        let files: Vec<&File> = files.iter().collect();
        let expected = ["c/src/tests.rs", "c/src/tests/deep.rs", "c/src/a/tests.rs"];
        assert_eq!(test_files(&files), expected);
    }

    #[test]
    fn inner_attributes_are_told_from_outer_ones() {
        let tokens = Tokens::scan("#![forbid( unsafe_code )]\n#[deny(x)]\nfn f() {}\n").unwrap();
        assert!(tokens.has_inner("forbid(unsafe_code)"));
        assert!(!tokens.has_inner("deny(x)"));
        assert_eq!(tokens.attributes[1].line, 2);
    }
}
