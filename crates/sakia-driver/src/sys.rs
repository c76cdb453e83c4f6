//! System calls on lent memory, and those that `rustix` keeps to itself.
//!
//! An entry names memory of another owner: a buffer, a path, a vector. Backends hand its address to the
//! kernel as it came, as the ring does, and never make a reference of it; so the calls here take addresses.
//! The signal calls are not in `rustix`' public interface, and its epoll wait takes either nanoseconds or an
//! old kernel, decided when it is compiled. Most calls that `rustix` has with types are made with `rustix`.
//!
//! All others go through [`syscall`] or [`shared_syscall`], the ring's own instruction: libc's symbols may be
//! interposed by a preload library that sits on top of this very crate. Nothing of the crate is imported
//! here.
//!
//! # Rules that calls have in common
//!
//! - `EINTR`: a call that has done nothing when a signal interrupts it is repeated, here for those that are
//!   always so (opens, `statx`, `flock`, `copy_file_range`, messages that do not wait), by [`retry`] at the
//!   caller for transfers, which [`read_plainly`](crate::read_plainly) passes on. Never repeated: a close, and
//!   what makes, moves or removes names or attributes, which may have been done.
//! - `SIGPIPE`: no call raises it. Sends say [`NO_SIGNAL`]; a write to a pipe is made in
//!   [`without_sigpipe`](signals::without_sigpipe), and so is a send of a file.
//! - FIFOs and `O_NONBLOCK`: [`open`].
//!
//! Any thread may call these. Sources: the manual page of each call, `asm/unistd.h`.

mod action;
pub(crate) mod open;
pub(crate) mod send_file;
pub(crate) mod signals;

pub(crate) use self::action::{
    Context, SignalAction, SignalInfo, set_signal_handler, signal_action,
};

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// The kernel's numbers, flags and structures.
pub(crate) use linux_raw_sys::general as abi;
use linux_raw_sys::net::{SCM_RIGHTS, SOL_SOCKET};
use rustix::event::epoll::Event;
use rustix::fs::Statx;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::thread::Timespec;
use sakia_ring::{CURRENT_POSITION, IoVec, SignalMask};

pub(crate) use self::abi::open_how as OpenHow;

/// `MSG_DONTWAIT`: `EAGAIN` instead of waiting, for sends and receives.
pub(crate) const DONT_WAIT: u32 = SendFlags::DONTWAIT.bits();
/// `MSG_NOSIGNAL`: a send without a receiver left fails, and raises no `SIGPIPE`. A receive accepts the flag
/// and ignores it.
pub(crate) const NO_SIGNAL: u32 = SendFlags::NOSIGNAL.bits();

/// Issues a system call by its number, one of `linux_raw_sys`' `__NR_*`. For frequent calls: each caller has
/// a copy of the code, with its event point.
///
/// # Safety
///
/// - `number` and the arguments form a call whose effects on memory and descriptors the caller has the
///   right to cause.
#[inline(always)]
pub(crate) unsafe fn syscall(number: u32, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's duties are this call's.
    result_of(unsafe { sakia_ring::system_call(number, args) })
}

/// As [`syscall`], by one copy of the code for all callers: a few instructions more, and some fifty bytes
/// less at each.
///
/// # Safety
///
/// - As [`syscall`].
#[inline(always)]
pub(crate) unsafe fn shared_syscall(number: u32, args: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's duties are this call's.
    result_of(unsafe { shared(a, b, c, d, e, f, number) })
}

/// Takes the arguments one by one, so that nearly all are passed in registers.
///
/// # Safety
///
/// - As [`syscall`].
#[inline(never)]
unsafe fn shared(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, number: u32) -> isize {
    // SAFETY: the caller's duties are this call's.
    unsafe { sakia_ring::system_call(number, [a, b, c, d, e, f]) }
}

#[inline(always)]
fn result_of(result: isize) -> Result<usize, Errno> {
    match result {
        0.. => Ok(result as usize),
        _ => Err(Errno::from_raw_os_error(-result as i32)),
    }
}

