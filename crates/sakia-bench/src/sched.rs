//! The experiment `sched`: blocking file calls of many threads, done in several ways.
//!
//! It repeats a study in which a scheduler of a Go program did the file calls of its goroutines on one
//! thread, over Linux AIO, and lost to plain blocking calls at every small size: `io_submit` itself reads a
//! buffered file, so that AIO only adds the hand-over. [`Variant::Aio`] is such a scheduler;
//! [`Variant::Sakia`] is the engine as used from plain threads; [`Variant::Ring`] sends to the engine's
//! thread even the operations that it would do as plain calls.
//!
//! All variants have the same load, which defines the work of each thread. A run adds up the bytes it reads,
//! and checks those it wrote.
//!
//! The time until a call returns tells little about calls that a thread does not wait for. So
//! [`Mode::Utilization`] has each thread compute as well, and measures how much of that it does while its
//! reads are under way; there [`Variant::Runtime`] takes part, whose tasks share one thread.

mod computation;
mod figures;
mod input;
mod ledger;
mod load;
mod options;
mod utilization;
mod variants;

use std::time::Duration;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bytes::{bytes, counted};
use crate::cell::{self, Outcome, Spec};
use crate::experiment::{About, Experiment, Focus, Params, Point, Work, against};
use crate::machine::{Machine, memory_available_bytes};
use crate::named::Named;
use crate::plot::Plot;
use crate::results::{Results, Row};

use self::computation::{Computation, Speed};
use self::input::Input;
use self::load::{Load, Share};
pub use self::options::{Mode, Options};
use self::variants::Timing;
pub use self::variants::Variant;

/// The name of the experiment.
pub const NAME: &str = "sched";

/// The most threads.
pub const THREADS_MAX: usize = 1024;
/// The most operations of a kind.
pub const COUNT_MAX: u64 = 100_000_000;
/// The most files.
pub const FILES_MAX: usize = 1000;
/// The most reads that a thread has under way.
pub const DEPTH_MAX: usize = 1024;

/// The default number of threads, and then the default sizes.
const THREADS: usize = 2;
const SIZES: [u64; 3] = [1000, 10_000, 100_000];
/// The numbers of threads of the matrix, and then its sizes.
const MATRIX_THREADS: [usize; 5] = [1, 2, 4, 8, 16];
const MATRIX_SIZES: [u64; 6] = [1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
/// The sizes of the figures.
const FIGURE_SIZES: [u64; 10] =
    [1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];
const FIGURE_SIZES_QUICK: [u64; 4] = [1000, 10_000, 100_000, 1_000_000];
/// The size of a read, the depths and the computation if utilization is measured.
const UTILIZATION_SIZE: u64 = 4096;
const DEPTHS: [usize; 5] = [1, 2, 4, 8, 16];
const DEPTHS_QUICK: [usize; 2] = [1, 8];
const COMPUTATION: Duration = Duration::from_micros(20);

/// The default number of operations of a run is that of this many bytes, within bounds. The largest number of
/// hand-overs takes about a second.
const BYTES: u64 = 2_000_000_000;
const BYTES_QUICK: u64 = 500_000_000;
const COUNT_MOST: u64 = 100_000;
const COUNT_MOST_QUICK: u64 = 20_000;
const COUNT_LEAST: u64 = 20;
/// The most operations of a run in which each operation reads the clock, or goes to the device.
const COUNT_TIMED: u64 = 10_000;
const COUNT_DEVICE: u64 = 2000;

/// The most memory for the buffers of all threads; also at most half of the available memory.
const MEMORY_MAX: u64 = 2 << 30;
/// The most bytes of all files together.
const DISK_MAX: u64 = 4 << 30;
/// The size of files that are read from the device.
const DEVICE_BYTES: u64 = 256 << 20;

/// Notes on the method.
const NOTES: [&str; 4] = [
    "r: reads, w: writes, d: bypassing the page cache; then the bytes of an operation, in powers of ten, and \
     the number of threads.",
    "blocking: each thread makes plain calls. aio: each hands its request to one scheduler thread on \
     Linux AIO, and sleeps until it is done. sakia: the engine, as used from plain threads: \
     wait makes the plain call. ring: each sends its request to the engine's thread, where nothing is a \
     plain call.",
    "Threads, contexts, rings and buffers are there before what is measured begins, and buffers are used \
     again. All begin at a page.",
    "Ends of what is read are added up while it is measured; all bytes of each thread's last read, and of \
     what was written, afterwards.",
];
/// A further note, if the clock is read.
const NOTE_ON_CLOCKS: &str = "Each operation reads the clock twice. Counters with the name of a call, or \
                              op, have the mean and the standard deviation of its time in the run in the \
                              middle; plots those of all runs.";
/// A further note, if operations go to the device.
const NOTE_ON_DEVICES: &str = "What goes to the device is a part of the file that no other operation of \
                               the run has, in an order in which nothing is read ahead.";

/// The experiment, with its files. Dropping it removes the files that it made.
#[derive(Debug)]
pub struct Sched {
    options: Options,
    about: About,
    loads: Vec<Load>,
    timing: Timing,
    /// The speed of computation here, if there is to be any.
    speed: Option<Speed>,
    /// Requested measurements that are left out, with the reasons.
    left_out: Vec<String>,
    input: Input,
}

/// The input of a run. Files are in the working directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    load: Load,
    timing: Timing,
}

