//! `sakia bench`: the experiments.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sakia_bench::baseline::{self, Baseline};
use sakia_bench::copytree::{self, CopyTree};
use sakia_bench::costs::{self, Costs};
use sakia_bench::echo::{self, Echo};
use sakia_bench::file_sum::{self, FileSum};
use sakia_bench::run::AtHand;
use sakia_bench::sched::{self, Sched};
use sakia_bench::send_file::{self, SendFile};
use sakia_bench::sockets::{self, Sockets};
use sakia_bench::tcp_sum::{self, TcpSum};
use sakia_bench::text::Text;
use sakia_bench::threads::{self, ManyReads};
use sakia_bench::udp::{self, Udp};
use sakia_bench::wal::{self, Wal};
use sakia_bench::{
    Event, Experiment, Launcher, Results, Settings, json, leftovers, report, run_cell,
};

use crate::exit::Exit;
use crate::name::Shown;
use crate::output::{Format, complain, print};
use crate::signals::Signals;

/// The hidden subcommand that does one run.
pub const CELL: &str = "bench-cell";
/// Fixes the order of the variants.
const SEED: u64 = 1;

/// Options of `sakia bench`.
#[derive(Debug)]
pub struct Options {
    pub experiment: Which,
    pub runs: usize,
    pub format: Format,
    /// The file for the page with the plots.
    pub report: Option<PathBuf>,
    /// The file to which the results are added, as JSON Lines.
    pub keep: Option<PathBuf>,
    /// Show the progress on standard error.
    pub progress: bool,
}

/// An experiment with its options.
#[derive(Debug)]
pub enum Which {
    FileSum(file_sum::Options),
    TcpSum(tcp_sum::Options),
    Echo(echo::Options),
    Udp(udp::Options),
    SendFile(send_file::Options),
    Sockets(sockets::Options),
    Threads(threads::Options),
    Sched(Box<sched::Options>),
    CopyTree(Box<copytree::Options>),
    Wal(wal::Options),
    Costs(costs::Options),
    Baseline(baseline::Options),
}

/// Runs an experiment, and prints the results. Files that could not be removed are named, also when a signal
/// ends the program early.
///
/// # Errors
/// Errors that end the program: inputs, the report or standard output cannot be written, processes cannot be
/// started. A failing variant, or a wrong result, makes the program [fail](Exit::Failure) at the end.
pub fn run(options: Options, signals: &Signals) -> anyhow::Result<Exit> {
    signals.on_giving_up(left_behind);
    let result = experiment(options, signals);
    left_behind().iter().for_each(|line| complain(format_args!("{line}")));
    result
}

/// Returns a line for each remaining place.
fn left_behind() -> Vec<String> {
    let left = leftovers().unwrap_or_default();
    left.iter().map(|place| format!("left behind: {}", Shown(place.as_ref()))).collect()
}

