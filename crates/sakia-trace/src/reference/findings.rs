//! The findings of the summary, computed from the truth, simply.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::expected::{Figures, Kind, argument, by_count, bytes, counted, percent, time};
use super::program::HANDED_OVER;
use super::truth::{Operation, Thread, Truth};
use crate::read::Value;

/// Returns the findings, in their order.
pub(super) fn findings(
    truth: &Truth,
    kinds: &[Kind],
    threads: &[Figures],
    duration: u64,
) -> Vec<String> {
    let mut findings = Vec::new();
    if truth.lost > 0 {
        findings.push(format!(
            "{} events were lost: the buffers were full. Larger ones: SAKIA_TRACE_EVENTS=1000000.",
            truth.lost
        ));
    }
    findings.extend(large_buffers(truth));
    findings.extend(page_faults(truth));
    findings.extend(one_in_flight(truth, threads, duration));
    findings.extend(kinds.iter().filter_map(|kind| lanes(truth, kind)));
    findings.extend(workers(truth, kinds));
    for kind in kinds.iter().filter(|kind| kind.ways[1] >= 16) {
        let [_, submit, kernel, resume] = kind.times;
        let is_long = |wait: u64| wait > 50_000 && wait / 2 > kernel;
        if is_long(resume) {
            findings.push(format!(
                "Results of \"{}\" waited {} for their task (median), longer than the {} in the \
                 kernel: the thread computes for long between two turns. Break long computations by \
                 `yield_now`, or leave them to `spawn_blocking`.",
                kind.name,
                time(resume),
                time(kernel)
            ));
        }
        if is_long(submit) {
            findings.push(format!(
                "Operations \"{}\" waited {} before they were submitted (median), longer than the {} in the \
                 kernel: the thread computes for long after it started them. Call `yield_now` before a long \
                 computation, or leave it to `spawn_blocking`.",
                kind.name,
                time(submit),
                time(kernel)
            ));
        }
    }
    findings
}

fn operations(truth: &Truth) -> impl Iterator<Item = &Operation> {
    truth.threads.iter().flat_map(|thread| &thread.operations)
}

fn large_buffers(truth: &Truth) -> Option<String> {
    let got = operations(truth).filter(|it| it.kind == "read" && it.moved() > 0);
    let got: Vec<(i64, i64)> = got.map(|read| (read.bytes, read.moved())).collect();
    let mut wasteful = got.clone();
    wasteful.retain(|(asked, moved)| *asked >= 64 * 1024 && *moved <= asked / 8);
    if wasteful.len() < 16 || 2 * wasteful.len() < got.len() {
        return None;
    }
    wasteful.sort_unstable();
    let (asked, moved) = wasteful[wasteful.len() / 2];
    Some(format!(
        "Large buffers for small files: {} of {} reads asked for {} and got {}. Begin with a small \
         buffer, or take one from a pool.",
        wasteful.len(),
        got.len(),
        bytes(asked as u64),
        bytes(moved as u64)
    ))
}

/// Returns the numbers of this name in the samples of the process.
fn sampled(truth: &Truth, name: &str) -> Vec<i64> {
    let samples = truth.of_process.iter().filter(|moment| moment.name == "process");
    let numbers = samples.map(|sample| match argument(sample, name) {
        Some(Value::Number(number)) => *number,
        _ => unreachable!("each sample has all numbers"),
    });
    numbers.collect()
}

fn page_faults(truth: &Truth) -> Option<String> {
    let samples = sampled(truth, "page faults");
    if samples.len() < 2 {
        return None;
    }
    let faults = samples[samples.len() - 1] - samples[0];
    let is_transfer =
        |it: &&Operation| ["read", "write", "copy"].contains(&it.kind) && it.moved() > 0;
    let transfers = operations(truth).filter(is_transfer).count() as i64;
    if faults < 2000 || faults / 2 < transfers {
        return None;
    }
    let each = match transfers {
        0 => String::new(),
        _ => format!(", {:.1} per read or write", faults as f64 / transfers as f64),
    };
    Some(format!(
        "{faults} page faults{each}: memory is used for the first time again and again. Keep buffers and use \
         them again instead of allocating one per file."
    ))
}

/// Returns the transfers of each file. A file is known by its descriptor, from an opening to the close; what
/// a task writes after it has read a file is of that file, until the task opens another one.
fn files(thread: &Thread) -> Vec<Vec<&Operation>> {
    let mut files: Vec<Vec<&Operation>> = Vec::new();
    let (mut by_descriptor, mut read_by) = (BTreeMap::new(), BTreeMap::new());
    for operation in &thread.operations {
        match operation.kind {
            "open" => {
                by_descriptor.remove(&operation.moved());
                read_by.remove(&operation.task);
            }
            "close" => {
                by_descriptor.remove(&operation.fd);
            }
            "read" | "write" | "copy" if operation.moved() > 0 => {
                let is_write = operation.kind == "write";
                let source = read_by.get(&operation.task).copied().filter(|_| is_write);
                let file = source.unwrap_or_else(|| {
                    *by_descriptor.entry(operation.fd).or_insert_with(|| {
                        files.push(Vec::new());
                        files.len() - 1
                    })
                });
                if operation.kind == "read" {
                    read_by.insert(operation.task, file);
                }
                files[file].push(operation);
            }
            _ => {}
        }
    }
    files
}

