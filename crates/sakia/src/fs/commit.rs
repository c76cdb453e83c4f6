//! Group commit: one write and one `fdatasync(2)` for many writers.
//!
//! A task of its own performs the rounds of a [`Group`], which says how requests share them, as long as
//! there are any; so a dropped request does not hold up the others. Between rounds it lets the writers run
//! that the last one has served: where they come again at once, they share the next one with those that
//! have waited meanwhile.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::rc::Rc;

use sakia_driver::{AlignedBuf, BufResult, IoBuf};

use super::File;
use crate::executor::spawn_at;
use crate::group::{Group, Record, Ticket, errno_of, wake};
use crate::io::transfer::buf_try;
use crate::yielding::yield_now;

/// How often the task yields for writers to come again: they run once, and what they await may have to be
/// submitted and taken.
const YIELDS_MAX: u32 = 2;

/// Makes a file durable for many tasks at once.
///
/// Clones refer to the same file. Tasks await [`append_durable`](GroupCommit::append_durable): those that
/// come while a sync is under way share one write and one sync. Or they write, by
/// [`append`](GroupCommit::append) or by [`file`](GroupCommit::file), and then await
/// [`commit`](GroupCommit::commit): all that were written before a sync begins share it.
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
///                 journal.append_durable(format!("record {number}\n")).await.value()
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
    group: RefCell<Group>,
    /// The place that called [`GroupCommit::new`], which is that of the task that performs rounds.
    made_at: &'static Location<'static>,
}

impl GroupCommit {
    /// Takes a file, to be appended to from its end on.
    ///
    /// # Cancel safety
    /// Dropping the future drops the file.
    ///
    /// # Errors
    /// As `fstat(2)`. `InvalidInput`: the file was opened to append.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    #[track_caller]
    pub fn new(file: File) -> impl Future<Output = io::Result<Self>> {
        let made_at = Location::caller();
        async move {
            if file.appends {
                let message = "the file was opened to append, so the kernel ignores offsets";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            let group = RefCell::new(Group::new(file.len().await?));
            Ok(Self { shared: Rc::new(Shared { file, group, made_at }) })
        }
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
        self.shared.group.borrow().end()
    }

    /// Syncs so far; one that was left out since a write before it failed counts, too.
    pub fn syncs(&self) -> u64 {
        self.shared.group.borrow().begun()
    }

    /// Returns the errno of the failure that ended it, if there was one.
    pub fn failure(&self) -> Option<i32> {
        self.shared.group.borrow().failure()
    }

    /// Writes `buf` after all earlier appends, and resolves to its offset. Several tasks may append at once,
    /// each at an offset of its own. The bytes are not durable yet.
    ///
    /// # Cancel safety
    /// Dropping the future, or an error, may leave a gap: bytes that were never written, or that the kernel
    /// writes later. Do not open the file as another log before such a write can have ended: both would use
    /// the same place.
    ///
    /// # Errors
    /// As for [`File::write_all_at`]; then it is final. The error of an earlier failure.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub async fn append<T: IoBuf>(&self, buf: T) -> BufResult<u64, T> {
        let reserved = self.shared.group.borrow_mut().reserve(buf.bytes_len());
        let at = buf_try!(reserved, buf);
        let (result, buf) = self.shared.file.write_all_at(buf, at).await;
        if let Err(error) = &result {
            let woken = self.shared.group.borrow_mut().fail(errno_of(error));
            wake(woken);
        }
        (result.map(|()| at), buf)
    }

    /// Writes `buf` after all that was appended before, makes it durable together with all earlier writes
    /// to the file, and resolves to where it begins.
    ///
    /// The bytes are copied, and written together with those of other tasks.
    ///
    /// # Cancel safety
    /// Once the future has been polled, the bytes are written and synced even if it is dropped; before that
    /// they are not.
    ///
    /// # Errors
    /// As [`append`](GroupCommit::append) and [`commit`](GroupCommit::commit).
    pub async fn append_durable<T: IoBuf>(&self, buf: T) -> BufResult<u64, T> {
        let joined = self.shared.join(Some(Record::new(buf.as_bytes())));
        let ticket = buf_try!(joined, buf);
        (self.shared.finish(&ticket).await.map(|()| ticket.at), buf)
    }

    /// Makes all earlier writes to the file durable, by any writer. Resolves when it is.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait. Once it was polled, the sync goes on.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: writes were lost. All waiting and all later calls return the error: the
    /// kernel is not asked again, since its answer could not be trusted. `ECANCELED`: the runtime ended.
    ///
    /// # Examples
    /// See [`GroupCommit`](GroupCommit#examples).
    pub async fn commit(&self) -> io::Result<()> {
        let ticket = self.shared.join(None)?;
        self.shared.finish(&ticket).await
    }
}

impl Shared {
    /// Joins the next round, and has it performed.
    fn join(self: &Rc<Self>, record: Option<Record<'_>>) -> io::Result<Ticket> {
        let ticket = self.group.borrow_mut().join(record)?;
        if self.group.borrow_mut().needs_performer() {
            let performer = Performer { shared: Rc::clone(self), is_over: false };
            spawn_at(performer.run(), self.made_at).detach();
        }
        Ok(ticket)
    }

    /// Waits for the end of the round.
    async fn finish(&self, ticket: &Ticket) -> io::Result<()> {
        poll_fn(|cx| {
            // Dropped after the group is free again: it may be the last to hold its task.
            let mut replaced = None;
            self.group.borrow_mut().poll(ticket, cx.waker(), &mut replaced)
        })
        .await
    }
}

/// The task that performs rounds, while it is there.
struct Performer {
    shared: Rc<Shared>,
    /// No request was left.
    is_over: bool,
}

impl Performer {
    async fn run(mut self) {
        let Shared { file, group, .. } = &*self.shared;
        loop {
            let begun = group.borrow_mut().begin();
            let Some(mut round) = begun else { break };
            let write = async |buf: AlignedBuf, len: usize, at: u64| {
                let (result, buf) = file.write_all_at(IoBuf::slice(buf, ..len), at).await;
                (result, buf.into_inner())
            };
            let result = round.perform_by(write, async || file.sync_data().await).await;
            let woken = group.borrow_mut().end_round(round, result);
            wake(woken);
            for _ in 0..YIELDS_MAX {
                if !group.borrow().lacks_writers() {
                    break;
                }
                yield_now().await;
            }
        }
        self.is_over = true;
    }
}

impl Drop for Performer {
    /// The runtime has ended the task if it is not over.
    fn drop(&mut self) {
        if !self.is_over {
            let errno = rustix::io::Errno::CANCELED.raw_os_error();
            let woken = self.shared.group.borrow_mut().abandon(errno);
            wake(woken);
        }
    }
}
