//! The table of mounts, from `/proc/self/mountinfo`.
//!
//! This is the one place that reads and parses that file: `descriptors` asks it whether a server has a file,
//! and programs built on the driver ask it for the file system of a path. A table is one reading of the file:
//! it lacks later mounts.
//!
//! The properties that follow from a file system's type are here as well. This module imports nothing of the
//! crate. Any thread may use it; a table is `Send` and `Sync`.
//!
//! Source: `proc_pid_mountinfo(5)`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The mounts of a process, in the order of its table.
///
/// [`Handle::mounts`](crate::Handle::mounts) has the facts that a driver learned by using mounts; this is the
/// kernel's list of all mounts.
///
/// # Examples
/// ```
/// use std::path::Path;
///
/// use sakia_driver::MountTable;
///
/// let table = MountTable::parse(
///     b"28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
///       31 28 0:50 / /mnt/my\\040disk rw - nfs4 host:/export rw\n",
/// );
/// let entry = table.find_by_path(Path::new("/mnt/my disk/file")).unwrap();
/// assert_eq!((entry.id, entry.file_system.as_str()), (31, "nfs4"));
/// assert_eq!(table.find_by_path(Path::new("/mnt")).unwrap().id, 28);
/// ```
///
/// # Kernel
/// 2.6.26. Source: `proc_pid_mountinfo(5)`.
#[doc(alias = "mountinfo")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    entries: Vec<MountEntry>,
}

/// A line of the table: one mount.
///
/// # Examples
/// See [`MountTable`](MountTable#examples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountEntry {
    /// The mount's number, as `stx_mnt_id` of `statx(2)`. After an unmount the kernel may reuse it.
    pub id: u64,
    /// The device of its file system, as `st_dev`: major and minor number in one.
    pub device: u64,
    /// The mount point, as an absolute path below this process's root.
    pub point: PathBuf,
    /// The type of its file system, with a subtype after a dot, such as `ext4` or `fuse.sshfs`. Unchanged
    /// from the table, and so always one word. Bytes that are not UTF-8 are replaced.
    pub file_system: String,
    /// The mounted source: a block device, a server, or any word.
    pub source: OsString,
}

impl MountTable {
    /// Reads the table of this process. The kernel generates it meanwhile, so that the call waits for no
    /// device and no server.
    ///
    /// # Errors
    /// As `open(2)` and `read(2)`: `ENOENT` if there is no `/proc`.
    ///
    /// # Examples
    /// ```
    /// use std::path::Path;
    ///
    /// use sakia_driver::MountTable;
    ///
    /// let table = MountTable::read()?;
    /// let proc = table.find_by_path(Path::new("/proc/self/stat")).expect("this process is there");
    /// assert!(proc.file_system == "proc" && !proc.is_remote());
    /// assert_eq!(table.find_by_id(proc.id).map(|entry| entry.id), Some(proc.id));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&read_text()?))
    }

    /// Parses the text of such a table. Malformed lines are skipped.
    ///
    /// # Examples
    /// See [`MountTable`](MountTable#examples).
    pub fn parse(text: &[u8]) -> Self {
        let lines = text.split(|&byte| byte == b'\n');
        Self { entries: lines.filter_map(MountEntry::parse).collect() }
    }

    /// Returns all mounts. Of several at one point, a later one is mounted over an earlier one.
    pub fn entries(&self) -> &[MountEntry] {
        &self.entries
    }

    /// Returns the mount with this number.
    ///
    /// # Examples
    /// See [`MountTable::read`].
    pub fn find_by_id(&self, id: u64) -> Option<&MountEntry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// Returns the first mount of the file system with this device, as `st_dev`; others may show other parts
    /// of it.
    ///
    /// There is none for files whose device differs from their file system's own, such as those in a
    /// subvolume of `btrfs`.
    pub fn find_by_device(&self, device: u64) -> Option<&MountEntry> {
        self.entries.iter().find(|entry| entry.device == device)
    }

    /// Returns the mount that holds this absolute path, by the text alone: the mount with the longest point
    /// that the path lies at or below; of several at that point, the last.
    ///
    /// Symbolic links and `..` are not followed. A mount counts even if a later mount nearer to the root
    /// hides it. A relative path is on none.
    ///
    /// # Examples
    /// See [`MountTable`](MountTable#examples).
    pub fn find_by_path(&self, path: &Path) -> Option<&MountEntry> {
        let above = self.entries.iter().filter(|entry| path.starts_with(&entry.point));
        // Of several with the same length this takes the last.
        above.max_by_key(|entry| entry.point.as_os_str().len())
    }
}

