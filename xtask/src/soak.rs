//! `cargo xtask soak`: a mixed load with random drops on the real kernel, after which nothing may be left.
//!
//! It is `sakia-check soak`, built with optimization; see there for what it does and its options.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::cargo;

/// Builds `sakia-check` and runs its soak with these arguments.
///
/// # Errors
/// It does not build, or cannot be run.
pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut build = cargo::command(root);
    build.args(["build", "--release", "--locked", "--package", "sakia-check"]);
    let program = cargo::program(&cargo::build(&mut build)?, "sakia-check")?;
    let status = Command::new(&program).arg("soak").args(arguments).status();
    let status = status.with_context(|| format!("run {}", program.display()))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
