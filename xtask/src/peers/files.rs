//! `cargo xtask peers files`: reading and writing files, and tasks, by the clock.
//!
//! Each cell is one experiment; its runs go in rounds, each with every peer once, in an order that
//! moves on by one from round to round. The files are brought into the page cache before each round,
//! and written back before each run that writes. Every peer must have done the same work: as many
//! operations, with the same check.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;

use super::report::{Bases, Cell, Row, Title, as_json, as_tables};
use super::{Build, Run, output, run_program, started};
use crate::cargo;

/// How it is run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Three rounds with small files: minutes instead of half an hour
    #[arg(long)]
    quick: bool,
    /// Rounds [default: 9, or 3 with --quick]
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
    /// Folder for the files, on the file system to measure [default: in the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What is measured together.
pub(super) struct Suite {
    pub(super) experiments: &'static [Experiment],
    pub(super) peers: &'static [Peer],
    /// Peers that the others are compared with.
    pub(super) bases: Bases,
}

/// Sakia's runtime beside others.
pub(super) const RUNTIMES: Suite =
    Suite { experiments: &EXPERIMENTS, peers: &PEERS, bases: ["std", "sakia"] };

/// Those of the names that were chosen.
fn chosen<'s, T>(
    all: &'s [T],
    names: &[String],
    name: fn(&T) -> &'static str,
) -> anyhow::Result<Vec<&'s T>> {
    let is_known = |chosen: &&String| all.iter().any(|one| name(one) == *chosen);
    if let Some(unknown) = names.iter().find(|chosen| !is_known(chosen)) {
        let known: Vec<_> = all.iter().map(name).collect();
        bail!("there is no {unknown}; there are {}", known.join(", "));
    }
    let is_chosen = |one: &&T| names.is_empty() || names.iter().any(|chosen| chosen == name(one));
    Ok(all.iter().filter(is_chosen).collect())
}

/// What is measured by one table.
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// The cell as the programs know it, and arguments that no size changes.
    pub(super) arguments: &'static [&'static str],
    pub(super) needs: Needs,
    pub(super) ops: fn(&Sizes) -> u64,
}

/// Which files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    File,
    FileInMemory,
    Tree,
    FileToWrite,
    FileToWriteInMemory,
}

/// How much.
pub(super) struct Sizes {
    pub(super) sum_bytes: u64,
    pub(super) file_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) small_files: u64,
    pub(super) reads: u64,
    pub(super) direct_reads: u64,
    pub(super) writes: u64,
    pub(super) yields: u64,
    pub(super) spawns: u64,
}

const FULL: Sizes = Sizes {
    sum_bytes: 1 << 30,
    file_bytes: 2 << 30,
    written_bytes: 256 << 20,
    small_files: 100_000,
    reads: 400_000,
    direct_reads: 100_000,
    writes: 200_000,
    yields: 1_000_000,
    spawns: 200_000,
};

const QUICK: Sizes = Sizes {
    sum_bytes: 256 << 20,
    file_bytes: 256 << 20,
    written_bytes: 64 << 20,
    small_files: 10_000,
    reads: 100_000,
    direct_reads: 20_000,
    writes: 50_000,
    yields: 200_000,
    spawns: 20_000,
};

