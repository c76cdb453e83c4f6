//! The ways to have many reads in flight, and the count of their threads.
//!
//! The process's first thread reads nothing: it starts the others, waits until nothing changes any more,
//! counts, has the gate opened, and goes on counting until all reads are done. So it is the one thread of an
//! idle process, and all others belong to the reads.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::fs::{Advice, OFlags, fadvise};
use sakia::Runtime;
use sakia::engine::{self, __private::block_on};
use sakia_driver::{AlignedBuf, Policy};

use super::census::Census;
use super::gate::Held;
use super::input::{hash, name};
use super::{Task, Variant};
use crate::cell::{Counters, Done};
use crate::engine::{available, counters};
use crate::measure::{Meter, threads};

/// Threads of the pool: the usual limit of asynchronous runtimes' pools.
pub(super) const POOL_THREADS: usize = 512;
/// Stack of a thread that reads.
const STACK_BYTES: usize = 64 << 10;
/// Descriptors of a process besides those of the files.
const SPARE_FILES: u64 = 64;

/// Threads are counted each time this many were started.
const LOOK_AFTER: usize = 64;
/// The interval of checks for changes.
const LOOK: Duration = Duration::from_millis(50);

/// Progress of the reads, reported by the reading threads to the first one.
struct Reads {
    total: usize,
    /// The number of reads that a thread has requested from the kernel, or from the engine.
    begun: AtomicUsize,
    ended: AtomicUsize,
    sum: AtomicU64,
    error: OnceLock<anyhow::Error>,
    /// Woken when the last one has ended.
    first: Thread,
}

impl Reads {
    fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the end of the read of file number `index`.
    fn end(&self, index: usize, result: io::Result<&[u8]>) {
        match result {
            Ok(bytes) => {
                self.sum.fetch_add(hash(index, bytes), Ordering::Relaxed);
            }
            Err(error) => {
                let error = anyhow!(error).context(format!("cannot read file {index}"));
                self.error.set(error).ok(); // only the first error is reported
            }
        }
        if self.ended.fetch_add(1, Ordering::AcqRel) + 1 == self.total {
            self.first.unpark();
        }
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        self.ended() == self.total
    }

    /// # Errors
    /// The error of the first read that failed.
    fn check(&self) -> anyhow::Result<()> {
        self.error.get().map_or(Ok(()), |error| bail!("{error:#}"))
    }
}

/// The readers.
#[derive(Default)]
struct Readers {
    threads: Vec<JoinHandle<()>>,
    /// The barrier at which threads without more work wait for the end, with the first thread.
    end: Option<Arc<Barrier>>,
    /// Open until all threads are counted: closing a file may take a thread, too.
    files: Arc<Vec<File>>,
    /// The same for files of an engine.
    engine_files: Vec<engine::File>,
    /// Ended after the threads that use it.
    engine: Option<engine::Engine>,
}

/// Reads all files, and counts the threads for that.
pub(super) fn work(variant: Variant, task: &Task, meter: &mut Meter) -> anyhow::Result<Done> {
    let files = open_cold(task)?;
    let idle = threads();
    let mut held = task.gate.as_deref().map(Held::hold).transpose()?;
    let reads = Arc::new(Reads {
        total: files.len(),
        begun: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
        sum: AtomicU64::new(0),
        error: OnceLock::new(),
        first: thread::current(),
    });
    let mut census = Census::default();
    meter.restart()?;
    let readers = match variant {
        Variant::Blocking => plain(files, task.size_bytes, &reads, &mut census, true),
        Variant::Pool => plain(files, task.size_bytes, &reads, &mut census, false),
        Variant::Uring => an_engine(Policy::Uring, files, task.size_bytes, &reads),
        Variant::Poll => an_engine(Policy::Poll, files, task.size_bytes, &reads),
    }?;
    let mut counted = Counters::new();
    if let Some(held) = &mut held {
        wait_until_quiet(&reads, task.settle, &mut census);
        counted = meter.aside(|| at_rest(&reads, &readers, &mut census))?;
        meter.note_threads();
        reads.check()?;
        let early = reads.ended();
        ensure!(early == 0, "{early} reads were answered while the place was held: it is not cold");
        meter.restart_clock();
        held.open()?;
    }
    while !reads.is_over() {
        census.look();
        let is_lost = readers.threads.iter().all(JoinHandle::is_finished) && !reads.is_over();
        ensure!(!is_lost, "{} of {} reads have ended, and no more", reads.ended(), reads.total);
        thread::park_timeout(LOOK);
    }
    census.look();
    meter.end()?;
    if let Some(end) = readers.end {
        end.wait();
    }
    for thread in readers.threads {
        thread.join().map_err(|_| anyhow!("a thread that reads has panicked"))?;
    }
    drop((readers.files, readers.engine_files, readers.engine));
    reads.check()?;
    counted.extend(counters([
        ("reads", reads.total as u64),
        ("threads_idle", idle),
        ("threads_extra", census.threads_max.saturating_sub(idle)),
        ("threads_user", census.user_max().saturating_sub(idle)),
        ("threads_lane", census.lane_max),
        ("iowq_workers", census.iowq_max),
    ]));
    Ok(Done { sum: reads.sum.load(Ordering::Relaxed), counters: counted })
}

