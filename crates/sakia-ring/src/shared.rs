//! The memory that is shared with the kernel, and every access to it.
//!
//! No other module touches these maps. Each ordering below names what it pairs with. All values
//! read from here are untrusted: the layout is checked once against the mapped length, indices are
//! masked with our own copy of the mask, and distances are clamped to the ring's size.
//!
//! Only the ring's owner thread calls these. Source: `io_uring(7)`, liburing `src/queue.c`.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::cqe::Cqe;
use crate::host::{self, Host};
use crate::sqe::Sqe;
use crate::sys::{self, Params};

/// The kernel's own limits; a larger value cannot come from the kernel.
pub(crate) const SQ_ENTRIES_MAX: u32 = 32_768;
pub(crate) const CQ_ENTRIES_MAX: u32 = 65_536;

/// One map of the ring's memory.
#[derive(Clone, Copy, Debug)]
struct Map {
    addr: NonNull<u8>,
    len: usize,
}

impl Map {
    /// Returns the field of type `T` at `offset`, after checking that it lies within the map.
    fn at<T>(&self, offset: u32, count: usize) -> io::Result<NonNull<T>> {
        let start = offset as usize;
        let end = start.checked_add(count * size_of::<T>());
        if end.is_none_or(|end| end > self.len) || !start.is_multiple_of(align_of::<T>()) {
            return Err(bogus("an offset of the ring lies outside its memory"));
        }
        // SAFETY: `start` is at most `len`, checked above, so the result stays within the map.
        Ok(unsafe { self.addr.add(start) }.cast())
    }
}

/// The submission and the completion queue of one ring.
///
/// The maps stay valid until [`unmap`](Queues::unmap); every pointer below points into one of
/// them, was checked to lie inside it, and is aligned for its type.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Entries from here on have not been consumed by the kernel; as of the last enter.
    sq_head: u32,
    /// Entries before this one are filled. Published to the kernel at each enter.
    sq_tail: u32,
    sq_mask: u32,
    /// The array of `sq_mask + 1` entries.
    sqes: NonNull<Sqe>,
    /// Completions before this one have been copied out.
    cq_head: u32,
    cq_mask: u32,
    /// The array of `cq_mask + 1` completions.
    cqes: NonNull<Cqe>,
    kernel_sq_head: NonNull<AtomicU32>,
    kernel_sq_tail: NonNull<AtomicU32>,
    kernel_sq_flags: NonNull<AtomicU32>,
    kernel_sq_dropped: NonNull<AtomicU32>,
    kernel_cq_head: NonNull<AtomicU32>,
    kernel_cq_tail: NonNull<AtomicU32>,
    kernel_cq_overflow: NonNull<AtomicU32>,
    /// The two queues' indices, and the completions.
    rings: Map,
    /// The entries.
    entries: Map,
}

// SAFETY: the maps belong to this value alone and are not tied to a thread; a ring is tied to its thread by
// the kernel's rule on entering, which `Ring` upholds.
unsafe impl Send for Queues {}

/// Reads a field of the shared memory.
macro_rules! field {
    ($self:ident.$name:ident) => {
        // SAFETY: the pointer lies within a map that lives as long as `self`, and the kernel
        // accesses the field with atomic operations of the same width.
        unsafe { $self.$name.as_ref() }
    };
}

