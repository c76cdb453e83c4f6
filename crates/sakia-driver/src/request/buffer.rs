//! Memory of a request.

use std::ptr::NonNull;

use crate::aligned::AlignedBuf;
use crate::buf::{IoBuf, IoBufMut};

/// Memory of another language or library, for a request. It is lent until the request's outcome gives it
/// back.
///
/// # Examples
/// See [`Foreign::new`].
#[derive(Debug)]
pub struct Foreign {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker of one promises that the memory is used by no other code until it comes back, on whatever
// thread the request is performed.
unsafe impl Send for Foreign {}

impl Foreign {
    /// Names `len` bytes at `addr`. The address of no bytes may be null.
    ///
    /// # Panics
    /// When `addr` is null and `len` is not 0.
    ///
    /// # Safety
    ///
    /// - The bytes are initialized and valid for reads and writes, on any thread, and no other code accesses
    ///   them until this value has come back, in the outcome of its request, and is dropped; for ever if it
    ///   does not come back.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Buffer, FileHandle, Foreign, Loop, Request, Wait};
    ///
    /// let mut memory = [0_u8; 9];
    /// let mut ring = Loop::new()?;
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// // SAFETY: the memory is not accessed before the loop is stopped, and nothing of it has leaked then.
    /// let foreign = unsafe { Foreign::new(memory.as_mut_ptr(), memory.len()) };
    /// ring.submit(Request::read(&file, Buffer::Foreign(foreign), 0), 1)?;
    /// while ring.take().is_none() {
    ///     ring.wait(Wait::Forever)?;
    /// }
    /// assert!(ring.stop(std::time::Duration::MAX).leaked.is_empty());
    /// assert_eq!(&memory, b"[package]");
    /// # std::io::Result::Ok(())
    /// ```
    #[inline]
    pub unsafe fn new(addr: *mut u8, len: usize) -> Self {
        let addr = match NonNull::new(addr) {
            Some(addr) => addr,
            None if len == 0 => NonNull::dangling(),
            None => panic!("{len} bytes at null"),
        };
        Self { addr, len }
    }
}

/// The memory that a request reads into or writes from. It belongs to the request until the outcome gives it
/// back.
///
/// # Examples
/// See [`Loop`](crate::Loop#examples) and [`Foreign::new`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Buffer {
    /// A vector. An empty one is read into up to its capacity, and gets the length of the bytes read.
    Vector(Vec<u8>),
    /// Memory for transfers past the page cache (`O_DIRECT`).
    Aligned(AlignedBuf),
    /// Memory of another owner.
    Foreign(Foreign),
}

impl From<AlignedBuf> for Buffer {
    fn from(bytes: AlignedBuf) -> Self {
        Self::Aligned(bytes)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Vector(bytes)
    }
}

impl Buffer {
    /// Returns the vector. `None` for memory of another owner.
    ///
    /// # Examples
    /// See [`Loop`](crate::Loop#examples).
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self {
            Self::Vector(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the aligned memory. `None` for other memory.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{AlignedBuf, Buffer};
    ///
    /// let buffer = Buffer::from(AlignedBuf::zeroed(4096));
    /// assert_eq!(buffer.into_aligned().unwrap().len(), 4096);
    /// ```
    pub fn into_aligned(self) -> Option<AlignedBuf> {
        match self {
            Self::Aligned(bytes) => Some(bytes),
            _ => None,
        }
    }
}

// SAFETY: those of a vector and of aligned memory are their own promise. Foreign memory has one address and
// length, which the value does not change, and is initialized and valid until the value is dropped: the
// promise of `Foreign::new`.
unsafe impl IoBuf for Buffer {
    #[inline(always)]
    fn stable_ptr(&self) -> *const u8 {
        match self {
            Self::Vector(bytes) => bytes.stable_ptr(),
            Self::Aligned(bytes) => bytes.stable_ptr(),
            Self::Foreign(foreign) => foreign.addr.as_ptr(),
        }
    }

    #[inline(always)]
    fn bytes_len(&self) -> usize {
        match self {
            Self::Vector(bytes) => bytes.len(),
            Self::Aligned(bytes) => bytes.len(),
            Self::Foreign(foreign) => foreign.len,
        }
    }
}

// SAFETY: as above. Aligned and foreign memory is initialized, so its room is its length, which no read
// changes.
unsafe impl IoBufMut for Buffer {
    #[inline(always)]
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Vector(bytes) => bytes.stable_mut_ptr(),
            Self::Aligned(bytes) => bytes.stable_mut_ptr(),
            Self::Foreign(foreign) => foreign.addr.as_ptr(),
        }
    }

    #[inline(always)]
    fn bytes_room(&self) -> usize {
        match self {
            Self::Vector(bytes) => bytes.bytes_room(),
            Self::Aligned(bytes) => bytes.bytes_room(),
            Self::Foreign(foreign) => foreign.len,
        }
    }

    #[inline(always)]
    unsafe fn set_init(&mut self, count: usize) {
        if let Self::Vector(bytes) = self {
            // SAFETY: the caller's promise, of the same bytes.
            unsafe { bytes.set_init(count) };
        }
    }
}
