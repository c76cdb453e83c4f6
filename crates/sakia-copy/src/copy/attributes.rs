//! Attributes of a copy: owner, mode, times, extended attributes.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{At, Copy, EntryError, Result, Spot, mark};
use crate::crew::{Fiber, Tally};
use crate::options::Follow;
use crate::{kernel, sys};

const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
/// Internal attributes that XFS lists, access control lists once more among them. Like the signature of an
/// inode they are not copied; `xattr.conf(5)` has both.
const OF_XFS: &[u8] = b"trusted.SGI_";
/// Mode bits for group and others.
pub(super) const OTHERS: u32 = 0o077;
/// Mode bits that must not survive a change of owner.
pub(super) const SET_ID: u32 = 0o6000;
/// The kernel's size limit of an attribute's value, and of a list of names.
const ATTRIBUTE_MAX: usize = 64 << 10;
/// The user who may give files away.
const ROOT: u32 = 0;
const SET_OWNER: &str = "set owner of";

/// An access control list has a version, then entries of a kind, rights and an identity.
const ACL_VERSION_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;
/// Kinds of entries.
const ACL_OWNER: u8 = 0x01;
const ACL_GROUP: u8 = 0x04;
const ACL_MASK: u8 = 0x10;
const ACL_OTHER: u8 = 0x20;

/// Errors of an attribute that may not be set, or that the file system does not support. A file system also
/// reports a lack of space for a value that is too long for it.
const UNSETTABLE: [Errno; 6] =
    [Errno::PERM, Errno::NOTSUP, Errno::ACCESS, Errno::INVAL, Errno::NOSPC, Errno::TOOBIG];

/// Facts about a copy that is to get its attributes.
pub(super) struct Of<'a> {
    /// The status of the source.
    pub(super) stat: &'a Stat,
    /// The mode to set if the source's is not preserved.
    pub(super) mode: Option<u32>,
    /// It may have an access control list, inherited or older, that is not the source's.
    pub(super) may_have_acl: bool,
    /// It belongs to the user and group of the process.
    pub(super) may_have_owner: bool,
}

/// Attributes that a complete copy does not have although they were asked for: failures, by their operations.
pub(super) type Lost = Vec<EntryError>;

/// Adds a failure, unless the entry has one of that operation.
fn lose(lost: &mut Lost, operation: &'static str, errno: Errno) {
    if lost.iter().all(|before| before.operation != operation) {
        lost.push(EntryError::target(operation, errno));
    }
}

/// Returns the permissions that the access control list withholds which entries created in a directory
/// inherit. `None`: they inherit none, and the umask holds in its place.
pub(super) fn default_mask(dir: BorrowedFd<'_>) -> Option<u32> {
    let found = match grown(|space| kernel::fgetxattr(dir, DEFAULT_ACL, space)) {
        // It could not be opened for reading.
        Err(Errno::BADF) => {
            grown(|space| kernel::getxattr(magic_path(dir, c""), DEFAULT_ACL, space))
        }
        found => found,
    };
    let acl = found.ok().filter(|acl| !acl.is_empty())?;
    let entries = acl.get(ACL_VERSION_BYTES..).unwrap_or_default().chunks_exact(ACL_ENTRY_BYTES);
    let rights = |kind| {
        let mut found = entries.clone().filter(|entry| entry[0] == kind);
        found.next().map(|entry| u32::from(entry[2] & 7))
    };
    // The mask limits all but the owner and others.
    let group = rights(ACL_MASK).or(rights(ACL_GROUP));
    let [owner, group, other] =
        [rights(ACL_OWNER), group, rights(ACL_OTHER)].map(|rights| !rights.unwrap_or_default() & 7);
    Some(owner << 6 | group << 3 | other)
}

impl Copy {
    /// Returns whether a new entry inherited an access control list.
    pub(super) fn inherits(&self, spot: &Spot<'_>) -> bool {
        self.default_mask(spot).is_some()
    }

