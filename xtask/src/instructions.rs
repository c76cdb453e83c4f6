//! `cargo xtask instructions`: instructions per operation, against loops written by hand and against
//! counts of an earlier commit.
//!
//! It runs programs under callgrind, twice per cell with different numbers of operations; the difference is
//! the cost of the operations alone. Instructions do not depend on the machine's load. Those of the kernel
//! are not counted. Needs `valgrind`.
//!
//! - [`loops`]: the driver and the ring, next to loops that make the same system calls.
//! - [`runtime`]: operations of a runtime, as programs use them.
//! - [`saved`]: a run's JSON, with which a later run is compared.
//! - [`sockets`]: `cargo xtask socket-instructions`, the sockets of library operating systems.
//! - [`path`]: `cargo xtask path`, the files that an operation of a runtime passes through.

mod loops;
pub(crate) mod path;
mod runtime;
mod saved;
pub(crate) mod sockets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::Context;
use serde_json::Value;

use self::saved::Saved;
use crate::cargo;

/// Counts of the same operation by one or several programs.
struct Row {
    /// The parameters of the operation.
    params: Value,
    /// Instructions per operation by name of variant.
    counts: Vec<(&'static str, f64)>,
}

/// Prints instructions per operation. Missed targets are printed like others. The exit status is 1 if
/// `check` is set and the ring misses its target, or if one of our counts is above the one saved in the file
/// `against`.
pub(crate) fn run(
    root: &Path,
    json: bool,
    check: bool,
    against: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let saved = against.map(Saved::read).transpose()?;
    let loops = build(root, "sakia-driver", "instructions")?;
    let operations = build(root, "sakia", "runtime_instructions")?;
    let (rows, is_reached) = with_data(|data| {
        let (mut rows, is_reached) = loops::measure(&loops, data, json)?;
        rows.extend(loops::measure_requests(&loops, data, json)?);
        rows.extend(runtime::measure(&operations, data, json)?);
        Ok((rows, is_reached))
    })?;
    let is_worse = saved.is_some_and(|saved| saved.compare(&rows, json));
    let is_failure = is_worse || check && !is_reached;
    Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Calls `run` with the path of a file of 4 KiB, which is removed afterwards.
fn with_data<T>(run: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    // A name of constant length, since operations on paths process their bytes.
    let name = format!("sakia-instructions-{:010}", std::process::id());
    let data = std::env::temp_dir().join(name);
    fs::write(&data, vec![7; 4096]).with_context(|| format!("write {}", data.display()))?;
    let result = run(&data);
    fs::remove_file(&data).with_context(|| format!("remove {}", data.display()))?;
    result
}

fn build(root: &Path, package: &str, example: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo::command(root);
    command.args(["build", "--release", "--package", package, "--example", example]);
    // As users compile it: without the flags of this repository, which pad code.
    if env::var_os("RUSTFLAGS").is_none() {
        command.env("RUSTFLAGS", "");
    }
    let messages = cargo::build(&mut command).context("the example")?;
    cargo::program(&messages, example)
}
