//! The command line: its definition, and how it is understood.
//!
//! The only place that reads the arguments and asks whether a stream is a terminal.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

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
/// blocks at a time; what that took is printed to standard error in the end.
///
/// Standard input is read from where it stands. Pipes, terminals and devices are read to their end,
/// block by block.
///
/// The exit status is 0 when all was summed, 1 when something failed, 2 for wrong usage. A file
/// that cannot be read is reported, and the others are summed.
#[derive(Debug, Args)]
#[command(after_long_help = JSON_HELP)]
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
      A file that failed, and in which operation. Without a path: there is no ring, and nothing
      follows.
  {\"type\":\"summary\",\"files\":…,\"errors\":…,\"bytes\":…,\"sum\":…,\"elapsed_ns\":…,
   \"bytes_per_s\":…,\"reads\":…,\"block_bytes\":…,\"depth\":…,\"driver\":\"uring\",\"counters\":{…}}
      The last line, unless a signal ended the program. The counters are those of the engine.
A path that is not UTF-8 is given as \"path_bytes\", in base64, instead of \"path\".";

/// Say what io_uring offers on this machine
///
/// Sets up a ring the way the engine does, and prints what the kernel granted: sizes, flags,
/// features and operations; each step down from the best configuration with its reason; and the
/// limits and filters of this process. Where there is no ring it says why and what to change.
///
/// The exit status is 0 when there is a ring, 1 when there is none, 2 for wrong usage.
#[derive(Debug, Args)]
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
    let terminal = Terminal { out: io::stdout().is_terminal(), err: io::stderr().is_terminal() };
    resolve(Cli::parse(), terminal).unwrap_or_else(|error| error.exit())
}

/// Which streams are terminals.
#[derive(Clone, Copy, Debug)]
struct Terminal {
    out: bool,
    err: bool,
}

fn resolve(cli: Cli, terminal: Terminal) -> Result<Task, clap::Error> {
    let format = |json| if json { Format::Json } else { Format::Human };
    let args = match cli.command {
        Command::Doctor(args) => {
            return Ok(Task::Doctor(doctor::Options { format: format(args.json) }));
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
        to_terminal: terminal.out,
        statistics: is_chatty,
        progress: is_chatty && terminal.err,
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

    fn task(args: &[&str], terminal: Terminal) -> Result<Task, ErrorKind> {
        let cli = Cli::try_parse_from([&["sakia"], args].concat()).map_err(|error| error.kind())?;
        resolve(cli, terminal).map_err(|error| error.kind())
    }

    fn sum(args: &[&str], terminal: bool) -> sum::Options {
        match task(&[&["sum"], args].concat(), Terminal { out: terminal, err: terminal }) {
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
        let terminal = Terminal { out: false, err: false };
        let wrong = task(&["sum", "--block", "1G", "--depth", "2", "f"], terminal);
        assert_eq!(wrong.unwrap_err(), ErrorKind::ValueValidation);
        assert!(task(&["sum", "--block", "1M", "--depth", "1024", "f"], terminal).is_ok());
    }

    #[test]
    fn no_file_is_standard_input() {
        let is_stdin = |options: &sum::Options| matches!(options.inputs[..], [sum::Input::Stdin]);
        assert!(is_stdin(&sum(&[], false)) && is_stdin(&sum(&["-"], false)));
        assert!(matches!(sum(&["./-"], false).inputs[..], [sum::Input::Path(_)]));
    }
}