/// Mounts that other machines or processes serve and that may never answer, and the mounts within these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteMounts(MountTable);

impl RemoteMounts {
    /// Reads them from the kernel's table as it is now. There are none without `/proc`.
    pub fn read() -> Self {
        MountTable::read().unwrap_or_default().into()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Returns whether this path, by its text alone, may lead to one of the mounts: a mount point lies on its
    /// way, or it has a `..`, which may lead anywhere. A relative path begins in the directory `here`, which
    /// is called only for such a path; if it returns `None`, the path may be anywhere. Symbolic links are not
    /// followed.
    pub fn may_hold(&self, path: &Path, here: impl FnOnce() -> Option<PathBuf>) -> bool {
        if self.is_empty() {
            return false;
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return true;
        }
        let leads_through = |path: &Path, entry: &MountEntry| path.starts_with(&entry.point);
        let mut entries = self.0.entries.iter();
        if path.is_absolute() {
            return entries.any(|entry| leads_through(path, entry) && entry.is_remote());
        }
        let Some(here) = here() else { return true };
        let full = here.join(path);
        let leads_from_here =
            |entry: &MountEntry| leads_through(&full, entry) && !leads_through(&here, entry);
        self.0.find_by_path(&here).is_some_and(MountEntry::is_remote)
            || entries.any(|entry| leads_from_here(entry) && entry.is_remote())
    }

    /// Returns whether the file system with this device, as `st_dev`, is one of them.
    pub fn has_device(&self, device: u64) -> bool {
        self.0.entries.iter().any(|entry| entry.device == device && entry.is_remote())
    }
}

impl From<MountTable> for RemoteMounts {
    fn from(mut table: MountTable) -> Self {
        let is_remote = |entry: &&MountEntry| entry.is_remote();
        let points = table.entries.iter().filter(is_remote).map(|entry| entry.point.clone());
        let points: Vec<_> = points.collect();
        table.entries.retain(|entry| points.iter().any(|point| entry.point.starts_with(point)));
        Self(table)
    }
}

impl MountEntry {
    /// Returns whether another machine or process serves the file system, so that it may never answer.
    ///
    /// # Examples
    /// See [`MountTable::read`].
    pub fn is_remote(&self) -> bool {
        is_remote(&self.file_system)
    }

    /// Parses a line: mount, parent, major:minor, root, mount point, options, any number of fields, `-`,
    /// type, source, options of the file system.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let (major, minor) = str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let point = fields.nth(1).filter(|point| point.starts_with(b"/"))?;
        fields.by_ref().find(|field| field == b"-")?;
        let (file_system, source) = (fields.next()?, fields.next()?);
        Some(Self {
            id,
            device,
            point: unescaped(point).into(),
            file_system: String::from_utf8_lossy(file_system).into_owned(),
            source: unescaped(source),
        })
    }
}

/// The category of a file system, by the name of its type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Remote,
    Local,
    MadeUp,
    Unknown,
}

