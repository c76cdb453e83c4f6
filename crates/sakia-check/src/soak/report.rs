//! The output of the soak.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::load::Counts;
use super::process::Snapshot;
use super::worker::State;

/// The state of the process at one moment, and the counts so far.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename = "sample")]
pub struct Sample {
    /// Seconds since the load began.
    pub elapsed_s: f64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads, without the kernel's workers.
    pub threads: usize,
    /// The kernel's workers.
    pub io_workers: usize,
    /// Child processes.
    pub children: usize,
    /// Bytes allocated, the minimum since the last sample; 0 unless the program counts them.
    pub heap_bytes: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Locked memory in bytes.
    pub locked_bytes: u64,
    /// Steps that ended or were dropped.
    pub steps: u64,
    /// Futures dropped before they were done.
    pub dropped: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// The state of the workers' runtimes, with their counters.
    runtimes: Vec<State>,
}

impl Sample {
    /// # Errors
    /// There is no `/proc`.
    pub(super) fn new(
        elapsed: Duration,
        counts: &Counts,
        runtimes: Vec<State>,
        heap_bytes: u64,
    ) -> anyhow::Result<Self> {
        let process = Snapshot::take()?;
        Ok(Self {
            elapsed_s: elapsed.as_secs_f64(),
            descriptors: process.descriptor_count(),
            threads: process.thread_count(),
            io_workers: process.io_workers,
            children: process.children,
            heap_bytes,
            rss_bytes: process.rss_bytes,
            locked_bytes: process.locked_bytes,
            steps: counts.steps.load(Ordering::Relaxed),
            dropped: counts.dropped.load(Ordering::Relaxed),
            verified_bytes: counts.verified_bytes.load(Ordering::Relaxed),
            runtimes,
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live: u32 = self.runtimes.iter().map(|runtime| runtime.live_operations).sum();
        let in_flight: u32 = self.runtimes.iter().map(|runtime| runtime.in_flight).sum();
        let started: Option<u64> =
            self.runtimes.iter().map(|runtime| runtime.counters.get("started").copied()).sum();
        write!(
            f,
            "{:>6.0} s  {:>8} steps  {:>8} dropped  {:>7} MiB verified  {:>9} ops  {:>3} live  {:>3} in \
             flight  {:>3} fds  {:>3} threads  {:>2} io-wq  {:>5.1} MiB resident  {:>5.2} allocated",
            self.elapsed_s,
            self.steps,
            self.dropped,
            self.verified_bytes >> 20,
            started.unwrap_or_default(),
            live,
            in_flight,
            self.descriptors,
            self.threads,
            self.io_workers,
            self.rss_bytes as f64 / f64::from(1 << 20),
            self.heap_bytes as f64 / f64::from(1 << 20),
        )
    }
}

/// The summary of a successful soak.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename = "summary")]
pub struct Summary {
    /// The backend, and the reason for it.
    pub driver: String,
    /// The duration of the load in seconds.
    pub elapsed_s: f64,
    /// Steps that ended or were dropped.
    pub steps: u64,
    /// Futures dropped before they were done.
    pub dropped: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// Growth of allocated memory in the second half, in MiB per minute.
    pub heap_slope_mib_per_minute: f64,
    /// Growth of resident memory in the second half, in MiB per minute.
    pub rss_slope_mib_per_minute: f64,
}

impl Summary {
    pub(super) fn new(
        driver: String,
        elapsed: Duration,
        counts: &Counts,
        heap_slope_mib_per_minute: f64,
        rss_slope_mib_per_minute: f64,
    ) -> Self {
        Self {
            driver,
            elapsed_s: elapsed.as_secs_f64(),
            steps: counts.steps.load(Ordering::Relaxed),
            dropped: counts.dropped.load(Ordering::Relaxed),
            verified_bytes: counts.verified_bytes.load(Ordering::Relaxed),
            heap_slope_mib_per_minute,
            rss_slope_mib_per_minute,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: u64| count as f64 / self.elapsed_s.max(f64::MIN_POSITIVE);
        writeln!(f, "driver {}, {:.0} s", self.driver, self.elapsed_s)?;
        writeln!(f, "{} steps, {:.0} a second", self.steps, per_second(self.steps))?;
        writeln!(f, "{} drops, {:.0} a second", self.dropped, per_second(self.dropped))?;
        let verified = per_second(self.verified_bytes >> 20);
        writeln!(f, "{} MiB verified, {verified:.0} a second", self.verified_bytes >> 20)?;
        writeln!(f, "descriptors, threads, children, tasks, operations: as before")?;
        let (heap, resident) = (self.heap_slope_mib_per_minute, self.rss_slope_mib_per_minute);
        write!(f, "in the second half allocated memory grew by {heap:.2} MiB a minute, ")?;
        write!(f, "resident memory by {resident:.2}")
    }
}
