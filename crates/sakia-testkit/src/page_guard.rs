//! Memory that turns inaccessible when it is freed.
//!
//! The worst fault of a completion-based engine is silent: the program frees a buffer, the kernel
//! writes into it later, and whoever owns the memory by then is corrupted. Here each larger
//! allocation has pages of its own:
//!
//! ```text
//!   | accessible pages, the allocation at their end | one inaccessible page |
//! ```
//!
//! 1. The guard page stops what runs over the end, byte for byte, except for the gap that the
//!    allocation's alignment leaves.
//! 2. On free all pages become inaccessible, before anything else, and their memory is given back.
//!    A late write by the kernel now fails with `EFAULT`, a late access of our own faults.
//! 3. The addresses stay taken, in a *quarantine* of bounded size; the oldest are unmapped first.
//!    Until then nothing else can be found at an address that was freed.
//!
//! What it cannot see: writes by a device or the kernel through pages it had *pinned* before the
//! free (direct I/O in flight, registered buffers). They go to the detached pages, where they harm
//! nobody and show nowhere.
//!
//! Invariants: nothing here allocates while the allocator is called, but for the first question
//! for the page size, which may allocate a few hundred bytes and therefore goes to [`System`]; the
//! lock is held for a few loads and stores only, never across a system call. A process that forks
//! in one thread while another frees may leave the lock held in the child, whose next large free
//! would then hang.
//!
//! Any thread may call these. Sources: `mmap(2)`, `mprotect(2)`, `madvise(2)`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::process;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Mutex, PoisonError};

use linux_raw_sys::ioctl::FIONBIO;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

/// The number of freed allocations whose addresses are kept from reuse, unless told otherwise.
///
/// Far below `vm.max_map_count` (65,530 by default), which bounds the number of separate maps.
pub const QUARANTINE_COUNT: usize = 4096;

/// The size of freed allocations, with their guard pages, whose addresses are kept from reuse,
/// unless told otherwise. Addresses only; no memory is behind them.
pub const QUARANTINE_BYTES: usize = 16 << 30;

/// The size from which an allocation gets pages of its own, unless told otherwise.
pub const THRESHOLD_BYTES: usize = 4096;

/// The least threshold: smaller allocations occur while the page size is found out.
const THRESHOLD_BYTES_MIN: usize = 1024;

/// An allocator that gives larger allocations pages of their own; see the [module](self).
///
/// Smaller ones are served by [`System`]. `COUNT` bounds the quarantine, whose array of 16 bytes
/// each lies in the allocator itself: declare it as a `static`.
pub struct PageGuardAllocator<const COUNT: usize = QUARANTINE_COUNT> {
    /// The least size that is served from own pages.
    threshold_bytes: usize,
    /// Where freed pages go.
    quarantine: Quarantine<COUNT>,
}

impl PageGuardAllocator {
    /// An allocator with the default threshold and quarantine.
    pub const fn new() -> Self {
        Self::with_limits(THRESHOLD_BYTES, QUARANTINE_BYTES)
    }
}

impl Default for PageGuardAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl<const COUNT: usize> PageGuardAllocator<COUNT> {
    /// An allocator that guards allocations of `threshold_bytes` and more, and keeps the addresses
    /// of the last `COUNT` freed ones from reuse, or of fewer where they sum up to more than
    /// `quarantine_bytes_max` with their guard pages.
    ///
    /// # Panics
    /// When `threshold_bytes` is below 1024; at compile time, for a `static`.
    pub const fn with_limits(threshold_bytes: usize, quarantine_bytes_max: usize) -> Self {
        assert!(threshold_bytes >= THRESHOLD_BYTES_MIN);
        Self { threshold_bytes, quarantine: Quarantine::new(quarantine_bytes_max) }
    }

    /// Whether an allocation of this layout has, or would get, pages of its own.
    fn guards(&self, layout: Layout) -> bool {
        layout.size() >= self.threshold_bytes
    }
}

impl<const COUNT: usize> fmt::Debug for PageGuardAllocator<COUNT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageGuardAllocator")
            .field("threshold_bytes", &self.threshold_bytes)
            .finish_non_exhaustive()
    }
}

