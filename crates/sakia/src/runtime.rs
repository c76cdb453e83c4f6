//! Runtimes: building, running and ending them.

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::pin::pin;
use std::rc::Rc;
#[cfg(feature = "sim")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sakia_driver::{
    Auto, Bypass, Choice, Counters, Driver, LateChoice, Metrics, Policy, Rules, Streams,
};
use sakia_ring::Ring;
use sakia_thread::{JoinHandle as JoinThread, start_thread};
use sakia_trace::is_on;

use crate::environment::Machine;
use crate::executor::{Entered, Local, current, is_of_parent, is_within};
use crate::inspect::{self, Inspection, Inspector, Observed, Source, Warnings};
use crate::join::JoinHandle;
use crate::mark::Mark;
use crate::remote::Remote;
use crate::settings::Configuration;
#[cfg(feature = "sim")]
use crate::sim::Watch;
use crate::trace::PollRun;
use crate::unfinished::AtEnd;

/// Options of a runtime.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::Runtime;
///
/// let runtime = Runtime::builder().threads(2).spin(Duration::from_micros(10)).build()?;
/// assert_eq!(runtime.block_on(async { sakia::thread_count() }), 2);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    policy: Option<Policy>,
    threads: usize,
    ring: sakia_ring::Builder,
    bypass: Bypass,
    streams: Option<Streams>,
    spin: Duration,
    blocking_timeout: Option<Duration>,
    pub(crate) virtual_time: bool,
    watching: Watching,
    /// The settings made by calls, by the names of the methods.
    given: Vec<&'static str>,
}

/// Settings of inspection, warnings and latencies. `None` until a call or the environment has set one.
#[derive(Clone, Debug, Default)]
struct Watching {
    inspection: Option<bool>,
    warnings: Option<Warnings>,
    latencies: Option<bool>,
    /// The settings made by the environment, by the names of the methods.
    from_environment: Vec<&'static str>,
}

impl Default for Builder {
    fn default() -> Self {
        let bypass = Bypass::Rules(Rules::default());
        let (ring, spin) = (Ring::builder(), Duration::ZERO);
        Self {
            policy: None,
            threads: 1,
            ring,
            bypass,
            streams: None,
            spin,
            blocking_timeout: None,
            virtual_time: false,
            watching: Watching::default(),
            given: Vec::new(),
        }
    }
}

impl Builder {
    /// Returns the options of [`Runtime::new`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the backend. Without this call the environment variable `SAKIA_DRIVER` decides, and without
    /// that [`Policy::Auto`].
    ///
    /// # Examples
    /// ```
    /// use sakia::Runtime;
    /// use sakia_driver::Policy;
    ///
    /// let runtime = Runtime::builder().backend(Policy::Poll).build()?;
    /// assert_eq!(runtime.choice().name(), "poll");
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn backend(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self.note("backend")
    }

