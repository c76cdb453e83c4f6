//! `cargo xtask peers net`: servers that send back what they receive, by the clock.
//!
//! What is measured is the server. The load is one program for all of them, which starts the server in a
//! network namespace and on a processor of its own, where that is permitted. Rounds are as in
//! [`files`](super::files).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::files::PROFILE;
use super::report::{Bases, Cell, Row, Title, as_json, as_tables};
use super::tasks::total;
use super::{Build, Run, output, run_program, started};

/// How it is run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Three rounds with a quarter of the requests
    #[arg(long)]
    quick: bool,
    /// Rounds [default: 15, or 3 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Peers to run, of all
    #[arg(long, value_name = "PEER", value_delimiter = ',', value_parser = peer_names())]
    only: Vec<String>,
    /// Cells to run, of all
    #[arg(long, value_name = "CELL", value_delimiter = ',', value_parser = cell_names())]
    cells: Vec<String>,
    /// The congestion control of both sides
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Count instructions of a request in user space instead, where valgrind can (needs it)
    #[arg(long)]
    instructions: bool,
}

/// Peers that get on under valgrind: those that wait in epoll or a plain call, and ours on the ring, which
/// needs no second thread.
const UNDER_VALGRIND: [&str; 5] = ["std", "sakia", "sakia-poll", "tokio-ct", "tokio-mt"];
/// How it does without.
const ATTENDED: &str = "attended";

fn peer_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PEERS.map(|peer| peer.name))
}

fn cell_names() -> PossibleValuesParser {
    PossibleValuesParser::new(EXPERIMENTS.map(|experiment| experiment.name))
}

/// What is measured by one table.
struct Experiment {
    name: &'static str,
    title: &'static str,
    arguments: &'static [&'static str],
    /// Requests of a run, which takes a quarter to half a second.
    ops: u64,
}

const EXPERIMENTS: [Experiment; 8] = [
    Experiment {
        name: "echo1",
        title: "echo of 64 bytes, 1 connection",
        arguments: &["block=64", "connections=1"],
        ops: 5_000,
    },
    Experiment {
        name: "echo64",
        title: "echo of 64 bytes, 64 connections",
        arguments: &["block=64", "connections=64"],
        ops: 64_000,
    },
    Experiment {
        name: "echo512",
        title: "echo of 64 bytes, 512 connections",
        arguments: &["block=64", "connections=512"],
        ops: 64_000,
    },
    Experiment {
        name: "large1",
        title: "echo of 16 KiB, 1 connection",
        arguments: &["block=16384", "connections=1"],
        ops: 5_000,
    },
    Experiment {
        name: "large64",
        title: "echo of 16 KiB, 64 connections",
        arguments: &["block=16384", "connections=64"],
        ops: 32_000,
    },
    Experiment {
        name: "large512",
        title: "echo of 16 KiB, 512 connections",
        arguments: &["block=16384", "connections=512"],
        ops: 32_000,
    },
    Experiment {
        name: "stream1",
        title: "streams: 1 connection, 4 messages of 16 KiB under way",
        arguments: &["block=16384", "connections=1", "window=4"],
        ops: 20_000,
    },
    Experiment {
        name: "stream16",
        title: "streams: 16 connections, 4 messages of 16 KiB under way on each",
        arguments: &["block=16384", "connections=16", "window=4"],
        ops: 32_000,
    },
];

/// A row of the tables.
struct Peer {
    name: &'static str,
    package: &'static str,
    /// The program's way of doing it; the usual one, if it is empty.
    variant: &'static str,
}

const fn peer(name: &'static str, package: &'static str, variant: &'static str) -> Peer {
    Peer { name, package, variant }
}

const PEERS: [Peer; 13] = [
    peer("std", "peers-std", ""),
    peer("limit", "peers-limit", ""),
    peer("limit-multishot", "peers-limit", "multishot"),
    peer("sakia", "peers-sakia", ""),
    peer("sakia-poll", "peers-sakia", "poll"),
    peer("tokio-ct", "peers-tokio", "ct"),
    peer("tokio-mt", "peers-tokio", "mt"),
    peer("monoio", "peers-monoio", ""),
    peer("monoio-legacy", "peers-monoio", "legacy"),
    peer("compio", "peers-compio", ""),
    peer("glommio", "peers-glommio", ""),
    peer("tokio-uring", "peers-tokio-uring", ""),
    peer("kimojio", "peers-kimojio", ""),
];

/// Peers that the others are compared with.
const BASES: Bases = ["tokio-ct", "sakia"];

/// Starts the servers.
const LOAD: &str = "peers-load";

/// Seconds after which a run is given up.
const SECONDS_MAX: &str = "60";

