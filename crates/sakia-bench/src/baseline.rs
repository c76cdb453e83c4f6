//! The experiment `baseline`: raw reads and writes in a directory, and `cp -r` of a tree that is the same
//! each time. Figures of other experiments can be compared with these.
//!
//! No part of Sakia is measured: one plain thread makes the calls, one after the other.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use fastrand::Rng;
use rustix::fs::{Advice, OFlags, fadvise};
use sakia_bench_support::usage::Usage;
use sakia_driver::AlignedBuf;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use walkdir::WalkDir;

use crate::bytes::{bytes, sum};
use crate::cell::{self, Counters, Done, Measured, Outcome, Spec, Unavailable};
use crate::experiment::{About, Experiment, Focus, Params, Point, Work};
use crate::measure::Meter;
use crate::mktree::{self, Even, Layout};
use crate::named::{Named, named};
use crate::results::Row;
use crate::scratch;

/// The name of the experiment.
pub const NAME: &str = "baseline";

/// The default size of the file in bytes; in a quick look [`QUICK_SIZE_BYTES`].
pub const SIZE_BYTES: u64 = 256 << 20;
/// See [`SIZE_BYTES`].
pub const QUICK_SIZE_BYTES: u64 = 32 << 20;
/// The smallest file: as much as a quick look reads at random.
pub const SIZE_BYTES_MIN: u64 = 1 << 20;
/// Bytes of a sequential call; then of a random one.
const SEQUENTIAL_BYTES: usize = 1 << 20;
const RANDOM_BYTES: usize = 4096;
/// The number of random calls; then that in a quick look.
const RANDOM_CALLS: u64 = 4096;
const QUICK_RANDOM_CALLS: u64 = 512;
/// The levels of the tree: 3,905 files of 4 KiB in 781 directories; in a quick look 155 in 31.
const LEVELS: u32 = 5;
const QUICK_LEVELS: u32 = 3;
/// Fixes the bytes and the random offsets.
const SEED: u64 = 0x5aa1_a005;
/// Names of the files in the directory.
const READ: &str = "read";
const WRITTEN: &str = "written";
const TREE: &str = "tree";
const COPY: &str = "copy";

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the file that is read, and of the one that is written, a multiple of 1 MiB.
    pub size_bytes: u64,
    /// Take a tree of 155 files, and fewer random calls.
    pub quick: bool,
    /// The variants to measure, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// The directory in which files are made.
    pub directory: PathBuf,
}

named! {
    /// A path to the device.
    pub enum Variant {
        /// Bypassing the page cache (`O_DIRECT`).
        Direct = "direct",
        /// Through the page cache, which has no page of the file at first.
        Buffered = "buffered",
        /// The program `cp`, of a tree in the page cache.
        Cp = "cp",
    }
}

named! {
    /// One measured part.
    pub enum Part {
        /// Reading a file from beginning to end.
        SequentialRead = "sequential-read",
        /// Overwriting a file of the same length, and making it durable.
        SequentialWrite = "sequential-write",
        /// Reading blocks of the file at random offsets.
        RandomRead = "random-read",
        /// Overwriting blocks at random offsets, and making them durable.
        RandomWrite = "random-write",
        /// Copying a tree.
        Copy = "copy",
    }
}

/// The experiment.
#[derive(Debug)]
pub struct Baseline {
    options: Options,
    about: About,
    directory: TempDir,
    /// The shape of the tree.
    tree: mktree::Options,
    /// Set when the files were made.
    is_made: bool,
}

/// The input of a run.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    part: String,
    size_bytes: u64,
    calls: u64,
}

