//! The command line: its definition, and how it is understood.
//!
//! The only place that reads the arguments and the environment, and asks whether a stream is a
//! terminal.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use sakia_driver::Policy;

use crate::engine::Shape;
use crate::output::Format;
use crate::{doctor, sum};

/// Memory that reads in flight may take.
const MEMORY_MAX: u64 = 1 << 30;

/// Tools on an io_uring engine.
#[derive(Debug, Parser)]
#[command(name = "sakia", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sum(SumArgs),
    Doctor(DoctorArgs),
}

/// Sum the bytes of files
///
/// Adds all bytes of each file, as unsigned numbers and modulo 2^64, and prints the sum, the number
/// of bytes and the name. Several files get a total. The files are read through the ring, several
/// blocks at a time; what that took is printed to standard error in the end. Where there is no ring
/// epoll and threads do the same, and a line on standard error says why.
///
/// Standard input is read from where it stands. Pipes, terminals and devices are read to their end,
/// block by block.
///
/// The exit status is 0 when all was summed, 1 when something failed, 2 for wrong usage. A file
/// that cannot be read is reported, and the others are summed.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{JSON_HELP}\n\n{ENVIRONMENT_HELP}"))]
struct SumArgs {
    /// Files to sum; `-`, or none at all, is standard input
    files: Vec<PathBuf>,

    /// Write JSON Lines
    ///
    /// One object per line, described below. No progress bar and no statistics are shown; errors go
    /// to standard error too.
    #[arg(long)]
    json: bool,

    /// Print the sums alone: no progress bar, no statistics
    ///
    /// Errors are still reported on standard error.
    #[arg(short, long)]
    quiet: bool,

    /// Bytes of each read
    ///
    /// A number, or one with K, M or G for 1024, 1024^2 or 1024^3 (also KiB, MiB, GiB).
    #[arg(long, value_name = "BYTES", default_value = "512K", value_parser = parse_bytes)]
    block: u64,

    /// Reads of a file in flight at a time
    ///
    /// More helps where the device is slow to answer and there is no read-ahead. Pipes, terminals
    /// and the like are read one block at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
}

