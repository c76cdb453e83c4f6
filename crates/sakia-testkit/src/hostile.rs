//! A host in memory that lies: a test or a fuzzer supplies bytes that decide which entries it has consumed,
//! which complete, their results, and the results of enters.
//!
//! It keeps the promises of [`Host`], and one more: it touches the memory of an entry only from the enter
//! that consumes the entry until a final completion was copied out, and then at every enter, so that memory
//! freed too early shows. Everything else may be a lie: heads and tails that jump, completions too early,
//! twice, without an entry or for another generation, flags, errors.
//!
//! Descriptors are the exception. The driver trusts the kernel's, since their receiver closes them, so this
//! host returns numbers that no descriptor has. It closes none: a test keeps its own.
//!
//! When the bytes are used up, the host is honest and completes everything: then all operations must end
//! well.
//!
//! Used by one thread.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_OFF_SQES, io_uring_register_op};
use rustix::io::Errno;
use sakia_ring::{Cqe, CqeFlags, Host, Opcode, PAGE_BYTES_MAX, Params, Sqe};

/// Offsets of the ring's fields in its first map.
mod offset {
    pub(super) const SQ_HEAD: u32 = 0;
    pub(super) const SQ_TAIL: u32 = 4;
    pub(super) const CQ_HEAD: u32 = 8;
    pub(super) const CQ_TAIL: u32 = 12;
    pub(super) const FLAGS: u32 = 16;
    pub(super) const DROPPED: u32 = 20;
    pub(super) const OVERFLOW: u32 = 24;
    pub(super) const CQES: u32 = 64;
}

/// All features that a ring may request.
const FEATURES: u32 = 0x3_ffff;
/// Above every possible descriptor: the kernel's limit is 2^30.
const NO_DESCRIPTOR: i32 = 1 << 30;
/// The most bytes of an operation that are touched at each enter.
const TOUCHED_MAX: u32 = 4096;

/// A host that lies according to its bytes. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Hostile(Rc<RefCell<State>>);

/// An operation that the host has consumed.
#[derive(Clone, Copy, Debug)]
struct Operation {
    entry: Sqe,
    /// The host owns its memory: it was not completed before it was consumed.
    is_lent: bool,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// The number of bytes used.
    used: usize,
    /// Enters may fail permanently.
    may_fail: bool,
    /// The queues, once mapped.
    rings: Option<NonNull<u8>>,
    entries: Option<NonNull<u8>>,
    sq_entries: u32,
    cq_entries: u32,
    /// Entries before this one are consumed: the part of the reported head that the ring believes.
    sq_head: u32,
    /// Entries before this one are filled.
    sq_tail: u32,
    /// Completions before this one are posted.
    cq_tail: u32,
    /// Completions before this one were copied out by the ring.
    cq_seen: u32,
    /// The operations in flight, by `user_data`.
    operations: BTreeMap<u64, Operation>,
    /// The `user_data` of all entries that were ever consumed.
    old: Vec<u64>,
    /// The `user_data` of completions that were copied out before their entries were consumed.
    early: Vec<u64>,
}

impl Hostile {
    /// Returns a host with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Rc::new(RefCell::new(State { bytes: bytes.to_vec(), ..State::default() })))
    }

    /// Lets enters fail with any error. After an error that makes further enters pointless, the driver leaks
    /// its operations in flight and their descriptors.
    #[must_use]
    pub fn may_fail(self, may_fail: bool) -> Self {
        self.0.borrow_mut().may_fail = may_fail;
        self
    }

    /// Takes a byte, for a choice of the test's own; 0 when they are used up.
    pub fn byte(&self) -> u8 {
        self.0.borrow_mut().byte()
    }

    /// Returns whether the bytes are used up. The host is honest then.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_over()
    }

    /// Returns the addresses of the memory that the host may touch now: that of operations consumed and not
    /// ended.
    pub fn lent(&self) -> Vec<u64> {
        let mut state = self.0.borrow_mut();
        state.observe();
        state.lent().map(|entry| entry.addr).collect()
    }
}

