//! `sakia-check`: random programs on the simulated kernel, and the soak on the real one, from the command
//! line. `cargo xtask sim` and `cargo xtask soak` build and run it.

#![forbid(unsafe_code)]

use std::alloc::System;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use sakia_check::program::Program;
use sakia_check::run::simulated;
use sakia_check::soak::{Options, Sample, soak};
use sakia_check::stats::Stats;
use sakia_check::sweep::{catch_panics, check, smallest, sweep};
use sakia_driver::Policy;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Random programs of operations, held against models.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the programs of many seeds on the simulated kernel with all its faults.
    Sim {
        /// The number of seeds
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        first_seed: u64,
        /// Threads that run them; one per processor by default
        #[arg(long)]
        jobs: Option<usize>,
        /// Run each once only, without checking that it does the same again
        #[arg(long)]
        once: bool,
        /// Print the counts as one line of JSON
        #[arg(long)]
        json: bool,
        /// The file for a failing program
        #[arg(long, default_value = "failed-program.txt")]
        failed: PathBuf,
    },
    /// Run programs from files, and print the log of the last
    Replay {
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Run a mixed load with random drops on the real kernel, and check that nothing is left of it
    Soak(SoakArguments),
}

/// The duration and kind of the load.
#[derive(Debug, Args)]
struct SoakArguments {
    /// Minutes to run
    #[arg(long, default_value_t = 0)]
    minutes: u64,
    /// Additional seconds; 20 if there are no minutes
    #[arg(long)]
    seconds: Option<u64>,
    /// Threads with a runtime each.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The backend
    #[arg(long, default_value = "auto")]
    driver: PolicyName,
    /// The seed of steps and drops
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder for files; the one for temporary files by default
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Print samples and the summary as lines of JSON
    #[arg(long)]
    json: bool,
}

/// Names of backends.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyName {
    /// The ring if there is one
    Auto,
    /// The ring, or fail
    Uring,
    /// Epoll and threads
    Poll,
}

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the number of bytes allocated now.
fn allocated() -> u64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated) as u64
}

fn main() -> anyhow::Result<ExitCode> {
    let Arguments { command } = Arguments::parse();
    match command {
        Command::Sim { seeds, first_seed, jobs, once, json, failed } => {
            catch_panics();
            let jobs = jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
            let range = first_seed..first_seed.saturating_add(seeds);
            let progress = |done| {
                if done % 65_536 == 0 {
                    eprintln!("{done} of {seeds} seeds");
                }
            };
            let report = sweep(range, jobs.unwrap_or(1), !once, progress);
            if json {
                println!("{}", serde_json::to_string(&report.stats)?);
            } else {
                print!("{}", report.stats);
            }
            for (seed, failure) in &report.failures {
                println!("seed {seed} fails: {}", failure.what);
                let (program, failure) = smallest(&Program::random(*seed), failure.clone());
                let text = format!("# {}\n{}", one_line(&failure.what), program.to_text());
                fs::write(&failed, text).with_context(|| format!("write {}", failed.display()))?;
                println!("made smaller, in {}: {} steps", failed.display(), program.steps.len());
            }
            let never = report.stats.never();
            if !never.is_empty() && report.failures.is_empty() && seeds >= 1000 {
                println!("these never happened: {never:?}");
                return Ok(ExitCode::FAILURE);
            }
            Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Soak(arguments) => run_soak(&arguments),
        Command::Replay { files } => {
            let mut has_failed = false;
            let mut log = String::new();
            for file in files {
                let text = fs::read_to_string(&file)
                    .with_context(|| format!("read {}", file.display()))?;
                let program =
                    Program::from_text(&text).with_context(|| file.display().to_string())?;
                log = simulated(&program, true, &mut Stats::default())?.log;
                if let Err(failure) = check(&program, true, &mut Stats::default()) {
                    has_failed = true;
                    println!("{}: {}", file.display(), failure.what);
                }
            }
            print!("{log}");
            Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn run_soak(arguments: &SoakArguments) -> anyhow::Result<ExitCode> {
    let seconds = arguments.seconds.unwrap_or(if arguments.minutes == 0 { 20 } else { 0 });
    let options = Options {
        duration: Duration::from_secs(arguments.minutes * 60 + seconds),
        threads: arguments.threads.max(1),
        policy: match arguments.driver {
            PolicyName::Auto => Policy::Auto,
            PolicyName::Uring => Policy::Uring,
            PolicyName::Poll => Policy::Poll,
        },
        seed: arguments.seed,
        folder: arguments.folder.clone().unwrap_or_else(std::env::temp_dir),
        allocated,
    };
    let show = |sample: &Sample| {
        match arguments.json {
            true => println!("{}", serde_json::to_string(sample)?),
            false => println!("{sample}"),
        }
        anyhow::Ok(())
    };
    match (soak(&options, show), arguments.json) {
        (Ok(summary), true) => println!("{}", serde_json::to_string(&summary)?),
        (Ok(summary), false) => println!("{summary}"),
        (Err(error), json) => {
            let seed = options.seed;
            if json {
                let failure = format!("{error:#}");
                println!(
                    "{}",
                    serde_json::json!({"type": "failure", "seed": seed, "what": failure})
                );
            }
            eprintln!("the soak with seed {seed} fails: {error:#}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}
