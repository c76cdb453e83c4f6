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

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use rustix::fs::FileType;
use rustix::io::Errno;
use sakia::fs::AlignedBuf;
use sakia::{Budget, CancellationToken, JoinHandle, Permit, Resource};

use crate::delays::Delays;
use crate::hold::Hold;
use crate::kernel;
use crate::pace::Pace;
use crate::place::{OpenDir, Place, Places};
use crate::progress::Progress;
use crate::report::{Counters, Counts, Failure};
use crate::stopped;

/// Bytes of directory entries read at once.
const BATCH_BYTES: usize = 32 << 10;
/// Directories that are known and not begun before they are begun, though the one above was not read to its
/// end: memory is bounded so.
const UNITS_MAX: usize = 4096;
/// What a fiber does before it lets others run.
const TURN: u32 = 64;
/// Descriptors that a fiber needs: two files, and two more while a directory is looked for.
const FIBER_DESCRIPTORS: u64 = 4;
/// Entries that fill the room for them, however long their names are. After fewer there are no more.
const FULL: usize = BATCH_BYTES / (24 + 256);
/// What it takes, with room to spare, to read an entry that a cache has.
const ENTRY: Duration = Duration::from_nanos(500);

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
    async fn entry(
        &self,
        fiber: &mut Fiber<Self>,
        frame: &Frame<Self>,
        name: &CStr,
        kind: FileType,
    ) -> Next;

    /// Ends a directory, of which nothing is left.
    fn leave(&self, fiber: &mut Fiber<Self>, folder: &Arc<Folder<Self>>) {
        fiber.crew().places.return_above(&folder.place);
    }

    /// Something failed, of which the crew tells.
    fn failed(&self, _crew: &Crew<Self>, _error: &io::Error) {}
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is done, well or not.
    Done,
    /// It is a directory.
    Enter,
    /// Somebody else will say that it is done.
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
        while let Some(folder) = above.and_then(Arc::into_inner) {
            let mut folder = folder;
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

/// A directory that is being read.
pub(crate) struct Frame<J: Job> {
    pub(crate) folder: Arc<Folder<J>>,
    /// Keeps it open.
    pub(crate) source: Arc<OpenDir>,
    state: RefCell<FrameState>,
}

#[derive(Default)]
struct FrameState {
    /// Entries that were not taken.
    list: List,
    /// How many were read last, with directories.
    listed: usize,
    /// Directories found.
    folders: usize,
}

/// Entries of a directory.
#[derive(Default)]
struct List {
    /// Names, one after the other, each with a zero.
    names: Vec<u8>,
    /// All but directories, the first one last.
    entries: Vec<Entry>,
    /// Directories, the one to begin with last.
    folders: Vec<CString>,
    /// There are no more.
    is_over: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    begin: u32,
    end: u32,
    kind: FileType,
    inode: u64,
}

enum Item<J: Job> {
    Unit(Unit<J>),
    Frame(Rc<Frame<J>>),
}

impl<J: Job> Item<J> {
    fn is_unit(&self) -> bool {
        matches!(self, Self::Unit(_))
    }
}

/// Takes out up to `most` directories that nobody has begun, the first ones first.
fn take_units<J: Job>(items: &mut Vec<Item<J>>, most: usize) -> Vec<Unit<J>> {
    let units = items.extract_if(.., |item| item.is_unit()).take(most);
    let unit = |item| match item {
        Item::Unit(unit) => Some(unit),
        Item::Frame(_) => None,
    };
    units.filter_map(unit).collect()
}

/// What one worker leaves to another.
enum Share<J: Job> {
    Units(Vec<Unit<J>>),
    Part(Part<J>),
}

/// Entries of a directory, for which it counts one more that is left.
struct Part<J: Job> {
    folder: Arc<Folder<J>>,
    source: Arc<OpenDir>,
    list: List,
}

/// What is to be done next.
enum Work<J: Job> {
    Enter(Unit<J>),
    Read(Rc<Frame<J>>),
    /// The name is in the fiber.
    Entry(Rc<Frame<J>>, FileType),
}

/// Counts that a fiber has not told yet.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) counters: Counters,
    /// What of them was told.
    told: Counters,
}

