//! System calls whose arguments all come from an entry: what most operations on names and attributes
//! are.
//!
//! Sources: the manual page of each call.

use rustix::io::Errno;
use sakia_ring::{Opcode, Sqe};

use crate::private;
use crate::sys::{self, abi, register, retry};

/// A system call that ends by itself, and answers a count or nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    number: u32,
    args: [usize; 6],
    /// Interrupted by a signal, it has done nothing, or nothing that doing it again would change.
    is_repeatable: bool,
}

impl Call {
    fn new<const N: usize>(number: u32, args: [usize; N]) -> Self {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&args);
        Self { number, args: all, is_repeatable: true }
    }

    /// A call that must not be repeated.
    fn once<const N: usize>(number: u32, args: [usize; N]) -> Self {
        Self { is_repeatable: false, ..Self::new(number, args) }
    }

    /// The call that performs an entry. `None` for operations that are not performed so.
    pub(crate) fn of(sqe: &Sqe) -> Option<Self> {
        let fd = register(sqe.fd);
        let (addr, off) = (sqe.addr as usize, sqe.off as usize);
        let (len, flags) = (sqe.len as usize, sqe.op_flags as usize);
        // The second directory of an entry with two paths.
        let to_dir = register(sqe.len as i32);
        let has_path = sqe.addr != 0;
        Some(match sqe.opcode {
            Opcode::MKDIRAT => Self::once(abi::__NR_mkdirat, [fd, addr, len]),
            Opcode::UNLINKAT => Self::once(abi::__NR_unlinkat, [fd, addr, flags]),
            Opcode::RENAMEAT => Self::once(abi::__NR_renameat2, [fd, addr, to_dir, off, flags]),
            Opcode::LINKAT => Self::once(abi::__NR_linkat, [fd, addr, to_dir, off, flags]),
            Opcode::SYMLINKAT => Self::once(abi::__NR_symlinkat, [addr, fd, off]),
            Opcode::FALLOCATE => Self::once(abi::__NR_fallocate, [fd, len, off, addr]),
            Opcode::FTRUNCATE => Self::new(abi::__NR_ftruncate, [fd, off]),
            Opcode::FADVISE => {
                let len = if has_path { addr } else { len };
                Self::new(abi::__NR_fadvise64, [fd, off, len, flags])
            }
            Opcode::FGETXATTR => Self::new(abi::__NR_fgetxattr, [fd, addr, off, len]),
            Opcode::FSETXATTR => Self::once(abi::__NR_fsetxattr, [fd, addr, off, len, flags]),
            private::FLISTXATTR => Self::new(abi::__NR_flistxattr, [fd, addr, len]),
            private::FREMOVEXATTR => Self::once(abi::__NR_fremovexattr, [fd, addr]),
            private::GETDENTS => Self::new(abi::__NR_getdents64, [fd, addr, len]),
            private::READLINK => Self::new(abi::__NR_readlinkat, [fd, addr, off, len]),
            private::CHMOD if !has_path => Self::new(abi::__NR_fchmod, [fd, len]),
            // The call without flags, which is there on every kernel.
            private::CHMOD if flags == 0 => Self::new(abi::__NR_fchmodat, [fd, addr, len]),
            private::CHMOD => Self::new(abi::__NR_fchmodat2, [fd, addr, len, flags]),
            private::CHOWN => {
                let (uid, gid) = (sqe.off as u32 as usize, (sqe.off >> 32) as usize);
                if has_path {
                    Self::new(abi::__NR_fchownat, [fd, addr, uid, gid, flags])
                } else {
                    Self::new(abi::__NR_fchown, [fd, uid, gid])
                }
            }
            private::UTIMENS => Self::new(abi::__NR_utimensat, [fd, addr, off, flags]),
            private::SYNCFS => Self::new(abi::__NR_syncfs, [fd]),
            private::STATFS => Self::new(abi::__NR_fstatfs, [fd, off]),
            Opcode::SOCKET => Self::new(abi::__NR_socket, [fd, off, len]),
            Opcode::BIND => Self::new(abi::__NR_bind, [fd, addr, off]),
            Opcode::LISTEN => Self::new(abi::__NR_listen, [fd, len]),
            Opcode::SHUTDOWN => Self::new(abi::__NR_shutdown, [fd, len]),
            _ => return None,
        })
    }

    /// Performs it.
    ///
    /// # Errors
    /// Its errno; `EOPNOTSUPP` for a call that this kernel does not have.
    ///
    /// # Safety
    ///
    /// - The memory and the descriptors that the entry names are lent.
    pub(crate) unsafe fn run(self) -> Result<usize, Errno> {
        let Self { number, args, is_repeatable } = self;
        // SAFETY: the arguments are an entry's: memory and descriptors that are lent, by the caller's
        // promise.
        let call = || unsafe { sys::syscall(number, args) };
        let result = if is_repeatable { retry(call) } else { call() };
        result.map_err(|errno| if errno == Errno::NOSYS { Errno::OPNOTSUPP } else { errno })
    }
}

/// `copy_file_range(2)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) from: i32,
    /// `u64::MAX` for the file's own position, as `to_offset`.
    pub(super) from_offset: u64,
    pub(super) to: i32,
    pub(super) to_offset: u64,
    pub(super) len: u32,
}

impl Copy {
    pub(super) fn of(sqe: &Sqe) -> Self {
        let Sqe { fd: from, off: from_offset, file_index: to, addr: to_offset, len, .. } = *sqe;
        Self { from, from_offset, to, to_offset, len }
    }

    /// Performs it.
    ///
    /// # Safety
    ///
    /// - The descriptors that the entry names are lent.
    pub(super) unsafe fn run(self) -> Result<usize, Errno> {
        let Self { from, from_offset, to, to_offset, len } = self;
        // SAFETY: the caller's promise.
        unsafe { sys::copy_file_range(from, from_offset, to, to_offset, len as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PERFORMED;

    #[test]
    fn what_a_call_performs_is_supported() {
        let mut count = 0;
        for code in 0..=u8::MAX {
            let opcode = Opcode(code);
            if Call::of(&Sqe::new(opcode, 0, 0, 0, 0)).is_some() {
                assert!(PERFORMED.contains(&opcode), "{opcode:?}");
                count += 1;
            }
        }
        assert_eq!(count, 23);
    }

    #[test]
    fn descriptors_are_sign_extended_and_the_rest_is_not() {
        let call = Call::of(&Sqe::renameat(-100, 8 as *const u8, -1, 16 as *const u8, 1 << 31));
        let [from_dir, from, to_dir, to, flags, _] = call.unwrap().args;
        assert_eq!((from_dir as isize, to_dir as isize), (-100, -1));
        assert_eq!((from, to, flags), (8, 16, 1 << 31));
        let call = Call::of(&private::chown(3, std::ptr::null(), u32::MAX, 7, 0)).unwrap();
        assert_eq!((call.number, call.args), (abi::__NR_fchown, [3, 0xffff_ffff, 7, 0, 0, 0]));
    }
}
