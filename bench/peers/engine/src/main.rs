//! The experiments on files in tasks of tokio, with `sakia::Engine` below. Variants:
//!
//! - `mt`: the multi-thread runtime as it is by default; all its threads are one runtime's.
//! - `ct`: the current-thread runtime as it is by default.
//!
//! The engine is the one of the process, as it is by default.

use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use peers_common::{Access, Files, Job, Tally, Task};
use sakia::Engine;
use sakia::engine::File;
use sakia::fs::{AlignedBuf, OpenOptions};
use tokio::runtime::Builder;

struct OnTokio;

impl Files for OnTokio {
    type File = File;
    type Buffer = AlignedBuf;
    type Whole = Vec<u8>;

    fn shares_threads(job: &Job) -> bool {
        job.variant == "mt"
    }

    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        let mut builder = match job.variant.as_str() {
            "mt" => Builder::new_multi_thread(),
            _ => Builder::new_current_thread(),
        };
        builder.enable_all().build().expect("tokio has what it needs").block_on(future)
    }

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        let handle = tokio::spawn(task.run());
        async { handle.await.expect("no task here panics or is aborted") }
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write).direct(access == Access::ReadDirect);
        Engine::global()?.open_with(&job.path, &options).await
    }

    fn buffer(len: usize) -> Self::Buffer {
        AlignedBuf::zeroed(len)
    }

    fn bytes(buffer: &Self::Buffer) -> &[u8] {
        buffer
    }

    fn edit(buffer: &mut Self::Buffer, f: impl FnOnce(&mut [u8])) {
        f(buffer);
    }

    async fn read_at(
        file: &Self::File,
        buffer: Self::Buffer,
        offset: u64,
    ) -> (io::Result<usize>, Self::Buffer) {
        file.read_at(buffer, offset).await
    }

    async fn write_at(
        file: &Self::File,
        buffer: Self::Buffer,
        offset: u64,
    ) -> (io::Result<usize>, Self::Buffer) {
        file.write_at(buffer, offset).await
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        Engine::global()?.read(path).await
    }
}

fn main() -> ExitCode {
    peers_common::main_files::<OnTokio>()
}
