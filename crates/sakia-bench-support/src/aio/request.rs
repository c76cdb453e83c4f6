//! Requests of the scheduler.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::buf::Buf;
use super::sys::{self, Iocb};

/// A request, with everything that it needs until it is done.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Request {
    /// Kept open until the completion.
    file: Arc<OwnedFd>,
    opcode: u16,
    offset: u64,
    /// The events of a poll.
    events: u16,
    memory: Option<Buf>,
}

/// The result of a request: bytes transferred, the events of a poll, or the errno; and its memory, if it has
/// any, on failure too.
pub type Done = (io::Result<usize>, Option<Buf>);

impl Request {
    fn new(file: &Arc<OwnedFd>, opcode: u16, offset: u64, memory: Option<Buf>) -> Self {
        Self { file: Arc::clone(file), opcode, offset, events: 0, memory }
    }

    /// Reads up to `buf.len()` bytes, starting at byte `offset`. 0 is the end of the file. As `pread(2)`.
    pub fn read(file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> Self {
        Self::new(file, sys::PREAD, offset, Some(buf))
    }

    /// Writes up to `buf.len()` bytes, starting at byte `offset`. As `pwrite(2)`.
    pub fn write(file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> Self {
        Self::new(file, sys::PWRITE, offset, Some(buf))
    }

    /// Waits for one of `events`; the result is the ready ones. As `poll(2)`, and it can be canceled: then
    /// the result is `ECANCELED`.
    pub fn poll(file: &Arc<OwnedFd>, events: u16) -> Self {
        Self { events, ..Self::new(file, sys::POLL, 0, None) }
    }

    pub(super) fn is_poll(&self) -> bool {
        self.opcode == sys::POLL
    }

    /// Returns the request as the kernel reads it. It names memory that `self` owns, even after a move.
    pub(super) fn prepare(&mut self, data: u64, event_fd: Option<&OwnedFd>) -> Iocb {
        let (buf, len) = match &mut self.memory {
            None => (usize::from(self.events), 0),
            Some(buf) => (buf.address(), buf.len()),
        };
        Iocb {
            data,
            opcode: self.opcode,
            fd: self.file.as_raw_fd().cast_unsigned(),
            buf: buf as u64,
            len: len as u64,
            // An offset out of range becomes negative, which the kernel refuses.
            offset: self.offset.cast_signed(),
            flags: if event_fd.is_some() { sys::FLAG_RESFD } else { 0 },
            event_fd: event_fd.map_or(0, |fd| fd.as_raw_fd().cast_unsigned()),
            ..Iocb::default()
        }
    }

    pub(super) fn into_memory(self) -> Option<Buf> {
        self.memory
    }
}
