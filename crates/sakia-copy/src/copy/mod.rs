//! Copying a tree.

mod apart;
mod attributes;
mod content;
mod entry;
mod existing;
mod file;
mod folder;
mod in_use;
mod links;
mod mark;
mod names;
mod ranges;
mod stage;
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
use rustix::time::Timespec;
use sakia::{Budget, CancellationToken};
use sakia_driver::FileHint;

use self::apart::Apart;
use self::in_use::{InUse, Unfinished};
use self::links::{Links, Waiting};
use self::stage::Others;
use self::verify::Verify;
use crate::crew::{Crew, Fiber, Folder, Size};
use crate::options::Options;
use crate::place::{Id, OpenDir, Place, Places};
use crate::progress::Progress;
use crate::report::Report;
use crate::sys;

/// Copies `from`, a directory with its contents or any other entry, to `to`.
///
/// `to` is the path of the copy itself, and its parent directory must exist. An existing directory gets the
/// copied contents added; [`Options::existing`] says how other existing entries are treated. A failure is
/// reported to `progress` and kept in the report, and the rest is copied.
///
/// The calling runtime's threads do the work, each a directory at a time. They make the system calls
/// themselves as long as the page cache has the data; otherwise they leave the operation to the runtime and
/// copy other entries meanwhile, so that a disk gets many requests at a time.
///
/// Entries may lead to the same file: existing names of it, links that are followed, directories that are
/// mounted twice. A file has one writer at a time, and no reader meanwhile: an entry that finds its file in
/// use is put aside, and copied when all others are done.
///
/// A directory has the mode `01700` until all its contents are there, and a file `01200` until it is
/// complete, unless it is written by one call in such a directory. A file that cannot be completed is
/// removed. So incomplete entries can be recognized even after the process was killed: a later copy that
/// keeps or updates existing entries replaces files with that mode, and in directories with the other it
/// completes prefixes of files, and makes links and special files again that are like the source's.
///
/// In a directory that existed before, links and special files that get attributes are completed in a private
/// directory, `.sakia-cp`, which exists meanwhile, and then renamed. If other users may write to the
/// directory, that holds for new directories too: such a user could exchange a new name for that of another
/// file, which then would get the mode or the owner.
///
/// # Cancel safety
/// Dropping the future has the effect of a canceled [token](Copier::with_token), without a report: the
/// threads end by themselves, soon after.
///
/// # Errors
/// A path has a zero byte. All other errors are in the report: see [`Report::is_complete`].
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

/// Copies several trees, keeping hard links between them, and can be stopped.
///
/// # Examples
/// Two trees, of which a file has a name in each:
/// ```
/// use sakia_copy::{Copier, Options, Progress};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-copy-copier-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// std::fs::create_dir(dir.join("a"))?;
/// std::fs::create_dir(dir.join("b"))?;
/// std::fs::write(dir.join("a/file"), "shared")?;
/// std::fs::hard_link(dir.join("a/file"), dir.join("b/file"))?;
/// std::fs::create_dir(dir.join("to"))?;
/// let copier = Copier::new(Options::archive());
/// let progress = Progress::new().into();
/// sakia::block_on(async {
///     for tree in ["a", "b"] {
///         let to = dir.join("to").join(tree);
///         let report = copier.copy(dir.join(tree), to, &progress).await?;
///         assert!(report.is_complete());
///     }
///     std::io::Result::Ok(())
/// })?;
/// assert_eq!(progress.counts().hard_links, 1);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
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
    /// Returns a copier that has copied nothing.
    ///
    /// # Examples
    /// See [`Copier`](Copier#examples).
    pub fn new(mut options: Options) -> Self {
        options.fit_memory();
        let budget = options.budget.clone().unwrap_or_else(Budget::from_limits);
        let (token, links) = (CancellationToken::new(), Arc::default());
        Self { options, budget, token, links, is_single: false, mask: sys::umask() }
    }

    /// Declares that only one tree will be copied: a file is forgotten when all its names were found.
    ///
    /// Otherwise files with several names are remembered for the life of the copier, since a tree may be
    /// copied twice, by itself and as a part of another one. Each takes about 200 bytes.
    #[must_use]
    pub fn for_one_tree(mut self) -> Self {
        self.is_single = true;
        self
    }

    /// Sets a token whose cancellation stops the copies: entries in progress are completed or removed.
    ///
    /// # Examples
    /// ```
    /// use sakia::CancellationToken;
    /// use sakia_copy::{Copier, Options, Progress};
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-copy-token-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let token = CancellationToken::new();
    /// let copier = Copier::new(Options::new()).with_token(token.clone());
    /// token.cancel(); // by a signal, say
    /// let progress = Progress::new().into();
    /// let report = sakia::block_on(copier.copy("src", dir.join("to"), &progress))?;
    /// assert!(report.is_stopped && !report.is_complete());
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn with_token(mut self, token: CancellationToken) -> Self {
        self.token = token;
        self
    }

    /// Copies a tree: see [`copy_tree`].
    ///
    /// # Cancel safety
    /// As [`copy_tree`].
    ///
    /// # Errors
    /// See there.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`Copier`](Copier#examples).
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

