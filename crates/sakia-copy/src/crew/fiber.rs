//! A fiber does one operation after the other, with its own buffers.

use std::ffi::CStr;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::FileType;
use sakia::fs::AlignedBuf;
use sakia::{Permit, blocking};

use super::frame::{BATCH_BYTES, Frame, List};
use super::parts::Pending;
use super::worker::{FileSize, Item, Work, Worker};
use super::{Crew, End, Folder, Found, Job, Next, Unit};
use crate::place::{OpenDir, Place};
use crate::progress::Hold;
use crate::report::{Counters, Counts, Failure};
use crate::stopped;
use crate::sys::{self, lock};

/// Entries that a fiber does before it yields.
const TURN: u32 = 64;

/// The resources of a fiber.
#[derive(Default)]
pub(crate) struct Kit {
    /// Empty while it is lent to a call.
    pub(crate) buf: AlignedBuf,
    name: Vec<u8>,
    /// Room for directory entries.
    space: Vec<u8>,
    hold: Arc<Hold>,
    _permits: Option<(Permit, Permit)>,
}

impl Kit {
    pub(super) fn new<J: Job>(crew: &Crew<J>, permits: Option<(Permit, Permit)>) -> Self {
        let buf = AlignedBuf::zeroed(crew.size.buffer);
        let (name, space) = (Vec::with_capacity(256), Vec::with_capacity(BATCH_BYTES));
        Self { buf, name, space, hold: crew.progress.hold(), _permits: permits }
    }
}

/// Counts that a fiber has not reported yet.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) counters: Counters,
    /// The part that was reported.
    told: Counters,
}

/// A sequence of operations.
pub(crate) struct Fiber<J: Job> {
    worker: Rc<Worker<J>>,
    pub(crate) kit: Kit,
    pub(crate) tally: Tally,
    /// Entries since the last yield.
    turn: u32,
}

impl<J: Job> Fiber<J> {
    pub(super) fn new(worker: Rc<Worker<J>>, kit: Kit) -> Self {
        Self { worker, kit, tally: Tally::default(), turn: 0 }
    }

    pub(crate) fn crew(&self) -> &Arc<Crew<J>> {
        &self.worker.crew
    }

    /// Returns its worker, which gives access to the crew while the fiber is changed. A reference count of
    /// the crew per entry would make all workers write to the same memory.
    pub(crate) fn worker(&self) -> Rc<Worker<J>> {
        Rc::clone(&self.worker)
    }

    /// Prepares for a call that may wait.
    pub(crate) fn about_to_wait(&mut self) {
        self.tally.counters.waits += 1;
        self.worker.spread();
    }

    /// Works until the worker has nothing left.
    pub(super) async fn work(&mut self) {
        let mut name = std::mem::take(&mut self.kit.name);
        while !self.crew().is_stopped() {
            let Some(work) = self.worker.take(&mut name) else { break };
            match work {
                Work::Entry(frame, kind) => self.entry(&frame, &name, kind).await,
                Work::Item(Item::Frame(frame)) => self.read(frame).await,
                Work::Item(Item::Unit(unit)) => self.enter(unit).await,
                Work::Item(Item::Rest(rest)) => self.worker().crew.job.help(self, rest).await,
                Work::Item(Item::Asides) => self.worker().crew.job.do_asides(self).await,
            }
            self.turn += 1;
            if self.turn >= TURN {
                self.turn = 0;
                self.tell();
                if self.crew().is_stopped() {
                    self.crew().stop();
                }
                sakia::yield_now().await;
            }
        }
        self.kit.hold.end();
        self.kit.name = name;
    }

