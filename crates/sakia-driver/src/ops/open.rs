//! Opening a path.

use std::ffi::CString;
use std::io;
use std::rc::Rc;

use sakia_ring::Sqe;

use super::at::At;
use crate::call::{self, Call, address};
use crate::counters::OpKind;
use crate::fd::{Fd, Owner};
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::policy::{CallMode, Lane, Route, Rules};
use crate::sys::abi;
use crate::sys::open::open_flags;

/// `O_CLOEXEC`: descriptors of a driver are not inherited by programs that the process starts.
pub(super) const CLOEXEC: u32 = abi::O_CLOEXEC;

/// See [`Handle::open`].
pub struct Open {
    at: At,
    flags: u32,
    mode: u32,
    /// `O_NONBLOCK` is none of the caller's flags.
    is_nonblock_added: bool,
    /// It may take for ever.
    waits: bool,
    owner: Rc<dyn Owner>,
}

impl Handle {
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
    pub fn open(&self, directory: Option<&Fd>, path: CString, flags: u32, mode: u32) -> Op<Open> {
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
    ) -> Op<Open> {
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
    pub fn await_writer(&self, fd: &Fd) -> Op<AwaitWriter> {
        self.start(AwaitWriter { fd: self.held(fd) })
    }

    fn start_open(
        &self,
        directory: Option<&Fd>,
        path: CString,
        flags: u32,
        mode: u32,
        waits: bool,
    ) -> Op<Open> {
        let (flags, is_nonblock_added) =
            if waits { (flags | CLOEXEC, false) } else { open_flags(flags) };
        self.start(Open {
            at: self.at(directory, path),
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
        // SAFETY: the kernel has just opened it for this operation, and nobody else knows of it.
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
        path_route(rules, OpKind::Open, &self.at, &*self.owner)
    }
}

/// Which way a lookup takes: one in the cache, which is refused what is not there; or a thread, where a
/// server may have to be asked, of which the cache says nothing.
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

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("path", &self.at.c_path().unwrap_or_default())
            .finish_non_exhaustive()
    }
}

/// See [`Handle::await_writer`].
#[derive(Debug)]
pub struct AwaitWriter {
    fd: Fd,
}

of_numbers! {
    |it: AwaitWriter| Waiting; Open;
    call Call::AwaitWriter { raw: it.fd.raw() };
    route |_rules| { let _ = it; Route::Lane(Lane::Elastic) };
}
