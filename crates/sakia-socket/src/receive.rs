//! Receiving: from memory, ahead, or as the program asked.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_socket_core::{ReadAhead, ReadPlan};

use crate::open::{Kind, Open};
use crate::{Host, Received, When};

/// Flags that are served here; with any other the kernel serves the call, and from then on the socket.
const SERVED: RecvFlags = RecvFlags::DONTWAIT
    .union(RecvFlags::PEEK)
    .union(RecvFlags::WAITALL)
    .union(RecvFlags::TRUNC)
    .union(RecvFlags::CMSG_CLOEXEC);

/// Bytes that are fetched at a time so that a look at them is complete.
const PEEK_BYTES: usize = 4096;

impl<H: Host> Open<H> {
    /// Receives into `buffer`, as `recv(2)` does.
    pub(crate) fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        if !SERVED.contains(flags) {
            self.is_plain.store(true, Ordering::Relaxed);
        }
        let is_plain = self.is_plain.load(Ordering::Relaxed) && self.unread() == 0;
        if self.kind != Kind::Internet || is_plain {
            return self.receive_plainly(buffer, flags).map(|received| received.bytes);
        }
        if flags.contains(RecvFlags::OOB) || flags.contains(RecvFlags::ERRQUEUE) {
            // Urgent data and errors are no part of the stream.
            return self.receive_plainly(buffer, flags).map(|received| received.bytes);
        }
        if flags.contains(RecvFlags::PEEK) {
            return self.peek(buffer, flags);
        }
        if flags.contains(RecvFlags::TRUNC) {
            let dropped = self.receiving().discard(buffer.len());
            if dropped > 0 || buffer.is_empty() {
                return Ok(dropped);
            }
            return self.receive_plainly(buffer, flags).map(|received| received.bytes);
        }
        let count = self.receive_some(buffer, flags)?;
        let is_all = flags.contains(RecvFlags::WAITALL) && !self.is_nonblocking(flags);
        if !is_all || count == 0 || count == buffer.len() {
            return Ok(count);
        }
        self.receive_rest(buffer, count, flags)
    }

    /// Receives one datagram, or bytes of a stream without a sender's address.
    pub(crate) fn receive_from(
        &self,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        if self.kind != Kind::Internet {
            return self.receive_plainly(buffer, flags);
        }
        let bytes = self.receive(buffer, flags)?;
        Ok(Received { bytes, flags: rustix::net::ReturnFlags::empty(), from: None })
    }

    /// Returns true if a call with `flags` must not wait.
    fn is_nonblocking(&self, flags: RecvFlags) -> bool {
        flags.contains(RecvFlags::DONTWAIT) || self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// One call of the host, with the program's own flags.
    fn receive_plainly(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<Received, Errno> {
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        if !self.is_nonblocking(flags) {
            self.shared.before_wait();
        }
        let len = buffer.len();
        let received = self.host().receive(&self.fd, &mut [IoSliceMut::new(buffer)], flags)?;
        // With this flag a count may be larger than the buffer.
        if received.bytes > len && !flags.contains(RecvFlags::TRUNC) {
            return Err(Errno::CONNRESET);
        }
        Ok(received)
    }

    /// Receives what there is, at least a byte if the call may wait.
    fn receive_some(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        let flags = flags - RecvFlags::WAITALL;
        let mut may_start = self.shared.options.read_ahead == When::Always;
        loop {
            let mut receiving = self.receiving();
            if self.shared.options.read_ahead == When::Never
                || self.is_plain.load(Ordering::Relaxed)
            {
                receiving.stop();
            } else if may_start {
                receiving.start();
            }
            match receiving.plan(buffer.len()) {
                ReadPlan::Take => return Ok(receiving.take(buffer)),
                ReadPlan::Direct => {
                    drop(receiving);
                    let result = self.receive_plainly(buffer, flags).map(|received| received.bytes);
                    let mut receiving = self.receiving();
                    receiving.direct_ended(buffer.len(), result.as_ref().ok().copied());
                    drop(receiving.give_back());
                    return result;
                }
                ReadPlan::Ahead => match self.receive_ahead(&mut receiving, buffer, flags) {
                    Err(Errno::AGAIN) if !self.is_nonblocking(flags) => may_start = false,
                    result => return result,
                },
            }
        }
    }

    /// One call of the host that does not wait, into `buffer` and the memory behind it.
    fn receive_ahead(
        &self,
        receiving: &mut ReadAhead<H::Memory>,
        buffer: &mut [u8],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        let want = buffer.len();
        if !receiving.has_memory() {
            receiving.begin(self.host().memory(self.shared.options.ahead_bytes));
        }
        let mut buffers = [IoSliceMut::new(buffer), IoSliceMut::new(receiving.room())];
        let result = self.host().receive(&self.fd, &mut buffers, flags | RecvFlags::DONTWAIT);
        let count = result.as_ref().ok().map(|received| received.bytes);
        let mine = receiving.ended(want, count).map_err(|_| Errno::CONNRESET)?;
        if !receiving.is_empty() {
            self.news.arrived();
        }
        result.map(|_| mine)
    }

    /// Receives until `buffer`, of which `count` bytes are filled, is full, or the stream ends.
    fn receive_rest(
        &self,
        buffer: &mut [u8],
        mut count: usize,
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        while count < buffer.len() {
            match self.receive_some(&mut buffer[count..], flags) {
                Ok(0) | Err(_) => break,
                Ok(more) => count += more,
            }
        }
        Ok(count)
    }

    /// Copies the next bytes to `buffer`, and leaves them to be read.
    fn peek(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        let mut receiving = self.receiving();
        if receiving.is_empty() {
            drop(receiving);
            return self.receive_plainly(buffer, flags).map(|received| received.bytes);
        }
        // The bytes behind those in memory are part of the answer: a program may wait until it sees enough.
        while receiving.len() < buffer.len() {
            let mut more = [0; PEEK_BYTES];
            let room = more.len().min(receiving.free()).min(buffer.len() - receiving.len());
            let buffers = &mut [IoSliceMut::new(&mut more[..room])];
            match self.host().receive(&self.fd, buffers, RecvFlags::DONTWAIT) {
                Ok(received) if (1..=room).contains(&received.bytes) => {
                    receiving.append(&more[..received.bytes]);
                    self.news.arrived();
                }
                // The program made no such call: one that finds no byte before it reports it.
                Err(errno) if errno != Errno::AGAIN && errno != Errno::INTR => {
                    self.set_error(errno);
                    break;
                }
                _ => break,
            }
        }
        Ok(receiving.peek(buffer))
    }
}