    /// Sets the number of the runtime's threads, the one that builds it included; at least 1. Each has a
    /// driver of its own. Tasks stay on the thread on which they were started; see
    /// [`spawn_on`](crate::spawn_on).
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self.note("threads")
    }

    /// Sets the options of each thread's ring, sizes for one.
    ///
    /// # Examples
    /// ```
    /// use sakia::Runtime;
    /// use sakia_ring::Ring;
    ///
    /// let ring = Ring::builder().sq_entries(512).cq_entries(8192);
    /// let runtime = Runtime::builder().ring(ring).build()?;
    /// if let Some(report) = runtime.choice().report() {
    ///     assert_eq!((report.sq_entries, report.cq_entries), (512, 8192));
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn ring(mut self, ring: sakia_ring::Builder) -> Self {
        self.ring = ring;
        self.note("ring")
    }

    /// Sets whether operations are done as plain system calls if that is cheaper, and by which rules. Without
    /// this call the default ones hold.
    ///
    /// # Examples
    /// Every read goes by the ring:
    /// ```
    /// use sakia::Runtime;
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    /// use sakia_driver::{Bypass, OpKind};
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-bypass-{}", std::process::id()));
    /// std::fs::write(&path, "some bytes")?;
    /// let runtime = Runtime::builder().bypass(Bypass::Never).build()?;
    /// let len = runtime.block_on(async {
    ///     File::open(&path).await?.read_at(vec![0; 100], 0).await.value()
    /// })?;
    /// assert_eq!(len, 10);
    /// assert_eq!(runtime.counters().of(OpKind::Read).inline, 0);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn bypass(mut self, bypass: Bypass) -> Self {
        self.bypass = bypass;
        self.note("bypass")
    }

    /// Sets how long an idle thread spins, looking for work, before it sleeps; it does not spin without this
    /// call.
    ///
    /// Waking a sleeping thread takes longer than a message takes within one machine, so spinning reduces
    /// latency where an answer is likely to come soon. It costs processor time: a waiting thread keeps a
    /// processor busy, for up to `spin` per wait. Without a processor for each spinning thread it makes all
    /// of them slower.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self.note("spin")
    }

    /// Sets whether time stands still while tasks run, and jumps to the next deadline when all of them wait
    /// and no operation is in flight; for tests, see [`time`](crate::time). While an operation is in flight,
    /// one that waits for a peer included, no time passes. Other threads, which may be about to wake a task,
    /// are not waited for.
    ///
    /// The simulated kernel has a virtual time of its own, which this does not change.
    ///
    /// # Examples
    /// See [`interval()`](crate::time::interval()#examples).
    #[must_use]
    pub fn virtual_time(mut self, virtual_time: bool) -> Self {
        self.virtual_time = virtual_time;
        self.note("virtual_time")
    }

    /// Has the runtime's threads record their operations and activity for [`inspect`](Runtime::inspect).
    /// Without this call the environment variable `SAKIA_INSPECT` decides: `1` or `0`.
    /// [`warnings`](Builder::warnings) switch it on, too.
    ///
    /// # Examples
    /// See [`Runtime::inspect`].
    #[must_use]
    pub fn inspection(mut self, inspection: bool) -> Self {
        self.watching.inspection = Some(inspection);
        self.note("inspection")
    }

    /// Sets the limits of the runtime and the receiver of its warnings; see [`Warnings`]. Without this call
    /// the environment variable `SAKIA_WARNINGS` decides.
    ///
    /// # Examples
    /// See [`inspect`](crate::inspect#examples).
    #[must_use]
    pub fn warnings(mut self, warnings: Warnings) -> Self {
        self.watching.warnings = Some(warnings);
        self.note("warnings")
    }

    /// Measures how long operations take, by kind, for [`Runtime::metrics`]. Without this call the
    /// environment variable `SAKIA_LATENCIES` decides: `1` or `0`.
    ///
    /// It costs two readings of the clock per operation, and for each thread 36 KiB per kind of operation.
    ///
    /// # Examples
    /// See [`Runtime::metrics`].
    #[must_use]
    pub fn latencies(mut self, latencies: bool) -> Self {
        self.watching.latencies = Some(latencies);
        self.note("latencies")
    }

    /// Sets the mode in which streams receive and send: by the ring, or by readiness and plain calls. Without
    /// this call the environment variable `SAKIA_STREAMS` decides (`queue`, `readiness`), and without that
    /// they use the ring. Readiness takes 0.8 to 1.4 of the ring's processor time, by load and processor: for
    /// a server that matters, measure both.
    ///
    /// # Examples
    /// ```
    /// use sakia::Runtime;
    /// use sakia_driver::Streams;
    ///
    /// let runtime = Runtime::builder().streams(Streams::Queue).build()?;
    /// assert_eq!(runtime.metrics().streams, Streams::Queue);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn streams(mut self, streams: Streams) -> Self {
        self.streams = Some(streams);
        self.note("streams")
    }

    /// Sets the longest time for which the end of the runtime waits for the code that
    /// [`spawn_blocking`](crate::spawn_blocking) has started. Code that runs longer goes on, and is lost when
    /// the process ends. Without this call the end waits until all has ended. It says nothing of an
    /// [engine](Builder::build_engine), whose end waits for none.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_millis(10);
    /// let runtime = sakia::Runtime::builder().blocking_timeout(timeout).build()?;
    /// let hour = || std::thread::sleep(Duration::from_secs(3600));
    /// runtime.block_on(async { sakia::spawn_blocking(hour).detach() });
    /// drop(runtime); // takes 10 ms
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn blocking_timeout(mut self, timeout: Duration) -> Self {
        self.blocking_timeout = Some(timeout);
        self.note("blocking_timeout")
    }

    fn note(mut self, name: &'static str) -> Self {
        self.given.push(name);
        self
    }

    /// Returns the origin of the setting of this name.
    pub(crate) fn source_of(&self, name: &str) -> Source {
        let is_of_environment = self.watching.from_environment.contains(&name);
        match self.given.contains(&name) {
            true => Source::Builder,
            false if is_of_environment => Source::Environment,
            false => Source::Default,
        }
    }

    /// Adds the settings of the environment, where no call has made them.
    fn with_environment(mut self) -> io::Result<Self> {
        let watching = &mut self.watching;
        if self.policy.is_none() && std::env::var_os("SAKIA_DRIVER").is_some_and(|v| !v.is_empty())
        {
            watching.from_environment.push("backend");
        }
        if watching.warnings.is_none() {
            let value = std::env::var_os("SAKIA_WARNINGS").filter(|value| !value.is_empty());
            watching.warnings = Some(Warnings::from_environment(value.as_deref())?);
            watching.from_environment.extend(value.map(|_| "warnings"));
        }
        if self.streams.is_none()
            && let Some(value) = std::env::var_os("SAKIA_STREAMS").filter(|value| !value.is_empty())
        {
            let streams = value.to_str().and_then(Streams::from_name).ok_or_else(|| {
                let value = value.to_string_lossy();
                let message = format!("SAKIA_STREAMS={value} is neither queue nor readiness");
                io::Error::new(io::ErrorKind::InvalidInput, message)
            })?;
            self.streams = Some(streams);
            watching.from_environment.push("streams");
        }
        let switches = [
            ("inspection", "SAKIA_INSPECT", &mut watching.inspection),
            ("latencies", "SAKIA_LATENCIES", &mut watching.latencies),
        ];
        for (name, variable, switch) in switches.into_iter().filter(|(.., switch)| switch.is_none())
        {
            *switch = switch_of_environment(variable)?;
            watching.from_environment.extend(switch.map(|_| name));
        }
        Ok(self)
    }

    /// Returns whether threads record their operations and activity.
    pub(crate) fn is_inspected(&self) -> bool {
        let Watching { inspection, warnings, .. } = &self.watching;
        inspection.unwrap_or(false) || warnings.as_ref().is_some_and(|warnings| !warnings.is_off())
    }

    /// Returns whether latencies are measured.
    pub(crate) fn measures_latencies(&self) -> bool {
        self.watching.latencies.unwrap_or(false)
    }

    pub(crate) fn warnings_in_force(&self) -> Warnings {
        self.watching.warnings.clone().unwrap_or_default()
    }

    pub(crate) fn ring_builder(&self) -> &sakia_ring::Builder {
        &self.ring
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads
    }

    pub(crate) fn bypass_rules(&self) -> &Bypass {
        &self.bypass
    }

    /// Returns the way of streams.
    pub(crate) fn streams_in_force(&self) -> Streams {
        self.streams.unwrap_or_default()
    }

    pub(crate) fn spin_time(&self) -> Duration {
        self.spin
    }

    pub(crate) fn longest_blocking(&self) -> Option<Duration> {
        self.blocking_timeout
    }

    /// Has the thread show its state and measure latencies, as far as these are switched on.
    fn show(&self, local: &Local, thread: usize) {
        if self.measures_latencies() {
            local.driver.measure_latencies();
        }
        if !self.is_inspected() {
            return local.shown.add(thread, None);
        }
        let warnings = self.warnings_in_force();
        let observer = local.driver.watch(warnings.limits());
        let has_paths = observer.descriptors_are_of_this_process();
        local.observed.get_or_init(|| Box::new(Observed::new(thread, warnings, has_paths)));
        local.shown.add(thread, Some(observer));
    }

    /// Returns the requested policy: of the builder, or of the environment.
    pub(crate) fn policy(&self) -> io::Result<Policy> {
        match self.policy {
            Some(policy) => Ok(policy),
            None => Policy::from_environment(std::env::var_os("SAKIA_DRIVER").as_deref()),
        }
    }

    /// Makes the inboxes of all threads.
    fn remotes(&self) -> Arc<[Arc<Remote>]> {
        (0..self.threads).map(|_| Arc::default()).collect()
    }

    /// Builds the state that thread number `thread` of the runtime or engine has. Its backend is set up by
    /// the first operation, or here if the policy admits only the ring, whose absence is an error of the
    /// builder.
    fn local(
        &self,
        policy: Policy,
        thread: usize,
        remotes: Arc<[Arc<Remote>]>,
        shown: Arc<inspect::Shared>,
    ) -> io::Result<(Rc<Local>, LateChoice)> {
        let (backend, choice) = Auto::later(policy, self.ring.clone())?;
        let driver = Driver::new(backend);
        if policy == Policy::Uring {
            driver.set_up()?;
        }
        let local = Local::new(driver, Box::new(Machine), thread, remotes, shown)?;
        local.driver.set_bypass(self.bypass.clone());
        local.driver.set_streams(self.streams_in_force());
        self.show(&local, thread);
        if self.virtual_time {
            local.timers.make_virtual();
        } else {
            local.spin.set(self.spin);
        }
        Ok((local, choice))
    }

    /// Builds the runtime for the calling thread.
    ///
    /// # Errors
    /// - `InvalidInput`: `SAKIA_DRIVER`, `SAKIA_STREAMS`, `SAKIA_WARNINGS`, `SAKIA_INSPECT` or
    ///   `SAKIA_LATENCIES` is none of the known values; or time is to be virtual on more than one thread.
    /// - There is no ring, and the policy admits nothing else: the reason is a [`sakia_ring::SetupError`].
    /// - `EMFILE`, `ENFILE`, `ENOMEM`, `EAGAIN`: no descriptors, memory or threads left.
    ///
    /// With another policy the backend is set up by the first operation that needs it. If that fails, the
    /// operation ends with the error, and the next one tries again.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    pub fn build(self) -> io::Result<Runtime> {
        if self.virtual_time && self.threads > 1 {
            let message = "virtual time is for runtimes with one thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let this = self.with_environment()?;
        let policy = this.policy()?;
        let (remotes, shown) = (this.remotes(), inspect::Shared::new(this.threads));
        let (local, choice) = this.local(policy, 0, Arc::clone(&remotes), Arc::clone(&shown))?;
        let at_end =
            AtEnd { closures: Arc::clone(&shown.closures), timeout: this.blocking_timeout };
        let this = Arc::new(this);
        shown.configure(Configuration::new(Arc::clone(&this), &choice));
        let mut runtime = Runtime {
            local,
            choice,
            no_choice: OnceCell::new(),
            is_pollable: Cell::new(false),
            threads: Vec::new(),
            #[cfg(feature = "sim")]
            watch: None,
            _at_end: at_end,
        };
        for thread in 1..this.threads {
            // An error drops the runtime, which ends the threads started so far.
            runtime.threads.push(Thread::start(thread, false, &remotes, &shown, policy, &this)?.0);
        }
        Ok(runtime)
    }

    /// Builds a runtime of one thread on the simulated kernel, whose time is virtual; see
    /// [`sim`](crate::sim). With the feature `sim`.
    ///
    /// On a deadlock, when no event can happen any more, [`block_on`](Runtime::block_on) panics with a list
    /// of all that wait.
    ///
    /// # Errors
    /// The simulated kernel has no memory or descriptors left. `InvalidInput`: `SAKIA_WARNINGS`,
    /// `SAKIA_INSPECT` or `SAKIA_LATENCIES` is none of the known values.
    ///
    /// # Examples
    /// See [`Test`](crate::sim::Test#examples).
    #[cfg(feature = "sim")]
    pub fn build_simulated(self, sim: sakia_driver::sim::Sim) -> io::Result<Runtime> {
        crate::fs::forget_sizes();
        let this = self.with_environment()?;
        let (kernel, shown) = (sim.handle(), inspect::Shared::new(1));
        let (backend, simulated) = Auto::simulated(sim);
        let choice = Arc::new(OnceLock::from(simulated));
        let remotes = Arc::from([Arc::new(Remote::default())]);
        let driver = Driver::new(backend);
        let local = Local::new(driver, Box::new(kernel.clone()), 0, remotes, shown)?;
        local.driver.set_bypass(this.bypass.clone());
        this.show(&local, 0);
        local.shown.configure(Configuration::new(Arc::new(this), &choice));
        let at_end = AtEnd { closures: Arc::clone(&local.shown.closures), timeout: None };
        Ok(Runtime {
            local,
            choice,
            no_choice: OnceCell::new(),
            is_pollable: Cell::new(false),
            threads: Vec::new(),
            watch: Some(Watch::new(kernel)),
            _at_end: at_end,
        })
    }
}

