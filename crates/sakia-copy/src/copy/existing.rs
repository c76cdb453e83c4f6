//! Existing entries at the place of a copy.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::file::{Made, Opened};
use super::{At, Copy, EntryError, Result, Spot, attributes, mark};
use crate::kernel::OwnedFd;
use crate::options::{Existing, Follow, Reflink};
use crate::place::{Id, OpenDir};
use crate::{kernel, sys};

/// Flags to open an existing entry for writing, without waiting for a reader.
const WRITE: OFlags = OFlags::WRONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

impl Copy {
    /// Returns whether a file is made of the contents of such an entry.
    pub(super) fn is_read(&self, kind: FileType) -> bool {
        self.options.read_special && !matches!(kind, FileType::Directory | FileType::Symlink)
    }

    /// Returns whether the existing entry is to be kept from a source of that kind.
    pub(super) fn is_there(&self, spot: &Spot<'_>, kind: FileType) -> Result<bool> {
        let there = self.stat_overwritten(spot, kind)?;
        let Some(there) = there else { return Ok(false) };
        if !mark::has_mark(&there) {
            return Ok(true);
        }
        // The source's owner is known only to it.
        Ok(!self.is_unfinished(spot, &self.stat_source(spot)?, &there))
    }

    /// Returns the status of the file that contents would be written to: at the root, a link's target.
    pub(super) fn stat_overwritten(&self, spot: &Spot<'_>, kind: FileType) -> Result<Option<Stat>> {
        let there = self.stat_target(spot)?;
        if !self.is_contents(kind) || !there.is_some_and(|there| is_named_link(spot, &there)) {
            return Ok(there);
        }
        Ok(match self.stat_behind(spot) {
            Ok(behind) => Some(behind),
            Err(Errno::NOENT) => None,
            Err(Errno::LOOP) if self.options.force => None,
            // The write will report the error.
            Err(_) => there,
        })
    }

    /// Returns the status to compare with the source's age. As with `cp`, contents are compared with a
    /// link's target, even if the link would be replaced.
    fn stat_compared(&self, spot: &Spot<'_>, kind: FileType) -> Result<Option<Stat>> {
        if self.options.existing == Existing::Keep {
            return self.stat_overwritten(spot, kind);
        }
        Ok(match self.stat_target(spot)? {
            // A dangling link is not newer, and the write reports the reason.
            Some(there) if self.is_contents(kind) && is_link(&there) => self.stat_behind(spot).ok(),
            there => there,
        })
    }

    fn is_contents(&self, kind: FileType) -> bool {
        kind == FileType::RegularFile || self.is_read(kind)
    }

    /// Returns the status of the target of the existing link.
    fn stat_behind(&self, spot: &Spot<'_>) -> sys::Result<Stat> {
        self.stat_there(spot, AtFlags::empty())
    }

