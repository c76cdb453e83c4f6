//! Durability, and the disk after a crash.
//!
//! The [module's](super#crashes) documentation has the rules of durability, and of the fate of other data
//! when the power fails. Inodes have two sides: the programs' and the disk's. Syncs and write-back copy from
//! the programs' side to the disk's. A crash copies some more, at random, and leaves only the disk's.
//!
//! Sources: `fsync(2)`, `open(2)`, `syncfs(2)`, and the kernel's `Documentation/filesystems/ext4`; "All File
//! Systems Are Not Created Equal" (Pillai et al., OSDI 2014) and "Can Applications Recover from fsync
//! Failures?" (Rebello et al., ATC 2020).

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::rc::Weak;

use rustix::io::Errno;

use super::SimBuilder;
use super::content::{Content, Failures, PAGE_BYTES};
use super::journal::{Change, Entry, Journal};
use super::kernel::{Kernel, OpenFile};
use super::random::Random;
use super::tree::{InodeId, Last, Names, Node, Place, Tree};

/// Maximum number of entries of the journal: when it is full, the oldest are stored.
const JOURNAL_ENTRIES_MAX: usize = 1024;

/// The disk that a simulated machine starts with: the durable data of another machine, and the data that
/// survived its crash by chance.
///
/// From [`SimHandle::crash`](super::SimHandle::crash), for [`SimBuilder::disk`].
#[derive(Clone)]
pub struct Disk {
    tree: Tree,
}

impl Disk {
    pub(super) fn tree(&self) -> Tree {
        self.tree.clone()
    }

    /// Returns the content of a file. `None` if there is no such file.
    pub fn contents(&self, path: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let content = self.tree.inode(self.lookup(path.as_ref())?).content()?;
        Some(content.to_vec())
    }

    /// Returns the names in a directory, in order. `None` if there is no such directory.
    pub fn names(&self, path: impl AsRef<[u8]>) -> Option<Vec<Vec<u8>>> {
        match &self.tree.inode(self.lookup(path.as_ref())?).node {
            Node::Directory(directory) => Some(directory.names.keys().cloned().collect()),
            _ => None,
        }
    }

    fn lookup(&self, path: &[u8]) -> Option<InodeId> {
        let place = Place { start: InodeId::ROOT, path: path.to_vec() };
        self.tree.lookup(&place, Last::Follow).ok()
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

/// The data that a sync of a file makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The data needed to read its bytes.
    Data,
    All,
}

/// The durability state of an open file.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Every write is durable before it completes.
    pub(super) syncs: Option<Level>,
    /// The failures of its file and of the file system that were reported to it.
    told_of_file: Cell<u64>,
    told_of_disk: Cell<u64>,
}

/// The disk, apart from the data in inodes.
#[derive(Debug)]
pub(super) struct Device {
    /// Chooses the surviving data. Separate from other choices, so that a crash does not change them.
    random: Random,
    /// See [`SimBuilder::write_back`].
    write_back: u16,
    /// See [`SimBuilder::disk_bytes_max`].
    bytes_max: u64,
    /// The holders of open files, if space is limited: a file takes space as long as it is open.
    holders: Vec<(InodeId, Weak<OpenFile>)>,
    /// Failures of the whole file system.
    failures: Failures,
    /// The next sync loses its data. Set for one operation by the machine.
    pub(super) loses_sync: bool,
    /// See [`SimBuilder::crash_at`].
    crash_at: Option<u64>,
    pub(super) crashed: Option<Disk>,
}

impl Device {
    pub(super) fn new(config: &SimBuilder) -> Self {
        Self {
            random: Random::new(config.seed ^ 0xd15c),
            write_back: config.write_back,
            bytes_max: config.disk_bytes_max,
            holders: Vec::new(),
            failures: Failures::default(),
            loses_sync: false,
            crash_at: config.crash_at,
            crashed: None,
        }
    }

    fn is_limited(&self) -> bool {
        self.bytes_max != u64::MAX
    }
}

impl Kernel {
    // Syncs.

    /// Returns the durability state of a file that is opened now.
    pub(super) fn durability(&self, id: InodeId, syncs: Option<Level>) -> Durability {
        let of_file = match &self.tree.inode(id).node {
            Node::File(content) => content.failures.sample(),
            _ => 0,
        };
        Durability {
            syncs,
            told_of_file: Cell::new(of_file),
            told_of_disk: Cell::new(self.device.failures.sample()),
        }
    }

