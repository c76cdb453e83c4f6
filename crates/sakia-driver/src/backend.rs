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
use sakia_ring::{Cqe, Entered, Opcode, Position, Sqe};

use crate::address::{Credentials, SocketAddress, SocketType};
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
///   writes for an entry that receives a message, and those that its [`Descriptors::socket_pair`] returns;
/// - if [`fills_what_it_reports`](Backend::fills_what_it_reports) returns true, the bytes that it reports as
///   read were written.
///
/// It need not promise that completions make sense otherwise: the driver counts and ignores unknown, stale
/// and repeated completions, and clamps counts.
#[expect(unused_variables, reason = "bodies that do nothing; the names are documentation")]
pub unsafe trait Backend: Any {
    /// Returns the size of the submission queue in entries, at least 1.
    fn sq_entries(&self) -> u32;

    /// Returns the size of the completion queue in entries, at least [`sq_entries`](Backend::sq_entries).
    fn cq_entries(&self) -> u32;

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

    /// Returns the form in which the queue takes operations.
    fn takes(&self) -> Takes {
        Takes::Entries
    }

    /// Checks that an entry requests the same as a call, if the backend can tell. Called only in builds with
    /// debug assertions.
    ///
    /// # Panics
    /// When they differ.
    ///
    /// # Safety
    ///
    /// - The memory that they name is valid.
    #[doc(hidden)]
    unsafe fn compare(&self, sqe: &Sqe, call: Call) {}

    /// Queues a call, as [`push`](Backend::push) an entry.
    ///
    /// # Safety
    ///
    /// - As for [`push`](Backend::push).
    unsafe fn push_call(&mut self, request: Request) -> Option<Position> {
        None
    }

    /// Forgets a descriptor that is about to be closed or given away, and that no operation uses any more.
    /// Facts known about its number do not hold for the next file that gets the number.
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's, still open, and no entry that was pushed and is not complete names
    ///   it.
    unsafe fn forget_descriptor(&mut self, raw: i32) {}

    /// Returns whether a read that completes with `n` has written the first `n` bytes of the entry's memory,
    /// or all of it if `n` is more. If true, the driver may lend uninitialized buffers; otherwise it writes
    /// zeros to them first. The promise does not cover reading a directory, because the gaps between its
    /// records count as read.
    #[inline(always)]
    fn fills_what_it_reports(&self) -> bool {
        false
    }

    /// Returns the number of files registered with the queue.
    fn registered_files(&self) -> u64 {
        0
    }

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
    /// # Errors
    /// See the trait.
    fn enter(&mut self, min_complete: u32, timeout: Option<Duration>) -> io::Result<Entered>;

    /// Performs an operation as a plain call, beside the queues, before it returns. After [`Attempt::Done`]
    /// the driver does not perform it again.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptors that `call` names are valid, and the memory is not otherwise accessed
    ///   where the operation writes, until the call returns. A descriptor that it closes is the caller's.
    unsafe fn try_now(&mut self, call: Call, mode: CallMode) -> Attempt {
        Attempt::Unsupported
    }

    /// Returns whether operations of this kind, in a large batch and with their data cached, cost no more in
    /// the queue than as plain calls.
    fn batches_well(&self, kind: OpKind) -> bool {
        false
    }

    /// Returns the size in bytes of an open regular file, and moves the file's position to its end. `None` if
    /// the size cannot be told at once.
    ///
    /// # Safety
    ///
    /// - The descriptor is open and the caller's own, so that the position moved is no other owner's.
    ///
    /// # Examples
    ///
    /// ```compile_fail,E0133
    /// use sakia_driver::{Backend, Uring};
    ///
    /// fn move_the_file_of_another_owner(backend: &Uring) -> Option<u64> {
    ///     backend.size_now(0)
    /// }
    /// ```
    unsafe fn size_now(&self, raw: i32) -> Option<u64> {
        None
    }

    /// Gives an operation to a thread. Its completion comes as any other. A cancel request given this way
    /// applies to operations given this way.
    ///
    /// # Errors
    /// The operation is not performed. `EOPNOTSUPP`: the backend has no threads. `EAGAIN`: the backend puts
    /// these operations into its queue, which has no room.
    ///
    /// # Safety
    ///
    /// - As for [`push`](Backend::push).
    unsafe fn push_lane(&mut self, request: Request, lane: Lane) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns whether [`push_readiness`](Backend::push_readiness) takes multishot receives.
    fn has_readiness(&self) -> bool {
        false
    }

