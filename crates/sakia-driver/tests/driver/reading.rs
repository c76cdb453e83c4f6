//! Reads into every kind of buffer, and their special cases. `conformance` has the rules.

use std::fs::File;
use std::io::Seek;

use rustix::io::Errno;
use sakia_driver::{AlignedBuf, CURRENT_POSITION, Converted, IoBuf, IoBufMut, Wait};
use sakia_ring::Opcode;

use crate::arena::arena;
use crate::scripted::{FILE, scripted};
use crate::support::{
    Buf, DropCounter, TempDir, UNTOUCHED, content, driver, errno, finish, open_direct, panic_of,
    pipe, write_all,
};

/// A buffer type of a user.
struct Page {
    bytes: Vec<u8>,
    is_copied: bool,
}

impl From<Vec<u8>> for Page {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, is_copied: false }
    }
}

impl From<Page> for Vec<u8> {
    fn from(page: Page) -> Self {
        if page.is_copied { page.bytes.as_slice().to_vec() } else { page.bytes }
    }
}

#[test]
fn into_users_types() {
    let folder = TempDir::new();
    let driver = driver();
    let fd = driver.adopt(File::open(folder.file("file", 100)).unwrap().into());
    let expected: Vec<u8> = (3..8).map(content).collect();
    let page = |bytes, is_copied| Converted::new(Page { bytes, is_copied });
    for buf in [page(Vec::with_capacity(5), false), page(vec![0; 5], false), page(vec![0; 5], true)]
    {
        let (result, buf) = finish(&driver, &mut driver.read(&fd, buf, 3));
        assert_eq!((result.unwrap(), buf.into_inner().bytes), (5, expected.clone()));
    }
    // A copy has a capacity equal to its length.
    let empty = page(Vec::with_capacity(5), true);
    let (result, buf) = finish(&driver, &mut driver.read(&fd, empty, 3));
    assert_eq!((errno(result), buf.into_inner().bytes.len()), (Errno::INVAL, 0));
    let boxed = Converted::boxed(vec![0_u8; 5].into_boxed_slice());
    let (result, boxed) = finish(&driver, &mut driver.read(&fd, boxed, 3));
    let boxed: Box<[u8]> = boxed.into_inner();
    assert_eq!((result.unwrap(), &boxed[..]), (5, &expected[..]));
}

#[cfg(feature = "bytes")]
#[test]
fn into_and_from_the_buffers_of_bytes() {
    use bytes::{Bytes, BytesMut};

    let folder = TempDir::new();
    let driver = driver();
    let path = folder.file("file", 100);
    let fd = driver.adopt(File::options().read(true).write(true).open(path).unwrap().into());
    let expected: Vec<u8> = (0..10).map(content).collect();
    let buf = BytesMut::with_capacity(64);
    let (result, buf) = finish(&driver, &mut driver.read(&fd, buf.room(10), 0));
    assert_eq!((result.unwrap(), &buf.into_inner()[..]), (10, &expected[..]));
    // A part of a shared allocation: the other parts are not touched.
    let mut split = BytesMut::with_capacity(64);
    split.extend_from_slice(b"kept");
    let back = split.split_off(4);
    let front = split.freeze();
    let (result, back) = finish(&driver, &mut driver.read(&fd, back, 0));
    let count = result.unwrap();
    assert_eq!((back.len(), &back[..10]), (count, &expected[..]));
    assert_eq!(front, "kept");
    // A buffer with a length keeps it.
    let (result, buf) = finish(&driver, &mut driver.read(&fd, BytesMut::zeroed(3), 98));
    assert_eq!((result.unwrap(), buf.len()), (2, 3));
    let (result, _) = finish(&driver, &mut driver.read(&fd, BytesMut::new(), 0));
    assert_eq!(errno(result), Errno::INVAL);
    let (result, bytes) = finish(&driver, &mut driver.write(&fd, Bytes::from_static(b"new"), 0));
    assert_eq!((result.unwrap(), bytes.len()), (3, 3));
    let (_, buf) = finish(&driver, &mut driver.read(&fd, BytesMut::zeroed(3), 0));
    assert_eq!(buf, "new");
    let (result, _) = finish(&driver, &mut driver.write(&fd, Bytes::new(), 0));
    assert_eq!(result.unwrap(), 0);
}

