//! Memory that the kernel picks from when there is something to receive.
//!
//! A waiting connection has no buffer: the connection that is ready first gets one. Buffers come in three
//! sizes, each a group of its own. The kernel uses the buffers of a group in turn, and they should stay in
//! the processor's cache. So it has few of them, and gets those back first that were freed last. It gets more
//! when it finds the group empty, and fewer again when it leaves most of them unused for [`TURNS`] turns.
//!
//! At every moment a buffer is in one of three places: free here, in the group and thereby the kernel's, or
//! in a [`RecvBuf`](super::RecvBuf). Only [`Pool::next_free`] puts it into the group. It goes to a `RecvBuf`
//! when a completion names it, which counts only if the buffer is in the group.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::decide::{StreamState, Streams};

/// A size of buffers: an index into [`SIZES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size(u8);

/// The facts about one size.
struct SizeFacts {
    /// Bytes of each buffer.
    bytes: u32,
    /// The number of buffers at first.
    first: u16,
    /// The most buffers there may be; a power of two.
    most: u16,
}

/// At most 32 MiB in all. Of each size there are enough for all connections that one turn may find ready.
const SIZES: [SizeFacts; 3] = [
    SizeFacts { bytes: 2 << 10, first: 64, most: 4096 },
    SizeFacts { bytes: 16 << 10, first: 16, most: 1024 },
    SizeFacts { bytes: 128 << 10, first: 4, most: 64 },
];

/// Turns after which the kernel gets fewer buffers, if it never used more than half of them in one.
const TURNS: u32 = 64;

/// The number of the first group for receives by readiness. Groups below are the queue's.
pub(crate) const READINESS_GROUPS: u16 = SIZES.len() as u16;

impl Size {
    /// Every size, smallest first.
    pub(crate) const ALL: [Self; SIZES.len()] = [Self(0), Self(1), Self(2)];

    /// Returns the number of this size's group for receives by this mode.
    pub(crate) fn group(self, mode: Streams) -> u16 {
        let first = if mode == Streams::Queue { 0 } else { READINESS_GROUPS };
        first + u16::from(self.0)
    }

    /// Returns the size of each buffer in bytes.
    pub(crate) fn bytes(self) -> u32 {
        self.facts().bytes
    }

    /// Returns the maximum number of buffers in a group of this size.
    pub(crate) fn most(self) -> u16 {
        self.facts().most
    }

    /// Returns the next larger size, if there is one.
    pub(crate) fn larger(self) -> Option<Self> {
        (usize::from(self.0) + 1 < SIZES.len()).then(|| Self(self.0 + 1))
    }

    /// Returns the next smaller size, if there is one.
    pub(crate) fn smaller(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }

    fn facts(self) -> &'static SizeFacts {
        &SIZES[usize::from(self.0)]
    }
}

/// The buffers of one driver for receives by one mode.
#[derive(Debug)]
pub(crate) struct Pool {
    groups: [Group; SIZES.len()],
    pub(crate) mode: Streams,
    /// Told when buffers become free that could be given to the kernel.
    pub(crate) streams: Rc<StreamState>,
    /// The turn in which used buffers were noted last.
    noted: Cell<u32>,
}

/// The buffers of one size.
#[derive(Debug, Default)]
struct Group {
    /// By number.
    bufs: RefCell<Vec<Buf>>,
    /// The free buffers.
    free: RefCell<Vec<u16>>,
    /// The number of buffers that the kernel has.
    provided: Cell<u32>,
    /// The number of buffers that it is to have.
    wanted: Cell<u32>,
    /// The number of buffers that it has used in this turn.
    used: Cell<u32>,
    /// The most that it has used in a turn, and the number of turns for which that is counted.
    most_used: Cell<(u32, u32)>,
    /// The last turn in which the kernel found no buffer.
    ran_out: Cell<Option<u32>>,
    /// Set if the backend has such a group; `None` until the driver has tried to register it.
    is_registered: Cell<Option<bool>>,
}