const EXPERIMENTS: [Experiment; 11] = [
    Experiment {
        name: "sum",
        title: "sum of the bytes of a cached file, blocks of 32 KiB in sequence",
        arguments: &["sum", "block=32768"],
        needs: Needs::File,
        ops: |sizes| sizes.sum_bytes / 32768,
    },
    Experiment {
        name: "randread",
        title: "random reads of 4 KiB, cached file, 64 tasks on one thread",
        arguments: &["randread", "tasks=64"],
        needs: Needs::File,
        ops: |sizes| sizes.reads,
    },
    Experiment {
        name: "randread2",
        title: "random reads of 4 KiB, cached file, 64 tasks on each of two threads",
        arguments: &["randread", "tasks=64", "threads=2"],
        needs: Needs::File,
        ops: |sizes| sizes.reads,
    },
    Experiment {
        name: "randread-tmpfs",
        title: "random reads of 4 KiB, file on tmpfs, 64 tasks on one thread",
        arguments: &["randread", "tasks=64"],
        needs: Needs::FileInMemory,
        ops: |sizes| sizes.reads,
    },
    Experiment {
        name: "randdirect",
        title: "random reads of 4 KiB by O_DIRECT, 64 in flight",
        arguments: &["randread", "tasks=64", "direct=1"],
        needs: Needs::File,
        ops: |sizes| sizes.direct_reads,
    },
    Experiment {
        name: "smallfiles",
        title: "small files read whole, 4 KiB each, cached, 64 tasks on one thread",
        arguments: &["smallfiles", "tasks=64"],
        needs: Needs::Tree,
        ops: |sizes| sizes.small_files,
    },
    Experiment {
        name: "write",
        title: "random overwrites of 4 KiB, cached file, 64 tasks on one thread",
        arguments: &["write", "tasks=64"],
        needs: Needs::FileToWrite,
        ops: |sizes| sizes.writes,
    },
    Experiment {
        name: "write-tmpfs",
        title: "random overwrites of 4 KiB, file on tmpfs, 64 tasks on one thread",
        arguments: &["write", "tasks=64"],
        needs: Needs::FileToWriteInMemory,
        ops: |sizes| sizes.writes,
    },
    Experiment {
        name: "yield1",
        title: "yields of one task",
        arguments: &["yield", "tasks=1"],
        needs: Needs::Nothing,
        ops: |sizes| sizes.yields,
    },
    Experiment {
        name: "yield64",
        title: "yields of 64 tasks in turn",
        arguments: &["yield", "tasks=64"],
        needs: Needs::Nothing,
        ops: |sizes| sizes.yields,
    },
    Experiment {
        name: "spawn",
        title: "starting a task and taking its value",
        arguments: &["spawn"],
        needs: Needs::Nothing,
        ops: |sizes| sizes.spawns,
    },
];

/// A row of the tables.
pub(super) struct Peer {
    name: &'static str,
    build: Build,
    /// The program's way of doing it; the usual one, if it is empty.
    variant: &'static str,
    cells: Cells,
}

