//! Copies the code under test, with its atomics and locks replaced by this crate's.
//!
//! Beside the faithful copy it writes mutants, each with one bug, which the tests must catch. A
//! replacement that does not apply fails the build: then the code has changed, and this file is to
//! follow.

use std::path::Path;
use std::{env, fs};

const SOURCE: &str = "../../crates/sakia/src/remote.rs";

const IMPORTS: [(&str, &str); 1] = [("use std::sync::", "use crate::sync::")];

/// Name, what is replaced, by what.
const MUTANTS: [(&str, &str, &str); 5] = [
    // The thread sleeps without looking at its mail again.
    ("no_recheck", "if self.has_mail.load(Ordering::SeqCst) ||", "if"),
    // The sender's two steps may change places.
    (
        "weak_sender",
        "self.has_mail.store(true, Ordering::SeqCst);",
        "self.has_mail.store(true, Ordering::Release);",
    ),
    // The thread's two steps may change places.
    (
        "weak_thread",
        "self.parked.store(true, Ordering::SeqCst);",
        "self.parked.store(true, Ordering::Release);",
    ),
    // The thread ends a signal without having seen what was signaled.
    (
        "blind_take",
        "self.has_mail.swap(false, Ordering::SeqCst);",
        "self.has_mail.store(false, Ordering::Release);",
    ),
    // The thread sleeps though it was asked to end.
    ("no_stop_recheck", "|| self.is_stopping() {", "{"),
];

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let source = fs::read_to_string(SOURCE).expect("the code under test is where it was");
    // A file that is included cannot begin with the documentation of its module.
    let lines: Vec<&str> = source.lines().filter(|line| !line.starts_with("//!")).collect();
    let mut code = lines.join("\n");
    for (from, to) in IMPORTS {
        code = replaced(&code, from, to, 1..=usize::MAX);
    }
    write("remote", &code);
    for (name, from, to) in MUTANTS {
        write(name, &replaced(&code, from, to, 1..=1));
    }
}

fn replaced(code: &str, from: &str, to: &str, times: std::ops::RangeInclusive<usize>) -> String {
    let found = code.matches(from).count();
    assert!(times.contains(&found), "{SOURCE} has {found} times: {from}");
    code.replace(from, to)
}

fn write(name: &str, code: &str) {
    let folder = env::var_os("OUT_DIR").expect("Cargo says where");
    let path = Path::new(&folder).join(format!("{name}.rs"));
    fs::write(path, code).expect("Cargo's folder can be written");
}
