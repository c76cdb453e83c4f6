//! Requests with completions, for any number of threads: a queue over the engine's threads.
//!
//! This is the form for programs without futures: databases, thread pools, other languages. A [request] is a
//! value with a token, and its [outcome](Outcome) has the token again. For a loop of one thread, with sockets
//! and without a switch of threads, see [`Loop`](sakia_driver::Loop).
//!
//! 1. A request that ends at once is done by the thread that submits it: a read of the page cache, an open of
//!    a path that the kernel knows.
//! 2. The rest goes to the engine's threads, as a batch. They submit it together.
//! 3. Threads that [wait](Queue::wait) are woken once for all outcomes that come together. A foreign loop
//!    polls a [descriptor](Queue::pollable) instead.
//!
//! Each request has one outcome. Requests that [go on](Request::goes_on) end with `EOPNOTSUPP`: nothing would
//! bound their outcomes while no thread takes them.
//!
//! [request]: Request

mod pulse;
mod server;
mod shared;
mod table;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_driver::limits;
pub use sakia_driver::{
    Buffer, FileHandle, Foreign, Full, Outcome, Request, RequestsEnd, Target, Value,
};

use self::server::{Inbox, Letter, serve};
use self::shared::{Lost, Shared};
pub use self::table::QueueTicket;
use self::table::State;
use super::Engine;
use super::gate::Gate;
use crate::executor::spawn_to;
use crate::remote::Remote;

/// Performs requests for any number of threads, on the threads of an engine. Clones are the same queue.
///
/// Dropping the last clone cancels what is under way. Its outcomes are dropped when they come, and so is
/// memory that the requests own; [foreign memory](Foreign) must stay until then, so
/// [stop](Queue::stop) a queue that has some.
///
/// # Examples
/// ```
/// use sakia::Engine;
/// use sakia::engine::queue::{FileHandle, Request, Submitted};
///
/// let engine = Engine::new()?;
/// let queue = engine.queue()?;
/// let file = FileHandle::new(std::fs::File::open("/proc/self/exe")?);
/// let mut outcomes = Vec::new();
/// let mut batch = queue.batch();
/// for token in 0..4 {
///     match batch.add(Request::read(&file, vec![0; 16].into(), token * 16), token)? {
///         Submitted::Done(outcome) => outcomes.push(outcome),
///         Submitted::UnderWay(_) => {}
///     }
/// }
/// batch.submit();
/// // On this thread, or on others.
/// while outcomes.len() < 4 {
///     queue.wait(None)?;
///     queue.take(usize::MAX, &mut outcomes);
/// }
/// outcomes.sort_by_key(|outcome| outcome.token);
/// assert!(outcomes[0].result.as_ref().is_ok_and(|&count| count == 16));
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct Queue {
    owner: Arc<Owner>,
}

/// Ends the queue when dropped.
struct Owner {
    engine: Engine,
    shared: Arc<Shared>,
    inboxes: Arc<[Arc<Inbox>]>,
    under_way_max: AtomicUsize,
    /// Selects the thread that gets the next batch.
    next: AtomicUsize,
}

/// The servers of an engine's threads.
#[derive(Default)]
pub(super) struct Servers(std::sync::OnceLock<Arc<[Arc<Inbox>]>>);

impl Servers {
    /// Returns the servers' inboxes. The first call starts the servers.
    fn inboxes(
        &self,
        remotes: &[Arc<Remote>],
        gate: &Arc<Gate>,
        built_at: &'static Location<'static>,
    ) -> &Arc<[Arc<Inbox>]> {
        self.0.get_or_init(|| {
            let start = |(thread, remote): (_, &Arc<Remote>)| {
                let inbox = Arc::<Inbox>::default();
                let (served, gate) = (Arc::clone(&inbox), Arc::clone(gate));
                let serve = move || serve(thread, served, gate);
                spawn_to(remote, serve, built_at).detach();
                inbox
            };
            (0..).zip(remotes).map(start).collect()
        })
    }
}

/// A request that was submitted.
///
/// # Examples
/// See [`Queue`](Queue#examples).
#[derive(Debug)]
#[must_use = "it may have the outcome"]
pub enum Submitted {
    /// It is done.
    Done(Outcome),
    /// Its outcome will be there to take.
    UnderWay(QueueTicket),
}

