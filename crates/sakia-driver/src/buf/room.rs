//! A part of a buffer's room.

use super::{IoBuf, IoBufMut};

/// The room of a buffer, or a part of it, that several reads fill one after the other. From
/// [`IoBufMut::room`].
///
/// Each read continues where [`advance`](Room::advance) has moved to, whether the buffer's bytes were
/// initialized before or its capacity is filled: an initially empty `Vec` has the length of the bytes read
/// so far.
///
/// # Examples
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
    /// The number of bytes filled: at most the buffer's initialized bytes.
    begin: usize,
    /// The end of the room: at most the buffer's initial room.
    end: usize,
}

impl<T: IoBufMut> Room<T> {
    pub(super) fn new(buf: T, most: usize) -> Self {
        let end = buf.bytes_room().min(most);
        Self { buf, begin: 0, end }
    }

    /// Returns the number of bytes filled, as counted by [`advance`](Room::advance).
    ///
    /// # Examples
    /// See [`Room`](Room#examples).
    pub fn filled(&self) -> usize {
        self.begin
    }

    /// Removes `count` bytes, which a read has filled, from the front.
    ///
    /// # Panics
    /// If fewer are initialized.
    ///
    /// # Examples
    /// See [`Room`](Room#examples).
    pub fn advance(&mut self, count: usize) {
        let len = self.bytes_len();
        assert!(count <= len, "{count} bytes taken off a room of which {len} are filled");
        self.begin += count;
    }

    /// Returns the whole buffer.
    ///
    /// # Examples
    /// See [`Room`](Room#examples).
    pub fn into_inner(self) -> T {
        self.buf
    }

    /// Borrows the whole buffer.
    pub fn buffer(&self) -> &T {
        &self.buf
    }
}

// SAFETY: a part of a buffer with the same promise. `begin` is at most the number of initialized bytes, which
// `advance` checks and which does not shrink while the buffer is only moved or extended. This part lies
// between `begin` and the end of the initialized bytes, and before `end`.
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

// SAFETY: as above. There was room up to `end` when this value was made, and it may still be written (the
// promise of `set_init`, the only method with a `&mut` that is called meanwhile).
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
        // SAFETY: the bytes before `begin` are initialized, and by the caller's promise so are `count` bytes
        // after it, which lie before `end`: within the room that the buffer had.
        unsafe { self.buf.set_init(self.begin + count) };
    }
}