fn one_in_flight(truth: &Truth, threads: &[Figures], duration: u64) -> Option<String> {
    let (mut counted, mut serial, mut waiting) = (0, 0, 0);
    for file in truth.threads.iter().flat_map(files).filter(|file| file.len() > 1) {
        let has = |kind| file.iter().any(|operation| operation.kind == kind);
        let is_plain = file.iter().all(|operation| operation.inner.is_empty());
        let of_one_task = file.iter().all(|operation| operation.task == file[0].task);
        if is_plain && !(has("read") && has("write") && of_one_task) {
            continue;
        }
        counted += 1;
        let overlaps = (0..file.len()).any(|later| {
            file[..later]
                .iter()
                .any(|earlier| earlier.end.is_none_or(|end| file[later].begin < end))
        });
        if !overlaps {
            serial += 1;
            waiting += usize::from(!is_plain);
        }
    }
    if counted < 8 || (serial as f64) < 0.8 * counted as f64 {
        return None;
    }
    let end = if waiting > serial - waiting {
        let idle: u64 = threads.iter().map(|thread| thread.in_flight - thread.overlap).sum();
        format!(
            "for {} of the time the threads had operations in the kernel and computed nothing. Read the next \
             block while one is written, copy within the kernel (`fs::copy`, `io::copy`), or work on more \
             files at a time.",
            percent(idle, duration * threads.len() as u64)
        )
    } else {
        "the threads made the calls themselves, since nothing had to wait. Copy within the kernel \
         (`fs::copy`), or by `io::copy`, which reads ahead where that helps, and use more threads."
            .into()
    };
    Some(format!(
        "One operation in flight per file: {serial} of {counted} files never had two reads or writes in \
         flight at a time, and {end}"
    ))
}

fn lanes(truth: &Truth, kind: &Kind) -> Option<String> {
    let lane = kind.ways[2];
    if lane < 16 || 10 * lane < kind.count {
        return None;
    }
    let its = || operations(truth).filter(|it| it.kind == kind.name && it.is_on_lane());
    let said = |index: usize| {
        its().filter_map(move |it| it.inner.iter().rev().find_map(|inner| Some(inner.lane?[index])))
    };
    let reason = by_count(said(0).map(|it| if it.is_empty() { "epoll does no files" } else { it }));
    let places = by_count(said(1).filter(|it| !it.is_empty()));
    let place = match &places[..] {
        [] => String::new(),
        [(one, _)] => format!(" ({one})"),
        many => {
            let each = many.iter().map(|(name, count)| format!("{name} {}", percent(*count, lane)));
            format!(" ({})", each.collect::<Vec<_>>().join(", "))
        }
    };
    let reason = reason[0].0.as_str();
    let advice = match reason {
        "epoll does no files" => {
            "`sakia doctor` says why there is no ring, which needs no threads for them."
        }
        "on a network or FUSE file system" => {
            "Each waits for the server: transfer larger blocks, and have more of them under way."
        }
        "may wait without bound" => {
            "Each keeps a thread until it ends: have few of them under way at a time."
        }
        _ => "Each costs two thread switches: make fewer and larger ones.",
    };
    let plural = match kind.name {
        "read" | "write" | "open" | "close" | "list" | "send" => format!("{}s", kind.name),
        "copy" => "copies".into(),
        other => format!("the operations \"{other}\""),
    };
    Some(format!(
        "{} of {plural} went to lane threads: {reason}{place}. {advice}",
        percent(lane, kind.count)
    ))
}

/// Returns what the tracepoint counted, the most frequent first.
pub(super) fn handed_over(truth: &Truth) -> Option<Vec<(String, u64)>> {
    let counts = truth.handed_over?;
    let mut counts: Vec<(String, u64)> = HANDED_OVER
        .iter()
        .zip(counts)
        .filter(|it| it.1 > 0)
        .map(|(name, it)| ((*name).into(), it))
        .collect();
    counts.sort_by_key(|(name, count)| (Reverse(*count), name.clone()));
    Some(counts)
}

/// Returns the most workers of the samples.
pub(super) fn most_workers(truth: &Truth) -> u64 {
    sampled(truth, "kernel workers").into_iter().max().unwrap_or(0) as u64
}

fn workers(truth: &Truth, kinds: &[Kind]) -> Option<String> {
    let (begin, names) = match handed_over(truth) {
        Some(counts) => {
            let sum: u64 = counts.iter().map(|it| it.1).sum();
            if sum == 0 {
                return None;
            }
            let begin = format!(
                "The ring's kernel handed {sum} operations to worker threads (counted by its \
                 tracepoint: {}), since they could not be done at once. That costs two thread switches each.",
                counted(&counts)
            );
            (begin, counts.into_iter().map(|it| it.0.to_lowercase()).collect::<Vec<_>>())
        }
        None => {
            let most = most_workers(truth);
            if most == 0 {
                return None;
            }
            let begin = format!(
                "The ring's kernel had up to {most} worker threads (inferred from threads named `iou-wrk`): \
                 operations that could not be done at once were handed to them, which costs two thread \
                 switches each."
            );
            let queued = kinds.iter().filter(|kind| kind.ways[1] > 0);
            (begin, queued.map(|kind| kind.name.into()).collect())
        }
    };
    let has = |word: &str| names.iter().any(|name| name.contains(word));
    let mut advice = String::new();
    if has("sync") {
        advice += " Let writers share a sync, by `GroupCommit`.";
    }
    if has("read") || has("write") {
        advice += " Ask for larger blocks, or use direct I/O, which needs no worker.";
    }
    if advice.is_empty() {
        advice += " Have fewer of them under way at a time, or make many in one `spawn_blocking`, by plain \
                    calls.";
    }
    Some(begin + &advice)
}
