//! The interface below the driver: queues to and from a kernel, or its substitute, that performs operations.
//!
//! The driver core (slots, admission, cancellation, disposal) is written once, without a system
//! call, over this interface. [`Uring`](crate::Uring) is the kernel's ring; `sim`, with the feature of
//! that name, is a kernel in memory, for tests. A ring takes an operation as its own entry, an [`Sqe`]; every
//! other backend takes it as a [`Call`](crate::call::Call).
//!
//! Only the driver's thread calls a backend.

use std::any::Any;
use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Entered, Position, SignalMask, Sqe};

use crate::call::{Call, Request};
use crate::counters::{KindCounters, OpKind};
use crate::decide::{Attempt, CallMode, Lane};
use crate::epoll::{LaneStatistics, StuckWorker};
use crate::mounts::RemoteMounts;
use crate::stat::StatxResult;
use crate::sys::Direction;

/// The form in which the queue of a [`Backend`] takes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Entries. Operations without one go to threads.
    Entries,
    /// Entries, and the calls of operations without one.
    Both,
    /// Calls.
    Calls,
}

/// The constant properties of a [`Backend`], which a driver reads when it is made, and again once a backend
/// that was [put off](crate::Later) is set up.
///
/// # Examples
/// ```
/// use sakia_driver::{Features, Takes};
///
/// let queue_of_calls = Features { takes: Takes::Calls, tells_news: true, ..Features::new(8, 16) };
/// assert!(!queue_of_calls.plain_calls, "every operation goes through the queue");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The size of the submission queue in entries, at least 1.
    pub sq_entries: u32,
    /// The size of the completion queue in entries, at least `sq_entries`.
    pub cq_entries: u32,
    /// The form in which the queue takes operations.
    pub takes: Takes,
    /// Operations may be performed by the backend's [`Calls`] instead of its queue. If not, no operation is.
    pub plain_calls: bool,
    /// A read that completes with `n` has written the first `n` bytes of the entry's memory, or all of it if
    /// `n` is more. If so, the driver may lend uninitialized buffers; otherwise it writes zeros to them
    /// first. The promise does not cover reading a directory, because the gaps between its records count as
    /// read.
    pub fills_what_it_reports: bool,
    /// [`enter`](Backend::enter) takes a signal mask.
    pub masks_signals: bool,
    /// The backend takes multishot receives for [`Destination::Readiness`].
    pub readiness: bool,
    /// Operations that were given to threads are beside the queue, and must be canceled there.
    pub lanes_apart: bool,
    /// Operations may end with `ECANCELED` before they began and without a cancel request, and a thread can
    /// perform them instead. A kernel's ring ends operations that way if they need one of its workers and it
    /// cannot start another.
    pub may_lack_workers: bool,
    /// [`has_news`](Backend::has_news) reports every completion. If not, a busy loop calls
    /// [`look_again`](Backend::look_again) and enters from time to time.
    pub tells_news: bool,
    /// A bit for each opcode whose entries the queue cannot take, but which a thread can perform.
    pub for_lanes: [u64; 4],
    /// A bit for each [`OpKind`] whose operations, in a large batch and with their data cached, cost no more
    /// in the queue than as plain calls.
    pub batches_well: u64,
}

const _: () = assert!(OpKind::COUNT <= u64::BITS as usize);

impl Features {
    /// Returns the features of queues of these sizes that take entries, and no others.
    pub const fn new(sq_entries: u32, cq_entries: u32) -> Self {
        Self {
            sq_entries,
            cq_entries,
            takes: Takes::Entries,
            plain_calls: false,
            fills_what_it_reports: false,
            masks_signals: false,
            readiness: false,
            lanes_apart: false,
            may_lack_workers: false,
            tells_news: false,
            for_lanes: [0; 4],
            batches_well: 0,
        }
    }
}

/// The part of a [`Backend`] that takes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The queue.
    Queue,
    /// A thread of this lane. A cancel request given this way applies to operations given this way.
    Lane(Lane),
    /// The epoll set, for a multishot receive of a socket: it receives by plain calls when the set reports
    /// bytes, into buffers of a group beyond those of the queue, and is canceled as an operation on a thread.
    /// The descriptor's number belongs to this socket until it is [forgotten](Backend::forget_descriptor).
    Readiness,
}

/// Statistics of a [`Backend`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures<'a> {
    /// The number of files registered with the queue.
    pub registered_files: u64,
    /// The lanes of threads, by [`Lane`]; all zero without any.
    pub lanes: [LaneStatistics; 2],
    /// The ways that operations took within the backend, by [`OpKind`], as far as it knows. `submitted` is
    /// the exception: the driver counts it.
    pub ways: &'a [KindCounters],
}

