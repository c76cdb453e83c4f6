//! A runtime thread's timers and clock, and their part in its loop.
//!
//! Each [round](crate::round) of the loop fires due timers before it runs tasks, and ends when a timer
//! becomes due. While tasks run, the driver's alarm shows that, or the clock, read after each poll: timers
//! that are due before the next alarm are *unwatched*. Before the thread sleeps, the driver gets the time of
//! the next timer as a limit; there is no second thread.
//!
//! The wheel is never borrowed while users' code runs: wakers are called and dropped after its borrow has
//! ended, since they may set and drop timers.

use std::cell::{Cell, RefCell};
use std::task::Waker;
use std::time::{Duration, Instant};

use sakia_driver::{Attention, Auto, Backend, Driver};
use sakia_ring::PerProcess;

use crate::executor::Local;
use crate::time::wheel::{TICK_MAX, Wheel};

/// The most alarms set at a time.
const ALARMS_MAX: usize = 16;
/// The resolution of timers. They fire at the end of the tick into which their deadline falls.
const TICK: Duration = Duration::from_millis(1);
/// The most timers looked at to find out how long the thread may sleep.
const LOOKS_MAX: usize = 64;

/// The zero of the real clock. All threads share it, so that an instant taken on one means the same on
/// another; the zeros of drivers' own clocks differ from thread to thread. A forked child has its parent's.
static ORIGIN: PerProcess<Instant> = PerProcess::new();

/// The source of the time.
#[derive(Clone, Copy)]
enum Clock {
    /// The operating system's clock.
    Real,
    /// The clock of the driver's backend, whose time is virtual.
    Driver,
    /// A clock of our own, which stands at this time until the loop advances it.
    Virtual(Duration),
}

/// The timers of one runtime thread.
pub(crate) struct Timers {
    wheel: RefCell<Wheel>,
    clock: Cell<Clock>,
    /// The zero of the driver's clock, if that clock is real.
    driver_origin: Instant,
    /// The ticks for which alarms are set, the next one last.
    alarms: RefCell<Vec<u64>>,
    /// Set if a timer may be due before the next alarm. Then the clock must be read.
    is_unwatched: Cell<bool>,
    /// Set if time passes while tasks run.
    is_passing: Cell<bool>,
    /// Tells whether the driver may have alarms.
    attention: Attention,
}

impl Timers {
    /// Returns timers on the driver's clock, if it `has_clock`, and on the system's otherwise.
    pub(crate) fn new(driver: &Driver, has_clock: bool) -> Self {
        let clock = if has_clock { Clock::Driver } else { Clock::Real };
        // So `driver_origin` is earlier than the driver's zero by the time between the two readings. Only
        // used if that clock is real.
        let now = Instant::now();
        Self {
            wheel: RefCell::new(Wheel::new()),
            clock: Cell::new(clock),
            driver_origin: now.checked_sub(driver.now()).unwrap_or(now),
            alarms: RefCell::default(),
            is_unwatched: Cell::new(false),
            is_passing: Cell::new(true),
            attention: driver.attention(),
        }
    }

    /// Makes the clock virtual: it stands at zero until it is advanced. Called before the first reading.
    pub(crate) fn make_virtual(&self) {
        self.clock.set(Clock::Virtual(Duration::ZERO));
        self.is_passing.set(false);
    }

    /// Returns whether it matters that a timer is unwatched.
    fn is_watchful(&self) -> bool {
        self.is_passing.get() && self.attention.tells_news()
    }

    /// Sets a timer, and returns its number.
    pub(super) fn insert(&self, deadline: Duration, waker: Waker) -> u32 {
        let tick = tick_from(deadline);
        self.notice(tick);
        self.wheel.borrow_mut().insert(tick, waker)
    }

    /// Moves a timer to another deadline.
    pub(super) fn reset(&self, key: u32, deadline: Duration) {
        let tick = tick_from(deadline);
        self.notice(tick);
        self.wheel.borrow_mut().reset(key, tick);
    }

    /// Notes that a timer is about to be set.
    fn notice(&self, tick: u64) {
        // While there are timers, each round forgets alarms that are over; otherwise the last alarm may be
        // over.
        let is_watched = !self.wheel.borrow().is_idle()
            && self.alarms.borrow().last().is_some_and(|&alarm| alarm <= tick);
        if !is_watched && self.is_watchful() {
            self.is_unwatched.set(true);
        }
    }

