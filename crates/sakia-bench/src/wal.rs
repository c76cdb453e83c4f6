//! The experiment `wal`: a log to which writers append records, each of which is durable before its writer
//! goes on.
//!
//! A sync costs about the same for one record as for a thousand, so that what counts is how many share one.

mod admission;
mod ground;
mod record;
mod ways;

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bytes::{bytes, counted};
use crate::cell::{self, Outcome, Spec};
use crate::experiment::{About, Experiment, Focus, Params, Point, Work, against};
use crate::named::{Named, named};
use crate::plot::Plot;
use crate::results::{Results, Row};
use crate::scratch;

use self::ground::Ground;

/// The name of the experiment.
pub const NAME: &str = "wal";

/// Writers, unless others are asked for.
pub const WRITERS: [usize; 4] = [1, 8, 32, 64];
/// Those of a quick look.
pub const QUICK_WRITERS: [usize; 2] = [1, 32];
/// The most writers: a thread each.
pub const WRITERS_MAX: usize = 1024;
/// Bytes of a record, unless others are asked for.
pub const RECORD_BYTES: [usize; 2] = [256, 4096];
/// Bytes of a record of a quick look.
pub const QUICK_RECORD_BYTES: [usize; 1] = [256];
/// The smallest record: its header.
pub const RECORD_BYTES_MIN: usize = record::HEADER_BYTES;
/// The largest record.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Bytes of all records of a run together, at most, padding included.
pub const BYTES_MAX: u64 = 256 << 20;
/// Bytes of a block of a direct log, to which records are padded.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The time that the slow disk takes for each write.
pub const DELAY: Duration = Duration::from_millis(2);

/// Records of a writer, unless told: of one that is alone, and of each of several.
const RECORDS_ALONE: u64 = 1024;
const RECORDS_EACH: u64 = 256;
/// The same on a slow disk.
const SLOW_RECORDS_ALONE: u64 = 64;
const SLOW_RECORDS_EACH: u64 = 32;
/// A quick look has one record where others have so many.
const QUICK_PART: u64 = 4;

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Writers; with each size a point.
    pub writers: Vec<usize>,
    /// Bytes of a record.
    pub record_bytes: Vec<usize>,
    /// Records of each writer; `None`: enough for about half a second.
    pub records: Option<u64>,
    /// A quarter of these.
    pub quick: bool,
    /// The places of the log; with each number of writers and each size a point.
    pub places: Vec<Place>,
    /// The directory in which the experiment makes a directory for [`Place::Path`].
    pub directory: Option<PathBuf>,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writers: WRITERS.to_vec(),
            record_bytes: RECORD_BYTES.to_vec(),
            records: None,
            quick: false,
            places: Place::DEFAULT.to_vec(),
            directory: None,
            variants: Variant::DEFAULT.to_vec(),
        }
    }
}

named! {
    /// The place of the log.
    pub enum Place {
        /// A fresh ext4 whose disk is in memory: a sync costs the file system's work and no device's.
        Memory = "memory",
        /// A fresh ext4 on a disk that takes its time for each write.
        Slow = "slow",
        /// In a directory of the user's.
        Path = "path",
    }
}

impl Place {
    /// Those that are measured unless others are asked for.
    pub const DEFAULT: [Self; 2] = [Self::Memory, Self::Slow];
}

named! {
    /// A way to write the log.
    pub enum Variant {
        /// A runtime of one thread, a task for each writer, and its group commit.
        Runtime = "runtime",
        /// The same past the page cache, with records that are padded to blocks.
        Direct = "direct",
        /// An engine's group commit, and one plain thread that awaits all writers.
        Engine = "engine",
        /// An engine's group commit, and a plain thread for each writer.
        Wait = "wait",
        /// A thread for each writer, and a group commit by hand: a lock and a condition variable.
        StdGroup = "std-group",
        /// A thread for each writer, which writes and syncs.
        Std = "std",
        /// The group commit of `sakia-tokio`, and a task of tokio's for each writer.
        Tokio = "tokio",
        /// Without groups: each record is written and synced by a thread of a pool, up to a fixed number at a
        /// time.
        Fixed = "fixed",
        /// The same, with as many under way as their latency allows.
        ByLatency = "by-latency",
    }
}

impl Variant {
    /// Those that are measured unless others are asked for: all that share syncs, or are compared with these.
    pub const DEFAULT: [Self; 7] = [
        Self::Runtime,
        Self::Direct,
        Self::Engine,
        Self::Wait,
        Self::StdGroup,
        Self::Std,
        Self::Tokio,
    ];
}

/// The load of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) writers: usize,
    pub(crate) record_bytes: usize,
    /// Of each writer.
    pub(crate) records: u64,
}

