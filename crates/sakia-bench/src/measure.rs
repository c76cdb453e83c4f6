//! Costs of a section of a process: time, processor time, context switches, threads, memory.

use std::fs;
use std::io;
use std::time::Instant;

use sakia_bench_support::usage::Usage;
use serde::{Deserialize, Serialize};

/// Measures a section of this process.
#[derive(Debug)]
pub struct Meter {
    usage: Usage,
    threads_max: u64,
    begin: Instant,
    /// The measurements, if the section is over.
    section: Option<Section>,
}

/// The measurements of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Time from the beginning to the end.
    pub wall_ns: u64,
    /// The resources that all threads used meanwhile.
    #[serde(flatten)]
    pub usage: Usage,
    /// The most threads observed, the kernel's workers included.
    pub threads_max: u64,
}

impl Meter {
    /// Begins the section.
    ///
    /// # Errors
    /// See [`Usage::of_process`].
    pub fn start() -> io::Result<Self> {
        let usage = Usage::of_process()?;
        Ok(Self { usage, threads_max: 0, begin: Instant::now(), section: None })
    }

    /// Begins the section now: all work so far was preparation. Threads that were counted stay counted.
    ///
    /// # Errors
    /// See [`Usage::of_process`].
    pub fn restart(&mut self) -> io::Result<()> {
        *self = Self { threads_max: self.threads_max, ..Self::start()? };
        Ok(())
    }

    /// Starts the clock now: the time so far was a wait. All other figures still count from the section's
    /// begin.
    pub fn restart_clock(&mut self) {
        self.begin = Instant::now();
    }

    /// Runs `look` and excludes its costs from the section.
    ///
    /// # Errors
    /// See [`Usage::of_process`].
    pub fn aside<T>(&mut self, look: impl FnOnce() -> T) -> io::Result<T> {
        let (used, begin) = (Usage::of_process()?.since(self.usage), Instant::now());
        let seen = look();
        self.usage = Usage::of_process()?.since(used);
        self.begin += begin.elapsed();
        Ok(seen)
    }

    /// Ends the section here: later work, until [`stop`](Meter::stop), is not part of it.
    ///
    /// # Errors
    /// See [`Usage::of_process`].
    pub fn end(&mut self) -> io::Result<()> {
        let wall = self.begin.elapsed();
        let usage = Usage::of_process()?.since(self.usage);
        self.note_threads();
        self.section = Some(Section {
            wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            usage,
            threads_max: self.threads_max,
        });
        Ok(())
    }

    /// Counts the threads that exist. Must be called before threads end, or may end.
    pub fn note_threads(&mut self) {
        self.threads_max = self.threads_max.max(threads());
    }

    /// Ends the section, unless it has [ended](Meter::end), and returns its measurements.
    ///
    /// # Errors
    /// See [`Usage::of_process`].
    pub fn stop(mut self) -> io::Result<Section> {
        if self.section.is_none() {
            self.end()?;
        }
        Ok(self.section.unwrap_or_default())
    }
}

/// Returns the number of this process's threads, the kernel's workers for it included; 0 without `/proc`.
pub(crate) fn threads() -> u64 {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count) as u64
}

/// Returns the peak memory of this process; 0 without `/proc`.
///
/// It is not the figure of `getrusage(2)`, which begins with the memory of the process it was forked from.
pub fn peak_rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kib_of(&status, "VmHWM:").unwrap_or(0) << 10
}

/// Returns the number in the line of `text` that begins with `key`, as in `/proc/self/status` and
/// `/proc/meminfo`.
pub(crate) fn kib_of(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_ended_are_counted_with_their_switches() {
        let mut meter = Meter::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            receiver.recv().unwrap();
            (0..1_000_000u64).fold(0, |sum, x| black_box(sum ^ x))
        });
        meter.note_threads();
        // A waiting thread gives up its processor; this thread yields until the other one has done so.
        let switches = || Usage::of_process().unwrap().voluntary_switches;
        let before = switches();
        while switches() == before {
            thread::yield_now();
            thread::sleep(std::time::Duration::from_micros(1));
        }
        sender.send(()).unwrap();
        thread.join().unwrap();
        let section = meter.stop().unwrap();
        assert!(section.threads_max >= 2, "{section:?}");
        assert!(section.usage.voluntary_switches >= 1, "{section:?}");
        assert!(section.wall_ns > 0);
    }

    #[test]
    fn what_is_aside_does_not_count() {
        let mut meter = Meter::start().unwrap();
        let before = meter.begin;
        let nap = std::time::Duration::from_millis(5);
        assert_eq!(meter.aside(|| thread::sleep(nap)).ok(), Some(()));
        assert!(meter.begin >= before + nap);
        meter.restart_clock();
        assert!(meter.begin.elapsed() < before.elapsed());
    }

    #[test]
    fn memory_is_read_from_the_status() {
        assert!(peak_rss_bytes() > 100 << 10);
        assert_eq!(kib_of("VmPeak:\t 9 kB\nVmHWM:\t    12 kB\n", "VmHWM:"), Some(12));
        assert_eq!(kib_of("", "VmHWM:"), None);
    }
}
