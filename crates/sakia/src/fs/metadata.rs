//! The metadata of files.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, StatxFlags, makedev};
use sakia_driver::{EntryKind, Fd, Handle, SetTime, StatxResult, StatxTime};

use super::uninterrupted;

/// Returns the metadata of the file at a path, within a directory if one is given.
pub(super) async fn stat(
    driver: &Handle,
    directory: Option<&Fd>,
    path: &CString,
    flags: AtFlags,
) -> io::Result<Metadata> {
    let stat = async || driver.statx(directory, path.clone(), flags.bits()).await;
    uninterrupted(stat).await.map(Metadata::new)
}

/// Returns the metadata of an open file.
pub(crate) async fn stat_open(driver: &Handle, fd: &Fd) -> io::Result<Metadata> {
    uninterrupted(async || driver.statx_fd(fd).await).await.map(Metadata::new)
}

/// The type of a file: the names of [`std::fs::FileType`].
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # sakia::block_on(async {
/// let kind = fs::metadata("/dev/null").await?.file_type();
/// assert!(kind.is_char_device() && !kind.is_file() && !kind.is_dir());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType {
    /// The type bits of `st_mode`.
    bits: u32,
}

impl FileType {
    const MASK: u32 = 0o170_000;

    pub(super) fn from_mode(mode: u32) -> Self {
        Self { bits: mode & Self::MASK }
    }

    /// Returns the type that a directory's entry gives; `None` if the file system does not report it.
    pub(super) fn from_entry(kind: EntryKind) -> Option<Self> {
        let bits = match kind {
            EntryKind::File => 0o100_000,
            EntryKind::Directory => 0o040_000,
            EntryKind::Symlink => 0o120_000,
            EntryKind::Fifo => 0o010_000,
            EntryKind::Socket => 0o140_000,
            EntryKind::CharacterDevice => 0o020_000,
            EntryKind::BlockDevice => 0o060_000,
            _ => return None,
        };
        Some(Self { bits })
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.bits == 0o040_000
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.bits == 0o100_000
    }

    /// Returns whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.bits == 0o120_000
    }

    /// Returns whether it is a FIFO, or a pipe.
    pub fn is_fifo(&self) -> bool {
        self.bits == 0o010_000
    }

    /// Returns whether it is a socket.
    pub fn is_socket(&self) -> bool {
        self.bits == 0o140_000
    }

    /// Returns whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        self.bits == 0o060_000
    }

    /// Returns whether it is a character device, such as a terminal.
    pub fn is_char_device(&self) -> bool {
        self.bits == 0o020_000
    }
}

impl fmt::Debug for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.bits {
            0o040_000 => "directory",
            0o100_000 => "file",
            0o120_000 => "symlink",
            0o010_000 => "fifo",
            0o140_000 => "socket",
            0o060_000 => "block device",
            0o020_000 => "character device",
            _ => "unknown",
        })
    }
}

/// The access rights of users to a file: its mode without the type.
///
/// # Examples
/// ```
/// use sakia::fs::{File, Permissions};
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-permissions-{}", std::process::id()));
/// # sakia::block_on(async {
/// let file = File::create(&path).await?;
/// file.set_permissions(Permissions::from_mode(0o640)).await?;
/// let mut permissions = file.metadata().await?.permissions();
/// assert_eq!((permissions.mode(), permissions.readonly()), (0o640, false));
/// permissions.set_readonly(true);
/// assert_eq!(permissions.mode(), 0o440);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions {
    mode: u32,
}

impl Permissions {
    const WRITE: u32 = 0o222;

    /// Returns permissions with this mode, of which the lower twelve bits count.
    pub fn from_mode(mode: u32) -> Self {
        Self { mode: mode & 0o7777 }
    }

    /// Returns the permissions as a number: twelve bits, of which the lower nine are `rwxrwxrwx`.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// Sets the permissions as a number.
    pub fn set_mode(&mut self, mode: u32) {
        *self = Self::from_mode(mode);
    }

    /// Returns whether no user has the permission to write. A privileged user may write all the same.
    pub fn readonly(&self) -> bool {
        self.mode & Self::WRITE == 0
    }

