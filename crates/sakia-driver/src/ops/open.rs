//! Opening a path, with or without rules for its resolution.

use std::ffi::CString;
use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use super::at::At;
use crate::call::{self, Call, address};
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Lane, Retry, Route, Rules};
use crate::fd::{Fd, Owner};
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::sys::abi;
use crate::sys::open::open_flags;

/// `O_CLOEXEC`: descriptors of a driver are not inherited by programs that the process starts.
pub(super) const CLOEXEC: u32 = abi::O_CLOEXEC;

/// See [`Handle::open`].
#[derive(Debug)]
pub struct Open {
    at: At,
    flags: u32,
    mode: u32,
    /// The driver added `O_NONBLOCK` to the caller's flags.
    is_nonblock_added: bool,
    /// The open may block for ever.
    waits: bool,
    owner: Rc<dyn Owner>,
}

/// Options to open a path: `struct open_how`.
///
/// # Examples
/// A path that may not lead out of its directory:
/// ```
/// use sakia_driver::OpenHow;
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
/// let directory = driver.adopt(std::fs::File::open("src")?.into());
/// let how = OpenHow { resolve: OpenHow::BENEATH, ..OpenHow::default() };
/// run(&driver, driver.openat2(Some(&directory), c"lib.rs".into(), how))??;
/// let outside = driver.openat2(Some(&directory), c"../Cargo.toml".into(), how);
/// let error = run(&driver, outside)?.unwrap_err();
/// assert_eq!(error.raw_os_error(), Some(libc::EXDEV));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OpenHow {
    /// The kernel's `O_*`. Unknown ones are refused.
    pub flags: u64,
    /// Permissions of a created file; 0 unless one may be created.
    pub mode: u64,
    /// The kernel's `RESOLVE_*`.
    pub resolve: u64,
}

impl OpenHow {
    /// No mount is crossed.
    #[doc(alias = "RESOLVE_NO_XDEV")]
    pub const NO_MOUNTS: u64 = abi::RESOLVE_NO_XDEV as u64;
    /// No link of `/proc` that leads to an open file is followed.
    #[doc(alias = "RESOLVE_NO_MAGICLINKS")]
    pub const NO_MAGIC_LINKS: u64 = abi::RESOLVE_NO_MAGICLINKS as u64;
    /// No symbolic link is followed.
    #[doc(alias = "RESOLVE_NO_SYMLINKS")]
    pub const NO_SYMLINKS: u64 = abi::RESOLVE_NO_SYMLINKS as u64;
    /// Nothing outside of the directory is reached; attempts are refused.
    #[doc(alias = "RESOLVE_BENEATH")]
    pub const BENEATH: u64 = abi::RESOLVE_BENEATH as u64;
    /// The directory is the root of the lookup.
    #[doc(alias = "RESOLVE_IN_ROOT")]
    pub const IN_ROOT: u64 = abi::RESOLVE_IN_ROOT as u64;
    /// Only from the kernel's caches; `EAGAIN` otherwise.
    #[doc(alias = "RESOLVE_CACHED")]
    pub const CACHED: u64 = abi::RESOLVE_CACHED as u64;
}

/// See [`Handle::openat2`].
#[derive(Debug)]
pub struct Openat2 {
    at: At,
    how: OpenHow,
    /// The driver added `O_NONBLOCK` to the caller's flags.
    is_nonblock_added: bool,
    owner: Rc<dyn Owner>,
}

impl Handle {
    /// Opens `path`, relative to `directory` or, with `None`, to the working directory. `flags` are the
    /// kernel's `O_*`, with `O_CLOEXEC` always added; `mode` are the permissions of a file that is
    /// created.
    ///
    /// If the handle was dropped, a newly opened descriptor is closed.
    ///
    /// The open does not wait for another program, because the file is opened with `O_NONBLOCK`. A FIFO is
    /// opened at once for reading, and for writing only if it has a reader (`ENXIO`). The flag is removed
    /// from every kind of descriptor to which it matters; a regular file, to which it does not, may keep it.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: no descriptor left.
    /// - `ECANCELED`: canceled before it began. Otherwise as `openat(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::ffi::CString;
    /// use std::os::unix::ffi::OsStrExt;
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
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-open-{}", std::process::id()));
    /// let name = CString::new(path.as_os_str().as_bytes())?;
    /// let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) as u32;
    /// let file = run(&driver, driver.open(None, name, flags, 0o600))??;
    /// run(&driver, driver.write(&file, "new", 0))?.0?;
    /// run(&driver, driver.close(file))??;
    /// assert_eq!(std::fs::read(&path)?, b"new");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_openat(3)`.
    #[doc(alias = "openat")]
    pub fn open(&self, directory: Option<&Fd>, path: CString, flags: u32, mode: u32) -> Op<Open> {
        let (at, owner) = (self.at(directory, path), self.owner());
        let (flags, is_nonblock_added) = open_flags(flags);
        self.start(Open { at, flags, mode, is_nonblock_added, waits: false, owner })
    }

