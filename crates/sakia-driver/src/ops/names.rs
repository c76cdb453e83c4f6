//! Operations on names: creating directories, removing, renaming and linking, and reading links.

use std::ffi::CString;
use std::rc::Rc;

use sakia_ring::Sqe;

use super::at::At;
use super::open::{note_name, only_in_memory, path_route};
use super::transfer_len;
use crate::buf::IoBufMut;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Retry, Route, Rules};
use crate::fd::{Fd, Owner};
use crate::handle::{Handle, Op};
use crate::operation::Operation;
use crate::sys::register;

/// See [`Handle::mkdir`].
#[derive(Debug)]
pub struct Mkdir {
    at: At,
    mode: u32,
    owner: Rc<dyn Owner>,
}

/// See [`Handle::unlink`].
#[derive(Debug)]
pub struct Unlink {
    at: At,
    flags: u32,
}

/// See [`Handle::rename`].
#[derive(Debug)]
pub struct Rename {
    from: At,
    to: At,
    flags: u32,
}

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
pub struct Readlink<T = Vec<u8>> {
    at: At,
    buf: T,
}

impl Handle {
    /// Creates a directory at `path`, relative to `directory` or, with `None`, to the working directory.
    /// `mode` are its permissions, without the bits of the process's umask.
    ///
    /// # Errors
    /// - `EEXIST`: the name exists, possibly as a dangling link.
    /// - `ENOENT`: a directory on the way is missing. Otherwise as `mkdirat(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let dir = std::env::temp_dir().join(format!("sakia-driver-names-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let base = driver.adopt(std::fs::File::open(&dir)?.into());
    /// run(&driver, driver.mkdir(Some(&base), c"new".into(), 0o700))??;
    /// run(&driver, driver.rename(Some(&base), c"new".into(), Some(&base), c"old".into(), 0))??;
    /// assert!(dir.join("old").is_dir() && !dir.join("new").exists());
    /// run(&driver, driver.unlink(Some(&base), c"old".into(), libc::AT_REMOVEDIR as u32))??;
    /// assert!(!dir.join("old").exists());
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.15. Source: `io_uring_prep_mkdirat(3)`.
    #[doc(alias = "mkdirat")]
    pub fn mkdir(&self, directory: Option<&Fd>, path: CString, mode: u32) -> Op<Mkdir> {
        self.start(Mkdir { at: self.at(directory, path), mode, owner: self.owner() })
    }

    /// Removes the name `path`, relative to `directory` or, with `None`, to the working directory. With the
    /// flag `AT_REMOVEDIR` it removes an empty directory, and only that. A symbolic link is removed itself.
    ///
    /// # Errors
    /// - `EISDIR`: a directory, without the flag. `ENOTDIR`: no directory, with it.
    /// - `ENOTEMPTY`: the directory is not empty.
    /// - `ENOENT`: there is no such name. Otherwise as `unlinkat(2)`.
    ///
    /// # Examples
    /// See [`Handle::mkdir`].
    ///
    /// # Kernel
    /// 5.11. Source: `io_uring_prep_unlinkat(3)`.
    #[doc(alias = "unlinkat")]
    #[doc(alias = "rmdir")]
    pub fn unlink(&self, directory: Option<&Fd>, path: CString, flags: u32) -> Op<Unlink> {
        self.start(Unlink { at: self.at(directory, path), flags })
    }

    /// Renames `from`, relative to `from_dir`, to `to`, relative to `to_dir`; with `None` relative to the
    /// working directory. An existing entry `to` is replaced atomically. `flags` are the kernel's
    /// `RENAME_*`.
    ///
    /// # Errors
    /// - `EXDEV`: another file system. `EEXIST`: with `RENAME_NOREPLACE`, the name `to` exists.
    /// - `ENOTEMPTY`, `EEXIST`: a directory that is not empty would be replaced.
    /// - `EISDIR`, `ENOTDIR`: one is a directory, the other is not.
    /// - `EINVAL`: a directory would be moved into itself, or the file system does not support a flag.
    /// - `ENOENT`: there is no such name. Otherwise as `renameat2(2)`.
    ///
    /// # Examples
    /// See [`Handle::mkdir`].
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

    /// Creates a link `to`, relative to `to_dir`, to the file `from`, relative to `from_dir`; with `None`
    /// relative to the working directory. A symbolic link is linked itself, unless `flags` has
    /// `AT_SYMLINK_FOLLOW`.
    ///
    /// # Errors
    /// - `EEXIST`: the name exists. `EXDEV`: another file system.
    /// - `EPERM`: a directory, or a file system without links. Otherwise as `linkat(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let dir = std::env::temp_dir().join(format!("sakia-driver-link-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// std::fs::write(dir.join("one"), "shared")?;
    /// let base = driver.adopt(std::fs::File::open(&dir)?.into());
    /// let link = driver.link(Some(&base), c"one".into(), Some(&base), c"two".into(), 0);
    /// run(&driver, link)??;
    /// assert_eq!(std::fs::read(dir.join("two"))?, b"shared");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
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