/// Opens all files, and drops their data from the page cache.
fn open_cold(task: &Task) -> anyhow::Result<Vec<File>> {
    raise_limit(task.reads as u64 + SPARE_FILES)?;
    let flags = if task.direct { OFlags::DIRECT.bits().cast_signed() } else { 0 };
    let open = |index| {
        let path = task.directory.join(name(index));
        let opened = File::options().read(true).custom_flags(flags).open(&path);
        let opened = opened.and_then(|file| {
            fadvise(&file, 0, None, Advice::DontNeed)?;
            Ok(file)
        });
        opened.with_context(|| path.display().to_string())
    };
    (0..task.reads).map(open).collect()
}

/// Raises the process's limit of descriptors for this many files.
fn raise_limit(files: u64) -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("getrlimit")?;
    if soft >= files {
        return Ok(());
    }
    if hard < files {
        bail!("{files} descriptors are needed and {hard} allowed (ulimit -Hn); fewer with --reads");
    }
    setrlimit(Resource::RLIMIT_NOFILE, files, hard).context("setrlimit")
}

/// Waits until all reads have begun, or none begins any more, and the number of threads is stable: until
/// nothing has changed for `settle`.
fn wait_until_quiet(reads: &Reads, settle: Duration, census: &mut Census) {
    let look = || (reads.begun.load(Ordering::Relaxed), reads.ended(), threads());
    let (mut seen, mut since) = (look(), Instant::now());
    while since.elapsed() < settle {
        thread::park_timeout(LOOK);
        let now = look();
        census.threads_max = census.threads_max.max(now.2);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
}

/// Returns the counts that are taken while no read is answered.
fn at_rest(reads: &Reads, readers: &Readers, census: &mut Census) -> Counters {
    let threads = census.look_closely();
    let mut counted = counters([
        ("begun", reads.begun.load(Ordering::Relaxed) as u64),
        ("threads_stalled", threads.stalled),
    ]);
    if let Some(engine) = &readers.engine {
        counted.insert("engine_live".into(), engine.statistics().live);
    }
    counted
}

/// Starts `count` threads, which take one file after the other, or with `is_each` one only.
fn plain(
    files: Vec<File>,
    size: usize,
    reads: &Arc<Reads>,
    census: &mut Census,
    is_each: bool,
) -> anyhow::Result<Readers> {
    let threads = if is_each { files.len() } else { POOL_THREADS.min(files.len()) };
    let next = Arc::new(AtomicUsize::new(0));
    let end = (!is_each).then(|| Arc::new(Barrier::new(threads + 1)));
    let mut readers = Readers { files: Arc::new(files), end, ..Readers::default() };
    for index in 0..threads {
        // If nothing is held, the first threads end before the last ones begin.
        if is_each && index % LOOK_AFTER == LOOK_AFTER - 1 {
            census.look();
        }
        let (reads, files) = (Arc::clone(reads), Arc::clone(&readers.files));
        let (next, end) = (Arc::clone(&next), readers.end.clone());
        let read = move || {
            let mut bytes = AlignedBuf::zeroed(size);
            let mut read = |index, file: &File| {
                reads.begin();
                reads.end(index, file.read_exact_at(&mut bytes, 0).map(|()| &bytes[..]));
            };
            let Some(end) = end else { return read(index, &files[index]) };
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = files.get(index) else { break };
                read(index, file);
            }
            end.wait();
        };
        readers.threads.push(start(read).with_context(|| format!("thread {index}"))?);
    }
    Ok(readers)
}

fn start(work: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work).context("cannot start a thread")
}

/// Returns readers on an engine with default options, but for the backend, with one thread that awaits all
/// reads at the same time.
fn an_engine(
    policy: Policy,
    files: Vec<File>,
    size: usize,
    reads: &Arc<Reads>,
) -> anyhow::Result<Readers> {
    let engine = available(Runtime::builder().backend(policy).build_engine())?;
    let adopted: io::Result<Vec<_>> = files.into_iter().map(|file| engine.adopt(file)).collect();
    let (files, reads) = (adopted?, Arc::clone(reads));
    let engine_files = files.clone();
    let awaits = start(move || {
        let read = |(index, file): (usize, engine::File)| {
            let reads = &reads;
            async move {
                reads.begin();
                match read_awaited(&file, size).await {
                    Ok(bytes) => reads.end(index, Ok(&bytes)),
                    Err(error) => reads.end(index, Err(error)),
                }
            }
        };
        let mut all: FuturesUnordered<_> = files.into_iter().enumerate().map(read).collect();
        block_on(async { while all.next().await.is_some() {} });
    })?;
    Ok(Readers { threads: vec![awaits], engine_files, engine: Some(engine), ..Readers::default() })
}

async fn read_awaited(file: &engine::File, size: usize) -> io::Result<AlignedBuf> {
    let (result, mut bytes) = file.read_at(AlignedBuf::zeroed(size), 0).await;
    let mut filled = result?;
    while filled < size {
        let (result, rest) = file.read_at(AlignedBuf::zeroed(size - filled), filled as u64).await;
        let count = match result? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => count,
        };
        bytes[filled..filled + count].copy_from_slice(&rest[..count]);
        filled += count;
    }
    Ok(bytes)
}
