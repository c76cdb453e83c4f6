//! The threads of this process, from `/proc/self/task`, which includes the kernel's workers.

use std::fs;

use crate::measure::threads;

/// The kernel's name for the workers of a ring.
const IOWQ_NAME: &str = "iou-wrk";
/// An engine's names for the threads of its lanes.
const LANE_NAMES: [&str; 2] = ["sakia-bounded", "sakia-elastic"];
/// Above this number of threads, each is examined only when their number is stable.
const FEW: u64 = 256;

/// The numbers of threads at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Threads {
    /// Threads of the program and its libraries.
    pub(super) user: u64,
    /// Workers that the kernel made for rings.
    pub(super) iowq: u64,
    /// Those of these workers that make calls for an engine, however long the calls take.
    pub(super) lane: u64,
    /// Those of the others that wait for storage, in a sleep that no signal ends.
    pub(super) stalled: u64,
}

impl Threads {
    /// Counts the existing threads. One that ends meanwhile may be left out.
    pub(super) fn now() -> Self {
        let mut threads = Self::default();
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            threads.add(&stat);
        }
        threads
    }

    /// Adds the thread of a line of `stat`.
    fn add(&mut self, stat: &str) {
        // The name, in parentheses, may contain anything, parentheses included.
        let Some((before, after)) = stat.rsplit_once(") ") else { return };
        let name = before.split_once(" (").map_or("", |(_, name)| name);
        if name.starts_with(IOWQ_NAME) {
            self.iowq += 1;
            return;
        }
        self.user += 1;
        if LANE_NAMES.iter().any(|lane| name.starts_with(lane)) {
            self.lane += 1;
        } else {
            self.stalled += u64::from(after.starts_with('D'));
        }
    }
}

/// The largest numbers seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Census {
    pub(super) threads_max: u64,
    user_max: u64,
    pub(super) lane_max: u64,
    pub(super) iowq_max: u64,
}

impl Census {
    /// Counts the threads, and examines them if they are few.
    pub(super) fn look(&mut self) {
        let count = threads();
        self.threads_max = self.threads_max.max(count);
        if count <= FEW {
            self.look_closely();
        }
    }

    /// Returns the largest number of threads at a time that the kernel did not make.
    pub(super) fn user_max(&self) -> u64 {
        self.user_max.max(self.threads_max.saturating_sub(self.iowq_max))
    }

    /// Examines each thread.
    pub(super) fn look_closely(&mut self) -> Threads {
        let threads = Threads::now();
        self.threads_max = self.threads_max.max(threads.user + threads.iowq);
        self.user_max = self.user_max.max(threads.user);
        self.iowq_max = self.iowq_max.max(threads.iowq);
        self.lane_max = self.lane_max.max(threads.lane);
        threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Unavailable;

    #[test]
    fn workers_are_told_by_their_names() {
        let mut threads = Threads::default();
        threads.add("17 (sakia) S 1 17 17 0 -1");
        threads.add("18 (a ) (b) D 1 17 17 0 -1");
        threads.add("19 (iou-wrk-17) I 1 17 17 0 -1");
        threads.add("20 (sakia-bounded-1) D 1 17 17 0 -1");
        threads.add("");
        assert_eq!(threads, Threads { user: 3, iowq: 1, lane: 1, stalled: 1 });
    }

    #[test]
    fn workers_of_the_kernel_are_seen() {
        let runtime = match crate::engine::Engine::RING.start() {
            Ok(runtime) => runtime,
            Err(error) => {
                let Unavailable(reason) = error.downcast().unwrap();
                let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                assert!(!denied, "skips are denied, and the ring must skip: {reason}");
                return eprintln!("SKIP the ring: {reason}");
            }
        };
        // The kernel always hands this operation to a worker, which lives for seconds.
        runtime.block_on(sakia::fs::metadata("/proc/self")).unwrap();
        assert!(Threads::now().iowq >= 1);
    }

    #[test]
    fn own_threads_are_seen() {
        let mut census = Census::default();
        assert!(census.look_closely().user >= 1);
        census.look();
        assert!(census.threads_max >= census.user_max() && census.user_max() >= 1);
    }
}
