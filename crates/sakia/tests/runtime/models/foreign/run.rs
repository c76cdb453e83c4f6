//! A run of a program: on the runtime's own loop, and in a foreign one.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use sakia::inspect::{Lane, OpKind, Warning, Warnings};
use sakia::io::PipeReader;
use sakia::time::timeout;
use sakia::{Runtime, spawn, yield_now};
use sakia_driver::Policy;
use sakia_testkit::random::Random;

use super::tasks::{Census, End, Far, Helpers, Near, Outbox, TellsItsEnd, World, await_handle};
use super::{
    Act, LONG, Limit, Moment, Owner, Plan, STUCK, Step, TASKS, Way, compare, compare_warnings,
};
use crate::files::TempDir;

/// A program that runs.
pub(super) struct Run<'a> {
    plan: &'a Plan,
    helpers: &'a Helpers,
    patience: Duration,
    runtime: Runtime,
    world: Rc<World>,
    fars: Vec<Arc<Far>>,
    /// The same, once all have started.
    started: Arc<OnceLock<Vec<Arc<Far>>>>,
    logs: Vec<Rc<RefCell<Vec<u32>>>>,
    warnings: Arc<Mutex<Vec<Warning>>>,
    /// Wait for handles.
    threads: Vec<Option<thread::JoinHandle<End>>>,
    ends_in_tasks: Vec<Rc<Cell<End>>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        helpers: &'a Helpers,
        policy: Policy,
        patience: Duration,
    ) -> Self {
        let census = Arc::new(Census::default());
        let opens = plan.steps.iter().flatten().any(|step| *step == Step::Open);
        let fifo = opens.then(|| {
            let folder = TempDir::new();
            let path = folder.join("fifo");
            mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
            (folder, path)
        });
        let (warnings, started) = (Arc::default(), Arc::default());
        let path = fifo.as_ref().map(|(_, path)| path.clone());
        let settings = limits(plan, tell(plan, path, &warnings, &census, (helpers, &started)));
        let builder = Runtime::builder().backend(policy).warnings(settings);
        let world =
            World { census, sleeps: RefCell::default(), is_opening: Cell::new(false), fifo };
        let mut run = Self {
            plan,
            helpers,
            patience,
            runtime: builder.build().unwrap(),
            world: Rc::new(world),
            fars: Vec::new(),
            started,
            logs: Vec::new(),
            warnings,
            threads: Vec::new(),
            ends_in_tasks: Vec::new(),
        };
        (0..TASKS).for_each(|task| run.start(task));
        run.started.get_or_init(|| run.fars.clone());
        run
    }

    fn start(&mut self, task: usize) {
        let (sender, receiver) = mpsc::channel();
        let (reader, writer) = io::pipe().unwrap();
        let far = Arc::new(Far {
            outbox: Mutex::new(Outbox { sender, sent: 0, writer, written: 0 }),
            waker: Mutex::default(),
            past: Mutex::default(),
            is_reading: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            handle: Mutex::default(),
        });
        let log = Rc::default();
        let tells = TellsItsEnd(Arc::clone(&far));
        let near = (Arc::clone(&far), Rc::clone(&self.world), receiver, Rc::clone(&log));
        let steps = self.plan.steps[task].clone();
        // In a task, where a reader may be made.
        let main = async move {
            let _tells = tells;
            let (far, world, receiver, log) = near;
            let reader = PipeReader::from_fd(reader.into());
            let mut near = Near { far, world, receiver, reader, log };
            for step in steps {
                let value = near.perform(step).await;
                near.log.borrow_mut().push(value);
            }
            let len = near.log.borrow().len();
            len as u32
        };
        let handle = self.runtime.spawn(self.world.census.count(main));
        let owner = self.plan.owners[task];
        let end = Rc::new(Cell::new(End::Unknown));
        *far.handle.lock().unwrap() = Some(handle).filter(|_| owner != Owner::None);
        let awaiting = (Arc::clone(&far), Rc::clone(&end));
        if owner == Owner::Task {
            let awaiting = async move {
                let result = poll_fn(|cx| awaiting.0.poll_handle(cx)).await;
                awaiting.1.set(End::of(result.unwrap()));
            };
            self.runtime.spawn(self.world.census.count(awaiting)).detach();
        }
        self.threads.push((owner == Owner::Thread).then(|| {
            let (far, patience) = (Arc::clone(&far), 2 * self.patience);
            thread::spawn(move || await_handle(&far, patience))
        }));
        self.ends_in_tasks.push(end);
        self.fars.push(far);
        self.logs.push(log);
    }

    /// Performs an act on the thread of the loop. Returns whether the runtime has something to do.
    fn act_here(&self, task: usize, act: Act) -> bool {
        match act {
            Act::Spawn => {
                self.runtime.spawn(self.world.census.count(yield_now())).detach();
                true
            }
            Act::BlockOn => {
                let is_due = Rc::default();
                let sends = SendsAtItsEnd(Arc::clone(&self.fars[task]), Rc::clone(&is_due));
                let mut yields = Box::pin(yield_now());
                self.runtime.block_on(self.world.census.count(poll_fn(move |cx| {
                    let _held = &sends;
                    yields.as_mut().poll(cx)
                })));
                is_due.get()
            }
            act => self.fars[task].act(act),
        }
    }

    // ---- the runtime's own loop ----

    pub(super) fn on_its_own_loop(&self) -> Result<(), String> {
        let acts = self.plan.acts.iter().take(self.plan.drop_after.unwrap_or(usize::MAX));
        let census = Arc::clone(&self.world.census);
        let main = async {
            for (number, &(task, act, moment)) in acts.enumerate() {
                let far = Arc::clone(&self.fars[task]);
                match (act, moment) {
                    (Act::Spawn, _) => spawn(census.count(yield_now())).detach(),
                    (Act::BlockOn, _) => yield_now().await,
                    (_, Moment::Here) => _ = far.act(act),
                    _ => {
                        self.helpers.begin(number, move || _ = far.act(act));
                        yield_now().await;
                    }
                }
            }
            if self.plan.drop_after.is_some() {
                return true;
            }
            let all_over = poll_fn(|cx| {
                *census.waker.lock().unwrap() = Some(cx.waker().clone());
                // This future is one of them.
                if census.live() == 1 { Poll::Ready(()) } else { Poll::Pending }
            });
            timeout(self.patience, all_over).await.is_ok()
        };
        let is_over = self.runtime.block_on(census.count(main));
        if is_over { Ok(()) } else { Err("tasks wait on the runtime's own loop".to_owned()) }
    }

    // ---- a foreign loop ----

    pub(super) fn in_a_foreign_loop(&self) -> Result<(), String> {
        let begin = Instant::now();
        if self.plan.is_late {
            self.turn()?;
        }
        let foreign = Foreign::new(&self.runtime, self.plan.way);
        let mut runs_before = true;
        for (number, &(task, act, moment)) in self.plan.acts.iter().enumerate() {
            if self.plan.drop_after.is_some_and(|acts| acts <= number) {
                return Ok(());
            }
            let far = Arc::clone(&self.fars[task]);
            let moment = match act {
                Act::Spawn | Act::BlockOn => Moment::Here,
                _ => moment,
            };
            match moment {
                Moment::BeforeARun => _ = self.helpers.finish(number, move || far.act(act)),
                Moment::AnyTime => self.helpers.begin(number, move || _ = far.act(act)),
                _ => {}
            }
            if runs_before {
                self.turn()?;
            }
            runs_before = act != Act::BlockOn;
            let far = Arc::clone(&self.fars[task]);
            let is_due = match moment {
                Moment::BeforeARun | Moment::AnyTime => false,
                Moment::BeforeTheSleep => self.helpers.finish(number, move || far.act(act)),
                Moment::Here => self.act_here(task, act),
                Moment::Asleep if foreign.way == Way::RunOnce => {
                    // It hears nothing else, so it sleeps for a moment only.
                    self.helpers.begin(number, move || _ = far.act(act));
                    self.runtime.run_once(Duration::from_micros(500)).unwrap();
                    false
                }
                Moment::Asleep => {
                    let mut news = foreign.news.try_clone().unwrap();
                    self.helpers.begin(number, move || {
                        if !far.act(act) {
                            // The loop may have ended with its runtime.
                            let _ = news.write_all(b"x");
                        }
                    });
                    true
                }
            };
            if is_due {
                self.sleep(&foreign)?;
                runs_before = true;
            }
        }
        self.turn()?;
        while self.world.census.live() > 0 {
            self.sleep(&foreign)?;
            self.turn()?;
            if begin.elapsed() > 2 * self.patience {
                return Err("tasks wait in a loop that does not sleep".to_owned());
            }
        }
        self.helpers.finish_all();
        for _ in 0..10 {
            self.turn()?;
            if !foreign.is_readable() {
                return Ok(());
            }
        }
        Err("readable all the time, for nothing".to_owned())
    }

    /// Runs the runtime until it has nothing to do, and compares its next timer.
    fn turn(&self) -> Result<(), String> {
        while self.runtime.run_once(Duration::ZERO).unwrap() {}
        let now = Instant::now();
        let told = self.runtime.next_timer();
        let sleeps = self.world.sleeps.borrow();
        let first = sleeps.iter().min().map(|at| at.saturating_duration_since(now));
        // A timer fires with the end of its millisecond.
        let first = first.map(|left| left + Duration::from_millis(1));
        let is_right = match (told, first) {
            (Some(told), Some(first)) => told <= first,
            (told, None) => told.is_none() || self.world.is_opening.get(),
            (None, Some(_)) => false,
        };
        if is_right {
            Ok(())
        } else {
            Err(format!("the next timer is {told:?}, not before {first:?}"))
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&self, foreign: &Foreign) -> Result<(), String> {
        let timer = self.runtime.next_timer();
        let limit = timer.map_or(self.patience, |left| left.min(self.patience));
        if foreign.sleep(&self.runtime, limit) || timer.is_some_and(|left| left < self.patience) {
            return Ok(());
        }
        let live = self.world.census.live();
        Err(format!("nobody told the foreign loop, in which {live} futures wait"))
    }

    // ---- the end ----

    /// Drops the runtime, and compares the outcome with the plan's.
    pub(super) fn end(self, result: Result<(), String>) -> Result<(), String> {
        let Self { plan, helpers, world, fars, runtime, .. } = self;
        let unknown = runtime.counters().stale;
        drop(runtime);
        let left = plan.acts.iter().skip(plan.drop_after.unwrap_or(plan.acts.len()));
        for (number, &(task, act, _)) in left.enumerate() {
            let far = Arc::clone(&fars[task]);
            helpers.finish(number, move || far.act(act));
        }
        for (number, far) in fars.iter().enumerate() {
            let far = Arc::clone(far);
            helpers.finish(number, move || {
                far.act(Act::WakeAgain);
                far.past.lock().unwrap().clear();
            });
        }
        helpers.finish_all();
        let awaited = self.threads.into_iter().map(|thread| thread.map(|its| its.join().unwrap()));
        let awaited: Vec<_> = awaited.collect();
        result?;
        for (task, end) in awaited.into_iter().enumerate() {
            let end = match (plan.owners[task], end) {
                (_, Some(end)) => end,
                (Owner::Task, _) => self.ends_in_tasks[task].get(),
                _ => await_handle(&fars[task], self.patience),
            };
            compare(plan, task, &self.logs[task].borrow(), end)?;
        }
        if world.census.live() > 0 {
            return Err(format!("{} futures were not dropped", world.census.live()));
        }
        if unknown > 0 {
            return Err(format!("{unknown} completions were unknown"));
        }
        compare_warnings(plan, &self.warnings.lock().unwrap(), &world.census)
    }
}