#[derive(Debug)]
struct Buf {
    addr: NonNull<u8>,
    /// The buffer is in the group.
    is_provided: bool,
}

impl Pool {
    pub(crate) fn new(mode: Streams, streams: Rc<StreamState>) -> Self {
        Self { groups: Default::default(), mode, streams, noted: Cell::new(0) }
    }

    fn group(&self, size: Size) -> &Group {
        &self.groups[usize::from(size.0)]
    }

    /// Returns the number of buffers of all sizes, of those that the kernel has, and of those that are free.
    pub(crate) fn numbers(&self) -> [u64; 3] {
        self.groups.iter().fold([0; 3], |[all, provided, free], group| {
            let (bufs, unused) = (group.bufs.borrow().len(), group.free.borrow().len());
            let with_kernel = u64::from(group.provided.get());
            [all + bufs as u64, provided + with_kernel, free + unused as u64]
        })
    }

    /// Returns whether the backend has a group of this size; `None` if the driver has not tried to register
    /// it.
    pub(crate) fn is_registered(&self, size: Size) -> Option<bool> {
        self.group(size).is_registered.get()
    }

    /// Notes the backend's answer.
    pub(crate) fn set_registered(&self, size: Size, is_registered: bool) {
        self.group(size).is_registered.set(Some(is_registered));
    }

    /// Returns whether the kernel has buffers of this size.
    pub(crate) fn is_provided(&self, size: Size) -> bool {
        self.group(size).provided.get() > 0
    }

    /// Takes note, once in a turn, of the number of buffers that the kernel has used.
    pub(crate) fn note_used(&self) {
        let turn = self.streams.turn.get();
        if self.noted.replace(turn) == turn {
            return;
        }
        for (group, facts) in self.groups.iter().zip(&SIZES) {
            let (most, turns) = group.most_used.get();
            let (most, turns) = (most.max(group.used.take()), turns + 1);
            if turns < TURNS {
                group.most_used.set((most, turns));
                continue;
            }
            let (wanted, least) = (group.wanted.get(), u32::from(facts.first));
            if most < wanted / 2 {
                group.wanted.set((2 * most).max(wanted / 4 * 3).max(least));
            }
            group.most_used.set((0, 0));
        }
    }

    /// Gives a free buffer to the kernel, if it is to have more. Returns its number and address.
    pub(crate) fn next_free(&self, size: Size) -> Option<(u16, NonNull<u8>)> {
        let group = self.group(size);
        if group.provided.get() >= group.wanted.get() {
            return None;
        }
        let id = group.free.borrow_mut().pop()?;
        let buf = &mut group.bufs.borrow_mut()[usize::from(id)];
        buf.is_provided = true;
        group.provided.set(group.provided.get() + 1);
        Some((id, buf.addr))
    }

    /// Notes that the kernel found no buffer: it is to have twice as many, however often it found none in
    /// this turn. If none is free, their number is doubled, up to the maximum. Returns false if none is free
    /// after that.
    pub(crate) fn grow(&self, size: Size) -> bool {
        let (facts, group) = (size.facts(), self.group(size));
        let (first, most) = (facts.first.into(), facts.most.into());
        let turn = Some(self.streams.turn.get());
        if group.ran_out.replace(turn) != turn {
            group.wanted.set((group.wanted.get() * 2).clamp(first, most));
            group.most_used.set((0, 0));
        }
        let (mut bufs, mut free) = (group.bufs.borrow_mut(), group.free.borrow_mut());
        if free.is_empty() {
            let have = bufs.len();
            for id in have..(have * 2).clamp(first as usize, most as usize) {
                bufs.push(Buf { addr: allocate(facts.bytes), is_provided: false });
                free.push(id as u16);
            }
        }
        self.streams.has_work.set(!free.is_empty() || self.streams.has_work.get());
        !free.is_empty()
    }