#[test]
fn into_part_of_a_buffer() {
    let folder = TempDir::new();
    let driver = driver();
    let fd = driver.adopt(File::open(folder.file("file", 100)).unwrap().into());
    let mut read = driver.read(&fd, vec![UNTOUCHED; 10].slice(3..=6), 20);
    let (result, buf) = finish(&driver, &mut read);
    assert_eq!((result.unwrap(), buf.bytes_len()), (4, 4));
    let whole = buf.into_inner();
    let expected: Vec<u8> = (20..24).map(content).collect();
    assert_eq!((&whole[3..7], whole[2], whole[7]), (&expected[..], UNTOUCHED, UNTOUCHED));
}

#[test]
fn into_every_kind_of_buffer() {
    fn check<T: IoBufMut + AsRef<[u8]>>(buf: T) {
        let driver = driver();
        let folder = TempDir::new();
        let fd = driver.adopt(File::open(folder.file("file", 100)).unwrap().into());
        let mut read = driver.read(&fd, buf, 9);
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!(result.unwrap(), 16);
        assert!(buf.as_ref().iter().enumerate().all(|(at, &byte)| byte == content(9 + at)));
    }
    check(vec![0; 16]);
    check(vec![0; 16].into_boxed_slice());
    check(Leaked(Box::leak(Box::new([0; 16]))));
    check(Array(Box::new([0; 16])));
}

/// A buffer type that lacks `AsRef` for its reference.
struct Leaked(&'static mut [u8]);
/// Like `Leaked`.
struct Array(Box<[u8; 16]>);

impl AsRef<[u8]> for Leaked {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

impl AsRef<[u8]> for Array {
    fn as_ref(&self) -> &[u8] {
        &self.0[..]
    }
}

macro_rules! forward {
    ($($type:ty),*) => {$(
        // SAFETY: as for the field.
        unsafe impl IoBuf for $type {
            fn stable_ptr(&self) -> *const u8 {
                self.0.stable_ptr()
            }
            fn bytes_len(&self) -> usize {
                self.0.bytes_len()
            }
        }
        // SAFETY: as for the field.
        unsafe impl IoBufMut for $type {
            fn stable_mut_ptr(&mut self) -> *mut u8 {
                self.0.stable_mut_ptr()
            }
        }
    )*};
}

forward!(Leaked, Array);

#[test]
fn from_descriptors_that_do_not_block() {
    let driver = driver();
    let (read_end, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let fd = driver.adopt(read_end);
    let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    // Kernels differ: the read waits, or fails at once with `EAGAIN`.
    match read.try_take() {
        Some((result, _)) => assert_eq!(errno(result), Errno::AGAIN),
        None => {
            rustix::io::write(&write, b"later").unwrap();
            assert_eq!(finish(&driver, &mut read).0.unwrap(), 5);
        }
    }
}

#[test]
fn canceled_while_waiting() {
    let driver = driver();
    let (fd, write) = pipe(&driver);
    for submitted in [true, false] {
        let mut read = driver.read(&fd, vec![UNTOUCHED; 8], CURRENT_POSITION);
        if submitted {
            driver.turn(Wait::Poll).unwrap();
        }
        read.cancel();
        let (result, buf) = finish(&driver, &mut read);
        assert_eq!((errno(result), buf), (Errno::CANCELED, vec![UNTOUCHED; 8]));
    }
    // If data and the request coincide, the read takes all or nothing.
    let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    write_all(&write, b"first");
    read.cancel();
    if let Err(error) = finish(&driver, &mut read).0 {
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
        assert_eq!(
            finish(&driver, &mut driver.read(&fd, vec![0; 8], CURRENT_POSITION)).0.unwrap(),
            5
        );
    }
}

#[test]
fn more_bytes_than_the_kernel_moves_at_once() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, FILE);
    let _read = driver.read(&fd, Vast, 0);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.in_flight(Opcode::READ)[0].len as usize, sakia_driver::MAX_RW_BYTES);
}