impl Sort {
    fn of(file_system: &str) -> Self {
        match file_system {
            "9p" | "afs" | "beegfs" | "ceph" | "cifs" | "coda" | "fuse" | "gfs2" | "glusterfs"
            | "lustre" | "nfs" | "nfs4" | "ocfs2" | "smb3" | "smbfs" | "virtiofs" => Self::Remote,
            // A FUSE server that stores its files on a block device is called `fuseblk`.
            _ if file_system.starts_with("fuse.") || file_system.starts_with("fuseblk") => {
                Self::Remote
            }
            "btrfs" | "devtmpfs" | "erofs" | "exfat" | "ext2" | "ext3" | "ext4" | "f2fs"
            | "hugetlbfs" | "iso9660" | "ramfs" | "rootfs" | "squashfs" | "tmpfs" | "udf"
            | "vfat" | "xfs" => Self::Local,
            "binfmt_misc" | "bpf" | "cgroup" | "cgroup2" | "configfs" | "debugfs" | "devpts"
            | "efivarfs" | "fusectl" | "mqueue" | "proc" | "securityfs" | "sysfs" | "tracefs" => {
                Self::MadeUp
            }
            _ => Self::Unknown,
        }
    }
}

/// Returns whether a file system of this type is served by another machine or process, which may never
/// answer.
pub(crate) fn is_remote(file_system: &str) -> bool {
    Sort::of(file_system) == Sort::Remote
}

/// Returns whether the kernel alone serves a file system of this type, on devices and memory of this machine.
/// Then no operation on it returns `ECANCELED`: its errors are those of devices. An unlisted type may return
/// it: a file server chooses its own errors, and a stacked file system passes them on.
pub(crate) fn is_local(file_system: &str) -> bool {
    Sort::of(file_system) == Sort::Local
}

/// Returns whether a write to a regular file on a file system of this type waits at most for devices of this
/// machine, as a rule: local file systems, and overlays, mostly of these.
pub(crate) fn is_served_here(file_system: &str) -> bool {
    is_local(file_system) || file_system == "overlay"
}

/// Returns whether calls for a file on a file system of this type wait for no server, as a rule: those that
/// [are served here](is_served_here), and those that the kernel generates. An unlisted type may have one.
pub(crate) fn has_no_server(file_system: &str) -> bool {
    is_served_here(file_system) || is_made_up(file_system)
}

/// Returns whether all regular files and directories on a file system of this type have positions, and those
/// opened to be read or written can be. A file of a FUSE server need not, nor one that the kernel generates.
pub(crate) fn has_positions(file_system: &str) -> bool {
    let are_files = matches!(file_system, "ceph" | "cifs" | "nfs" | "nfs4" | "overlay" | "smb3");
    are_files || is_local(file_system)
}

/// Returns whether a file system of this type keeps its files in memory, so that there is no device to wait
/// for.
pub(crate) fn is_in_memory(file_system: &str) -> bool {
    matches!(file_system, "ramfs" | "tmpfs")
}

/// Returns whether closing a file on a file system of this type tells no server: local file systems, those
/// that the kernel generates, overlays, mostly of local file systems, and the simulated kernel's.
pub(crate) fn closes_at_once(file_system: &str) -> bool {
    is_local(file_system) || is_made_up(file_system) || ["overlay", "sim"].contains(&file_system)
}

/// Returns whether the kernel generates the files of a file system of this type. A program can create few
/// names there or none, and no path of ordinary files leads there.
pub(crate) fn is_made_up(file_system: &str) -> bool {
    Sort::of(file_system) == Sort::MadeUp
}

/// Returns the text of this process's table.
fn read_text() -> rustix::io::Result<Vec<u8>> {
    let path = c"/proc/self/mountinfo";
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::with_capacity(16 << 10);
    loop {
        text.reserve(4 << 10);
        if rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text))? == 0 {
            return Ok(text);
        }
    }
}

