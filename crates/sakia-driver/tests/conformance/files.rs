//! Reads and writes of files.

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{AlignedBuf, CURRENT_POSITION, Converted, Driver, Fd, IoBuf, IoBufMut, OpKind};

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

pub fn a_read_without_room_is_refused(stage: &Stage) {
    #[track_caller]
    fn check<T: IoBufMut>(driver: &Driver, file: &Fd, buf: impl Fn() -> T) {
        for offset in [0, 100, CURRENT_POSITION] {
            let (result, back) = wait(driver, driver.read(file, buf(), offset));
            assert_eq!((errno(result), back.bytes_len()), (Errno::INVAL, 0));
        }
        let (result, _) = wait(driver, driver.read_with(file, buf(), 0, 0));
        assert_eq!(errno(result), Errno::INVAL);
        let (result, _) = wait(driver, driver.without_bypass().read(file, buf(), 0));
        assert_eq!(errno(result), Errno::INVAL);
    }
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    check(&driver, &file, Vec::new);
    check(&driver, &file, Box::<[u8]>::default);
    check(&driver, &file, || Box::new([]));
    check(&driver, &file, || -> &'static mut [u8] { &mut [] });
    check(&driver, &file, AlignedBuf::default);
    check(&driver, &file, || vec![7; 4].slice(2..2));
    check(&driver, &file, || Vec::with_capacity(4).slice(..));
    check(&driver, &file, || Vec::with_capacity(4).room(0));
    check(&driver, &file, || Converted::<Vec<u8>>::new(Vec::new()));
    let arena = driver.register_arena(1, 4096).unwrap();
    check(&driver, &file, || arena.block().unwrap().slice(..0));
    let counters = driver.counters().of(OpKind::Read);
    assert_eq!((counters.submitted, counters.inline), (0, 0), "the kernel was not asked");
    let (_, buf) = wait(&driver, driver.read(&file, vec![0; 3], CURRENT_POSITION));
    assert_eq!(buf, b"012", "the position did not move");
}

pub fn an_empty_vector_is_filled_up_to_its_capacity(stage: &Stage) {
    let driver = stage.driver();
    let content: Vec<u8> = (0..10_000).map(|index| (index / 7) as u8).collect();
    let file = stage.file(&driver, "file", &content);
    for (offset, capacity) in
        [(0, 1), (3, 100), (9_000, 5000), (9_999, 4), (10_000, 4), (50, 9_950)]
    {
        let buf = Vec::with_capacity(capacity);
        let (capacity, place) = (buf.capacity(), buf.as_ptr());
        let (result, buf) = wait(&driver, driver.read(&file, buf, offset as u64));
        let end = content.len().min(offset + capacity);
        assert_eq!((result.unwrap(), &buf[..]), (end - offset, &content[offset..end]));
        assert_eq!((buf.capacity(), buf.as_ptr()), (capacity, place), "it is the same memory");
    }
    // A vector with a length is read into up to that length.
    let mut buf = vec![b'.'; 2];
    buf.reserve(100);
    let (result, mut buf) = wait(&driver, driver.read(&file, buf, 9_999));
    assert_eq!((result.unwrap(), buf.len(), buf[1]), (1, 2, b'.'));
    // The usual read loop of a program.
    let (mut all, mut offset) = (Vec::new(), 0);
    loop {
        buf.clear();
        let (result, back) = wait(&driver, driver.read(&file, buf, offset));
        buf = back;
        assert_eq!(result.unwrap(), buf.len());
        if buf.is_empty() {
            break;
        }
        offset += buf.len() as u64;
        all.extend_from_slice(&buf);
    }
    assert_eq!(all, content);
    assert!(buf.capacity() >= 102);
}

pub fn what_is_not_read_into_capacity_leaves_no_length(stage: &Stage) {
    let driver = stage.driver();
    stage.create("file", b"0123456789");
    let writer = stage.open(&driver, "file", OFlags::WRONLY);
    let (result, buf) =
        wait(&driver, driver.read(&writer, Vec::with_capacity(8), CURRENT_POSITION));
    assert_eq!((errno(result), buf.len()), (Errno::BADF, 0));
    let bufs = vec![Vec::with_capacity(8), vec![7]];
    let (result, bufs) = wait(&driver, driver.read_vectored(&writer, bufs, CURRENT_POSITION));
    assert_eq!((errno(result), bufs), (Errno::BADF, vec![vec![], vec![7]]));
}

pub fn a_room_is_filled_by_several_reads(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    for buf in [Vec::with_capacity(8), vec![b'.'; 8]] {
        let was_empty = buf.is_empty();
        let mut room = buf.room(8);
        for count in [3, 1, 4] {
            let offset = room.filled() as u64;
            let (result, part) = wait(&driver, driver.read(&file, room.room(count), offset));
            assert_eq!(result.unwrap(), count);
            room = part.into_inner();
            room.advance(count);
            let len = if was_empty { room.filled() } else { 8 };
            assert_eq!(room.buffer().len(), len);
        }
        let (result, room) = wait(&driver, driver.read(&file, room, 8));
        assert_eq!(errno(result), Errno::INVAL, "it is full");
        assert_eq!(room.into_inner(), b"01234567");
    }
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

pub fn parts_without_a_length_are_filled_up_to_their_capacity(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let empty = Vec::with_capacity;
    let (three, many) = (empty(3), empty(20));
    let first = three.capacity();
    let bufs = vec![three, vec![b'.'; 2], Vec::new(), many, empty(5)];
    let (result, bufs) = wait(&driver, driver.read_vectored(&file, bufs, 0));
    let (one, two) = (&b"0123456789"[..first], &b"0123456789"[first..first + 2]);
    let rest = &b"0123456789"[first + 2..];
    assert_eq!(
        (result.unwrap(), bufs),
        (10, vec![one.to_vec(), two.to_vec(), vec![], rest.to_vec(), vec![]])
    );
    let (result, bufs) =
        wait(&driver, driver.read_vectored(&file, vec![empty(1), vec![b'.'; 4]], 10));
    assert_eq!((result.unwrap(), bufs), (0, vec![vec![], vec![b'.'; 4]]));
}

pub fn parts_are_written_in_order(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (result, _) = wait(&driver, driver.write_vectored(&file, vec!["ab", "", "cd"], 2));
    assert_eq!(result.unwrap(), 4);
    assert_eq!(stage.contents("file"), b"01abcd6789");
}

pub fn parts_without_room_are_refused(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    // Only the first 1024 buffers are used.
    let mut many = vec![Vec::new(); 1024];
    many.push(vec![0; 8]);
    for bufs in [vec![], vec![vec![]; 3], many] {
        for offset in [0, CURRENT_POSITION] {
            let (result, back) = wait(&driver, driver.read_vectored(&file, bufs.clone(), offset));
            assert_eq!((errno(result), back.len()), (Errno::INVAL, bufs.len()));
        }
    }
}

pub fn a_write_of_nothing_writes_nothing(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let (_, sender) = stage.pipe(&driver);
    for (fd, at) in [(&file, 0), (&sender, CURRENT_POSITION)] {
        assert_eq!(wait(&driver, driver.write(fd, Vec::new(), at)).0.unwrap(), 0);
        // Spare capacity is not written.
        assert_eq!(wait(&driver, driver.write(fd, Vec::with_capacity(9), at)).0.unwrap(), 0);
        assert_eq!(wait(&driver, driver.write_vectored(fd, vec![""; 2], at)).0.unwrap(), 0);
        assert_eq!(wait(&driver, driver.write_vectored(fd, vec![""; 0], at)).0.unwrap(), 0);
    }
    assert_eq!(stage.contents("file"), b"0123456789");
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
    let (result, buf) = wait(&driver, driver.write(&reader, b"abc".to_vec(), CURRENT_POSITION));
    assert_eq!((errno(result), &buf[..]), (Errno::BADF, &b"abc"[..]), "the buffer comes back");
    assert_eq!(
        errno(wait(&driver, driver.read(&writer, vec![0; 4], CURRENT_POSITION)).0),
        Errno::BADF
    );
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
    let (receiver, _sender) = stage.pipe(&driver);
    for data_only in [false, true] {
        wait(&driver, driver.fsync(&file, data_only)).unwrap();
        assert_eq!(errno(wait(&driver, driver.fsync(&receiver, data_only))), Errno::INVAL);
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
