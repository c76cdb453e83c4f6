//! Counts of an earlier commit, and their comparison with later ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Row;

/// The largest accepted ratio to the saved count.
const RATIO_MAX: f64 = 1.005;
/// This project's variants; the others are baselines.
const OURS: [&str; 4] = ["ring", "driver", "loop", "sakia"];

/// A count by name of operation and variant.
#[derive(Debug, PartialEq)]
struct Cell {
    params: Value,
    variant: String,
    count: f64,
}

/// The output of an earlier `cargo xtask instructions --json`.
#[derive(Debug)]
pub(super) struct Saved {
    cells: Vec<Cell>,
}

/// A line of it.
#[derive(Deserialize)]
struct Line {
    experiment: String,
    params: Value,
    instructions_per_op: BTreeMap<String, f64>,
}

impl Saved {
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no saved run", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut cells = Vec::new();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line)?;
            if line["type"] != "result" {
                continue;
            }
            let Line { experiment, params, instructions_per_op } = serde_json::from_value(line)?;
            ensure!(experiment == "instructions", "it is of the experiment {experiment}");
            for (variant, count) in instructions_per_op {
                if OURS.contains(&variant.as_str()) {
                    cells.push(Cell { params: params.clone(), variant, count });
                }
            }
        }
        ensure!(!cells.is_empty(), "it has no counts");
        Ok(Self { cells })
    }

    /// Prints a row per saved cell of ours. Returns whether one is worse now, or is missing.
    pub(super) fn compare(&self, rows: &[Row], json: bool) -> bool {
        if !json {
            println!("\ncompared with the saved counts; target: ratio <= {RATIO_MAX}");
            println!("{:>7} {:>9} {:>9} {:>12}  operation", "variant", "saved", "now", "ratio");
        }
        let mut is_worse = false;
        for cell in &self.cells {
            let Cell { params, variant, count } = cell;
            let now = cell.now(rows);
            is_worse |= now.is_none_or(|now| is_above(now, *count));
            if json {
                let line = json!({
                    "type": "comparison", "experiment": "instructions", "params": params,
                    "variant": variant, "saved": count, "now": now,
                });
                println!("{line}");
            } else if let Some(now) = now {
                let mark = if is_above(now, *count) { "worse " } else { "" };
                let ratio = format!("{mark}{:.4}", now / count);
                println!("{variant:>7} {count:>9.1} {now:>9.1} {ratio:>12}  {params}");
            } else {
                println!("{variant:>7} {count:>9.1} {:>9} {:>12}  {params}", "-", "not counted");
            }
        }
        is_worse
    }
}

impl Cell {
    /// The same cell's count of this run.
    fn now(&self, rows: &[Row]) -> Option<f64> {
        let row = rows.iter().find(|row| row.params == self.params)?;
        let count = row.counts.iter().find(|(variant, _)| *variant == self.variant);
        count.map(|&(_, count)| count)
    }
}

fn is_above(now: f64, saved: f64) -> bool {
    now > saved * RATIO_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = concat!(
        r#"{"type":"result","experiment":"instructions","params":{"operation":"nop","batch":1},"#,
        r#""instructions_per_op":{"crate":10.0,"ring":200.0,"owned":30.0,"driver":400.0},"ratios":{}}"#,
        "\n",
        r#"{"type":"result","experiment":"instructions","#,
        r#""params":{"operation":"echo","driver":"poll","connections":1},"runs":5,"#,
        r#""instructions_per_op":{"sakia":1000.0},"instructions_per_op_min":1.0}"#,
        "\n",
        r#"{"type":"comparison","saved":1}"#,
    );

    fn rows(nop: [f64; 4], echo: f64) -> [Row; 2] {
        let [by_crate, ring, owned, driver] = nop;
        let counts =
            vec![("crate", by_crate), ("ring", ring), ("owned", owned), ("driver", driver)];
        let nop = json!({"operation": "nop", "batch": 1});
        let params = json!({"connections": 1, "driver": "poll", "operation": "echo"});
        [Row { params: nop, counts }, Row { params, counts: vec![("sakia", echo)] }]
    }

    #[test]
    fn cells_of_ours_may_rise_by_half_a_percent() {
        let saved = Saved::parse(SAVED).unwrap();
        assert_eq!(saved.cells.len(), 3);
        assert!(!saved.compare(&rows([10.0, 200.9, 30.0, 401.9], 1004.9), false));
        assert!(saved.compare(&rows([10.0, 201.1, 30.0, 400.0], 1000.0), false));
        assert!(saved.compare(&rows([10.0, 200.0, 30.0, 402.1], 1000.0), false));
        assert!(saved.compare(&rows([10.0, 200.0, 30.0, 400.0], 1005.1), true));
    }

    #[test]
    fn yardsticks_may_change() {
        let saved = Saved::parse(SAVED).unwrap();
        assert!(!saved.compare(&rows([99.0, 200.0, 99.0, 400.0], 1000.0), false));
    }

    #[test]
    fn a_cell_that_is_gone_is_worse() {
        let saved = Saved::parse(SAVED).unwrap();
        let [nop, echo] = rows([10.0, 200.0, 30.0, 400.0], 1000.0);
        assert!(saved.compare(&[nop], false));
        assert!(saved.compare(&[echo], true));
    }

    #[test]
    fn other_files_are_refused() {
        let other =
            r#"{"type":"result","experiment":"tasks","params":{},"instructions_per_op":{}}"#;
        for text in ["", "text", r#"{"type":"summary"}"#, other, r#"{"type":"result"}"#] {
            assert!(Saved::parse(text).is_err(), "{text}");
        }
    }
}
