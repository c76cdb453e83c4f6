//! Copies and removals of trees, on threads of their own.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_copy::{Copier, Counts, Existing, Follow, Options, Progress, remove_tree};
use sakia_driver::without_signals;
use sakia_ring::Process;
use sakia_runtime::{Builder, CancellationToken};
use sakia_thread::{JoinHandle, start_thread};

use crate::guard::{Failure, OfProcess, enter, errno_of, guarded_int, lock, store_handle};
use crate::interface::*;
use crate::options::options_of;

/// The most threads of a tree.
const THREADS_MAX: u32 = 1024;

/// A copy or a removal, which works on threads of the library from its beginning to its end. In a forked
/// child each call is an error.
pub struct sakia_tree {
    process: Process,
    shared: Arc<Shared>,
    progress: Arc<Progress>,
    token: CancellationToken,
    /// Readable once the work has ended.
    event: OwnedFd,
    thread: Option<JoinHandle>,
    /// The texts of the failure that was taken last.
    texts: Mutex<Option<(CString, CString)>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    has_ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Failures to take, oldest first.
    failures: VecDeque<Failed>,
    end: Option<End>,
}

struct Failed {
    operation: &'static str,
    path: PathBuf,
    errno: Errno,
}

/// The end of the work.
#[derive(Clone, Copy)]
enum End {
    Complete,
    /// Some entries failed.
    Partial,
    /// It was canceled, or the destination is full.
    Stopped,
    /// It could not begin.
    Error(Errno),
}

impl OfProcess for sakia_tree {
    const NAME: &str = "tree";

    fn process(&self) -> &Process {
        &self.process
    }
}

/// Returns a copy of a path of the program's.
///
/// # Safety
///
/// - It is null, or ends with a zero.
unsafe fn path_of(path: *const c_char) -> Result<PathBuf, Failure> {
    if path.is_null() {
        return Err(Failure::null("a path"));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)).to_owned())
}

/// The work of a tree.
enum Work {
    Copy { from: PathBuf, to: PathBuf, options: Box<Options> },
    Remove { path: PathBuf },
}

impl sakia_tree {
    /// Starts the work, and returns the tree for the program.
    fn started(work: Work, threads: u32) -> Result<*mut Self, Failure> {
        Ok(Box::into_raw(Box::new(Self::start(work, threads)?)))
    }

    fn start(work: Work, threads: u32) -> Result<Self, Failure> {
        let failed = |error| Failure::of("no thread for a tree", &error);
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count as usize,
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(|errno| failed(errno.into()))?;
        let shared = Arc::<Shared>::default();
        let told = Arc::clone(&shared);
        let progress = Arc::new(Progress::new().on_failure(move |failure| {
            let (operation, path) = (failure.operation(), failure.path().to_owned());
            let errno = errno_of(failure.io_error());
            lock(&told.state).failures.push_back(Failed { operation, path, errno });
        }));
        let token = CancellationToken::new();
        let ended = Ended {
            shared: Arc::clone(&shared),
            event: event.as_fd().try_clone_to_owned().map_err(failed)?,
            end: End::Error(Errno::IO), // of a bug
        };
        let (of_work, of_token) = (Arc::clone(&progress), token.clone());
        let main = move || {
            let mut ended = ended;
            ended.end = match perform(work, threads, &of_work, &of_token) {
                Ok(end) => end,
                Err(error) => End::Error(errno_of(&error)),
            };
        };
        let thread = without_signals(|| start_thread("sakia-tree", None, Box::new(main)));
        Ok(Self {
            process: Process::current(),
            shared,
            progress,
            token,
            event,
            thread: Some(thread.map_err(failed)?),
            texts: Mutex::default(),
        })
    }
}

/// Tells of the end when dropped, also after a panic.
struct Ended {
    shared: Arc<Shared>,
    event: OwnedFd,
    end: End,
}

impl Drop for Ended {
    fn drop(&mut self) {
        lock(&self.shared.state).end = Some(self.end);
        self.shared.has_ended.notify_all();
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok(); // it is empty
    }
}

fn perform(
    work: Work,
    threads: usize,
    progress: &Arc<Progress>,
    token: &CancellationToken,
) -> io::Result<End> {
    let runtime = Builder::new().threads(threads).build()?;
    let report = runtime.block_on(async {
        match work {
            Work::Copy { from, to, options } => {
                let copier = Copier::new(*options).for_one_tree().with_token(token.clone());
                copier.copy(from, to, progress).await
            }
            Work::Remove { path } => remove_tree(path, progress, token).await,
        }
    })?;
    Ok(match report.is_complete() {
        true => End::Complete,
        false if report.is_stopped => End::Stopped,
        false => End::Partial,
    })
}

