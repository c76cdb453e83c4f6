//! A host that calls the kernel and measures the duration of enters.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sakia_ring::{Host, Kernel, Params};

/// This machine's kernel, with a clock. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TimedHost {
    enters: Rc<RefCell<Vec<Duration>>>,
}

impl TimedHost {
    /// Takes the durations of the enters since the last call, in order.
    pub fn take(&self) -> Vec<Duration> {
        self.enters.take()
    }
}

// SAFETY: each call is the kernel's.
unsafe impl Host for TimedHost {
    fn fills_what_it_reports(&self) -> bool {
        Kernel.fills_what_it_reports()
    }

    fn masks_signals(&self) -> bool {
        Kernel.masks_signals()
    }

    unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
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
        let begin = Instant::now();
        // SAFETY: the caller's duties are the same.
        let result = unsafe { Kernel.enter(ring, to_submit, min_complete, flags, arg, arg_size) };
        self.enters.borrow_mut().push(begin.elapsed());
        result
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
        Kernel.map(ring, offset, len)
    }

    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
        // SAFETY: the caller's duties are the same.
        unsafe { Kernel.unmap(addr, len) };
    }
}
