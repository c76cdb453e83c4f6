//! The system calls of this crate: all but what it leaves to the runtime.
//!
//! In the crate's own tests they are those of [`sim`], which fail, or do less than asked, when told to.

#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod tests;

#[cfg(not(test))]
pub(crate) use self::real::*;
#[cfg(test)]
pub(crate) use self::sim::calls::*;

#[cfg(not(test))]
mod real {
    use std::mem::MaybeUninit;

    use rustix::fd::AsFd;
    use rustix::fs::RawDir;
    pub(crate) use rustix::fs::{
        chmodat, chownat, copy_file_range, fadvise, fchmod, fchown, fgetxattr, flistxattr,
        fremovexattr, fsetxattr, fstat, fsync, ftruncate, futimens, getxattr, ioctl_ficlone,
        ioctl_getflags, ioctl_setflags, lgetxattr, linkat, listxattr, llistxattr, lremovexattr,
        lsetxattr, mkdirat, mknodat, open, openat, openat2, readlinkat, seek, sendfile, statat,
        symlinkat, syncfs, unlinkat, utimensat,
    };
    pub(crate) use rustix::io::{pread, preadv2, pwrite, read, write};

    /// The entries of a directory, by `getdents64`.
    pub(crate) fn entries<F: AsFd>(
        dir: F,
        space: &mut [MaybeUninit<u8>],
    ) -> rustix::io::Result<RawDir<'_, F>> {
        Ok(RawDir::new(dir, space))
    }
}
