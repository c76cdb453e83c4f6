//! Tasks that sleep, tick and give up, at the times that a model computes.
//!
//! The model knows no wheel and no loop. It adds up a task's waits: a wait for a time that has come takes
//! none, and any other ends with the millisecond into which its time falls. From that come the time and the
//! outcome of each step, and the deadlines that are open at any moment, of which a foreign loop is told the
//! first.

use std::cell::RefCell;
use std::fmt::Write;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sakia::time::{
    Instant, Interval, MissedTicks, Sleep, interval, interval_at, now, sleep, sleep_until, timeout,
    timeout_at,
};
use sakia::{Runtime, select, spawn, yield_now};
use sakia_testkit::random::{Random, programs};

/// A time in microseconds.
type Micros = u64;

/// A step of a task. Times are from now, or from the beginning if they are called `at`.
#[derive(Clone, Copy, Debug)]
enum Step {
    Yield,
    Sleep(Micros),
    SleepUntil {
        at: Micros,
    },
    /// Waits for a sleep, with a limit.
    Timeout {
        limit: Micros,
        sleep: Micros,
    },
    TimeoutAt {
        at: Micros,
        sleep: Micros,
    },
    /// Waits for the first of two sleeps.
    Race(Micros, Micros),
    /// Makes the task's interval.
    Interval {
        start: Option<Micros>,
        period: Micros,
        missed: MissedTicks,
    },
    Tick,
    TimeoutTick {
        limit: Micros,
    },
    Missed(MissedTicks),
    ResetInterval,
    /// Makes the task's watchdog, and polls it, so that its timer runs beside what the task does next.
    Watch(Micros),
    ResetWatch(Micros),
    AwaitWatch,
    DropWatch,
}

/// A step of one of the tasks.
type Tagged = (usize, Step);

const TASKS: u64 = 4;
/// A time that no test waits for.
const ENDLESS: Micros = 1 << 50;

fn span(random: &mut Random) -> Micros {
    match random.below(8) {
        0 => 0,
        1 => random.below(1000),
        2 => 1000 * random.below(200),
        3 => random.below(20_000_000),
        _ => 1000 * random.below(12),
    }
}

fn program(random: &mut Random) -> Vec<Tagged> {
    let missed = |random: &mut Random| {
        random.one_of(&[MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip])
    };
    let step = |random: &mut Random| match random.below(18) {
        0 => Step::Yield,
        1 | 2 => Step::Sleep(span(random)),
        3 => Step::SleepUntil { at: span(random) * random.below(4) },
        4 | 5 => Step::Timeout { limit: span(random), sleep: span(random) },
        6 => Step::TimeoutAt { at: span(random) * random.below(4), sleep: span(random) },
        7 => Step::Race(span(random), random.one_of(&[1000, 3000, ENDLESS])),
        8 => {
            let start = random.percent(60).then(|| span(random));
            Step::Interval { start, period: span(random).max(1), missed: missed(random) }
        }
        9..=11 => Step::Tick,
        12 => Step::TimeoutTick { limit: span(random) },
        13 => Step::Missed(missed(random)),
        14 => Step::ResetInterval,
        15 => Step::Watch(if random.percent(10) { ENDLESS } else { span(random) }),
        16 => Step::ResetWatch(span(random)),
        _ => random.one_of(&[Step::AwaitWatch, Step::DropWatch]),
    };
    let count = 1 + random.below(60);
    (0..count).map(|_| (random.below(TASKS) as usize, step(random))).collect()
}

/// The lines that each task has written.
type Logs = Vec<String>;

// ---- the program -------------------------------------------------------------------------------

/// The state of a task.
struct Task {
    begin: Instant,
    ticks: Interval,
    watch: Option<Pin<Box<Sleep>>>,
}

fn micros(count: Micros) -> Duration {
    Duration::from_micros(count)
}

