//! Options for opening a file.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;
use sakia_driver::{Fd, FileKind, Handle};

use super::dir::open_resolving;
use super::{Dir, File, Metadata, c_path, driver, stat_open, uninterrupted};
use crate::error::{Context, Result};

/// The options for opening a file: the names of [`std::fs::OpenOptions`], and a few more.
///
/// # Examples
/// ```
/// use sakia::fs::OpenOptions;
/// use sakia::io::BufResultExt;
///
/// # let path = std::env::temp_dir().join(format!("sakia-options-{}", std::process::id()));
/// sakia::block_on(async {
///     let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).await?;
///     file.write_all_at("private", 0).await.value()?;
///     assert_eq!(file.metadata().await?.permissions().mode(), 0o600);
/// #   std::fs::remove_file(&path)?;
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    direct: bool,
    nonblocking: bool,
    mode: Option<u32>,
    custom_flags: i32,
    resolve: Option<ResolveFlags>,
}

/// Setters of the fields that are flags.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: bool) -> &mut Self {
            self.$name = $name;
            self
        }
    )*};
}

impl OpenOptions {
    /// Returns options that allow nothing and make nothing.
    ///
    /// # Examples
    /// See [`OpenOptions`](OpenOptions#examples).
    pub fn new() -> Self {
        Self::default()
    }

    flags! {
        /// Sets whether the file can be read.
        read;
        /// Sets whether the file can be written.
        write;
        /// Sets whether writes go to the file's end at that time. Such a file refuses positional writes.
        append;
        /// Sets whether the file is emptied first.
        truncate;
        /// Sets whether a missing file is made.
        create;
        /// Sets whether the file is made, and must not exist yet.
        #[doc(alias = "O_EXCL")]
        create_new;
        /// Sets whether bytes move between memory and the device without the page cache. Addresses, offsets
        /// and lengths must then be aligned, see [`File::direct_alignment`];
        /// [`write_all_at`](File::write_all_at), [`read_exact_at`](File::read_exact_at) and
        /// [`read_to_end_at`](File::read_to_end_at) also accept the odd tail of a file.
        #[doc(alias = "O_DIRECT")]
        direct;
        /// Sets whether opening a FIFO returns without waiting for its other end. Opening it to write without
        /// a reader then fails with `ENXIO`.
        #[doc(alias = "O_NONBLOCK")]
        nonblocking;
    }

