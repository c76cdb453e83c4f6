//! The simulated kernel's objects: files, pipes, descriptors, the clock, the log.
//!
//! This module knows neither queues nor operations in flight, which are the machine's. Files and their names
//! are in [`Tree`], sockets in [`Sockets`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use linux_raw_sys::general as abi;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::SimBuilder;
use super::disk::{Device, Disk, Durability, Level};
use super::log::Log;
use super::memory::Lent;
use super::sockets::{SocketId, Sockets};
use super::tree::{InodeId, Last, Place, Time, Tree};
use crate::groups::Groups;

/// The number of the first descriptor; lower ones are taken, as in any process.
const DESCRIPTOR_FIRST: i32 = 3;
/// The maximum size of a file.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 28;
/// `PIPE_BUF`: a pipe takes a write of at most this many bytes as a whole or not at all.
const PIPE_ATOMIC_BYTES: usize = abi::PIPE_BUF as usize;

/// Events of `poll(2)`.
pub(super) mod poll {
    use linux_raw_sys::general as abi;

    pub(crate) const IN: u16 = abi::POLLIN as u16;
    pub(crate) const OUT: u16 = abi::POLLOUT as u16;
    pub(crate) const ERR: u16 = abi::POLLERR as u16;
    pub(crate) const HUP: u16 = abi::POLLHUP as u16;
    /// The peer sends no more.
    pub(crate) const RDHUP: u16 = abi::POLLRDHUP as u16;
    pub(crate) const RDNORM: u16 = abi::POLLRDNORM as u16;
    pub(crate) const WRNORM: u16 = abi::POLLWRNORM as u16;
    /// Events that mean readable.
    pub(crate) const READABLE: u16 = IN | RDNORM;
    /// Events that mean writable.
    pub(crate) const WRITABLE: u16 = OUT | WRNORM;
    /// Reported even if not requested.
    pub(crate) const ALWAYS: u16 = ERR | HUP | RDHUP;
}

/// All objects that a descriptor may refer to.
#[derive(Debug)]
pub(super) struct Kernel {
    /// All files, and the names that lead to them.
    pub(super) tree: Tree,
    /// The disk: the durable side of the files, and their fate in a crash.
    pub(super) device: Device,
    /// Locks of `flock(2)`. A lock without a holder does not count.
    locks: Vec<Lock>,
    /// All pipes ever made.
    pipes: Vec<Pipe>,
    pub(super) sockets: Sockets,
    /// Open files on their way to sockets, in the order in which they were sent.
    pub(super) passed: Vec<Passed>,
    /// Open descriptors from [`DESCRIPTOR_FIRST`] on.
    table: Vec<Option<Rc<OpenFile>>>,
    /// `RLIMIT_NOFILE`: descriptors have lower numbers.
    descriptors_max: u32,
    /// Size of a new pipe's buffer.
    pipe_bytes: usize,
    /// The registered buffer: address and length.
    pub(super) registered: Option<(u64, u64)>,
    /// Provided buffers.
    pub(super) groups: Groups,
    /// The virtual time.
    pub(super) now: Duration,
    pub(super) log: Log,
    /// An event has occurred for which an operation may wait. Set here, and by the machine when an operation
    /// releases a pipe; cleared by the machine when it has checked.
    pub(super) has_changed: bool,
    /// Closes of numbers that were not open.
    pub(super) closes_in_vain: u64,
}

/// A lock of `flock(2)`.
#[derive(Debug)]
struct Lock {
    object: Object,
    holder: Weak<OpenFile>,
    is_exclusive: bool,
}

/// Names a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PipeId(usize);

/// A pipe. An end exists as long as a descriptor or an operation in flight refers to it.
#[derive(Debug)]
struct Pipe {
    buffer: VecDeque<u8>,
    capacity: usize,
    reader: Weak<OpenFile>,
    writer: Weak<OpenFile>,
}

impl Pipe {
    fn has_reader(&self) -> bool {
        self.reader.strong_count() > 0
    }

