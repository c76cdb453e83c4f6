//! System calls that act on lent memory, and those that `rustix` keeps to itself.
//!
//! What an entry names is memory of somebody else: a buffer, a path, a vector. This backend hands
//! its address to the kernel as it came, as the ring does, and never makes a reference of it; so the
//! calls here take addresses. The signal calls are not in `rustix`' public interface, and its epoll
//! wait takes either nanoseconds or an old kernel, decided when it is compiled.
//!
//! As in the ring's crate the instruction is our own: libc's symbols may be interposed by a preload
//! library that sits on top of this very crate.
//!
//! Any thread may call these. Sources: the manual page of each call, `asm/unistd.h`.

pub(crate) mod signals;

use std::arch::asm;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::event::epoll::Event;
use rustix::fs::Statx;
use rustix::io::Errno;
use rustix::thread::Timespec;
use sakia_ring::IoVec;

/// Numbers of the system calls.
pub(crate) mod number {
    macro_rules! numbers {
        ($($name:ident: $x86_64:literal, $aarch64:literal;)*) => {$(
            pub(crate) const $name: usize =
                if cfg!(target_arch = "x86_64") { $x86_64 } else { $aarch64 };
        )*};
    }
    numbers! {
        RT_SIGPROCMASK: 14, 135;
        PREAD64: 17, 67;
        PWRITE64: 18, 68;
        READV: 19, 65;
        WRITEV: 20, 66;
        SOCKET: 41, 198;
        CONNECT: 42, 203;
        SENDTO: 44, 206;
        RECVFROM: 45, 207;
        SENDMSG: 46, 211;
        RECVMSG: 47, 212;
        SHUTDOWN: 48, 210;
        BIND: 49, 200;
        LISTEN: 50, 201;
        GETSOCKNAME: 51, 204;
        GETPEERNAME: 52, 205;
        FLOCK: 73, 32;
        FTRUNCATE: 77, 46;
        FCHMOD: 91, 52;
        FCHOWN: 93, 55;
        GETRUSAGE: 98, 165;
        RT_SIGPENDING: 127, 136;
        RT_SIGTIMEDWAIT: 128, 137;
        FSTATFS: 138, 44;
        FSETXATTR: 190, 7;
        FGETXATTR: 193, 10;
        FLISTXATTR: 196, 13;
        FREMOVEXATTR: 199, 16;
        GETDENTS64: 217, 61;
        FADVISE64: 221, 223;
        OPENAT: 257, 56;
        MKDIRAT: 258, 34;
        FCHOWNAT: 260, 54;
        UNLINKAT: 263, 35;
        LINKAT: 265, 37;
        SYMLINKAT: 266, 36;
        READLINKAT: 267, 78;
        FCHMODAT: 268, 53;
        UTIMENSAT: 280, 88;
        FALLOCATE: 285, 47;
        ACCEPT4: 288, 242;
        PREADV: 295, 69;
        PWRITEV: 296, 70;
        SYNCFS: 306, 267;
        RENAMEAT2: 316, 276;
        COPY_FILE_RANGE: 326, 285;
        PREADV2: 327, 286;
        PWRITEV2: 328, 287;
        STATX: 332, 291;
        OPENAT2: 437, 437;
        EPOLL_PWAIT2: 441, 441;
        FCHMODAT2: 452, 452;
    }
}

/// Issues a system call of up to six arguments.
///
/// # Safety
///
/// - `nr` and the arguments form a call whose effects on memory and descriptors the caller has the
///   right to cause.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall(nr: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let ret: isize;
    // SAFETY: the x86_64 system call convention: number and result in rax, arguments in rdi, rsi,
    // rdx, r10, r8, r9; the instruction clobbers rcx and r11 and leaves the stack alone. What the
    // call itself does is the caller's duty.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    check(ret)
}

/// Issues a system call of up to six arguments.
///
/// # Safety
///
/// - `nr` and the arguments form a call whose effects on memory and descriptors the caller has the
///   right to cause.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall(nr: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let ret: isize;
    // SAFETY: the aarch64 system call convention: number in x8, arguments in x0 to x5, result in
    // x0, nothing else is clobbered. What the call itself does is the caller's duty.
    unsafe {
        asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") args[0] as isize => ret,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    check(ret)
}

/// Turns the kernel's return value into a number, or into the error that it stands for.
fn check(ret: isize) -> Result<usize, Errno> {
    match ret {
        0.. => Ok(ret as usize),
        _ => Err(Errno::from_raw_os_error(-ret as i32)),
    }
}