impl Engine {
    /// Makes a queue of requests over the threads of this engine, which lives as long as the queue.
    ///
    /// # Errors
    /// The engine's threads are those of a parent process.
    ///
    /// # Examples
    /// See [`Queue`](Queue#examples).
    pub fn queue(&self) -> io::Result<Queue> {
        self.check_process()?;
        let state = &self.shared;
        let inboxes = state.servers.inboxes(&state.remotes, &state.gate, state.built_at);
        Ok(Queue {
            owner: Arc::new(Owner {
                engine: self.clone(),
                shared: Arc::default(),
                inboxes: Arc::clone(inboxes),
                under_way_max: AtomicUsize::new(limits::UNDER_WAY_MAX),
                next: AtomicUsize::new(0),
            }),
        })
    }
}

impl Queue {
    /// Sets the most requests that may be under way, 65,536 by default, to bound the memory that they hold.
    /// One is under way until its outcome was taken.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    /// use sakia::engine::queue::{Full, Request};
    ///
    /// let queue = Engine::new()?.queue()?;
    /// queue.set_under_way_max(1);
    /// let _ = queue.submit(Request::Nop, 1)?;
    /// let Err(Full(request)) = queue.submit(Request::Nop, 2) else { panic!("there is no room") };
    /// let mut outcomes = Vec::new();
    /// while queue.take(1, &mut outcomes) == 0 {
    ///     queue.wait(None)?;
    /// }
    /// let _ = queue.submit(request, 2)?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_under_way_max(&self, most: usize) {
        self.owner.under_way_max.store(most.min(u32::MAX as usize), Ordering::Relaxed);
    }

    /// Returns the number of requests whose outcome was not taken; 0 in a forked child.
    ///
    /// # Examples
    /// See [`Queue::stop`].
    pub fn under_way(&self) -> usize {
        let shared = &self.owner.shared;
        if shared.is_intact() { shared.lock().under_way() } else { 0 }
    }

    /// Returns the number of outcomes to [take](Queue::take).
    ///
    /// # Examples
    /// ```
    /// let queue = sakia::Engine::new()?.queue()?;
    /// assert_eq!(queue.ready(), 0);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn ready(&self) -> usize {
        self.owner.shared.ready()
    }

    /// Begins a batch of requests, which are sent together.
    ///
    /// # Examples
    /// See [`Queue`](Queue#examples).
    pub fn batch(&self) -> Batch<'_> {
        Batch { queue: self, requests: Vec::new() }
    }

    /// Submits one request, see [`Batch::add`].
    ///
    /// # Errors
    /// As many requests are under way as may be: the request comes back.
    ///
    /// # Examples
    /// See [`Queue::cancel`].
    pub fn submit(&self, request: Request, token: u64) -> Result<Submitted, Full> {
        self.batch().add(request, token)
    }

    /// Takes up to `most` outcomes, oldest first as far as they came one after the other. Returns their
    /// number. Makes no system call, unless there is a [descriptor](Queue::pollable) or another thread waits.
    ///
    /// # Examples
    /// See [`Queue`](Queue#examples).
    pub fn take(&self, most: usize, to: &mut Vec<Outcome>) -> usize {
        let shared = &self.owner.shared;
        if shared.is_intact() { shared.take(most, to) } else { 0 }
    }

    /// Waits until there are outcomes to [take](Queue::take), at most for this time, and returns their
    /// number. Another thread may be quicker to take them. It returns without any after a
    /// [wake](QueueWaker::wake), after a signal, and when the time is over.
    ///
    /// # Errors
    /// `EDEADLK`: this is a thread of the engine. A thread of the engine has failed, with requests of this
    /// queue, which one wait is told of, and each one while nothing else that was sent is under way; the
    /// engine's threads are those of a parent process.
    ///
    /// # Examples
    /// See [`Queue`](Queue#examples).
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<usize> {
        let Owner { engine, shared, .. } = &*self.owner;
        engine.check_process()?;
        if shared.ready() == 0 && engine.is_on_own_thread() {
            return Err(Errno::DEADLK.into());
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        shared.wait(until).map_err(|Lost| {
            io::Error::other("a thread of the engine has failed, with requests of this queue")
        })
    }

    /// Requests that a request be canceled. Its outcome comes in any case: its value, if it was quicker, or
    /// `ECANCELED`.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::OwnedFd;
    ///
    /// use sakia::Engine;
    /// use sakia::engine::queue::{FileHandle, Request, Submitted};
    /// use sakia_driver::CURRENT_POSITION;
    ///
    /// let queue = Engine::new()?.queue()?;
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = FileHandle::new(OwnedFd::from(reader));
    /// // It would wait for ever.
    /// let read = Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION);
    /// let Submitted::UnderWay(ticket) = queue.submit(read, 1)? else { panic!("there is nothing to read") };
    /// queue.cancel(ticket);
    /// let mut outcomes = Vec::new();
    /// while queue.take(1, &mut outcomes) == 0 {
    ///     queue.wait(None)?;
    /// }
    /// let error = outcomes.pop().unwrap().result.unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn cancel(&self, ticket: QueueTicket) {
        let Owner { shared, inboxes, .. } = &*self.owner;
        if !shared.is_intact() {
            return;
        }
        let mut table = shared.lock();
        match table.state(ticket) {
            State::Free | State::Lost => {}
            State::Batched { .. } => {
                table.set(ticket.slot, State::Batched { is_canceled: true });
            }
            State::On(thread) => {
                drop(table);
                let queue = Arc::clone(shared);
                inboxes[thread as usize].send(Letter::Cancel { queue, ticket });
            }
        }
    }

    /// Returns the means to end a [`wait`](Queue::wait) from anywhere.
    ///
    /// # Examples
    /// See [`QueueWaker`](QueueWaker#examples).
    pub fn waker(&self) -> QueueWaker {
        QueueWaker { shared: Arc::clone(&self.owner.shared) }
    }

    /// Returns a descriptor that is readable while there are outcomes to take, or a wake has come that no
    /// [`wait`](Queue::wait) has seen, for a foreign loop to poll.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory left. The engine's threads are those of a parent
    /// process.
    ///
    /// # Examples
    /// ```
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use sakia::Engine;
    /// use sakia::engine::queue::Request;
    ///
    /// let queue = Engine::new()?.queue()?;
    /// let pollable = queue.pollable()?;
    /// let _ = queue.submit(Request::Nop, 1)?;
    /// poll(&mut [PollFd::new(&pollable, PollFlags::IN)], None)?;
    /// assert_eq!(queue.take(8, &mut Vec::new()), 1);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn pollable(&self) -> io::Result<OwnedFd> {
        self.owner.engine.check_process()?;
        self.owner.shared.event()
    }

    /// Ends the queue for all its users: cancels what is under way, and waits at most `limit` for it to end,
    /// but not for requests of a thread that has failed, which have leaked. Outcomes can still be taken.
    /// Later requests end with `ECANCELED`.
    ///
    /// In a forked child nothing is under way. Threads of the engine must not call it.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use std::time::Duration;
    ///
    /// use sakia::Engine;
    /// use sakia::engine::queue::{FileHandle, Request};
    /// use sakia_driver::CURRENT_POSITION;
    ///
    /// let queue = Engine::new()?.queue()?;
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = FileHandle::new(OwnedFd::from(reader));
    /// let _ = queue.submit(Request::read(&reader, vec![0; 8].into(), CURRENT_POSITION), 1)?;
    /// assert!(queue.stop(Duration::from_secs(10)).leaked.is_empty());
    /// assert_eq!((queue.under_way(), queue.take(8, &mut Vec::new())), (1, 1));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn stop(&self, limit: Duration) -> RequestsEnd {
        let Owner { shared, inboxes, .. } = &*self.owner;
        if !shared.is_intact() {
            return RequestsEnd { leaked: Vec::new() };
        }
        shared.lock().is_closed = true;
        for inbox in inboxes.iter() {
            inbox.send(Letter::CancelAll { queue: Arc::clone(shared) });
        }
        shared.wait_for_all(Instant::now().checked_add(limit));
        let mut table = shared.lock();
        table.is_ended = true;
        let is_on_thread = |state| matches!(state, State::On(_) | State::Lost);
        let on_threads = table.unended().filter(|&(.., state)| is_on_thread(state));
        RequestsEnd { leaked: on_threads.map(|(_, token, _)| token).collect() }
    }
}

