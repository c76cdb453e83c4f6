//! The resources that the process holds, and their comparison with an earlier state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Context;

/// Name prefixes of threads that end by themselves when there is no work for them.
const POOLED: [&str; 3] = ["sakia-blocking", "sakia-bounded", "sakia-elastic"];
/// The name prefix of the kernel's workers.
const IO_WORKER: &str = "iou-";

/// The resources of the process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Open descriptors by their targets: a path, or a kind.
    pub(super) descriptors: BTreeMap<String, usize>,
    /// Threads by name, without those below.
    pub(super) threads: BTreeMap<String, usize>,
    /// Threads that end by themselves when there is no work for them.
    pub(super) pooled: usize,
    /// Workers of the kernel.
    pub(super) io_workers: usize,
    /// Child processes, including ended ones that were not waited for; 0 if the kernel does not list them.
    pub(super) children: usize,
    /// Resident memory in bytes.
    pub(super) rss_bytes: u64,
    /// Locked memory in bytes.
    pub(super) locked_bytes: u64,
}

impl Snapshot {
    /// Takes a snapshot of the calling process.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub(super) fn take() -> anyhow::Result<Self> {
        let mut snapshot = Self::default();
        for entry in fs::read_dir("/proc/self/fd").context("list /proc/self/fd")? {
            // A descriptor closed meanwhile is skipped; that of this list is closed at its end.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let target = target.to_string_lossy();
            let is_this_list = target.starts_with("/proc/") && target.ends_with("/fd");
            if !is_this_list {
                *snapshot.descriptors.entry(kind_of(&target).to_owned()).or_default() += 1;
            }
        }
        for entry in fs::read_dir("/proc/self/task").context("list /proc/self/task")? {
            let task = entry?.path();
            let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
            snapshot.add_thread(name.trim_end());
            let children = fs::read_to_string(task.join("children")).unwrap_or_default();
            snapshot.children += children.split_whitespace().count();
        }
        let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
        snapshot.rss_bytes = bytes_of(&status, "VmRSS:");
        snapshot.locked_bytes = bytes_of(&status, "VmLck:");
        Ok(snapshot)
    }

    fn add_thread(&mut self, name: &str) {
        if name.starts_with(IO_WORKER) {
            self.io_workers += 1;
        } else if POOLED.iter().any(|prefix| name.starts_with(prefix)) {
            self.pooled += 1;
        } else {
            *self.threads.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// Returns the number of open descriptors.
    pub(super) fn descriptor_count(&self) -> usize {
        self.descriptors.values().sum()
    }

    /// Returns the number of threads, without the kernel's workers.
    pub(super) fn thread_count(&self) -> usize {
        self.threads.values().sum::<usize>() + self.pooled
    }

    /// Returns the differences from `baseline` in descriptors, threads and children; a line each. Memory and
    /// the kernel's workers may differ. Threads that end by themselves must have ended.
    pub(super) fn differences(&self, baseline: &Self) -> Vec<String> {
        let mut lines = different_counts("descriptors", &baseline.descriptors, &self.descriptors);
        lines.extend(different_counts("threads", &baseline.threads, &self.threads));
        if self.pooled > 0 {
            lines.push(format!("{} threads of pools and lanes do not end", self.pooled));
        }
        if self.children != baseline.children {
            let (before, after) = (baseline.children, self.children);
            lines.push(format!("child processes: {before} before, {after} after"));
        }
        lines
    }
}

fn different_counts(
    what: &str,
    before: &BTreeMap<String, usize>,
    after: &BTreeMap<String, usize>,
) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let count = |of: &BTreeMap<String, usize>, name| of.get(name).copied().unwrap_or_default();
    let counts = names.into_iter().map(|name| (name, count(before, name), count(after, name)));
    let different = counts.filter(|(_, before, after)| before != after);
    different
        .map(|(name, before, after)| format!("{what} {name}: {before} before, {after} after"))
        .collect()
}

/// Returns the target of a descriptor's link, without the number of a pipe or a socket.
fn kind_of(target: &str) -> &str {
    match target.split_once(":[") {
        Some((kind @ ("pipe" | "socket"), _)) => kind,
        _ => target,
    }
}

/// Returns a size from `/proc/self/status`; 0 if it is missing.
fn bytes_of(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Returns the growth rate of a value: the slope of the least-squares line through these points; 0 for fewer
/// than two moments.
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    if points.len() < 2 || spread == 0.0 {
        return 0.0;
    }
    points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Returns the differences that other tests of this process do not cause.
    fn differences_about(name: &str, baseline: &Snapshot) -> Vec<String> {
        let now = Snapshot::take().unwrap();
        now.differences(baseline).into_iter().filter(|line| line.contains(name)).collect()
    }

    #[test]
    fn a_descriptor_that_stays_open_is_found() {
        let path = std::env::temp_dir().join(format!("leaked-file-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let baseline = Snapshot::take().unwrap();
        let leak = File::create(&path).unwrap();
        assert_eq!(
            differences_about(name, &baseline),
            [format!("descriptors {name}: 0 before, 1 after")]
        );
        drop(leak);
        assert!(differences_about(name, &baseline).is_empty());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_thread_that_does_not_end_is_found() {
        let baseline = Snapshot::take().unwrap();
        let ((runs, begun), (end, ends)) = (channel(), channel::<()>());
        let leak = thread::Builder::new().name("soak-leak".into()).spawn(move || {
            runs.send(()).unwrap();
            ends.recv().ok();
        });
        begun.recv().unwrap();
        let found = differences_about("soak-leak", &baseline);
        assert_eq!(found, ["threads soak-leak: 0 before, 1 after"]);
        drop(end);
        leak.unwrap().join().unwrap();
        // The thread is listed for a moment after it was joined.
        while !differences_about("soak-leak", &baseline).is_empty() {}
    }

    #[test]
    fn threads_of_a_lane_that_do_not_end_are_found_and_workers_of_the_kernel_are_not() {
        let (baseline, mut now) = (Snapshot::default(), Snapshot::default());
        now.add_thread("iou-wrk-17");
        assert!(now.differences(&baseline).is_empty());
        now.add_thread("sakia-bounded-3");
        assert_eq!(now.differences(&baseline), ["1 threads of pools and lanes do not end"]);
    }

    #[test]
    fn pipes_and_sockets_are_counted_whatever_their_number() {
        assert_eq!(kind_of("pipe:[17]"), "pipe");
        assert_eq!(kind_of("socket:[4]"), "socket");
        assert_eq!(kind_of("anon_inode:[eventfd]"), "anon_inode:[eventfd]");
        assert_eq!(kind_of("/tmp/file"), "/tmp/file");
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tx\nVmLck:\t      4 kB\nVmRSS:\t    1000 kB\n";
        assert_eq!((bytes_of(status, "VmRSS:"), bytes_of(status, "VmLck:")), (1_024_000, 4096));
        assert_eq!(bytes_of(status, "VmSwap:"), 0);
    }

    #[test]
    fn the_slope_of_a_line_is_found() {
        let line: Vec<_> = (0..10_u32).map(|x| (f64::from(x), 3.0 * f64::from(x) + 7.0)).collect();
        assert!((slope(&line) - 3.0).abs() < 1e-9);
        assert_eq!((slope(&[]), slope(&[(1.0, 1.0)])), (0.0, 0.0));
    }
}
