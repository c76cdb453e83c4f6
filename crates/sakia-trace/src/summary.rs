//! A trace in words: how operations were done, where their time went, and what stands out.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::read::{Slice, Trace, Track};
use crate::sample;

/// Turns that are listed.
const LONGEST: usize = 10;

/// The findings of a trace, to be printed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The program.
    pub process: String,
    /// Nanoseconds from the first event to the last.
    pub duration: u64,
    /// The file ends early.
    pub is_truncated: bool,
    /// Events that found their buffer full.
    pub lost: u64,
    /// Operations by kind, the most frequent first.
    pub kinds: Vec<KindSummary>,
    /// System calls by name with their number, the most frequent first.
    pub calls: Vec<(String, u64)>,
    /// Threads with operations or tasks.
    pub threads: Vec<ThreadSummary>,
    /// The longest stretches in which a thread did not look for completions.
    pub turns: Vec<LongTurn>,
    /// Sentences about what stands out, the weightiest first.
    pub findings: Vec<String>,
}

/// The operations of one kind. Times are medians in nanoseconds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindSummary {
    /// The kind: "read".
    pub name: String,
    /// Operations.
    pub count: u64,
    /// Of these, those done by a plain call on their own thread.
    pub plain: u64,
    /// By the ring's or epoll's queue.
    pub queue: u64,
    /// By a lane's thread.
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
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadSummary {
    /// Its name.
    pub name: String,
    /// Nanoseconds in which its tasks ran, system calls excluded.
    pub computing: u64,
    /// Nanoseconds in which it had an operation in the kernel or on a lane.
    pub in_flight: u64,
    /// Nanoseconds in which both was so.
    pub overlap: u64,
    /// Operations in flight on average while there were any.
    pub mean_in_flight: f64,
}

/// A stretch between two turns of a driver.
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
    inner: Option<&'a Slice>,
    reason: Option<&'a str>,
}

