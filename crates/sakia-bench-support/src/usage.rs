//! Resources used by programs: processor time and context switches.

use std::fs;
use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

/// Resources used by threads since the beginning of their processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, in user and kernel mode.
    pub cpu_ns: u64,
    /// Voluntary context switches: the thread waited.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
}

impl Usage {
    /// Returns the usage of all threads of this process, including ended ones and the kernel's workers for
    /// it.
    ///
    /// # Errors
    /// As `getrusage(2)`: none is known.
    pub fn of_process() -> io::Result<Self> {
        Self::of(UsageWho::RUSAGE_SELF)
    }

    /// Returns the usage of all child processes that ended and were waited for.
    ///
    /// # Errors
    /// As `getrusage(2)`: none is known.
    pub fn of_children() -> io::Result<Self> {
        Self::of(UsageWho::RUSAGE_CHILDREN)
    }

    fn of(who: UsageWho) -> io::Result<Self> {
        let usage = getrusage(who)?;
        let count = |value| u64::try_from(value).unwrap_or(0);
        Ok(Self {
            cpu_ns: nanoseconds(usage.user_time()) + nanoseconds(usage.system_time()),
            voluntary_switches: count(usage.voluntary_context_switches()),
            involuntary_switches: count(usage.involuntary_context_switches()),
        })
    }

    /// Returns the usage since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
        }
    }
}

fn nanoseconds(time: TimeVal) -> u64 {
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    count(time.tv_sec()) * 1_000_000_000 + count(time.tv_usec()) * 1000
}

/// Processor time of the whole machine since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Time of all programs, kernel mode included.
    pub busy_ns: u64,
    /// Time that the host of a virtual machine took away.
    pub steal_ns: u64,
}

impl Ticks {
    /// Returns the ticks so far; all zero if `/proc` does not have them.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(&stat, rustix::param::clock_ticks_per_second()).unwrap_or_default()
    }

    fn parse(stat: &str, ticks_per_s: u64) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<u64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else {
            return None;
        };
        let tick_ns = 1_000_000_000 / ticks_per_s.max(1);
        let busy = user + nice + system + irq + softirq;
        Some(Self { busy_ns: busy * tick_ns, steal_ns: steal * tick_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_ticks_are_read() {
        let stat = "cpu  10 1 5 1000 7 2 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let ticks = Ticks { busy_ns: 210_000_000, steal_ns: 40_000_000 };
        assert_eq!(Ticks::parse(stat, 100), Some(ticks));
        assert_eq!(Ticks::parse("", 100), None);
        assert_eq!(Ticks::parse("cpu  1 2 3\n", 100), None);
    }
}
