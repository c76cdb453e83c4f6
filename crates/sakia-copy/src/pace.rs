//! How many workers make files, and whether that goes well.
//!
//! There are places where two that make files are slower than one: some file systems look through all that
//! was deleted lately for each new file, and those that do so at a time are in each other's way. It cannot be
//! known beforehand, so it is tried: when making files goes on to take long, all workers but one are laid off
//! for a moment, and for longer if that one makes more. Then it is tried again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};

use crate::sys::lock;

/// Making a file takes this long or less where nothing is wrong.
const USUAL: Duration = Duration::from_micros(50);
/// How long is looked at before it is judged.
const WINDOW: Duration = Duration::from_millis(150);
/// How long a judgment stands.
const STANDS: Duration = Duration::from_secs(3);
/// One worker that makes so many times as much as all of them is better. Where a disk is written to, the rate
/// of any moment says little: what is nearly as much may be chance.
const BETTER: f64 = 1.1;

/// What all workers together do.
pub(crate) struct Pace {
    workers: usize,
    /// Workers that may work.
    allowed: AtomicUsize,
    /// Workers that were laid off.
    laid_off: AtomicUsize,
    trial: Mutex<Trial>,
    /// Calls back a worker that was laid off.
    call: Sender<()>,
    calls: Receiver<()>,
}

struct Trial {
    phase: Phase,
    /// The last judgment.
    making: Making,
    /// When the phase began, or is to be judged from.
    begin: Instant,
    /// Files made since.
    made: Made,
    /// No other trial before.
    rest_until: Instant,
    /// When making files last took long.
    slow_at: Option<Instant>,
    /// Files a second in the phase before, if all worked and were slow.
    last_rate: Option<f64>,
}

/// How it was lately with making files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// It took no longer than usual.
    Quick,
    /// It took long, but not just now.
    WasSlow,
    /// It takes long.
    Slow,
}

#[derive(Clone, Copy)]
enum Phase {
    /// All work.
    All,
    /// The others are about to stop; all of them together made so many files a second.
    Stopping { rate: f64 },
    /// One works.
    Trying { rate: f64 },
    /// One works, since it is better.
    One,
}

/// Files that were made, those of them whose time was taken, and what these took.
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

    /// How it goes.
    pub(crate) fn making(&self) -> Making {
        lock(&self.trial).making
    }

    /// Whether worker number `worker` may work.
    pub(crate) fn may_work(&self, worker: usize) -> bool {
        worker < self.allowed.load(Ordering::Relaxed)
    }

    /// Worker number `worker`, which has nothing left, waits until it may work again, or until all is over.
    pub(crate) async fn rest(&self, worker: usize) {
        self.laid_off.fetch_add(1, Ordering::Relaxed);
        if !self.may_work(worker) {
            // Closed when all is over.
            self.calls.recv().await.ok();
        }
        self.laid_off.fetch_sub(1, Ordering::Relaxed);
    }

    /// All is over.
    pub(crate) fn end(&self) {
        self.call.close();
    }

    /// Files were made; the time of some of them was taken. Calls back those who were laid off if they are
    /// wanted.
    pub(crate) fn made(&self, files: u64, timed: u64, time: Duration) {
        if files == 0 {
            return;
        }
        let mut trial = lock(&self.trial);
        trial.made.files += files;
        trial.made.timed += timed;
        trial.made.time += time;
        if self.judge(&mut trial, Instant::now()) {
            for _ in 1..self.workers {
                self.call.try_send(()).ok();
            }
        }
    }

    /// True if those who were laid off are to be called back.
    fn judge(&self, trial: &mut Trial, now: Instant) -> bool {
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
                    // A disk may have held one of them up.
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

    /// Workers that make files, in a time of their own.
    struct World {
        pace: Pace,
        now: Instant,
        calls: u32,
    }

    impl World {
        fn new() -> Self {
            Self { pace: Pace::new(2), now: Instant::now(), calls: 0 }
        }

        /// For a second: so many files a second by one worker, so many by two, each of which takes so long.
        fn work(&mut self, one: u64, two: u64, each: Duration) {
            self.work_for(100, one, two, each);
        }

        /// For so many hundredths of a second.
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
                self.calls += u32::from(self.pace.judge(&mut trial, self.now));
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
        // It is looked at again, and may be otherwise by then.
        world.work(2000, 1500, Duration::from_millis(1));
        world.work(2000, 4000, Duration::from_micros(40));
        world.work(2000, 4000, Duration::from_micros(40));
        assert!(world.pace.may_work(1));
        assert!(world.calls >= 1);
    }

    /// When all seem slow because the disk held them up for a moment.
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
