//! Registration: configuration and queries of a ring outside its entries.
//!
//! Each method is one `io_uring_register(2)` on the owner's thread and takes effect at once. None is on a
//! hot path. In a forked child each returns an error that says so; the methods' documentation does not
//! repeat it. Source: `io_uring_register(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::host::{Host, raw};
use crate::ring::Ring;
use crate::setup::queue_sizes;
use crate::sqe::{Opcode, Sqe};
use crate::sys::{self, Params, io_uring_register_op as op};
use crate::wait::timespec;

/// The first and the longest pause between two checks that a canceled operation has ended.
const CANCEL_PAUSE_MIN: Duration = Duration::from_micros(50);
const CANCEL_PAUSE_MAX: Duration = Duration::from_millis(5);

/// The operations that a kernel supports.
///
/// # Examples
/// ```
/// use sakia_ring::{Opcode, Ring};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let probe = Ring::builder().build()?.probe()?;
/// assert!(probe.is_supported(Opcode::NOP));
/// let names: Vec<_> = probe.iter().filter_map(Opcode::name).collect();
/// assert!(names.contains(&"READ"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// One bit per opcode.
    supported: [u64; 4],
}

impl Probe {
    /// Returns whether the kernel accepts entries with this opcode.
    ///
    /// # Examples
    /// See [`Probe`](Probe#examples).
    pub const fn is_supported(&self, opcode: Opcode) -> bool {
        self.supported[opcode.0 as usize / 64] >> (opcode.0 % 64) & 1 != 0
    }

    /// Returns the supported opcodes, in ascending order. One without a [name](Opcode::name) is newer than
    /// this crate.
    ///
    /// # Examples
    /// See [`Probe`](Probe#examples).
    pub fn iter(&self) -> impl Iterator<Item = Opcode> + '_ {
        (0..=u8::MAX).map(Opcode).filter(|&opcode| self.is_supported(opcode))
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A stretch of memory: the kernel's `struct iovec`.
#[doc(alias = "iovec")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IoVec {
    /// Its first byte.
    pub base: *mut u8,
    /// Its length in bytes.
    pub len: usize,
}

impl IoVec {
    /// No memory; as a registered buffer, an empty place.
    pub const EMPTY: Self = Self { base: ptr::null_mut(), len: 0 };
}

const _: () = {
    use linux_raw_sys::general::iovec as Kernel;
    assert!(size_of::<IoVec>() == size_of::<Kernel>());
    assert!(std::mem::offset_of!(IoVec, len) == std::mem::offset_of!(Kernel, iov_len));
};

/// Limits of the number of kernel worker threads for the calling thread's operations.
///
/// # Examples
/// ```
/// use sakia_ring::{IowqMaxWorkers, Ring};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut ring = Ring::builder().build()?;
/// ring.set_iowq_max_workers(IowqMaxWorkers { bounded: 4, unbounded: 0 })?;
/// // With zeros it only asks.
/// let limits = ring.set_iowq_max_workers(IowqMaxWorkers::default())?;
/// assert!(limits.bounded == 4 && limits.unbounded > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IowqMaxWorkers {
    /// For operations on files and block devices, which end by themselves. 0 in a request: leave it.
    pub bounded: u32,
    /// For operations that may wait for ever, such as on sockets. 0 in a request: leave it.
    pub unbounded: u32,
}

/// The operations that [`Ring::sync_cancel`] cancels.
///
/// # Examples
/// ```
/// use sakia_ring::{CancelTarget, Ring, Sqe, Timespec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut ring = Ring::builder().build()?;
/// let hour = Box::leak(Box::new(Timespec::new(std::time::Duration::from_secs(3600))));
/// // SAFETY: the duration is never freed.
/// unsafe { ring.push(Sqe::timeout(hour).user_data(7)) }.ok_or("the queue is full")?;
/// ring.submit()?;
/// assert_eq!(ring.sync_cancel(CancelTarget::Any, None)?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelTarget {
    /// The operation with this `user_data`.
    UserData(u64),
    /// All operations of the ring.
    Any,
}