fn experiment(options: Options, signals: &Signals) -> anyhow::Result<Exit> {
    let launcher = Launcher {
        program: env::current_exe().context("cannot find this program")?,
        arguments: vec![CELL.into()],
    };
    let load = Some(launcher.clone());
    let mut experiment: Box<dyn Experiment> = match options.experiment {
        Which::FileSum(file_sum) => Box::new(FileSum::new(file_sum)?),
        Which::TcpSum(tcp_sum) => Box::new(TcpSum::new(tcp_sum::Options { load, ..tcp_sum })?),
        Which::Echo(echo) => Box::new(Echo::new(echo::Options { load, ..echo })?),
        Which::Udp(udp) => Box::new(Udp::new(udp::Options { load, ..udp })?),
        Which::SendFile(files) => Box::new(SendFile::new(send_file::Options { load, ..files })?),
        Which::Sockets(sockets) => Box::new(Sockets::new(sockets::Options { load, ..sockets })?),
        Which::Threads(threads) => Box::new(ManyReads::new(threads)?),
        Which::Sched(sched) => Box::new(Sched::new(*sched)?),
        Which::CopyTree(copytree) => Box::new(CopyTree::new(*copytree)?),
        Which::Wal(wal) => Box::new(Wal::new(wal)?),
        Which::Costs(costs) => Box::new(Costs::new(costs)?),
        Which::Baseline(baseline) => Box::new(Baseline::new(baseline)?),
    };
    // Before the work, so that a wrong path is known early.
    let mut page = None;
    if let Some(path) = &options.report {
        let file = File::create(path);
        page = Some((file.with_context(|| format!("cannot create {}", path.display()))?, path));
    }
    let mut kept = None;
    if let Some(path) = &options.keep {
        let file = File::options().create(true).append(true).open(path);
        kept = Some((file.with_context(|| format!("cannot open {}", path.display()))?, path));
    }
    let at_hand = AtHand::default();
    let process = at_hand.clone();
    signals.on_first(move || process.end());
    let settings = Settings { runs: options.runs, seed: SEED, launcher, at_hand };
    let about = experiment.about().clone();
    let is_json = options.format == Format::Json;
    let progress = Progress::new(options.progress);
    if is_json {
        print(&json::machine(about.name, &about.machine)?)?;
    }
    let mut observe = |event: Event<'_>| {
        progress.show(&event);
        match event {
            Event::Done(run) if is_json => print(&json::run(about.name, &about.points, run)?),
            _ => Ok(()),
        }
    };
    let is_stopped = || signals.received().is_some();
    let ended = sakia_bench::run(&mut *experiment, &settings, &mut observe, &is_stopped)?;
    progress.bar.finish_and_clear();
    let Some(results) = ended else {
        drop(experiment); // its files, before the signal ends the program
        return Ok(signals.received().map_or(Exit::Failure, Exit::Signal));
    };
    if is_json {
        json::results(&results)?.iter().try_for_each(|line| print(line))?;
    } else {
        print(Text(&results).to_string().trim_end())?;
    }
    if let Some((file, path)) = kept {
        let written = keep(file, &results);
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some((mut file, path)) = page {
        let page = report::html(&results, &experiment.plots(&results))?;
        let written = file.write_all(page.as_bytes());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    report_failures(&results);
    Ok(if results.has_failed() { Exit::Failure } else { Exit::Success })
}

/// Adds a line about the machine, one for each run, and the results to a file, in one write: another
/// experiment may add its own at the same time.
fn keep(mut file: File, results: &Results) -> anyhow::Result<()> {
    let about = &results.about;
    let mut lines = vec![json::machine(about.name, &about.machine)?];
    for run in &results.runs {
        lines.push(json::run(about.name, &about.points, run)?);
    }
    lines.extend(json::results(results)?);
    let text = lines.iter().flat_map(|line| [line, "\n"]).collect::<String>();
    Ok(file.write_all(text.as_bytes())?)
}

/// Does the run that `spec` describes, in this process, and prints the result.
///
/// # Errors
/// See [`run_cell`].
pub fn run_one(spec: &str) -> anyhow::Result<Exit> {
    print(&serde_json::to_string(&run_cell(spec)?)?)?;
    Ok(Exit::Success)
}

/// Reports failures on standard error, even if standard output is JSON.
fn report_failures(results: &Results) {
    for missing in &results.missing {
        if missing.is_failure {
            complain(format_args!("{}: {}", missing.variant, missing.reason));
        }
    }
    for mismatch in &results.mismatches {
        complain(format_args!("wrong result: {mismatch}"));
    }
}

/// A progress line on standard error, or nothing.
struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new(is_enabled: bool) -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs, {msg}")
            .expect("the template is well-formed");
        let target =
            if is_enabled { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { bar: ProgressBar::with_draw_target(None, target).with_style(style) }
    }

    /// Draws between runs only: drawing would disturb them.
    fn show(&self, event: &Event<'_>) {
        match event {
            Event::Prepare { point } => self.bar.set_message(format!("making {point}")),
            Event::Begin { point, variant, done, total } => {
                self.bar.set_length(*total as u64);
                self.bar.set_position(*done as u64);
                self.bar.set_message(format!("{variant}, {point}"));
                self.bar.tick();
            }
            Event::Done(_) => {}
        }
    }
}
