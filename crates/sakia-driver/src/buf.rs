//! Buffers that can be lent to the kernel.
//!
//! A buffer goes into an operation by value and comes back with its result. Until then the driver
//! owns it, so no borrow has to be trusted.
//!
//! Three numbers describe a buffer: its initialized bytes ([`IoBuf::bytes_len`]), which are written and which
//! safe code reaches; its room ([`IoBufMut::bytes_room`]), which a read may fill; and the part of the room
//! that a read has filled ([`IoBufMut::set_init`]). The first two differ only for an empty `Vec`, whose room
//! is its capacity. Only the kernel writes to memory that is not initialized, and the number of bytes that it
//! has written becomes the length.

// Above the modules that use them.

/// The bytes of an [`IoBuf`] that is a slice, or derefs to one.
macro_rules! bytes_of_slice {
    () => {
        #[inline(always)]
        fn stable_ptr(&self) -> *const u8 {
            self.as_ptr()
        }

        #[inline(always)]
        fn bytes_len(&self) -> usize {
            self.len()
        }
    };
}

/// The room of an [`IoBufMut`] that grows as a `Vec` does. The argument is its capacity.
macro_rules! room_of_vec {
    ($capacity:path) => {
        #[inline(always)]
        fn stable_mut_ptr(&mut self) -> *mut u8 {
            self.as_mut_ptr()
        }

        #[inline(always)]
        fn bytes_room(&self) -> usize {
            if self.is_empty() { $capacity(self) } else { self.len() }
        }

        #[inline(always)]
        unsafe fn set_init(&mut self, count: usize) {
            if count > self.len() {
                // SAFETY: the caller says that `count` bytes are initialized and were room, so they lie
                // within the capacity.
                unsafe { self.set_len(count) };
            }
        }
    };
}

pub(crate) use bytes_of_slice;

mod attached;
#[cfg(feature = "bytes")]
mod bytes;
mod converted;
mod room;

use std::io;
use std::mem::MaybeUninit;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;

pub use self::attached::Attached;
pub use self::converted::Converted;
pub use self::room::Room;
use crate::aligned::AlignedBuf;
use crate::arena::FixedBuf;

/// A result together with the operation's buffer, which comes back on error too.
///
/// # Examples
/// See [`BufResultExt`](BufResultExt#examples).
pub type BufResult<T, B> = (io::Result<T>, B);

/// Ways to use a [`BufResult`] with `?`.
///
/// # Examples
/// ```
/// use sakia_driver::{BufResult, BufResultExt};
///
/// fn read() -> BufResult<usize, Vec<u8>> {
///     (Ok(2), vec![1, 2])
/// }
///
/// assert_eq!(read().value()?, 2);
/// assert_eq!(read().buffer()?, [1, 2]);
/// let (count, buf) = read().both()?;
/// assert_eq!((count, &buf[..]), (2, &[1, 2][..]));
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait BufResultExt<T, B>: Sized {
    /// Returns the value and the buffer. On error the buffer is dropped.
    ///
    /// # Errors
    /// The operation's error.
    fn both(self) -> io::Result<(T, B)>;

    /// Returns the value, and drops the buffer.
    ///
    /// # Errors
    /// The operation's error.
    fn value(self) -> io::Result<T>;

    /// Returns the buffer. On error it is dropped.
    ///
    /// # Errors
    /// The operation's error.
    fn buffer(self) -> io::Result<B>;
}

impl<T, B> BufResultExt<T, B> for BufResult<T, B> {
    fn both(self) -> io::Result<(T, B)> {
        let (result, buf) = self;
        result.map(|value| (value, buf))
    }

    #[inline(always)]
    fn value(self) -> io::Result<T> {
        self.0
    }

    fn buffer(self) -> io::Result<B> {
        self.0.map(|_| self.1)
    }
}

/// Maximum number of bytes that one read or write moves: `MAX_RW_COUNT` of the kernel, 2 GiB less a page.
pub const MAX_RW_BYTES: usize = 0x7fff_f000;

