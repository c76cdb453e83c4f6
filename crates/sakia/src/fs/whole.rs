//! Whole files: reading, writing, copying.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Handle, IoBuf, WholeFile, limits};

use super::file::read_to_end;
use super::options::{await_writer, open_like_std};
use super::paths::follow_links;
use super::{Dir, File, OpenOptions, Permissions, driver, uninterrupted, with_c_path};
use crate::error::{Context, Result};
use crate::io::blocks::{self, Held};
use crate::io::transfer::write_all;

/// The expected size of a file in bytes, when nothing is known of it.
const GUESS_BYTES: usize = 8 << 10;
/// The most bytes of the first read of a file.
const GUESS_BYTES_MAX: usize = 1 << 20;
/// Bytes of each read and write when the process copies a file.
const COPY_BYTES: usize = 256 << 10;
/// Bytes of the first of these reads.
const COPY_FIRST_BYTES: usize = 16 << 10;
/// Bytes that the kernel is asked to copy in one call: enough for few calls, few enough for short ones.
const RANGE_BYTES: usize = 64 << 20;

thread_local! {
    /// The expected size of the next whole file that is read: the size of the last ones.
    static EXPECTED: Cell<usize> = const { Cell::new(GUESS_BYTES) };
}

/// Forgets the sizes of the files read on this thread, so that a program on the simulated kernel reads as on
/// a new thread.
#[cfg(feature = "sim")]
pub(crate) fn forget_sizes() {
    EXPECTED.set(GUESS_BYTES);
}

/// Reads a file as a whole.
///
/// The file is opened, read and closed. If it is not larger than those read before, or than 8 KiB, that takes
/// one read and no `stat`. The future does not wait for the close.
///
/// # Cancel safety
/// Dropping the future closes the file, and changes nothing.
///
/// # Errors
/// `EISDIR`: a directory. `OutOfMemory`: no memory for it. Otherwise as `open(2)` and `read(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// sakia::block_on(async {
///     let bytes = fs::read("/proc/self/stat").await?;
///     assert!(bytes.starts_with(std::process::id().to_string().as_bytes()));
///     Ok::<(), fs::Error>(())
/// }).unwrap();
/// ```
pub async fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    match begin_read(path)? {
        WholeFile::Read(bytes) => Ok(bytes),
        begun => finish_read(path, begun).await,
    }
}

/// Reads a file as far as that needs no wait.
fn begin_read(path: &Path) -> Result<WholeFile> {
    let driver = driver();
    if driver.has_inline_budget() { read_now(&driver, path) } else { Ok(WholeFile::NotNow) }
}

fn read_now(driver: &Handle, path: &Path) -> Result<WholeFile> {
    let expected = EXPECTED.get();
    let read = with_c_path(path, |path| driver.read_file_now(path, expected));
    match read.and_then(|read| read).at("open", path)? {
        WholeFile::Read(bytes) => Ok(WholeFile::Read(learn_size(bytes, expected))),
        begun => Ok(begun),
    }
}

/// Finishes the read of [`begin_read`]. Boxed, and so compiled here and not in each program that reads a
/// file: the wait costs much more than the allocation.
fn finish_read(
    path: &Path,
    begun: WholeFile,
) -> Pin<Box<dyn Future<Output = Result<Vec<u8>>> + '_>> {
    Box::pin(async move {
        let driver = driver();
        let begun = match begun {
            WholeFile::NotNow if !driver.has_inline_budget() => {
                driver.next_turn().await.at("open", path)?;
                read_now(&driver, path)?
            }
            begun => begun,
        };
        let (fd, begin) = match begun {
            WholeFile::Read(bytes) => return Ok(bytes),
            WholeFile::Opened(fd, begin) => {
                if begin.is_empty() {
                    await_writer(&driver, &fd, OFlags::RDONLY).await.at("open", path)?;
                }
                (fd, begin)
            }
            WholeFile::NotNow => {
                let fd = open_like_std(&driver, path, OFlags::RDONLY, 0, None).await;
                (fd.at("open", path)?, Vec::new())
            }
        };
        read_all(File::new(fd, driver, OFlags::empty()), begin).await.at("read", path)
    })
}

/// Reads the rest of a file that was opened without waiting, after the bytes `begin`: a FIFO may have no
/// writer yet.
pub(crate) async fn read_opened(fd: OwnedFd, begin: Vec<u8>) -> io::Result<Vec<u8>> {
    let file = File::try_from(fd)?;
    if begin.is_empty() {
        await_writer(&file.driver, &file.fd, OFlags::RDONLY).await?;
    }
    read_all(file, begin).await
}

