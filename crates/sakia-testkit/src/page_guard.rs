//! Memory that turns inaccessible when it is freed.
//!
//! The worst fault of a completion-based engine is silent: the program frees a buffer, the kernel writes
//! into it later, and corrupts the new owner of the memory. Here each buffer has pages of its own:
//!
//! ```text
//!   | accessible pages, the buffer at their beginning | one inaccessible page |
//! ```
//!
//! 1. The guard page stops accesses beyond the pages.
//! 2. On drop all pages become inaccessible, before anything else, and their memory is given back.
//!    A late write by the kernel now fails with `EFAULT`, a late access of our own faults.
//! 3. The addresses stay taken, in a *quarantine* of bounded size; the oldest are unmapped first.
//!    Until then nothing else can be found at an address that was freed.
//!
//! It cannot see writes by a device or the kernel through pages *pinned* before the drop (direct I/O in
//! flight, registered buffers). They go to the detached pages, where they do no harm and leave no trace.
//!
//! Any thread may call these. Sources: `mmap(2)`, `mprotect(2)`, `madvise(2)`.

use std::collections::VecDeque;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

/// The number of freed buffers whose addresses are kept from reuse.
///
/// Far below `vm.max_map_count` (65,530 by default), which bounds the number of separate maps.
pub const QUARANTINE_COUNT: usize = 4096;

/// The size of freed buffers, with their guard pages, whose addresses are kept from reuse. Addresses
/// only; no memory is behind them.
pub const QUARANTINE_BYTES: usize = 16 << 30;

/// Bytes in pages of their own; see the [module](self).
///
/// Begins at a page boundary, enough for direct I/O, and with zeros. The bytes keep their address when the
/// value moves. On drop the pages become inaccessible and go to a quarantine that all such buffers share.
#[derive(Debug)]
pub struct GuardedBuffer {
    /// The pages; accessible while this value lives.
    region: Region,
    /// The length asked for, at most the region's.
    len: usize,
}

/// The quarantine of dropped [`GuardedBuffer`]s.
static BUFFERS: Quarantine = Quarantine::new(QUARANTINE_COUNT, QUARANTINE_BYTES);

impl GuardedBuffer {
    /// Returns a buffer of `len` zeros.
    ///
    /// # Panics
    /// When the pages cannot be mapped.
    pub fn new(len: usize) -> Self {
        match Region::map(len) {
            Ok(region) => Self { region, len },
            Err(errno) => panic!("cannot map a guarded buffer of {len} bytes: {errno}"),
        }
    }
}

impl Deref for GuardedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region is accessible and initialized (zero at first) for at least `len`
        // bytes until `self` drops; `&self` keeps out writes through this value.
        unsafe { slice::from_raw_parts(self.region.base.as_ptr(), self.len) }
    }
}