impl Queues {
    /// Maps the queues of the ring `fd`, which was set up with `params`.
    pub(crate) fn map<H: Host>(host: &H, fd: BorrowedFd<'_>, params: &Params) -> io::Result<Self> {
        let (sq_entries, cq_entries) = (params.sq_entries, params.cq_entries);
        if !sq_entries.is_power_of_two()
            || !cq_entries.is_power_of_two()
            || sq_entries > SQ_ENTRIES_MAX
            || cq_entries > CQ_ENTRIES_MAX
        {
            return Err(bogus("the size of a queue is not one the kernel grants"));
        }
        let has_array = params.flags & sys::IORING_SETUP_NO_SQARRAY == 0;
        let cq_end = params.cq_off.cqes as usize + cq_entries as usize * size_of::<Cqe>();
        let sq_end = params.sq_off.array as usize + sq_entries as usize * size_of::<u32>();
        let len = if has_array { cq_end.max(sq_end) } else { cq_end };
        let map = |offset: u32, len: usize| {
            host.map(fd.as_fd(), u64::from(offset), len).map(|addr| Map { addr, len })
        };
        let rings = map(sys::IORING_OFF_SQ_RING, len)?;
        let entries_len = sq_entries as usize * size_of::<Sqe>();
        let entries = map(sys::IORING_OFF_SQES, entries_len).inspect_err(|_| {
            // SAFETY: mapped just above, and nothing points into it yet.
            unsafe { host.unmap(rings.addr, rings.len) };
        })?;
        Self::locate(params, rings, entries, has_array).inspect_err(|_| {
            // SAFETY: the pointers that `locate` found are gone with its error.
            unsafe {
                host.unmap(rings.addr, rings.len);
                host.unmap(entries.addr, entries.len);
            }
        })
    }

    /// Finds every field, and starts at the indices that the kernel holds.
    fn locate(params: &Params, rings: Map, entries: Map, has_array: bool) -> io::Result<Self> {
        let (sq, cq) = (&params.sq_off, &params.cq_off);
        let mut queues = Self {
            sq_head: 0,
            sq_tail: 0,
            sq_mask: params.sq_entries - 1,
            sqes: entries.at(0, params.sq_entries as usize)?,
            cq_head: 0,
            cq_mask: params.cq_entries - 1,
            cqes: rings.at(cq.cqes, params.cq_entries as usize)?,
            kernel_sq_head: rings.at(sq.head, 1)?,
            kernel_sq_tail: rings.at(sq.tail, 1)?,
            kernel_sq_flags: rings.at(sq.flags, 1)?,
            kernel_sq_dropped: rings.at(sq.dropped, 1)?,
            kernel_cq_head: rings.at(cq.head, 1)?,
            kernel_cq_tail: rings.at(cq.tail, 1)?,
            kernel_cq_overflow: rings.at(cq.overflow, 1)?,
            rings,
            entries,
        };
        if has_array {
            let array: NonNull<AtomicU32> = rings.at(sq.array, params.sq_entries as usize)?;
            for index in 0..params.sq_entries {
                // SAFETY: `at` checked that the array has `sq_entries` fields. Entry i is always
                // at place i, so the array is written once. The enter that follows makes it seen.
                unsafe { array.add(index as usize).as_ref() }.store(index, Ordering::Relaxed);
            }
        }
        // The maps are not shared with another thread yet.
        queues.sq_head = field!(queues.kernel_sq_head).load(Ordering::Acquire);
        queues.sq_tail = queues.sq_head;
        queues.cq_head = field!(queues.kernel_cq_head).load(Ordering::Acquire);
        Ok(queues)
    }

    /// Maps the queues again after the kernel has replaced them by the ones that `params` describes, and
    /// ends the old maps. Positions continue. On error the old maps stay, with outdated contents.
    ///
    /// Nothing may be pending: an entry that the kernel has not seen would be lost.
    pub(crate) fn remap<H: Host>(
        &mut self,
        host: &H,
        fd: BorrowedFd<'_>,
        params: &Params,
    ) -> io::Result<()> {
        debug_assert_eq!(self.pending(), 0);
        let mut queues = Self::map(host, fd, params)?;
        queues.sq_head = self.sq_head;
        queues.sq_tail = self.sq_tail;
        queues.cq_head = self.cq_head;
        let mut old = std::mem::replace(self, queues);
        // SAFETY: `host` made the old maps, in this process, or it could not have made the new ones
        // of the same descriptor. `old` ends here.
        unsafe { old.unmap(host) };
        Ok(())
    }