/// Begins to copy the tree `from` to `to`, on threads of the library, and stores it in `*tree`. The paths are
/// copied. `to` is the copy itself, not a directory for it. `options` may be null: contents and permissions,
/// as `cp -r`.
///
/// Any thread. Errors: `-EINVAL` options that are not known; `-EFAULT` a null pointer; `-EAGAIN` no thread,
/// `-EMFILE`, `-ENFILE`, `-ENOMEM`. Those of the copy are told by `sakia_tree_failure` and
/// `sakia_tree_wait`. Can break: a path without a zero at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_copy_tree(
    from: *const c_char,
    to: *const c_char,
    options: *const sakia_tree_options,
    tree: *mut *mut sakia_tree,
) -> i32 {
    // SAFETY: the header's contract for places of handles.
    guarded_int(|| unsafe {
        store_handle(tree, "tree", || {
            // SAFETY: the header's contract for options and paths.
            let (options, from, to) = (of_program(options)?, path_of(from)?, path_of(to)?);
            let work = Work::Copy { from, to, options: Box::new(copy_options(options)?) };
            sakia_tree::started(work, options.threads)
        })
    })
}

/// Begins to remove the tree `path`, on threads of the library, and stores it in `*tree`. No link is
/// followed. `options` may be null; it has no flags.
///
/// Any thread. Errors: as `sakia_copy_tree`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_remove_tree(
    path: *const c_char,
    options: *const sakia_tree_options,
    tree: *mut *mut sakia_tree,
) -> i32 {
    // SAFETY: the header's contract for places of handles.
    guarded_int(|| unsafe {
        store_handle(tree, "tree", || {
            // SAFETY: the header's contract for options and paths.
            let (options, path) = (of_program(options)?, path_of(path)?);
            if options.flags != 0 || options.limit != 0 {
                return Err(Failure::invalid("a removal has no flags and no limit"));
            }
            sakia_tree::started(Work::Remove { path }, options.threads)
        })
    })
}

/// Returns the program's options; those of null are zero.
///
/// # Safety
///
/// - As for [`options_of`], but that `options` may be null.
unsafe fn of_program(options: *const sakia_tree_options) -> Result<sakia_tree_options, Failure> {
    let options = match options.is_null() {
        true => sakia_tree_options { size: 0, flags: 0, threads: 0, limit: 0, reserved: 0 },
        // SAFETY: the caller's promise.
        false => unsafe { options_of(options, "SAKIA_TREE_OPTIONS") }?,
    };
    if options.threads > THREADS_MAX || options.reserved != 0 {
        return Err(Failure::invalid(format_args!("{} threads of a tree", options.threads)));
    }
    Ok(options)
}

fn copy_options(given: sakia_tree_options) -> Result<Options, Failure> {
    let known = SAKIA_TREE_ARCHIVE
        | SAKIA_TREE_FORCE
        | SAKIA_TREE_FOLLOW
        | SAKIA_TREE_ONE_FILE_SYSTEM
        | SAKIA_TREE_DURABLE
        | SAKIA_TREE_VERIFY
        | SAKIA_TREE_DRY_RUN
        | SAKIA_TREE_KEEP
        | SAKIA_TREE_UPDATE;
    let has = |flag: u32| given.flags & flag != 0;
    if given.flags & !known != 0 || has(SAKIA_TREE_KEEP) && has(SAKIA_TREE_UPDATE) {
        return Err(Failure::invalid(format_args!("flags {:#x} of a tree", given.flags)));
    }
    let mut options = if has(SAKIA_TREE_ARCHIVE) { Options::archive() } else { Options::new() };
    options.existing = match (has(SAKIA_TREE_KEEP), has(SAKIA_TREE_UPDATE)) {
        (true, _) => Existing::Keep,
        (_, true) => Existing::Update,
        _ => Existing::Overwrite,
    };
    options.follow = if has(SAKIA_TREE_FOLLOW) { Follow::Always } else { Follow::Never };
    options.force = has(SAKIA_TREE_FORCE);
    options.one_file_system = has(SAKIA_TREE_ONE_FILE_SYSTEM);
    options.durable = has(SAKIA_TREE_DURABLE);
    options.verify = has(SAKIA_TREE_VERIFY);
    options.dry_run = has(SAKIA_TREE_DRY_RUN);
    if given.limit > 0 {
        options.limit = given.limit as usize;
    }
    Ok(options)
}

