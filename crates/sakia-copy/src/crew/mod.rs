//! Who does the work: a worker per thread, and as many fibers of it as wait for something.
//!
//! A directory is the unit of work, and one worker has it: several that make small files in one directory
//! would only wait for its lock. A worker does the deepest directory first, and hands half of those that it
//! has not begun, the ones nearest to the root, to a worker that has nothing to do. If it has none, but large
//! files, it hands over half of what is left of their directory.
//!
//! A *fiber* does one thing after the other by plain calls, which do not wait where the caches have what is
//! asked for. Only when one is about to wait, another is started, so that a worker has one as long as
//! nothing waits, and many when a disk must be asked.
//!
//! A directory counts what is left of it: what is in it and not done, and itself while it is being read. Who
//! takes the last one away leaves the directory, and goes on with the one above.

mod fiber;
mod frame;
mod worker;

use std::ffi::{CStr, CString};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use async_channel::{Receiver, Sender};
use rustix::fs::FileType;
use sakia::{Budget, CancellationToken};

pub(crate) use self::fiber::{Fiber, Tally};
pub(crate) use self::frame::Frame;
use self::worker::Worker;
use crate::pace::Pace;
use crate::place::{Place, Places};
use crate::progress::Progress;
use crate::report::Counters;
use crate::sys::lock;

/// What is done with the entries of a tree.
pub(crate) trait Job: Sized + Send + Sync + 'static {
    /// What it knows of a directory.
    type Facts: Send + Sync + 'static;

    /// Begins a directory. `None` if it is not gone into.
    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>>;

    /// Whether what is in a directory is part of the work, too.
    fn is_read(&self, _: &Folder<Self>) -> bool {
        true
    }

    /// Does something that is no directory, or of which is not known what it is.
    async fn entry(&self, fiber: &mut Fiber<Self>, found: Found<'_, Self>) -> Next;

    /// Ends a directory, of which nothing is left.
    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        fiber.crew().places.return_above(&folder.place);
    }

    /// Something failed, of which the crew tells.
    fn failed(&self, _crew: &Crew<Self>, _error: &io::Error) {}
}

/// An entry that was found in a directory.
pub(crate) struct Found<'a, J: Job> {
    pub(crate) frame: &'a Frame<J>,
    pub(crate) name: &'a CStr,
    /// As far as the directory told.
    pub(crate) kind: FileType,
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is done, well or not.
    Done,
    /// It is a directory.
    Enter,
    /// It was handed over: whoever finishes it says that it is done.
    Later,
}

/// A directory on which there is work.
pub(crate) struct Folder<J: Job> {
    above: Option<Arc<Self>>,
    pub(crate) place: Arc<Place>,
    pub(crate) facts: J::Facts,
    left: AtomicUsize,
}

impl<J: Job> Folder<J> {
    pub(crate) fn new(above: Option<&Arc<Self>>, place: Arc<Place>, facts: J::Facts) -> Arc<Self> {
        Arc::new(Self { above: above.cloned(), place, facts, left: AtomicUsize::new(1) })
    }
}

impl<J: Job> Drop for Folder<J> {
    /// One level after the other: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut folder) = above.and_then(Arc::into_inner) {
            above = folder.above.take();
        }
    }
}

/// A directory that nobody has begun: `name` in `above`, or the root.
pub(crate) struct Unit<J: Job> {
    pub(crate) above: Option<Arc<Folder<J>>>,
    pub(crate) name: CString,
}

impl<J: Job> Unit<J> {
    /// The directory that it is in.
    pub(crate) fn place(&self) -> &Arc<Place> {
        self.above.as_ref().map_or(Place::current(), |above| &above.place)
    }
}

/// What one worker leaves to another.
enum Share<J: Job> {
    Units(Vec<Unit<J>>),
    /// Entries of a directory.
    Part(Frame<J>),
}

/// All workers of a job.
pub(crate) struct Crew<J: Job> {
    pub(crate) job: J,
    pub(crate) places: Places,
    pub(crate) progress: Arc<Progress>,
    pub(crate) pace: Pace,
    budget: Budget,
    size: Size,
    token: CancellationToken,
    /// Workers that wait for work.
    idle: AtomicUsize,
    /// Closed when nothing more is to be begun.
    sender: Sender<Share<J>>,
    shares: Receiver<Share<J>>,
    counters: Mutex<Counters>,
}

/// How many may do the work.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Threads of the runtime that are used, at least 1.
    pub(crate) workers: usize,
    /// Entries of each that may be under way, at least 1.
    pub(crate) depth: usize,
    /// Bytes of the buffer that each of these has.
    pub(crate) buffer: usize,
}

impl<J: Job> Crew<J> {
    /// Does the job with the root `name`, and returns when nothing of it is under way any more.
    pub(crate) async fn run(
        job: J,
        name: CString,
        size: Size,
        budget: &Budget,
        progress: &Arc<Progress>,
        token: &CancellationToken,
    ) -> Arc<Self> {
        let (sender, shares) = async_channel::unbounded();
        let token = token.child();
        let crew = Arc::new(Self {
            job,
            places: Places::new(budget.clone()),
            progress: Arc::clone(progress),
            pace: Pace::new(size.workers),
            budget: budget.clone(),
            size,
            token: token.clone(),
            idle: AtomicUsize::new(0),
            sender,
            shares,
            counters: Mutex::default(),
        });
        // A future that is dropped asks its workers to end; they do so by themselves.
        let guard = token.drop_guard();
        crew.give(Share::Units(vec![Unit { above: None, name }]));
        let workers: Vec<_> = (0..size.workers)
            .map(|thread| {
                let crew = Arc::clone(&crew);
                sakia::spawn_on(thread, move || Worker::run(crew, thread))
            })
            .collect();
        for worker in workers {
            if let Err(error) = worker.await {
                crew.stop();
                error.resume_panic();
            }
        }
        guard.disarm();
        crew
    }

    /// What its workers counted.
    pub(crate) fn counters(&self) -> Counters {
        Counters { workers: self.size.workers as u64, ..*lock(&self.counters) }
    }

    /// Leaves work to a worker that has none. If all is over, no worker takes it or misses it.
    fn give(&self, share: Share<J>) {
        self.sender.try_send(share).ok();
    }

    /// Ends the work early, or because there is no more.
    pub(crate) fn stop(&self) {
        self.sender.close();
        self.pace.end();
    }

    /// Whether nothing more is to be begun.
    pub(crate) fn is_stopped(&self) -> bool {
        self.sender.is_closed() || self.token.is_canceled()
    }
}