    /// Opens as [`open`](Handle::open), but waits as `openat(2)` does: for the other end of a FIFO, for the
    /// line of a terminal. It does so on a thread of the elastic lane, which stays occupied until then, even
    /// if the handle is dropped.
    pub fn open_waiting(
        &self,
        directory: Option<&Fd>,
        path: CString,
        flags: u32,
        mode: u32,
    ) -> Op<Open> {
        let (at, owner) = (self.at(directory, path), self.owner());
        let flags = flags | CLOEXEC;
        self.start(Open { at, flags, mode, is_nonblock_added: false, waits: true, owner })
    }

    /// Opens `path`, relative to `directory` or, with `None`, to the working directory, with the options
    /// `how`, and `O_CLOEXEC` always added. Otherwise as [`open`](Handle::open).
    ///
    /// If the handle was dropped, a newly opened descriptor is closed.
    ///
    /// # Errors
    /// - `EINVAL`: an unknown flag, or permissions although no file may be created.
    /// - `EXDEV`: the path leads out of the bounds of `how.resolve`.
    /// - `ELOOP`: a link although `how.resolve` allows none.
    /// - `EAGAIN`: a concurrent rename may have moved the path out of its bounds; or with
    ///   [`CACHED`](OpenHow::CACHED) the kernel would have to ask the file system.
    /// - `ECANCELED`: canceled before it began. Otherwise as `openat2(2)`.
    ///
    /// # Examples
    /// See [`OpenHow`](crate::OpenHow#examples).
    ///
    /// # Kernel
    /// 5.6; without `how.resolve` on epoll any. Source: `io_uring_prep_openat2(3)`, `openat2(2)`.
    pub fn openat2(&self, directory: Option<&Fd>, path: CString, how: OpenHow) -> Op<Openat2> {
        let (flags, is_nonblock_added) = open_flags(how.flags as u32);
        let how = OpenHow { flags: how.flags | u64::from(flags), ..how };
        let (at, owner) = (self.at(directory, path), self.owner());
        self.start(Openat2 { at, how, is_nonblock_added, owner })
    }

    /// Waits until the FIFO `fd`, opened for reading, has had a writer: until an
    /// [`open_waiting`](Handle::open_waiting) of it would have returned. It occupies a thread of the elastic
    /// lane until then, even if the handle is dropped.
    ///
    /// # Errors
    /// - `EINVAL`: not a FIFO opened for reading. `ECANCELED`: canceled before it began.
    ///
    /// # Kernel
    /// A plain poll, on a thread of a lane. Source: `fifo(7)`.
    pub fn await_writer(&self, fd: &Fd) -> Op<AwaitWriter> {
        self.start(AwaitWriter { fd: self.held(fd) })
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap, and a directory that the
// value keeps open.
unsafe impl Operation for Open {
    type Output = io::Result<Fd>;
    const KIND: OpKind = OpKind::Open;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::openat(self.at.raw(), self.at.path(), self.flags, self.mode))
    }

    fn call(&mut self) -> Call {
        let (dir, path) = (self.at.raw(), address(self.at.path()));
        let (flags, mode) = (self.flags.into(), self.mode.into());
        Call::Open(call::Open { dir, path, flags, mode, resolve: None })
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let Self { flags, owner, is_nonblock_added, .. } = self;
        // SAFETY: the kernel has just opened it for this operation; it has no other owner.
        let open = |raw| unsafe { Fd::opened(raw as i32, owner, flags, is_nonblock_added) };
        completion.result().map(open)
    }

