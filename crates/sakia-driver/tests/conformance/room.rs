//! The length of files, the space allocated for them, and the flags of transfers.

use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use sakia_driver::{CURRENT_POSITION, OpKind, SyncRange};

use crate::names::directory;
use crate::stage::{Stage, errno, wait};

pub fn a_file_gets_the_length_it_is_given(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    wait(&driver, driver.truncate(&file, 4)).unwrap();
    assert_eq!(stage.contents("file"), b"0123");
    wait(&driver, driver.truncate(&file, 6)).unwrap();
    assert_eq!(stage.contents("file"), b"0123\0\0");
    assert_eq!(errno(wait(&driver, driver.truncate(&file, 1 << 63))), Errno::INVAL);
    let reader = stage.open(&driver, "file", OFlags::RDONLY);
    assert_eq!(errno(wait(&driver, driver.truncate(&reader, 0))), Errno::INVAL);
    let directory = directory(stage, &driver, "d");
    assert_eq!(errno(wait(&driver, driver.truncate(&directory, 0))), Errno::INVAL);
    let (receiver, _sender) = stage.pipe(&driver);
    assert_eq!(errno(wait(&driver, driver.truncate(&receiver, 0))), Errno::INVAL);
}

pub fn room_is_allocated(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123");
    let keep = FallocateFlags::KEEP_SIZE.bits();
    wait(&driver, driver.fallocate(&file, keep, 0, 8192)).unwrap();
    assert_eq!(stage.contents("file"), b"0123");
    wait(&driver, driver.fallocate(&file, 0, 2, 6)).unwrap();
    assert_eq!(stage.contents("file"), b"0123\0\0\0\0");
    let punch = FallocateFlags::PUNCH_HOLE.bits();
    wait(&driver, driver.fallocate(&file, punch | keep, 1, 2)).unwrap();
    assert_eq!(stage.contents("file"), b"0\0\x003\0\0\0\0");
    for (mode, offset, len, expected) in [
        (0, 0, 0, Errno::INVAL),
        (0, 1 << 63, 1, Errno::INVAL),
        (0, 0, 1 << 63, Errno::INVAL),
        (0, i64::MAX as u64, 1, Errno::FBIG),
        (1 << 30, 0, 1, Errno::OPNOTSUPP),
        (punch, 0, 1, Errno::OPNOTSUPP),
    ] {
        let result = wait(&driver, driver.fallocate(&file, mode, offset, len));
        assert_eq!(errno(result), expected, "{mode} {offset} {len}");
    }
    let reader = stage.open(&driver, "file", OFlags::RDONLY);
    assert_eq!(errno(wait(&driver, driver.fallocate(&reader, 0, 0, 1))), Errno::BADF);
    let (_receiver, sender) = stage.pipe(&driver);
    assert_eq!(errno(wait(&driver, driver.fallocate(&sender, 0, 0, 1))), Errno::SPIPE);
}

pub fn a_range_is_written_back(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123");
    let all = SyncRange::WAIT_BEFORE | SyncRange::WRITE | SyncRange::WAIT_AFTER;
    for (offset, len, how) in [(0, 0, all), (1, 2, SyncRange::WRITE), (9, 9, SyncRange(0))] {
        wait(&driver, driver.sync_file_range(&file, offset, len, how)).unwrap();
    }
    assert_eq!(stage.contents("file"), b"0123");
    for (offset, len, how) in
        [(0, 0, 8), (1 << 63, 0, 0), (1, i64::MAX as u64, 0), (1, u64::MAX, 0)]
    {
        let result = wait(&driver, driver.sync_file_range(&file, offset, len, SyncRange(how)));
        assert_eq!(errno(result), Errno::INVAL, "{offset} {len} {how}");
    }
    let (receiver, _sender) = stage.pipe(&driver);
    let result = wait(&driver, driver.sync_file_range(&receiver, 0, 0, all));
    assert_eq!(errno(result), Errno::SPIPE);
}

pub fn advice_is_taken(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123");
    for advice in [Advice::Sequential, Advice::WillNeed, Advice::DontNeed] {
        wait(&driver, driver.advise(&file, 0, 0, advice as u32)).unwrap();
    }
    assert_eq!(errno(wait(&driver, driver.advise(&file, 0, 4, 99))), Errno::INVAL);
    let (receiver, _sender) = stage.pipe(&driver);
    assert_eq!(errno(wait(&driver, driver.advise(&receiver, 0, 0, 0))), Errno::SPIPE);
    assert_eq!(stage.contents("file"), b"0123");
}

pub fn transfers_take_flags(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123");
    let durable = ReadWriteFlags::DSYNC.bits();
    assert_eq!(wait(&driver, driver.write_with(&file, "ab", 1, durable)).0.unwrap(), 2);
    let append = ReadWriteFlags::APPEND.bits();
    assert_eq!(wait(&driver, driver.write_with(&file, "yz", 0, append)).0.unwrap(), 2);
    let parts = vec!["-", "+"];
    let written = wait(&driver, driver.write_vectored_with(&file, parts, 2, durable));
    assert_eq!(written.0.unwrap(), 2);
    assert_eq!(stage.contents("file"), b"0a-+yz");
    let (result, buf) = wait(&driver, driver.read_with(&file, vec![0; 3], 3, 0));
    assert_eq!((result.unwrap(), &buf[..]), (3, &b"+yz"[..]));
    let bufs = vec![vec![0; 1], vec![0; 2]];
    let (result, bufs) = wait(&driver, driver.read_vectored_with(&file, bufs, 3, 0));
    assert_eq!((result.unwrap(), bufs), (3, vec![b"+".to_vec(), b"yz".to_vec()]));
    let unknown = 1 << 30;
    let (result, buf) = wait(&driver, driver.read_with(&file, vec![0; 3], 0, unknown));
    assert_eq!((errno(result), buf.len()), (Errno::OPNOTSUPP, 3));
    let (result, _) = wait(&driver, driver.write_with(&file, "x", 0, unknown));
    assert_eq!(errno(result), Errno::OPNOTSUPP);
}

