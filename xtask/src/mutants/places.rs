//! Finds the text of a known bug in the function that it stands in.
//!
//! White space does not count, so that an entry survives a change of indentation. Code for tests only is
//! skipped.

use std::fmt::Write;
use std::ops::Range;
use std::sync::LazyLock;

use anyhow::Context;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use regex::Regex;
use syn::spanned::Spanned;

use crate::functions::{self, Functions, Owner};

/// A function with a body.
#[derive(Clone, Debug)]
pub(super) struct Function {
    /// Its name, after the name of the type or trait whose `impl` it is in and `::`.
    pub(super) path: String,
    /// The bytes of its body, with the braces.
    pub(super) body: Range<usize>,
    /// Its result is an `impl Trait`, whose branches must all have the same type.
    pub(super) is_opaque: bool,
    /// It may run at compile time, when no bug can be switched on.
    pub(super) is_const: bool,
}

/// Returns the functions of a file, except those for tests.
///
/// # Errors
/// The file is not Rust.
pub(super) fn functions(text: &str) -> anyhow::Result<Vec<Function>> {
    let file = syn::parse_file(text).context("is not Rust")?;
    let found = Functions::of(&file);
    let mut functions: Vec<_> = found.all.iter().filter_map(Function::of).collect();
    for item in found.macros {
        add_of_tokens(item.tokens.clone(), &mut functions);
    }
    Ok(functions)
}

impl Function {
    /// Returns `None` if it has no body.
    fn of(found: &functions::Function<'_>) -> Option<Self> {
        let functions::Function { owner, signature, block, .. } = found;
        let scope = match owner {
            Owner::Nothing => None,
            Owner::Impl(item) => type_name(&item.self_ty),
            Owner::Trait(item) => Some(&item.ident),
        };
        let name = &signature.ident;
        Some(Self {
            path: scope.map_or_else(|| name.to_string(), |scope| format!("{scope}::{name}")),
            body: block.as_ref()?.span().byte_range(),
            is_opaque: matches!(&signature.output, syn::ReturnType::Type(_, output)
                if matches!(**output, syn::Type::ImplTrait(_))),
            is_const: signature.constness.is_some(),
        })
    }
}

/// Adds the functions written in a macro: in a call, or in its definition.
fn add_of_tokens(tokens: TokenStream, functions: &mut Vec<Function>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_word = |at: Option<usize>, wanted: &str| {
        let token = at.and_then(|at| tokens.get(at));
        matches!(token, Some(TokenTree::Ident(word)) if word == wanted)
    };
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => add_of_tokens(group.stream(), functions),
            TokenTree::Ident(name) if is_word(index.checked_sub(1), "fn") => {
                let body = tokens[index..].iter().find_map(|token| match token {
                    TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                        Some(Some(body))
                    }
                    TokenTree::Punct(end) if end.as_char() == ';' => Some(None),
                    _ => None,
                });
                let Some(body) = body.flatten() else { continue };
                functions.push(Function {
                    path: name.to_string(),
                    body: body.span().byte_range(),
                    is_opaque: false,
                    is_const: is_word(index.checked_sub(2), "const"),
                });
            }
            _ => {}
        }
    }
}

fn type_name(of: &syn::Type) -> Option<&syn::Ident> {
    match of {
        syn::Type::Path(path) => Some(&path.path.segments.last()?.ident),
        syn::Type::Reference(reference) => type_name(&reference.elem),
        _ => None,
    }
}

/// The place of a text.
#[derive(Debug)]
pub(super) struct Place {
    /// The innermost function around it.
    pub(super) function: Function,
    /// Its own bytes.
    pub(super) range: Range<usize>,
}

/// Finds the one place of `wanted` in a function named `name`, of a file's text and its functions.
///
/// # Errors
/// It is missing, or not unique; the message shows the most similar text.
pub(super) fn find(
    text: &str,
    functions: &[Function],
    name: &str,
    wanted: &str,
) -> Result<Place, String> {
    let named = |function: &&Function| is_named(function, name);
    let bodies: Vec<&Function> = functions.iter().filter(named).collect();
    let mut found = Vec::new();
    for function in &bodies {
        let begin = function.body.start;
        let matches = occurrences(&text[function.body.clone()], wanted);
        found.extend(matches.into_iter().map(|m| m.start + begin..m.end + begin));
    }
    if let [range] = &found[..] {
        let innermost = innermost(functions, range).ok_or("the text is outside of functions")?;
        if innermost.is_const {
            return Err(format!("{name} is a `const fn`, in which nothing can be switched on"));
        }
        return Ok(Place { function: innermost.clone(), range: range.clone() });
    }
    let mut message = match (&bodies[..], found.len()) {
        ([], _) => format!("there is no function {name} in this file"),
        (_, 0) => format!("the text is not in {name}"),
        (_, count) => format!("the text is {count} times in {name}"),
    };
    for range in found {
        let _ = write!(message, "\n  line {}", line_of(text, range.start));
    }
    if let Some(nearest) = nearest(text, functions, name, wanted) {
        let _ = write!(message, "\n  nearest: {nearest}");
    }
    Err(message)
}