/// Operations and limits.
impl<H: Host> Ring<H> {
    /// Returns the operations that the kernel supports. An operation may still be refused by the file it
    /// acts on, or by a restriction of the ring.
    ///
    /// # Errors
    /// `EACCES`: the ring is restricted and does not allow it.
    ///
    /// # Examples
    /// See [`Probe`](Probe#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_register(2)`, `IORING_REGISTER_PROBE`.
    #[doc(alias = "IORING_REGISTER_PROBE")]
    pub fn probe(&self) -> io::Result<Probe> {
        /// The kernel's `struct io_uring_probe` with room for every possible opcode.
        #[repr(C)]
        struct Answer {
            header: [u32; 4],
            ops: [sys::io_uring_probe_op; 256],
        }
        const _: () = assert!(size_of::<sys::io_uring_probe>() == 16);
        let unsupported = sys::io_uring_probe_op { op: 0, resv: 0, flags: 0, resv2: 0 };
        let mut answer = Answer { header: [0; 4], ops: [unsupported; 256] };
        let room = answer.ops.len() as u32;
        // SAFETY: a zeroed answer with room for this many opcodes, written during the call.
        unsafe { self.register(op::IORING_REGISTER_PROBE, &raw mut answer, room)? };
        let mut supported = [0; 4];
        for entry in &answer.ops {
            if entry.flags & sys::IO_URING_OP_SUPPORTED as u16 != 0 {
                supported[usize::from(entry.op) / 64] |= 1 << (entry.op % 64);
            }
        }
        Ok(Probe { supported })
    }

    /// Limits the kernel's worker threads for operations submitted by *this thread*, through any ring, and
    /// returns the previous limits. With zeros it only queries them.
    ///
    /// # Errors
    /// `EACCES`: the ring is restricted and does not allow it.
    ///
    /// # Examples
    /// See [`IowqMaxWorkers`](IowqMaxWorkers#examples).
    ///
    /// # Kernel
    /// 5.15. Source: `io_uring_register(2)`, `IORING_REGISTER_IOWQ_MAX_WORKERS`.
    #[doc(alias = "IORING_REGISTER_IOWQ_MAX_WORKERS")]
    pub fn set_iowq_max_workers(&mut self, limits: IowqMaxWorkers) -> io::Result<IowqMaxWorkers> {
        let mut pair = [limits.bounded, limits.unbounded];
        // SAFETY: two numbers, read and written during the call.
        unsafe { self.register(op::IORING_REGISTER_IOWQ_MAX_WORKERS, pair.as_mut_ptr(), 2)? };
        let [bounded, unbounded] = pair;
        Ok(IowqMaxWorkers { bounded, unbounded })
    }