impl Load {
    fn new(place: Place, writers: usize, record_bytes: usize, options: &Options) -> Self {
        let usual = match (place, writers) {
            (Place::Slow, 1) => SLOW_RECORDS_ALONE,
            (Place::Slow, _) => SLOW_RECORDS_EACH,
            (_, 1) => RECORDS_ALONE,
            _ => RECORDS_EACH,
        };
        let part = if options.quick { QUICK_PART } else { 1 };
        let records = options.records.unwrap_or(usual / part);
        Self { writers, record_bytes, records }
    }

    /// Records of all writers.
    pub(crate) fn all(&self) -> u64 {
        self.writers as u64 * self.records
    }

    /// Bytes of the longest log, in which records are padded to blocks.
    fn padded_bytes(&self) -> u64 {
        self.all() * self.record_bytes.next_multiple_of(BLOCK_BYTES) as u64
    }
}

/// The experiment, with the place of the point at hand. Dropping it removes that.
#[derive(Debug)]
pub struct Wal {
    options: Options,
    about: About,
    /// The place and the load of each point.
    points: Vec<(Place, Load)>,
    ground: Option<Ground>,
    /// The working directory of runs.
    _scratch: TempDir,
}

/// The input of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    /// The directory of the log.
    directory: PathBuf,
    load: Load,
}

impl Wal {
    /// Makes a directory for the runs. Places are made by [`prepare`](Experiment::prepare), which takes
    /// root for all but [`Place::Path`].
    ///
    /// # Errors
    /// As `mkdir(2)`. More than [`BYTES_MAX`] in a run.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let scratch = scratch::directory("sakia-bench-", &env::temp_dir())?;
        let mut points = Vec::new();
        for &place in &options.places {
            for &size in &options.record_bytes {
                for &writers in &options.writers {
                    points.push((place, Load::new(place, writers, size, &options)));
                }
            }
        }
        let most = points.iter().map(|(_, load)| load.padded_bytes()).max().unwrap_or(0);
        ensure!(most <= BYTES_MAX, "a log of more than {}: fewer records", bytes(BYTES_MAX));
        let variants = Variant::names(&options.variants);
        let mut pairs = against(&variants, [Variant::StdGroup.name(), Variant::Std.name()]);
        let limits = [Variant::ByLatency, Variant::Fixed];
        if limits.iter().all(|variant| options.variants.contains(variant)) {
            let [by_latency, fixed] = limits.map(Variant::name);
            pairs.push((by_latency, fixed));
        }
        let mut about = About {
            title: "a log of which each record is durable before its writer goes on".into(),
            notes: notes(&options),
            points: points.iter().map(|&(place, load)| point(place, load)).collect(),
            pairs,
            variants,
            ..About::new(NAME, Focus::Records, scratch.path())
        };
        let names: Vec<_> = options.places.iter().map(|&place| ground::kind(place)).collect();
        about.machine.file_system = names.join(", ");
        Ok(Self { options, about, points, ground: None, _scratch: scratch })
    }
}

/// How it is measured.
fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![
        "Each writer appends a record, waits until it is durable, and goes on with the next. The log \
         is a new file in each run and grows. After the measured section it is read: each record is \
         there once, those of a writer are in order, and all bytes are compared."
            .into(),
        "runtime: a runtime of one thread, a task for each writer. direct: the same past the page \
         cache, records padded to blocks of 4 KiB. engine: one plain thread awaits all writers. wait, \
         std-group, std: a thread for each writer. tokio: the group commit of sakia-tokio, and tasks of \
         tokio's runtime of several threads."
            .into(),
        "std-group has a lock and a condition variable: of the writers that wait, one writes what \
         has gathered, by one write and one fdatasync, and the next group gathers meanwhile. std \
         writes to a file that was opened to append, and calls fdatasync."
            .into(),
    ];
    let admits = |variant: &Variant| matches!(variant, Variant::Fixed | Variant::ByLatency);
    if options.variants.iter().any(admits) {
        notes.push(format!(
            "fixed, by-latency: tasks of a runtime of one thread, which admit writes to threads of a pool; \
             each record is a write and an fdatasync of its own. At most {} are under way, with by-latency \
             as many as their latency allows.",
            admission::LIMIT_MAX
        ));
    }
    notes.extend(options.places.iter().map(|&place| ground::note(place)));
    notes
}

fn point(place: Place, load: Load) -> Point {
    let mut params = Params::new();
    params.insert("place".into(), place.name().into());
    params.insert("writers".into(), load.writers.into());
    params.insert("record_bytes".into(), load.record_bytes.into());
    params.insert("records".into(), load.all().into());
    let size = bytes(load.record_bytes as u64);
    let label = format!("{}: {} x {size}", place.name(), load.writers);
    let work = Work { operations: load.all(), bytes: load.all() * load.record_bytes as u64 };
    Point { params, label, work }
}

