//! `cargo xtask peers tasks`: instructions of yielding and of starting tasks.
//!
//! Instructions are counted by callgrind, as in [`instructions`](crate::instructions): twice per cell
//! with different counts, so that the difference is the cost of the operations alone, in user space.
//! Wall time is measured within the programs, around the operations, in runs that alternate between
//! the runtimes.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use super::stats::Spread;
use super::{Build, run_program, started};

/// The first is compared with the second.
const PEERS: [&str; 6] = ["sakia", "glommio", "monoio", "compio", "tokio", "floor"];
/// Their programs, in the same order.
const PACKAGES: [&str; 6] =
    ["peers-sakia", "peers-glommio", "peers-monoio", "peers-compio", "peers-tokio", "peers-floor"];

/// Operations of the shorter run under callgrind; the longer has twice as many.
const COUNT: u64 = 32_000;
/// Operations of a run whose time is taken.
const COUNT_TIMED: u64 = 256_000;
/// Runs whose time is taken.
const RUNS: usize = 9;
/// The most that the ratio of instructions should be.
const RATIO_MAX: f64 = 1.20;

/// An operation, as the programs know it.
struct Operation {
    name: &'static str,
    arguments: &'static [&'static str],
    params: &'static str,
}

const OPERATIONS: [Operation; 3] = [
    Operation {
        name: "yield, 1 task",
        arguments: &["yield", "tasks=1"],
        params: r#"{"operation":"yield","tasks":1}"#,
    },
    Operation {
        name: "yield, 64 tasks",
        arguments: &["yield", "tasks=64"],
        params: r#"{"operation":"yield","tasks":64}"#,
    },
    Operation {
        name: "spawn and join",
        arguments: &["spawn"],
        params: r#"{"operation":"spawn-join"}"#,
    },
];

/// What one runtime needs for one operation.
struct Cell {
    instructions_per_op: anyhow::Result<f64>,
    wall_ns_per_op: anyhow::Result<Spread>,
}

