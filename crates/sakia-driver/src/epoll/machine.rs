//! The state machine of operations.
//!
//! The life of an operation:
//! 1. A submit or an enter consumes it. A no-op and a cancel request complete at once.
//! 2. A read or write on a stream is tried, unless earlier operations wait for the same direction: they go
//!    first. An operation that would block waits in the [`Registry`]; on an event its oldest waiters are
//!    tried, until one must wait again.
//! 3. An operation that would block the thread becomes a job of a lane; its outcome comes through the
//!    [`Inbox`].
//! 4. Its completion is posted, and the flight removed. From then on nothing here accesses its memory.
//!
//! A multishot operation (see [`multishot`]) posts completions with more to come in between, and stays in
//! place.
//!
//! Events are handled in batches, so that the tasks of some get on before the next ones are looked at: what a
//! receive has brought into the processor's caches is still there when the task sends it on. The other events
//! are kept for the next enter.
//!
//! A flight is in one place only: in a watch, or with a lane. The exception is a waiter that cannot be tried
//! without blocking: it stays first in its queue, which is marked busy, while a lane thread tries it.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use sakia_ring::{Cqe, Entered, SignalMask};

use super::flights::{Flight, Flights, Stage};
use super::inbox::Inbox;
use super::job::{Outcome, Work, close};
use super::lanes::{Job, Limits, Pool};
use super::multishot;
use super::registry::{INBOX, Registry, Watch};
use super::sleep::{EVENTS, Sleep, Sleeper};
use super::transfer::{FileClass, Means, Try, poll_now};
use crate::call::{Call, Request, SocketCall, System, Transfer, Verb, Victims, failed, outcome};
use crate::counters::{KindCounters, OpKind};
use crate::decide::Lane;
use crate::groups::Groups;
use crate::queue::Queue;
use crate::readable;
use crate::sys::{Direction, borrow};

/// The most events of a batch.
const BATCH_EVENTS: usize = 32;
/// Received bytes that end a batch.
const BATCH_BYTES: usize = 128 << 10;

/// The parts of a backend except its process.
pub(super) struct Machine {
    pub(super) queue: Queue<Request>,
    pub(super) pool: Pool,
    pub(super) inbox: Arc<Inbox>,
    /// Provided buffers.
    pub(super) groups: Groups,
    pub(super) flights: Flights,
    pub(super) registry: Registry,
    sleeper: Sleeper,
    /// The bytes received in the batch of events that is being handled.
    received: usize,
    /// A batch has no end. A foreign loop must not sleep while events are left, and does not know of them.
    pub(super) is_unbatched: bool,
    /// Jobs that go to the pool together, by lane.
    jobs: [Vec<(u64, Job)>; 2],
    /// The ways of operations, by kind.
    pub(super) kinds: [KindCounters; OpKind::COUNT],
    /// Room for the inbox's results.
    results: Vec<(u64, Outcome)>,
    means: Means,
}

impl Machine {
    pub(super) fn new(
        queue: Queue<Request>,
        limits: Limits,
        inbox: Arc<Inbox>,
        means: Option<Means>,
    ) -> io::Result<Self> {
        Ok(Self {
            registry: Registry::new(inbox.event())?,
            means: means.unwrap_or_else(|| Means::probe(inbox.event())),
            pool: Pool::new(limits, Arc::clone(&inbox)),
            queue,
            inbox,
            groups: Groups::default(),
            flights: Flights::default(),
            sleeper: Sleeper::new(),
            received: 0,
            is_unbatched: false,
            jobs: [Vec::new(), Vec::new()],
            kinds: [KindCounters::default(); OpKind::COUNT],
            results: Vec::new(),
        })
    }

    /// Returns a descriptor that is readable when an enter would have an effect, from now on.
    pub(super) fn pollable(&mut self) -> Result<OwnedFd, Errno> {
        let pollable = readable::around(self.registry.epoll())?;
        self.registry.is_restless = true;
        self.is_unbatched = true;
        if self.has_events() {
            self.inbox.wake(); // the next enter handles them
        }
        // Resting watches continue now: their events are reported.
        while let Some(until) = self.registry.next_rested() {
            if let Some(place) = self.registry.pop_rested(until) {
                self.arm(place);
            }
        }
        self.inbox.watch();
        Ok(pollable)
    }

