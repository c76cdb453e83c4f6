//! Moving a name.

use std::ffi::CString;

use sakia_ring::Sqe;

use super::at::At;
use crate::backend::Descriptors;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::handle::Op;
use crate::operation::Operation;
use crate::sys::register;

/// See [`Handle::rename`].
#[derive(Debug)]
pub struct Rename {
    from: At,
    to: At,
    flags: u32,
}

impl Handle {
    /// Moves the name `from`, relative to `from_dir`, to the name `to`, relative to `to_dir`; with `None`
    /// relative to the working directory. What had that name is replaced in the same step. `flags` are
    /// the kernel's `RENAME_*`.
    ///
    /// # Errors
    /// - `EXDEV`: another file system. `EEXIST`: with `RENAME_NOREPLACE`, there is something.
    /// - `ENOTEMPTY`, `EEXIST`: a directory that is not empty would be replaced.
    /// - `EISDIR`, `ENOTDIR`: one is a directory, the other is none.
    /// - `EINVAL`: a directory would get into itself, or a flag that the file system does not have.
    /// - `ENOENT`: there is no such name. Otherwise as `renameat2(2)`.
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_renameat(3)`.
    #[doc(alias = "renameat2")]
    pub fn rename(
        &self,
        from_dir: Option<&Fd>,
        from: CString,
        to_dir: Option<&Fd>,
        to: CString,
        flags: u32,
    ) -> Op<Rename> {
        self.start(Rename { from: self.at(from_dir, from), to: self.at(to_dir, to), flags })
    }
}

// SAFETY: the entry names two paths, whose bytes the value owns on the heap, and directories that the
// value keeps open.
unsafe impl Operation for Rename {
    const KIND: OpKind = OpKind::Rename;

    fn entry(&mut self) -> Option<Sqe> {
        let Self { from, to, flags } = self;
        Some(Sqe::renameat(from.raw(), from.path(), to.raw(), to.path(), *flags))
    }

    fn call(&mut self) -> Call {
        let Self { from, to, flags } = self;
        let args = [word(from.path()), register(to.raw()), word(to.path()), *flags as usize];
        System::on(Function::Renameat, from.raw(), args)
    }

    no_output!();
    acts_on!(Bounded, from);

    fn is_local(&self, descriptors: &dyn Descriptors) -> bool {
        self.from.is_local(descriptors) && self.to.is_local(descriptors)
    }
}
