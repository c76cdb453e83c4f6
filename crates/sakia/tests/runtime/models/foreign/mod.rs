//! The same program on a runtime's own loop and in a foreign one, on each backend.
//!
//! Tasks receive from `std` channels, read pipes, sleep, start children and blocking code, keep their thread,
//! and open a FIFO that occupies a lane. Other threads send, write, abort and use old wakers: before a run,
//! between a run and the sleep of the foreign loop, during that sleep, at any time, and after the runtime's
//! end. The program itself does the same between two runs, starts tasks there, and calls `block_on`. Handles
//! are awaited by tasks, by other threads, and after the runtime's end.
//!
//! All runs must have the values that the steps alone determine. Where a task is aborted or the runtime is
//! dropped early, they are the first of these values.
//! - A foreign loop sleeps until the descriptor is readable or `next_timer` has passed. If neither tells of
//!   the runtime's work, the loop sleeps too long: the only limit by time here. `next_timer` is compared with
//!   the deadlines of the open sleeps; without any it must be `None`.
//! - Warnings of turns with the limit 0 tell of each poll once: the numbers of polls in them add up to that
//!   of all polls. With a limit that some polls exceed, the turns of these are told. An operation on a lane
//!   is told once, and waits for that: its peer comes with the warning.
//! - At the end the descriptor is quiet, each future was dropped once, on its thread, and late wakes have no
//!   effect.
//!
//! Left out: warnings of operations that end by themselves, which no step can hold up; the simulated kernel,
//! which has no other threads; and runtimes of several threads.

mod run;
mod tasks;

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sakia::inspect::Warning;
use sakia_driver::Policy;
use sakia_testkit::random::{Random, programs};
use sakia_testkit::settings::patience;

use self::run::{Run, is_of_the_fifo};
use self::tasks::{Census, End, Helpers};

const TASKS: usize = 3;
/// The limit of a turn in programs that warn of long ones, and the time for which tasks keep their thread.
const LONG: Duration = Duration::from_micros(300);
/// The limit of an operation on a lane.
const STUCK: Duration = Duration::from_millis(1);
/// The patience with a program that has failed before.
const PATIENCE_AGAIN: Duration = Duration::from_millis(500);

/// A step of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Yield,
    /// In microseconds.
    Sleep(u64),
    Receive,
    Read,
    Child,
    Blocking,
    /// More plain calls at once than a turn makes.
    Crowd,
    Hold,
    /// Opens a FIFO, whose other end is opened when there is a warning.
    Open,
}

/// An act from outside, for a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Send,
    Write,
    Abort,
    /// Uses the wakers of past waits.
    WakeAgain,
    /// The program starts a task between two runs.
    Spawn,
    /// The program calls `block_on` between two runs, with a future whose drop sends to the task. It does not
    /// run the runtime before its next act.
    BlockOn,
}

/// The moment of an act. On the runtime's own loop only `Here` differs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    BeforeARun,
    BeforeTheSleep,
    Asleep,
    AnyTime,
    /// By the thread of the loop, between two runs.
    Here,
}

/// The limits of warnings.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Off,
    /// Each turn is told.
    Zero,
    Long,
    Endless,
    Lane,
}

/// The sleep of the foreign loop.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Poll,
    /// An epoll set that reports edges.
    Edges,
    RunOnce,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    /// Awaits it after the runtime's end.
    Main,
    Thread,
    Task,
    None,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Step(usize, Step),
    Act(usize, Act, Moment),
    Limit(Limit),
    /// Warnings that this seed selects start a task, and have another thread send to one.
    Spawns(u64),
    Way {
        way: Way,
        /// The descriptor is made after the first run.
        is_late: bool,
    },
    Owner(usize, Owner),
    /// The runtime is dropped after this number of acts.
    DropAfter(usize),
}

