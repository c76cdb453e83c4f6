//! Operations that no ring has: numbers of the driver's own, and entries for them.
//!
//! Such an entry is performed by a plain system call, on a thread of a lane or by the simulated kernel.
//! It must never reach a ring, which would refuse it at best and take it for something newer at worst:
//! the numbers are ones that the kernel, which counts up from zero, is far away from, and a backend
//! over a ring says that it does not support them. What it does not support is not pushed; see
//! [`Handle::start_private`](crate::Handle).
//!
//! Sources: the manual page of each call.

use sakia_ring::{Opcode, Sqe};

/// The first of the numbers. All from here on are the driver's.
const FIRST: u8 = 0xe0;

macro_rules! private {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: Opcode = Opcode(FIRST + $number);)*

        /// All of them.
        #[cfg(test)]
        pub(crate) const ALL: [Opcode; [$($number),*].len()] = [$($name),*];
    };
}

private! {
    /// `getdents64(2)` on `fd`, into `len` bytes at `addr`.
    GETDENTS = 0;
    /// `readlinkat(2)` of the path at `addr` relative to `fd`, into `len` bytes at `off`.
    READLINK = 1;
    /// `fchmodat2(2)` of the path at `addr` relative to `fd`, to the mode `len`, with the flags
    /// `op_flags`; `fchmod(2)` without a path.
    CHMOD = 2;
    /// `fchownat(2)` of the path at `addr` relative to `fd`, with the flags `op_flags`; `fchown(2)`
    /// without a path. The low half of `off` is the owner, the high half the group.
    CHOWN = 3;
    /// `utimensat(2)` of the path at `addr`, if any, relative to `fd`, with the flags `op_flags`, to the
    /// two times at `off`.
    UTIMENS = 4;
    /// `copy_file_range(2)` of `len` bytes from `fd` at `off` to `file_index` at `addr`. An offset of
    /// `u64::MAX` is the file's own position.
    COPY_FILE_RANGE = 5;
    /// `syncfs(2)` on `fd`.
    SYNCFS = 6;
    /// `flock(2)` on `fd`, with the operation `op_flags`.
    FLOCK = 7;
    /// `fstatfs(2)` on `fd`, into the `struct statfs` at `off`.
    STATFS = 8;
    /// `flistxattr(2)` on `fd`, into `len` bytes at `addr`.
    FLISTXATTR = 9;
    /// `fremovexattr(2)` on `fd`, of the name at `addr`.
    FREMOVEXATTR = 10;
    /// Waits until somebody has opened the FIFO `fd` to write, or has done so meanwhile.
    AWAIT_WRITER = 11;
}

/// Every operation that a backend without a ring performs: those of a ring that the driver uses, and its
/// own.
pub(crate) const PERFORMED: [Opcode; 46] = [
    Opcode::NOP,
    Opcode::READV,
    Opcode::WRITEV,
    Opcode::FSYNC,
    Opcode::READ_FIXED,
    Opcode::WRITE_FIXED,
    Opcode::POLL_ADD,
    Opcode::ASYNC_CANCEL,
    Opcode::OPENAT,
    Opcode::CLOSE,
    Opcode::STATX,
    Opcode::READ,
    Opcode::WRITE,
    Opcode::FALLOCATE,
    Opcode::FADVISE,
    Opcode::OPENAT2,
    Opcode::RENAMEAT,
    Opcode::UNLINKAT,
    Opcode::MKDIRAT,
    Opcode::SYMLINKAT,
    Opcode::LINKAT,
    Opcode::FSETXATTR,
    Opcode::FGETXATTR,
    Opcode::FTRUNCATE,
    Opcode::SOCKET,
    Opcode::BIND,
    Opcode::LISTEN,
    Opcode::ACCEPT,
    Opcode::CONNECT,
    Opcode::SEND,
    Opcode::RECV,
    Opcode::SENDMSG,
    Opcode::RECVMSG,
    Opcode::SHUTDOWN,
    GETDENTS,
    READLINK,
    CHMOD,
    CHOWN,
    UTIMENS,
    COPY_FILE_RANGE,
    SYNCFS,
    FLOCK,
    STATFS,
    FLISTXATTR,
    FREMOVEXATTR,
    AWAIT_WRITER,
];

/// Whether an operation is one of the driver's own, which no ring must see.
#[inline(always)]
pub(crate) const fn is_private(opcode: Opcode) -> bool {
    opcode.0 >= FIRST
}

/// The address as an entry has it; see `Sqe`.
fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

pub(crate) fn getdents(fd: i32, buf: *mut u8, len: u32) -> Sqe {
    Sqe::new(GETDENTS, fd, address(buf), len, 0)
}

pub(crate) fn await_writer(fd: i32) -> Sqe {
    Sqe::new(AWAIT_WRITER, fd, 0, 0, 0)
}

pub(crate) fn readlink(dir: i32, path: *const u8, buf: *mut u8, len: u32) -> Sqe {
    Sqe::new(READLINK, dir, address(path), len, address(buf))
}

/// The path is null for the descriptor itself, here and below.
pub(crate) fn chmod(dir: i32, path: *const u8, mode: u32, flags: u32) -> Sqe {
    Sqe::new(CHMOD, dir, address(path), mode, 0).op_flags(flags)
}

pub(crate) fn chown(dir: i32, path: *const u8, uid: u32, gid: u32, flags: u32) -> Sqe {
    let owners = u64::from(uid) | u64::from(gid) << 32;
    Sqe::new(CHOWN, dir, address(path), 0, owners).op_flags(flags)
}

pub(crate) fn utimens<T>(dir: i32, path: *const u8, times: *const T, flags: u32) -> Sqe {
    Sqe::new(UTIMENS, dir, address(path), 0, address(times)).op_flags(flags)
}

pub(crate) fn copy_file_range(from: i32, from_off: u64, to: i32, to_off: u64, len: u32) -> Sqe {
    Sqe { file_index: to, ..Sqe::new(COPY_FILE_RANGE, from, to_off, len, from_off) }
}

pub(crate) fn syncfs(fd: i32) -> Sqe {
    Sqe::new(SYNCFS, fd, 0, 0, 0)
}

pub(crate) fn flock(fd: i32, operation: u32) -> Sqe {
    Sqe::new(FLOCK, fd, 0, 0, 0).op_flags(operation)
}

pub(crate) fn statfs<T>(fd: i32, result: *mut T) -> Sqe {
    Sqe::new(STATFS, fd, 0, 0, address(result))
}

pub(crate) fn flistxattr(fd: i32, buf: *mut u8, len: u32) -> Sqe {
    Sqe::new(FLISTXATTR, fd, address(buf), len, 0)
}

pub(crate) fn fremovexattr(fd: i32, name: *const u8) -> Sqe {
    Sqe::new(FREMOVEXATTR, fd, address(name), 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_far_from_the_kernels() {
        let known = (0..=u8::MAX).filter(|&code| Opcode(code).name().is_some());
        let last = known.max().unwrap();
        assert!(last < FIRST / 2, "the kernel has come as far as {last}");
        for (index, opcode) in ALL.into_iter().enumerate() {
            assert!(is_private(opcode), "{opcode:?}");
            assert!(!ALL[..index].contains(&opcode), "{opcode:?} stands for two");
        }
        assert!(!is_private(Opcode(FIRST - 1)) && is_private(Opcode(u8::MAX)));
    }
}