// SAFETY: which of the two allocators serves a block depends on its layout alone, which the caller
// must repeat on free, so that each block returns to where it came from. Guarded blocks are fresh
// anonymous pages of sufficient size (`Region::map`), placed at an address of the asked alignment
// (`Region::block_offset`), and nobody else's until their region is retired. Nothing here unwinds:
// where freed pages cannot be closed, `fatal` aborts; and `page_size` panics only where the kernel
// tells the size neither by prctl(2) nor in /proc, in which case no test here can run.
unsafe impl<const COUNT: usize> GlobalAlloc for PageGuardAllocator<COUNT> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.guards(layout) {
            // SAFETY: the caller's duties are the same.
            return unsafe { System.alloc(layout) };
        }
        match Region::map(layout.size(), layout.align()) {
            // SAFETY: the offset is less than the region's length, since the size is not 0.
            Ok(region) => unsafe { region.base.add(region.block_offset(layout)).as_ptr() },
            Err(_) => ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.guards(layout) {
            // SAFETY: the caller's duties are the same.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's duties are the same. Fresh anonymous pages are zero.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if !self.guards(layout) {
            // SAFETY: the caller's duties are the same, and by its layout `ptr` came from `System`.
            return unsafe { System.dealloc(ptr, layout) };
        }
        // SAFETY: by its layout, and by the caller's promise, `alloc` above returned `ptr` for
        // `layout`; the caller gives up the block, which is alone in its region.
        unsafe { self.quarantine.retire(Region::of_block(ptr, layout)) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `new_size`, rounded up to the alignment, does not
        // overflow an `isize`, and that it is not 0; the alignment is that of a valid layout.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if !self.guards(layout) && !self.guards(new_layout) {
            // SAFETY: the caller's duties are the same, and by its layout `ptr` came from `System`.
            return unsafe { System.realloc(ptr, layout, new_size) };
        }
        // A guarded block always moves, so that a pointer to the old place does not stay good.
        // SAFETY: `new_layout` is valid and not empty, as above.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: both blocks are valid for the smaller of their sizes, and the new one is
            // distinct from the old one, which is still allocated. After that, the caller gives
            // up the old one.
            unsafe {
                ptr::copy_nonoverlapping(ptr, new, layout.size().min(new_size));
                self.dealloc(ptr, layout);
            }
        }
        new
    }
}

/// Bytes in pages of their own, without an allocator; see the [module](self).
///
/// Begins at a page boundary, as direct I/O wants it, and at zeros. The bytes stay where they are
/// when the value moves. On drop the pages become inaccessible and go to a quarantine of the
/// default size that all such buffers share.
pub struct GuardedBuffer {
    /// The pages; accessible while this value lives.
    region: Region,
    /// The length asked for, at most the region's.
    len: usize,
}

/// Where dropped [`GuardedBuffer`]s go.
static BUFFERS: Quarantine<QUARANTINE_COUNT> = Quarantine::new(QUARANTINE_BYTES);

impl GuardedBuffer {
    /// A buffer of `len` zeros.
    ///
    /// # Panics
    /// When the pages cannot be mapped.
    pub fn new(len: usize) -> Self {
        match Region::map(len, 1) {
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

impl fmt::Debug for GuardedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedBuffer")
            .field("address", &self.region.base)
            .field("len", &self.len)
            .finish()
    }
}

impl Drop for GuardedBuffer {
    fn drop(&mut self) {
        // SAFETY: `Region::map` made the region for this value alone, and it is dropped once.
        unsafe { BUFFERS.retire(self.region) }
    }
}

/// Whether the byte at `ptr` can be read at this moment without faulting.
///
/// Asks the kernel to read there, and so tells for any address, mapped or not. The answer may be
/// old when it arrives, unless the caller knows that nobody changes that map.
///
/// # Panics
/// When no pipe can be made to ask with.
pub fn is_accessible<T: ?Sized>(ptr: *const T) -> bool {
    /// Makes a file blocking or not as the `int` behind the pointer says.
    struct SetNonblocking(*mut c_void);

    // SAFETY: `FIONBIO` reads an `int` from the pointer and returns nothing. Where there is none
    // to be read the kernel answers `EFAULT`, so any pointer will do.
    unsafe impl Ioctl for SetNonblocking {
        type Output = ();
        const IS_MUTATING: bool = false;

        fn opcode(&self) -> Opcode {
            FIONBIO as Opcode
        }

        fn as_ptr(&mut self) -> *mut c_void {
            self.0
        }

        unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
            Ok(())
        }
    }

