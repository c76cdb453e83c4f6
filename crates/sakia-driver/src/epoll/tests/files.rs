//! Each operation on files, and its errors.

use std::fs;
use std::os::fd::AsRawFd;

use sakia_ring::IoVec;

use super::*;
use crate::StatxResult;
use crate::call::address;

#[test]
fn a_no_op_completes_at_once() {
    let mut test = Loop::new();
    test.push(1, Call::Nop);
    assert_eq!(test.submit(), [(1, 0)]);
}

/// Entries are refused: their memory would be in danger if other code decoded them.
#[test]
fn entries_are_not_taken() {
    let mut test = Loop::new();
    // SAFETY: a no-op names no memory.
    assert!(unsafe { test.epoll.push(Sqe::nop()) }.is_none());
    assert_eq!((test.epoll.sq_pending(), test.submit()), (0, vec![]));
}

#[test]
fn files_are_written_and_read_at_offsets_and_positions() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let path = dir.join("file");
    let file = test.open(&path, OFlags::CREATE | OFlags::RDWR).unwrap();
    let [hello, world] = [b"hello", b"world"].map(|bytes| Lendable::new(bytes));
    assert_eq!(test.run(write(&file, &hello, CURRENT_POSITION)), 5);
    assert_eq!(test.run(write(&file, &world, 7)), 5);
    assert_eq!(test.run(Sqe::fsync(file.as_raw_fd(), false)), 0);
    assert_eq!(test.run(Sqe::fsync(file.as_raw_fd(), true)), 0);
    assert_eq!(fs::read(&path).unwrap(), b"hello\0\0world");

    let buffer = Lendable::zeroed(8);
    assert_eq!(test.run(read(&file, &buffer, CURRENT_POSITION)), 7, "from where the write ended");
    assert_eq!(&buffer.copy()[..7], b"\0\0world");
    assert_eq!(test.run(read(&file, &buffer, 3)), 8);
    assert_eq!(buffer.copy(), b"lo\0\0worl");
    assert_eq!(test.run(read(&file, &buffer, 12)), 0);
    assert_eq!(test.run(read(&file, &buffer, 1 << 40)), 0);
    assert_eq!(test.run(read(&file, &buffer, 1 << 63)), err(Errno::INVAL));
    assert_eq!(test.run(Sqe::read(file.as_raw_fd(), buffer.ptr(), 0, 0)), 0);
}

#[test]
fn vectors_are_filled_in_order() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b"0123456789"), OFlags::RDWR).unwrap();
    let (first, second) = (Lendable::zeroed(3), Lendable::zeroed(4));
    let part = |buffer: &Lendable| IoVec { base: buffer.ptr(), len: buffer.len() as usize };
    let vector = Box::leak(Box::new([part(&first), IoVec::EMPTY, part(&second)]));
    assert_eq!(test.run(Sqe::readv(file.as_raw_fd(), vector.as_ptr(), 3, 1)), 7);
    assert_eq!((first.copy(), second.copy()), (b"123".to_vec(), b"4567".to_vec()));
    assert_eq!(test.run(Sqe::writev(file.as_raw_fd(), vector.as_ptr(), 3, 6)), 7);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"0123451234567");
    assert_eq!(test.run(Sqe::readv(file.as_raw_fd(), vector.as_ptr(), 0, 0)), 0);
    let too_many = Sqe::readv(file.as_raw_fd(), vector.as_ptr(), 1025, 0);
    assert_eq!(test.run(too_many), err(Errno::INVAL));
}

#[test]
fn fixed_transfers_use_the_registered_buffer() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b"0123456789"), OFlags::RDWR).unwrap();
    let raw = file.as_raw_fd();
    let buffer = Lendable::zeroed(16);
    let unregistered = Sqe::read_fixed(raw, buffer.ptr(), 4, 0, 0);
    assert_eq!(test.run(unregistered), err(Errno::FAULT));
    // SAFETY: the buffer outlives the backend.
    unsafe { test.epoll.register_buffer(buffer.ptr(), 16) }.unwrap();
    test.registered = Some((address(buffer.ptr()), 16));
    // SAFETY: refused.
    let again = unsafe { test.epoll.register_buffer(buffer.ptr(), 16) };
    assert_eq!(Errno::from_io_error(&again.unwrap_err()), Some(Errno::BUSY));
    assert_eq!(test.run(Sqe::read_fixed(raw, buffer.ptr().wrapping_add(8), 8, 0, 0)), 8);
    assert_eq!(test.run(Sqe::write_fixed(raw, buffer.ptr().wrapping_add(9), 2, 5, 0)), 2);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"0123412789");
    let beyond = Sqe::read_fixed(raw, buffer.ptr().wrapping_add(8), 9, 0, 0);
    assert_eq!(test.run(beyond), err(Errno::FAULT));
    drop(test);
}

