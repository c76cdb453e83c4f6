//! The records of operations: slots with stable addresses.
//!
//! A slot's memory, its *cell*, holds the operation and with it every byte and descriptor reference
//! that the kernel may see. It is allocated in chunks that are never moved nor given back while the
//! driver lives. The header beside it names the owner of the cell; see [`SlotState`].
//!
//! Only the driver's thread uses a slab. Nothing here runs users' code.

use std::ptr::NonNull;
use std::task::Waker;

use sakia_ring::CqeFlags;

use crate::key::{Key, SLOTS_MAX};
use crate::metrics::Latencies;
use crate::operation::{Cell, Class, Completion, Vtable};

/// Slots allocated at a time.
const CHUNK: u32 = 256;

/// The owner of a slot's cell, and the transitions that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotState {
    /// No owner: the slot is on the free list. Left by being allocated.
    Free,
    /// The driver. The operation has no entry yet and waits on its class's list for room, or for its
    /// descriptor to be released. Left by a push, or by the drop of its future.
    Backlog,
    /// The kernel, until the last completion. Left only with that completion.
    Pushed,
    /// The future, which takes the result. Left when the result is taken or disposed of.
    Done,
    /// The code that disposes of the operation, outside the driver. Left when it has run.
    Disposing,
    /// The kernel for ever: the driver gave up waiting for it. Never left.
    Lost,
}

/// Facts about a slot that go together with its state.
pub(crate) mod flag {
    /// The future is gone; the result goes to the disposer.
    pub(crate) const ORPHAN: u16 = 1;
    /// The entry was taken back before the kernel saw it: its completion means that the operation never
    /// began.
    pub(crate) const REVOKED: u16 = 2;
    /// On the list of operations to be canceled. Excludes [`CANCEL_SENT`].
    pub(crate) const CANCEL_LISTED: u16 = 4;
    /// A request to cancel it was pushed.
    pub(crate) const CANCEL_SENT: u16 = 8;
    /// Waits for its descriptor to be released, on no list. Only with `Backlog`.
    pub(crate) const PARKED: u16 = 16;
    /// Waits on the list for the plain calls of the next turn. Only with `Backlog`.
    pub(crate) const DEFERRED: u16 = 32;
    /// Given to a thread instead of the queue: it is canceled there. Only with `Pushed`.
    pub(crate) const LANE: u16 = 64;
    /// The operation ended without having reached the kernel; see `Completion`. Set with the result, by the
    /// code that ends the operation, until the slot is freed.
    pub(crate) const UNSTARTED: u16 = 128;
    /// A recording has an event for its end, or its latency is measured. Set when it is started.
    pub(crate) const WATCHED: u16 = 256;
    /// It is on the driver's board; see [`watch`](crate::core). Set when it is started.
    pub(crate) const SHOWN: u16 = 512;
    /// A request: its answer is reported with the number in `notify`, and no handle has it.
    pub(crate) const REQUEST: u16 = 1024;
    /// It has another key than the one that its request was named by, the next generation; see
    /// [`rename`](super::Slab::rename).
    pub(crate) const RENAMED: u16 = 2048;
}

/// The way in which the end of an operation is made known.
#[derive(Debug)]
pub(crate) enum Notify {
    /// No request yet (`NONE`), or the number that a hand-written loop has set.
    Token(u64),
    /// A task waits.
    Wake(Waker),
}

impl Notify {
    /// The number that stands for "no request".
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) const fn none() -> Self {
        Self::Token(Self::NONE)
    }
}

/// The driver's record of a slot.
#[derive(Debug)]
pub(crate) struct Header {
    /// The slot's place in the slab; never changes.
    pub(crate) index: u32,
    /// Changes each time the slot is freed, so that old keys match nothing.
    pub(crate) generation: u32,
    pub(crate) state: SlotState,
    /// [`flag`]s.
    pub(crate) flags: u16,
    pub(crate) class: Class,
    /// Place of the entry in the submission queue, while it may still be taken back.
    pub(crate) position: u32,
    /// The neighbors on the list that the slot is on: free, backlog or cancel.
    pub(crate) next: Option<SlotRef>,
    pub(crate) prev: Option<SlotRef>,
    /// The result, once the state is `Done` or `Disposing`; a third part is a flag. See
    /// [`completion`](Header::completion).
    res: i32,
    cqe_flags: CqeFlags,
    pub(crate) notify: Notify,
    /// The table for the type in the cell; `None` while free.
    pub(crate) vtable: Option<&'static Vtable>,
}

impl Header {
    fn unused(index: u32) -> Self {
        Self {
            index,
            generation: 0,
            state: SlotState::Free,
            flags: 0,
            class: Class::Bounded,
            position: 0,
            next: None,
            prev: None,
            res: 0,
            cqe_flags: CqeFlags(0),
            notify: Notify::none(),
            vtable: None,
        }
    }

