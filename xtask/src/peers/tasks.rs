//! `cargo xtask peers tasks`: instructions of yielding and of starting tasks.
//!
//! Instructions are counted by callgrind, as in [`instructions`](crate::instructions): twice per cell
//! with different counts, so that the difference is the cost of the operations alone, in user space.
//! Wall time is measured within the programs, around the operations, in runs that alternate between
//! the runtimes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use sakia_bench_support::stats::Spread;

use super::report::Row;
use super::suite::{Bench, Experiment, Runner, Start, Suite};
use super::{Run, profile, run_program, taken_total};

/// Operations of the shorter run under callgrind; the longer has twice as many.
const COUNT: u64 = 32_000;
/// Operations of a run whose time is taken.
const COUNT_TIMED: u64 = 256_000;
/// Runs whose time is taken.
const RUNS: usize = 9;
/// The most that the ratio of instructions should be.
const RATIO_MAX: f64 = 1.20;

/// What one runtime needs for one operation.
struct Cell {
    instructions_per_op: anyhow::Result<f64>,
    wall_ns_per_op: anyhow::Result<Spread>,
}

/// Prints instructions and wall time per operation, a row per runtime.
pub(super) fn run(folder: &Path, suite: &'static Suite, json: bool) -> anyhow::Result<ExitCode> {
    let bench = Bench::new(folder, suite, "release", [&[], &[]])?;
    let measured = |one: &&'static Experiment| (measure(&bench, one), *one);
    let table: Vec<_> = bench.experiments.iter().map(measured).collect();
    let peers: Vec<_> = suite.peers.iter().map(|peer| peer.name.as_str()).collect();
    print!("{}", if json { as_json(&peers, &table) } else { as_tables(&peers, &table) });
    Ok(ExitCode::SUCCESS)
}

type Table = [(Vec<Cell>, &'static Experiment)];

/// Runs whose time is taken.
struct Timed;

impl Runner for Timed {
    fn command(&self, start: &Start<'_>) -> anyhow::Result<Command> {
        let mut command = Command::new(start.program);
        arguments(&mut command, start.experiment, COUNT_TIMED);
        Ok(command)
    }
}

fn arguments(command: &mut Command, experiment: &Experiment, count: u64) {
    command.args(experiment.arguments.split(' ')).arg(format!("ops={count}"));
}

fn measure(bench: &Bench, operation: &'static Experiment) -> Vec<Cell> {
    let timed = bench.measure(operation, RUNS, &Timed);
    let cell = |(row, (_, program)): (Row, (_, anyhow::Result<&Path>))| Cell {
        instructions_per_op: program.and_then(|program| {
            let short = instructions(program, operation, COUNT)?;
            let long = instructions(program, operation, 2 * COUNT)?;
            Ok((long as f64 - short as f64) / COUNT as f64)
        }),
        wall_ns_per_op: row.runs.and_then(|runs| {
            runs.iter().try_for_each(|run| all_done(run, COUNT_TIMED))?;
            let times = runs.iter().map(|run| run.wall_ns as f64 / COUNT_TIMED as f64);
            Spread::of(times).context("there were no runs")
        }),
    };
    timed.rows.into_iter().zip(bench.peers_of(operation)).map(cell).collect()
}

fn all_done(run: &Run, count: u64) -> anyhow::Result<()> {
    ensure!(run.check == count, "did {} operations of {count}", run.check);
    Ok(())
}

fn as_tables(peers: &[&str], table: &Table) -> String {
    let mut text = String::new();
    let mut add = |title: &str, value: fn(&Cell) -> Result<f64, String>| {
        writeln!(text, "{title}").ok();
        write!(text, "{:<10}", "").ok();
        for (_, operation) in table {
            write!(text, " {:>16}", operation.name).ok();
        }
        writeln!(text).ok();
        let mut reasons = Vec::new();
        for (row, peer) in peers.iter().enumerate() {
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
        peers[0], peers[1]
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

fn as_json(peers: &[&str], table: &Table) -> String {
    let mut text = String::new();
    let mut ratios = Vec::new();
    let or_null = |number: Option<f64>| number.map_or("null".into(), |n| format!("{n:.3}"));
    for (cells, operation) in table {
        let params = &operation.params;
        for (cell, peer) in cells.iter().zip(peers) {
            let count = or_null(instructions_of(cell).ok());
            let wall = cell.wall_ns_per_op.as_ref().map_or("null".into(), |times| {
                let Spread { median, min, max } = times;
                format!(r#"{{"median":{median:.3},"min":{min:.3},"max":{max:.3}}}"#)
            });
            write!(text, r#"{{"type":"result","experiment":"tasks","variant":"{peer}","#).ok();
            write!(text, r#""params":{params},"runs":{RUNS},"#).ok();
            writeln!(text, r#""instructions_per_op":{count},"wall_ns_per_op":{wall}}}"#).ok();
        }
        let of = format!("{}/{}", peers[0], peers[1]);
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
fn instructions(program: &Path, operation: &Experiment, count: u64) -> anyhow::Result<u64> {
    let file = profile();
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind"]);
    command.arg(format!("--callgrind-out-file={}", file.display())).arg(program);
    arguments(&mut command, operation, count);
    all_done(&run_program(&mut command)?, count)?;
    taken_total(&file)
}

#[cfg(test)]
mod tests {
    use super::super::suite::suites;
    use super::*;

    #[test]
    fn a_runtime_that_does_not_run_has_its_reason_below_the_table() {
        let times = Spread::of([3.0, 1.0, 2.0]).unwrap();
        let good = |count| Cell { instructions_per_op: Ok(count), wall_ns_per_op: Ok(times) };
        let bad = || Cell {
            instructions_per_op: Err(anyhow::anyhow!("does not build")),
            wall_ns_per_op: Ok(times),
        };
        let cells = || vec![good(15.0), good(10.0), bad(), good(1.0), good(1.0), good(1.0)];
        let suite = &suites().unwrap().tasks;
        let table: Vec<_> = suite.experiments.iter().map(|one| (cells(), one)).collect();
        let peers: Vec<_> = suite.peers.iter().map(|peer| peer.name.as_str()).collect();
        let text = as_tables(&peers, &table);
        assert!(text.contains("1.50 miss"), "{text}");
        assert!(text.contains("\nmonoio, spawn and join: does not build\n"), "{text}");
        let json = as_json(&peers, &table);
        assert!(json.contains(r#""instructions_per_op":null,"wall_ns_per_op":{"median":2.000"#));
        assert!(json.contains(r#""instructions":1.500,"wall":1.000"#), "{json}");
    }
}