    /// Returns the permissions that an inherited access control list withholds from a new entry.
    pub(super) fn default_mask(&self, spot: &Spot<'_>) -> Option<u32> {
        match (spot.folder, spot.target) {
            (Some(folder), _) => folder.facts.target.default_mask,
            (None, Some(_)) => default_mask(self.open_parent().ok()?.as_fd()),
            (None, None) => None,
        }
    }

    /// Sets the preserved attributes of an open file or directory: owner, attributes, times, mode, in an
    /// order in which none undoes another. Returns those that cannot be kept.
    pub(super) fn set_attributes(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        of: &Of<'_>,
        tally: &mut Tally,
    ) -> Result<Lost> {
        let mut lost = Lost::new();
        let preserve = self.options.preserve;
        let owner = (of.stat.st_uid, of.stat.st_gid);
        let mut has_owner = true;
        if preserve.ownership && !(of.may_have_owner && owner == (self.user, self.group)) {
            tally.counters.plain_calls += 1;
            let chown = |user, group| kernel::fchown(to, user, group);
            has_owner = self.set_owner(of.stat, chown, &mut lost)?;
        }
        if of.may_have_acl {
            removed(kernel::fremovexattr(to, ACCESS_ACL))?;
            if sys::kind(of.stat) == FileType::Directory {
                removed(kernel::fremovexattr(to, DEFAULT_ACL))?;
            }
        }
        if preserve.mode || preserve.xattrs {
            self.copy_xattrs(from, to, of.stat, tally, &mut lost)?;
        }
        if preserve.timestamps {
            tally.counters.plain_calls += 1;
            let times = times_of(of.stat);
            sys::retry(|| kernel::futimens(to, &times)).at_target("set times of")?;
        }
        // Last: until then its mode marks it as not complete, and its owner may set attributes.
        let mode = if preserve.mode { Some(exact_mode(of.stat, has_owner)) } else { of.mode };
        if let Some(mode) = mode {
            tally.counters.plain_calls += 1;
            sys::set_mode(to, mode).at_target("set mode of")?;
        }
        Ok(lost)
    }

    /// Copies extended attributes, including access control lists if the mode is preserved.
    fn copy_xattrs(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        stat: &Stat,
        tally: &mut Tally,
        lost: &mut Lost,
    ) -> Result<()> {
        tally.counters.plain_calls += 1;
        let names = match grown(|space| kernel::flistxattr(from, space)) {
            Ok(names) => names,
            // Not supported.
            Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
            // A seccomp filter refuses it: the attributes are unknown.
            Err(Errno::PERM) => {
                self.lose_xattr("list attributes of", Errno::PERM, tally, lost);
                return Ok(());
            }
            Err(errno) => return Err(EntryError::target("list attributes of", errno)),
        };
        let read = |name: &CStr, space: &mut [u8]| kernel::fgetxattr(from, name, space);
        let set = |name: &CStr, value: &[u8]| {
            let marked;
            let value = if name == ACCESS_ACL {
                marked = with_mark(value, sys::kind(stat));
                &marked
            } else {
                value
            };
            kernel::fsetxattr(to, name, value, XattrFlags::empty())
        };
        self.copy_each(&names, read, set, tally, lost)
    }

    /// Records an attribute that cannot be kept: a failure if each of them is required.
    fn lose_xattr(
        &self,
        operation: &'static str,
        errno: Errno,
        tally: &mut Tally,
        lost: &mut Lost,
    ) {
        if self.options.preserve.all_xattrs {
            lose(lost, operation, errno);
        } else {
            tally.counters.attributes_lost += 1;
        }
    }

    /// Copies the preserved attributes of a list.
    fn copy_each(
        &self,
        names: &[u8],
        read: impl Fn(&CStr, &mut [u8]) -> sys::Result<usize>,
        set: impl Fn(&CStr, &[u8]) -> sys::Result<()>,
        tally: &mut Tally,
        lost: &mut Lost,
    ) -> Result<()> {
        for name in self.wanted(names) {
            let value = match grown(|space| read(name, space)) {
                Ok(value) => value,
                Err(Errno::NODATA | Errno::NOTSUP) => continue,
                Err(errno) => return Err(EntryError::target("read an attribute of", errno)),
            };
            tally.counters.plain_calls += 3;
            match set(name, &value) {
                Err(errno) if UNSETTABLE.contains(&errno) && is_acl(name) => {
                    lose(lost, "set an access control list of", errno);
                }
                Err(errno) if UNSETTABLE.contains(&errno) => {
                    self.lose_xattr("set an attribute of", errno, tally, lost);
                }
                result => result.at_target("set an attribute of")?,
            }
        }
        Ok(())
    }

