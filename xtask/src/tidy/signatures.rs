//! Parameters of safe functions in the ring and the driver.
//!
//! Both crates give memory and descriptors to the kernel. A caller that can pass any number or address to a
//! safe function can close, change or overwrite resources of another part of the program, and a comment such
//! as "only the driver calls this" does not prevent it. So a parameter that is a raw descriptor or an
//! address requires an `unsafe fn`, or a function that is private to its module, where its calls can be
//! proved. For public functions (`pub`, and the methods of a public trait) the rule includes the kernel's
//! records that hold either.
//!
//! - A raw descriptor is a parameter with a `RawFd` or an `i32` in its type, unless its name is one of the
//!   [`PLAIN`] ones; or a `u32` with a name that descriptors have.
//! - An address is a pointer, a `NonNull`, or a `u64` or `usize` with a name that addresses have.
//! - The records are [`RECORDS`].
//!
//! Builders that return a record, or `Self` in its `impl`, are exempt: a record does nothing by itself, and
//! pushing an entry is unsafe. A method of an `impl` of a trait has the signature of the trait, where it is
//! checked. [`EXCEPTIONS`] are few, each with the reason why it is sound; unused ones are reported.

use std::str::FromStr;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{FnArg, Pat, PatType, ReturnType, Safety, Signature, Type, TypePtr, Visibility};

use super::{Finding, Tree};
use crate::functions::{Function, Functions, Owner};

/// The folders of the rule.
const FOLDERS: &[&str] = &["crates/sakia-ring/src/", "crates/sakia-driver/src/"];

/// Records of the kernel that hold descriptors or addresses.
const RECORDS: &[&str] =
    &["Call", "IoVec", "Message", "Params", "Request", "Sqe", "iovec", "msghdr"];

/// Names of an `i32` that is no descriptor.
const PLAIN: &[&str] = &["errno", "res", "result", "signal", "signals"];

/// Names of a `u32` that is a descriptor.
const DESCRIPTORS: &[&str] = &["descriptor", "dir", "epoll", "fd", "raw", "ring"];

/// Names of a `u64` or `usize` that is an address.
const ADDRESSES: &[&str] = &["addr", "address", "path", "pointer", "ptr", "vector"];

/// A safe function with an exemption: the file, or a folder with a `/` at its end; the function, or `*` for
/// all; the reason why a caller can do no harm with it.
struct Exception(&'static str, &'static str, &'static str);

const DRIVER: &str = "crates/sakia-driver/src/driver.rs";
const SYS: &str = "crates/sakia-driver/src/sys.rs";
const CALL: &str = "crates/sakia-driver/src/call.rs";
const RING: &str = "crates/sakia-ring/src/ring.rs";
const REGISTRY: &str = "crates/sakia-driver/src/epoll/registry.rs";
const TABLE: &str = "crates/sakia-driver/src/fd/table.rs";
const LOOK: &str = "a look into a table, without a call";
const WATCH: &str = "a note in a table; watching a file changes nothing about it";
const END_OF_WATCH: &str = "a note in a table; at most a watch of this backend's own set ends";

const EXCEPTIONS: &[Exception] = &[
    Exception(
        "crates/sakia-driver/src/sim/",
        "*",
        "numbers of the simulated kernel, which are no descriptors of the process; what makes use \
         of an entry's memory there is unsafe",
    ),
    Exception(
        DRIVER,
        "adopt_simulated",
        "panics unless the driver is on the simulated kernel: the number is that kernel's",
    ),
    Exception(
        "crates/sakia-driver/src/event_loop/",
        "submit",
        "another type of the same name: an operation that owns its memory and keeps its files open",
    ),
    Exception(CALL, "address", "the number that a pointer is"),
    Exception(CALL, "word", "the number that a pointer is"),
    Exception(TABLE, "find", "finds only an open descriptor of the driver, and keeps it open"),
    Exception(REGISTRY, "find", LOOK),
    Exception(REGISTRY, "wait", WATCH),
    Exception(REGISTRY, "wait_poll", WATCH),
    Exception(REGISTRY, "note_socket", "a note in a table, without a call"),
    Exception(REGISTRY, "forget_descriptor", END_OF_WATCH),
    Exception(REGISTRY, "is_own", LOOK),
    Exception(SYS, "register", "the same number in the form of a register"),
    Exception(RING, "from_raw", "a position in the queue, no descriptor"),
];

/// Reports safe functions that take descriptors, addresses or records of these.
pub(super) fn hand_nothing_over(tree: &Tree, findings: &mut Vec<Finding>) {
    check(tree, EXCEPTIONS, findings);
}

fn check(tree: &Tree, exceptions: &[Exception], findings: &mut Vec<Finding>) {
    let files = tree.sources(FOLDERS);
    let mut used = vec![false; exceptions.len()];
    for file in &files {
        let Some(parsed) = file.parsed() else { continue };
        for Taken { function, parameter, what, line } in taken(parsed) {
            let allows = |&Exception(place, of, _): &Exception| {
                let is_there = match place.ends_with('/') {
                    true => file.path.starts_with(place),
                    false => file.path == place,
                };
                is_there && (of == "*" || of == function)
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
        let Exception(place, function, reason) = exception;
        let message = format!("no function needs the exception for `{function}`: {reason}");
        findings.push(Finding { path: (*place).to_owned(), line: 1, message });
    }
}

/// A forbidden parameter of a safe function.
struct Taken {
    function: String,
    parameter: String,
    what: &'static str,
    line: usize,
}

/// Checks each function of a file.
fn taken(file: &syn::File) -> Vec<Taken> {
    let mut found = Vec::new();
    let functions = Functions::of(file);
    for Function { owner, visibility, signature, .. } in &functions.all {
        let of_record = match owner {
            Owner::Impl(of) if of.trait_.is_some() => continue,
            Owner::Impl(of) => is_record(&of.self_ty),
            _ => false,
        };
        judge(visibility, signature, of_record, &mut found);
    }
    for item in functions.macros {
        let begin = found.len();
        // Without the `$` its variables are names.
        let text = item.tokens.to_string().replace('$', " ");
        if let Ok(tokens) = TokenStream::from_str(&text) {
            judge_tokens(tokens, &mut found);
        }
        found[begin..].iter_mut().for_each(|taken| taken.line = item.span().start().line);
    }
    found
}

/// Checks the `pub` functions written in a macro.
fn judge_tokens(tokens: TokenStream, found: &mut Vec<Taken>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "pub" => {
                let head = |input: ParseStream<'_>| {
                    Ok((input.parse()?, input.parse()?, input.parse::<TokenStream>()?))
                };
                let rest = tokens[index..].iter().cloned().collect();
                if let Ok((visibility, signature, _)) = head.parse2(rest) {
                    judge(&visibility, &signature, false, found);
                }
            }
            TokenTree::Group(group) => judge_tokens(group.stream(), found),
            _ => {}
        }
    }
}

