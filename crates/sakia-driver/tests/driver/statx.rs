//! What the kernel knows of a file, with `std` as the model.

use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sakia_driver::{StatxResult, Wait};

use crate::support::{TempDir, drain, driver, errno, finish};

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap()
}

fn assert_same(ours: &StatxResult, model: &Metadata) {
    assert_eq!(ours.mask & 0x7ff, 0x7ff);
    assert_eq!((ours.size, ours.inode), (model.len(), model.ino()));
    assert_eq!((u32::from(ours.mode), u64::from(ours.links)), (model.mode(), model.nlink()));
    assert_eq!((ours.uid, ours.gid), (model.uid(), model.gid()));
    assert_eq!((ours.blocks, u64::from(ours.block_size)), (model.blocks(), model.blksize()));
    let device = rustix::fs::makedev(ours.dev_major, ours.dev_minor);
    assert_eq!(device, model.dev());
    let time = |seconds: i64, nanoseconds: i64| (seconds, u32::try_from(nanoseconds).unwrap());
    let modified = (ours.modified.seconds, ours.modified.nanoseconds);
    assert_eq!(modified, time(model.mtime(), model.mtime_nsec()));
    let changed = (ours.changed.seconds, ours.changed.nanoseconds);
    assert_eq!(changed, time(model.ctime(), model.ctime_nsec()));
    assert_eq!((ours.is_file(), ours.is_directory()), (model.is_file(), model.is_dir()));
}

#[test]
fn of_paths_and_descriptors() {
    let folder = TempDir::new();
    let path = folder.file("file", 12_345);
    let driver = driver();
    let directory = driver.adopt(File::open(folder.path()).unwrap().into());
    let file = driver.adopt(File::open(&path).unwrap().into());
    let model = fs::metadata(&path).unwrap();
    assert_same(&finish(&driver, &mut driver.statx(None, c(&path), 0)).unwrap(), &model);
    assert_same(&finish(&driver, &mut driver.statx_fd(&file)).unwrap(), &model);
    let mut relative = driver.statx(Some(&directory), c("file"), 0);
    assert_same(&finish(&driver, &mut relative).unwrap(), &model);
    let model = fs::metadata(folder.path()).unwrap();
    assert_same(&finish(&driver, &mut driver.statx_fd(&directory)).unwrap(), &model);
    assert_same(&finish(&driver, &mut driver.statx(None, c("/proc"), 0)).unwrap(), &{
        fs::metadata("/proc").unwrap()
    });
}

#[test]
fn of_links_and_what_they_point_to() {
    let folder = TempDir::new();
    let path = folder.file("file", 77);
    let link = folder.join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let driver = driver();
    let followed = finish(&driver, &mut driver.statx(None, c(&link), 0)).unwrap();
    assert_same(&followed, &fs::metadata(&link).unwrap());
    let nofollow = AtFlags::SYMLINK_NOFOLLOW.bits();
    let itself = finish(&driver, &mut driver.statx(None, c(&link), nofollow)).unwrap();
    assert_same(&itself, &fs::symlink_metadata(&link).unwrap());
    assert!(!itself.is_file() && !itself.is_directory());
    fs::remove_file(&path).unwrap();
    let mut dangling = driver.statx(None, c(&link), 0);
    assert_eq!(errno(finish(&driver, &mut dangling)), Errno::NOENT);
}

#[test]
fn of_what_is_not_there() {
    let folder = TempDir::new();
    let driver = driver();
    let missing = &mut driver.statx(None, c(folder.join("none")), 0);
    assert_eq!(errno(finish(&driver, missing)), Errno::NOENT);
    assert_eq!(errno(finish(&driver, &mut driver.statx(None, c(""), 0))), Errno::NOENT);
    let nonsense = &mut driver.statx(None, c("/"), 1 << 30);
    assert_eq!(errno(finish(&driver, nonsense)), Errno::INVAL);
}

#[test]
fn results_of_many_at_a_time_do_not_mix() {
    let folder = TempDir::new();
    let driver = driver();
    let paths: Vec<_> = (0..100).map(|len| folder.file(&len.to_string(), len)).collect();
    for _ in 0..10 {
        let mut statx: Vec<_> = paths.iter().map(|path| driver.statx(None, c(path), 0)).collect();
        driver.turn(Wait::Poll).unwrap();
        drop(statx.split_off(50)); // while workers write their results
        for (len, statx) in statx.iter_mut().enumerate() {
            assert_eq!(finish(&driver, statx).unwrap().size, len as u64);
        }
    }
    drain(&driver);
    assert_eq!((driver.counters().pooled, driver.counters().boxed), (1000, 0));
}