/// A submission queue, a completion queue, and the executor of the operations between them.
///
/// Calls that the driver makes are never concurrent. Errors of [`submit`](Backend::submit) and
/// [`enter`](Backend::enter) are those of `io_uring_enter(2)`: `EINTR`, `EAGAIN` and `EBUSY` are
/// temporary, all others permanent. Entries that were not consumed stay pending, on error too.
///
/// # Safety
///
/// An implementation promises that
/// - memory named by an entry is accessed only between its [`push`](Backend::push) and the moment at which
///   its last completion (one without `MORE`) is copied out by [`reap`](Backend::reap); dropping the backend
///   does not end that period;
/// - after [`make_nop`](Backend::make_nop) returned true, that memory is not accessed at all;
/// - an entry that opens a file, accepts or makes a socket completes with the number of a new descriptor,
///   which has no other owner; so are the numbers in control messages (`SCM_RIGHTS`, `SCM_PIDFD`) that it
///   writes for an entry that receives a message, and those of calls that its [`Calls`] perform;
/// - if its features say [`fills_what_it_reports`](Features::fills_what_it_reports), the bytes that it or its
///   [`Calls`] report as read were written.
///
/// It need not promise that completions make sense otherwise: the driver counts and ignores unknown, stale
/// and repeated completions, and clamps counts.
#[expect(unused_variables, reason = "bodies that do nothing; the names are documentation")]
pub unsafe trait Backend: Any {
    /// Returns the properties of the backend, which never change.
    fn features(&self) -> Features;

    /// Returns the number of entries pushed and not yet consumed.
    fn sq_pending(&self) -> u32;

    /// Queues an entry. `None` when the queue is full. The driver uses each `user_data` of an operation once,
    /// so that a later completion with it is known to be stale.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptor that `sqe` names stay valid, and the memory is not otherwise
    ///   accessed where the operation writes, until the entry's last completion was reaped; for
    ///   ever if it never is.
    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position>;

    /// Gives a call to the queue, as [`push`](Backend::push) an entry, or to another part of the backend. Its
    /// completion comes as any other. Returns its position if it is in the queue.
    ///
    /// # Errors
    /// The operation is not performed. `EAGAIN`: the queue has no room. `EOPNOTSUPP`: the backend has no such
    /// part. Otherwise as `epoll_create1(2)`.
    ///
    /// # Safety
    ///
    /// - As for [`push`](Backend::push).
    unsafe fn push_call(
        &mut self,
        request: Request,
        to: Destination,
    ) -> Result<Option<Position>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Takes note of a socket that one of the [`Calls`] has made for an operation.
    ///
    /// # Safety
    ///
    /// - The number is that of the socket, which the driver owns.
    unsafe fn note_socket(&mut self, raw: i32) {}

    /// Forgets a descriptor that is about to be closed or given away, and that no operation uses any more.
    /// Facts known about its number do not hold for the next file that gets the number.
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's, still open, and no entry that was pushed and is not complete names
    ///   it.
    unsafe fn forget_descriptor(&mut self, raw: i32) {}

    /// Turns the entry that was pushed at `position` with `user_data` into a no-op if it is still pending. It
    /// completes with 0. Returns false if the entry has been consumed.
    fn make_nop(&mut self, position: Position, user_data: u64) -> bool;

    /// Lets pending entries be consumed, without waiting; finishes only the operations that complete at once.
    ///
    /// # Errors
    /// See the trait.
    fn submit(&mut self) -> io::Result<()>;

    /// Lets pending entries be consumed, finishes operations that have become ready, and waits until at least
    /// `min_complete` completions are ready to be reaped or `timeout` has passed. May return earlier with
    /// fewer, for example after a signal.
    ///
    /// `signals` is the signal mask of the calling thread while it sleeps here, set in one step with falling
    /// asleep. Signals that it lets through are handled then, and end the sleep, and the thread has its own
    /// mask otherwise. There is one only if the features say [`masks_signals`](Features::masks_signals).
    ///
    /// # Errors
    /// See the trait.
    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered>;

    /// Returns the number of completions ready to be reaped.
    fn cq_ready(&self) -> u32;

    /// Moves completions to the front of `out`, oldest first, and returns their number.
    fn reap(&mut self, out: &mut [Cqe]) -> usize;

    /// Returns whether the next [`enter`](Backend::enter) would bring completions although none is ready now.
    fn needs_enter(&self) -> bool;

    /// Returns whether [`enter`](Backend::enter) would bring completions, as far as a few loads from memory
    /// tell. Called after each poll of a task.
    fn has_news(&self) -> bool {
        self.needs_enter()
    }

    /// Makes [`needs_enter`](Backend::needs_enter) advise an enter even if the last one was a moment ago.
    fn look_again(&self) {}

