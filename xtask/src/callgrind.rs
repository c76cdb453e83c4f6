//! Instructions of programs in user space, counted by callgrind. They do not depend on the machine's load.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The C library fills and copies by loops: callgrind would count its `rep stosb` and `rep movsb` as two
/// instructions a byte, beside which little else would be seen.
const TUNABLES: &str =
    "glibc.cpu.x86_rep_stosb_threshold=1000000:glibc.cpu.x86_rep_movsb_threshold=1000000";

/// What valgrind is told, before the program.
pub(crate) const ARGUMENTS: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// Runs a program with the arguments that `add` gives. Answers what it prints, and how many instructions it
/// takes.
pub(crate) fn run(program: &Path, add: impl FnOnce(&mut Command)) -> anyhow::Result<(String, u64)> {
    let mut command = Command::new("valgrind");
    command.env("GLIBC_TUNABLES", TUNABLES).args(ARGUMENTS).arg(program);
    add(&mut command);
    let output =
        command.output().context("run valgrind; `apt-get install valgrind` provides it")?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let of_program = report.lines().filter(|line| !line.starts_with("=="));
        let reason = of_program.collect::<Vec<_>>().join(" ");
        bail!("{command:?}: {}: {reason}", output.status);
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), collected(&report)?))
}

/// Instructions of one operation, of which `count` tells what a run of so many takes: what `operations` more
/// of them cost, so that the start is not in it.
pub(crate) fn per_operation(
    operations: u64,
    count: impl Fn(u64) -> anyhow::Result<u64>,
) -> anyhow::Result<f64> {
    let (short, long) = (count(operations)?, count(2 * operations)?);
    Ok((long as f64 - short as f64) / operations as f64)
}

/// The number in callgrind's line `==PID== Collected : NUMBER`.
pub(crate) fn collected(report: &str) -> anyhow::Result<u64> {
    let line = report.lines().find(|line| line.contains("Collected"));
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.with_context(|| format!("no count in what valgrind says:\n{report}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_callgrinds_report() {
        let report = "==12== Events    : Ir\n==12== Collected : 1234567\n==12==\n";
        assert_eq!(collected(report).ok(), Some(1_234_567));
        assert!(collected("nothing of the kind").is_err());
    }

    #[test]
    fn the_cost_of_the_start_is_not_in_an_operations() {
        let taken = |operations| Ok(1000 + 7 * operations);
        assert_eq!(per_operation(100, taken).ok(), Some(7.0));
    }
}
