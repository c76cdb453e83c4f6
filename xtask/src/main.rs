//! Automation of this repository; `cargo xtask help` lists it.
//!
//! Each subcommand is a module with a `run` function. Exit status: 0 done, 1 something failed or
//! was found, 2 bad usage.

#![forbid(unsafe_code)]

mod callgrind;
mod cargo;
mod check;
mod coverage;
mod dist;
mod figures;
mod functions;
mod header;
mod instructions;
mod lines;
mod mutants;
mod peers;
mod sim;
mod suites;
mod test_code;
mod tidy;
mod words;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::dist::Sanitizer;
use self::instructions::path::Traced;
use self::mutants::Choice;

/// Automation of the Sakia repository.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a change of the driver: format, tidy, its tests, and random programs on the simulated kernel
    Check {
        /// Measure the tests instead: run them with this many known bugs of the driver, drawn by the seed,
        /// and fail if they catch fewer than 16 of 20
        #[arg(long, value_name = "COUNT", requires = "seed")]
        bugs: Option<usize>,
        /// The seed of the draw
        #[arg(long, requires = "bugs")]
        seed: Option<u64>,
    },
    /// Measure which lines of the driver's core the tests reach (needs cargo-tarpaulin)
    Coverage {
        /// Print the lines that are not reached
        #[arg(long)]
        lines: bool,
        /// Fail when less than 90 % of the core's lines are reached
        #[arg(long)]
        check: bool,
    },
    /// Install the library for C: shared, static, its header, and the file of pkg-config
    Dist {
        /// The folder above `lib` and `include`
        #[arg(long, default_value = "/usr/local")]
        prefix: PathBuf,
        /// Put all of it below this folder, to be packed; the environment's DESTDIR if not given
        #[arg(long, value_name = "FOLDER")]
        destination: Option<PathBuf>,
        /// The profile of Cargo's
        #[arg(long, default_value = "dist")]
        profile: String,
        /// Build a checker into the library, for tests of programs (needs a nightly toolchain with rust-src)
        #[arg(long)]
        sanitizer: Option<Sanitizer>,
    },
    /// Draw the picture of README.md, and write its table, from the figures in docs/results
    Figures,
    /// Write the header of the library for C
    Header {
        /// Write nothing, but fail if it is not current
        #[arg(long)]
        check: bool,
    },
    /// Count instructions per operation, of the ring, the driver and a runtime (needs valgrind)
    Instructions {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
        /// Fail when the ring misses its target
        #[arg(long)]
        check: bool,
        /// Compare with what `--json` printed earlier, and fail when a count of ours is above 1.005 of it
        #[arg(long, value_name = "FILE")]
        against: Option<PathBuf>,
    },
    /// Count instructions and host calls per operation of sockets inside a toy enclave (needs valgrind)
    SocketInstructions {
        /// Cells to count, such as events-50; all, if none is given
        cells: Vec<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Count lines of code per crate, without comments, blank lines and tests
    Lines {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
        /// Count the lines of this commit instead of those in the folder
        #[arg(long, value_name = "REVISION")]
        commit: Option<String>,
    },
    /// Run the tests once for each known bug, and fail if one is not caught
    Mutants {
        /// Names of the bugs to try; all, if none is given
        names: Vec<String>,
        /// Try those of known.toml, and a third of the others, chosen by the last commit
        #[arg(long, conflicts_with = "names")]
        quick: bool,
        /// Try none, but print entries for this many new bugs, on lines drawn by the seed
        #[arg(long, value_name = "COUNT", requires = "seed", conflicts_with_all = ["names", "quick"])]
        draw: Option<usize>,
        /// The seed of the lines and the changes
        #[arg(long)]
        seed: Option<u64>,
        /// Draw from files whose paths begin like this
        #[arg(long, value_name = "PREFIX", requires = "draw")]
        within: Vec<String>,
        /// Draw changes of this kind alone, such as "swallow an error"
        #[arg(long, value_name = "NAME", requires = "draw")]
        operator: Option<String>,
    },
    /// List the product's files with instructions of one operation in a runtime on the ring (needs valgrind)
    Path {
        /// The operations; all, if none is given
        operations: Vec<Traced>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Run experiments on Sakia and on other runtimes
    Peers {
        #[command(subcommand)]
        experiment: peers::Experiment,
    },
    /// Run random programs on the simulated kernel, with all its faults
    Sim {
        /// Arguments of `sakia-check sim`: --seeds N, --first-seed S, --jobs J, --once, --json
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run a mixed load with random drops on the real kernel, and check that nothing is left of it
    Soak {
        /// Arguments of `sakia-check soak`: --minutes N, --seconds N, --driver D, --threads T, --json
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Check properties of the source that no other tool checks
    Tidy {
        /// Check nothing, but print the cycles of files in each library, and the places of their
        /// dependencies
        #[arg(long)]
        cycles: bool,
    },
    /// Count unclear comments in the product's sources, per crate
    Words {
        /// Print each line that is counted
        #[arg(long, conflicts_with = "sample")]
        lines: bool,
        /// Print this many comments, drawn by the seed; a rewrite does not change the places drawn
        #[arg(long, value_name = "COUNT", requires = "seed")]
        sample: Option<usize>,
        /// The seed of the sample
        #[arg(long, requires = "sample")]
        seed: Option<u64>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let root = repository_root();
    match arguments.command {
        Command::Check { bugs: Some(count), seed: Some(seed) } => {
            mutants::sample(&root, &check::SUITES, count, seed)
        }
        Command::Check { .. } => Ok(check::run(&root)),
        Command::Coverage { lines, check } => coverage::run(&root, lines, check),
        Command::Dist { prefix, destination, profile, sanitizer } => {
            dist::run(&root, &prefix, destination, &profile, sanitizer)
        }
        Command::Figures => figures::run(&root),
        Command::Header { check } => header::run(&root, check),
        Command::Instructions { json, check, against } => {
            instructions::run(&root, json, check, against.as_deref())
        }
        Command::SocketInstructions { cells, json } => {
            instructions::sockets::run(&root, &cells, json)
        }
        Command::Lines { json, commit } => lines::run(&root, json, commit.as_deref()),
        Command::Mutants { draw: Some(count), seed: Some(seed), within, operator, .. } => {
            mutants::draw(&root, count, seed, &within, operator.as_deref())
        }
        Command::Mutants { quick: true, .. } => mutants::run(&root, &Choice::Quick),
        Command::Mutants { names, .. } if names.is_empty() => mutants::run(&root, &Choice::All),
        Command::Mutants { names, .. } => mutants::run(&root, &Choice::Names(names)),
        Command::Path { operations, json } => instructions::path::run(&root, &operations, json),
        Command::Peers { experiment } => peers::run(&root, &experiment),
        Command::Sim { arguments } => sim::run(&root, "sim", &arguments),
        Command::Soak { arguments } => sim::run(&root, "soak", &arguments),
        Command::Tidy { cycles: true } => tidy::cycles::print(&root),
        Command::Tidy { cycles: false } => tidy::run(&root),
        Command::Words { sample: Some(count), seed: Some(seed), .. } => {
            words::sample(&root, count, seed)
        }
        Command::Words { lines: true, .. } => words::lines(&root),
        Command::Words { .. } => words::counts(&root),
    }
}

/// Returns the repository in which Cargo runs this, which with a shared target directory may differ from the
/// one it was built in.
fn repository_root() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_do_not_contradict_each_other() {
        Arguments::command().debug_assert();
    }
}
