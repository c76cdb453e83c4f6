//! The summary of what was recorded, computed from the truth, simply.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::findings::findings;
use super::truth::{Operation, Thread, Truth};
use crate::read::{Slice, Value};

/// A summary as it is printed, without the spaces of its columns.
pub(super) fn lines(truth: &Truth, is_truncated: bool) -> Vec<String> {
    let kinds = kinds(truth);
    let threads: Vec<Figures> = truth.threads.iter().filter_map(figures).collect();
    let duration = truth.last() - truth.first();
    let end = if is_truncated { ", cut short" } else { "" };
    let mut lines = vec![format!("program: {}{end}", time(duration))];
    let findings = findings(truth, &kinds, &threads, duration);
    lines.extend(findings.into_iter().map(|finding| format!("- {finding}")));
    if !kinds.is_empty() {
        lines.push(
            "operation count plain queue lane errors bytes whole to submit kernel to resume".into(),
        );
    }
    for kind in &kinds {
        let [plain, queue, lane] = kind.ways.map(|count| percent(count, kind.count));
        let [whole, submit, kernel, resume] = kind.times.map(time);
        let (name, count, errors, bytes) = (kind.name, kind.count, kind.errors, bytes(kind.bytes));
        lines.push(format!(
            "{name} {count} {plain} {queue} {lane} {errors} {bytes} {whole} {submit} {kernel} {resume}"
        ));
    }
    for Figures { name, computing, in_flight, overlap, mean } in &threads {
        lines.push(format!(
            "thread {name}: computed for {}; operations in flight for {}, {mean:.1} on average; utilization \
             {}",
            time(*computing),
            time(*in_flight),
            percent(*overlap, *in_flight)
        ));
    }
    let calls = calls(truth);
    if !calls.is_empty() {
        let sum: u64 = calls.iter().map(|call| call.1).sum();
        lines.push(format!("{sum} system calls: {}", counted(&calls)));
    }
    let turns = turns(truth);
    if !turns.is_empty() {
        lines.push("longest stretches between two turns of a driver".into());
    }
    lines.extend(turns);
    lines
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

pub(super) fn time(nanoseconds: u64) -> String {
    let of = |digits: usize, unit: u64, name: &str| {
        format!("{:.digits$} {name}", nanoseconds as f64 / unit as f64)
    };
    if nanoseconds >= 1_000_000_000 {
        of(2, 1_000_000_000, "s")
    } else if nanoseconds >= 1_000_000 {
        of(1, 1_000_000, "ms")
    } else if nanoseconds >= 1000 {
        of(1, 1000, "us")
    } else {
        format!("{nanoseconds} ns")
    }
}

pub(super) fn bytes(count: u64) -> String {
    if count >= 1024 * 1024 {
        format!("{} MiB", count / 1024 / 1024)
    } else if count >= 1024 {
        format!("{} KiB", count / 1024)
    } else {
        format!("{count} B")
    }
}

pub(super) fn counted(counts: &[(String, u64)]) -> String {
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// Counts texts: the most frequent first, and those of the same count by name.
pub(super) fn by_count<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    texts.for_each(|text| *counts.entry(text.into()).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(name, count)| (Reverse(*count), name.clone()));
    counts
}

pub(super) fn calls(truth: &Truth) -> Vec<(String, u64)> {
    let slices = truth.threads.iter().flat_map(|thread| &thread.slices);
    by_count(
        slices.filter(|slice| slice.category == "system call").map(|slice| slice.name.as_str()),
    )
}

/// The operations of a kind.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) count: u64,
    /// By plain calls, through the queue, on lanes.
    pub(super) ways: [u64; 3],
    pub(super) errors: u64,
    pub(super) bytes: u64,
    /// Medians: the whole, to submit, in the kernel or on a lane, to resume.
    pub(super) times: [u64; 4],
}

impl Operation {
    /// Its time from the start to the submission, from there to the completion, and from there to its end,
    /// as far as it was submitted and these are known.
    fn parts(&self) -> [Option<u64>; 3] {
        let (Some(first), Some(last)) = (self.inner.first(), self.inner.last()) else {
            return [None; 3];
        };
        let sum =
            self.inner.iter().map(|inner| Some(inner.end? - inner.begin)).sum::<Option<u64>>();
        let resumed = self.end.and_then(|end| Some(end - last.end?));
        [sum.map(|_| first.begin - self.begin), sum, resumed]
    }

    pub(super) fn moved(&self) -> i64 {
        self.result.filter(|_| self.end.is_some()).unwrap_or(0)
    }

    pub(super) fn is_on_lane(&self) -> bool {
        self.end.is_some() && self.way == "lane"
    }
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    if times.is_empty() { 0 } else { times[times.len() / 2] }
}

