//! Opening a path.

use std::ffi::{CStr, CString};
use std::io;
use std::rc::Rc;

use sakia_ring::{AT_FDCWD, Sqe};

use super::at::is_path_local;
use crate::backend::{Backend, Descriptors};
use crate::counters::OpKind;
use crate::fd::{Fd, Owner};
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};
use crate::policy::{CallMode, Lane, Route, Rules};
use crate::private;
use crate::sys::abi;
use crate::sys::open::open_flags;

/// `O_CLOEXEC`: descriptors of a driver are not inherited by programs that the process starts.
pub(super) const CLOEXEC: u32 = abi::O_CLOEXEC;

/// See [`Handle::open`].
pub struct Open {
    directory: Option<Fd>,
    path: CString,
    flags: u32,
    mode: u32,
    /// `O_NONBLOCK` is none of the caller's flags.
    is_nonblock_added: bool,
    /// It may take for ever.
    waits: bool,
    owner: Rc<dyn Owner>,
}

impl<B: Backend> Handle<B> {
    /// Opens `path`, relative to `directory` or, with `None`, to the working directory. `flags` are the
    /// kernel's `O_*`, with `O_CLOEXEC` always added; `mode` are the permissions of a file that is
    /// created.
    ///
    /// A descriptor that comes when the handle is gone is closed.
    ///
    /// Nothing waits for whoever else opens the file: it is opened with `O_NONBLOCK`. A FIFO is opened
    /// at once to read, and to write only if somebody reads (`ENXIO`). The flag is taken off when the
    /// descriptor turns out to be of the kind to which it matters; a regular file may keep it, to which
    /// it does not.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: no descriptor left.
    /// - `ECANCELED`: canceled before it began. Otherwise as `openat(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_openat(3)`.
    #[doc(alias = "openat")]
    pub fn open(
        &self,
        directory: Option<&Fd>,
        path: CString,
        flags: u32,
        mode: u32,
    ) -> Op<Open, B> {
        self.start_open(directory, path, flags, mode, false)
    }

    /// As [`open`](Handle::open), but waits as `openat(2)` does: for the other end of a FIFO, for the
    /// line of a terminal. It does so on a thread of the elastic lane, which stays occupied until then,
    /// even if the handle is dropped.
    pub fn open_waiting(
        &self,
        directory: Option<&Fd>,
        path: CString,
        flags: u32,
        mode: u32,
    ) -> Op<Open, B> {
        self.start_open(directory, path, flags, mode, true)
    }

    /// Waits until somebody has opened the FIFO `fd` to write, if nobody has since `fd` was opened to
    /// read: until an [`open`](Handle::open) that waits would have returned. It occupies a thread of the
    /// elastic lane until then, even if the handle is dropped.
    ///
    /// # Errors
    /// - `EINVAL`: not a FIFO that was opened to read. `ECANCELED`: canceled before it began.
    ///
    /// # Kernel
    /// A plain poll, on a thread of a lane. Source: `fifo(7)`.
    pub fn await_writer(&self, fd: &Fd) -> Op<AwaitWriter, B> {
        self.check(fd);
        self.start_private(private::AWAIT_WRITER, AwaitWriter { fd: fd.clone() })
    }

    fn start_open(
        &self,
        directory: Option<&Fd>,
        path: CString,
        flags: u32,
        mode: u32,
        waits: bool,
    ) -> Op<Open, B> {
        if let Some(directory) = directory {
            self.check(directory);
        }
        let (flags, is_nonblock_added) =
            if waits { (flags | CLOEXEC, false) } else { open_flags(flags) };
        self.start(Open {
            directory: directory.cloned(),
            path,
            flags,
            mode,
            is_nonblock_added,
            waits,
            owner: Rc::clone(&self.shared) as Rc<dyn Owner>,
        })
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap, and a directory that the
// value keeps open.
unsafe impl Operation for Open {
    type Output = io::Result<Fd>;

    fn class(&self) -> Class {
        Class::Bounded
    }

    fn entry(&mut self) -> Sqe {
        let directory = self.directory.as_ref().map_or(AT_FDCWD, Fd::raw);
        Sqe::openat(directory, self.path.as_ptr().cast(), self.flags, self.mode)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let Self { flags, owner, is_nonblock_added, .. } = self;
        // SAFETY: the kernel has just opened it for this operation, and nobody else knows of it.
        let open = |raw| unsafe { Fd::opened(raw as i32, owner, flags, is_nonblock_added) };
        completion.result().map(open)
    }

    fn dispose(self, completion: Completion) {
        drop(self.complete(completion)); // closes what was opened
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.directory.as_ref()
    }

    fn is_local(&self, descriptors: &dyn Descriptors) -> bool {
        is_path_local(self.directory.as_ref(), &self.path, descriptors)
    }

    fn route(&self, rules: &Rules) -> Route {
        if self.waits {
            return Route::Lane(Lane::Elastic);
        }
        path_route(rules, OpKind::Open, self.directory.as_ref(), &self.path, &*self.owner)
    }
}

/// Which way a lookup takes: one in the cache, which is refused what is not there; or a thread, where a
/// server may have to be asked, of which the cache says nothing.
pub(super) fn path_route(
    rules: &Rules,
    kind: OpKind,
    directory: Option<&Fd>,
    path: &CStr,
    owner: &dyn Owner,
) -> Route {
    if !rules.of(kind).tries_now {
        return Route::Queue;
    }
    let is_absolute = path.to_bytes().first() == Some(&b'/');
    let may_wait = match directory {
        Some(directory) if !is_absolute => directory.mount().is_some_and(|mount| mount.is_remote()),
        _ => owner.may_wait(path.to_bytes()),
    };
    if may_wait { Route::Lane(Lane::Elastic) } else { Route::Now(CallMode::NonBlocking) }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("path", &self.path).finish_non_exhaustive()
    }
}

/// See [`Handle::await_writer`].
#[derive(Debug)]
pub struct AwaitWriter {
    fd: Fd,
}

// SAFETY: the entry names no memory, and a descriptor that the value keeps open.
unsafe impl Operation for AwaitWriter {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Sqe {
        private::await_writer(self.fd.raw())
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.result().map(|_| ())
    }

    acts_on!(Waiting, fd);

    fn route(&self, _: &Rules) -> Route {
        Route::Lane(Lane::Elastic)
    }
}
