//! Names on a file system in memory are made by plain calls, with the same results as by the queue.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{Driver, Op, OpKind, Operation};

use crate::bypass::{c, each};
use crate::support::{TempDir, errno, finish, skip};

const CREATE: u32 = OFlags::CREATE.bits() | OFlags::WRONLY.bits();
const EXCLUSIVE: u32 = CREATE | OFlags::EXCL.bits();
const CUT: u32 = CREATE | OFlags::TRUNC.bits();

fn done<O: Operation>(driver: &Driver, mut op: Op<O>) -> O::Output {
    finish(driver, &mut op)
}

fn inline(driver: &Driver, kind: OpKind) -> u64 {
    driver.counters().of(kind).inline
}

#[test]
fn names_are_made_at_once() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    each(|driver| {
        let handle = &driver;
        let base = folder.path().join(inline(&driver, OpKind::Mkdir).to_string());
        let _ = fs::remove_dir_all(&base);
        let make = |path, mode| handle.mkdir(None, c(path), mode);
        done(&driver, make(base.clone(), 0o700)).unwrap();
        assert_eq!(inline(&driver, OpKind::Mkdir), 1);
        assert_eq!(errno(done(&driver, make(base.clone(), 0o700))), Errno::EXIST);
        assert_eq!(inline(&driver, OpKind::Mkdir), 2);

        let open = |name: &str, flags| handle.open(None, c(base.join(name)), flags, 0o600);
        drop(done(&driver, open("a", EXCLUSIVE)).unwrap());
        drop(done(&driver, open("a", CREATE)).unwrap());
        assert_eq!(errno(done(&driver, open("a", EXCLUSIVE))), Errno::EXIST);
        drop(done(&driver, open("new", CUT)).unwrap());
        assert_eq!(inline(&driver, OpKind::Open), 4);
        // An existing file is truncated by the queue, since it may hold much.
        fs::write(base.join("a"), "much").unwrap();
        drop(done(&driver, open("a", CUT)).unwrap());
        assert_eq!(fs::read(base.join("a")).unwrap(), b"");
        assert_eq!(inline(&driver, OpKind::Open), 4);
        // A link may lead to another file system.
        symlink("target", base.join("link")).unwrap();
        drop(done(&driver, open("link", CREATE)).unwrap());
        assert!(base.join("target").exists());
        assert_eq!(inline(&driver, OpKind::Open), 4);
        // Paths relative to an open directory, and odd names.
        let at = done(&driver, handle.open(None, c(&base), OFlags::PATH.bits(), 0)).unwrap();
        let opened = inline(&driver, OpKind::Open);
        drop(done(&driver, handle.open(Some(&at), c("b"), EXCLUSIVE, 0o600)).unwrap());
        done(&driver, handle.mkdir(Some(&at), c("below"), 0o700)).unwrap();
        drop(done(&driver, handle.open(Some(&at), c("below/c"), EXCLUSIVE, 0o600)).unwrap());
        assert_eq!(
            (inline(&driver, OpKind::Open), inline(&driver, OpKind::Mkdir)),
            (opened + 2, 3)
        );
        assert!(base.join("b").exists() && base.join("below/c").exists());
        done(&driver, handle.mkdir(Some(&at), c("slash/"), 0o700)).unwrap();
        assert!(base.join("slash").is_dir());
        for name in [".", "..", "a/b", "none/b", ""] {
            let expected = fs::create_dir(base.join(name)).unwrap_err().raw_os_error();
            let error = done(&driver, handle.mkdir(Some(&at), c(name), 0o700)).unwrap_err();
            let expected = if name.is_empty() { Some(libc::ENOENT) } else { expected };
            assert_eq!(error.raw_os_error(), expected, "{name}");
        }
        fs::remove_dir_all(&base).unwrap();
    });
}

#[test]
fn little_is_copied_at_once() {
    let Some(folder) = TempDir::in_memory() else { skip!("/dev/shm cannot be written to") };
    each(|driver| {
        let handle = &driver;
        let from = folder.path().join("from");
        fs::write(&from, vec![7; 100_000]).unwrap();
        let to = fs::File::create(folder.path().join("to")).unwrap();
        let from = driver.adopt(fs::File::open(&from).unwrap().into());
        let to = driver.adopt(to.into());
        let copy = |at, len| handle.copy_file_range(&from, at, &to, at, len);
        assert_eq!(done(&driver, copy(0, 64 << 10)).unwrap(), 64 << 10);
        assert_eq!(done(&driver, copy(64 << 10, 64 << 10)).unwrap(), 100_000 - (64 << 10));
        assert_eq!(done(&driver, copy(100_000, 64 << 10)).unwrap(), 0);
        let copied = driver.counters().of(OpKind::Copy);
        assert_eq!((copied.inline, copied.submitted), (3, 0));
        assert_eq!(done(&driver, copy(0, (64 << 10) + 1)).unwrap(), (64 << 10) + 1);
        assert_eq!(driver.counters().of(OpKind::Copy).inline, 3);
        assert!(fs::read(folder.path().join("to")).unwrap() == vec![7; 100_000]);
    });
}
