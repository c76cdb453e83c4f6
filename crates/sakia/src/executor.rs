//! One thread's tasks: the queue, the turns, and the inbox for other threads.
//!
//! A task is woken by putting it on its thread's queue: directly when that thread wakes it, through the
//! thread's inbox otherwise. A [round](crate::round) of the loop runs a number of tasks, oldest first, then
//! gives the driver a turn; so neither tasks that always yield nor operations that are always ready keep
//! the others waiting.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use sakia_driver::{Attention, Driver, RemoteWake, Wait, wake_all};
use sakia_ring::Process;
use sakia_task::{Queue, Root, Schedule, ThreadId};
use sakia_trace::{is_on, task_spawned};
use send_wrapper::SendWrapper;
use slab::Slab;

use crate::environment::Environment;
use crate::fairness;
use crate::gate::{Gate, Mail, Runnable};
use crate::inspect::{Observed, Shared};
use crate::join::JoinHandle;
use crate::random;
use crate::remote::Remote;
use crate::results::Results;
use crate::round::Round;
use crate::time::Timers;
use crate::trace::PollRun;

thread_local! {
    /// The runtime that the calling code runs in. It has no destructor, so that a runtime which another
    /// thread-local holds can still end its tasks while the thread ends. It is empty by then, since each call
    /// that enters a runtime also leaves it.
    static CURRENT: RefCell<ManuallyDrop<Option<Rc<Local>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
    /// The address of that runtime's inbox, for quick comparison; null outside of a runtime.
    static CURRENT_REMOTE: Cell<*const Remote> = const { Cell::new(std::ptr::null()) };
    /// The way to make a runtime where one is needed and none is current.
    static MAKE: Cell<Option<Make>> = const { Cell::new(None) };
}

/// The number of calls in this process that have no runtime yet. Only a hint whether to look at this thread's
/// variables, which takes users' code a call for each: a task's start must not pay for that.
static VACANT: AtomicUsize = AtomicUsize::new(0);

/// A way to make the runtime of a call that has none yet, in the process of that call.
#[derive(Clone, Copy)]
struct Make {
    process: Process,
    make: fn() -> Rc<Local>,
}

/// The parts of a runtime thread.
pub(crate) struct Local {
    /// Tasks to run, oldest first.
    queue: Queue<Gate>,
    /// The tasks that have waited: the runtime ends them when it ends.
    tasks: RefCell<Slab<Listed>>,
    /// Tasks that have not ended.
    live: Cell<usize>,
    pub(crate) remote: Arc<Remote>,
    /// The same inbox, as the gates of this thread's tasks share it.
    gate: Root<Arc<Remote>>,
    /// A buffer for mail, reused.
    mail: RefCell<VecDeque<Mail>>,
    pub(crate) driver: Driver,
    /// The surroundings of the driver.
    pub(crate) environment: Box<dyn Environment>,
    /// Shared with the futures that wait for them, which may outlive the runtime.
    pub(crate) timers: Rc<Timers>,
    pub(crate) attention: Attention,
    pub(crate) round: Round,
    /// Wakes of tasks on other threads.
    pub(crate) results: Results,
    /// How long an idle thread looks for work before it sleeps.
    pub(crate) spin: Cell<Duration>,
    /// The inboxes of all threads of the runtime, this one's included.
    pub(crate) threads: Arc<[Arc<Remote>]>,
    /// Bookkeeping for inspection and warnings, if either is on. Set before the first task runs.
    pub(crate) observed: OnceCell<Box<Observed>>,
    /// The inspector's view of all threads of the runtime.
    pub(crate) shown: Arc<Shared>,
}

/// A task that has waited.
struct Listed {
    waker: Waker,
    /// The source location that spawned it.
    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "told on the simulated kernel"))]
    spawned_at: &'static Location<'static>,
}

/// Returns the runtime that the calling code runs in.
///
/// # Panics
/// Outside of one.
pub(crate) fn current() -> Rc<Local> {
    try_current().unwrap_or_else(|| make_current())
}

