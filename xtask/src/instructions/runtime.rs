//! Operations of a runtime, as programs use them.
//!
//! Each cell is counted several times: the work of a driver's threads between two operations depends on the
//! machine's scheduler.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::Row;
use crate::callgrind::{self, difference};

/// Operations of the shorter run; the longer has twice as many. A multiple of all numbers of connections.
pub(super) const COUNT: u64 = 6400;
/// The number of runs of each length, of which the minimum is used: disturbances only add.
const RUNS: usize = 5;

/// An operation, by its name in the program.
pub(super) struct Operation {
    name: &'static str,
    driver: &'static str,
    /// Connections that have a request at the same time.
    connections: Option<u64>,
    /// Set if the program takes the name of a file.
    has_file: bool,
}

impl Operation {
    /// Instructions of one of them: from the runs with the fewest instructions, those with the median, and
    /// those with the most. A disturbed run must not be subtracted from an undisturbed one.
    fn count(&self, program: &Path, data: &Path) -> anyhow::Result<[f64; 3]> {
        let runs = |count| {
            let mut taken = [0; RUNS];
            for taken in &mut taken {
                (_, *taken) =
                    callgrind::run(program, |command| self.add_arguments(command, count, data))?;
            }
            taken.sort_unstable();
            anyhow::Ok(taken)
        };
        let (short, long) = (runs(COUNT)?, runs(2 * COUNT)?);
        let mut counts = [0.0; 3];
        for (count, rank) in counts.iter_mut().zip([0, RUNS / 2, RUNS - 1]) {
            *count = difference(COUNT, short[rank], long[rank]);
        }
        Ok(counts)
    }

    /// Adds the program's arguments for `count` operations.
    pub(super) fn add_arguments(&self, command: &mut Command, count: u64, data: &Path) {
        command.args([self.driver, self.name, &count.to_string()]);
        command.args(self.has_file.then_some(data));
        command.args(self.connections.map(|connections| connections.to_string()));
    }

    fn params(&self) -> Value {
        let mut params = json!({"operation": self.name, "driver": self.driver});
        if let Some(connections) = self.connections {
            params["connections"] = connections.into();
        }
        params
    }
}

/// The common part of most of them.
const TASK: Operation = Operation { name: "", driver: "uring", connections: None, has_file: false };

/// Reads a whole file by its path.
pub(super) const READ: Operation = Operation { name: "read", has_file: true, ..TASK };
/// Receives a message, and sends it back.
pub(super) const ECHO: Operation = Operation { name: "echo", connections: Some(1), ..TASK };

/// Receives datagrams, and sends them back.
pub(super) const DATAGRAMS: Operation = Operation { name: "datagrams", ..ECHO };
/// Lets the other tasks run: a turn, and nothing else.
pub(super) const YIELD: Operation = Operation { name: "yield", ..TASK };
/// Reads an open file.
pub(super) const READ_AT: Operation = Operation { name: "read-at", has_file: true, ..TASK };
/// The same, from the disk. Not counted with the others: their number of turns depends on the disk.
pub(super) const READ_AT_UNCACHED: Operation =
    Operation { name: "read-at-uncached", has_file: true, ..TASK };

const OPERATIONS: [Operation; 12] = [
    YIELD,
    Operation { name: "spawn", ..TASK },
    READ_AT,
    READ,
    ECHO,
    Operation { name: "echo", connections: Some(64), ..TASK },
    // The driver's part of the cell before.
    Operation { name: "echo-no-tasks", connections: Some(64), ..TASK },
    Operation { name: "echo", connections: Some(1), driver: "poll", ..TASK },
    Operation { name: "echo", connections: Some(64), driver: "poll", ..TASK },
    DATAGRAMS,
    Operation { connections: Some(32), ..DATAGRAMS },
    Operation { connections: Some(32), driver: "poll", ..DATAGRAMS },
];

/// Prints a row per operation: the least of the counts, the median and the greatest.
pub(super) fn measure(program: &Path, data: &Path, json: bool) -> anyhow::Result<Vec<Row>> {
    if !json {
        println!("\ninstructions per operation in a runtime, least of {RUNS}");
        println!(
            "{:<14} {:>6} {:>11} {:>9} {:>9} {:>9}",
            "operation", "driver", "connections", "sakia", "median", "max"
        );
    }
    let mut rows = Vec::new();
    for operation in &OPERATIONS {
        let [min, median, max] = operation.count(program, data)?;
        let params = operation.params();
        if json {
            let line = json!({
                "type": "result", "experiment": "instructions", "params": params, "runs": RUNS,
                "instructions_per_op": {"sakia": min},
                "instructions_per_op_median": median, "instructions_per_op_max": max,
            });
            println!("{line}");
        } else {
            let Operation { name, driver, connections, .. } = operation;
            let connections = connections.map_or("-".to_owned(), |count| count.to_string());
            print!("{name:<14} {driver:>6} {connections:>11} ");
            println!("{min:>9.1} {median:>9.1} {max:>9.1}");
        }
        rows.push(Row { params, counts: vec![("sakia", min)] });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_told_apart() {
        let params: std::collections::BTreeSet<_> =
            OPERATIONS.iter().map(|operation| operation.params().to_string()).collect();
        assert_eq!(params.len(), OPERATIONS.len());
        assert!(params.contains(r#"{"driver":"uring","operation":"yield"}"#));
        assert!(params.contains(r#"{"connections":64,"driver":"poll","operation":"echo"}"#));
    }

    #[test]
    fn all_rounds_are_whole() {
        for connections in OPERATIONS.iter().filter_map(|operation| operation.connections) {
            assert_eq!(COUNT % connections, 0);
        }
    }
}
