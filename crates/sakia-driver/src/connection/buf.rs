//! Bytes that were received.

use std::fmt;
use std::ops::Deref;

use crate::buf::IoBuf;

/// Bytes that a connection received. Empty at the end of the stream.
pub struct RecvBuf {
    bytes: Vec<u8>,
    /// Where those begin that were not taken yet.
    begin: usize,
}

impl RecvBuf {
    /// Bytes in memory of their own.
    pub(super) fn owned(bytes: Vec<u8>) -> Self {
        Self { bytes, begin: 0 }
    }

    /// Takes `count` bytes off the front.
    ///
    /// # Panics
    /// When it has fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} bytes taken off {}", self.len());
        self.begin += count;
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

// SAFETY: the bytes live in an allocation that does not move with the value and that the value owns alone.
// Only `advance`, which takes a `&mut`, changes which of them it has.
unsafe impl IoBuf for RecvBuf {
    #[inline(always)]
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    #[inline(always)]
    fn bytes_len(&self) -> usize {
        self.len()
    }
}

impl AsRef<[u8]> for RecvBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBuf").field("len", &self.len()).finish_non_exhaustive()
    }
}
