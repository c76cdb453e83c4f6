//! Group commit: one write and one `fdatasync(2)` for the writers of many threads.
//!
//! The rounds of a [`Group`], which says how requests share them, are plain calls:
//!
//! 1. A request that is awaited, and finds no performer, starts one: a thread of the pool for blocking
//!    code. It performs rounds as long as there are requests. The engine's own threads would have to pass
//!    the write and the sync on to workers of the kernel, one after the other.
//! 2. A plain thread that waits, and finds no performer, performs the round of its own request itself; what
//!    came meanwhile is handed to a thread of the pool.
//! 3. At the end of a round its writers are woken, and if they come again at once they share the next one
//!    with those that have waited meanwhile: see [`Pace`].
//!
//! Requests that are awaited keep the engine from having stopped until their round is over.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::limits;

use super::transfer::uninterrupted;
use super::{File, check};
use crate::blocking;
use crate::engine::Engine;
use crate::engine::blocking::{Blocking, Calls, remote_pool};
use crate::engine::gate::Pass;
use crate::engine::pace::Pace;
use crate::engine::request::{Call, Request, Tried};
use crate::group::{Group, Record, Round, Ticket, Wakers, errno_of, wake};
use crate::io::transfer::buf_try;
use crate::io::{BufResult, IoBuf};
use crate::parked::block_on;

/// Makes a file durable for the tasks and threads of a whole process at once.
///
/// Clones refer to the same file. Writers await, or wait for,
/// [`append_durable`](GroupCommit::append_durable): those that come while a sync is under way share one
/// write and one sync. Or they write, by [`append`](GroupCommit::append) or by [`file`](GroupCommit::file),
/// and then [`commit`](GroupCommit::commit): all that were written before a sync begins share it.
///
/// The first failure, to append or to sync, is final: everything after it fails with the same error. Earlier
/// commits are durable; whether later bytes exist is unknown until the file is read again.
///
/// The file's contents become durable. The name of a file that was just made needs a sync of its directory,
/// once.
///
/// # Examples
/// ```
/// use sakia::Engine;
/// use sakia::engine::GroupCommit;
///
/// # let path = std::env::temp_dir().join(format!("sakia-group-commit-{}", std::process::id()));
/// let engine = Engine::global()?;
/// let journal = GroupCommit::new(engine.create(&path).wait()?).wait()?;
///
/// // Plain threads.
/// let writers = [0, 1].map(|number| {
///     let journal = journal.clone();
///     std::thread::spawn(move || {
///         let (result, _) = journal.append_durable(format!("thread {number}\n")).wait();
///         result
///     })
/// });
/// for writer in writers {
///     writer.join().expect("it does not panic")?;
/// }
///
/// // Tasks of any executor.
/// # let rt = tokio::runtime::Builder::new_current_thread().build()?;
/// # rt.block_on(async {
/// let writers: Vec<_> = (0..10)
///     .map(|number| tokio::spawn(journal.append_durable(format!("task {number}\n"))))
///     .collect();
/// for writer in writers {
///     let (result, _) = writer.await.expect("it does not panic");
///     result?;
/// }
/// # std::io::Result::Ok(()) })?;
/// assert_eq!(journal.end(), 2 * 9 + 10 * 7);
/// assert!(journal.syncs() <= 12);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct GroupCommit {
    shared: Arc<Shared>,
}

struct Shared {
    file: File,
    /// Its calls may never return.
    is_remote: bool,
    state: Mutex<State>,
    /// Told when the writers have come that the performer waits for, and of the final failure.
    gathered: Condvar,
}

struct State {
    group: Group,
    /// Of the requests that are awaited, for the next round.
    passes: Vec<Pass>,
    pace: Pace,
    /// The performer waits for writers.
    is_gathering: bool,
}

impl GroupCommit {
    /// Takes a file, to be appended to from its end on.
    ///
    /// # Errors
    /// As `fstat(2)`. `InvalidInput`: the file was opened to append. `ECANCELED`: the engine was stopped.
    #[track_caller]
    pub fn new(file: File) -> Request<Blocking<Self>> {
        let engine = file.inner.engine.clone();
        let is_remote = engine.shared.paths.may_wait_for(file.as_fd());
        engine.block_on_pool(Begin { file, is_remote }, is_remote)
    }

