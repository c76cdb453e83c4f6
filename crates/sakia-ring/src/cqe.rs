//! Completions: what the kernel answers, 16 bytes.

use std::fmt;
use std::io;
use std::mem::size_of;

use crate::sys;

/// One completion. Field by field the kernel's `struct io_uring_cqe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    /// The entry's `user_data`.
    pub user_data: u64,
    /// The result: a count or a descriptor, or an errno with its sign turned.
    pub res: i32,
    /// [`CqeFlags`].
    pub flags: CqeFlags,
}

const _: () = assert!(size_of::<Cqe>() == size_of::<sys::io_uring_cqe>());

impl Cqe {
    /// The result, or the error it stands for.
    ///
    /// # Errors
    /// The operation's errno.
    #[inline]
    pub fn result(&self) -> io::Result<u32> {
        if self.res >= 0 {
            Ok(self.res as u32)
        } else {
            Err(io::Error::from_raw_os_error(self.res.wrapping_neg()))
        }
    }
}

/// Flags of a completion: the kernel's `IORING_CQE_F_*`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct CqeFlags(pub u32);

impl CqeFlags {
    /// More completions of the same entry will follow.
    #[doc(alias = "IORING_CQE_F_MORE")]
    #[inline]
    pub const fn has_more(self) -> bool {
        self.0 & sys::IORING_CQE_F_MORE != 0
    }

    /// The notification that a zero-copy send's buffer is free.
    #[doc(alias = "IORING_CQE_F_NOTIF")]
    pub const fn is_notification(self) -> bool {
        self.0 & sys::IORING_CQE_F_NOTIF != 0
    }

    /// The socket had more to read.
    #[doc(alias = "IORING_CQE_F_SOCK_NONEMPTY")]
    pub const fn is_socket_nonempty(self) -> bool {
        self.0 & sys::IORING_CQE_F_SOCK_NONEMPTY != 0
    }

    /// The provided buffer that was used, if one was.
    #[doc(alias = "IORING_CQE_F_BUFFER")]
    pub const fn buffer_id(self) -> Option<u16> {
        if self.0 & sys::IORING_CQE_F_BUFFER != 0 {
            Some((self.0 >> sys::IORING_CQE_BUFFER_SHIFT) as u16)
        } else {
            None
        }
    }

    /// The provided buffer was used in part, and more of it will be.
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
