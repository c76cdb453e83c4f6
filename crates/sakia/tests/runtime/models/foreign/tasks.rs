//! Tasks, and the threads that act on them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use sakia::fs::File;
use sakia::io::PipeReader;
use sakia::time::sleep;
use sakia::{JoinError, JoinHandle, spawn, spawn_blocking, yield_now};
use sakia_testkit::settings::patience;

use super::{Act, BLOCKING, CHILD, CROWD, LONG, Step};
use crate::files::TempDir;

const HELPERS: usize = 2;

/// A task, as other threads see it.
pub(super) struct Far {
    pub(super) outbox: Mutex<Outbox>,
    /// Set while the task waits to receive.
    pub(super) waker: Mutex<Option<Waker>>,
    pub(super) past: Mutex<Vec<Waker>>,
    pub(super) is_reading: AtomicBool,
    pub(super) is_over: AtomicBool,
    pub(super) handle: Mutex<Option<JoinHandle<u32>>>,
}

pub(super) struct Outbox {
    pub(super) sender: mpsc::Sender<u32>,
    pub(super) sent: u32,
    pub(super) writer: io::PipeWriter,
    pub(super) written: u8,
}

impl Far {
    /// Performs an act. Returns whether the task's runtime has something to do because of it.
    pub(super) fn act(&self, act: Act) -> bool {
        match act {
            Act::Send => {
                {
                    let mut outbox = self.outbox.lock().unwrap();
                    // The task may be over.
                    let _ = outbox.sender.send(outbox.sent);
                    outbox.sent += 1;
                }
                let waker = self.waker.lock().unwrap().take();
                let is_live = !self.is_over.load(Ordering::SeqCst);
                let Some(waker) = waker else { return false };
                self.past.lock().unwrap().push(waker.clone());
                waker.wake();
                is_live
            }
            Act::Write => {
                let mut outbox = self.outbox.lock().unwrap();
                let is_reading = self.is_reading.load(Ordering::SeqCst);
                let byte = outbox.written;
                let _ = outbox.writer.write_all(&[byte]);
                outbox.written += 1;
                is_reading
            }
            Act::Abort => {
                let is_live = !self.is_over.load(Ordering::SeqCst);
                let handle = self.handle.lock().unwrap();
                handle.as_ref().map(JoinHandle::abort).is_some() && is_live
            }
            Act::WakeAgain => {
                let is_live = !self.is_over.load(Ordering::SeqCst);
                let past = self.past.lock().unwrap();
                past.iter().for_each(Waker::wake_by_ref);
                !past.is_empty() && is_live
            }
            Act::Spawn | Act::BlockOn => false,
        }
    }

    pub(super) fn poll_handle(&self, cx: &mut Context<'_>) -> Poll<Option<Result<u32, JoinError>>> {
        match &mut *self.handle.lock().unwrap() {
            Some(handle) => Pin::new(handle).poll(cx).map(Some),
            None => Poll::Ready(None),
        }
    }
}

/// Threads that live longer than a program.
#[derive(Clone)]
pub(super) struct Helpers(Vec<mpsc::Sender<Box<dyn FnOnce() + Send>>>);

impl Helpers {
    pub(super) fn new() -> Self {
        let start = |_| {
            let (sender, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
            thread::spawn(move || jobs.into_iter().for_each(|job| job()));
            sender
        };
        Self((0..HELPERS).map(start).collect())
    }

    pub(super) fn begin(&self, number: usize, job: impl FnOnce() + Send + 'static) {
        self.0[number % HELPERS].send(Box::new(job)).unwrap();
    }

    /// Returns the job's result when it is done.
    pub(super) fn finish<T: Send + 'static>(
        &self,
        number: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = mpsc::channel();
        self.begin(number, move || sender.send(job()).unwrap());
        receiver.recv_timeout(patience()).unwrap()
    }

    /// Waits until all jobs so far are done.
    pub(super) fn finish_all(&self) {
        (0..HELPERS).for_each(|number| self.finish(number, || ()));
    }
}

/// Wakes a thread that sleeps by `std`.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a handle outside of any runtime.
pub(super) fn await_handle(far: &Far, patience: Duration) -> End {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let begin = Instant::now();
    loop {
        match far.poll_handle(&mut Context::from_waker(&waker)) {
            Poll::Ready(None) => return End::Unknown,
            Poll::Ready(Some(result)) => return End::of(result),
            Poll::Pending => thread::park_timeout(patience),
        }
        if begin.elapsed() >= patience {
            return End::Late;
        }
    }
}

/// The end of a task, as the owner of its handle sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Value(u32),
    Canceled,
    /// Nobody has the handle.
    Unknown,
    /// Its owner was not told.
    Late,
}

impl End {
    pub(super) fn of(result: Result<u32, JoinError>) -> Self {
        result.map_or_else(
            |error| if error.is_canceled() { Self::Canceled } else { Self::Late },
            Self::Value,
        )
    }
}

// ---- the tasks ---------------------------------------------------------------------------------

