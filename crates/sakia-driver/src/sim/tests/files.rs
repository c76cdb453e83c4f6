//! Operations on files, and operations without a file.

use std::mem::{MaybeUninit, size_of};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, Statx};
use rustix::io::Errno;
use sakia_ring::{AT_FDCWD, CURRENT_POSITION, Opcode, Sqe, sqe_flags};

use super::super::{Routes, Sim};
use super::{Lendable, Loop, err, read, write};
use crate::backend::{Backend, Calls, FileKind};

#[test]
fn nop_completes_with_0_or_what_it_is_told() {
    let mut ring = Loop::inline();
    assert_eq!(ring.run(Sqe::nop()), 0);
    assert_eq!(ring.run(Sqe::nop_with_result(-5)), -5);
    assert_eq!(ring.run(Sqe::nop().op_flags(1 << 9)), err(Errno::INVAL));
}

#[test]
fn open_creates_finds_truncates_and_refuses() {
    let mut ring = Loop::inline();
    let (rd, wr) = (OFlags::RDONLY, OFlags::WRONLY);
    assert_eq!(ring.open(c"f", rd), err(Errno::NOENT));
    assert_eq!(ring.open(c"f", wr | OFlags::CREATE), 3);
    assert_eq!(ring.handle.contents("f").unwrap(), b"");
    assert_eq!(ring.open(c"f", wr | OFlags::CREATE | OFlags::EXCL), err(Errno::EXIST));
    ring.handle.create_file("f", "content");
    assert_eq!(ring.open(c"/f", rd | OFlags::TRUNC), 4);
    assert_eq!(ring.handle.contents("f").unwrap(), b"content", "not writable");
    assert_eq!(ring.open(c"f", wr | OFlags::TRUNC), 5);
    assert_eq!(ring.handle.contents("f").unwrap(), b"");
    assert_eq!(ring.open(c"", rd), err(Errno::NOENT));
    assert_eq!(ring.open(c"f", rd | OFlags::DIRECT), err(Errno::INVAL));
    assert_eq!(ring.handle.open_descriptors(), 3);
    // SAFETY: a number of the simulated kernel.
    assert_eq!(unsafe { ring.handle.facts(3, None) }.kind, FileKind::Bounded);
}

#[test]
fn open_fails_when_the_table_is_full_and_reuses_the_lowest_number() {
    let mut ring = Loop::new(Sim::builder(1).routes(Routes::INLINE).descriptors_max(5));
    ring.handle.create_file("f", "");
    for raw in [3, 4, err(Errno::MFILE)] {
        assert_eq!(ring.open(c"f", OFlags::RDONLY), raw);
    }
    assert_eq!(ring.run(Sqe::close(3)), 0);
    assert_eq!(ring.open(c"f", OFlags::RDONLY), 3);
}

#[test]
fn a_path_is_relative_to_the_working_directory_only() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "");
    assert_eq!(ring.open(c"f", OFlags::RDONLY), 3);
    let (relative, absolute) = (Lendable::new(b"f\0"), Lendable::new(b"/f\0"));
    assert_eq!(ring.run(Sqe::openat(3, relative.ptr(), 0, 0)), err(Errno::NOTDIR));
    assert_eq!(ring.run(Sqe::openat(9, relative.ptr(), 0, 0)), err(Errno::BADF));
    assert_eq!(ring.run(Sqe::openat(9, absolute.ptr(), 0, 0)), 4);
}

#[test]
fn the_path_is_copied_when_the_entry_is_consumed() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.handle.create_file("f", "");
    let path = Lendable::new(b"f\0");
    ring.push(1, Sqe::openat(AT_FDCWD, path.ptr(), 0, 0));
    assert_eq!(ring.submit(), []);
    drop(path); // a driver must not; the kernel has copied it
    assert_eq!(ring.enter(1), [(1, 3)]);
}

#[test]
fn read_stops_at_the_end_and_moves_the_position_on_request() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abcdefg");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let buffer = Lendable::zeroed(4);
    assert_eq!(ring.run(read(fd, &buffer, 1)), 4);
    assert_eq!(buffer.copy(), b"bcde");
    for (count, content) in [(4, b"abcd"), (3, b"efgd"), (0, b"efgd")] {
        assert_eq!(ring.run(read(fd, &buffer, CURRENT_POSITION)), count);
        assert_eq!(buffer.copy(), content);
    }
    assert_eq!(ring.run(read(fd, &buffer, 1 << 40)), 0);
    assert_eq!(ring.run(read(fd, &buffer, 1 << 63)), err(Errno::INVAL));
    assert_eq!(ring.run(read(9, &buffer, 0)), err(Errno::BADF));
    assert_eq!(ring.run(write(fd, &buffer, 0)), err(Errno::BADF));
    assert_eq!(ring.run(Sqe::read(fd, std::ptr::null_mut(), 1, 0)), err(Errno::FAULT));
}