/// Makes the runtime of a call that has none yet.
#[cold]
#[track_caller]
fn make_current() -> Rc<Local> {
    let Some(Make { make, .. }) = MAKE.get() else { outside() };
    let local = make();
    set_current(Some(Rc::clone(&local)));
    local
}

/// Makes a runtime for the calling code if it has none and may have one.
#[cold]
#[track_caller]
fn need_current() {
    if CURRENT_REMOTE.get().is_null() {
        make_current();
    }
}

#[cold]
#[track_caller]
fn outside() -> ! {
    panic!("this needs a runtime: call it within `sakia::block_on` or a task")
}

/// Calls `f` with the runtime that the calling code runs in. `None` outside of one.
#[inline]
pub(crate) fn with_current<T>(f: impl FnOnce(&Rc<Local>) -> T) -> Option<T> {
    CURRENT.with(|current| Option::as_ref(&current.borrow()).map(f))
}

pub(crate) fn try_current() -> Option<Rc<Local>> {
    CURRENT.with(|current| Option::clone(&current.borrow()))
}

/// Wakes the tasks of other threads whose results are there; see [`Results`].
pub(crate) fn tell_results() {
    if let Some(local) = try_current() {
        local.results.tell();
    }
}

/// No runtime is current until one is needed, which `make` makes then. When this is dropped, the previous one
/// is current again.
pub(crate) struct Vacant {
    is_counted: Cell<bool>,
    previous: Option<Rc<Local>>,
    previous_make: Option<Make>,
}

impl Vacant {
    pub(crate) fn new(make: fn() -> Rc<Local>) -> Self {
        let make = Make { process: Process::current(), make };
        let (previous, previous_make) = (set_current(None), MAKE.replace(Some(make)));
        VACANT.fetch_add(1, Ordering::Relaxed);
        Self { is_counted: Cell::new(true), previous, previous_make }
    }