/// Completes the opening of a file that was opened to read without waiting, as if opening it had waited.
pub(crate) async fn finish_opening(fd: OwnedFd) -> io::Result<OwnedFd> {
    let file = File::try_from(fd)?;
    await_writer(&file.driver, &file.fd, OFlags::RDONLY).await?;
    file.into_std().await.map(OwnedFd::from)
}

/// Remembers the size of a file, and frees the excess room of its buffer.
fn learn_size(mut bytes: Vec<u8>, expected: usize) -> Vec<u8> {
    // Grows fast and shrinks slowly: too large a buffer costs little, too small a one costs a read.
    let next = bytes.len().max(expected - expected / 16);
    EXPECTED.set(next.clamp(GUESS_BYTES, GUESS_BYTES_MAX));
    if bytes.capacity() / 2 > bytes.len() {
        bytes.shrink_to_fit();
    }
    bytes
}

/// Reads the bytes after `begin`.
async fn read_all(file: File, begin: Vec<u8>) -> io::Result<Vec<u8>> {
    if file.is_stream() {
        let (result, bytes) = read_to_end(&file, begin, CURRENT_POSITION, None).await;
        return result.map(|_| bytes);
    }
    let expected = EXPECTED.get();
    let mut buf = begin;
    if buf.is_empty() {
        // One byte more than expected: a read that leaves room may have found the end.
        buf.try_reserve_exact(expected + 1).map_err(|_| io::Error::from(Errno::NOMEM))?;
        let (result, back) = file.read_once(&file.fd, buf, 0).await;
        result?;
        buf = back;
    }
    let count = buf.len();
    // A read may be short before the end; not if it brought all bytes of the file's size.
    let is_whole = count <= expected && file.fd.first_size() == Some(count as u64);
    if !is_whole && count > 0 {
        let size = file.fd.first_size();
        let (result, more) = read_to_end(&file, buf, count as u64, size).await;
        result?;
        buf = more;
    }
    Ok(learn_size(buf, expected))
}

/// Reads a text file as a whole.
///
/// # Cancel safety
/// As [`read`].
///
/// # Errors
/// `InvalidData`: not UTF-8. Otherwise as for [`read`].
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # sakia::block_on(async {
/// let name = fs::read_to_string("/proc/self/comm").await?;
/// assert!(name.ends_with('\n'));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub async fn read_to_string(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    into_text(read(path).await?).at("read", path)
}

pub(crate) fn into_text(bytes: Vec<u8>) -> io::Result<String> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    String::from_utf8(bytes).map_err(|error| invalid(error.utf8_error()))
}

/// Writes a file as a whole: makes it if there is none, and empties it first if there is one.
///
/// Others, and readers after a crash, may see it empty or half written; [`save`](super::save) prevents both.
///
/// # Cancel safety
/// **None**: dropping the future leaves the file as it was, empty, or with a part of the contents. Use
/// [`save`](super::save) if that matters.
///
/// # Errors
/// `ENOSPC`, `EDQUOT`, `EFBIG`: no room. Otherwise as `open(2)` and `write(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-write-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write(&path, "a text of some length").await?;
/// fs::write(&path, "a shorter one").await?;
/// assert_eq!(fs::read_to_string(&path).await?, "a shorter one");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub async fn write(path: impl AsRef<Path>, contents: impl IoBuf) -> Result<()> {
    let path = path.as_ref();
    let mut file = File::create(path).await?;
    file.write_all(contents).await.0.at("write", path)
}

/// Writes a file as a whole so that the file and its name survive a power failure once the future has
/// resolved. Until then it may be empty or half written; use [`save`](super::save) for files that must not
/// be. A symbolic link is followed: the name that becomes durable is that of its target.
///
/// # Cancel safety
/// **None**, as for [`write()`].
///
/// # Errors
/// `EIO`: it could not be made durable. Otherwise as for [`write()`].
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let path = std::env::temp_dir().join(format!("sakia-doc-write-durable-{}", std::process::id()));
/// # sakia::block_on(async {
/// fs::write_durable(&path, "here tomorrow").await?;
/// assert_eq!(fs::read(&path).await?, b"here tomorrow");
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub async fn write_durable(path: impl AsRef<Path>, contents: impl IoBuf) -> Result<()> {
    let path = path.as_ref();
    let (mut file, directory) = create_in_directory(path).await?;
    file.write_all(contents).await.0.at("write", path)?;
    file.sync_all().await.at("sync", path)?;
    Dir::open(directory).await?.sync().await
}

/// As [`File::create`], with the path of the directory that the file is in; for a link, of the target's
/// directory.
async fn create_in_directory(path: &Path) -> Result<(File, PathBuf)> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    match options.open(path).await {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            let target = follow_links(path).await.at("open", path)?;
            Ok((File::create(&target).await?, parent(&target).to_owned()))
        }
        opened => Ok((opened?, parent(path).to_owned())),
    }
}

