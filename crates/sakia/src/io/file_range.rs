//! A range of a file, on its way to a sink that the kernel sends files to.

use std::io;

use sakia_driver::{Fd, FileKind};

use crate::executor::current;
use crate::fs::stat_open;

/// A range of an open file.
#[derive(Clone, Debug)]
pub struct FileRange {
    pub(crate) fd: Fd,
    /// See [`AsyncReadAt::read_alignment`](super::AsyncReadAt::read_alignment).
    pub(crate) alignment: usize,
    /// The first byte.
    pub(crate) at: u64,
    /// The byte after the last.
    pub(crate) end: u64,
}

impl FileRange {
    /// Returns the number of its bytes; 0 if its end is before its beginning.
    pub(crate) fn len(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// Returns whether the file has no offsets: a FIFO, a terminal or the like.
    pub(crate) fn is_stream(&self) -> bool {
        self.fd.kind() == FileKind::Waiting
    }

    /// Returns the size of the file; `None` if the file has none.
    pub(crate) async fn file_size(&self) -> io::Result<Option<u64>> {
        let driver = current().driver.handle().clone();
        let found = stat_open(&driver, &self.fd).await?;
        Ok(found.is_file().then(|| found.len()))
    }
}
