//! Opening a path, with a say in how it is resolved.

use std::ffi::CString;
use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use super::at::At;
use super::open::path_route;
use crate::call::{self, Call, address};
use crate::counters::OpKind;
use crate::fd::{Fd, Owner};
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::policy::{Route, Rules};
use crate::sys::abi;
use crate::sys::open::open_flags;

/// How to open a path: `struct open_how`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OpenHow {
    /// The kernel's `O_*`. Ones that it does not know are refused.
    pub flags: u64,
    /// Permissions of a file that is created; 0 unless one may be.
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
    /// Nothing outside of the directory is reached; what tries is refused.
    #[doc(alias = "RESOLVE_BENEATH")]
    pub const BENEATH: u64 = abi::RESOLVE_BENEATH as u64;
    /// The directory stands for the root.
    #[doc(alias = "RESOLVE_IN_ROOT")]
    pub const IN_ROOT: u64 = abi::RESOLVE_IN_ROOT as u64;
    /// Only what the kernel has in memory already; `EAGAIN` otherwise.
    #[doc(alias = "RESOLVE_CACHED")]
    pub const CACHED: u64 = abi::RESOLVE_CACHED as u64;
}

/// See [`Handle::openat2`].
pub struct Openat2 {
    at: At,
    how: OpenHow,
    /// `O_NONBLOCK` is none of the caller's flags.
    is_nonblock_added: bool,
    owner: Rc<dyn Owner>,
}

impl Handle {
    /// Opens `path`, relative to `directory` or, with `None`, to the working directory, as `how` says,
    /// with `O_CLOEXEC` always added. Otherwise as [`open`](Handle::open).
    ///
    /// A descriptor that comes when the handle is gone is closed.
    ///
    /// # Errors
    /// - `EINVAL`: a flag that the kernel does not know, or permissions where no file may be created.
    /// - `EXDEV`: the path leads out of what `how.resolve` confines it to.
    /// - `ELOOP`: a link where `how.resolve` allows none.
    /// - `EAGAIN`: something moved meanwhile, so that it is not sure whether the path stays within; or
    ///   with [`CACHED`](OpenHow::CACHED) the kernel would have to ask the file system.
    /// - `ECANCELED`: canceled before it began. Otherwise as `openat2(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_openat2(3)`, `openat2(2)`.
    pub fn openat2(&self, directory: Option<&Fd>, path: CString, how: OpenHow) -> Op<Openat2> {
        let (flags, is_nonblock_added) = open_flags(how.flags as u32);
        let how = OpenHow { flags: how.flags | u64::from(flags), ..how };
        let owner = Rc::clone(&self.shared) as Rc<dyn Owner>;
        self.start(Openat2 { at: self.at(directory, path), how, is_nonblock_added, owner })
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap; `how`, which is part of the
// value and stays where it is until the completion; and a directory that the value keeps open.
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
        // SAFETY: the kernel has just opened it for this operation, and nobody else knows of it.
        let open = |raw| unsafe { Fd::opened(raw as i32, owner, flags, is_nonblock_added) };
        completion.result().map(open)
    }

    acts_on!(Bounded, at, local);

    fn route(&self, rules: &Rules) -> Route {
        path_route(rules, OpKind::Open, &self.at, &*self.owner)
    }
}

impl std::fmt::Debug for Openat2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { at, how, .. } = self;
        f.debug_struct("Openat2").field("at", at).field("how", how).finish_non_exhaustive()
    }
}