/// A buffer that the kernel may read from.
///
/// # Safety
///
/// - [`stable_ptr`](IoBuf::stable_ptr) points to [`bytes_len`](IoBuf::bytes_len) initialized bytes.
/// - Both stay the same, and the bytes stay valid, while the value is only moved, until it is
///   dropped or reached through a `&mut`.
/// - Neither method calls into a driver.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be lent to the kernel",
    label = "not a buffer that an operation can own",
    note = "the kernel reads the bytes after the call has returned, so an operation takes its buffer by \
            value and gives it back with the result",
    note = "pass an owned `Vec<u8>`, `String`, `Box<[u8]>` or `Arc<[u8]>`, such as `bytes.to_vec()`, or a \
            part of one by `IoBuf::slice`; literals such as `\"text\"` and `b\"bytes\"` are buffers, too"
)]
pub unsafe trait IoBuf: 'static {
    /// Returns a pointer to the first byte.
    fn stable_ptr(&self) -> *const u8;
    /// Returns the number of bytes.
    fn bytes_len(&self) -> usize;

    /// Returns the bytes, for code that is not the kernel.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the trait promises that many initialized bytes there, which stay the same while the
        // value is borrowed: only a `&mut` to it may change them.
        unsafe { std::slice::from_raw_parts(self.stable_ptr(), self.bytes_len()) }
    }

    /// Returns the part of the buffer in `range`.
    ///
    /// # Panics
    /// When the range ends after the buffer, or before it begins.
    ///
    /// # Examples
    /// See [`Slice`](Slice#examples).
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let begin = match range.start_bound() {
            Bound::Included(&begin) => begin,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.bytes_len(),
        };
        assert!(
            begin <= end && end <= self.bytes_len(),
            "slice {begin}..{end} of a buffer of {} bytes",
            self.bytes_len()
        );
        Slice { buf: self, begin, end }
    }
}

/// A buffer that the kernel may write to.
///
/// A read fills at most [`bytes_room`](IoBufMut::bytes_room) bytes, from the front on. For a buffer whose
/// bytes are initialized that is its length, which no read changes. An *empty* `Vec` (or `BytesMut`) is read
/// into up to its capacity, without being zeroed first, and the number of bytes read becomes its length:
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # use sakia_driver::{Auto, Driver, Policy, Wait};
/// # let path = std::env::temp_dir().join(format!("sakia-room-{}", std::process::id()));
/// # std::fs::write(&path, b"0123456789")?;
/// # let driver = Driver::new(Auto::new(Policy::Auto, sakia_ring::Ring::builder())?.0);
/// # let file = driver.adopt(std::fs::File::open(&path)?.into());
/// let mut buf = Vec::with_capacity(4);
/// let (mut offset, mut all) = (0, Vec::new());
/// loop {
///     buf.clear(); // or the next read asks for no more than the last one brought
///     let mut read = driver.read(&file, buf, offset);
///     let (result, back) = loop {
///         driver.turn(Wait::Forever)?;
///         if let Some(done) = read.try_take() {
///             break done;
///         }
///     };
///     buf = back;
///     if result? == 0 {
///         break;
///     }
///     all.extend_from_slice(&buf);
///     offset += buf.len() as u64;
/// }
/// assert_eq!(all, b"0123456789");
/// # std::fs::remove_file(&path)
/// # }
/// ```
///
/// A buffer of any type *without room* is refused: the read ends with `EINVAL` and never reaches the kernel,
/// since a result of 0 means the end of the file.
///
/// # Safety
///
/// - [`stable_mut_ptr`](IoBufMut::stable_mut_ptr) is the same address as [`stable_ptr`](IoBuf::stable_ptr),
///   and the [`bytes_room`](IoBufMut::bytes_room) bytes from there on, no fewer than
///   [`bytes_len`](IoBuf::bytes_len), may be written to; nothing else reads or writes them while the value
///   is only moved: they are not shared.
/// - The room stays the same while the value is only moved.
/// - After [`set_init`](IoBufMut::set_init) at least the first `count` bytes are initialized. It moves no
///   bytes, and the former room may still be written to.
/// - No method calls into a driver.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be lent to the kernel to be written to",
    label = "not a buffer that an operation can own and fill",
    note = "the kernel writes the bytes after the call has returned, so an operation takes its buffer by \
            value and gives it back with the result",
    note = "pass an owned buffer, such as `Vec::with_capacity(4096)` or `vec![0; 4096]`, and take it back: \
            `let (result, buf) = file.read_at(buf, 0).await`"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// Returns a pointer to the first byte.
    fn stable_mut_ptr(&mut self) -> *mut u8;

    /// Returns the number of bytes that a read may fill: the initialized bytes, unless the type has room
    /// beyond them. 0 is a buffer without room.
    #[inline(always)]
    fn bytes_room(&self) -> usize {
        self.bytes_len()
    }

    /// Records that a read has filled the first `count` bytes. A buffer whose room is always initialized has
    /// nothing to do.
    ///
    /// # Safety
    ///
    /// - The first `count` bytes are initialized.
    /// - `count` is at most the room that the buffer had when these bytes were written.
    #[inline(always)]
    unsafe fn set_init(&mut self, count: usize) {
        debug_assert!(count <= self.bytes_len(), "{count} bytes, of which all were initialized");
    }

    /// Returns the initialized bytes, for code that is not the kernel. Only
    /// [`fill_from`](IoBufMut::fill_from) reaches the rest of the room.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the trait promises that many initialized bytes there, which may be written to, and
        // which nothing else accesses while the value is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.stable_mut_ptr(), self.bytes_len()) }
    }

    /// Copies bytes to the front, as a read would, as far as there is room. Returns their number.
    fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let fill = |room: &mut [MaybeUninit<u8>]| {
            let count = bytes.len().min(room.len());
            room[..count].write_copy_of_slice(&bytes[..count]);
            count
        };
        // SAFETY: it writes bytes, and counts those that it has written.
        unsafe { fill_with(self, fill) }
    }

    /// Returns at most the first `most` bytes of the room, for several reads that fill it one after the
    /// other.
    fn room(self, most: usize) -> Room<Self>
    where
        Self: Sized,
    {
        Room::new(self, most)
    }
}

