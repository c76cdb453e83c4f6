//! The experiment `file-sum`: the sum of a file's bytes, read block by block.
//!
//! It repeats an experiment with Async, an OCaml library, in which a prototype on io_uring took less than
//! half the time of the library's thread pool. [`Variant::Pool`] works like that pool: it takes a hop to
//! another thread and back for each block.
//!
//! One file grows from point to point, so that it takes no more room than the largest size. It holds the same
//! random bytes every time, is written to the device before anything is measured, and is removed at the end.

mod input;
mod pool;
mod variants;

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bytes::{bytes, counted};
use crate::cell::{self, Outcome, Spec};
use crate::experiment::{About, Experiment, Focus, against, points_of_sizes};
use crate::machine::{Machine, memory_available_bytes};
use crate::named::Named;
use crate::plot::Plot;
use crate::results::{Results, Row};

use self::input::Input;
pub use self::variants::Variant;

/// The name of the experiment.
pub const NAME: &str = "file-sum";

/// The default sizes of the file in bytes.
pub const SIZES: [u64; 4] = [128 << 20, 512 << 20, 1 << 30, 2 << 30];
/// The size in a quick look.
pub const QUICK_SIZE: u64 = 256 << 20;
/// The default number of bytes of each read.
pub const BLOCK_BYTES: usize = 32 << 10;
/// The largest block.
pub const BLOCK_BYTES_MAX: usize = 64 << 20;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the file; each is a point, in ascending order.
    pub sizes: Vec<u64>,
    /// Bytes of each read, 1 to [`BLOCK_BYTES_MAX`].
    pub block_bytes: usize,
    /// Set if the file is dropped from the page cache before each run.
    pub cold: bool,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// The directory in which the experiment makes a directory for the file.
    pub directory: PathBuf,
}

/// The experiment, with its file. Dropping it removes the file.
#[derive(Debug)]
pub struct FileSum {
    options: Options,
    about: About,
    input: Input,
}

/// The input of a run. The file is in the working directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    file: PathBuf,
    block_bytes: usize,
}

impl FileSum {
    /// Makes a directory, and an empty file in it.
    ///
    /// # Errors
    /// As `mkdir(2)` and `open(2)`, with the path.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let mut options = options;
        let points = points_of_sizes(&mut options.sizes, options.block_bytes, options.cold);
        let input = Input::new(&options.directory)?;
        let about = About::new(NAME, Focus::Time, input.directory());
        let block = bytes(options.block_bytes as u64);
        let cache = if options.cold { "cold" } else { "hot" };
        let variants = Variant::names(&options.variants);
        let about = About {
            title: format!(
                "sum of the bytes of a file, read {block} at a time, page cache {cache}"
            ),
            notes: notes(&options, &about.machine),
            points,
            pairs: against(&variants, [Variant::Pool.name(), Variant::Blocking.name()]),
            variants,
            ..about
        };
        Ok(Self { options, about, input })
    }
}

/// Returns the notes on the method.
fn notes(options: &Options, machine: &Machine) -> Vec<String> {
    let mut notes = vec![if options.cold {
        "Cold: the file is dropped from the page cache before each run.".to_owned()
    } else {
        "Hot: the file was written and read once before.".to_owned()
    }];
    let file_system = &machine.file_system;
    if options.cold && machine.is_in_memory() {
        notes.push(format!("A file on {file_system} cannot be dropped from memory: it is hot."));
    }
    let largest = options.sizes.last().copied().unwrap_or(0);
    if !options.cold && memory_available_bytes().is_some_and(|free| largest > free) {
        notes.push("The largest file does not fit the memory that was available.".into());
    }
    notes.push(format!(
        "uring, ring, poll: a runtime of one thread, up to {} reads in flight while they have to \
         wait; uring makes plain calls where the bytes are in the page cache, ring makes none, \
         poll is on epoll and threads. pool: {} threads, one \
         block at a time, each handed to a thread and back. blocking: one plain read after the \
         other. offload: a thread makes plain reads, a runtime of one thread adds.",
        variants::DEPTH,
        pool::THREADS,
    ));
    notes.push("All read into page-aligned memory and add with the same function.".into());
    notes
}

