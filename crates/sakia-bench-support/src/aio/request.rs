//! What can be asked for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::buf::Buf;
use super::sys::{self, Iocb};

/// A request, with all that it needs until it is done.
#[derive(Debug)]
#[must_use = "nothing happens before it is submitted"]
pub struct Request {
    /// Kept open until the completion.
    file: Arc<OwnedFd>,
    opcode: u16,
    offset: u64,
    /// What to wait for, of a poll.
    events: u16,
    memory: Memory,
}

/// The memory of a request. It comes back with the completion, also of one that fails.
#[derive(Debug)]
pub enum Memory {
    /// It has none.
    None,
    /// One buffer.
    One(Buf),
    /// Several, one after the other.
    Many(Vec<Buf>),
}

impl Memory {
    /// The one buffer.
    ///
    /// # Panics
    /// When it is not one.
    pub fn one(self) -> Buf {
        match self {
            Self::One(buf) => buf,
            other => panic!("not one buffer: {other:?}"),
        }
    }

    /// The buffers, however many.
    pub fn all(self) -> Vec<Buf> {
        match self {
            Self::None => Vec::new(),
            Self::One(buf) => vec![buf],
            Self::Many(bufs) => bufs,
        }
    }
}

/// What a request came to: bytes transferred, or the events of a poll, or the errno; and its memory.
pub type Done = (io::Result<usize>, Memory);

/// A buffer as the kernel takes it among others: `struct iovec`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Part {
    addr: usize,
    len: usize,
}

impl Request {
    fn new(file: &Arc<OwnedFd>, opcode: u16, offset: u64, memory: Memory) -> Self {
        Self { file: Arc::clone(file), opcode, offset, events: 0, memory }
    }

    /// Reads up to `buf.len()` bytes from byte `offset` on. 0 is the end of the file. As `pread(2)`.
    pub fn read(file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> Self {
        Self::new(file, sys::PREAD, offset, Memory::One(buf))
    }

    /// Writes up to `buf.len()` bytes from byte `offset` on. As `pwrite(2)`.
    pub fn write(file: &Arc<OwnedFd>, buf: Buf, offset: u64) -> Self {
        Self::new(file, sys::PWRITE, offset, Memory::One(buf))
    }

    /// Reads into one buffer after the other. As `preadv(2)`.
    pub fn read_vectored(file: &Arc<OwnedFd>, bufs: Vec<Buf>, offset: u64) -> Self {
        Self::new(file, sys::PREADV, offset, Memory::Many(bufs))
    }

    /// Writes one buffer after the other. As `pwritev(2)`.
    pub fn write_vectored(file: &Arc<OwnedFd>, bufs: Vec<Buf>, offset: u64) -> Self {
        Self::new(file, sys::PWRITEV, offset, Memory::Many(bufs))
    }

    /// Makes contents and metadata durable. As `fsync(2)`.
    pub fn sync_all(file: &Arc<OwnedFd>) -> Self {
        Self::new(file, sys::FSYNC, 0, Memory::None)
    }

    /// Makes contents durable. As `fdatasync(2)`.
    pub fn sync_data(file: &Arc<OwnedFd>) -> Self {
        Self::new(file, sys::FDSYNC, 0, Memory::None)
    }

    /// Waits for one of `events`, of which it comes to those that are there. As `poll(2)`, and it can be
    /// canceled: then it comes to `ECANCELED`.
    pub fn poll(file: &Arc<OwnedFd>, events: u16) -> Self {
        Self { events, ..Self::new(file, sys::POLL, 0, Memory::None) }
    }

    /// Nothing. The kernel has a number for it, and refuses it with `EINVAL`.
    pub fn noop(file: &Arc<OwnedFd>) -> Self {
        Self::new(file, sys::NOOP, 0, Memory::None)
    }

    pub(super) fn is_poll(&self) -> bool {
        self.opcode == sys::POLL
    }

    /// The request as the kernel reads it, and what else it reads. All of it names memory that `self` and
    /// the parts own, wherever these are moved.
    pub(super) fn prepare(
        &mut self,
        data: u64,
        event_fd: Option<&OwnedFd>,
    ) -> io::Result<(Iocb, Box<[Part]>)> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let mut parts = Box::default();
        let (buf, len) = match &mut self.memory {
            Memory::None => (usize::from(self.events), 0),
            Memory::One(buf) => (buf.address(), buf.len()),
            Memory::Many(bufs) => {
                let part = |buf: &mut Buf| Part { addr: buf.address(), len: buf.len() };
                parts = bufs.iter_mut().map(part).collect::<Box<[Part]>>();
                (parts.as_ptr().expose_provenance(), parts.len())
            }
        };
        let iocb = Iocb {
            data,
            opcode: self.opcode,
            fd: self.file.as_raw_fd().cast_unsigned(),
            buf: buf as u64,
            len: len as u64,
            offset: self.offset.try_into().map_err(|_| invalid())?,
            flags: if event_fd.is_some() { sys::FLAG_RESFD } else { 0 },
            event_fd: event_fd.map_or(0, |fd| fd.as_raw_fd().cast_unsigned()),
            ..Iocb::default()
        };
        Ok((iocb, parts))
    }

    pub(super) fn into_memory(self) -> Memory {
        self.memory
    }
}
