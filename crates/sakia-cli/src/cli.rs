//! The command line: definition and evaluation.
//!
//! The only module that reads the arguments and the environment, and checks which streams are terminals.

mod copy;
mod copytree;
mod costs;
mod experiments;
mod mktree;
mod notes;
mod trace;
mod wal;

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use sakia_driver::Policy;

use self::experiments::BenchArgs;
use self::notes::{ENVIRONMENT_HELP, JSON_HELP};
use crate::engine::Shape;
use crate::exit::Exit;
use crate::mounts::Place;
use crate::output::{Failed, Format, Line, STDOUT, complain, json_line, stdout};
use crate::{bench, cp, doctor, output, rm, sum};

/// The limit of memory for reads in flight.
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
    Cp(Box<copy::CpArgs>),
    Rm(copy::RmArgs),
    Bench(BenchArgs),
    Doctor(DoctorArgs),
    Mktree(mktree::MktreeArgs),
    Trace(trace::TraceArgs),
    /// One run of an experiment, for `bench` itself
    #[command(name = bench::CELL, hide = true)]
    BenchCell {
        spec: String,
    },
}

/// Sum the bytes of files
///
/// Adds all bytes of each file, as unsigned numbers and modulo 2^64, and prints the sum, the number of bytes
/// and the name. Several files get a total. Small files in the page cache are read by plain calls, all
/// others through the ring, several blocks at a time; statistics go to standard error at the end. Without a
/// ring epoll and threads do the same, and a line on standard error gives the reason.
///
/// Standard input is read from its current position. Pipes, terminals and devices are read to their end,
/// block by block.
///
/// The exit status is 0 if everything was summed, 1 if something failed, 2 for wrong usage. A file that
/// cannot be read is reported, and the others are summed.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{JSON_HELP}\n\n{ENVIRONMENT_HELP}"))]
struct SumArgs {
    /// Files to sum; `-`, or none at all, is standard input
    #[arg(value_parser = path())]
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
    #[arg(long, value_name = "BYTES", default_value = "512K", value_parser = bytes(1, MEMORY_MAX))]
    block: u64,

    /// Reads of a file in flight at a time
    ///
    /// A larger number helps if the device is slow to answer and there is no read-ahead. Pipes, terminals
    /// and similar files are read one block at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
}

/// Show the io_uring features of this machine
///
/// Sets up a ring as the engine does, and prints the granted sizes, flags, features and operations; each
/// step down from the best configuration with its reason; and the limits and filters of this process.
/// Without a ring it prints the reason and the remedy. It also tries epoll and threads, which replace the
/// ring, and prints which of the two programs use.
///
/// It then prints how the engine works on the file systems of the working directory, of temporary files, of
/// /dev/shm, of / and of the given paths. To find out it writes 4 KiB to a file without a name in a
/// directory, or reads that much of a file. A network or FUSE file system is only looked up.
///
/// The exit status is 0 if there is a ring, 1 if there is none or a path cannot be looked up, 2 for wrong
/// usage.
#[derive(Debug, Args)]
#[command(after_long_help = ENVIRONMENT_HELP)]
struct DoctorArgs {
    /// Directories or files whose file systems are examined, too
    #[arg(value_parser = path())]
    paths: Vec<PathBuf>,

    /// Write one JSON object: {"type":"doctor",…}
    #[arg(long)]
    json: bool,
}

/// The task of the program.
#[derive(Debug)]
pub enum Task {
    Sum(sum::Options),
    Cp(Box<cp::Options>),
    Rm(rm::Options),
    Bench(bench::Options),
    /// A run of an experiment, described by its parent.
    BenchCell(String),
    Doctor(doctor::Options),
    Mktree(crate::mktree::Options),
    Trace(crate::trace::Options),
}

/// The variable of a process that does the task of another one: see [`keeper`](crate::keeper).
pub const KEPT: &str = "SAKIA_KEPT";

/// Returns whether another process waits for this one.
pub fn is_kept() -> bool {
    env::var_os(KEPT).is_some()
}

/// Returns the arguments, the program's name included.
pub fn arguments() -> env::ArgsOs {
    env::args_os()
}

/// Reads the command line.
///
/// # Errors
/// There is only something to [explain]: help, the version, wrong usage.
pub fn parse() -> Result<Task, clap::Error> {
    let surroundings = Surroundings {
        out_is_terminal: output::is_terminal(),
        err_is_terminal: io::stderr().is_terminal(),
        driver: env::var_os("SAKIA_DRIVER"),
    };
    parse_from(env::args_os(), surroundings)
}

/// Prints help, the version, or the error of the command line.
pub fn explain(error: &clap::Error) -> Exit {
    if error.use_stderr() {
        error.print().ok();
        if is_json(env::args_os()) {
            let text = error.to_string();
            // Its first paragraph.
            let lines: Vec<_> =
                text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            let message = lines.join(" ").trim_start_matches("error: ").to_owned();
            let failed = Failed { path: None, operation: "usage", errno: None, message };
            // The exit status tells of it in any case.
            if let Ok(line) = json_line(&Line::<()>::Error(failed))
                && let Ok(mut out) = stdout()
            {
                out.write_all(&line).and_then(|()| out.flush()).ok();
            }
        }
        return Exit::Usage;
    }
    // It locks standard output itself.
    let print = || {
        stdout().map(drop)?;
        error.print()?;
        stdout()?.flush()
    };
    match print() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("{STDOUT}: {error}"));
            Exit::Failure
        }
        _ => Exit::Success,
    }
}

