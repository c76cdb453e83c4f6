//! Memory that the kernel picks from when there is something to receive.
//!
//! A connection that waits has no buffer: whichever is ready first gets one. Buffers come in three sizes,
//! each a group of its own. A group begins small, since it is used in turn and should stay in the processor's
//! cache, and grows when the kernel finds it empty.
//!
//! A buffer is at every moment one of three's: free here, in the group and with it the kernel's, or a
//! [`RecvBuf`](super::RecvBuf)'s. It goes to the group by [`Pool::next_free`] alone, and to a `RecvBuf` when a
//! completion names it, which is believed only of one that is in the group.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

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

/// At most 32 MiB in all. Of each size there are enough for as many connections as one turn may find ready.
const SIZES: [SizeFacts; 3] = [
    SizeFacts { bytes: 2 << 10, first: 64, most: 4096 },
    SizeFacts { bytes: 16 << 10, first: 16, most: 1024 },
    SizeFacts { bytes: 128 << 10, first: 4, most: 64 },
];

impl Size {
    /// Every size, smallest first.
    pub(crate) const ALL: [Self; SIZES.len()] = [Self(0), Self(1), Self(2)];

    pub(crate) fn group(self) -> u16 {
        self.0.into()
    }

    /// Bytes of each buffer.
    pub(crate) fn bytes(self) -> u32 {
        self.facts().bytes
    }

    /// Returns the number of buffers that a group of them holds.
    pub(crate) fn most(self) -> u16 {
        self.facts().most
    }

    /// The next larger one, if there is one.
    pub(crate) fn larger(self) -> Option<Self> {
        (usize::from(self.0) + 1 < SIZES.len()).then(|| Self(self.0 + 1))
    }

    /// The next smaller one, if there is one.
    pub(crate) fn smaller(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }

    fn facts(self) -> &'static SizeFacts {
        &SIZES[usize::from(self.0)]
    }
}

/// The buffers of one driver.
#[derive(Debug)]
pub(crate) struct Pool {
    groups: [Group; SIZES.len()],
    /// Set if there are free buffers that the kernel could have.
    has_free: Cell<bool>,
}

/// The buffers of one size.
#[derive(Debug, Default)]
struct Group {
    /// By number.
    bufs: RefCell<Vec<Buf>>,
    /// Those that are free.
    free: RefCell<Vec<u16>>,
    /// The number that the kernel has.
    provided: Cell<u32>,
    /// Set if the backend has such a group; unknown until asked.
    is_registered: Cell<Option<bool>>,
}

#[derive(Debug)]
struct Buf {
    addr: NonNull<u8>,
    /// It is in the group.
    is_provided: bool,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self { groups: Default::default(), has_free: Cell::new(false) }
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

    /// Returns whether the backend has a group of this size; `None` when it was not asked yet.
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

    /// Returns whether there may be buffers that the kernel could have.
    #[inline(always)]
    pub(crate) fn has_free(&self) -> bool {
        self.has_free.get()
    }

    /// All that was free is provided.
    pub(crate) fn none_free(&self) {
        self.has_free.set(false);
    }

    /// A free buffer's number and address, which is the kernel's from now on.
    pub(crate) fn next_free(&self, size: Size) -> Option<(u16, NonNull<u8>)> {
        let group = self.group(size);
        let id = group.free.borrow_mut().pop()?;
        let buf = &mut group.bufs.borrow_mut()[usize::from(id)];
        buf.is_provided = true;
        group.provided.set(group.provided.get() + 1);
        Some((id, buf.addr))
    }

    /// Makes as many buffers again as there are. False when there are as many as may be.
    pub(crate) fn grow(&self, size: Size) -> bool {
        let (facts, group) = (size.facts(), self.group(size));
        let mut bufs = group.bufs.borrow_mut();
        let have = bufs.len();
        let want = (have * 2).clamp(facts.first.into(), facts.most.into());
        for id in have..want {
            bufs.push(Buf { addr: allocate(facts.bytes), is_provided: false });
            group.free.borrow_mut().push(id as u16);
        }
        self.has_free.set(want > have);
        want > have
    }

    /// Takes the buffer from the kernel that a completion names. `None` if the kernel did not have it.
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

    /// Frees the buffer: its user has finished with it.
    pub(crate) fn give_back(&self, size: Size, id: u16) {
        self.group(size).free.borrow_mut().push(id);
        self.has_free.set(true);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (group, facts) in self.groups.iter_mut().zip(&SIZES) {
            for buf in group.bufs.get_mut() {
                // SAFETY: allocated with this layout. Nobody uses it any more: each operation that may
                // receive into it keeps the pool until its last completion, and so does each `RecvBuf`;
                // the driver keeps it longer than the backend, which has the group.
                unsafe { dealloc(buf.addr.as_ptr(), layout(facts.bytes)) };
            }
        }
    }
}

/// Aligned to a page, or to as much of one as there is: into memory that begins elsewhere the kernel was seen
/// to copy at a quarter of the speed.
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