/// Which cells a peer has. Others it cannot do, or does as another of its variants.
pub(super) enum Cells {
    All,
    Files,
    Tasks,
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

/// The profile that all programs are built with.
pub(super) const PROFILE: &str = "whole";

pub(super) const fn peer(
    name: &'static str,
    package: &'static str,
    variant: &'static str,
    cells: Cells,
) -> Peer {
    Peer { name, build: Build::new(package, PROFILE), variant, cells }
}

const PEERS: [Peer; 18] = [
    peer("std", STD, "", Cells::Files),
    peer("std-fs-read", STD, "fs-read", Cells::Only(&["smallfiles"])),
    peer("limit", "peers-limit", "", Cells::Files),
    peer("limit-nowait", STD, "nowait", Cells::Only(NOWAIT)),
    peer("limit-nowait-vec", STD, "nowait-vec", Cells::Only(&["smallfiles"])),
    peer("sakia", "peers-sakia", "", Cells::All),
    peer("sakia-driver", "peers-driver", "", Cells::Files),
    peer("tokio-mt", "peers-tokio", "mt", Cells::Files),
    peer("tokio-ct", "peers-tokio", "ct", Cells::All),
    peer("tokio-tuned", "peers-tokio", "tuned", Cells::Files),
    Peer {
        name: "tokio-ct-ring",
        build: Build {
            features: &["io-uring"],
            flags: Some("--cfg tokio_unstable"),
            ..Build::new("peers-tokio", PROFILE)
        },
        variant: "ct",
        // It has no positional reads and writes on the ring.
        cells: Cells::Only(&["sum", "smallfiles"]),
    },
    peer("monoio", "peers-monoio", "", Cells::All),
    peer("monoio-legacy", "peers-monoio", "legacy", Cells::Files),
    peer("compio", "peers-compio", "", Cells::All),
    peer("glommio", "peers-glommio", "", Cells::All),
    peer("tokio-uring", "peers-tokio-uring", "", Cells::All),
    peer("kimojio", "peers-kimojio", "", Cells::All),
    peer("floor", "peers-floor", "", Cells::Tasks),
];

/// Has no runtime; also makes the files and warms them.
const STD: &str = "peers-std";
const NOWAIT: &[&str] = &["randread", "randread2", "randread-tmpfs", "smallfiles"];

impl Peer {
    fn has(&self, experiment: &Experiment) -> bool {
        match self.cells {
            Cells::All => true,
            Cells::Files => experiment.needs != Needs::Nothing,
            Cells::Tasks => experiment.needs == Needs::Nothing,
            Cells::Only(names) => names.contains(&experiment.name),
            Cells::AllBut(names) => !names.contains(&experiment.name),
        }
    }
}

/// Seconds after which a run is given up.
const SECONDS_MAX: &str = "300";

/// Where the file on tmpfs is, until the end.
const MEMORY: &str = "/dev/shm/sakia-peers";

/// Builds the programs, makes the files, runs the rounds and prints the tables.
pub(super) fn run(folder: &Path, suite: &Suite, options: &Options) -> anyhow::Result<ExitCode> {
    let sizes = if options.quick { &QUICK } else { &FULL };
    let runs = options.runs.unwrap_or(if options.quick { 3 } else { 9 }).max(1);
    let dir =
        options.dir.clone().unwrap_or_else(|| cargo::target_folder(folder).join("peers-files"));
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let peers = chosen(suite.peers, &options.only, |peer| peer.name)?;
    let experiments = chosen(suite.experiments, &options.cells, |experiment| experiment.name)?;

    let preparer = Build::new(STD, PROFILE).run(folder).context(STD)?;
    let places = Places { dir: &dir, preparer: &preparer, sizes };
    let mut programs: Vec<(&Build, anyhow::Result<PathBuf>)> = Vec::new();
    for peer in &peers {
        let is_needed = experiments.iter().any(|experiment| peer.has(experiment));
        if is_needed && programs.iter().all(|(build, _)| **build != peer.build) {
            programs.push((&peer.build, peer.build.run(folder)));
        }
    }
    let title = Title::of_files(&dir, runs);
    if !options.json {
        print!("{title}");
    }
    let mut cells = Vec::new();
    for experiment in experiments {
        let rows: Vec<(&Peer, &anyhow::Result<PathBuf>)> = peers
            .iter()
            .filter(|peer| peer.has(experiment))
            .filter_map(|peer| {
                let (_, program) = programs.iter().find(|(build, _)| **build == peer.build)?;
                Some((*peer, program))
            })
            .collect();
        let cell = measure(experiment, suite.bases, &rows, &places, runs);
        if !options.json {
            print!("{}", as_tables(&cell));
        }
        cells.push(cell);
    }
    if options.json {
        print!("{}", as_json(&title, &cells));
    }
    fs::remove_dir_all(MEMORY).ok();
    Ok(ExitCode::SUCCESS)
}

/// One cell: all rounds of all peers that have it.
fn measure(
    experiment: &Experiment,
    bases: Bases,
    peers: &[(&Peer, &anyhow::Result<PathBuf>)],
    places: &Places<'_>,
    runs: usize,
) -> Cell {
    eprintln!("{}: {}", experiment.name, experiment.title);
    let mut results: Vec<anyhow::Result<Vec<Run>>> =
        peers.iter().map(|_| Ok(Vec::with_capacity(runs))).collect();
    for round in 0..runs {
        let ready = if round == 0 { places.prepare(experiment) } else { Ok(()) };
        if let Err(error) = ready.and_then(|()| places.warm(experiment)) {
            let reason = format!("no files: {error:#}");
            results.iter_mut().for_each(|result| *result = Err(anyhow::anyhow!(reason.clone())));
            break;
        }
        for index in (0..peers.len()).map(|index| (index + round) % peers.len()) {
            let Ok(earlier) = &mut results[index] else { continue };
            let (peer, program) = peers[index];
            let seed = (round * peers.len() + index + 1) as u64;
            match started(program).and_then(|program| places.run(experiment, peer, program, seed)) {
                Ok(run) => earlier.push(run),
                Err(error) => results[index] = Err(error),
            }
        }
    }
    let rows = peers.iter().zip(results);
    let rows = rows.map(|((peer, _), runs)| Row { peer: peer.name, runs }).collect();
    Cell::new(experiment.name, experiment.title, bases, rows)
}

/// Where the files are, and who makes them.
struct Places<'a> {
    dir: &'a Path,
    preparer: &'a Path,
    sizes: &'a Sizes,
}

