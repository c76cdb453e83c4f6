//! Large files whose ranges are copied by several workers.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sakia_copy::{Copier, Options, Progress, Report, Sparse, copy_tree};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};
use sakia_testkit::small_fs::SmallFs;

use crate::support::{Folder, assert_same, bytes, copy, failure, runtime, set_attribute, tree};

const MIB: u64 = 1 << 20;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Copies until the second worker has helped, since it may start after the end of the work, and checks each
/// copy.
fn until_helped(mut copied: impl FnMut() -> Report) -> Report {
    for _ in 0..200 {
        let report = copied();
        if report.counters.ranges > 0 {
            return report;
        }
    }
    panic!("one worker did it all");
}

/// Returns contents in which no two units are equal. They are fast to make.
fn contents(len: u64) -> Vec<u8> {
    let unit = bytes(MIB as usize, 1);
    let mut all: Vec<u8> = unit.iter().copied().cycle().take(len as usize).collect();
    for (number, unit) in all.chunks_mut(MIB as usize).enumerate() {
        unit[0] = number as u8;
    }
    all
}

/// Returns a file of this many bytes, the root of a copy.
fn source(folder: &Folder, len: u64) -> PathBuf {
    folder.file("from", contents(len))
}

#[test]
fn both_workers_copy_one_file() {
    let (memory, disk) = (Folder::in_memory(), Folder::new());
    let (from, to) = (source(&memory, 64 * MIB + 12_345), disk.path("to"));
    fs::set_permissions(&from, std::os::unix::fs::PermissionsExt::from_mode(0o440)).unwrap();
    set_attribute(&from, "user.test", b"value");
    for sparse in [Sparse::Auto, Sparse::Never] {
        let mut options = Options::archive();
        options.sparse = sparse;
        let report = until_helped(|| {
            let report = copy(&from, &to, &options);
            assert!(report.is_complete(), "{report:#?}");
            assert_eq!(report.counts.bytes, 64 * MIB + 12_345);
            assert_same(&tree(&to), &tree(&from));
            report
        });
        assert_eq!((report.counts.files, report.counters.parts), (1, 0));
    }
}

/// In memory or within a file system, a helper would not make the copy faster.
#[test]
fn one_worker_copies_a_file_where_two_are_no_faster() {
    let (memory, disk) = (Folder::in_memory(), Folder::new());
    let from = source(&memory, 24 * MIB);
    copy(&from, disk.path("from"), &Options::new());
    for (from, to) in [
        (from, memory.path("to")),
        (disk.path("from"), memory.path("other")),
        (disk.path("from"), disk.path("to")),
    ] {
        let report = copy(&from, &to, &Options::new());
        assert!(report.is_complete(), "{report:#?}");
        assert_eq!(report.counters.ranges, 0);
    }
}

/// Another worker could otherwise begin the last file only after the first one is done.
#[test]
fn the_last_file_of_a_directory_is_given_away() {
    let folder = Folder::in_memory();
    let from = folder.dir("from");
    let all = contents(24 * MIB);
    for name in ["one", "other"] {
        fs::write(from.join(name), &all).unwrap();
    }
    for _ in 0..200 {
        let report = copy(&from, folder.path("to"), &Options::new());
        assert!(report.is_complete(), "{report:#?}");
        fs::remove_dir_all(folder.path("to")).unwrap();
        if report.counters.parts > 0 {
            return;
        }
    }
    panic!("one worker copied both");
}

#[test]
fn holes_of_a_shared_file_stay_holes() {
    let (memory, disk) = (Folder::in_memory(), Folder::new());
    let (from, to) = (memory.path("from"), disk.path("to"));
    let file = File::create(&from).unwrap();
    for (place, len) in [(0, 9 * MIB), (10 * MIB + 4096, 30 * MIB), (70 * MIB, 4096)] {
        file.write_all_at(&contents(len), place).unwrap();
    }
    file.set_len(3 << 30).unwrap();
    until_helped(|| {
        let report = copy(&from, &to, &Options::archive());
        assert!(report.is_complete(), "{report:#?}");
        assert_eq!(report.counts.bytes, 3 << 30);
        assert_same_sparse(&from, &to);
        report
    });
}

/// Asserts that two files have equal sizes, data ranges and contents.
#[track_caller]
fn assert_same_sparse(one: &Path, other: &Path) {
    use rustix::fs::SeekFrom;
    let [one, other] = [one, other].map(|path| File::open(path).unwrap());
    assert_eq!(one.metadata().unwrap().len(), other.metadata().unwrap().len());
    let mut offset = 0;
    loop {
        let [begin, is] = [&one, &other].map(|file| rustix::fs::seek(file, SeekFrom::Data(offset)));
        assert_eq!(is, begin);
        let Ok(begin) = begin else { return };
        let [end, is] = [&one, &other].map(|file| rustix::fs::seek(file, SeekFrom::Hole(begin)));
        assert_eq!(is, end);
        let end = end.unwrap();
        let [data, is] = [&one, &other].map(|file| {
            let mut data = vec![0; (end - begin) as usize];
            file.read_exact_at(&mut data, begin).unwrap();
            data
        });
        assert!(is == data, "{begin}..{end}");
        offset = end;
    }
}