/// Returns the value of an environment variable that is 1 or 0; `None` if it is unset or empty.
fn switch_of_environment(variable: &str) -> io::Result<Option<bool>> {
    let value = std::env::var_os(variable).unwrap_or_default();
    match value.to_str() {
        Some("") => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{variable}={} is neither 0 nor 1", value.to_string_lossy()),
        )),
    }
}

/// A further thread of a runtime, or one of an engine.
pub(crate) struct Thread {
    remote: Arc<Remote>,
    /// `None` once joined.
    join: Option<JoinThread>,
}

/// Threads that have been started.
pub(crate) struct Started {
    pub(crate) threads: Vec<Thread>,
    /// Their inboxes.
    pub(crate) remotes: Arc<[Arc<Remote>]>,
    /// The inspector's view of them.
    pub(crate) shown: Arc<inspect::Shared>,
    /// The backend that they use; it is set up.
    pub(crate) choice: LateChoice,
}

impl Thread {
    /// Starts as many threads as the builder says, whose results are for other threads; the calling thread is
    /// not one of them.
    ///
    /// # Errors
    /// See [`Builder::build`].
    pub(crate) fn start_all(builder: &Builder) -> io::Result<Started> {
        let builder = &Arc::new(builder.clone().with_environment()?);
        let policy = builder.policy()?;
        let (remotes, shown) = (builder.remotes(), inspect::Shared::new(builder.threads));
        let (first, choice) = Self::start(0, true, &remotes, &shown, policy, builder)?;
        shown.configure(Configuration::new(Arc::clone(builder), &choice));
        let mut threads = vec![first];
        for number in 1..builder.threads {
            // An error drops the threads started so far, which ends them.
            threads.push(Self::start(number, true, &remotes, &shown, policy, builder)?.0);
        }
        Ok(Started { threads, remotes, shown, choice })
    }