    pub(super) fn stat_target(&self, spot: &Spot<'_>) -> Result<Option<Stat>> {
        match self.stat_there(spot, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR) if spot.target.is_none() => Ok(None),
            found => found.map(Some).at_target("stat"),
        }
    }

    fn stat_there(&self, spot: &Spot<'_>, flags: AtFlags) -> sys::Result<Stat> {
        match spot.target {
            Some(target) => sys::retry(|| kernel::statat(target, spot.to, flags)),
            // A dry run.
            None => {
                let path = self.target_path(spot);
                sys::retry(|| kernel::statat(CWD, &path, flags))
            }
        }
    }

    /// Returns whether the existing entry is to stay.
    pub(super) fn is_up_to_date(&self, spot: &Spot<'_>, stat: &Stat) -> Result<bool> {
        if self.options.existing == Existing::Overwrite {
            return Ok(false);
        }
        let Some(there) = self.stat_compared(spot, sys::kind(stat))? else { return Ok(false) };
        if self.is_unfinished(spot, stat, &there) {
            return Ok(false);
        }
        // A target that is the source itself is an error, and not up to date.
        if self.options.existing == Existing::Update && Id::of(&there) == Id::of(stat) {
            return Ok(false);
        }
        let modified = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
        Ok(self.options.existing == Existing::Keep || modified(&there) >= modified(stat))
    }

    /// Returns whether a killed copy left an entry without its contents or attributes.
    pub(super) fn is_unfinished(&self, spot: &Spot<'_>, source: &Stat, there: &Stat) -> bool {
        self.is_marked(source, there)
            || self.is_partial(spot, source, there)
            || self.is_bare(spot, source, there)
    }

    /// Returns whether a killed copy marked an entry as not complete. It may have got the source's owner.
    pub(super) fn is_marked(&self, source: &Stat, there: &Stat) -> bool {
        let owner = if self.options.preserve.ownership { source.st_uid } else { self.user };
        mark::has_mark(there) && [self.user, owner].contains(&there.st_uid)
    }

    /// Returns whether a killed copy left a special file that may lack attributes. Creating it again loses
    /// nothing.
    fn is_bare(&self, spot: &Spot<'_>, source: &Stat, there: &Stat) -> bool {
        let has_contents = |kind| matches!(kind, FileType::RegularFile | FileType::Directory);
        if has_contents(sys::kind(source))
            || sys::kind(there) != sys::kind(source)
            || !spot.folder.is_some_and(|folder| folder.facts.target.was_unfinished)
        {
            return false;
        }
        let Some(target) = spot.target else { return false };
        if !is_link(source) {
            return there.st_rdev == source.st_rdev;
        }
        match (sys::read_link(spot.source, spot.name), sys::read_link(target, spot.to)) {
            (Ok(source), Ok(there)) => source == there,
            _ => false,
        }
    }

    /// Returns whether a killed copy left a prefix of the file, or an empty file. Continuing there loses
    /// nothing, whichever program created it.
    fn is_partial(&self, spot: &Spot<'_>, stat: &Stat, there: &Stat) -> bool {
        let is_file = |stat: &Stat| sys::kind(stat) == FileType::RegularFile;
        let may_be = spot.folder.is_some_and(|folder| folder.facts.target.was_unfinished)
            && is_file(stat)
            && is_file(there)
            && there.st_uid == self.user
            && there.st_size < stat.st_size
            && there.st_size <= self.options.buffer.max(4096) as i64;
        let Some(target) = spot.target.filter(|_| may_be) else { return false };
        let len = usize::try_from(there.st_size).unwrap_or(0);
        let read = |dir: &OpenDir, name: &CStr| -> sys::Result<Vec<u8>> {
            let file = sys::open(dir.as_fd(), name, sys::SOURCE)?;
            let mut bytes = vec![0; len];
            let count = sys::read_at(file.as_fd(), &mut bytes, 0)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        match (read(spot.source, spot.name), read(target, spot.to)) {
            (Ok(source), Ok(target)) => source.len() == len && source == target,
            _ => false,
        }
    }

    /// Opens and truncates the existing file, or creates another one in its place. If blocks must be shared,
    /// a file is truncated later, since that may be refused.
    pub(super) fn overwrite(
        &self,
        spot: &Spot<'_>,
        source: BorrowedFd<'_>,
        stat: &Stat,
        last: Option<u32>,
        create: impl Fn() -> sys::Result<OwnedFd>,
    ) -> Result<Opened<'_>> {
        let target = spot.target_dir()?;
        let must_share = self.options.reflink == Reflink::Always;
        let replace = |there: Option<&Stat>| {
            if must_share {
                try_to_share(target, None, source)?;
            }
            remove_existing(target, spot.to, there)?;
            match create() {
                // Another entry of the same name, in a directory that is mounted twice or ignores case.
                Err(Errno::EXIST) if !self.is_alone(spot) => Ok(Opened::InUse),
                created => Ok(Opened::File(Made::new(created.at_target("create")?, last))),
            }
        };
        let Some(name) = self.stat_target(spot)? else { return replace(None) };
        let is_link = is_named_link(spot, &name);
        let there = if is_link {
            match self.stat_behind(spot) {
                Ok(behind) => behind,
                Err(Errno::NOENT) => {
                    let text = "a link to nothing is there, through which nothing is written";
                    return Err(refused(text));
                }
                Err(Errno::LOOP) if self.options.force => {
                    return replace(Some(&name));
                }
                Err(error) => return Err(EntryError::target("stat", error)),
            }
        } else {
            name
        };
        if Id::of(&there) == Id::of(stat) {
            return Err(itself());
        }
        let kind = sys::kind(&there);
        if kind == FileType::Directory {
            return Err(directory());
        }
        let is_file = kind == FileType::RegularFile;
        if is_file && self.is_fresh(spot, &there) {
            return Ok(Opened::InUse);
        }
        let has_names = there.st_nlink > 1;
        // As with `cp`: without following links, the contents of a device are not written to an existing
        // file.
        let is_given = sys::kind(stat) != FileType::RegularFile;
        if is_given && self.options.follow == Follow::Never
            || has_names && self.options.preserve.links
        {
            return replace(Some(&name));
        }
        // Opening a FIFO without a reader would block for ever; behind a link, such as `/dev/stdout`, it is
        // already open.
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if !is_file && spot.folder.is_none() && (is_link || is_device) {
            return match sys::open(target.as_fd(), spot.to, WRITE) {
                Ok(_) => Ok(Opened::Named),
                // It has no reader yet.
                Err(Errno::NXIO) if kind == FileType::Fifo => Ok(Opened::Named),
                Err(_) if self.options.force => replace(Some(&name)),
                Err(_) => Ok(Opened::Named),
            };
        }
        if !is_file && kind != FileType::Symlink && !self.options.force {
            let text = "a device, FIFO or socket is there, which is replaced by force only";
            return Err(refused(text));
        }
        let is_unfinished = self.is_marked(stat, &there);
        if !is_file || (is_unfinished && !has_names && !is_link) {
            return replace(Some(&name));
        }
        let follow = if is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
        let fd = match sys::open(target.as_fd(), spot.to, WRITE | follow) {
            Ok(fd) => fd,
            Err(_) if self.options.force => return replace(Some(&name)),
            Err(error) => return Err(EntryError::target("open", error)),
        };
        let opened = sys::stat(&fd).at_target("stat")?;
        let is_other = Id::of(&opened) != Id::of(&there);
        // Else its mode would become that of the one before.
        if is_other && spot.may_be_renamed() {
            return Err(refused("another user has replaced it meanwhile"));
        }
        let hold = match self.hold_target(spot, &opened) {
            Ok(hold) if !is_other || self.is_alone(spot) => hold,
            _ => return Ok(Opened::InUse),
        };
        let mut is_untouched = must_share;
        if must_share && there.st_size > stat.st_size {
            // Only after the end of a file blocks can be shared that are not full.
            try_to_share(target, Some(&fd), source)?;
            is_untouched = false;
        }
        let made = |fd, mode| {
            let (is_new, _hold) = (false, hold);
            Ok(Opened::File(Made { fd, mode, is_new, has_names, is_untouched, _hold }))
        };
        let truncate = || sys::retry(|| kernel::ftruncate(&fd, 0)).at_target("truncate");
        let mut mode = there.st_mode & sys::PERMISSIONS;
        if is_unfinished {
            if !is_untouched {
                truncate()?;
            }
            return made(fd, last.or(Some(mode)));
        }
        if is_untouched {
            return made(fd, None);
        }
        if mode & attributes::SET_ID != 0 {
            // Only the kernel knows whether this process may keep the bits.
            truncate()?;
            mode = sys::stat(&fd).at_target("stat")?.st_mode & sys::PERMISSIONS;
        }
        let has_owner = (there.st_uid, there.st_gid) == (stat.st_uid, stat.st_gid);
        if self.options.preserve.ownership && !has_owner {
            mode &= !set_id_lost(mode);
        }
        // A user who is not the owner can write to it but not mark it.
        let marked = sys::set_mode(&fd, mark::FILE).is_ok();
        truncate()?;
        made(fd, marked.then_some(mode))
    }

    /// Resolves a link that the caller has named: it may lead to a directory that its own name goes through
    /// (`ln -s . l`, `l/l`). The link is removed, and its replacement created, through its directory and its
    /// name there.
    pub(super) fn pin(&self, spot: &Spot<'_>) -> Result<Option<(Arc<OpenDir>, CString)>> {
        if spot.folder.is_some()
            || spot.target.is_none()
            || !self.stat_target(spot)?.is_some_and(|there| is_link(&there))
        {
            return Ok(None);
        }
        match self.name_in_parent(spot) {
            Some(name) => {
                let dir = self.open_parent().at_target("open directory of")?;
                Ok(Some((Arc::new(OpenDir::of(dir)), name)))
            }
            None => Ok(None),
        }
    }

    /// Returns the name of the root's copy in its directory. `None`: it leads to a directory.
    pub(super) fn name_in_parent(&self, spot: &Spot<'_>) -> Option<CString> {
        let name = sys::path(spot.to).file_name()?.as_bytes();
        if spot.to.to_bytes().ends_with(name) { CString::new(name).ok() } else { None }
    }

    /// Creates an entry, in place of an existing one. Returns false if it exists already.
    pub(super) fn make_name(
        &self,
        spot: &Spot<'_>,
        source: &Stat,
        make: impl Fn() -> sys::Result<()>,
    ) -> Result<bool> {
        let mut made = sys::retry(&make);
        if made == Err(Errno::EXIST) {
            let there = self.stat_target(spot)?;
            if let Some(there) = &there
                && self.is_itself(spot, source, there)?
            {
                return Ok(false);
            }
            if there.as_ref().is_none_or(|there| self.may_replace(spot, source, there)) {
                remove_existing(spot.target_dir()?, spot.to, there.as_ref())?;
                made = sys::retry(&make);
            }
        }
        made.map(|()| true).at_target("create")
    }

    /// Returns whether a new special file takes the place of an existing entry, or fails because that is a
    /// directory.
    pub(super) fn may_replace(&self, spot: &Spot<'_>, source: &Stat, there: &Stat) -> bool {
        // When links are followed, `cp` replaces only files whose contents are written.
        self.options.follow == Follow::Never
            || is_directory(there)
            || self.options.preserve.links && there.st_nlink > 1
            || self.is_bare(spot, source, there)
    }

    /// Returns whether the existing entry is the source under another name, which may stay. It is an error
    /// if the source leads to it, or if it is the only name, since replacing it would lose the contents.
    pub(super) fn is_itself(&self, spot: &Spot<'_>, source: &Stat, there: &Stat) -> Result<bool> {
        if is_link(source) == is_link(there) {
            if Id::of(source) != Id::of(there) {
                return Ok(false);
            }
            let may_stay = is_link(source) && !self.is_same_name(spot);
            return if may_stay { Ok(true) } else { Err(itself()) };
        }
        let Some(target) = spot.target else { return Ok(false) };
        if self.options.follow == Follow::Always {
            return Ok(false);
        }
        // One of them is a link, which may lead to the other.
        let (behind, other) = if is_link(source) {
            (kernel::statat(spot.source, spot.name, AtFlags::empty()), there)
        } else {
            (kernel::statat(target, spot.to, AtFlags::empty()), source)
        };
        if behind.is_ok_and(|behind| Id::of(&behind) == Id::of(other)) {
            Err(itself())
        } else {
            Ok(false)
        }
    }

    /// Opens the directory of the root's copy.
    pub(super) fn open_parent(&self) -> sys::Result<OwnedFd> {
        sys::retry(|| kernel::open(parent_of(&self.to), sys::SEARCHED, Mode::empty()))
    }

    /// Returns whether both are the same name in the same directory.
    fn is_same_name(&self, spot: &Spot<'_>) -> bool {
        let Some(target) = spot.target else { return false };
        if spot.folder.is_some() {
            let id = |dir: &OpenDir| sys::stat(dir).ok().map(|stat| Id::of(&stat));
            return spot.name == spot.to && id(spot.source) == id(target);
        }
        let place = |path: &CStr| {
            let stat = parent_of(path).metadata().ok()?;
            Some((stat.dev(), stat.ino(), sys::path(path).file_name()?.to_owned()))
        };
        place(spot.name) == place(&self.to)
    }
}