/// Calls `fill` to write to the room of a buffer, and returns its result: the number of bytes that it filled,
/// from the front on.
///
/// # Safety
///
/// - `fill` writes only initialized bytes, and fills the number of bytes that it returns, from the front on.
pub(crate) unsafe fn fill_with<T: IoBufMut + ?Sized>(
    buf: &mut T,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> usize,
) -> usize {
    let room = buf.bytes_room();
    // SAFETY: the trait promises that `room` bytes may be written to, and that nothing else accesses them
    // while the value is borrowed. Initialized bytes stay so (the caller's promise).
    let count = fill(unsafe { std::slice::from_raw_parts_mut(buf.stable_mut_ptr().cast(), room) });
    assert!(count <= room, "{count} bytes in a room of {room}");
    // SAFETY: the caller says that `fill` has filled these bytes; there was room for them.
    unsafe { buf.set_init(count) };
    count
}

/// Initializes the whole room of a buffer: for a kernel that is not trusted to have written the bytes that it
/// reports. Changes no length.
pub(crate) fn initialize<T: IoBufMut>(buf: &mut T) {
    let (len, room) = (buf.bytes_len(), buf.bytes_room());
    if len < room {
        // SAFETY: the trait promises that the bytes of the room may be written to; the first `len`, which
        // have a value, keep it.
        unsafe { buf.stable_mut_ptr().add(len).write_bytes(0, room - len) };
    }
}

macro_rules! owned_bytes {
    ($($type:ty $(, const $n:ident)?;)*) => {$(
        // SAFETY: the bytes are initialized, and live in an allocation of their own, or a block of an arena,
        // that does not move with the value, and the value owns it alone.
        unsafe impl $(<const $n: usize>)? IoBuf for $type {
            bytes_of_slice!();
        }
        // SAFETY: as above; a `&mut` to the value may write to the bytes.
        unsafe impl $(<const $n: usize>)? IoBufMut for $type {
            #[inline(always)]
            fn stable_mut_ptr(&mut self) -> *mut u8 {
                self.as_mut_ptr()
            }
        }
    )*};
}

owned_bytes! {
    Box<[u8]>;
    Box<[u8; N]>, const N;
    &'static mut [u8];
    &'static mut [u8; N], const N;
    AlignedBuf;
    FixedBuf;
}

// SAFETY: the bytes lie in an allocation of their own that does not move with the value, and the value owns
// it alone.
unsafe impl IoBuf for Vec<u8> {
    bytes_of_slice!();
}

// SAFETY: as above. The same holds for the rest of the capacity, which nothing else uses: the room of an
// empty one. Setting the length moves nothing.
unsafe impl IoBufMut for Vec<u8> {
    room_of_vec!(capacity);
}

