//! The work of a thread: its list of directories, its gifts to other workers, and its fibers.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::FileType;
use sakia::{JoinHandle, Resource};
use sakia_driver::Delays;

use super::fiber::{Fiber, Kit};
use super::{Crew, Frame, Job, Share, Unit};

/// Descriptors that a fiber needs: two files, and two more while a directory is opened, or for a helper.
const FIBER_DESCRIPTORS: u64 = 4;

/// An item of a worker's list.
pub(super) enum Item<J: Job> {
    Unit(Unit<J>),
    Frame(Rc<Frame<J>>),
    Rest(J::Rest),
    /// The entries that were put aside.
    Asides,
}

impl<J: Job> Item<J> {
    fn is_unit(&self) -> bool {
        matches!(self, Self::Unit(_))
    }

    fn into_unit(self) -> Option<Unit<J>> {
        if let Self::Unit(unit) = self { Some(unit) } else { None }
    }
}

/// Removes up to `most` directories that are not begun, the first ones first.
fn take_units<J: Job>(items: &mut Vec<Item<J>>, most: usize) -> Vec<Unit<J>> {
    let units = items.extract_if(.., |item| item.is_unit()).take(most);
    units.filter_map(Item::into_unit).collect()
}

/// The next piece of work.
pub(super) enum Work<J: Job> {
    /// Begin a directory, or read more of it.
    Item(Item<J>),
    /// Handle an entry; its name is in the fiber.
    Entry(Rc<Frame<J>>, FileType),
}

/// The work of a thread.
pub(crate) struct Worker<J: Job> {
    pub(crate) crew: Arc<Crew<J>>,
    number: usize,
    /// Items, the next one last.
    items: RefCell<Vec<Item<J>>>,
    fibers: Cell<usize>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    /// Buffers of ended fibers, with their shares of the budget.
    pub(super) spare: RefCell<Vec<Kit>>,
    /// Delays of uncached opens.
    pub(crate) opens: Delays,
    /// Delays of reading directories.
    pub(super) lists: Delays,
    /// The file begun last.
    pub(super) file: Cell<FileSize>,
}

/// The size of a file, for the use of its directory.
#[derive(Clone, Copy)]
pub(super) enum FileSize {
    /// Its directory is the work of one worker.
    Small,
    /// Other workers may take the rest of its directory, if there are no directories.
    Large,
    /// That, even if there are.
    Huge,
}

/// Work for another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gift {
    /// Directories that are not begun.
    Units,
    /// Entries of the directory in hand.
    Part,
    /// A part of the entry in hand.
    Rest,
}

impl FileSize {
    /// Returns the work to give away, the first choice first.
    fn gifts(self) -> &'static [Gift] {
        match self {
            Self::Small => &[Gift::Units],
            Self::Large => &[Gift::Units, Gift::Part, Gift::Rest],
            Self::Huge => &[Gift::Part, Gift::Units, Gift::Rest],
        }
    }
}

