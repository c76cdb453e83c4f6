//! The notable findings in a trace, as sentences.

use std::collections::{BTreeMap, HashMap};

use super::show::{bytes, percent, time};
use super::{Operation, Summary, Workers};
use crate::encode::category;
use crate::read::{Slice, Trace};
use crate::{handed_over, sample};

/// The reason why an operation goes to a lane if the driver gave none: there is no ring.
const EPOLL: &str = "epoll does no files";

impl Summary {
    /// Collects the findings, the most important first.
    pub(super) fn find(&mut self, trace: &Trace, operations: &[Vec<Operation<'_>>]) {
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

    /// Finds reads that ask for many more bytes than they get.
    fn find_large_buffers(&mut self, operations: &[Vec<Operation<'_>>]) {
        let reads = operations.iter().flatten().filter(|operation| operation.whole.name == "read");
        let got: Vec<(i64, i64)> = reads
            .map(|read| (read.whole.number("bytes").unwrap_or(0), read.result()))
            .filter(|(_, result)| *result > 0)
            .collect();
        let mut wasteful: Vec<_> = got
            .iter()
            .filter(|(asked, result)| *asked >= 65_536 && *result <= *asked / 8)
            .collect();
        if wasteful.len() < 16 || wasteful.len() * 2 < got.len() {
            return;
        }
        wasteful.sort();
        let (asked, result) = wasteful[wasteful.len() / 2];
        self.findings.push(format!(
            "Large buffers for small files: {} of {} reads asked for {} and got {}. Begin with a small \
             buffer, or take one from a pool.",
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
        let faults = number(last, sample::FAULTS).saturating_sub(number(first, sample::FAULTS));
        let moved = |it: &&Operation<'_>| it.is_transfer() && it.result() > 0;
        let transfers = operations.iter().flatten().filter(moved).count() as i64;
        if faults < 2000 || faults / 2 < transfers {
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

    /// Finds files that one task reads and writes alternately.
    fn find_one_in_flight(&mut self, operations: &[Vec<Operation<'_>>]) {
        let (mut files, mut serial, mut waited) = (0, 0, 0);
        for its in operations {
            for transfers in by_file(its) {
                if transfers.len() < 2 {
                    continue;
                }
                // Plain calls of the thread itself can only follow each other. That is a fault of the program
                // if one task reads and writes alternately, so that nothing can overlap.
                let is_plain = transfers.iter().all(|transfer| transfer.inner.is_empty());
                if is_plain && !alternates(&transfers) {
                    continue;
                }
                files += 1;
                if !has_overlap(&transfers) {
                    serial += 1;
                    waited += usize::from(!is_plain);
                }
            }
        }
        if files < 8 || serial * 10 < files * 8 {
            return;
        }
        let end = if waited * 2 > serial {
            let in_flight = self.threads.iter();
            let waiting: u64 = in_flight.map(|it| it.in_flight.saturating_sub(it.overlap)).sum();
            let share =
                percent(waiting, self.duration.saturating_mul(self.threads.len().max(1) as u64));
            format!(
                "for {share} of the time the threads had operations in the kernel and computed nothing. Read \
                 the next block while one is written, copy within the kernel (`fs::copy`, `io::copy`), or \
                 work on more files at a time."
            )
        } else {
            "the threads made the calls themselves, since nothing had to wait. Copy within the kernel \
             (`fs::copy`), or by `io::copy`, which reads ahead where that helps, and use more threads."
                .into()
        };
        self.findings.push(format!(
            "One operation in flight per file: {serial} of {files} files never had two reads or writes in \
             flight at a time, and {end}"
        ));
    }

    fn find_lanes(&mut self, operations: &[Vec<Operation<'_>>]) {
        for kind in &self.kinds {
            if kind.lane < 16 || kind.lane * 10 < kind.count {
                continue;
            }
            let is_on_lane = |it: &&Operation<'_>| {
                it.whole.name == kind.name && it.whole.text("way") == Some(crate::encode::way::LANE)
            };
            let on_lanes = || operations.iter().flatten().filter(is_on_lane);
            let reasons = by_count(on_lanes().map(|it| it.reason.unwrap_or(EPOLL)));
            let file_systems = by_count(on_lanes().filter_map(|it| it.file_system));
            let place = match &file_systems[..] {
                [] => String::new(),
                [(one, _)] => format!(" ({one})"),
                many => {
                    let share = |(name, count): &(&str, u64)| {
                        format!("{name} {}", percent(*count, kind.lane))
                    };
                    format!(" ({})", many.iter().map(share).collect::<Vec<_>>().join(", "))
                }
            };
            let reason = reasons.first().map_or("for an unknown reason", |(reason, _)| reason);
            self.findings.push(format!(
                "{} of {} went to lane threads: {reason}{place}. {}",
                percent(kind.lane, kind.count),
                plural(&kind.name),
                lane_advice(reason),
            ));
        }
    }

    fn find_workers(&mut self, trace: &Trace) {
        self.workers = workers(trace);
        let advice = self.worker_advice();
        let finding = match &self.workers {
            Workers::Counted(operations) if !operations.is_empty() => {
                let sum =
                    operations.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
                let list: Vec<String> =
                    operations.iter().map(|(name, count)| format!("{name} {count}")).collect();
                format!(
                    "The ring's kernel handed {sum} operations to worker threads (counted by its \
                     tracepoint: {}), since they could not be done at once. That costs two thread switches \
                     each. {advice}",
                    list.join(", ")
                )
            }
            Workers::Inferred(count) if *count > 0 => format!(
                "The ring's kernel had up to {count} worker threads (inferred from threads named \
                 `iou-wrk`): operations that could not be done at once were handed to them, which costs two \
                 thread switches each. {advice}"
            ),
            _ => return,
        };
        self.findings.push(finding);
    }

    /// Says what to do against workers, by the operations that they got. If these are only inferred, by all
    /// that went through the queue.
    fn worker_advice(&self) -> String {
        let queued = || self.kinds.iter().filter(|kind| kind.queue > 0).map(|kind| &kind.name);
        let names: Vec<String> = match &self.workers {
            Workers::Counted(operations) => {
                operations.iter().map(|(name, _)| name.to_lowercase()).collect()
            }
            Workers::Inferred(_) => queued().cloned().collect(),
        };
        let has =
            |words: &[&str]| names.iter().any(|name| words.iter().any(|it| name.contains(it)));
        let mut advice = Vec::new();
        if has(&["sync"]) {
            advice.push("Let writers share a sync, by `GroupCommit`.");
        }
        if has(&["read", "write"]) {
            advice.push("Ask for larger blocks, or use direct I/O, which needs no worker.");
        }
        if advice.is_empty() {
            advice.push(
                "Have fewer of them under way at a time, or make many in one `spawn_blocking`, by plain \
                 calls.",
            );
        }
        advice.join(" ")
    }

    fn find_delays(&mut self) {
        let mut findings = Vec::new();
        for kind in self.kinds.iter().filter(|kind| kind.queue >= 16) {
            if kind.scheduling / 2 > kind.kernel && kind.scheduling > 50_000 {
                findings.push(format!(
                    "Results of \"{}\" waited {} for their task (median), longer than the {} in the \
                     kernel: the thread computes for long between two turns. Break long computations by \
                     `yield_now`, or leave them to `spawn_blocking`.",
                    kind.name,
                    time(kind.scheduling),
                    time(kind.kernel)
                ));
            }
            if kind.submit / 2 > kind.kernel && kind.submit > 50_000 {
                findings.push(format!(
                    "Operations \"{}\" waited {} before they were submitted (median), longer than the {} \
                     in the kernel: the thread computes for long after it started them. Call `yield_now` \
                     before a long computation, or leave it to `spawn_blocking`.",
                    kind.name,
                    time(kind.submit),
                    time(kind.kernel)
                ));
            }
        }
        self.findings.append(&mut findings);
    }
}

/// Says what to do about operations that go to lanes for this reason.
fn lane_advice(reason: &str) -> &'static str {
    match reason {
        EPOLL => "`sakia doctor` says why there is no ring, which needs no threads for them.",
        _ if reason.contains("network") => {
            "Each waits for the server: transfer larger blocks, and have more of them under way."
        }
        _ if reason.contains("without bound") => {
            "Each keeps a thread until it ends: have few of them under way at a time."
        }
        _ => "Each costs two thread switches: make fewer and larger ones.",
    }
}

/// The kernel's worker threads: of its tracepoint, if the recording has that.
fn workers(trace: &Trace) -> Workers {
    let mut moments = trace.tracks.iter().flat_map(|track| &track.instants);
    if let Some(counted) = moments.find(|moment| moment.is(category::RECORDING, handed_over::NAME))
    {
        let arguments = counted.arguments.iter();
        let mut operations: Vec<(String, u64)> = arguments
            .filter_map(|(name, _)| Some((name.clone(), counted.number(name)?.max(0) as u64)))
            .collect();
        operations.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        return Workers::Counted(operations);
    }
    let most = samples(trace).filter_map(|sample| sample.number(sample::WORKERS)).max();
    Workers::Inferred(most.unwrap_or(0).max(0) as u64)
}

/// Counts the texts, the most frequent first.
fn by_count<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<(&'a str, u64)> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    texts.for_each(|text| *counts.entry(text).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn samples(trace: &Trace) -> impl Iterator<Item = &Slice> {
    let moments = trace.tracks.iter().flat_map(|track| &track.instants);
    moments.filter(|moment| moment.is(category::RECORDING, sample::NAME))
}

/// Groups the transfers that moved bytes by file, from its opening to its close, since descriptor numbers are
/// reused. The writes of a file's copy are in its group if the same task writes it.
fn by_file<'a>(operations: &'a [Operation<'a>]) -> Vec<Vec<&'a Operation<'a>>> {
    let mut files: Vec<Vec<&Operation<'_>>> = Vec::new();
    let mut open: HashMap<i64, usize> = HashMap::new();
    // By task, the file that it has read last.
    let mut source_of: HashMap<Option<i64>, usize> = HashMap::new();
    for operation in operations {
        match operation.whole.name.as_str() {
            "open" => {
                open.remove(&operation.result());
                source_of.remove(&operation.whole.number("task"));
            }
            "close" => {
                open.remove(&operation.whole.number("descriptor").unwrap_or(-1));
            }
            _ if operation.is_transfer() => {
                if operation.result() <= 0 {
                    continue; // the read that finds the end
                }
                let task = operation.whole.number("task");
                let fd = operation.whole.number("descriptor").unwrap_or(-1);
                // A task's writes after it has read a file are attributed to that file.
                let source = source_of.get(&task).filter(|_| operation.whole.name == "write");
                let index = match source {
                    Some(index) => *index,
                    None => *open.entry(fd).or_insert_with(|| {
                        files.push(Vec::new());
                        files.len() - 1
                    }),
                };
                if operation.whole.name == "read" {
                    source_of.insert(task, index);
                }
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

/// Returns whether there are both reads and writes, all of one task.
fn alternates(operations: &[&Operation<'_>]) -> bool {
    let task = |operation: &&Operation<'_>| operation.whole.number("task");
    let has = |name| operations.iter().any(|operation| operation.whole.name == name);
    has("read")
        && has("write")
        && operations.iter().all(|operation| task(operation) == task(&operations[0]))
}

/// Returns the plural of a kind, for a sentence.
fn plural(kind: &str) -> String {
    match kind {
        "read" | "write" | "open" | "close" | "list" | "send" | "rename" | "link" => {
            format!("{kind}s")
        }
        "copy" => "copies".into(),
        _ => format!("the operations \"{kind}\""),
    }
}
