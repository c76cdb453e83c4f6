//! What is there already where a copy is to be.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::entry::Made;
use super::links::{Name, Waiting};
use super::{Copy, EntryError, Result, Spot, attributes, mark};
use crate::crew::Crew;
use crate::options::{Existing, Follow};
use crate::place::{Id, OpenDir};
use crate::{kernel, sys};

impl Copy {
    /// Whether a file is made of the contents of such an entry.
    pub(super) fn is_read(&self, kind: FileType) -> bool {
        self.options.read_special && !matches!(kind, FileType::Directory | FileType::Symlink)
    }

    /// Whether something is there that is to be kept from a source of that kind.
    pub(super) fn is_there(&self, spot: &Spot<'_>, kind: FileType) -> Result<bool> {
        let there = self.stat_overwritten(spot, kind)?;
        Ok(there.is_some_and(|there| !mark::is_unfinished(&there, self.user)))
    }

    /// What contents would be written to: at the root, what a link there points to.
    pub(super) fn stat_overwritten(&self, spot: &Spot<'_>, kind: FileType) -> Result<Option<Stat>> {
        match self.stat_target(spot)? {
            Some(there) if self.is_contents(kind) && is_named_link(spot, &there) => {
                Ok(self.stat_through(spot, there))
            }
            there => Ok(there),
        }
    }

    /// What a source is compared with to tell which one is newer. As with `cp` that of contents is what a
    /// link leads to, also of one that would be replaced.
    pub(super) fn stat_compared(&self, spot: &Spot<'_>, kind: FileType) -> Result<Option<Stat>> {
        match self.stat_target(spot)? {
            Some(there)
                if self.is_contents(kind)
                    && is_link(&there)
                    && (spot.folder.is_none() || self.options.existing == Existing::Update) =>
            {
                let is_kept = self.options.existing == Existing::Keep;
                // What leads nowhere is not newer, and to write to it says why.
                Ok(if is_kept {
                    self.stat_through(spot, there)
                } else {
                    self.stat_behind(spot).ok()
                })
            }
            there => Ok(there),
        }
    }

    fn is_contents(&self, kind: FileType) -> bool {
        kind == FileType::RegularFile || self.is_read(kind)
    }

    /// What the link `there` points to: `None` if nothing is there.
    fn stat_through(&self, spot: &Spot<'_>, there: Stat) -> Option<Stat> {
        match self.stat_behind(spot) {
            Ok(behind) => Some(behind),
            Err(error) if sys::is(&error, Errno::NOENT) => None,
            Err(error) if sys::is(&error, Errno::LOOP) && self.options.force => None,
            // Writing to it says more.
            Err(_) => Some(there),
        }
    }

    /// What the link there points to.
    fn stat_behind(&self, spot: &Spot<'_>) -> io::Result<Stat> {
        match spot.target {
            Some(target) => sys::retry(|| kernel::statat(target, spot.to, AtFlags::empty())),
            None => {
                let path = self.target_path(spot);
                sys::retry(|| kernel::statat(rustix::fs::CWD, &path, AtFlags::empty()))
            }
        }
    }