#[test]
fn write_fills_gaps_appends_and_moves_the_position_on_request() {
    let mut ring = Loop::inline();
    let fd = ring.open(c"f", OFlags::WRONLY | OFlags::CREATE);
    let buffer = Lendable::new(b"abc");
    assert_eq!(ring.run(write(fd, &buffer, 2)), 3);
    assert_eq!(ring.handle.contents("f").unwrap(), b"\0\0abc");
    assert_eq!(ring.run(write(fd, &buffer, CURRENT_POSITION)), 3);
    assert_eq!(ring.handle.contents("f").unwrap(), b"abcbc");
    assert_eq!(ring.run(write(fd, &buffer, CURRENT_POSITION)), 3);
    assert_eq!(ring.handle.contents("f").unwrap(), b"abcabc");
    let fd = ring.open(c"f", OFlags::WRONLY | OFlags::APPEND);
    for offset in [0, CURRENT_POSITION] {
        assert_eq!(ring.run(write(fd, &buffer, offset)), 3);
    }
    assert_eq!(ring.handle.contents("f").unwrap(), b"abcabcabcabc");
    assert_eq!(ring.run(write(3, &buffer, 1 << 40)), err(Errno::FBIG));
    assert_eq!(ring.run(read(fd, &buffer, 0)), err(Errno::BADF));
    assert_eq!(ring.run(write(fd, &buffer, 0).op_flags(1 << 30)), err(Errno::OPNOTSUPP));
}

/// The kernel's `struct iovec`.
#[repr(C)]
struct Iovec(*mut u8, usize);

#[test]
fn vectored_transfers_use_buffers_in_order_and_the_vector_at_once() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    let fd = ring.open(c"f", OFlags::RDWR | OFlags::CREATE);
    let (a, b) = (Lendable::new(b"abc"), Lendable::new(b"de"));
    let vector = Box::new([Iovec(a.ptr(), 3), Iovec(b.ptr(), 2)]);
    ring.push(1, Sqe::writev(fd, vector.as_ptr(), 2, 0));
    assert_eq!(ring.submit(), []);
    drop(vector); // a driver must not; the kernel has copied it
    assert_eq!(ring.enter(1), [(1, 5)]);
    assert_eq!(ring.handle.contents("f").unwrap(), b"abcde");

    let vector = [Iovec(b.ptr(), 2), Iovec(a.ptr(), 3)];
    assert_eq!(ring.run(Sqe::readv(fd, vector.as_ptr(), 2, 1)), 4);
    assert_eq!((b.copy(), a.copy()), (b"bc".to_vec(), b"dec".to_vec()));
}

#[test]
fn fixed_transfers_stay_within_the_registered_buffer() {
    let mut ring = Loop::inline();
    let fd = ring.open(c"f", OFlags::RDWR | OFlags::CREATE);
    let arena = Lendable::new(b"abcdefgh");
    let start = arena.ptr();
    assert_eq!(ring.run(Sqe::write_fixed(fd, start, 2, 0, 0)), err(Errno::FAULT));
    // SAFETY: the buffer outlives the simulation's operations.
    unsafe {
        ring.sim.register_buffer(start, 8).unwrap();
        let error = ring.sim.register_buffer(start, 8).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    }
    let third = start.wrapping_add(2);
    assert_eq!(ring.run(Sqe::write_fixed(fd, third, 3, 0, 0)), 3);
    assert_eq!(ring.handle.contents("f").unwrap(), b"cde");
    assert_eq!(ring.run(Sqe::read_fixed(fd, start.wrapping_add(5), 3, 0, 0)), 3);
    assert_eq!(arena.copy(), b"abcdecde");
    for bad in [
        Sqe::read_fixed(fd, third, 7, 0, 0),
        Sqe::read_fixed(fd, start.wrapping_sub(1), 1, 0, 0),
        Sqe::read_fixed(fd, start, 1, 0, 1),
    ] {
        assert_eq!(ring.run(bad), err(Errno::FAULT));
    }
}

#[test]
fn registering_more_than_may_be_locked_fails() {
    let mut sim = Sim::builder(1).locked_bytes_max(4).build();
    let arena = Lendable::zeroed(8);
    // SAFETY: the buffer outlives the simulation's operations: there are none.
    unsafe {
        let error = sim.register_buffer(arena.ptr(), 8).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        sim.register_buffer(arena.ptr(), 4).unwrap();
    }
}

#[test]
fn close_frees_the_number_once() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "");
    let fd = ring.open(c"f", OFlags::RDONLY);
    assert!(ring.handle.is_open(fd));
    assert_eq!(ring.run(Sqe::close(fd)), 0);
    assert!(!ring.handle.is_open(fd));
    assert_eq!(ring.run(Sqe::close(fd)), err(Errno::BADF));
    let fd = ring.open(c"f", OFlags::RDONLY);
    let calls = ring.sim.calls();
    drop(ring);
    // SAFETY: a number of the simulated kernel, which answers for itself.
    unsafe {
        calls.close(fd, true).unwrap();
        assert!(calls.close(fd, true).is_err());
    }
}