    /// Cancels operations. One that runs on a kernel worker cannot stop at once: with
    /// [`CancelTarget::UserData`] the call waits up to `timeout` (`None`: for ever) for its end; with
    /// [`CancelTarget::Any`] it is told to stop, without a wait. Completions arrive as usual, by
    /// [`enter`](Ring::enter) and [`reap`](Ring::reap); until then the operations own their memory.
    ///
    /// Returns the number of operations found for [`CancelTarget::Any`], otherwise 0.
    ///
    /// # Errors
    /// - `ENOENT`: there is no such operation.
    /// - `ETIME`: the operation still runs after `timeout`. It was told to stop.
    /// - `EINTR`: a signal came while waiting.
    /// - `EACCES`: the ring is restricted and does not allow it.
    ///
    /// # Examples
    /// See [`CancelTarget`](CancelTarget#examples).
    ///
    /// # Kernel
    /// 6.0. Source: `io_uring_register(2)`, `IORING_REGISTER_SYNC_CANCEL`.
    #[doc(alias = "IORING_REGISTER_SYNC_CANCEL")]
    pub fn sync_cancel(
        &mut self,
        target: CancelTarget,
        timeout: Option<Duration>,
    ) -> io::Result<u32> {
        let (addr, flags) = match target {
            CancelTarget::UserData(user_data) => (user_data, 0),
            CancelTarget::Any => (0, sys::IORING_ASYNC_CANCEL_ANY | sys::IORING_ASYNC_CANCEL_ALL),
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // On a ring that defers its work, nothing wakes the kernel's own wait when the operation ends (seen
        // on Linux 6.18). A long wait is therefore a series of short ones.
        let mut pause = Duration::ZERO;
        loop {
            let mut cancel = sys::io_uring_sync_cancel_reg {
                addr,
                fd: -1,
                flags,
                timeout: timespec(pause),
                opcode: 0,
                pad: [0; 7],
                pad2: [0; 3],
            };
            // SAFETY: one request, read during the call.
            let result =
                unsafe { self.register(op::IORING_REGISTER_SYNC_CANCEL, &raw mut cancel, 1) };
            let errno = result.as_ref().err().and_then(Errno::from_io_error);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match errno {
                Some(Errno::TIME) if left != Some(Duration::ZERO) => {}
                Some(Errno::NOENT) if !pause.is_zero() => return Ok(0), // ended since the last check
                _ => return result,
            }
            pause = (pause * 2).clamp(CANCEL_PAUSE_MIN, CANCEL_PAUSE_MAX);
            pause = left.map_or(pause, |left| pause.min(left));
        }
    }

    /// Resizes the queues, with operations in flight and completions waiting: nothing is lost, and order and
    /// positions stay. Sizes are requests as in [`Builder`](crate::Builder); [`report`](Ring::report) has
    /// the granted ones. Enter once afterwards: a signal that work is ready
    /// ([`needs_enter`](Ring::needs_enter)) may have gone to the old queues.
    ///
    /// # Errors
    /// After each of these the ring is as it was:
    /// - `EBUSY`: entries are pending. Submit them first.
    /// - `EOVERFLOW`: more completions are waiting than the new queue holds.
    /// - `EOPNOTSUPP`: the ring has the indirection array
    ///   ([`Builder::sq_array`](crate::Builder::sq_array)); no kernel that resizes needs it.
    /// - `ENOMEM`: no memory, or no locked memory left.
    /// - `EINVAL`: the kernel is older than 6.13. `EACCES`: the ring is restricted.
    ///
    /// When the kernel has resized but the new queues cannot be mapped, the ring is lost: this call returns
    /// the error of `mmap(2)`, and every later one says that the ring is unusable. The operations in flight
    /// keep their memory for ever.
    ///
    /// # Kernel
    /// 6.13. Source: `io_uring_register(2)`, `IORING_REGISTER_RESIZE_RINGS`.
    #[doc(alias = "IORING_REGISTER_RESIZE_RINGS")]
    pub fn resize(&mut self, sq_entries: u32, cq_entries: u32) -> io::Result<()> {
        self.parts.check_process()?;
        if self.sq_pending() != 0 {
            return Err(Errno::BUSY.into());
        }
        if self.report.setup_flags & sys::IORING_SETUP_NO_SQARRAY == 0 {
            // Linux 6.18 moves the array without reporting its new offset, which comes back as 0.
            return Err(Errno::OPNOTSUPP.into());
        }
        let (sq_entries, cq_entries) = queue_sizes(sq_entries, cq_entries);
        if (sq_entries, cq_entries) == (self.sq_entries(), self.cq_entries()) {
            return Ok(());
        }
        // SAFETY: plain integers, for which zero is a value.
        let mut params: Params = unsafe { std::mem::zeroed() };
        params.sq_entries = sq_entries;
        params.cq_entries = cq_entries;
        params.flags = sys::IORING_SETUP_CQSIZE | sys::IORING_SETUP_CLAMP;
        // SAFETY: parameters without NO_MMAP name no memory; read and written during the call.
        unsafe { self.register(op::IORING_REGISTER_RESIZE_RINGS, &raw mut params, 1)? };
        // The kernel keeps the layout, whatever flags it reports here.
        params.flags = self.report.setup_flags;
        let parts = &mut self.parts;
        if let Err(error) = parts.queues.remap(&parts.host, parts.fd.as_fd(), &params) {
            parts.sentinel.close();
            return Err(error);
        }
        self.report.sq_entries = params.sq_entries;
        self.report.cq_entries = params.cq_entries;
        Ok(())
    }

    /// Makes one `io_uring_register(2)`, as [`Parts::register`](crate::ring::Parts::register).
    ///
    /// # Safety
    ///
    /// - `arg` and `nr_args` are what `opcode` expects, and memory that the kernel keeps stays
    ///   valid until it is unregistered or the ring is gone.
    unsafe fn register<T>(&self, opcode: op, arg: *mut T, nr_args: u32) -> io::Result<u32> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.parts.register(opcode, arg, nr_args) }
    }
}

