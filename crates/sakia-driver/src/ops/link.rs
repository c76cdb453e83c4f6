//! Links of both sorts, and where they point to.

use std::ffi::CString;

use sakia_ring::Sqe;

use super::at::At;
use super::{filled, transfer_len};
use crate::backend::Descriptors;
use crate::buf::{BufResult, IoBufMut, initialize};
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::Handle;
use crate::handle::Op;
use crate::operation::{Completion, Operation};
use crate::sys::register;

/// See [`Handle::link`].
#[derive(Debug)]
pub struct Link {
    from: At,
    to: At,
    flags: u32,
}

/// See [`Handle::symlink`].
#[derive(Debug)]
pub struct Symlink {
    target: CString,
    link: At,
}

/// See [`Handle::readlink`].
#[derive(Debug)]
pub struct Readlink {
    at: At,
    buf: Vec<u8>,
}

impl Handle {
    /// Gives the file `from`, relative to `from_dir`, one more name: `to`, relative to `to_dir`; with
    /// `None` relative to the working directory. A symbolic link is linked itself, unless `flags` has
    /// `AT_SYMLINK_FOLLOW`.
    ///
    /// # Errors
    /// - `EEXIST`: there is something of that name. `EXDEV`: another file system.
    /// - `EPERM`: a directory, or a file system without links. Otherwise as `linkat(2)`.
    ///
    /// # Kernel
    /// 5.15. Source: `io_uring_prep_linkat(3)`.
    #[doc(alias = "linkat")]
    pub fn link(
        &self,
        from_dir: Option<&Fd>,
        from: CString,
        to_dir: Option<&Fd>,
        to: CString,
        flags: u32,
    ) -> Op<Link> {
        self.start(Link { from: self.at(from_dir, from), to: self.at(to_dir, to), flags })
    }

    /// Makes a symbolic link at `link`, relative to `directory` or, with `None`, to the working directory.
    /// `target` goes into it as it is.
    ///
    /// # Errors
    /// - `EEXIST`: there is something of that name. `ENOENT`: the target is empty, or a directory on the
    ///   way is missing. Otherwise as `symlinkat(2)`.
    ///
    /// # Kernel
    /// 5.15. Source: `io_uring_prep_symlinkat(3)`.
    #[doc(alias = "symlinkat")]
    pub fn symlink(&self, target: CString, directory: Option<&Fd>, link: CString) -> Op<Symlink> {
        self.start(Symlink { target, link: self.at(directory, link) })
    }

    /// Reads where the symbolic link `path`, relative to `directory` or, with `None`, to the working
    /// directory, points to, into `buf`, an empty one up to its capacity. Resolves to the number of bytes, at
    /// least 1, and the buffer. As many bytes as there was room for may not be all.
    ///
    /// # Errors
    /// - `EINVAL`: not a symbolic link, or a buffer without room.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `readlinkat(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `readlinkat(2)`.
    #[doc(alias = "readlinkat")]
    pub fn readlink(&self, directory: Option<&Fd>, path: CString, buf: Vec<u8>) -> Op<Readlink> {
        self.start(Readlink { at: self.at(directory, path), buf })
    }
}

// SAFETY: the entry names two paths, whose bytes the value owns on the heap, and directories that the
// value keeps open.
unsafe impl Operation for Link {
    const KIND: OpKind = OpKind::Link;

    fn entry(&mut self) -> Option<Sqe> {
        let Self { from, to, flags } = self;
        Some(Sqe::linkat(from.raw(), from.path(), to.raw(), to.path(), *flags))
    }

    fn call(&mut self) -> Call {
        let Self { from, to, flags } = self;
        let args = [word(from.path()), register(to.raw()), word(to.path()), *flags as usize];
        System::on(Function::Linkat, from.raw(), args)
    }

    no_output!();
    acts_on!(Bounded, from);

    fn is_local(&self, descriptors: &dyn Descriptors) -> bool {
        self.from.is_local(descriptors) && self.to.is_local(descriptors)
    }
}

// SAFETY: the entry names two paths, whose bytes the value owns on the heap, and a directory that the
// value keeps open.
unsafe impl Operation for Symlink {
    const KIND: OpKind = OpKind::Link;

    fn entry(&mut self) -> Option<Sqe> {
        Some(Sqe::symlinkat(self.target.as_ptr().cast(), self.link.raw(), self.link.path()))
    }

    fn call(&mut self) -> Call {
        let (target, link) = (word(self.target.as_ptr()), word(self.link.path()));
        System::of(Function::Symlinkat, [target, register(self.link.raw()), link])
    }

    no_output!();
    acts_on!(Bounded, link, local);
}

// SAFETY: the entry names the path and the buffer, which the value owns on the heap, and a directory
// that the value keeps open.
unsafe impl Operation for Readlink {
    type Output = BufResult<usize, Vec<u8>>;
    const KIND: OpKind = OpKind::Readlink;

    fn call(&mut self) -> Call {
        let len = transfer_len(self.buf.bytes_room()) as usize;
        let args = [word(self.at.path()), word(self.buf.as_mut_ptr()), len];
        System::on(Function::Readlinkat, self.at.raw(), args)
    }

    fn has_room(&self) -> bool {
        self.buf.bytes_room() > 0
    }

    fn initialize(&mut self) {
        initialize(&mut self.buf);
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let room = transfer_len(self.buf.bytes_room());
        filled(completion, self.buf, room)
    }

    acts_on!(Bounded, at);
}