/// Returns the capacity. Out of line, to keep the code for a `Vec` with a length short.
#[cold]
fn capacity(buf: &Vec<u8>) -> usize {
    buf.capacity()
}

macro_rules! shared_bytes {
    ($($type:ty $(, const $n:ident)?;)*) => {$(
        // SAFETY: the bytes do not move with the value, live as long as it, and cannot be written to while it
        // lives.
        unsafe impl $(<const $n: usize>)? IoBuf for $type {
            bytes_of_slice!();
        }
    )*};
}

shared_bytes! {
    &'static [u8];
    &'static [u8; N], const N;
    &'static str;
    String;
    Box<str>;
    Arc<[u8]>;
    Arc<str>;
    Rc<[u8]>;
    Rc<str>;
}

/// A part of a buffer. [`into_inner`](Slice::into_inner) returns the whole buffer.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// use sakia_driver::IoBuf;
///
/// # use std::future::Future;
/// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return Ok(output);
/// #         }
/// #         driver.turn(sakia_driver::Wait::Forever)?;
/// #     }
/// # }
/// # fn main() -> std::io::Result<()> {
/// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
/// # let path = std::env::temp_dir().join(format!("sakia-driver-slice-{}", std::process::id()));
/// let file = driver.adopt(std::fs::File::create(&path)?.into());
/// let text = String::from("only this word");
/// let (result, part) = run(&driver, driver.write(&file, text.slice(5..9), 0))?;
/// assert_eq!(result?, 4);
/// assert_eq!(part.into_inner(), "only this word");
/// assert_eq!(std::fs::read(&path)?, b"this");
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Slice<T> {
    buf: T,
    begin: usize,
    end: usize,
}

impl<T> Slice<T> {
    /// Returns the whole buffer.
    ///
    /// # Examples
    /// See [`Slice`](Slice#examples).
    pub fn into_inner(self) -> T {
        self.buf
    }

    /// Returns the whole buffer, borrowed.
    pub fn buffer(&self) -> &T {
        &self.buf
    }

    /// Removes `count` bytes from the front.
    ///
    /// # Panics
    /// When the slice has fewer.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::IoBuf;
    ///
    /// // The rest, after a write that took three bytes.
    /// let mut part = vec![1, 2, 3, 4, 5].slice(..);
    /// part.advance(3);
    /// assert_eq!(part.as_bytes(), [4, 5]);
    /// assert_eq!(part.buffer().len(), 5);
    /// ```
    pub fn advance(&mut self, count: usize) {
        let len = self.end - self.begin;
        assert!(count <= len, "{count} bytes taken off a slice of {len}");
        self.begin += count;
    }
}

// SAFETY: a part of a buffer that keeps the same promise; `begin <= end <= bytes_len()` was checked
// when the slice was made, and the length cannot have changed since.
unsafe impl<T: IoBuf> IoBuf for Slice<T> {
    fn stable_ptr(&self) -> *const u8 {
        // SAFETY: `begin` lies within the buffer.
        unsafe { self.buf.stable_ptr().add(self.begin) }
    }
    fn bytes_len(&self) -> usize {
        self.end - self.begin
    }
}

