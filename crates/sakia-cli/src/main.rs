//! The `sakia` program: tools on the io_uring engine.
//!
//! Parse ([`cli`]) → resolve (the same, which knows the terminal) → run ([`sum`], [`cp`], [`rm`], [`bench`],
//! [`doctor`], [`mktree`], which read neither the arguments nor the environment). Results go to standard
//! output, all else to standard error; [`exit`] says what the exit status means.

#![forbid(unsafe_code)]

mod bench;
mod bytes;
mod cli;
mod cp;
mod doctor;
mod engine;
mod exit;
mod mktree;
mod mounts;
mod name;
mod output;
mod progress;
mod rm;
mod signals;
mod sum;

use std::process::ExitCode;

use crate::cli::Task;
use crate::exit::Exit;

fn main() -> ExitCode {
    let result = match cli::parse() {
        Task::Sum(options) => sum::run(&options),
        Task::Cp(options) => cp::run(&options),
        Task::Rm(options) => rm::run(&options),
        Task::Doctor(options) => doctor::run(&options),
        Task::Mktree(options) => mktree::run(&options),
        Task::Bench(options) => bench::run(options),
        Task::BenchCell(spec) => bench::run_one(&spec),
    };
    let exit = result.unwrap_or_else(|error| {
        if exit::is_broken_pipe(&error) {
            return Exit::Success;
        }
        eprintln!("sakia: {error:#}");
        Exit::Failure
    });
    exit.leave()
}
