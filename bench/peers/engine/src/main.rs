//! The experiments on files in tasks of tokio, or of an executor of one thread, with `sakia::Engine` below.
//! Variants:
//!
//! - `mt`: the multi-thread runtime with its defaults; all its threads are one runtime's.
//! - `ct`: the current-thread runtime with its defaults.
//! - `local`: no tokio, but `LocalPool` of the crate `futures`, on the main thread.
//! - `fs-mt`, `fs-ct`: the same runtimes, and files by nothing but `sakia_tokio::fs`: each task has a file of
//!   its own, and a read is a seek and a read. Small files are read by these names in any case.
//!
//! The engine is the process's, with its defaults.

use std::cell::OnceCell;
use std::future::Future;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::process::ExitCode;

use futures_executor::{LocalPool, LocalSpawner};
use futures_util::future::Either;
use futures_util::task::LocalSpawnExt;
use peers_common::{Access, Files, Job, Moved, PerTask, Runtime, Tally, Task, buffers, joined};
use sakia::Engine;
use sakia::engine::File;
use sakia::fs::{AlignedBuf, OpenOptions};
use sakia_tokio::fs;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::Builder;

thread_local! {
    /// Starts tasks of the executor of the variant `local`.
    static SPAWNER: OnceCell<LocalSpawner> = const { OnceCell::new() };
}

struct OnEngine;

/// A file of a variant.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a task has one")]
enum SharedFile {
    /// A file of the engine, for positional requests.
    Engine(File),
    /// A file of one task.
    Own(PerTask<fs::File>),
}

/// Opens a task's file.
async fn open_own(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path).await
}

impl Runtime for OnEngine {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        let mut builder = match job.variant.as_str() {
            "local" => {
                let mut pool = LocalPool::new();
                SPAWNER.with(|spawner| spawner.set(pool.spawner())).expect("there is one");
                return pool.run_until(future);
            }
            "mt" | "fs-mt" => Builder::new_multi_thread(),
            _ => Builder::new_current_thread(),
        };
        builder.enable_all().build().expect("tokio has what it needs").block_on(future)
    }
}

impl Files for OnEngine {
    type File = SharedFile;
    buffers!(AlignedBuf, AlignedBuf::zeroed);
    type Whole = Vec<u8>;

    fn shares_threads(job: &Job) -> bool {
        job.variant.ends_with("mt")
    }

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        let local = SPAWNER.with(|spawner| spawner.get().cloned());
        match local {
            Some(spawner) => {
                let started = spawner.spawn_local_with_handle(task.run());
                Either::Left(started.expect("the executor still runs"))
            }
            None => Either::Right(joined(tokio::spawn(task.run()))),
        }
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        if job.variant.starts_with("fs-") {
            return Ok(SharedFile::Own(PerTask::new(&job.path)));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write).direct(access == Access::ReadDirect);
        Ok(SharedFile::Engine(Engine::global()?.open_with(&job.path, &options).await?))
    }

    async fn read_at(file: &Self::File, mut buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        match file {
            SharedFile::Engine(file) => file.read_at(buffer, offset).await,
            SharedFile::Own(own) => {
                let read = async |file: &mut fs::File| {
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.read_exact(&mut buffer).await
                };
                (own.with(open_own, read).await, buffer)
            }
        }
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        match file {
            SharedFile::Engine(file) => file.write_at(buffer, offset).await,
            SharedFile::Own(own) => {
                let write = async |file: &mut fs::File| {
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.write_all(&buffer).await?;
                    file.flush().await?;
                    Ok(buffer.len())
                };
                (own.with(open_own, write).await, buffer)
            }
        }
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        fs::read(path).await
    }
}

fn main() -> ExitCode {
    peers_common::main_files::<OnEngine>()
}
