//! Reads and writes with each kind of memory, of files and of pipes.

use std::io;
use std::ops::Deref;

use sakia_driver::{Arena, Fd, FixedBuf};

use super::{BLOCK_BYTES, Runner};
use crate::env::Env;
use crate::held::{Output, Pending, pending};
use crate::program::Memory;

/// The largest number of buffers in a transfer.
const PARTS_MAX: usize = 1024;

/// Returns whether a transfer of this length in several buffers has too many of them, and so is short.
pub(super) fn has_too_many_parts(len: usize) -> bool {
    len > 4 * PARTS_MAX
}

/// Splits bytes into several buffers: one byte, half of the rest, nothing, the rest. A long text becomes
/// more buffers than a transfer takes.
fn split(mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if has_too_many_parts(bytes.len()) {
        let mut parts: Vec<Vec<u8>> = bytes[..PARTS_MAX].iter().map(|&byte| vec![byte]).collect();
        parts.push(bytes.split_off(PARTS_MAX));
        return parts;
    }
    let mut rest = bytes.split_off(bytes.len().min(1));
    let last = rest.split_off(rest.len() / 2);
    vec![bytes, rest, Vec::new(), last]
}

/// Returns the concatenated bytes of several buffers.
fn join<T: Deref<Target = [u8]>>(bufs: &[T]) -> Vec<u8> {
    bufs.iter().flat_map(|buf| buf.iter().copied()).collect()
}

/// Returns the result of a read and its bytes. With memory filled up to its capacity, the buffer's length
/// must be the number of bytes; otherwise the result is an impossible one.
pub(super) fn brought(is_capacity: bool, result: io::Result<usize>, bytes: Vec<u8>) -> Output {
    let came = *result.as_ref().unwrap_or(&0);
    if is_capacity && bytes.len() != came {
        return Output::Bytes(Ok(usize::MAX), bytes);
    }
    Output::Bytes(result, bytes)
}

impl<E: Env> Runner<'_, E> {
    /// Returns whether the next read fills the capacity of empty vectors: every second one does.
    pub(super) fn fills_capacity(&self) -> bool {
        self.started.is_multiple_of(2)
    }

    /// Returns memory to read `len` bytes into.
    pub(super) fn room(&self, len: usize) -> E::Buf {
        let bytes = if self.fills_capacity() { Vec::with_capacity(len) } else { vec![0; len] };
        self.env.buffer(bytes)
    }

    /// Returns a block of registered memory, if requested and available.
    pub(super) fn block(&self, memory: Memory) -> Option<FixedBuf> {
        let arena = self.arena.as_ref().filter(|_| memory == Memory::Fixed);
        arena.and_then(Arena::block)
    }

    /// Starts to read `len` bytes, or a whole block into registered memory. Returns the length as well.
    pub(super) fn start_read(
        &self,
        fd: &Fd,
        offset: u64,
        len: usize,
        memory: Memory,
    ) -> (usize, Box<dyn Pending>) {
        if let Some(block) = self.block(memory) {
            let op = self.driver.read_fixed(fd, block, offset);
            let op = pending(op, |(result, block)| Output::Bytes(result, block.to_vec()));
            return (BLOCK_BYTES, op);
        }
        let is_capacity = self.fills_capacity();
        let op = if memory == Memory::Vector {
            let bufs = split(vec![0; len]).into_iter().map(|part| self.room(part.len())).collect();
            let op = self.driver.read_vectored(fd, bufs, offset);
            pending(op, move |(result, bufs)| brought(is_capacity, result, join(&bufs)))
        } else {
            let op = self.driver.read(fd, self.room(len), offset);
            pending(op, move |(result, buf)| brought(is_capacity, result, buf.to_vec()))
        };
        (len, op)
    }

    /// Starts to write these bytes, by way of `block` if there is one; they must fill the block.
    pub(super) fn start_write(
        &self,
        fd: &Fd,
        offset: u64,
        bytes: Vec<u8>,
        memory: Memory,
        block: Option<FixedBuf>,
    ) -> Box<dyn Pending> {
        if let Some(mut block) = block {
            block.copy_from_slice(&bytes);
            let op = self.driver.write_fixed(fd, block, offset);
            return pending(op, |(result, block)| Output::Bytes(result, block.to_vec()));
        }
        if memory == Memory::Vector {
            let bufs = split(bytes).into_iter().map(|buf| self.env.buffer(buf)).collect();
            let op = self.driver.write_vectored(fd, bufs, offset);
            pending(op, |(result, bufs)| Output::Bytes(result, join(&bufs)))
        } else {
            let op = self.driver.write(fd, self.env.buffer(bytes), offset);
            pending(op, |(result, buf)| Output::Bytes(result, buf.to_vec()))
        }
    }
}
