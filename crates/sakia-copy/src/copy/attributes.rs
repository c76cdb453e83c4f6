//! What a copy has of its source beside contents.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Copy, Spot};
use crate::crew::Tally;
use crate::options::Follow;
use crate::{kernel, sys};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// What XFS shows of its own beside, access control lists once more among them. Like the signature of a
/// file's inode it is nothing to be copied; `xattr.conf(5)` has both.
const OF_XFS: &[u8] = b"trusted.SGI_";
/// Bits of a mode that let others than the owner in.
pub(super) const OTHERS: u32 = 0o077;
/// Bits of a mode that must not outlive a change of owner.
pub(super) const SET_ID: u32 = 0o6000;
/// The most bytes that the kernel takes for an attribute's value, and for a list of names.
const ATTRIBUTE_MAX: usize = 64 << 10;

/// What is known of a copy that is to get its attributes.
pub(super) struct Of<'a> {
    /// The source's.
    pub(super) stat: &'a Stat,
    /// The mode that it is to have if the source's is not preserved.
    pub(super) mode: Option<u32>,
    pub(super) is_directory: bool,
    /// It may have got an access control list when it was made.
    pub(super) has_inherited_acl: bool,
    /// It belongs to who runs this, group included.
    pub(super) may_have_owner: bool,
}

