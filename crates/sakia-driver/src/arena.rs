//! Registered memory: blocks that the kernel pins once.

use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use rustix::mm::{MapFlags, ProtFlags};

use crate::buf::{IoBufMut, Slice};

/// Equal blocks of page-aligned memory, registered with a driver. Clones refer to the same memory.
///
/// It counts against the limit on locked memory. It is freed when the driver, the arena and every block are
/// gone; never, if the driver had to give up an operation that uses a block.
///
/// # Examples
/// See [`Handle::register_arena`](crate::Handle::register_arena).
#[derive(Clone, Debug)]
pub struct Arena {
    memory: Rc<Memory>,
}

#[derive(Debug)]
struct Memory {
    addr: NonNull<u8>,
    len: usize,
    block_bytes: usize,
    /// Indices of the free blocks.
    free: RefCell<Vec<u32>>,
}

impl Arena {
    /// Allocates `blocks` blocks of `block_bytes` bytes each, rounded up to whole pages.
    ///
    /// # Errors
    /// `EINVAL`: no blocks, or more than 1 GiB in all. `ENOMEM`: no memory.
    pub(crate) fn new(blocks: u32, block_bytes: usize) -> io::Result<Self> {
        const ARENA_BYTES_MAX: usize = 1 << 30; // the kernel's bound for one registered buffer
        let whole_pages = |bytes: usize| {
            let block_bytes = bytes.checked_next_multiple_of(sakia_ring::PAGE_BYTES_MAX)?;
            let len = block_bytes.checked_mul(blocks as usize)?;
            (1..=ARENA_BYTES_MAX).contains(&len).then_some((block_bytes, len))
        };
        let Some((block_bytes, len)) = whole_pages(block_bytes) else {
            return Err(rustix::io::Errno::INVAL.into());
        };
        Ok(Self { memory: Rc::new(Memory::map(len, block_bytes, blocks)?) })
    }

    /// Returns the number of blocks, and the number of free blocks.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        let blocks = self.memory.len / self.memory.block_bytes;
        (blocks as u64, self.memory.free.borrow().len() as u64)
    }

    /// Returns the start of the memory that holds all blocks, and its length in bytes.
    pub(crate) fn area(&self) -> (*mut u8, usize) {
        (self.memory.addr.as_ptr(), self.memory.len)
    }

    /// Returns a free block, or `None` if all are in use. It still holds the bytes of its last user.
    ///
    /// # Examples
    /// See [`Handle::register_arena`](crate::Handle::register_arena).
    pub fn block(&self) -> Option<FixedBuf> {
        let index = self.memory.free.borrow_mut().pop()?;
        Some(FixedBuf { memory: Rc::clone(&self.memory), index })
    }

    /// Returns whether the block belongs to this arena.
    pub(crate) fn has(&self, block: &FixedBuf) -> bool {
        Rc::ptr_eq(&self.memory, &block.memory)
    }

    /// Returns the size of each block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.memory.block_bytes
    }
}

impl Memory {
    fn map(len: usize, block_bytes: usize, blocks: u32) -> io::Result<Self> {
        // SAFETY: a new anonymous map at an address the kernel chooses.
        let addr = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Ok(Self {
            addr: NonNull::new(addr.cast()).expect("mmap never returns null without MAP_FIXED"),
            len,
            block_bytes,
            free: RefCell::new((0..blocks).rev().collect()),
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the whole map, to which no block refers any more. A forked child has a copy of it: the
        // kernel copies pinned pages for the child, so that the parent's pages stay in place.
        unsafe { rustix::mm::munmap(self.addr.as_ptr().cast(), self.len) }.ok();
    }
}

/// One block of an [`Arena`]. Goes back to it when dropped.
///
/// # Examples
/// See [`Handle::register_arena`](crate::Handle::register_arena).
#[derive(Debug)]
pub struct FixedBuf {
    memory: Rc<Memory>,
    index: u32,
}

impl FixedBuf {
    /// The kernel's index of the registered buffer that the block lies in.
    pub(crate) const REGISTERED_INDEX: u16 = 0;

    fn pointer(&self) -> *mut u8 {
        // SAFETY: the index is less than the number of blocks, all of which lie within the map.
        unsafe { self.memory.addr.add(self.index as usize * self.memory.block_bytes) }.as_ptr()
    }
}

/// A block of an [`Arena`], or a part of one. The trait is sealed.
pub trait RegisteredBuf: IoBufMut + sealed::Sealed {
    /// Returns the block.
    #[doc(hidden)]
    fn block(&self) -> &FixedBuf;
}

impl RegisteredBuf for FixedBuf {
    fn block(&self) -> &FixedBuf {
        self
    }
}

impl RegisteredBuf for Slice<FixedBuf> {
    fn block(&self) -> &FixedBuf {
        self.buffer()
    }
}

mod sealed {
    /// Marks types whose bytes all lie within a block.
    pub trait Sealed {}

    impl Sealed for super::FixedBuf {}
    impl Sealed for super::Slice<super::FixedBuf> {}
}

impl std::ops::Deref for FixedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is this value's alone, mapped and zeroed or written since.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.memory.block_bytes) }
    }
}

impl std::ops::DerefMut for FixedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.memory.block_bytes) }
    }
}

impl Drop for FixedBuf {
    fn drop(&mut self) {
        self.memory.free.borrow_mut().push(self.index);
    }
}
