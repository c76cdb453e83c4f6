//! The descriptors of this process, for every backend that acts on them.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use crate::backend::{Descriptors, FileFacts, FileKind};
use crate::bypass::{RemoteMounts, is_remote};

/// The descriptors of this process.
pub(crate) struct KernelDescriptors;

impl Descriptors for KernelDescriptors {
    fn close(&self, raw: i32) -> io::Result<()> {
        // SAFETY: the driver owns the descriptor, gives it up here, and uses the number no more.
        unsafe { rustix::io::try_close(raw) }.map_err(io::Error::from)
    }

    fn facts(&self, raw: i32) -> FileFacts {
        // SAFETY: the driver keeps the descriptor open as long as an `Fd` asks about it.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        // What a server of files would have to be asked for is not: it may never answer.
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MNT_ID;
        let Ok(stat) = rustix::fs::statx(fd, c"", at, wanted) else {
            return facts_by_fstat(fd);
        };
        let file_type = FileType::from_raw_mode(stat.stx_mode.into());
        FileFacts {
            kind: kind_of(file_type),
            size: (file_type == FileType::RegularFile).then_some(stat.stx_size),
            device: Some(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)),
            mount_id: (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id),
        }
    }

    fn status_flags(&self, raw: i32) -> u32 {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        rustix::fs::fcntl_getfl(fd).map_or(0, |flags| flags.bits())
    }

    fn file_system(&self, facts: &FileFacts) -> String {
        mount_info().map_or_else(|_| String::new(), |text| find_type(&text, facts))
    }

    fn remote_mounts(&self) -> RemoteMounts {
        let text = mount_info().unwrap_or_default();
        let here = rustix::process::getcwd(Vec::new());
        find_remote(&text, here.as_ref().map_or(b"", |path| path.to_bytes()))
    }

    fn limits_file_size(&self) -> bool {
        rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some()
    }

    fn make_blocking(&self, raw: i32) {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        if let Ok(flags) = rustix::fs::fcntl_getfl(fd) {
            // It was set a moment ago in the same way.
            let _ = rustix::fs::fcntl_setfl(fd, flags - OFlags::NONBLOCK);
        }
    }
}

/// Where there is no `statx(2)`.
#[cold]
fn facts_by_fstat(fd: BorrowedFd<'_>) -> FileFacts {
    match rustix::fs::fstat(fd) {
        Ok(stat) => {
            let file_type = FileType::from_raw_mode(stat.st_mode);
            let is_file = file_type == FileType::RegularFile;
            FileFacts {
                kind: kind_of(file_type),
                device: Some(stat.st_dev),
                mount_id: None,
                size: if is_file { stat.st_size.try_into().ok() } else { None },
            }
        }
        // Not to know is to expect the worst.
        Err(_) => FileFacts::UNKNOWN,
    }
}

fn kind_of(file_type: FileType) -> FileKind {
    match file_type {
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice => FileKind::Bounded,
        _ => FileKind::Waiting,
    }
}

/// The table of mounts. The kernel makes it up while it is read, so that nothing waits.
fn mount_info() -> rustix::io::Result<Vec<u8>> {
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

/// The type of the file system that a file is on; empty when the table does not have it.
///
/// A line: mount, parent, major:minor, root, mount point, options, any number of fields, `-`, type, and
/// more. Source: `proc_pid_mountinfo(5)`.
fn find_type(text: &[u8], facts: &FileFacts) -> String {
    let device = facts
        .device
        .map(|device| format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
    let mount_id = facts.mount_id.map(|id| id.to_string());
    let line_type = |line: &str| -> Option<String> {
        let mut fields = line.split(' ');
        let (id, at) = (fields.next()?, fields.nth(1)?);
        let is_it = match (&mount_id, &device) {
            (Some(mount_id), _) => mount_id == id,
            (None, Some(device)) => device == at,
            (None, None) => false,
        };
        let mut fields = fields.skip_while(|&field| field != "-");
        is_it.then(|| fields.nth(1).map(str::to_owned)).flatten()
    };
    String::from_utf8_lossy(text).lines().find_map(line_type).unwrap_or_default()
}

/// The mounts of the table that somebody else serves, and whether the directory `here` is on one.
fn find_remote(text: &[u8], here: &[u8]) -> RemoteMounts {
    let mut found = RemoteMounts::default();
    // The mount point that `here` is below of, the longest one so far, and whether it is remote.
    let mut above: (usize, bool) = (0, false);
    for line in text.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b' ');
        let Some(point) = fields.nth(4).map(unescape) else { continue };
        let mut fields = fields.skip_while(|&field| field != b"-");
        let Some(file_system) = fields.nth(1) else { continue };
        let is_remote = is_remote(&String::from_utf8_lossy(file_system));
        let is_above = point == b"/"
            || here
                .strip_prefix(&point[..])
                .is_some_and(|rest| rest.first().is_none_or(|&byte| byte == b'/'));
        // Later lines are mounted over earlier ones.
        if is_above && point.len() >= above.0 {
            above = (point.len(), is_remote);
        }
        if is_remote {
            found.points.push(point);
        }
    }
    found.holds_working_directory = above.1;
    found
}

/// A path as it is: in the table blanks, tabs, line ends and backslashes are octal numbers.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                path.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                path.push(*first);
                rest = tail;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const TABLE: &[u8] = b"22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw\n\
        28 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw\n\
        31 28 254:0 /a /with\\040space rw - fuse.sshfs host:/ rw\n";

    #[test]
    fn the_type_is_found_by_mount_and_else_by_device() {
        let facts = |mount_id, device| FileFacts { device, mount_id, ..FileFacts::UNKNOWN };
        let root = Some(rustix::fs::makedev(254, 0));
        assert_eq!(find_type(TABLE, &facts(Some(31), root)), "fuse.sshfs");
        assert_eq!(find_type(TABLE, &facts(Some(28), root)), "ext4");
        assert_eq!(find_type(TABLE, &facts(None, root)), "ext4");
        assert_eq!(find_type(TABLE, &facts(Some(99), root)), "");
        assert_eq!(find_type(b"garbage\n\n - \n", &facts(Some(1), None)), "");
    }

    #[test]
    fn remote_mounts_are_found_and_whether_one_holds_a_directory() {
        let remote = |here: &str| find_remote(TABLE, here.as_bytes());
        assert_eq!(remote("/home").points, [b"/with space".to_vec()]);
        assert!(!remote("/home").holds_working_directory);
        assert!(!remote("/with spaces").holds_working_directory);
        assert!(remote("/with space/below").holds_working_directory);
        assert_eq!(find_remote(b"garbage\n\n - \n", b"/"), RemoteMounts::default());
    }

    #[test]
    fn a_file_of_proc_is_known_to_be_one() {
        let file = std::fs::File::open("/proc/self/mountinfo").expect("there is /proc");
        let facts = KernelDescriptors.facts(file.as_raw_fd());
        assert_eq!(facts.kind, FileKind::Bounded);
        assert_eq!(KernelDescriptors.file_system(&facts), "proc");
    }
}