    /// Returns the file, to be read, or written at offsets of one's own. Appends overwrite bytes that were
    /// written beyond the end.
    pub fn file(&self) -> &File {
        &self.shared.file
    }

    /// Returns the offset of the next append.
    pub fn end(&self) -> u64 {
        self.shared.lock().group.end()
    }

    /// Syncs so far; one that was left out since a write before it failed counts, too.
    pub fn syncs(&self) -> u64 {
        self.shared.lock().group.begun()
    }

    /// The errno of the failure that ended it, if one did.
    pub fn failure(&self) -> Option<i32> {
        self.shared.lock().group.failure()
    }

    /// Writes `buf` after all that was appended before, and resolves to where it begins. Appends of several
    /// tasks and threads are under way at once, each in a place of its own. It is not durable yet.
    ///
    /// # Cancel safety
    /// Dropping the future, or an error, may leave a gap: bytes that were never written, or that the kernel
    /// writes later. Do not open the file as another log before such a write can have ended: both would use
    /// the same place.
    ///
    /// # Errors
    /// As for [`File::write_at`], and `WriteZero`: the kernel takes nothing; then it is final. The error of
    /// an earlier failure. `ECANCELED`: the engine was stopped, which is no failure of the file's.
    #[track_caller]
    pub fn append<T: IoBuf + Send>(&self, buf: T) -> Request<Append<T>> {
        Request::new(Append { group: self.clone(), buf, at: None, done: 0 })
    }

    /// Writes `buf` after all that was appended before, makes it durable together with all earlier writes
    /// to the file, and resolves to where it begins.
    ///
    /// The bytes are copied, and written together with those of other writers. Once the future has been
    /// polled or [submitted](AppendDurable::submit), they are written even if it is dropped. On a file
    /// opened for direct I/O they must be whole blocks, as must be the file; the copy is aligned.
    ///
    /// # Errors
    /// As [`append`](GroupCommit::append) and [`commit`](GroupCommit::commit).
    pub fn append_durable<T: IoBuf + Send>(&self, buf: T) -> AppendDurable<T> {
        AppendDurable { buf: Some(buf), entry: Entry::new(self) }
    }

    /// Makes all earlier writes to the file durable, by any writer. Resolves when it is.
    ///
    /// # Errors
    /// - `EIO`, `ENOSPC`, `EDQUOT`: writes were lost. All waiting and all later calls return the error: the
    ///   kernel is not asked again, since its answer could not be trusted.
    /// - `EAGAIN`: the machine had no thread for it, which is as final.
    /// - `ECANCELED`: the engine was stopped before it began.
    pub fn commit(&self) -> Commit {
        Commit { entry: Entry::new(self) }
    }
}

/// A file that is to be appended to.
struct Begin {
    file: File,
    is_remote: bool,
}

impl Begin {
    fn begin(&self) -> io::Result<GroupCommit> {
        let Self { file, is_remote } = self;
        if rustix::fs::fcntl_getfl(file)?.contains(OFlags::APPEND) {
            let message = "the file was opened to append, so the kernel ignores offsets";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let size = rustix::fs::fstat(file)?.st_size;
        let state = State {
            group: Group::new(u64::try_from(size).unwrap_or_default()),
            passes: Vec::new(),
            pace: Pace::default(),
            is_gathering: false,
        };
        let (state, gathered) = (Mutex::new(state), Condvar::new());
        let shared = Shared { file: file.clone(), is_remote: *is_remote, state, gathered };
        Ok(GroupCommit { shared: Arc::new(shared) })
    }
}

impl Calls<GroupCommit> for Begin {
    fn attempt(&mut self, _: &Engine) -> Option<io::Result<GroupCommit>> {
        (!self.is_remote).then(|| self.begin())
    }

