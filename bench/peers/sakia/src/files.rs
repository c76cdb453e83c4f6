//! Files on Sakia: `sakia::fs`, with the default rules for ring and plain call.

use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;

use peers_common::{Access, Files, Job, Moved, Peer, Tally, Task, buffers};
use sakia::fs::{self, AlignedBuf, File, OpenOptions};

use crate::Sakia;

impl Files for Sakia {
    type File = Rc<File>;
    buffers!(AlignedBuf, AlignedBuf::zeroed);
    type Whole = Vec<u8>;

    fn start(task: Task<Self>) -> impl Future<Output = Tally> + 'static {
        Self::spawn(task.run())
    }

    async fn open(job: &Job, access: Access) -> io::Result<Self::File> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write).direct(access == Access::ReadDirect);
        Ok(Rc::new(options.open(&job.path).await?))
    }

    async fn read_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        file.read_at(buffer, offset).await
    }

    async fn write_at(file: &Self::File, buffer: Self::Buffer, offset: u64) -> Moved<Self> {
        file.write_at(buffer, offset).await
    }

    async fn read_whole(path: &Path) -> io::Result<Self::Whole> {
        Ok(fs::read(path).await?)
    }
}