impl Experiment for Wal {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, _is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        let (place, load) = self.points[point];
        if self.ground.as_ref().is_none_or(|ground| ground.place() != place) {
            self.ground = None; // before the next takes its memory
            self.ground = Some(Ground::new(place, self.options.directory.as_deref())?);
        }
        Ok(record::sum_of(&load))
    }

    fn input(&self, point: usize) -> Value {
        let directory = self.ground.as_ref().map(|ground| ground.path().to_owned());
        let directory = directory.unwrap_or_default();
        json!(Task { directory, load: self.points[point].1 })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let records = self.about.points[row.point].work.operations as f64;
        let switches = row.voluntary_switches as f64 / records;
        let syncs = row.count("syncs");
        let shared = records / syncs.max(1) as f64;
        let syncs = counted(syncs, "sync", "syncs");
        let reason = format!("{syncs}, {shared:.1} records each; {switches:.2} switches a record");
        Some(match admission::in_words(&row.counters) {
            Some(words) => format!("{reason}; {words}"),
            None => reason,
        })
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        let plot = |&place: &Place| {
            let at = |row: &Row| {
                let (of, load) = self.points[row.point];
                let is_here =
                    of == place && Some(&load.record_bytes) == self.options.record_bytes.first();
                is_here.then_some((load.writers as f64, row.ops_per_s as f64))
            };
            Plot {
                title: format!("Durable records a second, {}", place.name()),
                x_label: "writers".into(),
                y_label: "records/s (median)".into(),
                series: results.series(at),
                ..Plot::default()
            }
        };
        self.options.places.iter().map(plot).collect()
    }
}

/// See [`cell::run_cell`].
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let task: Task = spec.task()?;
    let Load { writers, record_bytes, records } = task.load;
    let is_sane = writers > 0 && records > 0 && record_bytes >= RECORD_BYTES_MIN;
    ensure!(is_sane && task.load.padded_bytes() <= BYTES_MAX, "a log of no use");
    cell::measure(|meter| ways::work(variant, &task, meter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_writes_the_same_log() {
        let parent = tempfile::tempdir().unwrap();
        let options = Options {
            writers: vec![1, 5],
            record_bytes: vec![24, 5000],
            records: Some(7),
            places: vec![Place::Path],
            directory: Some(parent.path().to_owned()),
            variants: Variant::ALL.to_vec(),
            ..Options::default()
        };
        let mut experiment = Wal::new(options).unwrap();
        assert_eq!(experiment.about.points.len(), 4);
        for point in 0..4 {
            let expected = experiment.prepare(point, &|| false).unwrap();
            for variant in Variant::ALL {
                let input = experiment.input(point);
                let spec = Spec { experiment: NAME.into(), variant: variant.name().into(), input };
                match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
                    Outcome::Measured(measured) => {
                        assert_eq!(measured.sum, expected, "{} at {point}", spec.variant);
                        let (writers, all) = (experiment.points[point].1.writers as u64, 7);
                        let syncs = measured.counters["syncs"];
                        assert!(
                            (all..=all * writers).contains(&syncs),
                            "{}: {syncs}",
                            spec.variant
                        );
                        if let Some(&most) = measured.counters.get("under_way_max") {
                            assert!((1..=writers).contains(&most), "{}: {most}", spec.variant);
                            assert_eq!(syncs, all * writers, "each has its own");
                        }
                    }
                    Outcome::Unavailable(reason) => {
                        let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                        assert!(
                            !denied,
                            "skips are denied, and {} must skip: {reason}",
                            spec.variant
                        );
                        eprintln!("SKIP {}: {reason}", spec.variant);
                    }
                }
            }
        }
        drop(experiment);
        assert!(std::fs::read_dir(parent.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_point_is_a_place_a_size_and_a_number_of_writers() {
        let experiment = Wal::new(Options { quick: true, ..Options::default() }).unwrap();
        let labels: Vec<_> =
            experiment.about.points.iter().map(|point| point.label.as_str()).collect();
        assert_eq!(labels.len(), 16);
        assert_eq!(labels[..2], ["memory: 1 x 256 bytes", "memory: 8 x 256 bytes"]);
        assert_eq!(experiment.points[0].1.records, 256);
        assert_eq!(experiment.about.points[1].work, Work { operations: 512, bytes: 512 * 256 });
    }

    #[test]
    fn admission_is_compared_with_the_fixed_limit() {
        let variants = vec![Variant::Std, Variant::Fixed, Variant::ByLatency];
        let experiment = Wal::new(Options { variants, ..Options::default() }).unwrap();
        assert_eq!(experiment.about.pairs.last(), Some(&("by-latency", "fixed")));
        assert!(experiment.about.notes.iter().any(|note| note.starts_with("fixed, by-latency")));
        let usual = Wal::new(Options::default()).unwrap();
        assert!(!usual.about.variants.contains(&"fixed"));
    }

    #[test]
    fn a_log_that_is_too_long_is_refused() {
        let options = Options { records: Some(1 << 20), ..Options::default() };
        let error = Wal::new(options).unwrap_err();
        assert_eq!(error.to_string(), "a log of more than 256 MiB: fewer records");
    }
}
