//! The experiments on compio.
//!
//! The ring has the flags that the documentation of `ProactorBuilder` recommends for a runtime whose ring
//! stays on its thread: one issuer, cooperative task work. In experiments on tasks it has its defaults.

use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use compio::BufResult;
use compio::driver::ProactorBuilder;
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncRead, AsyncReadAt, AsyncWriteAt, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream, UdpSocket};
use compio::runtime::RuntimeBuilder;
use peers_common::block::aligned;
use peers_common::net::{BUFFER_BYTES, DATAGRAM_BYTES};
use peers_common::{
    Access, Door, Files, Job, Moved, Net, Peer, Runtime, Tally, Task, buffers, joined,
};

struct Compio;

impl Runtime for Compio {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        let mut proactor = ProactorBuilder::new();
        if !job.cell.is_of_tasks() {
            proactor.single_issuer(true).coop_taskrun(true).taskrun_flag(true);
        }
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build();
        runtime.expect("compio has what it needs").block_on(future)
    }
}

impl Peer for Compio {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        joined(compio::runtime::spawn(future))
    }
}

impl Files for Compio {
    type File = File;
    buffers!(&'static mut [u8], aligned);
    type Whole = Vec<u8>;

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        Self::spawn(task.run())
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
    async fn serve(_: Job, door: Door) -> io::Result<()> {
        let listener = TcpListener::from_std(door.listen()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            compio::runtime::spawn(echo(stream)).detach();
        }
    }

    async fn serve_datagrams(_: Job, door: Door) -> io::Result<()> {
        let socket = UdpSocket::from_std(door.bind_datagrams()?)?;
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            buffer.clear();
            let BufResult(result, read) = socket.recv_from(buffer).await;
            let (_, from) = result?;
            let BufResult(result, written) = socket.send_to(read, from).await;
            result?;
            buffer = written;
        }
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