/// Stores the counts so far in `*counts`, of which the program has `size` bytes.
///
/// Any thread. Errors: `-EFAULT` a null pointer, `-EINVAL` a size that is not known, `-EPERM` a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_tree_counts(
    tree: *const sakia_tree,
    counts: *mut sakia_counts,
    size: usize,
) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for trees.
        let tree = unsafe { enter(tree) }?;
        let known = size_of::<sakia_counts>();
        if counts.is_null() {
            return Err(Failure::null("the place of the counts"));
        }
        if size < known {
            return Err(Failure::invalid(format_args!("counts of {size} bytes")));
        }
        let Counts {
            files,
            directories,
            symlinks,
            hard_links,
            others,
            skipped,
            bytes,
            failures,
            ..
        } = tree.progress.counts();
        let now = sakia_counts {
            files,
            directories,
            symlinks,
            hard_links,
            others,
            skipped,
            bytes,
            failures,
        };
        // SAFETY: not null, so so many bytes are valid for writes. Those that only the program has are
        // zeroed.
        unsafe {
            counts.write_unaligned(now);
            counts.cast::<u8>().add(known).write_bytes(0, size - known);
        }
        Ok(0)
    })
}

/// Takes a failure, oldest first, and stores it in `*failure`. Returns 1; 0 if there is none at the moment.
///
/// One thread at a time. Owner: the texts are the tree's, and valid until the next call, or the tree is
/// freed. Errors: `-EFAULT` a null pointer, `-EPERM` a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_tree_failure(
    tree: *const sakia_tree,
    failure: *mut sakia_failure,
) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for trees.
        let tree = unsafe { enter(tree) }?;
        if failure.is_null() {
            return Err(Failure::null("the place of the failure"));
        }
        let Some(failed) = lock(&tree.shared.state).failures.pop_front() else { return Ok(0) };
        let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default(); // neither has a zero
        let (operation, path) =
            (text(failed.operation.as_bytes()), text(failed.path.as_os_str().as_bytes()));
        let mut texts = lock(&tree.texts);
        let (operation, path) = texts.insert((operation, path));
        let error = failed.errno.raw_os_error();
        let told = sakia_failure {
            operation: operation.as_ptr(),
            path: path.as_ptr(),
            error,
            reserved: 0,
        };
        // SAFETY: not null, so valid for a write: the header's contract.
        unsafe { failure.write(told) };
        Ok(1)
    })
}

/// Waits for the end of the work, at most `timeout_ns` nanoseconds; for ever if that is negative, and not at
/// all if it is 0. Returns 1 if all is done, and 0 if the work goes on.
///
/// Any thread. Errors: `-EREMOTEIO` some entries failed, see `sakia_tree_failure`; `-ECANCELED` it was
/// canceled, or stopped since the destination is full; others if it could not begin; `-EFAULT` null, `-EPERM`
/// a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_tree_wait(tree: *const sakia_tree, timeout_ns: i64) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for trees.
        let tree = unsafe { enter(tree) }?;
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&tree.shared.state);
        loop {
            match state.end {
                Some(End::Complete) => return Ok(1),
                Some(End::Partial) => {
                    return Err(Failure::new(Errno::REMOTEIO, "some entries of the tree failed"));
                }
                Some(End::Stopped) => {
                    let text = "the work on the tree was stopped";
                    return Err(Failure::new(Errno::CANCELED, text));
                }
                Some(End::Error(errno)) => {
                    let text = format_args!("the tree: {errno}");
                    return Err(Failure::new(errno, text));
                }
                None => {}
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let ended = &tree.shared.has_ended;
            state = match left {
                Some(left) if left.is_zero() => return Ok(0),
                Some(left) => {
                    ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    })
}

/// Returns a new descriptor that becomes readable at the end of the work, for an event loop.
///
/// Any thread. Owner: the program closes it, before or after the tree. Errors: `-EMFILE`, `-ENFILE` none is
/// left; `-EFAULT` null, `-EPERM` a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_tree_pollable(tree: *const sakia_tree) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for trees.
        let event = unsafe { enter(tree) }?.event.try_clone();
        let event = event.map_err(|error| Failure::of("nothing to poll", &error))?;
        Ok(event.into_raw_fd().into())
    })
}

/// Stops the work: entries in progress are completed or removed. Returns at once.
///
/// Any thread; a signal handler may not call it. Errors: `-EFAULT` null, `-EPERM` a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_tree_cancel(tree: *const sakia_tree) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for trees.
        unsafe { enter(tree) }?.token.cancel();
        Ok(0)
    })
}

/// Cancels the work if it goes on, waits for its end, and frees the tree; nothing for null.
///
/// Any thread, while no other call on the tree is running. Errors: `-EPERM` a forked child; then nothing is
/// freed. Can break: a later use of the tree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_tree_free(tree: *mut sakia_tree) -> i32 {
    guarded_int(|| {
        if tree.is_null() {
            return Ok(0);
        }
        // SAFETY: the header's contract for trees.
        unsafe { enter(tree) }?.token.cancel();
        // SAFETY: it came from `Box::into_raw`, no call uses it, and the program gives it up.
        let mut tree = unsafe { Box::from_raw(tree) };
        if let Some(thread) = tree.thread.take() {
            thread.join(); // its panic was the end of the work
        }
        Ok(0)
    })
}