const JSON_HELP: &str = "\
JSON Lines, with --json:
  {\"type\":\"file\",\"path\":…,\"bytes\":…,\"sum\":…}
      A file that was summed.
  {\"type\":\"error\",\"path\":…,\"operation\":\"open\",\"errno\":2,\"message\":…}
      A file that failed, and in which operation. Without a path: there is no ring, or nothing
      else to read with, and nothing follows.
  {\"type\":\"summary\",\"files\":…,\"errors\":…,\"bytes\":…,\"sum\":…,\"elapsed_ns\":…,
   \"bytes_per_s\":…,\"reads\":…,\"block_bytes\":…,\"depth\":…,\"driver\":\"uring\",
   \"refusal\":…,\"counters\":{…}}
      The last line, unless a signal ended the program. The driver is uring or poll; the refusal is
      there if the lack of a ring led to poll, and says why. The counters are those of the engine.
A path that is not UTF-8 is given as \"path_bytes\", in base64, instead of \"path\".";

const ENVIRONMENT_HELP: &str = "\
Environment:
  SAKIA_DRIVER  auto (the ring where there is one, else poll; the default), uring (the ring or
                nothing), poll (epoll and threads)";

/// Say what io_uring offers on this machine
///
/// Sets up a ring the way the engine does, and prints what the kernel granted: sizes, flags,
/// features and operations; each step down from the best configuration with its reason; and the
/// limits and filters of this process. Where there is no ring it says why and what to change. It also
/// tries epoll and threads, which stand in for the ring, and tells which of the two programs use.
///
/// The exit status is 0 when there is a ring, 1 when there is none, 2 for wrong usage.
#[derive(Debug, Args)]
#[command(after_long_help = ENVIRONMENT_HELP)]
struct DoctorArgs {
    /// Write one JSON object: {"type":"doctor",…}
    #[arg(long)]
    json: bool,
}

/// What the program is to do.
#[derive(Debug)]
pub enum Task {
    Sum(sum::Options),
    Doctor(doctor::Options),
}

/// Reads the command line. Ends the program where there is nothing else to do: help, the version,
/// wrong usage.
pub fn parse() -> Task {
    let surroundings = Surroundings {
        out_is_terminal: io::stdout().is_terminal(),
        err_is_terminal: io::stderr().is_terminal(),
        driver: env::var_os("SAKIA_DRIVER"),
    };
    resolve(Cli::parse(), surroundings).unwrap_or_else(|error| error.exit())
}

/// What the options depend on beside the arguments.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    out_is_terminal: bool,
    err_is_terminal: bool,
    /// The value of `SAKIA_DRIVER`.
    driver: Option<OsString>,
}

fn resolve(cli: Cli, surroundings: Surroundings) -> Result<Task, clap::Error> {
    let format = |json| if json { Format::Json } else { Format::Human };
    let policy = Policy::from_environment(surroundings.driver.as_deref())
        .map_err(|error| Cli::command().error(ErrorKind::InvalidValue, error))?;
    let args = match cli.command {
        Command::Doctor(args) => {
            return Ok(Task::Doctor(doctor::Options { format: format(args.json), policy }));
        }
        Command::Sum(args) => args,
    };
    if args.block * u64::from(args.depth) > MEMORY_MAX {
        let message = format!(
            "{} blocks of {} bytes take more than 1 GiB of memory; lower --block or --depth",
            args.depth, args.block
        );
        return Err(Cli::command().error(ErrorKind::ValueValidation, message));
    }
    let mut inputs: Vec<_> = args
        .files
        .into_iter()
        .map(
            |path| if path.as_os_str() == "-" { sum::Input::Stdin } else { sum::Input::Path(path) },
        )
        .collect();
    if inputs.is_empty() {
        inputs.push(sum::Input::Stdin);
    }
    let is_chatty = !args.quiet && !args.json;
    Ok(Task::Sum(sum::Options {
        inputs,
        shape: Shape { block_bytes: args.block as usize, depth: args.depth.into() },
        format: format(args.json),
        to_terminal: surroundings.out_is_terminal,
        policy,
        statistics: is_chatty,
        progress: is_chatty && surroundings.err_is_terminal,
    }))
}

/// A number of bytes from 1 to 1 GiB.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("expected a number, perhaps with K, M or G".into()),
    };
    let number: u64 = number.parse().map_err(|_| "expected a number, perhaps with K, M or G")?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| (1..=MEMORY_MAX).contains(bytes));
    bytes.ok_or_else(|| "expected 1 byte to 1 GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(args: &[&str], surroundings: Surroundings) -> Result<Task, ErrorKind> {
        let cli = Cli::try_parse_from([&["sakia"], args].concat()).map_err(|error| error.kind())?;
        resolve(cli, surroundings).map_err(|error| error.kind())
    }

    fn sum(args: &[&str], terminal: bool) -> sum::Options {
        let surroundings =
            Surroundings { out_is_terminal: terminal, err_is_terminal: terminal, driver: None };
        match task(&[&["sum"], args].concat(), surroundings) {
            Ok(Task::Sum(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bytes_have_units_and_bounds() {
        assert_eq!(parse_bytes("1"), Ok(1));
        assert_eq!(parse_bytes("32768"), Ok(32768));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("2MiB"), Ok(2 << 20));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for wrong in [
            "",
            "0",
            "K",
            "-1",
            "1.5K",
            "2G",
            "64KB",
            "99999999999999999999",
            "18446744073709551615G",
        ] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bar_is_drawn_only_on_a_terminal_and_when_welcome() {
        assert!(sum(&["f"], true).progress);
        for (args, terminal) in
            [(&["f"][..], false), (&["f", "--quiet"], true), (&["f", "--json"], true)]
        {
            assert!(!sum(args, terminal).progress, "{args:?}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let task = |args: &[&str]| task(args, Surroundings::default());
        let wrong = task(&["sum", "--block", "1G", "--depth", "2", "f"]);
        assert_eq!(wrong.unwrap_err(), ErrorKind::ValueValidation);
        assert!(task(&["sum", "--block", "1M", "--depth", "1024", "f"]).is_ok());
    }

    #[test]
    fn driver_is_chosen_by_the_environment() {
        let policy = |value: Option<&str>| {
            let driver = value.map(OsString::from);
            let surroundings = Surroundings { driver, ..Surroundings::default() };
            match task(&["sum", "f"], surroundings)? {
                Task::Sum(options) => Ok(options.policy),
                Task::Doctor(_) => panic!("sum was asked for"),
            }
        };
        assert_eq!((policy(None), policy(Some(""))), (Ok(Policy::Auto), Ok(Policy::Auto)));
        assert_eq!(policy(Some("auto")), Ok(Policy::Auto));
        assert_eq!(policy(Some("uring")), Ok(Policy::Uring));
        assert_eq!(policy(Some("poll")), Ok(Policy::Poll));
        assert_eq!(policy(Some("epoll")), Err(ErrorKind::InvalidValue));
    }

    #[test]
    fn no_file_is_standard_input() {
        let is_stdin = |options: &sum::Options| matches!(options.inputs[..], [sum::Input::Stdin]);
        assert!(is_stdin(&sum(&[], false)) && is_stdin(&sum(&["-"], false)));
        assert!(matches!(sum(&["./-"], false).inputs[..], [sum::Input::Path(_)]));
    }
}
