//! Group commit: one `fdatasync(2)` for many writers.
//!
//! A request for a commit is served by the first sync that begins after it, which covers every write that was
//! done by then. While one sync runs, further requests gather for the next. A separate task performs the
//! syncs as long as there are requests, so that a dropped request does not delay the others.
//!
//! A sync that fails is the last one: the kernel may have dropped what it could not write and marked it
//! clean, so that a later sync would succeed without the data being there.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use sakia_driver::{BufResult, IoBuf, wake_all};

use super::File;
use crate::io::transfer::buf_try;

/// Makes a file durable for many tasks at once.
///
/// Clones refer to the same file. Tasks write, by [`append`](GroupCommit::append) or by
/// [`file`](GroupCommit::file), and then await [`commit`](GroupCommit::commit): all writes made before a sync
/// begins share that sync.
///
/// The first failure, to append or to sync, is final: everything after it fails with the same error. Earlier
/// commits are durable; whether later bytes exist is unknown until the file is read again.
///
/// The file's contents become durable. The name of a file that was just made needs its directory
/// [synced](super::Dir::sync), once.
///
/// # Examples
/// ```
/// use sakia::fs::{File, GroupCommit};
/// use sakia::io::BufResultExt;
///
/// # let path = std::env::temp_dir().join(format!("sakia-group-{}", std::process::id()));
/// sakia::block_on(async {
///     let journal = GroupCommit::new(File::create(&path).await?).await?;
///     let writers: Vec<_> = (0..10)
///         .map(|number| {
///             let journal = journal.clone();
///             sakia::spawn(async move {
///                 journal.append(format!("record {number}\n")).await.value()?;
///                 journal.commit().await
///             })
///         })
///         .collect();
///     for writer in writers {
///         writer.await.expect("no writer panics")?;
///     }
///     assert_eq!(journal.file().len().await?, 90);
///     assert!(journal.syncs() < 10, "they shared");
/// #   std::fs::remove_file(&path)?;
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct GroupCommit {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    /// The offset of the next append.
    end: Cell<u64>,
    /// Syncs that have begun.
    begun: Cell<u64>,
    /// Syncs that have ended well.
    done: Cell<u64>,
    /// The number of the last sync that a caller requested.
    wanted: Cell<u64>,
    /// Set while there is a task that syncs.
    is_running: Cell<bool>,
    /// The errno of the first failure.
    failure: Cell<Option<i32>>,
    /// The wakers of the tasks that wait for a sync to end.
    waiting: RefCell<Vec<Waker>>,
}

impl GroupCommit {
    /// Takes a file, to be appended to from its end on.
    ///
    /// # Errors
    /// As `fstat(2)`. `InvalidInput`: the file was opened to append.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub async fn new(file: File) -> io::Result<Self> {
        if file.appends {
            let message = "the file was opened to append, so the kernel ignores offsets";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let end = Cell::new(file.len().await?);
        let shared = Shared {
            file,
            end,
            begun: Cell::new(0),
            done: Cell::new(0),
            wanted: Cell::new(0),
            is_running: Cell::new(false),
            failure: Cell::new(None),
            waiting: RefCell::new(Vec::new()),
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Returns the file, to be read, or to be written at offsets of the caller's choice. Appends overwrite
    /// bytes that were written beyond the end in this way.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub fn file(&self) -> &File {
        &self.shared.file
    }

    /// Returns the offset of the next append.
    pub fn end(&self) -> u64 {
        self.shared.end.get()
    }

    /// Returns the number of syncs so far.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub fn syncs(&self) -> u64 {
        self.shared.begun.get()
    }

    /// Returns the errno of the failure that ended it, if there was one.
    pub fn failure(&self) -> Option<i32> {
        self.shared.failure.get()
    }

    /// Writes `buf` after all earlier appends, and resolves to its offset. Several tasks may append at once,
    /// each at an offset of its own. The bytes are not durable yet.
    ///
    /// Dropping the future, or an error, may leave a gap: bytes that were never written.
    ///
    /// # Errors
    /// As for [`File::write_all_at`]; then it is final. The error of an earlier failure.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub async fn append<T: IoBuf>(&self, buf: T) -> BufResult<u64, T> {
        buf_try!(self.check(), buf);
        let at = self.shared.end.get();
        self.shared.end.set(at + buf.bytes_len() as u64);
        let (result, buf) = self.shared.file.write_all_at(buf, at).await;
        if let Err(error) = &result {
            self.shared.fail(error);
        }
        (result.map(|()| at), buf)
    }

    /// Makes all earlier writes to the file durable, by any writer. Resolves when it is.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: writes were lost. All waiting and all later calls return the error: the
    /// kernel is not asked again, since its answer could not be trusted.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub async fn commit(&self) -> io::Result<()> {
        self.check()?;
        let shared = &self.shared;
        // A sync that runs now may have begun before the last write was done.
        let number = shared.begun.get() + 1;
        shared.wanted.set(shared.wanted.get().max(number));
        if !shared.is_running.replace(true) {
            crate::spawn(sync_while_wanted(Running(Rc::clone(shared)))).detach();
        }
        poll_fn(|cx| {
            if shared.done.get() >= number {
                return Poll::Ready(Ok(()));
            }
            self.check()?;
            if !shared.is_running.get() {
                // The runtime has ended the task.
                return Poll::Ready(Err(rustix::io::Errno::CANCELED.into()));
            }
            let mut waiting = shared.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn check(&self) -> io::Result<()> {
        match self.shared.failure.get() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

impl Shared {
    /// Makes `error` the final one, unless there is one already.
    fn fail(&self, error: &io::Error) {
        let errno = super::os_error(error).unwrap_or(rustix::io::Errno::IO.raw_os_error());
        if self.failure.get().is_none() {
            self.failure.set(Some(errno));
        }
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        wake_all(waiting);
    }
}

/// The task that syncs, while it is there.
struct Running(Rc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.set(false);
        self.0.wake();
    }
}

async fn sync_while_wanted(running: Running) {
    let shared = &running.0;
    while shared.failure.get().is_none() && shared.done.get() < shared.wanted.get() {
        let number = shared.begun.get() + 1;
        shared.begun.set(number);
        match shared.file.sync_data().await {
            Ok(()) => {
                shared.done.set(number);
                shared.wake();
            }
            Err(error) => shared.fail(&error),
        }
    }
}
