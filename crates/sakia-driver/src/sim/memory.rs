//! Memory that was lent to the simulated kernel.
//!
//! This is the only module of the simulation that accesses memory through addresses. The caller that pushes
//! an entry promises that its memory stays valid until the entry's last completion was reaped
//! ([`Backend::push`](crate::Backend::push)). The machine keeps a [`Lent`] only until it posts that
//! completion, and does not access it afterwards.

use std::ptr;

use linux_raw_sys::general as abi;
use rustix::io::Errno;

use crate::groups::Provided;

/// The byte that fills a buffer of a read that has not happened yet.
pub(super) const SCRIBBLE: u8 = 0xa5;
/// `UIO_MAXIOV`: maximum number of entries of a vector.
const VECTOR_ENTRIES_MAX: u32 = abi::UIO_MAXIOV;
/// `PATH_MAX`: maximum number of bytes of a path, with its NUL.
const PATH_BYTES_MAX: usize = abi::PATH_MAX as usize;

/// Consecutive bytes somewhere in the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    ptr: *mut u8,
    len: usize,
}

impl Segment {
    /// Returns the bytes that an entry names by address and length.
    pub(super) fn new(addr: u64, len: usize) -> Self {
        Self { ptr: pointer(addr), len }
    }

    fn is_bad(&self) -> bool {
        self.ptr.is_null() && self.len > 0
    }
}

/// The access of an operation to its lent memory.
#[derive(Debug, Default)]
pub(super) enum Lent {
    /// The operation has none, or no longer uses it.
    #[default]
    Nothing,
    /// The operation writes to it: the buffers of a read, a `struct statx`.
    ToFill(Vec<Segment>),
    /// The operation reads from it: the buffers of a write.
    ToTake(Vec<Segment>),
}

impl Lent {
    /// Wraps memory for the operation to write to.
    ///
    /// # Errors
    /// `EFAULT` when an address is null.
    pub(super) fn to_fill(segments: Vec<Segment>) -> Result<Self, Errno> {
        check(&segments)?;
        Ok(Self::ToFill(segments))
    }

    /// Wraps memory for the operation to read from.
    ///
    /// # Errors
    /// `EFAULT` when an address is null.
    pub(super) fn to_take(segments: Vec<Segment>) -> Result<Self, Errno> {
        check(&segments)?;
        Ok(Self::ToTake(segments))
    }

    fn segments(&self) -> &[Segment] {
        match self {
            Self::Nothing => &[],
            Self::ToFill(segments) | Self::ToTake(segments) => segments,
        }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.segments().iter().fold(0, |sum, segment| sum.saturating_add(segment.len))
    }

    /// Returns whether any of the bytes at `addr` is among them.
    pub(super) fn overlaps(&self, addr: u64, len: usize) -> bool {
        let end = addr.saturating_add(len as u64);
        self.segments().iter().any(|segment| {
            let start = segment.ptr.addr() as u64;
            start < end && addr < start.saturating_add(segment.len as u64)
        })
    }

    /// Writes `bytes`, which must fit, to the front.
    ///
    /// # Safety
    ///
    /// - The memory is still lent: the operation's last completion was not reaped.
    pub(super) unsafe fn fill(&self, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.fill_at(0, bytes) };
    }

    /// Writes `bytes`, which must fit, after the first `skipped` ones.
    ///
    /// # Safety
    ///
    /// - The memory is still lent: the operation's last completion was not reaped.
    pub(super) unsafe fn fill_at(&self, mut skipped: usize, mut bytes: &[u8]) {
        assert!(matches!(self, Self::ToFill(_)) || bytes.is_empty(), "nothing was lent to fill");
        let end = skipped.saturating_add(bytes.len());
        assert!(end <= self.len(), "{end} bytes for {}", self.len());
        for segment in self.segments() {
            let begin = skipped.min(segment.len);
            skipped -= begin;
            let (front, rest) = bytes.split_at(bytes.len().min(segment.len - begin));
            // SAFETY: the caller says that the memory is still lent, to be written to, so nothing
            // else accesses it; `front` is no longer than the rest of the segment, and our own memory.
            unsafe {
                let place = segment.ptr.wrapping_add(begin);
                ptr::copy_nonoverlapping(front.as_ptr(), place, front.len());
            }
            bytes = rest;
        }
    }

    /// Reads up to `len_max` bytes from the front.
    ///
    /// # Safety
    ///
    /// - The memory is still lent: the operation's last completion was not reaped.
    pub(super) unsafe fn take(&self, len_max: usize) -> Vec<u8> {
        assert!(!matches!(self, Self::ToFill(_)), "the memory was lent to be filled");
        let mut bytes = Vec::with_capacity(self.len().min(len_max));
        for segment in self.segments() {
            let len = segment.len.min(len_max - bytes.len());
            if len > 0 {
                // SAFETY: the caller says that the memory is still lent, so its bytes are valid,
                // and nothing writes to them; `len` is not 0, so the address was checked.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(segment.ptr, len) });
            }
        }
        bytes
    }

    /// Uses all of the memory, as a kernel may at any moment: fills memory that is lent for writing with
    /// [`SCRIBBLE`], and reads memory that is lent for reading. Returns whether there was any.
    ///
    /// # Safety
    ///
    /// - The memory is still lent: the operation's last completion was not reaped.
    pub(super) unsafe fn disturb(&self) -> bool {
        match self {
            Self::Nothing => {}
            Self::ToFill(segments) => {
                for segment in segments {
                    // SAFETY: the caller says that the memory is still lent, to be written to.
                    unsafe { segment.ptr.write_bytes(SCRIBBLE, segment.len) };
                }
            }
            Self::ToTake(_) => {
                // SAFETY: the caller's promise.
                std::hint::black_box(unsafe { self.take(usize::MAX) });
            }
        }
        self.len() > 0
    }
}

