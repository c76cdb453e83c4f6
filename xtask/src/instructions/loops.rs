//! The ring and the driver, next to loops written by hand that make the same system calls.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Row;
use crate::callgrind::{self, per_operation};

/// The first is the baseline of the second, the third and the fourth those of the fifth.
const VARIANTS: [&str; 5] = ["crate", "ring", "owned", "promised", "driver"];
const OPERATIONS: [&str; 2] = ["nop", "read"];
const BATCHES: [u32; 3] = [1, 8, 64];
/// Operations of the shorter run; the longer has twice as many. A multiple of every batch.
const COUNT: u64 = 6400;
/// The target of a ratio, at most.
const RATIO_MAX: f64 = 1.15;

/// Prints a row per operation and batch: instructions per operation and the two ratios. Returns whether the
/// ring meets its target everywhere.
pub(super) fn measure(program: &Path, data: &Path, json: bool) -> anyhow::Result<(Vec<Row>, bool)> {
    if !json {
        println!(
            "instructions per operation, user space (callgrind); target: ratio <= {RATIO_MAX}"
        );
        println!(
            "{:<10} {:>5} {:>8} {:>8} {:>11} {:>8} {:>8} {:>8} {:>13} {:>15}",
            "operation",
            "batch",
            "crate",
            "ring",
            "ring/crate",
            "owned",
            "promised",
            "driver",
            "driver/owned",
            "driver/promised"
        );
    }
    let (mut rows, mut is_reached) = (Vec::new(), true);
    for operation in OPERATIONS {
        for batch in BATCHES {
            let mut per_op = [0.0; VARIANTS.len()];
            for (cell, variant) in per_op.iter_mut().zip(VARIANTS) {
                *cell = count(program, data, [variant, operation], batch)?;
            }
            let [by_crate, ring, owned, promised, driver] = per_op;
            is_reached &= ring / by_crate <= RATIO_MAX;
            let params = json!({"operation": operation, "batch": batch});
            let counts = VARIANTS.into_iter().zip(per_op);
            if json {
                let line = json!({
                    "type": "result", "experiment": "instructions", "params": params,
                    "instructions_per_op": Value::from_iter(counts.clone()),
                    "ratios": {
                        "ring/crate": ring / by_crate, "driver/owned": driver / owned,
                        "driver/crate": driver / by_crate, "driver/promised": driver / promised,
                    },
                });
                println!("{line}");
            } else {
                let (ours, owning) = (verdict(ring / by_crate), verdict(driver / owned));
                let promising = verdict(driver / promised);
                print!("{operation:<10} {batch:>5} {by_crate:>8.1} {ring:>8.1} {ours:>11} ");
                print!("{owned:>8.1} {promised:>8.1} {driver:>8.1} {owning:>13} ");
                println!("{promising:>15}");
            }
            rows.push(Row { params, counts: counts.collect() });
        }
    }
    Ok((rows, is_reached))
}

/// Prints a row per operation and batch for requests: instructions per operation of the driver and of the
/// loop of requests on it, with the same rules for plain calls; and of both loops by hand, of which the
/// second is to the first what requests in C are to the driver. These make no plain calls.
pub(super) fn measure_requests(
    program: &Path,
    data: &Path,
    json: bool,
) -> anyhow::Result<Vec<Row>> {
    if !json {
        println!(
            "{:<10} {:>5} {:>8} {:>8} {:>11} {:>8} {:>8} {:>17}",
            "requests",
            "batch",
            "driver",
            "loop",
            "loop/driver",
            "promised",
            "requests",
            "requests/promised"
        );
    }
    let mut rows = Vec::new();
    for (operation, is_by_hand) in [("nop", true), ("read", true), ("cached", false)] {
        let pairs: &[[&'static str; 2]] = match is_by_hand {
            true => &[["driver", "loop"], ["promised", "requests"]],
            false => &[["driver", "loop"]],
        };
        for batch in BATCHES {
            let mut counts = Vec::new();
            let mut ratios = Map::new();
            let mut line = format!("{operation:<10} {batch:>5}");
            for &[below, requests] in pairs {
                let [least, most] = [below, requests]
                    .map(|variant| count(program, data, [variant, operation], batch));
                let (least, most) = (least?, most?);
                let (ratio, name) = (most / least, format!("{requests}/{below}"));
                line += &format!(" {least:>8.1} {most:>8.1} {ratio:>0$.2}", name.len());
                counts.extend([(below, least), (requests, most)]);
                ratios.insert(name, json!(ratio));
            }
            let params = json!({"operation": operation, "batch": batch, "form": "requests"});
            if json {
                let line = json!({
                    "type": "result", "experiment": "instructions", "params": params,
                    "instructions_per_op": Value::from_iter(counts.iter().copied()),
                    "ratios": ratios,
                });
                println!("{line}");
            } else {
                println!("{line}");
            }
            rows.push(Row { params, counts });
        }
    }
    Ok(rows)
}

/// Returns the instructions per operation of a variant.
fn count(program: &Path, data: &Path, what: [&str; 2], batch: u32) -> anyhow::Result<f64> {
    per_operation(COUNT, |count| {
        let [batch, count] = [batch.into(), count].map(|number| number.to_string());
        let (_, taken) = callgrind::run(program, |command| {
            command.args(what).args([&batch, &count]).arg(data);
        })?;
        Ok(taken)
    })
}

/// Formats a ratio, marked if it misses the target.
fn verdict(ratio: f64) -> String {
    let mark = if ratio > RATIO_MAX { " miss" } else { "" };
    format!("{ratio:.2}{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_over_the_target_is_marked() {
        assert_eq!(verdict(1.15), "1.15");
        assert_eq!(verdict(1.16), "1.16 miss");
    }
}
