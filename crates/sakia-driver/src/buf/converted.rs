//! Buffers of user types.

use std::fmt;
use std::marker::PhantomData;

use super::{IoBuf, IoBufMut};

/// A value of a user type, lent to the kernel as the `Vec<u8>` or `Box<[u8]>` that it converts to and from.
/// It is for types that own their bytes in one of these, and needs no unsafe code.
///
/// The value is converted when it is [wrapped](Converted::new) and [back](Converted::into_inner), on the
/// caller's side. In between only the memory exists, so a drop runs the memory's destructor, not that of `T`.
/// A conversion that moves its memory costs nothing. One that copies is correct too, but copies all bytes
/// twice. Properties that a conversion loses, such as the capacity of an empty value, are not available to
/// reads.
///
/// # Examples
/// ```
/// use sakia_driver::{Converted, IoBuf, IoBufMut};
///
/// /// A page of a database.
/// struct Page {
///     bytes: Vec<u8>,
/// }
///
/// impl From<Vec<u8>> for Page {
///     fn from(bytes: Vec<u8>) -> Self {
///         Self { bytes }
///     }
/// }
///
/// impl From<Page> for Vec<u8> {
///     fn from(page: Page) -> Self {
///         page.bytes
///     }
/// }
///
/// let page = Page { bytes: Vec::with_capacity(4096) };
/// let mut buf = Converted::new(page);
/// assert!(buf.bytes_room() >= 4096);
/// buf.fill_from(b"a read does this");
/// let page: Page = buf.into_inner();
/// assert_eq!(page.bytes, b"a read does this");
/// ```
pub struct Converted<T, V = Vec<u8>> {
    memory: V,
    /// The original type, of which no value exists here.
    from: PhantomData<fn(T) -> T>,
}

impl<T: Into<Vec<u8>> + From<Vec<u8>>> Converted<T> {
    /// Wraps a value as the `Vec<u8>` that it converts to.
    ///
    /// # Examples
    /// See [`Converted`](Converted#examples).
    pub fn new(value: T) -> Self {
        Self { memory: value.into(), from: PhantomData }
    }
}

impl<T: Into<Box<[u8]>> + From<Box<[u8]>>> Converted<T, Box<[u8]>> {
    /// Wraps a value as the `Box<[u8]>` that it converts to.
    pub fn boxed(value: T) -> Self {
        Self { memory: value.into(), from: PhantomData }
    }
}

impl<T: From<V>, V> Converted<T, V> {
    /// Returns the value, with the bytes read.
    ///
    /// # Examples
    /// See [`Converted`](Converted#examples).
    pub fn into_inner(self) -> T {
        self.memory.into()
    }
}

impl<T, V: fmt::Debug> fmt::Debug for Converted<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Converted").field("memory", &self.memory).finish_non_exhaustive()
    }
}

// SAFETY: the promise of the memory's type.
unsafe impl<T: 'static, V: IoBuf> IoBuf for Converted<T, V> {
    #[inline(always)]
    fn stable_ptr(&self) -> *const u8 {
        self.memory.stable_ptr()
    }
    #[inline(always)]
    fn bytes_len(&self) -> usize {
        self.memory.bytes_len()
    }
}

// SAFETY: the promise of the memory's type.
unsafe impl<T: 'static, V: IoBufMut> IoBufMut for Converted<T, V> {
    #[inline(always)]
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory.stable_mut_ptr()
    }
    #[inline(always)]
    fn bytes_room(&self) -> usize {
        self.memory.bytes_room()
    }
    #[inline(always)]
    unsafe fn set_init(&mut self, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.set_init(count) };
    }
}