impl Baseline {
    /// Makes a directory.
    ///
    /// # Errors
    /// The size is no multiple of 1 MiB; as `mkdir(2)`.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let is_whole = options.size_bytes.is_multiple_of(SEQUENTIAL_BYTES as u64);
        ensure!(is_whole && options.size_bytes > 0, "the size is no multiple of 1 MiB");
        let directory = scratch::directory("sakia-bench-", &options.directory)?;
        let levels = if options.quick { QUICK_LEVELS } else { LEVELS };
        let even = Even { fanout: 5, levels, files: 5, leaves: false, size_bytes: 4096 };
        let tree = mktree::Options { layout: Layout::Even(even), seed: SEED };
        let counts = mktree::plan(&tree)?;
        let about = About {
            title: "raw reads and writes of the place, and a copy by cp".into(),
            points: Part::ALL.iter().map(|&part| point(part, &options, counts)).collect(),
            variants: Variant::names(&options.variants),
            pairs: vec![(Variant::Buffered.name(), Variant::Direct.name())],
            ..About::new(NAME, Focus::Device, directory.path())
        };
        let notes = notes(&about);
        let about = About { notes, ..about };
        Ok(Self { options, about, directory, tree, is_made: false })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes the files and the tree, on their device.
    fn make(&mut self, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let mut rng = Rng::with_seed(SEED);
        let mut part = vec![0; SEQUENTIAL_BYTES];
        for name in [READ, WRITTEN] {
            let path = self.path(name);
            let context = || format!("cannot write {}", path.display());
            let file = File::create(&path).with_context(context)?;
            for at in (0..self.options.size_bytes).step_by(SEQUENTIAL_BYTES) {
                if is_stopped() {
                    return Ok(());
                }
                rng.fill(&mut part);
                file.write_all_at(&part, at).with_context(context)?;
            }
            file.sync_all().with_context(context)?;
        }
        mktree::make(&self.path(TREE), &self.tree, is_stopped)?;
        scratch::write_back(self.directory.path())?;
        self.is_made = true;
        Ok(())
    }
}

/// Returns the notes on the method.
fn notes(about: &About) -> Vec<String> {
    let mut notes = vec![
        "One plain thread, one call after the other: pread and pwrite of 1 MiB from beginning to \
         end, or of 4 KiB at offsets that a seed fixes. No part of Sakia is used."
            .into(),
        "direct: O_DIRECT. buffered: through the page cache, from which the file is dropped before each run; \
         the kernel reads ahead. Writes go to a file that has its blocks, and end with fdatasync, which is \
         measured along."
            .into(),
        "copy: cp -r of 3,905 files of 4 KiB in 781 directories (--quick: 155 in 31), all in the page \
         cache, to a new directory beside them; nothing is made durable. The processor time is that of cp."
            .into(),
        "A device has a cache of its own, and a virtual one is a file of its host: the second read may be \
         faster than the first. Compare figures that were taken at about the same time."
            .into(),
    ];
    if about.machine.is_in_memory() {
        notes.push("The place is in memory: these are the figures of memory.".into());
    }
    notes
}

fn point(part: Part, options: &Options, counts: mktree::Counts) -> Point {
    let Options { size_bytes, quick, .. } = *options;
    let mut params = Params::new();
    params.insert("part".into(), part.name().into());
    let calls = calls(part, size_bytes, quick);
    let (work, label) = match part {
        Part::Copy => {
            params.insert("files".into(), counts.files.into());
            params.insert("directories".into(), counts.directories.into());
            let work = Work { operations: counts.files, bytes: counts.bytes };
            (work, format!("copy, {} files", counts.files))
        }
        _ => {
            let block = block_bytes(part) as u64;
            params.insert("size_bytes".into(), size_bytes.into());
            params.insert("block_bytes".into(), block.into());
            let work = Work { operations: calls, bytes: calls * block };
            (work, format!("{}, {}", part.name(), bytes(block)))
        }
    };
    Point { params, label, work }
}

fn block_bytes(part: Part) -> usize {
    match part {
        Part::SequentialRead | Part::SequentialWrite => SEQUENTIAL_BYTES,
        Part::RandomRead | Part::RandomWrite | Part::Copy => RANDOM_BYTES,
    }
}

fn calls(part: Part, size_bytes: u64, quick: bool) -> u64 {
    match part {
        Part::SequentialRead | Part::SequentialWrite => size_bytes / SEQUENTIAL_BYTES as u64,
        _ if quick => QUICK_RANDOM_CALLS,
        _ => RANDOM_CALLS,
    }
}

