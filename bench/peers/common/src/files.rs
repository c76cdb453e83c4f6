//! Experiments on files, written once for all runtimes.
//!
//! Before the measured section a thread builds its runtime and opens the file. In it, tasks are
//! started, each with a buffer of its own, and do their share.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::block::{self, marks, sum_bytes};
use crate::measure::on_threads;
use crate::{Cell, Gate, Job, Runtime, Tally, fail};

/// The access for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading through the page cache.
    Read,
    /// Reading with `O_DIRECT`.
    ReadDirect,
    /// Writing through the page cache.
    Write,
}

impl Access {
    /// Returns the flags of `open(2)` besides those for reading and writing.
    pub fn flags(self) -> i32 {
        if self == Self::ReadDirect { libc::O_DIRECT } else { 0 }
    }
}

/// The result of a transfer: the number of bytes moved, and its buffer.
pub type Moved<P> = (io::Result<usize>, <P as Files>::Buffer);

/// A runtime with files. Programs with several variants use the job to tell them apart.
pub trait Files: Runtime {
    /// An open file that tasks share.
    type File: Clone + 'static;
    /// Memory for blocks, page-aligned if the interface lets a program choose.
    type Buffer: 'static;
    /// The contents of a small file.
    type Whole: Deref<Target = [u8]>;

    /// Returns whether a single runtime runs tasks on several threads. Then all threads of the job share
    /// one runtime.
    fn shares_threads(_job: &Job) -> bool {
        false
    }

    /// Starts a task by [`Task::run`]. The returned future waits for it.
    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static;

    /// Opens the file of a job.
    fn open(job: &Job, access: Access) -> impl Future<Output = io::Result<Self::File>>;

    /// Allocates this number of bytes.
    fn buffer(len: usize) -> Self::Buffer;

    /// Returns the bytes of the last read.
    fn bytes(buffer: &Self::Buffer) -> &[u8];

    /// Passes the memory to write from to `f`.
    fn edit(buffer: &mut Self::Buffer, f: impl FnOnce(&mut [u8]));

    /// Reads at an offset until the buffer is full.
    fn read_at(
        file: &Self::File,
        buffer: Self::Buffer,
        offset: u64,
    ) -> impl Future<Output = Moved<Self>>;

    /// Writes the whole buffer at an offset.
    fn write_at(
        file: &Self::File,
        buffer: Self::Buffer,
        offset: u64,
    ) -> impl Future<Output = Moved<Self>>;

    /// Reads a whole file: opens it, reads to the end and closes it. Uses the runtime's own function if it
    /// has one; otherwise one read into 8 KiB, which a file of 4 KiB does not fill.
    fn read_whole(path: &Path) -> impl Future<Output = io::Result<Self::Whole>>;

    /// Adds up the bytes of a file, block by block.
    fn sum(job: &Job, file: &Self::File) -> impl Future<Output = Tally> {
        async {
            let mut tally = Tally::default();
            let mut buffer = Self::buffer(job.block);
            for offset in (0..job.size).step_by(job.block) {
                let result;
                (result, buffer) = Self::read_at(file, buffer, offset).await;
                expect_whole(job, result);
                tally.count(sum_bytes(Self::bytes(&buffer)));
            }
            tally
        }
    }
}

/// The parts of [`Files`] for buffers that dereference to their bytes: the type, and the expression that
/// allocates this number of bytes.
#[macro_export]
macro_rules! buffers {
    ($of:ty, $new:expr) => {
        type Buffer = $of;

        fn buffer(len: usize) -> Self::Buffer {
            $new(len)
        }

        fn bytes(buffer: &Self::Buffer) -> &[u8] {
            buffer
        }

        fn edit(buffer: &mut Self::Buffer, f: impl FnOnce(&mut [u8])) {
            f(buffer);
        }
    };
}

/// A file that each task opens for itself: a clone, which goes to another task, is not open yet.
pub struct PerTask<F> {
    path: PathBuf,
    /// The open file, between two operations of the task.
    file: Mutex<Option<F>>,
}

impl<F> PerTask<F> {
    /// Returns a file at this path that is not open yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: Mutex::new(None) }
    }

    /// Calls `f` with the task's file, which is opened before the first call and after an error.
    pub async fn with<T>(
        &self,
        open: impl AsyncFnOnce(&Path) -> io::Result<F>,
        f: impl AsyncFnOnce(&mut F) -> io::Result<T>,
    ) -> io::Result<T> {
        let taken = self.lock().take();
        let mut file = match taken {
            Some(file) => file,
            None => open(&self.path).await?,
        };
        let result = f(&mut file).await?;
        *self.lock() = Some(file);
        Ok(result)
    }

    fn lock(&self) -> MutexGuard<'_, Option<F>> {
        self.file.lock().expect("no task here panics")
    }
}

impl<F> Clone for PerTask<F> {
    fn clone(&self) -> Self {
        Self::new(&self.path)
    }
}

/// The size of the buffer for small files, for runtimes without a function that reads whole files.
pub const WHOLE_BYTES: usize = 8192;

/// Opens the file of a job, for programs without their own type of files.
pub fn open(job: &Job) -> File {
    let flags = if job.direct { Access::ReadDirect.flags() } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(job.cell == Cell::Write).custom_flags(flags);
    options.open(&job.path).unwrap_or_else(|error| fail(job.path.display(), error))
}