    /// Returns whether the clock must be read while tasks run.
    #[inline(always)]
    pub(crate) fn is_unwatched(&self) -> bool {
        self.is_unwatched.get()
    }

    /// Forgets alarms that are over at `tick`. Returns whether there was one.
    fn forget_alarms(&self, tick: u64) -> bool {
        let mut alarms = self.alarms.borrow_mut();
        let count = alarms.len();
        while alarms.pop_if(|alarm| *alarm <= tick).is_some() {}
        alarms.len() < count
    }

    /// Removes a timer.
    pub(super) fn remove(&self, key: u32) {
        let waker = self.wheel.borrow_mut().remove(key);
        drop(waker);
    }

    /// Returns the timers that have not fired: their numbers and deadlines.
    #[cfg(feature = "sim")]
    pub(crate) fn armed(&self) -> Vec<(u32, Duration)> {
        let wheel = self.wheel.borrow();
        if wheel.is_idle() {
            return Vec::new();
        }
        wheel.armed().map(|(key, tick)| (key, time_of(tick))).collect()
    }

    /// Returns whether a timer has fired. If not, `waker` is woken later.
    pub(super) fn poll(&self, key: u32, waker: &Waker) -> bool {
        let wheel = self.wheel.borrow();
        if wheel.has_fired(key) {
            return true;
        }
        let is_known = wheel.will_wake(key, waker);
        drop(wheel);
        if !is_known {
            let waker = waker.clone();
            let old = self.wheel.borrow_mut().set_waker(key, waker);
            drop(old);
        }
        false
    }
}

impl Local {
    /// Returns the time on this thread's clock.
    pub(crate) fn now(&self) -> Duration {
        match self.timers.clock.get() {
            Clock::Real => ORIGIN.get_or_inherit(Instant::now).elapsed(),
            Clock::Driver => {
                self.driver.with_backend(Auto::now).expect("the driver ends after its timers")
            }
            Clock::Virtual(now) => now,
        }
    }

    /// Wakes the tasks whose timers are due.
    #[inline(always)]
    pub(crate) fn fire_timers(&self) {
        if !self.timers.wheel.borrow().is_idle() {
            self.fire_due();
        }
    }

    fn fire_due(&self) {
        let tick = ticks_until(self.now());
        self.timers.wheel.borrow_mut().advance(tick);
        let is_alarm_over = self.timers.forget_alarms(tick);
        if is_alarm_over {
            // Assumed until the next alarm is known below; this stays if a waker panics.
            self.timers.is_unwatched.set(self.timers.is_watchful());
        }
        let mut has_fired = false;
        loop {
            let waker = self.timers.wheel.borrow_mut().pop_due();
            let Some(waker) = waker else { break };
            has_fired = true;
            waker.wake();
        }
        if is_alarm_over || has_fired {
            let is_watchful = self.timers.is_watchful();
            self.timers.is_unwatched.set(is_watchful && !self.timers.wheel.borrow().is_idle());
        }
    }

    /// Returns the driver's time, by which the length of a round is measured: it passes while tasks run,
    /// except on the simulated kernel.
    #[inline]
    pub(crate) fn work_clock(&self) -> Duration {
        match self.timers.clock.get() {
            Clock::Driver => self.driver.now(),
            Clock::Real | Clock::Virtual(_) => self.timers.driver_origin.elapsed(),
        }
    }

    /// Returns whether a timer may be due that no alarm covers. The answer may come late, but never early.
    pub(crate) fn is_timer_due(&self) -> bool {
        let timers = &self.timers;
        let tick = ticks_until(self.now());
        timers.forget_alarms(tick);
        let deadline = timers.wheel.borrow().next_deadline(1);
        let alarm = timers.alarms.borrow().last().copied();
        let is_unwatched =
            deadline.is_some_and(|deadline| alarm.is_none_or(|alarm| deadline < alarm));
        timers.is_unwatched.set(is_unwatched && timers.is_watchful());
        is_unwatched && deadline.is_some_and(|deadline| deadline <= tick)
    }

