//! Sending a file's bytes on a stream within the kernel.
//!
//! No ring has an entry for this, and each of its splices occupies a worker. So it is a plain call, on one
//! of two threads:
//! - On this thread, if the page cache has all of the bytes, or had them a moment ago, according to
//!   `cachestat(2)`; without that call, by timed calls.
//! - On a thread of a lane otherwise: reading the file may wait for its device.
//!
//! Neither waits for the peer: the socket is in non-blocking mode during the call. `EAGAIN` means that it is
//! full; the caller polls it, which occupies no thread.
//!
//! Changing the mode and back takes three calls. So a socket that the driver made, and that was not handed
//! out, stays in non-blocking mode: sends, receives and polls do not depend on it. Uses that do, or might,
//! end that ([`Fd::share_mode`]): other transfers, [`as_fd`](std::os::fd::AsFd::as_fd), a message that
//! carries the descriptor, giving it away.
//!
//! Source: `sendfile(2)`, `cachestat(2)`, `fs/splice.c`.

use std::io;
use std::rc::Rc;

use rustix::io::Errno;

use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Mount, Retry, Route, Rules};
use crate::fd::{Fd, SendMode};
use crate::operation::{Completion, Operation};
use crate::sys::send_file::Cached;
use crate::sys::{Direction, register};

/// The most bytes of a file sent by one call, which takes some fifty microseconds for them: about as long as
/// all plain calls of a turn.
pub const SEND_FILE_BYTES_MAX: usize = 1 << 20;

/// One call. See [`Connection::send_file`](crate::Connection::send_file), which has a permit for it: two at
/// a time would change the socket's mode under each other.
#[derive(Debug)]
pub(crate) struct SendFile {
    socket: Fd,
    file: Fd,
    offset: u64,
    len: usize,
    /// The permitted change of the mode.
    mode: SendMode,
    /// The range of the file that the page cache is known to have.
    cached: Cached,
}

impl SendFile {
    pub(crate) fn new(socket: Fd, file: Fd, offset: u64, len: usize) -> Self {
        let (mode, cached) = (SendMode::Given, file.cached());
        Self { socket, file, offset, len: len.min(SEND_FILE_BYTES_MAX), mode, cached }
    }
}

// SAFETY: the call names two descriptors that the value keeps open, its offset, and its copy of that
// range, both of which nothing else accesses before the completion.
unsafe impl Operation for SendFile {
    type Output = io::Result<usize>;
    const KIND: OpKind = OpKind::SendFile;

    fn call(&mut self) -> Call {
        let Self { socket, file, offset, len, mode, cached } = self;
        *mode = socket.mode_for_sends();
        let (offset, cached) = (word(&raw mut *offset), word(&raw mut *cached));
        let args = [register(file.raw()), offset, *len, *mode as usize, cached];
        System::on(Function::Sendfile, socket.raw(), args)
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let result = completion.count(self.len);
        let is_kept = match &result {
            Ok(_) => true,
            Err(error) => Errno::from_io_error(error) == Some(Errno::AGAIN),
        };
        if self.mode == SendMode::Kept && is_kept {
            self.socket.note_nonblocking();
        }
        self.file.note_cached(self.cached);
        result
    }

    fn route(&self, rules: &Rules) -> Route {
        self.file.kind(); // learns the mount
        match self.file.route_file(rules.of(Self::KIND), Direction::Read, self.len as u32) {
            Route::Now(_) => Route::Now(CallMode::NonBlocking),
            route => route,
        }
    }

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.file.classify_cached(mode, attempt)
    }

    fn mount(&self) -> Option<&Rc<Mount>> {
        self.file.mount()
    }

    acts_on!(Bounded, socket);
}