    /// Starts the thread, and waits until it has a driver; that of an engine's thread is set up.
    fn start(
        number: usize,
        is_of_engine: bool,
        remotes: &Arc<[Arc<Remote>]>,
        shown: &Arc<inspect::Shared>,
        policy: Policy,
        builder: &Arc<Builder>,
    ) -> io::Result<(Self, LateChoice)> {
        let builder = Arc::clone(builder);
        let (report, ready) = mpsc::channel();
        let remote = Arc::clone(&remotes[number]);
        let (remotes, shown) = (Arc::clone(remotes), Arc::clone(shown));
        let name = format!("sakia-{number}");
        let main = move || {
            let built =
                builder.local(policy, number, remotes, shown).and_then(|(local, choice)| {
                    if is_of_engine {
                        local.driver.set_up()?;
                    }
                    Ok((local, choice))
                });
            match built {
                Ok((local, choice)) => {
                    // The receiver is gone if `build` has failed meanwhile; it then stops this thread.
                    report.send(Ok(choice)).ok();
                    let run_round =
                        if is_of_engine { run_round_for_others } else { run_round as RunRound };
                    run_until_stopped(&local, run_round);
                }
                Err(error) => drop(report.send(Err(error))),
            }
        };
        let join = start_thread(&name, None, Box::new(main))?;
        let thread = Self { remote, join: Some(join) };
        let gone = || io::Error::other("a thread of the runtime ended while it started");
        let choice = ready.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok((thread, choice))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if !self.remote.is_intact() {
            return; // a forked child has no such thread
        }
        self.remote.stop();
        // One of the engine's own tasks may hold its last clone: a thread cannot join itself.
        if let Some(join) = self.join.take().filter(|join| !join.is_current()) {
            join.join();
        }
    }
}

