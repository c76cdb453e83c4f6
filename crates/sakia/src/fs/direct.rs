//! Direct I/O: alignment, and transfers that are not aligned.
//!
//! A file opened with `O_DIRECT` moves whole blocks only. The tail of a file that ends within a block is
//! written and read by way of a second descriptor, which goes through the page cache. The kernel keeps
//! the two views the same: a direct read or write first writes back, and then drops, the cached pages
//! of its range.

use std::cell::OnceCell;
use std::error;
use std::ffi::CString;
use std::fmt;
use std::io;

use rustix::fs::{OFlags, StatxFlags};
use rustix::io::Errno;
use sakia_driver::{AlignedBuf, BufResult, CURRENT_POSITION, Fd, IoBuf, IoBufMut, Room, Slice};

use super::file::check_offset;
use super::{File, uninterrupted};
use crate::io::transfer::{buf_try, read_exact, write_all};

/// Bytes of each read when a direct file is read to its end.
const CHUNK_BYTES: usize = 1 << 20;

/// The alignment that direct I/O on a file requires. Powers of two.
///
/// # Examples
/// See [`File::direct_alignment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Alignment of a buffer's address, in bytes.
    pub memory: usize,
    /// Alignment of offsets and lengths, in bytes.
    pub offset: u64,
}

/// The state of a file that was opened for direct I/O.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// Queried once.
    alignment: OnceCell<DirectAlignment>,
    /// The second descriptor, opened when there is a tail.
    buffered: OnceCell<Fd>,
}

impl File {
    /// Returns the alignment that direct I/O on this file requires; `None` if the file system does not
    /// support direct I/O. 4096 bytes for both if the kernel does not report it, as before Linux 6.1.
    ///
    /// [`AlignedBuf`] is aligned well enough for every file.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As `fstat(2)`.
    ///
    /// # Kernel
    /// 6.1 (`STATX_DIOALIGN`).
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{AlignedBuf, File, OpenOptions};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-align-{}", std::process::id()));
    /// sakia::block_on(async {
    ///     let file = File::create(&path).await?;
    ///     if let Some(alignment) = file.direct_alignment().await? {
    ///         let file = OpenOptions::new().read(true).write(true).direct(true).open(&path).await?;
    ///         // Not a multiple of a block: the tail takes another way.
    ///         let len = alignment.offset as usize + 5;
    ///         file.write_all_at(AlignedBuf::zeroed(len), 0).await.value()?;
    ///         assert_eq!(file.len().await?, len as u64);
    ///     }
    /// #   std::fs::remove_file(&path)?;
    ///     std::io::Result::Ok(())
    /// }).unwrap();
    /// ```
    #[doc(alias = "STATX_DIOALIGN")]
    pub async fn direct_alignment(&self) -> io::Result<Option<DirectAlignment>> {
        let metadata = self.metadata().await?;
        let stat = metadata.as_statx();
        if stat.mask & StatxFlags::DIOALIGN.bits() == 0 {
            return Ok(Some(GUESS));
        }
        let memory = stat.direct_memory_align as usize;
        let offset = u64::from(stat.direct_offset_align);
        let is_supported = memory.is_power_of_two() && offset.is_power_of_two();
        Ok(is_supported.then_some(DirectAlignment { memory, offset }))
    }

    async fn alignment(&self, direct: &Direct) -> io::Result<DirectAlignment> {
        if let Some(&alignment) = direct.alignment.get() {
            return Ok(alignment);
        }
        // A file that could be opened is supported, whatever the file system says.
        let alignment = self.direct_alignment().await?.unwrap_or(GUESS);
        Ok(*direct.alignment.get_or_init(|| alignment))
    }

