//! `cargo xtask path`: the product's files that one operation passes through, with their instructions.
//!
//! A file counts if the code that is written in it, inlined or not, executes at least [`COST_MIN`]
//! instructions per operation. As in `cargo xtask instructions`, that is the difference of two runs under
//! callgrind, so the start is not in it. Product files are those in `src` of a library of the product.
//!
//! Beside each cost stands the part of it that belongs to the turns of the driver and its tasks: what a task
//! that only yields costs there, for as many turns as the operation takes. The rest is the operation's own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::json;

use super::runtime::{COUNT, DATAGRAMS, ECHO, Operation, READ, READ_AT, READ_AT_UNCACHED, YIELD};
use crate::callgrind::Profile;
use crate::{callgrind, lines};

/// The least instructions per operation of a file that counts.
const COST_MIN: f64 = 0.5;
/// The number of counts, of which the minimum counts for each file: disturbances only add.
const RUNS: usize = 3;
/// The function of the driver that is called once per turn.
const TURN: &str = "::take_turn";

/// The supported operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Traced {
    /// `File::read_at` of 4 KiB in the page cache
    ReadAt,
    /// `File::read_at` of 4 KiB that are on the disk alone
    ReadAtUncached,
    /// `fs::read` of a file of 4 KiB in the page cache
    Read,
    /// A received message of 64 bytes, which is sent back
    Message,
    /// A received datagram of 64 bytes, which is sent back
    Datagram,
}

impl Traced {
    fn operation(self) -> Operation {
        match self {
            Self::ReadAt => READ_AT,
            Self::ReadAtUncached => READ_AT_UNCACHED,
            Self::Read => READ,
            Self::Message => ECHO,
            Self::Datagram => DATAGRAMS,
        }
    }
}

/// Instructions per operation by file.
type Costs = BTreeMap<String, f64>;

/// One operation of a program that does nothing else.
struct Counted {
    costs: Costs,
    turns: f64,
}

/// Prints a row per file, the costliest first, and their number, for each of these operations, or all.
pub(crate) fn run(root: &Path, traced: &[Traced], json: bool) -> anyhow::Result<ExitCode> {
    let program = super::build(root, "sakia", "runtime_instructions")?;
    let traced = if traced.is_empty() { Traced::value_variants() } else { traced };
    let count =
        |operation: &Operation| super::with_data(|data| measure(root, &program, operation, data));
    let yielded = count(&YIELD)?;
    for &traced in traced {
        let of_turns = |counted: &Counted, file: &str| {
            let cost = yielded.costs.get(file).copied().unwrap_or_default();
            let of_all = cost * counted.turns / yielded.turns;
            of_all.min(counted.costs[file])
        };
        let counted = count(&traced.operation())?;
        let rows = counted.costs.iter().filter(|(_, cost)| **cost >= COST_MIN);
        let rows = rows.map(|(file, &cost)| Row { file, cost, turns: of_turns(&counted, file) });
        let mut rows: Vec<Row<'_>> = rows.collect();
        rows.sort_by(|left, right| right.cost.total_cmp(&left.cost));
        ensure!(
            !rows.is_empty(),
            "no line of the product's files has a cost: is there debug information?"
        );
        let name = traced.to_possible_value().unwrap_or_else(|| unreachable!("none is hidden"));
        print(name.get_name(), &rows, counted.turns, json);
    }
    Ok(ExitCode::SUCCESS)
}

/// The cost of an operation in a file.
struct Row<'a> {
    file: &'a str,
    cost: f64,
    /// The part of it that belongs to turns.
    turns: f64,
}