    /// Removes the permission to write for all users, or gives it to all users.
    pub fn set_readonly(&mut self, readonly: bool) {
        if readonly {
            self.mode &= !Self::WRITE;
        } else {
            self.mode |= Self::WRITE;
        }
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permissions({:#06o})", self.mode)
    }
}

impl From<std::fs::Permissions> for Permissions {
    fn from(permissions: std::fs::Permissions) -> Self {
        Self::from_mode(std::os::unix::fs::PermissionsExt::mode(&permissions))
    }
}

impl From<Permissions> for std::fs::Permissions {
    fn from(permissions: Permissions) -> Self {
        std::os::unix::fs::PermissionsExt::from_mode(permissions.mode)
    }
}

/// The metadata of a file, at one moment.
///
/// # Examples
/// ```
/// use std::time::SystemTime;
///
/// use sakia::fs;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-metadata-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, "hello").await?;
/// let metadata = fs::metadata(&path).await?;
/// assert!(metadata.is_file());
/// assert_eq!((metadata.len(), metadata.nlink()), (5, 1));
/// let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
/// assert!(age.as_secs() < 3600);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Metadata {
    stat: StatxResult,
}

impl Metadata {
    pub(super) fn new(stat: StatxResult) -> Self {
        Self { stat }
    }

    /// Returns the type of the file.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode())
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Returns whether it is a symbolic link. Never true for the result of [`metadata`](super::metadata),
    /// which follows links.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Returns the size in bytes. 0 for devices and for many files of `/proc`.
    #[allow(clippy::len_without_is_empty, reason = "the name that `std` has, which has no other")]
    pub fn len(&self) -> u64 {
        self.stat.size
    }

    /// Returns the access rights.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode())
    }

    /// Returns the time at which the contents last changed.
    ///
    /// # Errors
    /// `Unsupported`: the file system does not report it.
    pub fn modified(&self) -> io::Result<SystemTime> {
        self.time(StatxFlags::MTIME, self.stat.modified)
    }

    /// Returns the time of the last read, as far as the mount records it.
    ///
    /// # Errors
    /// `Unsupported`: the file system does not report it.
    pub fn accessed(&self) -> io::Result<SystemTime> {
        self.time(StatxFlags::ATIME, self.stat.accessed)
    }

    /// Returns the time at which the file was made.
    ///
    /// # Errors
    /// `Unsupported`: the file system does not record it, as many do not.
    pub fn created(&self) -> io::Result<SystemTime> {
        self.time(StatxFlags::BTIME, self.stat.created)
    }

    /// Returns the time at which the inode last changed: contents, permissions, owner or links.
    ///
    /// # Errors
    /// `Unsupported`: the file system does not report it.
    #[doc(alias = "ctime")]
    pub fn changed(&self) -> io::Result<SystemTime> {
        self.time(StatxFlags::CTIME, self.stat.changed)
    }

    fn time(&self, bit: StatxFlags, time: StatxTime) -> io::Result<SystemTime> {
        if self.stat.mask & bit.bits() == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        };
        let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
        let time = whole.and_then(|whole| whole.checked_add(nanoseconds));
        time.ok_or_else(|| io::Error::other("the file's time is out of range"))
    }

    /// Returns the device of the file system.
    #[doc(alias = "st_dev")]
    pub fn dev(&self) -> u64 {
        makedev(self.stat.dev_major, self.stat.dev_minor)
    }

    /// Returns the inode number, which together with [`dev`](Metadata::dev) identifies the file.
    #[doc(alias = "st_ino")]
    pub fn ino(&self) -> u64 {
        self.stat.inode
    }

    /// Returns type and permissions.
    #[doc(alias = "st_mode")]
    pub fn mode(&self) -> u32 {
        self.stat.mode.into()
    }

    /// Returns the number of hard links.
    #[doc(alias = "st_nlink")]
    pub fn nlink(&self) -> u64 {
        self.stat.links.into()
    }

    /// Returns the owner.
    #[doc(alias = "st_uid")]
    pub fn uid(&self) -> u32 {
        self.stat.uid
    }

    /// Returns the group.
    #[doc(alias = "st_gid")]
    pub fn gid(&self) -> u32 {
        self.stat.gid
    }

    /// Returns the device of a device file.
    #[doc(alias = "st_rdev")]
    pub fn rdev(&self) -> u64 {
        makedev(self.stat.rdev_major, self.stat.rdev_minor)
    }

    /// Returns the preferred size of a transfer in bytes.
    #[doc(alias = "st_blksize")]
    pub fn blksize(&self) -> u64 {
        self.stat.block_size.into()
    }

    /// Returns the number of allocated blocks of 512 bytes; fewer than the size needs in a file with holes.
    #[doc(alias = "st_blocks")]
    pub fn blocks(&self) -> u64 {
        self.stat.blocks
    }

    /// Returns the kernel's whole answer.
    pub fn as_statx(&self) -> &StatxResult {
        &self.stat
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Metadata");
        f.field("file_type", &self.file_type()).field("len", &self.len());
        f.field("permissions", &self.permissions()).field("modified", &self.modified().ok());
        f.finish_non_exhaustive()
    }
}

