//! Suites of experiments: their data, and the measurement.
//!
//! Each cell is one experiment; its runs go in rounds, each with every peer once, in an order that rotates
//! by one per round. Every peer must have done the same work: the same number of operations, with the same
//! checksum. The data is in `suites.toml`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::report::{Bases, Cell, Row, Title, as_json, as_tables};
use super::{Build, copy, run_program};

/// Options of a suite.
#[derive(Debug, Default, Args)]
#[group(skip)] // it is flattened into others of its name
pub(crate) struct Options {
    /// Three rounds with less work: minutes instead of half an hour
    #[arg(long)]
    pub(super) quick: bool,
    /// Rounds [default: 9, or 15 of servers, or 3 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Peers to run, of all
    #[arg(long, value_name = "PEER", value_delimiter = ',')]
    only: Vec<String>,
    /// Cells to run, of all
    #[arg(long, value_name = "CELL", value_delimiter = ',')]
    cells: Vec<String>,
}

impl Options {
    /// Returns the number of rounds; `full` is the usual one.
    pub(super) fn rounds(&self, full: usize) -> usize {
        self.runs.unwrap_or(if self.quick { 3 } else { full }).max(1)
    }
}

/// The content of `suites.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suites {
    pub(super) tasks: Suite,
    pub(super) files: Suite,
    pub(super) engine: Suite,
    pub(super) net: Suite,
    pub(super) servers: Suite,
    pub(super) copy: copy::Copies,
}

/// Reads the suites. They live as long as the program, of which each run needs one.
pub(super) fn suites() -> anyhow::Result<&'static Suites> {
    let suites = toml::from_str(include_str!("suites.toml")).context("peers/suites.toml")?;
    Ok(Box::leak(Box::new(suites)))
}

/// Experiments measured together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suite {
    /// Peers that the others are compared with.
    pub(super) bases: [String; 2],
    pub(super) experiments: Vec<Experiment>,
    pub(super) peers: Vec<Peer>,
}

/// Measurements of one table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Experiment {
    pub(super) name: String,
    pub(super) title: String,
    /// Arguments for all sizes.
    pub(super) arguments: String,
    #[serde(default)]
    pub(super) needs: Needs,
    /// The used part of the file in bytes, if not all, in a full and in a quick run.
    pub(super) size: Option<[u64; 2]>,
    /// Operations of all tasks together, in a full and in a quick run.
    #[serde(default)]
    pub(super) ops: [u64; 2],
    /// Seconds of a load without a number of operations, in a full and in a quick run.
    pub(super) seconds: Option<[u64; 2]>,
    /// Its distinguishing parameters, in JSON, if not its name.
    #[serde(default)]
    pub(super) params: Value,
}

/// The required files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Needs {
    #[default]
    Nothing,
    File,
    FileInMemory,
    Tree,
    FileToWrite,
    FileToWriteInMemory,
}

/// A program, and one of its variants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    pub(super) name: String,
    package: String,
    #[serde(default)]
    pub(super) variant: String,
    /// The variant that works under valgrind, if there is one.
    pub(super) counted: Option<String>,
    #[serde(default)]
    features: Vec<String>,
    /// Compiler flags.
    flags: Option<String>,
    #[serde(default)]
    cells: Cells,
}

/// The experiments of a peer.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cells {
    #[default]
    All,
    Files,
    Tasks,
    Only(Vec<String>),
    AllBut(Vec<String>),
}

impl Peer {
    fn has(&self, experiment: &Experiment) -> bool {
        match &self.cells {
            Cells::All => true,
            Cells::Files => experiment.needs != Needs::Nothing,
            Cells::Tasks => experiment.needs == Needs::Nothing,
            Cells::Only(names) => names.contains(&experiment.name),
            Cells::AllBut(names) => !names.contains(&experiment.name),
        }
    }

    fn build(&self, profile: &'static str) -> Build<'_> {
        let flags = self.flags.as_deref();
        Build { package: &self.package, profile, features: &self.features, flags }
    }
}

/// Returns the chosen ones; all, if no name was given.
pub(super) fn chosen<'s, T>(
    all: &'s [T],
    names: &[String],
    name: fn(&T) -> &str,
) -> anyhow::Result<Vec<&'s T>> {
    let is_known = |chosen: &&String| all.iter().any(|one| name(one) == *chosen);
    if let Some(unknown) = names.iter().find(|chosen| !is_known(chosen)) {
        let known: Vec<_> = all.iter().map(name).collect();
        bail!("there is no {unknown}; there are {}", known.join(", "));
    }
    let is_chosen = |one: &&T| names.is_empty() || names.iter().any(|chosen| chosen == name(one));
    Ok(all.iter().filter(is_chosen).collect())
}

/// Returns the result again, or the reason of its failure.
fn again<T>(result: &anyhow::Result<T>) -> anyhow::Result<&T> {
    result.as_ref().map_err(|error| anyhow!("{error:#}"))
}

