//! Memory aligned to pages, for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes in memory of their own, which begins at a page: aligned for every `O_DIRECT`.
///
/// The length is fixed at creation, and may be any. For direct I/O it has to be a multiple of the file's
/// alignment, which is a power of two and most often 512 or 4096; [`slice`](crate::IoBuf::slice) lends a
/// part.
///
/// # Examples
/// ```
/// use sakia_driver::AlignedBuf;
///
/// let mut buf = AlignedBuf::zeroed(8192);
/// buf[..5].copy_from_slice(b"hello");
/// assert!(buf.starts_with(b"hello\0"));
/// assert_eq!(buf.as_ptr() as usize % 4096, 0);
/// ```
pub struct AlignedBuf {
    /// The allocation, whose bytes are initialized, `len` of them from the first aligned one on; dangling if
    /// `len` is 0.
    allocation: NonNull<u8>,
    len: usize,
}

impl AlignedBuf {
    /// The alignment of the first byte: the largest page that the machine can have.
    pub const ALIGN: usize = sakia_ring::PAGE_BYTES_MAX;

    /// Allocates `len` zeros. The system backs a large allocation with memory only as it is used.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX` less a page. Ends the process when there is no memory, as `Vec`
    /// does.
    ///
    /// # Examples
    /// See [`AlignedBuf`](AlignedBuf#examples).
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if len == 0 {
            let align = std::num::NonZero::new(Self::ALIGN).expect("a page is not empty");
            return Self { allocation: NonNull::without_provenance(align), len };
        }
        // SAFETY: the layout is not empty.
        let allocation = unsafe { alloc_zeroed(layout) };
        let allocation = NonNull::new(allocation).unwrap_or_else(|| handle_alloc_error(layout));
        Self { allocation, len }
    }

    /// Returns the address of the first byte.
    fn addr(&self) -> NonNull<u8> {
        let skipped = self.allocation.addr().get().wrapping_neg() % Self::ALIGN;
        // SAFETY: `skipped` is 0 if the layout is aligned or nothing is allocated; otherwise the allocation
        // has room for `ALIGN` more bytes.
        unsafe { self.allocation.add(skipped) }
    }

    /// Returns the layout of the allocation. Allocators write zeros to memory with a large alignment; without
    /// one, they take large zeroed allocations from the system unwritten.
    fn layout(len: usize) -> Layout {
        let layout = if len < Self::ALIGN {
            Layout::from_size_align(len, Self::ALIGN)
        } else {
            Layout::from_size_align(len.saturating_add(Self::ALIGN), 1)
        };
        layout.unwrap_or_else(|_| panic!("{len} bytes exceed the address space"))
    }
}

impl Default for AlignedBuf {
    /// Returns an empty one, which takes no memory.
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl From<&[u8]> for AlignedBuf {
    /// Returns a copy of `bytes`.
    fn from(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes that are this value's alone, zeroed or written since; or none at an
        // aligned address.
        unsafe { std::slice::from_raw_parts(self.addr().as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.addr().as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated by `zeroed` with this layout; the owner is being dropped, so no borrow is
            // left.
            unsafe { dealloc(self.allocation.as_ptr(), Self::layout(self.len)) };
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

// SAFETY: the value owns its memory alone, like a `Box<[u8]>`, and shares it only by `&`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; a `&` gives nothing but reads.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::IoBuf;

    #[test]
    fn any_length_is_aligned_zeroed_and_freed() {
        for len in [0, 1, 511, 4096, 65_535, 65_536, 65_537, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.stable_ptr() as usize % AlignedBuf::ALIGN, 0);
            assert_eq!((buf.len(), buf.bytes_len()), (len, len));
            assert_eq!(*buf, *vec![0; len]);
            buf.fill(7);
            let copy = AlignedBuf::from(&*buf);
            assert_eq!(*copy, *buf);
        }
    }
}