impl From<Provided> for Lent {
    fn from(buffer: Provided) -> Self {
        Self::ToFill(vec![Segment::new(buffer.addr, buffer.len as usize)])
    }
}

fn check(segments: &[Segment]) -> Result<(), Errno> {
    if segments.iter().any(Segment::is_bad) { Err(Errno::FAULT) } else { Ok(()) }
}

/// Returns the address as a pointer, with the provenance of the pointer that was exposed as this address.
fn pointer<T>(addr: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(addr as usize)
}

/// Returns the NUL-terminated path at `addr`, without its NUL.
///
/// # Errors
/// `EFAULT` if the address is null, `ENAMETOOLONG` if there is no NUL within the limit.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory that holds a NUL-terminated string.
pub(super) unsafe fn read_path(addr: u64) -> Result<Vec<u8>, Errno> {
    if addr == 0 {
        return Err(Errno::FAULT);
    }
    let start: *const u8 = pointer(addr);
    let mut path = Vec::new();
    while path.len() < PATH_BYTES_MAX {
        // SAFETY: every byte before this one belongs to the string and is not its NUL, so this byte belongs
        // to it, too.
        match unsafe { start.add(path.len()).read() } {
            0 => return Ok(path),
            byte => path.push(byte),
        }
    }
    Err(Errno::NAMETOOLONG)
}

/// Returns the `len` bytes at `addr`.
///
/// # Errors
/// `EFAULT` if the address is null, and `len` is not 0.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory of `len` bytes.
pub(super) unsafe fn read_bytes(addr: u64, len: usize) -> Result<Vec<u8>, Errno> {
    // SAFETY: the caller's promise.
    Ok(unsafe { Lent::to_take(vec![Segment::new(addr, len)])?.take(len) })
}

/// Writes bytes at `addr`.
///
/// # Errors
/// `EFAULT` if the address is null, and there are bytes.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory for as many bytes.
pub(super) unsafe fn write_bytes(addr: u64, bytes: &[u8]) -> Result<(), Errno> {
    let lent = Lent::to_fill(vec![Segment::new(addr, bytes.len())])?;
    // SAFETY: the caller's promise.
    unsafe { lent.fill(bytes) };
    Ok(())
}

/// Returns a value of numbers at `addr`, which need not be aligned.
///
/// # Errors
/// `EFAULT` when the address is null.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory of the size of `T`, a type for which any bytes are valid.
pub(super) unsafe fn read_plain<T: Copy>(addr: u64) -> Result<T, Errno> {
    if addr == 0 {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { pointer::<T>(addr).read_unaligned() })
}

/// An entry of a vector: the kernel's `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Iovec {
    base: *mut u8,
    len: usize,
}

