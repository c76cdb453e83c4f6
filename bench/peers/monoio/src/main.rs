//! The experiments on monoio.
//!
//! Its guide recommends the driver on io_uring with its default of 1024 entries, and a runtime for each
//! thread. The variant `legacy` is its driver on epoll, where a file operation is a plain call.

use std::future::Future;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use monoio::buf::SliceMut;
use monoio::fs::{File, OpenOptions};
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::udp::UdpSocket;
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};
use peers_common::block::{PAGE, aligned_offset};
use peers_common::net::{BUFFER_BYTES, DATAGRAM_BYTES};
use peers_common::{Access, Door, Files, Job, Moved, Net, Peer, Runtime, Tally, Task};

struct Monoio;

impl Runtime for Monoio {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        if job.variant == "legacy" {
            let runtime = RuntimeBuilder::<LegacyDriver>::new().build();
            runtime.expect("monoio has what it needs").block_on(future)
        } else {
            let runtime = RuntimeBuilder::<IoUringDriver>::new().build();
            runtime.expect("monoio has what it needs").block_on(future)
        }
    }
}

impl Peer for Monoio {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        monoio::spawn(future)
    }
}

impl Files for Monoio {
    type File = Rc<File>;
    type Buffer = SliceMut<Vec<u8>>;
    type Whole = Vec<u8>;

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        monoio::spawn(task.run())
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write).custom_flags(access.flags());
        Ok(Rc::new(options.open(&job.path).await?))
    }

    fn buffer(len: usize) -> Self::Buffer {
        let memory = vec![0; len + PAGE];
        let begin = aligned_offset(&memory);
        SliceMut::new(memory, begin, begin + len)
    }

    fn bytes(buffer: &Self::Buffer) -> &[u8] {
        &buffer.get_ref()[buffer.begin()..buffer.end()]
    }

    fn edit(buffer: &mut Self::Buffer, f: impl FnOnce(&mut [u8])) {
        let range = buffer.begin()..buffer.end();
        f(&mut buffer.get_mut()[range]);
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        file.read_at(buffer, offset).await
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        file.write_at(buffer, offset).await
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        monoio::fs::read(path).await
    }
}

impl Net for Monoio {
    async fn serve(job: Job, door: Door) -> io::Result<()> {
        let listener = door.listen()?;
        // On epoll it waits only for non-blocking sockets.
        listener.set_nonblocking(job.variant == "legacy")?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            monoio::spawn(echo(stream));
        }
    }

    async fn serve_datagrams(job: Job, door: Door) -> io::Result<()> {
        let socket = door.bind_datagrams()?;
        socket.set_nonblocking(job.variant == "legacy")?;
        let socket = UdpSocket::from_std(socket)?;
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            let result;
            (result, buffer) = socket.recv_from(buffer).await;
            let (_, from) = result?;
            let result;
            (result, buffer) = socket.send_to(buffer, from).await;
            result?;
        }
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        let result;
        (result, buffer) = stream.read(buffer).await;
        if result? == 0 {
            return Ok(());
        }
        let result;
        (result, buffer) = stream.write_all(buffer).await;
        result?;
    }
}

fn main() -> ExitCode {
    peers_common::main::<Monoio>()
}