/// Builds the programs, runs the rounds and prints the tables.
pub(super) fn run(folder: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let runs = options.runs.unwrap_or(if options.quick { 3 } else { 15 }).max(1);
    let is_chosen = |chosen: &[String], name| chosen.is_empty() || chosen.iter().any(|c| c == name);
    let peers = PEERS.iter().filter(|peer| is_chosen(&options.only, peer.name));
    let experiments = EXPERIMENTS.iter().filter(|cell| is_chosen(&options.cells, cell.name));
    let load = Build::new(LOAD, PROFILE).run(folder).context(LOAD)?;
    let mut built: Vec<(&str, anyhow::Result<PathBuf>)> = Vec::new();
    let peers: Vec<&Peer> = peers.collect();
    for peer in &peers {
        if built.iter().all(|(package, _)| *package != peer.package) {
            built.push((peer.package, Build::new(peer.package, PROFILE).run(folder)));
        }
    }
    let program = |peer: &&'static Peer| {
        let (_, program) = built.iter().find(|(package, _)| *package == peer.package)?;
        Some((*peer, program))
    };
    let rows: Vec<_> = peers.iter().filter_map(program).collect();
    let bench = Bench { load: &load, options };
    if options.instructions {
        experiments.for_each(|experiment| print!("{}", bench.count(experiment, &rows)));
        return Ok(ExitCode::SUCCESS);
    }
    let title = Title::of_network(bench.place()?, runs);
    if !options.json {
        print!("{title}");
    }
    let mut cells = Vec::new();
    for experiment in experiments {
        let cell = bench.measure(experiment, &rows, runs);
        if !options.json {
            print!("{}", as_tables(&cell));
        }
        cells.push(cell);
    }
    if options.json {
        print!("{}", as_json(&title, &cells));
    }
    Ok(ExitCode::SUCCESS)
}

/// A peer and its program, or why there is none.
type Built<'a> = (&'static Peer, &'a anyhow::Result<PathBuf>);

struct Bench<'a> {
    load: &'a Path,
    options: &'a Options,
}

impl Bench<'_> {
    /// Where the load makes its connections, in its own words.
    fn place(&self) -> anyhow::Result<String> {
        let mut command = Command::new(self.load);
        command.args(["echo", "variant=where"]);
        let text = output(command.arg(format!("congestion={}", self.options.congestion)))?;
        serde_json::from_str(&text).context("the load says not where")
    }

    /// One cell: all rounds of all peers.
    fn measure(&self, experiment: &Experiment, peers: &[Built<'_>], runs: usize) -> Cell {
        eprintln!("{}: {}", experiment.name, experiment.title);
        let mut results: Vec<anyhow::Result<Vec<Run>>> =
            peers.iter().map(|_| Ok(Vec::with_capacity(runs))).collect();
        for round in 0..runs {
            for index in (0..peers.len()).map(|index| (index + round) % peers.len()) {
                let Ok(earlier) = &mut results[index] else { continue };
                let (peer, program) = peers[index];
                let ops = if self.options.quick { experiment.ops / 4 } else { experiment.ops };
                let run = started(program).and_then(|program| {
                    run_program(&mut self.command(experiment, peer, program, ops))
                });
                match run {
                    Ok(run) => earlier.push(run),
                    Err(error) => results[index] = Err(error),
                }
            }
        }
        let rows = peers.iter().zip(results);
        let rows = rows.map(|((peer, _), runs)| Row { peer: peer.name, runs }).collect();
        Cell::new(experiment.name, experiment.title, BASES, rows)
    }

    /// The load with a server.
    fn command(&self, experiment: &Experiment, peer: &Peer, server: &Path, ops: u64) -> Command {
        let mut command = Command::new("timeout");
        command.arg(SECONDS_MAX).arg(self.load).arg("echo").args(experiment.arguments);
        command.arg(format!("ops={ops}")).arg(format!("variant={}", peer.variant));
        command.arg(format!("congestion={}", self.options.congestion));
        command.arg(format!("server={}", server.display()));
        command
    }

    /// Instructions of a request in user space: a line for each peer.
    fn count(&self, experiment: &Experiment, peers: &[Built<'_>]) -> String {
        let mut text = format!("\n{}: instructions of a request, user space\n", experiment.title);
        for (peer, program) in peers {
            if !UNDER_VALGRIND.contains(&peer.name) {
                text += &format!(
                    "{:<16} not counted: below valgrind its second thread stops while it waits on a ring\n",
                    peer.name
                );
                continue;
            }
            let counted = started(program).and_then(|program| {
                let ops = experiment.ops / 16;
                let short = self.instructions(experiment, peer, program, ops)?;
                let long = self.instructions(experiment, peer, program, 2 * ops)?;
                // What warms up is a fifth of what is measured.
                Ok((long as f64 - short as f64) / (ops as f64 * 1.2))
            });
            text += &match counted {
                Ok(count) => format!("{:<16} {count:>9.1}\n", peer.name),
                Err(error) => format!("{:<16} {error:#}\n", peer.name),
            };
        }
        text
    }

    /// Instructions of all of a server's run.
    fn instructions(
        &self,
        experiment: &Experiment,
        peer: &Peer,
        server: &Path,
        ops: u64,
    ) -> anyhow::Result<u64> {
        let file = std::env::temp_dir().join(format!("sakia-peers-{}", std::process::id()));
        // The load starts one program, with its own arguments.
        let script = file.with_extension("sh");
        let (profile, program) = (file.display(), server.display());
        let text = format!(
            "#!/bin/sh\nexec valgrind --quiet --tool=callgrind --callgrind-out-file={profile} \
             {program} \"$@\"\n"
        );
        fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
        let mut permissions = fs::metadata(&script)?.permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o700);
        fs::set_permissions(&script, permissions)?;
        let variant = if peer.name == "sakia" { ATTENDED } else { peer.variant };
        let peer = &Peer { variant, ..*peer };
        let run = run_program(&mut self.command(experiment, peer, &script, ops));
        fs::remove_file(&script).ok();
        run?;
        let profile =
            fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        fs::remove_file(&file).ok();
        total(&profile).context("no total in what callgrind wrote")
    }
}