    fn has_writer(&self) -> bool {
        self.writer.strong_count() > 0
    }

    fn room(&self) -> usize {
        self.capacity - self.buffer.len()
    }
}

/// Open files that were sent with a message, and that the receiver has not taken yet.
#[derive(Debug)]
pub(super) struct Passed {
    /// The receiver.
    pub(super) to: SocketId,
    /// Their place in the receiver's queue: bytes of a stream, or one datagram.
    pub(super) place: Range<usize>,
    pub(super) files: Vec<Rc<OpenFile>>,
}

/// The object of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    File(InodeId),
    Directory(InodeId),
    PipeReader(PipeId),
    PipeWriter(PipeId),
    Socket(SocketId),
}

/// An open file description: the state that a descriptor shares with the operations on it.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) object: Object,
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// Writes go to the end of the file, whatever their offset.
    pub(super) appends: bool,
    /// The offset of a read or write without one; for a directory, the position of the last listed entry.
    pub(super) position: Cell<u64>,
    pub(super) durability: Durability,
}

impl OpenFile {
    /// Returns an open file that refers to a socket.
    pub(super) fn of_socket(id: SocketId) -> Self {
        Self {
            object: Object::Socket(id),
            is_readable: true,
            is_writable: true,
            appends: false,
            position: Cell::new(0),
            durability: Durability::default(),
        }
    }

    /// Returns whether operations on it may wait for ever: a pipe or a socket.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.object, Object::PipeReader(_) | Object::PipeWriter(_) | Object::Socket(_))
    }

    /// Returns the inode, if the file has one.
    ///
    /// # Errors
    /// `EINVAL`: a pipe or a socket.
    pub(super) fn inode(&self) -> Result<InodeId, Errno> {
        match self.object {
            Object::File(id) | Object::Directory(id) => Ok(id),
            Object::PipeReader(_) | Object::PipeWriter(_) | Object::Socket(_) => Err(Errno::INVAL),
        }
    }
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenHow {
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    pub(super) creates: bool,
    /// The file has to be created: fails if the name exists.
    pub(super) is_exclusive: bool,
    pub(super) truncates: bool,
    pub(super) appends: bool,
    /// A symbolic link at the end of the path is not followed, and cannot be opened.
    pub(super) is_nofollow: bool,
    /// Fails unless the path is a directory's.
    pub(super) is_directory: bool,
    /// Only names are used by the descriptor; simulated for directories.
    pub(super) is_path: bool,
    /// Every write is durable before it completes.
    pub(super) syncs: Option<Level>,
    pub(super) mode: u32,
    /// `RESOLVE_*`.
    pub(super) bounds: u64,
}

impl Kernel {
    pub(super) fn new(config: &SimBuilder) -> Self {
        Self {
            tree: config.disk.as_ref().map_or_else(Tree::new, Disk::tree),
            device: Device::new(config),
            locks: Vec::new(),
            pipes: Vec::new(),
            sockets: Sockets::new(config.socket_bytes),
            passed: Vec::new(),
            table: Vec::new(),
            descriptors_max: config.descriptors_max,
            pipe_bytes: config.pipe_bytes,
            registered: None,
            groups: Groups::default(),
            now: Duration::ZERO,
            log: Log::new(config.keep_log),
            has_changed: false,
            closes_in_vain: 0,
        }
    }

    /// Adds an event to the log, see [`Log::note`].
    pub(super) fn note(&mut self, template: &str, numbers: &[i64]) {
        self.log.note(self.now, template, numbers);
        self.crash_if_due();
    }

    pub(super) fn note_name(&mut self, label: &str, name: &[u8]) {
        self.log.note_name(self.now, label, name);
        self.crash_if_due();
    }

    /// Returns the buffers in groups, with the number of the group and their own.
    pub(super) fn provided(&self) -> impl Iterator<Item = (u16, u16, Lent)> {
        self.groups.by_number.iter().flat_map(|(&group, its)| {
            its.buffers.iter().map(move |&buffer| (group, buffer.id, buffer.into()))
        })
    }

