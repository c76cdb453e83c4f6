//! File metadata from the kernel, with `std` as the model.

use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sakia_driver::{Bypass, OpKind, Rules, StatxResult, Wait};

use crate::bypass::each;
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

/// Makes each `statx(2)` of this thread with this mask fail with `EPERM` from now on.
fn refuse_statx(mask: u32) {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32);
    let equal = |k, jf| libc::sock_filter {
        jf,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k)
    };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let (nr, args) = (offset_of!(libc::seccomp_data, nr), offset_of!(libc::seccomp_data, args));
    let mut program = [
        load(nr),
        equal(libc::SYS_statx as u32, 3),
        load(args + 3 * size_of::<u64>() + if cfg!(target_endian = "big") { 4 } else { 0 }),
        equal(mask, 1),
        statement(libc::BPF_RET | libc::BPF_K, refused),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes only numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the program outlives the call, which copies it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The driver's own facts about a descriptor come from the same call as the requested metadata.
#[test]
fn the_first_question_about_a_descriptor_is_one_call() {
    let folder = TempDir::new();
    let path = folder.file("file", 12_345);
    let model = fs::metadata(&path).unwrap();
    let ask = move || {
        let driver = driver();
        driver.set_bypass(Bypass::Rules(Rules::default()));
        // The first file of a mount makes the driver read the mount table.
        let first = driver.adopt(File::open(&path).unwrap().into());
        assert_same(&finish(&driver, &mut driver.statx_fd(&first)).unwrap(), &model);
        // The filter ends with the thread.
        refuse_statx(StatxResult::BASIC);
        let file = driver.adopt(File::open(&path).unwrap().into());
        let before = driver.counters().of(OpKind::Statx).inline;
        assert_same(&finish(&driver, &mut driver.statx_fd(&file)).unwrap(), &model);
        assert_eq!(driver.counters().of(OpKind::Statx).inline, before + 1);
        // Each further request is a call, since an earlier answer may be out of date.
        assert_eq!(errno(finish(&driver, &mut driver.statx_fd(&file))), Errno::PERM);
    };
    std::thread::spawn(ask).join().unwrap();
}

#[test]
fn each_answer_about_a_descriptor_is_new() {
    let folder = TempDir::new();
    let path = folder.file("file", 10);
    each(|driver| {
        let file = driver.adopt(File::open(&path).unwrap().into());
        for len in [10, 20, 5] {
            File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            assert_eq!(finish(&driver, &mut driver.statx_fd(&file)).unwrap().size, len);
        }
    });
}
