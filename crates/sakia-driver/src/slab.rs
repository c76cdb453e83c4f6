//! The records of operations: slots with stable addresses.
//!
//! A slot's memory, its *cell*, holds the operation and with it every byte and descriptor reference
//! that the kernel may see. It is allocated in chunks that are never moved nor given back while the
//! driver lives. The header beside it says who owns the cell; see [`State`].
//!
//! Only the driver's thread uses a slab. Nothing here runs users' code.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::task::Waker;

use crate::key::{Key, SLOTS_MAX};
use crate::op::{Class, Completion, Vtable};

/// Bytes of an operation that its slot holds itself.
pub(crate) const CELL_BYTES: usize = 128;
/// Slots allocated at a time.
const CHUNK: u32 = 256;
/// The end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// Who owns a slot's cell, and what may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Nobody: the slot is on the free list. Left by being allocated.
    Free,
    /// The driver. The operation has no entry yet and waits on its class's list for room, or for
    /// its descriptor to be released. Left by being pushed, or by its future's drop.
    Backlog,
    /// The kernel, until the last completion. Left only by that.
    Pushed,
    /// The future, which takes the result. Left by being taken or disposed of.
    Done,
    /// The code that disposes of the operation, outside the driver. Left when it has run.
    Disposing,
    /// The kernel for ever: the driver gave up waiting for it. Never left.
    Lost,
}

/// Facts about a slot that go together with its state.
pub(crate) mod flag {
    /// The future is gone; the result goes to the disposer.
    pub(crate) const ORPHAN: u8 = 1;
    /// The entry was taken back before the kernel saw it: its completion means `ECANCELED`.
    pub(crate) const REVOKED: u8 = 2;
    /// On the list of operations to be canceled. Excludes [`CANCEL_SENT`].
    pub(crate) const CANCEL_LISTED: u8 = 4;
    /// A request to cancel it was pushed.
    pub(crate) const CANCEL_SENT: u8 = 8;
    /// Waits for its descriptor to be released, on no list. Only with `Backlog`.
    pub(crate) const PARKED: u8 = 16;
}

/// How a finished operation is made known.
#[derive(Debug)]
pub(crate) enum Notify {
    /// Nobody asked yet (`NONE`), or a hand-written loop wants this number.
    Token(u64),
    /// A task waits.
    Wake(Waker),
}

impl Notify {
    /// The number that stands for "nobody asked".
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) const fn none() -> Self {
        Self::Token(Self::NONE)
    }
}

/// What the driver knows of a slot.
#[derive(Debug)]
pub(crate) struct Header {
    /// Changes each time the slot is freed, so that old keys match nothing.
    pub(crate) generation: u32,
    pub(crate) state: State,
    /// [`flag`]s.
    pub(crate) flags: u8,
    pub(crate) class: Class,
    /// Place of the entry in the submission queue, while it may still be taken back.
    pub(crate) position: u32,
    /// The neighbors on the list that the slot is on: free, backlog or cancel.
    pub(crate) next: u32,
    pub(crate) prev: u32,
    /// The result, once the state is `Done` or `Disposing`.
    pub(crate) completion: Completion,
    pub(crate) notify: Notify,
    /// What the cell holds; `None` while free.
    pub(crate) vtable: Option<&'static Vtable>,
}

