//! Walks a tree.

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Stat};
use sakia::{Budget, CancellationToken};

use crate::crew::{Crew, Fiber, Folder, Found, Job, Next, Size, Unit};
use crate::options::Options;
use crate::place::{OpenDir, Place};
use crate::progress::Progress;
use crate::report::Report;
use crate::sys;

/// Calls `visit` for `path` and, if that is a directory, for everything in it. Links are not followed.
///
/// The calling runtime's threads do it, each a directory at a time and in parallel, so the only order is
/// that a directory comes before its contents. `visit` must not block for long. Read failures are reported
/// to `progress` and kept in the report, which counts the rest; sizes are not looked up. Canceling the token
/// ends it.
///
/// # Cancel safety
/// Dropping the future has the effect of canceling the token, without a report: the threads end by
/// themselves, soon after.
///
/// # Errors
/// The path has a zero byte. All other errors are in the report.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use sakia_copy::{Progress, walk};
///
/// let bytes = Arc::new(AtomicU64::new(0));
/// let sum = Arc::clone(&bytes);
/// let visit = move |entry: sakia_copy::Entry<'_>| {
///     if entry.is_file() {
///         sum.fetch_add(entry.size().unwrap_or(0), Ordering::Relaxed);
///     }
/// };
/// let token = sakia::CancellationToken::new();
/// let report = sakia::block_on(walk("src", visit, &Progress::new().into(), &token)).unwrap();
/// assert!(report.counts.files > 5 && bytes.load(Ordering::Relaxed) > 1000);
/// ```
pub async fn walk<V>(
    path: impl AsRef<Path>,
    visit: V,
    progress: &Arc<Progress>,
    token: &CancellationToken,
) -> io::Result<Report>
where
    V: Fn(Entry<'_>) + Send + Sync + 'static,
{
    run(Walk(visit), path.as_ref(), progress, token).await
}

/// Does a job with a tree, on all threads of the calling runtime, and returns its report.
pub(crate) async fn run<J: Job>(
    job: J,
    path: &Path,
    progress: &Arc<Progress>,
    token: &CancellationToken,
) -> io::Result<Report> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let before = progress.counts();
    let workers = sakia::thread_count();
    let size = Size { workers, depth: Options::LIMIT.div_ceil(workers), buffer: 0 };
    let crew = Crew::run(job, path, size, &Budget::from_limits(), progress, token).await;
    Ok(progress.report(&before, crew.counters(), token.is_canceled()))
}

/// An entry of a tree.
///
/// # Examples
/// See [`walk()`](walk()#examples).
pub struct Entry<'a> {
    dir: &'a OpenDir,
    place: &'a Arc<Place>,
    name: &'a CStr,
    kind: FileType,
}

impl Entry<'_> {
    /// Returns its name; for the root, its path.
    pub fn file_name(&self) -> &OsStr {
        sys::path(self.name).as_os_str()
    }

    /// Returns its path: the path given to [`walk`] and the names below. It may be longer than the kernel
    /// accepts.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use sakia_copy::{Entry, Progress, walk};
    ///
    /// let found = Arc::new(Mutex::new(vec![]));
    /// let paths = Arc::clone(&found);
    /// let visit = move |entry: Entry<'_>| {
    ///     if entry.is_dir() {
    ///         paths.lock().unwrap().push(entry.path());
    ///     }
    /// };
    /// let token = sakia::CancellationToken::new();
    /// sakia::block_on(walk("src", visit, &Progress::new().into(), &token))?;
    /// let found = found.lock().unwrap();
    /// assert_eq!(found[0].to_str(), Some("src"), "a directory comes before its contents");
    /// assert!(found.iter().any(|path| path.ends_with("src/copy")));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn path(&self) -> PathBuf {
        self.place.path_of(self.name)
    }

    /// Returns the open directory of the entry, for calls relative to that.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns whether it is a regular file.
    ///
    /// # Examples
    /// See [`walk()`](walk()#examples).
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Returns whether it is a directory.
    ///
    /// # Examples
    /// See [`Entry::path`].
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Returns whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }

    /// Returns its size in bytes, by a system call.
    ///
    /// # Errors
    /// As `fstatat(2)`.
    ///
    /// # Examples
    /// See [`walk()`](walk()#examples).
    pub fn size(&self) -> io::Result<u64> {
        Ok(u64::try_from(self.stat()?.st_size).unwrap_or(0))
    }

    fn stat(&self) -> sys::Result<Stat> {
        sys::stat_name(self.dir.as_fd(), self.name)
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("path", &self.path()).field("kind", &self.kind).finish()
    }
}

/// The job: calls a function for each entry.
struct Walk<V>(V);

impl<V: Fn(Entry<'_>) + Send + Sync + 'static> Walk<V> {
    /// Visits an entry whose kind may be unknown, unless it is a directory: that is visited when it is
    /// entered.
    fn look(&self, fiber: &mut Fiber<Self>, mut entry: Entry<'_>) -> Next {
        if entry.kind == FileType::Unknown {
            fiber.tally.counters.plain_calls += 1;
            let stat = fiber.ok_or_fail("stat", || entry.path(), entry.stat());
            let Some(stat) = stat else { return Next::Done };
            entry.kind = sys::kind(&stat);
        }
        if entry.is_dir() {
            return Next::Enter;
        }
        fiber.tally.counts.add_entry(entry.kind);
        (self.0)(entry);
        Next::Done
    }
}

impl<V: Fn(Entry<'_>) + Send + Sync + 'static> Job for Walk<V> {
    type Facts = ();
    type Rest = Infallible;

    async fn enter(&self, fiber: &mut Fiber<Self>, unit: &Unit<Self>) -> Option<Arc<Folder<Self>>> {
        let (above, name, place) = (unit.above.as_ref(), &*unit.name, unit.place());
        let entered = async {
            let dir = fiber.crew().places.open(place)?;
            if above.is_none() {
                let entry = Entry { dir: &dir, place, name, kind: FileType::Unknown };
                if self.look(fiber, entry) == Next::Done {
                    return io::Result::Ok(None);
                }
            }
            let fd = fiber.open_directory(&dir, name, sys::DIRECTORY).await?;
            (self.0)(Entry { dir: &dir, place, name, kind: FileType::Directory });
            fiber.tally.counts.directories += 1;
            Ok(Some(fiber.crew().places.adopt(place, name, fd, None, false)))
        };
        let entered = entered.await;
        let entered = fiber.ok_or_fail("open directory", || place.path_of(name), entered)??;
        Some(Folder::new(above, entered, ()))
    }

    async fn entry(&self, fiber: &mut Fiber<Self>, found: Found<'_, Self>) -> Next {
        let Found { frame, name, kind } = found;
        let (dir, place) = (&*frame.source, &frame.folder.place);
        self.look(fiber, Entry { dir, place, name, kind })
    }
}
