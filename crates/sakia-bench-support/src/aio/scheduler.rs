//! One thread that has a context, and everybody's requests.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::buf::Buf;
use super::context::{Completion, Context};
use super::contexts::{Contexts, Growth};
use super::request::{Done, Request};
use super::ticket::{Answerer, Ticket, ticket};
use super::trace::{Call, Log, Statistics};

/// Requests that one submission takes, unless told.
const BATCH_MAX: usize = 128;

/// A scheduler to be; see [`Scheduler::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing runs yet"]
pub struct Builder {
    batch_max: usize,
    room: u32,
    is_traced: bool,
}

impl Builder {
    /// The most requests of a batch, 128 unless told.
    ///
    /// # Panics
    /// When it is 0.
    pub fn batch_max(mut self, requests: usize) -> Self {
        assert!(requests > 0, "a batch of nothing");
        self.batch_max = requests;
        self
    }

    /// The room of the first context, [`Growth::FIRST`] unless told.
    ///
    /// # Panics
    /// When it is 0.
    pub fn room(mut self, requests: u32) -> Self {
        assert!(requests > 0, "a context without room");
        self.room = requests;
        self
    }

    /// Whether to keep what system calls take, for [`Scheduler::stop`]. Not unless told.
    pub fn trace(mut self, trace: bool) -> Self {
        self.is_traced = trace;
        self
    }

    /// Makes the first context, and starts the thread.
    ///
    /// # Errors
    /// `ENOSYS`, `EPERM`: there is no AIO here. `EAGAIN`: nothing is left of `fs.aio-max-nr`. Otherwise as
    /// `eventfd(2)`, or there is no thread to be had.
    pub fn start(self) -> io::Result<Scheduler> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let growth = Growth::new(self.room);
        let log = Arc::new(Log::new(self.is_traced));
        let mut contexts = Contexts::new(growth, Arc::clone(&wake), Arc::clone(&log));
        contexts.with_room()?;
        let shared =
            Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), wake, log });
        let worker = Worker {
            shared: Arc::clone(&shared),
            contexts,
            options: self,
            backlog: VecDeque::new(),
            done: Vec::new(),
        };
        let thread = thread::Builder::new().name("aio-scheduler".into());
        let thread = thread.spawn(move || worker.run())?;
        Ok(Scheduler { shared, thread: Mutex::new(Some(thread)) })
    }
}

/// Does requests of many threads on one: each hands its request over, and sleeps until it is done.
///
/// May be shared by all threads. Dropping it [stops](Scheduler::stop) it.
#[derive(Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something came, while the thread sleeps with nothing in flight.
    changed: Condvar,
    /// Something came or was completed, while it sleeps with something in flight.
    wake: Arc<OwnedFd>,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<(Request, Answerer)>,
    sleep: Sleep,
    is_closed: bool,
}

/// How the thread sleeps. Set by itself, and back to `Awake` by whoever wakes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    /// It looks at the queue before it sleeps.
    #[default]
    Awake,
    /// On `changed`: the kernel has nothing of ours.
    OnQueue,
    /// On `wake`, which the kernel adds to as well.
    OnEvents,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code that may panic runs while it is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread that the queue is not as it was.
    fn notify(&self, queue: &mut Queue) {
        match std::mem::take(&mut queue.sleep) {
            Sleep::Awake => {}
            Sleep::OnQueue => self.changed.notify_one(),
            Sleep::OnEvents => {
                // It fails only where the count is full, which wakes as well.
                let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
            }
        }
    }
}

impl Scheduler {
    /// A scheduler to be, which may be told more.
    pub fn builder() -> Builder {
        Builder { batch_max: BATCH_MAX, room: Growth::FIRST, is_traced: false }
    }

    /// Hands a request over. After the stop it is done at once, with `ECANCELED`.
    pub fn submit(&self, request: Request) -> Ticket {
        let (ticket, answerer) = ticket();
        let mut queue = self.shared.lock();
        if queue.is_closed {
            drop(queue);
            answerer.answer((Err(Errno::CANCELED.into()), request.into_memory()));
        } else {
            queue.requests.push_back((request, answerer));
            self.shared.notify(&mut queue);
        }
        ticket
    }

    /// Hands a request over, and sleeps until it is done.
    pub fn run(&self, request: Request) -> Done {
        self.submit(request).wait()
    }

    /// Reads up to `buf.len()` bytes from byte `offset` on, and gives the buffer back.
    ///
    /// # Errors
    /// As `pread(2)`. `ECANCELED`: it was stopped.
    pub fn read_at(&self, file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        self.transfer(Request::read(file, buf, offset))
    }

