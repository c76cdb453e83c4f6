//! Operations on an open file as a whole: length, allocation, permissions, times, locks.

use std::fs::TryLockError;
use std::io;
use std::ops::Range;
use std::time::SystemTime;

use rustix::fs::{Advice as Code, FallocateFlags, FlockOperation};

use super::{File, FileTimes, Permissions, uninterrupted};

const PUNCH_HOLE: FallocateFlags = FallocateFlags::KEEP_SIZE.union(FallocateFlags::PUNCH_HOLE);

/// The expected use of a part of a file.
///
/// # Examples
/// ```
/// use sakia::fs::{self, Advice, File};
/// use sakia::io::BufResultExt;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-advice-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, vec![7; 100_000]).await?;
/// let file = File::open(&path).await?;
/// file.advise(0..u64::MAX, Advice::Sequential).await?;
/// assert_eq!(file.read_to_end_at(Vec::new(), 0).await.value()?, 100_000);
/// // It will not be read again: the page cache may drop it.
/// file.advise(0..u64::MAX, Advice::DontNeed).await?;
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Advice {
    /// In no particular way.
    Normal = Code::Normal as u32,
    /// From front to back: read ahead more.
    Sequential = Code::Sequential as u32,
    /// Here and there: do not read ahead.
    Random = Code::Random as u32,
    /// Soon: begin to read it.
    WillNeed = Code::WillNeed as u32,
    /// Not any more: drop its durable pages from the page cache.
    DontNeed = Code::DontNeed as u32,
    /// Once.
    NoReuse = Code::NoReuse as u32,
}

