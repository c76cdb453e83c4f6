//! The experiments on kimojio.
//!
//! Each thread has a runtime, as its documentation recommends, with the feature for rings that stay on
//! their thread. It does not busy-poll, which its documentation reserves for pinned threads on their own
//! cores. It has no function that reads a whole file.

use std::ffi::CString;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use kimojio::configuration::Configuration;
use kimojio::operations::{self, OFlags};
use kimojio::{Errno, OwnedFd};
use peers_common::block::aligned;
use peers_common::files::WHOLE_BYTES;
use peers_common::net::BUFFER_BYTES;
use peers_common::{
    Access, Door, Files, Job, Moved, Net, Peer, Runtime, Tally, Task, buffers, joined,
};

struct Kimojio;

impl Runtime for Kimojio {
    fn block_on<T: 'static>(_: &Job, future: impl Future<Output = T> + 'static) -> T {
        let mut runtime = kimojio::Runtime::new(0, Configuration::new());
        let ended = runtime.block_on(future).expect("nothing ends the loop early");
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Peer for Kimojio {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        joined(operations::spawn_task(future))
    }

    async fn yield_now() {
        operations::yield_cpu().await;
    }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

async fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    operations::open(&path, flags | OFlags::CLOEXEC, 0.into()).await.map_err(error)
}

impl Files for Kimojio {
    type File = Rc<OwnedFd>;
    buffers!(&'static mut [u8], aligned);
    type Whole = Vec<u8>;

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        Self::spawn(task.run())
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadDirect => OFlags::RDONLY | OFlags::DIRECT,
            Access::Write => OFlags::RDWR,
        };
        Ok(Rc::new(open(&job.path, flags).await?))
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        let result = operations::pread(&**file, buffer, offset).await;
        (result.map_err(error), buffer)
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        let result = operations::pwrite(&**file, buffer, offset).await;
        (result.map_err(error), buffer)
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        let file = open(path, OFlags::RDONLY).await?;
        let mut buffer = vec![0; WHOLE_BYTES];
        let len = operations::pread(&file, &mut buffer, 0).await.map_err(error)?;
        operations::close(file).await.map_err(error)?;
        buffer.truncate(len);
        Ok(buffer)
    }
}

impl Net for Kimojio {
    async fn serve(_: Job, door: Door) -> io::Result<()> {
        let listener = OwnedFd::from(door.listen()?);
        loop {
            let stream = operations::accept(&listener).await.map_err(error)?;
            drop(Self::spawn(echo(stream)));
        }
    }
}

async fn echo(stream: OwnedFd) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = operations::read(&stream, &mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let mut written = 0;
        while written < count {
            written += operations::write(&stream, &buffer[written..count]).await?;
        }
    }
}

fn main() -> ExitCode {
    peers_common::main::<Kimojio>()
}
