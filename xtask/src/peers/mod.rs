//! `cargo xtask peers`: the same experiments on Sakia and on other runtimes.
//!
//! The programs are in `bench/peers`, a workspace of its own. Each measures its operations itself and prints
//! a line of JSON. Their runs alternate, so that other load on the machine affects all of them. A runtime
//! that does not build or run has the reason in its row. Copies are made by installed programs, and measured
//! by Sakia's own experiment.

mod c;
mod copy;
mod files;
mod net;
mod report;
mod suite;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde::Deserialize;

use crate::cargo;

/// The experiments.
#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Count instructions of yielding and of starting tasks whose value is awaited (needs valgrind)
    Tasks {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Time reads and writes of files, and tasks, with the processor time they take
    Files(files::Options),
    /// Time reads of files in tasks of tokio, by its own means and by Sakia's engine
    Engine(files::Options),
    /// Time copies of trees by cp, Sakia and other copiers, which are installed from crates.io
    Copy(copy::Options),
    /// Measure servers that send back what they receive by TCP connections or as datagrams
    Net(net::Options),
    /// Measure servers of HTTP and of the Redis protocol (needs wrk and redis-benchmark)
    Servers(net::Options),
}

/// Runs an experiment on all programs and prints a table per operation.
pub(crate) fn run(root: &Path, experiment: &Experiment) -> anyhow::Result<ExitCode> {
    let folder = root.join("bench/peers");
    let suites = suite::suites()?;
    match experiment {
        Experiment::Tasks { json } => tasks::run(&folder, &suites.tasks, *json),
        Experiment::Files(options) => files::run(&folder, &suites.files, options),
        Experiment::Engine(options) => files::run(&folder, &suites.engine, options),
        Experiment::Copy(options) => copy::run(root, &suites.copy, options),
        Experiment::Net(options) => net::run(&folder, &suites.net, ("net", 15), options),
        Experiment::Servers(options) => net::run(&folder, &suites.servers, ("servers", 9), options),
    }
}

/// The profile of timed programs, defined in `bench/peers/Cargo.toml`.
const PROFILE: &str = "whole";

/// The compiler's flag of all programs that are measured: see `.cargo/config.toml`.
const NO_STRADDLING: &str = if cfg!(target_arch = "x86_64") {
    "-Cllvm-args=-x86-branches-within-32B-boundaries"
} else {
    ""
};

/// A program's report of a run. Times are of the measured section only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Run {
    ops: u64,
    /// A checksum, equal for all programs that did the same.
    check: u64,
    wall_ns: u64,
    /// Processor time of the whole process, the kernel's workers for it included.
    cpu_ns: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    /// Processor time of everything else on the machine.
    foreign_ns: u64,
    /// Time that the machine was ready to run but its host did not let it.
    steal_ns: u64,
}

/// The build of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Build<'a> {
    /// A package, or `c/NAME` for a program in C.
    package: &'a str,
    profile: &'a str,
    features: &'a [String],
    /// Compiler flags, which need a target directory of their own.
    flags: Option<&'a str>,
}

impl Build<'_> {
    /// Builds it; a failure does not affect the others.
    fn run(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        if let Some(name) = self.package.strip_prefix("c/") {
            return c::build(folder, name);
        }
        let mut command = cargo::command(folder);
        command.args(["build", "--locked", "--package", self.package, "--profile", self.profile]);
        if !self.features.is_empty() {
            command.arg("--features").arg(self.features.join(","));
        }
        if let Some(flags) = self.flags {
            let target = cargo::target_folder(folder).join("flags");
            // They replace those of the repository's configuration.
            let flags = format!("{flags} {NO_STRADDLING}");
            command.env("RUSTFLAGS", flags).arg("--target-dir").arg(target);
        }
        cargo::program(&cargo::build(&mut command)?, self.package)
    }
}

/// Runs a program and reads the line it prints.
fn run_program(command: &mut Command) -> anyhow::Result<Run> {
    read_run(&output(command)?)
}

fn read_run(printed: &str) -> anyhow::Result<Run> {
    serde_json::from_str(printed.trim_end()).context("no result")
}

/// Runs a program and returns its output.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        let report = String::from_utf8_lossy(&output.stderr);
        // A panic's message is in its second line; a reason is the only one.
        let reason = report.lines().take(2).collect::<Vec<_>>().join(" ");
        bail!("{}: {}", output.status, reason.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_is_read() {
        let line = r#"{"ops":1,"check":2,"wall_ns":3,"cpu_ns":4,"voluntary_switches":5,
            "involuntary_switches":6,"foreign_ns":7,"steal_ns":8}"#;
        let run: Run = serde_json::from_str(line).unwrap();
        assert_eq!((run.ops, run.check, run.steal_ns), (1, 2, 8));
    }

    #[test]
    fn why_a_program_failed_is_told() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'ring: not permitted' >&2; exit 1"]);
        let error = run_program(&mut command).unwrap_err().to_string();
        assert!(error.ends_with("1: ring: not permitted"), "{error}");
    }
}
