//! What a safe function of the ring or the driver may take.
//!
//! Both crates hand memory and descriptors to the kernel. Whoever can call a safe function with a number or
//! an address of its choice can close, change or overwrite what belongs to another part of the program, and
//! no comment such as "only the driver calls this" keeps a caller from that. So a parameter that is a raw
//! descriptor or an address belongs to an `unsafe fn`, or to a function that is private to its module and
//! therefore within sight of whoever proves its calls. For what outsiders can call (`pub`, and the methods
//! of a public trait) the same goes for the kernel's records that hold either.
//!
//! - A raw descriptor is a parameter with a `RawFd` or an `i32` in its type, unless its name is one of the
//!   [`PLAIN`] ones; or a `u32` with a name that descriptors have.
//! - An address is a pointer, a `NonNull`, or a `u64` or `usize` with a name that addresses have.
//! - The records are [`RECORDS`].
//!
//! Builders of records are exempt, which return one, or `Self` in its `impl`: a record does nothing by
//! itself, and pushing an entry is unsafe. A method of an `impl` of a trait has the signature of the trait,
//! and is judged there. [`EXCEPTIONS`] are few, and each says why it is sound; one that no function needs any
//! more is reported.

use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};

use super::tokens::{group_of, is_punct, item_len, test_files};
use super::{File, Finding, Tree};
use crate::test_code::is_cfg_test_text;

/// Where the rule holds.
const FOLDERS: &[&str] = &["crates/sakia-ring/src/", "crates/sakia-driver/src/"];

/// Records of the kernel that hold descriptors or addresses.
const RECORDS: &[&str] = &["IoVec", "Message", "Params", "Sqe", "iovec", "msghdr"];

/// Names of an `i32` that is no descriptor.
const PLAIN: &[&str] = &["errno", "res", "result"];

/// Names of a `u32` that is a descriptor.
const DESCRIPTORS: &[&str] = &["descriptor", "dir", "epoll", "fd", "raw", "ring"];

/// Names of a `u64` or `usize` that is an address.
const ADDRESSES: &[&str] = &["addr", "address", "path", "pointer", "ptr", "vector"];

/// A safe function that may take what others may not.
struct Exception {
    /// The file, or a folder with a `/` at its end.
    place: &'static str,
    /// The function; `*` for all.
    function: &'static str,
    /// Why a caller can do no harm with it.
    reason: &'static str,
}

const fn exception(place: &'static str, function: &'static str, reason: &'static str) -> Exception {
    Exception { place, function, reason }
}

const EXCEPTIONS: &[Exception] = &[
    exception(
        "crates/sakia-driver/src/sim/",
        "*",
        "numbers of the simulated kernel, which are no descriptors of the process; what makes use \
         of an entry's memory there is unsafe",
    ),
    exception(
        "crates/sakia-driver/src/driver.rs",
        "adopt",
        "of a driver on the simulated kernel: the number is that kernel's",
    ),
    exception(
        "crates/sakia-driver/src/driver.rs",
        "adopt_simulated",
        "panics unless the driver is on the simulated kernel: the number is that kernel's",
    ),
    exception(
        "crates/sakia-driver/src/epoll/machine.rs",
        "note_socket",
        "a note in a table, without a call",
    ),
    exception(
        "crates/sakia-driver/src/epoll/machine.rs",
        "forget_socket",
        "a note in a table; at most a watch of this backend's own set ends",
    ),
    exception(
        "crates/sakia-driver/src/epoll/machine.rs",
        "is_own",
        "a look into a table, without a call",
    ),
    exception(
        "crates/sakia-driver/src/epoll/registry.rs",
        "find",
        "a look into a table, without a call",
    ),
    exception(
        "crates/sakia-driver/src/epoll/registry.rs",
        "wait",
        "a note in a table; watching a file changes nothing about it",
    ),
    exception(
        "crates/sakia-driver/src/epoll/registry.rs",
        "wait_poll",
        "a note in a table; watching a file changes nothing about it",
    ),
    exception(
        "crates/sakia-driver/src/epoll/registry.rs",
        "release",
        "a note in a table; at most a watch of this backend's own set ends",
    ),
    exception(
        "crates/sakia-driver/src/sys.rs",
        "register",
        "the same number in the form of a register",
    ),
    exception(
        "crates/sakia-ring/src/ring.rs",
        "from_raw",
        "a position in the queue, no descriptor",
    ),
];

