//! Copying a tree.

mod apart;
mod attributes;
mod content;
mod entry;
mod existing;
mod file;
mod folder;
mod links;
mod mark;
mod names;
mod stream;
mod verify;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::Stat;
use rustix::io::Errno;
use sakia::engine::__private::SharedCallSupport;
use sakia::{Budget, CancellationToken};

use self::apart::Apart;
use self::links::Links;
use self::verify::Verify;
use crate::crew::{Crew, Fiber, Folder, Size};
use crate::options::Options;
use crate::place::{Id, OpenDir, Place, Places};
use crate::progress::Progress;
use crate::report::Report;
use crate::sys;

/// Copies what is at `from`, a directory with all that is in it, or anything else, to `to`.
///
/// `to` is the path of the copy itself, and the directory that it is in must be there. Where there is a
/// directory already the copy goes into it; other entries are dealt with as [`Options::existing`] says. A
/// failure is told to `progress`, kept in the report, and the rest is copied.
///
/// The calling runtime's threads do the work, each a directory at a time. They make the system calls
/// themselves as long as the page cache has what is read; for what it does not have, operations are left to
/// the runtime, and other entries are copied meanwhile, so that a disk is asked for many at a time.
///
/// A directory has the mode `01700` until all that is in it is there, and a file `01200` until it is
/// complete, unless it is written by one call in such a directory. One that cannot be completed is removed.
/// So it can be told what is not whole, even if the process was killed: a later copy that keeps or updates
/// what is there replaces files with that mode, and completes beginnings of files in directories with the
/// other.
///
/// # Errors
/// A path has a zero byte. All else is in the report: see [`Report::is_complete`].
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia_copy::{Options, Progress, copy_tree};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-copy-doc-{}", std::process::id()));
/// # std::fs::create_dir(&dir).unwrap();
/// let (from, to) = (dir.join("from"), dir.join("to"));
/// std::fs::create_dir(&from).unwrap();
/// std::fs::write(from.join("file"), "contents").unwrap();
///
/// let report = sakia::block_on(async {
///     copy_tree(&from, &to, &Options::archive(), &Progress::new().into()).await
/// }).unwrap();
/// assert!(report.is_complete());
/// assert_eq!((report.counts.directories, report.counts.files, report.counts.bytes), (1, 1, 8));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// ```
pub async fn copy_tree(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    options: &Options,
    progress: &Arc<Progress>,
) -> io::Result<Report> {
    Copier::new(options.clone()).for_one_tree().copy(from, to, progress).await
}

/// Copies several trees, whose names of the same file stay that, and can be told to stop.
#[derive(Clone)]
pub struct Copier {
    options: Options,
    budget: Budget,
    token: CancellationToken,
    links: Arc<Links>,
    /// Each name of the sources is found once.
    is_single: bool,
    mask: u32,
}

impl Copier {
    /// One that has copied nothing.
    pub fn new(mut options: Options) -> Self {
        options.fit_memory();
        let budget = options.budget.clone().unwrap_or_else(Budget::from_limits);
        let (token, links) = (CancellationToken::new(), Arc::default());
        Self { options, budget, token, links, is_single: false, mask: sys::umask() }
    }

    /// Only one tree is going to be copied: a file all names of which were found in it is forgotten.
    ///
    /// Otherwise files with several names are kept in mind as long as there is the copier, since a tree may
    /// be copied twice, by itself and as a part of another one. They take some 200 bytes each.
    #[must_use]
    pub fn for_one_tree(mut self) -> Self {
        self.is_single = true;
        self
    }

    /// Canceling it stops the copies: entries that are under way are completed or removed.
    #[must_use]
    pub fn with_token(mut self, token: CancellationToken) -> Self {
        self.token = token;
        self
    }

    /// Copies a tree: see [`copy_tree`].
    ///
    /// # Errors
    /// See there.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn copy(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        progress: &Arc<Progress>,
    ) -> io::Result<Report> {
        let from = CString::new(from.as_ref().as_os_str().as_bytes())?;
        let to = CString::new(to.as_ref().as_os_str().as_bytes())?;
        let before = progress.counts();
        let limit = self.options.limit.max(1);
        let workers = sakia::thread_count().min(limit);
        let buffer = self.options.buffer.max(4096);
        let size = Size { workers, depth: limit.div_ceil(workers), buffer };
        let (budget, token) = (&self.budget, &self.token);
        let begin = now() - CLOCK_STEP;
        let job = Copy::new(self, to.clone());
        let crew = Crew::run(job, from.clone(), size, budget, progress, token).await;
        if self.options.verify && !self.options.dry_run && !token.is_canceled() {
            let job = Verify::new(self, to, begin);
            Crew::run(job, from, size, budget, progress, token).await;
        }
        let is_stopped = token.is_canceled() || crew.job.is_full.load(Ordering::Relaxed);
        Ok(progress.report(&before, crew.counters(), is_stopped))
    }
}

/// File systems note times by a clock that is so much behind, in nanoseconds.
const CLOCK_STEP: i128 = 20_000_000;

/// Nanoseconds since 1970.
fn now() -> i128 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
}

