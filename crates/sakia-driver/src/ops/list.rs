//! Listing a directory.

use std::rc::Rc;

use super::transfer_len;
use crate::buf::{IoBufMut, initialize};
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::decide::{Mount, Route, Rules};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::Operation;

/// See [`Handle::read_directory`].
#[derive(Debug)]
pub struct ReadDirectory<T = Vec<u8>> {
    fd: Fd,
    buf: T,
}

impl Handle {
    /// Reads the next entries of the directory `fd`, as many as fit into `buf` (an empty one: into its
    /// capacity): records of the kernel's `struct linux_dirent64`, which [`DirectoryEntries`] parses. The
    /// directory's position moves past them. Resolves to the number of bytes, and the buffer; 0 means that
    /// there are no more.
    ///
    /// # Errors
    /// - `EINVAL`: the buffer is too small for the next entry. 280 bytes suffice for any.
    /// - `ENOTDIR`: not a directory. `ENOENT`: it was removed.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `getdents64(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::{DirectoryEntries, EntryKind};
    ///
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
    /// let directory = driver.adopt(std::fs::File::open("src")?.into());
    /// let mut files = 0;
    /// loop {
    ///     let buf = Vec::with_capacity(4096);
    ///     let (result, buf) = run(&driver, driver.read_directory(&directory, buf))?;
    ///     if result? == 0 {
    ///         break;
    ///     }
    ///     files += DirectoryEntries::new(&buf).filter(|entry| entry.kind == EntryKind::File).count();
    /// }
    /// # let kinds = std::fs::read_dir("src")?.filter(|entry| entry.as_ref().unwrap().path().is_file());
    /// # assert_eq!(files, kinds.count());
    /// assert!(files > 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `getdents(2)`.
    #[doc(alias = "getdents64")]
    #[doc(alias = "readdir")]
    pub fn read_directory<T: IoBufMut>(&self, fd: &Fd, mut buf: T) -> Op<ReadDirectory<T>> {
        // The kernel counts the gaps between its records as bytes, but does not write them.
        initialize(&mut buf);
        self.start(ReadDirectory { fd: self.held(fd), buf })
    }
}

// SAFETY: the call names the buffer's bytes, which the value owns and which do not move (the promise of
// `IoBufMut`), and a descriptor that the value keeps open.
unsafe impl<T: IoBufMut> Operation for ReadDirectory<T> {
    const KIND: OpKind = OpKind::List;

    fn call(&mut self) -> Call {
        let len = transfer_len(self.buf.bytes_room());
        let args = [word(self.buf.stable_mut_ptr()), len as usize];
        System::on(Function::Getdents, self.fd.raw(), args)
    }

    fn has_room(&self) -> bool {
        self.buf.bytes_room() > 0
    }

    fills_vec!(T);
    acts_on!(Bounded, fd);

    fn route(&self, rules: &Rules) -> Route {
        self.fd.route_call(rules.of(OpKind::List))
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.fd.mount()
    }
}

/// The kind of a directory entry.
///
/// # Examples
/// See [`Handle::read_directory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Not reported by the file system: use `statx`.
    Unknown,
}

impl EntryKind {
    /// Converts the kernel's `DT_*`.
    const fn of(code: u8) -> Self {
        match code {
            1 => Self::Fifo,
            2 => Self::CharacterDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::File,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => Self::Unknown,
        }
    }
}

/// An entry of a directory.
///
/// # Examples
/// See [`Handle::read_directory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectoryEntry<'a> {
    /// Inode number.
    pub inode: u64,
    /// Its kind.
    pub kind: EntryKind,
    /// The directory's position after this entry.
    pub position: u64,
    /// The name, without a NUL.
    pub name: &'a [u8],
}

/// Iterates over the entries in the bytes of [`Handle::read_directory`]. `.` and `..` are among them.
///
/// It ends at the end of the bytes, and before an incomplete record.
///
/// # Examples
/// See [`Handle::read_directory`].
#[derive(Clone, Debug)]
pub struct DirectoryEntries<'a> {
    rest: &'a [u8],
}

/// Bytes of a `struct linux_dirent64` before its name.
const HEADER_BYTES: usize = 19;

impl<'a> DirectoryEntries<'a> {
    /// Iterates over these bytes: the part of the buffer that the operation resolved to.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for DirectoryEntries<'a> {
    type Item = DirectoryEntry<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (inode, rest) = self.rest.split_first_chunk::<8>()?;
        let (position, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (&kind, _) = rest.split_first()?;
        let len = usize::from(u16::from_ne_bytes(*len));
        let name = self.rest.get(HEADER_BYTES..len)?;
        let name_len = name.iter().position(|&byte| byte == 0)?;
        self.rest = &self.rest[len..];
        Some(DirectoryEntry {
            inode: u64::from_ne_bytes(*inode),
            kind: EntryKind::of(kind),
            position: u64::from_ne_bytes(*position),
            name: &name[..name_len],
        })
    }
}

impl std::iter::FusedIterator for DirectoryEntries<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a record in the kernel's form.
    fn record(inode: u64, position: u64, kind: u8, name: &[u8]) -> Vec<u8> {
        let len = (HEADER_BYTES + name.len() + 1).next_multiple_of(8);
        let mut bytes = Vec::new();
        bytes.extend(inode.to_ne_bytes());
        bytes.extend(position.to_ne_bytes());
        bytes.extend((len as u16).to_ne_bytes());
        bytes.push(kind);
        bytes.extend(name);
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn records_are_taken_apart() {
        let mut bytes = record(7, 1, 4, b".");
        bytes.extend(record(8, 2, 8, b"a-file"));
        bytes.extend(record(u64::MAX, u64::MAX, 99, &[b'x'; 255]));
        let entries: Vec<_> = DirectoryEntries::new(&bytes).collect();
        assert_eq!(entries.len(), 3);
        let DirectoryEntry { inode, kind, position, name } = entries[1];
        assert_eq!((inode, position, kind, name), (8, 2, EntryKind::File, &b"a-file"[..]));
        assert_eq!((entries[0].kind, entries[0].name), (EntryKind::Directory, &b"."[..]));
        assert_eq!((entries[2].kind, entries[2].name.len()), (EntryKind::Unknown, 255));
    }

    #[test]
    fn what_is_not_whole_ends_it() {
        let good = record(7, 1, 8, b"name");
        for len in 0..good.len() {
            assert_eq!(DirectoryEntries::new(&good[..len]).count(), 0, "{len}");
        }
        for bad_len in [0_u16, 1, 18, 19, 23, 25, u16::MAX] {
            let mut bytes = good.clone();
            bytes[16..18].copy_from_slice(&bad_len.to_ne_bytes());
            let mut entries = DirectoryEntries::new(&bytes);
            assert!(entries.next().is_none() && entries.next().is_none(), "{bad_len}");
        }
        let mut endless = good;
        endless[HEADER_BYTES..].fill(b'x');
        assert_eq!(DirectoryEntries::new(&endless).count(), 0);
    }
}