/// The call that failed, and how.
type Result<T> = std::result::Result<T, (&'static str, io::Error)>;

/// Whether entries made in a directory get an access control list from it.
pub(super) fn has_default_acl(dir: BorrowedFd<'_>) -> bool {
    // Seldom is one so short.
    let mut space = [0; 64];
    let name = c"system.posix_acl_default";
    let found = match kernel::fgetxattr(dir, name, &mut space[..]) {
        // It could not be opened to be read.
        Err(Errno::BADF) => kernel::getxattr(magic_path(dir, c""), name, &mut space[..]),
        found => found,
    };
    match found {
        Ok(len) => len > 0,
        Err(errno) => errno == Errno::RANGE,
    }
}

impl Copy {
    /// Sets what is to be preserved of an open file or directory: owner, attributes, times, mode, in an
    /// order in which none undoes another.
    pub(super) fn set_attributes(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        of: Of<'_>,
        tally: &mut Tally,
    ) -> Result<()> {
        let preserve = self.options.preserve;
        let has_owner = !preserve.ownership || self.set_owner(to, &of, tally)?;
        if preserve.mode && of.has_inherited_acl {
            removed(kernel::fremovexattr(to, c"system.posix_acl_access"))?;
            if of.is_directory {
                removed(kernel::fremovexattr(to, c"system.posix_acl_default"))?;
            }
        }
        if preserve.mode || preserve.xattrs {
            self.copy_xattrs(from, to, tally)?;
        }
        if preserve.timestamps {
            tally.counters.plain_calls += 1;
            sys::retry(|| kernel::futimens(to, &times_of(of.stat)))
                .map_err(|error| ("set times of", error))?;
        }
        // Last: until then it is marked as not complete, and its owner may set attributes.
        let mode = if preserve.mode {
            let set_id = if has_owner { 0 } else { SET_ID };
            Some(of.stat.st_mode & sys::PERMISSIONS & !set_id)
        } else {
            of.mode
        };
        if let Some(mode) = mode {
            tally.counters.plain_calls += 1;
            sys::retry(|| kernel::fchmod(to, Mode::from_raw_mode(mode)))
                .map_err(|error| ("set mode of", error))?;
        }
        Ok(())
    }

    /// Sets user and group. False if the process may not.
    fn set_owner(&self, to: BorrowedFd<'_>, of: &Of<'_>, tally: &mut Tally) -> Result<bool> {
        let (user, group) = (of.stat.st_uid, of.stat.st_gid);
        if of.may_have_owner && (user, group) == (self.user, self.group) {
            return Ok(true);
        }
        tally.counters.plain_calls += 1;
        let chown = |user| sys::retry(|| kernel::fchown(to, user, Some(Gid::from_raw(group))));
        given(chown(Some(Uid::from_raw(user))), || chown(None))
    }

    /// Copies extended attributes, access control lists among them if the mode is preserved.
    fn copy_xattrs(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        tally: &mut Tally,
    ) -> Result<()> {
        tally.counters.plain_calls += 1;
        let names = grown(|space| kernel::flistxattr(from, space));
        let names = match names {
            Ok(names) if names.is_empty() => return Ok(()),
            Ok(names) => names,
            // There is no such thing, or nobody can know of it.
            Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(()),
            // A filter refuses it: what there is, is not known.
            Err(Errno::PERM) => {
                tally.counters.attributes_lost += 1;
                return Ok(());
            }
            Err(errno) => return Err(("list attributes of", errno.into())),
        };
        let read = |name: &CStr, space: &mut [u8]| kernel::fgetxattr(from, name, space);
        let set =
            |name: &CStr, value: &[u8]| kernel::fsetxattr(to, name, value, XattrFlags::empty());
        self.copy_each(&names, read, set, tally)
    }

    /// Copies the attributes of a list that are to be preserved.
    fn copy_each(
        &self,
        names: &[u8],
        read: impl Fn(&CStr, &mut [u8]) -> rustix::io::Result<usize>,
        set: impl Fn(&CStr, &[u8]) -> rustix::io::Result<()>,
        tally: &mut Tally,
    ) -> Result<()> {
        for name in self.wanted(names) {
            let value = match grown(|space| read(name, space)) {
                Ok(value) => value,
                Err(Errno::NODATA | Errno::NOTSUP) => continue,
                Err(errno) => return Err(("read an attribute of", errno.into())),
            };
            tally.counters.plain_calls += 3;
            lost(set(name, &value), tally).map_err(|error| ("set an attribute of", error))?;
        }
        Ok(())
    }

    /// The names of a list that are to be preserved.
    fn wanted<'a>(&self, names: &'a [u8]) -> Vec<&'a CStr> {
        let preserve = self.options.preserve;
        let is_acl = |name: &CStr| [ACCESS_ACL, DEFAULT_ACL].contains(&name.to_bytes());
        let wanted = names.split_inclusive(|&byte| byte == 0).filter_map(move |name| {
            let name = CStr::from_bytes_with_nul(name).ok()?;
            if name.to_bytes().starts_with(OF_XFS) || name == c"security.evm" {
                return None;
            }
            (if is_acl(name) { preserve.mode } else { preserve.xattrs }).then_some(name)
        });
        let mut wanted: Vec<_> = wanted.collect();
        // A list may take from the owner what the others need to be set.
        wanted.sort_by_key(|name| is_acl(name));
        wanted
    }

    /// Sets what is to be preserved of a link or another special file, which cannot be opened.
    pub(super) fn set_attributes_of_name(
        &self,
        spot: &Spot<'_>,
        stat: &Stat,
        is_symlink: bool,
        tally: &mut Tally,
    ) -> Result<()> {
        let preserve = self.options.preserve;
        let Some(target) = spot.target else { return Ok(()) };
        let (dir, name) = (target, spot.to);
        let mut has_owner = true;
        if preserve.ownership {
            let chown = |user| {
                let group = Some(Gid::from_raw(stat.st_gid));
                sys::retry(|| kernel::chownat(dir, name, user, group, AtFlags::SYMLINK_NOFOLLOW))
            };
            has_owner = given(chown(Some(Uid::from_raw(stat.st_uid))), || chown(None))?;
        }
        if preserve.mode && !is_symlink {
            let set_id = if has_owner { 0 } else { SET_ID };
            let mode = Mode::from_raw_mode(stat.st_mode & sys::PERMISSIONS & !set_id);
            sys::retry(|| kernel::chmodat(dir, name, mode, AtFlags::empty()))
                .map_err(|error| ("set mode of", error))?;
        }
        if preserve.ownership && !preserve.mode && !is_symlink {
            let made = sys::stat_name(dir.as_fd(), name).map_err(|error| ("stat", error))?;
            let mode = made.st_mode & sys::PERMISSIONS | stat.st_mode & OTHERS & !self.mask;
            sys::retry(|| kernel::chmodat(dir, name, Mode::from_raw_mode(mode), AtFlags::empty()))
                .map_err(|error| ("set mode of", error))?;
        }
        if preserve.mode || preserve.xattrs {
            self.copy_xattrs_of_name(spot, tally)?;
        }
        if preserve.timestamps {
            let times = times_of(stat);
            sys::retry(|| kernel::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW))
                .map_err(|error| ("set times of", error))?;
        }
        tally.counters.plain_calls += 4;
        Ok(())
    }

    /// By way of the directories' descriptors, since there are no such calls relative to them before 6.13.
    fn copy_xattrs_of_name(&self, spot: &Spot<'_>, tally: &mut Tally) -> Result<()> {
        let Some(target) = spot.target else { return Ok(()) };
        let from = magic_path(spot.source.as_fd(), spot.name);
        let to = magic_path(target.as_fd(), spot.to);
        // Of the link, or of what it points to.
        let follows = self.options.follow == Follow::Always;
        let list = |space: &mut [u8]| match follows {
            true => kernel::listxattr(&from, space),
            false => kernel::llistxattr(&from, space),
        };
        let Ok(names) = grown(list) else {
            // The file system has none, or there is no /proc.
            return Ok(());
        };
        if self.options.preserve.mode && self.inherits(spot) {
            removed(kernel::lremovexattr(&to, c"system.posix_acl_access"))?;
        }
        let read = |name: &CStr, space: &mut [u8]| match follows {
            true => kernel::getxattr(&from, name, space),
            false => kernel::lgetxattr(&from, name, space),
        };
        let set =
            |name: &CStr, value: &[u8]| kernel::lsetxattr(&to, name, value, XattrFlags::empty());
        self.copy_each(&names, read, set, tally)
    }
}