    /// Makes [`has_news`](Backend::has_news) return true once `after` has passed, if not earlier. Several
    /// alarms may be set; none can be taken back. Returns false if the backend has no alarms.
    fn set_alarm(&mut self, after: Duration) -> bool {
        false
    }

    /// Returns whether completions overflowed the completion queue and are kept aside until the next enter.
    fn is_overflowing(&self) -> bool;

    /// Returns whether the backend is usable. False in a forked child, where every other method must be
    /// inert.
    fn is_intact(&self) -> bool;

    /// Makes `len` bytes at `addr` the registered buffer with index 0, for the `_FIXED` operations.
    ///
    /// # Safety
    ///
    /// - The memory stays valid until the backend is dropped *and* every operation that uses it has
    ///   completed.
    ///
    /// # Errors
    /// `ENOMEM`: the limit on locked memory. `EBUSY`: there is one already.
    unsafe fn register_buffer(&mut self, addr: *mut u8, len: usize) -> io::Result<()>;

    /// Registers an empty group of at most `entries` provided buffers under the number `group`, for entries
    /// with `BUFFER_SELECT`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EINVAL`: the backend has none. `EEXIST`: there is such a group. `ENOMEM`: no memory, or
    /// the limit on locked memory. `EACCES`: it may not.
    fn register_group(&mut self, group: u16, entries: u16) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Adds the `len` bytes at `addr` to a registered group, under a number below its `entries`. A receive
    /// takes the buffer, and its completion names it.
    ///
    /// # Safety
    ///
    /// - The memory is valid for writes and not otherwise accessed until a completion names `id`, or until
    ///   the backend was dropped *and* every operation on the group has completed; for ever if neither
    ///   happens.
    /// - No buffer with this `id` is in the group.
    unsafe fn provide(&mut self, group: u16, id: u16, addr: *mut u8, len: u32) {}

    /// Returns the time since some fixed moment, on a clock that never goes back.
    fn now(&self) -> Duration;

    /// Lets time pass, after the kernel reported that it has no room now.
    fn nap(&mut self, duration: Duration);

    /// Returns the means for another thread to wake this one while it sleeps in [`enter`](Backend::enter). A
    /// wake makes that call return, or the next one, possibly with nothing to reap. It may also appear as a
    /// completion, which the driver counts. The returned value outlives the backend, and does nothing then.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory left for it. `EOPNOTSUPP`: the backend
    /// cannot be woken.
    fn remote_wake(&mut self) -> io::Result<Arc<dyn RemoteWake>> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Returns a descriptor that becomes readable when an [`enter`](Backend::enter) would bring completions,
    /// for a foreign loop to poll. Each call returns a new descriptor, which is the caller's own: any use of
    /// it other than polling disturbs no other caller's descriptor, and never makes the backend wait.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: none left. `EOPNOTSUPP`: the backend has none.
    fn pollable(&mut self) -> io::Result<OwnedFd> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Makes the descriptors of [`pollable`](Backend::pollable) unreadable until something new comes.
    fn clear_readiness(&mut self) {}

    /// Returns the statistics.
    fn figures(&self) -> Figures<'_> {
        Figures::default()
    }

    /// Adds the jobs that have kept a thread of a lane busy for `limit` to `found`, each once. Returns the
    /// time after which another job may be stuck.
    fn find_stuck(&mut self, limit: Duration, found: &mut Vec<StuckWorker>) -> Option<Duration> {
        None
    }

    /// Returns the plain calls with which a driver is made. Usable after the backend is gone.
    fn calls(&self) -> Rc<dyn Calls>;
}

/// Wakes the thread of a backend.
///
/// # Examples
/// See [`Driver::remote_wake`](crate::Driver::remote_wake).
pub trait RemoteWake: Send + Sync {
    /// Wakes the thread from its sleep, or keeps it from falling asleep the next time. Any thread may call
    /// it.
    fn wake(&self);
}

/// The kind of file that a descriptor refers to, as far as operations on it differ.
///
/// # Examples
/// See [`Fd::kind`](crate::Fd::kind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file, a directory or a block device: operations end by themselves.
    Bounded,
    /// A pipe, socket, terminal, or the like: operations may wait for ever.
    Waiting,
}

/// The kind of file that a descriptor refers to, and its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The class of operations on it.
    pub kind: FileKind,
    /// The device of its file system, as `st_dev`.
    pub device: Option<u64>,
    /// Its mount, by the number that no other mount ever gets, if the kernel reports it (6.8).
    pub mount_id: Option<u64>,
    /// The size in bytes of a regular file.
    pub size: Option<u64>,
    /// It has no type and no path: an eventfd, an epoll set, a ring.
    pub is_anonymous: bool,
    /// It is a socket.
    pub is_socket: bool,
    /// It is an end of a pipe, with or without a name.
    pub is_pipe: bool,
}

