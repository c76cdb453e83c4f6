//! `cargo xtask check`: the tests to run after a change of the driver, within three minutes on two cores.
//!
//! Formatting, `tidy`, then all tests of the driver and the random programs of a thousand seeds on the
//! simulated kernel. It stops at the first failing step. `--bugs` measures the value of [the tests](SUITES):
//! they run with known bugs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::suites::{Outcome, Programs, Suite};
use crate::{cargo, tidy};

/// The suites, the quicker ones first.
pub(crate) const SUITES: [Suite; 5] =
    [Suite::Sweep, Suite::Allocations, Suite::DriverUnits, Suite::Driver, Suite::Conformance];

/// Runs the steps, and prints a line for each at the end.
pub(crate) fn run(root: &Path) -> ExitCode {
    let begin = Instant::now();
    let mut steps = Steps::default();
    let passed = steps.run(root);
    print!("\n{}", steps.lines);
    println!("{:<12} {:6.1} s", "all", begin.elapsed().as_secs_f64());
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The steps so far.
#[derive(Debug, Default)]
struct Steps {
    /// A line per step: name, time, result.
    lines: String,
}

impl Steps {
    /// Runs all steps until one fails. Returns whether all passed.
    fn run(&mut self, root: &Path) -> bool {
        let mut programs = None;
        let is_built = self.step("fmt", || {
            let status = cargo::command(root).args(["fmt", "--all", "--check"]).status();
            ensure!(status.context("run cargo")?.success(), "not formatted");
            Ok("formatted".to_owned())
        }) && self.step("tidy", || {
            ensure!(tidy::run(root)? == ExitCode::SUCCESS, "there are findings");
            Ok("no findings".to_owned())
        }) && self.step("build", || {
            let packages = SUITES.iter().map(|suite| suite.program().0).collect();
            let target = cargo::target_folder(root);
            programs = Some(Programs::build(root, &target, &packages, None)?);
            Ok("built".to_owned())
        });
        let Some(programs) = programs.filter(|_| is_built) else { return false };
        SUITES.iter().all(|&suite| {
            self.step(&format!("{suite:?}"), || match programs.test(suite)? {
                Outcome::Passed(0) => bail!("there are no tests"),
                Outcome::Passed(count) => Ok(format!("{count} tests passed")),
                Outcome::Caught(by) => bail!("{by}"),
            })
        })
    }

    /// Runs a step. Returns whether it passed.
    fn step(&mut self, name: &str, run: impl FnOnce() -> anyhow::Result<String>) -> bool {
        eprintln!("== {name}");
        let begin = Instant::now();
        let result = run();
        let seconds = begin.elapsed().as_secs_f64();
        let shown =
            result.as_ref().map_or_else(|error| format!("FAILED: {error:#}"), String::clone);
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{name:<12} {seconds:6.1} s  {shown}");
        result.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_line_with_its_result() {
        let mut steps = Steps::default();
        assert!(steps.step("good", || Ok("3 tests passed".to_owned())));
        assert!(!steps.step("bad", || bail!("a::test")));
        let lines: Vec<_> = steps.lines.lines().collect();
        assert!(lines[0].starts_with("good ") && lines[0].ends_with(" s  3 tests passed"));
        assert!(lines[1].starts_with("bad ") && lines[1].ends_with(" s  FAILED: a::test"));
    }
}