    fn block(self: Box<Self>) -> io::Result<GroupCommit> {
        self.begin()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(&self) -> &Engine {
        &self.file.inner.engine
    }

    /// Refuses the work of a forked child: the parent appends, too, and knows nothing of it.
    fn check_process(&self) -> io::Result<()> {
        if self.engine().shared.process.is_intact() {
            return Ok(());
        }
        let message =
            "the group of writers is that of the parent process: a forked child must begin its own";
        Err(self.engine().refuse(io::Error::other(message)))
    }

    /// Joins the next round. Returns a performer if there is none yet.
    fn join(
        self: &Arc<Self>,
        record: Option<Record<'_>>,
        pass: Option<Pass>,
    ) -> io::Result<(Ticket, Option<Performer>)> {
        let mut state = self.lock();
        let ticket = state.group.join(record)?;
        state.passes.extend(pass);
        let is_first = state.group.needs_performer();
        let are_all_there = state.is_gathering && !state.group.lacks_writers();
        drop(state);
        if are_all_there {
            self.gathered.notify_one();
        }
        Ok((ticket, is_first.then(|| Performer::new(self))))
    }

    fn poll(&self, ticket: &Ticket, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.check_process()?;
        // Dropped after the lock: it may be the last to hold its task, whose destructor is anything.
        let mut replaced = None;
        self.lock().group.poll(ticket, cx.waker(), &mut replaced)
    }

    /// Makes an error the final failure, unless there is one.
    fn fail(&self, error: &io::Error) {
        let mut state = self.lock();
        let woken = state.group.fail(errno_of(error));
        self.end_all(state, woken);
    }

    /// Tells all requests of a failure.
    fn end_all(&self, mut state: MutexGuard<'_, State>, woken: Wakers) {
        let passes = std::mem::take(&mut state.passes);
        drop(state);
        self.gathered.notify_one();
        drop(passes);
        wake(woken);
    }

    /// Waits for writers to come again, if that is likely to pay.
    fn gather<'s>(&self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        if !state.group.lacks_writers() {
            return state;
        }
        let Some(most) = state.pace.wait() else { return state };
        state.is_gathering = true;
        let lack = |state: &mut State| state.group.lacks_writers();
        let waited = self.gathered.wait_timeout_while(state, most, lack);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_gathering = false;
        let have_come = !state.group.lacks_writers();
        state.pace.waited(have_come);
        state
    }

    /// Writes all of it by plain calls.
    fn write_all(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let fd = self.file.inner.fd();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            check(Some(at))?;
            match uninterrupted(|| rustix::io::pwrite(fd, &bytes[done..], at))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        uninterrupted(|| rustix::fs::fdatasync(self.file.inner.fd()))
    }
}

/// The one that performs rounds, from when it is needed until no request is left.
struct Performer {
    shared: Arc<Shared>,
    /// No request was left.
    is_over: bool,
    /// The failure of the group if this is dropped before it is over.
    errno: Errno,
}

impl Performer {
    fn new(shared: &Arc<Shared>) -> Self {
        // The pool drops it if there is no thread.
        Self { shared: Arc::clone(shared), is_over: false, errno: Errno::AGAIN }
    }

    /// Performs rounds on a thread of a pool.
    fn start(self) {
        let pool = if self.shared.is_remote { remote_pool() } else { blocking::shared() };
        pool.spawn(move || self.run()).detach();
    }

    fn run(mut self) {
        self.errno = Errno::CANCELED;
        while let Some((round, passes)) = self.begin() {
            self.perform(round, passes);
        }
    }

    /// Performs the next round on this thread, and leaves those after it to a thread of a pool.
    fn lead(mut self) {
        self.errno = Errno::CANCELED;
        let Some((round, passes)) = self.begin() else { return };
        self.perform(round, passes);
        self.is_over = self.shared.lock().group.leave();
        if !self.is_over {
            self.errno = Errno::AGAIN;
            self.start();
        }
    }

    /// Begins the next round, with the passes of its requests. `None`: it is over.
    fn begin(&mut self) -> Option<(Round, Vec<Pass>)> {
        let mut state = self.shared.gather(self.shared.lock());
        let round = state.group.begin();
        self.is_over = round.is_none();
        round.map(|round| (round, std::mem::take(&mut state.passes)))
    }