/// The times to set, to the nanosecond.
pub(super) fn times_of(stat: &Stat) -> Timestamps {
    let time =
        |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// A path that leads to `name` in an open directory, however long that one's own is. Without a name it leads
/// to that directory, which need not be searched.
pub(super) fn magic_path(dir: BorrowedFd<'_>, name: &CStr) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(name.to_bytes());
    // The current directory has a negative number; an absolute name is taken as it is.
    if dir.as_raw_fd() < 0 {
        return PathBuf::from(name);
    }
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}

/// Whether user and group could be given; if not, at least the group is tried.
fn given(chown: io::Result<()>, group: impl FnOnce() -> io::Result<()>) -> Result<bool> {
    match chown {
        Ok(()) => Ok(true),
        Err(error) if sys::is(&error, Errno::PERM) || sys::is(&error, Errno::INVAL) => {
            group().ok();
            Ok(false)
        }
        Err(error) => Err(("set owner of", error)),
    }
}

/// There may have been no such list.
fn removed(result: rustix::io::Result<()>) -> Result<()> {
    match result {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(("remove an access control list of", errno.into())),
    }
}

/// An attribute that the process may not set, or that the file system does not have, is counted.
fn lost(set: rustix::io::Result<()>, tally: &mut Tally) -> io::Result<()> {
    match set {
        // A value may be longer than this file system takes them: that, too, it calls a lack of space.
        Err(
            Errno::PERM
            | Errno::NOTSUP
            | Errno::ACCESS
            | Errno::INVAL
            | Errno::NOSPC
            | Errno::TOOBIG,
        ) => {
            tally.counters.attributes_lost += 1;
            Ok(())
        }
        result => Ok(result?),
    }
}

/// What a call writes that says `ERANGE` when there is too little space.
fn grown(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    // Most lists are empty, and most values short: one call.
    let mut space = [0; 256];
    match call(&mut space) {
        Ok(len) => return Ok(space[..len].to_vec()),
        Err(Errno::RANGE) => {}
        Err(errno) => return Err(errno),
    }
    let mut space = vec![0; ATTRIBUTE_MAX];
    let len = call(&mut space)?;
    space.truncate(len);
    Ok(space)
}
