//! A ring: fill entries, enter, reap.
//!
//! It sits above the shared memory and below operations: a ring moves entries and completions and does not
//! interpret them.
//!
//! Invariants:
//! - A ring belongs to one thread (it is not `Send`); only [`DisabledRing`] travels.
//! - Entries reach the kernel in the order in which they were pushed.
//! - The kernel consumes entries only during [`submit`](Ring::submit) and [`enter`](Ring::enter),
//!   and, since the ring defers its work, completes operations only during `enter`.
//! - A forked child may drop an inherited ring; every other call there returns an error.
//!
//! Source: `io_uring(7)`, `io_uring_enter(2)`.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::cqe::Cqe;
use crate::fork::{Sentinel, forked_error};
use crate::host::{Host, Kernel, raw};
use crate::setup::{Builder, Patience, SetupError, SetupReport};
use crate::shared::Queues;
use crate::signal_mask::SignalMask;
use crate::sqe::Sqe;
use crate::sys::{self, io_uring_register_op as register_op};
use crate::wait::{WaitRegion, timespec};

/// The parts of a ring from set-up to its end.
pub(crate) struct Parts<H: Host> {
    pub(crate) queues: Queues,
    /// Memory for the timeouts of waits, where the kernel accepted it.
    pub(crate) wait: Option<WaitRegion>,
    /// Checked before every access to the queues: intact in the process that set the ring up, unless the
    /// ring has lost its queues.
    pub(crate) sentinel: Sentinel,
    /// As it was at set-up: only that process may end the maps.
    pub(crate) origin: Sentinel,
    /// Unique among the rings of this process and its ancestors.
    pub(crate) id: u64,
    pub(crate) fd: OwnedFd,
    pub(crate) host: H,
}

/// Returns a number that no other ring has.
pub(crate) fn next_ring_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<H: Host> Parts<H> {
    /// Returns an error in a forked child, and on a ring that has lost its queues.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> io::Result<()> {
        if self.sentinel.is_intact() { Ok(()) } else { Err(self.refusal()) }
    }

    #[cold]
    fn refusal(&self) -> io::Error {
        if self.origin.is_intact() {
            io::Error::other(
                "the ring is unusable: its queues were resized and the new ones could not be mapped",
            )
        } else {
            forked_error()
        }
    }

    /// Makes one `io_uring_register(2)` on this ring, after [`check_process`](Parts::check_process).
    ///
    /// # Safety
    ///
    /// - `arg` and `nr_args` are what `opcode` expects, and memory that the kernel keeps stays
    ///   valid until it is unregistered or the ring is gone.
    pub(crate) unsafe fn register<T>(
        &self,
        opcode: register_op,
        arg: *mut T,
        nr_args: u32,
    ) -> io::Result<u32> {
        self.check_process()?;
        // SAFETY: the caller's duties are the same.
        unsafe { self.host.register(raw(&self.fd), opcode as u32, arg.cast(), nr_args) }
    }
}

impl<H: Host> Drop for Parts<H> {
    fn drop(&mut self) {
        if self.origin.is_intact() {
            // SAFETY: this process made the maps, and `self` ends here.
            unsafe { self.queues.unmap(&self.host) };
        } else if let Some(wait) = self.wait.take() {
            // The child has none of the maps. Other memory may be mapped at their addresses by now.
            std::mem::forget(wait);
        }
    }
}

/// A ring that is set up but not owned by a thread yet. It may be sent to its future owner, and enabled
/// there.
///
/// # Examples
/// Made by one thread, and used by another:
/// ```
/// use sakia_ring::{Ring, Sqe};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ring = Ring::builder().build_disabled()?;
/// let thread = std::thread::spawn(move || {
///     let mut ring = ring.enable()?;
///     // SAFETY: a no-op names no memory and no descriptor.
///     assert!(unsafe { ring.push(Sqe::nop()) }.is_some());
///     ring.enter(1, None)?;
///     std::io::Result::Ok(ring.cq_ready())
/// });
/// assert_eq!(thread.join().expect("it does not panic")?, 1);
/// # Ok(())
/// # }
/// ```
pub struct DisabledRing<H: Host = Kernel> {
    pub(crate) parts: Parts<H>,
    pub(crate) registered_fd: bool,
    pub(crate) report: SetupReport,
    /// The retries left for the remaining set-up calls.
    pub(crate) patience: Patience,
}

