//! Group commit: one write and one `fdatasync(2)` for many tasks.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use sakia::Engine;
use sakia::engine;
use sakia_driver::Lane;
use tokio::io::AsyncWrite;
use tokio::task::coop::consume_budget;

use super::File;
use crate::lane::{Lasting, plain};

/// Makes a file durable for many tasks at once. `tokio::fs` has no counterpart.
///
/// Clones refer to the same file. Tasks await [`append_durable`](GroupCommit::append_durable): those that
/// come while a sync is under way share one write and one sync. Or they [`append`](GroupCommit::append),
/// and then [`commit`](GroupCommit::commit): all that were written before a sync begins share it.
///
/// The first failure, to append or to sync, is final: everything after it fails with the same error. Earlier
/// commits are durable; whether later bytes exist is unknown until the file is read again.
///
/// The file's contents become durable. The name of a file that was just made needs a sync of its directory,
/// once.
///
/// As with a [`File`], what a dropped future has begun is finished. A runtime that ends waits for it.
///
/// # Examples
/// ```
/// use sakia_tokio::fs::{File, GroupCommit};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-tokio-group-{}", std::process::id()));
/// let journal = GroupCommit::new(File::create(&path).await?).await?;
/// let clients: Vec<_> = (0..20)
///     .map(|number| {
///         let journal = journal.clone();
///         tokio::spawn(async move {
///             journal.append_durable(format!("order {number:02}\n")).await // now it may be confirmed
///         })
///     })
///     .collect();
/// for client in clients {
///     client.await.expect("it does not panic")?;
/// }
/// assert_eq!(journal.end(), 180);
/// assert!(journal.syncs() < 20, "they shared");
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone)]
pub struct GroupCommit {
    group: engine::GroupCommit,
}

impl GroupCommit {
    /// Takes a file, to be appended to from its end on, after the write in flight.
    ///
    /// # Errors
    /// As `fstat(2)`. `InvalidInput`: the file was opened to append. That of the write in flight. Those of
    /// the first use of the engine of the process; `ECANCELED`: it was stopped.
    pub async fn new(mut file: File) -> io::Result<Self> {
        consume_budget().await;
        poll_fn(|cx| Pin::new(&mut file).poll_flush(cx)).await?;
        let file = Engine::global()?.adopt(file.into_std().await)?;
        Ok(Self { group: engine::GroupCommit::new(file).await.map_err(plain)? })
    }

    /// Returns the offset of the next append.
    pub fn end(&self) -> u64 {
        self.group.end()
    }

    /// Syncs so far; one that was left out since a write before it failed counts, too.
    pub fn syncs(&self) -> u64 {
        self.group.syncs()
    }

    /// The errno of the failure that ended it, if one did.
    pub fn failure(&self) -> Option<i32> {
        self.group.failure()
    }

    /// Writes `bytes` after all that was appended before, and returns where they begin. It is not durable
    /// yet.
    ///
    /// An error may leave a gap: bytes that were never written.
    ///
    /// # Errors
    /// As `pwrite(2)`; then it is final. The error of an earlier failure. `ECANCELED`: the engine of the
    /// process was stopped.
    pub async fn append(&self, bytes: impl Into<Vec<u8>>) -> io::Result<u64> {
        consume_budget().await;
        let append = Lasting::new(Lane::Bounded, self.group.append(bytes.into()));
        append.await.0.map_err(plain)
    }

    /// Writes `bytes` after all that was appended before, makes them durable together with all earlier
    /// writes to the file, and returns where they begin.
    ///
    /// # Errors
    /// As [`append`](GroupCommit::append) and [`commit`](GroupCommit::commit).
    pub async fn append_durable(&self, bytes: impl Into<Vec<u8>>) -> io::Result<u64> {
        consume_budget().await;
        let append = Lasting::new(Lane::Bounded, self.group.append_durable(bytes.into()));
        append.await.0.map_err(plain)
    }

    /// Makes all earlier writes to the file durable, by any task.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`, `EDQUOT`: writes were lost. All waiting and all later calls return the error: the
    /// kernel is not asked again, since its answer could not be trusted. `ECANCELED`: the engine of the
    /// process was stopped.
    pub async fn commit(&self) -> io::Result<()> {
        consume_budget().await;
        Lasting::new(Lane::Bounded, self.group.commit()).await.map_err(plain)
    }
}

impl fmt::Debug for GroupCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupCommit").finish_non_exhaustive()
    }
}
