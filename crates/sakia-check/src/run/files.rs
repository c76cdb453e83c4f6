//! Open files and operations on their contents.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{Fd, WholeFile};

use super::transfers::has_too_many_parts;
use super::{BLOCK_BYTES, Check, Role, Runner, pick};
use crate::bytes::Content;
use crate::env::{Env, FILES, initial};
use crate::held::{Output, Pending, pending};
use crate::names::Kind;
use crate::program::{Memory, Parting};
use crate::stats::Fate;

/// An open file of the program.
#[derive(Clone)]
pub(crate) struct OpenFile {
    fd: Fd,
    file: usize,
    how: How,
    /// It is being closed, through this handle or a clone.
    is_closing: Rc<Cell<bool>>,
}

/// A file, and the operations in flight on it.
#[derive(Debug)]
pub(crate) struct FileModel {
    content: Rc<Content>,
    /// Changes that have begun and may still happen.
    changes: Vec<Change>,
    /// Its contents are unknown from now on.
    pub(crate) is_spoiled: bool,
}

/// A change that has begun.
#[derive(Debug)]
struct Change {
    id: u64,
    /// The bytes that the change may affect without moving the end; `None` for all.
    range: Option<Range<usize>>,
    is_given_up: bool,
}

/// A change of a file.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// Bytes at an offset.
    Write(usize, Rc<[u8]>),
    /// A new size.
    Truncate(usize),
    /// A minimum size.
    Allocate(usize),
}

impl Edit {
    /// Applies the change to the content; of a write, the first `count` bytes.
    fn apply(&self, content: &mut Content, count: usize) {
        match self {
            Self::Write(at, bytes) => content.write(*at, &bytes[..count]),
            Self::Truncate(len) => content.truncate(*len),
            Self::Allocate(len) => content.extend_to(*len),
        }
    }

    fn len(&self) -> usize {
        if let Self::Write(_, bytes) = self { bytes.len() } else { 0 }
    }

    fn range(&self, size_min: usize) -> Option<Range<usize>> {
        match self {
            Self::Write(at, bytes) if at + bytes.len() <= size_min => Some(*at..at + bytes.len()),
            _ => None,
        }
    }
}

/// The purpose of an operation on a file.
pub(crate) enum FileRole {
    /// The content before, if the open truncates the file.
    Open {
        file: usize,
        how: How,
        cut: Option<Rc<Content>>,
    },
    Read {
        file: usize,
        at: usize,
        len: usize,
        seen: Rc<Content>,
        is_readable: bool,
        closing: Rc<Cell<bool>>,
    },
    Change {
        file: usize,
        edit: Edit,
        before: Rc<Content>,
        is_writable: bool,
        closing: Rc<Cell<bool>>,
    },
    Sync {
        file: usize,
        closing: Rc<Cell<bool>>,
    },
    Size {
        file: usize,
        seen: Rc<Content>,
        closing: Rc<Cell<bool>>,
    },
}

/// The way a file is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    is_readable: bool,
    is_writable: bool,
    appends: bool,
}

impl FileRole {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Read { .. } => "read",
            Self::Change { edit: Edit::Write(..), .. } => "write",
            Self::Change { edit: Edit::Truncate(_), .. } => "truncate",
            Self::Change { edit: Edit::Allocate(_), .. } => "allocate",
            Self::Sync { .. } => "sync",
            Self::Size { .. } => "statx",
        }
    }

    pub(crate) fn file(&self) -> usize {
        match *self {
            Self::Open { file, .. }
            | Self::Read { file, .. }
            | Self::Change { file, .. }
            | Self::Sync { file, .. }
            | Self::Size { file, .. } => file,
        }
    }

    /// The possible content since the operation began.
    fn seen(&mut self) -> Option<&mut Rc<Content>> {
        match self {
            Self::Read { seen, .. } | Self::Size { seen, .. } => Some(seen),
            _ => None,
        }
    }
}

impl FileModel {
    /// Returns all files of a program.
    pub(crate) fn all() -> Vec<Self> {
        let model = |file| Self {
            content: Rc::new(Content::exactly(&initial(file))),
            changes: Vec::new(),
            is_spoiled: false,
        };
        (0..FILES.len()).map(model).collect()
    }

