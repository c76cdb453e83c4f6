//! Extended attributes of open files.

use std::ffi::CString;

use sakia_ring::Sqe;

use super::transfer_len;
use crate::buf::IoBufMut;
use crate::call::{Function, System, word};
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::get_xattr`].
#[derive(Debug)]
pub struct GetXattr {
    fd: Fd,
    name: CString,
    buf: Vec<u8>,
}

/// See [`Handle::set_xattr`].
#[derive(Debug)]
pub struct SetXattr {
    fd: Fd,
    name: CString,
    value: Vec<u8>,
    flags: u32,
}

/// See [`Handle::list_xattr`].
#[derive(Debug)]
pub struct ListXattr {
    fd: Fd,
    buf: Vec<u8>,
}

/// See [`Handle::remove_xattr`].
#[derive(Debug)]
pub struct RemoveXattr {
    fd: Fd,
    name: CString,
}

impl Handle {
    /// Reads the extended attribute `name` of an open file into `buf`, an empty one up to its capacity.
    /// Resolves to its length, and the buffer; with a buffer without room, to the required length.
    ///
    /// # Errors
    /// - `ENODATA`: the attribute does not exist. `ERANGE`: the buffer is too small for it.
    /// - `EOPNOTSUPP`: the file system does not support attributes. Otherwise as `fgetxattr(2)`.
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_prep_fgetxattr(3)`.
    #[doc(alias = "fgetxattr")]
    pub fn get_xattr(&self, fd: &Fd, name: CString, buf: Vec<u8>) -> Op<GetXattr> {
        self.start(GetXattr { fd: self.held(fd), name, buf })
    }

    /// Sets the extended attribute `name` of an open file to `value`. `flags` are the kernel's `XATTR_*`.
    ///
    /// # Errors
    /// - `EEXIST`: with `XATTR_CREATE`, it exists. `ENODATA`: with `XATTR_REPLACE`, it does not exist.
    /// - `ENOSPC`, `EDQUOT`, `E2BIG`, `ERANGE`: value or name are too long.
    /// - `EOPNOTSUPP`: the file system does not support such attributes. Otherwise as `fsetxattr(2)`.
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_prep_fsetxattr(3)`.
    #[doc(alias = "fsetxattr")]
    pub fn set_xattr(&self, fd: &Fd, name: CString, value: Vec<u8>, flags: u32) -> Op<SetXattr> {
        self.start(SetXattr { fd: self.held(fd), name, value, flags })
    }

    /// Lists the names of an open file's extended attributes, each with a NUL at its end. Resolves to the
    /// number of bytes, and the buffer, filled as by [`get_xattr`](Handle::get_xattr); with a buffer without
    /// room, to the required number.
    ///
    /// # Errors
    /// - `ERANGE`: the buffer is too small.
    /// - `EOPNOTSUPP`: the file system does not support attributes, or the backend does not perform it.
    ///   Otherwise as `flistxattr(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `flistxattr(2)`.
    #[doc(alias = "flistxattr")]
    pub fn list_xattr(&self, fd: &Fd, buf: Vec<u8>) -> Op<ListXattr> {
        self.start(ListXattr { fd: self.held(fd), buf })
    }

    /// Removes the extended attribute `name` of an open file.
    ///
    /// # Errors
    /// - `ENODATA`: the attribute does not exist.
    /// - `EOPNOTSUPP`: the file system does not support attributes, or the backend does not perform it.
    ///   Otherwise as `fremovexattr(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `fremovexattr(2)`.
    #[doc(alias = "fremovexattr")]
    pub fn remove_xattr(&self, fd: &Fd, name: CString) -> Op<RemoveXattr> {
        self.start(RemoveXattr { fd: self.held(fd), name })
    }
}

// SAFETY: the entry names the name and the buffer, which the value owns on the heap, and a descriptor
// that the value keeps open.
operation! {
    unsafe |it: GetXattr| Bounded, fd; Attribute;
    entry {
        let len = transfer_len(it.buf.bytes_room());
        Sqe::fgetxattr(it.fd.raw(), it.name.as_ptr().cast(), it.buf.as_mut_ptr(), len)
    };
    call {
        let len = transfer_len(it.buf.bytes_room()) as usize;
        let args = [word(it.name.as_ptr()), word(it.buf.as_mut_ptr()), len];
        System::on(Function::Fgetxattr, it.fd.raw(), args)
    };
    output fills_vec;
}

// SAFETY: as for `GetXattr`; the kernel only reads the bytes.
operation! {
    unsafe |it: SetXattr| Bounded, fd, local; Attribute;
    entry {
        let (name, len) = (it.name.as_ptr().cast(), transfer_len(it.value.len()));
        Sqe::fsetxattr(it.fd.raw(), name, it.value.as_ptr(), len, it.flags)
    };
    call {
        let (name, value) = (word(it.name.as_ptr()), word(it.value.as_ptr()));
        let args = [name, value, transfer_len(it.value.len()) as usize, it.flags as usize];
        System::on(Function::Fsetxattr, it.fd.raw(), args)
    };
}

// SAFETY: as for `GetXattr`.
operation! {
    unsafe |it: ListXattr| Bounded, fd; Attribute;
    call {
        let len = transfer_len(it.buf.bytes_room()) as usize;
        System::on(Function::Flistxattr, it.fd.raw(), [word(it.buf.as_mut_ptr()), len])
    };
    output fills_vec;
}

// SAFETY: as for `GetXattr`.
operation! {
    unsafe |it: RemoveXattr| Bounded, fd; Attribute;
    call System::on(Function::Fremovexattr, it.fd.raw(), [word(it.name.as_ptr())]);
}