/// Registered files: entries with [`FIXED_FILE`](crate::sqe_flags::FIXED_FILE) name them by index.
/// The kernel holds references of its own, so that the descriptors may be closed at any time; a
/// file lives until it is replaced or unregistered, and the operations on it have ended.
impl<H: Host> Ring<H> {
    /// Registers `files` as the indices from 0.
    ///
    /// # Errors
    /// - `EBUSY`: files are registered already.
    /// - `EBADF`: one of them is a ring, which cannot be registered.
    /// - `EMFILE`: more than `RLIMIT_NOFILE`.
    /// - `EINVAL`: none. `ENOMEM`: no memory. `EACCES`: the ring is restricted.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use sakia_ring::{Cqe, Ring, Sqe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// let mut ring = Ring::builder().build()?;
    /// ring.register_files(&[file.as_fd()])?;
    /// let buf = Box::leak(Box::new([0; 9]));
    /// let read = Sqe::read(0, buf.as_mut_ptr(), 9, 0).fixed_file();
    /// // SAFETY: the memory is never freed, and read after the completion; the ring keeps the file.
    /// unsafe { ring.push(read) }.ok_or("the queue is full")?;
    /// ring.enter(1, None)?;
    /// let mut completions = [Cqe::default(); 1];
    /// ring.reap(&mut completions);
    /// assert_eq!((completions[0].result()?, &buf[..]), (9, &b"[package]"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_register(2)`, `IORING_REGISTER_FILES`.
    #[doc(alias = "IORING_REGISTER_FILES")]
    pub fn register_files(&mut self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut numbers: Vec<i32> = files.iter().map(raw).collect();
        let count = count_of(&numbers)?;
        // SAFETY: `count` open descriptors, of which the kernel takes references during the call.
        unsafe { self.register(op::IORING_REGISTER_FILES, numbers.as_mut_ptr(), count) }.map(|_| ())
    }