    /// Sets the permissions of a file that is made, before the process's umask. Without this call `0o666`.
    ///
    /// # Examples
    /// See [`OpenOptions`](OpenOptions#examples).
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode & 0o7777);
        self
    }

    /// Adds further `O_*` flags. The access mode in them is ignored.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::OpenOptions;
    ///
    /// # sakia::block_on(async {
    /// const O_NOFOLLOW: i32 = libc::O_NOFOLLOW;
    /// let options = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).clone();
    /// let error = options.open("/proc/self/exe").await.unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Restricts how the path is looked up. Without this call it is looked up as the kernel always does, and
    /// for [`Dir::open_with`] confined to the directory.
    ///
    /// # Examples
    /// See [`Resolve`](Resolve#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `openat2(2)`.
    pub fn resolve(&mut self, resolve: Resolve) -> &mut Self {
        self.resolve = Some(resolve.0);
        self
    }

    /// Opens the file.
    ///
    /// Opening a FIFO waits until another process has opened its other end; only this future waits for that.
    /// With [`nonblocking`](OpenOptions::nonblocking) nothing waits.
    ///
    /// # Cancel safety
    /// If the future is dropped, a newly opened descriptor is closed. The file may have been made or emptied
    /// by then. If the future waits for the other end of a FIFO, the thread that waits in its place goes on
    /// until that is opened.
    ///
    /// # Errors
    /// - `EINVAL`: neither to read nor to write, or to make or empty a file without writing.
    /// - `ENOENT`, `EACCES`, `EEXIST`, `EISDIR`, `ELOOP`, `ETXTBSY`: the path, and the file there.
    /// - `EMFILE`, `ENFILE`: no descriptors left. `EINVAL`: no direct I/O there.
    /// - `ECANCELED`: the runtime has ended. Otherwise as `open(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`OpenOptions`](OpenOptions#examples).
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_openat(3)`.
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.open_at(None, path).await.at("open", path)
    }

    /// Opens the file, and asks for its metadata. On a local file system both take one call less than
    /// [`open`](OpenOptions::open) and then [`metadata`](File::metadata): the runtime learns the facts that
    /// it needs about the file by the same call.
    ///
    /// # Cancel safety
    /// As [`open`](OpenOptions::open).
    ///
    /// # Errors
    /// As [`open`](OpenOptions::open), and `statx(2)`.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Kernel
    /// As [`open`](OpenOptions::open).
    ///
    /// # Examples
    /// Regular files only, without a wait where there is a FIFO:
    ///
    /// ```
    /// use std::io;
    /// use std::path::Path;
    /// use sakia::fs::{File, OpenOptions};
    ///
    /// async fn open(path: &Path) -> io::Result<(File, u64)> {
    ///     let options = OpenOptions::new().read(true).nonblocking(true).clone();
    ///     let (file, metadata) = options.open_with_metadata(path).await?;
    ///     if !metadata.is_file() {
    ///         return Err(io::ErrorKind::NotFound.into());
    ///     }
    ///     Ok((file, metadata.len()))
    /// }
    /// # sakia::block_on(async {
    /// #     assert!(open(Path::new("/proc/self/exe")).await.is_ok());
    /// #     assert!(open(Path::new("/dev/null")).await.is_err());
    /// # });
    /// ```
    pub async fn open_with_metadata(&self, path: impl AsRef<Path>) -> Result<(File, Metadata)> {
        let path = path.as_ref();
        self.open_with_metadata_at(None, path).await.at("open", path)
    }

    /// As [`open_at`](OpenOptions::open_at), with the metadata.
    pub(super) async fn open_with_metadata_at(
        &self,
        directory: Option<&Dir>,
        path: &Path,
    ) -> io::Result<(File, Metadata)> {
        let file = self.open_unawaited(directory, path).await?;
        // Before the descriptor is used in any other way.
        let metadata = file.metadata().await?;
        if metadata.file_type().is_fifo() && may_await_writer(self.flags()?) {
            uninterrupted(async || file.driver.await_writer(&file.fd).await).await?;
        }
        Ok((file, metadata))
    }

    /// Opens a path, relative to a directory if there is one. The lookup is confined to that directory unless
    /// [`resolve`](OpenOptions::resolve) says otherwise.
    pub(super) async fn open_at(&self, directory: Option<&Dir>, path: &Path) -> io::Result<File> {
        let file = self.open_unawaited(directory, path).await?;
        await_writer(&file.driver, &file.fd, self.flags()?).await?;
        Ok(file)
    }

    /// As [`open_at`](OpenOptions::open_at), but opening a FIFO only to read does not wait for a writer.
    async fn open_unawaited(&self, directory: Option<&Dir>, path: &Path) -> io::Result<File> {
        let flags = self.flags()?;
        // `O_TMPFILE` includes the bit of `O_DIRECTORY`.
        let makes = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
        let mode = if makes { self.mode_of_new() } else { 0 };
        let driver = driver();
        let confined = directory.is_some().then_some(ResolveFlags::BENEATH);
        let lookup =
            self.resolve.or(confined).map(|how| (directory.map(|directory| &directory.fd), how));
        let fd = open_unawaited(&driver, path, flags, mode, lookup).await?;
        Ok(File::new(fd, driver, flags))
    }

    /// Returns whether only reading was asked for, and no other option.
    pub(crate) fn only_reads(&self) -> bool {
        self.resolve.is_none() && matches!(self.flags(), Ok(flags) if flags == OFlags::RDONLY)
    }

    /// Opens the file by a plain call, which may wait. `None` when only a runtime can open it with these
    /// options.
    pub(crate) fn open_blocking(&self, path: &Path) -> Option<io::Result<OwnedFd>> {
        if self.resolve.is_some() {
            return None;
        }
        let open = || {
            let (flags, path) = (self.flags()? | OFlags::CLOEXEC, c_path(path)?);
            let mode = rustix::fs::Mode::from_raw_mode(self.mode_of_new());
            let open = || rustix::fs::open(&*path, flags, mode);
            rustix::io::retry_on_intr(open).map_err(io::Error::from)
        };
        Some(open().at("open", path).map_err(io::Error::from))
    }

    fn flags(&self) -> io::Result<OFlags> {
        let access = match (self.read, self.write, self.append) {
            (true, false, false) => OFlags::RDONLY,
            (false, true, false) => OFlags::WRONLY,
            (true, true, false) => OFlags::RDWR,
            (false, _, true) => OFlags::WRONLY | OFlags::APPEND,
            (true, _, true) => OFlags::RDWR | OFlags::APPEND,
            (false, false, false) => return Err(Errno::INVAL.into()),
        };
        let is_invalid = match (self.write, self.append) {
            (true, false) => false,
            (false, false) => self.truncate || self.create || self.create_new,
            (_, true) => self.truncate && !self.create_new,
        };
        if is_invalid {
            return Err(Errno::INVAL.into());
        }
        let creation = match (self.create, self.truncate, self.create_new) {
            (_, _, true) => OFlags::CREATE | OFlags::EXCL,
            (true, true, _) => OFlags::CREATE | OFlags::TRUNC,
            (true, false, _) => OFlags::CREATE,
            (false, true, _) => OFlags::TRUNC,
            (false, false, _) => OFlags::empty(),
        };
        let direct = if self.direct { OFlags::DIRECT } else { OFlags::empty() };
        let custom = OFlags::from_bits_retain(self.custom_flags.cast_unsigned()) - OFlags::RWMODE;
        let nonblocking = if self.nonblocking { OFlags::NONBLOCK } else { OFlags::empty() };
        Ok(access | creation | direct | nonblocking | custom)
    }

    fn mode_of_new(&self) -> u32 {
        self.mode.unwrap_or(0o666)
    }
}

