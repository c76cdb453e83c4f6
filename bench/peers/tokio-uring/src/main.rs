//! The experiments on tokio-uring.
//!
//! As its documentation recommends, each thread has a runtime, and files are closed explicitly. The ring
//! has its default of 256 entries, stays on one thread (`SINGLE_ISSUER`) and is not interrupted
//! (`COOP_TASKRUN`). It has no function that reads a whole file.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use peers_common::block::{PAGE, aligned_offset};
use peers_common::files::WHOLE_BYTES;
use peers_common::net::BUFFER_BYTES;
use peers_common::{
    Access, Door, Files, Job, Moved, Net, Peer, Runtime, Tally, Task, buffers, joined,
};
use tokio_uring::buf::{BoundedBuf, Slice};
use tokio_uring::fs::{File, OpenOptions};
use tokio_uring::net::{TcpListener, TcpStream};

struct TokioUring;

impl Runtime for TokioUring {
    fn block_on<T: 'static>(_: &Job, future: impl Future<Output = T> + 'static) -> T {
        let mut ring = tokio_uring::uring_builder();
        ring.setup_coop_taskrun().setup_single_issuer();
        // By a cell, since the runtime may be dropped before the future's value is used.
        let value = Rc::new(RefCell::new(None));
        let inner = value.clone();
        let valued = async move { *inner.borrow_mut() = Some(future.await) };
        tokio_uring::builder().uring_builder(&ring).start(valued);
        value.take().expect("the future has ended")
    }
}

impl Peer for TokioUring {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        joined(tokio_uring::spawn(future))
    }

    fn yield_now() -> impl Future<Output = ()> {
        tokio::task::yield_now()
    }
}

fn page_slice(len: usize) -> Slice<Vec<u8>> {
    let memory = vec![0; len + PAGE];
    let begin = aligned_offset(&memory);
    memory.slice(begin..begin + len)
}

impl Files for TokioUring {
    type File = Rc<File>;
    buffers!(Slice<Vec<u8>>, page_slice);
    type Whole = Vec<u8>;

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        Self::spawn(task.run())
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write).custom_flags(access.flags());
        Ok(Rc::new(options.open(&job.path).await?))
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        file.read_at(buffer, offset).await
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        file.write_at(buffer, offset).submit().await
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        let file = File::open(path).await?;
        let (result, buffer) = file.read_at(Vec::with_capacity(WHOLE_BYTES), 0).await;
        file.close().await?;
        result.map(|_| buffer)
    }
}

impl Net for TokioUring {
    async fn serve(_: Job, door: Door) -> io::Result<()> {
        let listener = TcpListener::from_std(door.listen()?);
        loop {
            let (stream, _) = listener.accept().await?;
            tokio_uring::spawn(echo(stream));
        }
    }
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (result, read) = stream.read(buffer).await;
        let count = result?;
        if count == 0 {
            return Ok(());
        }
        let (result, written) = stream.write_all(read.slice(..count)).await;
        result?;
        buffer = written.into_inner();
    }
}

fn main() -> ExitCode {
    peers_common::main::<TokioUring>()
}