/// The differences between suites.
pub(super) trait Runner {
    /// Prepares the runs of a round.
    fn ready(&self, _experiment: &Experiment, _round: usize) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the command of a run.
    fn command(&self, start: &Start<'_>) -> anyhow::Result<Command>;
}

/// A run: a program on an experiment. Runs have different seeds.
pub(super) struct Start<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) peer: &'a Peer,
    pub(super) program: &'a Path,
    pub(super) seed: u64,
}

/// The chosen part of a suite, with the programs that it needs.
pub(super) struct Bench {
    bases: Bases,
    pub(super) experiments: Vec<&'static Experiment>,
    peers: Vec<&'static Peer>,
    programs: Vec<(Build<'static>, anyhow::Result<PathBuf>)>,
    profile: &'static str,
}

impl Bench {
    /// Builds the programs of the chosen experiments. A failed build is the reason in its rows.
    pub(super) fn new(
        folder: &Path,
        suite: &'static Suite,
        profile: &'static str,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let peers = chosen(&suite.peers, &options.only, |peer| &peer.name)?;
        let experiments = chosen(&suite.experiments, &options.cells, |one| &one.name)?;
        let mut programs: Vec<(Build<'static>, _)> = Vec::new();
        for peer in &peers {
            let build = peer.build(profile);
            let is_needed = experiments.iter().any(|experiment| peer.has(experiment));
            if is_needed && programs.iter().all(|(other, _)| *other != build) {
                programs.push((build, build.run(folder)));
            }
        }
        let bases = [&*suite.bases[0], &*suite.bases[1]];
        Ok(Self { bases, experiments, peers, programs, profile })
    }

    /// Returns the peers of an experiment, with their programs.
    pub(super) fn peers_of(
        &self,
        experiment: &Experiment,
    ) -> impl Iterator<Item = (&'static Peer, anyhow::Result<&Path>)> {
        self.peers.iter().filter(|peer| peer.has(experiment)).map(|peer| {
            let build = peer.build(self.profile);
            let program = self.programs.iter().find(|(other, _)| *other == build);
            (
                *peer,
                program
                    .context("was not built")
                    .and_then(|(_, program)| again(program).map(PathBuf::as_path)),
            )
        })
    }

    /// Measures a cell: all rounds of all its peers.
    pub(super) fn measure(
        &self,
        experiment: &'static Experiment,
        rounds: usize,
        runner: &dyn Runner,
    ) -> Cell {
        let (peers, programs): (Vec<_>, Vec<_>) = self.peers_of(experiment).unzip();
        let row = |peer: &&'static Peer| Row { peer: &peer.name, runs: Ok(Vec::new()) };
        let mut rows: Vec<Row> = peers.iter().map(row).collect();
        for round in 0..rounds {
            if let Err(error) = runner.ready(experiment, round) {
                rows.iter_mut().for_each(|row| row.runs = Err(anyhow!("no files: {error:#}")));
                break;
            }
            for index in (0..peers.len()).map(|index| (index + round) % peers.len()) {
                let Ok(earlier) = &mut rows[index].runs else { continue };
                let seed = (round * peers.len() + index + 1) as u64;
                let run = again(&programs[index]).and_then(|program| {
                    let start = Start { experiment, peer: peers[index], program, seed };
                    run_program(&mut runner.command(&start)?)
                });
                match run {
                    Ok(run) => earlier.push(run),
                    Err(error) => rows[index].runs = Err(error),
                }
            }
        }
        let is_timed = experiment.seconds.is_some();
        Cell::new(&experiment.name, &experiment.title, self.bases, rows, is_timed)
    }

    /// Measures all cells and prints them.
    pub(super) fn run(&self, options: &Options, title: &Title, runner: &dyn Runner) -> ExitCode {
        if !options.json {
            print!("{title}");
        }
        let mut cells = Vec::new();
        for experiment in &self.experiments {
            eprintln!("{}: {}", experiment.name, experiment.title);
            let cell = self.measure(experiment, title.runs, runner);
            if !options.json {
                print!("{}", as_tables(&cell));
            }
            cells.push(cell);
        }
        if options.json {
            print!("{}", as_json(title, &cells));
        }
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_names_what_there_is() {
        let Suites { tasks, files, engine, net, servers, .. } = suites().unwrap();
        for suite in [tasks, files, engine, net, servers] {
            let has = |base: &String| suite.peers.iter().any(|peer| peer.name == *base);
            assert!(suite.bases.iter().all(has), "{:?}", suite.bases);
            for names in suite.peers.iter().filter_map(|peer| match &peer.cells {
                Cells::Only(names) | Cells::AllBut(names) => Some(names),
                _ => None,
            }) {
                assert!(chosen(&suite.experiments, names, |one| &one.name).is_ok(), "{names:?}");
            }
        }
        for suite in [files, engine, net, servers] {
            for experiment in &suite.experiments {
                let sizes = experiment.seconds.unwrap_or(experiment.ops);
                assert!(sizes.iter().all(|size| *size > 0), "{}", experiment.name);
            }
        }
    }
}