/// Returns a field unescaped: the table has blanks, tabs, line ends, backslashes and `#` as three octal
/// digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use rustix::fs::makedev;

    /// The root, one file system at two points, and one that another machine serves.
    const TABLE: &[u8] = b"22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw\n\
        28 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw\n\
        31 28 254:0 /a /with\\040space\\134 rw - fuse.sshfs host:/ rw\n";

    #[test]
    fn mounts_are_found_by_number_and_by_device() {
        let table = MountTable::parse(TABLE);
        let numbers: Vec<_> = table.entries().iter().map(|entry| entry.id).collect();
        assert_eq!(numbers, [22, 28, 31]);
        let entry = table.find_by_id(31).expect("it is there");
        assert_eq!(entry.point, Path::new("/with space\\"));
        assert_eq!(entry.device, makedev(254, 0));
        assert_eq!((&*entry.file_system, &*entry.source), ("fuse.sshfs", OsStr::new("host:/")));
        assert!(entry.is_remote());
        let remote = RemoteMounts::from(table.clone());
        assert_eq!(remote.0.entries, std::slice::from_ref(entry));
        let entry = table.find_by_device(makedev(254, 0)).expect("it is there");
        assert_eq!((&*entry.point, &*entry.source), (Path::new("/"), OsStr::new("/dev/root")));
        assert_eq!(table.find_by_id(99), None);
        assert_eq!(table.find_by_device(makedev(0, 254)), None);
    }

    #[test]
    fn who_may_never_answer_is_remote() {
        for name in ["nfs4", "fuse", "fuse.sshfs", "fuseblk", "9p", "virtiofs", "cifs"] {
            assert!(is_remote(name), "{name}");
        }
        for name in ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fusectl", ""] {
            assert!(!is_remote(name), "{name}");
        }
    }

    #[test]
    fn paths_that_lead_to_remote_mounts_are_known_by_their_letters() {
        let remote = RemoteMounts::from(MountTable::parse(
            b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
              31 1 0:50 / /net rw - nfs4 host:/export rw\n\
              32 31 8:2 / /net/disk rw - xfs /dev/sdb1 rw\n",
        ));
        let may_hold = |path: &str, here: Option<&str>| {
            remote.may_hold(Path::new(path), || here.map(PathBuf::from))
        };
        for (path, expected) in [
            ("/net", true),
            ("/net/a", true),
            ("/net/disk/a", true), // on the way to the disk
            ("/network", false),
            ("/a/../b", true),
            ("..", true),
            ("a", true),
        ] {
            assert_eq!(may_hold(path, None), expected, "{path}");
        }
        for (here, path, expected) in [
            ("/net", "a", true),
            ("/net/a", "b", true),
            ("/net/disk", "a", false),
            ("/", "net/a", true),
            ("/", "a", false),
            ("/home", "net", false),
        ] {
            assert_eq!(may_hold(path, Some(here)), expected, "{path} in {here}");
        }
        assert!(remote.has_device(makedev(0, 50)) && !remote.has_device(makedev(8, 2)));
        let none = RemoteMounts::default();
        assert!(!none.may_hold(Path::new("../a"), || unreachable!("there is no mount")));
    }

    /// The threads of the engine share one table.
    #[test]
    fn a_table_is_for_all_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<RemoteMounts>();
        shared::<crate::MountFacts>();
    }

    #[test]
    fn a_path_is_on_the_innermost_mount() {
        let table = MountTable::parse(
            b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
              23 22 0:5 / /a rw shared:1 - tmpfs none rw\n\
              24 22 0:6 / /a\\040b rw shared:1 master:2 - xfs none rw\n\
              25 22 0:7 / /a rw - btrfs none rw\n",
        );
        let kind = |path: &str| &*table.find_by_path(Path::new(path)).unwrap().file_system;
        assert_eq!(kind("/"), "ext4");
        assert_eq!(kind("/ab"), "ext4");
        // Two file systems are mounted at this point.
        assert_eq!((kind("/a"), kind("/a/c")), ("btrfs", "btrfs"));
        assert_eq!(kind("/a b/c"), "xfs");
        assert_eq!(table.find_by_path(Path::new("a")), None);
        assert_eq!(table.find_by_path(Path::new("")), None);
    }

    #[test]
    fn of_several_roots_the_last_holds_what_no_other_mount_does() {
        let table = MountTable::parse(
            b"1 1 0:2 / / rw - rootfs none rw\n\
              23 1 0:5 / /a rw - tmpfs none rw\n\
              28 1 254:0 / / rw - ext4 /dev/root rw\n",
        );
        let id = |path: &str| table.find_by_path(Path::new(path)).map(|entry| entry.id);
        assert_eq!((id("/"), id("/b"), id("/a/b")), (Some(28), Some(28), Some(23)));
        assert_eq!(MountTable::parse(b"").find_by_path(Path::new("/")), None);
        // In a root without a mount at its top, such as one of `chroot(2)`.
        let table = MountTable::parse(b"23 1 0:5 / /a rw - tmpfs none rw\n");
        assert_eq!(table.find_by_path(Path::new("/b")), None);
    }

    #[test]
    fn escapes_are_undone_and_what_is_none_stays() {
        assert_eq!(unescaped(b"a\\040b\\9\\"), "a b\\9\\");
        assert_eq!(unescaped(b"\\777"), "\\777");
        assert_eq!(unescaped(br"\011\012\134\043"), "\t\n\\#");
        // The result of an escape is not unescaped again, and a sign is no digit.
        assert_eq!(unescaped(br"\134040\04\+12"), r"\040\04\+12");
        let table = MountTable::parse(br"5 1 0:9 /\040 /x\012y rw - fuse.a\040b dev\040ice rw");
        let entry = table.find_by_id(5).expect("it is of the form");
        assert_eq!((&*entry.point, &*entry.source), (Path::new("/x\ny"), OsStr::new("dev ice")));
        assert_eq!(entry.file_system, "fuse.a\\040b");
    }

    #[test]
    fn names_need_not_be_utf_8() {
        let table = MountTable::parse(b"5 1 0:9 / /\xff\\377 rw - fuse.\xff \xfe rw\n");
        let path = Path::new(OsStr::from_bytes(b"/\xff\xff/below"));
        let entry = table.find_by_path(path).expect("it is mounted there");
        assert_eq!(entry.source.as_bytes(), b"\xfe");
        assert_eq!(entry.file_system, "fuse.\u{fffd}");
    }

    #[test]
    fn lines_of_another_form_are_left_out() {
        let odd: [&[u8]; 12] = [
            b"",
            b"garbage",
            b" - ",
            b"31",
            b"31 - x",
            b"x 28 254:0 / / rw - ext4 /dev/root rw",
            b"-1 28 254:0 / / rw - ext4 /dev/root rw",
            b"31 28 254 / / rw - ext4 /dev/root rw",
            b"31 28 254:\xff / / rw - ext4 /dev/root rw",
            b"31 28 254:0 / relative rw - ext4 /dev/root rw",
            b"31 28 254:0 / / rw shared:1 ext4 /dev/root rw",
            b"31 28 254:0 / / rw - ext4",
        ];
        for line in odd {
            let text = [TABLE, line, b"\n", TABLE].concat();
            let entries = MountTable::parse(&text).entries;
            assert_eq!(entries.len(), 6, "{}", line.escape_ascii());
        }
        // A source that cannot be printed is empty.
        let table = MountTable::parse(b"31 28 0:5 / /a rw - tmpfs  rw");
        assert_eq!(table.find_by_id(31).map(|entry| &*entry.source), Some(OsStr::new("")));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn this_process_has_a_table() {
        let table = MountTable::read().expect("there is /proc");
        let entry = table.find_by_path(Path::new("/proc/self")).expect("it is mounted");
        assert_eq!(entry.file_system, "proc");
        assert_eq!(table.find_by_id(entry.id), Some(entry));
    }
}