    /// Returns the descriptor that goes through the page cache.
    async fn buffered<'a>(&self, direct: &'a Direct) -> io::Result<&'a Fd> {
        if let Some(fd) = direct.buffered.get() {
            return Ok(fd);
        }
        // Opens this very file, whatever its path names by now.
        let path = CString::new(format!("/proc/self/fd/{}", self.fd.raw()));
        let path = path.expect("a number has no zero byte");
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        let flags = flags & (OFlags::RWMODE | OFlags::DSYNC | OFlags::SYNC);
        let open = async || self.driver.open(None, path.clone(), flags.bits(), 0).await;
        let fd = uninterrupted(open).await?;
        Ok(direct.buffered.get_or_init(|| fd))
    }

    /// Returns the descriptor and the length of the next part of a transfer: whole blocks go by the file
    /// itself, the rest by the buffered descriptor.
    async fn way<'a>(
        &'a self,
        direct: &'a Direct,
        alignment: DirectAlignment,
        offset: u64,
        left: usize,
    ) -> io::Result<(&'a Fd, usize)> {
        let block = alignment.offset as usize;
        if offset.is_multiple_of(alignment.offset) && left >= block {
            Ok((&self.fd, left - left % block))
        } else {
            Ok((self.buffered(direct).await?, left))
        }
    }

    pub(super) async fn write_all_direct<T: IoBuf>(
        &self,
        direct: &Direct,
        buf: T,
        offset: u64,
        flags: u32,
    ) -> BufResult<(), T> {
        let alignment = buf_try!(self.begin(direct, offset, &buf, buf.bytes_len()).await, buf);
        let write = |rest: Slice<T>, done| async move {
            let at = offset + done as u64;
            let (fd, count) =
                buf_try!(self.way(direct, alignment, at, rest.bytes_len()).await, rest);
            let (result, part) = self.write_once(fd, rest.slice(..count), at, flags).await;
            let (result, part) = self.explained(result, part, count, at).await;
            (result, part.into_inner())
        };
        write_all(buf, write).await
    }

    pub(super) async fn read_exact_direct<T: IoBufMut>(
        &self,
        direct: &Direct,
        buf: T,
        offset: u64,
    ) -> BufResult<(), T> {
        let alignment = buf_try!(self.begin(direct, offset, &buf, buf.bytes_room()).await, buf);
        let read = async |rest: Room<T>| {
            let at = offset + rest.filled() as u64;
            let (fd, count) =
                buf_try!(self.way(direct, alignment, at, rest.bytes_room()).await, rest);
            let (result, part) = self.read_once(fd, rest.room(count), at).await;
            let (result, part) = self.explained(result, part, count, at).await;
            (result, part.into_inner())
        };
        read_exact(buf, read).await
    }

    /// By way of an aligned buffer, since a vector's memory is not.
    pub(super) async fn read_to_end_direct(
        &self,
        direct: &Direct,
        mut buf: Vec<u8>,
        offset: u64,
    ) -> BufResult<usize, Vec<u8>> {
        let begin = buf.len();
        let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
        let alignment = buf_try!(self.begin(direct, offset, &chunk, chunk.len()).await, buf);
        loop {
            let done = buf.len() - begin;
            let at = offset + done as u64;
            let (fd, count) = buf_try!(self.way(direct, alignment, at, chunk.len()).await, buf);
            let (result, slice) = self.read_once(fd, chunk.slice(..count), at).await;
            chunk = slice.into_inner();
            let count = buf_try!(result, buf);
            if count == 0 {
                return (Ok(done), buf);
            }
            buf_try!(buf.try_reserve(count).map_err(io::Error::from), buf);
            buf.extend_from_slice(&chunk[..count]);
        }
    }

    /// Returns the alignment, if a transfer of `len` bytes may begin at `offset`.
    async fn begin(
        &self,
        direct: &Direct,
        offset: u64,
        buf: &impl IoBuf,
        len: usize,
    ) -> io::Result<DirectAlignment> {
        check_offset(offset)?;
        let alignment = self.alignment(direct).await?;
        if offset.is_multiple_of(alignment.offset) {
            return Ok(alignment);
        }
        let address = buf.stable_ptr().addr();
        Err(Misaligned { offset: Some(offset), len, address, alignment }.into())
    }

    /// Adds the required alignment to an `EINVAL` of direct I/O of `len` bytes, if misalignment is the
    /// reason: it is not if the buffer has no room.
    #[cold]
    pub(super) async fn explain(
        &self,
        error: io::Error,
        buf: &impl IoBuf,
        len: usize,
        offset: u64,
    ) -> io::Error {
        let Some(direct) = &self.direct else { return error };
        if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) || len == 0 {
            return error;
        }
        let Ok(alignment) = self.alignment(direct).await else { return error };
        let address = buf.stable_ptr().addr();
        let offset = Some(offset).filter(|&offset| offset != CURRENT_POSITION);
        let misaligned = Misaligned { offset, len, address, alignment };
        if misaligned.is_so() { misaligned.into() } else { error }
    }
}

