//! Buffers that detect that they are freed too early.

use std::ops::{Deref, DerefMut};

use super::handle::SimHandle;
use crate::buf::{IoBuf, IoBufMut};

/// A buffer that reports to the simulated kernel when it is freed. If an operation in flight may still use
/// it, the kernel counts that, see [`SimHandle::freed_early`]. Made by [`SimHandle::buffer`].
///
/// Forgetting it is allowed: the bytes stay valid for ever.
#[derive(Debug)]
pub struct SimBuf {
    bytes: Vec<u8>,
    kernel: SimHandle,
}

impl SimBuf {
    pub(super) fn new(bytes: Vec<u8>, kernel: SimHandle) -> Self {
        Self { bytes, kernel }
    }
}

impl Deref for SimBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for SimBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for SimBuf {
    fn drop(&mut self) {
        let (start, len) = (self.bytes.as_ptr().expose_provenance(), self.bytes.capacity());
        self.kernel.note_freed(start as u64, len);
    }
}

// SAFETY: the promise of the vector, which only this value reaches.
unsafe impl IoBuf for SimBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.bytes.stable_ptr()
    }

    fn bytes_len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for SimBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.stable_mut_ptr()
    }

    fn bytes_room(&self) -> usize {
        self.bytes.bytes_room()
    }

    unsafe fn set_init(&mut self, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.set_init(count) };
    }
}
