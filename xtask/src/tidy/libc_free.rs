//! The lower layers reach the kernel without libc.
//!
//! Our preload library interposes libc's symbols and is built on these crates: if they called libc, directly
//! or through the standard library's I/O, they would call themselves.

use super::manifest::Section;
use super::tokens::Named;
use super::{Finding, Tree};

/// The crates that must not call libc's I/O.
const CRATES: [&str; 3] = ["sakia-ring", "sakia-driver", "sakia-socket"];

/// The packages they must not depend on, except for tests.
const PACKAGES: [&str; 5] = ["libc", "mio", "polling", "socket2", "tokio"];

/// The paths they must not name, nor any below. `std` may be missing in front: the module may have been
/// imported. Addresses, which are data only, are in `core::net`.
const PATHS: &[&[&str]] = &[
    &["std", "fs"],
    &["std", "net"],
    &["std", "os", "unix", "net"],
    &["std", "os", "linux", "net"],
    &["std", "process", "Command"],
    &["std", "io", "Read"],
    &["std", "io", "Write"],
    &["std", "io", "Stdin"],
    &["std", "io", "Stdout"],
    &["std", "io", "Stderr"],
    &["std", "io", "stdin"],
    &["std", "io", "stdout"],
    &["std", "io", "stderr"],
    &["std", "io", "prelude"],
    &["libc"],
    &["socket2"],
    &["polling"],
];

const MACROS: [&str; 4] = ["print", "println", "eprint", "eprintln"];

/// The sources use nothing that may call libc; tests, examples and documentation may.
pub(super) fn sources(tree: &Tree, findings: &mut Vec<Finding>) {
    for name in CRATES {
        for file in tree.sources(&[&format!("crates/{name}/src/")]) {
            let Some(tokens) = file.tokens() else { continue };
            for path in tokens.product_paths() {
                if let Some(what) = forbidden(path) {
                    let message = format!("{name} must not use {what}: it may end in libc");
                    findings.push(Finding::new(file, path.line, message));
                }
            }
        }
    }
}

/// The manifests name no package that calls libc.
pub(super) fn dependencies(tree: &Tree, findings: &mut Vec<Finding>) {
    for manifest in tree.crates() {
        let Some(name) = manifest.name().filter(|name| CRATES.contains(name)) else {
            continue;
        };
        for dependency in manifest.dependencies() {
            let package = dependency.package.as_str();
            if dependency.section == Section::Normal && PACKAGES.contains(&package) {
                let message = format!("{name} must not depend on {package}: it calls libc");
                findings.push(Finding::new(manifest.file, dependency.line, message));
            }
        }
    }
}

/// Returns the forbidden path, as it is written.
fn forbidden(path: &Named) -> Option<String> {
    let segments = path.parts();
    let written = segments.join("::");
    if path.is_macro {
        let name = segments.last()?;
        return MACROS.contains(name).then(|| format!("{written}!"));
    }
    // A lone name is a variable, or comes from an import that is checked itself.
    if segments.len() < 2 {
        return None;
    }
    // `module::*` imports the forbidden names below it.
    let (open, stem) = match segments.split_last()? {
        (&"*", stem) => (true, stem),
        _ => (false, &segments[..]),
    };
    let hit = PATHS.iter().any(|wanted| {
        // Imported modules are identified by the name just above the forbidden one.
        let short = &wanted[wanted.len().saturating_sub(2)..];
        let imported = wanted.len() > 2 && stem.starts_with(short);
        imported || stem.starts_with(wanted) || (open && wanted.starts_with(stem))
    });
    hit.then_some(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::findings;

    fn in_ring(text: &str) -> Vec<String> {
        findings(sources, &[("crates/sakia-ring/src/lib.rs", text)])
    }

    #[test]
    fn std_without_input_and_output_passes() {
        let text = "//! Like `std::fs::read`.\n\
                    use std::io::{self, IoSlice};\n\
                    use std::{mem, process, sync::Arc};\n\
                    use rustix::{fs, io::read, net};\n\
                    use std::os::fd::*;\n\
                    /// ```\n/// std::fs::read(\"x\");\n/// println!();\n/// ```\n\
                    fn f(libc: u32) -> io::Error { process::abort(); fs::open(\"std::fs\") }\n";
        assert_eq!(in_ring(text), [""; 0]);
    }

    #[test]
    fn each_forbidden_name_is_found() {
        for code in [
            "use std::fs;",
            "use std::{mem, fs::File};",
            "fn f() { std::fs::read(x); }",
            "use std::net::TcpStream;",
            "use std::os::unix::net::UnixStream;",
            "use std::process::Command;",
            "use std::process; fn f() { process::Command::new(x); }",
            "use std::io::{self, Read};",
            "use std::io::Write as _;",
            "use std::io::prelude::*;",
            "use std::io::*;",
            "use std::io; fn f() { io::stderr().lock(); }",
            "use libc::read;",
            "fn f() { ::libc::close(1); }",
            "type S = socket2::Socket;",
            "use polling::Poller;",
            "fn f() { println!(); }",
            "fn f() { m!(std::eprintln!(x)); }",
        ] {
            assert_eq!(in_ring(code).len(), 1, "{code}: {:?}", in_ring(code));
        }
        let expected =
            "crates/sakia-ring/src/lib.rs:2: sakia-ring must not use std::fs: it may end in libc";
        assert_eq!(in_ring("use std::{\n    fs,\n};\n"), [expected]);
    }

    #[test]
    fn tests_examples_and_other_crates_are_free() {
        let text = "use std::fs;\n";
        let files = [
            ("crates/sakia-ring/src/lib.rs", "#[cfg(test)]\nmod tests { use std::fs; }\n"),
            ("crates/sakia-ring/src/a.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/sakia-ring/src/a/tests.rs", text),
            ("crates/sakia-ring/tests/lib.rs", text),
            ("crates/sakia-ring/examples/cat.rs", text),
            ("crates/sakia-cli/src/main.rs", text),
        ];
        assert_eq!(findings(sources, &files), [""; 0]);
    }

    #[test]
    fn packages_that_call_libc_are_found() {
        let path = "crates/sakia-driver/Cargo.toml";
        let head = "[package]\nname = \"sakia-driver\"\n";
        let good =
            format!("{head}[dependencies]\nrustix = \"1\"\n[dev-dependencies]\nlibc = \"1\"\n");
        assert_eq!(findings(dependencies, &[(path, &good)]), [""; 0]);
        let bad = format!("{head}[target.'cfg(unix)'.dependencies]\nmio = \"1\"\n");
        let expected =
            "crates/sakia-driver/Cargo.toml:4: sakia-driver must not depend on mio: it calls libc";
        assert_eq!(findings(dependencies, &[(path, &bad)]), [expected]);
        let renamed =
            format!("{head}[dependencies]\nc = {{ package = \"libc\", version = \"0.2\" }}\n");
        assert_eq!(findings(dependencies, &[(path, &renamed)]).len(), 1);
    }
}