    #[inline(always)]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Panics if the operation was given up, and so never ends.
    #[inline(always)]
    pub(crate) fn assert_not_lost(&self) {
        if self.state == SlotState::Lost {
            panic!(
                "the driver was dropped while the kernel held this operation's memory, and could not get it \
                 back"
            );
        }
    }

    /// Returns the result, once the state is `Done` or `Disposing`.
    #[inline(always)]
    pub(crate) fn completion(&self) -> Completion {
        let Self { res, cqe_flags: flags, .. } = *self;
        Completion { res, flags, is_unstarted: self.has(flag::UNSTARTED) }
    }

    /// Takes the token and the table of a request that is done.
    #[inline(always)]
    pub(crate) fn take_request(&mut self) -> (u64, &'static Vtable) {
        let Notify::Token(token) = std::mem::replace(&mut self.notify, Notify::none()) else {
            unreachable!("a request has a token");
        };
        (token, self.vtable.expect("a slot that is done holds an operation"))
    }

    #[inline(always)]
    pub(crate) fn set_completion(&mut self, completion: Completion) {
        let Completion { res, flags, is_unstarted } = completion;
        (self.res, self.cqe_flags) = (res, flags);
        if is_unstarted {
            self.flags |= flag::UNSTARTED;
        }
    }
}

#[repr(C, align(64))]
struct Slot {
    cell: Cell,
    header: Header,
}

/// A slot of a slab. Only a slab makes one, and it stays valid as long as that slab.
///
/// The holder of one keeps the slab alive: the slab's own lists are part of it, and the driver's memory
/// outlives every slot in use, for which there is a handle of an operation (see `Shared`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef(NonNull<Slot>);

impl SlotRef {
    /// Returns the address of the slot's operation.
    #[inline(always)]
    pub(crate) fn cell(self) -> NonNull<Cell> {
        // The cell is the first field.
        self.0.cast()
    }
}

/// All slots of a driver.
pub(crate) struct Slab {
    /// Chunks of [`CHUNK`] slots each, owned, never given back before the slab's end.
    chunks: Vec<NonNull<Slot>>,
    free: Option<SlotRef>,
    /// The number of slots in use.
    live: u32,
    /// The start times of the operations in slots, and the latencies of others, if these are measured.
    pub(crate) latencies: Option<Box<Latencies>>,
}

impl Slab {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), free: None, live: 0, latencies: None }
    }

    /// Returns the number of slots in use.
    #[inline(always)]
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Returns every slot, used or not.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotRef> + use<> {
        let len = self.chunks.len() * CHUNK as usize;
        let chunks = self.chunks.clone();
        (0..len).map(move |index| {
            // SAFETY: each chunk has CHUNK slots, and the remainder is less.
            SlotRef(unsafe { chunks[index / CHUNK as usize].add(index % CHUNK as usize) })
        })
    }

    /// Returns the slot's header.
    #[inline(always)]
    pub(crate) fn header(&mut self, slot: SlotRef) -> &mut Header {
        // SAFETY: the slot is one of a slab that still lives (the promise of `SlotRef`), and this is
        // that slab, the only one of its driver; `&mut self` makes this the only reference to a
        // header, and references to cells do not overlap it.
        unsafe { &mut (*slot.0.as_ptr()).header }
    }

    /// Returns the slot that an index from outside names, whether in use or free.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u32) -> Option<SlotRef> {
        let chunk = self.chunks.get((index / CHUNK) as usize)?;
        // SAFETY: each chunk has CHUNK slots, and the remainder is less.
        Some(SlotRef(unsafe { chunk.add((index % CHUNK) as usize) }))
    }

    /// Returns the slot that `key` names, if its operation is still there.
    #[inline(always)]
    pub(crate) fn find(&mut self, key: Key) -> Option<SlotRef> {
        let slot = self.slot(key.index())?;
        (self.header(slot).generation == key.generation()).then_some(slot)
    }

    /// Returns the slot of the request that `key` names, if it is still there.
    pub(crate) fn find_request(&mut self, key: Key) -> Option<SlotRef> {
        let slot = self.slot(key.index())?;
        let header = self.header(slot);
        let renames = u32::from(header.has(flag::RENAMED));
        let is_named = header.generation.wrapping_sub(renames) == key.generation();
        (is_named && header.has(flag::REQUEST)).then_some(slot)
    }

    /// Returns the key of the operation in a slot.
    #[inline(always)]
    pub(crate) fn key(&mut self, slot: SlotRef) -> Key {
        let header = self.header(slot);
        Key::new(header.index, header.generation)
    }

    /// Gives a slot another key, since its operation is to be performed again. Later completions for the old
    /// key are stale.
    pub(crate) fn rename(&mut self, slot: SlotRef) {
        let header = self.header(slot);
        debug_assert!(!header.has(flag::RENAMED), "an operation is repeated once");
        header.generation = header.generation.wrapping_add(1);
        header.flags |= flag::RENAMED;
    }

    /// Takes a free slot. Its header is as [`release`](Slab::release) left it.
    ///
    /// # Panics
    /// When 16,777,216 operations are under way.
    #[inline(always)]
    pub(crate) fn allocate(&mut self) -> SlotRef {
        let slot = match self.free {
            Some(slot) => slot,
            None => self.grow(),
        };
        self.free = self.header(slot).next;
        self.live += 1;
        slot
    }

    /// Frees a slot whose cell holds nothing any more.
    #[inline(always)]
    pub(crate) fn release(&mut self, slot: SlotRef) {
        let free = self.free;
        let header = self.header(slot);
        header.generation = header.generation.wrapping_add(1);
        // With the class, which a free slot does not use, the three are one store.
        (header.state, header.flags, header.class) = (SlotState::Free, 0, Class::Bounded);
        header.next = free;
        self.free = Some(slot);
        self.live -= 1;
    }

    /// Adds a chunk, and returns its first slot.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> SlotRef {
        let len = self.chunks.len() as u32 * CHUNK;
        assert!(len < SLOTS_MAX, "{SLOTS_MAX} operations are in flight on one driver");
        let chunk: Box<[Slot]> = (len..len + CHUNK)
            .map(|index| Slot { cell: Cell::empty(), header: Header::unused(index) })
            .collect();
        let first = NonNull::new(Box::into_raw(chunk).cast()).expect("a box is not null");
        self.chunks.push(first);
        let mut next = None;
        for index in (len..len + CHUNK).rev() {
            let slot = self.slot(index).expect("the chunk was just added");
            self.header(slot).next = next;
            next = Some(slot);
        }
        SlotRef(first)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            let slots = std::ptr::slice_from_raw_parts_mut(chunk.as_ptr(), CHUNK as usize);
            // SAFETY: `grow` made each chunk from a box of CHUNK slots, and no other code frees it. Cells are
            // not dropped: the driver gets here only when all of them are empty.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
}