    // Names and files.

    /// Returns the time in the form that files store.
    pub(super) fn time(&self) -> Time {
        self.now.into()
    }

    /// Returns the entry at a path that begins at the working directory.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    pub(super) fn lookup(&self, path: &[u8]) -> Result<InodeId, Errno> {
        self.tree.lookup(&Place { start: InodeId::ROOT, path: path.to_vec() }, Last::Follow)
    }

    /// Creates a file, or replaces the content of an existing one. The file and all names so far are durable.
    ///
    /// # Errors
    /// As `open(2)`.
    pub(super) fn put_file(&mut self, path: &[u8], content: Vec<u8>) -> Result<InodeId, Errno> {
        let how = OpenHow { creates: true, is_writable: true, mode: 0o644, ..OpenHow::default() };
        let place = Place { start: InodeId::ROOT, path: path.to_vec() };
        let id = self.find_to_open(&place, how)?;
        self.tree.content_mut(id, self.now.into()).replace(content);
        self.tree.store_names();
        Ok(id)
    }

    /// Performs `open(2)`.
    pub(super) fn open(&mut self, place: &Place, how: OpenHow) -> Result<i32, Errno> {
        // The number comes first: a full table must leave no new file behind.
        self.free_index()?;
        let id = self.find_to_open(place, how)?;
        let is_directory = self.tree.is_directory(id);
        if how.truncates && how.is_writable {
            self.tree.resize(id, 0, self.now.into());
        }
        let durability = self.durability(id, how.syncs);
        let (raw, file) = self.install(OpenFile {
            object: if is_directory { Object::Directory(id) } else { Object::File(id) },
            is_readable: how.is_readable,
            is_writable: how.is_writable,
            appends: how.appends,
            position: Cell::new(0),
            durability,
        })?;
        self.hold(id, file);
        Ok(raw)
    }

    /// Finds the inode to open, or creates it.
    fn find_to_open(&mut self, place: &Place, how: OpenHow) -> Result<InodeId, Errno> {
        let is_nofollow = how.is_nofollow || how.creates && how.is_exclusive;
        let last = if is_nofollow { Last::NoFollow } else { Last::Follow };
        let found = self.tree.walk(place, last, how.bounds)?;
        if how.creates && found.has_slash && found.name.is_some() {
            return Err(Errno::ISDIR);
        }
        let id = match found.id {
            Some(_) if how.creates && how.is_exclusive => return Err(Errno::EXIST),
            None if how.creates => self.tree.create(found, how.mode, self.now.into())?,
            _ => self.tree.existing(&found)?,
        };
        match self.tree.inode(id).kind() {
            FileType::Directory if how.creates || how.is_writable => Err(Errno::ISDIR),
            FileType::Directory => Ok(id),
            _ if how.is_directory => Err(Errno::NOTDIR),
            _ if how.is_path => Err(Errno::INVAL),
            FileType::Symlink => Err(Errno::LOOP),
            _ => Ok(id),
        }
    }

    // Locks.

    /// Returns whether another file's lock conflicts with one of `file`.
    pub(super) fn is_locked_out(&self, file: &Rc<OpenFile>, is_exclusive: bool) -> bool {
        self.locks.iter().any(|lock| {
            lock.object == file.object
                && (is_exclusive || lock.is_exclusive)
                && lock.holder.upgrade().is_some_and(|holder| !Rc::ptr_eq(&holder, file))
        })
    }

    /// Returns whether there may be locks that end with their holder.
    pub(super) fn has_locks(&self) -> bool {
        !self.locks.is_empty()
    }

    /// Performs `flock(2)` without waiting; `None` unlocks. Returns false if it would have to wait. A lock of
    /// the other kind is released first, even then.
    pub(super) fn lock(&mut self, file: &Rc<OpenFile>, is_exclusive: Option<bool>) -> bool {
        let holder = Rc::downgrade(file);
        let is_kept = |lock: &Lock| {
            let is_mine = lock.holder.ptr_eq(&holder);
            lock.holder.strong_count() > 0 && (!is_mine || is_exclusive == Some(lock.is_exclusive))
        };
        let count = self.locks.len();
        self.locks.retain(is_kept);
        self.has_changed |= self.locks.len() != count;
        let Some(is_exclusive) = is_exclusive else { return true };
        if self.is_locked_out(file, is_exclusive) {
            return false;
        }
        if !self.locks.iter().any(|lock| lock.holder.ptr_eq(&holder)) {
            self.locks.push(Lock { object: file.object, holder, is_exclusive });
        }
        true
    }

    // Descriptors.

    /// Returns the lowest free place in the table.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(super) fn free_index(&self) -> Result<usize, Errno> {
        let free = self.table.iter().position(Option::is_none);
        let index = free.unwrap_or(self.table.len());
        let is_below = index + (DESCRIPTOR_FIRST as usize) < self.descriptors_max as usize;
        if is_below { Ok(index) } else { Err(Errno::MFILE) }
    }

    /// Gives an open file the lowest free number.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(super) fn install(
        &mut self,
        file: impl Into<Rc<OpenFile>>,
    ) -> Result<(i32, Weak<OpenFile>), Errno> {
        let index = self.free_index()?;
        let file = file.into();
        let weak = Rc::downgrade(&file);
        if index == self.table.len() {
            self.table.push(None);
        }
        self.table[index] = Some(file);
        Ok((DESCRIPTOR_FIRST + index as i32, weak))
    }

    fn index(raw: i32) -> Option<usize> {
        usize::try_from(raw.checked_sub(DESCRIPTOR_FIRST)?).ok()
    }

    /// Returns the open file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub(super) fn file(&self, raw: i32) -> Result<&Rc<OpenFile>, Errno> {
        let index = Self::index(raw).ok_or(Errno::BADF)?;
        self.table.get(index).and_then(Option::as_ref).ok_or(Errno::BADF)
    }

    /// Performs `close(2)`.
    pub(super) fn close(&mut self, raw: i32) -> Result<(), Errno> {
        if let Err(errno) = self.file(raw) {
            self.closes_in_vain += 1;
            return Err(errno);
        }
        let file = Self::index(raw).and_then(|index| self.table[index].take());
        drop(file);
        self.drop_undelivered();
        self.has_changed = true;
        Ok(())
    }

    pub(super) fn open_descriptors(&self) -> usize {
        self.table.iter().flatten().count()
    }

    // Pipes.

    /// Performs `pipe(2)`. Returns the descriptors of the read end and of the write end.
    pub(super) fn pipe(&mut self) -> Result<(i32, i32), Errno> {
        let id = PipeId(self.pipes.len());
        let end = |object, is_readable| OpenFile {
            object,
            is_readable,
            is_writable: !is_readable,
            appends: false,
            position: Cell::new(0),
            durability: Durability::default(),
        };
        let (read_raw, reader) = self.install(end(Object::PipeReader(id), true))?;
        let (write_raw, writer) = match self.install(end(Object::PipeWriter(id), false)) {
            Ok(installed) => installed,
            Err(errno) => {
                self.close(read_raw)?;
                return Err(errno);
            }
        };
        let buffer = VecDeque::new();
        self.pipes.push(Pipe { buffer, capacity: self.pipe_bytes, reader, writer });
        Ok((read_raw, write_raw))
    }

    /// Takes up to `len_max` bytes out of a pipe. `None` if a reader has to wait; no bytes at the end.
    pub(super) fn pipe_read(&mut self, id: PipeId, len_max: usize) -> Option<Vec<u8>> {
        let bytes = self.pipe_peek(id, len_max)?;
        self.pipes[id.0].buffer.drain(..bytes.len());
        self.has_changed |= !bytes.is_empty();
        Some(bytes)
    }

    /// Returns the same bytes, but leaves them in the pipe.
    pub(super) fn pipe_peek(&self, id: PipeId, len_max: usize) -> Option<Vec<u8>> {
        let pipe = &self.pipes[id.0];
        if pipe.buffer.is_empty() && pipe.has_writer() && len_max > 0 {
            return None;
        }
        Some(pipe.buffer.iter().copied().take(len_max).collect())
    }

    /// Returns how many of `len` bytes a write to the pipe would take now. `None` if it has to wait.
    ///
    /// # Errors
    /// `EPIPE` if it has no reader.
    pub(super) fn pipe_room(&self, id: PipeId, len: usize) -> Result<Option<usize>, Errno> {
        let pipe = &self.pipes[id.0];
        if len == 0 {
            return Ok(Some(0));
        }
        if !pipe.has_reader() {
            return Err(Errno::PIPE);
        }
        let is_atomic = len <= PIPE_ATOMIC_BYTES.min(pipe.capacity);
        let wanted = if is_atomic { len } else { 1 };
        Ok((pipe.room() >= wanted).then(|| len.min(pipe.room())))
    }

    /// Writes bytes to a pipe that has room for them.
    pub(super) fn pipe_write(&mut self, id: PipeId, bytes: &[u8]) {
        let pipe = &mut self.pipes[id.0];
        assert!(bytes.len() <= pipe.room(), "{} bytes for {}", bytes.len(), pipe.room());
        pipe.buffer.extend(bytes);
        self.has_changed |= !bytes.is_empty();
    }

    /// Returns the events that `poll(2)` reports for the file.
    pub(super) fn poll_events(&self, file: &OpenFile) -> u16 {
        let when = |condition: bool, events| if condition { events } else { 0 };
        match file.object {
            Object::File(_) | Object::Directory(_) => poll::READABLE | poll::WRITABLE,
            Object::PipeReader(id) => {
                let pipe = &self.pipes[id.0];
                when(!pipe.buffer.is_empty(), poll::READABLE) | when(!pipe.has_writer(), poll::HUP)
            }
            Object::PipeWriter(id) => {
                let pipe = &self.pipes[id.0];
                let has_room = pipe.room() >= PIPE_ATOMIC_BYTES.min(pipe.capacity);
                when(has_room, poll::WRITABLE) | when(!pipe.has_reader(), poll::ERR)
            }
            Object::Socket(id) => self.sockets.poll_events(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sim;
    use super::*;

    fn kernel() -> Kernel {
        Kernel::new(&Sim::builder(0).descriptors_max(7).pipe_bytes(8))
    }

    const CREATE: OpenHow = OpenHow {
        is_readable: true,
        is_writable: true,
        creates: true,
        is_exclusive: false,
        truncates: false,
        appends: false,
        is_nofollow: false,
        is_directory: false,
        is_path: false,
        syncs: None,
        mode: 0o600,
        bounds: 0,
    };

    fn at(path: &[u8]) -> Place {
        Place { start: InodeId::ROOT, path: path.to_vec() }
    }

    #[test]
    fn the_lowest_free_number_is_reused_up_to_the_limit() {
        let mut kernel = kernel();
        let raws: Vec<_> = (0..4).map(|_| kernel.open(&at(b"f"), CREATE).unwrap()).collect();
        assert_eq!(raws, [3, 4, 5, 6]);
        assert_eq!(kernel.open(&at(b"new"), CREATE), Err(Errno::MFILE));
        assert_eq!(kernel.lookup(b"new"), Err(Errno::NOENT), "nothing was created");
        kernel.close(5).unwrap();
        kernel.close(4).unwrap();
        assert_eq!(kernel.close(4), Err(Errno::BADF));
        assert_eq!(kernel.open(&at(b"f"), CREATE), Ok(4));
        assert_eq!(kernel.pipe(), Err(Errno::MFILE), "one place is not enough");
        assert_eq!(kernel.open_descriptors(), 3);
        for raw in [-1, 0, 2, 7, i32::MIN, i32::MAX] {
            assert_eq!(kernel.close(raw), Err(Errno::BADF), "{raw}");
        }
    }

    #[test]
    fn a_file_that_is_put_again_is_the_same() {
        let mut kernel = kernel();
        let id = kernel.put_file(b"/a", b"1".to_vec()).unwrap();
        assert_eq!(kernel.lookup(b"a"), Ok(id));
        assert_eq!(kernel.put_file(b"a", b"2".to_vec()), Ok(id));
        assert_eq!(kernel.tree.content(id), b"2");
        assert_eq!(kernel.put_file(b"d/a", Vec::new()), Err(Errno::NOENT));
        assert_eq!(kernel.put_file(b"a/", Vec::new()), Err(Errno::ISDIR));
        assert_eq!(kernel.put_file(b"/", Vec::new()), Err(Errno::ISDIR));
    }

    #[test]
    fn locks_keep_others_out_until_they_are_given_up_or_their_holder_ends() {
        let mut kernel = kernel();
        let raws: Vec<_> = (0..3).map(|_| kernel.open(&at(b"f"), CREATE).unwrap()).collect();
        let [a, b, c] = [0, 1, 2].map(|index: usize| Rc::clone(kernel.file(raws[index]).unwrap()));
        let (shared, exclusive) = (Some(false), Some(true));
        assert!(kernel.lock(&a, shared) && kernel.lock(&a, shared) && kernel.lock(&b, shared));
        assert!(!kernel.lock(&c, exclusive) && kernel.lock(&c, shared));
        assert!(kernel.lock(&c, None));
        kernel.has_changed = false;
        assert!(!kernel.lock(&a, exclusive), "there is still another");
        assert!(kernel.has_changed, "the shared one was given up");
        assert!(kernel.lock(&b, exclusive), "no other file has one now");
        assert!(!kernel.lock(&a, shared) && kernel.is_locked_out(&a, false));
        kernel.close(raws[1]).unwrap();
        assert!(kernel.is_locked_out(&a, false), "still referred to");
        drop(b);
        assert!(kernel.lock(&a, exclusive));
    }

    #[test]
    fn a_pipe_passes_bytes_up_to_its_capacity_and_then_its_end() {
        let mut kernel = kernel();
        let (read, write) = kernel.pipe().unwrap();
        let Object::PipeReader(id) = kernel.file(read).unwrap().object else { panic!() };
        assert_eq!(kernel.pipe_read(id, 4), None);
        assert_eq!(kernel.pipe_room(id, 6), Ok(Some(6)));
        kernel.pipe_write(id, b"abcdef");
        assert_eq!(kernel.pipe_room(id, 3), Ok(None), "whole or not at all");
        assert_eq!(kernel.pipe_room(id, 100), Ok(Some(2)), "too long to be whole");
        assert_eq!(kernel.pipe_read(id, 4).unwrap(), b"abcd");
        kernel.close(write).unwrap();
        assert_eq!(kernel.pipe_read(id, 4).unwrap(), b"ef");
        assert_eq!(kernel.pipe_read(id, 4).unwrap(), b"");
        kernel.close(read).unwrap();
        assert_eq!(kernel.pipe_room(id, 1), Err(Errno::PIPE));
    }

    #[test]
    fn poll_tells_what_the_ends_of_a_pipe_could_do() {
        let mut kernel = kernel();
        let (read, write) = kernel.pipe().unwrap();
        let reader = Rc::clone(kernel.file(read).unwrap());
        let writer = Rc::clone(kernel.file(write).unwrap());
        let Object::PipeReader(id) = reader.object else { panic!() };
        assert_eq!(kernel.poll_events(&reader), 0);
        assert_eq!(kernel.poll_events(&writer), poll::WRITABLE);
        kernel.pipe_write(id, b"a");
        assert_eq!(kernel.poll_events(&reader), poll::READABLE);
        assert_eq!(kernel.poll_events(&writer), 0);
        kernel.close(write).unwrap();
        assert_eq!(kernel.poll_events(&reader), poll::READABLE, "still referred to");
        drop(writer);
        assert_eq!(kernel.poll_events(&reader), poll::READABLE | poll::HUP);
        kernel.close(read).unwrap();
    }
}