/// The number of a descriptor as a register holds it.
pub(crate) fn register(raw: i32) -> usize {
    raw as isize as usize
}

/// Repeats a call that a signal interrupted. Only for calls that have done nothing then.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
}

/// `readv(2)` or `writev(2)`.
///
/// # Safety
///
/// - `vector` points to `count` entries, whose memory the kernel may fill when reading, and nobody
///   changes when writing.
pub(crate) unsafe fn transfer(
    direction: Direction,
    raw: i32,
    vector: *const IoVec,
    count: usize,
) -> Result<usize, Errno> {
    let nr = [number::READV, number::WRITEV][direction as usize];
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(nr, [register(raw), vector as usize, count, 0, 0, 0]) }
}

/// `preadv(2)` or `pwritev(2)`.
///
/// # Safety
///
/// - As [`transfer`].
pub(crate) unsafe fn transfer_at(
    direction: Direction,
    raw: i32,
    vector: *const IoVec,
    count: usize,
    offset: u64,
) -> Result<usize, Errno> {
    let nr = [number::PREADV, number::PWRITEV][direction as usize];
    // On 64 bits the low half of the offset is all of it, and the high half is not looked at.
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(nr, [register(raw), vector as usize, count, offset as usize, 0, 0]) }
}

/// `preadv2(2)` or `pwritev2(2)`. The offset `u64::MAX` means the file's own position.
///
/// # Safety
///
/// - As [`transfer`].
pub(crate) unsafe fn transfer_with(
    direction: Direction,
    raw: i32,
    vector: *const IoVec,
    count: usize,
    offset: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let nr = [number::PREADV2, number::PWRITEV2][direction as usize];
    let high = (offset >> 32) as usize;
    let args = [register(raw), vector as usize, count, offset as usize, high, flags as usize];
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(nr, args) }
}

/// `pread(2)` or `pwrite(2)`.
///
/// # Safety
///
/// - `addr` is the address of `len` bytes, which the kernel may fill when reading, and nobody changes
///   when writing.
#[inline(always)]
pub(crate) unsafe fn transfer_one(
    direction: Direction,
    raw: i32,
    addr: u64,
    len: u32,
    offset: u64,
) -> Result<usize, Errno> {
    let nr = [number::PREAD64, number::PWRITE64][direction as usize];
    let args = [register(raw), addr as usize, len as usize, offset as usize, 0, 0];
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(nr, args) }
}

/// `struct msghdr` of the kernel, `struct user_msghdr`, without control data.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Message {
    pub(crate) name: *mut u8,
    /// The bytes of the address there are; or, of a receive, those that are there to be filled, and then
    /// those that were filled or would have been.
    pub(crate) name_len: u32,
    pub(crate) vector: *mut IoVec,
    pub(crate) vector_len: usize,
    control: usize,
    control_len: usize,
    /// Of a receive, what is to be said of it: `MSG_*`.
    pub(crate) flags: u32,
}

impl Message {
    /// A message about nothing.
    pub(crate) const EMPTY: Self = Self {
        name: ptr::null_mut(),
        name_len: 0,
        vector: ptr::null_mut(),
        vector_len: 0,
        control: 0,
        control_len: 0,
        flags: 0,
    };

    /// A message of one part, with an address of as many bytes or room for one.
    pub(crate) const fn new((name, name_len): (*mut u8, u32), part: *mut IoVec) -> Self {
        Self { name, name_len, vector: part, vector_len: 1, ..Self::EMPTY }
    }

    /// A message of several parts, to whoever the socket is connected with.
    pub(crate) const fn of_parts(parts: &mut [IoVec]) -> Self {
        Self { vector: parts.as_mut_ptr(), vector_len: parts.len(), ..Self::EMPTY }
    }
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
    const DONTWAIT: usize = 0x40;
    const NOSIGNAL: usize = 0x4000;
    let nr = [number::RECVMSG, number::SENDMSG][direction as usize];
    let vector = vector.cast_mut(); // which the kernel only reads
    let mut message = Message { vector, vector_len: count, ..Message::EMPTY };
    let header = &raw mut message as usize;
    // SAFETY: the header outlives the call, names no address and no control data, and else what the
    // caller answers for.
    unsafe { syscall(nr, [register(raw), header, DONTWAIT | NOSIGNAL, 0, 0, 0]) }
}