    /// Returns the preserved names of a list.
    fn wanted<'a>(&self, names: &'a [u8]) -> Vec<&'a CStr> {
        let preserve = self.options.preserve;
        let wanted = names.split_inclusive(|&byte| byte == 0).filter_map(move |name| {
            let name = CStr::from_bytes_with_nul(name).ok()?;
            if name.to_bytes().starts_with(OF_XFS) || name == c"security.evm" {
                return None;
            }
            (if is_acl(name) { preserve.mode } else { preserve.xattrs }).then_some(name)
        });
        let mut wanted: Vec<_> = wanted.collect();
        // A list may take rights from the owner that setting the others needs.
        wanted.sort_by_key(|name| is_acl(name));
        wanted
    }

    /// Sets the preserved attributes of a link or another special file, which cannot be opened. Returns those
    /// that cannot be kept.
    pub(super) fn set_attributes_of_name(&self, spot: &mut Spot<'_>, stat: &Stat) -> Result<Lost> {
        let mut lost = Lost::new();
        let preserve = self.options.preserve;
        let Some(target) = spot.target else { return Ok(lost) };
        let (dir, name, flags) = (target, spot.to, AtFlags::SYMLINK_NOFOLLOW);
        let mut has_owner = true;
        if preserve.ownership {
            let chown = |user, group| kernel::chownat(dir, name, user, group, flags);
            has_owner = self.set_owner(stat, chown, &mut lost)?;
        }
        if sys::kind(stat) != FileType::Symlink && (preserve.mode || preserve.ownership) {
            let mode = if preserve.mode {
                exact_mode(stat, has_owner)
            } else {
                let made = sys::stat_name(dir.as_fd(), name).at_target("stat")?;
                made.st_mode & sys::PERMISSIONS | stat.st_mode & OTHERS & !self.mask
            };
            sys::set_mode_of(dir, name, mode).at_target("set mode of")?;
        }
        if preserve.mode || preserve.xattrs {
            self.copy_xattrs_of_name(spot, &mut lost)?;
        }
        if preserve.timestamps {
            let times = times_of(stat);
            sys::retry(|| kernel::utimensat(dir, name, &times, flags)).at_target("set times of")?;
        }
        spot.fiber.tally.counters.plain_calls += 4;
        Ok(lost)
    }

    /// Copies them through the directories' descriptors, since calls relative to them exist only since 6.13.
    fn copy_xattrs_of_name(&self, spot: &mut Spot<'_>, lost: &mut Lost) -> Result<()> {
        let Some(target) = spot.target else { return Ok(()) };
        let from = magic_path(spot.source.as_fd(), spot.name);
        let to = magic_path(target.as_fd(), spot.to);
        // Of the link, or of its target.
        let follows = self.options.follow == Follow::Always;
        let list = |space: &mut [u8]| match follows {
            true => kernel::listxattr(&from, space),
            false => kernel::llistxattr(&from, space),
        };
        let Ok(names) = grown(list) else {
            // The file system has none, or `/proc` is missing.
            return Ok(());
        };
        if self.options.preserve.mode && self.inherits(spot) {
            removed(kernel::lremovexattr(&to, ACCESS_ACL))?;
        }
        let read = |name: &CStr, space: &mut [u8]| match follows {
            true => kernel::getxattr(&from, name, space),
            false => kernel::lgetxattr(&from, name, space),
        };
        let set =
            |name: &CStr, value: &[u8]| kernel::lsetxattr(&to, name, value, XattrFlags::empty());
        self.copy_each(&names, read, set, &mut spot.fiber.tally, lost)
    }

    /// Sets the source's user and group, or at least the group. Returns whether both could be set: to fail
    /// to is a failure of a process that may give files away, as with `cp`.
    fn set_owner(
        &self,
        stat: &Stat,
        chown: impl Fn(Option<Uid>, Option<Gid>) -> sys::Result<()>,
        lost: &mut Lost,
    ) -> Result<bool> {
        let chown = |user| sys::retry(|| chown(user, Some(Gid::from_raw(stat.st_gid))));
        match chown(Some(Uid::from_raw(stat.st_uid))) {
            Err(errno @ (Errno::PERM | Errno::INVAL)) => {
                chown(None).ok();
                if self.user == ROOT {
                    lose(lost, SET_OWNER, errno);
                }
                Ok(false)
            }
            given => given.map(|()| true).at_target(SET_OWNER),
        }
    }

    /// Reports attributes that a complete copy does not have.
    pub(super) fn report_lost(&self, spot: &mut Spot<'_>, lost: Lost) {
        if !lost.is_empty() {
            let path = self.target_path(spot);
            report_lost(spot.fiber, &path, lost);
        }
    }
}

