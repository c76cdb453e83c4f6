//! `cargo xtask peers files` and `engine`: reading and writing files, and tasks, by the clock.
//!
//! The files are brought into the page cache before each round, and written back before each run that
//! writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;

use super::report::Title;
use super::suite::{self, Bench, Experiment, Needs, Runner, Start, Suite};
use super::{Build, PROFILE, output};
use crate::cargo;

/// Options of the experiment.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    suite: suite::Options,
    /// Folder for the files, on the file system to measure [default: in the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Size of the file that is read, in a full and in a quick run.
const FILE_BYTES: [u64; 2] = [2 << 30, 256 << 20];
/// Size of the file that is written.
const WRITTEN_BYTES: [u64; 2] = [256 << 20, 64 << 20];
/// The program that makes the files.
const STD: &str = "peers-std";
/// A run that takes longer hangs.
const SECONDS_MAX: &str = "300";
/// The folder of files in memory, until the end.
const MEMORY: &str = "/dev/shm/sakia-peers";

/// Runs the experiments on all programs and prints a table for each.
pub(super) fn run(
    folder: &Path,
    suite: &'static Suite,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let dir =
        options.dir.clone().unwrap_or_else(|| cargo::target_folder(folder).join("peers-files"));
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let bench = Bench::new(folder, suite, PROFILE, &options.suite)?;
    let preparer = Build { package: STD, profile: PROFILE, ..Build::default() };
    let preparer = preparer.run(folder).context(STD)?;
    let title = Title::of_files(&dir, options.suite.rounds(9));
    let places = Places { dir: &dir, preparer: &preparer, size: usize::from(options.suite.quick) };
    let code = bench.run(&options.suite, &title, &places);
    fs::remove_dir_all(MEMORY).ok();
    Ok(code)
}

/// The places of the files, and their maker.
struct Places<'a> {
    dir: &'a Path,
    preparer: &'a Path,
    /// The index of the size.
    size: usize,
}

impl Places<'_> {
    /// Returns the file or folder of an experiment. Its name has its size.
    fn path(&self, experiment: &Experiment) -> Option<PathBuf> {
        let (read, written) = (FILE_BYTES[self.size], WRITTEN_BYTES[self.size]);
        let memory = Path::new(MEMORY);
        Some(match experiment.needs {
            Needs::Nothing => return None,
            Needs::File => self.dir.join(format!("read-{read}")),
            Needs::FileInMemory => memory.join(format!("read-{read}")),
            Needs::Tree => self.dir.join(format!("tree-{}", experiment.ops[self.size])),
            Needs::FileToWrite => self.dir.join(format!("write-{written}")),
            Needs::FileToWriteInMemory => memory.join(format!("write-{written}")),
        })
    }

    /// Returns a program's arguments for an experiment, with its files at `path`.
    fn arguments(&self, experiment: &Experiment, path: Option<&Path>) -> Vec<String> {
        let size = match experiment.needs {
            Needs::Nothing | Needs::Tree => 0,
            Needs::FileToWrite | Needs::FileToWriteInMemory => WRITTEN_BYTES[self.size],
            Needs::File | Needs::FileInMemory => experiment.size.unwrap_or(FILE_BYTES)[self.size],
        };
        let mut arguments: Vec<_> = experiment.arguments.split(' ').map(str::to_owned).collect();
        arguments.push(format!("size={size}"));
        arguments.push(format!("ops={}", experiment.ops[self.size]));
        arguments.extend(path.map(|path| format!("path={}", path.display())));
        arguments
    }

    /// Makes the files, unless they are there.
    fn prepare(&self, experiment: &Experiment) -> anyhow::Result<()> {
        let Some(path) = self.path(experiment) else { return Ok(()) };
        if path.exists() {
            return Ok(());
        }
        // Under another name until it is complete.
        let part = path.with_extension("part");
        fs::remove_dir_all(&part).or_else(|_| fs::remove_file(&part)).ok();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let mut arguments = self.arguments(experiment, Some(&part));
        if experiment.needs == Needs::File {
            // The whole file, whatever part of it the experiment uses.
            arguments.push(format!("size={}", FILE_BYTES[self.size]));
        }
        output(Command::new(self.preparer).args(arguments).arg("variant=make"))?;
        fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))
    }

    fn tell(&self, experiment: &Experiment, what: &str) -> anyhow::Result<()> {
        let Some(path) = self.path(experiment) else { return Ok(()) };
        let arguments = self.arguments(experiment, Some(&path));
        output(Command::new(self.preparer).args(arguments).arg(format!("variant={what}"))).map(drop)
    }
}

impl Runner for Places<'_> {
    /// Brings the files into the page cache, with nothing to be written back.
    fn ready(&self, experiment: &Experiment, round: usize) -> anyhow::Result<()> {
        if round == 0 {
            self.prepare(experiment)?;
        }
        self.tell(experiment, "warm")
    }

    fn command(&self, start: &Start<'_>) -> anyhow::Result<Command> {
        let Start { experiment, peer, program, seed } = start;
        if experiment.needs == Needs::FileToWrite {
            self.tell(experiment, "sync")?;
        }
        let mut command = Command::new("timeout");
        command.arg(SECONDS_MAX).arg(program);
        command.args(self.arguments(experiment, self.path(experiment).as_deref()));
        command.arg(format!("variant={}", peer.variant)).arg(format!("seed={seed}"));
        Ok(command)
    }
}