    /// Gives a multishot receive of a socket to the backend's epoll set: it receives by plain calls when the
    /// set reports bytes, into buffers of a group from [`READINESS_GROUPS`] on. Its completions come as any
    /// other, and it is canceled as an operation on a thread. The descriptor's number belongs to this
    /// socket until it is [forgotten](Backend::forget_descriptor).
    ///
    /// # Errors
    /// The operation is not performed. `EOPNOTSUPP`: the backend has no such set. Otherwise as
    /// `epoll_create1(2)`.
    ///
    /// # Safety
    ///
    /// - As for [`push`](Backend::push).
    #[doc(hidden)]
    unsafe fn push_readiness(&mut self, request: Request) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the processor time that the calling thread has used so far.
    fn processor_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether operations that were given to threads must be canceled there.
    fn has_lanes(&self) -> bool {
        false
    }

    /// Returns whether the queue cannot take entries with this opcode, but a thread can perform them.
    fn is_for_lanes(&self, opcode: Opcode) -> bool {
        false
    }

    /// Returns whether operations may end with `ECANCELED` before they began and without a cancel request,
    /// and whether a thread can perform them instead. A kernel's ring ends operations that way if they need
    /// one of its workers and it cannot start another.
    fn may_lack_workers(&self) -> bool {
        false
    }

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

    /// Returns whether [`has_news`](Backend::has_news) reports every completion. If not, a busy loop calls
    /// [`look_again`](Backend::look_again) and enters from time to time.
    fn tells_news(&self) -> bool {
        false
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

    /// Returns the number of times that the calling thread has waited in the kernel; see `ru_nvcsw` in
    /// `getrusage(2)`.
    fn waits(&self) -> u64 {
        0
    }

    /// Lets time pass, after the kernel reported that it has no room now.
    fn nap(&mut self, duration: Duration);

    /// Returns the ways that operations of one kind took within the backend, as far as it knows. `submitted`
    /// is the exception: the driver counts it.
    fn ways(&self, kind: OpKind) -> KindCounters {
        KindCounters::default()
    }

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

    /// Returns the statistics of a lane of threads; all zero without one.
    fn lane_statistics(&self, lane: Lane) -> LaneStatistics {
        let _ = lane;
        LaneStatistics::default()
    }

    /// Adds the jobs that have kept a thread of a lane busy for `limit` to `found`, each once. Returns the
    /// time after which another job may be stuck.
    fn find_stuck(&mut self, limit: Duration, found: &mut Vec<StuckWorker>) -> Option<Duration> {
        let _ = (limit, found);
        None
    }

    /// Returns calls on descriptors that run at once, beside the queues. Usable after the backend is gone.
    /// All that take a number are unsafe.
    fn descriptors(&self) -> Rc<dyn Descriptors>;
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

/// Plain calls on descriptors, by number.
///
/// A number says nothing about its owner, so the calls that take one are unsafe: otherwise any code that has
/// this object from [`Backend::descriptors`] could close, change or inspect the file of another owner.
///
/// # Examples
/// ```compile_fail,E0133
/// use sakia_driver::{Backend, Uring};
///
/// fn close_the_file_of_another_owner(backend: &Uring) -> std::io::Result<()> {
///     backend.descriptors().close(0)
/// }
/// ```
#[expect(unused_variables, reason = "bodies that do nothing; the names are documentation")]
pub trait Descriptors {
    /// Closes a descriptor.
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's own, and the caller gives it up: nothing uses the number afterwards.
    ///
    /// # Errors
    /// As `close(2)`. The number is free afterwards in any case.
    unsafe fn close(&self, raw: i32) -> io::Result<()>;

    /// Closes a descriptor for which a file server may have to be told first and may never answer, if
    /// possible without waiting for the server. If another thread closes it, the error is that of handing it
    /// over.
    ///
    /// # Errors
    /// As [`close`](Descriptors::close).
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's to close, and the caller does not use its number again.
    #[doc(hidden)]
    unsafe fn close_aside(&self, raw: i32) -> io::Result<()> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.close(raw) }
    }