/// The job.
pub(crate) struct Copy {
    options: Options,
    /// The path of the copy.
    to: CString,
    mask: u32,
    /// Whom new files belong to.
    user: u32,
    group: u32,
    links: Arc<Links>,
    /// Each name of the sources is found once.
    is_single: bool,
    /// The copy's own directory, which must not be copied into itself.
    root: OnceLock<Id>,
    learned: Mutex<HashMap<(u64, u64), Arc<Learned>>>,
    /// No more can be written.
    is_full: AtomicBool,
}

/// What was found out about a pair of file systems.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    /// Blocks cannot be shared.
    no_clone: AtomicBool,
    /// `copy_file_range` does not copy between them.
    no_range: AtomicBool,
    /// Nor does `sendfile`.
    no_send: AtomicBool,
    /// Which plain reads of the source take no wait.
    pub(crate) reads: SharedCallSupport,
    /// Directories of the copy are better put apart where making files takes long.
    needs_apart: OnceLock<bool>,
}

/// What is known of a directory.
pub(crate) struct Facts {
    /// The source's.
    stat: Stat,
    /// Its entries are not copied: it lies on another file system than the one above.
    is_empty: bool,
    target: Target,
}

/// The known facts of the copy of a directory: none in a dry run.
#[derive(Default)]
struct Target {
    place: Option<Arc<Place>>,
    /// It was made by this copy.
    is_new: bool,
    /// It can be seen that it is not complete, so that small files in it need not show it themselves.
    is_marked: bool,
    /// A copy that was killed left it, and perhaps the beginning of a file in it.
    was_unfinished: bool,
    /// The mode it gets at the end, if it has another one meanwhile.
    mode: Option<u32>,
    /// New entries get an access control list from it.
    has_default_acl: bool,
    /// Its file system.
    device: u64,
    /// New entries may get its group and not that of the process.
    gives_group: bool,
    /// New directories in it do so, too.
    sets_group: bool,
    /// Of its file system and the source's.
    learned: Arc<Learned>,
    /// It is the first one on its file system.
    is_mount: bool,
    /// Its owner may not read it, or the process may not.
    is_unreadable: bool,
    /// Where it was put.
    apart: Apart,
}

impl Target {
    /// Opens the directory. There is none in a dry run.
    fn open(&self, places: &Places) -> sys::Result<Arc<OpenDir>> {
        places.open(self.place.as_ref().ok_or(Errno::BADF)?)
    }
}

/// The place of an entry, the place of its copy, and the fiber that copies it.
pub(crate) struct Spot<'a> {
    fiber: &'a mut Fiber<Copy>,
    folder: Option<&'a Arc<Folder<Copy>>>,
    source: &'a Arc<OpenDir>,
    /// Nowhere in a dry run.
    target: Option<&'a Arc<OpenDir>>,
    name: &'a CStr,
    to: &'a CStr,
    learned: &'a Learned,
}

impl<'a> Spot<'a> {
    /// The directory of the copy, for work that is never done in a dry run.
    fn target_dir(&self) -> Result<&'a Arc<OpenDir>> {
        self.target.ok_or(Errno::BADF).at_target("open")
    }
}

/// Something went wrong: at what, and why.
struct EntryError {
    operation: &'static str,
    /// It is about the copy, and not about the source.
    is_target: bool,
    error: io::Error,
}

/// The result of work on an entry.
type Result<T, E = EntryError> = std::result::Result<T, E>;

impl EntryError {
    fn source(operation: &'static str, error: impl Into<io::Error>) -> Self {
        Self { operation, is_target: false, error: error.into() }
    }

    fn target(operation: &'static str, error: impl Into<io::Error>) -> Self {
        Self { operation, is_target: true, error: error.into() }
    }
}

/// Says of a call that failed what it was for.
trait At<T> {
    fn at_source(self, operation: &'static str) -> Result<T>;
    fn at_target(self, operation: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for std::result::Result<T, E> {
    fn at_source(self, operation: &'static str) -> Result<T> {
        self.map_err(|error| EntryError::source(operation, error))
    }

    fn at_target(self, operation: &'static str) -> Result<T> {
        self.map_err(|error| EntryError::target(operation, error))
    }
}

impl Copy {
    fn new(copier: &Copier, to: CString) -> Self {
        Self {
            options: copier.options.clone(),
            to,
            mask: copier.mask,
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            links: Arc::clone(&copier.links),
            is_single: copier.is_single,
            root: OnceLock::new(),
            learned: Mutex::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Tells of a failure.
    fn fail(&self, spot: &mut Spot<'_>, wrong: EntryError) {
        let path = if wrong.is_target { self.target_path(spot) } else { source_path(spot) };
        spot.fiber.fail(wrong.operation, path, wrong.error);
    }

    fn target_path(&self, spot: &Spot<'_>) -> PathBuf {
        let Some(folder) = spot.folder else { return sys::path(&self.to).to_owned() };
        if let Some(place) = &folder.facts.target.place {
            return place.path_of(spot.to);
        }
        // A dry run: what is below the source's root goes below the copy's.
        let below = folder.place.names().into_iter().skip(1).chain([sys::path(spot.name)]);
        [sys::path(&self.to)].into_iter().chain(below).collect()
    }

    /// Tells of an entry that was done.
    fn tell(&self, spot: &Spot<'_>) {
        spot.fiber.crew().progress.entry(|| (source_path(spot), self.target_path(spot)));
    }
}

fn source_path(spot: &Spot<'_>) -> PathBuf {
    spot.folder.map_or(Place::current(), |folder| &folder.place).path_of(spot.name)
}