fn program(random: &mut Random) -> Vec<Item> {
    let mut items = vec![
        Item::Limit(random.one_of(&[
            Limit::Off,
            Limit::Zero,
            Limit::Zero,
            Limit::Long,
            Limit::Endless,
        ])),
        Item::Spawns(random.below(1 << 32)),
        Item::Way {
            way: random.one_of(&[Way::Poll, Way::Poll, Way::Edges, Way::RunOnce]),
            is_late: random.percent(30),
        },
    ];
    for task in 0..TASKS {
        let owner =
            random.one_of(&[Owner::Main, Owner::Main, Owner::Thread, Owner::Task, Owner::None]);
        items.push(Item::Owner(task, owner));
    }
    let may_abort = random.percent(20);
    if random.percent(15) {
        items.push(Item::DropAfter(random.below(8) as usize));
    }
    if random.percent(20) {
        items.extend([Item::Limit(Limit::Lane), Item::Step(0, Step::Open)]);
    }
    for _ in 0..1 + random.below(16) {
        let task = random.below(TASKS as u64) as usize;
        let step = match random.below(16) {
            0 => Step::Yield,
            1 => Step::Sleep(random.below(1500)),
            2 | 3 => Step::Read,
            4 => Step::Child,
            5 => Step::Blocking,
            6 => random.one_of(&[Step::Hold, Step::Crowd]),
            7 | 8 => Step::Open,
            _ => Step::Receive,
        };
        items.push(Item::Step(task, step));
    }
    for _ in 0..random.below(16) {
        let task = random.below(TASKS as u64) as usize;
        let moment = random.one_of(&[
            Moment::BeforeARun,
            Moment::BeforeTheSleep,
            Moment::Asleep,
            Moment::AnyTime,
            Moment::Here,
        ]);
        let act = match random.below(16) {
            0..=6 => Act::Send,
            7..=9 => Act::Write,
            10 if may_abort => Act::Abort,
            10..=12 => Act::WakeAgain,
            13 => Act::Spawn,
            _ => Act::BlockOn,
        };
        items.push(Item::Act(task, act, moment));
    }
    items
}

/// A program as it is run: each step has what it waits for.
#[derive(Debug)]
struct Plan {
    steps: [Vec<Step>; TASKS],
    acts: Vec<(usize, Act, Moment)>,
    limit: Limit,
    spawns: Option<u64>,
    way: Way,
    is_late: bool,
    owners: [Owner; TASKS],
    drop_after: Option<usize>,
}

impl Plan {
    fn new(items: &[Item]) -> Self {
        let mut plan = Self {
            steps: Default::default(),
            acts: Vec::new(),
            limit: Limit::Off,
            spawns: None,
            way: Way::Poll,
            is_late: false,
            owners: [Owner::Main; TASKS],
            drop_after: None,
        };
        for item in items {
            match *item {
                Item::Step(task, step) => plan.steps[task].push(step),
                Item::Act(task, act, moment) => plan.acts.push((task, act, moment)),
                Item::Limit(limit) => plan.limit = limit,
                Item::Spawns(seed) => plan.spawns = Some(seed),
                Item::Way { way, is_late } => (plan.way, plan.is_late) = (way, is_late),
                Item::Owner(task, owner) => plan.owners[task] = owner,
                Item::DropAfter(acts) => plan.drop_after = Some(acts),
            }
        }
        // One open, so that a warning says which, and no earlier peer is left. An open that is never told
        // would keep a lane's thread.
        let mut may_open =
            plan.limit == Limit::Lane && !(0..TASKS).any(|task| plan.is_cut_short(task));
        for step in plan.steps.iter_mut().flatten().filter(|step| **step == Step::Open) {
            if !may_open {
                *step = Step::Receive;
            }
            may_open = false;
        }
        for task in 0..TASKS {
            for (step, act) in [(Step::Receive, Act::Send), (Step::Read, Act::Write)] {
                let acts = plan.acts.iter().filter(|&&(of, its, _)| of == task && its == act);
                for _ in acts.count()..plan.count(task, step) {
                    plan.acts.push((task, act, Moment::Asleep));
                }
            }
        }
        plan
    }

    fn count(&self, task: usize, step: Step) -> usize {
        self.steps[task].iter().filter(|&&its| its == step).count()
    }

    fn has_aborts(&self) -> bool {
        self.acts.iter().any(|&(_, act, _)| act == Act::Abort)
    }

