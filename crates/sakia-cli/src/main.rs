//! The `sakia` program: tools on the io_uring engine.
//!
//! Parse ([`cli`]) → resolve (the same, which knows the terminal) → run ([`sum`], [`cp`], [`rm`], [`bench`],
//! [`doctor`], [`mktree`], which read neither the arguments nor the environment). Results go to standard
//! output, all else to standard error; [`exit`] has the exit statuses.

#![forbid(unsafe_code)]
// They panic when they cannot write: `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod bytes;
mod cli;
mod cp;
mod doctor;
mod engine;
mod exit;
mod keeper;
mod mktree;
mod mounts;
mod name;
mod output;
mod progress;
mod rm;
mod signals;
mod sum;
mod trace;

use std::process::ExitCode;

use crate::cli::Task;
use crate::exit::Exit;
use crate::output::complain;
use crate::signals::Role;

/// Does a task that signals may interrupt.
fn hear(task: Task) -> anyhow::Result<Exit> {
    let is_kept = cli::is_kept();
    if is_kept {
        keeper::attach();
    } else if keeper::is_needed(&task)
        && let Some(child) = keeper::start()
    {
        return keeper::keep(child);
    }
    let role = if is_kept { Role::Kept } else { Role::Alone };
    signals::hear(role, move |signals| match task {
        Task::Sum(options) => sum::run(&options, signals),
        Task::Cp(options) => cp::run(&options, signals),
        Task::Rm(options) => rm::run(&options, signals),
        Task::Mktree(options) => mktree::run(&options, signals),
        Task::Bench(options) => bench::run(options, signals),
        Task::Doctor(_) | Task::BenchCell(_) | Task::Trace(_) => unreachable!("done by main"),
    })
}

fn main() -> ExitCode {
    let task = match cli::parse() {
        Ok(task) => task,
        Err(error) => return cli::explain(&error).leave(),
    };
    let result = match task {
        // They leave nothing behind, so signals may end them at once.
        Task::Doctor(options) => doctor::run(&options),
        Task::BenchCell(spec) => bench::run_one(&spec),
        Task::Trace(options) => trace::run(&options),
        task => hear(task),
    };
    conclude(result).leave()
}

/// Reports the error of a task, and completes the program's records, since a signal may end it next.
fn conclude(result: anyhow::Result<Exit>) -> Exit {
    let exit = result.unwrap_or_else(|error| {
        if exit::is_broken_pipe(&error) {
            return Exit::Success;
        }
        complain(format_args!("{error:#}"));
        Exit::Failure
    });
    sakia::trace::flush();
    exit
}
