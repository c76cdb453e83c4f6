//! Output: results to standard output, messages to standard error, and the lines of `sakia sum`, one per
//! file, for people or as JSON.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use sakia_copy::Failure;
use sakia_driver::Counters;
use sakia_driver::startup::stdout_was_closed;
use serde::Serialize;
use serde::ser::Serializer;

use crate::engine::{Shape, Sum};
use crate::name::{Member, Shown};

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Human,
    /// JSON Lines.
    Json,
}

/// Prints a message to standard error. A write error is ignored.
pub fn complain(text: fmt::Arguments<'_>) {
    // In one write, so that lines of several threads do not mix.
    let line = format!("sakia: {text}\n");
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Locks standard output. All output there goes through this.
///
/// # Errors
/// `EBADF`: it was closed when the program began, or is not open for writing. `std` opens `/dev/null` in
/// place of the former, and treats the latter as one that accepts everything.
#[expect(clippy::disallowed_methods, reason = "the errors that it hides are checked here")]
pub fn stdout() -> io::Result<StdoutLock<'static>> {
    let out = io::stdout();
    let flags = fcntl_getfl(&out)?;
    let is_writable = [OFlags::WRONLY, OFlags::RDWR].contains(&(flags & OFlags::ACCMODE))
        && !flags.contains(OFlags::PATH);
    if stdout_was_closed() || !is_writable {
        return Err(Errno::BADF.into());
    }
    Ok(out.lock())
}

/// Returns whether standard output is a terminal.
#[expect(clippy::disallowed_methods, reason = "nothing is written")]
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Prints a line of results.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(line: &str) -> anyhow::Result<()> {
    let print = || {
        let mut out = stdout()?;
        writeln!(out, "{line}")?;
        out.flush()
    };
    print().context(STDOUT)
}

/// Lines on standard output, from any thread. The first error is kept, and later lines are dropped: the work
/// goes on.
#[derive(Debug, Default)]
pub struct Lines {
    error: Mutex<Option<io::Error>>,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes whole lines in one call.
    pub fn write(&self, lines: &[u8]) {
        let mut error = self.lock();
        if error.is_none() {
            *error = stdout().and_then(|mut out| out.write_all(lines)).err();
        }
    }

    /// Returns the first error, if not everything was written. A broken pipe is none.
    pub fn end(&self) -> anyhow::Result<()> {
        match self.lock().take() {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context(STDOUT),
            _ => Ok(()),
        }
    }
}

/// The totals and the statistics.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    /// Inputs that were summed.
    pub files: u64,
    /// Inputs that failed.
    pub errors: u64,
    #[serde(flatten)]
    pub total: Sum,
    pub elapsed_ns: u64,
    pub bytes_per_s: u64,
    pub reads: u64,
    /// The part of these that were plain calls on this thread.
    pub plain_reads: u64,
    #[serde(flatten)]
    pub shape: Shape,
    /// The backend.
    pub driver: &'a str,
    /// The reason why there is no ring, if that led to the choice of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    #[serde(serialize_with = "by_name")]
    pub counters: Counters,
}

/// The size of the output buffer in bytes.
const OUT_BYTES: usize = 16 << 10;

/// Writes results to standard output, and errors to standard error.
#[derive(Debug)]
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    format: Format,
    /// Names are escaped.
    to_terminal: bool,
}

/// A line of the JSON output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line<'a, S> {
    File {
        #[serde(flatten)]
        path: Member<'a>,
        #[serde(flatten)]
        sum: Sum,
    },
    Error(Failed<'a>),
    Summary(S),
}

/// A failure, as JSON.
#[derive(Debug, Serialize)]
pub struct Failed<'a> {
    /// `None`: the failure concerns no input.
    #[serde(flatten)]
    pub path: Option<Member<'a>>,
    pub operation: &'a str,
    /// `null`: not an error of the system.
    pub errno: Option<i32>,
    pub message: String,
}

/// A line of JSON.
pub fn json_line(line: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line).context("json")?;
    text.push(b'\n');
    Ok(text)
}

fn by_name<S: Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.iter())
}

impl Output {
    pub fn new(out: StdoutLock<'static>, format: Format, to_terminal: bool) -> Self {
        Self { out: BufWriter::with_capacity(OUT_BYTES, out), format, to_terminal }
    }