/// Returns the metrics of the calling thread's driver so far; see [`Runtime::metrics`]. For tasks, on each
/// thread of a runtime: `spawn_on(thread, || async { sakia::metrics() })`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// let runtime = sakia::Runtime::builder().threads(2).build()?;
/// runtime.block_on(async {
///     let task = sakia::spawn_on(1, || async {
///         sakia::fs::read("/proc/self/comm").await.map(|_| sakia::metrics().counters)
///     });
///     let counters = task.await.expect("it does not panic")?;
///     assert!(counters.started > 0);
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
pub fn metrics() -> Metrics {
    current().driver.metrics()
}

/// A round of tasks on a thread that runs until it is stopped.
type RunRound = fn(&Local, Option<&Observed>) -> bool;

/// Runs the loop of a thread that has no main future until the thread is told to stop.
fn run_until_stopped(local: &Rc<Local>, run_round: RunRound) {
    let _entered = Entered::new(local);
    let _ending = EndTasks(local);
    let observed = local.observed();
    while !local.remote.is_stopping() {
        let is_busy = run_round(local, observed);
        let driven = local.drive_by(observed, is_busy, None);
        driven.unwrap_or_else(|error| panic!("the driver failed: {error}"));
    }
}

/// A round of a runtime's thread.
fn run_round(local: &Local, observed: Option<&Observed>) -> bool {
    local.begin_round();
    local.run_batch(observed)
}

/// A round of a thread whose results are for other threads: those of the tasks that the last turn has made
/// ready are told together.
fn run_round_for_others(local: &Local, observed: Option<&Observed>) -> bool {
    let results = &local.results;
    results.begin(local.ready_tasks());
    local.begin_round();
    let is_busy = local.run_batch_then(observed, || results.polled());
    results.end(); // the round may have ended before
    is_busy
}

/// Ends a thread's tasks when dropped, after a panic too.
struct EndTasks<'a>(&'a Rc<Local>);

impl Drop for EndTasks<'_> {
    fn drop(&mut self) {
        self.0.end_tasks();
    }
}

/// Runs tasks and their I/O on the thread that built it.
///
/// Dropping it ends its tasks, cancels their operations, and waits for the kernel to give their memory
/// back, at most for a second. Then it waits for the code that [`spawn_blocking`](crate::spawn_blocking) has
/// started, at most for its [`blocking_timeout`](Builder::blocking_timeout).
///
/// # Examples
/// ```
/// use sakia::{Runtime, fs};
///
/// let runtime = Runtime::new()?;
/// let name = runtime.block_on(fs::read_to_string("/proc/self/comm"))?;
/// assert!(name.ends_with('\n'));
/// // A task may outlive the call that started it: later calls go on with it.
/// let task = runtime.spawn(async { 7 });
/// assert_eq!(runtime.block_on(task).unwrap(), 7);
/// # std::io::Result::Ok(())
/// ```
pub struct Runtime {
    /// Declared first: its tasks end before the other threads do.
    pub(crate) local: Rc<Local>,
    /// The backend of this thread, once it is set up.
    choice: LateChoice,
    /// The reason why it could not be set up, at the first request for the choice.
    no_choice: OnceCell<Choice>,
    /// Set once a foreign loop has the descriptor.
    is_pollable: Cell<bool>,
    threads: Vec<Thread>,
    /// The waits of each task; on the simulated kernel only.
    #[cfg(feature = "sim")]
    pub(crate) watch: Option<Watch>,
    /// Declared last: blocking code may wait for what tasks and operations hold.
    _at_end: AtEnd,
}

/// # Panics
/// Within a runtime.
#[inline(always)]
#[track_caller]
pub(crate) fn refuse_nesting() {
    if is_within() {
        nested();
    }
}

#[cold]
#[track_caller]
fn nested() {
    if is_of_parent() {
        return; // a child that was forked in a task: what its parent runs never goes on here
    }
    panic!(
        "`block_on` within a runtime, whose tasks and operations cannot go on before it returns: `.await` \
         the future instead, or run it on another thread by `spawn_blocking`; if it waits for nothing of \
         this runtime, call `block_on_nested`"
    )
}

