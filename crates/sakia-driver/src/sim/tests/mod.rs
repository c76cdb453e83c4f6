//! Tests of the simulated kernel, through its queues.

mod bypass;
mod calls;
mod cancel;
// The crash tests do not concern memory, and make many runs: too slow for Miri.
#[cfg(not(miri))]
mod crashes;
mod determinism;
mod driver;
mod faults;
mod files;
mod late;
mod messages;
mod multishot;
mod names;
mod pipes;
mod schedule;
mod socket_programs;
mod sockets;

use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Sqe};

use super::{Routes, Sim, SimBuilder, SimHandle};
use crate::backend::{Backend, Destination};
use crate::call::Request;
use crate::counters::OpKind;
use crate::sim::entry::Form;

/// The number of seeds tried by a test that looks for outcomes. Miri is slow.
pub(super) const SEEDS: u64 = if cfg!(miri) { 12 } else { 40 };

/// Memory to lend: accessed through its address only, so that no reference to it exists.
pub(super) struct Lendable {
    bytes: *mut [u8],
}

impl Lendable {
    pub(super) fn new(content: &[u8]) -> Self {
        Self { bytes: Box::into_raw(content.into()) }
    }

    pub(super) fn zeroed(len: usize) -> Self {
        Self::new(&vec![0; len])
    }

    pub(super) fn ptr(&self) -> *mut u8 {
        self.bytes.cast()
    }

    pub(super) fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Returns the current bytes.
    pub(super) fn copy(&self) -> Vec<u8> {
        // SAFETY: the bytes belong to `self`, and no call into the simulation is under way that
        // could write to them.
        unsafe { &*self.bytes }.to_vec()
    }
}

impl Drop for Lendable {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`. A test keeps memory for as long as it is lent.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}

/// A minimal driver.
pub(super) struct Loop {
    pub(super) sim: Sim,
    pub(super) handle: SimHandle,
    /// The `user_data` of the next entry that [`run`](Loop::run) makes up.
    next: u64,
}

impl Loop {
    pub(super) fn new(builder: SimBuilder) -> Self {
        let sim = builder.build();
        let handle = sim.handle();
        Self { sim, handle, next: 1 << 20 }
    }

    /// Returns a loop with every operation on these routes, oldest first.
    pub(super) fn routed(routes: Routes) -> Self {
        Self::new(Sim::builder(1).routes(routes).reorders(false))
    }

    pub(super) fn inline() -> Self {
        Self::routed(Routes::INLINE)
    }

    #[track_caller]
    pub(super) fn push(&mut self, user_data: u64, form: impl Into<Form>) {
        // SAFETY: the tests keep lent memory until the operation is completed or the simulation is gone.
        let pushed = unsafe {
            match form.into() {
                Form::Entry(sqe) => self.sim.push(sqe.user_data(user_data)),
                Form::Call(call) => {
                    let request = Request { user_data, kind: OpKind::Other, call };
                    self.sim.push_call(request, Destination::Queue).ok().flatten()
                }
            }
        };
        assert!(pushed.is_some(), "the submission queue is full");
    }

    /// Reaps all completions, as `user_data` and result.
    pub(super) fn reap(&mut self) -> Vec<(u64, i32)> {
        let mut out = [Cqe::default(); 64];
        let count = self.sim.reap(&mut out);
        out[..count].iter().map(|cqe| (cqe.user_data, cqe.res)).collect()
    }

    /// Submits, and returns what completed inline.
    #[track_caller]
    pub(super) fn submit(&mut self) -> Vec<(u64, i32)> {
        self.sim.submit().unwrap();
        self.reap()
    }

    /// Enters for `min_complete` completions without a timeout.
    #[track_caller]
    pub(super) fn enter(&mut self, min_complete: u32) -> Vec<(u64, i32)> {
        self.sim.enter(min_complete, None, None).unwrap();
        self.reap()
    }

    /// Enters to finish operations that are ready now.
    #[track_caller]
    pub(super) fn turn(&mut self) -> Vec<(u64, i32)> {
        self.sim.enter(256, Some(Duration::ZERO), None).unwrap();
        self.reap()
    }

    /// Runs one operation to its end. No other operation in flight may end meanwhile.
    #[track_caller]
    pub(super) fn run(&mut self, form: impl Into<Form>) -> i32 {
        self.next += 1;
        let user_data = self.next;
        self.push(user_data, form);
        let completions = self.enter(1);
        assert_eq!(completions.len(), 1, "{completions:?}");
        assert_eq!(completions[0].0, user_data);
        completions[0].1
    }

    /// Opens a file by name.
    #[track_caller]
    pub(super) fn open(&mut self, name: &std::ffi::CStr, flags: rustix::fs::OFlags) -> i32 {
        let path = Lendable::new(name.to_bytes_with_nul());
        let sqe = Sqe::openat(sakia_ring::AT_FDCWD, path.ptr(), flags.bits(), 0o640);
        self.run(sqe)
    }
}

/// Returns the result that stands for an errno.
pub(super) fn err(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

/// Returns a read at an offset into all of a buffer.
pub(super) fn read(fd: i32, buffer: &Lendable, offset: u64) -> Sqe {
    Sqe::read(fd, buffer.ptr(), buffer.len(), offset)
}

/// Returns a write at an offset of all of a buffer.
pub(super) fn write(fd: i32, buffer: &Lendable, offset: u64) -> Sqe {
    Sqe::write(fd, buffer.ptr(), buffer.len(), offset)
}