    /// Returns whether a path, relative to the directory `raw` or to the working directory (`AT_FDCWD`),
    /// leads to local file systems only. Returns false if that cannot be found out without waiting.
    ///
    /// # Safety
    ///
    /// - The descriptor is open, unless it is `AT_FDCWD`.
    #[doc(hidden)]
    unsafe fn is_path_local(&self, raw: i32, path: &CStr) -> bool {
        false
    }

    /// Returns the kind of file that the descriptor refers to, and its file system.
    ///
    /// # Safety
    ///
    /// - The descriptor is the caller's or lent to the caller, and stays open during the call.
    unsafe fn facts(&self, raw: i32) -> FileFacts;

    /// Returns whether the close of a socket may wait, since `SO_LINGER` is set.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    unsafe fn lingers(&self, raw: i32) -> bool {
        false
    }

    /// Returns the same, and the result of `statx(2)` from the same call. Its mask is zero if there is no
    /// such call.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    #[doc(hidden)]
    unsafe fn facts_and_stat(&self, raw: i32) -> (FileFacts, StatxResult) {
        // SAFETY: the caller's duties are the same.
        (unsafe { self.facts(raw) }, StatxResult::default())
    }

    /// Returns the descriptor's status flags, as `F_GETFL`.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    unsafe fn status_flags(&self, raw: i32) -> u32 {
        0
    }

    /// Returns the errno with which a plain read or write of this file, at an offset or at the file's own
    /// position, fails whatever its memory: `ESPIPE`, `EBADF` or `EINVAL`.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    #[doc(hidden)]
    unsafe fn refusal(&self, raw: i32, direction: Direction, is_at_offset: bool) -> Option<Errno> {
        None
    }

    /// Returns the type of the file system of a file with these facts; empty if it is unknown.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    unsafe fn file_system(&self, raw: i32, facts: &FileFacts) -> String {
        String::new()
    }

    /// Returns the mounted file systems that another machine or process serves, and the working directory.
    #[doc(hidden)]
    fn remote_mounts(&self) -> (RemoteMounts, PathBuf) {
        <_>::default()
    }

    /// Returns whether a write may fail because of a limit on the size of files, and then raise a signal.
    fn limits_file_size(&self) -> bool {
        false
    }

    /// Returns whether the numbers are descriptors of this process. If not, they have a meaning elsewhere
    /// only.
    fn are_of_this_process(&self) -> bool {
        true
    }

    /// Returns the address of a socket.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    ///
    /// # Errors
    /// As `getsockname(2)`. `EOPNOTSUPP`: there are no sockets.
    unsafe fn local_address(&self, raw: i32) -> io::Result<SocketAddress> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Returns the address of a socket's peer.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    ///
    /// # Errors
    /// As `getpeername(2)`. `EOPNOTSUPP`: there are no sockets.
    unsafe fn peer_address(&self, raw: i32) -> io::Result<SocketAddress> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Makes two sockets within the machine that are connected with each other and close on exec. The caller
    /// owns them.
    ///
    /// # Errors
    /// As `socketpair(2)`. `EOPNOTSUPP`: there are no sockets.
    fn socket_pair(&self, kind: SocketType) -> io::Result<[i32; 2]> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Returns the credentials of the process that a socket is connected with, from `SO_PEERCRED`.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    ///
    /// # Errors
    /// As `getsockopt(2)`. `EOPNOTSUPP`: there are no sockets.
    unsafe fn peer_credentials(&self, raw: i32) -> io::Result<Credentials> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Sends slices on a connected socket, as much as there is room for, without waiting and without raising
    /// a signal.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
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
    /// - As [`facts`](Descriptors::facts).
    ///
    /// # Errors
    /// `EAGAIN`: no bytes have arrived. Otherwise as `recv(2)`. `EOPNOTSUPP`: there are no sockets.
    unsafe fn try_recv(&self, raw: i32, buf: &mut [u8]) -> io::Result<usize> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// Clears `O_NONBLOCK` of the descriptor.
    ///
    /// # Safety
    ///
    /// - As for [`facts`](Descriptors::facts); and the open file has no other owner.
    unsafe fn make_blocking(&self, raw: i32) {}

    /// Removes a name, other than a directory's, from the open directory `raw`.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Descriptors::facts).
    ///
    /// # Errors
    /// As `unlinkat(2)`; `EOPNOTSUPP` where there are no names.
    unsafe fn unlink(&self, raw: i32, name: &CStr) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
}