impl<H: Host> DisabledRing<H> {
    /// Enables the ring; the calling thread owns it from now on.
    ///
    /// # Errors
    /// [`SetupError`] with the errno of the call; in a forked child always.
    ///
    /// # Examples
    /// See [`DisabledRing`](DisabledRing#examples).
    pub fn enable(self) -> Result<Ring<H>, SetupError> {
        let Self { parts, registered_fd, mut report, mut patience } = self;
        let enable = register_op::IORING_REGISTER_ENABLE_RINGS;
        // SAFETY: the call takes no argument.
        let enabled =
            patience.attempt(|| unsafe { parts.register(enable, ptr::null_mut::<()>(), 0) });
        if let Err(error) = enabled {
            return Err(SetupError::new("io_uring_register(ENABLE_RINGS)", error, &report));
        }
        let iowait = if report.no_iowait() { sys::IORING_ENTER_NO_IOWAIT } else { 0 };
        let mut ring = Ring {
            enter_ring: raw(&parts.fd) as u32,
            submit_flags: 0,
            wait_flags: sys::IORING_ENTER_GETEVENTS | iowait,
            parts,
            report: SetupReport::default(),
            thread: PhantomData,
        };
        if registered_fd {
            match patience.attempt(|| ring.register_ring_fd()) {
                Ok(()) => report.registered_fd = true,
                Err(error) => report.step("the ring's descriptor is not registered", &error),
            }
        }
        ring.report = report;
        // A seccomp filter may allow set-up but not enter. This enter submits nothing and does not wait.
        let passing = [Errno::AGAIN, Errno::BUSY];
        match patience.attempt_after(&passing, || ring.enter(0, None)) {
            // Impossible: the call has no timeout.
            Ok(entered) if entered.timed_out => {
                Err(SetupError::new("io_uring_enter", Errno::TIME.into(), &ring.report))
            }
            Ok(_) => Ok(ring),
            Err(error) => Err(SetupError::new("io_uring_enter", error, &ring.report)),
        }
    }
}

impl<H: Host> fmt::Debug for DisabledRing<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DisabledRing").field("fd", &self.parts.fd).finish_non_exhaustive()
    }
}

/// The position of an entry in the submission queue; for [`Ring::make_nop`].
///
/// # Examples
/// See [`Ring::make_nop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u32);

impl Position {
    /// Returns the position as a plain number, for a compact record.
    #[inline(always)]
    pub const fn to_raw(self) -> u32 {
        self.0
    }

    /// Returns the position that [`to_raw`](Position::to_raw) gave this number.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// The outcome of one enter.
///
/// # Examples
/// See [`Ring::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The number of entries that the kernel consumed.
    pub consumed: u32,
    /// The timeout passed, nothing was consumed and no completion is ready. False does not mean that
    /// `min_complete` was reached: the kernel reports a timeout only if it has nothing else to report.
    pub timed_out: bool,
}

/// A ring, owned by one thread.
///
/// Dropping it closes the descriptor but does not wait: operations in flight go on for a while in the
/// kernel. Their owner keeps their memory until their last completion, or for ever.
///
/// # Examples
/// See [`sakia_ring`](crate#examples).
pub struct Ring<H: Host = Kernel> {
    /// The descriptor, or with `REGISTERED_RING` its place among the thread's registered rings.
    enter_ring: u32,
    /// Flags of every enter.
    submit_flags: u32,
    /// Further flags of an enter that reaps.
    wait_flags: u32,
    pub(crate) parts: Parts<H>,
    pub(crate) report: SetupReport,
    /// Not `Send`: only the owner thread may enter, and its registered index is valid only there.
    thread: PhantomData<*mut ()>,
}