    /// Ends both maps. Nothing of `self` may be used afterwards.
    ///
    /// # Safety
    ///
    /// - `host` made the maps, and they exist in this process (not in a forked child).
    /// - `self` is not used again.
    pub(crate) unsafe fn unmap<H: Host>(&mut self, host: &H) {
        // SAFETY: both are whole maps of `host`; the caller does not use them again.
        unsafe {
            host.unmap(self.rings.addr, self.rings.len);
            host.unmap(self.entries.addr, self.entries.len);
        }
    }

    #[inline(always)]
    pub(crate) fn sq_entries(&self) -> u32 {
        self.sq_mask + 1
    }

    #[inline(always)]
    pub(crate) fn cq_entries(&self) -> u32 {
        self.cq_mask + 1
    }

    /// Returns the number of entries filled and not yet consumed by the kernel.
    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.sq_head)
    }

    /// Writes an entry in place. Returns its position, or `None` when the queue is full.
    #[inline(always)]
    pub(crate) fn write(&mut self, sqe: Sqe) -> Option<u32> {
        if self.pending() > self.sq_mask {
            return None;
        }
        let position = self.sq_tail;
        // SAFETY: the masked index lies within the array. The place is free: the kernel has
        // consumed it, and reads it again only in an enter after the tail was published.
        unsafe { self.sqes.add((position & self.sq_mask) as usize).write(sqe) };
        self.sq_tail = position.wrapping_add(1);
        Some(position)
    }

    /// Turns the entry at `position` into a no-op, if it has this `user_data` and the kernel has not
    /// consumed it.
    pub(crate) fn make_nop(&mut self, position: u32, user_data: u64) -> bool {
        if position.wrapping_sub(self.sq_head) >= self.pending() {
            return false;
        }
        // SAFETY: the masked index lies within the array, and the kernel reads entries only in an
        // enter, which only this thread calls.
        let sqe = unsafe { self.sqes.add((position & self.sq_mask) as usize).as_mut() };
        let found = sqe.user_data == user_data;
        if found {
            sqe.make_nop();
        }
        found
    }

    /// Shows the kernel every entry written so far.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        // Pairs with the kernel's acquire load of the tail in io_uring_enter: entries are written
        // before.
        field!(self.kernel_sq_tail).store(self.sq_tail, Ordering::Release);
    }

    /// Reads the kernel's head and returns the number of entries consumed since the last call.
    #[inline(always)]
    pub(crate) fn refresh(&mut self) -> u32 {
        // Pairs with the kernel's release store of the head: places are reused only after.
        let head = field!(self.kernel_sq_head).load(Ordering::Acquire);
        let consumed = head.wrapping_sub(self.sq_head);
        if consumed > self.pending() {
            return 0; // an impossible head: counts as no progress
        }
        self.sq_head = head;
        consumed
    }

    /// Returns the number of completions waiting to be copied out.
    #[inline(always)]
    pub(crate) fn ready(&self) -> u32 {
        // Pairs with the kernel's release store of the tail: completions are written before.
        let tail = field!(self.kernel_cq_tail).load(Ordering::Acquire);
        tail.wrapping_sub(self.cq_head).min(self.cq_entries())
    }

    /// Copies out up to `out.len()` ready completions, and gives their places back.
    #[inline(always)]
    pub(crate) fn copy_out(&mut self, out: &mut [Cqe]) -> usize {
        let count = (self.ready() as usize).min(out.len());
        for (offset, cqe) in out[..count].iter_mut().enumerate() {
            let index = self.cq_head.wrapping_add(offset as u32) & self.cq_mask;
            // SAFETY: the masked index lies within the array, and the kernel does not write places
            // between our head and its tail.
            *cqe = unsafe { self.cqes.add(index as usize).read() };
        }
        self.cq_head = self.cq_head.wrapping_add(count as u32);
        // Pairs with the kernel's acquire load of the head: places are written again only after
        // they were copied.
        field!(self.kernel_cq_head).store(self.cq_head, Ordering::Release);
        count
    }

    /// Returns the kernel's `IORING_SQ_*` flags.
    #[inline(always)]
    pub(crate) fn flags(&self) -> u32 {
        // Relaxed: a hint to enter, and the enter orders what follows.
        field!(self.kernel_sq_flags).load(Ordering::Relaxed)
    }

    /// Returns the number of entries that the kernel refused to read; always 0 with entries in place.
    pub(crate) fn dropped(&self) -> u32 {
        field!(self.kernel_sq_dropped).load(Ordering::Relaxed)
    }

    /// Returns the number of completions lost for good; always 0 with `NODROP` unless the kernel ran out of
    /// memory.
    pub(crate) fn lost(&self) -> u32 {
        field!(self.kernel_cq_overflow).load(Ordering::Relaxed)
    }
}

