//! Small file systems.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use sakia_bench_support::available;
use sakia_bench_support::fuse::pattern;
use sakia_bench_support::small_fs::SmallFs;

use crate::{EIO, ENOSPC, errno};

/// Fills the disk with one file. Returns the number of bytes written and the error.
fn fill(small: &SmallFs) -> (u64, io::Error) {
    let file = File::create(small.path().join("full")).expect("a file to fill");
    let (block, mut written) = ([1; 16 << 10], 0);
    loop {
        match file.write_at(&block, written) {
            Ok(count) => written += count as u64,
            Err(error) => return (written, error),
        }
    }
}

#[test]
fn tmpfs_is_soon_full() {
    let small = available!(SmallFs::tmpfs(1 << 20));
    let (written, error) = fill(&small);
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
    assert_eq!(written, 1 << 20);
    // Truncates the file instead of removing it: a child of another test may hold it open for a moment.
    File::create(small.path().join("full")).unwrap();
    fs::write(small.path().join("a"), "room again").unwrap();
}

#[test]
fn ext4_is_soon_full() {
    let small = available!(SmallFs::ext4(2 << 20));
    let (written, error) = fill(&small);
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
    assert!(written > 1 << 20 && written < 2 << 20, "{written}");
}

#[test]
fn cut_disk_fails_cold_reads() {
    let small = available!(SmallFs::ext4(8 << 20));
    let path = small.path().join("a");
    fs::write(&path, pattern(4 << 20)).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    small.cut_disk(1 << 20).unwrap();
    let mut buffer = [0; 4096];
    assert_eq!(errno(file.read_at(&mut buffer, (4 << 20) - 4096)), EIO);
}

#[test]
fn other_kinds_are_mounted() {
    let check = |small: SmallFs| {
        fs::write(small.path().join("a"), "x").unwrap();
        assert_eq!(fs::read(small.path().join("a")).unwrap(), b"x");
    };
    check(available!(available!(SmallFs::tmpfs(1 << 20)).overlay()));
    check(available!(SmallFs::xfs()));
    check(available!(SmallFs::btrfs()));
}

#[test]
fn ext4_in_memory_has_its_journal_or_none() {
    for journal in [false, true] {
        let small = available!(SmallFs::ext4_in_memory(32 << 20, journal));
        fs::write(small.path().join("a"), "x").unwrap();
        assert_eq!(fs::read(small.path().join("a")).unwrap(), b"x");
        let device = small.device().unwrap();
        let facts = std::path::Path::new("/sys/fs/ext4").join(device.file_name().unwrap());
        let task = fs::read_to_string(facts.join("journal_task")).unwrap();
        assert_eq!(task.trim() != "<none>", journal, "{task}");
    }
    assert!(SmallFs::ext4_in_memory(1 << 10, true).is_err(), "no ext4 is that small");
}
