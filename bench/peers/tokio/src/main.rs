//! The experiments on tokio.
//!
//! On tasks: a runtime of the current thread, and a local set. On files: variants
//!
//! - `mt`: the multi-thread runtime with its defaults; all its threads are one runtime's.
//! - `ct`: the current-thread runtime with its defaults.
//! - `tuned`: current-thread, after the advice on tuning in the documentation of `tokio::fs`, to put
//!   much into few `spawn_blocking`: the sequential reader has a buffer of 1 MiB. The pool has one
//!   thread, which on cached data is faster than many: operations queue for it and are taken without a
//!   wake each. With `O_DIRECT`, where threads wait for the disk, it has 64.
//!
//! - `fs-mt`, `fs-ct`: the same runtimes, and files by nothing but `tokio::fs`: each task has a file of its
//!   own, and a read is a seek and a read.
//!
//! On connections: `mt` and `ct`, a task for each connection.
//!
//! tokio has no positional reads and writes; the same documentation tells to use `std::fs` inside
//! `spawn_blocking`, which is done in all but the `fs` variants. Built with the feature `io-uring` and
//! `--cfg tokio_unstable`, opens, sequential reads and `tokio::fs::read` go through a ring.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use peers_common::block::{aligned, sum_bytes};
use peers_common::net::{BUFFER_BYTES, DATAGRAM_BYTES};
use peers_common::{
    Access, Door, Files, Job, Moved, Net, Peer, PerTask, Tally, Task, buffers, fail, joined,
};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

struct Tokio;

impl peers_common::Runtime for Tokio {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        if job.cell.is_of_tasks() {
            return LocalSet::new().block_on(&runtime("ct", 1), future);
        }
        runtime(&job.variant, if job.direct { 64 } else { 1 }).block_on(future)
    }
}

impl Peer for Tokio {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        joined(spawn_local(future))
    }

    fn yield_now() -> impl Future<Output = ()> {
        tokio::task::yield_now()
    }
}

/// Returns the runtime of a variant. The variant `tuned` has this number of blocking threads.
fn runtime(variant: &str, threads: usize) -> Runtime {
    let mut builder = match variant {
        "mt" | "fs-mt" => Builder::new_multi_thread(),
        _ => Builder::new_current_thread(),
    };
    if variant == "tuned" {
        builder.max_blocking_threads(threads);
    }
    builder.enable_all().build().expect("tokio has what it needs")
}

/// A file of a variant.
#[derive(Clone)]
enum SharedFile {
    /// A file for positional calls on blocking threads.
    Std(Arc<std::fs::File>),
    /// A file of one task.
    Own(PerTask<File>),
}

/// Opens a task's file.
async fn open_own(path: &Path) -> io::Result<File> {
    tokio::fs::OpenOptions::new().read(true).write(true).open(path).await
}

impl Files for Tokio {
    type File = SharedFile;
    buffers!(&'static mut [u8], aligned);
    type Whole = Vec<u8>;

    fn shares_threads(job: &Job) -> bool {
        matches!(job.variant.as_str(), "mt" | "fs-mt")
    }

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        joined(tokio::spawn(task.run()))
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        if job.variant.starts_with("fs-") {
            return Ok(SharedFile::Own(PerTask::new(&job.path)));
        }
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(access == Access::Write).custom_flags(access.flags());
        Ok(SharedFile::Std(Arc::new(options.open(&job.path)?)))
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        match file {
            SharedFile::Std(file) => {
                let file = file.clone();
                let read = spawn_blocking(move || (file.read_at(buffer, offset), buffer));
                read.await.expect("a read does not panic")
            }
            SharedFile::Own(own) => {
                let read = async |file: &mut File| {
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.read_exact(buffer).await
                };
                (own.with(open_own, read).await, buffer)
            }
        }
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        match file {
            SharedFile::Std(file) => {
                let file = file.clone();
                let write = spawn_blocking(move || (file.write_at(buffer, offset), buffer));
                write.await.expect("a write does not panic")
            }
            SharedFile::Own(own) => {
                let write = async |file: &mut File| {
                    file.seek(SeekFrom::Start(offset)).await?;
                    file.write_all(buffer).await?;
                    file.flush().await?;
                    Ok(buffer.len())
                };
                (own.with(open_own, write).await, buffer)
            }
        }
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        tokio::fs::read(path).await
    }

    async fn sum(job: &Job, _: &Self::File) -> Tally {
        let name = job.path.display();
        let file = File::open(&job.path).await.unwrap_or_else(|error| fail(&name, error));
        if job.variant == "tuned" {
            sum_all(job, BufReader::with_capacity(1 << 20, file)).await
        } else {
            sum_all(job, file).await
        }
    }
}

async fn sum_all(job: &Job, mut reader: impl AsyncReadExt + Unpin) -> Tally {
    let mut tally = Tally::default();
    let mut buffer = vec![0; job.block];
    for _ in 0..job.size / job.block as u64 {
        let read = reader.read_exact(&mut buffer).await;
        read.unwrap_or_else(|error| fail(job.path.display(), error));
        tally.count(sum_bytes(&buffer));
    }
    tally
}

impl Net for Tokio {
    async fn serve(_: Job, door: Door) -> io::Result<()> {
        let listener = door.listen()?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(echo(stream));
        }
    }

    async fn serve_datagrams(_: Job, door: Door) -> io::Result<()> {
        let socket = door.bind_datagrams()?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        let mut buffer = [0; DATAGRAM_BYTES];
        loop {
            let (count, from) = socket.recv_from(&mut buffer).await?;
            socket.send_to(&buffer[..count], from).await?;
        }
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

fn main() -> ExitCode {
    peers_common::main::<Tokio>()
}
