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
use serde_json::json;

use super::report::Row;
use super::suite::{Bench, Experiment, Options, Runner, Start, Suite};
use super::{Run, read_run};
use crate::callgrind::{self, per_operation};

/// Operations of the shorter run under callgrind; the longer has twice as many.
const COUNT: u64 = 32_000;
/// Operations of a timed run.
const COUNT_TIMED: u64 = 256_000;
/// The number of timed runs.
const RUNS: usize = 9;
/// The target of the ratio of instructions, at most.
const RATIO_MAX: f64 = 1.20;

/// The cost of one operation on one runtime.
struct Cell {
    instructions_per_op: Result<f64, String>,
    wall_ns_per_op: Result<Spread, String>,
}

/// Prints instructions and wall time per operation, a row per runtime.
pub(super) fn run(folder: &Path, suite: &'static Suite, json: bool) -> anyhow::Result<ExitCode> {
    let bench = Bench::new(folder, suite, "release", &Options::default())?;
    let measured = |one: &&'static Experiment| (measure(&bench, one), *one);
    let table: Vec<_> = bench.experiments.iter().map(measured).collect();
    let peers: Vec<_> = suite.peers.iter().map(|peer| peer.name.as_str()).collect();
    print!("{}", if json { as_json(&peers, &table) } else { as_tables(&peers, &table) });
    Ok(ExitCode::SUCCESS)
}

type Table = [(Vec<Cell>, &'static Experiment)];

/// Timed runs.
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
        instructions_per_op: or_reason(program.and_then(|program| {
            per_operation(COUNT, |count| instructions(program, operation, count))
        })),
        wall_ns_per_op: or_reason(row.runs.and_then(|runs| {
            runs.iter().try_for_each(|run| all_done(run, COUNT_TIMED))?;
            let times = runs.iter().map(|run| run.wall_ns as f64 / COUNT_TIMED as f64);
            Spread::of(times).context("there were no runs")
        })),
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
        let mut row = |head: &str, cells: Vec<String>| {
            let cells: String = cells.iter().map(|cell| format!(" {cell:>16}")).collect();
            writeln!(text, "{head:<10}{cells}").ok();
        };
        row(title, Vec::new());
        row("", table.iter().map(|(_, operation)| operation.name.clone()).collect());
        let mut reasons = Vec::new();
        for (index, peer) in peers.iter().enumerate() {
            let mut shown = |(cells, operation): &(Vec<Cell>, &Experiment)| {
                value(&cells[index]).map_or_else(
                    |reason| {
                        reasons.push(format!("{peer}, {}: {reason}", operation.name));
                        "-".to_owned()
                    },
                    |number| format!("{number:.1}"),
                )
            };
            row(peer, table.iter().map(&mut shown).collect());
        }
        row("ratio", table.iter().map(|(cells, _)| verdict(ratio(cells, value))).collect());
        reasons.iter().for_each(|reason| row(reason, Vec::new()));
    };
    let title = format!(
        "instructions per operation, user space (callgrind); target: {}/{} <= {RATIO_MAX:.2}",
        peers[0], peers[1]
    );
    add(&title, instructions_of);
    add(&format!("\nwall time per operation in ns, median of {RUNS}"), wall_of);
    text
}

fn or_reason<T>(result: anyhow::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{error:#}"))
}

fn instructions_of(cell: &Cell) -> Result<f64, String> {
    cell.instructions_per_op.clone()
}

fn wall_of(cell: &Cell) -> Result<f64, String> {
    cell.wall_ns_per_op.clone().map(|times| times.median)
}

/// Returns the first peer's value over the second's, if both have one.
fn ratio(cells: &[Cell], value: fn(&Cell) -> Result<f64, String>) -> Option<f64> {
    Some(value(&cells[0]).ok()? / value(&cells[1]).ok()?)
}

/// Formats a ratio, marked if it misses the target.
fn verdict(ratio: Option<f64>) -> String {
    let Some(ratio) = ratio else { return "-".into() };
    let mark = if ratio > RATIO_MAX { " miss" } else { "" };
    format!("{ratio:.2}{mark}")
}

fn as_json(peers: &[&str], table: &Table) -> String {
    let mut lines = Vec::new();
    let mut ratios = Vec::new();
    for (cells, operation) in table {
        let params = &operation.params;
        for (cell, peer) in cells.iter().zip(peers) {
            lines.push(json!({
                "type": "result", "experiment": "tasks", "variant": peer, "params": params, "runs": RUNS,
                "instructions_per_op": instructions_of(cell).ok(),
                "wall_ns_per_op": cell.wall_ns_per_op.as_ref().ok(),
            }));
        }
        ratios.push(json!({
            "of": format!("{}/{}", peers[0], peers[1]), "params": params,
            "instructions": ratio(cells, instructions_of), "wall": ratio(cells, wall_of),
        }));
    }
    lines.push(json!({"type": "summary", "experiment": "tasks", "ratios": ratios}));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the instructions of one whole run.
fn instructions(program: &Path, operation: &Experiment, count: u64) -> anyhow::Result<u64> {
    let (printed, taken) = callgrind::run(program, |command| arguments(command, operation, count))?;
    all_done(&read_run(&printed)?, count)?;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::suite::suites;
    use super::*;

    #[test]
    fn a_runtime_that_does_not_run_has_its_reason_below_the_table() {
        let times = Spread::of([3.0, 1.0, 2.0]).unwrap();
        let good = |count| Cell { instructions_per_op: Ok(count), wall_ns_per_op: Ok(times) };
        let bad = || Cell {
            instructions_per_op: Err("does not build".to_owned()),
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
        let lines: Vec<Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[2]["instructions_per_op"], Value::Null, "{json}");
        let spread = json!({"median": 2.0, "min": 1.0, "max": 3.0});
        assert_eq!(lines[2]["wall_ns_per_op"], spread, "{json}");
        let ratios = &lines.last().unwrap()["ratios"][0];
        assert_eq!([&ratios["instructions"], &ratios["wall"]], [&json!(1.5), &json!(1.0)]);
    }
}
