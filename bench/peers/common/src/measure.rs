//! The measured section of a run, and its report.

use std::sync::{Arc, Barrier, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use sakia_bench_support::usage::{Ticks, Usage};

use crate::fail;

/// The completed work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The number of operations.
    pub ops: u64,
    /// A sum over the bytes read, or over the offsets written, independent of the order.
    pub check: u64,
}

impl Tally {
    /// Counts an operation.
    #[inline]
    pub fn count(&mut self, check: u64) {
        self.add(Self { ops: 1, check });
    }

    /// Adds the work of another tally.
    #[inline]
    pub fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.check = self.check.wrapping_add(other.check);
    }
}

/// The meeting point of a run's threads before and after the measured section.
pub struct Gate {
    barrier: Barrier,
    /// The snapshots at the beginning and at the end of the section.
    snapshots: Mutex<Vec<Snapshot>>,
}

/// Counters that only grow.
struct Snapshot {
    at: Instant,
    usage: Usage,
    machine: Ticks,
}

impl Gate {
    /// Returns a gate for this number of threads.
    pub fn new(threads: u64) -> Self {
        let barrier = Barrier::new(threads as usize);
        Self { barrier, snapshots: Mutex::default() }
    }

    /// Begins the section once all threads have called this.
    pub fn begin(&self) {
        self.meet(Snapshot::before);
    }

    /// Ends the section once all threads have called this.
    pub fn end(&self) {
        self.meet(Snapshot::after);
    }

    fn meet(&self, take: fn() -> Snapshot) {
        if self.barrier.wait().is_leader() {
            self.lock().push(take());
        }
        self.barrier.wait();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Snapshot>> {
        self.snapshots.lock().expect("no thread panics with the lock")
    }

    /// Prints the measurements as a line of JSON.
    pub fn report(&self, tally: Tally) {
        let [begin, end] = &self.lock()[..] else {
            fail("run", "nothing was measured");
        };
        let wall_ns = end.at.duration_since(begin.at).as_nanos() as u64;
        let Usage { cpu_ns, voluntary_switches, involuntary_switches } =
            end.usage.since(begin.usage);
        let foreign_ns = (end.machine.busy_ns - begin.machine.busy_ns).saturating_sub(cpu_ns);
        let steal_ns = end.machine.steal_ns - begin.machine.steal_ns;
        let Tally { ops, check } = tally;
        println!(
            "{{\"ops\":{ops},\"check\":{check},\"wall_ns\":{wall_ns},\"cpu_ns\":{cpu_ns},\
             \"voluntary_switches\":{voluntary_switches},\
             \"involuntary_switches\":{involuntary_switches},\
             \"foreign_ns\":{foreign_ns},\"steal_ns\":{steal_ns}}}"
        );
    }
}

/// Runs `work` on this number of threads, which begin and end the section at the gate. Adds up their
/// tallies, completes the sum by `check`, and reports.
///
/// This thread is the first of them: the main thread allocates from the heap, as a program without threads
/// does, and other threads from arenas that are trimmed and faulted in again all the time.
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
    /// Reads the clock last, so that the section does not include the other readings: fields are evaluated
    /// in this order.
    fn before() -> Self {
        Self { machine: Ticks::now(), usage: usage(), at: Instant::now() }
    }

    /// Reads the clock first.
    fn after() -> Self {
        Self { at: Instant::now(), usage: usage(), machine: Ticks::now() }
    }
}

fn usage() -> Usage {
    Usage::of_process().unwrap_or_else(|error| fail("getrusage", error))
}
