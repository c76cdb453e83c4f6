//! A part of a buffer's room.

use super::{IoBuf, IoBufMut};

/// The room of a buffer, or a part of it, that several reads fill one after the other. From
/// [`IoBufMut::room`].
///
/// Each read goes on where [`advance`](Room::advance) has come to, whether the buffer's bytes were
/// initialized before or its capacity is filled: a `Vec` that was empty has as many bytes as were read so
/// far.
///
/// ```
/// use sakia_driver::{IoBuf, IoBufMut};
///
/// let mut room = Vec::with_capacity(8).room(5);
/// assert_eq!((room.bytes_len(), room.bytes_room()), (0, 5));
/// let count = room.fill_from(b"abc");
/// room.advance(count);
/// assert_eq!((room.filled(), room.bytes_room()), (3, 2));
/// assert_eq!(room.fill_from(b"defghi"), 2);
/// assert_eq!(room.into_inner(), b"abcde");
/// ```
#[derive(Debug)]
pub struct Room<T> {
    buf: T,
    /// What was filled before: at most the buffer's initialized bytes.
    begin: usize,
    /// At most the room that the buffer had at first.
    end: usize,
}

impl<T: IoBufMut> Room<T> {
    pub(super) fn new(buf: T, most: usize) -> Self {
        let end = buf.bytes_room().min(most);
        Self { buf, begin: 0, end }
    }

    /// How many bytes were filled: those that [`advance`](Room::advance) took off.
    pub fn filled(&self) -> usize {
        self.begin
    }

    /// Takes `count` bytes, which a read has brought, off the front.
    ///
    /// # Panics
    /// When fewer are initialized.
    pub fn advance(&mut self, count: usize) {
        let len = self.bytes_len();
        assert!(count <= len, "{count} bytes taken off a room of which {len} are filled");
        self.begin += count;
    }

    /// The whole buffer.
    pub fn into_inner(self) -> T {
        self.buf
    }

    /// The whole buffer, borrowed.
    pub fn buffer(&self) -> &T {
        &self.buf
    }
}

// SAFETY: a part of a buffer that keeps the same promise. `begin` is at most the initialized bytes, which
// `advance` checks and which do not become fewer while the buffer is only moved or told of more; what counts
// here lies between it and those, and before `end`.
unsafe impl<T: IoBufMut> IoBuf for Room<T> {
    #[inline(always)]
    fn stable_ptr(&self) -> *const u8 {
        // SAFETY: `begin` lies within the buffer.
        unsafe { self.buf.stable_ptr().add(self.begin) }
    }
    #[inline(always)]
    fn bytes_len(&self) -> usize {
        self.buf.bytes_len().min(self.end) - self.begin
    }
}

// SAFETY: as above; up to `end` there was room when this was made, which may still be written to (the promise
// of `set_init`, the only method with a `&mut` that is called meanwhile).
unsafe impl<T: IoBufMut> IoBufMut for Room<T> {
    #[inline(always)]
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: `begin` lies within the buffer.
        unsafe { self.buf.stable_mut_ptr().add(self.begin) }
    }
    #[inline(always)]
    fn bytes_room(&self) -> usize {
        self.end - self.begin
    }
    #[inline(always)]
    unsafe fn set_init(&mut self, count: usize) {
        // SAFETY: the bytes before `begin` are initialized, and the caller says that so many from there on
        // are, too, which lie before `end`: within the room that the buffer had.
        unsafe { self.buf.set_init(self.begin + count) };
    }
}
