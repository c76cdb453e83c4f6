//! The experiment `threads`: the number of threads of a process during ten thousand reads of files that are
//! not answered yet.
//!
//! Go programs with many slow reads were seen to have as many threads, and to crash with too many: a plain
//! read holds its thread. Here the device answers nothing until no further read begins, so that the number
//! does not depend on speed; the kernel's workers are counted like all other threads.

mod census;
mod gate;
mod input;
mod ways;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bytes::{bytes, counted};
use crate::cell::{self, Outcome, Spec};
use crate::experiment::{About, Experiment, Focus, Params, Point, Work};
use crate::named::{Named, named};
use crate::results::Row;
use crate::scratch;

use self::input::Input;

/// The name of the experiment.
pub const NAME: &str = "threads";

/// The default number of reads at the same time.
pub const READS: usize = 10_000;
/// The same in a quick look.
pub const QUICK_READS: usize = 1000;
/// The most reads: each takes a thread and a descriptor.
pub const READS_MAX: usize = 30_000;
/// The default size of a read in bytes.
pub const SIZE_BYTES: usize = 4096;
/// The most bytes of all reads together: their files are in memory, some of them twice.
pub const BYTES_MAX: u64 = 1 << 30;
/// The default delay of an answer of the FUSE file system.
pub const DELAY: Duration = Duration::from_millis(10);
/// The default time without changes after which threads are counted.
pub const SETTLE: Duration = Duration::from_secs(1);

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Reads at the same time, 1 to [`READS_MAX`], each of its own file.
    pub reads: usize,
    /// Bytes of each read, at least 1.
    pub size_bytes: usize,
    /// Set if the page cache is bypassed (`O_DIRECT`).
    pub direct: bool,
    /// The delay of each answer of the FUSE file system, once it answers.
    pub delay: Duration,
    /// Threads are counted after this time in which no thread started or ended and no read began. If it is
    /// too short on a busy machine, threads are missed.
    pub settle: Duration,
    /// The places of the files; each is a point.
    pub places: Vec<Place>,
    /// The directory in which the experiment makes a directory for [`Place::Path`].
    pub directory: Option<PathBuf>,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reads: READS,
            size_bytes: SIZE_BYTES,
            direct: false,
            delay: DELAY,
            settle: SETTLE,
            places: Place::DEFAULT.to_vec(),
            directory: None,
            variants: Variant::ALL.to_vec(),
        }
    }
}

impl Options {
    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// More than [`BYTES_MAX`] in all, or direct reads that are not whole blocks.
    pub fn check(&self) -> anyhow::Result<()> {
        let all = self.reads as u64 * self.size_bytes as u64;
        ensure!(all <= BYTES_MAX, "all reads together are more than {}", bytes(BYTES_MAX));
        let is_whole = self.size_bytes.is_multiple_of(SIZE_BYTES);
        ensure!(is_whole || !self.direct, "direct reads are of multiples of 4 KiB");
        Ok(())
    }
}

named! {
    /// The place of the files.
    pub enum Place {
        /// On an ext4, whose disk's queue has room for all reads.
        Disk = "disk",
        /// On an ext4 whose disk has a queue that is soon full, as most devices have.
        Full = "full",
        /// On a FUSE file system.
        Fuse = "fuse",
        /// In a directory of the user, where nothing is held.
        Path = "path",
    }
}

impl Place {
    /// Those measured by default.
    pub const DEFAULT: [Self; 3] = [Self::Disk, Self::Full, Self::Fuse];
}

named! {
    /// A way to read.
    pub enum Variant {
        /// An engine on the ring with default options, and a thread that awaits all reads.
        Uring = "uring",
        /// An engine on epoll and threads, and a thread that awaits all reads.
        Poll = "poll",
        /// A pool of threads.
        Pool = "pool",
        /// A thread for each read.
        Blocking = "blocking",
    }
}

/// The experiment, with the files of the current point. Dropping it removes them.
#[derive(Debug)]
pub struct ManyReads {
    options: Options,
    about: About,
    /// The place of the current point.
    input: Option<Input>,
    /// The working directory of runs, with the socket of the gate's keeper.
    scratch: TempDir,
}

