//! A summary as text.

use std::fmt;

use super::Summary;

pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

pub(super) fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.2} s", nanoseconds as f64 / 1e9),
    }
}

pub(super) fn bytes(count: u64) -> String {
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
            let sum = self.calls.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
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
