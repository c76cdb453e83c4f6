//! A buffer with a value that lives as long as it.

use super::IoBuf;

/// A buffer to send, with a value that is dropped with it: by the caller, or by the driver when the kernel is
/// done with a dropped operation.
///
/// # Examples
/// ```
/// use std::rc::Rc;
///
/// use sakia_driver::{Attached, IoBuf};
///
/// let in_use = Rc::new(());
/// let buf = Attached::new("hello", Rc::clone(&in_use));
/// assert_eq!((buf.as_bytes(), Rc::strong_count(&in_use)), (&b"hello"[..], 2));
/// assert_eq!(buf.into_inner(), "hello");
/// assert_eq!(Rc::strong_count(&in_use), 1);
/// ```
#[derive(Debug)]
pub struct Attached<T, V> {
    buf: T,
    /// Dropped after the buffer.
    value: V,
}

impl<T: IoBuf, V: 'static> Attached<T, V> {
    /// Attaches a value to a buffer.
    ///
    /// # Examples
    /// See [`Attached`](Attached#examples).
    pub fn new(buf: T, value: V) -> Self {
        Self { buf, value }
    }

    /// Returns the buffer, and drops the value.
    ///
    /// # Examples
    /// See [`Attached`](Attached#examples).
    pub fn into_inner(self) -> T {
        drop(self.value);
        self.buf
    }
}

// SAFETY: the promise of the buffer's type; the value does not reach the buffer.
unsafe impl<T: IoBuf, V: 'static> IoBuf for Attached<T, V> {
    #[inline(always)]
    fn stable_ptr(&self) -> *const u8 {
        self.buf.stable_ptr()
    }
    #[inline(always)]
    fn bytes_len(&self) -> usize {
        self.buf.bytes_len()
    }
}