    /// To be called when a runtime was made.
    pub(crate) fn is_filled(&self) {
        if self.is_counted.replace(false) {
            VACANT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Vacant {
    fn drop(&mut self) {
        self.is_filled();
        MAKE.set(self.previous_make);
        set_current(self.previous.take());
    }
}

/// Makes a runtime the current one until dropped; then the previous one is current again.
pub(crate) struct Entered {
    previous: Option<Rc<Local>>,
    /// The [count](crate::fairness) of the code that entered it.
    left: u32,
}

impl Entered {
    pub(crate) fn new(local: &Rc<Local>) -> Self {
        let previous = set_current(Some(Rc::clone(local)));
        Self { previous, left: fairness::begin() }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        set_current(self.previous.take());
        fairness::end(self.left);
    }
}

fn set_current(local: Option<Rc<Local>>) -> Option<Rc<Local>> {
    let remote = local.as_ref().map_or(std::ptr::null(), |local| Arc::as_ptr(&local.remote));
    CURRENT_REMOTE.set(remote);
    ManuallyDrop::into_inner(CURRENT.replace(ManuallyDrop::new(local)))
}

impl Schedule for Gate {
    /// Not generic, so that it is compiled here, once for all types of tasks.
    #[inline(never)]
    fn here(task: Runnable) {
        CURRENT.with(|current| queue(current, task));
    }

    #[cold]
    fn elsewhere(mail: Mail) {
        if let Some(remote) = mail.scheduler().remote().cloned() {
            // A runtime that has ended refuses the mail; its task has ended as well, or ends now.
            drop(remote.send(mail, false));
        }
    }

    fn is_inherited(&self) -> bool {
        self.is_of_parent()
    }

    #[cold]
    fn ended(waker: Waker) {
        // A waker is users' code, which may enter a runtime: none is borrowed while it is called.
        match try_current() {
            Some(local) => local.results.push(waker),
            None => waker.wake(),
        }
    }
}

/// Puts a woken task on the queue of its runtime: `current`, if the calling code runs in that.
///
/// A function of its own, so that its caller is small enough for the compiler to reach the thread's variable
/// without a call.
#[inline(never)]
fn queue(current: &RefCell<ManuallyDrop<Option<Rc<Local>>>>, task: Runnable) {
    if let Some(local) = &**current.borrow()
        && task.scheduler().is_to(&local.remote)
    {
        local.queue.push(task);
        return;
    }
    // The thread is not in the task's runtime at this moment.
    if let Some(mail) = task.into_mail() {
        Gate::elsewhere(mail);
    }
}

/// Returns whether the calling code runs in a runtime, or in a call that makes one when it is needed.
#[inline(always)]
pub(crate) fn is_within() -> bool {
    !CURRENT_REMOTE.get().is_null() || MAKE.get().is_some()
}

/// Returns whether this is a forked child, and the calling code runs in a runtime, or such a call, of its
/// parent.
pub(crate) fn is_of_parent() -> bool {
    match try_current() {
        Some(local) => local.driver.check().is_err(),
        None => MAKE.get().is_some_and(|make| !make.process.is_intact()),
    }
}

/// Returns whether this is the inbox of the runtime that the calling code runs in.
#[inline(always)]
pub(crate) fn is_current(remote: &Arc<Remote>) -> bool {
    CURRENT_REMOTE.get() == Arc::as_ptr(remote)
}

/// Starts a task on the calling thread's runtime. It runs when the caller next waits.
///
/// A panic in it ends the task only, and its handle resolves to that.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// # sakia::block_on(async {
/// let task = sakia::spawn(async { 6 * 7 });
/// assert_eq!(task.await.unwrap(), 42);
/// # });
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let spawned_at = Location::caller();
    if VACANT.load(Ordering::Relaxed) > 0 {
        need_current();
    }
    CURRENT.with(|current| match &**current.borrow() {
        Some(local) => local.spawn_at(future, spawned_at),
        None => outside(),
    })
}

/// As [`spawn`], for a caller of this crate's user: loops of the library start their tasks for the place that
/// started the loop. Its body is not [`spawn`]'s, which would be compiled less well if it called this one.
#[track_caller]
pub(crate) fn spawn_at<F>(
    future: F,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    if VACANT.load(Ordering::Relaxed) > 0 {
        need_current();
    }
    CURRENT.with(|current| match &**current.borrow() {
        Some(local) => local.spawn_at(future, spawned_at),
        None => outside(),
    })
}

/// Starts a task on thread number `thread` of the calling thread's runtime, `0..threads`. The future is
/// made there, by `start`, so it need not be `Send`.
///
/// # Panics
/// Outside of a runtime, and when it has no such thread.
///
/// # Examples
/// ```
/// let runtime = sakia::Runtime::builder().threads(2).build()?;
/// runtime.block_on(async {
///     let task = sakia::spawn_on(1, || async { std::thread::current().name().map(str::to_owned) });
///     assert_eq!(task.await.unwrap().as_deref(), Some("sakia-1"));
/// });
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn spawn_on<S, F>(thread: usize, start: S) -> JoinHandle<F::Output>
where
    S: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let local = current();
    let count = local.threads.len();
    assert!(thread < count, "thread {thread} of a runtime with {count}");
    spawn_to(&local.threads[thread], start, Location::caller())
}

/// Returns the number of threads of the calling thread's runtime: those that [`spawn_on`] takes.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// A task on each thread:
/// ```
/// let runtime = sakia::Runtime::builder().threads(3).build()?;
/// let sum: usize = runtime.block_on(async {
///     let threads = 0..sakia::thread_count();
///     let tasks: Vec<_> = threads.map(|n| sakia::spawn_on(n, move || async move { n })).collect();
///     let mut sum = 0;
///     for task in tasks {
///         sum += task.await.unwrap();
///     }
///     sum
/// });
/// assert_eq!(sum, 3);
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn thread_count() -> usize {
    current().threads.len()
}

/// As [`spawn_on`], to any thread's inbox.
pub(crate) fn spawn_to<S, F>(
    remote: &Arc<Remote>,
    start: S,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output>
where
    S: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    // The future is made, polled and dropped on the target thread only. Until the task gets there it holds
    // only `start`; from then on it belongs to that thread.
    let future = async move {
        let guard = Registered::new(&current(), spawned_at);
        SendWrapper::new(Registering { future: start(), guard }).await
    };
    let gate = Gate::far(Arc::clone(remote), spawned_at);
    let (mail, task) = sakia_task::spawn_to(remote.thread(), future, gate);
    if is_current(remote) {
        with_current(|local| local.open(mail));
    } else {
        // A refused task holds nothing of the target thread. It is canceled, so that its caller does not wait
        // for ever.
        drop(remote.send(mail, true));
    }
    JoinHandle::new(task)
}

impl Local {
    /// Builds the parts of thread number `thread` of a runtime.
    pub(crate) fn new(
        driver: Driver,
        environment: Box<dyn Environment>,
        thread: usize,
        threads: Arc<[Arc<Remote>]>,
        shown: Arc<Shared>,
    ) -> io::Result<Rc<Self>> {
        let remote = Arc::clone(&threads[thread]);
        remote.set_thread(ThreadId::current());
        match driver.remote_wake() {
            Ok(wake) => remote.set_wake(wake),
            // The simulated kernel has no other threads.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && threads.len() == 1 => {
                remote.set_wake(Arc::new(NoWake));
            }
            Err(error) => return Err(error),
        }
        if let Some(seed) = environment.seed() {
            random::reseed(seed);
        }
        Ok(Rc::new(Self {
            queue: Queue::new(),
            tasks: RefCell::new(Slab::new()),
            live: Cell::new(0),
            gate: Root::new(Arc::clone(&remote)),
            mail: RefCell::default(),
            remote,
            timers: Rc::new(Timers::new(&driver, environment.has_clock())),
            attention: driver.attention(),
            round: Round::default(),
            results: Results::default(),
            driver,
            environment,
            spin: Cell::new(Duration::ZERO),
            threads,
            observed: OnceCell::new(),
            shown,
        }))
    }

