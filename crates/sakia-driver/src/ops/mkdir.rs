//! Making a directory.

use std::ffi::CString;

use sakia_ring::Sqe;

use super::at::At;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::handle::Op;
use crate::operation::Operation;

/// See [`Handle::mkdir`].
#[derive(Debug)]
pub struct Mkdir {
    at: At,
    mode: u32,
}

impl Handle {
    /// Makes a directory at `path`, relative to `directory` or, with `None`, to the working directory.
    /// `mode` are its permissions, less those that the process's mask takes off.
    ///
    /// # Errors
    /// - `EEXIST`: there is something of that name, be it a dangling link.
    /// - `ENOENT`: a directory on the way is missing. Otherwise as `mkdirat(2)`.
    ///
    /// # Kernel
    /// 5.15. Source: `io_uring_prep_mkdirat(3)`.
    #[doc(alias = "mkdirat")]
    pub fn mkdir(&self, directory: Option<&Fd>, path: CString, mode: u32) -> Op<Mkdir> {
        self.start(Mkdir { at: self.at(directory, path), mode })
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap, and a directory that the
// value keeps open.
unsafe impl Operation for Mkdir {
    const KIND: OpKind = OpKind::Mkdir;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::mkdirat(self.at.raw(), self.at.path(), self.mode))
    }

    fn call(&mut self) -> Call {
        let args = [word(self.at.path()), self.mode as usize];
        System::on(Function::Mkdirat, self.at.raw(), args)
    }

    no_output!();
    acts_on!(Bounded, at, local);
}