/// The input of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    directory: PathBuf,
    reads: usize,
    size_bytes: usize,
    direct: bool,
    settle: Duration,
    /// The socket of the gate's keeper; `None` if no answer is held back.
    gate: Option<PathBuf>,
}

impl ManyReads {
    /// Makes a directory for the runs. [`prepare`](Experiment::prepare) makes the places, which requires root
    /// for all but [`Place::Path`].
    ///
    /// # Errors
    /// As `mkdir(2)` and [`check`](Options::check).
    pub fn new(options: Options) -> anyhow::Result<Self> {
        options.check()?;
        let scratch = scratch::directory("sakia-bench-", &env::temp_dir())?;
        let Options { reads, size_bytes, direct, .. } = options;
        let (size, how) = (bytes(size_bytes as u64), if direct { "direct reads" } else { "reads" });
        let mut about = About {
            title: format!(
                "threads of a process with {reads} {how} of {size} under way at the same time"
            ),
            notes: notes(&options),
            variants: Variant::names(&options.variants),
            points: options.places.iter().map(|&place| point(place, &options)).collect(),
            ..About::new(NAME, Focus::Threads, scratch.path())
        };
        let name = |&place: &Place| match place {
            Place::Disk | Place::Full => "ext4 on a held disk",
            Place::Fuse => "FUSE",
            Place::Path => "a directory",
        };
        let mut names: Vec<_> = options.places.iter().map(name).collect();
        names.dedup();
        about.machine.file_system = names.join(", ");
        Ok(Self { options, about, input: None, scratch })
    }
}

/// Returns the notes on the method.
fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![
        "Each read is of a file of its own, so that none is ahead for another. All files are open \
         until all is read, and none is in the page cache."
            .into(),
        format!(
            "uring, poll: an engine with one thread and all options as they are by themselves, and \
             one plain thread that awaits all reads; of these the kernel has up to 4096 at a time. \
             pool: {} threads. blocking: a thread for each read.",
            ways::POOL_THREADS
        ),
        "Threads are the entries of /proc/self/task, less the one that an idle process has: own are \
         those of the program and its libraries, io-wq the workers that the kernel made for rings."
            .into(),
    ];
    if options.places != [Place::Path] {
        notes.push(format!(
            "Reads are held until nothing has changed for {} ms: no thread started or ended, and no \
             read began. Then the threads are counted, and all reads are answered. Begun: reads that \
             a thread had requested until then. Time is from there on, processor time from the \
             beginning.",
            options.settle.as_millis()
        ));
    }
    notes.extend(options.places.iter().map(|&place| note_on(place, options)));
    notes
}

fn note_on(place: Place, options: &Options) -> String {
    match place {
        Place::Disk => "disk: an ext4 on a loop device, over a file that another process serves. Its \
             scheduler keeps up to 2048 requests, and neighbors share one, so that all reads find \
             room."
            .into(),
        Place::Full => "full: the same disk without a scheduler. Once 128 requests are under way the \
             kernel blocks the caller of any further read: a non-blocking read too, since it begins \
             by reading ahead, and a direct read through a ring. So the thread that awaits, or the \
             engine's, is blocked there until a request is answered."
            .into(),
        Place::Fuse => format!(
            "fuse: a file system that another process serves, and whose answers take {} ms. A read \
             from such a file may wait for ever, so that Sakia never gives it to the ring, but to up \
             to 64 threads.",
            options.delay.as_millis()
        ),
        Place::Path => "path: a directory as it is. Nothing is held, so that reads end while others \
             begin, and the threads are the most that were seen at a time."
            .into(),
    }
}

fn point(place: Place, options: &Options) -> Point {
    let mut params = Params::new();
    params.insert("place".into(), place.name().into());
    params.insert("reads".into(), options.reads.into());
    params.insert("size_bytes".into(), options.size_bytes.into());
    if options.direct {
        params.insert("direct".into(), true.into());
    }
    if place == Place::Fuse {
        params.insert("delay_ms".into(), (options.delay.as_millis() as u64).into());
    }
    let operations = options.reads as u64;
    let work = Work { operations, bytes: operations * options.size_bytes as u64 };
    Point { params, label: place.name().into(), work }
}