/// Each flag by itself gets the same answer from every call, except `RWF_NOWAIT`.
pub fn each_flag_of_a_transfer_is_taken_or_refused(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123");
    let known = ReadWriteFlags::DSYNC | ReadWriteFlags::SYNC | ReadWriteFlags::APPEND;
    for bit in 0..u32::BITS {
        let flag = 1 << bit;
        let is_known = known.bits() & flag != 0;
        let is_nowait = flag == ReadWriteFlags::NOWAIT.bits();
        let before = stage.contents("file").len();
        let outcomes = [
            wait(&driver, driver.read_with(&file, vec![0; 1], 0, flag)).0,
            wait(&driver, driver.read_vectored_with(&file, vec![vec![0; 1]], 0, flag)).0,
            wait(&driver, driver.write_with(&file, "x", 0, flag)).0,
            wait(&driver, driver.write_vectored_with(&file, vec!["x"], 0, flag)).0,
        ];
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                // Support depends on the file system, and is refused with one of two errors.
                Ok(count) if is_nowait => assert_eq!(count, 1, "{index}"),
                outcome if is_nowait => {
                    let refusal = errno(outcome);
                    assert!(
                        matches!(refusal, Errno::AGAIN | Errno::OPNOTSUPP),
                        "{index} {refusal}"
                    );
                }
                Ok(count) => assert!(is_known && count == 1, "{flag:#x} {index}"),
                outcome => {
                    assert!(!is_known, "{flag:#x} {index}");
                    assert_eq!(errno(outcome), Errno::OPNOTSUPP, "{flag:#x} {index}");
                }
            }
        }
        let appended = if flag == ReadWriteFlags::APPEND.bits() { 2 } else { 0 };
        assert_eq!(stage.contents("file").len(), before + appended, "{flag:#x}");
    }
}

pub fn each_flag_of_a_statx_is_taken_or_refused(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"0123");
    let syncs = AtFlags::STATX_FORCE_SYNC | AtFlags::STATX_DONT_SYNC;
    let known = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH | syncs;
    let singles = (0..u32::BITS).map(|bit| 1 << bit);
    for flags in singles.chain([syncs.bits(), syncs.bits() | AtFlags::EMPTY_PATH.bits()]) {
        let is_known = flags & !known.bits() == 0 && flags & syncs.bits() != syncs.bits();
        match wait(&driver, driver.statx(None, stage.path("file"), flags)) {
            Ok(stat) => assert!(is_known && stat.size == 4, "{flags:#x}"),
            refused => {
                assert!(!is_known, "{flags:#x}");
                assert_eq!(errno(refused), Errno::INVAL, "{flags:#x}");
            }
        }
    }
}

pub fn a_read_that_must_not_wait_does_not(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let nowait = ReadWriteFlags::NOWAIT.bits();
    let (result, _) =
        wait(&driver, driver.read_with(&receiver, vec![0; 4], CURRENT_POSITION, nowait));
    assert_eq!(errno(result), Errno::AGAIN);
    wait(&driver, driver.write(&sender, "now", CURRENT_POSITION)).0.unwrap();
    let (result, buf) =
        wait(&driver, driver.read_with(&receiver, vec![0; 4], CURRENT_POSITION, nowait));
    assert_eq!(&buf[..result.unwrap()], b"now");
}

pub fn each_family_has_a_count(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    directory(stage, &driver, "d");
    let path = |name| stage.path(name);
    wait(&driver, driver.link(None, path("file"), None, path("l"), 0)).unwrap();
    wait(&driver, driver.symlink(path("l"), None, path("s"))).unwrap();
    wait(&driver, driver.rename(None, path("s"), None, path("t"), 0)).unwrap();
    wait(&driver, driver.unlink(None, path("t"), 0)).unwrap();
    wait(&driver, driver.fallocate(&file, 0, 0, 1)).unwrap();
    wait(&driver, driver.truncate(&file, 0)).unwrap();
    wait(&driver, driver.advise(&file, 0, 0, 0)).unwrap();
    let counters = driver.counters();
    for (kind, expected) in [
        (OpKind::Open, 2),
        (OpKind::Mkdir, 1),
        (OpKind::Link, 2),
        (OpKind::Rename, 1),
        (OpKind::Unlink, 1),
        (OpKind::Allocate, 1),
        (OpKind::Truncate, 1),
        (OpKind::Advise, 1),
        (OpKind::Other, 0),
    ] {
        stage.assert_count(kind, counters.of(kind), expected);
        if stage.counts_ways() && !stage.bypasses() {
            assert_eq!(counters.of(kind).lane, expected, "{}", kind.name());
        }
    }
}