#[test]
fn a_full_file_system_fails_a_shared_file_once() {
    let folder = Folder::in_memory();
    let from = source(&folder, 64 * MIB);
    let small = available!(SmallFs::ext4(24 << 20));
    let to = small.path().join("to");
    until_helped(|| {
        let report = copy(&from, &to, &Options::new());
        let text = failure(&report);
        assert_eq!(report.failures[0].raw_os_error(), Some(ENOSPC), "{text}");
        assert_eq!(report.failures[0].path(), to);
        assert!(report.is_stopped && !to.exists());
        assert_eq!((report.counts.files, report.counts.bytes), (0, 0));
        report
    });
}

/// The error occurs in one range, on the disk of the source or of the copy.
#[test]
fn an_error_of_one_range_fails_the_file_once() {
    const LEN: usize = 24 << 20;
    let builder = Fuse::builder().file("bad", pattern(LEN)).file("good", pattern(100));
    let fuse = available!(builder.direct_io(true).mount());
    let (memory, folder) = (Folder::in_memory(), Folder::new());
    let from = memory.file("from", pattern(LEN));
    for skip in [1, 4, 10] {
        until_helped(|| {
            let to = folder.path("to");
            fuse.script(Rule::on(Opcode::READ).file("bad").skip(skip).errno(EIO));
            let report = copy(fuse.path(), &to, &Options::new());
            fuse.release();
            assert!(failure(&report).contains("bad"), "{report:#?}");
            assert_eq!(report.failures[0].raw_os_error(), Some(EIO));
            assert!(!to.join("bad").exists() && to.join("good").exists());
            assert_eq!((report.counts.files, report.counts.bytes), (1, 100));
            fs::remove_dir_all(to).unwrap();
            report
        });
        until_helped(|| {
            let to = fuse.join("new");
            fuse.script(Rule::on(Opcode::WRITE).file("new").skip(skip).errno(EIO));
            let report = copy(&from, &to, &Options::new());
            fuse.release();
            assert_eq!(failure(&report).split(' ').next(), Some("write"), "{report:#?}");
            assert_eq!(report.failures[0].raw_os_error(), Some(EIO));
            assert!(!to.exists());
            report
        });
    }
}

/// The copy is a prefix of the source, as long as the message says.
#[test]
fn a_shared_file_becomes_shorter() {
    const LEN: usize = 24 << 20;
    let expected = pattern(LEN);
    let builder = Fuse::builder().file("victim", expected.clone());
    let fuse = available!(builder.direct_io(true).attributes_expire(true).mount());
    let folder = Folder::new();
    let (from, to) = (fuse.join("victim"), folder.path("to"));
    until_helped(|| {
        fuse.edit("victim", |contents| contents.clone_from(&expected));
        let gate = fuse.hold(Rule::on(Opcode::READ).file("victim").skip(8));
        let report = std::thread::scope(|scope| {
            let copying = scope.spawn(|| copy(&from, &to, &Options::new()));
            gate.wait_held(1);
            fuse.edit("victim", |contents| contents.truncate(3 << 20));
            gate.open();
            copying.join().unwrap()
        });
        fuse.release();
        let text = failure(&report);
        let copied = fs::read(&to).unwrap();
        let message = format!("changed while it was copied: {} bytes instead of", copied.len());
        assert!(text.contains(&message), "{text}");
        assert!(copied == expected[..copied.len()], "{} bytes", copied.len());
        report
    });
}

/// A stopped copy leaves nothing under the name of the file, and none of its bytes are counted.
#[test]
fn a_shared_file_is_stopped() {
    let (memory, folder) = (Folder::in_memory(), Folder::new());
    let (from, to) = (source(&memory, 96 * MIB), folder.path("to"));
    for bytes in [1, 9 * MIB, 40 * MIB] {
        until_helped(|| {
            let (token, progress) = (sakia::CancellationToken::new(), Arc::new(Progress::new()));
            let copier = Copier::new(Options::new()).with_token(token.clone());
            let is_over = AtomicU64::new(0);
            let report = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let is_over = || is_over.load(Ordering::Relaxed) > 0;
                    while progress.counts().bytes < bytes && !is_over() {
                        std::thread::yield_now();
                    }
                    token.cancel();
                });
                let report = runtime().block_on(copier.copy(&from, &to, &progress)).unwrap();
                is_over.store(1, Ordering::Relaxed);
                report
            });
            if report.counts.files == 0 {
                assert!(report.is_stopped && report.counts.failures == 0, "{report:#?}");
                assert!(!to.exists());
                assert_eq!(report.counts.bytes, 0);
            }
            fs::remove_file(&to).ok();
            report
        });
    }
}

/// Both workers fill an existing file, which keeps its other name.
#[test]
fn an_existing_file_is_filled_by_both_workers() {
    let (memory, folder) = (Folder::in_memory(), Folder::new());
    let from = source(&memory, 48 * MIB);
    let to = folder.file("to", contents(80 * MIB));
    fs::hard_link(&to, folder.path("other")).unwrap();
    until_helped(|| {
        let progress = Arc::new(Progress::new());
        let copying = async { copy_tree(&from, &to, &Options::new(), &progress).await.unwrap() };
        let report = runtime().block_on(copying);
        assert!(report.is_complete(), "{report:#?}");
        assert_eq!(progress.counts().bytes, 48 * MIB);
        assert!(fs::read(folder.path("other")).unwrap() == fs::read(&from).unwrap());
        report
    });
}