impl Experiment for FileSum {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        self.input.grow(self.about.points[point].work.bytes, is_stopped)
    }

    fn reset(&mut self, _point: usize) -> anyhow::Result<()> {
        if self.options.cold { self.input.drop_from_cache() } else { Ok(()) }
    }

    fn input(&self, _point: usize) -> Value {
        json!(Task { file: input::FILE.into(), block_bytes: self.options.block_bytes })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let reads = row.count("reads");
        let switches = counted(row.voluntary_switches, "switch", "switches");
        let variant = Variant::by_name(row.variant)?;
        let reason = match variant {
            Variant::Pool => {
                let hops = row.count("hops");
                format!("{hops} of {reads} reads handed to a thread and back, {switches}")
            }
            Variant::Blocking => format!("{reads} plain reads, {switches}"),
            Variant::Offload => {
                let threads = counted(row.threads_max, "thread", "threads");
                format!("{reads} plain reads by a thread that reads ahead, {switches}, {threads}")
            }
            Variant::Uring | Variant::Ring | Variant::Poll => {
                let ways = [
                    ("read.submitted", "through the ring"),
                    ("read.inline", "as plain calls"),
                    ("read.would_block", "that would have blocked"),
                    ("read.lane", "on threads of a lane"),
                    ("read.punted", "on the kernel's workers"),
                ];
                // Without a ring, the submitted reads are counted a second time under the variant that did
                // them.
                let ways = &ways[usize::from(variant == Variant::Poll)..];
                let ways = ways.iter().filter(|(name, _)| row.count(name) > 0);
                let ways: Vec<_> =
                    ways.map(|(name, words)| format!("{} {words}", row.count(name))).collect();
                let ways = ways.join(", ");
                let enters = counted(row.count("enters"), "enter", "enters");
                let threads = counted(row.threads_max, "thread", "threads");
                format!("{reads} reads ({ways}), {enters}, {switches}, {threads}")
            }
        };
        Some(reason)
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let largest = self.options.sizes.last().copied().unwrap_or(0);
        let (unit, unit_name) =
            if largest >= 1 << 30 { (1u64 << 30, "GiB") } else { (1 << 20, "MiB") };
        let x = |point: usize| self.about.points[point].work.bytes as f64 / unit as f64;
        let series = |value: &dyn Fn(&Row) -> Option<f64>| {
            results.series(|row| Some((x(row.point), value(row)?)))
        };
        let pool = Variant::Pool.name();
        let has_pool = results.rows.iter().any(|row| row.variant == pool);
        let base =
            if has_pool { pool } else { results.about.variants.first().copied().unwrap_or(pool) };
        let plot = |title: &str, y_label: &str, series| Plot {
            title: title.into(),
            x_label: format!("size of the file, {unit_name}"),
            y_label: y_label.into(),
            series,
            ..Plot::default()
        };
        vec![
            plot(
                "Wall time against size",
                "wall time, ms (median)",
                series(&|row| Some(row.wall_ns.median as f64 / 1e6)),
            ),
            plot(
                &format!("Wall time relative to {base}"),
                &format!("% of {base} (median)"),
                series(&|row| {
                    results.compare(row.point, row.variant, base).map(|ratio| ratio.wall * 100.0)
                }),
            ),
            plot(
                "Context switches against size",
                "voluntary switches (median)",
                series(&|row| Some(row.voluntary_switches as f64)),
            ),
        ]
    }
}

