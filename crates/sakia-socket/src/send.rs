//! Sending: at once, or gathered.

use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketAddrAny};
use sakia_socket_core::WritePlan;

use crate::open::{Kind, Open, Sending, wait_number};
use crate::pieces::{self, PIECES_MAX};
use crate::pump::{Delayed, Occasion};
use crate::settings::Patience;
use crate::{BrokenPipe, Entry, Events, Host, When};

/// Flags with which bytes may be delayed.
const DELAYED: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

impl<H: Host> Open<H> {
    /// Sends the bytes of `buffers`, as `sendmsg(2)` does without an address and control messages.
    pub(crate) fn send(
        self: &Arc<Self>,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let is_delayed = self.shared.options.gather != When::Never
            && self.kind != Kind::Datagrams
            && self.is_connected.load(Ordering::Relaxed);
        if !is_delayed {
            self.may_send(flags)?;
            let sent = self.send_plainly(buffers, flags, None)?;
            if sent > 0 && !self.is_connected.load(Ordering::Relaxed) {
                self.is_connected.store(true, Ordering::Relaxed);
            }
            return Ok(sent);
        }
        if buffers.len() > PIECES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let mut sending = self.sending();
        self.may_send(flags)?;
        let plan = self.plan(&mut sending, pieces::len(buffers), flags);
        self.send_by(plan, sending, buffers, flags)
    }

