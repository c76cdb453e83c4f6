//! Memory that the kernel picks from when there is something to receive.
//!
//! A waiting connection has no buffer: the connection that is ready first gets one. Buffers come in three
//! sizes, each a group of its own. A group begins small, since its buffers are used in turn and should stay
//! in the processor's cache, and grows when the kernel finds it empty.
//!
//! At every moment a buffer is in one of three places: free here, in the group and thereby the kernel's, or
//! in a [`RecvBuf`](super::RecvBuf). Only [`Pool::next_free`] puts it into the group. It goes to a `RecvBuf`
//! when a completion names it, which counts only if the buffer is in the group.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::policy::{StreamWays, Way};

/// A size of buffers: an index into [`SIZES`], and the number of the group.
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

/// The number of the first group for receives by readiness. Groups below are the queue's.
pub(crate) const READINESS_GROUPS: u16 = SIZES.len() as u16;

impl Size {
    /// Every size, smallest first.
    pub(crate) const ALL: [Self; SIZES.len()] = [Self(0), Self(1), Self(2)];

    /// Returns the number of this size's group for receives that go this way.
    pub(crate) fn group(self, way: Way) -> u16 {
        let first = if way == Way::Queue { 0 } else { READINESS_GROUPS };
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

/// The buffers of one driver for receives that go one way.
#[derive(Debug)]
pub(crate) struct Pool {
    groups: [Group; SIZES.len()],
    pub(crate) way: Way,
    /// Told when buffers become free that could be given to the kernel.
    pub(crate) streams: Rc<StreamWays>,
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
    pub(crate) fn new(way: Way, streams: Rc<StreamWays>) -> Self {
        Self { groups: Default::default(), way, streams }
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

    /// Gives a free buffer to the kernel. Returns its number and address.
    pub(crate) fn next_free(&self, size: Size) -> Option<(u16, NonNull<u8>)> {
        let group = self.group(size);
        let id = group.free.borrow_mut().pop()?;
        let buf = &mut group.bufs.borrow_mut()[usize::from(id)];
        buf.is_provided = true;
        group.provided.set(group.provided.get() + 1);
        Some((id, buf.addr))
    }

    /// Doubles the number of buffers. Returns false at the maximum.
    pub(crate) fn grow(&self, size: Size) -> bool {
        let (facts, group) = (size.facts(), self.group(size));
        let mut bufs = group.bufs.borrow_mut();
        let have = bufs.len();
        let want = (have * 2).clamp(facts.first.into(), facts.most.into());
        for id in have..want {
            bufs.push(Buf { addr: allocate(facts.bytes), is_provided: false });
            group.free.borrow_mut().push(id as u16);
        }
        self.streams.has_work.set(want > have || self.streams.has_work.get());
        want > have
    }

    /// Takes the buffer that a completion names from the kernel. `None` if the kernel did not have it.
    pub(crate) fn take(&self, size: Size, id: u16) -> Option<NonNull<u8>> {
        let group = self.group(size);
        let mut bufs = group.bufs.borrow_mut();
        let buf = bufs.get_mut(usize::from(id))?;
        let was_provided = std::mem::take(&mut buf.is_provided);
        was_provided.then(|| {
            group.provided.set(group.provided.get().saturating_sub(1));
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
