//! `cargo xtask instructions`: instructions per operation, against loops written by hand and against
//! counts of an earlier commit.
//!
//! Runs programs under callgrind, twice per cell with different counts of operations; the difference is
//! the cost of the operations alone. Instructions do not depend on the machine's load. What the kernel
//! executes is not counted. Needs `valgrind`.
//!
//! - [`loops`]: the driver and the ring, next to loops that make the same system calls.
//! - [`runtime`]: operations of a runtime, as programs use them.
//! - [`saved`]: a run's JSON, with which a later run is compared.

mod loops;
mod runtime;
mod saved;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use self::saved::Saved;
use crate::cargo;

/// The C library fills and copies by loops: callgrind would count its `rep stosb` and `rep movsb` as two
/// instructions a byte, beside which little else would be seen.
const TUNABLES: &str =
    "glibc.cpu.x86_rep_stosb_threshold=1000000:glibc.cpu.x86_rep_movsb_threshold=1000000";

/// Counts of the same operation by one or several programs.
struct Row {
    /// What the operation is, as a JSON object.
    params: String,
    /// Instructions per operation by name of variant.
    counts: Vec<(&'static str, f64)>,
}

/// Prints instructions per operation. Targets that are missed are printed like others. The exit status is
/// 1 if `check` is set and the ring misses its target, or if a count of ours is above the one saved in the
/// file `against`.
pub(crate) fn run(
    root: &Path,
    json: bool,
    check: bool,
    against: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let saved = against.map(Saved::read).transpose()?;
    let loops = build(root, "sakia-driver", "instructions")?;
    let operations = build(root, "sakia", "runtime_instructions")?;
    // A name of constant length: operations on paths go through their bytes.
    let name = format!("sakia-instructions-{:010}", std::process::id());
    let data = std::env::temp_dir().join(name);
    fs::write(&data, vec![7; 4096]).with_context(|| format!("write {}", data.display()))?;
    let rows = loops::measure(&loops, &data, json).and_then(|(mut rows, is_reached)| {
        rows.extend(runtime::measure(&operations, &data, json)?);
        Ok((rows, is_reached))
    });
    fs::remove_file(&data).with_context(|| format!("remove {}", data.display()))?;
    let (rows, is_reached) = rows?;
    let is_worse = saved.is_some_and(|saved| saved.compare(&rows, json));
    let is_failure = is_worse || check && !is_reached;
    Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn build(root: &Path, package: &str, example: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo::command(root);
    command.args(["build", "--release", "--package", package, "--example", example]);
    let messages = cargo::build(&mut command).context("the example")?;
    cargo::program(&messages, example)
}

/// Instructions of one whole run. `arguments` tell what is done, `count` how many times.
fn count(
    program: &Path,
    arguments: impl FnOnce(&mut Command, &str),
    count: u32,
) -> anyhow::Result<u64> {
    let mut command = Command::new("valgrind");
    command.env("GLIBC_TUNABLES", TUNABLES);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    arguments(&mut command, &count.to_string());
    let output =
        command.output().context("run valgrind; `apt-get install valgrind` provides it")?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{command:?} fails:\n{report}");
    }
    collected(&report).with_context(|| format!("no count in what valgrind says:\n{report}"))
}

/// Instructions of one operation: what `operations` more of them cost.
fn per_operation(
    program: &Path,
    arguments: impl Fn(&mut Command, &str),
    operations: u32,
) -> anyhow::Result<f64> {
    let short = count(program, &arguments, operations)?;
    let long = count(program, &arguments, 2 * operations)?;
    Ok((long as f64 - short as f64) / f64::from(operations))
}

/// The number in callgrind's line `==PID== Collected : NUMBER`.
fn collected(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A JSON object of numbers.
fn object(numbers: impl IntoIterator<Item = (&'static str, f64)>) -> String {
    let pairs: Vec<String> =
        numbers.into_iter().map(|(name, number)| format!(r#""{name}":{number:.3}"#)).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_callgrinds_report() {
        let report = "==12== Events    : Ir\n==12== Collected : 1234567\n==12==\n";
        assert_eq!(collected(report), Some(1_234_567));
        assert_eq!(collected("nothing of the kind"), None);
    }
}
