//! A trace in words: how operations were done, where their time went, and what stands out.

mod findings;
mod show;

use std::collections::{BTreeMap, HashMap};

use crate::encode::category;
use crate::read::{Slice, Trace, Track};

/// The number of turns listed.
const LONGEST: usize = 10;

/// The findings of a trace, to be printed.
///
/// # Examples
/// ```
/// use sakia_trace::{Recording, StaticName, Summary, Trace, TraceOptions, span};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-summary-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// static WORK: StaticName = StaticName::new("work");
/// drop(span(&WORK));
/// let path = recording.stop()?.path;
/// let trace = Trace::read(&std::fs::read(path)?).expect("it is complete");
/// let summary = Summary::of(&trace);
/// println!("{summary}");
/// assert!(!summary.to_string().is_empty());
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The program.
    pub process: String,
    /// Nanoseconds from the first event to the last one.
    pub duration: u64,
    /// Set if the file ends early.
    pub is_truncated: bool,
    /// Events that found their buffer full.
    pub lost: u64,
    /// Operations by kind, the most frequent first.
    pub kinds: Vec<KindSummary>,
    /// System calls by name with their number, the most frequent first.
    pub calls: Vec<(String, u64)>,
    /// Threads with operations or tasks.
    pub threads: Vec<ThreadSummary>,
    /// The kernel's own worker threads.
    pub workers: Workers,
    /// The longest stretches in which a thread did not look for completions.
    pub turns: Vec<LongTurn>,
    /// The notable findings as sentences, the most important first.
    pub findings: Vec<String>,
}

/// The worker threads of a ring's kernel, and how they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workers {
    /// The kernel's tracepoint was read: the operations that it handed to workers by their names, the most
    /// frequent first.
    Counted(Vec<(String, u64)>),
    /// The most threads named `iou-wrk` that the process had when the recording looked. There may have been
    /// others in between.
    Inferred(u64),
}

impl Default for Workers {
    fn default() -> Self {
        Self::Inferred(0)
    }
}

/// The operations of one kind. Times are medians in nanoseconds.
///
/// # Examples
/// See [`Summary`](Summary#examples).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindSummary {
    /// The kind: "read".
    pub name: String,
    /// Operations.
    pub count: u64,
    /// Of these, those done by a plain call on their own thread.
    pub plain: u64,
    /// Operations that went through the ring's or epoll's queue.
    pub queue: u64,
    /// Operations done by a lane's thread.
    pub lane: u64,
    /// Those that ended with an error.
    pub errors: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// From the start to the moment at which the task has the result.
    pub whole: u64,
    /// From the start to the submission.
    pub submit: u64,
    /// In the kernel or on a lane.
    pub kernel: u64,
    /// From the completion to the moment at which the task has the result.
    pub scheduling: u64,
}

/// A thread.
///
/// # Examples
/// See [`Summary`](Summary#examples).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadSummary {
    /// Its name.
    pub name: String,
    /// Nanoseconds in which its tasks ran, system calls excluded.
    pub computing: u64,
    /// Nanoseconds in which it had an operation in the kernel or on a lane.
    pub in_flight: u64,
    /// Nanoseconds in which both were true.
    pub overlap: u64,
    /// The average number of operations in flight while there were any.
    pub mean_in_flight: f64,
}

/// A stretch between two turns of a driver.
///
/// # Examples
/// See [`Summary`](Summary#examples).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LongTurn {
    /// The thread.
    pub thread: String,
    /// Nanoseconds since the first event.
    pub begin: u64,
    /// Nanoseconds.
    pub duration: u64,
    /// The task that ran longest in it, with the place at which it was spawned.
    pub task: Option<(i64, String)>,
    /// Nanoseconds for which it ran.
    pub task_ran: u64,
}

/// An operation with its parts.
#[derive(Debug)]
struct Operation<'a> {
    whole: &'a Slice,
    /// Its stretches in the kernel and on lanes: it may go to a lane after the kernel has refused it.
    inner: Vec<&'a Slice>,
    reason: Option<&'a str>,
    /// The type of the file system, for one that went to a lane.
    file_system: Option<&'a str>,
}

