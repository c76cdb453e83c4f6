//! A thread with a context, which does the requests of all threads.

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

/// The default limit of requests per submission.
const BATCH_MAX: usize = 128;

/// The configuration of a scheduler; see [`Scheduler::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing runs yet"]
pub struct Builder {
    batch_max: usize,
    room: u32,
    is_traced: bool,
}

impl Builder {
    /// Limits the requests of a batch; the default is 128.
    ///
    /// # Panics
    /// When it is 0.
    pub fn batch_max(mut self, requests: usize) -> Self {
        assert!(requests > 0, "a batch of nothing");
        self.batch_max = requests;
        self
    }

    /// Sets the room of the first context; the default is [`Growth::FIRST`].
    ///
    /// # Panics
    /// When it is 0.
    pub fn room(mut self, requests: u32) -> Self {
        assert!(requests > 0, "a context without room");
        self.room = requests;
        self
    }

    /// Sets whether the durations of system calls are kept, for [`Scheduler::stop`]. Off by default.
    pub fn trace(mut self, trace: bool) -> Self {
        self.is_traced = trace;
        self
    }

    /// Makes the first context, and starts the thread.
    ///
    /// # Errors
    /// `ENOSYS`, `EPERM`: there is no AIO here. `EAGAIN`: nothing is left of `fs.aio-max-nr`. Otherwise as
    /// `eventfd(2)` or the creation of a thread.
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

/// Does requests of many threads on one: each thread submits its request, and sleeps until it is done.
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
    /// Signals a change of the queue while the thread sleeps with nothing in flight.
    changed: Condvar,
    /// Signals a new request or a completion while the thread sleeps with requests in flight.
    wake: Arc<OwnedFd>,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<(Request, Answerer)>,
    sleep: Sleep,
    is_closed: bool,
}

/// The state of the thread's sleep. The thread sets it; the thread that wakes it sets it back to `Awake`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    /// It checks the queue before it sleeps.
    #[default]
    Awake,
    /// On `changed`: nothing is in flight.
    OnQueue,
    /// On `wake`, which the kernel adds to as well.
    OnEvents,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code that may panic runs while it is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread that the queue has changed.
    fn notify(&self, queue: &mut Queue) {
        match std::mem::take(&mut queue.sleep) {
            Sleep::Awake => {}
            Sleep::OnQueue => self.changed.notify_one(),
            Sleep::OnEvents => {
                // The counter never gets near its limit, at which this would wait.
                let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
            }
        }
    }
}

impl Scheduler {
    /// Returns the configuration of a scheduler.
    pub fn builder() -> Builder {
        Builder { batch_max: BATCH_MAX, room: Growth::FIRST, is_traced: false }
    }

    /// Submits a request. After the stop it is done at once, with `ECANCELED`.
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

    /// Submits a request, and sleeps until it is done.
    pub fn run(&self, request: Request) -> Done {
        self.submit(request).wait()
    }

    /// Reads up to `buf.len()` bytes, starting at byte `offset`, and returns the buffer.
    ///
    /// # Errors
    /// As `pread(2)`. `ECANCELED`: the scheduler was stopped.
    pub fn read_at(&self, file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        self.transfer(Request::read(file, buf, offset))
    }

    /// Writes up to `buf.len()` bytes, starting at byte `offset`, and returns the buffer.
    ///
    /// # Errors
    /// As `pwrite(2)`. `ECANCELED`: the scheduler was stopped.
    pub fn write_at(&self, file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        self.transfer(Request::write(file, buf, offset))
    }

    /// # Panics
    /// When the scheduler has failed.
    fn transfer(&self, request: Request) -> (io::Result<usize>, Buf) {
        let (result, memory) = self.run(request);
        (result, memory.expect("a transfer has memory"))
    }

    /// Returns the counts so far.
    pub fn statistics(&self) -> Statistics {
        *self.shared.log.statistics()
    }

    /// Refuses new requests, cancels polls, and sleeps until everything else is done and the thread has
    /// ended. Returns the durations of system calls, if they were kept; once.
    pub fn stop(&self) -> Vec<Call> {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        self.shared.notify(&mut queue);
        drop(queue);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed thread has already reported the failure to all waiting threads.
        drop(thread.take().map(JoinHandle::join));
        self.shared.log.take()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// However the thread ends, no other thread waits for ever.
impl Drop for Worker {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        let left = std::mem::take(&mut queue.requests);
        drop(queue);
        drop(left);
    }
}

/// The state of the thread.
struct Worker {
    shared: Arc<Shared>,
    contexts: Contexts<Answerer>,
    options: Builder,
    /// Requests taken from the queue, and not in a context yet.
    backlog: VecDeque<(Request, Answerer)>,
    done: Vec<Completion<Answerer>>,
}

impl Worker {
    /// Repeats three steps: take queued requests, submit, reap. Each is bounded, so none starves the others.
    fn run(mut self) {
        while self.receive() {
            self.admit();
            for context in &mut self.contexts.all {
                context.submit();
                // On an error the requests in flight stay there; the next round asks again.
                let _ = context.reap(false, &mut self.done);
            }
            self.shared.log.statistics().live = self.contexts.live() as u64;
            for Completion { tag, result, memory } in self.done.drain(..) {
                tag.answer((result, memory));
            }
        }
    }

    /// Takes a batch from the queue; sleeps first if there is no work. Returns false when the scheduler has
    /// stopped.
    fn receive(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.lock();
        if queue.is_closed {
            // Before each sleep: some polls may have been queued until now.
            self.contexts.all.iter_mut().for_each(Context::cancel_polls);
        }
        // Requests in the backlog wait for room; the thread takes no more meanwhile.
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

    /// Sleeps until a request arrives, a completion arrives, or the scheduler stops.
    fn sleep<'a>(
        &self,
        shared: &'a Shared,
        mut queue: MutexGuard<'a, Queue>,
    ) -> MutexGuard<'a, Queue> {
        if self.contexts.in_flight() > 0 {
            queue.sleep = Sleep::OnEvents;
            drop(queue);
            shared.log.statistics().sleeps += 1;
            // The count may include earlier completions: then this wake is spurious.
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

    /// Pushes requests from the backlog into contexts, as far as there is room.
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