    // The aligned `int` around the byte lies in the byte's page.
    let around = ptr.cast::<c_void>().map_addr(|address| address & !(size_of::<i32>() - 1));
    let (reader, _writer) = rustix::pipe::pipe().expect("a pipe to try the address with");
    // SAFETY: the call above is valid for any open file; all it changes is a flag of our own pipe,
    // which nobody reads and which ends here.
    match unsafe { ioctl(&reader, SetNonblocking(around.cast_mut())) } {
        Ok(()) => true,
        Err(Errno::FAULT) => false,
        Err(errno) => panic!("cannot try an address: {errno}"),
    }
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
    /// Maps zeroed pages for `len` bytes and a guard page. The base is aligned to `align`, a power
    /// of two, or to a page where that is more.
    ///
    /// # Errors
    /// `ENOMEM`: no memory, no addresses, or too many maps.
    fn map(len: usize, align: usize) -> rustix::io::Result<Self> {
        let page = page_size();
        let len = len.checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        // The kernel aligns to a page only; for more, some of what it maps is returned below.
        let slack = align.saturating_sub(page);
        let mapped = len.checked_add(page).and_then(|sum| sum.checked_add(slack));
        let mapped = mapped.ok_or(Errno::NOMEM)?;
        // Without NORESERVE, quarantined pages would stay charged to strict overcommit accounting.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh map at an address of the kernel's choice affects no other memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::empty(), flags)?
        };
        let head = start.addr().next_multiple_of(align) - start.addr();
        let base = start.wrapping_byte_add(head);
        // SAFETY: all three ranges lie in the map just made, which nobody else knows of: `head`
        // bytes before the base, `slack - head` after the guard page, and `len` bytes between. The
        // mapped length is the sum, and each bound is a multiple of the page size.
        let opened = unsafe {
            unmap(start, head);
            unmap(base.wrapping_byte_add(len + page), slack - head);
            let opened =
                rustix::mm::mprotect(base, len, MprotectFlags::READ | MprotectFlags::WRITE);
            if opened.is_err() {
                unmap(base, len + page);
            }
            opened
        };
        opened?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Where in the region a block of `layout` lies: as close to the guard page as its alignment
    /// allows, and always in the first page.
    fn block_offset(self, layout: Layout) -> usize {
        (self.len - layout.size()) & !(layout.align() - 1)
    }

    /// The region that was mapped for a block of `layout` at `ptr`.
    fn of_block(ptr: *mut u8, layout: Layout) -> Self {
        let page = page_size();
        let base = ptr.map_addr(|address| address & !(page - 1));
        match NonNull::new(base) {
            Some(base) => Self { base, len: layout.size().next_multiple_of(page) },
            None => fatal("page guard: a block in the null page was freed\n"),
        }
    }

    /// The size with the guard page.
    fn mapped_len(self) -> usize {
        self.len + page_size()
    }
}

/// Unmaps whole pages; nothing, when `len` is 0.
///
/// # Safety
/// - The range is mapped, and the caller's own to give up.
unsafe fn unmap(start: *mut c_void, len: usize) {
    // SAFETY: the caller's duty.
    if len > 0 && unsafe { rustix::mm::munmap(start, len) }.is_err() {
        fatal("page guard: munmap(2) failed; raise vm.max_map_count or use a smaller quarantine\n");
    }
}

/// Freed regions in the order of their freeing.
struct Quarantine<const COUNT: usize> {
    /// The regions. Locked for bookkeeping only, never across a system call or an allocation.
    kept: Mutex<Kept<COUNT>>,
    /// The most bytes kept, guard pages included.
    bytes_max: usize,
}

/// A queue in an array of fixed size: this is used where nothing may allocate.
struct Kept<const COUNT: usize> {
    /// The regions: `count` of them from index `oldest` on, wrapping around.
    regions: [Option<Region>; COUNT],
    /// Index of the region that goes next; less than `COUNT`, or 0.
    oldest: usize,
    /// The number of regions kept.
    count: usize,
    /// The sum of their sizes, guard pages included.
    bytes: usize,
}

impl<const COUNT: usize> Quarantine<COUNT> {
    const fn new(bytes_max: usize) -> Self {
        let kept = Kept { regions: [None; COUNT], oldest: 0, count: 0, bytes: 0 };
        Self { kept: Mutex::new(kept), bytes_max }
    }

    /// Makes `region` inaccessible, gives back its memory, and keeps its addresses from reuse
    /// until others push it out.
    ///
    /// # Safety
    /// - `Region::map` returned `region`, and it was not retired before.
    /// - The caller gives up all access to it.
    unsafe fn retire(&self, region: Region) {
        let base = region.base.as_ptr().cast();
        // SAFETY: the region is mapped and given up by the caller. First the access goes, then the
        // contents: in between and after, nobody can see or place anything there.
        unsafe {
            if rustix::mm::mprotect(base, region.len, MprotectFlags::empty()).is_err() {
                fatal("page guard: mprotect(2) failed; raise vm.max_map_count\n");
            }
            // Fails for memory locked by mlockall(2), which then stays until the region is
            // unmapped: a cost, not a fault.
            let _ = rustix::mm::madvise(base, region.len, Advice::LinuxDontNeed);
        }
        // SAFETY: `old` was retired earlier or just now, so nobody has access to it; and as it left
        // the queue, nobody else unmaps it.
        let unmap = |old: Region| unsafe { unmap(old.base.as_ptr().cast(), old.mapped_len()) };
        if let Some(old) = self.lock(|kept| kept.push(region)) {
            unmap(old);
        }
        while let Some(old) = self.lock(|kept| kept.pop_over(self.bytes_max)) {
            unmap(old);
        }
    }