/// Repeats a call that a signal interrupted. Only for calls that have done nothing then.
#[inline(always)]
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// The number of a descriptor as a register holds it.
pub(crate) fn register(raw: i32) -> usize {
    raw as isize as usize
}

/// A descriptor by its number, for one call.
///
/// # Errors
/// `EBADF`: no descriptor has such a number.
///
/// # Safety
///
/// - The number is one that an entry names, and the code that pushed that keeps the descriptor open as long
///   as the borrow is used. If it is not open all the same the kernel says so.
pub(crate) unsafe fn borrow<'a>(raw: i32) -> Result<BorrowedFd<'a>, Errno> {
    if raw < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1; the rest is the caller's duty.
    Ok(unsafe { BorrowedFd::borrow_raw(raw) })
}

/// The direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To memory.
    Read = 0,
    /// From memory.
    Write = 1,
}

/// `preadv2(2)` or `pwritev2(2)`; the calls that any kernel has, where there are no flags. The offset
/// `u64::MAX` means the file's own position.
///
/// # Errors
/// Those of the call, `EINTR` included.
///
/// # Safety
///
/// - `vector` points to `count` entries, whose memory the kernel may fill when reading, and no thread
///   changes when writing.
#[inline(always)]
pub(crate) unsafe fn transfer(
    direction: Direction,
    raw: i32,
    vector: *const IoVec,
    count: usize,
    offset: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let calls = match (offset, flags) {
        (CURRENT_POSITION, 0) => [abi::__NR_readv, abi::__NR_writev],
        (_, 0) => [abi::__NR_preadv, abi::__NR_pwritev],
        _ => [abi::__NR_preadv2, abi::__NR_pwritev2],
    };
    // A call with fewer arguments does not look at the others. On 64 bits the low half of the offset is all
    // of it, and the high half is not looked at.
    let args = [register(raw), vector as usize, count, offset as usize, 0, flags as usize];
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(calls[direction as usize], args) }
}

/// `pread(2)` or `pwrite(2)`; at the file's own position `read(2)` or `write(2)`.
///
/// # Safety
///
/// - `addr` is the address of `len` bytes, which the kernel may fill when reading, and no thread changes
///   when writing.
#[inline(always)]
pub(crate) unsafe fn transfer_one(
    direction: Direction,
    raw: i32,
    addr: u64,
    len: u32,
    offset: u64,
) -> Result<usize, Errno> {
    let calls = match offset {
        CURRENT_POSITION => [abi::__NR_read, abi::__NR_write],
        _ => [abi::__NR_pread64, abi::__NR_pwrite64],
    };
    let args = [register(raw), addr as usize, len as usize, offset as usize, 0, 0];
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(calls[direction as usize], args) }
}

/// Returns the errno with which `pread(2)` or `pwrite(2)`, or at the position `read(2)` or `write(2)`, refuse
/// the file. The call moves nothing: its memory is the kernel's own, which the kernel refuses after it has
/// looked at the file, and before the file's own code runs.
///
/// # Safety
///
/// - The descriptor is lent.
pub(crate) unsafe fn refusal(direction: Direction, raw: i32, is_at_offset: bool) -> Option<Errno> {
    /// The last page of the address space.
    const NO_MEMORY: u64 = u64::MAX - 4095;
    let offset = if is_at_offset { 0 } else { CURRENT_POSITION };
    // SAFETY: the kernel writes to no address of its own for a program, and reads from none.
    match unsafe { transfer_one(direction, raw, NO_MEMORY, 1, offset) } {
        Err(errno @ (Errno::SPIPE | Errno::BADF | Errno::INVAL)) => Some(errno),
        _ => None,
    }
}

/// `struct msghdr` of the kernel, `struct user_msghdr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Message {
    pub(crate) name: *mut u8,
    /// The bytes of the address there are; or, of a receive, those that are there to be filled, and then
    /// those that were filled or would have been.
    pub(crate) name_len: u32,
    pub(crate) vector: *mut IoVec,
    pub(crate) vector_len: usize,
    /// The control messages; or, of a receive, the room for them.
    pub(crate) control: *mut u8,
    /// The bytes of that; after a receive, those that were filled.
    pub(crate) control_len: usize,
    /// The flags of a received message: `MSG_*`.
    pub(crate) flags: u32,
}