/// Reports safe functions that take descriptors, addresses or records of these.
pub(super) fn hand_nothing_over(tree: &Tree, findings: &mut Vec<Finding>) {
    check(tree, EXCEPTIONS, findings);
}

fn check(tree: &Tree, exceptions: &[Exception], findings: &mut Vec<Finding>) {
    let is_judged = |file: &&File| FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    let files: Vec<&File> = tree.files_of(&["rs"]).filter(is_judged).collect();
    let for_tests = test_files(&files);
    let mut used = vec![false; exceptions.len()];
    for file in files.iter().filter(|file| !for_tests.contains(&file.path.as_str())) {
        let Ok(stream) = TokenStream::from_str(&file.text) else { continue };
        let mut found = Vec::new();
        walk(stream, &Place::default(), &mut found);
        for Taken { function, parameter, what, line } in found {
            let allows = |exception: &Exception| {
                let is_there = match exception.place.ends_with('/') {
                    true => file.path.starts_with(exception.place),
                    false => file.path == exception.place,
                };
                is_there && (exception.function == "*" || exception.function == function)
            };
            match exceptions.iter().position(allows) {
                Some(index) => used[index] = true,
                None => {
                    let message = format!(
                        "`{function}` is safe and takes {what} (`{parameter}`): make it unsafe or private, \
                         or have it take a typed value"
                    );
                    findings.push(Finding::new(file, line, message));
                }
            }
        }
    }
    let is_tree_of_crates = files.iter().any(|file| file.name() == "lib.rs");
    for (exception, _) in exceptions.iter().zip(used).filter(|(_, used)| !used && is_tree_of_crates)
    {
        let Exception { place, function, reason } = exception;
        let message = format!("no function needs the exception for `{function}`: {reason}");
        findings.push(Finding { path: (*place).to_owned(), line: 1, message });
    }
}

/// What a safe function takes and must not.
struct Taken {
    function: String,
    parameter: String,
    what: &'static str,
    line: usize,
}

/// Who can call a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Its module.
    Module,
    /// The crate, or a part of it.
    Crate,
    /// Everybody.
    Public,
}

/// What is around an item.
#[derive(Clone, Default)]
struct Place {
    /// The methods of a trait have its reach.
    in_trait: Option<Reach>,
    /// The signatures are another item's.
    in_impl_of_trait: bool,
    /// `Self` is one of [`RECORDS`].
    in_impl_of_record: bool,
}

/// Judges each function in the tokens.
fn walk(stream: TokenStream, place: &Place, found: &mut Vec<Taken>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut index = 0;
    // Where the item begins that the next keyword belongs to, with its visibility.
    let mut begin = 0;
    while let Some(token) = tokens.get(index) {
        if is_punct(Some(token), '#') {
            let length = 1 + usize::from(is_punct(tokens.get(index + 1), '!'));
            let attribute = group_of(tokens.get(index + length), Delimiter::Bracket);
            let is_test = attribute.is_some_and(|group| {
                let mut text = group.stream().to_string();
                text.retain(|c| !c.is_whitespace());
                is_cfg_test_text(&text)
            });
            index += length + 1;
            if is_test {
                index += item_len(&tokens[index.min(tokens.len())..]);
            }
            begin = index;
            continue;
        }
        match token {
            TokenTree::Ident(word) if word == "fn" => {
                let reach = place.in_trait.unwrap_or_else(|| reach_of(&tokens[begin..index]));
                let is_unsafe = tokens[begin..index].iter().any(|token| is_word(token, "unsafe"));
                if !is_unsafe && !place.in_impl_of_trait && reach != Reach::Module {
                    judge(&tokens[index + 1..], reach, place, found);
                }
                index += 1;
            }
            TokenTree::Ident(word) if word == "trait" || word == "impl" => {
                let head = &tokens[index + 1..];
                let len =
                    head.iter().position(|token| group_of(Some(token), Delimiter::Brace).is_some());
                // `impl Trait` within a signature has no body of its own.
                let ends = head.iter().position(|token| is_punct(Some(token), ';'));
                match len {
                    Some(len)
                        if begins_item(&tokens[begin..index])
                            && ends.is_none_or(|end| len < end) =>
                    {
                        let inner =
                            inner_place(word == "trait", &tokens[begin..index], &head[..len]);
                        if let TokenTree::Group(body) = &head[len] {
                            walk(body.stream(), &inner, found);
                        }
                        index += len + 2;
                        begin = index;
                    }
                    _ => index += 1,
                }
            }
            TokenTree::Group(group) => {
                let is_body = group.delimiter() == Delimiter::Brace;
                if is_body {
                    // A module, a function's body, a macro's rules: what they hold is an item of its own.
                    walk(group.stream(), &Place::default(), found);
                    begin = index + 1;
                }
                index += 1;
            }
            _ => {
                index += 1;
                if is_punct(Some(token), ';') || is_punct(Some(token), ',') {
                    begin = index;
                }
            }
        }
    }
}

