//! A directory that is being read, with its pending entries.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::Errno;
use sakia_driver::limits;

use super::{Folder, Job};
use crate::place::OpenDir;
use crate::{kernel, sys};

/// Size of a read of directory entries, in bytes.
pub(super) const BATCH_BYTES: usize = 32 << 10;
/// The number of entries that fill the buffer, however long their names are, besides `.` and `..`. On local
/// file systems fewer mean that there are no more; others may return fewer at a time.
const FULL: usize = (BATCH_BYTES - 2 * 24) / (24 + 256);
/// The limit of known directories that are not begun; above it they are begun before the rest of the parent
/// is read, which bounds the memory.
const UNITS_MAX: usize = 4096;

/// A directory that is being read.
pub(crate) struct Frame<J: Job> {
    pub(crate) folder: Arc<Folder<J>>,
    /// Keeps it open.
    pub(crate) source: Arc<OpenDir>,
    /// Entries that were not taken.
    list: RefCell<List>,
    /// The number of entries read last, directories included.
    listed: Cell<usize>,
    /// Directories found.
    folders: Cell<usize>,
}

/// Entries of a directory.
#[derive(Default)]
pub(super) struct List {
    /// Names, one after the other, each with a final zero.
    names: Vec<u8>,
    /// All entries but directories, the next one last.
    entries: Vec<Entry>,
    /// Directories, the next one last.
    folders: Vec<CString>,
    /// The directory may have entries after these.
    has_more: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    begin: u32,
    end: u32,
    kind: FileType,
    inode: u64,
}

impl<J: Job> Frame<J> {
    /// Returns the frame of a directory of which nothing was read.
    pub(super) fn new(folder: Arc<Folder<J>>, source: Arc<OpenDir>) -> Self {
        Self::with_list(folder, source, List { has_more: true, ..List::default() })
    }

    fn with_list(folder: Arc<Folder<J>>, source: Arc<OpenDir>, list: List) -> Self {
        let (listed, folders) = (Cell::new(0), Cell::new(0));
        Self { folder, source, list: RefCell::new(list), listed, folders }
    }

    /// Returns whether all entries were read.
    pub(super) fn is_over(&self) -> bool {
        !self.list.borrow().has_more
    }

    /// Returns whether, on a local file system, only the end of the directory is left to read, which needs no
    /// disk after the last read.
    pub(super) fn is_at_end(&self) -> bool {
        are_last(self.listed.get())
    }

    /// Adds the entries read. Returns the directories among them.
    pub(super) fn add(&self, mut list: List) -> Vec<CString> {
        let folders = std::mem::take(&mut list.folders);
        self.listed.set(list.entries.len() + folders.len());
        self.folder.parts.add(self.listed.get());
        self.list.replace(list);
        folders
    }

    /// Counts directories found. Returns whether they are to be begun before the rest.
    pub(super) fn found(&self, count: usize) -> bool {
        self.folders.update(|folders| folders + count);
        self.folders.get() > UNITS_MAX
    }

    /// Takes the next entry's name.
    pub(super) fn take(&self, name: &mut Vec<u8>) -> Option<FileType> {
        let list = &mut *self.list.borrow_mut();
        let entry = list.entries.pop()?;
        name.clear();
        name.extend_from_slice(entry.name(&list.names));
        Some(entry.kind)
    }

    /// Returns half of its entries, the only one included, for another worker: the directory then counts one
    /// more pending part. `None`: there are none.
    pub(super) fn split(&self) -> Option<Self> {
        let list = self.list.borrow_mut().split()?;
        self.folder.parts.add(1);
        Some(Self::with_list(Arc::clone(&self.folder), Arc::clone(&self.source), list))
    }
}

/// Returns whether so many entries, all of one read, are the last ones of a local file system's directory.
fn are_last(listed: usize) -> bool {
    (1..FULL).contains(&listed)
}

impl Entry {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        &names[self.begin as usize..self.end as usize]
    }
}

impl List {
    /// Reads as many entries as the buffer has room for.
    pub(super) fn read(dir: &OpenDir, space: &mut [MaybeUninit<u8>]) -> sys::Result<Self> {
        let mut list = Self::default();
        let mut entries = kernel::entries(dir.as_fd(), space)?;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                // The directory was removed meanwhile: it has no entries any more.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(errno),
            };
            let name = entry.file_name();
            if name != c"." && name != c".." {
                list.push(name.to_bytes_with_nul(), entry.file_type(), entry.ino());
            }
            if entries.is_buffer_empty() {
                list.has_more = true;
                break;
            }
        }
        // Sorted by inode, which is their order on a disk; taken from the end.
        list.entries.sort_unstable_by_key(|entry| Reverse(entry.inode));
        let folders = list.entries.extract_if(.., |entry| entry.kind == FileType::Directory);
        let name = |entry: Entry| CStr::from_bytes_with_nul(entry.name(&list.names)).ok();
        list.folders = folders.filter_map(name).map(CStr::to_owned).collect();
        list.folders.reverse();
        Ok(list)
    }

    /// Returns the usual time to read it from a cache.
    pub(super) fn usual_time(&self) -> Duration {
        limits::ENTRY_TIME * (self.entries.len() + self.folders.len()) as u32
    }

    fn push(&mut self, name: &[u8], kind: FileType, inode: u64) {
        let begin = self.names.len() as u32;
        self.names.extend_from_slice(name);
        self.entries.push(Entry { begin, end: self.names.len() as u32, kind, inode });
    }

    /// Returns the larger half, of the entries that would come last. `None`: there are none.
    fn split(&mut self) -> Option<Self> {
        let mut last = Self::default();
        for entry in self.entries.drain(..self.entries.len().div_ceil(2)) {
            last.push(entry.name(&self.names), entry.kind, entry.inode);
        }
        (!last.entries.is_empty()).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// The first batch has two entries less, since `.` and `..` are in it.
    #[test]
    fn the_first_entries_with_the_longest_names_fill_the_buffer() {
        let path = std::env::temp_dir().join(format!("sakia-frame-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        for number in 0..300 {
            File::create(path.join(format!("{number:0255}"))).unwrap();
        }
        let dir = OpenDir::of(std::os::fd::OwnedFd::from(File::open(&path).unwrap()).into());
        let list = List::read(&dir, Vec::with_capacity(BATCH_BYTES).spare_capacity_mut());
        fs::remove_dir_all(&path).unwrap();
        let list = list.unwrap();
        assert!(list.has_more && !are_last(list.entries.len()), "{}", list.entries.len());
    }
}