impl Runtime {
    /// Builds a runtime on the best backend that this machine offers.
    ///
    /// # Errors
    /// See [`Builder::build`].
    ///
    /// # Examples
    /// See [`Runtime`](Runtime#examples).
    pub fn new() -> io::Result<Self> {
        Builder::new().build()
    }

    /// Returns a builder of a runtime.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Returns the backend that the runtime uses, and the reason. Sets it up if no operation has done that
    /// yet; if that fails, the result is named `none`.
    ///
    /// # Examples
    /// ```
    /// let runtime = sakia::Runtime::new()?;
    /// let choice = runtime.choice();
    /// assert!(["uring", "poll"].contains(&choice.name()));
    /// // Says why, such as a container that forbids rings.
    /// println!("{choice}");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn choice(&self) -> &Choice {
        self.set_up().unwrap_or_else(|error| self.no_choice.get_or_init(|| Choice::none(error)))
    }

    /// Sets the backend of this thread up now, in place of the first operation that needs it, and returns the
    /// choice: for a program that would rather fail before it begins.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM` and others: there is no ring, and no epoll set either; the next call
    /// tries again. See [`Auto::new`].
    ///
    /// # Examples
    /// ```
    /// let runtime = sakia::Runtime::new()?;
    /// let name = runtime.set_up()?.name();
    /// assert!(["uring", "poll"].contains(&name));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_up(&self) -> io::Result<&Choice> {
        self.local.driver.set_up()?;
        Ok(self.choice.get().expect("a backend that is set up was chosen"))
    }

    /// Returns the counters of the driver's work so far.
    ///
    /// # Examples
    /// ```
    /// let runtime = sakia::Runtime::new()?;
    /// runtime.block_on(sakia::fs::metadata("/"))?;
    /// let counters = runtime.counters();
    /// assert_eq!((counters.started, counters.finished), (1, 1));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.local.driver.counters()
    }

    /// Returns a snapshot of all threads: each operation under way, queues, credits, buffers and lanes, and
    /// the settings in force; see [`inspect`](crate::inspect).
    ///
    /// # Examples
    /// ```
    /// use sakia::Runtime;
    /// use sakia::inspect::OperationState;
    ///
    /// let runtime = Runtime::builder().inspection(true).build()?;
    /// let (mut reader, _writer) = runtime.block_on(async { sakia::io::pipe() })?;
    /// let waits = runtime.spawn(async move { reader.read(vec![0; 16]).await });
    /// runtime.run_once(std::time::Duration::ZERO)?;
    /// let seen = runtime.inspect();
    /// let read = &seen.threads[0].operations[0];
    /// assert_eq!((read.kind.name(), read.state), ("read", OperationState::Submitted));
    /// assert!(read.task.is_some_and(|task| task.spawned_at.file() == file!()));
    /// println!("{seen}");
    /// # drop(waits);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn inspect(&self) -> Inspection {
        self.local.shown.inspect(Some(&self.local))
    }

    /// Returns a handle that takes such snapshots on any thread, also while the runtime's are stuck.
    ///
    /// # Examples
    /// See [`inspect`](crate::inspect#examples).
    pub fn inspector(&self) -> Inspector {
        Inspector { shared: Arc::clone(&self.local.shown) }
    }

    /// Returns the numbers of this thread's driver: its [`counters`](Runtime::counters), and if the runtime
    /// [measures](Builder::latencies) them the latencies of its operations by kind. A task on another thread
    /// returns that thread's: see [`metrics`](crate::metrics()). A small file that
    /// [`fs::read`](crate::fs::read) reads as a whole by plain calls has counters and no latency.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::OpKind;
    ///
    /// let runtime = sakia::Runtime::builder().latencies(true).build()?;
    /// runtime.block_on(sakia::fs::File::open("/etc/hostname")).ok();
    /// let metrics = runtime.metrics();
    /// let opened = metrics.latency(OpKind::Open).expect("a file was opened");
    /// assert!(opened.count() == 1 && opened.percentile(99.0) <= opened.max());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        self.local.driver.metrics()
    }

    /// Returns the number of tasks that have not ended.
    ///
    /// # Examples
    /// ```
    /// let runtime = sakia::Runtime::new()?;
    /// let endless = runtime.spawn(std::future::pending::<()>());
    /// assert_eq!(runtime.live_tasks(), 1);
    /// runtime.block_on(endless.cancel());
    /// assert_eq!(runtime.live_tasks(), 0);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn live_tasks(&self) -> usize {
        self.local.live_tasks()
    }

    /// Returns the number of operations of this thread's driver whose result was not taken, or whose future
    /// is gone.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = sakia::Runtime::new()?;
    /// let (mut reader, _writer) = runtime.block_on(async { sakia::io::pipe() })?;
    /// let read = runtime.spawn(async move { reader.read(vec![0; 16]).await });
    /// runtime.run_once(Duration::ZERO)?;
    /// assert_eq!((runtime.live_operations(), runtime.in_flight()), (1, 1));
    /// # drop(read);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn live_operations(&self) -> u32 {
        self.local.driver.live_operations()
    }

    /// Returns the number of these operations that the kernel, or a thread in its place, has or will get.
    ///
    /// # Examples
    /// See [`Runtime::live_operations`].
    pub fn in_flight(&self) -> u32 {
        self.local.driver.in_flight()
    }

    /// Starts a task. It runs while the runtime runs something.
    ///
    /// # Examples
    /// See [`Runtime`](Runtime#examples).
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let handle = self.local.spawn_at(future, Location::caller());
        if self.is_pollable.get() {
            self.local.remote.signal();
        }
        handle
    }

    /// Runs `future` and all tasks until it is done.
    ///
    /// # Panics
    /// When `future` panics, and when the driver fails for good; in a forked child at once: its parent
    /// runs the tasks. Within this runtime or another one, by a task or a callback: the thread would wait
    /// here, and nothing of that runtime could go on meanwhile. See
    /// [`block_on_nested`](Runtime::block_on_nested).
    ///
    /// # Examples
    /// See [`Runtime`](Runtime#examples).
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        refuse_nesting();
        self.block_on_nested(future)
    }

    /// As [`block_on`](Runtime::block_on), also within a runtime. The tasks of that outer runtime do not run
    /// until the call returns, and its operations do not end: a `future` that waits for one of them waits for
    /// ever.
    ///
    /// # Panics
    /// When `future` panics, and when the driver fails for good; in a forked child at once.
    ///
    /// # Examples
    /// A synchronous interface, which tasks call too:
    /// ```
    /// fn comm() -> std::io::Result<String> {
    ///     Ok(sakia::block_on_nested(sakia::fs::read_to_string("/proc/self/comm"))?)
    /// }
    ///
    /// assert!(comm()?.ends_with('\n'));
    /// assert!(sakia::block_on(async { comm() })?.ends_with('\n'));
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn block_on_nested<F: Future>(&self, future: F) -> F::Output {
        self.run(future, false)
    }

    /// Runs `future` as [`block_on_nested`](Runtime::block_on_nested) does. If it `was_polled` before with
    /// another waker, the tasks that it has started have their turn before it is polled again.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn run<F: Future>(&self, future: F, mut was_polled: bool) -> F::Output {
        let mark = Mark::new(Location::caller());
        self.local.driver.check().unwrap_or_else(|error| panic!("the driver failed: {error}"));
        let _entered = Entered::new(&self.local);
        // Dropped after the future, whose end may wake tasks.
        let _left = self.is_pollable.get().then(|| LeftToForeignLoop(&self.local));
        let mut future = pin!(future);
        #[cfg(feature = "sim")]
        if let Some(watch) = &self.watch {
            let output = watch.block_on(&self.local, future, &mark);
            return output.unwrap_or_else(|cause| panic!("{cause}"));
        }
        let mut output = None;
        let mut task = 0;
        self.run_until(&mark, &mut |cx| {
            if mem::take(&mut was_polled) {
                cx.waker().wake_by_ref();
                return false;
            }
            let run = PollRun::new(&mut task);
            let poll = future.as_mut().poll(cx);
            run.returned(poll.is_ready());
            match poll {
                Poll::Ready(value) => {
                    output = Some(value);
                    true
                }
                Poll::Pending => false,
            }
        });
        if is_on() {
            sakia_trace::flush();
        }
        output.expect("the future is done")
    }

    /// Runs all tasks until `poll_main` returns true. Not generic, so that it is compiled here.
    fn run_until(&self, mark: &Mark, poll_main: &mut dyn FnMut(&mut Context<'_>) -> bool) {
        let observed = self.local.observed();
        let _leaving = observed.map(|observed| Leaving { observed, driver: &self.local.driver });
        let main = Main::new(Arc::clone(&self.local.remote));
        let waker = Waker::from(Arc::clone(&main));
        let mut cx = Context::from_waker(&waker);
        loop {
            self.local.begin_round();
            if main.take_wake() {
                let is_done = match observed {
                    None => poll_main(&mut cx),
                    Some(observed) => {
                        observed.poll(&self.local.driver, mark.origin(), || poll_main(&mut cx))
                    }
                };
                if is_done {
                    return;
                }
                self.local.begin_tasks();
            }
            let is_busy = self.local.run_batch(observed) || main.is_woken();
            self.local
                .drive_by(observed, is_busy, None)
                .unwrap_or_else(|error| panic!("the driver failed: {error}"));
        }
    }

    /// Runs tasks and I/O once: those that are ready, or else those that become ready within `max_wait`. A
    /// program with a loop of its own calls it when [`pollable`](Runtime::pollable) is readable, when
    /// [`next_timer`](Runtime::next_timer) is due, and again as long as it returns true, since more is ready
    /// then.
    ///
    /// # Errors
    /// A permanent failure of the driver; in a forked child always, and then no task runs: its parent
    /// runs them.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = sakia::Runtime::new()?;
    /// let task = runtime.spawn(async { sakia::time::sleep(Duration::from_millis(1)).await });
    /// while !task.is_finished() {
    ///     runtime.run_once(Duration::from_secs(1))?;
    ///     // The program's own work.
    /// }
    /// assert!(runtime.block_on(task).is_ok());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn run_once(&self, max_wait: Duration) -> io::Result<bool> {
        self.local.driver.check()?;
        let _entered = Entered::new(&self.local);
        self.local.remote.unpark();
        self.local.driver.clear_readiness();
        self.run_rounds(max_wait)?;
        let is_busy = self.local.is_busy();
        // From here on, a wake of a task makes the descriptor readable.
        Ok(is_busy || !self.local.remote.prepare_to_park())
    }

    /// Runs the ready tasks, or those that become ready within `max_wait`. Warnings, whose receiver may wake
    /// tasks, have been given when it returns.
    fn run_rounds(&self, max_wait: Duration) -> io::Result<()> {
        let observed = self.local.observed();
        let _leaving = observed.map(|observed| Leaving { observed, driver: &self.local.driver });
        self.local.begin_round();
        let has_run = self.local.has_ready();
        let is_busy = self.local.run_batch(observed) || has_run;
        self.local.drive_by(observed, is_busy, Some(max_wait))?;
        self.local.begin_round();
        self.local.run_batch(observed);
        // Submits the operations that these tasks started, some of which may be done at once, and handles the
        // event that ended the batch.
        self.local.drive_by(observed, true, None)
    }

    /// Returns a descriptor that becomes readable when [`run_once`](Runtime::run_once) has something to do,
    /// for a foreign loop to poll: after an event or a wake, after a [`spawn`](Runtime::spawn) between two
    /// runs, and when [`block_on`](Runtime::block_on) leaves something to do. Each call returns a new
    /// descriptor, which the caller owns: whatever the caller does with it besides polling does not disturb
    /// other callers. Only `run_once` makes it unreadable again.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: none left. `EOPNOTSUPP`: on the simulated kernel.
    ///
    /// # Examples
    /// A loop of the program's own, which would wait for other descriptors as well:
    /// ```
    /// use std::time::Duration;
    ///
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = sakia::Runtime::new()?;
    /// let pollable = runtime.pollable()?;
    /// let task = runtime.spawn(sakia::spawn_blocking(|| "from another thread"));
    /// loop {
    ///     while runtime.run_once(Duration::ZERO)? {}
    ///     if task.is_finished() {
    ///         break;
    ///     }
    ///     let wait = runtime.next_timer().map(|left| left.try_into()).transpose()?;
    ///     poll(&mut [PollFd::new(&pollable, PollFlags::IN)], wait.as_ref())?;
    /// }
    /// assert_eq!(runtime.block_on(task)??, "from another thread");
    /// # Ok(())
    /// # }
    /// ```
    pub fn pollable(&self) -> io::Result<OwnedFd> {
        let pollable = self.local.driver.pollable()?;
        self.is_pollable.set(true);
        drop(LeftToForeignLoop(&self.local));
        Ok(pollable)
    }

    /// Returns the time until the next timer is due, or until there may be something to
    /// [warn](Builder::warnings) of; `None` without timers.
    ///
    /// # Examples
    /// See [`Runtime::pollable`].
    pub fn next_timer(&self) -> Option<Duration> {
        let observed = self.local.observed();
        let limit = observed.and_then(|observed| observed.sleep_limit(&self.local.driver));
        self.local.sleep_limit(limit)
    }
}

