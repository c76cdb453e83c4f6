//! Adjusts the number of workers that create files.
//!
//! On some file systems two creators are slower than one: for each new file they search the recently deleted
//! ones, and concurrent searches block each other. It cannot be known beforehand, so it is tried: while
//! creating files takes long, all workers but one are laid off for a moment, and for longer if that one
//! creates more. Then it is tried again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};

use crate::sys::lock;

/// The usual time to create a file, at most.
const USUAL: Duration = Duration::from_micros(50);
/// The time of observation before a decision.
const WINDOW: Duration = Duration::from_millis(150);
/// The time that a decision holds.
const STANDS: Duration = Duration::from_secs(3);
/// One worker is better if it creates this many times as much as all together. While a disk is written to,
/// the rate of a moment varies, so a small difference may be chance.
const BETTER: f64 = 1.1;

/// The pace of all workers together.
pub(crate) struct Pace {
    workers: usize,
    /// The number of workers that may work.
    allowed: AtomicUsize,
    /// The number of workers laid off.
    laid_off: AtomicUsize,
    trial: Mutex<Trial>,
    /// Calls back a laid-off worker.
    call: Sender<()>,
    calls: Receiver<()>,
}

struct Trial {
    phase: Phase,
    /// The last decision.
    making: Making,
    /// The begin of the phase, or of its observation.
    begin: Instant,
    /// Files created since.
    made: Made,
    /// No new trial before this time.
    rest_until: Instant,
    /// The last time when creating files was slow.
    slow_at: Option<Instant>,
    /// Files per second in the phase before, if all workers ran and were slow.
    last_rate: Option<f64>,
}

/// The recent speed of creating files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// As quick as usual.
    Quick,
    /// Slow, but not just now.
    WasSlow,
    /// It takes long.
    Slow,
}

#[derive(Clone, Copy)]
enum Phase {
    /// All work.
    All,
    /// The others are about to stop; `rate` is the number of files per second of all together.
    Stopping { rate: f64 },
    /// One works.
    Trying { rate: f64 },
    /// One works, since that is better.
    One,
}

/// Files created, the number of timed ones, and their total time.
#[derive(Clone, Copy, Default)]
struct Made {
    files: u64,
    timed: u64,
    time: Duration,
}

impl Pace {
    pub(crate) fn new(workers: usize) -> Self {
        let now = Instant::now();
        let trial = Trial {
            phase: Phase::All,
            making: Making::Quick,
            begin: now,
            made: Made::default(),
            rest_until: now,
            slow_at: None,
            last_rate: None,
        };
        let (call, calls) = async_channel::unbounded();
        Self {
            workers,
            allowed: AtomicUsize::new(workers),
            laid_off: AtomicUsize::new(0),
            trial: Mutex::new(trial),
            call,
            calls,
        }
    }

    /// Returns the recent speed.
    pub(crate) fn making(&self) -> Making {
        lock(&self.trial).making
    }

    /// Returns whether worker number `worker` may work.
    pub(crate) fn may_work(&self, worker: usize) -> bool {
        worker < self.allowed.load(Ordering::Relaxed)
    }

