//! Permissions, owners, and times.

use std::ffi::CString;

use super::at::At;
use super::statx::StatxTime;
use crate::call::{Function, System, word};
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::chmod`].
#[derive(Debug)]
pub struct Chmod {
    at: At,
    mode: u32,
    flags: u32,
}

/// See [`Handle::chown`].
#[derive(Debug)]
pub struct Chown {
    at: At,
    /// Owner and group.
    ids: [u32; 2],
    flags: u32,
}

/// See [`Handle::utimens`].
#[derive(Debug)]
pub struct Utimens {
    at: At,
    times: [Timespec; 2],
    flags: u32,
}

/// A change of one of a file's times.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use sakia_driver::{SetTime, StatxTime};
///
/// # use std::future::Future;
/// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return Ok(output);
/// #         }
/// #         driver.turn(sakia_driver::Wait::Forever)?;
/// #     }
/// # }
/// # fn main() -> std::io::Result<()> {
/// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
/// # let path = std::env::temp_dir().join(format!("sakia-driver-utimens-{}", std::process::id()));
/// let file = driver.adopt(std::fs::File::create(&path)?.into());
/// let then = SetTime::To(StatxTime::new(1_000_000_000, 5));
/// run(&driver, driver.utimens_fd(&file, SetTime::Keep, then))??;
/// let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
/// assert_eq!(std::fs::metadata(&path)?.modified()?, then);
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Unchanged.
    #[doc(alias = "UTIME_OMIT")]
    Keep,
    /// The time of the call.
    #[doc(alias = "UTIME_NOW")]
    Now,
    /// This time.
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
        /// `UTIME_NOW` and `UTIME_OMIT`, as nanoseconds.
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

/// The owner or group that means "unchanged".
const KEEP: u32 = u32::MAX;

impl Handle {
    /// Sets the permissions of `path`, relative to `directory` or, with `None`, to the working directory.
    /// `flags` are the kernel's `AT_*`; symbolic links are followed unless they say otherwise.
    ///
    /// # Errors
    /// - `EPERM`: the file belongs to another user. `EROFS`: a read-only file system.
    /// - `EOPNOTSUPP`: flags, before Linux 6.6; the permissions of a symbolic link; or the backend does not
    ///   perform it. Otherwise as `fchmodat(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-chmod-{}", std::process::id()));
    /// let file = driver.adopt(std::fs::File::create(&path)?.into());
    /// run(&driver, driver.chmod_fd(&file, 0o640))??;
    /// assert_eq!(std::fs::metadata(&path)?.permissions().mode() & 0o777, 0o640);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `fchmodat(2)`.
    #[doc(alias = "fchmodat")]
    pub fn chmod(&self, directory: Option<&Fd>, path: CString, mode: u32, flags: u32) -> Op<Chmod> {
        self.start(Chmod { at: self.at(directory, path), mode, flags })
    }

    /// Sets the permissions of an open file. See [`chmod`](Handle::chmod).
    ///
    /// # Examples
    /// See [`Handle::chmod`].
    #[doc(alias = "fchmod")]
    pub fn chmod_fd(&self, fd: &Fd, mode: u32) -> Op<Chmod> {
        self.start(Chmod { at: self.at_fd(fd), mode, flags: 0 })
    }

    /// Sets owner and group of `path`, relative to `directory` or, with `None`, to the working directory;
    /// `None` leaves an id unchanged. `flags` are the kernel's `AT_*`; symbolic links are followed unless
    /// they say otherwise.
    ///
    /// # Errors
    /// - `EPERM`: only a privileged process may. `EINVAL`: no such user here.
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
        self.start_chown(self.at(directory, path), [uid, gid], flags)
    }

    /// Sets owner and group of an open file. See [`chown`](Handle::chown).
    #[doc(alias = "fchown")]
    pub fn chown_fd(&self, fd: &Fd, uid: Option<u32>, gid: Option<u32>) -> Op<Chown> {
        self.start_chown(self.at_fd(fd), [uid, gid], 0)
    }

    fn start_chown(&self, at: At, ids: [Option<u32>; 2], flags: u32) -> Op<Chown> {
        self.start(Chown { at, ids: ids.map(|id| id.unwrap_or(KEEP)), flags })
    }

    /// Sets the times of the last access and the last change of the contents of `path`, relative to
    /// `directory` or, with `None`, to the working directory. `flags` are the kernel's `AT_*`; links are
    /// followed unless they say otherwise.
    ///
    /// # Errors
    /// - `EPERM`, `EACCES`: the file belongs to another user. `EINVAL`: nanoseconds of a second or more.
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
        self.start_utimens(self.at(directory, path), [accessed, modified], flags)
    }

    /// Sets the times of an open file. See [`utimens`](Handle::utimens).
    ///
    /// # Examples
    /// See [`SetTime`](SetTime#examples).
    #[doc(alias = "futimens")]
    pub fn utimens_fd(&self, fd: &Fd, accessed: SetTime, modified: SetTime) -> Op<Utimens> {
        self.start_utimens(self.at_fd(fd), [accessed, modified], 0)
    }

    fn start_utimens(&self, at: At, times: [SetTime; 2], flags: u32) -> Op<Utimens> {
        self.start(Utimens { at, times: times.map(Timespec::from), flags })
    }
}

// SAFETY: the entry names the path, if any, whose bytes the value owns on the heap, and a descriptor that
// the value keeps open.
operation! {
    unsafe |it: Chmod| Bounded, at; Attribute;
    call {
        let (raw, path, mode) = (it.at.raw(), it.at.path(), it.mode as usize);
        match it.flags {
            _ if path.is_null() => System::on(Function::Fchmod, raw, [mode]),
            // The call without flags, which every kernel has.
            0 => System::on(Function::Fchmodat, raw, [word(path), mode]),
            flags => System::on(Function::Fchmodat2, raw, [word(path), mode, flags as usize]),
        }
    };
}

// SAFETY: as for `Chmod`.
operation! {
    unsafe |it: Chown| Bounded, at; Attribute;
    call {
        let (raw, path, [uid, gid]) = (it.at.raw(), it.at.path(), it.ids.map(|id| id as usize));
        if path.is_null() {
            System::on(Function::Fchown, raw, [uid, gid])
        } else {
            System::on(Function::Fchownat, raw, [word(path), uid, gid, it.flags as usize])
        }
    };
}

// SAFETY: as for `Chmod`; and the times, which are part of the value and do not move until the completion.
operation! {
    unsafe |it: Utimens| Bounded, at; Attribute;
    call {
        let args = [word(it.at.path()), word(it.times.as_ptr()), it.flags as usize];
        System::on(Function::Utimensat, it.at.raw(), args)
    };
}