    /// Creates a symbolic link at `link`, relative to `directory` or, with `None`, to the working directory.
    /// `target` is stored unchanged.
    ///
    /// # Errors
    /// - `EEXIST`: the name exists. `ENOENT`: the target is empty, or a directory on the way is missing.
    ///   Otherwise as `symlinkat(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let dir = std::env::temp_dir().join(format!("sakia-driver-symlink-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let base = driver.adopt(std::fs::File::open(&dir)?.into());
    /// run(&driver, driver.symlink(c"target".into(), Some(&base), c"link".into()))??;
    /// let buf = Vec::with_capacity(100);
    /// let (result, target) = run(&driver, driver.readlink(Some(&base), c"link".into(), buf))?;
    /// assert_eq!((result?, &target[..]), (6, &b"target"[..]));
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 5.15. Source: `io_uring_prep_symlinkat(3)`.
    #[doc(alias = "symlinkat")]
    pub fn symlink(&self, target: CString, directory: Option<&Fd>, link: CString) -> Op<Symlink> {
        self.start(Symlink { target, link: self.at(directory, link) })
    }

    /// Reads the target of the symbolic link `path`, relative to `directory` or, with `None`, to the working
    /// directory, into `buf`, an empty one up to its capacity. Resolves to the number of bytes, at least 1,
    /// and the buffer. If the buffer is full, the target may be longer.
    ///
    /// # Errors
    /// - `EINVAL`: not a symbolic link, or a buffer without room.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `readlinkat(2)`.
    ///
    /// # Examples
    /// See [`Handle::symlink`].
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `readlinkat(2)`.
    #[doc(alias = "readlinkat")]
    pub fn readlink<T: IoBufMut>(
        &self,
        directory: Option<&Fd>,
        path: CString,
        buf: T,
    ) -> Op<Readlink<T>> {
        self.start(Readlink { at: self.at(directory, path), buf })
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

    fn route(&self, rules: &Rules) -> Route {
        // A thread is not needed: a ring has the opcode.
        match path_route(rules, OpKind::Mkdir, &self.at, &*self.owner) {
            Route::Lane(_) => Route::Queue,
            route => only_in_memory(route, &*self.owner),
        }
    }

    fn classify(&self, _: CallMode, attempt: Attempt) -> Retry {
        note_name(attempt, &*self.owner)
    }
}

// SAFETY: as for `Mkdir`.
operation! {
    unsafe |it: Unlink| Bounded, at, local; Unlink;
    entry Sqe::unlinkat(it.at.raw(), it.at.path(), it.flags);
    call System::on(Function::Unlinkat, it.at.raw(), [word(it.at.path()), it.flags as usize]);
}

// SAFETY: the entry names two paths, whose bytes the value owns on the heap, and directories that the
// value keeps open.
operation! {
    unsafe |it: Rename| Bounded, from and to, local; Rename;
    entry Sqe::renameat(it.from.raw(), it.from.path(), it.to.raw(), it.to.path(), it.flags);
    call from_to(Function::Renameat, &it.from, &it.to, it.flags);
}

// SAFETY: as for `Rename`.
operation! {
    unsafe |it: Link| Bounded, from and to, local; Link;
    entry Sqe::linkat(it.from.raw(), it.from.path(), it.to.raw(), it.to.path(), it.flags);
    call from_to(Function::Linkat, &it.from, &it.to, it.flags);
}

/// Returns a call that takes two paths and flags.
fn from_to(function: Function, from: &At, to: &At, flags: u32) -> Call {
    let args = [word(from.path()), register(to.raw()), word(to.path()), flags as usize];
    System::on(function, from.raw(), args)
}

// SAFETY: the entry names two paths, whose bytes the value owns on the heap, and a directory that the
// value keeps open.
operation! {
    unsafe |it: Symlink| Bounded, link, local; Link;
    entry Sqe::symlinkat(it.target.as_ptr().cast(), it.link.raw(), it.link.path());
    call {
        let (target, link) = (word(it.target.as_ptr()), word(it.link.path()));
        System::of(Function::Symlinkat, [target, register(it.link.raw()), link])
    };
}

// SAFETY: the call names the path, whose bytes the value owns on the heap; the buffer's bytes, which the
// value owns and which do not move (the promise of `IoBufMut`); and a directory that the value keeps open.
unsafe impl<T: IoBufMut> Operation for Readlink<T> {
    const KIND: OpKind = OpKind::Readlink;

    fn call(&mut self) -> Call {
        let len = transfer_len(self.buf.bytes_room()) as usize;
        let args = [word(self.at.path()), word(self.buf.stable_mut_ptr()), len];
        System::on(Function::Readlinkat, self.at.raw(), args)
    }

    fn has_room(&self) -> bool {
        self.buf.bytes_room() > 0
    }

    fills_vec!(T);
    acts_on!(Bounded, at);
}
