//! Opening a path.

use std::ffi::CString;
use std::io;
use std::rc::Rc;

use sakia_ring::{AT_FDCWD, Sqe};

use crate::backend::Backend;
use crate::bypass::{Now, Route, Rules};
use crate::counters::OpKind;
use crate::epoll::Lane;
use crate::fd::{Fd, Owner};
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};

/// `O_CLOEXEC`: descriptors of a driver are not inherited by programs that the process starts.
const CLOEXEC: u32 = rustix::fs::OFlags::CLOEXEC.bits();

/// `O_NONBLOCK`: opening a FIFO or a terminal waits for nobody.
const NONBLOCK: u32 = rustix::fs::OFlags::NONBLOCK.bits();

/// `O_PATH`.
const PATH: u32 = rustix::fs::OFlags::PATH.bits();

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
        // With a path's descriptor the flag would be refused, and it never waits.
        let is_nonblock_added = !waits && flags & (NONBLOCK | PATH) == 0;
        let nonblock = if is_nonblock_added { NONBLOCK } else { 0 };
        self.start(Open {
            directory: directory.cloned(),
            path,
            flags: flags | CLOEXEC | nonblock,
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
        completion.result().map(|raw| Fd::opened(raw as i32, owner, flags, is_nonblock_added))
    }

    fn dispose(self, completion: Completion) {
        if mutant!("late_open_leaks") {
            return;
        }
        drop(self.complete(completion)); // closes what was opened
    }

    fn descriptor(&self) -> Option<&Fd> {
        self.directory.as_ref()
    }

    fn route(&self, rules: &Rules) -> Route {
        if self.waits {
            return Route::Lane(Lane::Elastic);
        }
        let tries_now = rules.of(OpKind::Open).tries_now;
        if tries_now { Route::Now(Now::NoWait) } else { Route::Queue }
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("path", &self.path).finish_non_exhaustive()
    }
}