impl FileFacts {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        kind: FileKind::Waiting,
        device: None,
        mount_id: None,
        size: None,
        is_anonymous: false,
        is_socket: false,
        is_pipe: false,
    };
}

/// Plain calls: they run at once, beside the queues of a [`Backend`], on the calling thread.
///
/// A driver is made with one such object, and makes its plain calls through it: those of this process's
/// kernel, of the simulated kernel, or of an embedder. An operation is performed by one only if the backend's
/// features [say so](Features::plain_calls).
///
/// A number says nothing about its owner, so the calls that take one are unsafe: otherwise any code that has
/// this object from [`Backend::calls`] could close, change or inspect the file of another owner.
///
/// # Examples
/// ```compile_fail,E0133
/// use sakia_driver::{Backend, Uring};
///
/// fn close_the_file_of_another_owner(backend: &Uring) -> std::io::Result<()> {
///     backend.calls().close(0, true)
/// }
/// ```
/// ```compile_fail,E0133
/// use sakia_driver::call::Call;
/// use sakia_driver::{Attempt, CallMode, Calls};
///
/// fn close_it_by_a_call(calls: &dyn Calls) -> Attempt {
///     calls.try_now(Call::Close { raw: 0 }, CallMode::Blocking)
/// }
/// ```
#[expect(unused_variables, reason = "bodies that do nothing; the names are documentation")]
pub trait Calls: Any {
    /// Performs a call before it returns. After [`Attempt::Done`] the driver does not perform it again.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptors that `call` names are valid, and the memory is not otherwise accessed
    ///   where the call writes, until it returns.
    /// - A descriptor that it closes, and a position or a flag that it changes, is the caller's own.
    unsafe fn try_now(&self, call: Call, mode: CallMode) -> Attempt;

    /// Returns the processor time that the calling thread has used so far.
    fn processor_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the number of times that the calling thread has waited in the kernel; see `ru_nvcsw` in
    /// `getrusage(2)`.
    fn waits(&self) -> u64 {
        0
    }

    /// Closes a descriptor. A file server may have to be told first and may never answer: unless the caller
    /// `may_wait`, another thread does that, if possible. Then the error is that of handing it over.
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's own, and the caller gives it up: nothing uses the number afterwards.
    ///
    /// # Errors
    /// As `close(2)`. The number is free afterwards in any case.
    unsafe fn close(&self, raw: i32, may_wait: bool) -> io::Result<()>;

    /// Returns the kind of file that the descriptor refers to, and its file system. `stat` gets the result of
    /// `statx(2)` from the same call, if that is how the facts are found.
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's or lent to the caller, and stays open during the call.
    unsafe fn facts(&self, raw: i32, stat: Option<&mut StatxResult>) -> FileFacts;

    /// Returns the type of the file system of a file with these facts; empty if it is unknown.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Calls::facts).
    unsafe fn file_system(&self, raw: i32, facts: &FileFacts) -> String {
        String::new()
    }

    /// Returns the errno with which a plain read or write of this file, at an offset or at the file's own
    /// position, fails whatever its memory: `ESPIPE`, `EBADF` or `EINVAL`.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Calls::facts).
    unsafe fn refusal(&self, raw: i32, direction: Direction, is_at_offset: bool) -> Option<Errno> {
        None
    }

    /// Returns whether a path, relative to the directory `raw` or to the working directory (`AT_FDCWD`),
    /// leads to local file systems only. Returns false if that cannot be found out without waiting.
    ///
    /// # Safety
    ///
    /// - The descriptor is open, unless it is `AT_FDCWD`.
    unsafe fn is_path_local(&self, raw: i32, path: &CStr) -> bool {
        false
    }

    /// Returns the mounted file systems that another machine or process serves, and the working directory.
    fn remote_mounts(&self) -> (RemoteMounts, PathBuf) {
        <_>::default()
    }

    /// Returns whether the numbers are descriptors of this process. If not, they have a meaning elsewhere
    /// only.
    fn are_of_this_process(&self) -> bool {
        true
    }

    /// Sends slices on a connected socket, as much as there is room for, without waiting and without raising
    /// a signal.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Calls::facts).
    ///
    /// # Errors
    /// `EAGAIN`: there is no room. Otherwise as `send(2)`. `EOPNOTSUPP`: there are no sockets.
    unsafe fn try_send(&self, raw: i32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Receives the bytes that have arrived at a connected socket, without waiting.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Calls::facts).
    ///
    /// # Errors
    /// `EAGAIN`: no bytes have arrived. Otherwise as `recv(2)`. `EOPNOTSUPP`: there are no sockets.
    unsafe fn try_recv(&self, raw: i32, buf: &mut [u8]) -> io::Result<usize> {
        Err(Errno::OPNOTSUPP.into())
    }
}