/// Whether only a visibility and `unsafe` come before.
fn begins_item(before: &[TokenTree]) -> bool {
    before.iter().all(|token| match token {
        TokenTree::Ident(word) => word == "pub" || word == "unsafe" || word == "default",
        TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
        _ => false,
    })
}

fn inner_place(is_trait: bool, before: &[TokenTree], head: &[TokenTree]) -> Place {
    if is_trait {
        return Place { in_trait: Some(reach_of(before)), ..Place::default() };
    }
    let end = head.iter().position(|token| is_word(token, "where")).unwrap_or(head.len());
    let head = &head[..end];
    Place {
        in_trait: None,
        // `for<'a>` of a bound would be in the generics or behind `where`.
        in_impl_of_trait: outside_generics(head).any(|token| is_word(token, "for")),
        in_impl_of_record: matches!(head, [TokenTree::Ident(name)] if is_record(name)),
    }
}

/// The tokens that are not between angle brackets.
fn outside_generics(tokens: &[TokenTree]) -> impl Iterator<Item = &TokenTree> {
    let mut depth = 0_u32;
    let mut last = ' ';
    tokens.iter().filter(move |token| {
        let before = std::mem::replace(&mut last, ' ');
        match token {
            TokenTree::Punct(punct) => {
                last = punct.as_char();
                match last {
                    '<' => depth += 1,
                    '>' if before != '-' && before != '=' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                false
            }
            _ => depth == 0,
        }
    })
}

fn reach_of(before: &[TokenTree]) -> Reach {
    let Some(at) = before.iter().position(|token| is_word(token, "pub")) else {
        return Reach::Module;
    };
    match group_of(before.get(at + 1), Delimiter::Parenthesis) {
        Some(_) => Reach::Crate,
        None => Reach::Public,
    }
}

/// Judges the function whose name and what follows that are `tokens`.
fn judge(tokens: &[TokenTree], reach: Reach, place: &Place, found: &mut Vec<Taken>) {
    let Some(TokenTree::Ident(name)) = tokens.first() else { return };
    let Some((at, parameters)) = parameters_of(tokens) else { return };
    if returns_record(&tokens[at + 1..], place) {
        return;
    }
    let parameters: Vec<TokenTree> = parameters.stream().into_iter().collect();
    for parameter in split(&parameters) {
        let Some(colon) = parameter.iter().position(|token| is_punct(Some(token), ':')) else {
            continue; // `self`
        };
        let (pattern, kind) = (&parameter[..colon], &parameter[colon + 1..]);
        if let Some(what) = what_is(pattern, kind, reach) {
            let text: TokenStream = pattern.iter().cloned().collect();
            let line = name.span().start().line;
            found.push(Taken {
                function: name.to_string(),
                parameter: text.to_string(),
                what,
                line,
            });
        }
    }
}

/// The parentheses behind a function's name and generics, and where they are.
fn parameters_of(tokens: &[TokenTree]) -> Option<(usize, &Group)> {
    let mut depth = 0_u32;
    let mut last = ' ';
    for (index, token) in tokens.iter().enumerate().skip(1) {
        let before = std::mem::replace(&mut last, ' ');
        match token {
            TokenTree::Punct(punct) => {
                last = punct.as_char();
                match last {
                    '<' => depth += 1,
                    '>' if before != '-' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            TokenTree::Group(group) if depth == 0 => return Some((index, group)),
            _ => {}
        }
    }
    None
}

fn is_record(name: &Ident) -> bool {
    RECORDS.iter().any(|record| name == record)
}

/// Whether a function returns a record, and nothing else.
fn returns_record(after: &[TokenTree], place: &Place) -> bool {
    let [dash, arrow, TokenTree::Ident(kind), end, ..] = after else { return false };
    is_punct(Some(dash), '-')
        && is_punct(Some(arrow), '>')
        && (is_record(kind) || place.in_impl_of_record && *kind == "Self")
        && (group_of(Some(end), Delimiter::Brace).is_some() || is_word(end, "where"))
}

/// The parts between commas that are not between angle brackets.
fn split(tokens: &[TokenTree]) -> Vec<&[TokenTree]> {
    let (mut parts, mut begin, mut depth, mut last) = (Vec::new(), 0, 0_u32, ' ');
    for (index, token) in tokens.iter().enumerate() {
        let before = std::mem::replace(&mut last, ' ');
        if let TokenTree::Punct(punct) = token {
            last = punct.as_char();
            match last {
                '<' => depth += 1,
                '>' if before != '-' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(&tokens[begin..index]);
                    begin = index + 1;
                }
                _ => {}
            }
        }
    }
    parts.push(&tokens[begin..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// What a parameter is that a safe function must not take.
fn what_is(pattern: &[TokenTree], kind: &[TokenTree], reach: Reach) -> Option<&'static str> {
    let mut words = Vec::new();
    let mut is_pointer = false;
    collect(kind, &mut words, &mut is_pointer);
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    let named = |names: &[&str]| {
        pattern.iter().any(|token| match token {
            // With an underscore in front it is not used here, but by another implementation.
            TokenTree::Ident(name) => names.contains(&name.to_string().trim_start_matches('_')),
            _ => false,
        })
    };
    if has(&["RawFd"])
        || has(&["i32", "c_int"]) && !named(PLAIN)
        || has(&["u32"]) && named(DESCRIPTORS)
    {
        return Some("a raw descriptor");
    }
    if is_pointer || has(&["NonNull"]) || has(&["u64", "usize"]) && named(ADDRESSES) {
        return Some("an address");
    }
    (reach == Reach::Public && has(RECORDS)).then_some("a record of the kernel")
}

/// The names in a type, within its groups too, and whether there is a pointer.
fn collect(kind: &[TokenTree], words: &mut Vec<String>, is_pointer: &mut bool) {
    for (index, token) in kind.iter().enumerate() {
        match token {
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                collect(&inner, words, is_pointer);
            }
            TokenTree::Punct(star) if star.as_char() == '*' => {
                let next = kind.get(index + 1);
                *is_pointer |=
                    next.is_some_and(|next| is_word(next, "const") || is_word(next, "mut"));
            }
            _ => {}
        }
    }
}

fn is_word(token: &TokenTree, wanted: &str) -> bool {
    matches!(token, TokenTree::Ident(word) if word == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy;

    const PATH: &str = "crates/sakia-driver/src/a.rs";

    /// The functions that are reported in a file of this text, with what they take.
    fn reported(text: &str) -> Vec<String> {
        let found = tidy::findings(|tree, findings| check(tree, &[], findings), &[(PATH, text)]);
        let short = |line: &String| {
            let (_, rest) = line.split_once(": `").expect("a finding names a function");
            let (name, rest) = rest.split_once("` is safe and takes ").expect("and what it takes");
            let (what, _) = rest.split_once(" (").expect("and the parameter");
            format!("{name}: {what}")
        };
        found.iter().map(short).collect()
    }

    #[test]
    fn descriptors_of_each_form_are_found() {
        let text = "pub fn a(raw: i32) {}\n\
                    impl S { pub fn b(&self, fd: RawFd) {} }\n\
                    pub fn c(x: Option<i32>, y: &[i32]) {}\n\
                    pub fn d(_ring: u32) {}\n\
                    pub(crate) fn e(slot: std::os::fd::RawFd) {}\n\
                    impl<T: Fn(u8) -> u8> S<T> { pub(super) const fn f(whatever: c_int) {} }\n\
                    pub trait T { fn g(&self, raw: i32); fn h(&self, raw: i32) { () } }\n\
                    pub(crate) trait U { fn i(&self, raw: i32); }\n\
                    pub fn j<F: Fn(u8) -> u8>(f: F, (a, b): (u8, i32)) {}\n\
                    mod m { pub fn k(raw: i32) {} }\n";
        let names: Vec<_> =
            "abccdefghijk".chars().map(|c| format!("{c}: a raw descriptor")).collect();
        assert_eq!(reported(text), names);
    }

    #[test]
    fn addresses_and_records_are_found() {
        let text = "pub fn a(x: *const u8) {}\n\
                    pub fn b<T>(x: Option<*mut T>) {}\n\
                    pub(crate) fn c(x: NonNull<u8>) {}\n\
                    pub fn d(addr: u64) {}\n\
                    pub fn e(_path: usize) {}\n\
                    pub fn f(x: &mut Params) {}\n\
                    pub fn g(x: &[IoVec]) {}\n\
                    pub trait T { fn h(&self, x: Sqe) -> u32; }\n";
        let mut expected: Vec<_> = "abcde".chars().map(|c| format!("{c}: an address")).collect();
        expected.extend("fgh".chars().map(|c| format!("{c}: a record of the kernel")));
        assert_eq!(reported(text), expected);
    }

    #[test]
    fn unsafe_private_and_typed_ones_pass() {
        let text = "pub unsafe fn a(raw: i32, x: *mut u8) {}\n\
                    fn b(raw: i32) {}\n\
                    impl S { fn c(raw: i32) {} pub unsafe extern \"C\" fn d(raw: i32) {} }\n\
                    trait T { fn e(raw: i32); }\n\
                    pub trait U { unsafe fn f(raw: i32); fn g(fd: BorrowedFd<'_>, n: u32, res: i32); }\n\
                    impl U for S { fn f(raw: i32) {} }\n\
                    impl<A> V<A> for S<A> where A: Fn(i32) { fn f(raw: i32) {} }\n\
                    pub(crate) fn h(sqe: &Sqe) {}\n\
                    pub fn i(n: usize, at: u64, len: u32, f: impl Fn(u8)) {}\n\
                    #[cfg(test)]\nmod tests { pub fn j(raw: i32) {} }\n";
        assert_eq!(reported(text), [""; 0]);
    }

    #[test]
    fn only_builders_of_records_are_exempt() {
        let text = "impl Sqe { pub const fn a(fd: i32) -> Self {} pub fn b(fd: i32) {} }\n\
                    impl Other { pub fn c(fd: i32) -> Self {} }\n\
                    pub fn d(fd: i32, x: *mut u8) -> Sqe {}\n\
                    impl Message { pub(crate) fn f(x: *mut u8) -> Self {} }\n\
                    pub fn e(fd: i32) -> Option<Sqe> {}\n";
        let expected = ["b", "c", "e"].map(|name| format!("{name}: a raw descriptor"));
        assert_eq!(reported(text), expected);
    }

    #[test]
    fn other_crates_and_files_for_tests_are_not_looked_at() {
        let files = [
            ("crates/sakia/src/a.rs", "pub fn a(raw: i32) {}"),
            ("crates/sakia-ring/src/host.rs", "#[cfg(test)]\nmod tests;"),
            ("crates/sakia-ring/src/host/tests.rs", "pub fn a(raw: i32) {}"),
        ];
        assert_eq!(tidy::findings(|tree, found| check(tree, &[], found), &files), [""; 0]);
    }

    #[test]
    fn exceptions_are_for_a_place_and_must_be_needed() {
        const LIST: &[Exception] = &[
            exception(PATH, "a", "why a"),
            exception("crates/sakia-driver/src/sim/", "*", "why all"),
            exception(PATH, "gone", "why it was"),
        ];
        let files = [
            ("crates/sakia-driver/src/lib.rs", ""),
            (PATH, "pub fn a(raw: i32) {}\npub fn b(raw: i32) {}\n"),
            ("crates/sakia-driver/src/sim/c.rs", "pub fn c(raw: i32) {}\n"),
        ];
        let found = tidy::findings(|tree, found| check(tree, LIST, found), &files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains(":1: no function needs the exception for `gone`"), "{found:?}");
        assert!(found[1].contains(":2: `b` is safe"), "{found:?}");
    }

    #[test]
    fn each_exception_has_a_reason() {
        assert!(EXCEPTIONS.iter().all(|exception| exception.reason.split(' ').count() > 3));
    }
}