    /// Takes the buffer that a completion names from the kernel. `None` if the kernel did not have it.
    pub(crate) fn take(&self, size: Size, id: u16) -> Option<NonNull<u8>> {
        let group = self.group(size);
        let mut bufs = group.bufs.borrow_mut();
        let buf = bufs.get_mut(usize::from(id))?;
        let was_provided = std::mem::take(&mut buf.is_provided);
        was_provided.then(|| {
            group.provided.set(group.provided.get().saturating_sub(1));
            group.used.set(group.used.get() + 1);
            buf.addr
        })
    }

    /// Frees a buffer that its user has finished with.
    pub(crate) fn give_back(&self, size: Size, id: u16) {
        self.group(size).free.borrow_mut().push(id);
        self.streams.has_work.set(true);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (group, facts) in self.groups.iter_mut().zip(&SIZES) {
            for buf in group.bufs.get_mut() {
                // SAFETY: allocated with this layout, and unused: each operation that may receive into it
                // keeps the pool until its last completion, and so does each `RecvBuf`; the driver keeps it
                // longer than the backend, which has the group.
                unsafe { dealloc(buf.addr.as_ptr(), layout(facts.bytes)) };
            }
        }
    }
}

/// Returns the layout of a buffer, aligned to a page or, if smaller, to its size. The kernel was measured to
/// copy into unaligned memory at a quarter of the speed.
fn layout(bytes: u32) -> Layout {
    const PAGE_BYTES: usize = 4096;
    let bytes = bytes as usize;
    Layout::from_size_align(bytes, bytes.min(PAGE_BYTES)).expect("small, and powers of two")
}

fn allocate(bytes: u32) -> NonNull<u8> {
    let layout = layout(bytes);
    // SAFETY: no size is zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Size = Size(0);

    /// A pool of one size, and the turns of its driver.
    struct Turns {
        pool: Pool,
        streams: Rc<StreamState>,
        /// The buffers that the kernel has, oldest first.
        provided: Vec<u16>,
    }

    impl Turns {
        fn new() -> Self {
            let streams = Rc::<StreamState>::default();
            let pool = Pool::new(Streams::Queue, Rc::clone(&streams));
            Self { pool, streams, provided: Vec::new() }
        }

        /// Begins a turn, and provides the kernel with free buffers.
        fn turn(&mut self) {
            self.streams.turn.set(self.streams.turn.get() + 1);
            self.pool.note_used();
            while let Some((id, _)) = self.pool.next_free(SMALL) {
                self.provided.push(id);
            }
        }

        /// Receives this many messages, whose buffers are freed before the next turn.
        fn receive(&mut self, count: usize) {
            for id in self.provided.drain(..count).collect::<Vec<_>>() {
                assert!(self.pool.take(SMALL, id).is_some());
                self.pool.give_back(SMALL, id);
            }
        }
    }

    #[test]
    fn the_kernel_gets_fewer_buffers_when_it_uses_few_and_twice_as_many_in_a_turn_without_any() {
        let mut turns = Turns::new();
        for _ in 0..4 {
            turns.pool.grow(SMALL);
            turns.turn();
        }
        assert_eq!(turns.provided.len(), 512);
        for _ in 0..50 * TURNS {
            turns.receive(20);
            turns.turn();
        }
        assert_eq!(turns.provided.len(), 64, "as many as at first");
        // The kernel gets the buffers that were freed last, and all again when it needs them.
        turns.receive(1);
        let last = *turns.pool.group(SMALL).free.borrow().last().unwrap();
        turns.turn();
        assert_eq!(turns.provided.last(), Some(&last));
        for expected in [128, 256, 512] {
            (0..100).for_each(|_| assert!(turns.pool.grow(SMALL)));
            turns.turn();
            assert_eq!(turns.pool.numbers(), [512, expected, 512 - expected]);
        }
    }

    #[test]
    fn a_group_whose_buffers_are_all_in_use_grows_to_its_maximum() {
        let mut turns = Turns::new();
        let mut held = Vec::new();
        while turns.pool.grow(SMALL) {
            turns.turn();
            for id in turns.provided.drain(..) {
                held.push(turns.pool.take(SMALL, id));
            }
        }
        assert_eq!(held.len(), usize::from(SMALL.most()));
    }
}