    fn perform(&self, round: Round, mut passes: Vec<Pass>) {
        let shared = &*self.shared;
        let begun = Instant::now();
        let result = round.perform(|bytes, at| shared.write_all(bytes, at), || shared.sync());
        let took = begun.elapsed();
        let mut state = shared.lock();
        state.pace.took(took);
        if result.is_err() {
            passes.append(&mut state.passes);
        }
        let woken = state.group.end_round(round, result);
        drop(state);
        drop(passes);
        wake(woken);
    }
}

impl Drop for Performer {
    /// If it is not over, the machine had no thread for it, or it has panicked.
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.shared.lock();
            let woken = state.group.abandon(self.errno.raw_os_error());
            self.shared.end_all(state, woken);
        }
    }
}

/// See [`GroupCommit::append`].
pub struct Append<T> {
    group: GroupCommit,
    buf: T,
    /// The offset at which it begins, once that is certain.
    at: Option<u64>,
    /// Bytes that were written.
    done: usize,
}

impl<T: IoBuf + Send> Append<T> {
    /// Takes a place in the file, unless it has one.
    fn reserve(&mut self) -> io::Result<u64> {
        if let Some(at) = self.at {
            return Ok(at);
        }
        self.group.shared.check_process()?;
        let at = self.group.shared.lock().group.reserve(self.buf.bytes_len())?;
        Ok(*self.at.insert(at))
    }

    /// Returns the result, given that of the write.
    fn end(self, at: u64, result: io::Result<()>) -> BufResult<u64, T> {
        if let Err(error) = &result {
            self.group.shared.fail(error);
        }
        (result.map(|()| at), self.buf)
    }
}

impl<T: IoBuf + Send> Call for Append<T> {
    type Output = BufResult<u64, T>;

    fn engine(&self) -> &Engine {
        self.group.shared.engine()
    }

    fn attempt(mut self) -> Tried<Self> {
        let at = match self.reserve() {
            Ok(at) => at,
            Err(error) => return Tried::Done((Err(error), self.buf)),
        };
        let (inner, len) = (&self.group.shared.file.inner, self.buf.bytes_len());
        let part = &self.buf.as_bytes()[..len.min(limits::CALLER_BYTES)];
        match inner.write_now(&[IoSlice::new(part)], Some(at)) {
            Some(Ok(count)) if count < len => Tried::Waits(Self { done: count, ..self }),
            Some(result) => {
                inner.count_now();
                Tried::Done(self.end(at, result.map(drop)))
            }
            None => Tried::Waits(self),
        }
    }

    fn block(mut self) -> Result<Self::Output, Self> {
        let at = match self.reserve() {
            Ok(at) => at,
            Err(error) => return Ok((Err(error), self.buf)),
        };
        let rest = &self.buf.as_bytes()[self.done..];
        let result = self.group.shared.write_all(rest, at.saturating_add(self.done as u64));
        Ok(self.end(at, result))
    }

    async fn run(mut self, thread: usize) -> Self::Output {
        let at = buf_try!(self.reserve(), self.buf);
        let offset = at.saturating_add(self.done as u64);
        let known = self.group.shared.file.inner.at_on_thread(Some(offset), thread);
        let Self { group, buf, done, .. } = self;
        let (result, buf) = match known {
            Ok((file, offset)) => {
                let (result, rest) = file.write_all_at(buf.slice(done..), offset).await;
                (result, rest.into_inner())
            }
            Err(error) => (Err(error), buf),
        };
        Self { group, buf, at: Some(at), done }.end(at, result)
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        (Err(error), self.buf)
    }
}

/// A record that is to be appended and made durable. See [`GroupCommit::append_durable`].
///
/// Nothing happens before it is awaited, waited for or submitted. It may be awaited on any executor.
///
/// # Panics
/// The future panics when it is polled after its end.
#[must_use = "nothing happens before it is awaited or waited for"]
pub struct AppendDurable<T> {
    /// `None` at the end.
    buf: Option<T>,
    entry: Entry,
}

/// Earlier writes that are to be made durable. See [`GroupCommit::commit`].
///
/// Nothing happens before it is awaited, waited for or submitted. It may be awaited on any executor.
///
/// # Panics
/// The future panics when it is polled after its end.
#[must_use = "nothing happens before it is awaited or waited for"]
pub struct Commit {
    entry: Entry,
}