impl State {
    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.used).copied().unwrap_or(0);
        self.used += 1;
        byte
    }

    /// Takes four bytes as a number.
    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn is_over(&self) -> bool {
        self.used >= self.bytes.len()
    }

    // ---- memory shared with the ring -----------------------------------------------------------

    fn field(&self, offset: u32) -> Option<&AtomicU32> {
        // SAFETY: the offsets above are aligned and below `CQES`, which lies in the map, and the map
        // lives until `unmap`, where it is forgotten. The ring accesses its fields as atomics too.
        self.rings.map(|rings| unsafe { rings.add(offset as usize).cast().as_ref() })
    }

    fn load(&self, offset: u32) -> u32 {
        self.field(offset).map_or(0, |field| field.load(Ordering::Acquire))
    }

    fn store(&self, offset: u32, value: u32) {
        if let Some(field) = self.field(offset) {
            field.store(value, Ordering::Release);
        }
    }

    fn completion_at(&self, position: u32) -> Option<NonNull<Cqe>> {
        let index = position & self.cq_entries.wrapping_sub(1);
        let at = offset::CQES as usize + index as usize * size_of::<Cqe>();
        // SAFETY: the index is below the number of completions, for which the ring asked the map to have
        // room.
        self.rings.map(|rings| unsafe { rings.add(at) }.cast())
    }

    fn entry_at(&self, position: u32) -> Option<Sqe> {
        let index = position & self.sq_entries.wrapping_sub(1);
        // SAFETY: the index is below the number of entries, for which the ring asked the map to have
        // room. The ring's thread, which alone writes them, is here now.
        self.entries.map(|entries| unsafe { entries.cast::<Sqe>().add(index as usize).read() })
    }

    /// Returns the entries that are filled and not consumed.
    fn pending(&self) -> impl Iterator<Item = Sqe> {
        let count = self.sq_tail.wrapping_sub(self.sq_head);
        (0..count).filter_map(|index| self.entry_at(self.sq_head.wrapping_add(index)))
    }

    // ---- the host's knowledge ------------------------------------------------------------------

    /// Finds the completions that were copied out, and so the operations that have ended.
    fn observe(&mut self) {
        let head = self.load(offset::CQ_HEAD);
        while self.cq_seen != head {
            let Some(cqe) = self.completion_at(self.cq_seen) else { return };
            // SAFETY: within the map; only this host writes completions, and initially they are zero.
            let Cqe { user_data, flags, .. } = unsafe { cqe.read() };
            self.cq_seen = self.cq_seen.wrapping_add(1);
            if !flags.has_more() && self.operations.remove(&user_data).is_none() {
                self.early.push(user_data);
            }
        }
        // The ring believed in more completions than the host posted.
        if head.wrapping_sub(self.cq_tail) as i32 > 0 {
            self.cq_tail = head;
        }
    }

    /// Returns the entries whose memory the host owns.
    fn lent(&self) -> impl Iterator<Item = &Sqe> {
        let lent = self.operations.values().filter(|operation| operation.is_lent);
        lent.map(|operation| &operation.entry)
    }

    /// Touches the memory of all operations in flight, as a device may at any time.
    fn touch(&self) {
        for entry in self.lent() {
            let len = entry.len.min(TOUCHED_MAX) as usize;
            let addr: *mut u8 = ptr::with_exposed_provenance_mut(entry.addr as usize);
            // SAFETY: the caller of `enter` promises that an entry's memory stays valid, and the kernel's,
            // until its last completion, and none was copied out. A read's may be written, a write's be
            // read, and a path has at least its final zero.
            unsafe {
                match entry.opcode {
                    Opcode::READ => addr.write_bytes(self.used as u8, len),
                    Opcode::WRITE => {
                        std::hint::black_box(std::slice::from_raw_parts(addr, len).iter().max());
                    }
                    Opcode::OPENAT => {
                        std::hint::black_box(addr.read());
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reports the entries before `head` as consumed, and consumes them if the ring will believe it.
    fn consume(&mut self, head: u32) {
        let count = head.wrapping_sub(self.sq_head);
        let entries: Vec<Sqe> = self.pending().take(count as usize).collect();
        self.store(offset::SQ_HEAD, head);
        if count > self.sq_tail.wrapping_sub(self.sq_head) {
            return;
        }
        self.sq_head = head;
        for entry in entries {
            let is_lent = !self.early.contains(&entry.user_data);
            self.operations.insert(entry.user_data, Operation { entry, is_lent });
            self.old.push(entry.user_data);
        }
        let pending: Vec<u64> = self.pending().map(|entry| entry.user_data).collect();
        self.early.retain(|user_data| pending.contains(user_data));
    }

    // ---- the host's answers --------------------------------------------------------------------

    fn enter(&mut self, to_submit: u32) -> io::Result<u32> {
        self.observe();
        self.sq_tail = self.sq_head.wrapping_add(to_submit);
        self.touch();
        if self.is_over() {
            self.be_honest(to_submit);
            return Ok(to_submit);
        }
        let head = match self.byte() {
            0..160 => self.sq_tail,
            160..240 => self.sq_head.wrapping_add(u32::from(self.byte()) % (to_submit + 1)),
            240..248 => self.sq_head.wrapping_sub(1),
            _ => self.word(),
        };
        self.consume(head);
        for _ in 0..self.byte() % 4 {
            let user_data = self.some_user_data();
            let (res, flags) = (self.some_result(user_data), self.some_flags());
            self.post(Cqe { user_data, res, flags });
        }
        let tail = match self.byte() {
            0..240 => self.cq_tail,
            240..248 => self.cq_tail.wrapping_add(1),
            _ => self.word(),
        };
        self.store(offset::CQ_TAIL, tail);
        let flags = self.byte();
        self.store(offset::FLAGS, if flags < 192 { 0 } else { flags.into() });
        self.store(offset::DROPPED, flags.into());
        self.store(offset::OVERFLOW, flags.into());
        self.some_answer(to_submit)
    }

    /// Consumes everything, and completes as much as the queue has room for.
    fn be_honest(&mut self, to_submit: u32) {
        self.consume(self.sq_head.wrapping_add(to_submit));
        let room = self.cq_entries.saturating_sub(self.cq_tail.wrapping_sub(self.cq_seen));
        let ended: Vec<u64> = self.operations.keys().copied().take(room as usize).collect();
        for user_data in ended {
            let res = self.plausible(user_data, 0);
            self.post(Cqe { user_data, res, flags: CqeFlags(0) });
        }
        self.store(offset::CQ_TAIL, self.cq_tail);
        self.store(offset::FLAGS, 0);
    }

    /// Posts a completion, if there is room for it.
    fn post(&mut self, cqe: Cqe) {
        let is_full = self.cq_tail.wrapping_sub(self.cq_seen) >= self.cq_entries;
        let place = self.completion_at(self.cq_tail).filter(|_| !is_full);
        if let Some(place) = place {
            // SAFETY: within the map; the ring, whose thread is here, has copied out the previous one.
            unsafe { place.write(cqe) };
            self.cq_tail = self.cq_tail.wrapping_add(1);
        }
    }

    /// Returns the `user_data` of a completion: most often of an operation in flight, or of one pending,
    /// ended, or unknown.
    fn some_user_data(&mut self) -> u64 {
        let (choice, which) = (self.byte(), usize::from(self.byte()));
        let pick = |all: Vec<u64>| all.get(which % all.len().max(1)).copied().unwrap_or_default();
        let under_way = pick(self.operations.keys().copied().collect());
        match choice {
            0..144 => under_way,
            144..176 => pick(self.pending().map(|entry| entry.user_data).collect()),
            176..208 => pick(self.old.clone()),
            208..224 => under_way | u64::from(self.byte() % 5),
            224..248 => under_way ^ 1 << (self.byte() % 64),
            _ => u64::from(self.word()) << 32 | u64::from(self.word()),
        }
    }

    fn some_result(&mut self, user_data: u64) -> i32 {
        let res = match self.byte() {
            0..96 => i32::from(self.byte()),
            96..192 => -i32::from(self.byte()),
            192..208 => -Errno::CANCELED.raw_os_error(),
            208..224 => i32::MIN,
            224..240 => i32::MAX,
            _ => self.word() as i32,
        };
        self.plausible(user_data, res)
    }

    /// Returns the result, or a number that no descriptor has if it may be taken for one.
    fn plausible(&self, user_data: u64, res: i32) -> i32 {
        let under_way = self.operations.get(&user_data).map(|operation| operation.entry);
        let entry = under_way.or_else(|| self.pending().find(|sqe| sqe.user_data == user_data));
        match entry.map(|entry| entry.opcode) {
            Some(Opcode::READ | Opcode::WRITE | Opcode::NOP | Opcode::CLOSE) => res,
            _ if res < 0 => res,
            // An entry unknown now may open a file by the time this is copied out.
            _ => res | NO_DESCRIPTOR,
        }
    }

    fn some_flags(&mut self) -> CqeFlags {
        CqeFlags(match self.byte() {
            0..208 => 0,
            208..240 => IORING_CQE_F_MORE,
            _ => self.word(),
        })
    }

    fn some_answer(&mut self, to_submit: u32) -> io::Result<u32> {
        match self.byte() {
            0..192 => Ok(to_submit),
            192..208 => Err(Errno::TIME.into()),
            208..224 => Err(Errno::INTR.into()),
            224..232 => Err(Errno::BUSY.into()),
            232..240 => Err(Errno::AGAIN.into()),
            252.. if self.may_fail => Err(io::Error::from_raw_os_error(self.byte().into())),
            _ => Ok(self.word()),
        }
    }
}

fn layout(len: usize) -> io::Result<Layout> {
    Layout::from_size_align(len.max(1), PAGE_BYTES_MAX).map_err(|_| Errno::NOMEM.into())
}

// SAFETY: `map` gives fresh memory of that length and alignment, which is kept until `unmap`. An enter
// touches the maps, and memory of entries as long as their submitter promises; a registration touches
// nothing.
unsafe impl Host for Hostile {
    unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
        let mut state = self.0.borrow_mut();
        (state.sq_entries, state.cq_entries) = (entries, params.cq_entries);
        params.sq_entries = entries;
        params.features = FEATURES;
        params.sq_off.head = offset::SQ_HEAD;
        params.sq_off.tail = offset::SQ_TAIL;
        params.sq_off.flags = offset::FLAGS;
        params.sq_off.dropped = offset::DROPPED;
        params.cq_off.head = offset::CQ_HEAD;
        params.cq_off.tail = offset::CQ_TAIL;
        params.cq_off.overflow = offset::OVERFLOW;
        params.cq_off.cqes = offset::CQES;
        Ok(File::open("/dev/null")?.into())
    }

    unsafe fn enter(
        &self,
        _ring: u32,
        to_submit: u32,
        _min_complete: u32,
        _flags: u32,
        _arg: *const c_void,
        _arg_size: usize,
    ) -> io::Result<u32> {
        self.0.borrow_mut().enter(to_submit)
    }

    unsafe fn register(
        &self,
        _ring: i32,
        opcode: u32,
        _arg: *mut c_void,
        _nr_args: u32,
    ) -> io::Result<u32> {
        // If it failed, there would be no ring to test.
        const ENABLE_RINGS: u32 = io_uring_register_op::IORING_REGISTER_ENABLE_RINGS as u32;
        match opcode {
            ENABLE_RINGS => Ok(0),
            _ if self.byte() < 128 => Err(Errno::INVAL.into()),
            _ => Ok(self.byte().into()),
        }
    }

    fn map(&self, _ring: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
        let layout = layout(len)?;
        // SAFETY: the layout has at least one byte.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        let mut state = self.0.borrow_mut();
        if offset == IORING_OFF_SQES.into() {
            state.entries = Some(memory);
            return Ok(memory);
        }
        state.rings = Some(memory);
        // Positions begin at any value, as after four billion entries.
        let start = u32::from(state.byte()).wrapping_sub(128);
        for position in [offset::SQ_HEAD, offset::SQ_TAIL, offset::CQ_HEAD, offset::CQ_TAIL] {
            state.store(position, start);
        }
        (state.sq_head, state.sq_tail, state.cq_tail, state.cq_seen) = (start, start, start, start);
        Ok(memory)
    }

    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
        let state = &mut *self.0.borrow_mut();
        for map in [&mut state.rings, &mut state.entries] {
            map.take_if(|map| *map == addr);
        }
        let layout = layout(len).expect("a length that was mapped");
        // SAFETY: a whole map of that length, which the ring no longer uses, and which was forgotten above.
        unsafe { dealloc(addr.as_ptr(), layout) };
    }
}