/// Prints instructions and wall time per operation, a row per runtime.
pub(super) fn run(folder: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let programs = PACKAGES.map(|package| Build::new(package, "release").run(folder));
    let table = OPERATIONS.map(|operation| (measure(&programs, &operation), operation));
    let text = if json { as_json(&table) } else { as_tables(&table) };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

type Table = [(Vec<Cell>, Operation); OPERATIONS.len()];

fn measure(programs: &[anyhow::Result<PathBuf>], operation: &Operation) -> Vec<Cell> {
    let mut times: Vec<anyhow::Result<Vec<f64>>> =
        programs.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..RUNS {
        for (times, program) in times.iter_mut().zip(programs) {
            let Ok(earlier) = times else { continue };
            match started(program).and_then(|program| wall_ns(program, operation)) {
                Ok(wall_ns) => earlier.push(wall_ns / COUNT_TIMED as f64),
                Err(error) => *times = Err(error),
            }
        }
    }
    let cell = |(program, times): (_, anyhow::Result<Vec<f64>>)| Cell {
        instructions_per_op: started(program).and_then(|program| {
            let short = instructions(program, operation, COUNT)?;
            let long = instructions(program, operation, 2 * COUNT)?;
            Ok((long as f64 - short as f64) / COUNT as f64)
        }),
        wall_ns_per_op: times
            .and_then(|times| Spread::of(times.into_iter()).context("there were no runs")),
    };
    programs.iter().zip(times).map(cell).collect()
}

fn as_tables(table: &Table) -> String {
    let mut text = String::new();
    let mut add = |title: &str, value: fn(&Cell) -> Result<f64, String>| {
        writeln!(text, "{title}").ok();
        write!(text, "{:<10}", "").ok();
        for (_, operation) in table {
            write!(text, " {:>16}", operation.name).ok();
        }
        writeln!(text).ok();
        let mut reasons = Vec::new();
        for (row, peer) in PEERS.iter().enumerate() {
            write!(text, "{peer:<10}").ok();
            for (cells, operation) in table {
                let shown = value(&cells[row]).map_or_else(
                    |reason| {
                        reasons.push(format!("{peer}, {}: {reason}", operation.name));
                        "-".to_owned()
                    },
                    |number| format!("{number:.1}"),
                );
                write!(text, " {shown:>16}").ok();
            }
            writeln!(text).ok();
        }
        write!(text, "{:<10}", "ratio").ok();
        for (cells, _) in table {
            write!(text, " {:>16}", verdict(ratio(cells, value))).ok();
        }
        writeln!(text).ok();
        for reason in reasons {
            writeln!(text, "{reason}").ok();
        }
    };
    let title = format!(
        "instructions per operation, user space (callgrind); target: {}/{} <= {RATIO_MAX:.2}",
        PEERS[0], PEERS[1]
    );
    add(&title, instructions_of);
    add(&format!("\nwall time per operation in ns, median of {RUNS}"), wall_of);
    text
}

fn instructions_of(cell: &Cell) -> Result<f64, String> {
    cell.instructions_per_op.as_ref().copied().map_err(|error| format!("{error:#}"))
}

fn wall_of(cell: &Cell) -> Result<f64, String> {
    let times = cell.wall_ns_per_op.as_ref();
    times.map(|times| times.median).map_err(|error| format!("{error:#}"))
}

/// The first peer's value over the second's, if both have one.
fn ratio(cells: &[Cell], value: fn(&Cell) -> Result<f64, String>) -> Option<f64> {
    Some(value(&cells[0]).ok()? / value(&cells[1]).ok()?)
}

/// A ratio, marked when it misses the target.
fn verdict(ratio: Option<f64>) -> String {
    let Some(ratio) = ratio else { return "-".into() };
    let mark = if ratio > RATIO_MAX { " miss" } else { "" };
    format!("{ratio:.2}{mark}")
}

fn as_json(table: &Table) -> String {
    let mut text = String::new();
    let mut ratios = Vec::new();
    let or_null = |number: Option<f64>| number.map_or("null".into(), |n| format!("{n:.3}"));
    for (cells, operation) in table {
        let params = operation.params;
        for (cell, peer) in cells.iter().zip(PEERS) {
            let count = or_null(instructions_of(cell).ok());
            let wall = cell.wall_ns_per_op.as_ref().map_or("null".into(), |times| {
                let Spread { median, min, max } = times;
                format!(r#"{{"median":{median:.3},"min":{min:.3},"max":{max:.3}}}"#)
            });
            write!(text, r#"{{"type":"result","experiment":"tasks","variant":"{peer}","#).ok();
            write!(text, r#""params":{params},"runs":{RUNS},"#).ok();
            writeln!(text, r#""instructions_per_op":{count},"wall_ns_per_op":{wall}}}"#).ok();
        }
        let of = format!("{}/{}", PEERS[0], PEERS[1]);
        let (count, wall) = (ratio(cells, instructions_of), ratio(cells, wall_of));
        let (count, wall) = (or_null(count), or_null(wall));
        ratios.push(format!(
            r#"{{"of":"{of}","params":{params},"instructions":{count},"wall":{wall}}}"#
        ));
    }
    let ratios = ratios.join(",");
    writeln!(text, r#"{{"type":"summary","experiment":"tasks","ratios":[{ratios}]}}"#).ok();
    text
}

/// Instructions of one whole run.
fn instructions(program: &Path, operation: &Operation, count: u64) -> anyhow::Result<u64> {
    let file = std::env::temp_dir().join(format!("sakia-peers-{}", std::process::id()));
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind"]);
    command.arg(format!("--callgrind-out-file={}", file.display())).arg(program);
    output(&mut command, operation, count)?;
    let profile = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    total(&profile).context("no total in what callgrind wrote")
}

/// The number in the line `totals: NUMBER` of a profile.
pub(super) fn total(profile: &str) -> Option<u64> {
    profile.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

/// Nanoseconds that one run's operations took.
fn wall_ns(program: &Path, operation: &Operation) -> anyhow::Result<f64> {
    Ok(output(&mut Command::new(program), operation, COUNT_TIMED)? as f64)
}

/// Runs a program, checks that it did what it should, and answers the nanoseconds it reports.
fn output(command: &mut Command, operation: &Operation, count: u64) -> anyhow::Result<u64> {
    let run = run_program(command.args(operation.arguments).arg(format!("ops={count}")))?;
    ensure!(run.check == count, "did {} operations of {count}", run.check);
    Ok(run.wall_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_callgrinds_profile() {
        assert_eq!(total("events: Ir\nsummary: 12\n\ntotals: 1234567\n"), Some(1_234_567));
        assert_eq!(total("nothing of the kind"), None);
    }

    #[test]
    fn a_runtime_that_does_not_run_has_its_reason_below_the_table() {
        let times = Spread::of([3.0, 1.0, 2.0].into_iter()).unwrap();
        let good = |count| Cell { instructions_per_op: Ok(count), wall_ns_per_op: Ok(times) };
        let bad = || Cell {
            instructions_per_op: Err(anyhow::anyhow!("does not build")),
            wall_ns_per_op: Ok(times),
        };
        let cells = || vec![good(15.0), good(10.0), bad(), good(1.0), good(1.0), good(1.0)];
        let table = OPERATIONS.map(|operation| (cells(), operation));
        let text = as_tables(&table);
        assert!(text.contains("1.50 miss"), "{text}");
        assert!(text.contains("\nmonoio, spawn and join: does not build\n"), "{text}");
        let json = as_json(&table);
        assert!(json.contains(r#""instructions_per_op":null,"wall_ns_per_op":{"median":2.000"#));
        assert!(json.contains(r#""instructions":1.500,"wall":1.000"#), "{json}");
    }
}