impl Task {
    async fn perform(&mut self, step: Step) -> String {
        match step {
            Step::Yield => yield_now().await,
            Step::Sleep(time) => sleep(micros(time)).await,
            Step::SleepUntil { at } => sleep_until(self.begin + micros(at)).await,
            Step::Timeout { limit, sleep: time } => {
                return format!("{}", timeout(micros(limit), sleep(micros(time))).await.is_ok());
            }
            Step::TimeoutAt { at, sleep: time } => {
                let deadline = self.begin + micros(at);
                return format!("{}", timeout_at(deadline, sleep(micros(time))).await.is_ok());
            }
            Step::Race(one, other) => select! {
                () = sleep(micros(one)) => {}
                () = sleep(micros(other)) => {}
            },
            Step::Interval { start, period, missed } => {
                self.ticks = match start {
                    Some(start) => interval_at(now() + micros(start), micros(period)),
                    None => interval(micros(period)),
                };
                self.ticks.set_missed_ticks(missed);
                assert_eq!(self.ticks.missed_ticks(), missed);
            }
            Step::Tick => {
                let due = self.ticks.tick().await;
                return self.since(due);
            }
            Step::TimeoutTick { limit } => {
                let tick = timeout(micros(limit), self.ticks.tick()).await;
                return tick.map_or("none".to_owned(), |due| self.since(due));
            }
            Step::Missed(missed) => self.ticks.set_missed_ticks(missed),
            Step::ResetInterval => self.ticks.reset(),
            Step::Watch(time) => {
                let mut watch = Box::pin(sleep(micros(time)));
                poll_fn(|cx| Poll::Ready(watch.as_mut().poll(cx).is_ready())).await;
                self.watch = Some(watch);
            }
            Step::ResetWatch(time) => {
                let Some(watch) = &mut self.watch else { return String::new() };
                watch.as_mut().reset(now() + micros(time));
                assert!(!watch.is_elapsed());
            }
            Step::AwaitWatch => {
                let Some(watch) = &mut self.watch else { return String::new() };
                // One that never comes is not waited for.
                if watch.deadline() - self.begin < micros(ENDLESS / 2) {
                    watch.as_mut().await;
                    assert!(watch.is_elapsed());
                }
            }
            Step::DropWatch => self.watch = None,
        }
        String::new()
    }

    fn since(&self, due: Instant) -> String {
        format!("{}", (due - self.begin).as_micros())
    }
}

/// Starts the tasks. They write their logs as they go.
fn start(runtime: &Runtime, program: &[Tagged]) -> Rc<RefCell<Logs>> {
    let logs = Rc::new(RefCell::new(vec![String::new(); TASKS as usize]));
    let main = (Rc::clone(&logs), program.to_vec());
    let starter = runtime.spawn(async move {
        let (logs, program) = main;
        let begin = now();
        for task in 0..TASKS as usize {
            let steps: Vec<Step> =
                program.iter().filter(|(of, _)| *of == task).map(|(_, step)| *step).collect();
            let logs = Rc::clone(&logs);
            spawn(async move {
                let mut state =
                    Task { begin, ticks: interval(Duration::from_millis(5)), watch: None };
                for step in steps {
                    let outcome = state.perform(step).await;
                    let log = &mut logs.borrow_mut()[task];
                    writeln!(log, "{}: {outcome}", begin.elapsed().as_micros()).unwrap();
                }
            })
            .detach();
        }
    });
    starter.detach();
    logs
}

// ---- the model ---------------------------------------------------------------------------------

/// A part of a task's life in which the same deadlines are open.
struct Part {
    until: Micros,
    deadlines: Vec<Micros>,
}

/// A task as the model has it.
struct Modeled {
    now: Micros,
    /// When the next tick is due.
    due: Micros,
    period: Micros,
    missed: MissedTicks,
    /// It was waited for in vain, and keeps its timer.
    is_awaited: bool,
    /// The watchdog's deadline, and whether it has a timer: from a poll in vain to one that finds it over.
    watch: Option<(Micros, bool)>,
    parts: Vec<Part>,
    log: String,
}

/// The end of the millisecond into which a time falls.
fn fires(at: Micros) -> Micros {
    at.next_multiple_of(1000)
}

impl Modeled {
    fn new() -> Self {
        let (due, period) = (0, 5000);
        let (missed, is_awaited, watch) = (MissedTicks::Burst, false, None);
        let (parts, log) = (Vec::new(), String::new());
        Self { now: 0, due, period, missed, is_awaited, watch, parts, log }
    }

    /// Waits until the first of these times.
    fn wait(&mut self, times: &[Micros]) {
        let first = *times.iter().min().unwrap();
        if first <= self.now {
            return;
        }
        let until = fires(first);
        let watch = self.watch.and_then(|(at, has_timer)| has_timer.then_some(at));
        let tick = self.is_awaited.then_some(self.due);
        let beside = watch.into_iter().chain(tick).filter(|&at| at > self.now);
        let deadlines = times.iter().copied().chain(beside).map(fires).collect();
        self.parts.push(Part { until, deadlines });
        self.now = until;
    }

    /// Takes the tick that is due, and returns its time.
    fn take_tick(&mut self) -> Micros {
        let due = self.due;
        self.is_awaited = false;
        self.due = match self.missed {
            // The next one is not due yet.
            _ if self.now < due + self.period => due + self.period,
            MissedTicks::Burst => due + self.period,
            MissedTicks::Delay => self.now + self.period,
            MissedTicks::Skip => {
                let mut next = due;
                // By steps, as a reader would count them.
                while next <= self.now {
                    next += self.period * (((self.now - next) / self.period).max(1));
                }
                next
            }
        };
        due
    }