    /// Registers `count` empty places, to be filled by [`update_files`](Ring::update_files) or by
    /// operations that open.
    ///
    /// # Errors
    /// - `EBUSY`: files are registered already.
    /// - `EMFILE`: more than `RLIMIT_NOFILE`.
    /// - `EINVAL`: 0 places. `ENOMEM`: no memory. `EACCES`: the ring is restricted.
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_register(2)`, `IORING_REGISTER_FILES2`.
    #[doc(alias = "IORING_REGISTER_FILES2")]
    pub fn register_files_sparse(&mut self, count: u32) -> io::Result<()> {
        self.register_sparse(op::IORING_REGISTER_FILES2, count)
    }

    /// Puts `files` in the places from `offset`; `None` empties a place. Returns the number of places
    /// changed, which is less than asked when a later place failed.
    ///
    /// # Errors
    /// Nothing was changed:
    /// - `ENXIO`: no files are registered.
    /// - `EINVAL`: a place past the end, or no files. `EOVERFLOW`: past what 32 bits count.
    /// - `EBADF`: the first of them is a ring.
    /// - `ENOMEM`: no memory. `EACCES`: the ring is restricted.
    ///
    /// # Kernel
    /// 5.5. Source: `io_uring_register(2)`, `IORING_REGISTER_FILES_UPDATE`.
    #[doc(alias = "IORING_REGISTER_FILES_UPDATE")]
    pub fn update_files(
        &mut self,
        offset: u32,
        files: &[Option<BorrowedFd<'_>>],
    ) -> io::Result<u32> {
        let numbers: Vec<i32> = files.iter().map(number).collect();
        self.update_numbers(offset, &numbers)
    }

    /// Changes one place, as [`update_files`](Ring::update_files), without an allocation.
    ///
    /// # Errors
    /// As for [`update_files`](Ring::update_files).
    #[doc(alias = "IORING_REGISTER_FILES_UPDATE")]
    pub fn update_file(&mut self, place: u32, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.update_numbers(place, &[number(&file)]).map(|_| ())
    }

    fn update_numbers(&mut self, offset: u32, numbers: &[i32]) -> io::Result<u32> {
        let count = count_of(numbers)?;
        let mut update = sys::io_uring_rsrc_update {
            offset,
            resv: 0,
            data: numbers.as_ptr().expose_provenance() as u64,
        };
        // SAFETY: an update that points to `count` numbers, all read during the call.
        unsafe { self.register(op::IORING_REGISTER_FILES_UPDATE, &raw mut update, count) }
    }

    /// Ends the registration of all files.
    ///
    /// # Errors
    /// `ENXIO`: no files are registered. `EACCES`: the ring is restricted.
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_register(2)`, `IORING_UNREGISTER_FILES`.
    #[doc(alias = "IORING_UNREGISTER_FILES")]
    pub fn unregister_files(&mut self) -> io::Result<()> {
        // SAFETY: the call takes no argument.
        unsafe { self.register(op::IORING_UNREGISTER_FILES, ptr::null_mut::<()>(), 0) }.map(|_| ())
    }

    /// Registers an empty table of files or buffers.
    fn register_sparse(&mut self, opcode: op, count: u32) -> io::Result<()> {
        let mut table = sys::io_uring_rsrc_register {
            nr: count,
            flags: sys::IORING_RSRC_REGISTER_SPARSE,
            resv2: 0,
            data: 0,
            tags: 0,
        };
        let size = size_of_val(&table) as u32;
        // SAFETY: a description of a table, read during the call; it names no memory.
        unsafe { self.register(opcode, &raw mut table, size) }.map(|_| ())
    }
}

/// Registered buffers: memory that the kernel keeps pinned, for
/// [`read_fixed`](crate::Sqe::read_fixed) and [`write_fixed`](crate::Sqe::write_fixed). Counts as
/// locked memory.
impl<H: Host> Ring<H> {
    /// Registers `buffers` as the indices from 0. [`IoVec::EMPTY`] is an empty place.
    ///
    /// # Errors
    /// - `EBUSY`: buffers are registered already.
    /// - `ENOMEM`: no memory, or no locked memory left.
    /// - `EFAULT`: a buffer without memory, or over 1 GiB. `EOPNOTSUPP`: in a file that cannot be
    ///   pinned.
    /// - `EINVAL`: none, or more than 16,384. `EACCES`: the ring is restricted.
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_register(2)`, `IORING_REGISTER_BUFFERS`.
    ///
    /// # Safety
    ///
    /// - Until it is unregistered or replaced, and the operations on it have ended, each buffer is
    ///   one piece of memory that serves no other purpose: the kernel holds the pages and not the
    ///   addresses, so that memory mapped there later would not be what operations read and write.
    #[doc(alias = "IORING_REGISTER_BUFFERS")]
    pub unsafe fn register_buffers(&mut self, buffers: &[IoVec]) -> io::Result<()> {
        let count = count_of(buffers)?;
        let arg = buffers.as_ptr().cast_mut();
        // SAFETY: `count` descriptions, only read during the call; the memory they name is the
        // caller's duty.
        unsafe { self.register(op::IORING_REGISTER_BUFFERS, arg, count) }.map(|_| ())
    }

    /// Registers `count` empty places, to be filled by [`update_buffers`](Ring::update_buffers).
    ///
    /// # Errors
    /// - `EBUSY`: buffers are registered already.
    /// - `EINVAL`: 0 places, or more than 16,384. `ENOMEM`: no memory. `EACCES`: the ring is
    ///   restricted.
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_register(2)`, `IORING_REGISTER_BUFFERS2`.
    #[doc(alias = "IORING_REGISTER_BUFFERS2")]
    pub fn register_buffers_sparse(&mut self, count: u32) -> io::Result<()> {
        self.register_sparse(op::IORING_REGISTER_BUFFERS2, count)
    }