    fn dispose(self, completion: Completion) {
        drop(self.complete(completion)); // closes what was opened
    }

    acts_on!(Bounded, at, local);

    fn route(&self, rules: &Rules) -> Route {
        if self.waits {
            return Route::Lane(Lane::Elastic);
        }
        open_route(rules, self.flags.into(), &self.at, &*self.owner)
    }

    fn classify(&self, _: CallMode, attempt: Attempt) -> Retry {
        if creates(self.flags.into()) {
            return note_name(attempt, &*self.owner);
        }
        attempt.or_queue()
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap; `how`, which is part of the
// value and does not move until the completion; and a directory that the value keeps open.
unsafe impl Operation for Openat2 {
    type Output = io::Result<Fd>;
    const KIND: OpKind = OpKind::Open;

    fn entry(&mut self) -> Option<Sqe> {
        let how = &raw const self.how;
        Some(Sqe::openat2(self.at.raw(), self.at.path(), how, size_of::<OpenHow>() as u32))
    }

    fn call(&mut self) -> Call {
        let OpenHow { flags, mode, resolve } = self.how;
        let (dir, path) = (self.at.raw(), address(self.at.path()));
        Call::Open(call::Open { dir, path, flags, mode, resolve: Some(resolve) })
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let Self { how, owner, is_nonblock_added, .. } = self;
        let flags = how.flags as u32;
        // SAFETY: the kernel has just opened it for this operation; it has no other owner.
        let open = |raw| unsafe { Fd::opened(raw as i32, owner, flags, is_nonblock_added) };
        completion.result().map(open)
    }

    acts_on!(Bounded, at, local);

    fn route(&self, rules: &Rules) -> Route {
        open_route(rules, self.how.flags, &self.at, &*self.owner)
    }

    fn classify(&self, _: CallMode, attempt: Attempt) -> Retry {
        if creates(self.how.flags) {
            return note_name(attempt, &*self.owner);
        }
        attempt.or_queue()
    }
}

/// Returns whether these flags may create a name.
fn creates(flags: u64) -> bool {
    flags & u64::from(abi::O_CREAT) != 0
}

/// Returns the route of an open: a lookup in the cache or, for a file that may be created, a try in memory.
fn open_route(rules: &Rules, flags: u64, at: &At, owner: &dyn Owner) -> Route {
    let route = path_route(rules, OpKind::Open, at, owner);
    if creates(flags) && owner.calls().are_of_this_process() {
        return only_in_memory(route, owner);
    }
    route
}

/// Returns the route of an operation that creates a name: a plain call if the try shows that the directory is
/// in memory, otherwise the operation's usual route.
pub(super) fn only_in_memory(route: Route, owner: &dyn Owner) -> Route {
    match route {
        Route::Now(_) if !owner.tries_in_memory() => Route::Queue,
        other => other,
    }
}

/// Records whether a name was created in memory.
pub(super) fn note_name(attempt: Attempt, owner: &dyn Owner) -> Retry {
    owner.note_in_memory(attempt.done().is_some());
    attempt.or_queue()
}

/// Returns the route of a lookup: a plain call that fails for uncached names, or a thread if a server may
/// have to be asked, which the cache cannot tell.
pub(super) fn path_route(rules: &Rules, kind: OpKind, at: &At, owner: &dyn Owner) -> Route {
    if !rules.of(kind).tries_now {
        return Route::Queue;
    }
    let path = at.c_path().unwrap_or_default().to_bytes();
    let may_wait = match at.descriptor() {
        Some(directory) if !path.starts_with(b"/") => {
            directory.mount().is_some_and(|mount| mount.is_remote)
        }
        _ => owner.may_wait(path),
    };
    if may_wait { Route::Lane(Lane::Elastic) } else { Route::Now(CallMode::NonBlocking) }
}

/// See [`Handle::await_writer`].
#[derive(Debug)]
pub struct AwaitWriter {
    fd: Fd,
}

of_numbers! {
    |it: AwaitWriter| Waiting; Open;
    call Call::AwaitWriter { raw: it.fd.raw() };
    route |_rules| Route::Lane(Lane::Elastic);
}