    /// Returns an error if the work is stopped.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        if self.crew().is_stopped() { Err(stopped::error()) } else { Ok(()) }
    }

    /// Waits for `answer`, or until the work is stopped: then the runtime cancels and disposes of it.
    pub(crate) async fn unless_stopped<T>(&self, answer: impl Future<Output = T>) -> io::Result<T> {
        self.crew().token.run_until_canceled(answer).await.ok_or_else(stopped::error)
    }

    /// Makes a slow call on a thread of the pool, unless the work is stopped; in place if there are no
    /// threads for it. Nothing waits for a call that is given up: its file system may never answer.
    pub(crate) async fn on_pool<T, F>(&self, call: F) -> io::Result<T>
    where
        T: Send + 'static,
        F: Fn() -> sys::Result<T> + Clone + Send + 'static,
    {
        let made = self.unless_stopped(blocking::shared().spawn(call.clone())).await?;
        Ok(made.unwrap_or_else(|error| {
            error.resume_panic();
            call()
        })?)
    }

    /// Counts and reports a failure. The stop of the work is not a failure.
    pub(crate) fn fail(&mut self, operation: &'static str, path: PathBuf, error: io::Error) {
        let crew = &self.worker.crew;
        crew.job.failed(crew, &error);
        if !stopped::is_error(&error) {
            self.report(operation, path, error);
        }
    }

    /// As [`fail`](Self::fail), for a failure after which the work goes on whatever the error.
    pub(crate) fn report(&mut self, operation: &'static str, path: PathBuf, error: io::Error) {
        self.tally.counts.failures += 1;
        self.worker.crew.progress.fail(Failure::new(operation, path, error));
    }

    /// Returns the value of `operation` at a path; `None` after reporting its failure.
    pub(crate) fn ok_or_fail<T, E: Into<io::Error>>(
        &mut self,
        operation: &'static str,
        path: impl FnOnce() -> PathBuf,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.fail(operation, path(), error.into())).ok()
    }

    /// Opens the directory of `name`, or reports the failure.
    pub(crate) fn open_place(&mut self, place: &Arc<Place>, name: &CStr) -> Option<Arc<OpenDir>> {
        let opened = self.crew().places.open(place);
        self.ok_or_fail("open directory of", || place.path_of(name), opened)
    }

    /// Records that one more entry of a directory is done.
    fn done(&mut self, folder: Option<&Arc<Folder<J>>>) {
        self.end_part(folder, End::Done);
    }

    /// Records the end of an entry of a directory.
    pub(crate) fn end_part(&mut self, folder: Option<&Arc<Folder<J>>>, mut end: End) {
        let worker = self.worker();
        let mut next = folder;
        while let Some(folder) = next {
            match folder.parts.end(end) {
                Pending::Some => return,
                Pending::Aside => end = End::Aside,
                Pending::None => worker.crew.job.leave(self, folder),
            }
            next = folder.above.as_ref();
        }
        // That was the root.
        match end {
            End::Aside => worker.push_asides(),
            End::Done | End::DoneLate => worker.crew.stop(),
        }
    }

    /// Adds the counts to the progress, and adjusts the number of workers that create files.
    fn tell(&mut self) {
        let (crew, tally) = (&self.worker.crew, &mut self.tally);
        crew.progress.add(&std::mem::take(&mut tally.counts));
        let counters = &tally.counters;
        let made = counters.creates - tally.told.creates;
        let timed = counters.creates_timed - tally.told.creates_timed;
        let time = counters.create_time - tally.told.create_time;
        tally.told = *counters;
        crew.pace.made(made, timed, time);
    }

    /// Declares that the current entry is a large file: other workers may take the rest of its directory, if
    /// it is huge even before other directories, or else what `rest` offers of the file.
    pub(crate) fn copying_large(&self, is_huge: bool, rest: impl FnOnce() -> Option<J::Rest>) {
        self.worker.file.set(if is_huge { FileSize::Huge } else { FileSize::Large });
        self.worker.share(rest);
    }

    /// Begins a part of the entry `name` in `place`, which another fiber handles.
    pub(crate) fn begin_part(&mut self, place: &Arc<Place>, name: &CStr) {
        self.tally.counters.ranges += 1;
        self.kit.hold.begin(place, name);
    }

    async fn entry(&mut self, frame: &Rc<Frame<J>>, name: &[u8], kind: FileType) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { return };
        let worker = self.worker();
        self.kit.hold.begin(&frame.folder.place, name);
        worker.share(|| None);
        worker.file.set(FileSize::Small);
        match worker.crew.job.entry(self, Found { frame, name, kind }).await {
            Next::Done => self.done(Some(&frame.folder)),
            Next::Enter => worker.begin(frame, vec![name.to_owned()]),
            Next::Later => {}
            Next::Aside => self.end_part(Some(&frame.folder), End::Aside),
        }
    }

    async fn enter(&mut self, unit: Unit<J>) {
        let worker = self.worker();
        let crew = &worker.crew;
        self.kit.hold.begin(unit.place(), &unit.name);
        self.worker.share(|| None);
        let Some(folder) = crew.job.enter(self, &unit).await else {
            return self.done(unit.above.as_ref());
        };
        if !crew.job.is_read(&folder) {
            return self.done(Some(&folder));
        }
        let opened = crew.places.open(&folder.place);
        match self.ok_or_fail("read directory", || folder.place.path(), opened) {
            Some(source) => self.read(Rc::new(Frame::new(folder, source))).await,
            None => self.done(Some(&folder)),
        }
    }

    /// Reads more of a directory, or finishes it.
    async fn read(&mut self, frame: Rc<Frame<J>>) {
        if frame.is_over() {
            let folder = Arc::clone(&frame.folder);
            // The frame keeps the directory open, unless another fiber works on an entry of it.
            drop(frame);
            return self.done(Some(&folder));
        }
        self.kit.hold.begin(&frame.folder.place, c"");
        let list = self.read_list(&frame).await;
        let list = self.ok_or_fail("read directory", || frame.folder.place.path(), list);
        let folders = frame.add(list.unwrap_or_default());
        self.worker.push(Rc::clone(&frame));
        self.worker.begin(&frame, folders);
    }

    /// Reads the next entries: in place as long as that is quick.
    async fn read_list(&mut self, frame: &Frame<J>) -> io::Result<List> {
        let is_at_end = frame.is_at_end();
        if is_at_end || self.worker.lists.is_in_place() {
            self.tally.counters.plain_calls += 1;
            let begin = Instant::now();
            let list = List::read(&frame.source, self.kit.space.spare_capacity_mut())?;
            if !is_at_end {
                self.worker.lists.took(begin.elapsed().saturating_sub(list.usual_time()));
            }
            return Ok(list);
        }
        self.tally.counters.pool_lists += 1;
        self.about_to_wait();
        let source = Arc::clone(&frame.source);
        self.on_pool(move || {
            List::read(&source, Vec::with_capacity(BATCH_BYTES).spare_capacity_mut())
        })
        .await
    }

    pub(super) fn end(mut self) {
        self.tell();
        lock(&self.crew().counters).add(&self.tally.counters);
        self.worker.spare.borrow_mut().push(std::mem::take(&mut self.kit));
    }
}

impl<J: Job> Drop for Fiber<J> {
    /// On a panic the crew stops: this fiber's work is lost, and the others must not wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.crew.stop();
        }
    }
}
