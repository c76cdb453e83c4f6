//! A file as programs know it: with a position.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::buf::Buf;
use super::request::Request;
use super::scheduler::Scheduler;

/// A file whose reads and writes a [`Scheduler`] does. It looks as if they blocked, and all threads may use
/// it.
///
/// It is closed when it is dropped, and nothing of it is in flight.
#[derive(Debug)]
pub struct File {
    scheduler: Arc<Scheduler>,
    fd: Arc<OwnedFd>,
    /// Locked while a transfer goes on there, so that each has bytes of its own.
    position: Mutex<u64>,
}

impl File {
    /// Opens a file to read and write it.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open(scheduler: &Arc<Scheduler>, path: impl AsRef<Path>) -> io::Result<Self> {
        let file = fs::File::options().read(true).write(true).open(path);
        file.map(|file| Self::from_std(scheduler, file))
    }

    /// Makes a file, or empties it if there is one.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn create(scheduler: &Arc<Scheduler>, path: impl AsRef<Path>) -> io::Result<Self> {
        let mut options = fs::File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Self::from_std(scheduler, file))
    }

    /// Takes a file over. It is read and written from its beginning on.
    pub fn from_std(scheduler: &Arc<Scheduler>, file: fs::File) -> Self {
        Self {
            scheduler: Arc::clone(scheduler),
            fd: Arc::new(file.into()),
            position: Mutex::new(0),
        }
    }

    /// Reads from where the last read or write ended.
    ///
    /// # Errors
    /// As [`Scheduler::read_at`].
    pub fn read(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        self.at_position(|position| self.read_at(buf, position))
    }

    /// Writes from where the last read or write ended.
    ///
    /// # Errors
    /// As [`Scheduler::write_at`].
    pub fn write(&self, buf: Buf) -> (io::Result<usize>, Buf) {
        self.at_position(|position| self.write_at(buf, position))
    }

    fn at_position(
        &self,
        transfer: impl FnOnce(u64) -> (io::Result<usize>, Buf),
    ) -> (io::Result<usize>, Buf) {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let (result, buf) = transfer(*position);
        *position += *result.as_ref().unwrap_or(&0) as u64;
        (result, buf)
    }

    /// Reads from byte `offset` on.
    ///
    /// # Errors
    /// As [`Scheduler::read_at`].
    pub fn read_at(&self, buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        self.scheduler.read_at(&self.fd, buf, offset)
    }

    /// Writes from byte `offset` on.
    ///
    /// # Errors
    /// As [`Scheduler::write_at`].
    pub fn write_at(&self, buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        self.scheduler.write_at(&self.fd, buf, offset)
    }

    /// Makes contents and metadata durable.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync_all(&self) -> io::Result<()> {
        self.scheduler.run(Request::sync_all(&self.fd)).0.map(drop)
    }
}