impl File {
    /// Makes the file `len` bytes long: cuts it off, or adds zeros. The position stays.
    ///
    /// # Errors
    /// - `EINVAL`: not open to write, or longer than the kernel knows. `EFBIG`: longer than allowed.
    /// - `ENOSPC`, `EDQUOT`: no room. Otherwise as `ftruncate(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::{self, File};
    /// use sakia::io::BufResultExt;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-set-len-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// file.write_all_at("hello, world", 0).await.value()?;
    /// file.set_len(5).await?;
    /// file.set_len(7).await?;
    /// assert_eq!(fs::read(&path).await?, b"hello\0\0");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 6.9 (`io_uring_prep_ftruncate(3)`), else a plain call.
    #[doc(alias = "ftruncate")]
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        uninterrupted(async || self.driver.truncate(&self.fd, len).await).await
    }

    /// Allocates blocks for the bytes in `range`, so that writing them does not fail for lack of room. The
    /// file grows to the end of the range if it was shorter; new bytes are zeros.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the file system does not support it. `EINVAL`: an empty range.
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room. Otherwise as `fallocate(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::fs::File;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-allocate-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let file = File::create(&path).await?;
    /// match file.allocate(0..1 << 20).await {
    ///     Ok(()) => assert_eq!(file.len().await?, 1 << 20),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "not on each file system"),
    /// }
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fallocate(3)`.
    #[doc(alias = "fallocate")]
    #[doc(alias = "posix_fallocate")]
    pub async fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        self.driver.fallocate(&self.fd, 0, range.start, len).await
    }

    /// Deallocates the blocks of the bytes in `range`: they are zeros then. The file's length stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the file system does not support it. `EINVAL`: an empty range. Otherwise as
    /// `fallocate(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia::fs::{self, File};
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-punch-hole-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// fs::write(&path, vec![1; 1 << 20]).await?;
    /// let file = File::options().read(true).write(true).open(&path).await?;
    /// match file.punch_hole(0..1 << 19).await {
    ///     Ok(()) => assert_eq!(fs::read(&path).await?[..1 << 19], vec![0; 1 << 19]),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "not on each file system"),
    /// }
    /// assert_eq!(file.len().await?, 1 << 20);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fallocate(3)`.
    #[doc(alias = "FALLOC_FL_PUNCH_HOLE")]
    pub async fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        self.driver.fallocate(&self.fd, PUNCH_HOLE.bits(), range.start, len).await
    }

    /// Tells the kernel how the bytes in `range` will be used; all from `range.start` on when it ends
    /// with `u64::MAX`.
    ///
    /// # Errors
    /// `ESPIPE`: a FIFO. Otherwise as `posix_fadvise(2)`.
    ///
    /// # Examples
    /// See [`Advice`](Advice#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fadvise(3)`.
    #[doc(alias = "posix_fadvise")]
    pub async fn advise(&self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let len = match range.end {
            u64::MAX => 0, // the kernel's value for it
            end if end <= range.start => return Ok(()),
            end => end - range.start,
        };
        self.driver.advise(&self.fd, range.start, len, advice as u32).await
    }

    /// Sets the file's access rights. Descriptors that are open keep theirs.
    ///
    /// # Errors
    /// `EPERM`: the file of another user. `EROFS`. Otherwise as `fchmod(2)`.
    ///
    /// # Examples
    /// See [`Permissions`](super::Permissions#examples).
    ///
    /// # Kernel
    /// A plain call: io_uring has no such operation.
    #[doc(alias = "fchmod")]
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.driver.chmod_fd(&self.fd, permissions.mode()).await
    }

    /// Sets the file's times.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`: the file of another user. Otherwise as `futimens(3)`.
    ///
    /// # Examples
    /// See [`FileTimes`](super::FileTimes#examples).
    ///
    /// # Kernel
    /// A plain call: io_uring has no such operation.
    #[doc(alias = "futimens")]
    pub async fn set_times(&self, times: FileTimes) -> io::Result<()> {
        let [accessed, modified] = times.to_set();
        self.driver.utimens_fd(&self.fd, accessed, modified).await
    }

    /// Sets the time at which the contents last changed.
    ///
    /// # Errors
    /// See [`set_times`](File::set_times).
    ///
    /// # Examples
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use sakia::fs::File;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-set-modified-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    /// let file = File::create(&path).await?;
    /// file.set_modified(then).await?;
    /// assert_eq!(file.metadata().await?.modified()?, then);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub async fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.set_times(FileTimes::new().set_modified(time)).await
    }

    /// Locks the file exclusively for this open file, and waits until no other open file has a lock on it.
    /// The lock is advisory: it keeps out only programs that lock as well.
    ///
    /// The lock belongs to the open file: its clones share it, and it ends when the last of them is closed.
    ///
    /// # Cancel safety
    /// **None**: if the future is dropped while it waits, the lock may still be taken later. Then call
    /// [`unlock`](File::unlock), or close the file.
    ///
    /// # Errors
    /// `ENOLCK`: no memory for locks. `EOPNOTSUPP`: the file system has no locks. Otherwise as `flock(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::fs::TryLockError;
    ///
    /// use sakia::fs::File;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-lock-{}", std::process::id()));
    /// # sakia::block_on(async {
    /// let (one, other) = (File::create(&path).await?, File::open(&path).await?);
    /// one.lock().await?;
    /// assert!(matches!(other.try_lock().await, Err(TryLockError::WouldBlock)));
    /// one.unlock().await?;
    /// // Any number may read at a time.
    /// one.lock_shared().await?;
    /// other.try_lock_shared().await?;
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Kernel
    /// A plain call: io_uring has no such operation.
    #[doc(alias = "flock")]
    pub async fn lock(&self) -> io::Result<()> {
        self.flock(FlockOperation::LockExclusive).await
    }

    /// Takes a shared lock of the file, and waits until no open file has an exclusive lock. Otherwise as
    /// [`lock`](File::lock).
    ///
    /// # Cancel safety
    /// **None**, as for [`lock`](File::lock).
    ///
    /// # Errors
    /// See [`lock`](File::lock).
    ///
    /// # Examples
    /// See [`File::lock`].
    pub async fn lock_shared(&self) -> io::Result<()> {
        self.flock(FlockOperation::LockShared).await
    }

    /// As [`lock`](File::lock), but fails instead of waiting.
    ///
    /// # Errors
    /// `WouldBlock`: another open file has a lock. Otherwise see [`lock`](File::lock).
    ///
    /// # Examples
    /// See [`File::lock`].
    pub async fn try_lock(&self) -> Result<(), TryLockError> {
        self.try_flock(FlockOperation::NonBlockingLockExclusive).await
    }

    /// As [`lock_shared`](File::lock_shared), but fails instead of waiting.
    ///
    /// # Errors
    /// `WouldBlock`: another open file has an exclusive lock. Otherwise see [`lock`](File::lock).
    ///
    /// # Examples
    /// See [`File::lock`].
    pub async fn try_lock_shared(&self) -> Result<(), TryLockError> {
        self.try_flock(FlockOperation::NonBlockingLockShared).await
    }

    /// Releases the lock, if the open file has one.
    ///
    /// # Errors
    /// As `flock(2)`.
    ///
    /// # Examples
    /// See [`File::lock`].
    pub async fn unlock(&self) -> io::Result<()> {
        self.flock(FlockOperation::Unlock).await
    }

    async fn try_flock(&self, operation: FlockOperation) -> Result<(), TryLockError> {
        match self.flock(operation).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(TryLockError::WouldBlock)
            }
            Err(error) => Err(TryLockError::Error(error)),
        }
    }

    async fn flock(&self, operation: FlockOperation) -> io::Result<()> {
        uninterrupted(async || self.driver.flock(&self.fd, operation as u32).await).await
    }
}
