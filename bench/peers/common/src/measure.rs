//! The measured section of a run, and what is reported of it.

use std::fs;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use nix::sys::resource::{Usage, UsageWho, getrusage};

use crate::fail;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Operations.
    pub ops: u64,
    /// Depends on what was read, or on where was written, but not on the order.
    pub check: u64,
}

impl Tally {
    /// Counts an operation.
    #[inline]
    pub fn count(&mut self, check: u64) {
        self.add(Self { ops: 1, check });
    }

    /// Adds what another did.
    #[inline]
    pub fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.check = self.check.wrapping_add(other.check);
    }
}

/// Where the threads of a run meet before and after the measured section.
pub struct Gate {
    barrier: Barrier,
    section: Mutex<Section>,
}

#[derive(Default)]
struct Section {
    begin: Option<Snapshot>,
    end: Option<Snapshot>,
}

/// Counts that only grow.
struct Snapshot {
    at: Instant,
    usage: Usage,
    machine: Machine,
}

/// Ticks of all processors together, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    busy: u64,
    stolen: u64,
}

/// Nanoseconds of a tick in `/proc/stat`, which are hundredths of a second on every Linux.
const TICK_NS: u64 = 10_000_000;

impl Gate {
    /// A gate for so many threads.
    pub fn new(threads: u64) -> Self {
        let barrier = Barrier::new(threads as usize);
        Self { barrier, section: Mutex::default() }
    }

    /// Begins the section, once all threads are here.
    pub fn begin(&self) {
        self.meet(|section| section.begin = Some(Snapshot::before()));
    }

    /// Ends the section, once all threads are here.
    pub fn end(&self) {
        self.meet(|section| section.end = Some(Snapshot::after()));
    }

    fn meet(&self, and: impl FnOnce(&mut Section)) {
        if self.barrier.wait().is_leader() {
            and(&mut self.section.lock().expect("no thread panics with the lock"));
        }
        self.barrier.wait();
    }

    /// Prints what was measured, as a line of JSON.
    pub fn report(&self, tally: Tally) {
        let section = self.section.lock().expect("no thread panics with the lock");
        let (Some(begin), Some(end)) = (&section.begin, &section.end) else {
            fail("run", "nothing was measured");
        };
        let wall_ns = end.at.duration_since(begin.at).as_nanos() as u64;
        let cpu_ns = cpu_ns(&end.usage) - cpu_ns(&begin.usage);
        let (earlier, later) = (&begin.usage, &end.usage);
        let voluntary = later.voluntary_context_switches() - earlier.voluntary_context_switches();
        let involuntary =
            later.involuntary_context_switches() - earlier.involuntary_context_switches();
        let busy_ns = (end.machine.busy - begin.machine.busy) * TICK_NS;
        let foreign_ns = busy_ns.saturating_sub(cpu_ns);
        let steal_ns = (end.machine.stolen - begin.machine.stolen) * TICK_NS;
        let Tally { ops, check } = tally;
        println!(
            "{{\"ops\":{ops},\"check\":{check},\"wall_ns\":{wall_ns},\"cpu_ns\":{cpu_ns},\
             \"voluntary_switches\":{voluntary},\"involuntary_switches\":{involuntary},\
             \"foreign_ns\":{foreign_ns},\"steal_ns\":{steal_ns}}}"
        );
    }
}

/// Runs `work` on so many threads, which begin and end the section at the gate, adds up what they did,
/// completes that by `check`, and reports.
///
/// This thread is the first of them: on the main thread memory is had from the heap, as in a program
/// without threads, and on others from arenas that are trimmed and faulted in anew all the time.
pub fn on_threads(
    threads: u64,
    work: impl Fn(Arc<Gate>, u64) -> Tally + Send + Clone + 'static,
    check: impl FnOnce(Tally) -> Tally,
) {
    let gate = Arc::new(Gate::new(threads));
    let start = |thread| {
        let (work, gate) = (work.clone(), gate.clone());
        thread::spawn(move || work(gate, thread))
    };
    let handles: Vec<_> = (1..threads).map(start).collect();
    let mut total = work(gate.clone(), 0);
    for handle in handles {
        match handle.join() {
            Ok(tally) => total.add(tally),
            Err(_) => fail("run", "a thread panicked"),
        }
    }
    gate.report(check(total));
}

impl Snapshot {
    /// The time last, so that taking the rest is not within the section.
    fn before() -> Self {
        let machine = Machine::now();
        let usage = usage();
        Self { at: Instant::now(), usage, machine }
    }

    /// The time first.
    fn after() -> Self {
        let at = Instant::now();
        let usage = usage();
        Self { at, usage, machine: Machine::now() }
    }
}

fn usage() -> Usage {
    getrusage(UsageWho::RUSAGE_SELF).unwrap_or_else(|error| fail("getrusage", error))
}

impl Machine {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// From the text of `/proc/stat`; zeros, if there is none.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        Self { busy: at(0) + at(1) + at(2) + at(5) + at(6), stolen: at(7) }
    }
}

/// Processor time of the process, the kernel's workers for it included.
fn cpu_ns(usage: &Usage) -> u64 {
    let ns = |time: nix::sys::time::TimeVal| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1000
    };
    ns(usage.user_time()) + ns(usage.system_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_ticks_are_read() {
        let stat = "cpu  10 1 5 1000 7 2 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(Machine::parse(stat), Machine { busy: 21, stolen: 4 });
        assert_eq!(Machine::parse(""), Machine::default());
    }
}