    /// Writes up to `buf.len()` bytes from byte `offset` on, and gives the buffer back.
    ///
    /// # Errors
    /// As `pwrite(2)`. `ECANCELED`: it was stopped.
    pub fn write_at(&self, file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        self.transfer(Request::write(file, buf, offset))
    }

    /// # Panics
    /// When the scheduler has failed.
    fn transfer(&self, request: Request) -> (io::Result<usize>, Buf) {
        let (result, memory) = self.run(request);
        (result, memory.expect("a transfer has memory"))
    }

    /// What it did so far.
    pub fn statistics(&self) -> Statistics {
        *self.shared.log.statistics()
    }

    /// Lets no more requests in, cancels polls, and sleeps until everything else is done and the thread is
    /// gone. Returns what system calls took, if that was to be kept; once.
    pub fn stop(&self) -> Vec<Call> {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        self.shared.notify(&mut queue);
        drop(queue);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that failed has told all who waited.
        drop(thread.take().map(JoinHandle::join));
        self.shared.log.take()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whatever ends the thread: nobody waits for ever.
impl Drop for Worker {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        let left = std::mem::take(&mut queue.requests);
        drop(queue);
        drop(left);
    }
}

/// What the thread has.
struct Worker {
    shared: Arc<Shared>,
    contexts: Contexts<Answerer>,
    options: Builder,
    /// Taken from the queue, and not in a context yet.
    backlog: VecDeque<(Request, Answerer)>,
    done: Vec<Completion<Answerer>>,
}

impl Worker {
    /// One turn after the other. Each takes what queued, submits, and reaps, in parts that are bounded: so
    /// none of the three keeps the others from going on.
    fn run(mut self) {
        while self.receive() {
            self.admit();
            for context in &mut self.contexts.all {
                context.submit();
                // An error leaves what is in flight there; it is asked again in the next turn.
                let _ = context.reap(false, &mut self.done);
            }
            self.shared.log.statistics().live = self.contexts.live() as u64;
            for Completion { tag, result, memory } in self.done.drain(..) {
                tag.answer((result, memory));
            }
        }
    }

    /// Takes a batch from the queue; sleeps first when there is nothing to do. `false`: all is over.
    fn receive(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.lock();
        if queue.is_closed {
            // Before each sleep: some may have been in line.
            self.contexts.all.iter_mut().for_each(Context::cancel_polls);
        }
        // Who is in line has to wait for room, and takes no more in meanwhile.
        let is_full = !self.backlog.is_empty() && self.contexts.in_flight() > 0;
        if is_full || (queue.requests.is_empty() && self.backlog.is_empty()) {
            queue = self.sleep(&shared, queue);
        }
        if is_full {
            return true;
        }
        let count = queue.requests.len().min(self.options.batch_max);
        self.backlog.extend(queue.requests.drain(..count));
        !(queue.is_closed && self.backlog.is_empty() && self.contexts.live() == 0)
    }

    /// Sleeps until something has come, or been completed, or it is closed.
    fn sleep<'a>(
        &self,
        shared: &'a Shared,
        mut queue: MutexGuard<'a, Queue>,
    ) -> MutexGuard<'a, Queue> {
        if self.contexts.in_flight() > 0 {
            queue.sleep = Sleep::OnEvents;
            drop(queue);
            shared.log.statistics().sleeps += 1;
            // Completions that came earlier are in the count too: then it is awake once for nothing.
            let mut count = [0; 8];
            while rustix::io::read(&*shared.wake, &mut count) == Err(Errno::INTR) {}
            queue = shared.lock();
        } else {
            let sleeps = |queue: &mut Queue| {
                let is_idle = queue.requests.is_empty() && !queue.is_closed;
                if is_idle {
                    queue.sleep = Sleep::OnQueue;
                    shared.log.statistics().sleeps += 1;
                }
                is_idle
            };
            queue =
                shared.changed.wait_while(queue, sleeps).unwrap_or_else(PoisonError::into_inner);
        }
        queue.sleep = Sleep::Awake;
        queue
    }

    /// Puts what was taken into contexts, as far as there is room.
    fn admit(&mut self) {
        while let Some((request, answerer)) = self.backlog.pop_front() {
            match self.contexts.with_room() {
                Ok(Some(context)) => {
                    if let Err(back) = context.push(request, answerer) {
                        self.backlog.push_front(back);
                        return;
                    }
                }
                Ok(None) => {
                    self.backlog.push_front((request, answerer));
                    return;
                }
                Err(error) => answerer.answer((Err(error), request.into_memory())),
            }
        }
    }
}
