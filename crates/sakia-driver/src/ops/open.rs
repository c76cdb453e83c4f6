//! Opening a path.

use std::ffi::CString;
use std::io;
use std::rc::Rc;

use sakia_ring::{AT_FDCWD, Sqe};

use crate::backend::Backend;
use crate::fd::{Fd, Owner};
use crate::handle::Handle;
use crate::op::{Class, Completion, Op, Operation};

/// `O_CLOEXEC`: descriptors of a driver are not inherited by programs that the process starts.
pub(super) const CLOEXEC: u32 = rustix::fs::OFlags::CLOEXEC.bits();

/// See [`Handle::open`].
pub struct Open {
    directory: Option<Fd>,
    path: CString,
    flags: u32,
    mode: u32,
    owner: Rc<dyn Owner>,
}

impl<B: Backend> Handle<B> {
    /// Opens `path`, relative to `directory` or, with `None`, to the working directory. `flags` are the
    /// kernel's `O_*`, with `O_CLOEXEC` always added; `mode` are the permissions of a file that is
    /// created.
    ///
    /// A descriptor that comes when the handle is gone is closed.
    ///
    /// A FIFO is opened as if with `O_NONBLOCK`, which then is not set: at once to read, and to write
    /// only if somebody reads (`ENXIO`). A device that waits for something occupies a kernel worker.
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
        if let Some(directory) = directory {
            self.check(directory);
        }
        self.start(Open {
            directory: directory.cloned(),
            path,
            flags: flags | CLOEXEC,
            mode,
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
        completion.result().map(|raw| Fd::new(raw as i32, self.owner))
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
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("path", &self.path).finish_non_exhaustive()
    }
}