    /// Returns whether the task may end before its last step.
    fn is_cut_short(&self, task: usize) -> bool {
        let is_aborted = self.acts.iter().any(|&(of, act, _)| of == task && act == Act::Abort);
        is_aborted || self.drop_after.is_some()
    }

    /// Returns the values of a task's steps.
    fn values(&self, task: usize) -> Vec<u32> {
        let (mut received, mut read) = (0.., 0..);
        let value = |step: &Step| match step {
            Step::Yield | Step::Sleep(_) | Step::Crowd | Step::Hold | Step::Open => 0,
            Step::Receive => received.next().unwrap(),
            Step::Read => read.next().unwrap(),
            Step::Child => CHILD,
            Step::Blocking => BLOCKING,
        };
        self.steps[task].iter().map(value).collect()
    }
}

/// More than the plain calls of a turn.
const CROWD: usize = 150;
const CHILD: u32 = 1000;
const BLOCKING: u32 = 1001;

fn compare(plan: &Plan, task: usize, log: &[u32], end: End) -> Result<(), String> {
    let values = plan.values(task);
    let is_cut_short = plan.is_cut_short(task);
    let is_right = values.starts_with(log) && (is_cut_short || values.len() == log.len());
    if !is_right {
        return Err(format!("the values of task {task} are {log:?}, not {values:?}"));
    }
    let is_right = match end {
        End::Value(len) => len as usize == values.len(),
        End::Canceled => is_cut_short,
        // Its runtime may end before.
        End::Unknown => plan.owners[task] == Owner::None || is_cut_short,
        End::Late => false,
    };
    if is_right { Ok(()) } else { Err(format!("the end of task {task} is {end:?} after {log:?}")) }
}

fn compare_warnings(plan: &Plan, told: &[Warning], census: &Census) -> Result<(), String> {
    let folder = file!().trim_end_matches("mod.rs");
    let (mut polls_told, mut time_told, mut lanes) = (0, Duration::ZERO, 0);
    for warning in told {
        match warning {
            Warning::Turn { took, polls, longest, .. } => {
                polls_told += polls;
                time_told += *took;
                let is_right = longest.map_or(*polls == 0, |(task, time)| {
                    *polls > 0 && time <= *took && task.spawned_at.file().starts_with(folder)
                });
                if !is_right {
                    return Err(format!("{warning:?}"));
                }
            }
            Warning::Lane { .. } if plan.limit == Limit::Lane => {
                lanes += u32::from(is_of_the_fifo(warning));
            }
            _ => return Err(format!("{warning:?}")),
        }
    }
    let (polls, opened) =
        (census.polls.load(Ordering::SeqCst), census.opened.load(Ordering::SeqCst));
    let held = *census.held.lock().unwrap();
    let is_right = match plan.limit {
        Limit::Off | Limit::Endless => told.is_empty(),
        // A task that was told to end is given its turn, without a poll.
        Limit::Zero if plan.has_aborts() => polls_told >= polls,
        Limit::Zero => polls_told == polls,
        Limit::Long => time_told >= held && polls_told <= polls + plan.acts.len() as u32,
        Limit::Lane => lanes == opened,
    };
    let expected = format!("{polls} polls, {held:?} held, {opened} opened");
    if is_right { Ok(()) } else { Err(format!("after {expected}: {told:#?}")) }
}

fn a_foreign_loop_does_what_its_own_does(policy: Policy) {
    let helpers = Helpers::new();
    let patience = Cell::new(patience());
    programs(60, program, |items| {
        let plan = Plan::new(items);
        let run = |name: &str, run: &dyn Fn(&Run<'_>) -> Result<(), String>| {
            let running = Run::new(&plan, &helpers, policy, patience.get());
            let result = run(&running);
            let result = running.end(result);
            result.err().map(|failure| format!("{name}: {failure}"))
        };
        let failure = run("its own loop", &|run| run.on_its_own_loop())
            .or_else(|| run("a foreign loop", &|run| run.in_a_foreign_loop()));
        if failure.is_some() {
            patience.set(patience.get().min(PATIENCE_AGAIN));
        }
        failure
    });
}

on_each_backend! {
    a_foreign_loop_does_what_its_own_does
}
