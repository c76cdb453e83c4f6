//! Receiving: from memory, ahead, or by plain calls.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use sakia_socket_core::{ReadAhead, ReadPlan};

use crate::open::{Kind, Open};
use crate::pieces::{self, PIECES_MAX};
use crate::settings::Patience;
use crate::{Events, Host, Received, When};

/// Flags that are served here. With any other flag the kernel serves the call, and the socket from then on.
const SERVED: RecvFlags = RecvFlags::DONTWAIT
    .union(RecvFlags::PEEK)
    .union(RecvFlags::WAITALL)
    .union(RecvFlags::TRUNC)
    .union(RecvFlags::CMSG_CLOEXEC);

/// Flags of calls that the kernel serves even while bytes wait in memory: urgent data and errors are no part
/// of the stream.
const BESIDE: RecvFlags = RecvFlags::OOB.union(RecvFlags::ERRQUEUE);

impl<H: Host> Open<H> {
    /// Receives into `buffers`, as `recvmsg(2)` does without an address and control messages.
    pub(crate) fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        if !self.is_served(flags) {
            return self.receive_plainly(buffers, flags).map(|received| received.bytes);
        }
        if flags.contains(RecvFlags::PEEK) {
            return self.peek(buffers, flags);
        }
        let is_all = flags.contains(RecvFlags::WAITALL)
            && !self.is_nonblocking(flags.contains(RecvFlags::DONTWAIT));
        if !is_all {
            return self.receive_some(buffers, flags);
        }
        let mut patience = Patience::new(self.settings.receive_timeout.get());
        patience.left(self.host());
        let count = self.receive_some(buffers, flags)?;
        if count == 0 || count == pieces::len(buffers) {
            return Ok(count);
        }
        Ok(self.receive_rest(buffers, count, flags, patience))
    }

    /// Receives one datagram, or bytes of a stream without a sender's address.
    pub(crate) fn receive_from(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        if self.kind != Kind::Internet {
            return self.receive_plainly(buffers, flags);
        }
        let bytes = self.receive(buffers, flags)?;
        Ok(Received { bytes, flags: rustix::net::ReturnFlags::empty(), from: None })
    }

    /// Returns true if a call with `flags` is served here, and not by one call of the host.
    pub(crate) fn is_served(&self, flags: RecvFlags) -> bool {
        if !SERVED.contains(flags) {
            self.be_plain();
        }
        self.kind == Kind::Internet
            && !flags.intersects(BESIDE)
            && !(self.is_plain.load(Ordering::Relaxed) && self.unread() == 0)
    }

    /// Makes one call of the host, with the program's own flags.
    fn receive_plainly(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        if let Some(received) = self.received_before_error(buffers, flags)? {
            return Ok(received);
        }
        if !self.is_nonblocking(flags.contains(RecvFlags::DONTWAIT)) {
            self.shared.before_wait();
        }
        let received = self.host().receive(&self.fd, buffers, flags)?;
        self.checked(received, pieces::len(buffers), flags)
    }

    /// Returns the result of a receive on a broken connection: after the bytes that arrived before the error,
    /// the kept error, once, and then the end.
    pub(crate) fn received_before_error(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Option<Received>, Errno> {
        if self.is_broken() {
            let end = Received { bytes: 0, flags: rustix::net::ReturnFlags::empty(), from: None };
            return self.take_error().map_or(Ok(Some(end)), Err);
        }
        if !self.has_error() {
            return Ok(None);
        }
        match self.host().receive(&self.fd, buffers, flags | RecvFlags::DONTWAIT) {
            Ok(received) if received.bytes > 0 => {
                self.checked(received, pieces::len(buffers), flags).map(Some)
            }
            _ => self.take_error().map_or(Ok(None), Err),
        }
    }

    /// Returns `received`, if it is possible for a call for `len` bytes.
    pub(crate) fn checked(
        &self,
        received: Received,
        len: usize,
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        // With this flag the count may be that of a longer datagram.
        let is_whole = flags.contains(RecvFlags::TRUNC) && self.kind == Kind::Datagrams;
        if received.bytes > len && !is_whole { Err(self.break_off()) } else { Ok(received) }
    }

    /// Receives available bytes, at least one if the call may wait.
    fn receive_some(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        let flags = flags - RecvFlags::WAITALL;
        let len = pieces::len(buffers);
        let is_exact = flags.contains(RecvFlags::TRUNC) || buffers.len() >= PIECES_MAX;
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
            let plan = if is_exact { receiving.plan_exact() } else { receiving.plan(len) };
            match plan {
                ReadPlan::Take => {
                    let count = if flags.contains(RecvFlags::TRUNC) {
                        receiving.discard(len)
                    } else {
                        buffers.iter_mut().map(|piece| receiving.take(piece)).sum()
                    };
                    if count == len || !self.has_looked.swap(false, Ordering::Relaxed) {
                        return Ok(count);
                    }
                    // A peek showed more bytes: the program may rely on them.
                    let flags = flags | RecvFlags::DONTWAIT;
                    return Ok(count + self.receive_behind(buffers, count, flags));
                }
                ReadPlan::Direct => {
                    // The call may sleep for long, and needs no memory meanwhile.
                    drop(receiving.give_back());
                    drop(receiving);
                    let result =
                        self.receive_plainly(buffers, flags).map(|received| received.bytes);
                    let mut receiving = self.receiving();
                    receiving.direct_ended(len, result.as_ref().ok().copied());
                    drop(receiving.give_back());
                    return result;
                }
                ReadPlan::Ahead => match self.receive_ahead(&mut receiving, buffers, flags) {
                    Err(Errno::AGAIN)
                        if !self.is_nonblocking(flags.contains(RecvFlags::DONTWAIT)) =>
                    {
                        may_start = false;
                    }
                    result => return result,
                },
            }
        }
    }

    /// Makes one call of the host that does not wait, into `buffers` and the memory after them.
    fn receive_ahead(
        &self,
        receiving: &mut ReadAhead<H::Memory>,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        if let Some(received) = self.received_before_error(buffers, flags)? {
            return Ok(received.bytes);
        }
        let want = pieces::len(buffers);
        if !receiving.has_memory() {
            receiving.begin(self.host().memory(self.shared.options.ahead_bytes));
        }
        let flags = flags | RecvFlags::DONTWAIT;
        let room = IoSliceMut::new(receiving.room());
        let result = if let [buffer] = buffers {
            self.host().receive(&self.fd, &mut [IoSliceMut::new(buffer), room], flags)
        } else {
            let mut all = pieces::rest_mut(buffers, 0);
            all.push(room);
            self.host().receive(&self.fd, &mut all, flags)
        };
        let count = result.as_ref().ok().map(|received| received.bytes);
        let mine = receiving.ended(want, count).map_err(|_| self.break_off())?;
        if !receiving.is_empty() {
            self.news.arrived();
        }
        if self.shared.options.read_ahead != When::Always {
            // The connection may be idle for long now. It gets memory again on new evidence.
            drop(receiving.give_back());
        }
        result.map(|_| mine)
    }

    /// Receives until `buffers`, of which `count` bytes are filled, are full, or the stream or the time ends.
    /// Returns the number of bytes filled then.
    fn receive_rest(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        mut count: usize,
        mut flags: RecvFlags,
        mut patience: Patience,
    ) -> usize {
        let len = pieces::len(buffers);
        if patience.is_limited() {
            // The host would start its timeout again.
            flags |= RecvFlags::DONTWAIT;
        }
        while count < len {
            let result = match self.receive_some(&mut pieces::rest_mut(buffers, count), flags) {
                Err(Errno::AGAIN) if patience.is_limited() => {
                    self.wait_for_bytes(&mut patience).map(|()| None)
                }
                result => result.map(Some),
            };
            match result {
                Ok(None) => {}
                Ok(Some(0)) => break,
                Ok(Some(more)) => count += more,
                Err(errno) => {
                    self.keep_error(errno);
                    break;
                }
            }
        }
        count
    }

    /// Copies the next bytes to `buffers`, and leaves them to be read. The host's bytes after those in memory
    /// are part of the result: a program may peek until it sees enough.
    fn peek(&self, buffers: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize, Errno> {
        let len = pieces::len(buffers);
        let mut may_wait = flags.contains(RecvFlags::WAITALL)
            && !self.is_nonblocking(flags.contains(RecvFlags::DONTWAIT));
        loop {
            let mut receiving = self.receiving();
            if receiving.is_empty() {
                receiving.look();
                drop(receiving);
                let result = self.receive_plainly(buffers, flags);
                self.receiving().look_ended();
                return result.map(|received| received.bytes);
            }
            let count = peek_into(&receiving, buffers);
            if count == len || self.has_error() || self.is_broken() {
                return Ok(count);
            }
            if !may_wait {
                let flags = (flags - RecvFlags::WAITALL) | RecvFlags::DONTWAIT;
                self.has_looked.store(true, Ordering::Relaxed);
                return Ok(count + self.receive_behind(buffers, count, flags));
            }
            // While the lock is not held another thread may take bytes: this one then peeks again.
            receiving.look();
            drop(receiving);
            self.shared.before_wait();
            self.receive_behind(buffers, count, flags);
            self.receiving().look_ended();
            may_wait = false;
        }
    }

    /// Waits until the host has bytes, unless another thread has brought some to memory.
    fn wait_for_bytes(&self, patience: &mut Patience) -> Result<(), Errno> {
        let mut receiving = self.receiving();
        if !receiving.is_empty() {
            return Ok(());
        }
        receiving.look();
        drop(receiving);
        let result = self.wait_for(Events::IN, patience);
        self.receiving().look_ended();
        result
    }

    /// Receives the host's bytes, or peeks at them, into `buffers` after their first `count` bytes. Returns
    /// their number.
    fn receive_behind(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        count: usize,
        flags: RecvFlags,
    ) -> usize {
        let mut rest = pieces::rest_mut(buffers, count);
        let room = pieces::len(&rest);
        match self.host().receive(&self.fd, &mut rest, flags) {
            Ok(received) if received.bytes <= room => received.bytes,
            Ok(_) => {
                self.set_error(self.break_off());
                0
            }
            // The program gets bytes; a later call that finds none before the error reports it.
            Err(errno) => {
                self.keep_error(errno);
                0
            }
        }
    }
}

/// Copies bytes that wait to `buffers`. Returns their number.
fn peek_into<M: AsRef<[u8]> + AsMut<[u8]>>(
    receiving: &ReadAhead<M>,
    buffers: &mut [IoSliceMut<'_>],
) -> usize {
    if let [buffer] = buffers {
        return receiving.peek(buffer);
    }
    let mut bytes = vec![0; pieces::len(buffers).min(receiving.len())];
    let count = receiving.peek(&mut bytes);
    pieces::scatter(&bytes[..count], buffers);
    count
}