impl Experiment for ManyReads {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        self.input = None; // frees its memory and its device for the next
        let place = self.options.places[point];
        let input = Input::new(place, &self.options, self.scratch.path(), is_stopped)?;
        Ok(self.input.insert(input).sum)
    }

    fn input(&self, _point: usize) -> Value {
        let input = self.input.as_ref();
        json!(Task {
            directory: input.map(|input| input.directory.clone()).unwrap_or_default(),
            reads: self.options.reads,
            size_bytes: self.options.size_bytes,
            direct: self.options.direct,
            settle: self.options.settle,
            gate: input.and_then(Input::gate).map(Path::to_owned),
        })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let variant = Variant::by_name(row.variant)?;
        let extra = row.count("threads_extra");
        let who = match variant {
            Variant::Blocking => "a thread for each read".into(),
            Variant::Pool => format!("a pool of {extra}"),
            Variant::Uring | Variant::Poll => {
                let lanes = match row.count("threads_lane") {
                    0 => String::new(),
                    threads => format!(", {threads} of its lanes"),
                };
                let workers = counted(row.count("iowq_workers"), "worker", "workers");
                format!("one that awaits, one of the engine{lanes}; {workers} of the kernel")
            }
        };
        let begun = match row.counters.get("begun") {
            Some(begun) => format!("; {begun} of {} reads begun", row.count("reads")),
            None => String::new(),
        };
        let stalled = match (variant, row.count("threads_stalled")) {
            (_, 0) | (Variant::Pool | Variant::Blocking, _) => String::new(),
            (_, stalled) => {
                let threads = counted(stalled, "thread waits", "threads wait");
                format!(", and {threads} in the kernel for room for the next")
            }
        };
        Some(format!("{who}{begun}{stalled}"))
    }
}

/// See [`cell::run_cell`].
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let task: Task = spec.task()?;
    ensure!(task.size_bytes > 0 && task.reads > 0, "reads without bytes, or no reads");
    cell::measure(|meter| ways::work(variant, &task, meter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_reads_the_same_in_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let options = Options {
            reads: 50,
            size_bytes: 5000,
            places: vec![Place::Path],
            directory: Some(parent.path().to_owned()),
            ..Options::default()
        };
        let mut experiment = ManyReads::new(options).unwrap();
        let expected = experiment.prepare(0, &|| false).unwrap();
        for variant in Variant::ALL {
            let input = experiment.input(0);
            let spec = Spec { experiment: NAME.into(), variant: variant.name().into(), input };
            match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                Outcome::Measured(measured) => {
                    assert_eq!(measured.sum, expected, "{}", spec.variant);
                    assert_eq!(measured.counters["reads"], 50);
                }
                Outcome::Unavailable(reason) => {
                    let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                    assert!(!denied, "skips are denied, and {} must skip: {reason}", spec.variant);
                    eprintln!("SKIP {}: {reason}", spec.variant);
                }
            }
        }
    }

    #[test]
    fn points_are_places() {
        let experiment = ManyReads::new(Options::default()).unwrap();
        let labels = experiment.about.points.iter().map(|point| point.label.as_str());
        assert_eq!(labels.collect::<Vec<_>>(), ["disk", "full", "fuse"]);
        assert_eq!(experiment.about.points[2].params["delay_ms"], 10);
        assert_eq!(experiment.about.points[0].work, Work { operations: 10_000, bytes: 40_960_000 });
        assert!(experiment.about.machine.file_system.contains("FUSE"));
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let options = Options { size_bytes: 1 << 20, ..Options::default() };
        let error = ManyReads::new(options).unwrap_err();
        assert_eq!(error.to_string(), "all reads together are more than 1 GiB");
    }

    #[test]
    fn names_lead_back() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
        for place in Place::ALL {
            assert_eq!(Place::by_name(place.name()), Some(place));
        }
    }
}
