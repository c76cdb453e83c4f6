//! `cargo xtask peers net` and `servers`: echo servers, and real ones, by the clock.
//!
//! The server is measured. The load is one program for all of them, which starts the server in a network
//! namespace and on a processor of its own, where that is permitted.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{self, Command, ExitCode};

use anyhow::Context;
use clap::Args;

use super::report::Title;
use super::suite::{self, Bench, Experiment, Runner, Start, Suite};
use super::{Build, PROFILE, output, run_program};
use crate::callgrind::{self, per_operation};

/// Options of the experiment.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    suite: suite::Options,
    /// The congestion control of both sides
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// Count instructions of a request in user space instead, where valgrind can (needs it)
    #[arg(long)]
    instructions: bool,
}

/// The measuring program.
const LOAD: &str = "peers-load";
/// A run that takes longer hangs.
const SECONDS_MAX: &str = "60";

/// Runs the experiments on all servers and prints a table for each.
pub(super) fn run(
    folder: &Path,
    suite: &'static Suite,
    (name, rounds): (&'static str, usize),
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let bench = Bench::new(folder, suite, PROFILE, &options.suite)?;
    let load = Build { package: LOAD, profile: PROFILE, ..Build::default() };
    let load = load.run(folder).context(LOAD)?;
    let servers = Servers { load: &load, options };
    if options.instructions {
        bench.experiments.iter().for_each(|one| print!("{}", servers.count(one, &bench)));
        return Ok(ExitCode::SUCCESS);
    }
    let title = Title::of_network(name, servers.place()?, options.suite.rounds(rounds));
    Ok(bench.run(&options.suite, &title, &servers))
}

struct Servers<'a> {
    load: &'a Path,
    options: &'a Options,
}

impl Servers<'_> {
    /// Returns the place of the connections.
    fn place(&self) -> anyhow::Result<String> {
        let mut command = Command::new(self.load);
        command.args(["echo", "variant=where"]);
        let text = output(command.arg(format!("congestion={}", self.options.congestion)))?;
        serde_json::from_str(&text).context("the load says not where")
    }

    fn of(&self, experiment: &Experiment, variant: &str, server: &Path, ops: u64) -> Command {
        let mut command = Command::new("timeout");
        command.arg(SECONDS_MAX).arg(self.load).args(experiment.arguments.split(' '));
        match experiment.seconds {
            None => command.arg(format!("ops={ops}")),
            Some(seconds) => {
                let seconds = seconds[usize::from(self.options.suite.quick)];
                command.arg(format!("seconds={seconds}"))
            }
        };
        command.arg(format!("variant={variant}"));
        command.arg(format!("congestion={}", self.options.congestion));
        command.arg(format!("server={}", server.display()));
        command
    }

    /// Returns the instructions of a request: the difference of two runs, one with twice as many requests,
    /// which excludes the start.
    fn count(&self, experiment: &Experiment, bench: &Bench) -> String {
        let mut text = format!("\n{}: instructions of a request, user space\n", experiment.title);
        for (peer, program) in bench.peers_of(experiment) {
            let Some(variant) = &peer.counted else {
                text += &format!(
                    "{:<16} not counted: below valgrind its second thread stops while it waits on a ring\n",
                    peer.name
                );
                continue;
            };
            let counted = program.and_then(|program| {
                per_operation(experiment.ops[0] / 16, |ops| {
                    self.instructions(experiment, variant, program, ops)
                })
            });
            text += &match counted {
                // A fifth more requests come before the measured section.
                Ok(count) => format!("{:<16} {:>9.1}\n", peer.name, count / 1.2),
                Err(error) => format!("{:<16} {error:#}\n", peer.name),
            };
        }
        text
    }

    /// Instructions of a whole run of a server.
    fn instructions(
        &self,
        experiment: &Experiment,
        variant: &str,
        server: &Path,
        ops: u64,
    ) -> anyhow::Result<u64> {
        let report = env::temp_dir().join(format!("sakia-peers-{}", process::id()));
        let script = report.with_extension("sh");
        let text = format!(
            "#!/bin/sh\nexec valgrind {} --log-file={} {} \"$@\"\n",
            callgrind::ARGUMENTS.join(" "),
            report.display(),
            server.display()
        );
        fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700))?;
        let run = run_program(&mut self.of(experiment, variant, &script, ops));
        let said =
            fs::read_to_string(&report).with_context(|| format!("read {}", report.display()));
        fs::remove_file(&script).and(fs::remove_file(&report)).ok();
        run?;
        callgrind::collected(&said?)
    }
}

impl Runner for Servers<'_> {
    fn command(&self, start: &Start<'_>) -> anyhow::Result<Command> {
        let Start { experiment, peer, program, .. } = start;
        let ops = experiment.ops[usize::from(self.options.suite.quick)];
        Ok(self.of(experiment, &peer.variant, program, ops))
    }
}