    /// Returns whether an edit may begin: no operation in flight changes its bytes or the end.
    fn allows(&self, edit: &Edit) -> bool {
        let Some(range) = edit.range(self.content.size_min()) else {
            return self.changes.is_empty();
        };
        let is_apart = |other: &Range<usize>| other.end <= range.start || range.end <= other.start;
        self.changes.iter().all(|change| change.range.as_ref().is_some_and(is_apart))
    }

    /// Begins an edit, which may happen from now on. Returns the content before it.
    fn begin(&mut self, id: u64, edit: &Edit) -> Rc<Content> {
        let before = Rc::clone(&self.content);
        let range = edit.range(before.size_min());
        let mut after = (*before).clone();
        edit.apply(&mut after, edit.len());
        // It may not have happened, or only in part.
        after.or(&before);
        self.content = Rc::new(after);
        self.changes.push(Change { id, range, is_given_up: false });
        before
    }

    /// Ends an edit: `count` bytes of it were written, or it had no effect.
    fn end(&mut self, id: u64, edit: &Edit, before: &Content, count: Option<usize>) {
        let Some(index) = self.changes.iter().position(|change| change.id == id) else { return };
        let change = self.changes.swap_remove(index);
        let content = Rc::make_mut(&mut self.content);
        match change.range {
            Some(range) => content.restore(range, before),
            None => content.clone_from(before),
        }
        if let Some(count) = count {
            edit.apply(content, count);
        }
    }

    /// Ends an edit with an unknown outcome: both states stay possible.
    fn end_either(&mut self, id: u64) {
        self.changes.retain(|change| change.id != id);
    }

    /// Records that the program gives up an operation's result.
    pub(crate) fn give_up(&mut self, id: u64) {
        for change in self.changes.iter_mut().filter(|change| change.id == id) {
            change.is_given_up = true;
        }
    }

    /// Ends the operations that were given up.
    pub(crate) fn settle(&mut self) {
        self.changes.retain(|change| !change.is_given_up);
    }
}

/// Returns bytes that identify the operation that wrote them.
pub(super) fn text(id: u64, len: usize) -> Vec<u8> {
    let salt = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|index| (salt.rotate_left((index % 57) as u32) as u8) ^ index as u8).collect()
}

/// Returns the possible errors of an operation on an object that may be closed meanwhile.
pub(super) fn known_errors(is_closing: bool) -> &'static [Errno] {
    if is_closing { &[Errno::BADF, Errno::CANCELED] } else { &[] }
}