/// A list of slots through their headers. A slot is on one list at most.
#[derive(Debug)]
pub(crate) struct List {
    head: Option<SlotRef>,
    tail: Option<SlotRef>,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { head: None, tail: None }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    pub(crate) fn first(&self) -> Option<SlotRef> {
        self.head
    }

    pub(crate) fn push_back(&mut self, slab: &mut Slab, slot: SlotRef) {
        let header = slab.header(slot);
        header.next = None;
        header.prev = self.tail;
        match self.tail {
            None => self.head = Some(slot),
            Some(tail) => slab.header(tail).next = Some(slot),
        }
        self.tail = Some(slot);
    }

    /// Takes a slot off the list; it must be on it.
    pub(crate) fn remove(&mut self, slab: &mut Slab, slot: SlotRef) {
        let header = slab.header(slot);
        let (prev, next) = (header.prev, header.next);
        match prev {
            None => self.head = next,
            Some(prev) => slab.header(prev).next = next,
        }
        match next {
            None => self.tail = prev,
            Some(next) => slab.header(next).prev = prev,
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_slot_answers_to_no_old_key() {
        let mut slab = Slab::new();
        let slot = slab.allocate();
        let key = slab.key(slot);
        assert_eq!(slab.find(key), Some(slot));
        slab.release(slot);
        assert_eq!(slab.find(key), None);
        assert_eq!(slab.allocate(), slot);
        assert_eq!(slab.find(key), None);
        assert_eq!(slab.find(Key::new(SLOTS_MAX - 1, 0)), None);
    }

    #[test]
    fn slots_stay_where_they_are_while_the_slab_grows() {
        let mut slab = Slab::new();
        let slots: Vec<SlotRef> = (0..10 * CHUNK).map(|_| slab.allocate()).collect();
        assert_eq!(slab.live(), 10 * CHUNK);
        for (index, &slot) in slots.iter().enumerate() {
            assert_eq!(slab.slot(index as u32), Some(slot));
            assert_eq!(slab.header(slot).index, index as u32);
        }
        assert_eq!(slab.slot(10 * CHUNK), None);
        assert!(slab.slots().eq(slots));
    }

    #[test]
    fn a_list_is_first_in_first_out_and_gives_up_any_member() {
        let mut slab = Slab::new();
        let slots: Vec<SlotRef> = (0..5).map(|_| slab.allocate()).collect();
        let mut list = List::new();
        for &slot in &slots {
            list.push_back(&mut slab, slot);
        }
        list.remove(&mut slab, slots[2]);
        list.remove(&mut slab, slots[0]);
        list.remove(&mut slab, slots[4]);
        let mut left = Vec::new();
        while let Some(slot) = list.first() {
            list.remove(&mut slab, slot);
            left.push(slot);
        }
        assert_eq!(left, [slots[1], slots[3]]);
        assert!(list.is_empty());
    }
}
