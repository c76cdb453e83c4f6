//! Paths and descriptors as operands of operations.

use std::ffi::{CStr, CString};
use std::ptr;

use sakia_ring::AT_FDCWD;

use crate::backend::Calls;
use crate::fd::Fd;
use crate::handle::Handle;

/// A path, relative to a directory or the working directory; or a descriptor itself, without a path.
#[derive(Debug)]
pub(crate) struct At {
    directory: Option<Fd>,
    path: Option<CString>,
}

impl At {
    /// Returns the descriptor as an entry names it.
    pub(crate) fn raw(&self) -> i32 {
        self.directory.as_ref().map_or(AT_FDCWD, Fd::raw)
    }

    /// Returns the address of the NUL-terminated path, or null for the descriptor itself. The bytes do not
    /// move with the value.
    pub(crate) fn path(&self) -> *const u8 {
        self.c_path().map_or(ptr::null(), |path| path.as_ptr().cast())
    }

    pub(crate) fn c_path(&self) -> Option<&CStr> {
        self.path.as_deref()
    }

    pub(crate) fn descriptor(&self) -> Option<&Fd> {
        self.directory.as_ref()
    }

    /// Returns whether the path's target is on a local file system; see `Operation::is_local`.
    pub(crate) fn is_local(&self, calls: &dyn Calls) -> bool {
        // SAFETY: the directory is kept open by `self`, or stands for the working directory.
        self.c_path().is_some_and(|path| unsafe { calls.is_path_local(self.raw(), path) })
    }
}

impl Handle {
    pub(crate) fn at(&self, directory: Option<&Fd>, path: CString) -> At {
        At { directory: directory.map(|directory| self.held(directory)), path: Some(path) }
    }

    /// Returns the descriptor itself as an operand.
    pub(crate) fn at_fd(&self, fd: &Fd) -> At {
        At { directory: Some(self.held(fd)), path: None }
    }
}