/// Opens a path as `open(2)` does, FIFOs included: waits for the peer at the other end, on a separate thread.
/// `lookup` decides how the path is looked up, and from which directory.
pub(super) async fn open_like_std(
    driver: &Handle,
    path: &Path,
    flags: OFlags,
    mode: u32,
    lookup: Option<(Option<&Fd>, ResolveFlags)>,
) -> io::Result<Fd> {
    let fd = open_unawaited(driver, path, flags, mode, lookup).await?;
    await_writer(driver, &fd, flags).await?;
    Ok(fd)
}

/// As [`open_like_std`], but opening a FIFO only to read does not wait for a writer; see [`await_writer`].
async fn open_unawaited(
    driver: &Handle,
    path: &Path,
    flags: OFlags,
    mode: u32,
    lookup: Option<(Option<&Fd>, ResolveFlags)>,
) -> io::Result<Fd> {
    let opened = match lookup {
        None => {
            uninterrupted(async || driver.open(None, c_path(path)?, flags.bits(), mode).await).await
        }
        Some((directory, resolve)) => {
            open_resolving(driver, directory, c_path(path)?, flags, mode, resolve).await
        }
    };
    match opened {
        Err(error) if is_reader_missing(&error, flags) => {
            let found;
            let (path, flags) = match lookup {
                None => (c_path(path)?, flags),
                Some((directory, resolve)) => {
                    // Finds the same file in the same way, then opens it by a call that may wait.
                    let only = OFlags::PATH | flags & OFlags::NOFOLLOW;
                    found =
                        open_resolving(driver, directory, c_path(path)?, only, 0, resolve).await?;
                    let path = format!("/proc/self/fd/{}", found.raw());
                    let no_more = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                    (c_path(path.as_ref())?, flags - no_more)
                }
            };
            let open = async || driver.open_waiting(None, path.clone(), flags.bits(), mode).await;
            uninterrupted(open).await
        }
        opened => opened,
    }
}

