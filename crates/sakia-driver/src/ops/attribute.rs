//! Permissions, owners, and times.

use std::ffi::CString;

use sakia_ring::Sqe;

use super::at::Target;
use super::statx::StatxTime;
use crate::backend::Backend;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::op::{Op, Operation};
use crate::private;

/// See [`Handle::chmod`].
#[derive(Debug)]
pub struct Chmod {
    target: Target,
    mode: u32,
    flags: u32,
}

/// See [`Handle::chown`].
#[derive(Debug)]
pub struct Chown {
    target: Target,
    uid: u32,
    gid: u32,
    flags: u32,
}

/// See [`Handle::utimens`].
#[derive(Debug)]
pub struct Utimens {
    target: Target,
    times: [Timespec; 2],
    flags: u32,
}

/// What becomes of one of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// It stays as it is.
    #[doc(alias = "UTIME_OMIT")]
    Keep,
    /// The time of the call.
    #[doc(alias = "UTIME_NOW")]
    Now,
    /// This one.
    To(StatxTime),
}

/// The kernel's `struct timespec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

impl From<SetTime> for Timespec {
    fn from(time: SetTime) -> Self {
        /// `UTIME_NOW` and `UTIME_OMIT`.
        const NOW: i64 = (1 << 30) - 1;
        const OMIT: i64 = (1 << 30) - 2;
        match time {
            SetTime::Keep => Self { seconds: 0, nanoseconds: OMIT },
            SetTime::Now => Self { seconds: 0, nanoseconds: NOW },
            SetTime::To(time) => {
                Self { seconds: time.seconds, nanoseconds: i64::from(time.nanoseconds) }
            }
        }
    }
}

/// The owner or group that means "as it is".
const KEEP: u32 = u32::MAX;

impl<B: Backend> Handle<B> {
    /// Sets the permissions of `path`, relative to `directory` or, with `None`, to the working directory.
    /// `flags` are the kernel's `AT_*`; links are followed unless they say otherwise.
    ///
    /// # Errors
    /// - `EPERM`: somebody else's file. `EROFS`: a file system that cannot be written to.
    /// - `EOPNOTSUPP`: flags, before Linux 6.6; the permissions of a symbolic link; or the backend does not
    ///   perform it. Otherwise as `fchmodat(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `fchmodat(2)`.
    #[doc(alias = "fchmodat")]
    pub fn chmod(
        &self,
        directory: Option<&Fd>,
        path: CString,
        mode: u32,
        flags: u32,
    ) -> Op<Chmod, B> {
        let target = Target::At(self.at(directory, path));
        self.start_private(private::CHMOD, Chmod { target, mode, flags })
    }

    /// Sets the permissions of an open file. See [`chmod`](Handle::chmod).
    #[doc(alias = "fchmod")]
    pub fn chmod_fd(&self, fd: &Fd, mode: u32) -> Op<Chmod, B> {
        self.start_private(private::CHMOD, Chmod { target: self.target(fd), mode, flags: 0 })
    }

    /// Sets owner and group of `path`, relative to `directory` or, with `None`, to the working directory;
    /// `None` leaves them as they are. `flags` are the kernel's `AT_*`; links are followed unless they say
    /// otherwise.
    ///
    /// # Errors
    /// - `EPERM`: only root may. `EINVAL`: no such user here.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `fchownat(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `fchownat(2)`.
    #[doc(alias = "fchownat")]
    pub fn chown(
        &self,
        directory: Option<&Fd>,
        path: CString,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: u32,
    ) -> Op<Chown, B> {
        self.start_chown(Target::At(self.at(directory, path)), uid, gid, flags)
    }

    /// Sets owner and group of an open file. See [`chown`](Handle::chown).
    #[doc(alias = "fchown")]
    pub fn chown_fd(&self, fd: &Fd, uid: Option<u32>, gid: Option<u32>) -> Op<Chown, B> {
        self.start_chown(self.target(fd), uid, gid, 0)
    }

    fn start_chown(
        &self,
        target: Target,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: u32,
    ) -> Op<Chown, B> {
        let (uid, gid) = (uid.unwrap_or(KEEP), gid.unwrap_or(KEEP));
        self.start_private(private::CHOWN, Chown { target, uid, gid, flags })
    }

    /// Sets the times of last access and of last change of the contents of `path`, relative to `directory`
    /// or, with `None`, to the working directory. `flags` are the kernel's `AT_*`; links are followed
    /// unless they say otherwise.
    ///
    /// # Errors
    /// - `EPERM`, `EACCES`: somebody else's file. `EINVAL`: a second or more of nanoseconds.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `utimensat(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `utimensat(2)`.
    #[doc(alias = "utimensat")]
    pub fn utimens(
        &self,
        directory: Option<&Fd>,
        path: CString,
        accessed: SetTime,
        modified: SetTime,
        flags: u32,
    ) -> Op<Utimens, B> {
        self.start_utimens(Target::At(self.at(directory, path)), [accessed, modified], flags)
    }

    /// Sets the times of an open file. See [`utimens`](Handle::utimens).
    #[doc(alias = "futimens")]
    pub fn utimens_fd(&self, fd: &Fd, accessed: SetTime, modified: SetTime) -> Op<Utimens, B> {
        self.start_utimens(self.target(fd), [accessed, modified], 0)
    }

    fn start_utimens(&self, target: Target, times: [SetTime; 2], flags: u32) -> Op<Utimens, B> {
        let times = times.map(Timespec::from);
        self.start_private(private::UTIMENS, Utimens { target, times, flags })
    }
}

// SAFETY: the entry names the path, if any, whose bytes the value owns on the heap, and a descriptor that
// the value keeps open.
unsafe impl Operation for Chmod {
    fn entry(&mut self) -> Sqe {
        let Self { target, mode, flags } = self;
        private::chmod(target.raw(), target.path(), *mode, *flags)
    }

    no_output!();
    acts_on!(Bounded, target);
}

// SAFETY: as for `Chmod`.
unsafe impl Operation for Chown {
    fn entry(&mut self) -> Sqe {
        let Self { target, uid, gid, flags } = self;
        private::chown(target.raw(), target.path(), *uid, *gid, *flags)
    }

    no_output!();
    acts_on!(Bounded, target);
}

// SAFETY: as for `Chmod`; and the times, which are part of the value and stay where they are until the
// completion.
unsafe impl Operation for Utimens {
    fn entry(&mut self) -> Sqe {
        let (target, times) = (&self.target, self.times.as_ptr());
        private::utimens(target.raw(), target.path(), times, self.flags)
    }

    no_output!();
    acts_on!(Bounded, target);
}