/// Times to set on a file; those that are not set here stay.
///
/// # Examples
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use sakia::fs::{File, FileTimes};
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-file-times-{}", std::process::id()));
/// # sakia::block_on(async {
/// let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
/// let file = File::create(&path).await?;
/// file.set_times(FileTimes::new().set_accessed(then).set_modified(then)).await?;
/// let metadata = file.metadata().await?;
/// assert_eq!((metadata.accessed()?, metadata.modified()?), (then, then));
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Returns times that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time of the last access.
    #[must_use]
    pub fn set_accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// Sets the time at which the contents last changed.
    #[must_use]
    pub fn set_modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    /// Returns the times as `utimensat(2)` takes them: access, modification.
    pub(super) fn to_set(self) -> [SetTime; 2] {
        let set = |time| SetTime::To(since_1970(time));
        [self.accessed, self.modified].map(|time| time.map_or(SetTime::Keep, set))
    }
}

impl From<FileTimes> for std::fs::FileTimes {
    fn from(FileTimes { accessed, modified }: FileTimes) -> Self {
        let times = accessed.into_iter().fold(Self::new(), Self::set_accessed);
        modified.into_iter().fold(times, Self::set_modified)
    }
}

/// Returns seconds, rounded down, and nanoseconds, which are positive also before 1970.
fn since_1970(time: SystemTime) -> StatxTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => StatxTime::new(after.as_secs().cast_signed(), after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            let seconds = -before.as_secs().cast_signed();
            match before.subsec_nanos() {
                0 => StatxTime::new(seconds, 0),
                nanoseconds => StatxTime::new(seconds - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_round_trip() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-3, 1)] {
            let time = StatxTime::new(seconds, nanoseconds);
            let mask = StatxFlags::MTIME.bits();
            let stat = StatxResult::default();
            let metadata = Metadata::new(stat);
            assert!(metadata.modified().is_err());
            let mut stat = stat;
            (stat.mask, stat.modified) = (mask, time);
            let modified = Metadata::new(stat).modified().unwrap();
            assert_eq!(since_1970(modified), time);
        }
    }

    /// An entry of a directory has its type: no operation asks for it.
    #[test]
    fn entries_have_the_types_of_their_files() {
        for (kind, mode) in [
            (EntryKind::File, 0o100_644),
            (EntryKind::Directory, 0o040_755),
            (EntryKind::Symlink, 0o120_777),
            (EntryKind::Fifo, 0o010_600),
            (EntryKind::Socket, 0o140_700),
            (EntryKind::CharacterDevice, 0o020_666),
            (EntryKind::BlockDevice, 0o060_660),
        ] {
            assert_eq!(FileType::from_entry(kind), Some(FileType::from_mode(mode)), "{kind:?}");
        }
        assert_eq!(FileType::from_entry(EntryKind::Unknown), None);
    }

    #[test]
    fn permissions_as_in_std() {
        let mut permissions = Permissions::from_mode(0o100_644);
        assert_eq!((permissions.mode(), permissions.readonly()), (0o644, false));
        permissions.set_readonly(true);
        assert_eq!(permissions, Permissions::from_mode(0o444));
        assert_eq!(std::fs::Permissions::from(permissions).readonly(), permissions.readonly());
        assert_eq!(Permissions::from(std::fs::Permissions::from(permissions)), permissions);
        permissions.set_readonly(false);
        assert_eq!(permissions.mode(), 0o666);
    }
}
