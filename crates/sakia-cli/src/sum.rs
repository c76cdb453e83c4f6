//! `sakia sum`: the byte sum of files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::io::Errno;
use sakia::os_error;
use sakia_driver::startup::stdin_was_closed;
use sakia_driver::{Auto, Bypass, Choice, Driver, Fd, OpKind, Policy, Rules};
use sakia_ring::{Ring, SetupError};

use crate::engine::{Engine, Failure, Opened, Shape, Start, Sum};
use crate::exit::Exit;
use crate::output::{Failed, Format, Output, STDOUT, Summary, complain, message, stdout};
use crate::progress::Progress;
use crate::signals::Signals;

/// The number of inputs opened ahead while one is read.
const AHEAD: usize = 16;
/// The number of inputs opened ahead after an uncached one.
const COLD: usize = 64;
/// The time limit for reads in flight after an error.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Options of `sakia sum`.
#[derive(Debug)]
pub struct Options {
    pub inputs: Vec<Input>,
    pub shape: Shape,
    pub format: Format,
    /// Standard output is a terminal.
    pub to_terminal: bool,
    /// The backend of reads.
    pub policy: Policy,
    /// Print why there is no ring, and the statistics at the end.
    pub statistics: bool,
    /// Draw a bar on standard error.
    pub progress: bool,
}

/// An input.
#[derive(Debug)]
pub enum Input {
    Stdin,
    Path(PathBuf),
}

impl Input {
    /// Returns its path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        if let Self::Path(path) = self { Some(path) } else { None }
    }

    /// Returns the name given by the user.
    pub fn name(&self) -> &OsStr {
        match self {
            Self::Stdin => OsStr::new("-"),
            Self::Path(path) => path.as_os_str(),
        }
    }
}

/// Sums all inputs.
///
/// # Errors
/// Errors that end the program: standard output cannot be written, the driver failed. A failure of one input
/// is reported and makes the program [fail](Exit::Failure) at the end.
pub fn run(options: &Options, signals: &Signals) -> anyhow::Result<Exit> {
    let out = stdout().context(STDOUT)?;
    let mut output = Output::new(out, options.format, options.to_terminal);
    let interrupt = signals.readable().context("signals")?;
    let (driver, choice) = match Auto::new(options.policy, Ring::builder()) {
        Ok((backend, choice)) => (Driver::new(backend), choice),
        Err(error) => {
            report_refusal(&error, &mut output)?;
            return Ok(Exit::Failure);
        }
    };
    if options.statistics
        && let Some(refusal) = choice.refusal()
    {
        complain(format_args!("epoll and threads instead of io_uring: {refusal}"));
    }
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let interrupt = driver.adopt(interrupt);
    let engine = Engine::new(&driver, options.shape, Some(&interrupt));
    let mut work = Work { engine, progress: Progress::new(options.progress), output, cold: 0 };
    let result = work.run(options, &driver, &choice);
    work.progress.clear();
    drop(work);
    if signals.received().is_some() {
        // The process ends, and with it all reads in flight.
        std::mem::forget(driver);
    } else {
        let _ = driver.shutdown(DRAIN_LIMIT);
    }
    let interrupted = || signals.received().map_or(Exit::Failure, Exit::Signal);
    Ok(result?.unwrap_or_else(interrupted))
}

/// Reports why the requested backend is not available.
fn report_refusal(error: &io::Error, output: &mut Output) -> anyhow::Result<()> {
    let (backend, operation) = match error.get_ref().is_some_and(|inner| inner.is::<SetupError>()) {
        true => ("io_uring", "io_uring_setup"),
        false => ("epoll", "epoll"),
    };
    complain(format_args!("{backend} is not available: {error}"));
    let (errno, message) = (os_error(error), message(error));
    output.failed(Failed { path: None, operation, errno, message })?;
    output.flush()
}

/// State of the loop over the inputs.
struct Work<'d> {
    engine: Engine<'d>,
    progress: Progress,
    output: Output,
    /// The number of inputs still to be opened ahead.
    cold: usize,
}