/// The alignment used if the kernel does not report it.
const GUESS: DirectAlignment = DirectAlignment { memory: 4096, offset: 4096 };

/// Direct I/O that is not aligned as the file requires: the kernel's `EINVAL`, with the reason. It is the
/// inner error of the [`io::Error`]; [`os_error`](super::os_error) finds the errno.
///
/// # Examples
/// ```
/// use sakia::fs::{self, Misaligned, OpenOptions};
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-misaligned-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, vec![1; 8192]).await?;
/// // Not each file system has direct I/O.
/// if let Ok(file) = OpenOptions::new().read(true).direct(true).open(&path).await
///     && let Err(error) = file.read_at(vec![0; 100], 1).await.0
///     && let Some(inner) = error.get_ref()
/// {
///     let misaligned = inner.downcast_ref::<Misaligned>().expect("offset and length are odd");
///     assert!(misaligned.alignment().offset > 1);
///     assert_eq!(fs::os_error(&error), Some(libc::EINVAL));
/// }
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Misaligned {
    /// `None`: the file's position, whose offset is unknown.
    offset: Option<u64>,
    len: usize,
    address: usize,
    alignment: DirectAlignment,
}

impl Misaligned {
    /// Returns the alignment that the file requires.
    ///
    /// # Examples
    /// See [`Misaligned`](Misaligned#examples).
    pub fn alignment(&self) -> DirectAlignment {
        self.alignment
    }

    /// Returns `EINVAL`.
    pub fn raw_os_error(&self) -> i32 {
        Errno::INVAL.raw_os_error()
    }

    fn is_so(&self) -> bool {
        let DirectAlignment { memory, offset } = self.alignment;
        self.offset.is_some_and(|at| !at.is_multiple_of(offset))
            || !(self.len as u64).is_multiple_of(offset)
            || !self.address.is_multiple_of(memory)
    }
}

impl fmt::Display for Misaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DirectAlignment { memory, offset } = self.alignment;
        write!(f, "direct I/O of {} bytes at ", self.len)?;
        match self.offset {
            Some(offset) => write!(f, "offset {offset}")?,
            None => f.write_str("the file's position")?,
        }
        write!(
            f,
            " with memory at {:#x}: offset and length must be \
             multiples of {offset}, the address one of {memory} (os error {})",
            self.address,
            self.raw_os_error()
        )
    }
}

impl error::Error for Misaligned {}

impl From<Misaligned> for io::Error {
    fn from(misaligned: Misaligned) -> Self {
        Self::new(io::ErrorKind::InvalidInput, misaligned)
    }
}

#[cfg(test)]
mod tests {
    use sakia_testkit::failing_writer::untold_error;

    use super::*;

    #[test]
    fn an_error_of_the_writer_ends_the_text() {
        for offset in [Some(1), None] {
            let alignment = DirectAlignment { memory: 4, offset: 512 };
            let misaligned = Misaligned { offset, len: 7, address: 1, alignment };
            assert_eq!(untold_error(&misaligned, 0..), None, "{misaligned}");
        }
    }
}