/// `getsockname(2)` or `getpeername(2)`, by the number of the call.
///
/// # Safety
///
/// - `address` has room for as many bytes as there are at `len`, and nobody else uses either.
pub(crate) unsafe fn socket_address(
    call: usize,
    raw: i32,
    address: *mut u8,
    len: *mut u32,
) -> Result<(), Errno> {
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(call, [register(raw), address as usize, len as usize, 0, 0, 0]) }.map(|_| ())
}

/// `openat(2)`. Answers the number of a new descriptor, which is the caller's.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
pub(crate) unsafe fn openat(dir: i32, path: u64, flags: u32, mode: u32) -> Result<i32, Errno> {
    let args = [register(dir), path as usize, flags as usize, mode as usize, 0, 0];
    // SAFETY: the caller's duties are this call's.
    unsafe { syscall(number::OPENAT, args) }.map(|raw| raw as i32)
}

/// `struct open_how`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct OpenHow {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    pub(crate) resolve: u64,
}

/// `openat2(2)`. Answers the number of a new descriptor, which is the caller's. Since Linux 5.6.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
#[inline]
pub(crate) unsafe fn openat2(dir: i32, path: u64, how: &OpenHow) -> Result<i32, Errno> {
    let how = (&raw const *how as usize, size_of::<OpenHow>());
    let args = [register(dir), path as usize, how.0, how.1, 0, 0];
    // SAFETY: the structure outlives the call; else the caller's duties are this call's.
    unsafe { syscall(number::OPENAT2, args) }.map(|raw| raw as i32)
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
    unsafe { syscall(number::COPY_FILE_RANGE, args) }
}

/// `flock(2)`.
///
/// # Safety
///
/// - The descriptor is the caller's or lent to the caller.
pub(crate) unsafe fn flock(raw: i32, operation: u32) -> Result<(), Errno> {
    // SAFETY: the call touches no memory; the descriptor is the caller's duty.
    unsafe { syscall(number::FLOCK, [register(raw), operation as usize, 0, 0, 0, 0]) }.map(|_| ())
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
    unsafe { syscall(number::STATX, args) }.map(|_| ())
}

/// The type bits of what `path` names.
///
/// # Safety
///
/// - `path` is the address of bytes that end with a NUL.
pub(crate) unsafe fn file_mode(dir: i32, path: u64, flags: u32) -> Result<u32, Errno> {
    const STATX_TYPE: u32 = 1;
    let mut result = MaybeUninit::<Statx>::zeroed();
    // SAFETY: the path is the caller's to answer for, and the result is ours.
    unsafe { statx(dir, path, flags, STATX_TYPE, result.as_mut_ptr() as u64) }?;
    // SAFETY: plain integers, zeroed and then filled by the kernel.
    Ok(u32::from(unsafe { result.assume_init() }.stx_mode))
}

/// `epoll_pwait2(2)` without a signal mask. Since Linux 5.11.
pub(crate) fn epoll_pwait2(
    epoll: BorrowedFd<'_>,
    events: &mut [MaybeUninit<Event>],
    timeout: &Timespec,
) -> Result<usize, Errno> {
    let timeout = &raw const *timeout as usize;
    let args =
        [register(epoll.as_raw_fd()), events.as_mut_ptr() as usize, events.len(), timeout, 0, 0];
    // SAFETY: the kernel fills at most as many events as there are, and reads the time.
    unsafe { syscall(number::EPOLL_PWAIT2, args) }
}

/// How often the calling thread has gone to sleep of its own accord: `ru_nvcsw` of `getrusage(2)`.
pub(crate) fn voluntary_switches() -> u64 {
    const RUSAGE_THREAD: usize = 1;
    /// `ru_nvcsw` of `struct rusage`: after two times of two words and twelve more.
    const NVCSW: usize = 16;
    let mut usage = [0_u64; 18];
    let args = [RUSAGE_THREAD, usage.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the structure has 18 words, and outlives the call.
    let result = unsafe { syscall(number::GETRUSAGE, args) };
    debug_assert!(result.is_ok(), "{result:?}");
    usage[NVCSW]
}

/// The kernel's set of 64 signals: signal n is bit n - 1.
pub(crate) type SignalSet = u64;

/// How a thread's signal mask changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaskChange {
    /// Adds signals: `SIG_BLOCK`.
    Block = 0,
    /// Replaces the mask: `SIG_SETMASK`.
    Set = 2,
}