    /// Lets worker number `worker`, which has nothing left, wait until it may work again, or until the end.
    pub(crate) async fn rest(&self, worker: usize) {
        self.laid_off.fetch_add(1, Ordering::Relaxed);
        if !self.may_work(worker) {
            // Closed at the end.
            self.calls.recv().await.ok();
        }
        self.laid_off.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the job.
    pub(crate) fn end(&self) {
        self.call.close();
    }

    /// Counts created files, with the time of the timed ones. Calls back laid-off workers if they are
    /// needed.
    pub(crate) fn made(&self, files: u64, timed: u64, time: Duration) {
        if files == 0 {
            return;
        }
        let mut trial = lock(&self.trial);
        trial.made.files += files;
        trial.made.timed += timed;
        trial.made.time += time;
        if self.decide(&mut trial, Instant::now()) {
            for _ in 1..self.workers {
                self.call.try_send(()).ok();
            }
        }
    }

    /// Returns true if laid-off workers are to be called back.
    fn decide(&self, trial: &mut Trial, now: Instant) -> bool {
        let elapsed = now.duration_since(trial.begin);
        let made = trial.made;
        let rate = made.files as f64 / elapsed.as_secs_f64().max(1e-9);
        let next = match trial.phase {
            Phase::All if elapsed < WINDOW => return false,
            Phase::All => {
                let usual = made.time.as_nanos() / u128::from(made.timed.max(1));
                let is_slow = usual > USUAL.as_nanos();
                trial.slow_at = if is_slow { Some(now) } else { trial.slow_at };
                trial.making = match trial.slow_at {
                    Some(_) if is_slow => Making::Slow,
                    Some(at) if now < at + STANDS => Making::WasSlow,
                    _ => Making::Quick,
                };
                let last = std::mem::replace(&mut trial.last_rate, is_slow.then_some(rate));
                if is_slow
                    && self.workers > 1
                    && let Some(last) = last
                    && now >= trial.rest_until
                {
                    self.allowed.store(1, Ordering::Relaxed);
                    // A disk may have delayed one of them.
                    Phase::Stopping { rate: rate.max(last) }
                } else {
                    Phase::All
                }
            }
            Phase::Stopping { rate } => {
                if self.laid_off.load(Ordering::Relaxed) + 1 < self.workers && elapsed < STANDS {
                    return false;
                }
                Phase::Trying { rate }
            }
            Phase::Trying { .. } if elapsed < WINDOW => return false,
            Phase::Trying { rate: of_all } if rate >= BETTER * of_all => Phase::One,
            Phase::Trying { .. } => {
                trial.rest_until = now + STANDS;
                Phase::All
            }
            Phase::One if elapsed < STANDS => return false,
            Phase::One => Phase::All,
        };
        let is_called_back = matches!(next, Phase::All) && !matches!(trial.phase, Phase::All);
        if is_called_back {
            self.allowed.store(self.workers, Ordering::Relaxed);
            trial.last_rate = None;
        }
        (trial.phase, trial.begin, trial.made) = (next, now, Made::default());
        is_called_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that create files, in simulated time.
    struct World {
        pace: Pace,
        now: Instant,
        calls: u32,
    }

    impl World {
        fn new() -> Self {
            Self { pace: Pace::new(2), now: Instant::now(), calls: 0 }
        }

        /// Runs for a second: one worker creates `one` files per second, two create `two`, each of which
        /// takes `each`.
        fn work(&mut self, one: u64, two: u64, each: Duration) {
            self.work_for(100, one, two, each);
        }

        /// Runs for this number of hundredths of a second.
        fn work_for(&mut self, hundredths: u32, one: u64, two: u64, each: Duration) {
            for _ in 0..hundredths {
                let is_alone = !self.pace.may_work(1);
                self.pace.laid_off.store(usize::from(is_alone), Ordering::Relaxed);
                let files = if is_alone { one } else { two } / 100;
                self.now += Duration::from_millis(10);
                let mut trial = self.pace.trial.lock().unwrap();
                trial.made.files += files;
                trial.made.timed += files;
                trial.made.time += each * files as u32;
                self.calls += u32::from(self.pace.decide(&mut trial, self.now));
            }
        }
    }

    #[test]
    fn nobody_is_laid_off_where_files_are_made_quickly() {
        let mut world = World::new();
        world.work(100_000, 10_000, Duration::from_micros(20));
        assert!(world.pace.may_work(1));
        assert_eq!(world.calls, 0);
    }

    #[test]
    fn it_is_told_for_a_while_that_making_files_took_long() {
        let mut world = World::new();
        world.work_for(40, 1000, 2000, Duration::from_micros(20));
        assert_eq!(world.pace.making(), Making::Quick);
        world.work_for(20, 1000, 2000, Duration::from_millis(1));
        assert_eq!(world.pace.making(), Making::Slow);
        world.work_for(60, 1000, 2000, Duration::from_micros(20));
        assert_eq!(world.pace.making(), Making::WasSlow);
        world.work_for(400, 1000, 2000, Duration::from_micros(20));
        assert_eq!(world.pace.making(), Making::Quick);
    }

    #[test]
    fn one_worker_stays_where_two_are_slower() {
        let mut world = World::new();
        world.work(2000, 1500, Duration::from_millis(1));
        assert!(!world.pace.may_work(1));
        world.work(2000, 1500, Duration::from_millis(1));
        assert!(!world.pace.may_work(1));
        // The trial is repeated, and its result may differ by then.
        world.work(2000, 1500, Duration::from_millis(1));
        world.work(2000, 4000, Duration::from_micros(40));
        world.work(2000, 4000, Duration::from_micros(40));
        assert!(world.pace.may_work(1));
        assert!(world.calls >= 1);
    }

    /// A disk that delays all workers for a moment is no reason to lay one off.
    #[test]
    fn a_moment_is_no_reason() {
        let mut world = World::new();
        world.work(1100, 2000, Duration::from_micros(40));
        for _ in 0..5 {
            world.work_for(15, 1100, 2000, Duration::from_millis(1));
            world.work_for(15, 1100, 500, Duration::from_millis(1));
            world.work_for(100, 1100, 2000, Duration::from_micros(40));
            assert!(world.pace.may_work(1));
        }
    }

    #[test]
    fn two_stay_where_files_are_slow_and_two_are_faster() {
        let mut world = World::new();
        world.work(1000, 2000, Duration::from_millis(1));
        assert!(world.pace.may_work(1));
        assert_eq!(world.calls, 1);
    }
}
