//! What is under way, and what moves it on.
//!
//! The life of an operation:
//! 1. It is consumed by a submit or an enter. A no-op and a request to cancel complete at once.
//! 2. A read or write on a stream is tried, unless others wait for the same direction already: they
//!    go first. What cannot be tried now waits in the [`Registry`]; an event makes its oldest
//!    waiters be tried, until one must wait on.
//! 3. What would block the thread becomes a job of a lane; its outcome comes through the [`Inbox`].
//! 4. Its completion is posted, and the flight is gone. Nothing here knows its memory any more.
//!
//! One that goes on (a [`Multishot`]) has completions with more to come in between, and stays where it is.
//!
//! A flight is in one place only: in a watch, or with a lane. The exception is a waiter that nothing
//! can try without blocking: it stays first in its way, which is marked busy, while a lane thread
//! tries it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::thread::Timespec;
use sakia_ring::{Cqe, Entered};

use super::inbox::Inbox;
use super::job::{Outcome, Work, close};
use super::lanes::{Job, Limits, Pool};
use super::multishot::{self, Multishot, Step};
use super::registry::{INBOX, Registry};
use super::stuck::{OnStuck, Stuck};
use super::transfer::{FileClass, Try, Ways, failed, outcome, poll_now};
use super::trial::Trial;
use crate::call::{Call, Request, System, Transfer, Victims};
use crate::counters::{KindCounters, OpKind};
use crate::groups::Groups;
use crate::policy::Lane;
use crate::queue::Queue;
use crate::readable;
use crate::sys::{self, Direction, borrow};

/// Events fetched at a time.
const EVENTS: usize = 256;
const NANOS_PER_MILLI: u32 = 1_000_000;

/// Everything that a backend consists of but its process.
pub(super) struct Machine {
    pub(super) queue: Queue<Request>,
    pub(super) pool: Pool,
    pub(super) inbox: Arc<Inbox>,
    /// Memory for operations that bring none.
    pub(super) groups: Groups,
    registry: Registry,
    /// Operations under way, by the order in which they were consumed.
    flights: BTreeMap<u64, Flight>,
    /// The same, by `user_data`.
    by_user_data: BTreeSet<(u64, u64)>,
    /// Operations consumed so far.
    consumed: u64,
    /// Jobs that go to the pool together, by lane.
    jobs: [Vec<(u64, Job)>; 2],
    /// Sockets that were made here, by number, until they are closed or given away.
    sockets: BTreeSet<i32>,
    /// Which way operations took, by kind.
    pub(super) kinds: [KindCounters; OpKind::COUNT],
    /// Room for what the inbox holds.
    results: Vec<(u64, Outcome)>,
    /// Room for what epoll reports.
    events: Vec<epoll::Event>,
    ways: Ways,
    /// The kernel has `epoll_pwait2(2)`, as far as is known.
    has_pwait2: bool,
    pub(super) stuck: Stuck,
}

/// An operation under way. While there is one, its last completion was not posted, so its memory is
/// still lent.
#[derive(Debug)]
struct Flight {
    user_data: u64,
    kind: OpKind,
    /// The descriptor acted on.
    raw: Option<i32>,
    stage: Stage,
    /// It was to be canceled while a lane thread tried it: it must not wait again.
    is_canceled: bool,
}

/// What an operation under way waits for.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// For the descriptor of the watch at this place to get ready, and those before it.
    Waiting { place: usize, trial: Trial },
    /// For an event at the watch at this place.
    Polling { place: usize },
    /// For a lane.
    Lane,
}

/// How an enter sleeps.
#[derive(Clone, Copy, Debug)]
enum Sleep {
    /// Not at all: it has a look.
    No,
    /// Until then, or without end.
    Until(Option<Instant>),
}