/// Reports attributes that the complete copy at this path does not have. Even a lack of space for one of
/// them, which a file system also reports for a value that is too long, is no reason to stop.
pub(super) fn report_lost(fiber: &mut Fiber<Copy>, path: &Path, lost: Lost) {
    for EntryError { operation, error, .. } in lost {
        fiber.report(operation, path.to_owned(), error);
    }
}

fn is_acl(name: &CStr) -> bool {
    [ACCESS_ACL, DEFAULT_ACL].contains(&name)
}

/// Returns an access control list with the rights of a [mark](super::mark), which setting it would change
/// otherwise: the owner's rights, the mask, and the rights of all others. The mode, which is set afterwards,
/// gives them their final values.
fn with_mark(acl: &[u8], kind: FileType) -> Vec<u8> {
    let mark = if kind == FileType::Directory { mark::DIRECTORY } else { mark::FILE };
    let mut marked = acl.to_vec();
    let entries = marked.get_mut(ACL_VERSION_BYTES..).unwrap_or_default();
    if entries.chunks_exact(ACL_ENTRY_BYTES).any(|entry| entry[0] == ACL_MASK) {
        for entry in entries.chunks_exact_mut(ACL_ENTRY_BYTES) {
            match entry[0] {
                ACL_OWNER => entry[2] = (mark >> 6 & 7) as u8,
                ACL_MASK | ACL_OTHER => entry[2] = 0,
                _ => {}
            }
        }
    }
    marked
}

/// Returns the times to set, in nanoseconds.
pub(super) fn times_of(stat: &Stat) -> Timestamps {
    let time =
        |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Returns a path to `name` in an open directory, however long that directory's own path is. Without a name
/// it leads to the directory, which need not be searchable.
pub(super) fn magic_path(dir: BorrowedFd<'_>, name: &CStr) -> PathBuf {
    let name = sys::path(name);
    // The current directory has a negative number; an absolute name is used unchanged.
    if dir.as_raw_fd() < 0 {
        return PathBuf::from(name);
    }
    magic_file(dir).join(name)
}

/// Returns a path to an open file of any kind.
pub(super) fn magic_file(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the mode of the source; without set-id bits if the copy has another owner.
fn exact_mode(stat: &Stat, has_owner: bool) -> u32 {
    let lost = if has_owner { 0 } else { SET_ID };
    stat.st_mode & sys::PERMISSIONS & !lost
}

/// Accepts that there was no such list.
fn removed(result: sys::Result<()>) -> Result<()> {
    match result {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        result => result.at_target("remove an access control list of"),
    }
}

/// Returns the output of a call that reports `ERANGE` if the buffer is too small.
fn grown(call: impl Fn(&mut [u8]) -> sys::Result<usize>) -> sys::Result<Vec<u8>> {
    // Most lists are empty, and most values short: one call suffices.
    let mut space = [0; 256];
    match call(&mut space) {
        Err(Errno::RANGE) => {}
        result => return result.map(|len| space[..len].to_vec()),
    }
    let mut space = vec![0; ATTRIBUTE_MAX];
    let len = call(&mut space)?;
    space.truncate(len);
    Ok(space)
}