#[test]
fn an_operation_under_way_outlives_its_descriptor() {
    let mut ring = Loop::routed(Routes::DEFERRED);
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let buffer = Lendable::zeroed(3);
    ring.push(1, read(fd, &buffer, 0));
    assert_eq!(ring.submit(), []);
    ring.handle.close(fd).unwrap();
    assert_eq!(ring.enter(1), [(1, 3)]);
    assert_eq!(buffer.copy(), b"abc");
}

#[test]
fn fsync_is_for_files() {
    let mut ring = Loop::inline();
    let fd = ring.open(c"f", OFlags::WRONLY | OFlags::CREATE);
    assert_eq!(ring.run(Sqe::fsync(fd, false)), 0);
    assert_eq!(ring.run(Sqe::fsync(fd, true)), 0);
    assert_eq!(ring.run(Sqe::fsync(9, false)), err(Errno::BADF));
    let (read_end, _) = ring.handle.pipe();
    assert_eq!(ring.run(Sqe::fsync(read_end, false)), err(Errno::INVAL));
}

/// Runs a statx, and returns what it filled in.
fn statx(ring: &mut Loop, dir: i32, path: *const u8, at_flags: u32) -> Result<Statx, i32> {
    let record = Lendable::zeroed(size_of::<Statx>());
    match ring.run(Sqe::statx(dir, path, at_flags, 0x7ff, record.ptr())) {
        0 => {
            let mut statx = MaybeUninit::<Statx>::uninit();
            let bytes = record.copy();
            // SAFETY: a `Statx` is plain data of this size, for which all bytes are valid.
            unsafe {
                let to = statx.as_mut_ptr().cast::<u8>();
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                Ok(statx.assume_init())
            }
        }
        error => Err(error),
    }
}

#[test]
fn statx_tells_kind_size_and_times_by_path_or_descriptor() {
    const AT_EMPTY_PATH: u32 = 0x1000;
    let mut ring = Loop::inline();
    ring.handle.advance(Duration::from_millis(1_500));
    ring.handle.create_file("f", vec![1; 1000]);
    let fd = ring.open(c"f", OFlags::RDONLY);
    let (path, empty, other) = (Lendable::new(b"f\0"), Lendable::new(b"\0"), Lendable::new(b"g\0"));

    let by_path = statx(&mut ring, AT_FDCWD, path.ptr(), 0).unwrap();
    let by_fd = statx(&mut ring, fd, empty.ptr(), AT_EMPTY_PATH).unwrap();
    for found in [by_path, by_fd] {
        assert_eq!((found.stx_size, found.stx_blocks), (1000, 2));
        let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
        assert_eq!(kind, FileType::RegularFile);
        assert_eq!(found.stx_mode & 0o7777, 0o644);
        let time = found.stx_mtime;
        assert_eq!((time.tv_sec, time.tv_nsec), (1, 500_000_000));
    }
    assert_eq!(by_path.stx_ino, by_fd.stx_ino);

    let (read_end, _) = ring.handle.pipe();
    let pipe = statx(&mut ring, read_end, std::ptr::null(), AT_EMPTY_PATH).unwrap();
    assert_eq!(FileType::from_raw_mode(u32::from(pipe.stx_mode)), FileType::Fifo);
    for (dir, path, flags, errno) in [
        (AT_FDCWD, &other, 0, Errno::NOENT),
        (AT_FDCWD, &empty, 0, Errno::NOENT),
        (99, &empty, AT_EMPTY_PATH, Errno::BADF),
    ] {
        assert_eq!(statx(&mut ring, dir, path.ptr(), flags).unwrap_err(), err(errno));
    }
}

#[test]
fn what_is_not_there_completes_with_einval() {
    let mut ring = Loop::inline();
    for opcode in [Opcode::MADVISE, Opcode::TIMEOUT, Opcode(250)] {
        assert_eq!(ring.run(Sqe::new(opcode, -1, 0, 0, 0)), err(Errno::INVAL));
    }
    let linked = Sqe::nop().flags(sqe_flags::LINK);
    assert_eq!(ring.run(linked), err(Errno::INVAL));
}

#[test]
fn an_entry_made_a_nop_touches_nothing() {
    let mut ring = Loop::inline();
    ring.handle.create_file("f", "abc");
    let fd = ring.open(c"f", OFlags::RDONLY);
    let buffer = Lendable::zeroed(3);
    // SAFETY: the entry is made a nop before the buffer is freed.
    let position = unsafe { ring.sim.push(read(fd, &buffer, 0).user_data(1)) }.unwrap();
    assert!(!ring.sim.make_nop(position, 2));
    assert!(ring.sim.make_nop(position, 1));
    drop(buffer);
    assert_eq!(ring.enter(1), [(1, 0)]);
    assert!(!ring.sim.make_nop(position, 1));
}