impl Operation<'_> {
    fn is_transfer(&self) -> bool {
        matches!(self.whole.name.as_str(), "read" | "write" | "copy")
    }

    /// Returns the nanoseconds before, in and after the kernel and the lanes, as far as they are known.
    fn parts(&self) -> Option<(u64, u64, Option<u64>)> {
        let [first, ..] = self.inner[..] else { return None };
        let (mut sum, mut last) = (0, first.begin);
        for inner in &self.inner {
            last = inner.end?;
            sum = last.saturating_sub(inner.begin).saturating_add(sum);
        }
        let resume = self.whole.end.map(|end| end.saturating_sub(last));
        Some((first.begin.saturating_sub(self.whole.begin), sum, resume))
    }

    fn result(&self) -> i64 {
        self.whole.number("result").unwrap_or(0)
    }
}

/// A stretch of time.
type Span = (u64, u64);

impl Summary {
    /// Summarizes a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut summary = Self {
            process: trace.process.clone(),
            is_truncated: trace.is_truncated,
            ..Self::default()
        };
        let all =
            || trace.tracks.iter().flat_map(|track| track.slices.iter().chain(&track.instants));
        let first = all().map(|slice| slice.begin).min().unwrap_or(0);
        let last = all().map(|slice| slice.end.unwrap_or(slice.begin)).max().unwrap_or(0);
        summary.duration = last.saturating_sub(first);
        let moments = || trace.tracks.iter().flat_map(|track| &track.instants);
        let lost = moments().filter(|moment| moment.is(category::RECORDING, "events lost"));
        summary.lost = lost
            .filter_map(|moment| moment.number("count"))
            .fold(0, |sum: u64, count| sum.saturating_add(count.max(0) as u64));
        let places: HashMap<i64, &str> = moments()
            .filter(|moment| moment.is(category::TASK, "task spawned"))
            .filter_map(|moment| Some((moment.number("task")?, moment.text("place")?)))
            .collect();

        let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
        let mut operations = Vec::new();
        for thread in trace.tracks.iter().filter(|track| track.tid.is_some()) {
            for call in thread.slices.iter().filter(|slice| slice.category == category::CALL) {
                *calls.entry(&call.name).or_default() += 1;
            }
            let its = operations_of(trace, thread);
            if !its.is_empty() || thread.slices.iter().any(is_run) {
                summary.threads.push(thread_summary(thread, &its));
            }
            summary.turns.extend(turns(thread, first, &places));
            operations.push(its);
        }
        summary.calls = calls.into_iter().map(|(name, count)| (name.into(), count)).collect();
        summary.calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        summary.turns.sort_by_key(|turn| std::cmp::Reverse(turn.duration));
        summary.turns.truncate(LONGEST);
        summary.kinds = kinds(operations.iter().flatten());
        summary.find(trace, &operations);
        summary
    }
}

fn operations_of<'a>(trace: &'a Trace, thread: &Track) -> Vec<Operation<'a>> {
    let mut operations = Vec::new();
    for track in
        trace.tracks.iter().filter(|track| track.parent == thread.uuid && track.tid.is_none())
    {
        let mut inner: Vec<&Slice> = Vec::new();
        // An outer slice comes after the slices within it.
        for slice in &track.slices {
            if slice.depth > 0 {
                inner.push(slice);
                continue;
            }
            let inner = std::mem::take(&mut inner);
            let reason = inner.last().and_then(|inner| inner.text("reason"));
            let file_system = inner.last().and_then(|inner| inner.text("file system"));
            operations.push(Operation { whole: slice, inner, reason, file_system });
        }
    }
    operations.sort_by_key(|operation| operation.whole.begin);
    operations
}

fn kinds<'a>(operations: impl Iterator<Item = &'a Operation<'a>>) -> Vec<KindSummary> {
    let mut by_kind: BTreeMap<&str, (KindSummary, [Vec<u64>; 4])> = BTreeMap::new();
    for operation in operations {
        let whole = operation.whole;
        let (kind, times) = by_kind.entry(&whole.name).or_default();
        kind.count += 1;
        match whole.text("way") {
            Some(crate::encode::way::QUEUE) => kind.queue += 1,
            Some(crate::encode::way::LANE) => kind.lane += 1,
            Some(_) => kind.plain += 1,
            None => {}
        }
        kind.errors += u64::from(operation.result() < 0);
        if matches!(kind_of(whole), "read" | "write" | "copy" | "send" | "recv" | "send_file") {
            kind.bytes = kind.bytes.saturating_add(operation.result().max(0) as u64);
        }
        times[0].extend(whole.duration());
        if let Some((submit, kernel, resume)) = operation.parts() {
            times[1].push(submit);
            times[2].push(kernel);
            times[3].extend(resume);
        }
    }
    let mut kinds: Vec<_> = by_kind
        .into_iter()
        .map(|(name, (kind, times))| {
            let [whole, submit, kernel, scheduling] = times.map(median);
            KindSummary { name: name.into(), whole, submit, kernel, scheduling, ..kind }
        })
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
    kinds
}

