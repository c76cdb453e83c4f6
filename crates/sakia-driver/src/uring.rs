//! The kernel's ring as a backend.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use sakia_ring::{Builder, Cqe, Entered, Host, IoVec, Kernel, Opcode, Position, Probe, Ring, Sqe};

use crate::backend::{Backend, Descriptors, FileKind};

/// A ring of the kernel, or of a [`Host`] that stands for it.
#[derive(Debug)]
pub struct Uring<H: Host = Kernel> {
    ring: Ring<H>,
    /// `None` from a kernel that cannot tell what it supports.
    probe: Option<Probe>,
    /// The zero of the backend's time.
    since: Instant,
}

impl Uring {
    /// A ring with the default sizes, for the calling thread.
    ///
    /// # Errors
    /// See [`sakia_ring::SetupError`].
    pub fn new() -> Result<Self, sakia_ring::SetupError> {
        Self::from_builder(Ring::builder())
    }
}

impl<H: Host> Uring<H> {
    /// A ring set up as `builder` says, for the calling thread.
    ///
    /// # Errors
    /// See [`sakia_ring::SetupError`].
    pub fn from_builder(builder: Builder<H>) -> Result<Self, sakia_ring::SetupError> {
        Ok(Self::from_ring(builder.build()?))
    }

    /// Takes over a ring with nothing in flight.
    pub fn from_ring(ring: Ring<H>) -> Self {
        let probe = ring.probe().ok();
        Self { ring, probe, since: Instant::now() }
    }

    /// The ring, for what the driver does not do itself.
    pub fn ring(&self) -> &Ring<H> {
        &self.ring
    }
}

// SAFETY: the kernel accesses an operation's memory from the enter that consumes its entry until it
// posts the last completion, and never that of an entry that was turned into a no-op before. Closing the
// ring does not end that: the driver drains first, or leaks.
unsafe impl<H: Host + 'static> Backend for Uring<H> {
    fn sq_entries(&self) -> u32 {
        self.ring.sq_entries()
    }

    fn cq_entries(&self) -> u32 {
        self.ring.cq_entries()
    }

    #[inline(always)]
    fn sq_pending(&self) -> u32 {
        self.ring.sq_pending()
    }

    #[inline(always)]
    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.ring.push(sqe) }
    }

    fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        self.ring.make_nop(position, user_data)
    }

    fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(|_| ())
    }

    #[inline(always)]
    fn enter(&mut self, min_complete: u32, timeout: Option<Duration>) -> io::Result<Entered> {
        self.ring.enter(min_complete, timeout)
    }

    #[inline(always)]
    fn cq_ready(&self) -> u32 {
        self.ring.cq_ready()
    }

    #[inline(always)]
    fn reap(&mut self, out: &mut [Cqe]) -> usize {
        self.ring.reap(out)
    }

    #[inline(always)]
    fn needs_enter(&self) -> bool {
        self.ring.needs_enter()
    }

    fn is_overflowing(&self) -> bool {
        self.ring.is_overflowing()
    }

    fn is_intact(&self) -> bool {
        self.ring.is_owned_by_process() || mutant!("fork_unnoticed")
    }

    fn supports(&self, opcode: Opcode) -> bool {
        self.probe.as_ref().is_none_or(|probe| probe.is_supported(opcode))
    }

    unsafe fn register_buffer(&mut self, addr: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller keeps the memory for as long as the kernel may use it.
        unsafe { self.ring.register_buffers(&[IoVec { base: addr, len }]) }
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    fn nap(&mut self, duration: Duration) {
        let request = rustix::thread::Timespec {
            tv_sec: duration.as_secs() as i64,
            tv_nsec: i64::from(duration.subsec_nanos()),
        };
        // A signal ends the nap early, which does no harm.
        let _ = rustix::thread::nanosleep(&request);
    }

    fn descriptors(&self) -> Rc<dyn Descriptors> {
        Rc::new(KernelDescriptors)
    }
}

/// The descriptors of this process.
struct KernelDescriptors;

impl Descriptors for KernelDescriptors {
    fn close(&self, raw: i32) -> io::Result<()> {
        // SAFETY: the driver owns the descriptor, gives it up here, and uses the number no more.
        unsafe { rustix::io::try_close(raw) }.map_err(io::Error::from)
    }

    fn kind(&self, raw: i32) -> FileKind {
        // SAFETY: the driver keeps the descriptor open as long as an `Fd` asks about it.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        match rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile | FileType::Directory | FileType::BlockDevice) => {
                FileKind::Bounded
            }
            // Not to know is to expect the worst.
            _ => FileKind::Waiting,
        }
    }
}