    /// Puts `buffers` in the places from `offset`; [`IoVec::EMPTY`] empties a place. Returns the number of
    /// places changed, which is less than asked when a later place failed.
    ///
    /// # Errors
    /// Nothing was changed:
    /// - `ENXIO`: no buffers are registered.
    /// - `EINVAL`: a place past the end, or no buffers. `EOVERFLOW`: past what 32 bits count.
    /// - Otherwise as [`register_buffers`](Ring::register_buffers), for the first of them.
    ///
    /// # Kernel
    /// 5.13. Source: `io_uring_register(2)`, `IORING_REGISTER_BUFFERS_UPDATE`.
    ///
    /// # Safety
    ///
    /// - As [`register_buffers`](Ring::register_buffers). The previous buffers in these places are free once
    ///   the operations on them have ended.
    #[doc(alias = "IORING_REGISTER_BUFFERS_UPDATE")]
    pub unsafe fn update_buffers(&mut self, offset: u32, buffers: &[IoVec]) -> io::Result<u32> {
        let mut update = sys::io_uring_rsrc_update2 {
            offset,
            resv: 0,
            data: buffers.as_ptr().expose_provenance() as u64,
            tags: 0,
            nr: count_of(buffers)?,
            resv2: 0,
        };
        let size = size_of_val(&update) as u32;
        // SAFETY: an update that points to `nr` descriptions, all read during the call; the memory
        // they name is the caller's duty.
        unsafe { self.register(op::IORING_REGISTER_BUFFERS_UPDATE, &raw mut update, size) }
    }

    /// Ends the registration of all buffers. Operations in flight on them go on.
    ///
    /// # Errors
    /// `ENXIO`: no buffers are registered. `EACCES`: the ring is restricted.
    ///
    /// # Kernel
    /// 5.1. Source: `io_uring_register(2)`, `IORING_UNREGISTER_BUFFERS`.
    #[doc(alias = "IORING_UNREGISTER_BUFFERS")]
    pub fn unregister_buffers(&mut self) -> io::Result<()> {
        // SAFETY: the call takes no argument.
        unsafe { self.register(op::IORING_UNREGISTER_BUFFERS, ptr::null_mut::<()>(), 0) }
            .map(|_| ())
    }
}