/// All workers of a job.
pub(crate) struct Crew<J: Job> {
    pub(crate) job: J,
    pub(crate) places: Places,
    pub(crate) progress: Arc<Progress>,
    budget: Budget,
    /// Fibers a worker may have.
    depth: usize,
    buffer: usize,
    token: CancellationToken,
    is_stopped: AtomicBool,
    /// Workers that wait for work.
    idle: AtomicUsize,
    sender: Sender<Share<J>>,
    shares: Receiver<Share<J>>,
    pub(crate) pace: Pace,
    /// Calls back a worker that was laid off.
    call: Sender<()>,
    calls: Receiver<()>,
    counters: Mutex<Counters>,
}

/// How many may do the work.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Threads of the runtime that are used, at least 1.
    pub(crate) workers: usize,
    /// Entries of each that may be under way.
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
        budget: Budget,
        progress: Arc<Progress>,
        token: &CancellationToken,
    ) -> Arc<Self> {
        let (sender, shares) = async_channel::unbounded();
        let (call, calls) = async_channel::unbounded();
        let token = token.child();
        let crew = Arc::new(Self {
            job,
            places: Places::new(budget.clone()),
            progress,
            budget,
            depth: size.depth.max(1),
            buffer: size.buffer,
            token: token.clone(),
            is_stopped: AtomicBool::new(false),
            idle: AtomicUsize::new(0),
            sender,
            shares,
            pace: Pace::new(size.workers),
            call,
            calls,
            counters: Mutex::default(),
        });
        // A future that is dropped asks its workers to end; they do so by themselves.
        let guard = token.drop_guard();
        let root = Unit { above: None, name };
        crew.sender.try_send(Share::Units(vec![root])).ok();
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
        let mut counters = crew.lock_counters();
        counters.workers = size.workers as u64;
        drop(counters);
        crew
    }

    /// What its workers counted.
    pub(crate) fn counters(&self) -> Counters {
        *self.lock_counters()
    }

    fn lock_counters(&self) -> std::sync::MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the work early, or because there is no more.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.sender.close();
        self.call.close();
    }

    /// Whether nothing more is to be begun.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed) || self.token.is_canceled()
    }
}

/// The work of a thread.
pub(crate) struct Worker<J: Job> {
    crew: Arc<Crew<J>>,
    number: usize,
    /// The next one last.
    items: RefCell<Vec<Item<J>>>,
    fibers: Cell<usize>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    /// Buffers of fibers that have ended, with their shares of the budget.
    spare: RefCell<Vec<Kit>>,
    /// Of opening what no cache knows.
    pub(crate) opens: Delays,
    /// Of reading directories.
    lists: Delays,
    /// The file that was begun last is large.
    has_large_file: Cell<bool>,
}

/// What a fiber needs.
#[derive(Default)]
struct Kit {
    buf: AlignedBuf,
    name: Vec<u8>,
    /// Room for directory entries.
    space: Vec<u8>,
    hold: Arc<Hold>,
    _permits: Option<(Permit, Permit)>,
}

impl<J: Job> Worker<J> {
    pub(crate) fn crew(&self) -> &Arc<Crew<J>> {
        &self.crew
    }

    async fn run(crew: Arc<Crew<J>>, number: usize) {
        let is_alone = crew.depth == 1;
        let worker = Rc::new(Self {
            crew,
            number,
            items: RefCell::default(),
            fibers: Cell::new(1),
            tasks: RefCell::default(),
            spare: RefCell::default(),
            opens: Delays::new(is_alone),
            lists: Delays::new(is_alone),
            has_large_file: Cell::new(false),
        });
        // The first one of each worker runs whatever the budget has.
        let kit = worker.kit().unwrap_or_else(|| worker.kit_of(None));
        let mut fiber = Fiber::new(Rc::clone(&worker), kit);
        while !worker.crew.is_stopped() {
            fiber.work().await;
            if worker.may_work() {
                fiber.tally.counters.parts += u64::from(worker.wait_for_work().await);
            } else {
                fiber.tally.counters.laid_off += 1;
                worker.rest().await;
            }
        }
        fiber.end();
        // Those that wait for directories may not have heard of it: a token tells only who looks.
        worker.crew.stop();
        // The others see that it is over when what they wait for has come.
        loop {
            let task = worker.tasks.borrow_mut().pop();
            let Some(task) = task else { break };
            if let Err(error) = task.await {
                error.resume_panic();
            }
        }
    }