/// The buffer is not pinned.
impl<T> Unpin for AppendDurable<T> {}

impl<T: IoBuf + Send> AppendDurable<T> {
    /// Blocks the thread until it is done. A thread that is alone writes and syncs by plain calls; of
    /// several, one does so for all that have come. It needs no engine, and is done after a stop too.
    pub fn wait(mut self) -> BufResult<u64, T> {
        let buf = self.buf.take().expect(ENDED);
        (self.entry.wait(Some(buf.as_bytes())), buf)
    }

    /// Has it join the next round now. It is under way then, and awaited or waited for later; or dropped, and
    /// done all the same.
    pub fn submit(mut self) -> Self {
        let bytes = self.buf.as_ref().map(T::as_bytes);
        self.entry.submit(bytes);
        self
    }
}

impl<T: IoBuf + Send> Future for AppendDurable<T> {
    type Output = BufResult<u64, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { buf, entry } = &mut *self;
        let Poll::Ready(result) = entry.poll(buf.as_ref().map(T::as_bytes), cx) else {
            return Poll::Pending;
        };
        Poll::Ready((result, buf.take().expect(ENDED)))
    }
}

impl Commit {
    /// Blocks the thread until it is done, as [`AppendDurable::wait`] does.
    ///
    /// # Errors
    /// See [`GroupCommit::commit`].
    pub fn wait(mut self) -> io::Result<()> {
        self.entry.wait(None).map(drop)
    }

    /// Has it join the next round now, which covers what has been written until then.
    pub fn submit(mut self) -> Self {
        self.entry.submit(None);
        self
    }
}

impl Future for Commit {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.entry.poll(None, cx).map_ok(drop)
    }
}

const ENDED: &str = "it was polled after its end";

/// A request, and how far it is.
struct Entry {
    group: GroupCommit,
    stage: Stage,
}

enum Stage {
    New,
    Joined(Ticket),
    /// It was submitted, and could not join.
    Refused(io::Error),
    Over,
}

impl Entry {
    fn new(group: &GroupCommit) -> Self {
        Self { group: group.clone(), stage: Stage::New }
    }

    /// Joins the next round, for a caller that awaits it.
    fn submit(&mut self, record: Option<&[u8]>) {
        if matches!(self.stage, Stage::New) {
            let joined = self.join_awaited(record);
            self.stage = joined.map_or_else(Stage::Refused, Stage::Joined);
        }
    }

    fn join_awaited(&self, record: Option<&[u8]>) -> io::Result<Ticket> {
        let shared = &self.group.shared;
        let pass = shared.engine().pass()?;
        let (ticket, performer) = shared.join(record.map(Record::new), Some(pass))?;
        if let Some(performer) = performer {
            performer.start();
        }
        Ok(ticket)
    }

    /// Resolves to where its bytes begin.
    fn poll(&mut self, record: Option<&[u8]>, cx: &Context<'_>) -> Poll<io::Result<u64>> {
        self.submit(record);
        let result = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Joined(ticket) => match self.group.shared.poll(&ticket, cx) {
                Poll::Ready(result) => result.map(|()| ticket.at),
                Poll::Pending => {
                    self.stage = Stage::Joined(ticket);
                    return Poll::Pending;
                }
            },
            Stage::Refused(error) => Err(error),
            Stage::New | Stage::Over => panic!("{ENDED}"),
        };
        Poll::Ready(result)
    }

    /// Blocks the thread until it is done.
    fn wait(&mut self, record: Option<&[u8]>) -> io::Result<u64> {
        if matches!(self.stage, Stage::New) {
            let shared = &self.group.shared;
            shared.check_process()?;
            shared.engine().shared.tally.count(|part| &part.waited);
            let (ticket, performer) = shared.join(record.map(Record::new), None)?;
            if let Some(performer) = performer {
                performer.lead();
            }
            self.stage = Stage::Joined(ticket);
        }
        block_on(poll_fn(|cx| self.poll(None, cx)))
    }
}

impl fmt::Debug for GroupCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupCommit").field("file", self.file()).finish_non_exhaustive()
    }
}