// SAFETY: as above.
unsafe impl<T: IoBufMut> IoBufMut for Slice<T> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: `begin` lies within the buffer.
        unsafe { self.buf.stable_mut_ptr().add(self.begin) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CURRENT_POSITION;
    use crate::sim::{FaultKind, Sim};
    use crate::{Driver, Op, Operation, Wait};

    fn finish<O: Operation>(driver: &Driver, mut op: Op<O>) -> O::Output {
        loop {
            if let Some(output) = op.try_take() {
                return output;
            }
            driver.turn(Wait::Forever).expect("the simulated kernel works");
        }
    }

    #[test]
    fn room_is_what_a_read_may_fill() {
        let mut full = vec![1, 2, 3];
        full.reserve(100);
        assert_eq!((full.bytes_len(), full.bytes_room()), (3, 3));
        let (empty, none) = (Vec::<u8>::with_capacity(5), Vec::<u8>::new());
        assert_eq!((empty.bytes_len(), empty.bytes_room()), (0, empty.capacity()));
        assert_eq!((none.bytes_len(), none.bytes_room()), (0, 0));
        assert_eq!((full.fill_from(b"ab"), &full[..]), (2, &b"ab\x03"[..]));
        assert_eq!((full.fill_from(b"abcdef"), &full[..]), (3, &b"abc"[..]));
        let slice = Vec::<u8>::with_capacity(5).slice(..);
        assert_eq!(slice.bytes_room(), 0, "a slice is of bytes that there are");
    }

    #[test]
    fn literals_and_shared_texts_are_buffers() {
        fn bytes_are_text(buf: impl IoBuf) {
            assert_eq!(buf.slice(..).as_bytes(), b"text");
        }
        bytes_are_text("text");
        bytes_are_text(b"text");
        bytes_are_text(Box::<str>::from("text"));
        bytes_are_text(Rc::<str>::from("text"));
        bytes_are_text(Arc::<str>::from("text"));
        let leaked: &'static mut [u8; 4] = Box::leak(Box::new([0; 4]));
        let mut room = leaked.room(9);
        assert_eq!(room.fill_from(b"texts"), 4);
        bytes_are_text(room.into_inner());
    }

    #[test]
    fn parts_of_parts_of_a_room_are_filled_in_place() {
        let mut room = Vec::<u8>::with_capacity(10).room(9);
        assert_eq!(room.fill_from(b"ab"), 2);
        room.advance(2);
        let mut part = room.room(3);
        assert_eq!((part.bytes_len(), part.bytes_room()), (0, 3));
        assert_eq!(part.fill_from(b"cdefgh"), 3);
        let mut room = part.into_inner();
        // A part of it may be taken off, and the rest is filled again.
        room.advance(1);
        assert_eq!((room.filled(), room.bytes_len(), room.bytes_room()), (3, 2, 6));
        assert_eq!(room.fill_from(b"D"), 1);
        assert_eq!(room.into_inner(), b"abcDe");
    }

    #[test]
    #[should_panic(expected = "1 bytes taken off a room of which 0 are filled")]
    fn what_is_not_filled_is_not_taken_off() {
        Vec::<u8>::with_capacity(10).room(10).advance(1);
    }

    /// The kernel of this test writes late and makes short transfers. Under Miri, no uninitialized byte is
    /// read.
    #[test]
    fn only_what_was_read_gets_a_length() {
        for seed in 0..8 {
            let sim = Sim::builder(seed)
                .late_writes(u16::MAX)
                .fault(FaultKind::ShortTransfer, 20_000)
                .build();
            let kernel = sim.handle();
            kernel.create_file("file", (0..100).collect::<Vec<u8>>());
            let (reader, _writer) = kernel.pipe();
            let driver = Driver::new(sim);
            let file =
                finish(&driver, driver.open(None, c"file".into(), 0, 0)).expect("it is there");
            let (result, buf) = finish(&driver, driver.read(&file, Vec::with_capacity(64), 90));
            let count = result.expect("it can be read");
            assert_eq!(buf, (90..90 + count as u8).collect::<Vec<u8>>());
            let bufs = vec![Vec::with_capacity(3), vec![0; 2], Vec::new(), Vec::with_capacity(9)];
            let (result, bufs) = finish(&driver, driver.read_vectored(&file, bufs, 0));
            let count = result.expect("it can be read");
            assert!(bufs.concat().into_iter().take(count).eq(0..count as u8), "{bufs:?}");
            // One read that is canceled while the kernel has it, and one that is dropped.
            let reader = driver.adopt_simulated(reader);
            let mut op = driver.read(&reader, Vec::with_capacity(64), CURRENT_POSITION);
            drop(driver.read(&reader, kernel.buffer(Vec::with_capacity(64)), CURRENT_POSITION));
            driver.turn(Wait::Poll).expect("the simulated kernel works");
            op.cancel();
            let (result, buf) = finish(&driver, op);
            assert_eq!((result.is_err(), buf.len()), (true, 0));
            // Many reads into one room.
            let mut room = Vec::with_capacity(50).room(50);
            while room.bytes_room() > 0 {
                let at = room.filled() as u64;
                let (result, back) = finish(&driver, driver.read(&file, room, at));
                room = back;
                room.advance(result.expect("it can be read"));
            }
            assert!(room.into_inner().iter().copied().eq(0..50));
            drop(driver);
            assert_eq!(kernel.freed_early(), 0);
        }
    }
}