/// The kind of a point's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    threads: usize,
    /// 0: no reads.
    read_size: u64,
    write_size: u64,
    cache: Cache,
    /// The number of reads under way while the thread computes; 0 if it does not.
    depth: usize,
}

/// The page cache's part in a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    Hot,
    /// It was emptied before the run.
    Cold,
    /// It is bypassed.
    Direct,
}

impl Sched {
    /// Determines the points that can be measured, and makes a directory for the files.
    ///
    /// # Errors
    /// The options contradict each other, or exceed the limits of memory or disk. There is no direct I/O in
    /// the directory. As `mkdir(2)`, with the path.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        options.check()?;
        let input = Input::new(&options.directory, options.sparse)?;
        let alignment = input.direct_alignment()?;
        let timing = match options.mode {
            Mode::Testbench | Mode::Matrix => Timing::Whole,
            Mode::Fig4 | Mode::Fig6 => Timing::Operations,
            Mode::Fig5 => Timing::Calls,
            Mode::Utilization => Timing::Utilization,
        };
        let is_measured = |variant: &Variant| match variant {
            // An engine's wait makes the same call as `blocking`: there is nothing more to trace.
            Variant::Sakia => timing != Timing::Calls,
            // Elsewhere each thread waits for its calls, as no task does.
            Variant::Runtime => timing == Timing::Utilization,
            _ => true,
        };
        let variants: Vec<_> = options.variants.iter().copied().filter(is_measured).collect();
        ensure!(!variants.is_empty(), "--variants: none of them is measured in this mode");
        let speed = (timing == Timing::Utilization).then(Speed::measure);
        let variants = Variant::names(&variants);
        let mut sched = Self {
            about: About {
                pairs: against(&variants, [Variant::Blocking.name(), Variant::Aio.name()]),
                variants,
                ..About::new(NAME, Focus::Requests, input.directory())
            },
            loads: Vec::new(),
            timing,
            speed,
            left_out: Vec::new(),
            input,
            options,
        };
        let shapes = sched.shapes();
        for shape in shapes {
            sched.add(shape, alignment)?;
        }
        if sched.about.points.is_empty() {
            bail!("nothing is left to be measured: {}", sched.left_out.join("; "));
        }
        sched.about.title = sched.title();
        sched.about.notes = sched.notes();
        Ok(sched)
    }

    fn title(&self) -> String {
        let what = match self.options.mode {
            Mode::Testbench | Mode::Matrix => "file calls of many threads, done in several ways",
            Mode::Fig4 => "time until a read returns",
            Mode::Fig5 => "time of the system calls of a read",
            Mode::Fig6 => "time until a read that bypasses the page cache returns",
            Mode::Utilization => "computation of threads while their reads are under way",
        };
        let content = if self.options.sparse { "sparse" } else { "dense" };
        if self.timing == Timing::Utilization {
            return format!("{what}; {content} files");
        }
        let direct = self.loads.iter().filter(|load| load.direct).count();
        let cached = if self.options.cold { "page cache cold" } else { "page cache hot" };
        let cache = match direct {
            0 => cached.to_owned(),
            all if all == self.loads.len() => "bypassing the page cache (O_DIRECT)".to_owned(),
            _ => format!("{cached}, and bypassed (O_DIRECT)"),
        };
        format!("{what}; {content} files, {cache}")
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = match self.timing {
            Timing::Utilization => utilization::NOTES.map(str::to_owned).into(),
            _ => NOTES.map(str::to_owned).into(),
        };
        if matches!(self.timing, Timing::Operations | Timing::Calls) {
            notes.push(NOTE_ON_CLOCKS.to_owned());
        }
        if self.loads.iter().any(|load| load.scattered) {
            notes.push(NOTE_ON_DEVICES.to_owned());
        }
        let Machine { file_system, .. } = &self.about.machine;
        let is_memory = self.about.machine.is_in_memory();
        if self.loads.iter().any(|load| self.is_cold(load)) && is_memory {
            notes.push(format!(
                "Files on {file_system} cannot be dropped from memory: they are hot."
            ));
        }
        if is_memory && self.loads.iter().any(|load| load.direct) {
            notes.push(format!(
                "Past the page cache there is nothing on {file_system}: it is memory."
            ));
        }
        if self.timing == Timing::Calls && self.options.variants.contains(&Variant::Sakia) {
            notes.push("sakia makes the call that blocking makes, and is not traced.".into());
        }
        notes.extend(self.left_out.iter().map(|what| format!("Left out: {what}.")));
        notes
    }

    /// Returns the points, without the numbers of operations.
    fn shapes(&self) -> Vec<Shape> {
        let Options { mode, threads, read_sizes, write_sizes, quick, direct, .. } = &self.options;
        if *mode == Mode::Utilization {
            return self.utilization_shapes();
        }
        let figure: &[u64] = if *quick { &FIGURE_SIZES_QUICK } else { &FIGURE_SIZES };
        let (usual_threads, usual_sizes): (&[usize], &[u64]) = match mode {
            Mode::Testbench => (&[THREADS], &SIZES),
            Mode::Matrix if *quick => (&[1, 4], &[1000, 100_000]),
            Mode::Matrix => (&MATRIX_THREADS, &MATRIX_SIZES),
            Mode::Fig4 => (&[2], figure),
            Mode::Fig5 | Mode::Fig6 | Mode::Utilization => (&[1], figure),
        };
        let threads = if threads.is_empty() { usual_threads } else { threads };
        let sizes = if read_sizes.is_empty() { usual_sizes } else { read_sizes };
        let reads = |sizes: &[u64]| sizes.iter().map(|&size| (size, 0)).collect::<Vec<_>>();
        let writes = |sizes: &[u64]| sizes.iter().map(|&size| (0, size)).collect::<Vec<_>>();
        let pairs = match (mode, read_sizes.len(), write_sizes.len()) {
            (Mode::Matrix, ..) => [reads(sizes), writes(sizes)].concat(),
            (_, _, 0) => reads(sizes),
            (_, 0, _) => writes(write_sizes),
            (_, of_reads, of_writes) => {
                let at = |sizes: &[u64], index: usize| sizes[index.min(sizes.len() - 1)];
                let pair = |index| (at(read_sizes, index), at(write_sizes, index));
                (0..of_reads.max(of_writes)).map(pair).collect()
            }
        };
        let directs: &[bool] = match mode {
            Mode::Fig5 => &[false, true],
            Mode::Fig6 => &[true],
            _ => &[*direct],
        };
        let mut shapes = Vec::new();
        let cached = if self.options.cold { Cache::Cold } else { Cache::Hot };
        for &direct in directs {
            let cache = if direct { Cache::Direct } else { cached };
            for &(read_size, write_size) in &pairs {
                let of =
                    |&threads: &usize| Shape { threads, read_size, write_size, cache, depth: 0 };
                shapes.extend(threads.iter().map(of));
            }
        }
        shapes
    }

    /// Returns the same for reads of threads that compute.
    fn utilization_shapes(&self) -> Vec<Shape> {
        let Options { threads, read_sizes, depths, hot, cold, direct, quick, .. } = &self.options;
        let ways = [(Cache::Hot, *hot), (Cache::Cold, *cold), (Cache::Direct, *direct)];
        let is_any_set = ways.iter().any(|(_, is_set)| *is_set);
        let caches = ways.iter().filter(|(_, is_set)| *is_set || !is_any_set).map(|(way, _)| *way);
        let usual: &[usize] = if *quick { &DEPTHS_QUICK } else { &DEPTHS };
        let depths = if depths.is_empty() { usual } else { depths };
        let threads: &[usize] = if threads.is_empty() { &[1] } else { threads };
        let sizes: &[u64] = if read_sizes.is_empty() { &[UTILIZATION_SIZE] } else { read_sizes };
        let mut shapes = Vec::new();
        for cache in caches {
            for &read_size in sizes {
                for &threads in threads {
                    let of = |&depth| Shape { threads, read_size, write_size: 0, cache, depth };
                    shapes.extend(depths.iter().map(of));
                }
            }
        }
        shapes
    }

    /// Returns whether files are dropped from the page cache before a run of this load, and then read through
    /// it.
    fn is_cold(&self, load: &Load) -> bool {
        load.scattered && !load.direct
    }

    /// Adds a point, or the reason why it is left out.
    fn add(&mut self, shape: Shape, alignment: Option<u64>) -> anyhow::Result<()> {
        let is_direct = shape.cache == Cache::Direct;
        let align = match (is_direct, alignment) {
            (false, _) => 1,
            (true, Some(alignment)) => alignment,
            (true, None) => {
                let reason = format!(
                    "{} has no direct I/O in {} (EINVAL): choose a directory on a disk by --path",
                    self.about.machine.file_system,
                    self.options.directory.display()
                );
                let has_others = match self.options.mode {
                    Mode::Fig5 => true,
                    Mode::Utilization => !self.options.direct,
                    _ => false,
                };
                ensure!(has_others, reason);
                if !self.left_out.contains(&reason) {
                    self.left_out.push(reason);
                }
                return Ok(());
            }
        };
        let load = self.load(shape, align)?;
        let name = label(&load);
        let memory = memory_available_bytes().map_or(MEMORY_MAX, |free| MEMORY_MAX.min(free / 2));
        if load.memory_bytes() > memory {
            let of = bytes_words(load.memory_bytes());
            let most = bytes_words(memory);
            self.left_out.push(format!("{name}: its buffers take {of}, more than {most}"));
            return Ok(());
        }
        let made = load.files.iter().enumerate().filter(|(_, name)| !name.is_absolute());
        let disk: u64 = made.map(|(index, _)| load.file_bytes(index)).sum();
        ensure!(
            disk <= DISK_MAX,
            "{name}: its files would take {}, more than {}; lower --nreads, --nwrites, --roff, --woff \
             or --nfiles",
            bytes_words(disk),
            bytes_words(DISK_MAX)
        );
        if self.loads.contains(&load) {
            return Ok(()); // two sizes may be equal after alignment
        }
        let mut params = Params::new();
        params.insert("threads".into(), load.threads.into());
        for (kind, share) in [("read", &load.reads), ("write", &load.writes)] {
            if share.count > 0 {
                params.insert(format!("{kind}_bytes"), share.size.into());
                params.insert(format!("{kind}s"), share.count.into());
                params.insert(format!("{kind}_step_bytes"), share.step.into());
            }
        }
        params.insert("files".into(), load.files.len().into());
        if let Some(Computation { depth, steps }) = load.computation {
            params.insert("depth".into(), depth.into());
            params.insert("computation_steps".into(), steps.into());
        }
        let is_utilization = load.computation.is_some();
        let flags = [
            ("mix", load.mix),
            ("direct", load.direct),
            ("cold", self.options.cold && !is_utilization || self.is_cold(&load)),
            ("sparse", self.options.sparse),
        ];
        params
            .extend(flags.iter().filter(|(_, is)| *is).map(|&(name, is)| (name.into(), is.into())));
        let work = Work { operations: load.operations(), bytes: load.bytes() };
        self.about.points.push(Point { params, label: name, work });
        self.loads.push(load);
        Ok(())
    }

    fn load(&self, shape: Shape, align: u64) -> anyhow::Result<Load> {
        let Options { reads, writes, read_step, write_step, mix, others, .. } = &self.options;
        let is_device = shape.cache != Cache::Hot;
        let files = match others.is_empty() {
            true => (0..self.options.files).map(|file| format!("data-{file}").into()).collect(),
            false => others.clone(),
        };
        let share = |size: u64, count: Option<u64>, step: Option<u64>| {
            if size == 0 {
                return Share::default();
            }
            let size = size.next_multiple_of(align);
            let usual = if is_device { size.next_multiple_of(4096) } else { 0 };
            let step = step.unwrap_or(usual).next_multiple_of(align);
            let count = count.unwrap_or_else(|| self.count(size, shape.threads, is_device));
            Share { count, size: size as usize, step }
        };
        let (reads, writes) = (
            share(shape.read_size, *reads, *read_step),
            share(shape.write_size, *writes, *write_step),
        );
        ensure!(
            writes.step == 0 || writes.step >= writes.size as u64,
            "--woff {} is less than the {} bytes that a write has when aligned",
            writes.step,
            writes.size
        );
        Ok(Load {
            threads: shape.threads,
            reads,
            writes,
            files,
            mix: *mix,
            direct: shape.cache == Cache::Direct,
            scattered: is_device,
            computation: self.speed.map(|speed| {
                let time = self.options.computation.unwrap_or(COMPUTATION);
                Computation { depth: shape.depth, steps: speed.steps_in(time) }
            }),
        })
    }

    /// Returns the number of operations of a size that can be measured in about a second.
    fn count(&self, size: u64, threads: usize, is_device: bool) -> u64 {
        let (bytes, most) = match self.options.quick {
            true => (BYTES_QUICK, COUNT_MOST_QUICK),
            false => (BYTES, COUNT_MOST),
        };
        let most = if self.timing == Timing::Whole { most } else { most.min(COUNT_TIMED) };
        if is_device {
            let step = size.next_multiple_of(4096);
            return (DEVICE_BYTES / step).clamp(1, COUNT_DEVICE);
        }
        let count = (bytes / size).clamp(COUNT_LEAST, most);
        // Each thread has the same number.
        count.next_multiple_of(threads as u64)
    }
}