    /// Performs `fsync(2)` or `fdatasync(2)`, or a durable write's sync of the bytes in `range`.
    ///
    /// # Errors
    /// `EIO`: an injected failure, or an earlier one that was not reported to the open file. `EINVAL`: not a
    /// file.
    pub(super) fn sync(
        &mut self,
        file: &OpenFile,
        level: Level,
        range: Range<usize>,
    ) -> Result<(), Errno> {
        let (id, fails) = (file.inode()?, std::mem::take(&mut self.device.loses_sync));
        let is_told = match &mut self.tree.inode_mut(id).node {
            Node::File(content) => {
                if fails {
                    let count = content.lose(range.clone());
                    self.device.failures.add();
                    self.log.note(self.now, "  lost {} pages", &[count as i64]);
                }
                content.failures.tell(&file.durability.told_of_file)
            }
            // A journal loses nothing: its next commit has the changes.
            _ => fails,
        };
        if is_told {
            return Err(Errno::IO);
        }
        let count = self.tree.sync(id, level, range);
        let left = self.tree.journal.len();
        self.note(
            "  synced inode {}: {} pages, {} changes left",
            &[id.number() as i64, count as i64, left as i64],
        );
        Ok(())
    }

    /// Performs `syncfs(2)`.
    ///
    /// # Errors
    /// `EIO`, as [`sync`](Kernel::sync).
    pub(super) fn sync_file_system(&mut self, file: &OpenFile) -> Result<(), Errno> {
        if std::mem::take(&mut self.device.loses_sync) {
            let mut count = 0;
            for content in self.tree.contents_mut().filter(|content| content.dirty_pages() > 0) {
                count += content.lose(0..usize::MAX);
            }
            self.device.failures.add();
            self.note("  lost {} pages", &[count as i64]);
        }
        if self.device.failures.tell(&file.durability.told_of_disk) {
            return Err(Errno::IO);
        }
        let changes = self.tree.journal.len();
        self.tree.store_names();
        let pages: usize =
            self.tree.contents_mut().map(|content| content.sync(0..usize::MAX)).sum();
        self.tree.store_attributes();
        self.note("  synced {} pages, {} changes", &[pages as i64, changes as i64]);
        Ok(())
    }

    /// Writes some data to the disk without a request.
    pub(super) fn write_back_some(&mut self) {
        if !self.device.random.chance(self.device.write_back) {
            return;
        }
        let (tree, random) = (&mut self.tree, &mut self.device.random);
        if random.chance(1 << 15) {
            let count = tree.store_some(random);
            if count > 0 {
                self.note("wrote back {} changes", &[count as i64]);
            }
        } else if let Some(left) = tree.store_page(random) {
            self.note("wrote back a page, {} left", &[left as i64]);
        }
    }

    // Room.

    /// Records that a file was opened.
    pub(super) fn hold(&mut self, id: InodeId, file: Weak<OpenFile>) {
        if self.device.is_limited() {
            self.device.holders.push((id, file));
        }
    }

    /// Returns how many of the bytes in `range` of a file, from its begin on, fit on the disk.
    pub(super) fn fitting(&mut self, id: InodeId, range: Range<usize>) -> usize {
        let Some((_, free)) = self.blocks() else { return range.len() };
        match &self.tree.inode(id).node {
            Node::File(content) => content.fitting(range, free),
            _ => range.len(),
        }
    }

    /// Returns the numbers of the disk's pages and of its free pages. `None` if the disk is unlimited.
    pub(super) fn blocks(&mut self) -> Option<(u64, u64)> {
        if !self.device.is_limited() {
            return None;
        }
        self.device.holders.retain(|(_, file)| file.strong_count() > 0);
        let is_held = |id| self.device.holders.iter().any(|&(its, _)| its == id);
        let taken = self.tree.inodes.iter().enumerate().map(|(index, inode)| match &inode.node {
            Node::File(content) if inode.links > 0 || is_held(InodeId(index)) => {
                content.allocated_pages() as u64
            }
            _ => 0,
        });
        let total = self.device.bytes_max / PAGE_BYTES as u64;
        Some((total, total.saturating_sub(taken.sum())))
    }

    // Crashes.

    /// Returns the disk after a power failure now.
    pub(super) fn crash(&mut self) -> Disk {
        let mut tree = self.tree.clone();
        let all = tree.journal.len();
        let kept = tree.store_some(&mut self.device.random);
        self.log.note(self.now, "crash, {} of {} changes kept", &[kept as i64, all as i64]);
        tree.reboot(&mut self.device.random);
        Disk { tree }
    }

    /// Crashes if the event of [`SimBuilder::crash_at`] has come. To be called after every event.
    pub(super) fn crash_if_due(&mut self) {
        if self.device.crash_at.is_some_and(|at| self.log.events() >= at) {
            self.device.crash_at = None;
            self.device.crashed = Some(self.crash());
        }
    }
}

impl Tree {
    fn contents_mut(&mut self) -> impl Iterator<Item = &mut Content> {
        self.inodes.iter_mut().filter_map(|inode| match &mut inode.node {
            Node::File(content) => Some(content),
            _ => None,
        })
    }