/// Returns whether these arguments, which may be wrong, select JSON: by an option of their command.
fn is_json(args: impl Iterator<Item = OsString>) -> bool {
    let mut root = Cli::command();
    root.build();
    let mut command = &root;
    for arg in args.skip(1).take_while(|arg| arg != "--") {
        let has_json = || command.get_arguments().any(|known| known.get_long() == Some("json"));
        if arg == "--json" && has_json() {
            return true;
        }
        if let Some(inner) = arg.to_str().and_then(|name| command.find_subcommand(name)) {
            command = inner;
        }
    }
    false
}

/// Returns an error in the arguments of the command with this name, whose usage is shown.
fn wrong(names: &[&str], kind: ErrorKind, message: impl std::fmt::Display) -> clap::Error {
    let mut root = Cli::command();
    root.build();
    let mut command = &mut root;
    for name in names {
        command = command.find_subcommand_mut(name).expect("the names are those of the commands");
    }
    command.error(kind, message)
}

/// Inputs of the options besides the arguments.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    out_is_terminal: bool,
    err_is_terminal: bool,
    /// The value of `SAKIA_DRIVER`.
    driver: Option<OsString>,
}

/// Reads the arguments of a command that often has little to do, with the definition of this command alone:
/// to define all of them takes as long as to copy a small file. `None`: of another one, or wrong.
fn quickly(args: &[OsString]) -> Option<(String, Command)> {
    fn read<A: Args>(args: &[OsString]) -> Option<A> {
        let matches = A::augment_args(clap::Command::new("")).try_get_matches_from(args).ok()?;
        A::from_arg_matches(&matches).ok()
    }
    let args = args.get(1..)?;
    let name = args.first()?.to_str()?;
    let command = match name {
        "cp" => Command::Cp(Box::new(read(args)?)),
        "rm" => Command::Rm(read(args)?),
        "sum" => Command::Sum(read(args)?),
        _ => return None,
    };
    Some((name.to_owned(), command))
}

/// Reads the arguments of any command.
fn fully(args: Vec<OsString>) -> Result<(String, Command), clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let Cli { command } = Cli::from_arg_matches(&matches)?;
    Ok((matches.subcommand_name().unwrap_or_default().to_owned(), command))
}

fn parse_from(
    args: impl IntoIterator<Item: Into<OsString> + Clone>,
    surroundings: Surroundings,
) -> Result<Task, clap::Error> {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let (name, command) = match quickly(&args) {
        Some(quick) => quick,
        None => fully(args)?,
    };
    let name = &*name;
    let format = |json| if json { Format::Json } else { Format::Human };
    let policy = Policy::from_environment(surroundings.driver.as_deref())
        .map_err(|error| wrong(&[name], ErrorKind::InvalidValue, error))?;
    let args = match command {
        Command::Doctor(args) => {
            return Ok(Task::Doctor(doctor::Options {
                format: format(args.json),
                policy,
                places: places(args.paths),
            }));
        }
        Command::Bench(args) => {
            let (name, options) = experiments::resolve(args, &surroundings);
            let invalid = |error| wrong(&["bench", name], ErrorKind::ValueValidation, error);
            match &options.experiment {
                bench::Which::Threads(threads) => threads.check().map_err(invalid)?,
                bench::Which::Sched(sched) => sched.check().map_err(invalid)?,
                bench::Which::CopyTree(copytree) => copytree.check().map_err(invalid)?,
                _ => {}
            }
            return Ok(Task::Bench(options));
        }
        Command::Mktree(args) => return Ok(Task::Mktree(args.resolve())),
        Command::Trace(args) => return Ok(Task::Trace(args.resolve())),
        Command::BenchCell { spec } => return Ok(Task::BenchCell(spec)),
        Command::Cp(args) => {
            return Ok(Task::Cp(Box::new(args.resolve(policy, &surroundings)?)));
        }
        Command::Rm(args) => return Ok(Task::Rm(args.resolve(policy))),
        Command::Sum(args) => args,
    };
    if args.block * u64::from(args.depth) > MEMORY_MAX {
        let message = format!(
            "{} blocks of {} bytes take more than 1 GiB of memory; lower --block or --depth",
            args.depth, args.block
        );
        return Err(wrong(&["sum"], ErrorKind::ValueValidation, message));
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

/// Returns the places whose file systems `doctor` examines.
fn places(arguments: Vec<PathBuf>) -> Vec<Place> {
    let usual = [PathBuf::from("."), env::temp_dir(), "/dev/shm".into(), "/".into()];
    let usual = usual.into_iter().map(|path| Place { path, is_argument: false });
    let wanted = arguments.into_iter().map(|path| Place { path, is_argument: true });
    usual.chain(wanted).collect()
}

/// Parses a path. An empty one is no wrong usage: it fails as any other that does not exist.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Parses a number of bytes from `min` to `max`.
fn bytes(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    let parse = move |text: &str| {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            _ => return None,
        };
        let number: u64 = number.parse().ok()?;
        number.checked_mul(1 << shift).filter(|bytes| (min..=max).contains(bytes))
    };
    move |text| {
        let (min, max) = (sakia_bench::bytes(min), sakia_bench::bytes(max));
        let expected = || format!("expected {min} to {max}: a number, perhaps with K, M or G");
        parse(text).ok_or_else(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(args: &[&str], surroundings: Surroundings) -> Result<Task, ErrorKind> {
        parse_from([&["sakia"], args].concat(), surroundings).map_err(|error| error.kind())
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
        let parse_bytes = bytes(1, MEMORY_MAX);
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
                _ => panic!("sum was asked for"),
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