/// Counts futures and their polls.
#[derive(Default)]
pub(super) struct Census {
    pub(super) polls: AtomicU32,
    pub(super) made: AtomicUsize,
    pub(super) dropped: AtomicUsize,
    /// Of the future that waits until all others have ended.
    pub(super) waker: Mutex<Option<Waker>>,
    /// Times for which tasks have kept the thread.
    pub(super) held: Mutex<Duration>,
    pub(super) opened: AtomicU32,
}

impl Census {
    pub(super) fn live(&self) -> usize {
        self.made.load(Ordering::SeqCst) - self.dropped.load(Ordering::SeqCst)
    }

    /// Returns the future with its polls and its end counted.
    pub(super) fn count<F: Future>(
        self: &Arc<Self>,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let guard = Counted { census: Arc::clone(self), thread: thread::current().id() };
        self.made.fetch_add(1, Ordering::SeqCst);
        let mut future = Box::pin(future);
        let mut polled = poll_fn(move |cx| {
            guard.census.polls.fetch_add(1, Ordering::SeqCst);
            future.as_mut().poll(cx)
        });
        poll_fn(move |cx| Pin::new(&mut polled).poll(cx))
    }
}

struct Counted {
    census: Arc<Census>,
    thread: thread::ThreadId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert_eq!(thread::current().id(), self.thread, "dropped on another thread");
        self.census.dropped.fetch_add(1, Ordering::SeqCst);
        let waker = self.census.waker.lock().unwrap().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The parts of a task that stay on its thread.
pub(super) struct Near {
    pub(super) far: Arc<Far>,
    pub(super) world: Rc<World>,
    pub(super) receiver: mpsc::Receiver<u32>,
    pub(super) reader: PipeReader,
    pub(super) log: Rc<RefCell<Vec<u32>>>,
}

/// Tells the end of a task, which may come before its first poll.
pub(super) struct TellsItsEnd(pub(super) Arc<Far>);

impl Drop for TellsItsEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        self.0.is_reading.store(false, Ordering::SeqCst);
    }
}

/// The state that the tasks of a run share.
pub(super) struct World {
    pub(super) census: Arc<Census>,
    /// Times that no open sleep exceeds.
    pub(super) sleeps: RefCell<Vec<Instant>>,
    pub(super) is_opening: Cell<bool>,
    pub(super) fifo: Option<(TempDir, PathBuf)>,
}

/// A sleep that is open until this is dropped.
struct Open(Rc<World>, Instant);

impl Drop for Open {
    fn drop(&mut self) {
        let mut sleeps = self.0.sleeps.borrow_mut();
        let index = sleeps.iter().position(|&at| at == self.1).unwrap();
        sleeps.swap_remove(index);
    }
}

impl Near {
    pub(super) async fn perform(&mut self, step: Step) -> u32 {
        match step {
            Step::Yield => yield_now().await,
            Step::Sleep(micros) => {
                let time = Duration::from_micros(micros);
                let sleep = sleep(time);
                let until = Instant::now() + time;
                self.world.sleeps.borrow_mut().push(until);
                let _open = Open(Rc::clone(&self.world), until);
                sleep.await;
            }
            Step::Receive => return self.receive().await,
            Step::Read => {
                self.far.is_reading.store(true, Ordering::SeqCst);
                let (result, bytes) = self.reader.read(vec![0; 1]).await;
                self.far.is_reading.store(false, Ordering::SeqCst);
                assert_eq!(result.unwrap(), 1);
                return bytes[0].into();
            }
            Step::Child => {
                let child = async {
                    yield_now().await;
                    CHILD
                };
                return spawn(self.world.census.count(child)).await.unwrap();
            }
            Step::Blocking => return spawn_blocking(|| BLOCKING).await.unwrap(),
            Step::Crowd => {
                let look = || async { sakia::fs::metadata("/").await.map(drop).unwrap() };
                let crowd: Vec<_> =
                    (0..CROWD).map(|_| spawn(self.world.census.count(look()))).collect();
                for one in crowd {
                    one.await.unwrap();
                }
            }
            Step::Hold => {
                let begin = Instant::now();
                while begin.elapsed() < LONG {}
                *self.world.census.held.lock().unwrap() += begin.elapsed();
                yield_now().await;
            }
            Step::Open => {
                let (_, path) = self.world.fifo.as_ref().unwrap();
                self.world.is_opening.set(true);
                let file = File::open(path).await.unwrap();
                self.world.is_opening.set(false);
                self.world.census.opened.fetch_add(1, Ordering::SeqCst);
                file.close().await.unwrap();
            }
        }
        0
    }

    async fn receive(&mut self) -> u32 {
        poll_fn(|cx| {
            *self.far.waker.lock().unwrap() = Some(cx.waker().clone());
            match self.receiver.try_recv() {
                Ok(number) => {
                    *self.far.waker.lock().unwrap() = None;
                    Poll::Ready(number)
                }
                Err(_) => Poll::Pending,
            }
        })
        .await
    }
}