/// Checks a function; `of_record`: `Self` is one of [`RECORDS`].
fn judge(visibility: &Visibility, signature: &Signature, of_record: bool, found: &mut Vec<Taken>) {
    let builds_record = match &signature.output {
        ReturnType::Type(_, output) => is_record(output) || of_record && is_named(output, "Self"),
        ReturnType::Default => false,
    };
    let is_private = matches!(visibility, Visibility::Inherited);
    if is_private || matches!(signature.safety, Safety::Unsafe(_)) || builds_record {
        return;
    }
    let is_public = matches!(visibility, Visibility::Public(_));
    for parameter in &signature.inputs {
        let FnArg::Typed(PatType { pat, ty, .. }) = parameter else { continue };
        if let Some(what) = what_is(pat, ty, is_public) {
            found.push(Taken {
                function: signature.ident.to_string(),
                parameter: pat.to_token_stream().to_string(),
                what,
                line: signature.ident.span().start().line,
            });
        }
    }
}

fn is_record(of: &Type) -> bool {
    RECORDS.iter().any(|record| is_named(of, record))
}

fn is_named(of: &Type, name: &str) -> bool {
    matches!(of, Type::Path(of) if of.path.is_ident(name))
}

/// Returns the kind of a forbidden parameter.
fn what_is(pattern: &Pat, kind: &Type, is_public: bool) -> Option<&'static str> {
    let (mut names, mut words) = (Words::default(), Words::default());
    names.visit_pat(pattern);
    words.visit_type(kind);
    let has = |wanted: &[&str]| words.all.iter().any(|word| wanted.contains(&word.as_str()));
    // A name with a leading underscore is unused here, but may be used by another implementation.
    let named =
        |wanted: &[&str]| names.all.iter().any(|n| wanted.contains(&n.trim_start_matches('_')));
    if has(&["RawFd"])
        || has(&["i32", "c_int"]) && !named(PLAIN)
        || has(&["u32"]) && named(DESCRIPTORS)
    {
        return Some("a raw descriptor");
    }
    if words.has_pointer || has(&["NonNull"]) || has(&["u64", "usize"]) && named(ADDRESSES) {
        return Some("an address");
    }
    (is_public && has(RECORDS)).then_some("a record of the kernel")
}

/// The names in a type or pattern, and whether there is a pointer.
#[derive(Default)]
struct Words {
    all: Vec<String>,
    has_pointer: bool,
}

impl<'a> Visit<'a> for Words {
    fn visit_ident(&mut self, name: &'a Ident) {
        self.all.push(name.to_string());
    }

    fn visit_type_ptr(&mut self, pointer: &'a TypePtr) {
        self.has_pointer = true;
        visit::visit_type_ptr(self, pointer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy;

    const PATH: &str = "crates/sakia-driver/src/a.rs";

    /// Returns the findings in a file of this text, with their parameters.
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
    fn functions_in_macros_are_found() {
        let text = "macro_rules! m { ($name:ident, $of:ty) => {\n\
                    impl $of { #[inline] pub(crate) fn $name(fd: i32, x: $of) {} fn b(fd: i32) {} }\n\
                    $(#[$doc])* pub unsafe fn c(fd: i32) {} } }\n\
                    n! { pub fn d(addr: u64) {} }\n";
        assert_eq!(reported(text), ["name: a raw descriptor", "d: an address"]);
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
            Exception(PATH, "a", "why a"),
            Exception("crates/sakia-driver/src/sim/", "*", "why all"),
            Exception(PATH, "gone", "why it was"),
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
        assert!(EXCEPTIONS.iter().all(|Exception(_, _, reason)| reason.split(' ').count() > 3));
    }
}