#[test]
fn reads_and_writes_fail_as_the_calls_do() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let path = dir.file("file", b"abc");
    let buffer = Lendable::zeroed(4);
    let folder = test.open(&dir.0, OFlags::RDONLY).unwrap();
    assert_eq!(test.run(read(&folder, &buffer, 0)), err(Errno::ISDIR));
    let reader = test.open(&path, OFlags::RDONLY).unwrap();
    assert_eq!(test.run(write(&reader, &buffer, 0)), err(Errno::BADF));
    let anchor = test.open(&path, OFlags::PATH).unwrap();
    assert_eq!(test.run(read(&anchor, &buffer, 0)), err(Errno::BADF));
    for raw in [-1, i32::MIN, i32::MAX] {
        assert_eq!(test.run(Sqe::read(raw, buffer.ptr(), 4, 0)), err(Errno::BADF));
        assert_eq!(test.run(Sqe::fsync(raw, false)), err(Errno::BADF));
        assert_eq!(test.run(Sqe::close(raw)), err(Errno::BADF));
        assert_eq!(test.run(Sqe::poll_add(raw, 1)), err(Errno::BADF));
        assert_eq!(test.run(Sqe::cancel_fd(raw)), err(Errno::BADF));
    }
    let full = test.open(Path::new("/dev/full"), OFlags::RDWR).unwrap();
    assert_eq!(test.run(write(&full, &buffer, 0)), err(Errno::NOSPC));
    let (pipe, _writer) = pipe();
    assert_eq!(test.run(Sqe::fsync(pipe.as_raw_fd(), false)), err(Errno::INVAL));
    assert_eq!(test.flights(), 0);
}

#[test]
fn a_write_beyond_what_a_file_can_be_fails() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let file = test.open(&dir.file("file", b""), OFlags::WRONLY).unwrap();
    let beyond = 1 << 62;
    assert_eq!(test.run(write(&file, &Lendable::new(b"x"), beyond)), err(Errno::FBIG));
}

#[test]
fn devices_that_never_wait_are_read_and_written_at_any_offset() {
    let mut test = Loop::new();
    let buffer = Lendable::new(b"abcd");
    let zero = test.open(Path::new("/dev/zero"), OFlags::RDWR).unwrap();
    for offset in [0, 77, CURRENT_POSITION] {
        assert_eq!(test.run(write(&zero, &buffer, offset)), 4);
        assert_eq!(test.run(read(&zero, &buffer, offset)), 4);
        assert_eq!(buffer.copy(), [0; 4]);
    }
    let null = test.open(Path::new("/dev/null"), OFlags::RDWR).unwrap();
    assert_eq!(test.run(read(&null, &buffer, CURRENT_POSITION)), 0);
    let random = test.open(Path::new("/dev/urandom"), OFlags::RDONLY).unwrap();
    assert_eq!(test.run(read(&random, &buffer, 5)), 4);
}

