//! A host that is the kernel, except for the faults that a test injects.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use sakia_driver::{Driver, Uring};
use sakia_ring::{Host, Kernel, Opcode, Params, Ring, Sqe};

/// `IORING_OFF_SQES`: the offset of the entries in a ring's memory.
const OFFSET_SQES: u64 = 0x1000_0000;
/// `IORING_OFF_SQ_RING`: the offset of the queues.
const OFFSET_QUEUES: u64 = 0;
/// `IORING_SQ_TASKRUN`: work waits for an enter.
const TASKRUN: u32 = 1 << 2;

/// A fault of the next enter.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The enter fails before the kernel sees it.
    Fails(Errno),
    /// The kernel gets at most this many entries, and is not asked to wait for completions.
    Submits(u32),
}

#[derive(Default)]
pub struct Rig {
    pub enters: Cell<u32>,
    /// The faults of the next enters.
    pub faults: RefCell<VecDeque<Fault>>,
    /// True if requests to cancel become no-ops on their way to the kernel.
    pub swallows_cancels: Cell<bool>,
    /// The result that the kernel returns for every entry, except requests to cancel, instead of performing
    /// it.
    pub injects: Cell<Option<i32>>,
    /// True if each enter leaves the flag set that asks for one, as the kernel does if another thread is
    /// late.
    pub leaves_flag: Cell<bool>,
    /// The offset of the flags in the queues' memory, and their address.
    flags: Cell<(usize, Option<NonNull<AtomicU32>>)>,
    /// The entries of the ring, and their number.
    entries: Cell<Option<(NonNull<Sqe>, usize)>>,
}

/// The kernel, with a [`Rig`].
#[derive(Clone)]
pub struct Rigged(pub Rc<Rig>);

/// Makes a driver on a rigged ring with these sizes.
pub fn rigged(sq_entries: u32, cq_entries: u32) -> (Driver, Rc<Rig>) {
    let rig = Rc::new(Rig::default());
    let builder = sakia_ring::Builder::with_host(Rigged(Rc::clone(&rig)));
    let ring: Ring<_> = builder.sq_entries(sq_entries).cq_entries(cq_entries).build().unwrap();
    rig.enters.set(0);
    (Driver::new(Uring::from_ring(ring)), rig)
}

impl Rig {
    fn rewrite_entries(&self) {
        let Some((entries, count)) = self.entries.get() else { return };
        for index in 0..count {
            // SAFETY: the entries are mapped until `unmap`, which resets `entries`. The kernel reads them
            // only during an enter, and the driver's thread is here now.
            let sqe = unsafe { entries.add(index).as_mut() };
            let other = match (sqe.opcode, self.injects.get()) {
                (Opcode::ASYNC_CANCEL, _) if self.swallows_cancels.get() => Sqe::nop(),
                (Opcode::ASYNC_CANCEL, _) | (_, None) => continue,
                (_, Some(result)) => Sqe::nop_with_result(result),
            };
            *sqe = other.user_data(sqe.user_data);
        }
    }
}

// SAFETY: each call is the kernel's, with fewer entries or less to wait for, or does nothing. Only entries
// that name no memory, and a flag that asks for an enter, are written to mapped memory.
unsafe impl Host for Rigged {
    unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
        // SAFETY: the caller's duties are the same.
        let ring = unsafe { Kernel.setup(entries, params) };
        self.0.flags.set((params.sq_off.flags as usize, None));
        ring
    }

    unsafe fn enter(
        &self,
        ring: u32,
        to_submit: u32,
        min_complete: u32,
        flags: u32,
        arg: *const c_void,
        arg_size: usize,
    ) -> io::Result<u32> {
        self.0.enters.set(self.0.enters.get() + 1);
        if self.0.swallows_cancels.get() || self.0.injects.get().is_some() {
            self.0.rewrite_entries();
        }
        let fault = self.0.faults.borrow_mut().pop_front();
        let entered = match fault {
            Some(Fault::Fails(errno)) => Err(errno.into()),
            // SAFETY: the caller's duties are the same, with fewer entries.
            Some(Fault::Submits(most)) => unsafe {
                Kernel.enter(ring, to_submit.min(most), 0, flags, arg, arg_size)
            },
            // SAFETY: the caller's duties are the same.
            None => unsafe { Kernel.enter(ring, to_submit, min_complete, flags, arg, arg_size) },
        };
        if let (true, (_, Some(flags))) = (self.0.leaves_flag.get(), self.0.flags.get()) {
            // SAFETY: the queues are mapped until `unmap`, which resets the address. The kernel and the
            // driver use the flags as an atomic number, too.
            unsafe { flags.as_ref() }.fetch_or(TASKRUN, Ordering::SeqCst);
        }
        entered
    }

    unsafe fn register(
        &self,
        ring: i32,
        opcode: u32,
        arg: *mut c_void,
        nr_args: u32,
    ) -> io::Result<u32> {
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.register(ring, opcode, arg, nr_args) }
    }

    fn map(&self, ring: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
        let addr = Kernel.map(ring, offset, len)?;
        if offset == OFFSET_SQES {
            self.0.entries.set(Some((addr.cast(), len / size_of::<Sqe>())));
        }
        if offset == OFFSET_QUEUES {
            let (at, _) = self.0.flags.get();
            assert!(at + size_of::<AtomicU32>() <= len, "the flags are in the queues");
            // SAFETY: within the mapping, by the line above.
            self.0.flags.set((at, Some(unsafe { addr.add(at) }.cast())));
        }
        Ok(addr)
    }

    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
        if self.0.entries.get().is_some_and(|(entries, _)| entries.cast() == addr) {
            self.0.entries.set(None);
        }
        // One of the two mappings goes with the other, and no enter comes between.
        self.0.flags.set((0, None));
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.unmap(addr, len) };
    }
}
