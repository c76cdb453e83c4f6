//! Automation of this repository; `cargo xtask help` lists it.
//!
//! Each subcommand is a module with a `run` function. Exit status: 0 done, 1 something failed or
//! was found, 2 bad usage.

#![forbid(unsafe_code)]

mod tidy;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Automation of the Sakia repository.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check properties of the source that no other tool checks
    Tidy,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let root = repository_root();
    match arguments.command {
        Command::Tidy => tidy::run(&root),
    }
}

/// The repository this runs for: the one Cargo runs it in, which with a shared target directory
/// need not be the one it was built in.
fn repository_root() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