#[test]
fn statx_fills_the_record_for_paths_and_descriptors() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let path = dir.file("file", b"abc");
    let result = Box::leak(Box::new(StatxResult::default()));
    let result = &raw mut *result;
    let lent = Lendable::path(&path);
    let basic = StatxResult::BASIC;
    assert_eq!(test.run(Sqe::statx(AT_FDCWD, lent.ptr(), 0, basic, result)), 0);
    // SAFETY: the operation is over.
    let by_path = unsafe { *result };
    assert!(by_path.is_file() && by_path.size == 3);

    let file = test.open(&path, OFlags::RDONLY).unwrap();
    let empty = Lendable::new(b"\0");
    let at_empty = rustix::fs::AtFlags::EMPTY_PATH.bits();
    let by_fd = Sqe::statx(file.as_raw_fd(), empty.ptr(), at_empty, basic, result);
    assert_eq!(test.run(by_fd), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { *result }.inode, by_path.inode);

    let missing = Lendable::path(&dir.join("missing"));
    let sqe = Sqe::statx(AT_FDCWD, missing.ptr(), 0, basic, result);
    assert_eq!(test.run(sqe), err(Errno::NOENT));
    assert_eq!(test.run(Sqe::statx(AT_FDCWD, empty.ptr(), 0, basic, result)), err(Errno::NOENT));
}

#[test]
fn closing_frees_the_number_and_says_when_there_is_none() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let (reader, _writer) = pipe();
    let file = test.open(&dir.file("file", b""), OFlags::RDONLY).unwrap();
    for fd in [std::os::fd::IntoRawFd::into_raw_fd(file), reader.as_raw_fd()] {
        assert_eq!(test.run(Sqe::close(fd)), 0);
    }
    std::mem::forget(reader);
}

#[test]
fn nowait_is_answered_at_once() {
    const NOWAIT: u32 = 8;
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let (reader, _writer) = pipe();
    let buffer = Lendable::zeroed(4);
    test.push(1, receive(&reader, &buffer).op_flags(NOWAIT));
    assert_eq!(test.submit(), [(1, err(Errno::AGAIN))]);
    let file = test.open(&dir.file("file", b"abcd"), OFlags::RDONLY).unwrap();
    test.push(2, read(&file, &buffer, 0).op_flags(NOWAIT));
    let completions = test.submit();
    let expected = [4, err(Errno::AGAIN), err(Errno::OPNOTSUPP)];
    assert!(completions.len() == 1 && expected.contains(&completions[0].1), "{completions:?}");
}

#[test]
fn small_queues_overflow_without_loss_and_in_order() {
    let mut test = Loop::with(EpollOptions::new().entries(2, 2));
    let pipes: Vec<_> = (0..7).map(|_| pipe()).collect();
    let buffers: Vec<_> = pipes.iter().map(|_| Lendable::zeroed(1)).collect();
    for (index, ((reader, _), buffer)) in pipes.iter().zip(&buffers).enumerate() {
        test.push(index as u64, receive(reader, buffer));
        assert_eq!(test.submit(), []);
    }
    for (_, writer) in &pipes {
        rustix::io::write(writer, b"x").unwrap();
    }
    test.epoll.enter(2, Some(PATIENCE), None).unwrap();
    assert_eq!(test.epoll.cq_ready(), 2);
    assert!(test.epoll.is_overflowing() && test.epoll.needs_enter());
    let mut all = test.reap();
    all.extend(test.enter(5));
    assert!(!test.epoll.is_overflowing());
    all.sort_unstable();
    assert_eq!(all, (0..7).map(|index| (index, 1)).collect::<Vec<_>>());
}

#[test]
fn an_entry_that_is_taken_back_touches_nothing() {
    let (reader, writer) = pipe();
    rustix::io::write(&writer, b"x").unwrap();
    let mut test = Loop::new();
    let buffer = Lendable::zeroed(1);
    let request = test.request(1, receive(&reader, &buffer)).unwrap();
    // SAFETY: the buffer is kept until the completion.
    let pushed = unsafe { test.epoll.push_call(request, Destination::Queue) };
    let position = pushed.unwrap().unwrap();
    assert!(!test.epoll.make_nop(position, 2));
    assert!(test.epoll.make_nop(position, 1));
    assert_eq!(test.submit(), [(1, 0)]);
    assert!(!test.epoll.make_nop(position, 1));
    assert_eq!(buffer.copy(), [0]);
}

#[test]
fn impossible_sizes_are_refused() {
    let options = [
        EpollOptions::new().entries(0, 1),
        EpollOptions::new().entries(2, 1),
        EpollOptions::new().threads_max(crate::Lane::Elastic, 0),
    ];
    for options in options {
        let error = Epoll::with_options(options).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::INVAL));
    }
}