/// Returns the directory that contains a path's last part.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Copies the contents and the permissions of one file to another, which is made if it does not exist and
/// emptied first if it does. Resolves to the number of bytes.
///
/// The kernel copies where it can: between files of one file system without passing their bytes to this
/// process, or by sharing blocks. After an error part of the destination is written.
///
/// # Cancel safety
/// **None**: dropping the future leaves a part of the destination written.
///
/// # Errors
/// - `InvalidInput`: source and destination are one file, or the source is a directory or the like.
/// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room. Otherwise as `open(2)`, `read(2)`, `write(2)`.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs;
///
/// # let dir = std::env::temp_dir().join(format!("sakia-doc-copy-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// # sakia::block_on(async {
/// let (from, to) = (dir.join("from"), dir.join("to"));
/// fs::write(&from, "contents").await?;
/// assert_eq!(fs::copy(&from, &to).await?, 8);
/// assert_eq!(fs::read(&to).await?, b"contents");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Kernel
/// `copy_file_range(2)`, else reads and writes of 256 KiB.
#[doc(alias = "copy_file_range")]
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let (source, found) = OpenOptions::new().read(true).open_with_metadata(from).await?;
    if found.is_dir() {
        return Err(io::Error::from(Errno::ISDIR)).between("copy", from, to);
    }
    // Opening does not empty it: it may be the source.
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(found.permissions().mode());
    let target = options.open(to).await?;
    let before = target.metadata().await.at("metadata", to)?;
    if (found.dev(), found.ino()) == (before.dev(), before.ino()) {
        let message = "source and destination are the same file";
        let error = io::Error::new(io::ErrorKind::InvalidInput, message);
        return Err(error).between("copy", from, to);
    }
    if before.is_file() && before.len() > 0 {
        target.set_len(0).await.at("truncate", to)?;
    }
    let count = copy_contents(&source, &target, found.len()).await.between("copy", from, to)?;
    if before.is_file() && before.permissions() != found.permissions() {
        let permissions = Permissions::from_mode(found.mode());
        target.set_permissions(permissions).await.at("set permissions", to)?;
    }
    Ok(count)
}

/// Copies from the beginning of one file to the beginning of another. `size` is the apparent size of the
/// source.
async fn copy_contents(source: &File, target: &File, size: u64) -> io::Result<u64> {
    let mut done = 0;
    if !source.is_stream() && !target.is_stream() {
        loop {
            // Little is copied at once where that waits for no device.
            let left = usize::try_from(size.saturating_sub(done)).unwrap_or(usize::MAX);
            let len = left.clamp(limits::CALL_BYTES, RANGE_BYTES);
            let copy = async || {
                let (from, to) = (&source.fd, &target.fd);
                target.driver.copy_file_range(from, done, to, done, len).await
            };
            match uninterrupted(copy).await {
                Ok(0) if done == 0 => break,
                Ok(0) => return Ok(done),
                Ok(count) => {
                    done += count as u64;
                    // It was asked for more, and ended where the file was said to end.
                    if count < len && done == size {
                        return Ok(done);
                    }
                }
                Err(error) if is_not_possible(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    copy_by_reading(source, target, done).await
}

/// Returns whether the kernel cannot copy between such files, though reading and writing may work.
fn is_not_possible(error: &io::Error) -> bool {
    const ERRORS: [Errno; 6] =
        [Errno::XDEV, Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::BADF];
    ERRORS.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Copies from byte `done` on, through this process. A small file needs a small buffer; a file that fills it
/// gets a larger one.
async fn copy_by_reading(source: &File, target: &File, mut done: u64) -> io::Result<u64> {
    let mut held = Held::default();
    *held = Some(blocks::take(COPY_FIRST_BYTES));
    loop {
        let buf = held.take().expect("one buffer that always comes back");
        let at = |file: &File| if file.is_stream() { CURRENT_POSITION } else { done };
        let (from, to) = (at(source), at(target));
        let (result, back) = source.read_once(&source.fd, buf, from).await;
        *held = Some(back);
        let count = result?;
        if count == 0 {
            return Ok(done);
        }
        let write = |rest, done| {
            let at = if to == CURRENT_POSITION { to } else { to + done as u64 };
            target.write_once(&target.fd, rest, at, 0)
        };
        let buf = held.take().expect("it has come back");
        let (result, back) = write_all(buf.slice(..count), write).await;
        let buf = back.into_inner();
        let len = buf.len();
        *held = Some(buf);
        result?;
        done += count as u64;
        if count == len && len < COPY_BYTES {
            held.take().into_iter().for_each(blocks::give);
            *held = Some(blocks::take(len * 4));
        }
    }
}