    /// Sends the bytes of `buffers` by `plan`, and then as the queue plans.
    fn send_by<'a>(
        self: &'a Arc<Self>,
        mut plan: WritePlan,
        mut sending: MutexGuard<'a, Sending<H>>,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let is_nonblocking = self.is_nonblocking(flags.contains(SendFlags::DONTWAIT));
        let mut patience = Patience::new(self.settings.send_timeout.get());
        let (mut sent, len) = (0, pieces::len(buffers));
        loop {
            match plan {
                WritePlan::Refuse if sending.queue.refuses_alone() => {
                    drop(sending);
                    return if sent > 0 { Ok(sent) } else { Err(self.broken_pipe(flags)) };
                }
                WritePlan::Refuse | WritePlan::Direct => {
                    drop(sending);
                    return self.send_remainder(buffers, sent, flags, patience);
                }
                WritePlan::Queue => sent += self.delay(&mut sending, buffers, sent),
                WritePlan::Flush => match self.send_queue(&mut sending, buffers, sent, flags) {
                    Ok(more) => sent += more,
                    Err(errno) if sent == 0 => {
                        drop(sending);
                        return Err(self.report(errno, flags));
                    }
                    Err(errno) => {
                        self.keep_error(errno);
                        return Ok(sent);
                    }
                },
            }
            if sent == len {
                return Ok(sent);
            }
            if plan == WritePlan::Queue && !sending.queue.is_empty() {
                // The memory is shorter than requested.
                plan = WritePlan::Flush;
                continue;
            }
            if !sending.queue.is_empty() {
                if is_nonblocking {
                    if DELAYED.contains(flags) {
                        sent += self.delay(&mut sending, buffers, sent);
                    }
                    return if sent == 0 { Err(Errno::AGAIN) } else { Ok(sent) };
                }
                drop(sending);
                match self.wait_for_room(&mut patience) {
                    Err(_) if sent > 0 => return Ok(sent),
                    result => result?,
                }
                sending = self.sending();
            }
            plan = as_flags_say(sending.queue.plan_rest(len - sent), &sending, flags);
        }
    }

    /// Sends the bytes of `buffers` after the first `sent` ones; no delayed bytes precede them.
    fn send_remainder(
        &self,
        buffers: &[IoSlice<'_>],
        mut sent: usize,
        flags: SendFlags,
        mut patience: Patience,
    ) -> Result<usize, Errno> {
        if sent == 0 && !patience.is_started() {
            return self.send_plainly(buffers, flags, None);
        }
        let len = pieces::len(buffers);
        // The host would start its timeout again.
        let is_watched =
            patience.is_limited() && !self.is_nonblocking(flags.contains(SendFlags::DONTWAIT));
        let call = if is_watched { flags | SendFlags::DONTWAIT } else { flags };
        loop {
            let result = match self.send_plainly(&pieces::rest(buffers, sent), call, None) {
                Err(Errno::AGAIN) if is_watched => self.wait_for_room(&mut patience).map(|()| 0),
                result => result,
            };
            match result {
                Ok(more) => sent += more,
                Err(errno) if sent == 0 => return Err(errno),
                Err(errno) => {
                    self.keep_error(errno);
                    return Ok(sent);
                }
            }
            if sent == len || !is_watched {
                return Ok(sent);
            }
        }
    }

    /// Makes one call of the host, with the program's own flags.
    pub(crate) fn send_plainly(
        &self,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        if self.shared.options.gather != When::Never
            && !self.is_nonblocking(flags.contains(SendFlags::DONTWAIT))
        {
            // The call may wait; small writes become direct again only if it does, which is unknown.
            self.shared.pump.send_all(self.host(), Occasion::Wait);
        }
        let count = self.host().send(&self.fd, buffers, self.with_signal(flags), to)?;
        if count > pieces::len(buffers) { Err(self.break_off()) } else { Ok(count) }
    }

    /// Sends all delayed bytes, before a call of the host that must not overtake them. The wait for
    /// room depends on `flags`, as for a send.
    ///
    /// # Errors
    /// Those of sending them, and `EAGAIN` if some are left.
    pub(crate) fn drain(&self, flags: SendFlags) -> Result<(), Errno> {
        let is_nonblocking = self.is_nonblocking(flags.contains(SendFlags::DONTWAIT));
        let mut patience = Patience::new(self.settings.send_timeout.get());
        loop {
            self.may_send_queued(flags)?;
            let mut sending = self.sending();
            if let Err(errno) = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL) {
                drop(sending);
                return Err(self.report(errno, flags));
            }
            if sending.queue.is_empty() {
                return Ok(());
            }
            drop(sending);
            if is_nonblocking {
                return Err(Errno::AGAIN);
            }
            self.wait_for_room(&mut patience)?;
        }
    }

    /// Shuts down `how`; the sending side after the last delayed byte.
    pub(crate) fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        if how == Shutdown::Read {
            self.host().shutdown(&self.fd, how)?;
            self.is_deaf.store(true, Ordering::SeqCst);
            // With an end behind delayed bytes this is a hang-up.
            self.news.arrived();
            return Ok(());
        }
        self.send_some();
        let mut sending = self.sending();
        if sending.queue.is_empty() {
            self.host().shutdown(&self.fd, how)?;
            sending.queue.shut_down();
            sending.queue.take_shutdown();
            if how == Shutdown::Both {
                self.is_deaf.store(true, Ordering::SeqCst);
            }
            return Ok(());
        }
        if how == Shutdown::Both {
            self.host().shutdown(&self.fd, Shutdown::Read)?;
            self.is_deaf.store(true, Ordering::SeqCst);
        }
        sending.queue.shut_down();
        drop(sending);
        self.news.arrived();
        Ok(())
    }

    /// Sends the delayed bytes of this socket, as far as the host has room. Returns the number of those
    /// left.
    pub(crate) fn flush(&self) -> Result<usize, Errno> {
        let mut sending = self.sending();
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL)?;
        Ok(sending.queue.len())
    }

    /// Fails with the error that a send reports before it sends anything.
    pub(crate) fn may_send(&self, flags: SendFlags) -> Result<(), Errno> {
        match self.take_error() {
            Some(errno) => Err(self.report(errno, flags)),
            None if self.is_broken() => Err(self.broken_pipe(flags)),
            None => Ok(()),
        }
    }

    /// As [`may_send`](Self::may_send), before delayed bytes are sent.
    fn may_send_queued(&self, flags: SendFlags) -> Result<(), Errno> {
        self.may_send(flags)?;
        if self.kind != Kind::Datagrams && self.sending().queue.refuses_alone() {
            // Delayed bytes were lost, or the end of the stream is to follow them.
            return Err(self.broken_pipe(flags));
        }
        Ok(())
    }

    /// Returns `errno`, for a call with `flags` that failed without a call of the host; raises the signal
    /// that belongs to it.
    pub(crate) fn report(&self, errno: Errno, flags: SendFlags) -> Errno {
        if errno == Errno::PIPE { self.broken_pipe(flags) } else { errno }
    }

    /// Raises `SIGPIPE`, if the program is to see it. Returns the errno.
    fn broken_pipe(&self, flags: SendFlags) -> Errno {
        if self.shared.options.broken_pipe == BrokenPipe::Raise
            && !flags.contains(SendFlags::NOSIGNAL)
        {
            self.host().raise_broken_pipe();
        }
        Errno::PIPE
    }

    /// Returns the flags of the program's call; `MSG_NOSIGNAL` also depends on the options.
    pub(crate) fn with_signal(&self, flags: SendFlags) -> SendFlags {
        match self.shared.options.broken_pipe {
            BrokenPipe::Never => flags | SendFlags::NOSIGNAL,
            BrokenPipe::Raise => flags,
        }
    }

    fn plan(&self, sending: &mut Sending<H>, len: usize, flags: SendFlags) -> WritePlan {
        if wait_number() != sending.waits {
            sending.waits = wait_number();
            sending.queue.waited();
        }
        if self.is_plain.load(Ordering::Relaxed) {
            sending.queue.waited();
        } else if self.shared.options.gather == When::Always {
            sending.queue.start();
        }
        as_flags_say(sending.queue.plan(len), sending, flags)
    }

    /// Appends the bytes of `buffers` after the first `sent` ones to the queue, as many as fit. Returns their
    /// number.
    fn delay(
        self: &Arc<Self>,
        sending: &mut Sending<H>,
        buffers: &[IoSlice<'_>],
        mut sent: usize,
    ) -> usize {
        if !sending.queue.has_memory() {
            sending.queue.begin(self.shared.queue_memory());
        }
        let was_empty = sending.queue.is_empty();
        let mut count = 0;
        for piece in buffers {
            let done = sent.min(piece.len());
            sent -= done;
            let pushed = sending.queue.push(&piece[done..], || self.host().now());
            count += pushed;
            if pushed < piece.len() - done {
                break;
            }
        }
        match sending.queue.due() {
            Some(due) if !sending.is_listed => {
                sending.is_listed = true;
                self.shared.pump.list(&self.shared.host, Arc::clone(self), due);
            }
            // The queue was empty: the socket may still be listed for earlier bytes, with a later time.
            Some(due) if was_empty => self.shared.pump.hurry(self.host(), due),
            _ => {}
        }
        count
    }

    /// Makes one call of the host that does not wait, with the delayed bytes and those of `buffers` after the
    /// first `sent`. Returns how many of the latter were sent; none if there was no room.
    pub(crate) fn send_queue(
        &self,
        sending: &mut Sending<H>,
        buffers: &[IoSlice<'_>],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        if sending.queue.is_empty() {
            return Ok(0);
        }
        // If the flags must not apply to delayed bytes, those go alone.
        let buffers = if DELAYED.contains(flags) { buffers } else { &[] };
        let call = (flags & DELAYED) | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let had_room = sending.queue.has_room();
        let (first, second) = sending.queue.queued();
        let (first, second) = (IoSlice::new(first), IoSlice::new(second));
        let (result, len) = match buffers {
            [] => (self.host().send(&self.fd, &[first, second], call, None), 0),
            [piece] => {
                let piece = IoSlice::new(&piece[sent..]);
                (self.host().send(&self.fd, &[first, second, piece], call, None), piece.len())
            }
            _ => {
                let rest = pieces::rest(buffers, sent);
                let few = &rest[..rest.len().min(PIECES_MAX - 2)];
                let all = [&[first, second], few].concat();
                (self.host().send(&self.fd, &all, call, None), pieces::len(few))
            }
        };
        let result = match result {
            Ok(count) => sending.queue.sent(len, count).map_err(|_| self.break_off()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        };
        match result {
            // The host may have memory later: nothing is lost.
            Ok(_) | Err(Errno::NOBUFS | Errno::NOMEM) if !sending.queue.is_empty() => {
                sending.queue.postpone(self.host().now());
            }
            Ok(_) => {}
            Err(_) => drop(sending.queue.fail()),
        }
        if !had_room && sending.queue.has_room() {
            self.news.got_room();
        }
        result
    }

    /// Sends the delayed bytes, as far as the host has room, and keeps the error.
    pub(crate) fn send_rest(&self) {
        let mut sending = self.sending();
        if let Err(errno) = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL) {
            self.set_error(errno);
        }
    }

    /// Waits until the host has room for bytes.
    pub(crate) fn wait_for_room(&self, patience: &mut Patience) -> Result<(), Errno> {
        self.wait_for(Events::OUT, patience)
    }

    /// Waits for one of the events that the host reports.
    pub(crate) fn wait_for(&self, wanted: Events, patience: &mut Patience) -> Result<(), Errno> {
        self.shared.before_wait();
        let left = patience.left(self.host());
        if left == Some(Duration::ZERO) {
            return Err(Errno::AGAIN);
        }
        let entry = Entry { fd: &self.fd, wanted, ready: Events::NONE };
        match self.host().wait(&mut [entry], left)? {
            0 if patience.is_limited() => Err(Errno::AGAIN),
            _ => Ok(()),
        }
    }
}