impl DerefMut for GuardedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` keeps out every other access through this value.
        unsafe { slice::from_raw_parts_mut(self.region.base.as_ptr(), self.len) }
    }
}

impl Drop for GuardedBuffer {
    fn drop(&mut self) {
        // SAFETY: `Region::map` made the region for this value alone, and it is dropped once.
        unsafe { BUFFERS.retire(self.region) }
    }
}

/// Returns whether the byte at `ptr` can be read at this moment without faulting.
///
/// It searches the process's maps, so any address is allowed, mapped or not. The answer may be outdated on
/// return, unless the caller knows that no other thread changes that map.
///
/// # Panics
/// When `/proc` does not list the maps.
pub fn is_accessible<T: ?Sized>(ptr: *const T) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("the maps of this process");
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    // As in `7f0c5a9e5000-7f0c5a9e6000 r--p …`.
    let is_there = |line: &str| {
        let (bounds, access) = line.split_once(' ')?;
        let (begin, end) = bounds.split_once('-')?;
        Some((number(begin)?..number(end)?).contains(&ptr.addr()) && access.starts_with('r'))
    };
    maps.lines().any(|line| is_there(line) == Some(true))
}

/// Pages of our own, followed by a guard page that never becomes accessible.
///
/// A plain description: copying it copies nothing, dropping it frees nothing.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// The first byte, at a page boundary.
    base: NonNull<u8>,
    /// The size of the accessible part, in whole pages; the guard page is not in it.
    len: usize,
}

// SAFETY: a description of memory, bound to no thread.
unsafe impl Send for Region {}
// SAFETY: as above; and without a method that accesses the memory through `&self`.
unsafe impl Sync for Region {}

impl Region {
    /// Maps zeroed pages for `len` bytes and a guard page.
    ///
    /// # Errors
    /// `ENOMEM`: no memory, no addresses, or too many maps.
    fn map(len: usize) -> rustix::io::Result<Self> {
        let len = len.checked_next_multiple_of(page_size()).ok_or(Errno::NOMEM)?;
        let mapped = len.checked_add(page_size()).ok_or(Errno::NOMEM)?;
        // Without NORESERVE, quarantined pages would stay charged to strict overcommit accounting.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh map at an address of the kernel's choice affects no other memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::empty(), flags)?
        };
        let region = Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len };
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the first pages of the map just made, of whole pages, unknown to the rest of the process;
        // if they cannot be opened, the map is not returned.
        unsafe {
            rustix::mm::mprotect(base, len, access).inspect_err(|_| region.unmap())?;
        }
        Ok(region)
    }

    /// The size with the guard page.
    fn mapped_len(self) -> usize {
        self.len + page_size()
    }

    /// Unmaps it, with its guard page.
    ///
    /// # Safety
    /// - [`Region::map`] made it, it was not unmapped before, and nothing accesses it.
    unsafe fn unmap(self) {
        // SAFETY: a whole map, which the caller gives up.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_len()) };
        unmapped.expect("munmap(2): raise vm.max_map_count or use a smaller quarantine");
    }
}

/// Freed regions in the order of their freeing.
struct Quarantine {
    /// The regions. Locked for bookkeeping only, never across a system call.
    kept: Mutex<VecDeque<Region>>,
    /// The most regions kept.
    count_max: usize,
    /// The most bytes kept, guard pages included.
    bytes_max: usize,
}

impl Quarantine {
    const fn new(count_max: usize, bytes_max: usize) -> Self {
        Self { kept: Mutex::new(VecDeque::new()), count_max, bytes_max }
    }

    /// Makes `region` inaccessible, gives back its memory, and keeps its addresses from reuse
    /// until others push it out.
    ///
    /// # Safety
    /// - `Region::map` returned `region`, and it was not retired before.
    /// - The caller gives up all access to it.
    unsafe fn retire(&self, region: Region) {
        let base = region.base.as_ptr().cast();
        // SAFETY: the region is mapped and given up by the caller. First the access goes, then the contents:
        // in between and after, no other code can see it or map memory there.
        unsafe {
            let closed = rustix::mm::mprotect(base, region.len, MprotectFlags::empty());
            closed.expect("mprotect(2): raise vm.max_map_count");
            // Fails for memory locked by mlockall(2), which then stays until the region is
            // unmapped: a cost, not a fault.
            let _ = rustix::mm::madvise(base, region.len, Advice::LinuxDontNeed);
        }
        self.lock().push_back(region);
        while let Some(old) = self.pop_over() {
            // SAFETY: it was retired earlier or just now, so nothing accesses it; and as it left the queue,
            // no other thread unmaps it.
            unsafe { old.unmap() };
        }
    }

    /// Removes the oldest region if the quarantine is over its limits.
    fn pop_over(&self) -> Option<Region> {
        let mut kept = self.lock();
        let is_over = kept.len() > self.count_max || bytes(&kept) > self.bytes_max;
        if is_over { kept.pop_front() } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Region>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the sum of the sizes of regions, guard pages included.
fn bytes(kept: &VecDeque<Region>) -> usize {
    kept.iter().map(|region| region.mapped_len()).sum()
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::os::fd::AsFd;
    use std::thread;

    use linux_raw_sys::ioctl::FIONREAD;
    use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

    use super::*;

    /// Makes the kernel write an `int`, a pipe's fill level, through `target`, which may be any address that
    /// the caller owns or owned.
    fn kernel_writes(target: *mut u8) -> rustix::io::Result<()> {
        struct FillLevel(*mut c_void);

        // SAFETY: `FIONREAD` writes an `int` through the pointer or fails with `EFAULT`. The tests
        // pass addresses of their own buffers, or of freed ones that nothing else can occupy.
        unsafe impl Ioctl for FillLevel {
            type Output = ();
            const IS_MUTATING: bool = true;

            fn opcode(&self) -> Opcode {
                FIONREAD as Opcode
            }

            fn as_ptr(&mut self) -> *mut c_void {
                self.0
            }

            unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
                Ok(())
            }
        }

        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::write(&writer, b"12345")?;
        // SAFETY: as at the implementation.
        unsafe { ioctl(reader.as_fd(), FillLevel(target.cast())) }
    }

    #[test]
    fn buffer_is_page_aligned_zeroed_and_writable() {
        for len in [1, 511, 4096, 4097, 1 << 20] {
            let mut buffer = GuardedBuffer::new(len);
            assert_eq!(buffer.as_ptr().addr() % page_size(), 0);
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn buffer_stays_in_place_when_it_moves() {
        let buffer = GuardedBuffer::new(100);
        let address = buffer.as_ptr();
        let moved = Box::new(buffer);
        assert_eq!(moved.as_ptr(), address);
    }

    #[test]
    fn empty_buffer_has_nothing_but_its_guard() {
        let buffer = GuardedBuffer::new(0);
        assert!(buffer.is_empty());
        assert!(!is_accessible(buffer.as_ptr()));
    }

    #[test]
    fn guard_page_follows_the_pages() {
        let buffer = GuardedBuffer::new(2 * page_size());
        let end = buffer.as_ptr_range().end;
        assert!(is_accessible(end.wrapping_sub(1)));
        assert!(!is_accessible(end));
        assert!(!is_accessible(end.wrapping_add(page_size() - 1)));
    }

    #[test]
    fn kernel_write_into_a_dropped_buffer_fails() {
        let mut buffer = GuardedBuffer::new(8192);
        let (first, last) = (buffer.as_mut_ptr(), &raw mut buffer[8188]);
        kernel_writes(first).unwrap();
        kernel_writes(last).unwrap();
        assert_eq!(buffer[..4], 5_i32.to_ne_bytes());
        assert_eq!(buffer[8188..], 5_i32.to_ne_bytes());

        drop(buffer);
        assert_eq!(kernel_writes(first), Err(Errno::FAULT));
        assert_eq!(kernel_writes(last), Err(Errno::FAULT));
        assert!(!is_accessible(first) && !is_accessible(last));
    }

    #[test]
    fn accessible_is_told_for_any_address() {
        let (on_stack, on_heap) = (1_u8, Box::new(2_u8));
        assert!(is_accessible(&raw const on_stack));
        assert!(is_accessible(&raw const *on_heap));
        assert!(is_accessible("constant".as_ptr()));
        assert!(!is_accessible(ptr::null::<u8>()));
        assert!(!is_accessible(ptr::without_provenance::<u8>(usize::MAX)));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for len in [isize::MAX as usize - (1 << 30), usize::MAX - page_size(), usize::MAX] {
            assert_eq!(Region::map(len).err(), Some(Errno::NOMEM), "{len}");
        }
    }

    #[test]
    fn freed_addresses_are_not_used_again() {
        let mut seen = Vec::new();
        for _ in 0..64 {
            let buffer = GuardedBuffer::new(4096).as_ptr();
            assert!(!seen.contains(&buffer));
            seen.push(buffer);
        }
        assert!(seen.iter().all(|&buffer| !is_accessible(buffer)));
    }

    /// Returns the bases of the regions kept, oldest first.
    fn bases(quarantine: &Quarantine) -> Vec<NonNull<u8>> {
        quarantine.lock().iter().map(|region| region.base).collect()
    }

    fn retire_new(quarantine: &Quarantine, pages: usize) -> NonNull<u8> {
        let region = Region::map(pages * page_size()).unwrap();
        // SAFETY: the region was mapped just now and is retired once.
        unsafe { quarantine.retire(region) };
        region.base
    }

    #[test]
    fn quarantine_is_bounded_by_count() {
        let quarantine = Quarantine::new(3, usize::MAX);
        let all: Vec<_> = (0..8).map(|_| retire_new(&quarantine, 1)).collect();
        assert_eq!(bases(&quarantine), all[5..]);
        assert_eq!(bytes(&quarantine.lock()), 3 * 2 * page_size());
    }

    #[test]
    fn quarantine_is_bounded_by_bytes() {
        let quarantine = Quarantine::new(16, 10 * page_size());
        let small: Vec<_> = (0..5).map(|_| retire_new(&quarantine, 1)).collect();
        assert_eq!(bases(&quarantine), small);
        let large = retire_new(&quarantine, 5);
        assert_eq!(bases(&quarantine), [small[3], small[4], large]);
        assert_eq!(bytes(&quarantine.lock()), 10 * page_size());
        // A region larger than the whole quarantine passes straight through it.
        retire_new(&quarantine, 10);
        assert_eq!(bases(&quarantine), []);
    }

    #[test]
    fn quarantine_may_be_empty() {
        let quarantine = Quarantine::new(0, usize::MAX);
        retire_new(&quarantine, 1);
        assert_eq!(bases(&quarantine), []);
    }

    #[test]
    fn threads_share_a_quarantine() {
        static QUARANTINE: Quarantine = Quarantine::new(8, 1 << 20);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..200 {
                        retire_new(&QUARANTINE, 1 + round % 6);
                    }
                });
            }
        });
        assert_eq!(QUARANTINE.lock().len(), 8);
    }
}