/// Returns the label of a point: `r 1 kB x2` are reads of two threads.
fn label(load: &Load) -> String {
    let size = |share: &Share| decimal(share.size as u64);
    if let Some(Computation { depth, .. }) = load.computation {
        let (cache, size, threads) = (utilization::cache(load), size(&load.reads), load.threads);
        return format!("{cache} {size} x{threads}, {depth} deep");
    }
    let direct = if load.direct { "d" } else { "" };
    let threads = load.threads;
    match (load.reads.count, load.writes.count) {
        (_, 0) => format!("r{direct} {} x{threads}", size(&load.reads)),
        (0, _) => format!("w{direct} {} x{threads}", size(&load.writes)),
        _ => format!("r{direct} {} w {} x{threads}", size(&load.reads), size(&load.writes)),
    }
}

/// Returns bytes in powers of ten, as in the study, if that is a short number.
fn decimal(count: u64) -> String {
    match count {
        0 => "0 B".into(),
        _ if count.is_multiple_of(1_000_000) => format!("{} MB", count / 1_000_000),
        _ if count.is_multiple_of(1000) => format!("{} kB", count / 1000),
        _ if count.is_multiple_of(1024) => bytes(count),
        _ => format!("{count} B"),
    }
}

fn bytes_words(count: u64) -> String {
    format!("{:.1} GiB", count as f64 / f64::from(1 << 30))
}

