//! Removing a name.

use std::ffi::CString;

use sakia_ring::Sqe;

use super::at::At;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::handle::Op;
use crate::operation::Operation;

/// See [`Handle::unlink`].
#[derive(Debug)]
pub struct Unlink {
    at: At,
    flags: u32,
}

impl Handle {
    /// Removes the name `path`, relative to `directory` or, with `None`, to the working directory. A
    /// directory's name, which must be empty, with the flag `AT_REMOVEDIR`, and only that. A symbolic link
    /// is removed itself.
    ///
    /// # Errors
    /// - `EISDIR`: a directory, without the flag. `ENOTDIR`: none, with it.
    /// - `ENOTEMPTY`: the directory is not empty.
    /// - `ENOENT`: there is no such name. Otherwise as `unlinkat(2)`.
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_unlinkat(3)`.
    #[doc(alias = "unlinkat")]
    #[doc(alias = "rmdir")]
    pub fn unlink(&self, directory: Option<&Fd>, path: CString, flags: u32) -> Op<Unlink> {
        self.start(Unlink { at: self.at(directory, path), flags })
    }
}

// SAFETY: the entry names the path, whose bytes the value owns on the heap, and a directory that the
// value keeps open.
unsafe impl Operation for Unlink {
    const KIND: OpKind = OpKind::Unlink;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::unlinkat(self.at.raw(), self.at.path(), self.flags))
    }

    fn call(&mut self) -> Call {
        let args = [word(self.at.path()), self.flags as usize];
        System::on(Function::Unlinkat, self.at.raw(), args)
    }

    no_output!();
    acts_on!(Bounded, at, local);
}
