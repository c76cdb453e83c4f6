//! Status of files and file systems.

use std::cell::Cell;
use std::ffi::CString;
use std::rc::Rc;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sakia_ring::Sqe;

use super::at::At;
use super::open::path_route;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::decide::{Route, Rule};
use crate::fd::{Fd, Owner};
use crate::handle::{Handle, Op};
use crate::stat::are_known;

pub use crate::stat::{StatxResult, StatxTime};

/// See [`Handle::statx`].
#[derive(Debug)]
pub struct Statx {
    at: At,
    flags: u32,
    result: Cell<StatxResult>,
    /// Set if the choice of the route has already filled the result.
    is_known: Cell<bool>,
    owner: Rc<dyn Owner>,
}

/// The status of a file system: field by field `struct statfs`; see `statfs(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct StatfsResult {
    /// The type: one of the kernel's `*_MAGIC`.
    #[doc(alias = "f_type")]
    pub magic: u64,
    /// The preferred size of a transfer in bytes.
    pub block_size: u64,
    /// Size in fragments.
    pub blocks: u64,
    /// Free fragments.
    pub blocks_free: u64,
    /// Fragments free for users other than root.
    pub blocks_available: u64,
    /// Inodes, if their number is limited.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Identifies the mounted file system, if supported.
    pub id: [i32; 2],
    /// The longest name in bytes.
    pub name_bytes_max: u64,
    /// Size of a fragment in bytes.
    pub fragment_size: u64,
    /// The kernel's `ST_*` bits.
    pub flags: u64,
    spare: [u64; 4],
}

const _: () = assert!(size_of::<StatfsResult>() == 120);

/// See [`Handle::statfs`].
#[derive(Debug)]
pub struct Statfs {
    fd: Fd,
    result: StatfsResult,
}

impl Handle {
    /// Returns the status of `path`, relative to `directory` or, with `None`, to the working directory.
    /// `flags` are the kernel's `AT_*`.
    ///
    /// # Errors
    /// - `EINVAL`: a flag newer than the first `statx(2)`, or both of `AT_STATX_FORCE_SYNC` and
    ///   `AT_STATX_DONT_SYNC`. Otherwise as `statx(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
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
    /// let status = run(&driver, driver.statx(None, c"Cargo.toml".into(), 0))??;
    /// assert_eq!(status.size, std::fs::metadata("Cargo.toml")?.len());
    /// let error = run(&driver, driver.statx(None, c"missing".into(), 0))?.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_statx(3)`.
    pub fn statx(&self, directory: Option<&Fd>, path: CString, flags: u32) -> Op<Statx> {
        self.start_statx(self.at(directory, path), flags)
    }

    /// Returns the status of an open file.
    ///
    /// # Errors
    /// As `fstat(2)`.
    ///
    /// # Examples
    /// See [`Handle`](Handle#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_statx(3)` with `AT_EMPTY_PATH`.
    #[doc(alias = "fstat")]
    pub fn statx_fd(&self, fd: &Fd) -> Op<Statx> {
        self.start_statx(self.at_fd(fd), AtFlags::EMPTY_PATH.bits())
    }

    /// Returns the status of the file system of `fd`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the backend does not perform it. Otherwise as `fstatfs(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `fstatfs(2)`.
    #[doc(alias = "fstatfs")]
    pub fn statfs(&self, fd: &Fd) -> Op<Statfs> {
        let result = StatfsResult::default();
        self.start(Statfs { fd: self.held(fd), result })
    }

    fn start_statx(&self, at: At, flags: u32) -> Op<Statx> {
        let (result, is_known) = <_>::default();
        let statx = Statx { at, flags, result, is_known, owner: self.owner() };
        if are_known(flags) { self.start(statx) } else { self.refuse(statx, Errno::INVAL) }
    }
}

impl Statx {
    fn path(&self) -> *const u8 {
        self.at.c_path().unwrap_or_default().as_ptr().cast()
    }

    /// Returns the route of a query about an open file. If nothing is known about the descriptor, finding the
    /// route makes the same call, which then provides the result, too.
    fn route_of(&self, fd: &Fd, rule: Rule) -> Route {
        if rule.tries_now
            && let Some(result) = fd.learn_with_stat()
        {
            self.result.set(result);
            self.is_known.set(true);
        }
        fd.route_call(rule)
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap or which is static; the result,
// which is part of the value and does not move until the completion; and a descriptor that the value keeps
// open.
operation! {
    unsafe |it: Statx| Bounded, at; Statx;
    entry {
        let (path, result) = (it.path(), it.result.as_ptr());
        Sqe::statx(it.at.raw(), path, it.flags, StatxResult::BASIC, result)
    };
    call if it.is_known.get() {
        Call::Nop
    } else {
        let (path, result) = (it.path(), it.result.as_ptr());
        let (flags, mask) = (it.flags as usize, StatxResult::BASIC as usize);
        System::on(Function::Statx, it.at.raw(), [word(path), flags, mask, word(result)])
    };
    route |rules| match (it.at.c_path(), it.at.descriptor()) {
        (None, Some(fd)) => it.route_of(fd, rules.of(OpKind::Statx)),
        _ => path_route(rules, OpKind::Statx, &it.at, &*it.owner),
    };
    output StatxResult, |completion| completion.result().map(|_| it.result.get());
}

// SAFETY: the entry names the result, which is part of the value and does not move until the completion, and
// a descriptor that the value keeps open.
operation! {
    unsafe |it: Statfs| Bounded, fd; Statx;
    call System::on(Function::Fstatfs, it.fd.raw(), [word(&raw mut it.result)]);
    output StatfsResult, |completion| completion.result().map(|_| it.result);
}