fn limits(plan: &Plan, warnings: Warnings) -> Warnings {
    let none = warnings.turn(None).operation(None).lane(None);
    match plan.limit {
        Limit::Off => Warnings::off(),
        Limit::Zero => none.turn(Duration::ZERO),
        Limit::Long => none.turn(LONG),
        Limit::Endless => none.turn(Duration::MAX),
        Limit::Lane => none.lane(STUCK),
    }
}

/// Returns a callback that keeps the warnings, opens the other end of the FIFO, starts tasks, and has another
/// thread send to them meanwhile.
fn tell(
    plan: &Plan,
    fifo: Option<PathBuf>,
    list: &Arc<Mutex<Vec<Warning>>>,
    census: &Arc<Census>,
    (helpers, fars): (&Helpers, &Arc<OnceLock<Vec<Arc<Far>>>>),
) -> Warnings {
    let (list, census) = (Arc::clone(list), Arc::clone(census));
    let (helpers, fars) = (helpers.clone(), Arc::clone(fars));
    let spawns = plan.spawns;
    Warnings::callback(move |warning| {
        let number = {
            let mut list = list.lock().unwrap();
            list.push(warning.clone());
            list.len()
        };
        if is_of_the_fifo(warning) {
            let path = fifo.clone().unwrap();
            thread::spawn(move || drop(OpenOptions::new().write(true).open(path).unwrap()));
        }
        // Not for ever: these tasks cause warnings, too.
        let draw = |seed: u64| Random::new(seed + number as u64).percent(15);
        if number < 200 && spawns.is_some_and(draw) {
            spawn(census.count(yield_now())).detach();
            let far = Arc::clone(&fars.get().unwrap()[number % TASKS]);
            helpers.finish(number, move || far.act(Act::Send));
        }
    })
}

