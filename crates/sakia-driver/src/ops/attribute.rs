//! Permissions, owners, and times.

use std::ffi::CString;

use super::at::Target;
use super::statx::StatxTime;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::handle::Op;
use crate::operation::Operation;

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

impl Handle {
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
    pub fn chmod(&self, directory: Option<&Fd>, path: CString, mode: u32, flags: u32) -> Op<Chmod> {
        let target = Target::At(self.at(directory, path));
        self.start(Chmod { target, mode, flags })
    }

    /// Sets the permissions of an open file. See [`chmod`](Handle::chmod).
    #[doc(alias = "fchmod")]
    pub fn chmod_fd(&self, fd: &Fd, mode: u32) -> Op<Chmod> {
        self.start(Chmod { target: self.target(fd), mode, flags: 0 })
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
    ) -> Op<Chown> {
        self.start_chown(Target::At(self.at(directory, path)), uid, gid, flags)
    }

    /// Sets owner and group of an open file. See [`chown`](Handle::chown).
    #[doc(alias = "fchown")]
    pub fn chown_fd(&self, fd: &Fd, uid: Option<u32>, gid: Option<u32>) -> Op<Chown> {
        self.start_chown(self.target(fd), uid, gid, 0)
    }

    fn start_chown(
        &self,
        target: Target,
        uid: Option<u32>,
        gid: Option<u32>,
        flags: u32,
    ) -> Op<Chown> {
        let (uid, gid) = (uid.unwrap_or(KEEP), gid.unwrap_or(KEEP));
        self.start(Chown { target, uid, gid, flags })
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
    ) -> Op<Utimens> {
        self.start_utimens(Target::At(self.at(directory, path)), [accessed, modified], flags)
    }

    /// Sets the times of an open file. See [`utimens`](Handle::utimens).
    #[doc(alias = "futimens")]
    pub fn utimens_fd(&self, fd: &Fd, accessed: SetTime, modified: SetTime) -> Op<Utimens> {
        self.start_utimens(self.target(fd), [accessed, modified], 0)
    }

    fn start_utimens(&self, target: Target, times: [SetTime; 2], flags: u32) -> Op<Utimens> {
        let times = times.map(Timespec::from);
        self.start(Utimens { target, times, flags })
    }
}

// SAFETY: the entry names the path, if any, whose bytes the value owns on the heap, and a descriptor that
// the value keeps open.
unsafe impl Operation for Chmod {
    const KIND: OpKind = OpKind::Attribute;

    fn call(&mut self) -> Call {
        let Self { target, mode, flags } = self;
        let (raw, path, mode) = (target.raw(), target.path(), *mode as usize);
        match *flags {
            _ if path.is_null() => System::on(Function::Fchmod, raw, [mode]),
            // The call without flags, which is there on every kernel.
            0 => System::on(Function::Fchmodat, raw, [word(path), mode]),
            flags => System::on(Function::Fchmodat2, raw, [word(path), mode, flags as usize]),
        }
    }

    no_output!();
    acts_on!(Bounded, target);
}

// SAFETY: as for `Chmod`.
unsafe impl Operation for Chown {
    const KIND: OpKind = OpKind::Attribute;

    fn call(&mut self) -> Call {
        let Self { target, uid, gid, flags } = self;
        let (raw, path) = (target.raw(), target.path());
        let (uid, gid) = (*uid as usize, *gid as usize);
        if path.is_null() {
            return System::on(Function::Fchown, raw, [uid, gid]);
        }
        System::on(Function::Fchownat, raw, [word(path), uid, gid, *flags as usize])
    }

    no_output!();
    acts_on!(Bounded, target);
}

// SAFETY: as for `Chmod`; and the times, which are part of the value and stay where they are until the
// completion.
unsafe impl Operation for Utimens {
    const KIND: OpKind = OpKind::Attribute;

    fn call(&mut self) -> Call {
        let Self { target, times, flags } = self;
        let args = [word(target.path()), word(times.as_ptr()), *flags as usize];
        System::on(Function::Utimensat, target.raw(), args)
    }

    no_output!();
    acts_on!(Bounded, target);
}