impl Machine {
    pub(super) fn new(
        queue: Queue<Request>,
        limits: Limits,
        inbox: Arc<Inbox>,
        ways: Option<Ways>,
        on_stuck: Option<OnStuck>,
    ) -> io::Result<Self> {
        Ok(Self {
            registry: Registry::new(inbox.event())?,
            ways: ways.unwrap_or_else(|| Ways::probe(inbox.event())),
            pool: Pool::new(limits, Arc::clone(&inbox)),
            queue,
            inbox,
            groups: Groups::default(),
            flights: BTreeMap::new(),
            by_user_data: BTreeSet::new(),
            consumed: 0,
            jobs: [Vec::new(), Vec::new()],
            sockets: BTreeSet::new(),
            kinds: [KindCounters::default(); OpKind::COUNT],
            results: Vec::new(),
            events: Vec::with_capacity(EVENTS),
            has_pwait2: true,
            stuck: Stuck::new(on_stuck, limits.stuck_after),
        })
    }

    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.registry.epoll()
    }

    pub(super) fn flights(&self) -> usize {
        self.flights.len()
    }

    /// Whether a look at epoll could bring something.
    pub(super) fn has_waiters(&self) -> bool {
        self.registry.waiters() > 0
    }

    /// A descriptor that is readable when an enter would bring something, from now on.
    pub(super) fn pollable(&mut self) -> Result<OwnedFd, Errno> {
        let pollable = readable::around(self.registry.epoll())?;
        self.registry.is_restless = true;
        // Those that rest now go on: what comes of it is told.
        while let Some(until) = self.registry.next_rested() {
            if let Some(place) = self.registry.pop_rested(until) {
                self.arm(place);
            }
        }
        self.inbox.watch();
        Ok(pollable)
    }

    /// Takes what makes that descriptor readable. Operations that this lets go on complete; what is in
    /// the inbox stays there for the next enter.
    pub(super) fn quiet(&mut self) {
        // A signal means that there was nothing.
        let mut looked = 0;
        while let Ok(count) = self.wait(Sleep::No) {
            looked += count;
            if self.has_seen_all(count, looked) {
                break;
            }
        }
    }

    pub(super) fn reap(&mut self, out: &mut [Cqe]) -> usize {
        self.queue.reap(out)
    }

    // ---- entering ------------------------------------------------------------------------------

    /// Consumes what is pending. Returns how much.
    pub(super) fn submit(&mut self) -> u32 {
        let mut count = 0;
        while let Some(request) = self.queue.consume() {
            self.start(&request);
            count += 1;
        }
        self.push_jobs();
        count
    }

    pub(super) fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
    ) -> io::Result<Entered> {
        let consumed = self.submit();
        self.keep_house();
        let wanted = min_complete.min(self.queue.cq_entries());
        // Too far away to be a time is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = timeout == Some(Duration::ZERO);
        let mut has_looked = false;
        let mut looked = 0;
        let mut is_woken = false;
        loop {
            // Users' code that is to run ends the sleep as a wake does.
            is_woken |= self.receive() || self.stuck.has_callback();
            self.queue.flush_overflow();
            let is_enough = is_woken || self.queue.ready() >= wanted;
            if has_looked && (is_enough || is_over) || is_enough && !self.has_waiters() {
                let timed_out = !is_enough && consumed == 0 && self.queue.ready() == 0;
                return Ok(Entered { consumed, timed_out });
            }
            let sleep = if is_enough || is_over { Sleep::No } else { self.sleep_until(deadline) };
            if matches!(sleep, Sleep::Until(_)) && !self.inbox.park() {
                continue;
            }
            match self.wait(sleep) {
                Ok(count) => {
                    looked += count;
                    has_looked |= self.has_seen_all(count, looked);
                }
                Err(Errno::INTR) => return self.interrupted(consumed),
                Err(errno) => return Err(errno.into()),
            }
            is_over |= deadline.is_some_and(|deadline| Instant::now() >= deadline);
            self.keep_house();
        }
    }

    /// Whether everybody had a turn, when the last wait brought `count` of all in all `looked` events. A full
    /// buffer may not have been everything, but with peers that always send there is no end of events.
    fn has_seen_all(&self, count: usize, looked: usize) -> bool {
        count < EVENTS || looked > self.registry.waiters()
    }

    /// A signal ended the sleep. As with the ring that is an error only where there is nothing to tell.
    #[cold]
    fn interrupted(&mut self, consumed: u32) -> io::Result<Entered> {
        let is_woken = self.receive();
        self.queue.flush_overflow();
        let is_empty = consumed == 0 && self.queue.ready() == 0 && !is_woken;
        if is_empty {
            return Err(Errno::INTR.into());
        }
        Ok(Entered { consumed, timed_out: false })
    }

    /// Ends what lanes are done with. Returns whether somebody wants the enter to return.
    fn receive(&mut self) -> bool {
        let mut results = mem::take(&mut self.results);
        let is_woken = self.inbox.receive(&mut results);
        for (id, outcome) in results.drain(..) {
            self.end_job(id, outcome);
        }
        self.results = results;
        is_woken
    }

    /// Until when to sleep at most: the deadline, or when there is something else to do.
    fn sleep_until(&self, deadline: Option<Instant>) -> Sleep {
        let times = [deadline, self.stuck.at, self.registry.next_rested()];
        Sleep::Until(times.into_iter().flatten().min())
    }

    /// Waits for events and handles them. Returns how many there were.
    fn wait(&mut self, sleep: Sleep) -> Result<usize, Errno> {
        self.events.clear();
        let timeout = match sleep {
            Sleep::No => Some(Duration::ZERO),
            Sleep::Until(until) => {
                until.map(|until| until.saturating_duration_since(Instant::now()))
            }
        };
        let is_fine = timeout.is_some_and(|time| time.subsec_nanos() % NANOS_PER_MILLI != 0);
        match timeout.filter(|_| is_fine && self.has_pwait2) {
            Some(timeout) => match self.wait_precisely(timeout) {
                // Before Linux 5.11, or with a filter that is older than that.
                Err(Errno::NOSYS | Errno::PERM) => {
                    self.has_pwait2 = false;
                    self.wait_roughly(Some(timeout))?;
                }
                result => result?,
            },
            None => self.wait_roughly(timeout)?,
        }
        let events = mem::take(&mut self.events);
        for event in &events {
            let token = event.data.u64();
            if token != INBOX
                && let Some(place) = self.registry.resolve(token)
            {
                self.handle_event(place, event.flags);
            }
        }
        let count = events.len();
        self.events = events;
        self.push_jobs();
        Ok(count)
    }

    fn wait_precisely(&mut self, timeout: Duration) -> Result<(), Errno> {
        let spare = &mut self.events.spare_capacity_mut()[..EVENTS];
        let count = sys::epoll_pwait2(self.registry.epoll(), spare, &timespec(timeout))?;
        // SAFETY: the kernel has filled as many, which are at most as many as there is room for.
        unsafe { self.events.set_len(count) };
        Ok(())
    }

    /// Waits for whole milliseconds, not less than the timeout.
    fn wait_roughly(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        let timeout = timeout.map(|timeout| timespec(whole_millis(timeout)));
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(self.registry.epoll(), spare, timeout.as_ref())?;
        Ok(())
    }

    /// What is due by time.
    fn keep_house(&mut self) {
        if self.registry.next_rested().is_none() && self.stuck.at.is_none() {
            return;
        }
        let now = Instant::now();
        while let Some(place) = self.registry.pop_rested(now) {
            self.arm(place);
        }
        self.stuck.look(&self.pool, now);
    }

    // ---- starting ------------------------------------------------------------------------------

    /// Makes a request an operation under way, or completes it.
    fn start(&mut self, request: &Request) {
        match request.call {
            Call::Nop => self.post_now(request, 0),
            Call::Cancel { victims, all } => {
                let res = self.cancel(victims, all);
                self.post_now(request, res);
            }
            Call::Transfer(transfer) => self.start_transfer(request, transfer),
            Call::Socket(call) => self.start_trial(request, Trial::Socket(call)),
            Call::AcceptMany(call) => self.start_multishot(request, Multishot::Accept(call)),
            Call::RecvMany { raw, group, flags } => {
                self.start_multishot(request, Multishot::Recv { raw, group, flags });
            }
            Call::System(system) if system.is_short() => self.call_now(request, system),
            Call::Poll { raw, events } => self.start_poll(request, raw, events),
            Call::Close { raw } => self.start_close(request, raw),
            call => self.send_to_lane(request, Lane::Bounded, Work::Call(call)),
        }
    }

    /// Completes what was done here and now.
    fn post_now(&mut self, request: &Request, res: i32) {
        self.count(request.kind).inline += 1;
        self.queue.post(request.user_data, res);
    }

    /// The counters of a kind.
    fn count(&mut self, kind: OpKind) -> &mut KindCounters {
        &mut self.kinds[kind as usize]
    }

    /// Counts what a try brought.
    fn count_try(&mut self, kind: OpKind, tried: &Try) {
        match tried {
            Try::Done(_) => self.count(kind).inline += 1,
            Try::WouldBlock => self.count(kind).would_block += 1,
            Try::Unable => {}
        }
    }

    /// Makes a request a job of this lane, whatever it acts on, or cancels such jobs.
    pub(super) fn start_on_lane(&mut self, request: &Request, lane: Lane) {
        match request.call {
            Call::Nop
            | Call::Poll { .. }
            | Call::Cancel { .. }
            | Call::Socket(_)
            | Call::AcceptMany(_)
            | Call::RecvMany { .. } => return self.start(request),
            Call::System(system) if system.is_short() => return self.start(request),
            call => self.send_to_lane(request, lane, Work::Call(call)),
        }
        self.push_jobs();
    }

    /// Ends what lanes are done with, and nothing else.
    pub(super) fn collect(&mut self) {
        self.receive();
        self.queue.flush_overflow();
        self.keep_house();
    }

    fn start_transfer(&mut self, request: &Request, transfer: Transfer) {
        let raw = transfer.raw;
        // SAFETY: the request is not completed, so its descriptor is open.
        let class = match unsafe { FileClass::of_descriptor(raw) } {
            Ok(class) => class,
            Err(errno) => return self.queue.post(request.user_data, failed(errno)),
        };
        if class == FileClass::Bounded {
            if transfer.is_nowait() {
                // SAFETY: the request is not completed, so its memory is lent.
                let res = outcome(unsafe { transfer.call(raw) });
                return self.post_now(request, res);
            }
            return self.send_to_lane(request, Lane::Bounded, Work::Call(request.call));
        }
        self.start_trial(request, Trial::Transfer(transfer, class));
    }

    /// Tries an operation, unless others wait already, and has it wait if it must. One that does not wait
    /// goes ahead of those that do, as on a ring: some of them may have been dropped.
    fn start_trial(&mut self, request: &Request, trial: Trial) {
        let (raw, direction) = (trial.raw(), trial.direction());
        let is_first = trial.is_nowait()
            || self
                .registry
                .find(raw)
                .is_none_or(|place| self.registry.watch(place).way(direction).queue.is_empty());
        let tried = if is_first {
            // SAFETY: the request is not completed, so its memory is lent.
            let tried = unsafe { trial.try_now(self.ways, self.is_own(raw)) };
            self.count_try(request.kind, &tried);
            tried
        } else {
            Try::WouldBlock
        };
        match tried {
            Try::Done(res) => {
                self.note_made(request.call, res);
                self.queue.post(request.user_data, res);
            }
            Try::WouldBlock if trial.is_nowait() => {
                self.queue.post(request.user_data, failed(Errno::AGAIN));
            }
            Try::Unable if trial.is_nowait() => {
                self.queue.post(request.user_data, failed(Errno::OPNOTSUPP));
            }
            Try::Unable if trial.is_for_threads() => {
                self.send_to_lane(request, Lane::Elastic, trial.work());
            }
            Try::WouldBlock | Try::Unable => {
                let place = self.wait_for(raw, direction);
                self.take_off(request, Stage::Waiting { place, trial });
                self.arm(place);
            }
        }
    }

    /// Has the next operation wait for a descriptor. To be armed afterwards.
    fn wait_for(&mut self, raw: i32, direction: Direction) -> usize {
        let place = self.registry.wait(raw, direction, self.consumed);
        if self.is_own(raw) {
            self.registry.keep(place);
        }
        place
    }

    /// Has an operation begin that goes on.
    fn start_multishot(&mut self, request: &Request, multishot: Multishot) {
        if multishot.lacks_group(&self.groups) {
            return self.queue.post(request.user_data, failed(Errno::NOBUFS));
        }
        let raw = multishot.raw();
        let place = self.wait_for(raw, Direction::Read);
        let stage = Stage::Waiting { place, trial: Trial::Multishot(multishot) };
        let id = self.take_off(request, stage);
        self.registry.go_on(place, id);
        // Those that wait already go first, and wait for an event.
        if self.registry.watch(place).way(Direction::Read).queue.front() == Some(&id) {
            match self.shoot(id, multishot).0 {
                Step::Waits => {}
                Step::Over(res) => {
                    self.registry.leave(place, id);
                    self.finish(id, res);
                }
                // When there is something to do, that is a thread's.
                Step::Unable => self.registry.rest_between(place, id),
            }
        }
        self.arm(place);
    }

    /// Makes a call that waits for nobody.
    fn call_now(&mut self, request: &Request, system: System) {
        // SAFETY: the request is not completed, so its memory is lent.
        let res = outcome(unsafe { system.run() });
        self.note_made(request.call, res);
        self.post_now(request, res);
    }

    /// An operation has ended, and may have made a socket.
    fn note_made(&mut self, call: Call, res: i32) {
        if call.makes_socket() {
            self.note_socket(res);
        }
    }

    /// A socket was made here, if this is the number of one.
    pub(super) fn note_socket(&mut self, raw: i32) {
        if raw >= 0 {
            self.sockets.insert(raw);
        }
    }

    /// The number is another file's from now on.
    pub(super) fn forget_socket(&mut self, raw: i32) {
        if self.sockets.remove(&raw) {
            self.registry.release(raw);
        }
    }

    /// Whether the descriptor's file was made here, and nobody was given it.
    pub(super) fn is_own(&self, raw: i32) -> bool {
        self.sockets.contains(&raw)
    }

    #[allow(clippy::unnecessary_cast, reason = "the bits are signed where `rustix` goes by libc")]
    fn start_poll(&mut self, request: &Request, raw: i32, events: u32) {
        let events = with_read_hang_up(events as u16);
        let wanted = PollFlags::from_bits_retain(events as _);
        // SAFETY: the request is not completed, so its descriptor is open.
        match unsafe { poll_now(raw, wanted) } {
            Err(errno) => self.queue.post(request.user_data, failed(errno)),
            Ok(ready) if ready.is_empty() => {
                let place = self.registry.wait_poll(raw, events, self.consumed);
                self.take_off(request, Stage::Polling { place });
                self.arm(place);
            }
            Ok(ready) => self.post_now(request, i32::from(ready.bits() as u16)),
        }
    }

    /// Closing a file may write, closing a terminal may wait for its output. What is done here and now is
    /// what the ring, too, does on the caller's thread.
    fn start_close(&mut self, request: &Request, raw: i32) {
        self.forget_socket(raw);
        // The driver closes nothing that is in use. Whoever does would wait for ever.
        if let Some(place) = self.registry.find(raw) {
            for id in self.registry.members(place) {
                // A lane thread that tries one goes on with it.
                let _ = self.cancel_one(id);
            }
            if self.registry.members(place).is_empty() {
                self.registry.forget(place);
            }
        }
        // SAFETY: the request is not completed, so its descriptor is open, and is given up by it.
        match unsafe { FileClass::of_descriptor(raw) } {
            Err(errno) => self.queue.post(request.user_data, failed(errno)),
            // SAFETY: as above.
            Ok(FileClass::Pipe | FileClass::Socket) => {
                self.post_now(request, unsafe { close(raw) })
            }
            Ok(FileClass::Bounded | FileClass::Other) => {
                self.send_to_lane(request, Lane::Bounded, Work::Call(request.call));
            }
        }
    }

    /// Makes a request a flight. Returns its number, which is what `consumed` was before.
    fn take_off(&mut self, request: &Request, stage: Stage) -> u64 {
        let &Request { user_data, kind, call } = request;
        let id = self.consumed;
        self.consumed += 1;
        let raw = call.acts_on();
        self.flights.insert(id, Flight { user_data, kind, raw, stage, is_canceled: false });
        self.by_user_data.insert((user_data, id));
        id
    }

    /// Makes a request a job.
    fn send_to_lane(&mut self, request: &Request, lane: Lane, work: Work) {
        let id = self.take_off(request, Stage::Lane);
        self.give_to_lane(lane, id, work);
    }

    fn give_to_lane(&mut self, lane: Lane, id: u64, work: Work) {
        let Flight { user_data, kind, .. } = self.flights[&id];
        self.jobs[lane as usize].push((id, Job { user_data, kind, work }));
    }

    /// Hands the jobs over that have come together.
    fn push_jobs(&mut self) {
        for lane in Lane::ALL {
            let jobs = &mut self.jobs[lane as usize];
            if jobs.is_empty() {
                continue;
            }
            self.stuck.begin();
            for (_, job) in &*jobs {
                self.kinds[job.kind as usize].lane += 1;
            }
            self.pool.push(lane, jobs.drain(..));
        }
    }

    // ---- going on ------------------------------------------------------------------------------

    /// Epoll reported something for a watch.
    fn handle_event(&mut self, place: usize, ready: EventFlags) {
        const ALWAYS: EventFlags = EventFlags::ERR.union(EventFlags::HUP);
        self.registry.fired(place);
        let found_nobody = self.registry.watch(place).is_idle();
        let mut was_fruitful = false;
        if ready.intersects(ALWAYS | EventFlags::IN) {
            was_fruitful |= self.run_way(place, Direction::Read);
        }
        if ready.intersects(ALWAYS | EventFlags::OUT) {
            was_fruitful |= self.run_way(place, Direction::Write);
        }
        let polls = &self.registry.watch(place).polls;
        let told = polls.iter().filter_map(|&(id, events)| {
            let wanted = EventFlags::from_bits_retain(u32::from(events)) | ALWAYS;
            let told = ready & wanted;
            (!told.is_empty()).then_some((id, told.bits() as i32))
        });
        for (id, res) in told.collect::<Vec<_>>() {
            self.registry.leave(place, id);
            self.finish(id, res);
            was_fruitful = true;
        }
        self.registry.hush(place, ready, found_nobody);
        self.registry.classify(place, was_fruitful);
        self.arm(place);
    }

    /// Tries the operations of a way, oldest first, until one must wait. Returns whether one went on.
    fn run_way(&mut self, place: usize, direction: Direction) -> bool {
        let mut was_fruitful = false;
        loop {
            let way = self.registry.watch(place).way(direction);
            let Some(&id) = way.queue.front().filter(|_| !way.is_busy) else {
                return was_fruitful;
            };
            let Stage::Waiting { trial, .. } = self.flights[&id].stage else {
                unreachable!("what waits in a way is to be tried")
            };
            if let Trial::Multishot(multishot) = trial {
                let (step, took_some) = self.shoot(id, multishot);
                was_fruitful |= took_some;
                match step {
                    Step::Waits => return was_fruitful,
                    Step::Over(res) => {
                        self.registry.leave(place, id);
                        self.finish(id, res);
                        was_fruitful = true;
                    }
                    Step::Unable => {
                        self.registry.rest_between(place, id);
                        self.registry.watch(place).way(direction).is_busy = true;
                        self.give_to_lane(Lane::Elastic, id, trial.work());
                        return was_fruitful;
                    }
                }
                continue;
            }
            // SAFETY: there is the flight, so its memory is lent.
            let tried = unsafe { trial.try_now(self.ways, self.is_own(trial.raw())) };
            let kind = self.flights[&id].kind;
            self.count_try(kind, &tried);
            match tried {
                Try::Done(res) => {
                    self.registry.leave(place, id);
                    self.finish(id, res);
                    was_fruitful = true;
                }
                Try::WouldBlock => return was_fruitful,
                Try::Unable => {
                    self.registry.watch(place).way(direction).is_busy = true;
                    self.give_to_lane(Lane::Elastic, id, trial.work());
                    return was_fruitful;
                }
            }
        }
    }

    /// Lets an operation that goes on take what is there. Returns whether there was something, or may be but
    /// finds no place in the queue.
    fn shoot(&mut self, id: u64, multishot: Multishot) -> (Step, bool) {
        let Flight { user_data, kind, .. } = self.flights[&id];
        let is_own = self.is_own(multishot.raw());
        let room = self.queue.room() as usize;
        let Self { groups, queue, sockets, .. } = self;
        let mut count = 0;
        let post = |res, flags| {
            if multishot.accepts() {
                sockets.insert(res);
            }
            queue.post_cqe(Cqe { user_data, res, flags }, false);
            count += 1;
        };
        // SAFETY: a buffer is in its group from when it was provided, which lends it, until a completion
        // names it.
        let step = unsafe { multishot.shoot(groups, is_own, room, post) };
        self.count(kind).inline += count;
        if count == 0 && step == Step::Waits {
            self.count(kind).would_block += 1;
        }
        (step, count > 0 || room == 0)
    }

    /// Has epoll watch for what is waited for at this place.
    fn arm(&mut self, place: usize) {
        let Err(errno) = self.registry.arm(place) else {
            return;
        };
        for id in self.registry.members(place) {
            if self.is_tried_by_lane(place, id) {
                continue; // its memory is in use; it comes here again
            }
            self.registry.leave(place, id);
            match (errno, self.flights[&id].stage) {
                // A file without readiness: its operations end by themselves.
                (Errno::PERM, Stage::Waiting { trial: Trial::Transfer(transfer, _), .. }) => {
                    self.flight_mut(id).stage = Stage::Lane;
                    self.give_to_lane(Lane::Bounded, id, Work::Call(Call::Transfer(transfer)));
                }
                // As the ring answers when nothing can wake the poll.
                (Errno::PERM, _) => self.finish(id, failed(Errno::INVAL)),
                _ => self.finish(id, failed(errno)),
            }
        }
    }

    /// Whether an operation that waits at this place is with a lane nevertheless.
    fn is_tried_by_lane(&mut self, place: usize, id: u64) -> bool {
        let Stage::Waiting { trial, .. } = self.flights[&id].stage else {
            return false;
        };
        let way = self.registry.watch(place).way(trial.direction());
        way.is_busy && way.queue.front() == Some(&id)
    }

    /// A lane is done with a job.
    fn end_job(&mut self, id: u64, outcome: Outcome) {
        let Flight { stage, is_canceled, .. } = self.flights[&id];
        let Stage::Waiting { place, trial } = stage else {
            let res = outcome.into_result().expect("only waiters are tried by a lane");
            return self.finish(id, res);
        };
        self.registry.watch(place).way(trial.direction()).is_busy = false;
        let mut res = outcome.into_result();
        let was_fruitful = res.is_some() || is_canceled;
        if let (Trial::Multishot(_), Some(raw @ 0..)) = (trial, res) {
            self.note_socket(raw);
            let user_data = self.flights[&id].user_data;
            self.queue.post_cqe(Cqe { user_data, res: raw, flags: multishot::more() }, false);
            res = None;
        }
        let res = res.or(is_canceled.then_some(failed(Errno::CANCELED)));
        if let Some(res) = res {
            self.registry.leave(place, id);
            self.finish(id, res);
        }
        self.registry.classify(place, was_fruitful);
        self.arm(place);
    }

    /// The operation is over.
    fn finish(&mut self, id: u64, res: i32) {
        let flight = self.flights.remove(&id).expect("an operation that ends is under way");
        self.by_user_data.remove(&(flight.user_data, id));
        if flight.kind == OpKind::Accept {
            self.note_socket(res);
        }
        self.queue.post(flight.user_data, res);
    }

    fn flight_mut(&mut self, id: u64) -> &mut Flight {
        self.flights.get_mut(&id).expect("the operation is under way")
    }

    // ---- canceling -----------------------------------------------------------------------------

    /// Cancels one operation, or all that match. Returns the result of the cancel's completion.
    fn cancel(&mut self, victims: Victims, all: bool) -> i32 {
        self.push_jobs();
        let ids: Vec<u64> = match victims {
            Victims::UserData(user_data) => {
                let range = (user_data, 0)..=(user_data, u64::MAX);
                self.by_user_data.range(range).map(|&(_, id)| id).collect()
            }
            Victims::Descriptor(raw) => {
                // SAFETY: the operation that waits keeps it open, or its number is refused here.
                let open = unsafe { borrow(raw) }.and_then(rustix::io::fcntl_getfd);
                if let Err(errno) = open {
                    return failed(errno);
                }
                let its = self.flights.iter().filter(|(_, flight)| flight.raw == Some(raw));
                its.map(|(&id, _)| id).collect()
            }
            Victims::Any => self.flights.keys().copied().collect(),
        };
        if all {
            for &id in &ids {
                // Counted whether it ends now or by itself.
                let _ = self.cancel_one(id);
            }
            return ids.len() as i32;
        }
        match ids.first() {
            Some(&id) => self.cancel_one(id).map_or_else(failed, |()| 0),
            None => failed(Errno::NOENT),
        }
    }

    /// # Errors
    /// `EALREADY`: a thread performs it. `ENOENT`: it has just ended, together with another one.
    fn cancel_one(&mut self, id: u64) -> Result<(), Errno> {
        let canceled = failed(Errno::CANCELED);
        match self.flights.get(&id).ok_or(Errno::NOENT)?.stage {
            // A thread closes what it was given: that it was not begun nobody could tell from the answer.
            Stage::Lane if self.flights[&id].kind == OpKind::Close => return Err(Errno::ALREADY),
            Stage::Lane if self.pool.cancel(id) => self.finish(id, canceled),
            Stage::Lane => return Err(Errno::ALREADY),
            Stage::Polling { place } => {
                self.registry.leave(place, id);
                self.finish(id, canceled);
                self.arm(place);
            }
            Stage::Waiting { place, trial } => {
                if self.is_tried_by_lane(place, id) {
                    if !self.pool.cancel(id) {
                        self.flight_mut(id).is_canceled = true;
                        return Err(Errno::ALREADY);
                    }
                    self.registry.watch(place).way(trial.direction()).is_busy = false;
                }
                self.registry.leave(place, id);
                self.finish(id, canceled);
                self.arm(place);
            }
        }
        Ok(())
    }
}

/// The events that a poll for these is told of. Who waits to read learns of a peer that sends no more, as
/// from the ring.
fn with_read_hang_up(events: u16) -> u16 {
    const IN: u16 = EventFlags::IN.bits() as u16;
    const READ_HANG_UP: u16 = EventFlags::RDHUP.bits() as u16;
    if events & IN == 0 { events } else { events | READ_HANG_UP }
}

/// The next whole number of milliseconds that is not less, as far as the kernel counts them.
fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(u128::from(NANOS_PER_MILLI));
    Duration::from_millis(millis.min(i32::MAX as u128) as u64)
}

/// The kernel's form of a duration. More than a century is as good as for ever.
fn timespec(duration: Duration) -> Timespec {
    const CENTURY_S: u64 = 100 * 365 * 24 * 60 * 60;
    Timespec {
        tv_sec: duration.as_secs().min(CENTURY_S) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up_and_not_too_many() {
        for (nanos, millis) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            let rounded = whole_millis(Duration::from_nanos(nanos));
            assert_eq!(rounded, Duration::from_millis(millis), "{nanos}");
        }
        assert_eq!(whole_millis(Duration::MAX).as_millis(), i32::MAX as u128);
    }
}