pub(super) fn kinds(truth: &Truth) -> Vec<Kind> {
    let all: Vec<&Operation> = truth.threads.iter().flat_map(|thread| &thread.operations).collect();
    let mut names: Vec<&'static str> = all.iter().map(|operation| operation.kind).collect();
    names.sort_unstable();
    names.dedup();
    let kind = |name| {
        let its: Vec<&&Operation> = all.iter().filter(|operation| operation.kind == name).collect();
        let count =
            |counts: &dyn Fn(&Operation) -> bool| its.iter().filter(|it| counts(it)).count() as u64;
        let ways = ["plain call", "queue", "lane"]
            .map(|way| count(&|it| it.end.is_some() && it.way == way));
        let has_bytes = ["read", "write", "copy", "send", "recv", "send_file"].contains(&name);
        let moved = its.iter().map(|it| it.moved()).filter(|&moved| has_bytes && moved > 0);
        let part = |index: usize| median(its.iter().filter_map(|it| it.parts()[index]).collect());
        let whole = median(its.iter().filter_map(|it| Some(it.end? - it.begin)).collect());
        Kind {
            name,
            count: its.len() as u64,
            ways,
            errors: count(&|it| it.moved() < 0),
            bytes: moved.fold(0, |sum: u64, moved| sum.saturating_add(moved as u64)),
            times: [whole, part(0), part(1), part(2)],
        }
    };
    let mut kinds: Vec<Kind> = names.into_iter().map(kind).collect();
    kinds.sort_by_key(|kind| Reverse(kind.count));
    kinds
}

/// The contents of a thread's line.
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) computing: u64,
    pub(super) in_flight: u64,
    pub(super) overlap: u64,
    pub(super) mean: f64,
}

/// Returns the figures of a thread, if it has operations or tasks.
pub(super) fn figures(thread: &Thread) -> Option<Figures> {
    let is_run = |slice: &&Slice| slice.name == "task runs" && slice.category == "task";
    if thread.operations.is_empty() && !thread.slices.iter().any(|slice| is_run(&slice)) {
        return None;
    }
    // The changes of three counts: tasks that run, system calls, operations in flight.
    let mut changes: Vec<(u64, usize, i64)> = Vec::new();
    let mut sum = 0;
    let mut add = |of, begin, end| {
        if let Some(end) = end {
            changes.extend([(begin, of, 1), (end, of, -1)]);
        }
    };
    for slice in &thread.slices {
        if is_run(&slice) {
            add(0, slice.begin, slice.end);
        } else if slice.category == "system call" {
            add(1, slice.begin, slice.end);
        }
    }
    for inner in thread.operations.iter().flat_map(|operation| &operation.inner) {
        add(2, inner.begin, inner.end);
        sum += inner.end.map_or(0, |end| end - inner.begin);
    }
    changes.sort_unstable();
    let (mut counts, mut last) = ([0; 3], 0);
    let (mut computing, mut in_flight, mut overlap) = (0, 0, 0);
    for (time, of, change) in changes {
        let step = time - last;
        let (computes, waits) = (counts[0] > 0 && counts[1] == 0, counts[2] > 0);
        computing += if computes { step } else { 0 };
        in_flight += if waits { step } else { 0 };
        overlap += if computes && waits { step } else { 0 };
        (counts[of], last) = (counts[of] + change, time);
    }
    let mean = sum as f64 / in_flight.max(1) as f64;
    Some(Figures { name: thread.name(), computing, in_flight, overlap, mean })
}

impl Thread {
    pub(super) fn name(&self) -> String {
        format!("thread <{}>", self.index)
    }
}

pub(super) fn argument<'a>(slice: &'a Slice, name: &str) -> Option<&'a Value> {
    slice.arguments.iter().find(|(its, _)| its == name).map(|(_, value)| value)
}

fn task_of(run: &Slice) -> i64 {
    match argument(run, "task") {
        Some(Value::Number(task)) => *task,
        _ => unreachable!("each run has its task"),
    }
}

/// Returns the lines of the longest stretches.
fn turns(truth: &Truth) -> Vec<String> {
    let mut found = Vec::new();
    for thread in &truth.threads {
        let of =
            |name| thread.slices.iter().filter(move |it| it.name == name && it.category != "span");
        let turns: Vec<&Slice> = of("turn").collect();
        let mut runs: Vec<&Slice> = of("task runs").collect();
        runs.sort_by_key(|run| run.begin);
        for pair in turns.windows(2) {
            let Some(begin) = pair[0].end else { continue };
            let end = pair[1].begin;
            let mut longest: Option<&Slice> = None;
            for run in runs.iter().filter(|run| begin <= run.begin && run.begin < end) {
                if longest.is_none_or(|longest| run.duration() >= longest.duration()) {
                    longest = Some(run);
                }
            }
            let task = longest.map_or(": no task ran".into(), |run| {
                let place = place(truth, task_of(run));
                let ran = time(run.duration().unwrap_or(0));
                format!(": task {} of {place} ran for {ran}", task_of(run))
            });
            let at = time(begin - truth.first());
            let duration = end.saturating_sub(begin);
            found
                .push((duration, format!("{} at {at} on {}{task}", time(duration), thread.name())));
        }
    }
    found.sort_by_key(|(duration, _)| Reverse(*duration));
    found.into_iter().map(|(_, line)| line).take(10).collect()
}

/// Returns the place at which a task was spawned last, in the order of the threads.
fn place(truth: &Truth, task: i64) -> String {
    let moments = truth.threads.iter().flat_map(|thread| &thread.moments);
    let its = moments.filter(|it| it.category == "task").filter(|it| task_of(it) == task);
    let mut places = its.filter_map(|spawned| match argument(spawned, "place") {
        Some(Value::Text(place)) => Some(place.clone()),
        _ => None,
    });
    places.next_back().unwrap_or_else(|| "an unknown place".into())
}