    /// Not inlined, for the reason of [`queue`].
    #[inline(never)]
    pub(crate) fn spawn_at<F>(
        self: &Rc<Self>,
        future: F,
        spawned_at: &'static Location<'static>,
    ) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let guard = Registered::new(self, spawned_at);
        let future = Registering { future, guard };
        let (runnable, task) = sakia_task::spawn(future, Gate::near(self.gate.share(), spawned_at));
        self.queue.push(runnable);
        JoinHandle::new(task)
    }

    #[inline(never)]
    fn take_off_list(&self, key: usize) {
        let task = self.tasks.borrow_mut().try_remove(key);
        drop(task); // outside the borrow: the last reference frees the task
    }

    /// Returns the thread's number in its runtime.
    pub(crate) fn number(&self) -> usize {
        let is_own = |remote| Arc::ptr_eq(remote, &self.remote);
        self.threads.iter().position(is_own).unwrap_or_default()
    }

    /// Returns the bookkeeping for inspection and warnings, if either is on.
    #[inline(always)]
    pub(crate) fn observed(&self) -> Option<&Observed> {
        self.observed.get().map(|observed| &**observed)
    }

    /// Returns the number of tasks that have not ended.
    pub(crate) fn live_tasks(&self) -> usize {
        self.live.get()
    }

    /// Runs ready tasks, for one round at most. Returns whether a task is left to run.
    #[inline(always)]
    pub(crate) fn run_batch(&self, observed: Option<&Observed>) -> bool {
        self.run_batch_then(observed, || ())
    }

    /// As [`run_batch`](Local::run_batch), with a call of `then` after each poll.
    #[inline(always)]
    pub(crate) fn run_batch_then(&self, observed: Option<&Observed>, then: impl Fn()) -> bool {
        match observed {
            None => self.run_batch_by(|runnable| {
                runnable.run();
                then();
            }),
            Some(observed) => self.run_batch_observed(observed, then),
        }
    }

    #[cold]
    #[inline(never)]
    fn run_batch_observed(&self, observed: &Observed, then: impl Fn()) -> bool {
        self.run_batch_by(|runnable| {
            observed.poll(&self.driver, runnable.scheduler().mark.origin(), || runnable.run());
            then();
        })
    }

    /// As [`run_batch`](Local::run_batch), with each task run by `run`.
    #[inline(always)]
    pub(crate) fn run_batch_by(&self, mut run: impl FnMut(Runnable)) -> bool {
        let mut progress = self.begin_polls();
        while let Some(runnable) = self.next_task() {
            run(runnable);
            if self.is_round_over(&mut progress) {
                break;
            }
        }
        !self.queue.is_empty()
    }

    /// Puts tasks that other threads woke on the queue.
    #[inline]
    pub(crate) fn take_mail(&self) {
        if self.remote.may_have_mail() {
            self.take_mail_slowly();
        }
    }

    #[cold]
    fn take_mail_slowly(&self) {
        let mut mail = self.mail.take();
        self.remote.take(&mut mail);
        mail.drain(..).for_each(|mail| self.open(mail));
        self.mail.replace(mail);
    }

    /// Puts the task of a mail on the queue, unless it is queued already.
    fn open(&self, mail: Mail) {
        let opened = mail.open().expect("it is in the inbox of its own thread");
        if let Some(task) = opened {
            self.queue.push(task);
        }
    }

    #[inline(always)]
    fn next_task(&self) -> Option<Runnable> {
        self.queue.pop()
    }

    /// Returns the number of tasks that are ready to run.
    pub(crate) fn ready_tasks(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether a task is ready to run.
    pub(crate) fn has_ready(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether a run in a foreign loop has something to do at once: tasks, or a turn of the driver.
    pub(crate) fn is_busy(&self) -> bool {
        self.has_ready() || self.driver.wants_turn()
    }

    /// Returns the tasks that have waited: their numbers, wakers and spawn locations.
    #[cfg(feature = "sim")]
    pub(crate) fn listed_tasks(&self) -> Vec<(usize, Waker, &'static Location<'static>)> {
        let tasks = self.tasks.borrow();
        tasks.iter().map(|(key, task)| (key, task.waker.clone(), task.spawned_at)).collect()
    }

    /// Returns whether only another thread could wake a task: no task is ready, no timer is set, and no
    /// operation is in flight.
    #[cfg(feature = "sim")]
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.has_ready()
            && !self.remote.has_mail()
            && self.sleep_limit(None).is_none()
            && self.driver.in_flight() == 0
            && !self.driver.has_deferred()
    }

    /// As [`drive`](Local::drive), with the bookkeeping of inspection and warnings if the thread is
    /// `observed`.
    #[inline(always)]
    pub(crate) fn drive_by(
        &self,
        observed: Option<&Observed>,
        is_busy: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        match observed {
            None => self.drive(is_busy, timeout),
            Some(observed) => observed.drive(self, is_busy, timeout),
        }
    }

    /// Gives the driver a turn: without waiting when `is_busy`, else until the next timer is due
    /// and at most for `timeout`.
    pub(crate) fn drive(&self, is_busy: bool, timeout: Option<Duration>) -> io::Result<()> {
        if !is_busy && !self.spin.get().is_zero() && self.look_for_work(timeout)? {
            return Ok(());
        }
        if is_busy || !self.remote.prepare_to_park() {
            return self.driver.turn(Wait::Poll).map(|_| ());
        }
        let timeout = self.pass_time(timeout);
        let wait = timeout.map_or(Wait::Forever, Wait::For);
        // A wake before the end of the sleep signals, whichever thread it comes from. The wakers that the
        // turn calls itself come after the sleep, and cost no system call.
        let result = self.driver.turn_then(wait, || self.remote.unpark());
        result.map(|_| ())
    }

    /// Gives the driver turns without sleeping until something arrives, a timer is due, or the spin time is
    /// over. Returns whether there is something to do.
    #[cold]
    fn look_for_work(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let limit =
            self.sleep_limit(timeout).map_or(self.spin.get(), |due| due.min(self.spin.get()));
        let begin = Instant::now();
        loop {
            let came = self.driver.turn(Wait::Poll)?;
            if came > 0 || self.has_ready() || self.remote.has_mail() || self.remote.is_stopping() {
                return Ok(true);
            }
            if begin.elapsed() >= limit {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Ends all tasks: drops their futures on this thread, which must have entered the runtime.
    ///
    /// Mail for tasks that have ended has no effect.
    pub(crate) fn end_tasks(&self) {
        self.results.end();
        let mut mail = self.remote.close();
        loop {
            // Each waker puts its task on the queue; dropping that drops the future, which may wake tasks and
            // even start new ones.
            let wakers: Vec<Waker> =
                self.tasks.borrow_mut().drain().map(|task| task.waker).collect();
            wake_all(wakers);
            mail.drain(..).for_each(|mail| self.open(mail));
            if self.queue.is_empty() {
                break;
            }
            while let Some(task) = self.queue.pop() {
                drop(task);
            }
            mail = self.remote.drain(false);
        }
        drop(self.remote.drain(true));
    }
}

/// The wake of a driver that no other thread can wake.
struct NoWake;

impl RemoteWake for NoWake {
    fn wake(&self) {}
}

pin_project! {
    /// A task's future, put on its thread's list when it first waits. Before that it is on the queue, and
    /// ends with the queue.
    struct Registering<F> {
        #[pin]
        future: F,
        // Dropped last.
        guard: Registered,
    }
}

impl<F: Future> Future for Registering<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let run = PollRun::new(&mut this.guard.number);
        let poll = this.future.poll(cx);
        run.returned(poll.is_ready());
        if poll.is_pending()
            && let Place::Unlisted(spawned_at) = this.guard.place
        {
            let task = Listed { waker: cx.waker().clone(), spawned_at };
            this.guard.place = Place::Listed(this.guard.local.tasks.borrow_mut().insert(task));
        }
        poll
    }
}

/// Takes a task off the lists when its future ends or is dropped.
struct Registered {
    /// The task's thread. This reference cycle is broken by [`Local::end_tasks`].
    local: Rc<Local>,
    place: Place,
    /// Its number in a recording; 0 without one.
    number: u64,
}

/// A task's place on the list.
enum Place {
    /// Not on the list, since it has not waited; its spawn location.
    Unlisted(&'static Location<'static>),
    /// On the list, under this number.
    Listed(usize),
}

impl Registered {
    #[inline(always)]
    fn new(local: &Rc<Local>, spawned_at: &'static Location<'static>) -> Self {
        local.live.set(local.live.get() + 1);
        Self {
            local: Rc::clone(local),
            place: Place::Unlisted(spawned_at),
            number: if is_on() { task_spawned(spawned_at) } else { 0 },
        }
    }
}

impl Drop for Registered {
    #[inline(always)]
    fn drop(&mut self) {
        self.local.live.set(self.local.live.get() - 1);
        if let Place::Listed(key) = self.place {
            self.local.take_off_list(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_for_a_thread_that_has_ended_is_canceled() {
        let remote = Arc::new(Remote::default());
        remote.close();
        let result = crate::block_on(spawn_to(&remote, || async { 1 }, Location::caller()));
        assert!(result.unwrap_err().is_canceled());
    }

    #[test]
    fn tasks_that_have_ended_leave_the_list() {
        crate::block_on(async {
            for _ in 0..10 {
                let aborted = spawn(std::future::pending::<()>());
                let ended = spawn(crate::yield_now());
                crate::yield_now().await;
                aborted.abort();
                assert!(ended.await.is_ok());
            }
            crate::yield_now().await;
            assert_eq!(current().live_tasks(), 0);
            assert!(current().tasks.borrow().is_empty());
        });
    }
}