impl<H: Host> Delayed for Open<H> {
    fn send_due(&self, occasion: Occasion) -> Option<Duration> {
        let mut sending = self.sending();
        let is_due = match occasion {
            // Bytes that came after the clock was read may seem to be due later than is possible.
            Occasion::Time(now) => {
                let is_past = sending.queue.due().is_some_and(|due| due <= now);
                is_past || sending.queue.is_due(now) && sending.queue.is_due(self.host().now())
            }
            Occasion::Wait => !sending.queue.is_postponed(),
            Occasion::Flush => true,
        };
        if is_due
            && let Err(errno) = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL)
            && sending.queue.is_empty()
        {
            self.set_error(errno);
        }
        if sending.queue.take_shutdown() {
            // Its error can no longer be reported to the program.
            let _ = self.host().shutdown(&self.fd, Shutdown::Write);
        }
        let due = sending.queue.due();
        sending.is_listed = due.is_some();
        if let Some(memory) = sending.queue.give_back() {
            self.shared.keep_memory(memory);
        }
        due
    }
}

/// Returns `plan`, unless the host must see `flags`.
fn as_flags_say<H: Host>(plan: WritePlan, sending: &Sending<H>, flags: SendFlags) -> WritePlan {
    match plan {
        WritePlan::Queue if DELAYED.contains(flags) => plan,
        WritePlan::Queue if sending.queue.is_empty() => WritePlan::Direct,
        WritePlan::Queue => WritePlan::Flush,
        plan => plan,
    }
}