impl Places<'_> {
    /// The file or folder of an experiment. Its name says how large it is.
    fn path(&self, needs: Needs) -> Option<PathBuf> {
        let sizes = self.sizes;
        let memory = Path::new(MEMORY);
        Some(match needs {
            Needs::Nothing => return None,
            Needs::File => self.dir.join(format!("read-{}", sizes.file_bytes)),
            Needs::FileInMemory => memory.join(format!("read-{}", sizes.file_bytes)),
            Needs::Tree => self.dir.join(format!("tree-{}", sizes.small_files)),
            Needs::FileToWrite => self.dir.join(format!("write-{}", sizes.written_bytes)),
            Needs::FileToWriteInMemory => memory.join(format!("write-{}", sizes.written_bytes)),
        })
    }

    /// The arguments of a program for an experiment, with its files at `path`.
    fn arguments(&self, experiment: &Experiment, path: Option<&Path>) -> Vec<String> {
        let sizes = self.sizes;
        let size = match experiment.needs {
            Needs::Nothing | Needs::Tree => 0,
            Needs::FileToWrite | Needs::FileToWriteInMemory => sizes.written_bytes,
            _ if experiment.name == "sum" => sizes.sum_bytes,
            Needs::File | Needs::FileInMemory => sizes.file_bytes,
        };
        let mut arguments: Vec<String> =
            experiment.arguments.iter().map(|&argument| argument.to_owned()).collect();
        arguments.push(format!("size={size}"));
        arguments.push(format!("ops={}", (experiment.ops)(sizes)));
        arguments.extend(path.map(|path| format!("path={}", path.display())));
        arguments
    }

    /// Makes the files, unless they are there.
    fn prepare(&self, experiment: &Experiment) -> anyhow::Result<()> {
        let Some(path) = self.path(experiment.needs) else { return Ok(()) };
        if path.exists() {
            return Ok(());
        }
        // Under another name until all of it is there.
        let part = path.with_extension("part");
        fs::remove_dir_all(&part).or_else(|_| fs::remove_file(&part)).ok();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let mut arguments = self.arguments(experiment, Some(&part));
        if experiment.needs == Needs::File {
            // The whole file, whatever part of it the experiment uses.
            arguments.push(format!("size={}", self.sizes.file_bytes));
        }
        output(Command::new(self.preparer).args(arguments).arg("variant=make"))?;
        fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))
    }

    /// Brings the files into the page cache, with nothing to be written back.
    fn warm(&self, experiment: &Experiment) -> anyhow::Result<()> {
        self.tell(experiment, "warm")
    }

    fn tell(&self, experiment: &Experiment, what: &str) -> anyhow::Result<()> {
        let Some(path) = self.path(experiment.needs) else { return Ok(()) };
        let arguments = self.arguments(experiment, Some(&path));
        output(Command::new(self.preparer).args(arguments).arg(format!("variant={what}"))).map(drop)
    }

    fn run(
        &self,
        experiment: &Experiment,
        peer: &Peer,
        program: &Path,
        seed: u64,
    ) -> anyhow::Result<Run> {
        if experiment.needs == Needs::FileToWrite {
            self.tell(experiment, "sync")?;
        }
        let mut command = Command::new("timeout");
        command.arg(SECONDS_MAX).arg(program);
        command.args(self.arguments(experiment, self.path(experiment.needs).as_deref()));
        command.arg(format!("variant={}", peer.variant)).arg(format!("seed={seed}"));
        run_program(&mut command)
    }
}