/// Notification of other threads and event loops.
impl<H: Host> Ring<H> {
    /// Registers an eventfd. The kernel signals it when it posts a completion or when work becomes ready that
    /// the next [`enter`](Ring::enter) will finish, so that a ring that defers its work can wake an epoll
    /// loop. The kernel may merge signals: one signal does not stand for one completion. The kernel holds its
    /// own reference.
    ///
    /// # Errors
    /// - `EBUSY`: one is registered already.
    /// - `EINVAL`: not an eventfd. `ENOMEM`: no memory. `EACCES`: the ring is restricted.
    ///
    /// # Examples
    /// A foreign loop waits for completions:
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    /// use sakia_ring::{Ring, Sqe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let event = eventfd(0, EventfdFlags::CLOEXEC)?;
    /// let mut ring = Ring::builder().build()?;
    /// ring.register_eventfd(event.as_fd())?;
    /// // SAFETY: a no-op names no memory and no descriptor.
    /// unsafe { ring.push(Sqe::nop()) }.ok_or("the queue is full")?;
    /// ring.enter(0, None)?;
    /// assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], None)?, 1);
    /// assert_eq!(ring.cq_ready(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.2. Source: `io_uring_register(2)`, `IORING_REGISTER_EVENTFD`.
    #[doc(alias = "IORING_REGISTER_EVENTFD")]
    pub fn register_eventfd(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let mut number = raw(&eventfd);
        // SAFETY: one open descriptor, of which the kernel takes a reference during the call.
        unsafe { self.register(op::IORING_REGISTER_EVENTFD, &raw mut number, 1) }.map(|_| ())
    }

    /// Ends the registration of the eventfd.
    ///
    /// # Errors
    /// `ENXIO`: none is registered. `EACCES`: the ring is restricted.
    ///
    /// # Kernel
    /// 5.2. Source: `io_uring_register(2)`, `IORING_UNREGISTER_EVENTFD`.
    #[doc(alias = "IORING_UNREGISTER_EVENTFD")]
    pub fn unregister_eventfd(&mut self) -> io::Result<()> {
        // SAFETY: the call takes no argument.
        unsafe { self.register(op::IORING_UNREGISTER_EVENTFD, ptr::null_mut::<()>(), 0) }
            .map(|_| ())
    }
}

/// Posts a completion with this `user_data` and `result` to the ring `target`, and wakes its owner if the
/// owner waits. Needs no ring of its own and may be called from any thread.
///
/// # Errors
/// - `EBADFD`: `target` is not a ring, or not enabled yet.
/// - `EOVERFLOW`: the target has no memory for it.
/// - `EINVAL`: the kernel is older than 6.13.
///
/// # Kernel
/// 6.13. Source: `io_uring_register(2)`, `IORING_REGISTER_SEND_MSG_RING`.
///
/// # Safety
///
/// - The owner of `target` expects a completion with this `user_data` that belongs to no entry of its own.
///   Otherwise it could take it for the end of an operation, and free memory that the kernel still uses.
#[doc(alias = "IORING_REGISTER_SEND_MSG_RING")]
pub unsafe fn send_message<H: Host>(
    host: &H,
    target: BorrowedFd<'_>,
    user_data: u64,
    result: i32,
) -> io::Result<()> {
    let mut message = Sqe::msg_ring(raw(&target), user_data, result);
    let opcode = op::IORING_REGISTER_SEND_MSG_RING as u32;
    // SAFETY: one entry, read during the call; it names no memory.
    unsafe { host.register(-1, opcode, (&raw mut message).cast(), 1)? };
    Ok(())
}

/// Returns a file's number as the kernel takes it, -1 for none.
fn number(file: &Option<BorrowedFd<'_>>) -> i32 {
    file.as_ref().map_or(-1, |file| file.as_raw_fd())
}

/// Returns the length as the kernel takes it.
fn count_of<T>(items: &[T]) -> io::Result<u32> {
    u32::try_from(items.len()).map_err(|_| Errno::INVAL.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_finds_the_first_and_the_last_bit_of_each_word() {
        let mut probe = Probe { supported: [0; 4] };
        for opcode in [0, 63, 64, 127, 128, 191, 192, 255] {
            probe.supported[opcode / 64] |= 1 << (opcode % 64);
        }
        let found: Vec<u8> = probe.iter().map(|opcode| opcode.0).collect();
        assert_eq!(found, [0, 63, 64, 127, 128, 191, 192, 255]);
        assert!(probe.is_supported(Opcode(127)) && !probe.is_supported(Opcode(126)));
    }
}