/// `rt_sigprocmask(2)` for the calling thread. Answers the mask there was.
pub(crate) fn signal_mask(change: MaskChange, set: SignalSet) -> Result<SignalSet, Errno> {
    let mut old: SignalSet = 0;
    let (set, old_set) = (&raw const set as usize, &raw mut old as usize);
    let args = [change as usize, set, old_set, size_of::<SignalSet>(), 0, 0];
    // SAFETY: both sets outlive the call.
    unsafe { syscall(number::RT_SIGPROCMASK, args) }?;
    Ok(old)
}

/// `rt_sigpending(2)`: blocked signals that wait for the calling thread.
pub(crate) fn signals_pending() -> Result<SignalSet, Errno> {
    let mut set: SignalSet = 0;
    let args = [&raw mut set as usize, size_of::<SignalSet>(), 0, 0, 0, 0];
    // SAFETY: the set outlives the call.
    unsafe { syscall(number::RT_SIGPENDING, args) }?;
    Ok(set)
}

/// `rt_sigtimedwait(2)` without waiting: takes one pending signal of the set.
pub(crate) fn take_signal(set: SignalSet) -> Result<(), Errno> {
    let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (set, time) = (&raw const set as usize, &raw const no_time as usize);
    let args = [set, 0, time, size_of::<SignalSet>(), 0, 0];
    // SAFETY: the set and the time outlive the call; nothing is written.
    unsafe { syscall(number::RT_SIGTIMEDWAIT, args) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let before = voluntary_switches();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(voluntary_switches() > before);
    }

    #[test]
    fn the_numbers_are_those_of_this_architecture() {
        let known = [
            (number::RT_SIGPROCMASK, libc::SYS_rt_sigprocmask),
            (number::PREAD64, libc::SYS_pread64),
            (number::PWRITE64, libc::SYS_pwrite64),
            (number::READV, libc::SYS_readv),
            (number::WRITEV, libc::SYS_writev),
            (number::SENDMSG, libc::SYS_sendmsg),
            (number::RECVMSG, libc::SYS_recvmsg),
            (number::FLOCK, libc::SYS_flock),
            (number::FTRUNCATE, libc::SYS_ftruncate),
            (number::FCHMOD, libc::SYS_fchmod),
            (number::FCHOWN, libc::SYS_fchown),
            (number::GETRUSAGE, libc::SYS_getrusage),
            (number::RT_SIGPENDING, libc::SYS_rt_sigpending),
            (number::RT_SIGTIMEDWAIT, libc::SYS_rt_sigtimedwait),
            (number::FSTATFS, libc::SYS_fstatfs),
            (number::FSETXATTR, libc::SYS_fsetxattr),
            (number::FGETXATTR, libc::SYS_fgetxattr),
            (number::FLISTXATTR, libc::SYS_flistxattr),
            (number::FREMOVEXATTR, libc::SYS_fremovexattr),
            (number::GETDENTS64, libc::SYS_getdents64),
            (number::FADVISE64, libc::SYS_fadvise64),
            (number::OPENAT, libc::SYS_openat),
            (number::MKDIRAT, libc::SYS_mkdirat),
            (number::FCHOWNAT, libc::SYS_fchownat),
            (number::UNLINKAT, libc::SYS_unlinkat),
            (number::LINKAT, libc::SYS_linkat),
            (number::SYMLINKAT, libc::SYS_symlinkat),
            (number::READLINKAT, libc::SYS_readlinkat),
            (number::FCHMODAT, libc::SYS_fchmodat),
            (number::UTIMENSAT, libc::SYS_utimensat),
            (number::FALLOCATE, libc::SYS_fallocate),
            (number::PREADV, libc::SYS_preadv),
            (number::PWRITEV, libc::SYS_pwritev),
            (number::SYNCFS, libc::SYS_syncfs),
            (number::RENAMEAT2, libc::SYS_renameat2),
            (number::COPY_FILE_RANGE, libc::SYS_copy_file_range),
            (number::PREADV2, libc::SYS_preadv2),
            (number::PWRITEV2, libc::SYS_pwritev2),
            (number::STATX, libc::SYS_statx),
            (number::OPENAT2, libc::SYS_openat2),
            (number::EPOLL_PWAIT2, libc::SYS_epoll_pwait2),
            (number::FCHMODAT2, libc::SYS_fchmodat2),
        ];
        for (ours, theirs) in known {
            assert_eq!(ours as libc::c_long, theirs);
        }
    }
}
