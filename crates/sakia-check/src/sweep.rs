//! Runs the programs of many seeds.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::program::Program;
use crate::run::{Failure, simulated};
use crate::shrink::shrink;
use crate::stats::Stats;

/// The outcome of a number of seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// Counts of operations and outcomes.
    pub stats: Stats,
    /// Seeds of failing programs, with the failures. Empty on success; otherwise some seeds were not run.
    pub failures: Vec<(u64, Failure)>,
}

thread_local! {
    /// The message of the last panic on this thread.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes panics silent, since they are results here. The program calls it once.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.with_borrow_mut(|text| *text = info.to_string());
    }));
}

/// Runs a program on the simulated kernel, and a second time to check that it does the same.
///
/// # Errors
/// The failure, a panic of the driver included.
pub fn check(program: &Program, twice: bool, stats: &mut Stats) -> Result<(), Failure> {
    let run = |stats: &mut Stats, keep_log| {
        let run = AssertUnwindSafe(|| simulated(program, keep_log, stats));
        match catch_unwind(run) {
            Ok(Ok(outcome)) => match outcome.failure {
                Some(failure) => Err(failure),
                None => Ok(outcome),
            },
            Ok(Err(error)) => Err(Failure { what: format!("{error:#}") }),
            Err(_) => {
                let what = PANIC.with_borrow(|text| format!("it panicked: {text}"));
                Err(Failure { what })
            }
        }
    };
    let first = run(stats, false)?;
    if !twice {
        return Ok(());
    }
    let again = run(&mut Stats::default(), false)?;
    if first.hash == again.hash {
        return Ok(());
    }
    let (one, other) = (run(&mut Stats::default(), true)?, run(&mut Stats::default(), true)?);
    let lines = one.log.lines().zip(other.log.lines()).enumerate();
    let differing = lines.map(|(index, (a, b))| (index + 1, a, b)).find(|(_, a, b)| a != b);
    Err(Failure { what: format!("the same program did something else: {differing:?}") })
}

/// Runs the programs of all seeds on several threads, up to the first failures. `progress` is called now and
/// then with the number of finished seeds.
pub fn sweep(
    seeds: Range<u64>,
    threads: usize,
    twice: bool,
    progress: impl Fn(u64) + Sync,
) -> Report {
    let next = AtomicU64::new(seeds.start);
    let has_failed = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut stats = Stats::default();
                while !has_failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let program = Program::random(seed);
                    if let Err(failure) = check(&program, twice, &mut stats) {
                        has_failed.store(true, Ordering::Relaxed);
                        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                        report.failures.push((seed, failure));
                    }
                    if (seed - seeds.start) % 1024 == 1023 {
                        progress(seed - seeds.start + 1);
                    }
                }
                report.lock().unwrap_or_else(PoisonError::into_inner).stats.add(stats);
            });
        }
    });
    report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a failing program made smaller, and its failure.
pub fn smallest(program: &Program, failure: Failure) -> (Program, Failure) {
    let fails = |program: &Program| check(program, true, &mut Stats::default()).err();
    let small = shrink(program, |program| fails(program).is_some());
    match fails(&small) {
        Some(failure) => (small, failure),
        None => (program.clone(), failure),
    }
}