impl Experiment for Baseline {
    fn about(&self) -> &About {
        &self.about
    }

    fn has(&self, point: usize, variant: &str) -> bool {
        (Part::ALL[point] == Part::Copy) == (variant == Variant::Cp.name())
    }

    fn prepare(&mut self, point: usize, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        if !self.is_made {
            self.make(is_stopped)?;
        }
        let part = Part::ALL[point];
        let work = self.about.points[point].work;
        match part {
            Part::SequentialRead | Part::RandomRead if !is_stopped() => {
                let file = File::open(self.path(READ)).context("cannot open the file")?;
                Ok(read(&file, part, self.options.size_bytes, work.operations)?)
            }
            Part::Copy => Ok(work.operations),
            _ => Ok(work.bytes),
        }
    }

    fn reset(&mut self, point: usize) -> anyhow::Result<()> {
        if Part::ALL[point] == Part::Copy {
            let copy = self.path(COPY);
            return match fs::remove_dir_all(&copy) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {}", copy.display()))
                }
                _ => Ok(()),
            };
        }
        for name in [READ, WRITTEN] {
            let file = File::open(self.path(name)).context("cannot open a file")?;
            fadvise(&file, 0, None, Advice::DontNeed)
                .context("cannot drop a file from the cache")?;
        }
        Ok(())
    }

    fn input(&self, point: usize) -> Value {
        let part = Part::ALL[point];
        let (size_bytes, calls) =
            (self.options.size_bytes, self.about.points[point].work.operations);
        json!(Task { part: part.name().into(), size_bytes, calls })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let work = self.about.points[row.point].work;
        let us = row.wall_ns.median as f64 / 1e3 / work.operations.max(1) as f64;
        Some(format!("{us:.1} us each"))
    }
}

/// See [`cell::run_cell`].
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let task: Task = spec.task()?;
    let part = Part::by_name(&task.part).context("no such part")?;
    ensure!(task.size_bytes >= RANDOM_BYTES as u64, "no file");
    if variant == Variant::Cp {
        return copy();
    }
    cell::measure(|meter| transfer(variant, part, &task, meter))
}

/// Reads or writes the file of the working directory.
fn transfer(variant: Variant, part: Part, task: &Task, meter: &mut Meter) -> anyhow::Result<Done> {
    let is_write = matches!(part, Part::SequentialWrite | Part::RandomWrite);
    let flags = if variant == Variant::Direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut open = File::options();
    open.read(!is_write).write(is_write).custom_flags(flags.bits() as i32);
    let name = if is_write { WRITTEN } else { READ };
    let file = match open.open(name) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            return Err(Unavailable("the file system has no O_DIRECT".into()).into());
        }
        file => file.with_context(|| format!("cannot open {name}"))?,
    };
    meter.restart()?;
    let transferred = if is_write {
        write(&file, part, task.size_bytes, task.calls)
    } else {
        read(&file, part, task.size_bytes, task.calls)
    };
    let sum = transferred.with_context(|| format!("cannot {}", part.name()))?;
    meter.end()?;
    Ok(Done { sum, counters: Counters::new() })
}

/// Returns the offsets of all calls, in their order.
fn places(part: Part, size_bytes: u64, calls: u64) -> impl Iterator<Item = u64> {
    let block = block_bytes(part) as u64;
    let is_random = matches!(part, Part::RandomRead | Part::RandomWrite);
    let mut rng = Rng::with_seed(SEED);
    (0..calls).map(move |call| {
        let index = if is_random { rng.u64(0..size_bytes / block) } else { call };
        index * block
    })
}

/// Reads, and returns the sum of all bytes.
fn read(file: &File, part: Part, size_bytes: u64, calls: u64) -> io::Result<u64> {
    let mut block = AlignedBuf::zeroed(block_bytes(part));
    let mut total = 0u64;
    for at in places(part, size_bytes, calls) {
        file.read_exact_at(&mut block, at)?;
        total = total.wrapping_add(sum(&block));
    }
    Ok(total)
}

