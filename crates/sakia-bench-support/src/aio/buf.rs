//! Memory for requests.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// The smallest page size in bytes, which is enough for `O_DIRECT`.
const PAGE_BYTES: usize = 4096;

/// A page, whose type aligns an allocation.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Bytes in an allocation of their own, which begins at a multiple of 4 KiB, enough for `O_DIRECT`. Their
/// number is fixed.
pub struct Buf {
    pages: Vec<Page>,
    len: usize,
}

impl Buf {
    /// Returns `len` zeros.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX` less a page. Ends the process when there is no memory.
    pub fn zeroed(len: usize) -> Self {
        Self { pages: vec![Page([0; PAGE_BYTES]); len.div_ceil(PAGE_BYTES)], len }
    }

    /// Returns the address of the bytes. It does not change when the value moves.
    pub(super) fn address(&mut self) -> usize {
        self.pages.as_mut_ptr().expose_provenance()
    }
}

impl From<&[u8]> for Buf {
    /// Returns a copy of `bytes`.
    fn from(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes of the pages, which are at least as long and belong to this value
        // alone. While the kernel uses them, a slot owns the value and no reference exists.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).finish_non_exhaustive()
    }
}

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
