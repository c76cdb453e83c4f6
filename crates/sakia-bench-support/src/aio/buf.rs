//! Memory for requests.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes in memory of their own, which begins at a page, as `O_DIRECT` wants it. Their number is fixed.
pub struct Buf {
    addr: NonNull<u8>,
    len: usize,
}

impl Buf {
    /// `len` zeros.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX` less a page. Ends the process when there is no memory.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let addr = unsafe { alloc_zeroed(layout) };
        let addr = NonNull::new(addr).unwrap_or_else(|| handle_alloc_error(layout));
        Self { addr, len }
    }

    /// A byte at least, so that there is always something to allocate.
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), sakia_ring::PAGE_BYTES_MAX)
            .unwrap_or_else(|_| panic!("{len} bytes are more than memory has"))
    }

    /// Where the kernel finds the bytes. It does not change when the value moves.
    pub(super) fn address(&mut self) -> usize {
        self.addr.as_ptr().expose_provenance()
    }
}

impl From<&[u8]> for Buf {
    /// A copy of `bytes`.
    fn from(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes that are this value's alone, zeroed or written since. While the kernel has
        // them, a slot has the value, and nobody a reference.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.addr.as_ptr(), self.len) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this layout, and used by nobody any more.
        unsafe { dealloc(self.addr.as_ptr(), Self::layout(self.len)) };
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).finish_non_exhaustive()
    }
}

// SAFETY: the value owns its memory alone, like a `Box<[u8]>`, and shares it only by `&`.
unsafe impl Send for Buf {}
// SAFETY: as above; a `&` gives nothing but reads.
unsafe impl Sync for Buf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_page_whatever_their_number() {
        for len in [0, 1, 4095, 4096, 100_000] {
            let buf = Buf::zeroed(len);
            assert_eq!((buf.len(), buf.as_ptr() as usize % 4096), (len, 0));
        }
        assert_eq!(&Buf::from(&b"abc"[..])[..], b"abc");
    }
}
