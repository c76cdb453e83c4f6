//! Reads and writes at a file's position, which moves with them.
//!
//! The position is kept here: each operation names its offset, so that the kernel's own position, which
//! other descriptors of the same open file may share, plays no part. Files without offsets (FIFOs,
//! terminals, most devices) have no position at all.

use std::io::{self, SeekFrom};
use std::os::fd::AsFd;

use rustix::io::Errno;
use sakia_driver::{BufResult, CURRENT_POSITION, IoBuf, IoBufMut};

use super::File;
use super::file::{check_offset, read_to_end};
use crate::io::transfer;

impl File {
    /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity) at the file's position, which moves
    /// past them. A file without positions is read sequentially. Otherwise as [`read_at`](File::read_at).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the position unchanged; of a file without positions, bytes already read are
    /// lost.
    ///
    /// # Errors
    /// As for [`read_at`](File::read_at).
    ///
    /// # Examples
    /// ```
    /// use std::io::SeekFrom;
    ///
    /// use sakia::fs::File;
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-cursor-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let mut file = File::options().read(true).write(true).create(true).open(&path).await?;
    /// file.write_all("hello, world").await.value()?;
    /// file.rewind().await?;
    /// let (count, buf) = file.read(vec![0; 5]).await.both()?;
    /// assert_eq!(&buf[..count], b"hello");
    /// assert_eq!(file.seek(SeekFrom::Current(2)).await?, 7);
    /// assert_eq!(file.read_to_end(Vec::new()).await.buffer()?, b"world");
    /// assert_eq!(file.stream_position().await?, 12);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
        if self.is_stream() {
            return self.read_explained(buf, CURRENT_POSITION).await;
        }
        let at = self.position.get();
        let (result, buf) = self.read_at(buf, at).await;
        if let Ok(count) = result {
            self.position.set(at + count as u64);
        }
        (result, buf)
    }

    /// Fills `buf` (an empty `Vec`: its capacity) from the file's position on, which moves past the bytes
    /// read, also before an error.
    ///
    /// # Cancel safety
    /// **None**: dropping the future loses the bytes that are in the buffer by then, and the position may
    /// have moved past them.
    ///
    /// # Errors
    /// As for [`read_exact_at`](File::read_exact_at).
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-read-exact-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, "six by").await?;
    /// let mut file = File::open(&path).await?;
    /// assert_eq!(file.read_exact(vec![0; 4]).await.buffer()?, b"six ");
    /// let (result, buf) = file.read_exact(vec![0; 4]).await;
    /// assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    /// assert_eq!(&buf[..2], b"by");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn read_exact<T: IoBufMut>(&mut self, buf: T) -> BufResult<(), T> {
        if self.direct.is_some() && !self.is_stream() {
            let (at, len) = (self.position.get(), buf.bytes_room() as u64);
            let (result, buf) = self.read_exact_at(buf, at).await;
            if result.is_ok() {
                self.position.set(at + len);
            }
            return (result, buf);
        }
        transfer::read_exact(buf, async |rest| self.read(rest).await).await
    }

    /// Reads from the file's position to the end, and appends to `buf`. The position moves there.
    ///
    /// # Cancel safety
    /// As [`read`](File::read).
    ///
    /// # Errors
    /// As for [`read_to_end_at`](File::read_to_end_at).
    ///
    /// # Examples
    /// See [`File::read`].
    pub async fn read_to_end(&mut self, buf: Vec<u8>) -> BufResult<usize, Vec<u8>> {
        if self.is_stream() {
            return read_to_end(self, buf, CURRENT_POSITION, None).await;
        }
        let (at, begin) = (self.position.get(), buf.len());
        let (result, buf) = self.read_to_end_at(buf, at).await;
        self.position.set(at + (buf.len() - begin) as u64);
        (result, buf)
    }

    /// Writes up to `buf.bytes_len()` bytes at the file's position, which moves past the bytes written; at
    /// the end of a file opened to append. Otherwise as [`write_at`](File::write_at).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the position unchanged, and some bytes may be written.
    ///
    /// # Errors
    /// As for [`write_at`](File::write_at), but for the first.
    ///
    /// # Examples
    /// See [`File::write_at`].
    pub async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.write_next(buf).await
    }

    /// As [`write`](File::write), for a shared file whose users order their operations themselves.
    pub(crate) async fn write_next<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        if self.appends || self.is_stream() {
            let (result, buf) = self.write_explained(buf, CURRENT_POSITION).await;
            if result.is_ok()
                && !self.is_stream()
                && !self.fd.is_simulated()
                // Only the kernel knows where the end was.
                && let Ok(position) = rustix::fs::tell(self.fd.as_fd())
            {
                self.position.set(position);
            }
            return (result, buf);
        }
        let at = self.position.get();
        let (result, buf) = self.write_at(buf, at).await;
        if let Ok(count) = result {
            self.position.set(at + count as u64);
        }
        (result, buf)
    }

    /// Writes all of `buf` at the file's position, which moves past the bytes written, also before an error.
    ///
    /// # Cancel safety
    /// **None**: dropping the future leaves an unknown part of `buf` written, and the position somewhere
    /// within it.
    ///
    /// # Errors
    /// As for [`write_all_at`](File::write_all_at), but for the first.
    ///
    /// # Examples
    /// See [`File::read`].
    pub async fn write_all<T: IoBuf>(&mut self, buf: T) -> BufResult<(), T> {
        if self.direct.is_some() && !self.is_stream() && !self.appends {
            let (at, len) = (self.position.get(), buf.bytes_len() as u64);
            let (result, buf) = self.write_all_at(buf, at).await;
            if result.is_ok() {
                self.position.set(at + len);
            }
            return (result, buf);
        }
        transfer::write_all(buf, |rest, _| self.write_next(rest)).await
    }

    /// Moves the file's position, and resolves to the new one. It may be beyond the end.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the position unchanged.
    ///
    /// # Errors
    /// - `EINVAL`: before the beginning, or above `i64::MAX`.
    /// - `ESPIPE`: a file without positions. As `fstat(2)` when it counts from the end.
    ///
    /// # Examples
    /// See [`File::read`].
    #[doc(alias = "lseek")]
    pub async fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.seek_next(position).await
    }

    /// As [`seek`](File::seek), for a shared file whose users order their operations themselves.
    pub(crate) async fn seek_next(&self, position: SeekFrom) -> io::Result<u64> {
        let position = match position {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.get().checked_add_signed(by),
            SeekFrom::End(by) => self.end().await?.checked_add_signed(by),
        };
        if self.is_stream() {
            return Err(Errno::SPIPE.into());
        }
        let position = position.ok_or(Errno::INVAL)?;
        check_offset(position)?;
        self.position.set(position);
        Ok(position)
    }

    /// Moves the file's position to the beginning.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the position unchanged.
    ///
    /// # Errors
    /// `ESPIPE`: a file without positions.
    ///
    /// # Examples
    /// See [`File::read`].
    pub async fn rewind(&mut self) -> io::Result<()> {
        self.seek(SeekFrom::Start(0)).await.map(|_| ())
    }

    /// Returns the file's position.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the position unchanged.
    ///
    /// # Errors
    /// `ESPIPE`: a file without positions.
    ///
    /// # Examples
    /// See [`File::read`].
    pub async fn stream_position(&mut self) -> io::Result<u64> {
        self.seek(SeekFrom::Current(0)).await
    }

    /// Returns the offset of the end of the file.
    async fn end(&self) -> io::Result<u64> {
        let metadata = self.metadata().await?;
        if metadata.file_type().is_block_device() {
            return Ok(rustix::fs::seek(self.fd.as_fd(), rustix::fs::SeekFrom::End(0))?);
        }
        Ok(metadata.len())
    }
}