    fn may_work(&self) -> bool {
        self.crew.pace.may_work(self.number)
    }

    /// Gives away the directories that it has not begun.
    fn give_all(&self) {
        let units = take_units(&mut self.items.borrow_mut(), usize::MAX);
        if !units.is_empty() {
            self.crew.sender.try_send(Share::Units(units)).ok();
        }
    }

    /// Waits until it is called back, if it has nothing left.
    async fn rest(&self) {
        self.give_all();
        if !self.items.borrow().is_empty() {
            return;
        }
        self.crew.pace.lay_off();
        if !self.may_work() {
            // Closed when all is over.
            self.crew.calls.recv().await.ok();
        }
        self.crew.pace.call_back();
    }

    /// Waits until another worker hands something over. True: it is a part of a directory.
    async fn wait_for_work(&self) -> bool {
        let crew = &self.crew;
        if crew.is_stopped() {
            return false;
        }
        crew.idle.fetch_add(1, Ordering::Relaxed);
        let received = crew.shares.recv().await;
        crew.idle.fetch_sub(1, Ordering::Relaxed);
        let mut items = self.items.borrow_mut();
        let is_part = matches!(received, Ok(Share::Part(_)));
        match received {
            Ok(Share::Units(units)) => items.extend(units.into_iter().map(Item::Unit)),
            Ok(Share::Part(Part { folder, source, list })) => {
                let state = RefCell::new(FrameState { list, ..FrameState::default() });
                items.push(Item::Frame(Rc::new(Frame { folder, source, state })));
            }
            Err(_) => {}
        }
        is_part
    }

    /// Hands work over, if somebody waits for some. The caller has something in hand, so that it can do
    /// without the rest.
    fn share(&self) {
        if self.crew.idle.load(Ordering::Relaxed) == 0 || !self.crew.sender.is_empty() {
            return;
        }
        let mut items = self.items.borrow_mut();
        let give = items.iter().filter(|item| item.is_unit()).count().div_ceil(2);
        let share = if give > 0 {
            Share::Units(take_units(&mut items, give))
        } else if self.has_large_file.get()
            && let Some(Item::Frame(frame)) = items.last()
            && let Some(part) = frame.split()
        {
            Share::Part(part)
        } else {
            return;
        };
        drop(items);
        // If it is over nobody takes it, and nobody misses it.
        self.crew.sender.try_send(share).ok();
    }

    /// What to do next; the name of an entry goes to `name`.
    fn take(&self, name: &mut Vec<u8>) -> Option<Work<J>> {
        let mut items = self.items.borrow_mut();
        match items.last()? {
            Item::Frame(frame) => {
                if let Some(kind) = frame.take(name) {
                    return Some(Work::Entry(Rc::clone(frame), kind));
                }
            }
            // A directory that was begun is ended before it rests.
            Item::Unit(_) if !self.may_work() => return None,
            Item::Unit(_) => {}
        }
        items.pop().map(|item| match item {
            Item::Frame(frame) => Work::Read(frame),
            Item::Unit(unit) => Work::Enter(unit),
        })
    }

    /// Directories were found. They come after all else of the one above, unless they are many.
    fn begin(&self, frame: &Rc<Frame<J>>, folders: Vec<CString>) {
        let mut state = frame.state.borrow_mut();
        state.folders += folders.len();
        let has_many = state.folders > UNITS_MAX;
        let mut items = self.items.borrow_mut();
        let is_above = |item: &Item<J>| matches!(item, Item::Frame(is) if Rc::ptr_eq(is, frame));
        let below = items.iter().rposition(is_above).filter(|_| !has_many).unwrap_or(items.len());
        let unit = |name| Item::Unit(Unit { above: Some(Arc::clone(&frame.folder)), name });
        items.splice(below..below, folders.into_iter().map(unit));
    }