    fn lock<R>(&self, f: impl FnOnce(&mut Kept<COUNT>) -> R) -> R {
        f(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<const COUNT: usize> Kept<COUNT> {
    /// Adds `region`; returns the one that had to make room, if any.
    fn push(&mut self, region: Region) -> Option<Region> {
        if COUNT == 0 {
            return Some(region);
        }
        let pushed_out = if self.count == COUNT { self.pop() } else { None };
        self.regions[(self.oldest + self.count) % COUNT] = Some(region);
        self.count += 1;
        self.bytes += region.mapped_len();
        pushed_out
    }

    /// Removes the oldest region if more than `bytes_max` are kept.
    fn pop_over(&mut self, bytes_max: usize) -> Option<Region> {
        if self.bytes > bytes_max { self.pop() } else { None }
    }

    /// Removes the oldest region.
    fn pop(&mut self) -> Option<Region> {
        let region = self.regions.get_mut(self.oldest)?.take()?;
        self.oldest = (self.oldest + 1) % COUNT;
        self.count -= 1;
        self.bytes -= region.mapped_len();
        Some(region)
    }
}

/// Says why and ends the process: an allocator must not unwind, and a freed block left accessible
/// would make every later test result worthless.
#[cold]
fn fatal(message: &str) -> ! {
    let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
    process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;

    use linux_raw_sys::ioctl::FIONREAD;

    use super::*;

    /// Makes the kernel write an `int`, a pipe's fill level, through `target`, which may be any
    /// address that the caller owns or owned.
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
    fn block_is_aligned_and_ends_at_the_guard() {
        let allocator = PageGuardAllocator::<16>::with_limits(4096, usize::MAX);
        for size in [4096, 4097, 5000, 65_536, 100_001] {
            for align in [1, 8, 64, 512, 4096, 16_384, 1 << 21] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the layout is not empty.
                let block = unsafe { allocator.alloc(layout) };
                assert!(!block.is_null());
                assert_eq!(block.addr() % align, 0, "{layout:?}");
                // SAFETY: the block is `size` bytes long and was allocated just now.
                unsafe { block.write_bytes(0xff, size) };
                if align <= page_size() {
                    let end = block.wrapping_add(size.next_multiple_of(align));
                    assert!(is_accessible(end.wrapping_sub(1)), "{layout:?}");
                    assert!(!is_accessible(end), "{layout:?}");
                }
                // SAFETY: the block is live and has this layout.
                unsafe { allocator.dealloc(block, layout) };
                assert!(!is_accessible(block), "{layout:?}");
                assert_eq!(kernel_writes(block.wrapping_add(size - 4)), Err(Errno::FAULT));
            }
        }
    }

    #[test]
    fn zeroed_block_is_zero() {
        let allocator = PageGuardAllocator::<16>::with_limits(4096, usize::MAX);
        let layout = Layout::from_size_align(10_000, 16).unwrap();
        // SAFETY: the layout is not empty; the block has its size, is initialized by the call, and
        // is freed with the layout it was made with.
        unsafe {
            let block = allocator.alloc_zeroed(layout);
            assert!(slice::from_raw_parts(block, 10_000).iter().all(|&byte| byte == 0));
            allocator.dealloc(block, layout);
        }
    }

    #[test]
    fn small_blocks_are_not_guarded() {
        let allocator = PageGuardAllocator::<16>::with_limits(4096, usize::MAX);
        let layout = Layout::from_size_align(4095, 1).unwrap();
        // SAFETY: the layout is not empty, and the block is freed with the layout it was made with.
        unsafe {
            let block = allocator.alloc(layout);
            allocator.dealloc(block, layout);
        }
        assert_eq!(allocator.quarantine.lock(|kept| kept.count), 0);
    }

    #[test]
    fn resized_block_keeps_its_bytes_and_moves() {
        let allocator = PageGuardAllocator::<16>::with_limits(4096, usize::MAX);
        let mut layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: each size is above 0 and far from overflow; the block is accessed within the
        // smaller of two sizes, and given back with the layout it has at that time.
        unsafe {
            let mut block = allocator.alloc(layout);
            block.write_bytes(0x5a, 100);
            // System to system, system to pages, pages to more pages, to fewer, and back to system.
            for (size, moves) in
                [(200, false), (5000, true), (9000, true), (5001, true), (150, true)]
            {
                let old = block;
                let was_guarded = allocator.guards(layout);
                block = allocator.realloc(block, layout, size);
                layout = Layout::from_size_align(size, 8).unwrap();
                assert!(slice::from_raw_parts(block, 100).iter().all(|&byte| byte == 0x5a));
                assert!(!moves || block != old);
                assert!(!was_guarded || !is_accessible(old));
            }
            allocator.dealloc(block, layout);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let allocator = PageGuardAllocator::<16>::with_limits(4096, usize::MAX);
        for align in [1, 1 << 30] {
            let layout = Layout::from_size_align(isize::MAX as usize - (1 << 30), align).unwrap();
            // SAFETY: the layout is not empty.
            assert!(unsafe { allocator.alloc(layout) }.is_null());
        }
    }

    #[test]
    fn freed_addresses_are_not_used_again() {
        let allocator = PageGuardAllocator::<64>::with_limits(4096, usize::MAX);
        let layout = Layout::from_size_align(4096, 1).unwrap();
        let mut seen = Vec::new();
        for _ in 0..64 {
            // SAFETY: the layout is not empty, and the block is freed with it.
            unsafe {
                let block = allocator.alloc(layout);
                allocator.dealloc(block, layout);
                assert!(!seen.contains(&block));
                seen.push(block);
            }
        }
        assert!(seen.iter().all(|&block| !is_accessible(block)));
    }

    /// The bases of the regions kept, oldest first.
    fn bases<const COUNT: usize>(quarantine: &Quarantine<COUNT>) -> Vec<NonNull<u8>> {
        quarantine.lock(|kept| {
            let indices = (0..kept.count).map(|index| (kept.oldest + index) % COUNT);
            indices.map(|index| kept.regions[index].unwrap().base).collect()
        })
    }

    fn retire_new<const COUNT: usize>(quarantine: &Quarantine<COUNT>, pages: usize) -> NonNull<u8> {
        let region = Region::map(pages * page_size(), 1).unwrap();
        // SAFETY: the region was mapped just now and is retired once.
        unsafe { quarantine.retire(region) };
        region.base
    }

    #[test]
    fn quarantine_is_bounded_by_count() {
        let quarantine = Quarantine::<3>::new(usize::MAX);
        let all: Vec<_> = (0..8).map(|_| retire_new(&quarantine, 1)).collect();
        assert_eq!(bases(&quarantine), all[5..]);
        assert_eq!(quarantine.lock(|kept| kept.bytes), 3 * 2 * page_size());
    }

    #[test]
    fn quarantine_is_bounded_by_bytes() {
        let quarantine = Quarantine::<16>::new(10 * page_size());
        let small: Vec<_> = (0..5).map(|_| retire_new(&quarantine, 1)).collect();
        assert_eq!(bases(&quarantine), small);
        let large = retire_new(&quarantine, 5);
        assert_eq!(bases(&quarantine), [small[3], small[4], large]);
        assert_eq!(quarantine.lock(|kept| kept.bytes), 10 * page_size());
        // What is larger than the whole quarantine passes straight through it.
        retire_new(&quarantine, 10);
        assert_eq!(bases(&quarantine), []);
        assert_eq!(quarantine.lock(|kept| kept.bytes), 0);
    }

    #[test]
    fn quarantine_may_be_empty() {
        let quarantine = Quarantine::<0>::new(usize::MAX);
        retire_new(&quarantine, 1);
        assert_eq!(quarantine.lock(|kept| kept.bytes), 0);
    }

    #[test]
    fn threads_share_an_allocator() {
        static ALLOCATOR: PageGuardAllocator<8> = PageGuardAllocator::with_limits(4096, 1 << 20);
        thread::scope(|scope| {
            for worker in 0..4_u8 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let layout = Layout::from_size_align(4096 + 100 * round, 16).unwrap();
                        // SAFETY: the layout is not empty; the block is accessed within its size
                        // while live, by this thread alone, and freed with its layout.
                        unsafe {
                            let block = ALLOCATOR.alloc(layout);
                            block.write_bytes(worker, layout.size());
                            let bytes = slice::from_raw_parts(block, layout.size());
                            assert!(bytes.iter().all(|&byte| byte == worker));
                            ALLOCATOR.dealloc(block, layout);
                        }
                    }
                });
            }
        });
        assert_eq!(ALLOCATOR.quarantine.lock(|kept| kept.count), 8);
    }
}
