//! The experiments on glommio.
//!
//! Each thread has an executor, as its documentation recommends. Files are read and written through the
//! page cache by `BufferedFile`, and with `O_DIRECT` by `DmaFile`, which allocates its own buffers: reads
//! allocate, writes consume, and no buffer can be reused. Its executors lock little memory here, so that
//! two of them fit into the usual limit of 8 MiB; that is still enough for 64 direct reads of 4 KiB. It has
//! no function that reads a whole file.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::io::{BufferedFile, DmaFile, OpenOptions, ReadResult};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};
use peers_common::files::WHOLE_BYTES;
use peers_common::net::BUFFER_BYTES;
use peers_common::{Access, Cell, Door, Files, Job, Moved, Net, Peer, Runtime, Tally, Task};

struct Glommio;

impl Runtime for Glommio {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        let io_bytes = match job.cell {
            Cell::Yield | Cell::Spawn | Cell::Echo => 64 << 10,
            _ => 1 << 20,
        };
        let builder = LocalExecutorBuilder::new(Placement::Unbound).io_memory(io_bytes);
        builder.make().expect("glommio has what it needs").run(future)
    }
}

impl Peer for Glommio {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        glommio::spawn_local(future)
    }

    async fn yield_now() {
        glommio::executor().yield_now().await;
    }
}

#[derive(Clone)]
enum File {
    Buffered(Rc<BufferedFile>),
    Direct(Rc<DmaFile>),
}

enum Buffer {
    /// Memory of this length that was not read into, or is to be written.
    Own(Vec<u8>),
    Read(ReadResult),
}

impl Files for Glommio {
    type File = File;
    type Buffer = Buffer;
    type Whole = ReadResult;

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        glommio::spawn_local(task.run())
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write);
        Ok(match access {
            Access::ReadDirect => File::Direct(Rc::new(options.dma_open(&job.path).await?)),
            _ => File::Buffered(Rc::new(options.buffered_open(&job.path).await?)),
        })
    }

    fn buffer(len: usize) -> Self::Buffer {
        Buffer::Own(vec![0; len])
    }

    fn bytes(buffer: &Self::Buffer) -> &[u8] {
        match buffer {
            Buffer::Own(memory) => memory,
            Buffer::Read(result) => result,
        }
    }

    fn edit(buffer: &mut Self::Buffer, f: impl FnOnce(&mut [u8])) {
        if let Buffer::Own(memory) = buffer {
            f(memory);
        }
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        let len = Self::bytes(&buffer).len();
        let result = match file {
            File::Buffered(file) => file.read_at(offset, len).await,
            File::Direct(file) => file.read_at_aligned(offset, len).await,
        };
        match result {
            Ok(result) => (Ok(result.len()), Buffer::Read(result)),
            Err(error) => (Err(error.into()), buffer),
        }
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        let (File::Buffered(file), Buffer::Own(memory)) = (file, buffer) else {
            return (Err(io::ErrorKind::Unsupported.into()), Buffer::Own(Vec::new()));
        };
        let next = Buffer::Own(vec![0; memory.len()]);
        (file.write_at(memory, offset).await.map_err(io::Error::from), next)
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        let file = BufferedFile::open(path).await?;
        let result = file.read_at(0, WHOLE_BYTES).await;
        file.close().await?;
        Ok(result?)
    }
}

impl Net for Glommio {
    async fn serve(_: Job, door: Door) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        door.open(listener.local_addr()?.port());
        loop {
            let stream = listener.accept().await?;
            stream.set_nodelay(true)?;
            glommio::spawn_local(echo(stream)).detach();
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
    peers_common::main::<Glommio>()
}