    /// A fiber is about to wait: another one does something meanwhile.
    fn spread(self: &Rc<Self>) {
        if self.fibers.get() >= self.crew.depth || self.items.borrow().is_empty() {
            return;
        }
        let Some(kit) = self.kit() else { return };
        self.fibers.set(self.fibers.get() + 1);
        let worker = Rc::clone(self);
        let task = sakia::spawn(async move {
            let mut fiber = Fiber::new(worker, kit);
            fiber.tally.counters.depth_max = fiber.worker.fibers.get() as u64;
            fiber.work().await;
            fiber.worker.fibers.set(fiber.worker.fibers.get() - 1);
            if !fiber.worker.may_work() {
                fiber.worker.give_all();
            }
            fiber.end();
        });
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    fn kit(&self) -> Option<Kit> {
        if let Some(kit) = self.spare.borrow_mut().pop() {
            return Some(kit);
        }
        let budget = &self.crew.budget;
        // The rest is for directories.
        if budget.available(Resource::Descriptors) < budget.total(Resource::Descriptors) / 2 {
            return None;
        }
        let descriptors = budget.try_acquire(Resource::Descriptors, FIBER_DESCRIPTORS)?;
        let bytes = budget.try_acquire(Resource::Bytes, self.crew.buffer as u64)?;
        Some(self.kit_of(Some((descriptors, bytes))))
    }

    fn kit_of(&self, permits: Option<(Permit, Permit)>) -> Kit {
        let buf = AlignedBuf::zeroed(self.crew.buffer);
        let (name, space) = (Vec::with_capacity(256), Vec::with_capacity(BATCH_BYTES));
        Kit { buf, name, space, hold: self.crew.progress.hold(), _permits: permits }
    }
}

impl<J: Job> Frame<J> {
    /// Takes the next entry's name.
    fn take(&self, name: &mut Vec<u8>) -> Option<FileType> {
        let list = &mut self.state.borrow_mut().list;
        let entry = list.entries.pop()?;
        name.clear();
        name.extend_from_slice(list.name(&entry));
        Some(entry.kind)
    }

    /// Half of its entries, for somebody else. `None`: there are too few.
    fn split(&self) -> Option<Part<J>> {
        let list = self.state.borrow_mut().list.split()?;
        self.folder.left.fetch_add(1, Ordering::Relaxed);
        Some(Part { folder: Arc::clone(&self.folder), source: Arc::clone(&self.source), list })
    }
}

impl List {
    fn name(&self, entry: &Entry) -> &[u8] {
        &self.names[entry.begin as usize..entry.end as usize]
    }

    fn push(&mut self, name: &[u8], kind: FileType, inode: u64) {
        let begin = self.names.len() as u32;
        self.names.extend_from_slice(name);
        self.entries.push(Entry { begin, end: self.names.len() as u32, kind, inode });
    }

    /// The half that would come last, after which there is no more. `None`: it is all one.
    fn split(&mut self) -> Option<Self> {
        let mut last = Self { is_over: true, ..Self::default() };
        for entry in self.entries.drain(..self.entries.len() / 2) {
            let name = &self.names[entry.begin as usize..entry.end as usize];
            last.push(name, entry.kind, entry.inode);
        }
        (!last.entries.is_empty()).then_some(last)
    }
}

/// One thing after the other.
pub(crate) struct Fiber<J: Job> {
    worker: Rc<Worker<J>>,
    kit: Kit,
    pub(crate) tally: Tally,
    /// Entries since others could run.
    turn: u32,
}

impl<J: Job> Fiber<J> {
    fn new(worker: Rc<Worker<J>>, kit: Kit) -> Self {
        Self { worker, kit, tally: Tally::default(), turn: 0 }
    }

    pub(crate) fn crew(&self) -> &Arc<Crew<J>> {
        &self.worker.crew
    }

    /// Its worker, by way of which the crew is at hand while the fiber is changed. Counting the crew's own
    /// users for each entry would have all workers change the same memory.
    pub(crate) fn worker(&self) -> Rc<Worker<J>> {
        Rc::clone(&self.worker)
    }

    /// The buffer, empty-handed until it is [given back](Self::give_buf).
    pub(crate) fn take_buf(&mut self) -> AlignedBuf {
        std::mem::take(&mut self.kit.buf)
    }

    /// Gives the buffer back.
    pub(crate) fn give_buf(&mut self, buf: AlignedBuf) {
        self.kit.buf = buf;
    }

    /// What is awaited next may take a while.
    pub(crate) fn about_to_wait(&mut self) {
        self.tally.counters.waits += 1;
        self.worker.spread();
    }