/// A task's share of a job.
pub struct Task<P: Files> {
    job: Arc<Job>,
    file: Option<P::File>,
    paths: Arc<Vec<PathBuf>>,
    index: u64,
}

impl<P: Files> Task<P> {
    /// Runs the share.
    pub async fn run(self) -> Tally {
        let Self { job, file, paths, index } = self;
        match (job.cell, &file) {
            (Cell::Sum, Some(file)) => P::sum(&job, file).await,
            (Cell::RandRead | Cell::Write, Some(file)) => transfers::<P>(&job, file, index).await,
            (Cell::SmallFiles, _) => small_files::<P>(&job, &paths, index).await,
            _ => fail("run", "not an experiment on files"),
        }
    }
}

/// Reads or writes at random places.
async fn transfers<P: Files>(job: &Job, file: &P::File, index: u64) -> Tally {
    let is_write = job.cell == Cell::Write;
    let mut tally = Tally::default();
    let mut buffer = P::buffer(job.block);
    for offset in job.offsets(index) {
        let result;
        if is_write {
            P::edit(&mut buffer, |bytes| block::mark(bytes, offset, job.seed));
            (result, buffer) = P::write_at(file, buffer, offset).await;
        } else {
            (result, buffer) = P::read_at(file, buffer, offset).await;
        }
        expect_whole(job, result);
        tally.count(if is_write { 0 } else { marks(P::bytes(&buffer)) });
    }
    tally
}

async fn small_files<P: Files>(job: &Job, paths: &[PathBuf], index: u64) -> Tally {
    let mut tally = Tally::default();
    for path in share_of(job, paths, index) {
        let whole = P::read_whole(path).await;
        let whole = whole.unwrap_or_else(|error| fail(path.display(), error));
        tally.count(small_file_check(job, &whole));
    }
    tally
}

/// Returns the small files that task number `index` reads.
pub fn share_of<'p>(job: &Job, paths: &'p [PathBuf], index: u64) -> impl Iterator<Item = &'p Path> {
    let each = job.ops_per_task() as usize;
    paths[index as usize * each..][..each].iter().map(PathBuf::as_path)
}

/// Ends the program unless the transfer moved a whole block.
#[inline]
pub fn expect_whole(job: &Job, result: io::Result<usize>) {
    match result {
        Ok(len) if len == job.block => {}
        Ok(len) => fail(job.path.display(), format!("a transfer of {len} bytes of a block")),
        Err(error) => fail(job.path.display(), error),
    }
}

/// Returns a small file's contribution to the check, if its contents are right.
#[inline]
pub fn small_file_check(job: &Job, whole: &[u8]) -> u64 {
    if whole.len() != job.block {
        fail(job.path.display(), format!("a small file of {} bytes", whole.len()));
    }
    marks(whole)
}

/// Completes the tally of a job: written blocks are read back.
fn verified(job: &Job, tally: Tally) -> Tally {
    match job.cell {
        Cell::Write => Tally { check: block::verify_written(job), ..tally },
        _ => tally,
    }
}

/// Runs a job without a runtime: each thread runs the shares of its tasks. `share` gets the number of the
/// first task.
pub fn run_shares(job: Job, share: impl Fn(&Job, &Gate, u64) -> Tally + Send + Clone + 'static) {
    let of_all = job.clone();
    let work = move |gate: Arc<Gate>, thread| share(&job, &gate, thread * job.tasks);
    on_threads(of_all.threads, work, |tally| verified(&of_all, tally));
}

/// Runs a job on a runtime's files.
pub(crate) fn run<P: Files>(mut job: Job) {
    if P::shares_threads(&job) {
        job.tasks = job.tasks_total();
        job.threads = 1;
    }
    let job = Arc::new(job);
    let of_thread = job.clone();
    let work = move |gate: Arc<Gate>, thread| {
        let job = of_thread.clone();
        P::block_on(&of_thread, share::<P>(job, gate, thread))
    };
    on_threads(job.threads, work, |tally| verified(&job, tally));
}

/// Runs the share of one thread.
async fn share<P: Files>(job: Arc<Job>, gate: Arc<Gate>, thread: u64) -> Tally {
    let access = match job.cell {
        Cell::SmallFiles => None,
        Cell::Write => Some(Access::Write),
        _ if job.direct => Some(Access::ReadDirect),
        _ => Some(Access::Read),
    };
    let mut file = None;
    if let Some(access) = access {
        let opened = P::open(&job, access).await;
        file = Some(opened.unwrap_or_else(|error| fail(job.path.display(), error)));
    }
    let is_of_small_files = job.cell == Cell::SmallFiles;
    let paths = Arc::new(if is_of_small_files { job.small_files() } else { Vec::new() });
    gate.begin();
    let first = thread * job.tasks;
    let start = |index| {
        let (job, paths) = (job.clone(), paths.clone());
        P::start(Task { job, file: file.clone(), paths, index })
    };
    let handles: Vec<_> = (first..first + job.tasks).map(start).collect();
    let mut tally = Tally::default();
    for handle in handles {
        tally.add(handle.await);
    }
    gate.end();
    tally
}