impl Experiment for Sched {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        self.input.make(&self.loads[point], is_stopped)
    }

    fn reset(&mut self, point: usize) -> anyhow::Result<()> {
        let load = &self.loads[point];
        self.input.reset(load, load.scattered)
    }

    fn input(&self, point: usize) -> Value {
        json!(Task { load: self.loads[point].clone(), timing: self.timing })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        if self.timing == Timing::Utilization {
            return Some(utilization::in_words(&row.counters));
        }
        let operations = self.about.points[row.point].work.operations.max(1) as f64;
        let of_each = |number: u64| number as f64 / operations;
        let switches = of_each(row.voluntary_switches);
        let reason = match Variant::by_name(row.variant)? {
            Variant::Blocking => format!("an operation: a plain call, {switches:.3} switches"),
            Variant::Aio => {
                let batch = row.count("submitted") as f64 / row.count("submits").max(1) as f64;
                let batch_max = row.count("batch_max");
                format!(
                    "an operation: {:.3} submits of {batch:.1} requests (at most {batch_max}), {:.3} \
                     getevents, {switches:.3} switches; {}",
                    of_each(row.count("submits")),
                    of_each(row.count("get_events")),
                    counted(row.count("contexts"), "context", "contexts")
                )
            }
            Variant::Sakia => format!(
                "an operation: {:.3} plain calls of its own thread, {:.3} requests to the engine's, \
                 {switches:.3} switches",
                of_each(row.count("plain")),
                of_each(row.count("sent"))
            ),
            Variant::Ring if self.timing == Timing::Calls => {
                format!(
                    "an operation: {:.3} enters, {switches:.3} switches",
                    of_each(row.count("enters"))
                )
            }
            Variant::Ring => format!(
                "an operation: {:.3} requests to the engine's thread, {switches:.3} switches",
                of_each(row.count("sent"))
            ),
            Variant::Runtime => return None, // measured with utilization only
        };
        let times = figures::times_in_words(self.timing, &row.counters);
        Some(if times.is_empty() { reason } else { format!("{reason}; {times}") })
    }

    fn plots(&self, results: &Results) -> Vec<Plot> {
        figures::plots(self, results)
    }
}

/// Runs one variant once.
///
/// # Errors
/// See [`cell::run_cell`].
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let Task { load, timing } = spec.task()?;
    ensure!((1..=THREADS_MAX).contains(&load.threads), "a number of threads out of range");
    ensure!(!load.files.is_empty(), "no files");
    let is_depth = |of: Computation| (1..=DEPTH_MAX).contains(&of.depth);
    ensure!(load.computation.is_none_or(is_depth), "a depth out of range");
    cell::measure(|meter| variants::work(variant, &load, timing, meter))
}

#[cfg(test)]
mod tests;