/// Returns the segments that the vector of `count` entries at `addr` describes.
///
/// # Errors
/// `EINVAL` when there are more than 1024, `EFAULT` when the address is null.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory that holds `count` of the kernel's `struct iovec`.
pub(super) unsafe fn read_vector(addr: u64, count: u32) -> Result<Vec<Segment>, Errno> {
    if count > VECTOR_ENTRIES_MAX {
        return Err(Errno::INVAL);
    }
    if addr == 0 && count > 0 {
        return Err(Errno::FAULT);
    }
    let start: *const Iovec = pointer(addr);
    let segment = |index| {
        // SAFETY: the caller says that there are `count` entries. The read requires no alignment.
        let entry = unsafe { start.add(index as usize).read_unaligned() };
        Segment { ptr: entry.base, len: entry.len }
    };
    Ok((0..count).map(segment).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address<T>(pointer: *const T) -> u64 {
        pointer.expose_provenance() as u64
    }

    #[test]
    fn bytes_are_spread_over_segments_and_gathered_from_them() {
        let (mut a, mut b) = ([0_u8; 3], [0_u8; 4]);
        let segments = vec![
            Segment::new(address(a.as_mut_ptr()), 3),
            Segment::new(0, 0),
            Segment::new(address(b.as_mut_ptr()), 4),
        ];
        let lent = Lent::to_fill(segments.clone()).unwrap();
        assert_eq!(lent.len(), 7);
        // SAFETY: both arrays are alive and used by nothing else.
        unsafe { lent.fill(b"abcde") };
        let lent = Lent::to_take(segments).unwrap();
        // SAFETY: as above.
        let (five, all) = unsafe { (lent.take(5), lent.take(100)) };
        assert_eq!(five, b"abcde");
        assert_eq!(all, b"abcde\0\0");
        assert_eq!((&a, &b), (b"abc", b"de\0\0"));
    }

    #[test]
    fn bytes_go_behind_those_that_are_skipped() {
        let (mut a, mut b) = ([0_u8; 3], [0_u8; 4]);
        let segments = vec![
            Segment::new(address(a.as_mut_ptr()), 3),
            Segment::new(address(b.as_mut_ptr()), 4),
        ];
        let lent = Lent::to_fill(segments).unwrap();
        // SAFETY: both arrays are alive and used by nothing else.
        unsafe {
            lent.fill_at(2, b"xyz");
            lent.fill_at(7, b"");
            lent.fill_at(6, b"e");
        }
        assert_eq!((&a, &b), (b"\0\0x", b"yz\0e"));
    }

    #[test]
    fn disturbing_fills_what_is_to_be_filled_and_leaves_the_rest() {
        let mut bytes = [1_u8; 2];
        let segments = vec![Segment::new(address(bytes.as_mut_ptr()), 2)];
        // SAFETY: the array is alive and used by nothing else.
        assert!(unsafe { Lent::to_take(segments.clone()).unwrap().disturb() });
        // SAFETY: as above; the read uses the pointer, since the array was lent.
        assert_eq!(unsafe { Lent::to_take(segments.clone()).unwrap().take(2) }, [1, 1]);
        // SAFETY: as above.
        assert!(unsafe { Lent::to_fill(segments).unwrap().disturb() });
        assert_eq!(bytes, [SCRIBBLE; 2]);
        // SAFETY: no memory at all.
        assert!(!unsafe { Lent::Nothing.disturb() });
    }

    #[test]
    fn null_is_a_fault_where_there_should_be_bytes() {
        assert_eq!(Lent::to_fill(vec![Segment::new(0, 1)]).unwrap_err(), Errno::FAULT);
        assert_eq!(Lent::to_take(vec![Segment::new(0, 1)]).unwrap_err(), Errno::FAULT);
        assert!(Lent::to_fill(vec![Segment::new(0, 0)]).is_ok());
        // SAFETY: null is always allowed.
        unsafe {
            assert_eq!(read_path(0).unwrap_err(), Errno::FAULT);
            assert_eq!(read_vector(0, 1).unwrap_err(), Errno::FAULT);
            assert_eq!(read_vector(0, 1025).unwrap_err(), Errno::INVAL);
            assert!(read_vector(0, 0).unwrap().is_empty());
        }
    }

    #[test]
    fn paths_end_at_their_nul() {
        let (short, long) = (b"abc\0def\0", vec![b'a'; PATH_BYTES_MAX]);
        // SAFETY: the first string has a NUL, the second as many bytes as are read.
        unsafe {
            assert_eq!(read_path(address(short.as_ptr())).unwrap(), b"abc");
            assert_eq!(read_path(address(long.as_ptr())).unwrap_err(), Errno::NAMETOOLONG);
        }
    }
}