impl Operation<'_> {
    fn is_transfer(&self) -> bool {
        matches!(self.whole.name.as_str(), "read" | "write" | "copy")
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
        summary.duration = last - first;
        let moments = || trace.tracks.iter().flat_map(|track| &track.instants);
        let lost = moments().filter(|moment| moment.name == "events lost");
        summary.lost = lost.filter_map(|moment| moment.number("count")).sum::<i64>() as u64;
        let places: HashMap<i64, &str> = moments()
            .filter(|moment| moment.name == "task spawned")
            .filter_map(|moment| Some((moment.number("task")?, moment.text("place")?)))
            .collect();

        let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
        let mut operations = Vec::new();
        for thread in trace.tracks.iter().filter(|track| track.tid.is_some()) {
            for call in thread.slices.iter().filter(|slice| slice.category == "system call") {
                *calls.entry(&call.name).or_default() += 1;
            }
            let its = operations_of(trace, thread);
            if !its.is_empty() || thread.slices.iter().any(|slice| slice.name == "task runs") {
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

    fn find(&mut self, trace: &Trace, operations: &[Vec<Operation<'_>>]) {
        if self.lost > 0 {
            self.findings.push(format!(
                "{} events were lost: the buffers were full. Larger ones: {}=1000000.",
                self.lost,
                crate::EVENTS_VARIABLE
            ));
        }
        self.find_large_buffers(operations);
        self.find_page_faults(trace, operations);
        self.find_one_in_flight(operations);
        self.find_lanes(operations);
        self.find_workers(trace);
        self.find_delays();
    }

    /// Reads that ask for much more than there is.
    fn find_large_buffers(&mut self, operations: &[Vec<Operation<'_>>]) {
        let reads = operations.iter().flatten().filter(|operation| operation.whole.name == "read");
        let got: Vec<(i64, i64)> = reads
            .map(|read| (read.whole.number("bytes").unwrap_or(0), read.result()))
            .filter(|(_, result)| *result > 0)
            .collect();
        let mut wasteful: Vec<_> =
            got.iter().filter(|(asked, result)| *asked >= 65_536 && result * 8 <= *asked).collect();
        if wasteful.len() < 16 || wasteful.len() * 2 < got.len() {
            return;
        }
        wasteful.sort();
        let (asked, result) = wasteful[wasteful.len() / 2];
        self.findings.push(format!(
            "Buffers are much larger than what is read: {} of {} reads asked for {} and got {}. Begin with \
             a small buffer, or take one from a pool, for small files.",
            wasteful.len(),
            got.len(),
            bytes(*asked as u64),
            bytes(*result as u64),
        ));
    }

    fn find_page_faults(&mut self, trace: &Trace, operations: &[Vec<Operation<'_>>]) {
        let samples: Vec<&Slice> = samples(trace).collect();
        let [first, .., last] = &samples[..] else { return };
        let number = |sample: &Slice, name| sample.number(name).unwrap_or(0);
        let faults = number(last, sample::FAULTS) - number(first, sample::FAULTS);
        let transfers =
            operations.iter().flatten().filter(|operation| operation.is_transfer()).count() as i64;
        if faults < 2000 || faults < 2 * transfers {
            return;
        }
        let of_each = if transfers > 0 {
            format!(", {:.1} per read or write", faults as f64 / transfers as f64)
        } else {
            String::new()
        };
        self.findings.push(format!(
            "{faults} page faults{of_each}: memory is used for the first time again and again. Keep \
             buffers and use them again instead of allocating one per file."
        ));
    }

    /// Files of which each read waits for the write before it.
    fn find_one_in_flight(&mut self, operations: &[Vec<Operation<'_>>]) {
        let (mut files, mut serial) = (0, 0);
        for its in operations {
            for transfers in by_file(its) {
                if transfers.len() < 2 {
                    continue;
                }
                files += 1;
                serial += usize::from(!has_overlap(&transfers));
            }
        }
        if files < 8 || serial * 10 < files * 8 {
            return;
        }
        let waiting =
            self.threads.iter().map(|thread| thread.in_flight - thread.overlap).sum::<u64>();
        let share = percent(waiting, self.duration * self.threads.len().max(1) as u64);
        self.findings.push(format!(
            "One operation in flight per file: {serial} of {files} files never had two reads or writes in \
             flight at a time, and for {share} of the time the threads had operations in the kernel and \
             computed nothing. Read the next block while one is written, copy within the kernel \
             (`fs::copy`, `io::copy`), or work on more files at a time."
        ));
    }

    fn find_lanes(&mut self, operations: &[Vec<Operation<'_>>]) {
        for kind in &self.kinds {
            if kind.lane < 16 || kind.lane * 10 < kind.count {
                continue;
            }
            let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
            for operation in operations.iter().flatten().filter(|it| it.whole.name == kind.name) {
                *reasons.entry(operation.reason.unwrap_or("epoll does no files")).or_default() +=
                    u64::from(operation.whole.text("way") == Some(crate::encode::way::LANE));
            }
            let reason = reasons.into_iter().max_by_key(|(_, count)| *count);
            self.findings.push(format!(
                "{} of the operations \"{}\" went to lane threads: {}.",
                percent(kind.lane, kind.count),
                kind.name,
                reason.map_or("for an unknown reason", |(reason, _)| reason)
            ));
        }
    }

    fn find_workers(&mut self, trace: &Trace) {
        let workers = samples(trace).filter_map(|sample| sample.number(sample::WORKERS)).max();
        if let Some(workers) = workers.filter(|workers| *workers > 0) {
            self.findings.push(format!(
                "The ring's kernel had up to {workers} worker threads (inferred from threads named \
                 `iou-wrk`): operations that could not be done at once were handed to them, which costs \
                 two thread switches each."
            ));
        }
    }

    fn find_delays(&mut self) {
        let mut findings = Vec::new();
        for kind in self.kinds.iter().filter(|kind| kind.queue >= 16) {
            if kind.scheduling > 2 * kind.kernel && kind.scheduling > 50_000 {
                findings.push(format!(
                    "Results of \"{}\" waited {} for their task (median), longer than the {} in the \
                     kernel: the thread computes for long between two turns.",
                    kind.name,
                    time(kind.scheduling),
                    time(kind.kernel)
                ));
            }
            if kind.submit > 2 * kind.kernel && kind.submit > 50_000 {
                findings.push(format!(
                    "Operations \"{}\" waited {} before they were submitted (median), longer than the {} \
                     in the kernel: the thread computes for long after it started them.",
                    kind.name,
                    time(kind.submit),
                    time(kind.kernel)
                ));
            }
        }
        self.findings.append(&mut findings);
    }
}

fn samples(trace: &Trace) -> impl Iterator<Item = &Slice> {
    let moments = trace.tracks.iter().flat_map(|track| &track.instants);
    moments.filter(|moment| moment.name == sample::NAME)
}

fn operations_of<'a>(trace: &'a Trace, thread: &Track) -> Vec<Operation<'a>> {
    let mut operations = Vec::new();
    for track in
        trace.tracks.iter().filter(|track| track.parent == thread.uuid && track.tid.is_none())
    {
        let mut inner = None;
        // A slice stands behind those within it.
        for slice in &track.slices {
            if slice.depth > 0 {
                inner = Some(slice);
                continue;
            }
            let inner: Option<&Slice> = inner.take();
            let reason = inner.and_then(|inner| inner.text("reason"));
            operations.push(Operation { whole: slice, inner, reason });
        }
    }
    operations.sort_by_key(|operation| operation.whole.begin);
    operations
}

/// The transfers of each file, from its opening to its end: a descriptor's number is used again.
fn by_file<'a>(operations: &'a [Operation<'a>]) -> Vec<Vec<&'a Operation<'a>>> {
    let mut files: Vec<Vec<&Operation<'_>>> = Vec::new();
    let mut open: HashMap<i64, usize> = HashMap::new();
    for operation in operations {
        match operation.whole.name.as_str() {
            "open" => {
                open.remove(&operation.result());
            }
            "close" => {
                open.remove(&operation.whole.number("descriptor").unwrap_or(-1));
            }
            _ if operation.is_transfer() => {
                let fd = operation.whole.number("descriptor").unwrap_or(-1);
                let index = *open.entry(fd).or_insert_with(|| {
                    files.push(Vec::new());
                    files.len() - 1
                });
                files[index].push(operation);
            }
            _ => {}
        }
    }
    files
}

fn has_overlap(operations: &[&Operation<'_>]) -> bool {
    let mut end = 0;
    operations.iter().any(|operation| {
        let overlaps = operation.whole.begin < end;
        end = end.max(operation.whole.end.unwrap_or(u64::MAX));
        overlaps
    })
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
            kind.bytes += operation.result().max(0) as u64;
        }
        times[0].extend(whole.duration());
        if let Some((begin, end)) =
            operation.inner.and_then(|inner| Some((inner.begin, inner.end?)))
        {
            times[1].push(begin.saturating_sub(whole.begin));
            times[2].push(end - begin);
            times[3].extend(whole.end.map(|whole| whole.saturating_sub(end)));
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
    let running = spans(&|slice| slice.name == "task runs");
    let calls = spans(&|slice| slice.category == "system call");
    let inner: Vec<Span> = operations
        .iter()
        .filter_map(|operation| operation.inner)
        .filter_map(|inner| Some((inner.begin, inner.end?)))
        .collect();
    let sum: u64 = inner.iter().map(|(begin, end)| end - begin).sum();
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

/// The stretches between the end of a turn and the beginning of the next one.
fn turns(thread: &Track, first: u64, places: &HashMap<i64, &str>) -> Vec<LongTurn> {
    let turns: Vec<&Slice> = thread.slices.iter().filter(|slice| slice.name == "turn").collect();
    let mut runs: Vec<&Slice> =
        thread.slices.iter().filter(|slice| slice.name == "task runs").collect();
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
        let end = turn.begin + turn.duration;
        let from = runs.partition_point(|run| run.begin < turn.begin);
        let within = runs[from..].iter().take_while(|run| run.begin < end);
        if let Some(run) = within.max_by_key(|run| run.duration()) {
            let task = run.number("task").unwrap_or(0);
            let place = places.get(&task).copied().unwrap_or("an unknown place");
            turn.task = Some((task, place.into()));
            turn.task_ran = run.duration().unwrap_or(0);
        }
        turn.begin -= first;
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

/// Both are sorted, and none of one overlap.
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
    spans.iter().map(|(begin, end)| end - begin).sum()
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.2} s", nanoseconds as f64 / 1e9),
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{} KiB", count >> 10),
        _ => format!("{} MiB", count >> 20),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_truncated { ", cut short" } else { "" };
        writeln!(f, "{}: {}{end}", self.process, time(self.duration))?;
        if !self.findings.is_empty() {
            writeln!(f)?;
        }
        for finding in &self.findings {
            writeln!(f, "- {finding}")?;
        }
        if !self.kinds.is_empty() {
            writeln!(f)?;
            writeln!(
                f,
                "{:<12} {:>9} {:>7} {:>7} {:>7} {:>7} {:>9}  {:>9} {:>9} {:>9} {:>9}",
                "operation",
                "count",
                "plain",
                "queue",
                "lane",
                "errors",
                "bytes",
                "whole",
                "to submit",
                "kernel",
                "to resume"
            )?;
        }
        for kind in &self.kinds {
            let share = |part: u64| percent(part, kind.count);
            writeln!(
                f,
                "{:<12} {:>9} {:>7} {:>7} {:>7} {:>7} {:>9}  {:>9} {:>9} {:>9} {:>9}",
                kind.name,
                kind.count,
                share(kind.plain),
                share(kind.queue),
                share(kind.lane),
                kind.errors,
                bytes(kind.bytes),
                time(kind.whole),
                time(kind.submit),
                time(kind.kernel),
                time(kind.scheduling)
            )?;
        }
        if !self.threads.is_empty() {
            writeln!(f)?;
        }
        for thread in &self.threads {
            writeln!(
                f,
                "thread {}: computed for {}; operations in flight for {}, {:.1} on average; utilization {}",
                thread.name,
                time(thread.computing),
                time(thread.in_flight),
                thread.mean_in_flight,
                percent(thread.overlap, thread.in_flight)
            )?;
        }
        if !self.calls.is_empty() {
            let sum: u64 = self.calls.iter().map(|(_, count)| count).sum();
            let list: Vec<String> =
                self.calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(f, "\n{sum} system calls: {}", list.join(", "))?;
        }
        if !self.turns.is_empty() {
            writeln!(f, "\nlongest stretches between two turns of a driver")?;
        }
        for turn in &self.turns {
            write!(f, "{:>9} at {:>9} on {}", time(turn.duration), time(turn.begin), turn.thread)?;
            match &turn.task {
                Some((task, place)) => {
                    writeln!(f, ": task {task} of {place} ran for {}", time(turn.task_ran))?;
                }
                None => writeln!(f, ": no task ran")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_joined_cut_and_subtracted() {
        assert_eq!(union(vec![(5, 7), (1, 3), (2, 4), (7, 8)]), [(1, 4), (5, 8)]);
        assert_eq!(intersect(&[(1, 4), (5, 8)], &[(0, 2), (3, 6)]), [(1, 2), (3, 4), (5, 6)]);
        assert_eq!(subtract(&[(1, 4), (5, 8)], &[(0, 2), (3, 6)]), [(2, 3), (6, 8)]);
        assert_eq!(subtract(&[(0, 10)], &[(2, 3), (4, 5), (9, 20)]), [(0, 2), (3, 4), (5, 9)]);
        assert_eq!(subtract(&[(0, 10)], &[]), [(0, 10)]);
    }
}