impl Message {
    /// A message about nothing.
    pub(crate) const EMPTY: Self = Self {
        name: ptr::null_mut(),
        name_len: 0,
        vector: ptr::null_mut(),
        vector_len: 0,
        control: ptr::null_mut(),
        control_len: 0,
        flags: 0,
    };

    /// A message of one part, with an address of as many bytes or room for one.
    pub(crate) const fn new((name, name_len): (*mut u8, u32), part: *mut IoVec) -> Self {
        Self { name, name_len, vector: part, vector_len: 1, ..Self::EMPTY }
    }

    /// Returns a message of several parts, to the peer with which the socket is connected.
    pub(crate) const fn of_parts(parts: &mut [IoVec]) -> Self {
        Self { vector: parts.as_mut_ptr(), vector_len: parts.len(), ..Self::EMPTY }
    }
}

/// Bytes of a `struct cmsghdr`.
const CONTROL_HEADER: usize = size_of::<usize>() + 2 * size_of::<u32>();

/// Returns where the next control message may begin: `CMSG_ALIGN`.
const fn control_aligned(len: usize) -> usize {
    const TO: usize = size_of::<usize>();
    len.saturating_add(TO - 1) / TO * TO
}

/// A control message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlMessage<'a> {
    /// The protocol whose message it is: one of the kernel's `SOL_*`.
    pub level: u32,
    /// Its type, which the level gives a meaning.
    pub kind: u32,
    /// Its content, which is shorter than usual if there was no room for more.
    pub bytes: &'a [u8],
}

impl<'a> ControlMessage<'a> {
    /// Returns the bytes of room that a control message with `len` bytes of content takes. A descriptor is 4
    /// bytes, and all that come together are one message.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::ControlMessage;
    ///
    /// // Room for three descriptors, and for credentials.
    /// let room = ControlMessage::space(3 * 4) + ControlMessage::space(12);
    /// assert!(room >= 24);
    /// ```
    #[doc(alias = "CMSG_SPACE")]
    pub const fn space(len: usize) -> usize {
        control_aligned(CONTROL_HEADER.saturating_add(len))
    }

    /// A message with these numbers of descriptors.
    pub(crate) const fn rights(bytes: &'a [u8]) -> Self {
        Self { level: SOL_SOCKET, kind: SCM_RIGHTS, bytes }
    }

    /// The numbers of descriptors in it.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = i32> {
        let is_rights = (self.level, self.kind) == (SOL_SOCKET, SCM_RIGHTS);
        let bytes = if is_rights { self.bytes } else { &[] };
        bytes.chunks_exact(4).map(|bytes| i32::from_ne_bytes(array(bytes, 0)))
    }

    /// The messages that these bytes are, up to the first that makes no sense.
    pub(crate) fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (message, rest) = Self::first(bytes)?;
            bytes = rest;
            Some(message)
        })
    }

    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        const LEVEL: usize = size_of::<usize>();
        let header = bytes.get(..CONTROL_HEADER)?;
        let len = usize::from_ne_bytes(array(header, 0));
        let level = u32::from_ne_bytes(array(header, LEVEL));
        let kind = u32::from_ne_bytes(array(header, LEVEL + 4));
        let content = bytes.get(CONTROL_HEADER..len)?;
        // Of the last one there need be no padding.
        let rest = bytes.get(control_aligned(len)..).unwrap_or_default();
        Some((Self { level, kind, bytes: content }, rest))
    }

    /// Adds the message to others.
    pub(crate) fn put(&self, to: &mut impl Extend<u8>) {
        let len = CONTROL_HEADER + self.bytes.len();
        to.extend(len.to_ne_bytes());
        to.extend(self.level.to_ne_bytes());
        to.extend(self.kind.to_ne_bytes());
        to.extend(self.bytes.iter().copied());
        to.extend((len..control_aligned(len)).map(|_| 0));
    }
}