    /// Adds an operation to the journal. Returns its number.
    pub(super) fn log(&mut self, changes: Vec<Change>) -> u64 {
        let number = self.journal.add(changes);
        while self.journal.len() > JOURNAL_ENTRIES_MAX {
            self.store_next(number);
        }
        number
    }

    /// Makes durable the data that a sync of an inode covers. Returns the number of pages.
    fn sync(&mut self, id: InodeId, level: Level, range: Range<usize>) -> usize {
        if let Some(last) = self.journal.last_in(id) {
            self.store_up_to(last);
        }
        let as_of = self.journal.last();
        let is_all = level == Level::All || self.is_directory(id);
        let inode = self.inode_mut(id);
        if is_all {
            inode.stored = inode.attributes.clone();
            inode.stored_as_of = as_of;
        }
        match &mut inode.node {
            Node::File(content) => content.sync(range),
            _ => 0,
        }
    }

    /// Stores all entries of the journal.
    pub(super) fn store_names(&mut self) {
        self.store_up_to(self.journal.last());
    }

    fn store_attributes(&mut self) {
        for inode in &mut self.inodes {
            inode.stored = inode.attributes.clone();
        }
    }

    /// Stores the oldest entries of the journal, some or all. Returns their number.
    fn store_some(&mut self, random: &mut Random) -> usize {
        let all = self.journal.len();
        // Storing all entries is the worst case for lost pages.
        let count = if random.below(3) == 0 { all } else { random.below(all as u64 + 1) as usize };
        for _ in 0..count {
            self.store_next(u64::MAX);
        }
        count
    }

    /// Stores a page of a file. Returns the number of pages that the file has left.
    fn store_page(&mut self, random: &mut Random) -> Option<usize> {
        let may = |content: &&mut Content| content.may_write_back();
        let mut dirty: Vec<_> = self.contents_mut().filter(may).collect();
        if dirty.is_empty() {
            return None;
        }
        let content = dirty.swap_remove(random.below(dirty.len() as u64) as usize);
        content.write_back(random);
        Some(content.dirty_pages())
    }

    fn store_up_to(&mut self, number: u64) {
        while self.store_next(number) {}
    }

    /// Stores the oldest entry of the journal, if its number is not above `up_to`.
    fn store_next(&mut self, up_to: u64) -> bool {
        let Some(Entry { number, changes }) = self.journal.take(up_to) else { return false };
        for change in changes {
            match change {
                Change::Link { parent, name, id, position } => {
                    self.stored_names(parent).insert(name, (id, position));
                }
                Change::Unlink { parent, name } => {
                    self.stored_names(parent).remove(&name);
                }
                Change::Attributes { id, attributes } => {
                    let inode = self.inode_mut(id);
                    // A synced version is newer.
                    if inode.stored_as_of < number {
                        inode.stored = attributes;
                    }
                }
                Change::Cut { id } => {
                    if let Node::File(content) = &mut self.inode_mut(id).node {
                        content.store_cuts(number);
                    }
                }
            }
        }
        true
    }

    // After a crash.

    /// Leaves only the data that the disk has, and of data that it may have a random part.
    fn reboot(&mut self, random: &mut Random) {
        self.journal = Journal::default();
        for inode in &mut self.inodes {
            inode.attributes = inode.stored.clone();
            inode.stored_as_of = 0;
            inode.links = 0;
            if let Node::Directory(directory) = &mut inode.node {
                directory.names = directory.stored.clone();
                let positions = directory.names.iter();
                directory.positions =
                    positions.map(|(name, &(_, position))| (position, name.clone())).collect();
            }
        }
        self.count_links();
        for inode in &mut self.inodes {
            match &mut inode.node {
                // The inode has no name left.
                node if inode.links == 0 => *node = Node::File(Content::default()),
                Node::File(content) => *content = std::mem::take(content).after_crash(random),
                Node::Directory(_) | Node::Symlink(_) => {}
            }
        }
    }

    /// Counts the names of each inode, and finds each directory's parent.
    fn count_links(&mut self) {
        let mut found = vec![InodeId::ROOT];
        self.inode_mut(InodeId::ROOT).links = 2;
        while let Some(parent) = found.pop() {
            let Node::Directory(directory) = &self.inode(parent).node else { continue };
            let ids: Vec<InodeId> = directory.names.values().map(|&(id, _)| id).collect();
            for id in ids {
                let inode = self.inode_mut(id);
                if let Node::Directory(directory) = &mut inode.node {
                    directory.parent = parent;
                    inode.links = 2;
                    self.inode_mut(parent).links += 1;
                    found.push(id);
                } else {
                    inode.links += 1;
                }
            }
        }
    }

    fn stored_names(&mut self, id: InodeId) -> &mut Names {
        match &mut self.inode_mut(id).node {
            Node::Directory(directory) => &mut directory.stored,
            _ => unreachable!("entries are those of directories"),
        }
    }
}