impl Header {
    #[inline(always)]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Memory for an operation, or for the pointer to where it lies.
#[repr(C, align(16))]
pub(crate) struct Cell([MaybeUninit<u8>; CELL_BYTES]);

#[repr(C, align(64))]
struct Slot {
    cell: Cell,
    header: Header,
}

/// All slots of a driver.
pub(crate) struct Slab {
    /// Chunks of [`CHUNK`] slots each, owned, never given back before the slab's end.
    chunks: Vec<NonNull<Slot>>,
    /// Slots in all chunks.
    len: u32,
    /// First free slot, or [`NIL`].
    free: u32,
    /// Slots in use.
    live: u32,
}

impl Slab {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), len: 0, free: NIL, live: 0 }
    }

    /// Slots in use.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// The indices of all slots, used or not.
    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        0..self.len
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> NonNull<Slot> {
        assert!(index < self.len, "slot {index} of {}", self.len);
        let chunk = self.chunks[(index / CHUNK) as usize];
        // SAFETY: each chunk has CHUNK slots, and the remainder is less.
        unsafe { chunk.add((index % CHUNK) as usize) }
    }

    /// The slot's header.
    ///
    /// # Panics
    /// When there is no such slot: keys from outside go through [`find`](Slab::find).
    #[inline(always)]
    pub(crate) fn header(&mut self, index: u32) -> &mut Header {
        // SAFETY: the slot lives as long as the slab; `&mut self` makes this the only reference to
        // a header, and references to cells do not overlap it.
        unsafe { &mut (*self.slot(index).as_ptr()).header }
    }

    /// The header and the cell of the slot that `key` names, if its operation is still there.
    #[inline(always)]
    pub(crate) fn find(&mut self, key: Key) -> Option<&mut Header> {
        if key.index() >= self.len {
            return None;
        }
        let header = self.header(key.index());
        (header.generation == key.generation()).then_some(header)
    }

    /// Where the slot's operation lies. Valid until the slab's end.
    #[inline(always)]
    pub(crate) fn cell(&self, index: u32) -> NonNull<Cell> {
        let slot = self.slot(index);
        // SAFETY: the cell is a field of a slot that lives as long as the slab.
        unsafe { NonNull::new_unchecked(&raw mut (*slot.as_ptr()).cell) }
    }

    /// Takes a free slot. Its header is as [`release`](Slab::release) left it.
    ///
    /// # Panics
    /// When 16,777,216 operations are under way.
    #[inline(always)]
    pub(crate) fn allocate(&mut self) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        let index = self.free;
        self.free = self.header(index).next;
        self.live += 1;
        index
    }

    /// Puts a slot back whose cell holds nothing any more.
    #[inline(always)]
    pub(crate) fn release(&mut self, index: u32) {
        let free = self.free;
        let header = self.header(index);
        header.generation = header.generation.wrapping_add(1);
        header.state = State::Free;
        header.flags = 0;
        header.next = free;
        self.free = index;
        self.live -= 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        assert!(self.len < SLOTS_MAX, "{SLOTS_MAX} operations are under way on one driver");
        let chunk: Box<[Slot]> = (self.len..self.len + CHUNK)
            .map(|index| Slot {
                cell: Cell([MaybeUninit::uninit(); CELL_BYTES]),
                header: Header {
                    generation: 0,
                    state: State::Free,
                    flags: 0,
                    class: Class::Bounded,
                    position: 0,
                    next: if index + 1 < self.len + CHUNK { index + 1 } else { NIL },
                    prev: NIL,
                    completion: Completion::default(),
                    notify: Notify::none(),
                    vtable: None,
                },
            })
            .collect();
        let first = NonNull::new(Box::into_raw(chunk).cast()).expect("a box is not null");
        self.chunks.push(first);
        self.free = self.len;
        self.len += CHUNK;
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            let slots = std::ptr::slice_from_raw_parts_mut(chunk.as_ptr(), CHUNK as usize);
            // SAFETY: `grow` made each chunk from a box of CHUNK slots, and nobody else frees it.
            // Cells are not dropped: the driver gets here only when all of them are empty.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
}

/// A list of slots through their headers. A slot is on one list at most.
#[derive(Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { head: NIL, tail: NIL }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn push_back(&mut self, slab: &mut Slab, index: u32) {
        let header = slab.header(index);
        header.next = NIL;
        header.prev = self.tail;
        if self.tail == NIL {
            self.head = index;
        } else {
            slab.header(self.tail).next = index;
        }
        self.tail = index;
    }

    /// Takes a slot off the list; it must be on it.
    pub(crate) fn remove(&mut self, slab: &mut Slab, index: u32) {
        let header = slab.header(index);
        let (prev, next) = (header.prev, header.next);
        if prev == NIL {
            self.head = next;
        } else {
            slab.header(prev).next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            slab.header(next).prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_slot_answers_to_no_old_key() {
        let mut slab = Slab::new();
        let index = slab.allocate();
        let key = Key::new(index, slab.header(index).generation);
        assert!(slab.find(key).is_some());
        slab.release(index);
        assert!(slab.find(key).is_none());
        assert_eq!(slab.allocate(), index);
        assert!(slab.find(key).is_none());
        assert!(slab.find(Key::new(SLOTS_MAX - 1, 0)).is_none());
    }

    #[test]
    fn cells_stay_where_they_are_while_the_slab_grows() {
        let mut slab = Slab::new();
        let first = slab.allocate();
        let cell = slab.cell(first);
        for _ in 0..10 * CHUNK {
            slab.allocate();
        }
        assert_eq!(slab.cell(first), cell);
        assert_eq!(slab.live(), 10 * CHUNK + 1);
    }

    #[test]
    fn a_list_is_first_in_first_out_and_gives_up_any_member() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..5).map(|_| slab.allocate()).collect();
        let mut list = List::new();
        for &index in &slots {
            list.push_back(&mut slab, index);
        }
        list.remove(&mut slab, slots[2]);
        list.remove(&mut slab, slots[0]);
        list.remove(&mut slab, slots[4]);
        let mut left = Vec::new();
        while let Some(index) = list.first() {
            list.remove(&mut slab, index);
            left.push(index);
        }
        assert_eq!(left, [slots[1], slots[3]]);
        assert!(list.is_empty());
    }
}