    /// Works until the worker has nothing left.
    async fn work(&mut self) {
        let mut name = std::mem::take(&mut self.kit.name);
        while !self.crew().is_stopped() {
            let Some(work) = self.worker.take(&mut name) else { break };
            match work {
                Work::Entry(frame, kind) => self.entry(&frame, &name, kind).await,
                Work::Read(frame) => self.read(frame).await,
                Work::Enter(unit) => self.enter(unit).await,
            }
            self.turn += 1;
            if self.turn >= TURN {
                self.pause().await;
            }
        }
        self.kit.hold.end();
        self.kit.name = name;
    }

    /// It is at this entry now.
    fn hold(&self, place: &Arc<Place>, name: &CStr) {
        self.kit.hold.begin(place, name);
    }

    /// Waits for `answer`, or until all is to be stopped: then it is canceled, and disposed of by the
    /// runtime.
    pub(crate) async fn unless_stopped<T>(&self, answer: impl Future<Output = T>) -> io::Result<T> {
        let answer = self.worker.crew.token.run_until_canceled(answer).await;
        answer.ok_or_else(stopped::error)
    }

    /// Makes a call that may take long on a thread of the pool, until all is to be stopped; in place if
    /// there are no threads for it.
    pub(crate) async fn on_pool<T, F>(&self, call: F) -> io::Result<T>
    where
        T: Send + 'static,
        F: Fn() -> io::Result<T> + Clone + Send + 'static,
    {
        let made = self.unless_stopped(sakia::spawn_blocking(call.clone())).await?;
        made.unwrap_or_else(|error| {
            error.resume_panic();
            call()
        })
    }

    /// Counts a failure, and tells of it. That the work was told to stop is none.
    pub(crate) fn fail(&mut self, operation: &'static str, path: PathBuf, error: io::Error) {
        let crew = &self.worker.crew;
        crew.job.failed(crew, &error);
        if !stopped::is_error(&error) {
            self.tally.counts.failures += 1;
            crew.progress.fail(Failure::new(operation, path, error));
        }
    }

    /// Opens the directory that `name` is in, or tells of the failure.
    pub(crate) fn open_place(&mut self, place: &Arc<Place>, name: &CStr) -> Option<Arc<OpenDir>> {
        let opened = self.crew().places.open(place);
        opened.map_err(|error| self.fail("open directory of", place.path_of(name), error)).ok()
    }

    /// One more of what is in a directory is done.
    pub(crate) fn done(&mut self, folder: Option<&Arc<Folder<J>>>) {
        let worker = self.worker();
        let mut next = folder;
        while let Some(folder) = next {
            if folder.left.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            worker.crew.job.leave(self, folder);
            next = folder.above.as_ref();
        }
        // That was the root.
        worker.crew.stop();
    }

    /// Adds what was counted to the progress, and calls back workers that were laid off if they are wanted.
    fn tell(&mut self) {
        let (crew, tally) = (&self.worker.crew, &mut self.tally);
        crew.progress.add(&std::mem::take(&mut tally.counts));
        let counters = &tally.counters;
        let made = counters.creates - tally.told.creates;
        let timed = counters.creates_timed - tally.told.creates_timed;
        let time = counters.create_time - tally.told.create_time;
        tally.told = *counters;
        if crew.pace.made(made, timed, time) {
            for _ in 1..crew.pace.workers() {
                crew.call.try_send(()).ok();
            }
        }
    }

    async fn pause(&mut self) {
        self.turn = 0;
        self.tell();
        if self.crew().is_stopped() {
            self.crew().stop();
        }
        sakia::yield_now().await;
    }

    /// What is in hand is a large file: others may do what is left of its directory.
    pub(crate) fn copying_large(&self) {
        self.worker.has_large_file.set(true);
        self.worker.share();
    }

    async fn entry(&mut self, frame: &Rc<Frame<J>>, name: &[u8], kind: FileType) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { return };
        let worker = self.worker();
        self.hold(&frame.folder.place, name);
        worker.share();
        worker.has_large_file.set(false);
        match worker.crew.job.entry(self, frame, name, kind).await {
            Next::Done => self.done(Some(&frame.folder)),
            Next::Enter => worker.begin(frame, vec![name.to_owned()]),
            Next::Later => {}
        }
    }

