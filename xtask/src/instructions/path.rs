//! `cargo xtask path`: the product's files that one operation passes through, with their instructions.
//!
//! A file counts if the code that is written in it, inlined or not, executes at least [`COST_MIN`]
//! instructions per operation. As in `cargo xtask instructions`, that is the difference of two runs under
//! callgrind, so the start is not in it. Product files are those in `src` of a library of the product.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::json;

use super::runtime::{COUNT, ECHO, Operation, READ};
use crate::{callgrind, lines};

/// The least instructions per operation of a file that counts.
const COST_MIN: f64 = 0.5;
/// The number of counts, of which the minimum counts for each file: disturbances only add.
const RUNS: usize = 3;

/// The supported operations.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Traced {
    /// `fs::read` of a file of 4 KiB in the page cache
    Read,
    /// A received message of 64 bytes, which is sent back
    Message,
}

impl Traced {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Message => "message",
        }
    }

    fn operation(self) -> Operation {
        match self {
            Self::Read => READ,
            Self::Message => ECHO,
        }
    }
}

/// Instructions per operation by file.
type Costs = BTreeMap<String, f64>;

/// Prints a row per file, the costliest first, and their number.
pub(crate) fn run(root: &Path, traced: Traced, json: bool) -> anyhow::Result<ExitCode> {
    let program = super::build(root, "sakia", "runtime_instructions")?;
    let costs = super::with_data(|data| measure(root, &program, &traced.operation(), data))?;
    let mut files: Vec<(String, f64)> =
        costs.into_iter().filter(|(_, cost)| *cost >= COST_MIN).collect();
    ensure!(
        !files.is_empty(),
        "no line of the product's files has a cost: is there debug information?"
    );
    files.sort_by(|(_, left), (_, right)| right.total_cmp(left));
    let (operation, count) = (traced.name(), files.len());
    let sum: f64 = files.iter().map(|(_, cost)| cost).sum();
    for (file, cost) in &files {
        if json {
            let params = json!({"operation": operation, "file": file});
            let line = json!({
                "type": "result", "experiment": "path", "params": params, "instructions_per_op": cost,
            });
            println!("{line}");
        } else {
            println!("{cost:>9.1} {file}");
        }
    }
    if json {
        let line = json!({
            "type": "summary", "experiment": "path", "params": {"operation": operation},
            "files": count, "instructions_per_op": sum,
        });
        println!("{line}");
    } else {
        println!("{sum:>9.1} instructions per {operation}, in {count} files");
    }
    Ok(ExitCode::SUCCESS)
}

/// Counts several times.
fn measure(
    root: &Path,
    program: &Path,
    operation: &Operation,
    data: &Path,
) -> anyhow::Result<Costs> {
    let count = |count| {
        callgrind::run_by_file(program, |command| operation.add_arguments(command, count, data))
    };
    let mut least: Option<Costs> = None;
    for _ in 0..RUNS {
        let costs = per_operation(root, &count(COUNT)?, &count(2 * COUNT)?);
        least = Some(match least {
            Some(least) => least_of(least, &costs),
            None => costs,
        });
    }
    Ok(least.unwrap_or_default())
}

/// The cost of one of [`COUNT`] more operations, by product file.
fn per_operation(
    root: &Path,
    short: &BTreeMap<String, u64>,
    long: &BTreeMap<String, u64>,
) -> Costs {
    let files =
        long.iter().filter_map(|(path, &cost)| Some((path, product_file(root, path)?, cost)));
    let costs = files.map(|(path, file, cost)| {
        let of_start = short.get(path).copied().unwrap_or_default();
        (file.to_owned(), (cost as f64 - of_start as f64) / COUNT as f64)
    });
    costs.collect()
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
        let run = |a: u64, b: u64| {
            let costs = [("crates/sakia/src/a.rs", a), ("crates/sakia/src/b.rs", b)];
            costs.map(|(file, cost)| (file.to_owned(), cost)).into()
        };
        let costs =
            per_operation(Path::new("/tree"), &run(500, 100 + COUNT), &run(500, 100 + 4 * COUNT));
        let expected = [("crates/sakia/src/a.rs", 0.0), ("crates/sakia/src/b.rs", 3.0)];
        assert_eq!(costs, expected.map(|(file, cost)| (file.to_owned(), cost)).into());
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