/// Requests that are sent together, when it is dropped at the latest. See [`Queue::batch`].
///
/// # Examples
/// See [`Queue`](Queue#examples).
#[must_use = "it is sent when it is dropped"]
pub struct Batch<'a> {
    queue: &'a Queue,
    requests: Vec<(QueueTicket, Request)>,
}

impl Batch<'_> {
    /// Performs a request at once, if it needs no wait, or adds it. Its outcome has this token; an error of
    /// the operation is an outcome, too.
    ///
    /// # Errors
    /// As many requests are under way as may be: the request comes back.
    ///
    /// # Examples
    /// See [`Queue`](Queue#examples).
    pub fn add(&mut self, request: Request, token: u64) -> Result<Submitted, Full> {
        let Owner { engine, shared, under_way_max, .. } = &*self.queue.owner;
        let tally = &engine.shared.tally;
        if let Err(error) = engine.check() {
            return Ok(Submitted::Done(request.refuse(token, error)));
        }
        if request.goes_on() {
            let error = engine.refuse(Errno::OPNOTSUPP.into());
            return Ok(Submitted::Done(request.refuse(token, error)));
        }
        let request = match request.attempt(token) {
            Ok(outcome) => {
                tally.count(|part| &part.now);
                return Ok(Submitted::Done(outcome));
            }
            Err(request) => request,
        };
        let canceled = |request: Request| {
            Ok(Submitted::Done(request.refuse(token, engine.refuse(Errno::CANCELED.into()))))
        };
        if !engine.shared.gate.enter() {
            return canceled(request);
        }
        let mut table = shared.lock();
        let is_full = table.under_way() >= under_way_max.load(Ordering::Relaxed);
        if table.is_closed || is_full {
            let is_closed = table.is_closed;
            drop(table);
            engine.shared.gate.leave_many(1);
            return if is_closed { canceled(request) } else { Err(Full(request)) };
        }
        let ticket = table.add(token);
        drop(table);
        tally.count(|part| &part.submitted);
        self.requests.push((ticket, request));
        Ok(Submitted::UnderWay(ticket))
    }

    /// Sends the requests to the engine's threads.
    ///
    /// # Examples
    /// See [`Queue`](Queue#examples).
    pub fn submit(self) {
        drop(self);
    }

    fn send(&mut self) {
        let Owner { engine, shared, inboxes, next, .. } = &*self.queue.owner;
        let mut rest = std::mem::take(&mut self.requests);
        if rest.is_empty() || !shared.is_intact() {
            return;
        }
        let threads = inboxes.len();
        let part = rest.len().div_ceil(threads).max(PART_MIN);
        while !rest.is_empty() {
            let later = rest.split_off(part.min(rest.len()));
            let requests = std::mem::replace(&mut rest, later);
            let thread = next.fetch_add(1, Ordering::Relaxed) % threads;
            shared.send(requests, thread as u32, &inboxes[thread], &engine.shared.gate);
        }
    }
}

