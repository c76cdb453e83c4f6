//! Entries that are created in a private directory first, and renamed when they are complete.
//!
//! In a directory that other users may write to, a new name may lead to another file a moment later, even
//! to one of this user's: a user who may rename both can exchange them. Then a change of mode or owner by
//! that name would give that file away. So there an entry is created in a directory that only this user may
//! change, [`NAME`], and gets its attributes there; then it is renamed, which replaces nothing. Regular
//! files need no such detour: creating one returns its descriptor.
//!
//! In a directory that existed before, a link or another special file takes the same way if it gets
//! attributes: it has no mode that could mark it as not complete, so its name must not appear earlier. New
//! directories are private as long as they are not complete, and their own mark tells about their entries.
//!
//! The open directory is private by its owner and its mode, even if another process has put it there. If a
//! copy is killed, it may be left, with entries that got no place; the next copy into that directory uses and
//! removes it. Such an entry need not be created there again: its name may have become a link.
//! It stays if the source has it no longer, as the beginning of a file does.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::attributes::Lost;
use super::folder::{SET_GROUP, set_mode_by_path};
use super::{At, Copy, Result, Spot, Target};
use crate::crew::Folder;
use crate::kernel::OwnedFd;
use crate::place::{Id, OpenDir, Places};
use crate::{kernel, sys};

/// The name of a private directory, unless another user has taken it.
const NAME: &CStr = c".sakia-cp";
/// Its mode.
const PRIVATE: u32 = 0o700;
/// Mode bits that let others write to a directory.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit, only the owner of an entry, or of the directory, may rename it.
const STICKY: u32 = 0o1000;
/// The limit of attempts, if other processes remove or replace the directory.
const ATTEMPTS: u32 = 4;
/// The size of the buffer for the entries that a killed copy has left.
const LIST_BYTES: usize = 4 << 10;

/// The rights of other users in a directory of the copy.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// They may rename its entries.
    pub(super) may_rename: bool,
    /// They may reach it, with the rights that it then has, before the copy has ended.
    may_reach: bool,
    /// They may rename its entries now, or before the copy has ended.
    pub(super) may_rename_later: bool,
    /// A private directory was created in it, or may have been by a killed copy.
    has_stage: AtomicBool,
}

impl Others {
    /// Returns the rights to the copy of the directory `source`. `stat` is its status if it is not new.
    pub(super) fn new(
        copy: &Copy,
        above: Option<&Self>,
        source: &Stat,
        stat: Option<&Stat>,
        made: &Target,
    ) -> Self {
        let preserve = copy.options.preserve;
        let (owner, mode) = stat.map_or((copy.user, 0), |stat| (stat.st_uid, stat.st_mode));
        let may_rename = may_rename(owner, mode, copy.user);
        // A marked directory shuts off everything below it.
        let may_reach = match above {
            Some(above) => above.may_reach,
            None => !copy.is_single || !made.is_marked,
        };
        let owner = if preserve.ownership { source.st_uid } else { owner };
        let mode = if preserve.mode { source.st_mode } else { made.mode.unwrap_or(mode) };
        let may_rename_later = may_rename || may_reach && self::may_rename(owner, mode, copy.user);
        Self { may_rename, may_reach, may_rename_later, has_stage: may_rename.into() }
    }

    /// Notes that a private directory may be there.
    pub(super) fn note_stage(&self) {
        self.has_stage.store(true, Ordering::Relaxed);
    }

    /// Returns whether it has to be [ended](Self::end).
    pub(super) fn has_stage(&self) -> bool {
        self.has_stage.load(Ordering::Relaxed)
    }
}

/// Returns whether other users than this one and root may rename entries of such a directory. The bits of the
/// group include the rights of an access control list.
pub(super) fn may_rename(owner: u32, mode: u32, user: u32) -> bool {
    ![0, user].contains(&owner) || mode & OTHERS_WRITE != 0 && mode & STICKY == 0
}

/// A directory in which only this user can create and rename entries.
pub(super) struct Stage {
    pub(super) dir: Arc<OpenDir>,
    name: CString,
}

