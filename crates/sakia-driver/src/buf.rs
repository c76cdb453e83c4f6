//! Buffers that can be lent to the kernel.
//!
//! A buffer goes into an operation by value and comes back with its result. Until then the driver
//! owns it, so no borrow has to be trusted.

use std::io;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;

/// A result together with the buffer that the operation had; the buffer comes back on error too.
pub type BufResult<T, B> = (io::Result<T>, B);

/// The most bytes that one read or write moves: `MAX_RW_COUNT` of the kernel, 2 GiB less a page.
pub const MAX_RW_BYTES: usize = 0x7fff_f000;

/// A buffer that the kernel may read from.
///
/// # Safety
///
/// - [`stable_ptr`](IoBuf::stable_ptr) points to [`bytes_len`](IoBuf::bytes_len) initialized bytes.
/// - Both stay the same, and the bytes stay valid, while the value is only moved, until it is
///   dropped or reached through a `&mut`.
/// - Neither method calls into a driver.
pub unsafe trait IoBuf: 'static {
    /// Where the bytes begin.
    fn stable_ptr(&self) -> *const u8;
    /// How many bytes there are.
    fn bytes_len(&self) -> usize;

    /// The bytes, for code that is not the kernel.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the trait promises that many initialized bytes there, which stay the same while the
        // value is borrowed: only a `&mut` to it may change them.
        unsafe { std::slice::from_raw_parts(self.stable_ptr(), self.bytes_len()) }
    }

    /// The part of the buffer in `range`.
    ///
    /// # Panics
    /// When the range ends after the buffer, or before it begins.
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
/// # Safety
///
/// - [`stable_mut_ptr`](IoBufMut::stable_mut_ptr) is the same address as
///   [`stable_ptr`](IoBuf::stable_ptr), may be written to, and nothing else reads or writes the
///   bytes while the value is only moved: they are not shared.
/// - The method does not call into a driver.
pub unsafe trait IoBufMut: IoBuf {
    /// Where the bytes begin.
    fn stable_mut_ptr(&mut self) -> *mut u8;

    /// The bytes, for code that is not the kernel.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the trait promises that many initialized bytes there, which may be written to, and
        // which nothing else accesses while the value is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.stable_mut_ptr(), self.bytes_len()) }
    }
}

macro_rules! owned_bytes {
    ($($(#[$why:meta])* $type:ty $(, const $n:ident)?;)*) => {$(
        // SAFETY: the bytes live in an allocation of their own that does not move with the value,
        // and the value owns it alone.
        unsafe impl $(<const $n: usize>)? IoBuf for $type {
            #[inline(always)]
            fn stable_ptr(&self) -> *const u8 {
                self.as_ptr()
            }
            #[inline(always)]
            fn bytes_len(&self) -> usize {
                self.len()
            }
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
    Vec<u8>;
    Box<[u8]>;
    Box<[u8; N]>, const N;
    &'static mut [u8];
}

macro_rules! shared_bytes {
    ($($type:ty;)*) => {$(
        // SAFETY: the bytes do not move with the value, live as long as it, and nobody may write to
        // them while it lives.
        unsafe impl IoBuf for $type {
            #[inline(always)]
            fn stable_ptr(&self) -> *const u8 {
                self.as_ptr()
            }
            #[inline(always)]
            fn bytes_len(&self) -> usize {
                self.len()
            }
        }
    )*};
}

shared_bytes! {
    &'static [u8];
    &'static str;
    String;
    Arc<[u8]>;
    Rc<[u8]>;
}

/// A part of a buffer. [`into_inner`](Slice::into_inner) gives the whole back.
#[derive(Debug)]
pub struct Slice<T> {
    buf: T,
    begin: usize,
    end: usize,
}

impl<T> Slice<T> {
    /// The whole buffer.
    pub fn into_inner(self) -> T {
        self.buf
    }

    /// The whole buffer, borrowed.
    pub fn buffer(&self) -> &T {
        &self.buf
    }

    /// Takes `count` bytes off the front.
    ///
    /// # Panics
    /// When it has fewer.
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
