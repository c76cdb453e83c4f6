//! Small files of `/proc`.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// Flags to read a file of `/proc`.
pub(crate) const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// Reads a small file of `/proc`, relative to `folder`, as far as there is room. By calls of the kernel
/// alone: what the standard library has for that is ten times as much code, which each program would have.
#[inline(never)]
pub(crate) fn read_small<'b>(
    folder: BorrowedFd<'_>,
    path: &CStr,
    room: &'b mut [u8],
) -> Result<&'b [u8], Errno> {
    let file = openat(folder, path, READ, Mode::empty())?;
    let mut len = 0;
    while len < room.len() {
        match rustix::io::read(&file, &mut room[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(&room[..len])
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn what_cannot_be_opened_or_read_is_an_error() {
        let read = |path| read_small(CWD, path, &mut [0; 100]).map(<[u8]>::len);
        assert_eq!(read(c"/proc/no such file"), Err(Errno::NOENT));
        assert_eq!(read(c"/proc"), Err(Errno::ISDIR));
        assert_eq!(read(c"/proc/version"), Ok(100));
    }
}
