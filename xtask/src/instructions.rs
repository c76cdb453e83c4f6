//! `cargo xtask instructions`: instructions per operation, against loops written by hand.
//!
//! Runs `crates/sakia-driver/examples/instructions.rs` under callgrind, twice per cell with different
//! counts; the difference is the cost of the operations alone. Instructions do not depend on the
//! machine's load. What the kernel executes is not counted: it is the same for all variants, since
//! they make the same system calls. Needs `valgrind`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::cargo;

/// The first is the yardstick of the second, the third that of the fourth.
const VARIANTS: [&str; 4] = ["crate", "ring", "owned", "driver"];
const OPERATIONS: [&str; 2] = ["nop", "read"];
const BATCHES: [u32; 3] = [1, 8, 64];
/// Operations of the shorter run; the longer has twice as many. A multiple of every batch.
const COUNT: u32 = 6400;
/// The most that a ratio should be.
const RATIO_MAX: f64 = 1.15;

/// Prints a row per operation and batch: instructions per operation and the two ratios. Misses are
/// printed like hits. With `check` the exit status is 1 when the ring misses its target.
pub(crate) fn run(root: &Path, json: bool, check: bool) -> anyhow::Result<ExitCode> {
    let program = build(root)?;
    let data = std::env::temp_dir().join(format!("sakia-instructions-{}", std::process::id()));
    fs::write(&data, vec![7; 64 * 1024]).with_context(|| format!("write {}", data.display()))?;
    let result = measure(&program, &data, json);
    fs::remove_file(&data).with_context(|| format!("remove {}", data.display()))?;
    let is_reached = result?;
    Ok(if check && !is_reached { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(program: &Path, data: &Path, json: bool) -> anyhow::Result<bool> {
    let mut is_reached = true;
    if !json {
        println!(
            "instructions per operation, user space (callgrind); target: ratio <= {RATIO_MAX}"
        );
        println!(
            "{:<10} {:>5} {:>8} {:>8} {:>11} {:>8} {:>8} {:>13}",
            "operation", "batch", "crate", "ring", "ring/crate", "owned", "driver", "driver/owned"
        );
    }
    for operation in OPERATIONS {
        for batch in BATCHES {
            let mut per_op = [0.0; VARIANTS.len()];
            for (cell, variant) in per_op.iter_mut().zip(VARIANTS) {
                let short = count(program, data, variant, operation, batch, COUNT)?;
                let long = count(program, data, variant, operation, batch, 2 * COUNT)?;
                *cell = (long - short) as f64 / f64::from(COUNT);
            }
            let [by_crate, ring, owned, driver] = per_op;
            is_reached &= ring / by_crate <= RATIO_MAX;
            if json {
                let counts = VARIANTS.into_iter().zip(per_op);
                let ratios = [
                    ("ring/crate", ring / by_crate),
                    ("driver/owned", driver / owned),
                    ("driver/crate", driver / by_crate),
                ];
                print!(r#"{{"type":"result","experiment":"instructions","params":"#);
                print!(r#"{{"operation":"{operation}","batch":{batch}}},"instructions_per_op":"#);
                println!(r#"{},"ratios":{}}}"#, object(counts), object(ratios));
            } else {
                let (ours, owning) = (verdict(ring / by_crate), verdict(driver / owned));
                print!("{operation:<10} {batch:>5} {by_crate:>8.1} {ring:>8.1} {ours:>11} ");
                println!("{owned:>8.1} {driver:>8.1} {owning:>13}");
            }
        }
    }
    Ok(is_reached)
}

/// A JSON object of numbers.
fn object(numbers: impl IntoIterator<Item = (&'static str, f64)>) -> String {
    let pairs: Vec<String> =
        numbers.into_iter().map(|(name, number)| format!(r#""{name}":{number:.3}"#)).collect();
    format!("{{{}}}", pairs.join(","))
}

/// A ratio, marked when it misses the target.
fn verdict(ratio: f64) -> String {
    let mark = if ratio > RATIO_MAX { " miss" } else { "" };
    format!("{ratio:.2}{mark}")
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let mut command = cargo::command(root);
    command.args(["build", "--release", "--package", "sakia-driver", "--example", "instructions"]);
    let messages = cargo::build(&mut command).context("the example")?;
    cargo::program(&messages, "instructions")
}

/// Instructions of one whole run.
fn count(
    program: &Path,
    data: &Path,
    variant: &str,
    operation: &str,
    batch: u32,
    count: u32,
) -> anyhow::Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([variant, operation, &batch.to_string(), &count.to_string()])
        .arg(data)
        .output()
        .context("run valgrind; `apt-get install valgrind` provides it")?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{variant} {operation} fails under valgrind:\n{report}");
    }
    collected(&report).with_context(|| format!("no count in what valgrind says:\n{report}"))
}

/// The number in callgrind's line `==PID== Collected : NUMBER`.
fn collected(report: &str) -> Option<u64> {
    let line = report.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_callgrinds_report() {
        let report = "==12== Events    : Ir\n==12== Collected : 1234567\n==12==\n";
        assert_eq!(collected(report), Some(1_234_567));
        assert_eq!(collected("nothing of the kind"), None);
    }

    #[test]
    fn a_ratio_over_the_target_is_marked() {
        assert_eq!(verdict(1.15), "1.15");
        assert_eq!(verdict(1.16), "1.16 miss");
    }
}