    /// Sets an alarm for the next timer, if there is no earlier one and the driver has alarms.
    pub(crate) fn watch_timers(&self) {
        let timers = &self.timers;
        let deadline = timers.wheel.borrow().next_deadline(LOOKS_MAX);
        let (Some(tick), true) = (deadline, timers.alarms.borrow().len() < ALARMS_MAX) else {
            return;
        };
        // Later alarms stay set below it: an alarm cannot be taken back.
        let is_earliest = timers.alarms.borrow().last().is_none_or(|&alarm| tick < alarm);
        if !is_earliest || self.driver.set_alarm(time_of(tick).saturating_sub(self.now())) {
            timers.is_unwatched.set(false);
            if is_earliest {
                timers.alarms.borrow_mut().push(tick);
            }
        }
    }

    /// Returns how long the thread may sleep when it has nothing to do: until the next timer is due, and at
    /// most for `limit`. With very many timers it may be less.
    pub(crate) fn sleep_limit(&self, limit: Option<Duration>) -> Option<Duration> {
        let Some(tick) = self.timers.wheel.borrow().next_deadline(LOOKS_MAX) else {
            return limit;
        };
        let left = time_of(tick).saturating_sub(self.now());
        Some(limit.map_or(left, |limit| limit.min(left)))
    }

    /// As [`sleep_limit`](Local::sleep_limit), for a thread that has nothing to do and is about to sleep. If
    /// no other event can happen, virtual time advances here; then there is no sleep.
    #[inline]
    pub(crate) fn pass_time(&self, limit: Option<Duration>) -> Option<Duration> {
        if self.timers.wheel.borrow().is_idle() { limit } else { self.pass_to_timer(limit) }
    }

    fn pass_to_timer(&self, limit: Option<Duration>) -> Option<Duration> {
        let Clock::Virtual(now) = self.timers.clock.get() else {
            return self.sleep_limit(limit);
        };
        if self.driver.in_flight() > 0 || self.driver.has_deferred() {
            return limit;
        }
        let passed = self.sleep_limit(limit)?;
        self.timers.clock.set(Clock::Virtual(now.saturating_add(passed)));
        Some(Duration::ZERO)
    }
}

/// Returns the first tick not before `deadline`.
fn tick_from(deadline: Duration) -> u64 {
    let up = TICK.as_nanos() - 1;
    let ticks = (deadline.as_nanos() + up) / TICK.as_nanos();
    u64::try_from(ticks).map_or(TICK_MAX, |ticks| ticks.min(TICK_MAX))
}

/// Returns the last tick not after `now`.
fn ticks_until(now: Duration) -> u64 {
    let ticks = now.as_nanos() / TICK.as_nanos();
    u64::try_from(ticks).map_or(TICK_MAX, |ticks| ticks.min(TICK_MAX))
}

fn time_of(tick: u64) -> Duration {
    Duration::from_millis(tick)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use sakia_driver::CURRENT_POSITION;

    use super::*;
    use crate::executor::current;
    use crate::time::{now, sleep};

    #[test]
    fn deadlines_are_rounded_up_and_the_present_down() {
        for (nanos, up, down) in [(0, 0, 0), (1, 1, 0), (1_000_000, 1, 1), (1_000_001, 2, 1)] {
            let time = Duration::from_nanos(nanos);
            assert_eq!((tick_from(time), ticks_until(time)), (up, down));
        }
        assert_eq!((tick_from(Duration::MAX), ticks_until(Duration::MAX)), (TICK_MAX, TICK_MAX));
        assert_eq!(time_of(tick_from(TICK * 5)), TICK * 5);
    }

    #[test]
    fn virtual_time_does_not_pass_while_an_operation_is_in_flight() -> std::io::Result<()> {
        let runtime = crate::Runtime::builder().virtual_time(true).build()?;
        let (reader, mut writer) = std::io::pipe()?;
        // The write is late, so that the runtime has nothing else to do; otherwise the test proves less.
        let writing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            writer.write_all(b"x")
        });
        runtime.block_on(async {
            let begin = now();
            let timer = crate::spawn(sleep(TICK));
            let driver = &current().driver;
            let reader = driver.adopt(OwnedFd::from(reader));
            let (result, _) = driver.read(&reader, vec![0; 1], CURRENT_POSITION).await;
            assert_eq!(result.ok(), Some(1));
            assert_eq!(begin.elapsed(), Duration::ZERO);
            assert!(timer.await.is_ok());
            assert_eq!(begin.elapsed(), TICK);
        });
        writing.join().expect("it does not panic")
    }
}