impl Ring {
    /// Returns a builder for a ring on this machine's kernel.
    ///
    /// # Examples
    /// See [`Builder`](Builder#examples).
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<H: Host> Ring<H> {
    /// Returns the configuration that the kernel granted.
    ///
    /// # Examples
    /// See [`SetupReport`](crate::SetupReport#examples).
    pub fn report(&self) -> &SetupReport {
        &self.report
    }

    /// Returns the size of the submission queue in entries.
    #[inline(always)]
    pub fn sq_entries(&self) -> u32 {
        self.parts.queues.sq_entries()
    }

    /// Returns the size of the completion queue in entries.
    #[inline(always)]
    pub fn cq_entries(&self) -> u32 {
        self.parts.queues.cq_entries()
    }

    /// Returns the number of entries pushed and not yet consumed by the kernel.
    ///
    /// # Examples
    /// See [`Ring::push`].
    #[inline(always)]
    pub fn sq_pending(&self) -> u32 {
        self.parts.queues.pending()
    }

    /// Returns the number of entries that can be pushed before the next submit.
    ///
    /// # Examples
    /// See [`Ring::push`].
    #[inline(always)]
    pub fn sq_space(&self) -> u32 {
        self.parts.queues.sq_entries() - self.parts.queues.pending()
    }

    /// Writes an entry in place. The kernel sees it at the next [`submit`](Ring::submit) or
    /// [`enter`](Ring::enter). `None` when the queue is full, and always in a forked child.
    ///
    /// # Safety
    ///
    /// - All memory that `sqe` names stays valid for what the operation does with it, and is not
    ///   otherwise accessed where the kernel writes, until the operation's last completion was
    ///   reaped; for ever if it never is. Dropping the ring does not end that.
    /// - The descriptor that `sqe` names stays the intended one until then.
    ///
    /// # Examples
    /// ```
    /// use sakia_ring::{Ring, Sqe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().sq_entries(2).build()?;
    /// let mut pushed = 0;
    /// // SAFETY: a no-op names no memory and no descriptor.
    /// while unsafe { ring.push(Sqe::nop().user_data(pushed)) }.is_some() {
    ///     pushed += 1;
    /// }
    /// assert_eq!((pushed, ring.sq_pending(), ring.sq_space()), (2, 2, 0));
    /// // There is room again once the kernel has taken them.
    /// assert_eq!(ring.submit()?, 2);
    /// assert_eq!(ring.sq_space(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        if !self.parts.sentinel.is_intact() {
            return None;
        }
        self.parts.queues.write(sqe).map(Position)
    }

    /// Turns the entry pushed at `position` with `user_data` into a no-op if the kernel has not consumed it.
    /// It still completes, with 0. Returns false when it is too late.
    ///
    /// # Examples
    /// ```
    /// use sakia_ring::{Cqe, Ring, Sqe, Timespec};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().build()?;
    /// let hour = Box::leak(Box::new(Timespec::new(std::time::Duration::from_secs(3600))));
    /// // SAFETY: the duration is never freed.
    /// let position = unsafe { ring.push(Sqe::timeout(hour).user_data(7)) }.ok_or("the queue is full")?;
    /// assert!(ring.make_nop(position, 7), "the kernel has not seen it");
    /// ring.enter(1, None)?;
    /// let mut completions = [Cqe::default(); 1];
    /// ring.reap(&mut completions);
    /// assert_eq!(completions[0].result()?, 0, "at once");
    /// # Ok(())
    /// # }
    /// ```
    pub fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        self.parts.sentinel.is_intact() && self.parts.queues.make_nop(position.0, user_data)
    }

    /// Gives the pushed entries to the kernel and returns the number it consumed. Only operations that the
    /// kernel can finish at once complete.
    ///
    /// # Errors
    /// As [`enter`](Ring::enter), and in a forked child.
    ///
    /// # Examples
    /// See [`Ring::push`].
    pub fn submit(&mut self) -> io::Result<u32> {
        self.parts.check_process()?;
        // SAFETY: `push` got the promise that the entries' memory stays valid; no argument.
        unsafe { self.call(0, 0, ptr::null(), 0) }.map(|entered| entered.consumed)
    }

    /// Gives the pushed entries to the kernel, lets it finish ready operations, and waits until at least
    /// `min_complete` completions are ready (including earlier ones) or `timeout` has passed.
    ///
    /// The kernel finishes at most `max(20, min_complete)` operations per call, so a large
    /// `min_complete` with a zero timeout drains more at once.
    ///
    /// # Errors
    /// - `EINTR`: a signal came, nothing was consumed and no completion is ready.
    /// - `EAGAIN`, `EBUSY`: the kernel wants completions reaped, or has no memory; try again later.
    /// - `EBADR`: completions were lost; the ring cannot be trusted any more.
    /// - `EEXIST`: called on a thread that is not the owner.
    ///
    /// Entries that the kernel consumed are no longer pending, on error too. In a forked child always an
    /// error.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia_ring::{Cqe, Ring, Sqe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().build()?;
    /// let entered = ring.enter(1, Some(Duration::from_millis(1)))?;
    /// assert!(entered.timed_out, "there is nothing to complete");
    ///
    /// // SAFETY: a no-op names no memory and no descriptor.
    /// assert!(unsafe { ring.push(Sqe::nop().user_data(7)) }.is_some());
    /// assert_eq!(ring.enter(1, None)?.consumed, 1);
    /// let mut completions = [Cqe::default(); 4];
    /// assert_eq!(ring.reap(&mut completions), 1);
    /// assert_eq!((completions[0].user_data, completions[0].result()?), (7, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 6.1. Source: `io_uring_enter(2)`.
    pub fn enter(&mut self, min_complete: u32, timeout: Option<Duration>) -> io::Result<Entered> {
        self.parts.check_process()?;
        let flags = self.wait_flags;
        let Some(timeout) = timeout else {
            // SAFETY: `push` got the promise that the entries' memory stays valid; no argument.
            return unsafe { self.call(min_complete, flags, ptr::null(), 0) };
        };
        if let Some(wait) = &mut self.parts.wait {
            wait.set(timeout);
            let flags = flags | sys::IORING_ENTER_EXT_ARG | sys::IORING_ENTER_EXT_ARG_REG;
            let size = size_of::<sys::io_uring_reg_wait>();
            // SAFETY: as above; with these flags the argument is the offset 0 in the registered
            // region, at which `set` has just written an entry of this size.
            return unsafe { self.call(min_complete, flags, ptr::null(), size) };
        }
        let ts = timespec(timeout);
        let arg = sys::io_uring_getevents_arg {
            sigmask: 0,
            sigmask_sz: 0,
            min_wait_usec: 0,
            ts: (&raw const ts).expose_provenance() as u64,
        };
        let flags = flags | sys::IORING_ENTER_EXT_ARG;
        // SAFETY: as above; the argument and the time it points to outlive the call.
        unsafe { self.call(min_complete, flags, (&raw const arg).cast(), size_of_val(&arg)) }
    }

    /// As [`enter`](Ring::enter), with another signal mask while the thread sleeps: as `ppoll(2)`, the call
    /// sets the mask and falls asleep in one step, so that it misses no signal. A signal that the mask lets
    /// through ends the sleep, after its handler has run. If the call need not sleep, signals are left alone.
    ///
    /// # Errors
    /// As [`enter`](Ring::enter). `EOPNOTSUPP`: the host cannot do it ([`Host::masks_signals`]); nothing was
    /// submitted.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia_ring::{Ring, SignalMask};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().build()?;
    /// // What the program blocks otherwise.
    /// let blocked = SignalMask::of_thread()?;
    /// let mask = blocked.without([libc::SIGTERM])?;
    /// let entered = ring.enter_with_signals(1, Some(Duration::from_millis(1)), &mask)?;
    /// assert!(entered.timed_out, "there is nothing to complete, and no signal came");
    /// assert_eq!(SignalMask::of_thread()?, blocked);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 6.1. Source: `io_uring_enter(2)`, `EXT_ARG`.
    #[cold]
    pub fn enter_with_signals(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        mask: &SignalMask,
    ) -> io::Result<Entered> {
        self.parts.check_process()?;
        if !self.parts.host.masks_signals() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let ts = timeout.map(timespec);
        let ts = ts.as_ref().map_or(ptr::null(), ptr::from_ref);
        let arg = sys::io_uring_getevents_arg {
            sigmask: ptr::from_ref(mask).expose_provenance() as u64,
            sigmask_sz: size_of_val(mask) as u32,
            min_wait_usec: 0,
            ts: ts.expose_provenance() as u64,
        };
        let flags = self.wait_flags | sys::IORING_ENTER_EXT_ARG;
        // SAFETY: `push` got the promise that the entries' memory stays valid. The argument, the mask and the
        // time outlive the call, which only reads them.
        unsafe { self.call(min_complete, flags, (&raw const arg).cast(), size_of_val(&arg)) }
    }

    /// Makes one `io_uring_enter(2)` with all pending entries.
    ///
    /// # Safety
    ///
    /// - `arg` and `arg_size` are what `flags` says they are.
    /// - This is not a forked child.
    #[inline(always)]
    unsafe fn call(
        &mut self,
        min_complete: u32,
        flags: u32,
        arg: *const c_void,
        arg_size: usize,
    ) -> io::Result<Entered> {
        let queues = &mut self.parts.queues;
        queues.publish();
        let to_submit = queues.pending();
        let flags = flags | self.submit_flags;
        // SAFETY: the entries' memory is promised by `push`, the argument by the caller.
        let result = unsafe {
            self.parts.host.enter(self.enter_ring, to_submit, min_complete, flags, arg, arg_size)
        };
        // The returned count is not used: the head says the same, on error too.
        let consumed = queues.refresh();
        match result {
            Ok(_) => Ok(Entered { consumed, timed_out: false }),
            Err(error) if error.raw_os_error() == Some(Errno::TIME.raw_os_error()) => {
                Ok(Entered { consumed, timed_out: true })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the number of completions that can be reaped now; 0 in a forked child.
    ///
    /// # Examples
    /// See [`Ring::enter`].
    #[inline(always)]
    pub fn cq_ready(&self) -> u32 {
        if self.parts.sentinel.is_intact() { self.parts.queues.ready() } else { 0 }
    }

    /// Copies completions to the front of `out`, oldest first, and gives their places back to the kernel.
    /// Returns their number; 0 in a forked child.
    ///
    /// # Examples
    /// See [`Ring::enter`].
    #[inline(always)]
    pub fn reap(&mut self, out: &mut [Cqe]) -> usize {
        if self.parts.sentinel.is_intact() { self.parts.queues.copy_out(out) } else { 0 }
    }

    /// Returns whether operations have become ready, which the next [`enter`](Ring::enter) will finish.
    #[doc(alias = "IORING_SQ_TASKRUN")]
    #[inline(always)]
    pub fn needs_enter(&self) -> bool {
        let wants = sys::IORING_SQ_TASKRUN | sys::IORING_SQ_CQ_OVERFLOW;
        self.parts.sentinel.is_intact() && self.parts.queues.flags() & wants != 0
    }

    /// Returns whether completions wait in the kernel because the completion queue was full. The next
    /// [`enter`](Ring::enter) after a reap fetches them; none is lost.
    #[doc(alias = "IORING_SQ_CQ_OVERFLOW")]
    pub fn is_overflowing(&self) -> bool {
        self.parts.sentinel.is_intact()
            && self.parts.queues.flags() & sys::IORING_SQ_CQ_OVERFLOW != 0
    }

    /// Returns the total number of completions that the kernel lost for lack of memory. If it is not 0, the
    /// ring cannot be trusted.
    pub fn cq_lost(&self) -> u32 {
        if self.parts.sentinel.is_intact() { self.parts.queues.lost() } else { 0 }
    }

    /// Returns the host, which makes the system calls.
    #[inline(always)]
    pub fn host(&self) -> &H {
        &self.parts.host
    }

    /// Returns the total number of entries that the kernel ignored as malformed; 0 unless the host
    /// misbehaves.
    pub fn sq_dropped(&self) -> u32 {
        if self.parts.sentinel.is_intact() { self.parts.queues.dropped() } else { 0 }
    }

    /// Returns whether this is the process that set the ring up, and not a forked child.
    #[inline(always)]
    pub fn is_owned_by_process(&self) -> bool {
        self.parts.origin.is_intact()
    }

    /// Takes one of the thread's 16 places for registered rings.
    fn register_ring_fd(&mut self) -> io::Result<()> {
        let mut update = sys::io_uring_rsrc_update {
            offset: u32::MAX, // any free place
            resv: 0,
            data: raw(&self.parts.fd) as u64,
        };
        // SAFETY: one update, which the kernel reads and writes during the call.
        unsafe { self.parts.register(register_op::IORING_REGISTER_RING_FDS, &raw mut update, 1)? };
        self.enter_ring = update.offset;
        self.submit_flags = sys::IORING_ENTER_REGISTERED_RING;
        Ok(())
    }
}

impl<H: Host> Drop for Ring<H> {
    fn drop(&mut self) {
        let is_registered = self.submit_flags == sys::IORING_ENTER_REGISTERED_RING;
        if !is_registered || !self.parts.origin.is_intact() {
            return; // in a forked child the place is the parent thread's
        }
        let offset = self.enter_ring;
        let mut update = sys::io_uring_rsrc_update { offset, resv: 0, data: 0 };
        let opcode = register_op::IORING_UNREGISTER_RING_FDS as u32;
        // Not through `Parts::register`: a ring that has lost its queues gives its place back too.
        // SAFETY: one update, which the kernel reads during the call. Closing the descriptor alone would
        // leave the place taken and the ring alive; so does a failure of this call.
        unsafe {
            self.parts.host.register(raw(&self.parts.fd), opcode, (&raw mut update).cast(), 1)
        }
        .ok();
    }
}

impl<H: Host> AsFd for Ring<H> {
    /// Returns the ring's descriptor. It polls as readable while completions are ready, but not when work
    /// that the ring defers becomes ready: register an eventfd for that.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.parts.fd.as_fd()
    }
}

impl<H: Host> fmt::Debug for Ring<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("fd", &self.parts.fd)
            .field("sq_entries", &self.sq_entries())
            .field("cq_entries", &self.cq_entries())
            .field("sq_pending", &self.sq_pending())
            .finish_non_exhaustive()
    }
}