/// The fewest requests of a batch that are worth the wake of another thread.
const PART_MIN: usize = 16;

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.send();
    }
}

/// Wakes a thread that waits for a [`Queue`], from any thread. Clones wake the same queue.
///
/// A wake takes no lock, allocates nothing and keeps `errno`, so that signal handlers may call it. After the
/// queue's end, and in a forked child, it does nothing. (The drop of the last clone frees memory: it is not
/// for signal handlers.)
///
/// # Examples
/// ```
/// use sakia::Engine;
///
/// let queue = Engine::new()?.queue()?;
/// let waker = queue.waker();
/// let other = std::thread::spawn(move || waker.wake());
/// assert_eq!(queue.wait(None)?, 0);
/// other.join().expect("it does not panic");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct QueueWaker {
    shared: Arc<Shared>,
}

impl QueueWaker {
    /// Ends the wait of one thread, or the next one.
    ///
    /// # Examples
    /// See [`QueueWaker`](QueueWaker#examples).
    pub fn wake(&self) {
        self.shared.wake();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.shared.is_intact() {
            return;
        }
        let mut outcomes = Vec::new();
        let mut table = self.shared.lock();
        (table.is_closed, table.is_ended) = (true, true);
        table.take(usize::MAX, &mut outcomes);
        drop(table);
        drop(outcomes);
        for inbox in self.inboxes.iter() {
            inbox.send(Letter::CancelAll { queue: Arc::clone(&self.shared) });
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("requests", &self.requests.len()).finish()
    }
}