/// Returns whether an entry's name of a function is this one's: `name`, or `Type::name`.
fn is_named(function: &Function, name: &str) -> bool {
    function.path == name || function.path.rsplit("::").next() == Some(name)
}

/// A word, or a sign of one character.
static TOKEN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\w+|[^\w\s]").expect("a pattern without mistakes"));

/// Returns the places of `wanted` in `text`, ignoring white space except between two words.
pub(super) fn occurrences(text: &str, wanted: &str) -> Vec<Range<usize>> {
    let (mut pattern, mut is_after_word) = (String::new(), None);
    for token in TOKEN.find_iter(wanted).map(|token| token.as_str()) {
        let is_word = token.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        pattern += match is_after_word.replace(is_word) {
            None => "",
            Some(is_after_word) if is_after_word && is_word => r"\s+",
            Some(_) => r"\s*",
        };
        pattern += &regex::escape(token);
    }
    if pattern.is_empty() {
        return Vec::new();
    }
    let pattern = Regex::new(&pattern).expect("only escaped characters and white space");
    pattern.find_iter(text).map(|found| found.range()).collect()
}

/// Returns the lines most similar to `wanted`, with their function and line; those of the named function if
/// it is as good.
fn nearest(text: &str, functions: &[Function], name: &str, wanted: &str) -> Option<String> {
    let count = wanted.trim().lines().count().max(1);
    let candidates = line_starts(text).filter_map(|at| {
        let function = innermost(functions, &(at..at + 1))?;
        let len = text[at..].split_inclusive('\n').take(count).map(str::len).sum::<usize>();
        let found = text[at..at + len].trim_end();
        let likeness = strsim::sorensen_dice(wanted, found);
        let of_meant = if is_named(function, name) { 1e-6 } else { 0.0 };
        (likeness > 0.0).then_some((likeness + of_meant, at, function, found))
    });
    let (_, at, function, found) = candidates.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!("line {}, in {}:\n{found}", line_of(text, at), function.path))
}

/// Returns the starts of the lines of a text.
fn line_starts(text: &str) -> impl Iterator<Item = usize> {
    [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1))
}

/// Returns the innermost function around some bytes.
pub(super) fn innermost<'f>(
    functions: &'f [Function],
    range: &Range<usize>,
) -> Option<&'f Function> {
    let is_around = |function: &&Function| contains(&function.body, range);
    functions.iter().filter(is_around).min_by_key(|function| function.body.len())
}

pub(super) fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Returns the line of a byte, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r"
impl<T> Core<T> {
    fn push(&mut self) {
        self.credits -= 1;
        self.in_flight += 1;
    }
}
impl Wake for Shared {
    fn wake(&self) { go(self.key(), true) }
}
fn wake() -> bool {
    fn inner() { go(1) }
    go(2)
}
const fn fixed() -> u32 { 3 }
macro_rules! writers {
    ($of:ty) => {
        impl $of {
            fn write(&self) -> impl Future { self.at(fn_of(5)) }
            async fn write_all(&self) { while self.write().await < 7 {} }
        }
    };
}
#[cfg(test)]
mod tests {
    fn push() { self.credits -= 1 }
}
";

    fn place(name: &str, wanted: &str) -> Result<Place, String> {
        find(FILE, &functions(FILE).unwrap(), name, wanted)
    }

    fn found(name: &str, wanted: &str) -> Result<&'static str, String> {
        place(name, wanted).map(|place| &FILE[place.range])
    }

    #[test]
    fn texts_are_found_whatever_their_white_space() {
        assert_eq!(found("push", "self . credits-=1;").unwrap(), "self.credits -= 1;");
        let both = "self.credits -= 1;\nself.in_flight += 1;";
        assert!(found("Core::push", both).unwrap().ends_with("+= 1;"));
        assert_eq!(found("Shared::wake", "go(self.key(), true)").unwrap(), "go(self.key(), true)");
        let body = |name, wanted| &FILE[place(name, wanted).unwrap().function.body];
        assert_eq!(body("wake", "go(1)"), "{ go(1) }");
        assert_eq!(body("write_all", "< 7"), "{ while self.write().await < 7 {} }");
    }

    #[test]
    fn what_is_not_found_is_told_with_what_is_most_like_it() {
        let error = found("push", "self.credits -= 2;").unwrap_err();
        assert!(
            error.contains("not in push") && error.contains("line 4, in Core::push"),
            "{error}"
        );
        let error = found("pushed", "self.in_flight += 1;").unwrap_err();
        assert!(error.contains("no function pushed") && error.contains("line 5"), "{error}");
        let error = found("wake", "go(").unwrap_err();
        assert!(error.contains("3 times"), "{error}");
        assert!(found("fixed", "3").unwrap_err().contains("const fn"));
    }
}