/// Writes, and returns the number of bytes.
fn write(file: &File, part: Part, size_bytes: u64, calls: u64) -> io::Result<u64> {
    let mut block = AlignedBuf::zeroed(block_bytes(part));
    Rng::with_seed(SEED).fill(&mut block);
    let mut total = 0;
    for at in places(part, size_bytes, calls) {
        file.write_all_at(&block, at)?;
        total += block.len() as u64;
    }
    file.sync_data()?;
    Ok(total)
}

/// Copies the tree in the working directory by `cp`, whose processor time counts.
fn copy() -> anyhow::Result<Outcome> {
    let before = Usage::of_children()?;
    let outcome = cell::measure(|meter| {
        let status = match Command::new("cp").args(["-r", TREE, COPY]).status() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Unavailable("there is no program cp".into()).into());
            }
            status => status.context("cannot run cp")?,
        };
        meter.end()?;
        ensure!(status.success(), "cp ended with {status}");
        Ok(Done { sum: files(Path::new(COPY))?, counters: Counters::new() })
    })?;
    let Outcome::Measured(mut measured) = outcome else { return Ok(outcome) };
    let usage = Usage::of_children()?.since(before);
    let Measured { section, process_cpu_ns, .. } = &mut measured;
    *process_cpu_ns += usage.cpu_ns;
    section.usage = usage;
    Ok(Outcome::Measured(measured))
}

/// Counts the files below a directory.
fn files(directory: &Path) -> anyhow::Result<u64> {
    let mut count = 0;
    for entry in WalkDir::new(directory) {
        count += u64::from(entry.context("cannot walk the copy")?.file_type().is_file());
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path) -> Options {
        Options {
            size_bytes: 1 << 20,
            quick: true,
            variants: Variant::ALL.to_vec(),
            directory: directory.to_owned(),
        }
    }

    #[test]
    fn every_part_comes_to_what_was_made() {
        let parent = tempfile::tempdir().unwrap();
        let mut experiment = Baseline::new(options(parent.path())).unwrap();
        for (point, part) in Part::ALL.into_iter().enumerate() {
            let expected = experiment.prepare(point, &|| false).unwrap();
            if part == Part::Copy {
                // `cp` runs in the directory of the experiment, which no test of a process may change.
                assert_eq!(files(&experiment.path(TREE)).unwrap(), expected);
                continue;
            }
            experiment.reset(point).unwrap();
            let calls = experiment.about.points[point].work.operations;
            let is_write = matches!(part, Part::SequentialWrite | Part::RandomWrite);
            let path = experiment.path(if is_write { WRITTEN } else { READ });
            let file = File::options().read(true).write(true).open(path).unwrap();
            let transfer = if is_write { write } else { read };
            assert_eq!(transfer(&file, part, 1 << 20, calls).unwrap(), expected, "{part:?}");
            assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        }
        experiment.reset(4).unwrap();
    }

    #[test]
    fn each_variant_has_its_points() {
        let parent = tempfile::tempdir().unwrap();
        let experiment = Baseline::new(options(parent.path())).unwrap();
        for (point, part) in Part::ALL.into_iter().enumerate() {
            let has = Variant::ALL.map(|variant| experiment.has(point, variant.name()));
            assert_eq!(
                has,
                if part == Part::Copy { [false, false, true] } else { [true, true, false] }
            );
        }
        let labels = experiment.about.points.iter().map(|point| point.label.as_str());
        let expected = [
            "sequential-read, 1 MiB",
            "sequential-write, 1 MiB",
            "random-read, 4 KiB",
            "random-write, 4 KiB",
            "copy, 155 files",
        ];
        assert_eq!(labels.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn whole_tree_is_that_of_the_article() {
        let options = Options { quick: false, ..options(&std::env::temp_dir()) };
        let experiment = Baseline::new(options).unwrap();
        let work = experiment.about.points[4].work;
        assert_eq!(work, Work { operations: 3905, bytes: 3905 * 4096 });
    }

    #[test]
    fn part_of_a_block_is_refused() {
        let options = Options { size_bytes: 1000, ..options(&std::env::temp_dir()) };
        assert!(Baseline::new(options).is_err());
    }
}
