//! Bytes that were received.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::buf::{IoBuf, bytes_of_slice};
use crate::pool::{Pool, Size};

/// Bytes that a connection received. Empty at the end of the stream.
///
/// Most lie in memory that the driver lends to all of its connections; dropping them gives it back. Copy the
/// bytes to keep many of them.
///
/// # Examples
/// See [`Connection`](crate::Connection#examples).
pub struct RecvBuf {
    memory: Memory,
    /// The offset of the first byte that was not taken out yet.
    begin: u32,
    end: u32,
}

enum Memory {
    Owned(Vec<u8>),
    Pooled(Pooled),
}

/// A buffer of the pool.
struct Pooled {
    pool: Rc<Pool>,
    addr: NonNull<u8>,
    size: Size,
    id: u16,
}

impl RecvBuf {
    /// Wraps bytes in memory of their own, at most 4 GiB.
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let end = u32::try_from(bytes.len()).expect("no receive brings as much");
        Self { memory: Memory::Owned(bytes), begin: 0, end }
    }

    /// Returns the first `len` bytes of the buffer that a completion names. `None` if the completion makes no
    /// sense.
    pub(super) fn pooled(pool: &Rc<Pool>, size: Size, id: u16, len: u32) -> Option<Self> {
        let addr = pool.take(size, id)?;
        let memory = Memory::Pooled(Pooled { pool: Rc::clone(pool), addr, size, id });
        Some(Self { memory, begin: 0, end: len.min(size.bytes()) })
    }

    /// Removes `count` bytes from the front.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} bytes taken off {}", self.len());
        self.begin += count as u32;
    }

    /// Keeps the first `count` bytes; all if there are fewer.
    pub(super) fn truncate(&mut self, count: usize) {
        self.end = self.begin + self.len().min(count) as u32;
    }

    fn start(&self) -> *const u8 {
        match &self.memory {
            Memory::Owned(bytes) => bytes.as_ptr(),
            Memory::Pooled(pooled) => pooled.addr.as_ptr(),
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.give_back(self.size, self.id);
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        let len = self.end - self.begin;
        // SAFETY: `begin <= end`, which is at most the bytes of the vector or buffer. Those are initialized,
        // and no code writes to them: the value owns the vector, or took the buffer from the kernel.
        unsafe { std::slice::from_raw_parts(self.start().add(self.begin as usize), len as usize) }
    }
}

// SAFETY: the bytes do not move with the value, which owns them alone. Only `advance`, which takes a `&mut`,
// changes their range.
unsafe impl IoBuf for RecvBuf {
    bytes_of_slice!();
}

impl AsRef<[u8]> for RecvBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_pooled = matches!(self.memory, Memory::Pooled(_));
        f.debug_struct("RecvBuf").field("len", &self.len()).field("is_pooled", &is_pooled).finish()
    }
}