fn is_run(slice: &Slice) -> bool {
    slice.is(category::TASK, "task runs")
}

fn kind_of(slice: &Slice) -> &str {
    &slice.name
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn thread_summary(thread: &Track, operations: &[Operation<'_>]) -> ThreadSummary {
    let spans = |matches: &dyn Fn(&Slice) -> bool| -> Vec<Span> {
        let found = thread.slices.iter().filter(|slice| matches(slice));
        union(found.filter_map(|slice| Some((slice.begin, slice.end?))).collect())
    };
    let running = spans(&is_run);
    let calls = spans(&|slice| slice.category == category::CALL);
    let inner: Vec<Span> = operations
        .iter()
        .flat_map(|operation| &operation.inner)
        .filter_map(|inner| Some((inner.begin, inner.end?)))
        .collect();
    let sum = total(&inner);
    let in_flight = union(inner);
    let computing = subtract(&running, &calls);
    let overlap = total(&intersect(&computing, &in_flight));
    ThreadSummary {
        name: thread.name.clone(),
        computing: total(&computing),
        in_flight: total(&in_flight),
        overlap,
        mean_in_flight: sum as f64 / total(&in_flight).max(1) as f64,
    }
}

/// Returns the sections between the end of a turn and the beginning of the next one.
fn turns(thread: &Track, first: u64, places: &HashMap<i64, &str>) -> Vec<LongTurn> {
    let turns: Vec<&Slice> =
        thread.slices.iter().filter(|slice| slice.is(category::TURN, "turn")).collect();
    let mut runs: Vec<&Slice> = thread.slices.iter().filter(|slice| is_run(slice)).collect();
    runs.sort_by_key(|run| run.begin);
    let between = turns.windows(2).filter_map(|pair| Some((pair[0].end?, pair[1].begin)));
    let mut found: Vec<LongTurn> = between
        .map(|(begin, end)| LongTurn {
            thread: thread.name.clone(),
            begin,
            duration: end.saturating_sub(begin),
            ..LongTurn::default()
        })
        .collect();
    found.sort_by_key(|turn| std::cmp::Reverse(turn.duration));
    found.truncate(LONGEST);
    for turn in &mut found {
        let end = turn.begin.saturating_add(turn.duration);
        let from = runs.partition_point(|run| run.begin < turn.begin);
        let within = runs[from..].iter().take_while(|run| run.begin < end);
        if let Some(run) = within.max_by_key(|run| run.duration()) {
            let task = run.number("task").unwrap_or(0);
            let place = places.get(&task).copied().unwrap_or("an unknown place");
            turn.task = Some((task, place.into()));
            turn.task_ran = run.duration().unwrap_or(0);
        }
        turn.begin = turn.begin.saturating_sub(first);
    }
    found
}

fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (begin, end) in spans {
        match joined.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((begin, end)),
        }
    }
    joined
}

/// Returns the intersection of two sorted lists, each without overlaps.
fn intersect(a: &[Span], b: &[Span]) -> Vec<Span> {
    let (mut i, mut j, mut found) = (0, 0, Vec::new());
    while let (Some(&(a_begin, a_end)), Some(&(b_begin, b_end))) = (a.get(i), b.get(j)) {
        let (begin, end) = (a_begin.max(b_begin), a_end.min(b_end));
        if begin < end {
            found.push((begin, end));
        }
        if a_end < b_end {
            i += 1;
        } else {
            j += 1;
        }
    }
    found
}

fn subtract(a: &[Span], b: &[Span]) -> Vec<Span> {
    let mut found = Vec::new();
    let mut j = 0;
    for &(mut begin, end) in a {
        while j < b.len() && b[j].1 <= begin {
            j += 1;
        }
        let mut k = j;
        while begin < end {
            match b.get(k) {
                Some(&(b_begin, b_end)) if b_begin < end => {
                    if begin < b_begin {
                        found.push((begin, b_begin));
                    }
                    begin = begin.max(b_end);
                    k += 1;
                }
                _ => {
                    found.push((begin, end));
                    break;
                }
            }
        }
    }
    found
}

fn total(spans: &[Span]) -> u64 {
    spans.iter().fold(0, |sum: u64, (begin, end)| sum.saturating_add(end.saturating_sub(*begin)))
}