/// Runs one variant once.
///
/// # Errors
/// See [`cell::run_cell`].
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let task: Task = spec.task()?;
    anyhow::ensure!((1..=BLOCK_BYTES_MAX).contains(&task.block_bytes), "a block size out of range");
    cell::measure(|meter| {
        variants::work(variant, &task.file, task.block_bytes, meter)
            .with_context(|| task.file.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Measured;

    /// Returns an experiment with these sizes.
    fn experiment(sizes: &[u64], block_bytes: usize, cold: bool) -> FileSum {
        let variants = Variant::ALL.to_vec();
        let directory = std::env::temp_dir();
        let sizes = sizes.to_vec();
        FileSum::new(Options { sizes, block_bytes, cold, variants, directory }).unwrap()
    }

    fn run(experiment: &FileSum, variant: Variant) -> Result<Measured, String> {
        let file = experiment.about.directory.join(input::FILE);
        let task = Task { file, block_bytes: experiment.options.block_bytes };
        let spec =
            Spec { experiment: NAME.into(), variant: variant.name().into(), input: json!(task) };
        match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
            Outcome::Measured(measured) => Ok(measured),
            Outcome::Unavailable(reason) => Err(reason),
        }
    }

    /// Runs like [`run`]. Without a ring it prints the reason and returns `None`, or fails if skips are
    /// denied.
    fn run_or_skip(experiment: &FileSum, variant: Variant) -> Option<Measured> {
        let skip = |reason| {
            let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
            assert!(!denied, "skips are denied, and {} must skip: {reason}", variant.name());
            eprintln!("SKIP {}: {reason}", variant.name());
        };
        run(experiment, variant).map_err(skip).ok()
    }

    #[test]
    fn variants_agree_at_every_size() {
        let sizes = [0, 1, 4096, 32767, 32768, 98305, 1 << 20];
        let mut experiment = experiment(&sizes, 32 << 10, false);
        for (point, size) in sizes.into_iter().enumerate() {
            let expected = experiment.prepare(point, &|| false).unwrap();
            for variant in Variant::ALL {
                let Some(measured) = run_or_skip(&experiment, variant) else { continue };
                assert_eq!(measured.sum, expected, "{} {size}", variant.name());
                let reads = measured.counters["reads"];
                // A reader reads at most 64 KiB per call.
                assert!(reads >= size.div_ceil(64 << 10), "{} {size}: {reads}", variant.name());
                assert!(measured.section.threads_max >= 1 && measured.section.wall_ns > 0);
            }
        }
    }

    #[test]
    fn blocks_of_any_size_will_do() {
        for block_bytes in [1, 1000, 1 << 20] {
            let mut experiment = experiment(&[5000], block_bytes, true);
            let expected = experiment.prepare(0, &|| false).unwrap();
            experiment.reset(0).unwrap();
            for variant in Variant::ALL {
                let Some(measured) = run_or_skip(&experiment, variant) else { continue };
                assert_eq!(measured.sum, expected, "{} {block_bytes}", variant.name());
            }
        }
    }

    #[test]
    fn pool_hops_for_each_block_and_blocking_never() {
        let mut experiment = experiment(&[1 << 20], 32 << 10, false);
        experiment.prepare(0, &|| false).unwrap();
        let pool = run(&experiment, Variant::Pool).unwrap();
        // 32 blocks and the end of the file.
        assert_eq!((pool.counters["reads"], pool.counters["hops"]), (33, 33));
        assert!(pool.section.threads_max > pool::THREADS as u64, "{pool:?}");
        let blocking = run(&experiment, Variant::Blocking).unwrap();
        assert_eq!(blocking.counters["reads"], 33);
        assert_eq!(blocking.counters.get("hops"), None);
    }

    #[test]
    fn ring_makes_no_plain_calls_and_the_others_count_them() {
        let mut experiment = experiment(&[1 << 20], 32 << 10, false);
        experiment.prepare(0, &|| false).unwrap();
        let count =
            |measured: &Measured, name: &str| measured.counters.get(name).copied().unwrap_or(0);
        // 32 reads of one block each or half as many of two blocks, the read of the end, and the reads
        // ahead of the end.
        let reads = 17..=33 + variants::DEPTH as u64;
        for variant in [Variant::Uring, Variant::Ring, Variant::Poll] {
            let Some(measured) = run_or_skip(&experiment, variant) else { continue };
            let (submitted, inline) =
                (count(&measured, "read.submitted"), count(&measured, "read.inline"));
            assert_eq!(submitted + inline, measured.counters["reads"], "{}", variant.name());
            assert!(reads.contains(&(submitted + inline)), "{} {submitted}", variant.name());
            assert!(inline == 0 || variant != Variant::Ring);
        }
        if let Some(measured) = run_or_skip(&experiment, Variant::Offload) {
            // Its thread makes plain calls, which the driver does not see.
            assert_eq!(measured.counters["reads"], 33);
            assert_eq!(count(&measured, "read.submitted") + count(&measured, "read.inline"), 0);
        }
    }

    #[test]
    fn file_that_is_missing_is_named() {
        for variant in Variant::ALL {
            let task = Task { file: "/nonexistent/file".into(), block_bytes: 4096 };
            let variant = variant.name().into();
            let spec = Spec { experiment: NAME.into(), variant, input: json!(task) };
            match run_cell(&spec) {
                Err(error) => {
                    assert!(format!("{error:#}").contains("/nonexistent/file: "), "{error:#}")
                }
                Ok(Outcome::Unavailable(_)) => {}
                Ok(other) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn pairs_are_with_pool_and_with_blocking() {
        let variants = vec![Variant::Uring, Variant::Pool, Variant::Blocking];
        let options = experiment(&[4096], 4096, false).options;
        let experiment = FileSum::new(Options { variants, ..options }).unwrap();
        let expected = [("uring", "pool"), ("blocking", "pool"), ("uring", "blocking")];
        assert_eq!(experiment.about.pairs, expected);
    }
}