/// Returns whether the open of the FIFO is told. On a busy machine its lookup is, too.
pub(super) fn is_of_the_fifo(warning: &Warning) -> bool {
    match warning {
        Warning::Lane { lane, operation, .. } => {
            *lane == Lane::Elastic && operation.kind == OpKind::Open
        }
        _ => false,
    }
}

/// Sends to a task when it is dropped, and keeps whether that is due.
struct SendsAtItsEnd(Arc<Far>, Rc<Cell<bool>>);

impl Drop for SendsAtItsEnd {
    fn drop(&mut self) {
        self.1.set(self.0.act(Act::Send));
    }
}

/// The foreign loop's descriptors.
struct Foreign {
    pollable: OwnedFd,
    edges: Option<OwnedFd>,
    way: Way,
    /// Tells the loop that something has happened that is not the runtime's.
    news: io::PipeWriter,
    reader: RefCell<io::PipeReader>,
}

impl Foreign {
    fn new(runtime: &Runtime, way: Way) -> Self {
        let pollable = runtime.pollable().unwrap();
        let (reader, news) = io::pipe().unwrap();
        let edges = (way == Way::Edges).then(|| {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&set, &pollable, epoll::EventData::new_u64(0), flags).unwrap();
            set
        });
        Self { pollable, edges, way, news, reader: RefCell::new(reader) }
    }

    fn is_readable(&self) -> bool {
        poll(&mut [PollFd::new(&self.pollable, PollFlags::IN)], Some(&Timespec::default())).unwrap()
            == 1
    }

    /// Sleeps until a descriptor is readable. Returns whether one is.
    fn sleep(&self, runtime: &Runtime, limit: Duration) -> bool {
        if self.way == Way::RunOnce {
            let begin = Instant::now();
            runtime.run_once(limit).unwrap();
            return begin.elapsed() < limit;
        }
        let mut reader = self.reader.borrow_mut();
        let watched = self.edges.as_ref().unwrap_or(&self.pollable).as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(watched, PollFlags::IN),
            PollFd::new(&*reader, PollFlags::IN),
        ];
        let count = poll(&mut fds, Some(&limit.try_into().unwrap())).unwrap();
        let has_news = !fds[1].revents().is_empty();
        if let Some(set) = &self.edges {
            let mut events = Vec::with_capacity(1);
            epoll::wait(
                set,
                rustix::buffer::spare_capacity(&mut events),
                Some(&Timespec::default()),
            )
            .unwrap();
        }
        if has_news {
            reader.read_exact(&mut [0]).unwrap();
        }
        count > 0
    }
}