/// Waits until another process has opened to write a FIFO that was opened to read only. Other files are left
/// as they are.
pub(super) async fn await_writer(driver: &Handle, fd: &Fd, flags: OFlags) -> io::Result<()> {
    if !may_await_writer(flags) || fd.kind() == FileKind::Bounded {
        return Ok(());
    }
    if stat_open(driver, fd).await?.file_type().is_fifo() {
        return uninterrupted(async || driver.await_writer(fd).await).await;
    }
    Ok(())
}

/// Returns whether opening a FIFO with these flags waits for a writer.
fn may_await_writer(flags: OFlags) -> bool {
    let waits = !flags.intersects(OFlags::NONBLOCK | OFlags::PATH);
    waits && flags & OFlags::RWMODE == OFlags::RDONLY
}

/// Returns whether opening a FIFO to write failed for want of a reader, and the caller asked to wait.
fn is_reader_missing(error: &io::Error, flags: OFlags) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && !flags.contains(OFlags::NONBLOCK)
}

/// Restrictions on a path's lookup. Combine with `|`.
///
/// # Examples
/// ```
/// use sakia::fs::{OpenOptions, Resolve};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-resolve-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// std::os::unix::fs::symlink("/etc/passwd", dir.join("link"))?;
/// let options = OpenOptions::new().read(true).resolve(Resolve::NO_SYMLINKS).clone();
/// let error = options.open(dir.join("link")).await.unwrap_err();
/// assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve(ResolveFlags);

impl Resolve {
    /// Refuses to leave the directory that the path is relative to, with `EXDEV`: by an absolute path or
    /// link, or by `..`.
    #[doc(alias = "RESOLVE_BENEATH")]
    pub const BENEATH: Self = Self(ResolveFlags::BENEATH);
    /// Makes the directory the root: absolute paths and links begin there, and `..` there stays.
    #[doc(alias = "RESOLVE_IN_ROOT")]
    pub const IN_ROOT: Self = Self(ResolveFlags::IN_ROOT);
    /// Refuses symbolic links anywhere in the path, with `ELOOP`.
    #[doc(alias = "RESOLVE_NO_SYMLINKS")]
    pub const NO_SYMLINKS: Self = Self(ResolveFlags::NO_SYMLINKS);
    /// Refuses links of `/proc` that lead to open files, with `ELOOP`.
    #[doc(alias = "RESOLVE_NO_MAGICLINKS")]
    pub const NO_MAGICLINKS: Self = Self(ResolveFlags::NO_MAGICLINKS);
    /// Refuses to enter another mount, with `EXDEV`.
    #[doc(alias = "RESOLVE_NO_XDEV")]
    pub const NO_XDEV: Self = Self(ResolveFlags::NO_XDEV);
}

impl std::ops::BitOr for Resolve {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_refused_as_in_std() {
        for bits in 0..64_u32 {
            let [read, write, append, truncate, create, create_new] =
                std::array::from_fn(|index| bits >> index & 1 == 1);
            let mut ours = OpenOptions::new();
            ours.read(read).write(write).append(append);
            ours.truncate(truncate).create(create).create_new(create_new);
            let mut theirs = std::fs::OpenOptions::new();
            theirs.read(read).write(write).append(append);
            theirs.truncate(truncate).create(create).create_new(create_new);
            // This open always fails; its error shows whether the options or the path were refused.
            let error = theirs.open("/nowhere/at/all").unwrap_err();
            assert_eq!(ours.flags().is_ok(), error.raw_os_error() == Some(2), "{ours:?}: {error}");
        }
    }
}
