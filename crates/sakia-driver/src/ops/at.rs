//! What operations on paths act on.

use std::ffi::{CStr, CString};

use sakia_ring::AT_FDCWD;

use crate::backend::Descriptors;
use crate::fd::Fd;
use crate::handle::Handle;

/// A path, relative to a directory or the working directory.
#[derive(Debug)]
pub(crate) struct At {
    directory: Option<Fd>,
    path: CString,
}

impl At {
    /// The descriptor as an entry has it.
    pub(crate) fn raw(&self) -> i32 {
        self.directory.as_ref().map_or(AT_FDCWD, Fd::raw)
    }

    /// The path's bytes, which end with a NUL. They stay where they are when the value is moved.
    pub(crate) fn path(&self) -> *const u8 {
        self.path.as_ptr().cast()
    }

    pub(crate) fn c_path(&self) -> &CStr {
        &self.path
    }

    pub(crate) fn descriptor(&self) -> Option<&Fd> {
        self.directory.as_ref()
    }

    /// Whether what the path names is on a local file system; see `Operation::is_local`.
    pub(crate) fn is_local(&self, descriptors: &dyn Descriptors) -> bool {
        // SAFETY: the directory is kept open by `self`, or stands for the working directory.
        unsafe { descriptors.is_path_local(self.raw(), &self.path) }
    }
}

/// What a path names, or what a descriptor refers to.
#[derive(Debug)]
pub(crate) enum Target {
    At(At),
    Fd(Fd),
}

impl Target {
    /// The descriptor as an entry has it.
    pub(crate) fn raw(&self) -> i32 {
        match self {
            Self::At(at) => at.raw(),
            Self::Fd(fd) => fd.raw(),
        }
    }

    /// The path, or null for the descriptor itself.
    pub(crate) fn path(&self) -> *const u8 {
        match self {
            Self::At(at) => at.path(),
            Self::Fd(_) => std::ptr::null(),
        }
    }

    pub(crate) fn descriptor(&self) -> Option<&Fd> {
        match self {
            Self::At(at) => at.descriptor(),
            Self::Fd(fd) => Some(fd),
        }
    }
}

impl Handle {
    pub(crate) fn at(&self, directory: Option<&Fd>, path: CString) -> At {
        At { directory: directory.map(|directory| self.held(directory)), path }
    }

    pub(crate) fn target(&self, fd: &Fd) -> Target {
        Target::Fd(self.held(fd))
    }
}
