//! `cargo xtask socket-instructions`: what the layer of sockets costs in user space, by the cells of the
//! experiment `sockets`.
//!
//! Counted are the layer and its toy enclave, whose exits take no time; what the kernel executes is not. So a
//! variant that saves calls saves more than is shown, and one that makes the same calls costs what is shown.
//! Variants that gather are left out: they read the clock, which valgrind hides from rustix.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};

use crate::callgrind::{self, difference};

const VARIANTS: [&str; 3] = ["plain", "default", "ahead"];
/// Cells, and how many operations the shorter run has: the longer has twice as many. Of connections that are
/// to be old when they are counted there are more.
const CELLS: [(&str, u64); 17] = [
    ("send-256", 6400),
    ("send-1024", 6400),
    ("send-16384", 6400),
    ("receive-256", 6400),
    ("receive-1024", 6400),
    ("receive-16384", 6400),
    ("events-1", 6400),
    ("events-50", 6400),
    ("events-1000", 8000),
    ("threads-64", 6400),
    ("threads-64", 64_000),
    ("udp-64", 6400),
    ("udp-1400", 6400),
    ("iperf-receive-1", 6400),
    ("iperf-receive-4", 6400),
    ("iperf-send-1", 6400),
    ("iperf-send-4", 6400),
];

/// The cost of an operation.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    instructions: f64,
    /// Calls that leave the enclave.
    exits: f64,
}

/// Prints a row per cell: instructions and calls of each operation.
pub(crate) fn run(root: &Path, cells: &[String], json: bool) -> anyhow::Result<ExitCode> {
    let program = super::build(root, "sakia-socket", "socket_instructions")?;
    if !json {
        println!("instructions per operation in user space (callgrind), and calls of the host");
        print!("{:<24} {:>9} {:>9} {:>9}", "cell, operations", "plain", "default", "ahead");
        println!(" {:>13} {:>7} {:>8} {:>8}", "default/plain", "plain", "default", "ahead");
    }
    for (cell, operations) in CELLS {
        if !cells.is_empty() && !cells.iter().any(|wanted| wanted == cell) {
            continue;
        }
        let mut costs = [Cost::default(); VARIANTS.len()];
        for (cost, variant) in costs.iter_mut().zip(VARIANTS) {
            *cost = measure(&program, cell, variant, operations)?;
        }
        let [plain, default, ahead] = costs;
        let ratio = default.instructions / plain.instructions;
        if json {
            let of = |value: fn(&Cost) -> f64| {
                Value::from_iter(VARIANTS.into_iter().zip(costs.iter().map(value)))
            };
            let line = json!({
                "type": "result", "experiment": "socket-instructions",
                "params": {"cell": cell, "operations": operations},
                "instructions_per_op": of(|cost| cost.instructions),
                "exits_per_op": of(|cost| cost.exits),
                "ratios": {"default/plain": ratio},
            });
            println!("{line}");
        } else {
            print!("{:<24}", format!("{cell}, {operations}"));
            costs.iter().for_each(|cost| print!(" {:>9.1}", cost.instructions));
            print!(" {ratio:>13.3} {:>7.3}", plain.exits);
            println!(" {:>8.3} {:>8.3}", default.exits, ahead.exits);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(program: &Path, cell: &str, variant: &str, operations: u64) -> anyhow::Result<Cost> {
    let count = |operations: u64| {
        let (printed, instructions) = callgrind::run_in(program, "*measured*", |command| {
            command.args([cell, variant, &operations.to_string()]);
        })?;
        let exits: u64 = printed.trim().parse().context("the number of exits")?;
        anyhow::Ok((instructions, exits))
    };
    let (short, long) = (count(operations)?, count(2 * operations)?);
    let of = |short, long| difference(operations, short, long);
    Ok(Cost { instructions: of(short.0, long.0), exits: of(short.1, long.1) })
}
