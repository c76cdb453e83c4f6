//! Operations on names.

use std::collections::BTreeMap;

use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use sakia_driver::sim::FaultKind;
use sakia_driver::{DirectoryEntries, EntryKind, Wait};

use super::{Check, NAP, Role, Runner, TURNS_MAX};
use crate::env::{Env, NAMES};
use crate::held::{Output, pending};
use crate::names::{Kind, Name, NameOp};

/// The largest number of operations on names in flight: their orders multiply.
const UNDER_WAY_MAX: usize = 3;
/// The target of links.
const NOWHERE: &std::ffi::CStr = c"nowhere";
/// The size of a request for entries, in bytes.
const LIST_BYTES: usize = 512;

/// The purpose of an operation on names.
pub(crate) struct NameRole {
    op: NameOp,
}

impl<E: Env> Runner<'_, E> {
    pub(super) fn name(&mut self, op: NameOp) {
        if !op.is_within() || self.worlds.under_way() >= UNDER_WAY_MAX {
            return;
        }
        let path = |name: Name| self.env.path(&format!("{NAMES}/{}", name.path()));
        let driver = &self.driver;
        let rename = |from, to, flags: RenameFlags| {
            let op = driver.rename(None, path(from), None, path(to), flags.bits());
            pending(op, Output::Done)
        };
        let pending = match op {
            NameOp::Create(name) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let op = driver.open(None, path(name), flags.bits(), 0o600);
                pending(op, |result| Output::Done(result.map(drop)))
            }
            NameOp::Mkdir(name) => pending(driver.mkdir(None, path(name), 0o700), Output::Done),
            NameOp::Unlink(name) => pending(driver.unlink(None, path(name), 0), Output::Done),
            NameOp::Rmdir(name) => {
                let flags = AtFlags::REMOVEDIR.bits();
                pending(driver.unlink(None, path(name), flags), Output::Done)
            }
            NameOp::Rename(from, to) => rename(from, to, RenameFlags::empty()),
            NameOp::Move(from, to) => rename(from, to, RenameFlags::NOREPLACE),
            NameOp::Exchange(from, to) => rename(from, to, RenameFlags::EXCHANGE),
            NameOp::Link(from, to) => {
                pending(driver.link(None, path(from), None, path(to), 0), Output::Done)
            }
            NameOp::Symlink(name) => {
                pending(driver.symlink(NOWHERE.to_owned(), None, path(name)), Output::Done)
            }
            NameOp::Stat(name) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW.bits();
                let op = driver.statx(None, path(name), flags);
                pending(op, |result| {
                    Output::Asked(result.map(|facts| {
                        let kind = match (facts.is_directory(), facts.is_file()) {
                            (true, _) => Kind::Directory,
                            (_, true) => Kind::File,
                            _ => Kind::Symlink,
                        };
                        (kind, facts.size)
                    }))
                })
            }
        };
        let id = self.next_id();
        self.worlds.begin(id, op);
        self.hold_as(id, Role::Name(NameRole { op }), pending);
    }

    /// Handles the end of an operation on names.
    pub(super) fn end_name(
        &mut self,
        id: u64,
        role: NameRole,
        is_canceled: bool,
        output: Output,
    ) -> Check {
        let (result, error) = match output {
            Output::Done(Ok(())) => (Ok(None), None),
            Output::Asked(Ok((kind, _))) => (Ok(Some(kind)), None),
            Output::Done(Err(error)) | Output::Asked(Err(error)) => {
                (Err(error.raw_os_error().unwrap_or(0)), Some(error))
            }
            _ => return Err("no result of its kind".to_owned()),
        };
        // The model's errors are never injected ones.
        let of_the_model = [
            Errno::NOENT,
            Errno::EXIST,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::NOTEMPTY,
            Errno::INVAL,
            Errno::PERM,
        ];
        let is_of_the_model =
            result.is_ok() || of_the_model.iter().any(|errno| result == Err(errno.raw_os_error()));
        match error {
            Some(error) if !is_of_the_model => {
                if self.has(FaultKind::ServerErrno) {
                    self.worlds.settle(&[id]); // it has happened, or never will
                } else {
                    self.worlds.fail(id);
                }
                let opens = matches!(role.op, NameOp::Create(_));
                let known = if opens { self.errors_of_full_table() } else { &[] };
                self.excuse(&error, is_canceled, known)
            }
            _ => self.worlds.end(id, result),
        }
    }

    /// Lists a directory while nothing else is in flight.
    pub(super) fn list(&mut self, directory: Option<Name>) -> Check {
        if self.worlds.under_way() > 0 || !self.names_given_up.is_empty() {
            return Ok(());
        }
        let path = match directory {
            Some(name) => format!("{NAMES}/{}", name.path()),
            None => NAMES.to_owned(),
        };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW;
        let mut op = self.driver.open(None, self.env.path(&path), flags.bits(), 0);
        let Some(result) = self.finish_now(|| op.try_take())? else { return Ok(()) };
        // A path that is no directory is expected, and so are faults.
        let Ok(fd) = result else {
            return Ok(());
        };
        let mut found = BTreeMap::new();
        loop {
            let mut op = self.driver.read_directory(&fd, vec![0; LIST_BYTES]);
            let Some((result, bytes)) = self.finish_now(|| op.try_take())? else { return Ok(()) };
            let Ok(count) = result else { return Ok(()) };
            if count == 0 {
                break;
            }
            for entry in DirectoryEntries::new(&bytes[..count]) {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                let kind = match entry.kind {
                    EntryKind::Directory => Kind::Directory,
                    EntryKind::File => Kind::File,
                    _ => Kind::Symlink,
                };
                if name != "." && name != ".." && found.insert(name.clone(), kind).is_some() {
                    return Err(format!("{name} is listed twice"));
                }
            }
        }
        self.worlds.check_list(directory, &found)
    }

    /// Takes turns until there is a result; `None` if it cannot come.
    pub(super) fn finish_now<T>(
        &mut self,
        mut take: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, String> {
        for _ in 0..TURNS_MAX {
            if let Some(result) = take() {
                return Ok(Some(result));
            }
            self.turn(Wait::For(NAP))?;
            if self.is_dead {
                return Ok(None);
            }
        }
        if self.may_hang() { Ok(None) } else { Err("it never ends".to_owned()) }
    }

    /// Checks at the end that the directories have the names of the model.
    pub(super) fn check_names(&mut self) -> Check {
        self.list(None)?;
        (0..).map(Name::pick).take(9).try_for_each(|name| self.list(Some(name)))
    }
}