    async fn enter(&mut self, unit: Unit<J>) {
        let worker = self.worker();
        let crew = worker.crew();
        self.hold(unit.place(), &unit.name);
        self.worker.share();
        let Some(folder) = crew.job.enter(self, &unit).await else {
            return self.done(unit.above.as_ref());
        };
        if !crew.job.is_read(&folder) {
            return self.done(Some(&folder));
        }
        match crew.places.open(&folder.place) {
            Ok(source) => {
                let frame = Frame { folder, source, state: RefCell::default() };
                self.read(Rc::new(frame)).await;
            }
            Err(error) => {
                self.fail("read directory", folder.place.path(), error);
                self.done(Some(&folder));
            }
        }
    }

    /// Reads on in a directory, or is done with it.
    async fn read(&mut self, frame: Rc<Frame<J>>) {
        let is_over = frame.state.borrow().list.is_over;
        if is_over {
            let folder = Arc::clone(&frame.folder);
            // It keeps the directory open, unless another fiber has an entry of it.
            drop(frame);
            return self.done(Some(&folder));
        }
        self.hold(&frame.folder.place, c"");
        let mut list = self.read_list(&frame).await.unwrap_or_else(|error| {
            self.fail("read directory", frame.folder.place.path(), error);
            List { is_over: true, ..List::default() }
        });
        let folders = std::mem::take(&mut list.folders);
        let listed = list.entries.len() + folders.len();
        frame.folder.left.fetch_add(listed, Ordering::Relaxed);
        let mut state = frame.state.borrow_mut();
        (state.listed, state.list) = (listed, list);
        drop(state);
        self.worker.items.borrow_mut().push(Item::Frame(Rc::clone(&frame)));
        self.worker.begin(&frame, folders);
    }

    /// Reads the next entries: in place as long as that is quick.
    async fn read_list(&mut self, frame: &Frame<J>) -> io::Result<List> {
        // After so few only their end is left, which a directory that was just read has at hand.
        let is_rest = (1..FULL).contains(&frame.state.borrow().listed);
        if is_rest || self.worker.lists.is_in_place() {
            self.tally.counters.plain_calls += 1;
            let begin = Instant::now();
            let list = read_entries(&frame.source, self.kit.space.spare_capacity_mut())?;
            if !is_rest {
                let usual = ENTRY * (list.entries.len() + list.folders.len()) as u32;
                self.worker.lists.took(begin.elapsed().saturating_sub(usual));
            }
            return Ok(list);
        }
        self.tally.counters.pool_lists += 1;
        self.about_to_wait();
        let source = Arc::clone(&frame.source);
        self.on_pool(move || {
            let mut space = Vec::with_capacity(BATCH_BYTES);
            read_entries(&source, space.spare_capacity_mut())
        })
        .await
    }

    fn end(mut self) {
        self.tell();
        self.crew().lock_counters().add(&self.tally.counters);
        self.worker.spare.borrow_mut().push(std::mem::take(&mut self.kit));
    }
}

impl<J: Job> Drop for Fiber<J> {
    /// Whom a panic takes along leaves work that nobody will do: the others must not wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.crew.stop();
        }
    }
}

/// Reads as many entries as the space has room for.
fn read_entries(dir: &OpenDir, space: &mut [MaybeUninit<u8>]) -> io::Result<List> {
    let mut list = List { is_over: true, ..List::default() };
    let mut entries = kernel::entries(dir.as_fd(), space)?;
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            // It was removed while it was read: then it has no entries any more.
            Err(Errno::NOENT) => break,
            Err(errno) => return Err(errno.into()),
        };
        let name = entry.file_name();
        if name != c"." && name != c".." {
            let (kind, inode) = (entry.file_type(), entry.ino());
            list.push(name.to_bytes_with_nul(), kind, inode);
        }
        if entries.is_buffer_empty() {
            list.is_over = false;
            break;
        }
    }
    // In the order of their inodes, in which a disk has them; taken from the end.
    list.entries.sort_unstable_by_key(|entry| Reverse(entry.inode));
    let folders = list.entries.extract_if(.., |entry| entry.kind == FileType::Directory);
    let folders: Vec<_> = folders.collect();
    let name = |entry| CStr::from_bytes_with_nul(list.name(entry)).ok().map(CStr::to_owned);
    list.folders = folders.iter().rev().filter_map(name).collect();
    Ok(list)
}