    /// Clears the readiness of that descriptor. Operations that can continue complete; results in the inbox
    /// stay there for the next enter.
    pub(super) fn quiet(&mut self) {
        // A signal means that there was no event.
        let mut looked = 0;
        while let Ok(count) = self.wait(Sleep::No, None) {
            looked += count;
            if self.has_seen_all(looked) {
                break;
            }
        }
    }

    // ---- entering ------------------------------------------------------------------------------

    /// Consumes the pending requests. Returns their number.
    pub(super) fn submit(&mut self) -> u32 {
        let mut count = 0;
        while let Some(request) = self.queue.consume() {
            self.start(&request, Lane::Bounded);
            count += 1;
        }
        self.push_jobs();
        count
    }

    pub(super) fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        let consumed = self.submit();
        self.keep_house();
        let wanted = min_complete.min(self.queue.cq_entries());
        // A time out of range means no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = timeout == Some(Duration::ZERO);
        let mut has_looked = false;
        let mut looked = 0;
        let mut is_woken = false;
        loop {
            is_woken |= self.receive();
            self.queue.flush_overflow();
            let is_enough = is_woken || self.queue.ready() >= wanted;
            if has_looked && (is_enough || is_over) || is_enough && self.registry.waiters() == 0 {
                let timed_out = !is_enough && consumed == 0 && self.queue.ready() == 0;
                return Ok(Entered { consumed, timed_out });
            }
            let sleep = if is_enough || is_over { Sleep::No } else { self.sleep_until(deadline) };
            if matches!(sleep, Sleep::Until(_)) && !self.inbox.park() {
                continue;
            }
            match self.wait(sleep, signals.filter(|_| !matches!(sleep, Sleep::No))) {
                Ok(count) => {
                    looked += count;
                    has_looked |= self.has_seen_all(looked);
                }
                Err(Errno::INTR) => return self.interrupted(consumed),
                Err(errno) => return Err(errno.into()),
            }
            is_over |= deadline.is_some_and(|deadline| Instant::now() >= deadline);
            self.keep_house();
        }
    }

    /// Returns whether every descriptor had a turn after `looked` events in total, or a batch has results. A
    /// full buffer may hide further events, but peers that send continuously cause events without end.
    fn has_seen_all(&self, looked: usize) -> bool {
        if self.has_events() {
            return self.queue.ready() > 0;
        }
        self.sleeper.fetched() < EVENTS || looked > self.registry.waiters()
    }

    /// Returns whether events are left for the next enter.
    pub(super) fn has_events(&self) -> bool {
        self.sleeper.has_events()
    }

    /// Handles a sleep that a signal ended. As on the ring that is an error only if there is nothing to
    /// report.
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

    /// Finishes the operations whose jobs have ended. Returns whether a wake is pending.
    fn receive(&mut self) -> bool {
        let mut results = mem::take(&mut self.results);
        let is_woken = self.inbox.receive(&mut results);
        for (id, outcome) in results.drain(..) {
            self.end_job(id, outcome);
        }
        self.results = results;
        is_woken
    }

    /// Returns the end of the sleep: the deadline, or the time of other work.
    fn sleep_until(&self, deadline: Option<Instant>) -> Sleep {
        let times = [deadline, self.registry.next_rested()];
        Sleep::Until(times.into_iter().flatten().min())
    }

    /// Waits for events, unless some are left, and handles a batch of them. Returns their number.
    fn wait(&mut self, sleep: Sleep, signals: Option<&SignalMask>) -> Result<usize, Errno> {
        let are_old = self.has_events();
        if !are_old {
            self.sleeper.sleep(self.registry.epoll(), sleep, signals)?;
        }
        let mut count = 0;
        self.received = 0;
        while self.is_unbatched || count < BATCH_EVENTS && self.received < BATCH_BYTES {
            let Some((token, flags)) = self.sleeper.next_event() else { break };
            count += 1;
            if token != INBOX
                && let Some(place) = self.registry.resolve(token)
            {
                self.handle_event(place, flags, are_old);
            }
        }
        self.push_jobs();
        Ok(count)
    }

    /// Does the work that has become due.
    fn keep_house(&mut self) {
        if self.registry.next_rested().is_none() {
            return;
        }
        let now = Instant::now();
        while let Some(place) = self.registry.pop_rested(now) {
            self.arm(place);
        }
    }

    // ---- starting ------------------------------------------------------------------------------

    /// Starts a request as an operation in flight, or completes it. Calls that end by themselves go to this
    /// lane.
    fn start(&mut self, request: &Request, lane: Lane) {
        match request.call {
            Call::Nop => self.post_now(request, 0),
            Call::Cancel { victims, all } => {
                let res = self.cancel(victims, all);
                self.post_now(request, res);
            }
            Call::Transfer(transfer) => self.start_transfer(request, transfer),
            Call::RecvMany { group, .. } if !self.groups.contains(group) => {
                self.queue.post(request.user_data, failed(Errno::NOBUFS));
            }
            Call::Socket(SocketCall { raw, .. })
            | Call::AcceptMany(SocketCall { raw, .. })
            | Call::RecvMany { raw, .. } => self.start_trial(request, raw, FileClass::Socket),
            Call::System(system) if system.is_short() => self.call_now(request, system),
            Call::Poll { raw, events } => self.start_poll(request, raw, events),
            Call::Close { raw } => self.start_close(request, raw),
            call => self.send_to_lane(request, lane, Work::Call(call)),
        }
    }

    /// Completes a call that was made in place.
    fn post_now(&mut self, request: &Request, res: i32) {
        self.count(request.kind).inline += 1;
        self.queue.post(request.user_data, res);
    }

    /// Returns the counters of a kind.
    fn count(&mut self, kind: OpKind) -> &mut KindCounters {
        &mut self.kinds[kind as usize]
    }

    /// Makes a request a job of this lane, whatever its descriptor, or cancels such jobs.
    pub(super) fn start_on_lane(&mut self, request: &Request, lane: Lane) {
        match request.call {
            call @ (Call::Transfer(_) | Call::Close { .. }) => {
                self.send_to_lane(request, lane, Work::Call(call));
            }
            _ => self.start(request, lane),
        }
        self.push_jobs();
    }

    /// Starts a multishot receive or a transfer beside a ring. The ring's sleep ends at the set's events
    /// only, so no watch rests.
    pub(super) fn start_ready(&mut self, request: &Request) {
        self.registry.is_restless = true;
        if let Call::RecvMany { raw, .. } = request.call {
            self.registry.note_socket(raw);
        }
        self.start(request, Lane::Bounded);
        self.push_jobs();
    }

    /// Handles events of the set without waiting for any.
    pub(super) fn look(&mut self) {
        // A signal means that there was no event.
        let _ = self.wait(Sleep::No, None);
        self.queue.flush_overflow();
    }

    /// Finishes the operations whose jobs have ended, and nothing else.
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
            if request.call.is_nowait() {
                // SAFETY: the request is not completed, so its memory is lent.
                let res = outcome(unsafe { transfer.call(raw) });
                return self.post_now(request, res);
            }
            return self.send_to_lane(request, Lane::Bounded, Work::Call(request.call));
        }
        self.start_trial(request, raw, class);
    }

    /// Tries an operation, unless earlier ones wait, and queues it if it must wait, or is multishot. A
    /// non-blocking one goes ahead of waiting ones, as on a ring: some of them may have been dropped.
    fn start_trial(&mut self, request: &Request, raw: i32, class: FileClass) {
        let call = &request.call;
        let (direction, is_nowait) = (call.direction(), call.is_nowait());
        let is_first = is_nowait
            || self
                .registry
                .find(raw)
                .is_none_or(|place| self.registry.watch(place).queue(direction).ids.is_empty());
        let tried = if is_first { self.attempt(request, raw, class).0 } else { Try::WouldBlock };
        match tried {
            Try::Done(res) => {
                self.note_made(*call, res);
                self.queue.post(request.user_data, res);
            }
            Try::WouldBlock if is_nowait => {
                self.queue.post(request.user_data, failed(Errno::AGAIN));
            }
            Try::Unable if is_nowait => {
                self.queue.post(request.user_data, failed(Errno::OPNOTSUPP));
            }
            Try::Unable
                if matches!(*call, Call::Socket(SocketCall { verb: Verb::Connect, .. })) =>
            {
                self.send_to_lane(request, Lane::Elastic, Work::Call(*call));
            }
            Try::WouldBlock | Try::Unable => {
                let place = self.registry.wait(raw, direction, self.flights.next_id());
                let id = self.flights.take_off(*request, Stage::Waiting { place, class });
                // If it cannot be tried, a thread handles each event.
                if call.goes_on() && tried == Try::WouldBlock {
                    self.registry.go_on(place, id);
                }
                self.arm(place);
            }
        }
    }

    /// Tries an operation, or lets a multishot one take the available data. Returns also whether there was
    /// any, or may be but has no place in the queue.
    #[inline(always)]
    fn attempt(&mut self, request: &Request, raw: i32, class: FileClass) -> (Try, bool) {
        if request.call.goes_on() {
            return self.shoot(request, raw);
        }
        let is_own = request.call.depends_on_mode() && self.registry.is_own(raw);
        // SAFETY: the request is not completed, so its memory is lent.
        let tried = unsafe { request.call.try_now(class, self.means, is_own) };
        match tried {
            Try::Done(_) => self.count(request.kind).inline += 1,
            Try::WouldBlock => self.count(request.kind).would_block += 1,
            Try::Unable => {}
        }
        (tried, matches!(tried, Try::Done(_)))
    }

    /// Lets a multishot operation take the available data. Returns the same as [`attempt`](Machine::attempt).
    fn shoot(&mut self, request: &Request, raw: i32) -> (Try, bool) {
        let &Request { user_data, kind, ref call } = request;
        let is_own = call.depends_on_mode() && self.registry.is_own(raw);
        let room = self.queue.room() as usize;
        let Self { groups, queue, registry, .. } = self;
        let (mut count, mut received) = (0, 0);
        let post = |res: i32, flags| {
            match call {
                Call::AcceptMany(_) => registry.note_socket(res),
                _ => received += usize::try_from(res).unwrap_or(0),
            }
            queue.post_cqe(Cqe { user_data, res, flags }, false);
            count += 1;
        };
        // SAFETY: the request is not completed, so its descriptor is lent. A buffer is in its group from
        // when it was provided, which lends it, until a completion names it.
        let tried = unsafe { multishot::shoot(call, groups, is_own, room, post) };
        self.received += received;
        self.count(kind).inline += count;
        if count == 0 && tried == Try::WouldBlock {
            self.count(kind).would_block += 1;
        }
        (tried, count > 0 || room == 0)
    }

    /// Makes a call that never blocks.
    fn call_now(&mut self, request: &Request, system: System) {
        // SAFETY: the request is not completed, so its memory is lent.
        let res = outcome(unsafe { system.run() });
        self.note_made(request.call, res);
        self.post_now(request, res);
    }

    /// Handles the end of an operation, which may have made a socket.
    fn note_made(&mut self, call: Call, res: i32) {
        if call.makes_socket() {
            self.registry.note_socket(res);
        }
    }

    #[allow(clippy::unnecessary_cast, reason = "the bits are signed where `rustix` goes by libc")]
    fn start_poll(&mut self, request: &Request, raw: i32, events: u32) {
        let events = with_read_hang_up(events as u16);
        let wanted = PollFlags::from_bits_retain(events as _);
        // SAFETY: the request is not completed, so its descriptor is open.
        match unsafe { poll_now(raw, wanted) } {
            Err(errno) => self.queue.post(request.user_data, failed(errno)),
            Ok(ready) if ready.is_empty() => {
                let place = self.registry.wait_poll(raw, events, self.flights.next_id());
                self.flights.take_off(*request, Stage::Polling { place });
                self.arm(place);
            }
            Ok(ready) => self.post_now(request, i32::from(ready.bits() as u16)),
        }
    }

    /// Starts a close. Closing a file may write, closing a terminal may wait for its output. It runs in
    /// place if the ring runs it on the caller's thread, too.
    fn start_close(&mut self, request: &Request, raw: i32) {
        // The driver closes no descriptor in use. An operation on one would wait for ever.
        if let Some(place) = self.registry.find(raw) {
            for id in self.registry.members(place) {
                // A lane thread that tries one continues with it.
                let _ = self.cancel_one(id);
            }
        }
        self.registry.forget_descriptor(raw);
        // SAFETY: the request is not completed, so its descriptor is open, and is given up by it.
        match unsafe { FileClass::of_descriptor(raw) } {
            Err(errno) => self.queue.post(request.user_data, failed(errno)),
            Ok(FileClass::Pipe | FileClass::Socket) => {
                // SAFETY: as above.
                let res = unsafe { close(raw) };
                self.post_now(request, res);
            }
            Ok(FileClass::Bounded | FileClass::Other) => {
                self.send_to_lane(request, Lane::Bounded, Work::Call(request.call));
            }
        }
    }

    /// Makes a request a job.
    fn send_to_lane(&mut self, request: &Request, lane: Lane, work: Work) {
        let id = self.flights.take_off(*request, Stage::Lane);
        self.give_to_lane(lane, id, work);
    }

    fn give_to_lane(&mut self, lane: Lane, id: u64, work: Work) {
        let Request { user_data, kind, .. } = self.flights[id].request;
        self.jobs[lane as usize].push((id, Job { user_data, kind, work }));
    }

    /// Hands over the collected jobs.
    fn push_jobs(&mut self) {
        for lane in Lane::ALL {
            let jobs = &mut self.jobs[lane as usize];
            if jobs.is_empty() {
                continue;
            }
            for (_, job) in &*jobs {
                self.kinds[job.kind as usize].lane += 1;
            }
            self.pool.push(lane, jobs.drain(..));
        }
    }

    // ---- going on ------------------------------------------------------------------------------

    /// Handles an event that epoll reported for a watch: just now, or, if it `is_old`, in an earlier enter.
    fn handle_event(&mut self, place: usize, ready: EventFlags, is_old: bool) {
        const ALWAYS: EventFlags = EventFlags::ERR.union(EventFlags::HUP);
        self.registry.fired(place);
        let was_idle = self.registry.watch(place).is_idle();
        let mut was_fruitful = false;
        if ready.intersects(ALWAYS | EventFlags::IN) {
            was_fruitful |= self.run_queue(place, Direction::Read);
        }
        if ready.intersects(ALWAYS | EventFlags::OUT) {
            was_fruitful |= self.run_queue(place, Direction::Write);
        }
        let &mut Watch { raw, ref polls, .. } = self.registry.watch(place);
        let told = polls.iter().filter_map(|&(id, events)| {
            let wanted = EventFlags::from_bits_retain(u32::from(events)) | ALWAYS;
            let mut told = ready & wanted;
            if is_old && !told.is_empty() {
                // The poll may have begun after the event, and other calls may have taken what was there.
                told &= still_ready(raw, told);
            }
            (!told.is_empty()).then_some((id, told.bits() as i32))
        });
        for (id, res) in told.collect::<Vec<_>>() {
            self.registry.leave(place, id);
            self.finish(id, res);
            was_fruitful = true;
        }
        self.registry.hush(place, ready, was_idle);
        self.registry.classify(place, was_fruitful);
        self.arm(place);
    }

    /// Tries the operations of a queue, oldest first, until one must wait. Returns whether any made
    /// progress.
    fn run_queue(&mut self, place: usize, direction: Direction) -> bool {
        let mut was_fruitful = false;
        loop {
            let queue = self.registry.watch(place).queue(direction);
            let Some(&id) = queue.ids.front().filter(|_| !queue.is_busy) else {
                return was_fruitful;
            };
            let raw = self.registry.watch(place).raw;
            let Flight { request, stage: Stage::Waiting { class, .. }, .. } = self.flights[id]
            else {
                unreachable!("an operation in a queue waits to be tried")
            };
            let (tried, took_some) = self.attempt(&request, raw, class);
            was_fruitful |= took_some;
            match tried {
                Try::Done(res) => {
                    self.registry.leave(place, id);
                    self.finish(id, res);
                    was_fruitful = true;
                }
                // SAFETY: the request is not completed, so its descriptor is lent.
                Try::WouldBlock if !took_some && unsafe { request.call.ends_receives(raw) } => {
                    // Data before the end is received first.
                    match self.attempt(&request, raw, class) {
                        (Try::WouldBlock, false) => {
                            // SAFETY: the request is not completed, so its memory is lent.
                            unsafe { request.call.tell_end() };
                            // Epoll must report the end to the next one, too.
                            self.registry.report_again(place);
                            self.registry.leave(place, id);
                            self.finish(id, 0);
                        }
                        (Try::Done(res), _) => {
                            self.registry.leave(place, id);
                            self.finish(id, res);
                        }
                        _ => return true,
                    }
                    was_fruitful = true;
                }
                Try::WouldBlock => return was_fruitful,
                Try::Unable => {
                    if request.call.goes_on() {
                        self.registry.rest_between(place, id);
                    }
                    self.registry.watch(place).queue(direction).is_busy = true;
                    self.give_to_lane(Lane::Elastic, id, Work::when_ready(request.call, class));
                    return was_fruitful;
                }
            }
        }
    }

    /// Makes epoll watch for the events needed at this place.
    fn arm(&mut self, place: usize) {
        let Err(errno) = self.registry.arm(place) else {
            return;
        };
        for id in self.registry.members(place) {
            if self.registry.watch(place).busy_queue(id).is_some() {
                continue; // its memory is in use; it comes here again
            }
            self.registry.leave(place, id);
            match (errno, self.flights[id].request.call) {
                // A file without readiness: its operations end by themselves.
                (Errno::PERM, call @ Call::Transfer(_)) => {
                    self.flights.get_mut(id).stage = Stage::Lane;
                    self.give_to_lane(Lane::Bounded, id, Work::Call(call));
                }
                // As the ring's result if nothing can wake the poll.
                (Errno::PERM, _) => self.finish(id, failed(Errno::INVAL)),
                _ => self.finish(id, failed(errno)),
            }
        }
    }

    /// Handles the outcome of a job.
    fn end_job(&mut self, id: u64, outcome: Outcome) {
        let Flight { request, stage, is_canceled } = self.flights[id];
        let Stage::Waiting { place, .. } = stage else {
            // A socket in non-blocking mode, set by the driver or by other code, may have no room there
            // either.
            let res = outcome.into_result().unwrap_or(failed(Errno::AGAIN));
            return self.finish(id, res);
        };
        let queue = self.registry.watch(place).busy_queue(id);
        queue.expect("a waiter that a lane tries is first in its queue").is_busy = false;
        let mut res = outcome.into_result();
        let was_fruitful = res.is_some() || is_canceled;
        if let (Call::AcceptMany(_), Some(raw @ 0..)) = (request.call, res) {
            self.registry.note_socket(raw);
            let cqe = Cqe { user_data: request.user_data, res: raw, flags: multishot::MORE };
            self.queue.post_cqe(cqe, false);
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

    /// Completes the operation.
    fn finish(&mut self, id: u64, res: i32) {
        let Request { user_data, call, .. } = self.flights.land(id);
        self.note_made(call, res);
        self.queue.post(user_data, res);
    }

    // ---- canceling -----------------------------------------------------------------------------

    /// Cancels one operation, or all that match. Returns the result of the cancel's completion.
    fn cancel(&mut self, victims: Victims, all: bool) -> i32 {
        self.push_jobs();
        if let Victims::Descriptor(raw) = victims {
            // SAFETY: the waiting operation keeps it open, or its number is refused here.
            let open = unsafe { borrow(raw) }.and_then(rustix::io::fcntl_getfd);
            if let Err(errno) = open {
                return failed(errno);
            }
        }
        let ids = self.flights.victims(victims);
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
        let Flight { request, stage, .. } = self.flights.get(id).ok_or(Errno::NOENT)?;
        match *stage {
            // A thread closes the descriptor in any case: the result could not say that the close was not
            // begun.
            Stage::Lane if matches!(request.call, Call::Close { .. }) => {
                return Err(Errno::ALREADY);
            }
            Stage::Lane if self.pool.cancel(id) => self.finish(id, canceled),
            Stage::Lane => return Err(Errno::ALREADY),
            Stage::Polling { place } | Stage::Waiting { place, .. } => {
                if let Some(queue) = self.registry.watch(place).busy_queue(id) {
                    if !self.pool.cancel(id) {
                        self.flights.get_mut(id).is_canceled = true;
                        return Err(Errno::ALREADY);
                    }
                    queue.is_busy = false;
                }
                self.registry.leave(place, id);
                self.finish(id, canceled);
                self.arm(place);
            }
        }
        Ok(())
    }
}

/// Returns the events reported to a poll for these. A poll for reading also reports a peer that has shut
/// down its sending side, as on the ring.
fn with_read_hang_up(events: u16) -> u16 {
    const IN: u16 = EventFlags::IN.bits() as u16;
    const READ_HANG_UP: u16 = EventFlags::RDHUP.bits() as u16;
    if events & IN == 0 { events } else { events | READ_HANG_UP }
}

/// Returns which of these events the descriptor of a waiting operation has now.
#[cold]
#[allow(clippy::unnecessary_cast, reason = "the bits are signed where `rustix` goes by libc")]
fn still_ready(raw: i32, events: EventFlags) -> EventFlags {
    let wanted = PollFlags::from_bits_retain(events.bits() as u16 as _);
    // SAFETY: the request of the waiting operation is not completed, so its descriptor is open.
    match unsafe { poll_now(raw, wanted) } {
        Ok(ready) => EventFlags::from_bits_retain(u32::from(ready.bits() as u16)),
        Err(_) => events,
    }
}