impl Stage {
    /// Opens one in `dir`, or creates it. `None`: a directory created there is not private, as on a file
    /// system without owners.
    fn open(dir: &OpenDir, copy: &Copy, mask: u32, places: &Places) -> sys::Result<Option<Self>> {
        let flags = sys::SEARCHED | OFlags::NOFOLLOW;
        for attempt in 0..ATTEMPTS {
            let name = if attempt == 0 { NAME.to_owned() } else { other_name() };
            let open = || places.with_room(|| sys::open(dir.as_fd(), &name, flags));
            let mut opened = open();
            let mut is_made = false;
            if opened.as_ref().err() == Some(&Errno::NOENT) {
                let mode = Mode::from_raw_mode(PRIVATE);
                match sys::retry(|| kernel::mkdirat(dir, &*name, mode)) {
                    Err(Errno::EXIST) => {}
                    made => is_made = made.map(|()| true)?,
                }
                opened = open();
            }
            match opened {
                Ok(fd) if copy.is_private(&fd, is_made.then_some(mask))? => {
                    return Ok(Some(Self { dir: Arc::new(places.permitted(fd)), name }));
                }
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno),
            }
            if is_made {
                remove_directory(dir, &name).ok();
            }
        }
        Ok(None)
    }

    /// Creates an entry, in place of one that a killed copy has left.
    fn make(&self, name: &CStr, make: impl Fn(&OpenDir) -> sys::Result<()>) -> sys::Result<()> {
        match make(&self.dir) {
            Err(Errno::EXIST) => {
                self.remove(name);
                make(&self.dir)
            }
            made => made,
        }
    }

    /// Gives an entry its place in `dir`. `EEXIST`: there is one of that name.
    pub(super) fn publish(&self, name: &CStr, dir: &OpenDir, to: &CStr) -> sys::Result<()> {
        let rename = |flags| sys::retry(|| kernel::renameat_with(&self.dir, name, dir, to, flags));
        match rename(RenameFlags::NOREPLACE) {
            // Unsupported by the file system.
            Err(errno) if sys::is_refused(errno) => {}
            result => return result,
        }
        match sys::link(&self.dir, name, dir, to) {
            Ok(()) => sys::unlink(&self.dir, name),
            // Directories have one name; at worst this replaces an empty directory.
            Err(Errno::PERM) => rename(RenameFlags::empty()),
            result => result,
        }
    }

    /// Removes an entry that gets no place.
    pub(super) fn remove(&self, name: &CStr) {
        remove(&self.dir, name);
    }

    /// Removes the private directory, unless that is done when the directory of the copy is complete.
    pub(super) fn end(self, spot: &Spot<'_>, dir: &OpenDir) {
        if spot.folder.is_none() || *self.name != *NAME {
            remove_directory(dir, &self.name).ok();
        }
    }
}

impl Copy {
    /// Returns whether a new special file gets its name only when it is complete.
    pub(super) fn is_staged(&self, spot: &Spot<'_>, stat: &Stat) -> bool {
        let is_private = spot.folder.is_some_and(|folder| {
            let target = &folder.facts.target;
            target.is_marked && !target.others.may_rename
        });
        !is_private && self.options.preserve.has_attributes()
            || spot.may_be_renamed() && self.is_claimed(stat)
    }

    /// Creates an entry of the name `to` by `make` in a private directory in `dir`, where it will be.
    pub(super) fn staged(
        &self,
        spot: &Spot<'_>,
        dir: &OpenDir,
        to: &CStr,
        make: impl Fn(&OpenDir) -> sys::Result<()>,
    ) -> sys::Result<Option<Stage>> {
        if let Some(folder) = spot.folder {
            folder.facts.target.others.note_stage();
        }
        let mask = self.default_mask(spot).unwrap_or(self.mask);
        let mut left = ATTEMPTS;
        loop {
            let Some(stage) = Stage::open(dir, self, mask, &spot.fiber.crew().places)? else {
                return Ok(None);
            };
            left -= 1;
            match stage.make(to, &make) {
                // Another copy into the same directory has ended and removed it.
                Err(Errno::NOENT) if left > 0 => {}
                Ok(()) => return Ok(Some(stage)),
                Err(errno) => {
                    stage.end(spot, dir);
                    return Err(errno);
                }
            }
        }
    }