    /// Prints the result of one input.
    pub fn file(&mut self, name: &OsStr, sum: Sum) -> anyhow::Result<()> {
        match self.format {
            Format::Human => self.row(name, sum),
            Format::Json => self.line(&Line::File { path: Member(name), sum }),
        }
    }

    /// Flushes the results. Called before anything that may take long.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.out.flush().context(STDOUT)
    }

    /// Prints the failure of one input.
    pub fn error(
        &mut self,
        name: &OsStr,
        operation: &str,
        error: &io::Error,
    ) -> anyhow::Result<()> {
        self.flush()?;
        complain(format_args!("{}: {operation}: {error}", Shown(name)));
        let (errno, message) = (error.raw_os_error(), message(error));
        self.failed(Failed { path: Some(Member(name)), operation, errno, message })
    }

    /// Prints a failure, in JSON.
    pub fn failed(&mut self, failed: Failed<'_>) -> anyhow::Result<()> {
        match self.format {
            Format::Human => Ok(()),
            Format::Json => self.line(&Line::Error(failed)),
        }
    }

    /// Prints the end: in JSON always; for people the total of several inputs, and the statistics if
    /// requested.
    pub fn summary(
        &mut self,
        summary: &Summary<'_>,
        several: bool,
        statistics: bool,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Human => {
                if several {
                    self.row(OsStr::new("total"), summary.total)?;
                }
                self.flush()?;
                // Without files there are none.
                if statistics && summary.files > 0 {
                    let _ = io::stderr().lock().write_all(summary.to_string().as_bytes());
                }
                Ok(())
            }
            Format::Json => {
                self.line(&Line::Summary(summary))?;
                self.flush()
            }
        }
    }

    /// Prints sum, bytes and name.
    fn row(&mut self, name: &OsStr, sum: Sum) -> anyhow::Result<()> {
        let mut line = format!("{:>15} {:>13}  ", sum.sum, sum.bytes).into_bytes();
        if self.to_terminal {
            line.extend(Shown(name).to_string().bytes());
        } else {
            line.extend(name.as_bytes());
        }
        line.push(b'\n');
        self.out.write_all(&line).context(STDOUT)?;
        if self.to_terminal { self.flush() } else { Ok(()) }
    }

    fn line(&mut self, line: &Line<'_, &Summary<'_>>) -> anyhow::Result<()> {
        self.out.write_all(&json_line(line)?).context(STDOUT)
    }
}

pub const STDOUT: &str = "standard output";

/// Returns the error without the number that `std` appends, which is a separate member.
pub fn message(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(errno) => text.trim_end_matches(&format!(" (os error {errno})")).to_owned(),
        None => text,
    }
}

/// Reports a failure of a copy or a removal on standard error. Returns the reason.
pub fn report(failure: &Failure) -> String {
    let message = message(failure.io_error());
    let path = Shown(failure.path().as_os_str());
    complain(format_args!("{} {path}: {message}", failure.operation()));
    message
}

/// The engine's statistics.
impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape: Shape { block_bytes, depth }, driver, counters, .. } = self;
        let rate = self.bytes_per_s as f64 / (1u64 << 30) as f64;
        let mib = self.total.bytes as f64 / f64::from(1 << 20);
        let seconds = self.elapsed_ns as f64 / 1e9;
        let block = sakia_bench::bytes(*block_bytes as u64);
        let mut row = |name: &str, value: &dyn fmt::Display, more: fmt::Arguments<'_>| {
            writeln!(f, "{}", format!("{name:<12} {value:>12}  {more}").trim_end())
        };
        row("", &"", format_args!(""))?;
        row("elapsed", &format!("{seconds:.6}"), format_args!("s"))?;
        row("rate", &format!("{rate:.3}"), format_args!("GiB/s"))?;
        row("reads", &self.reads, format_args!("of {block}, up to {depth} at a time"))?;
        row("plain calls", &self.plain_reads, format_args!("of these reads"))?;
        if *driver == "poll" {
            row("driver", &"poll", format_args!("epoll and threads"))?;
        }
        row("completions", &counters.completions, format_args!(""))?;
        row("enters", &counters.enters, format_args!("{} of them ready to sleep", counters.waits))?;
        // The other backends make more calls than the driver counts.
        if mib >= 1.0 && *driver == "uring" {
            let calls = counters.enters as f64 / mib;
            row("system calls", &format!("{calls:.3}"), format_args!("per MiB (io_uring_enter)"))?;
        }
        Ok(())
    }
}
