//! Operations of a runtime, as programs use them.
//!
//! Each cell is counted several times: where a driver has threads, what they do between two operations
//! depends on the machine's scheduler.

use std::path::Path;

use super::{Row, object, per_operation};

/// Operations of the shorter run; the longer has twice as many. A multiple of all numbers of connections.
const COUNT: u32 = 6400;
/// Counts per cell, of which the least is taken: what disturbs a run adds to it.
const RUNS: usize = 5;

/// An operation, as the program knows it.
struct Operation {
    name: &'static str,
    driver: &'static str,
    /// Connections that have a request at the same time; 0 for operations without connections.
    connections: u32,
    /// Whether the program takes the name of a file.
    has_file: bool,
}

impl Operation {
    /// Instructions of one of them.
    fn count(&self, program: &Path, data: &Path) -> anyhow::Result<f64> {
        per_operation(
            program,
            |command, count| {
                command.args([self.driver, self.name, count]);
                if self.has_file {
                    command.arg(data);
                }
                if self.connections > 0 {
                    command.arg(self.connections.to_string());
                }
            },
            COUNT,
        )
    }

    fn params(&self) -> String {
        let Self { name, driver, connections, .. } = self;
        let connections = match connections {
            0 => String::new(),
            _ => format!(r#","connections":{connections}"#),
        };
        format!(r#"{{"operation":"{name}","driver":"{driver}"{connections}}}"#)
    }
}

/// What most of them have in common.
const TASK: Operation = Operation { name: "", driver: "uring", connections: 0, has_file: false };

const OPERATIONS: [Operation; 8] = [
    Operation { name: "yield", ..TASK },
    Operation { name: "spawn", ..TASK },
    Operation { name: "read-at", has_file: true, ..TASK },
    Operation { name: "read", has_file: true, ..TASK },
    Operation { name: "echo", connections: 1, ..TASK },
    Operation { name: "echo", connections: 64, ..TASK },
    Operation { name: "echo", connections: 1, driver: "poll", ..TASK },
    Operation { name: "echo", connections: 64, driver: "poll", ..TASK },
];

/// Prints a row per operation: the least of the counts, the median and the greatest.
pub(super) fn measure(program: &Path, data: &Path, json: bool) -> anyhow::Result<Vec<Row>> {
    if !json {
        println!("\ninstructions per operation in a runtime, least of {RUNS}");
        println!(
            "{:<10} {:>6} {:>11} {:>9} {:>9} {:>9}",
            "operation", "driver", "connections", "sakia", "median", "max"
        );
    }
    let mut rows = Vec::new();
    for operation in &OPERATIONS {
        let mut counts = [0.0; RUNS];
        for count in &mut counts {
            *count = operation.count(program, data)?;
        }
        counts.sort_by(f64::total_cmp);
        let (median, min, max) = (counts[RUNS / 2], counts[0], counts[RUNS - 1]);
        let params = operation.params();
        if json {
            print!(r#"{{"type":"result","experiment":"instructions","params":{params},"#);
            print!(r#""runs":{RUNS},"instructions_per_op":{},"#, object([("sakia", min)]));
            println!(
                r#""instructions_per_op_median":{median:.3},"instructions_per_op_max":{max:.3}}}"#
            );
        } else {
            let Operation { name, driver, connections, .. } = operation;
            let connections = match connections {
                0 => "-".to_owned(),
                _ => connections.to_string(),
            };
            print!("{name:<10} {driver:>6} {connections:>11} ");
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
            OPERATIONS.iter().map(Operation::params).collect();
        assert_eq!(params.len(), OPERATIONS.len());
        assert!(params.contains(r#"{"operation":"yield","driver":"uring"}"#));
        assert!(params.contains(r#"{"operation":"echo","driver":"poll","connections":64}"#));
    }

    #[test]
    fn all_rounds_are_whole() {
        let with_connections = OPERATIONS.iter().filter(|operation| operation.connections > 0);
        for operation in with_connections {
            assert_eq!(COUNT % operation.connections, 0);
        }
    }
}
