//! Instructions of programs in user space, counted by callgrind. They do not depend on the machine's load.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs, process};

use anyhow::{Context, bail};

/// The C library fills and copies with loops: callgrind would count its `rep stosb` and `rep movsb` as two
/// instructions per byte, which would dominate the counts.
const TUNABLES: &str =
    "glibc.cpu.x86_rep_stosb_threshold=1000000:glibc.cpu.x86_rep_movsb_threshold=1000000";

/// Arguments of valgrind, before the program.
pub(crate) const ARGUMENTS: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// Runs a program with the arguments that `add` adds. Returns its output, and its number of instructions.
pub(crate) fn run(program: &Path, add: impl FnOnce(&mut Command)) -> anyhow::Result<(String, u64)> {
    let (printed, report) = valgrind(&[], program, add)?;
    Ok((printed, collected(&report)?))
}

/// The same, but counts only what happens in functions whose names match `functions`, and in those that they
/// call.
pub(crate) fn run_in(
    program: &Path,
    functions: &str,
    add: impl FnOnce(&mut Command),
) -> anyhow::Result<(String, u64)> {
    let option = format!("--toggle-collect={functions}");
    let (printed, report) = valgrind(&[&option], program, add)?;
    Ok((printed, collected(&report)?))
}

/// Instructions and calls of a run.
pub(crate) struct Profile {
    /// The instructions of each source file, under the path that the debug information has. Inlined code
    /// belongs to the file that it is written in.
    pub(crate) files: BTreeMap<String, u64>,
    /// The number of calls of the function asked for.
    pub(crate) calls: u64,
}

/// Runs a program with the arguments that `add` gives. `function` is the last part of the name of the
/// function whose calls are counted; calls that were inlined are not.
pub(crate) fn profile(
    program: &Path,
    function: &str,
    add: impl FnOnce(&mut Command),
) -> anyhow::Result<Profile> {
    let output = env::temp_dir().join(format!("sakia-callgrind-{}", process::id()));
    let option = format!("--callgrind-out-file={}", output.display());
    let ran = valgrind(&[&option, "--compress-strings=no", "--compress-pos=no"], program, add);
    let text = fs::read_to_string(&output);
    fs::remove_file(&output).ok();
    ran?;
    let text = text.with_context(|| format!("read {}", output.display()))?;
    Ok(Profile { files: by_file(&text), calls: calls_of(&text, function) })
}

/// Runs a program, with more options for valgrind. Returns the program's output, and valgrind's report.
fn valgrind(
    options: &[&str],
    program: &Path,
    add: impl FnOnce(&mut Command),
) -> anyhow::Result<(String, String)> {
    let mut command = Command::new("valgrind");
    command.env("GLIBC_TUNABLES", TUNABLES).args(ARGUMENTS).args(options).arg(program);
    add(&mut command);
    let output =
        command.output().context("run valgrind; `apt-get install valgrind` provides it")?;
    let [printed, report] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if !output.status.success() {
        let of_program = report.lines().filter(|line| !line.starts_with("=="));
        let reason = of_program.collect::<Vec<_>>().join(" ");
        bail!("{command:?}: {}: {reason}", output.status);
    }
    Ok((printed, report))
}

/// Sums the cost lines of callgrind's output by file. The file of a line is the one that the last `fl`, `fi`
/// or `fe` names. The line after `calls` has the cost of the called function, which has lines of its own.
/// <https://valgrind.org/docs/manual/cl-format.html>
fn by_file(output: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let mut file = "";
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        match line.split_once('=') {
            Some(("fl" | "fi" | "fe", name)) => file = name,
            Some(("calls", _)) => {
                lines.next();
            }
            Some(_) => {}
            None => {
                let cost = line.split_once(' ').filter(|(at, _)| at.parse::<u64>().is_ok());
                if let Some(cost) = cost.and_then(|(_, cost)| cost.parse::<u64>().ok()) {
                    *sums.entry(file.to_owned()).or_default() += cost;
                }
            }
        }
    }
    sums
}

/// Sums the calls of all functions whose names end like this. The line after a `cfn` has their number.
fn calls_of(output: &str, function: &str) -> u64 {
    let mut is_called = false;
    let calls = output.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        match key {
            "cfn" => is_called = value.ends_with(function),
            "calls" if is_called => return value.split(' ').next()?.parse::<u64>().ok(),
            _ => {}
        }
        None
    });
    calls.sum()
}

/// Returns the instructions of one operation: the difference of two runs with different numbers of
/// operations, which excludes the start. `count` returns the instructions of a run.
pub(crate) fn per_operation(
    operations: u64,
    count: impl Fn(u64) -> anyhow::Result<u64>,
) -> anyhow::Result<f64> {
    let (short, long) = (count(operations)?, count(2 * operations)?);
    Ok(difference(operations, short, long))
}

/// Returns the instructions of one operation, from those of a run and of one with `operations` more.
pub(crate) fn difference(operations: u64, short: u64, long: u64) -> f64 {
    (long as f64 - short as f64) / operations as f64
}

/// Parses the number in callgrind's line `==PID== Collected : NUMBER`.
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
    fn costs_belong_to_the_files_that_their_code_is_written_in() {
        let output = "version: 1\npositions: line\nevents: Ir\nsummary: 40\n\n\
            ob=/p\nfl=/a.rs\nfn=f\n1 2\nfi=/b.rs\n7 3\n8 5\nfe=/a.rs\n2 10\n\
            cfi=/c.rs\ncfn=g\ncalls=1 5\n2 1000\n3 1\n\nfl=/c.rs\nfn=g\n5 20\n\ntotals: 41\n";
        let expected = [("/a.rs", 13), ("/b.rs", 8), ("/c.rs", 20)];
        assert_eq!(by_file(output), expected.map(|(file, cost)| (file.to_owned(), cost)).into());
    }

    #[test]
    fn calls_of_one_function_are_summed() {
        let output = "fn=f\n1 2\ncfi=/c.rs\ncfn=<a>::turn\ncalls=2 5\n2 1000\ncfn=g\ncalls=7 5\n\
            3 1\ncfn=<b>::turn\ncalls=40 9\n4 5\n";
        assert_eq!(calls_of(output, "::turn"), 42);
        assert_eq!(calls_of(output, "::return"), 0);
    }

    #[test]
    fn the_cost_of_the_start_is_not_in_an_operations() {
        let taken = |operations| Ok(1000 + 7 * operations);
        assert_eq!(per_operation(100, taken).ok(), Some(7.0));
    }
}
