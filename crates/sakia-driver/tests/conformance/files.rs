//! Files.

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, IoBuf};

use crate::stage::{Stage, errno, settle, turn_until, wait};

pub fn a_read_begins_at_its_offset(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (result, buf) = wait(&driver, driver.read(&file, vec![0; 4], 3));
    assert_eq!((result.unwrap(), &buf[..]), (4, &b"3456"[..]));
}

pub fn a_read_past_the_end_is_short_then_empty(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (result, buf) = wait(&driver, driver.read(&file, vec![b'.'; 4], 8));
    assert_eq!((result.unwrap(), &buf[..]), (2, &b"89.."[..]));
    assert_eq!(wait(&driver, driver.read(&file, vec![0; 4], 10)).0.unwrap(), 0);
    assert_eq!(wait(&driver, driver.read(&file, vec![0; 4], 1 << 40)).0.unwrap(), 0);
}

pub fn a_read_of_nothing_reads_nothing(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    assert_eq!(wait(&driver, driver.read(&file, Vec::new(), 0)).0.unwrap(), 0);
}

pub fn the_position_moves_with_reads_that_ask_for_it(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    for expected in [b"012", b"345"] {
        let (result, buf) = wait(&driver, driver.read(&file, vec![0; 3], CURRENT_POSITION));
        assert_eq!((result.unwrap(), &buf[..]), (3, &expected[..]));
    }
    let (_, buf) = wait(&driver, driver.read(&file, vec![0; 3], 0));
    assert_eq!(buf, b"012", "a read with an offset has no position");
    let (_, buf) = wait(&driver, driver.read(&file, vec![0; 3], CURRENT_POSITION));
    assert_eq!(buf, b"678");
}

pub fn a_write_lands_at_its_offset(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (result, buf) = wait(&driver, driver.write(&file, b"abc".to_vec(), 4));
    assert_eq!((result.unwrap(), &buf[..]), (3, &b"abc"[..]));
    assert_eq!(stage.contents("file"), b"0123abc789");
}

pub fn a_write_past_the_end_leaves_zeros(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"01");
    assert_eq!(wait(&driver, driver.write(&file, "x", 4)).0.unwrap(), 1);
    assert_eq!(stage.contents("file"), b"01\0\0x");
}

pub fn appending_ignores_the_offset(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"01");
    let file = stage.open(&driver, "file", OFlags::WRONLY | OFlags::APPEND);
    assert_eq!(wait(&driver, driver.write(&file, "xy", 0)).0.unwrap(), 2);
    assert_eq!(stage.contents("file"), b"01xy");
}

pub fn parts_are_filled_in_order(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let bufs = vec![vec![0; 3], vec![0; 0], vec![0; 4]];
    let (result, bufs) = wait(&driver, driver.read_vectored(&file, bufs, 1));
    assert_eq!((result.unwrap(), bufs), (7, vec![b"123".to_vec(), vec![], b"4567".to_vec()]));
}

pub fn parts_are_written_in_order(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (result, _) = wait(&driver, driver.write_vectored(&file, vec!["ab", "", "cd"], 2));
    assert_eq!(result.unwrap(), 4);
    assert_eq!(stage.contents("file"), b"01abcd6789");
}

pub fn no_parts_move_nothing(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    assert_eq!(wait(&driver, driver.read_vectored(&file, Vec::<Vec<u8>>::new(), 0)).0.unwrap(), 0);
}

pub fn registered_memory_reads_and_writes(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let arena = driver.register_arena(2, 4096).unwrap();
    let block = arena.block().unwrap();
    let (result, mut block) = wait(&driver, driver.read_fixed(&file, block, 5));
    assert_eq!((result.unwrap(), &block[..5]), (5, &b"56789"[..]));
    let len = block.bytes_len();
    block.fill(b'x');
    assert_eq!(wait(&driver, driver.write_fixed(&file, block, 0)).0.unwrap(), len);
    assert_eq!(stage.contents("file"), vec![b'x'; len]);
}

pub fn what_was_not_opened_for_it_is_refused(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"0123456789");
    let reader = stage.open(&driver, "file", OFlags::RDONLY);
    let writer = stage.open(&driver, "file", OFlags::WRONLY);
    let (result, buf) = wait(&driver, driver.write(&reader, b"abc".to_vec(), 0));
    assert_eq!((errno(result), &buf[..]), (Errno::BADF, &b"abc"[..]), "the buffer comes back");
    assert_eq!(errno(wait(&driver, driver.read(&writer, vec![0; 4], 0)).0), Errno::BADF);
    assert_eq!(stage.contents("file"), b"0123456789");
}

pub fn a_missing_file_is_missing(stage: &Stage) {
    let driver = stage.driver();
    assert_eq!(errno(wait(&driver, driver.open(None, stage.path("none"), 0, 0))), Errno::NOENT);
}

pub fn an_exclusive_file_must_not_exist(stage: &Stage) {
    let driver = stage.driver();
    let flags = (OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).bits();
    let open = || wait(&driver, driver.open(None, stage.path("file"), flags, 0o600));
    let file = open().unwrap();
    assert_eq!(errno(open()), Errno::EXIST);
    assert_eq!(wait(&driver, driver.write(&file, "new", 0)).0.unwrap(), 3);
    assert_eq!(stage.contents("file"), b"new");
}

pub fn truncating_empties(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"0123456789");
    let _file = stage.open(&driver, "file", OFlags::WRONLY | OFlags::TRUNC);
    assert_eq!(stage.contents("file"), b"");
}

pub fn a_path_has_a_size(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"0123456789");
    let stat = wait(&driver, driver.statx(None, stage.path("file"), 0)).unwrap();
    assert_eq!((stat.size, stat.is_file(), stat.is_directory()), (10, true, false));
}

pub fn an_open_file_has_a_size(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    assert_eq!(wait(&driver, driver.statx_fd(&file)).unwrap().size, 10);
}

pub fn a_missing_path_has_no_size(stage: &Stage) {
    let driver = stage.driver();
    assert_eq!(errno(wait(&driver, driver.statx(None, stage.path("none"), 0))), Errno::NOENT);
}

pub fn what_was_written_can_be_synced(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    wait(&driver, driver.write(&file, "durable", 0)).0.unwrap();
    for data_only in [false, true] {
        wait(&driver, driver.fsync(&file, data_only)).unwrap();
    }
}

pub fn a_closed_file_is_closed(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"");
    let identity = stage.identify(&file);
    wait(&driver, driver.close(file)).unwrap();
    assert!(!stage.is_open(&identity));
}

pub fn a_late_descriptor_is_closed(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"");
    let probe = stage.open(&driver, "file", OFlags::RDONLY);
    let identity = stage.identify(&probe);
    wait(&driver, driver.close(probe)).unwrap();
    drop(driver.open(None, stage.path("file"), 0, 0));
    let open = driver.open(None, stage.path("file"), 0, 0);
    settle(&driver);
    drop(open);
    turn_until(&driver, || driver.live_operations() == 0 && !stage.is_open_anywhere(&identity));
}