    pub(super) fn stat_target(&self, spot: &Spot<'_>) -> Result<Option<Stat>> {
        let found = match spot.target {
            Some(target) => sys::stat_name(target.as_fd(), spot.to),
            // A dry run.
            None => {
                let path = self.target_path(spot);
                sys::retry(|| kernel::lstat(&path))
            }
        };
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if sys::is(&error, Errno::NOENT) => Ok(None),
            Err(error) if sys::is(&error, Errno::NOTDIR) && spot.target.is_none() => Ok(None),
            Err(error) => Err(EntryError::target("stat")(error)),
        }
    }

    /// Opens and empties the file that is there, or makes another one in its place. `None`: the caller has
    /// named something else, which is to be written to.
    pub(super) fn overwrite(
        &self,
        spot: &Spot<'_>,
        stat: &Stat,
        last: Option<u32>,
        create: impl Fn() -> io::Result<OwnedFd>,
    ) -> Result<Option<Made>> {
        let Some(target) = spot.target else {
            return Err(EntryError::target("create")(Errno::BADF.into()));
        };
        let replace = |there: Option<&Stat>| {
            self.remove_existing(spot, there)?;
            let fd = create().map_err(EntryError::target("create"))?;
            Ok(Some(Made::new(fd, last)))
        };
        let Some(name) = self.stat_target(spot)? else { return replace(None) };
        let is_link = is_named_link(spot, &name);
        let there = if is_link {
            match self.stat_behind(spot) {
                Ok(behind) => behind,
                Err(error) if sys::is(&error, Errno::NOENT) => return Err(dangling()),
                Err(error) if sys::is(&error, Errno::LOOP) && self.options.force => {
                    return replace(Some(&name));
                }
                Err(error) => return Err(EntryError::target("stat")(error)),
            }
        } else {
            name
        };
        if Id::of(&there) == Id::of(stat) {
            return Err(itself());
        }
        let kind = FileType::from_raw_mode(there.st_mode);
        if kind == FileType::Directory {
            return Err(directory());
        }
        // As with `cp`: who does not follow links writes what a device gives to no file that is there.
        if self.options.follow == Follow::Never
            && FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        {
            return replace(Some(&name));
        }
        let is_file = kind == FileType::RegularFile;
        let has_names = there.st_nlink > 1;
        if has_names && self.options.preserve.links {
            return replace(Some(&name));
        }
        // A FIFO without a reader would have the copy wait for ever; behind a link, as `/dev/stdout` is
        // one, it has been opened already.
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if !is_file && spot.folder.is_none() && (is_link || is_device) {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            return match sys::open(target.as_fd(), spot.to, flags) {
                // That of a FIFO says that nobody reads it yet.
                Err(error) if self.options.force && !sys::is(&error, Errno::NXIO) => {
                    replace(Some(&name))
                }
                _ => Ok(None),
            };
        }
        if !is_file && kind != FileType::Symlink && !self.options.force {
            let text = "a device, FIFO or socket is there, which is replaced by force only";
            let error = io::Error::new(io::ErrorKind::AlreadyExists, text);
            return Err(EntryError::target("copy to")(error));
        }
        let is_unfinished = mark::is_unfinished(&there, self.user);
        if !is_file || (is_unfinished && !has_names && !is_link) {
            return replace(Some(&name));
        }
        let mut flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags.set(OFlags::NOFOLLOW, !is_link);
        let fd = match sys::open(target.as_fd(), spot.to, flags) {
            Ok(fd) => fd,
            Err(_) if self.options.force => return replace(Some(&name)),
            Err(error) => return Err(EntryError::target("open")(error)),
        };
        let truncate =
            || sys::retry(|| kernel::ftruncate(&fd, 0)).map_err(EntryError::target("truncate"));
        let mut mode = there.st_mode & sys::PERMISSIONS;
        if is_unfinished {
            truncate()?;
            return Ok(Some(Made { fd, mode: last.or(Some(mode)), is_new: false, has_names }));
        }
        if mode & attributes::SET_ID != 0 {
            // Only the kernel knows whether this process may keep the bits.
            truncate()?;
            mode = sys::stat(&fd).map_err(EntryError::target("stat"))?.st_mode & sys::PERMISSIONS;
        }
        let has_owner = (there.st_uid, there.st_gid) == (stat.st_uid, stat.st_gid);
        if self.options.preserve.ownership && !has_owner {
            mode &= !set_id_lost(mode);
        }
        // Who is not its owner can write to it and not mark it.
        let marked = kernel::fchmod(&fd, Mode::from_raw_mode(mark::FILE)).is_ok();
        truncate()?;
        Ok(Some(Made { fd, mode: marked.then_some(mode), is_new: false, has_names }))
    }

    /// Makes room for another entry.
    pub(super) fn remove_existing(&self, spot: &Spot<'_>, there: Option<&Stat>) -> Result<()> {
        let Some(target) = spot.target else { return Ok(()) };
        if there.is_some_and(is_directory) {
            return Err(directory());
        }
        match sys::unlink(target, spot.to) {
            Err(error) if sys::is(&error, Errno::NOENT) => Ok(()),
            result => result.map_err(EntryError::target("remove")),
        }
    }

    /// A link that the caller has named may lead to a directory by way of which it was named (`ln -s . l`,
    /// `l/l`): it is removed, and what takes its place made, by the directory it is in and its name there.
    pub(super) fn pin(&self, spot: &Spot<'_>) -> Result<Option<(Arc<OpenDir>, CString)>> {
        if spot.folder.is_some() || spot.target.is_none() {
            return Ok(None);
        }
        let path = Path::new(OsStr::from_bytes(spot.to.to_bytes()));
        match path.file_name().map(|name| CString::new(name.as_bytes())) {
            Some(Ok(name))
                if spot.to.to_bytes().ends_with(name.as_bytes())
                    && self.stat_target(spot)?.is_some_and(|there| is_link(&there)) =>
            {
                let flags = sys::unread(sys::DIRECTORY.difference(OFlags::NOFOLLOW));
                let dir =
                    self.open_parent(flags).map_err(EntryError::target("open directory of"))?;
                Ok(Some((Arc::new(OpenDir::of(dir)), name)))
            }
            _ => Ok(None),
        }
    }

    /// Makes something, in place of what is there. False: it is there already.
    pub(super) fn make_name(
        &self,
        spot: &Spot<'_>,
        source: &Stat,
        make: impl Fn() -> rustix::io::Result<()>,
    ) -> Result<bool> {
        match sys::retry(&make) {
            Err(error) if sys::is(&error, Errno::EXIST) => {
                let there = self.stat_target(spot)?;
                if let Some(there) = &there
                    && self.is_itself(spot, source, there)?
                {
                    return Ok(false);
                }
                // Where links are followed, `cp` replaces only files that are written to.
                if self.options.follow == Follow::Always
                    && !there.is_some_and(|there| {
                        is_directory(&there) || self.options.preserve.links && there.st_nlink > 1
                    })
                {
                    return Err(EntryError::target("create")(error));
                }
                self.remove_existing(spot, there.as_ref())?;
                sys::retry(&make).map(|()| true).map_err(EntryError::target("create"))
            }
            result => result.map(|()| true).map_err(EntryError::target("create")),
        }
    }

    /// Whether what is there is the source, by another name that may stay. An error: it is what the source
    /// leads to, or its only name, so that nothing would be left if it were replaced.
    pub(super) fn is_itself(&self, spot: &Spot<'_>, source: &Stat, there: &Stat) -> Result<bool> {
        let is_same = Id::of(source) == Id::of(there);
        match (is_link(source), is_link(there)) {
            (true, true) if is_same && !self.is_same_name(spot) => return Ok(true),
            (true, true) if is_same => return Err(itself()),
            (true, true) => return Ok(false),
            (false, false) if is_same => return Err(itself()),
            (false, false) => return Ok(false),
            _ if self.options.follow == Follow::Always => return Ok(false),
            _ => {}
        }
        let behind = |dir: &OpenDir, name: &CStr, stat: &Stat| -> Option<Id> {
            if !is_link(stat) {
                return Some(Id::of(stat));
            }
            kernel::statat(dir, name, AtFlags::empty()).ok().map(|stat| Id::of(&stat))
        };
        let Some(target) = spot.target else { return Ok(false) };
        let from = behind(spot.source, spot.name, source);
        if from.is_some() && from == behind(target, spot.to, there) {
            Err(itself())
        } else {
            Ok(false)
        }
    }

    /// Whether both are the same name in the same directory.
    fn is_same_name(&self, spot: &Spot<'_>) -> bool {
        let Some(target) = spot.target else { return false };
        if spot.folder.is_some() {
            let id = |dir: &OpenDir| sys::stat(dir).ok().map(|stat| Id::of(&stat));
            return spot.name == spot.to && id(spot.source) == id(target);
        }
        let place = |path: &CStr| {
            let path = Path::new(OsStr::from_bytes(path.to_bytes()));
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            let stat = above.unwrap_or_else(|| ".".as_ref()).metadata().ok()?;
            Some((stat.dev(), stat.ino(), path.file_name()?.to_owned()))
        };
        place(spot.name) == place(&self.to)
    }

    /// A kept file, and the one that `first` names, are both copies of the source: they become one. If the
    /// latter was made by this copy, its names become names of the one that was kept.
    pub(super) fn become_one(
        &self,
        crew: &Crew<Self>,
        id: Id,
        first: &Name,
        new: Id,
        kept: &Waiting,
    ) -> io::Result<()> {
        let Some(made) = self.links.found(id, kept.name()) else {
            // An earlier copy that was killed has made both.
            return self.relink(crew, kept, first);
        };
        for made in made {
            let (dir, name) = (crew.places.open(&made.name().place)?, &made.to);
            // One that is not there yet is about to be made, of whatever is the file by then.
            if sys::stat_name(dir.as_fd(), name).is_ok_and(|stat| Id::of(&stat) == new) {
                self.relink(crew, &made, &kept.name())?;
            }
        }
        Ok(())
    }

    /// A name was made of the file that `first` names. If meanwhile another worker has found an earlier copy,
    /// it may have come too late to be made one of that.
    pub(super) fn catch_up(
        &self,
        crew: &Crew<Self>,
        spot: &Spot<'_>,
        id: Id,
        first: &Name,
    ) -> io::Result<()> {
        let Some(now) = self.links.name(id).filter(|now| !now.is(first)) else { return Ok(()) };
        let Some(target) = spot.target else { return Ok(()) };
        let kept = sys::stat_name(crew.places.open(&now.place)?.as_fd(), &now.name)?;
        match sys::stat_name(target.as_fd(), spot.to) {
            Ok(made) if Id::of(&made) != Id::of(&kept) => {
                self.relink(crew, &Waiting::of(spot), &now)
            }
            _ => Ok(()),
        }
    }

    /// Makes a name that was made one of the file that has the name `kept`.
    pub(super) fn relink(&self, crew: &Crew<Self>, made: &Waiting, kept: &Name) -> io::Result<()> {
        let (dir, name) = (crew.places.open(&made.name().place)?, &made.to);
        let (from, old): (_, &CStr) = (crew.places.open(&kept.place)?, &kept.name);
        sys::unlink(dir.as_fd(), name)?;
        sys::retry(|| kernel::linkat(&from, old, &dir, name, AtFlags::empty()))?;
        // The directory may have been done.
        if self.options.preserve.timestamps
            && let Some(folder) = &made.folder
        {
            let times = attributes::times_of(&folder.facts.stat);
            sys::retry(|| kernel::futimens(&dir, &times))?;
        }
        Ok(())
    }
}

/// Whether the caller has named a link, to be written through.
fn is_named_link(spot: &Spot<'_>, there: &Stat) -> bool {
    spot.folder.is_none() && is_link(there)
}

fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

/// The bits that a file of this mode loses to a change of owner, as the kernel has it: set-group-ID only
/// where the group may execute it.
fn set_id_lost(mode: u32) -> u32 {
    if mode & 0o010 != 0 { attributes::SET_ID } else { 0o4000 }
}

/// The copy would take the place of its source.
fn itself() -> EntryError {
    refused("it is the source itself")
}

fn dangling() -> EntryError {
    refused("a link to nothing is there, through which nothing is written")
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(super) fn directory() -> EntryError {
    refused("what is no directory cannot take the place of one")
}

fn refused(text: &str) -> EntryError {
    let error = io::Error::new(io::ErrorKind::AlreadyExists, text.to_owned());
    EntryError::target("copy to")(error)
}