impl<E: Env> Runner<'_, E> {
    fn pick_open(&self, number: u8) -> Option<usize> {
        pick(number.into(), self.open.len())
    }

    pub(super) fn open_file(&mut self, file: u8, way: u8) {
        let file = usize::from(file) % FILES.len();
        let (flags, how) = match way % 5 {
            0 => (OFlags::RDONLY, (true, false, false)),
            1 => (OFlags::WRONLY, (false, true, false)),
            2 => (OFlags::RDWR, (true, true, false)),
            3 => (OFlags::WRONLY | OFlags::APPEND, (false, true, true)),
            _ => (OFlags::RDWR | OFlags::TRUNC, (true, true, false)),
        };
        let (is_readable, is_writable, appends) = how;
        let how = How { is_readable, is_writable, appends };
        let truncates = flags.contains(OFlags::TRUNC);
        let edit = Edit::Truncate(0);
        if truncates && !self.files[file].allows(&edit) {
            return;
        }
        let path = self.env.path(FILES[file].0);
        let op = pending(self.driver.open(None, path, flags.bits(), 0), Output::Opened);
        if truncates {
            self.hold_change(file, edit, true, Rc::default(), |_| op, Some(how));
        } else {
            self.hold(Role::File(FileRole::Open { file, how, cut: None }), op);
        }
    }

    pub(super) fn clone_open(&mut self, number: u8) {
        let Some(index) = self.pick_open(number) else { return };
        let clone = self.open[index].clone();
        self.open.push(clone);
    }

    pub(super) fn read_whole(&mut self, file: u8, expected: u16) -> Check {
        let file = usize::from(file) % FILES.len();
        let path = self.env.path(FILES[file].0);
        let (content, is_spoiled) = (&self.files[file].content, self.files[file].is_spoiled);
        let wrong = |bytes: &[u8], wrong| Err(format!("{} bytes of {file}: {wrong}", bytes.len()));
        match self.driver.read_file_now(&path, expected.into()) {
            Ok(WholeFile::NotNow) => Ok(()),
            Ok(WholeFile::Read(_)) if is_spoiled => Ok(()),
            Ok(WholeFile::Read(bytes)) => {
                content.check_whole(&bytes).or_else(|text| wrong(&bytes, text))
            }
            Ok(WholeFile::Opened(fd, bytes)) => {
                // The read may have ended before the first byte.
                let check = content.check_read(0, bytes.len(), &bytes, true);
                if !is_spoiled && !bytes.is_empty() {
                    check.or_else(|text| wrong(&bytes, text))?;
                }
                let how = How { is_readable: true, is_writable: false, appends: false };
                self.open.push(OpenFile { fd, file, how, is_closing: Rc::default() });
                Ok(())
            }
            Err(error) => self.excuse(&error, false, self.errors_of_full_table()),
        }
    }

    pub(super) fn read(&mut self, number: u8, at: u16, len: u16, memory: Memory) {
        let Some(index) = self.pick_open(number) else { return };
        let at = usize::from(at);
        let OpenFile { fd, file, how, is_closing } = &self.open[index];
        let (file, is_readable, closing) = (*file, how.is_readable, Rc::clone(is_closing));
        let (len, op) = self.start_read(fd, at as u64, len.into(), memory);
        let seen = Rc::clone(&self.files[file].content);
        self.hold(Role::File(FileRole::Read { file, at, len, seen, is_readable, closing }), op);
    }

    pub(super) fn write(&mut self, number: u8, at: u16, len: u16, memory: Memory) {
        let Some(index) = self.pick_open(number) else { return };
        let block = self.block(memory);
        let len = if block.is_some() { BLOCK_BYTES } else { usize::from(len) };
        let OpenFile { fd, file, how, is_closing } = &self.open[index];
        let (fd, file, How { is_writable, appends, .. }) = (fd.clone(), *file, *how);
        let content = &self.files[file].content;
        let at = if appends { content.size_max() } else { usize::from(at) };
        if appends && content.size_min() != content.size_max() {
            return; // the target of the write is unknown
        }
        let bytes = text(self.started + 1, len);
        let edit = if appends && len == 0 {
            Edit::Allocate(0)
        } else {
            Edit::Write(at, Rc::from(bytes.as_slice()))
        };
        // Appending moves the end, whatever the length.
        if !self.files[file].allows(&edit) || appends && !self.files[file].changes.is_empty() {
            return;
        }
        let closing = Rc::clone(is_closing);
        let start = |runner: &Self| runner.start_write(&fd, at as u64, bytes, memory, block);
        self.hold_change(file, edit, is_writable, closing, start, None);
    }

    pub(super) fn truncate(&mut self, number: u8, len: u16) {
        let Some(index) = self.pick_open(number).filter(|&index| self.open[index].how.is_writable)
        else {
            return;
        };
        let OpenFile { fd, file, is_closing, .. } = &self.open[index];
        let (fd, file, closing) = (fd.clone(), *file, Rc::clone(is_closing));
        let edit = Edit::Truncate(len.into());
        let start = |runner: &Self| pending(runner.driver.truncate(&fd, len.into()), Output::Done);
        self.hold_change(file, edit, true, closing, start, None);
    }

    pub(super) fn allocate(&mut self, number: u8, at: u16, len: u16) {
        let Some(index) = self.pick_open(number).filter(|&index| self.open[index].how.is_writable)
        else {
            return;
        };
        let OpenFile { fd, file, is_closing, .. } = &self.open[index];
        let (fd, file, closing) = (fd.clone(), *file, Rc::clone(is_closing));
        let len = len.max(1);
        let edit = Edit::Allocate(usize::from(at) + usize::from(len));
        let start = |runner: &Self| {
            let op = runner.driver.fallocate(&fd, 0, at.into(), len.into());
            pending(op, Output::Done)
        };
        self.hold_change(file, edit, true, closing, start, None);
    }

    /// Begins an edit in the model, and shows it to all readers, before it is started.
    fn hold_change(
        &mut self,
        file: usize,
        edit: Edit,
        is_writable: bool,
        closing: Rc<Cell<bool>>,
        start: impl FnOnce(&Self) -> Box<dyn Pending>,
        how: Option<How>,
    ) {
        if !self.files[file].allows(&edit) {
            return;
        }
        let op = start(self);
        let id = self.next_id();
        let before = if is_writable {
            self.files[file].begin(id, &edit)
        } else {
            Rc::clone(&self.files[file].content)
        };
        for held in &mut self.held {
            if let Role::File(role) = &mut held.role
                && role.file() == file
                && let Some(seen) = role.seen()
            {
                Rc::make_mut(seen).or(&self.files[file].content);
            }
        }
        let role = match how {
            Some(how) => FileRole::Open { file, how, cut: Some(before) },
            None => FileRole::Change { file, edit, before, is_writable, closing },
        };
        self.hold_as(id, Role::File(role), op);
    }

    pub(super) fn sync(&mut self, number: u8, data_only: bool) {
        let Some(index) = self.pick_open(number) else { return };
        let OpenFile { fd, file, is_closing, .. } = &self.open[index];
        let (file, closing) = (*file, Rc::clone(is_closing));
        let op = pending(self.driver.fsync(fd, data_only), Output::Done);
        self.hold(Role::File(FileRole::Sync { file, closing }), op);
    }

    pub(super) fn size(&mut self, number: u8) {
        let Some(index) = self.pick_open(number) else { return };
        let OpenFile { fd, file, is_closing, .. } = &self.open[index];
        let (file, closing) = (*file, Rc::clone(is_closing));
        let op = pending(self.driver.statx_fd(fd), |result| {
            Output::Asked(result.map(|facts| (Kind::File, facts.size)))
        });
        let seen = Rc::clone(&self.files[file].content);
        self.hold(Role::File(FileRole::Size { file, seen, closing }), op);
    }

    pub(super) fn close_file(&mut self, number: u8, parting: Parting) {
        let Some(index) = self.pick_open(number) else { return };
        let OpenFile { fd, file, is_closing, .. } = self.open.swap_remove(index);
        match parting {
            Parting::Drop => drop(fd),
            Parting::Close => {
                for held in &self.held {
                    if let Role::File(role) = &held.role
                        && role.file() == file
                    {
                        self.stats.fate(role.kind(), Self::moment(held), Fate::Closed);
                    }
                }
                is_closing.set(true);
                let op = pending(self.driver.close(fd), Output::Done);
                self.hold(Role::Close, op);
            }
        }
    }

    /// Handles the end of an operation on a file.
    pub(super) fn end_file(
        &mut self,
        id: u64,
        role: FileRole,
        is_canceled: bool,
        output: Output,
    ) -> Check {
        match (role, output) {
            (FileRole::Open { file, how, cut }, Output::Opened(result)) => {
                match cut {
                    Some(_) if result.is_err() && self.has(FaultKind::ServerErrno) => {
                        self.files[file].end_either(id);
                    }
                    Some(before) => {
                        let count = result.is_ok().then_some(0);
                        self.files[file].end(id, &Edit::Truncate(0), &before, count);
                    }
                    None => {}
                }
                self.end_open(file, how, is_canceled, result)
            }
            (
                FileRole::Read { file, at, len, seen, is_readable, closing },
                Output::Bytes(result, bytes),
            ) => match result {
                _ if self.files[file].is_spoiled => Ok(()),
                Ok(_) if len == 0 => Err("without room it was not refused".to_owned()),
                Err(error) if len == 0 => self.excuse(&error, is_canceled, &[Errno::INVAL]),
                Ok(_) if !is_readable => Err("it was not opened to read".to_owned()),
                Ok(count) if count > bytes.len() => Err("more than there is room for".to_owned()),
                Ok(count) => {
                    let may_be_short =
                        self.has(FaultKind::ShortTransfer) || has_too_many_parts(len);
                    seen.check_read(at, len, &bytes[..count], may_be_short)
                }
                Err(error) if !is_readable => {
                    self.excuse(&error, is_canceled, &[Errno::BADF, Errno::CANCELED])
                }
                Err(error) => self.excuse(&error, is_canceled, known_errors(closing.get())),
            },
            (FileRole::Change { file, edit, before, is_writable, closing }, output) => {
                let (count, bytes, error) = match output {
                    Output::Bytes(Ok(count), bytes) => (count, Some(bytes), None),
                    Output::Bytes(Err(error), bytes) => (0, Some(bytes), Some(error)),
                    Output::Done(Ok(())) => (0, None, None),
                    Output::Done(Err(error)) => (0, None, Some(error)),
                    _ => return Err("no result of its kind".to_owned()),
                };
                if let (Edit::Write(_, ours), Some(bytes)) = (&edit, &bytes)
                    && **ours != **bytes
                {
                    return Err("the buffer came back with other bytes".to_owned());
                }
                if let Some(error) = error {
                    if self.has(FaultKind::ServerErrno) {
                        self.files[file].end_either(id);
                    } else {
                        self.files[file].end(id, &edit, &before, None);
                    }
                    let known: &[Errno] = if is_writable {
                        known_errors(closing.get())
                    } else {
                        &[Errno::BADF, Errno::CANCELED]
                    };
                    return self.excuse(&error, is_canceled, known);
                }
                if !is_writable {
                    return Err("it was not opened to write".to_owned());
                }
                if let Edit::Write(_, ours) = &edit {
                    let is_long = has_too_many_parts(ours.len());
                    let may_be_short = self.has(FaultKind::ShortTransfer) || is_long;
                    let is_right =
                        count == ours.len() || may_be_short && count > 0 && count < ours.len();
                    if !is_right {
                        return Err(format!("{count} of {} bytes", ours.len()));
                    }
                }
                self.files[file].end(id, &edit, &before, Some(count));
                Ok(())
            }
            (FileRole::Sync { closing, .. }, Output::Done(result)) => match result {
                Ok(()) => Ok(()),
                // A failed write-back is reported to each open file, so there are more errors than faults.
                Err(error)
                    if self.has(FaultKind::FsyncFailed)
                        && Errno::from_io_error(&error) == Some(Errno::IO) =>
                {
                    Ok(())
                }
                Err(error) => self.excuse(&error, is_canceled, known_errors(closing.get())),
            },
            (FileRole::Size { file, seen, closing }, Output::Asked(result)) => match result {
                _ if self.files[file].is_spoiled => Ok(()),
                Ok((_, size)) => {
                    let possible = seen.size_min() as u64..=seen.size_max() as u64;
                    let is_right = possible.contains(&size);
                    is_right.then_some(()).ok_or_else(|| format!("where {possible:?} are possible"))
                }
                Err(error) => self.excuse(&error, is_canceled, known_errors(closing.get())),
            },
            _ => Err("no result of its kind".to_owned()),
        }
    }

    fn end_open(
        &mut self,
        file: usize,
        how: How,
        is_canceled: bool,
        result: std::io::Result<Fd>,
    ) -> Check {
        let fd = match result {
            Ok(fd) => fd,
            Err(error) => {
                return self.excuse(&error, is_canceled, self.errors_of_full_table());
            }
        };
        self.open.push(OpenFile { fd, file, how, is_closing: Rc::default() });
        Ok(())
    }

    /// Checks at the end that the files have the contents of the model.
    pub(super) fn check_files(&mut self) -> Check {
        for (file, (name, _)) in self.files.iter().zip(FILES) {
            if file.is_spoiled {
                continue;
            }
            let bytes = self.env.contents(name).map_err(|error| format!("{name}: {error}"))?;
            file.content.check_whole(&bytes).map_err(|wrong| format!("{name} has {wrong}"))?;
        }
        Ok(())
    }
}
