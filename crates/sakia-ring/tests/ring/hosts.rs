//! A host that counts calls, refuses on demand, and otherwise is the kernel.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use rustix::io::Errno;
use sakia_ring::{Host, Kernel, Params};

type Refuse<A> = RefCell<Box<dyn FnMut(A) -> Option<Errno>>>;

/// The calls that a [`Rigged`] host saw, and its refusals.
pub struct Log {
    /// Entries, flags and completion entries of each set-up.
    pub setups: RefCell<Vec<(u32, u32, u32)>>,
    pub enters: Cell<u32>,
    /// The number of live maps.
    pub live_maps: Cell<i32>,
    /// Takes the flags of a set-up; returns the errno to refuse it with.
    pub refuse_setup: Refuse<u32>,
    /// Takes the opcode of a registration; returns the errno to refuse it with.
    pub refuse_register: Refuse<u32>,
    /// Takes the number of earlier enters; returns the errno to refuse this one with.
    pub refuse_enter: Refuse<u32>,
    /// Takes the number of earlier maps; returns the errno to refuse this one with.
    pub refuse_map: Refuse<u32>,
    maps: Cell<u32>,
}

/// The kernel, with a [`Log`].
#[derive(Clone)]
pub struct Rigged(pub Rc<Log>);

impl Rigged {
    pub fn new() -> Self {
        Self(Rc::new(Log {
            setups: RefCell::default(),
            enters: Cell::new(0),
            live_maps: Cell::new(0),
            refuse_setup: RefCell::new(Box::new(|_| None)),
            refuse_register: RefCell::new(Box::new(|_| None)),
            refuse_enter: RefCell::new(Box::new(|_| None)),
            refuse_map: RefCell::new(Box::new(|_| None)),
            maps: Cell::new(0),
        }))
    }

    pub fn refuse_setup(self, refuse: impl FnMut(u32) -> Option<Errno> + 'static) -> Self {
        *self.0.refuse_setup.borrow_mut() = Box::new(refuse);
        self
    }

    pub fn refuse_register(self, refuse: impl FnMut(u32) -> Option<Errno> + 'static) -> Self {
        *self.0.refuse_register.borrow_mut() = Box::new(refuse);
        self
    }

    pub fn refuse_enter(self, refuse: impl FnMut(u32) -> Option<Errno> + 'static) -> Self {
        *self.0.refuse_enter.borrow_mut() = Box::new(refuse);
        self
    }

    pub fn refuse_map(self, refuse: impl FnMut(u32) -> Option<Errno> + 'static) -> Self {
        *self.0.refuse_map.borrow_mut() = Box::new(refuse);
        self
    }
}

fn refuse<A>(hook: &Refuse<A>, argument: A) -> io::Result<()> {
    match hook.borrow_mut()(argument) {
        Some(errno) => Err(errno.into()),
        None => Ok(()),
    }
}

// SAFETY: each call is the kernel's or does nothing.
unsafe impl Host for Rigged {
    unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
        let seen = (entries, params.flags, params.cq_entries);
        self.0.setups.borrow_mut().push(seen);
        refuse(&self.0.refuse_setup, params.flags)?;
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.setup(entries, params) }
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
        let before = self.0.enters.replace(self.0.enters.get() + 1);
        refuse(&self.0.refuse_enter, before)?;
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.enter(ring, to_submit, min_complete, flags, arg, arg_size) }
    }

    unsafe fn register(
        &self,
        ring: i32,
        opcode: u32,
        arg: *mut c_void,
        nr_args: u32,
    ) -> io::Result<u32> {
        refuse(&self.0.refuse_register, opcode)?;
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.register(ring, opcode, arg, nr_args) }
    }

    fn map(&self, ring: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
        let before = self.0.maps.replace(self.0.maps.get() + 1);
        refuse(&self.0.refuse_map, before)?;
        let addr = Kernel.map(ring, offset, len)?;
        self.0.live_maps.set(self.0.live_maps.get() + 1);
        Ok(addr)
    }

    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
        self.0.live_maps.set(self.0.live_maps.get() - 1);
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.unmap(addr, len) };
    }
}