/// The bytes of a field that is there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..][..N]);
    field
}

/// `recvmsg(2)` or `sendmsg(2)` that neither waits nor raises a signal.
///
/// # Safety
///
/// - As [`transfer`].
pub(crate) unsafe fn transfer_socket(
    direction: Direction,
    raw: i32,
    vector: *const IoVec,
    count: usize,
) -> Result<usize, Errno> {
    let nr = [abi::__NR_recvmsg, abi::__NR_sendmsg][direction as usize];
    let vector = vector.cast_mut(); // which the kernel only reads
    let mut message = Message { vector, vector_len: count, ..Message::EMPTY };
    let header = &raw mut message as usize;
    // SAFETY: the header outlives the call, names no address and no control data, and else what the
    // caller answers for.
    retry(|| unsafe {
        syscall(nr, [register(raw), header, (DONT_WAIT | NO_SIGNAL) as usize, 0, 0, 0])
    })
}

/// `openat(2)`.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
pub(crate) unsafe fn openat(dir: i32, path: u64, flags: u32, mode: u32) -> Result<OwnedFd, Errno> {
    let args = [register(dir), path as usize, flags as usize, mode as usize, 0, 0];
    // SAFETY: the caller's duties are this call's.
    let raw = retry(|| unsafe { shared_syscall(abi::__NR_openat, args) })?;
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// `openat2(2)`. Since Linux 5.6.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
#[inline]
pub(crate) unsafe fn openat2(dir: i32, path: u64, how: &OpenHow) -> Result<OwnedFd, Errno> {
    let how = (&raw const *how as usize, size_of::<OpenHow>());
    let args = [register(dir), path as usize, how.0, how.1, 0, 0];
    // SAFETY: the structure outlives the call; else the caller's duties are this call's.
    let raw = retry(|| unsafe { shared_syscall(abi::__NR_openat2, args) })?;
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// `copy_file_range(2)`. The offset `u64::MAX` means the file's own position.
///
/// # Safety
///
/// - Both descriptors are the caller's or lent to the caller.
pub(crate) unsafe fn copy_file_range(
    from: i32,
    mut from_offset: u64,
    to: i32,
    mut to_offset: u64,
    len: usize,
) -> Result<usize, Errno> {
    let address = |offset: &mut u64| match *offset {
        u64::MAX => 0,
        _ => &raw mut *offset as usize,
    };
    let (from_at, to_at) = (address(&mut from_offset), address(&mut to_offset));
    let args = [register(from), from_at, register(to), to_at, len, 0];
    // SAFETY: both offsets outlive the call, which updates them and touches no other memory of ours; the
    // descriptors are the caller's duty.
    retry(|| unsafe { shared_syscall(abi::__NR_copy_file_range, args) })
}

/// `flock(2)`.
///
/// # Safety
///
/// - The descriptor is the caller's or lent to the caller.
pub(crate) unsafe fn flock(raw: i32, operation: u32) -> Result<(), Errno> {
    let args = [register(raw), operation as usize, 0, 0, 0, 0];
    // SAFETY: the call touches no memory; the descriptor is the caller's duty.
    retry(|| unsafe { shared_syscall(abi::__NR_flock, args) }).map(|_| ())
}

/// `statx(2)`.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL, `result` that of a `struct statx` which the
///   kernel may fill.
pub(crate) unsafe fn statx(
    dir: i32,
    path: u64,
    flags: u32,
    mask: u32,
    result: u64,
) -> Result<(), Errno> {
    let args = [register(dir), path as usize, flags as usize, mask as usize, result as usize, 0];
    // SAFETY: the caller's duties are this call's.
    retry(|| unsafe { shared_syscall(abi::__NR_statx, args) }).map(|_| ())
}

/// The type bits of the file that `path` names.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
pub(crate) unsafe fn file_mode(dir: i32, path: u64, flags: u32) -> Result<u32, Errno> {
    let mut result = MaybeUninit::<Statx>::zeroed();
    // SAFETY: the path is the caller's to answer for, and the result is ours.
    unsafe { statx(dir, path, flags, abi::STATX_TYPE, result.as_mut_ptr() as u64) }?;
    // SAFETY: plain integers, zeroed and then filled by the kernel.
    Ok(u32::from(unsafe { result.assume_init() }.stx_mode))
}

/// `epoll_pwait2(2)`. Since Linux 5.11.
pub(crate) fn epoll_pwait2(
    epoll: BorrowedFd<'_>,
    events: &mut [MaybeUninit<Event>],
    timeout: &Timespec,
    signals: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let (place, room) = (events.as_mut_ptr() as usize, events.len());
    let timeout = &raw const *timeout as usize;
    let signals = signals.map_or(ptr::null(), ptr::from_ref) as usize;
    let args =
        [register(epoll.as_raw_fd()), place, room, timeout, signals, size_of::<SignalMask>()];
    // SAFETY: the kernel fills at most as many events as there are, and reads the time, and the mask if there
    // is one.
    unsafe { syscall(abi::__NR_epoll_pwait2, args) }
}

/// `epoll_pwait(2)`, for whole milliseconds or without end.
pub(crate) fn epoll_pwait(
    epoll: BorrowedFd<'_>,
    events: &mut [MaybeUninit<Event>],
    timeout: Option<Duration>,
    signals: &SignalMask,
) -> Result<usize, Errno> {
    let (place, room) = (events.as_mut_ptr() as usize, events.len());
    let millis = timeout.map_or(-1, |timeout| timeout.as_millis().min(i32::MAX as u128) as i32);
    let signals = ptr::from_ref(signals) as usize;
    let args = [
        register(epoll.as_raw_fd()),
        place,
        room,
        register(millis),
        signals,
        size_of::<SignalMask>(),
    ];
    // SAFETY: the kernel fills at most as many events as there are, and reads the mask.
    unsafe { syscall(abi::__NR_epoll_pwait, args) }
}

/// Handles the pending signals that a mask lets through: `ppoll(2)` of no descriptor, which does not sleep.
pub(crate) fn handle_signals(mask: &SignalMask) -> Result<(), Errno> {
    let mut timeout = Timespec::default();
    let (time, mask) = (&raw mut timeout as usize, ptr::from_ref(mask) as usize);
    let args = [0, 0, time, mask, size_of::<SignalMask>(), 0];
    // SAFETY: the kernel reads the time and the mask, and may write to the time, which is ours; there are no
    // descriptors.
    match unsafe { shared_syscall(abi::__NR_ppoll, args) } {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The kernel's form of a duration. More than a century is as good as for ever.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    const CENTURY_S: u64 = 100 * 365 * 24 * 60 * 60;
    Timespec {
        tv_sec: duration.as_secs().min(CENTURY_S) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Blocks the calling thread for so long, or until a signal comes.
pub(crate) fn nap(duration: Duration) {
    // A signal does no harm.
    let _ = rustix::thread::nanosleep(&timespec(duration));
}

/// A time of the kernel's coarse clock, which moves by ticks of 1 to 10 ms and is read without a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick(u64);

impl Tick {
    /// The tick of no result.
    pub(crate) const NEVER: Self = Self(0);
    /// A result of this age is used no more; a younger one may be up to a tick old.
    const LASTS_NS: u64 = 2_000_000;

    /// Now; never [`NEVER`](Tick::NEVER), which is the default.
    pub(crate) fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        Self((time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).max(1))
    }

    /// Returns whether a result of this tick may still be used.
    pub(crate) fn lasts(self, now: Self) -> bool {
        self.0 > 0 && now.0.wrapping_sub(self.0) < Self::LASTS_NS
    }
}

/// Returns the processor time that this thread has used.
pub(crate) fn processor_time() -> Duration {
    let mut time = [0_i64; 2];
    let args = [abi::CLOCK_THREAD_CPUTIME_ID as usize, time.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes two words, seconds and nanoseconds, to memory that outlives the call.
    let result = unsafe { syscall(abi::__NR_clock_gettime, args) };
    debug_assert!(result.is_ok(), "{result:?}");
    Duration::new(time[0] as u64, time[1] as u32)
}

/// Returns how often the calling thread has gone to sleep of its own accord: `ru_nvcsw` of `getrusage(2)`.
pub(crate) fn voluntary_switches() -> u64 {
    let mut usage = MaybeUninit::<abi::rusage>::zeroed();
    let args = [abi::RUSAGE_THREAD as usize, usage.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the structure outlives the call, which fills it.
    let result = unsafe { shared_syscall(abi::__NR_getrusage, args) };
    debug_assert!(result.is_ok(), "{result:?}");
    // SAFETY: plain integers, zeroed and then filled by the kernel.
    unsafe { usage.assume_init() }.ru_nvcsw as u64
}

/// The kernel's set of 64 signals: signal n is bit n - 1.
pub(crate) type SignalSet = u64;

/// The change of a thread's signal mask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaskChange {
    /// Adds signals: `SIG_BLOCK`.
    Block = abi::SIG_BLOCK as isize,
    /// Replaces the mask: `SIG_SETMASK`.
    Set = abi::SIG_SETMASK as isize,
}

/// `rt_sigprocmask(2)` for the calling thread. Returns the previous mask.
pub(crate) fn signal_mask(change: MaskChange, set: SignalSet) -> Result<SignalSet, Errno> {
    let mut old: SignalSet = 0;
    let (set, old_set) = (&raw const set as usize, &raw mut old as usize);
    let args = [change as usize, set, old_set, size_of::<SignalSet>(), 0, 0];
    // SAFETY: both sets outlive the call.
    unsafe { shared_syscall(abi::__NR_rt_sigprocmask, args) }?;
    Ok(old)
}

/// `rt_sigaction(2)`: returns whether the process ignores this signal.
pub(crate) fn is_ignored(signal: u32) -> Result<bool, Errno> {
    Ok(action::signal_action(signal)?.is_ignored())
}

/// `rt_sigpending(2)`: blocked signals that wait for the calling thread.
pub(crate) fn signals_pending() -> Result<SignalSet, Errno> {
    let mut set: SignalSet = 0;
    let args = [&raw mut set as usize, size_of::<SignalSet>(), 0, 0, 0, 0];
    // SAFETY: the set outlives the call.
    unsafe { shared_syscall(abi::__NR_rt_sigpending, args) }?;
    Ok(set)
}

/// `rt_sigtimedwait(2)` without waiting: takes one pending signal of the set.
pub(crate) fn take_signal(set: SignalSet) -> Result<(), Errno> {
    let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (set, time) = (&raw const set as usize, &raw const no_time as usize);
    let args = [set, 0, time, size_of::<SignalSet>(), 0, 0];
    // SAFETY: the set and the time outlive the call; nothing is written.
    retry(|| unsafe { shared_syscall(abi::__NR_rt_sigtimedwait, args) }).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_sleep_is_a_voluntary_switch() {
        let before = voluntary_switches();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(voluntary_switches() > before);
    }

    #[test]
    fn a_result_lasts_less_than_two_milliseconds() {
        let at = |ms: u64| Tick(ms * 1_000_000);
        assert!(at(5).lasts(at(5)) && at(5).lasts(at(6)));
        assert!(!at(5).lasts(at(7)) && !at(5).lasts(at(9)) && !at(5).lasts(at(4)));
        assert!(!Tick::default().lasts(at(0)), "there is no result");
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_signal_may_be_ignored() {
        // The runtime of every Rust program ignores `SIGPIPE` before `main`.
        assert_eq!(is_ignored(libc::SIGPIPE as u32), Ok(true));
        assert_eq!(is_ignored(libc::SIGWINCH as u32), Ok(false));
        assert_eq!(is_ignored(0), Err(Errno::INVAL));
    }
}