fn print(operation: &str, rows: &[Row<'_>], turns: f64, json: bool) {
    let own = rows.iter().filter(|row| row.cost - row.turns >= COST_MIN).count();
    let (cost, of_turns) = (sum(rows, |row| row.cost), sum(rows, |row| row.turns));
    if json {
        for Row { file, cost, turns } in rows {
            let line = json!({
                "type": "result", "experiment": "path",
                "params": {"operation": operation, "file": file},
                "instructions_per_op": cost, "instructions_of_turns": turns,
            });
            println!("{line}");
        }
        let line = json!({
            "type": "summary", "experiment": "path", "params": {"operation": operation},
            "files": rows.len(), "files_beyond_turns": own, "turns_per_op": turns,
            "instructions_per_op": cost, "instructions_of_turns": of_turns,
        });
        println!("{line}");
        return;
    }
    println!("{operation}, instructions and the part of turns:");
    for Row { file, cost, turns } in rows {
        println!("{cost:>9.1} {turns:>9.1}  {file}");
    }
    println!("{cost:>9.1} {of_turns:>9.1}  in {} files, {own} of them beyond turns", rows.len());
    println!("{turns:>9.3} turns per operation\n");
}

fn sum(rows: &[Row<'_>], of: impl Fn(&Row<'_>) -> f64) -> f64 {
    rows.iter().map(of).sum()
}

/// Counts several times.
fn measure(
    root: &Path,
    program: &Path,
    operation: &Operation,
    data: &Path,
) -> anyhow::Result<Counted> {
    let count = |count| {
        callgrind::profile(program, TURN, |command| operation.add_arguments(command, count, data))
    };
    let mut least: Option<Counted> = None;
    for _ in 0..RUNS {
        let counted = per_operation(root, &count(COUNT)?, &count(2 * COUNT)?);
        ensure!(counted.turns > 0.0, "no call of {TURN} is counted");
        least = Some(match least {
            Some(least) => Counted {
                costs: least_of(least.costs, &counted.costs),
                turns: least.turns.min(counted.turns),
            },
            None => counted,
        });
    }
    least.ok_or_else(|| anyhow::anyhow!("nothing was counted"))
}

/// The cost of one of [`COUNT`] more operations, by product file, and its turns.
fn per_operation(root: &Path, short: &Profile, long: &Profile) -> Counted {
    let per_one = |long: u64, short: u64| (long as f64 - short as f64) / COUNT as f64;
    let files =
        long.files.iter().filter_map(|(path, &cost)| Some((path, product_file(root, path)?, cost)));
    let costs = files.map(|(path, file, cost)| {
        let of_start = short.files.get(path).copied().unwrap_or_default();
        (file.to_owned(), per_one(cost, of_start))
    });
    Counted { costs: costs.collect(), turns: per_one(long.calls, short.calls) }
}

fn least_of(mut costs: Costs, others: &Costs) -> Costs {
    for (file, cost) in &mut costs {
        *cost = cost.min(others.get(file).copied().unwrap_or_default());
    }
    costs
}

/// The path within the repository, if the file belongs to the product.
fn product_file<'a>(root: &Path, path: &'a str) -> Option<&'a str> {
    let path = Path::new(path).strip_prefix(root).ok().and_then(Path::to_str).unwrap_or(path);
    let (name, inner) = path.strip_prefix("crates/")?.split_once('/')?;
    (lines::is_product(name) && inner.starts_with("src/")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_files_lie_in_the_source_of_libraries() {
        let file = |path| product_file(Path::new("/tree"), path);
        assert_eq!(
            file("/tree/crates/sakia/src/fs/whole.rs"),
            Some("crates/sakia/src/fs/whole.rs")
        );
        assert_eq!(file("crates/sakia-ring/src/ring.rs"), Some("crates/sakia-ring/src/ring.rs"));
        for other in [
            "/tree/crates/sakia/examples/a.rs",
            "/tree/crates/sakia-testkit/src/lib.rs",
            "/elsewhere/crates/sakia/src/lib.rs",
            "/rustc/1/library/core/src/option.rs",
        ] {
            assert_eq!(file(other), None, "{other}");
        }
    }

    #[test]
    fn the_start_does_not_count() {
        let run = |a: u64, b: u64, calls: u64| {
            let costs = [("crates/sakia/src/a.rs", a), ("crates/sakia/src/b.rs", b)];
            let files = costs.map(|(file, cost)| (file.to_owned(), cost)).into();
            Profile { files, calls }
        };
        let (short, long) = (run(500, 100 + COUNT, 9), run(500, 100 + 4 * COUNT, 9 + 2 * COUNT));
        let Counted { costs, turns } = per_operation(Path::new("/tree"), &short, &long);
        let expected = [("crates/sakia/src/a.rs", 0.0), ("crates/sakia/src/b.rs", 3.0)];
        assert_eq!(costs, expected.map(|(file, cost)| (file.to_owned(), cost)).into());
        assert_eq!(turns, 2.0);
    }

    #[test]
    fn the_least_of_several_counts_is_taken() {
        let costs = |costs: &[(&str, f64)]| {
            costs.iter().map(|&(file, cost)| (file.to_owned(), cost)).collect::<Costs>()
        };
        let first = costs(&[("a", 3.0), ("b", 1.0), ("c", 2.0)]);
        let expected = costs(&[("a", 2.0), ("b", 1.0), ("c", 0.0)]);
        assert_eq!(least_of(first, &costs(&[("a", 2.0), ("b", 4.0), ("d", 9.0)])), expected);
    }
}