impl<J: Job> Worker<J> {
    pub(super) async fn run(crew: Arc<Crew<J>>, number: usize) {
        let is_alone = crew.size.depth == 1;
        let worker = Rc::new(Self {
            crew,
            number,
            items: RefCell::default(),
            fibers: Cell::new(1),
            tasks: RefCell::default(),
            spare: RefCell::default(),
            opens: Delays::new(is_alone),
            lists: Delays::new(is_alone),
            file: Cell::new(FileSize::Small),
        });
        // The first fiber of each worker runs even with an exhausted budget.
        let kit = worker.kit().unwrap_or_else(|| Kit::new(&worker.crew, None));
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
        // Workers that wait for directories may not have noticed: only a check shows a token's state.
        worker.crew.stop();
        // The others notice the end when their operations complete.
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

    /// Gives away the directories that are not begun.
    fn give_all(&self) {
        let units = take_units(&mut self.items.borrow_mut(), usize::MAX);
        if !units.is_empty() {
            self.crew.give(Share::Units(units));
        }
    }

    /// Waits until it is called back, if it is laid off.
    async fn rest(&self) {
        self.give_all();
        if self.items.borrow().is_empty() {
            self.crew.pace.rest(self.number).await;
        }
    }

    /// Waits for work of another worker. Returns true if it is a part of a directory.
    async fn wait_for_work(&self) -> bool {
        let crew = &self.crew;
        if crew.is_stopped() {
            return false;
        }
        crew.idle.fetch_add(1, Ordering::Relaxed);
        let received = crew.shares.recv().await;
        crew.idle.fetch_sub(1, Ordering::Relaxed);
        match received {
            Ok(Share::Units(units)) => {
                self.items.borrow_mut().extend(units.into_iter().map(Item::Unit));
                false
            }
            Ok(Share::Part(frame)) => {
                self.push(Rc::new(frame));
                true
            }
            Ok(Share::Rest(rest)) => {
                self.items.borrow_mut().push(Item::Rest(rest));
                false
            }
            Err(_) => false,
        }
    }

    /// Gives work to an idle worker, if there is one. The caller has work in hand, so it can spare the rest;
    /// if there is none, `rest` returns what can be spared of the entry in hand.
    pub(super) fn share(&self, rest: impl FnOnce() -> Option<J::Rest>) {
        if self.crew.idle.load(Ordering::Relaxed) == 0 || !self.crew.sender.is_empty() {
            return;
        }
        let mut items = self.items.borrow_mut();
        let mut rest = Some(rest);
        let share = self.file.get().gifts().iter().find_map(|gift| match gift {
            Gift::Units => {
                let give = items.iter().filter(|item| item.is_unit()).count().div_ceil(2);
                (give > 0).then(|| Share::Units(take_units(&mut items, give)))
            }
            Gift::Part => match items.last() {
                Some(Item::Frame(frame)) => frame.split().map(Share::Part),
                _ => None,
            },
            Gift::Rest => rest.take()?().map(Share::Rest),
        });
        drop(items);
        if let Some(share) = share {
            self.crew.give(share);
        }
    }

    /// Returns the next piece of work; the name of an entry goes to `name`.
    pub(super) fn take(&self, name: &mut Vec<u8>) -> Option<Work<J>> {
        let mut items = self.items.borrow_mut();
        match items.last()? {
            Item::Frame(frame) if let Some(kind) = frame.take(name) => {
                return Some(Work::Entry(Rc::clone(frame), kind));
            }
            // A directory that was begun is finished before the worker rests.
            Item::Unit(_) if !self.may_work() => return None,
            _ => {}
        }
        items.pop().map(Work::Item)
    }

    /// Adds a directory with entries to do or to read.
    pub(super) fn push(&self, frame: Rc<Frame<J>>) {
        self.items.borrow_mut().push(Item::Frame(frame));
    }

    /// Adds the entries that were put aside: nothing else is left.
    pub(super) fn push_asides(&self) {
        self.items.borrow_mut().push(Item::Asides);
    }

    /// Adds directories that were found. They come after the parent's other entries, unless they are many.
    pub(super) fn begin(&self, frame: &Rc<Frame<J>>, folders: Vec<CString>) {
        let has_many = frame.found(folders.len());
        let mut items = self.items.borrow_mut();
        let is_above = |item: &Item<J>| matches!(item, Item::Frame(is) if Rc::ptr_eq(is, frame));
        let below = items.iter().rposition(is_above).filter(|_| !has_many).unwrap_or(items.len());
        let unit = |name| Item::Unit(Unit { above: Some(Arc::clone(&frame.folder)), name });
        items.splice(below..below, folders.into_iter().map(unit));
    }

    /// Starts another fiber, since one is about to wait.
    pub(super) fn spread(self: &Rc<Self>) {
        if self.fibers.get() >= self.crew.size.depth || self.items.borrow().is_empty() {
            return;
        }
        let Some(kit) = self.kit() else { return };
        self.fibers.set(self.fibers.get() + 1);
        let worker = Rc::clone(self);
        let task = sakia::spawn(async move {
            let mut fiber = Fiber::new(Rc::clone(&worker), kit);
            fiber.tally.counters.depth_max = worker.fibers.get() as u64;
            fiber.work().await;
            worker.fibers.set(worker.fibers.get() - 1);
            if !worker.may_work() {
                worker.give_all();
            }
            fiber.end();
        });
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Returns the resources of another fiber, if the budget allows it.
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
        let bytes = budget.try_acquire(Resource::Bytes, self.crew.size.buffer as u64)?;
        Some(Kit::new(&self.crew, Some((descriptors, bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest pieces of work first, and the files of a directory with small ones never.
    #[test]
    fn work_is_given_away_in_order() {
        assert_eq!(FileSize::Small.gifts(), [Gift::Units]);
        assert_eq!(FileSize::Large.gifts(), [Gift::Units, Gift::Part, Gift::Rest]);
        assert_eq!(FileSize::Huge.gifts(), [Gift::Part, Gift::Units, Gift::Rest]);
    }
}