/// Claims more bytes than exist. Only for a backend that touches none of them.
struct Vast;

// SAFETY: none, so no backend that accesses the bytes may get it: see the type.
unsafe impl IoBuf for Vast {
    fn stable_ptr(&self) -> *const u8 {
        std::ptr::dangling()
    }
    fn bytes_len(&self) -> usize {
        usize::MAX
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Vast {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        std::ptr::dangling_mut()
    }
}

#[test]
fn restart_codes_are_interruptions() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, FILE);
    let counter = DropCounter::new();
    for code in [512, 513, 514, 516] {
        let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        stage.complete(Opcode::READ, -code);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(errno(read.try_take().unwrap().0), Errno::INTR, "{code}");
    }
    // One code between the restart codes means something else.
    let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    stage.complete(Opcode::READ, -515);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(errno(read.try_take().unwrap().0), Errno::from_raw_os_error(515));
    for nonsense in [i32::MIN, i32::MIN + 1, -100_000, -517, -511] {
        let mut read = driver.read(&fd, Buf::new(8, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        stage.complete(Opcode::READ, nonsense);
        driver.turn(Wait::Poll).unwrap();
        assert!(read.try_take().unwrap().0.is_err(), "{nonsense}");
    }
    counter.assert_each_dropped_once();
}

#[test]
fn a_range_to_the_last_number_there_is_ends_after_the_buffer() {
    use std::ops::Bound;

    let sliced = |range: (Bound<usize>, Bound<usize>)| vec![7_u8; 4].slice(range);
    let last = usize::MAX;
    for range in [
        (Bound::Unbounded, Bound::Included(last)),
        (Bound::Included(0), Bound::Included(last)),
        (Bound::Excluded(last), Bound::Unbounded),
        (Bound::Excluded(last), Bound::Included(last)),
    ] {
        let message = panic_of(|| sliced(range));
        assert!(message.starts_with("slice "), "{message}");
    }
    assert_eq!(sliced((Bound::Unbounded, Bound::Included(3))).bytes_len(), 4);
    assert_eq!(sliced((Bound::Excluded(3), Bound::Unbounded)).bytes_len(), 0);
}

#[test]
fn at_the_position_of_a_direct_file() {
    const PART: usize = 4096;
    let folder = TempDir::new();
    let Some(file) = open_direct(&folder.file("file", 8 * PART)) else { return };
    let mut ours = File::from(file.try_clone().unwrap());
    let driver = driver();
    let fd = driver.adopt(file);
    let arena = arena!(&driver, 1, PART);
    for part in 0..8 {
        let bytes = match part % 3 {
            0 => {
                let mut read = driver.read(&fd, AlignedBuf::zeroed(PART), CURRENT_POSITION);
                let (result, buf) = finish(&driver, &mut read);
                buf[..result.unwrap()].to_vec()
            }
            1 => {
                let bufs = vec![AlignedBuf::zeroed(PART)];
                let mut read = driver.read_vectored(&fd, bufs, CURRENT_POSITION);
                let (result, bufs) = finish(&driver, &mut read);
                bufs[0][..result.unwrap()].to_vec()
            }
            _ => {
                let block = arena.block().unwrap();
                let mut read = driver.read_fixed(&fd, block, CURRENT_POSITION);
                let (result, block) = finish(&driver, &mut read);
                block.as_bytes()[..result.unwrap()].to_vec()
            }
        };
        let at = part * PART;
        assert_eq!(ours.stream_position().unwrap(), (at + PART) as u64);
        assert!((at..at + PART).map(content).eq(bytes), "part {part}");
    }
}
