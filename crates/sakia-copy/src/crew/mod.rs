//! The workers: one per thread, each with as many fibers as wait for an operation.
//!
//! A directory is the unit of work of one worker: several that create small files in one directory would
//! only wait for its lock. A worker does the deepest directory first, and gives half of its pending
//! directories, those nearest to the root, to an idle worker. If it has none, but large files, it gives away
//! half of the rest of their directory, and, when it has the last one in hand, ranges of that file. Beside a
//! huge file its directory comes first: the largest pieces of work are to be begun first.
//!
//! A *fiber* does one operation after the other by plain calls, which do not wait if the caches have the
//! data. Only when a fiber is about to wait, another is started: a worker has one fiber as long as nothing
//! waits, and many when the data is on a disk.
//!
//! A directory counts its pending parts: its unfinished entries, and itself while it is being read. The
//! fiber that finishes the last part leaves the directory, and continues with the parent. A part that must
//! not be done at the same time as another is put aside: see [`parts`].

mod fiber;
mod frame;
mod parts;
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
pub(crate) use self::parts::End;
use self::parts::Parts;
use self::worker::Worker;
use crate::pace::Pace;
use crate::place::{Place, Places};
use crate::progress::Progress;
use crate::report::Counters;
use crate::sys::lock;

/// The work on the entries of a tree.
pub(crate) trait Job: Sized + Send + Sync + 'static {
    /// Its knowledge about a directory.
    type Facts: Send + Sync + 'static;
    /// The rest of an entry that several workers can do.
    type Rest: Send + 'static;

    /// Begins a directory. `None` if its contents are skipped.
    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>>;

    /// Returns whether the contents of a directory are part of the work.
    fn is_read(&self, _: &Folder<Self>) -> bool {
        true
    }

    /// Handles an entry that is no directory, or of an unknown kind.
    async fn entry(&self, fiber: &mut Fiber<Self>, found: Found<'_, Self>) -> Next;

    /// Does a part of an entry that another fiber handles.
    async fn help(&self, _: &mut Fiber<Self>, _: Self::Rest) {}

    /// Does the entries that were put aside, when nothing else is in progress.
    async fn do_asides(&self, _: &mut Fiber<Self>) {}

    /// Ends a directory whose entries are all done.
    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        fiber.crew().places.return_above(&folder.place);
    }

    /// Handles a failure, which the crew reports.
    fn failed(&self, _crew: &Crew<Self>, _error: &io::Error) {}
}

/// An entry found in a directory.
pub(crate) struct Found<'a, J: Job> {
    pub(crate) frame: &'a Frame<J>,
    pub(crate) name: &'a CStr,
    /// As reported by the directory.
    pub(crate) kind: FileType,
}

/// The next step of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is done, with or without success.
    Done,
    /// It is a directory.
    Enter,
    /// Another fiber took it over, and will mark it as done.
    Later,
    /// The job has put it aside.
    Aside,
}

/// A directory in progress.
pub(crate) struct Folder<J: Job> {
    above: Option<Arc<Self>>,
    pub(crate) place: Arc<Place>,
    pub(crate) facts: J::Facts,
    parts: Parts,
}

impl<J: Job> Folder<J> {
    pub(crate) fn new(above: Option<&Arc<Self>>, place: Arc<Place>, facts: J::Facts) -> Arc<Self> {
        Arc::new(Self { above: above.cloned(), place, facts, parts: Parts::new() })
    }

    /// Returns the directory and its parents up to the root.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |folder| folder.above.as_deref())
    }
}

impl<J: Job> Drop for Folder<J> {
    /// Iterative: a tree may be deeper than the stack.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut folder) = above.and_then(Arc::into_inner) {
            above = folder.above.take();
        }
    }
}

/// A directory that is not begun: `name` in `above`, or the root.
pub(crate) struct Unit<J: Job> {
    pub(crate) above: Option<Arc<Folder<J>>>,
    pub(crate) name: CString,
}

impl<J: Job> Unit<J> {
    /// Returns its parent directory.
    pub(crate) fn place(&self) -> &Arc<Place> {
        self.above.as_ref().map_or(Place::current(), |above| &above.place)
    }
}

/// Work given by one worker to another.
enum Share<J: Job> {
    Units(Vec<Unit<J>>),
    /// Entries of a directory.
    Part(Frame<J>),
    /// The rest of an entry.
    Rest(J::Rest),
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
    /// The number of idle workers.
    idle: AtomicUsize,
    /// Closed when nothing more is to be begun.
    sender: Sender<Share<J>>,
    shares: Receiver<Share<J>>,
    counters: Mutex<Counters>,
}

/// The size of a crew.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Threads of the runtime to use, at least 1.
    pub(crate) workers: usize,
    /// Entries in progress per thread, at least 1.
    pub(crate) depth: usize,
    /// The size of the buffer of each of these, in bytes.
    pub(crate) buffer: usize,
}

impl<J: Job> Crew<J> {
    /// Does the job with the root `name`, and returns when nothing of it is in progress.
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
        // A dropped future asks its workers to end, which they do by themselves.
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

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns the counts of its workers.
    pub(crate) fn counters(&self) -> Counters {
        Counters { workers: self.size.workers as u64, ..*lock(&self.counters) }
    }

    /// Gives work to an idle worker. At the end of the job it is dropped.
    fn give(&self, share: Share<J>) {
        self.sender.try_send(share).ok();
    }

    /// Ends the work, early or because it is finished.
    pub(crate) fn stop(&self) {
        self.sender.close();
        self.pace.end();
    }

    /// Returns whether nothing more is to be begun.
    pub(crate) fn is_stopped(&self) -> bool {
        self.sender.is_closed() || self.token.is_canceled()
    }
}
