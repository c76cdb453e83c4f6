//! Buffers that notice when they are freed too early.

use std::ops::{Deref, DerefMut};

use super::handle::SimHandle;
use crate::buf::{IoBuf, IoBufMut};

/// A buffer that tells the simulated kernel when it is freed. If an operation under way may still use
/// it, that is counted, see [`SimHandle::freed_early`]. Made by [`SimHandle::buffer`].
///
/// Forgetting it is no fault: the bytes stay valid for ever.
#[derive(Debug)]
pub struct SimBuf {
    bytes: Box<[u8]>,
    kernel: SimHandle,
}

impl SimBuf {
    pub(super) fn new(bytes: Box<[u8]>, kernel: SimHandle) -> Self {
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
        self.kernel.note_freed(self.bytes.as_ptr().expose_provenance() as u64, self.bytes.len());
    }
}

// SAFETY: the bytes are initialized, on the heap, and reached through the value alone.
unsafe impl IoBuf for SimBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.bytes.stable_ptr()
    }

    fn bytes_len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above; the box is not shared.
unsafe impl IoBufMut for SimBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.stable_mut_ptr()
    }
}
