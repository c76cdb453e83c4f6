//! The experiments on compio.
//!
//! The ring has the flags that its documentation of `ProactorBuilder` recommends for a runtime whose
//! ring stays on its thread: one issuer, cooperative task work. On tasks it is as it is by default.

use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use compio::BufResult;
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncRead, AsyncReadAt, AsyncWriteAt, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::{Runtime, RuntimeBuilder};
use peers_common::block::aligned;
use peers_common::net::BUFFER_BYTES;
use peers_common::{Access, Door, Files, Job, Moved, Net, Peer, Tally, Task, buffers};

struct Compio;

impl Peer for Compio {
    fn block_on(future: impl Future<Output = ()> + 'static) {
        let runtime = Runtime::new();
        runtime.expect("compio has what it needs").block_on(future);
    }

    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        let handle = compio::runtime::spawn(future);
        async { handle.await.expect("no task here panics or is aborted") }
    }

    fn yield_now() -> impl Future<Output = ()> {
        peers_common::yield_now()
    }
}

fn tuned() -> Runtime {
    let mut proactor = ProactorBuilder::new();
    proactor.single_issuer(true).coop_taskrun(true).taskrun_flag(true);
    let runtime = RuntimeBuilder::new().with_proactor(proactor).build();
    runtime.expect("compio has what it needs")
}

impl Files for Compio {
    type File = File;
    buffers!(&'static mut [u8], aligned);
    type Whole = Vec<u8>;

    fn block_on<T: 'static>(_: &Job, future: impl Future<Output = T> + 'static) -> T {
        tuned().block_on(future)
    }

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        let handle = compio::runtime::spawn(task.run());
        async { handle.await.expect("no task here panics or is aborted") }
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write).custom_flags(access.flags());
        options.open(&job.path).await
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        let BufResult(result, buffer) = file.read_at(buffer, offset).await;
        (result, buffer)
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        let mut file = file;
        let BufResult(result, buffer) = file.write_at(buffer, offset).await;
        (result, buffer)
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        compio::fs::read(path).await
    }
}

impl Net for Compio {
    fn serve(_: &Job, door: Door) -> io::Result<()> {
        tuned().block_on(async {
            let listener = TcpListener::from_std(door.listen()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                compio::runtime::spawn(echo(stream)).detach();
            }
        })
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        buffer.clear();
        let BufResult(result, read) = stream.read(buffer).await;
        if result? == 0 {
            return Ok(());
        }
        let BufResult(result, written) = stream.write_all(read).await;
        result?;
        buffer = written;
    }
}

fn main() -> ExitCode {
    peers_common::main::<Compio>()
}