/// Leaves the loop when dropped, after a panic too: control goes back to its caller.
pub(crate) struct Leaving<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) driver: &'a Driver,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.observed.leave(self.driver);
    }
}

/// When dropped, leaves the thread to a foreign loop, and tells it if there is something to do.
struct LeftToForeignLoop<'a>(&'a Local);

impl Drop for LeftToForeignLoop<'_> {
    fn drop(&mut self) {
        self.0.remote.park_elsewhere(self.0.is_busy());
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _entered = Entered::new(&self.local);
        self.local.end_tasks();
    }
}

/// The waker of the future that `block_on` runs.
pub(crate) struct Main {
    is_woken: AtomicBool,
    remote: Arc<Remote>,
}

impl Main {
    /// Returns one that counts as woken, for the first poll.
    pub(crate) fn new(remote: Arc<Remote>) -> Arc<Self> {
        Arc::new(Self { is_woken: AtomicBool::new(true), remote })
    }

    /// Returns whether the future was woken since the last call.
    #[inline]
    pub(crate) fn take_wake(&self) -> bool {
        self.is_woken.swap(false, Ordering::AcqRel)
    }

    /// Returns whether the future was woken. The signal of a wake keeps the thread from sleeping as well, at
    /// a higher price.
    #[inline]
    pub(crate) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }
}

impl Wake for Main {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.remote.signal();
    }
}