/// Removes an existing entry to make room for another.
pub(super) fn remove_existing(dir: &OpenDir, name: &CStr, there: Option<&Stat>) -> Result<()> {
    if there.is_some_and(is_directory) {
        return Err(directory());
    }
    match sys::unlink(dir, name) {
        Err(Errno::NOENT) => Ok(()),
        result => result.at_target("remove"),
    }
}

/// Returns an error if a file in that directory cannot share blocks with the source, as far as a file without
/// a name shows it, or the existing one, if it is to be overwritten.
fn try_to_share(dir: &OpenDir, there: Option<&OwnedFd>, source: BorrowedFd<'_>) -> Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mark::FILE);
    let shared = match (sys::retry(|| kernel::openat(dir, c".", flags, mode)), there) {
        (Ok(file), _) => kernel::ioctl_ficlone(file, source),
        // The error of a longer one.
        (Err(_), Some(there)) => match kernel::ioctl_ficlone(there, source) {
            Err(Errno::INVAL) => Ok(()),
            shared => shared,
        },
        (Err(_), None) => Ok(()),
    };
    shared.at_target("share blocks with")
}

/// Returns the path of an entry's directory.
fn parent_of(path: &CStr) -> &Path {
    let parent = sys::path(path).parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| ".".as_ref())
}

/// Returns whether the caller has named a link, to be written through.
fn is_named_link(spot: &Spot<'_>, there: &Stat) -> bool {
    spot.folder.is_none() && is_link(there)
}

fn is_link(stat: &Stat) -> bool {
    sys::kind(stat) == FileType::Symlink
}

/// Returns the set-id bits that a file of this mode loses by a change of owner, as in the kernel:
/// set-group-ID only if the group may execute it.
fn set_id_lost(mode: u32) -> u32 {
    if mode & 0o010 != 0 { attributes::SET_ID } else { 0o4000 }
}

/// The error of a copy that would replace its source.
fn itself() -> EntryError {
    refused("it is the source itself")
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    sys::kind(stat) == FileType::Directory
}

pub(super) fn directory() -> EntryError {
    refused("a non-directory cannot replace a directory")
}

pub(super) fn refused(text: &str) -> EntryError {
    EntryError::target("copy to", io::Error::new(io::ErrorKind::AlreadyExists, text))
}
