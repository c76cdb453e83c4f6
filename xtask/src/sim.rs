//! Runs `sakia-check`: random programs on the simulated kernel, and the soak on the real one.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::cargo;

/// Builds `sakia-check`, optimized, and calls it with a subcommand and its arguments.
///
/// # Errors
/// Cargo cannot be run.
pub(crate) fn run(root: &Path, command: &str, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let status = cargo::command(root)
        .args(["run", "--quiet", "--release", "--package", "sakia-check", "--", command])
        .args(arguments)
        .status()
        .context("run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