/// The entries of one provided-buffer ring, in a map of our own that the kernel reads and, with
/// `IOU_PBUF_RING_INC`, writes.
///
/// It has no `Drop`: only its owner knows whether the kernel still uses the map. A forked child does not
/// inherit it.
#[derive(Debug)]
pub(crate) struct BufQueue {
    map: Map,
    /// Entries before this one are filled; published by [`publish`](BufQueue::publish).
    tail: u16,
    mask: u16,
}

impl BufQueue {
    /// Maps room for `entries`, a power of two up to 32,768, at a page of its own.
    pub(crate) fn map(entries: u32) -> io::Result<Self> {
        assert!(entries.is_power_of_two() && entries <= 32_768);
        let len = (entries as usize * size_of::<sys::io_uring_buf>())
            .next_multiple_of(sys::PAGE_BYTES_MAX);
        let map = Map { addr: host::map_anonymous(len)?, len };
        Ok(Self { map, tail: 0, mask: (entries - 1) as u16 })
    }

    /// Ends the map.
    ///
    /// # Safety
    ///
    /// - No ring uses the map.
    /// - This is the process that made it.
    pub(crate) unsafe fn unmap(self) {
        // SAFETY: a whole map of ours; the caller vouches that nothing uses it.
        unsafe { host::unmap(self.map.addr, self.map.len) };
    }

    /// Returns the address of the entries, as the kernel takes it.
    pub(crate) fn address(&self) -> u64 {
        self.map.addr.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn entries(&self) -> u32 {
        u32::from(self.mask) + 1
    }

    /// Fills the next entry. The kernel sees it after [`publish`](BufQueue::publish).
    ///
    /// # Safety
    ///
    /// - As for [`BufRing::provide`](crate::BufRing::provide).
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, addr: u64, len: u32, id: u16) {
        let index = usize::from(self.tail & self.mask);
        let entries: NonNull<sys::io_uring_buf> = self.map.addr.cast();
        // SAFETY: the masked index lies within the map, which is aligned to a page. The kernel does
        // not look at the place: it lies at or after the published tail. Field by field, since the
        // last two bytes of the first entry are the tail.
        unsafe {
            let entry = entries.add(index).as_ptr();
            (&raw mut (*entry).addr).write(addr);
            (&raw mut (*entry).len).write(len);
            (&raw mut (*entry).bid).write(id);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel every entry written so far.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        const TAIL: usize = offset_of!(sys::io_uring_buf, resv);
        // SAFETY: the tail is the last two bytes of the first entry, aligned, within the map; both
        // sides access it atomically.
        let tail: &AtomicU16 = unsafe { self.map.addr.add(TAIL).cast().as_ref() };
        // Pairs with the kernel's acquire load when it picks a buffer: entries are written before.
        tail.store(self.tail, Ordering::Release);
    }
}

/// Returns the error for a host's answer that makes no sense.
#[cold]
fn bogus(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("io_uring_setup: {what}"))
}