    fn perform(&mut self, step: Step) -> String {
        let now = self.now;
        match step {
            Step::Yield => {}
            Step::Sleep(time) => self.wait(&[now + time]),
            Step::SleepUntil { at } => self.wait(&[at]),
            Step::Timeout { limit, sleep } => return self.limited(now + limit, now + sleep),
            Step::TimeoutAt { at, sleep } => return self.limited(at, now + sleep),
            Step::Race(one, other) => self.wait(&[now + one, now + other]),
            Step::Interval { start, period, missed } => {
                (self.due, self.period, self.missed) = (now + start.unwrap_or(0), period, missed);
                self.is_awaited = false;
            }
            Step::Tick => {
                self.wait(&[self.due]);
                return self.take_tick().to_string();
            }
            Step::TimeoutTick { limit } => {
                self.wait(&[self.due, now + limit]);
                // At the end of one millisecond both are over, and the tick is looked at first.
                if fires(self.due) > self.now {
                    self.is_awaited = true;
                    return "none".to_owned();
                }
                return self.take_tick().to_string();
            }
            Step::Missed(missed) => self.missed = missed,
            Step::ResetInterval => self.due = now + self.period,
            Step::Watch(time) => self.watch = Some((now + time, time > 0)),
            Step::ResetWatch(time) => {
                self.watch = self.watch.map(|(_, has_timer)| (now + time, has_timer));
            }
            Step::AwaitWatch => {
                if let Some((at, _)) = self.watch
                    && at < ENDLESS / 2
                {
                    self.wait(&[at]);
                    self.watch = Some((at, false));
                }
            }
            Step::DropWatch => self.watch = None,
        }
        String::new()
    }

    fn limited(&mut self, limit: Micros, sleep: Micros) -> String {
        self.wait(&[limit, sleep]);
        // Both in one millisecond: the future is looked at first.
        (fires(sleep) <= self.now).to_string()
    }
}

/// Returns the state of each task after its last step.
fn modeled(program: &[Tagged]) -> Vec<Modeled> {
    let mut tasks: Vec<_> = (0..TASKS).map(|_| Modeled::new()).collect();
    for &(task, step) in program {
        let task = &mut tasks[task];
        let outcome = task.perform(step);
        writeln!(task.log, "{}: {outcome}", task.now).unwrap();
    }
    tasks
}

fn compare(program: &[Tagged], logs: &Logs) -> Option<String> {
    let expected = modeled(program).into_iter().map(|task| task.log);
    let mut pairs = expected.zip(logs).enumerate();
    let (task, (expected, is)) = pairs.find(|(_, (expected, is))| expected != *is)?;
    Some(format!("task {task} of the model:\n{expected}\nit is:\n{is}"))
}

fn virtual_runtime() -> Runtime {
    Runtime::builder().virtual_time(true).build().unwrap()
}

#[test]
fn waits_end_when_they_should() {
    programs(1000, program, |program| {
        let runtime = virtual_runtime();
        let logs = start(&runtime, program);
        runtime.block_on(async {
            while runtime.live_tasks() > 0 {
                sleep(Duration::from_secs(1)).await;
            }
        });
        compare(program, &logs.borrow())
    });
}

/// A foreign loop learns of the first deadline that is open, and of no other; it may sleep for less.
#[test]
fn a_foreign_loop_is_told_the_first_deadline() {
    programs(1000, program, |program| {
        let runtime = virtual_runtime();
        let logs = start(&runtime, program);
        let model = modeled(program);
        let mut time = 0;
        let mut impatience = Random::new(program.len() as u64);
        loop {
            while runtime.run_once(Duration::ZERO).unwrap() {}
            let open = model.iter().filter_map(|task| {
                let part = task.parts.iter().find(|part| part.until > time)?;
                part.deadlines.iter().filter(|&&at| at > time).min()
            });
            let first = open.min().map(|&at| at - time);
            let told = runtime.next_timer().map(|left| left.as_micros() as Micros);
            if told != first {
                return Some(format!("at {time} the next timer is in {told:?}, not in {first:?}"));
            }
            let Some(first) = first else { break };
            // Sometimes the loop has other things to do before.
            let limit = if impatience.percent(30) { 1 + impatience.below(first) } else { ENDLESS };
            runtime.run_once(micros(limit)).unwrap();
            time += first.min(limit);
        }
        if runtime.live_tasks() > 0 {
            return Some(format!("{} tasks wait for nothing", runtime.live_tasks()));
        }
        compare(program, &logs.borrow())
    });
}
