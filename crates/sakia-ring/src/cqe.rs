//! Completions: the kernel's 16-byte results.

use std::fmt;
use std::io;
use std::mem::size_of;

use rustix::io::Errno;

use crate::sys;

/// One completion. Field by field the kernel's `struct io_uring_cqe`.
///
/// # Examples
/// ```
/// use sakia_ring::{Cqe, CqeFlags};
///
/// let done = Cqe { user_data: 7, res: 512, flags: CqeFlags(0) };
/// assert_eq!(done.result().unwrap(), 512);
/// let failed = Cqe { res: -9, ..done };
/// assert_eq!(failed.result().unwrap_err().raw_os_error(), Some(9));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    /// The entry's `user_data`.
    pub user_data: u64,
    /// The result: a count, a descriptor, or a negated errno. Raw: it may be one of the kernel's internal
    /// codes, see [`result`](Cqe::result).
    pub res: i32,
    /// [`CqeFlags`].
    pub flags: CqeFlags,
}

const _: () = assert!(size_of::<Cqe>() == size_of::<sys::io_uring_cqe>());

impl Cqe {
    /// Returns the result, or the error it stands for.
    ///
    /// # Errors
    /// The operation's errno; `EINTR` also for the kernel's internal restart codes.
    ///
    /// # Examples
    /// See [`Cqe`](Cqe#examples).
    #[inline]
    pub fn result(&self) -> io::Result<u32> {
        if self.res >= 0 { Ok(self.res as u32) } else { Err(Self::error_of(self.res)) }
    }

    /// Returns the error for a negative [`res`](Cqe::res): `EINTR` for the kernel's four restart codes (512
    /// to 514, and 516).
    ///
    /// A system call never returns these, but an operation canceled while it runs on a worker may complete
    /// with one (opening a FIFO on Linux 6.18 does).
    ///
    /// # Kernel
    /// Source: `include/linux/errno.h`.
    #[cold]
    pub fn error_of(res: i32) -> io::Error {
        let errno = match res.wrapping_neg() {
            // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK. Between them is
            // ENOIOCTLCMD, which means something else.
            512..=514 | 516 => Errno::INTR.raw_os_error(),
            errno => errno,
        };
        io::Error::from_raw_os_error(errno)
    }
}

/// Flags of a completion: the kernel's `IORING_CQE_F_*`.
///
/// # Examples
/// Of a multishot receive, into the provided buffer number 3:
/// ```
/// use sakia_ring::CqeFlags;
///
/// let flags = CqeFlags(3 << 16 | 0b11);
/// assert_eq!((flags.buffer_id(), flags.has_more()), (Some(3), true));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct CqeFlags(pub u32);

impl CqeFlags {
    /// Returns whether more completions of the same entry will follow.
    ///
    /// # Examples
    /// See [`CqeFlags`](CqeFlags#examples).
    #[doc(alias = "IORING_CQE_F_MORE")]
    #[inline]
    pub const fn has_more(self) -> bool {
        self.0 & sys::IORING_CQE_F_MORE != 0
    }

    /// Returns whether this is the notification that a zero-copy send has released its buffer.
    #[doc(alias = "IORING_CQE_F_NOTIF")]
    pub const fn is_notification(self) -> bool {
        self.0 & sys::IORING_CQE_F_NOTIF != 0
    }

    /// Returns whether the socket had more data to read.
    #[doc(alias = "IORING_CQE_F_SOCK_NONEMPTY")]
    pub const fn is_socket_nonempty(self) -> bool {
        self.0 & sys::IORING_CQE_F_SOCK_NONEMPTY != 0
    }

    /// Returns the id of the provided buffer that was used, if one was.
    ///
    /// # Examples
    /// See [`CqeFlags`](CqeFlags#examples).
    #[doc(alias = "IORING_CQE_F_BUFFER")]
    pub const fn buffer_id(self) -> Option<u16> {
        if self.0 & sys::IORING_CQE_F_BUFFER != 0 {
            Some((self.0 >> sys::IORING_CQE_BUFFER_SHIFT) as u16)
        } else {
            None
        }
    }

    /// Returns whether the provided buffer was used in part and later completions will use the rest.
    #[doc(alias = "IORING_CQE_F_BUF_MORE")]
    pub const fn has_more_buffer(self) -> bool {
        self.0 & sys::IORING_CQE_F_BUF_MORE != 0
    }
}

impl fmt::Debug for CqeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqeFlags({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(res: i32, flags: u32) -> Cqe {
        Cqe { user_data: 1, res, flags: CqeFlags(flags) }
    }

    #[test]
    fn a_result_is_a_count_or_an_errno() {
        assert_eq!(cqe(0, 0).result().unwrap(), 0);
        assert_eq!(cqe(i32::MAX, 0).result().unwrap(), i32::MAX as u32);
        assert_eq!(cqe(-5, 0).result().unwrap_err().raw_os_error(), Some(5));
        for restart in [512, 513, 514, 516] {
            assert_eq!(cqe(-restart, 0).result().unwrap_err().raw_os_error(), Some(4));
        }
        for other in [511, 515, 517] {
            assert_eq!(cqe(-other, 0).result().unwrap_err().raw_os_error(), Some(other));
        }
        // A kernel never returns this; a host may.
        assert!(cqe(i32::MIN, 0).result().is_err());
    }

    #[test]
    fn each_flag_is_told_from_the_others() {
        let said = |flags: u32| {
            let flags = CqeFlags(flags);
            [
                flags.buffer_id().is_some(),
                flags.has_more(),
                flags.is_socket_nonempty(),
                flags.is_notification(),
                flags.has_more_buffer(),
            ]
        };
        for bit in 0..5 {
            let mut expected = [false; 5];
            expected[bit] = true;
            assert_eq!(said(1 << bit), expected, "bit {bit}");
        }
        assert_eq!(CqeFlags(0xffff << 16 | 1).buffer_id(), Some(0xffff));
        assert_eq!(CqeFlags(0xffff << 16).buffer_id(), None);
    }
}
