//! Calls without an entry.

use crate::call::{Call, Function, System, word};
use crate::sys::register;

pub(super) fn getdents(fd: i32, buf: *mut u8, len: usize) -> Call {
    System::on(Function::Getdents, fd, [word(buf), len])
}

pub(super) fn readlink(dir: i32, path: *const u8, buf: *mut u8, len: usize) -> Call {
    System::on(Function::Readlinkat, dir, [word(path), word(buf), len])
}

pub(super) fn chmod(dir: i32, path: *const u8, mode: usize) -> Call {
    if path.is_null() {
        return System::on(Function::Fchmod, dir, [mode]);
    }
    System::on(Function::Fchmodat, dir, [word(path), mode])
}

pub(super) fn chown(dir: i32, path: *const u8, uid: usize, gid: usize) -> Call {
    System::on(Function::Fchownat, dir, [word(path), uid, gid, 0])
}

pub(super) fn utimens<T>(dir: i32, path: *const u8, times: *const T) -> Call {
    System::on(Function::Utimensat, dir, [word(path), word(times), 0])
}

pub(super) fn copy_file_range(
    from: i32,
    from_offset: u64,
    to: i32,
    to_offset: u64,
    len: u32,
) -> Call {
    Call::CopyFileRange { from, from_offset, to, to_offset, len }
}

pub(super) fn syncfs(fd: i32) -> Call {
    System::of(Function::Syncfs, [register(fd)])
}

pub(super) fn flock(raw: i32, operation: u32) -> Call {
    Call::Flock { raw, operation }
}

pub(super) fn statfs<T>(fd: i32, result: *mut T) -> Call {
    System::on(Function::Fstatfs, fd, [word(result)])
}

pub(super) fn flistxattr(fd: i32, buf: *mut u8, len: usize) -> Call {
    System::on(Function::Flistxattr, fd, [word(buf), len])
}

pub(super) fn fremovexattr(fd: i32, name: *const u8) -> Call {
    System::on(Function::Fremovexattr, fd, [word(name)])
}