impl Work<'_> {
    /// Returns `None` if interrupted.
    fn run(
        &mut self,
        options: &Options,
        driver: &Driver,
        choice: &Choice,
    ) -> anyhow::Result<Option<Exit>> {
        let begin = Instant::now();
        let (mut total, mut files, mut errors) = (Sum::default(), 0u64, 0u64);
        let mut paths = options.inputs.iter().filter_map(|input| match input {
            Input::Path(path) => Some(path.as_path()),
            Input::Stdin => None,
        });
        for input in &options.inputs {
            let start = match input {
                Input::Path(path) if self.engine.announced() == 0 => {
                    paths.next(); // this one
                    self.engine.start(path)
                }
                _ => Ok(Start::NotNow),
            };
            let result = match (start, input) {
                (Ok(Start::Read(sum)), _) => {
                    self.progress.expect(sum.bytes);
                    self.progress.advance(sum.bytes);
                    Ok(sum)
                }
                (Ok(start), input) => {
                    self.output.flush()?;
                    match (input, start) {
                        (Input::Stdin, _) => self.sum_stdin(driver),
                        (Input::Path(path), Start::Opened(fd)) => self.sum_started(fd, path),
                        (Input::Path(path), _) => self.sum_announced(path, &mut paths),
                    }
                }
                (Err(failure), _) => Err(failure),
            };
            match result {
                Ok(sum) => {
                    files += 1;
                    total.add(sum);
                    self.progress.aside(|| self.output.file(input.name(), sum))?;
                }
                Err(Failure::Input(operation, error)) => {
                    errors += 1;
                    self.progress.aside(|| self.output.error(input.name(), operation, &error))?;
                }
                Err(Failure::Interrupted) => return Ok(None),
                Err(Failure::Driver(error)) => {
                    return Err(error).context(format!("driver {}", choice.name()));
                }
            }
        }
        self.progress.clear();
        let elapsed = begin.elapsed();
        let counters = driver.counters();
        let summary = Summary {
            files,
            errors,
            total,
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_s: (total.bytes as f64 / elapsed.as_secs_f64().max(1e-9)) as u64,
            reads: self.engine.reads(),
            plain_reads: counters.of(OpKind::Read).inline,
            shape: options.shape,
            driver: choice.name(),
            refusal: choice.refusal().map(SetupError::to_string),
            counters,
        };
        self.output.summary(&summary, options.inputs.len() > 1, options.statistics)?;
        Ok(Some(if errors > 0 { Exit::Failure } else { Exit::Success }))
    }

    /// Sums `path`, which is open.
    fn sum_started(&mut self, fd: Fd, path: &Path) -> Result<Sum, Failure> {
        let opened = self.engine.resume(fd, path)?;
        self.progress.expect(opened.stat.size);
        self.sum_opened(&opened, 0)
    }

    /// Sums `path`, which is not cached, and announces the next inputs.
    fn sum_announced<'p>(
        &mut self,
        path: &Path,
        following: &mut impl Iterator<Item = &'p Path>,
    ) -> Result<Sum, Failure> {
        if self.engine.announced() == 0 {
            self.engine.announce(path);
            self.cold = COLD;
        }
        while self.cold > 0
            && self.engine.announced() < AHEAD
            && let Some(next) = following.next()
        {
            self.engine.announce(next);
            self.cold -= 1;
        }
        let opened = self.engine.open(path)?;
        self.sum_opened(&opened, 0)
    }

    /// Sums standard input from its current position, and leaves it at its end, as reading it would.
    fn sum_stdin(&mut self, driver: &Driver) -> Result<Sum, Failure> {
        let clone = || io::stdin().as_fd().try_clone_to_owned();
        let failed = |error| Failure::Input("open", error);
        // `std` has opened `/dev/null` in its place.
        if stdin_was_closed() {
            return Err(failed(Errno::BADF.into()));
        }
        let mut file = File::from(clone().map_err(failed)?);
        let opened = self.engine.inspect(driver.adopt(clone().map_err(failed)?))?;
        let start = file.stream_position();
        self.progress.expect(opened.stat.size.saturating_sub(*start.as_ref().unwrap_or(&0)));
        let sum = self.sum_opened(&opened, *start.as_ref().unwrap_or(&0))?;
        if let Ok(start) = start
            && opened.stat.size > 0
        {
            file.seek(SeekFrom::Start(start.saturating_add(sum.bytes))).ok();
        }
        Ok(sum)
    }

    fn sum_opened(&mut self, opened: &Opened, start: u64) -> Result<Sum, Failure> {
        self.progress.expect(self.engine.fresh_bytes());
        let progress = &mut self.progress;
        self.engine.sum(opened, start, &mut |bytes| progress.advance(bytes))
    }
}
