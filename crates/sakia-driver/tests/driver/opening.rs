//! Opening paths.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, FileKind, Wait};

use crate::support::{TempDir, content, driver, errno, finish, identity};

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap()
}

const RDONLY: u32 = OFlags::RDONLY.bits();
const CREATE: u32 = OFlags::WRONLY.union(OFlags::CREATE).bits();

#[test]
fn to_read_and_to_create() {
    let folder = TempDir::new();
    let driver = driver();
    let path = folder.file("file", 100);
    let fd = finish(&driver, &mut driver.open(None, c(&path), RDONLY, 0)).unwrap();
    assert_eq!((identity(fd.raw()), fd.kind()), (Some(path), FileKind::Bounded));
    let (result, buf) = finish(&driver, &mut driver.read(&fd, vec![0; 4], 7));
    assert_eq!((result.unwrap(), buf[0]), (4, content(7)));

    let created = folder.join("created");
    let fd = finish(&driver, &mut driver.open(None, c(&created), CREATE, 0o640)).unwrap();
    finish(&driver, &mut driver.write(&fd, "new", 0)).0.unwrap();
    assert_eq!(fs::read_to_string(&created).unwrap(), "new");
    let mode = fs::metadata(&created).unwrap().permissions().mode() & 0o777;
    let umask = rustix::process::umask(rustix::fs::Mode::from(0o022));
    rustix::process::umask(umask);
    assert_eq!(mode, 0o640 & !umask.bits());
}

#[test]
fn relative_to_a_directory() {
    let folder = TempDir::new();
    folder.file("file", 10);
    let driver = driver();
    let directory = driver.adopt(File::open(folder.path()).unwrap().into());
    let fd = finish(&driver, &mut driver.open(Some(&directory), c("file"), RDONLY, 0)).unwrap();
    assert_eq!(identity(fd.raw()), Some(folder.join("file")));
    // The operation keeps the directory until its end.
    let mut open = driver.open(Some(&directory), c("file"), RDONLY, 0);
    drop(directory);
    finish(&driver, &mut open).unwrap();
    // A file is not a directory.
    let mut open = driver.open(Some(&fd), c("file"), RDONLY, 0);
    assert_eq!(errno(finish(&driver, &mut open)), Errno::NOTDIR);
}

#[test]
fn descriptors_are_not_inherited() {
    let driver = driver();
    let open = &mut driver.open(None, c("/proc/self/comm"), RDONLY, 0);
    let fd = finish(&driver, open).unwrap();
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.raw())).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
    let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
    assert_ne!(flags & OFlags::CLOEXEC.bits(), 0);
}

#[test]
fn a_fifo_is_opened_as_if_not_to_block() {
    let folder = TempDir::new();
    let path = folder.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .unwrap();
    let driver = driver();
    let open = |flags: OFlags| {
        let open = &mut driver.open(None, c(&path), flags.bits(), 0);
        finish(&driver, open).map_err(|error| Errno::from_io_error(&error).unwrap())
    };
    // The kernel tries without blocking first, and takes that answer as final.
    assert_eq!(open(OFlags::WRONLY).map(|_| ()), Err(Errno::NXIO));
    let read = open(OFlags::RDONLY).unwrap();
    let write = open(OFlags::WRONLY).unwrap();
    assert_eq!(read.kind(), FileKind::Waiting);
    // Reads and writes wait, regardless of how the open was done.
    let mut waiting = driver.read(&read, vec![0; 8], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    assert!(waiting.try_take().is_none());
    finish(&driver, &mut driver.write(&write, "later", CURRENT_POSITION)).0.unwrap();
    assert_eq!(finish(&driver, &mut waiting).0.unwrap(), 5);
}