/// The granularity of the clock of file times, in nanoseconds.
const CLOCK_STEP: i128 = 20_000_000;

/// Returns the time in nanoseconds since 1970.
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
    /// The owner of new files.
    user: u32,
    group: u32,
    links: Arc<Links>,
    /// Each name of the sources is found once.
    is_single: bool,
    /// The copy's own directory, which must not be copied into itself.
    root: OnceLock<Id>,
    learned: Mutex<HashMap<(u64, u64), Arc<Learned>>>,
    /// The file system is full.
    is_full: AtomicBool,
    /// Files changed before this time were not changed by this copy.
    begin: Timespec,
    /// The root's copy existed before.
    is_into_existing: AtomicBool,
    in_use: InUse,
    unfinished: Unfinished,
    /// Entries that were put aside.
    asides: Mutex<Vec<Waiting>>,
    /// Only those are left, and done one after the other.
    is_last: AtomicBool,
}

/// Knowledge about a pair of file systems.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    /// Blocks cannot be shared.
    no_clone: AtomicBool,
    /// `copy_file_range` does not copy between them.
    no_range: AtomicBool,
    /// `sendfile` does not copy between them.
    no_send: AtomicBool,
    /// The non-blocking reads that the source supports.
    pub(crate) reads: FileHint,
    /// Directories of the copy are to be spread when creating files is slow.
    needs_apart: OnceLock<bool>,
}

/// Facts about a directory.
pub(crate) struct Facts {
    /// The status of the source.
    stat: Stat,
    /// Its entries are not copied: it lies on another file system than its parent.
    is_empty: bool,
    target: Target,
}

/// Facts about the copy of a directory: none in a dry run.
#[derive(Default)]
struct Target {
    place: Option<Arc<Place>>,
    /// This copy created it.
    is_new: bool,
    /// Its mode marks it as not complete, so that small files in it need no mark.
    is_marked: bool,
    /// A killed copy left it, and perhaps a prefix of a file in it.
    was_unfinished: bool,
    /// The final mode, if it has another one until then.
    mode: Option<u32>,
    /// New entries inherit an access control list, which withholds these permissions.
    default_mask: Option<u32>,
    /// Its file system.
    device: u64,
    /// New entries may inherit its group in place of the process's.
    gives_group: bool,
    /// New directories in it pass the group on, too.
    sets_group: bool,
    /// Knowledge about its file system and the source's.
    learned: Arc<Learned>,
    /// It is the first one on its file system.
    is_mount: bool,
    /// Its owner, or the process, may not read it.
    is_unreadable: bool,
    /// Its placement.
    apart: Apart,
    /// The rights of other users.
    others: Others,
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
    /// `None` in a dry run.
    target: Option<&'a Arc<OpenDir>>,
    name: &'a CStr,
    to: &'a CStr,
    learned: &'a Learned,
    /// The copy, if its other names will be links and others may rename this one.
    made: Option<Id>,
}

impl<'a> Spot<'a> {
    /// Returns the directory of the copy, for work that is never done in a dry run.
    fn target_dir(&self) -> Result<&'a Arc<OpenDir>> {
        self.target.ok_or(Errno::BADF).at_target("open")
    }

    /// Returns whether other users may rename the copy now; those who may rename the root are unknown.
    fn may_be_renamed(&self) -> bool {
        self.folder.is_none_or(|folder| folder.facts.target.others.may_rename)
    }
}

/// A failed operation, its object, and its error.
struct EntryError {
    operation: &'static str,
    /// It is about the copy, not the source.
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

/// Adds the purpose of a call to its error.
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
            begin: in_use::file_time(),
            is_into_existing: AtomicBool::new(false),
            in_use: InUse::default(),
            unfinished: Unfinished::default(),
            asides: Mutex::default(),
            is_last: AtomicBool::new(false),
        }
    }

    /// Reports a failure.
    fn fail(&self, spot: &mut Spot<'_>, wrong: EntryError) {
        let path = if wrong.is_target { self.target_path(spot) } else { source_path(spot) };
        spot.fiber.fail(wrong.operation, path, wrong.error);
    }

    fn target_path(&self, spot: &Spot<'_>) -> PathBuf {
        let Some(folder) = spot.folder else { return sys::path(&self.to).to_owned() };
        if let Some(place) = &folder.facts.target.place {
            return place.path_of(spot.to);
        }
        // A dry run: the copy's path is that of the source with another root.
        let below = folder.place.names().into_iter().skip(1).chain([sys::path(spot.name)]);
        [sys::path(&self.to)].into_iter().chain(below).collect()
    }

    /// Reports a finished entry.
    fn tell(&self, spot: &Spot<'_>) {
        spot.fiber.crew().progress.entry(|| (source_path(spot), self.target_path(spot)));
    }
}

fn source_path(spot: &Spot<'_>) -> PathBuf {
    spot.folder.map_or(Place::current(), |folder| &folder.place).path_of(spot.name)
}