    /// Sets the attributes of a special file, and gives it its name in `dir`. Returns false if the existing
    /// entry stays.
    pub(super) fn complete_staged(
        &self,
        spot: &mut Spot<'_>,
        stat: &Stat,
        stage: Stage,
        dir: &Arc<OpenDir>,
    ) -> Result<bool> {
        let name = spot.to;
        let inner = &mut Spot { target: Some(&stage.dir), fiber: &mut *spot.fiber, ..*spot };
        let set = match self.options.preserve.has_attributes() {
            true => self.set_attributes_of_name(inner, stat),
            false => Ok(Lost::new()),
        };
        let noted = set.and_then(|lost| self.note_name(inner, stat).map(|()| lost));
        spot.made = inner.made;
        let named = |spot: &mut Spot<'_>, lost| {
            let is_made = self.make_name(spot, stat, || stage.publish(name, dir, name))?;
            if is_made {
                self.report_lost(spot, lost);
            }
            Ok(is_made)
        };
        let result = noted.and_then(|lost| named(spot, lost));
        if !matches!(result, Ok(true)) {
            stage.remove(name);
        }
        stage.end(spot, dir);
        result
    }

    /// Removes the private directory of a directory of the copy, if it may have one, with what a killed copy
    /// has left there: no more entries will be created. One of the source's stays.
    pub(super) fn end_stage(&self, places: &Places, folder: &Folder<Self>) -> sys::Result<()> {
        if !folder.facts.target.others.has_stage() {
            return Ok(());
        }
        let target = folder.facts.target.open(places)?;
        if sys::stat_name(target.as_fd(), NAME).is_err() {
            return Ok(());
        }
        let source = places.open(&folder.place)?;
        if sys::stat_name(source.as_fd(), NAME).is_ok() {
            return Ok(());
        }
        // Both are answers to a directory with entries.
        if let Err(Errno::NOTEMPTY | Errno::EXIST) = remove_directory(&target, NAME) {
            let dir = places.with_room(|| sys::open(target.as_fd(), NAME, sys::DIRECTORY))?;
            if self.is_private(&dir, None)? {
                self.remove_left(&places.permitted(dir), &source)?;
                remove_directory(&target, NAME).ok();
            }
        }
        Ok(())
    }

    /// Removes entries that this copy could have created again, but not those that another copy into the same
    /// directory may be about to name. All others may be anyone's.
    fn remove_left(&self, dir: &OpenDir, source: &OpenDir) -> sys::Result<()> {
        let mut space = [MaybeUninit::uninit(); LIST_BYTES];
        let mut entries = kernel::entries(dir.as_fd(), &mut space)?;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            let (stat, source) = (sys::stat_name(dir.as_fd(), name)?, source.as_fd());
            if sys::kind(&stat) != FileType::RegularFile
                && !self.changed_meanwhile(&stat)
                && sys::stat_name(source, name).is_ok()
            {
                remove(dir, name);
            }
        }
        Ok(())
    }

    /// Remembers the identity of a new special file, if others may rename it before its other names are
    /// found.
    pub(super) fn note_name(&self, spot: &mut Spot<'_>, stat: &Stat) -> Result<()> {
        if let Some(target) = spot.target
            && self.is_identified(spot, stat)
        {
            let made = sys::stat_name(target.as_fd(), spot.to).at_target("stat")?;
            spot.made = Some(Id::of(&made));
        }
        Ok(())
    }

    /// Does the same for an open file.
    pub(super) fn note_file(&self, spot: &mut Spot<'_>, stat: &Stat, fd: &OwnedFd) -> Result<()> {
        if self.is_identified(spot, stat) {
            spot.made = Some(Id::of(&sys::stat(fd).at_target("stat")?));
        }
        Ok(())
    }

    pub(super) fn is_identified(&self, spot: &Spot<'_>, stat: &Stat) -> bool {
        self.is_claimed(stat)
            && spot.folder.is_none_or(|folder| folder.facts.target.others.may_rename_later)
    }

    /// Returns whether only this user can change names in a directory. One just made may lack the rights that
    /// this mask takes from its owner.
    fn is_private(&self, fd: &OwnedFd, made: Option<u32>) -> sys::Result<bool> {
        let stat = sys::stat(fd)?;
        let group = stat.st_mode & SET_GROUP;
        let mode = stat.st_mode & sys::PERMISSIONS & !group;
        if stat.st_uid != self.user || mode == PRIVATE {
            return Ok(stat.st_uid == self.user);
        }
        let is_masked = made.is_some_and(|mask| mode == PRIVATE & !mask);
        if is_masked {
            set_mode_by_path(fd, PRIVATE | group)?;
        }
        Ok(is_masked)
    }
}

/// Removes an entry, if it is no directory with entries.
fn remove(dir: &OpenDir, name: &CStr) {
    if let Err(Errno::ISDIR | Errno::PERM) = sys::unlink(dir, name) {
        remove_directory(dir, name).ok();
    }
}

fn remove_directory(dir: &OpenDir, name: &CStr) -> sys::Result<()> {
    sys::retry(|| kernel::unlinkat(dir, name, AtFlags::REMOVEDIR))
}

/// Returns a name that no other directory has.
fn other_name() -> CString {
    let name = format!("{}-{}-{}", NAME.to_string_lossy(), std::process::id(), super::now());
    CString::new(name).unwrap_or_default()
}
