//! Sending: at once, or gathered.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketAddrAny};
use sakia_socket_core::WritePlan;

use crate::open::{Open, Sending, wait_number};
use crate::pump::Delayed;
use crate::{Entry, Events, Host, When};

/// Flags with which bytes may be delayed.
const DELAYED: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// How long bytes wait for room before it is looked for again.
const FULL: Duration = Duration::from_millis(1);

impl<H: Host> Open<H> {
    /// Sends `bytes`, as `send(2)` does.
    pub(crate) fn send(self: &Arc<Self>, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
        let gather = self.shared.options.gather;
        if gather == When::Never || self.is_plain.load(Ordering::Relaxed) && self.flush()? == 0 {
            return self.take_error().map_or_else(|| self.send_plainly(bytes, flags, None), Err);
        }
        let is_nonblocking =
            flags.contains(SendFlags::DONTWAIT) || self.is_nonblocking.load(Ordering::Relaxed);
        let mut sent = 0;
        let mut sending = self.sending();
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        let mut plan = self.plan(&mut sending, bytes.len(), flags);
        loop {
            let rest = &bytes[sent..];
            match plan {
                WritePlan::Refuse | WritePlan::Direct => {
                    drop(sending);
                    let result = self.send_plainly(rest, flags, None);
                    return if sent == 0 { result } else { Ok(sent + result.unwrap_or(0)) };
                }
                WritePlan::Queue => return Ok(sent + self.delay(&mut sending, rest)),
                WritePlan::Flush => match self.send_queue(&mut sending, behind(rest, flags), flags)
                {
                    Ok(more) => sent += more,
                    Err(errno) if sent == 0 => return Err(errno),
                    Err(_) => return Ok(sent),
                },
            }
            if sent == bytes.len() {
                return Ok(sent);
            }
            if !sending.queue.is_empty() {
                if is_nonblocking {
                    let more = self.delay(&mut sending, &bytes[sent..]);
                    return if sent + more == 0 { Err(Errno::AGAIN) } else { Ok(sent + more) };
                }
                drop(sending);
                match self.wait_for_room() {
                    Err(_) if sent > 0 => return Ok(sent),
                    result => result?,
                }
                sending = self.sending();
            }
            plan = as_flags_say(sending.queue.plan_rest(bytes.len() - sent), &sending, flags);
        }
    }

    /// Sends a datagram to `to`.
    pub(crate) fn send_plainly(
        &self,
        bytes: &[u8],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let count = self.host().send(&self.fd, &[IoSlice::new(bytes)], flags, to)?;
        if count > bytes.len() { Err(Errno::CONNRESET) } else { Ok(count) }
    }

    /// Shuts the sending side down, behind the last delayed byte.
    pub(crate) fn shut_down_sending(&self) -> Result<(), Errno> {
        let mut sending = self.sending();
        sending.queue.shut_down();
        if let Err(errno) = self.send_queue(&mut sending, &[], SendFlags::NOSIGNAL) {
            self.set_error(errno);
        }
        if sending.queue.take_shutdown() {
            drop(sending);
            return self.host().shutdown(&self.fd, Shutdown::Write);
        }
        Ok(())
    }

    /// Sends the delayed bytes of this socket, as far as the host has room. Returns the number of those
    /// left.
    pub(crate) fn flush(&self) -> Result<usize, Errno> {
        let mut sending = self.sending();
        if let Some(errno) = self.take_error() {
            return Err(errno);
        }
        self.send_queue(&mut sending, &[], SendFlags::NOSIGNAL)?;
        Ok(sending.queue.len())
    }

    fn plan(&self, sending: &mut Sending<H>, len: usize, flags: SendFlags) -> WritePlan {
        if wait_number() != sending.waits {
            sending.waits = wait_number();
            sending.queue.waited();
        }
        if self.shared.options.gather == When::Always {
            sending.queue.start();
        }
        as_flags_say(sending.queue.plan(len), sending, flags)
    }

    /// Puts as many of `bytes` into the queue as fit. Returns how many.
    fn delay(self: &Arc<Self>, sending: &mut Sending<H>, bytes: &[u8]) -> usize {
        if !sending.queue.has_memory() {
            sending.queue.begin(self.host().memory(self.shared.options.limits.bytes));
        }
        let count = sending.queue.push(bytes, || self.host().now());
        if count > 0 && !sending.is_listed {
            sending.is_listed = true;
            self.shared.pump.list(&self.shared.host, Arc::clone(self));
        }
        count
    }

    /// One call of the host that does not wait, with the delayed bytes and `bytes` behind them. Returns
    /// how many of `bytes` were sent; none if there was no room.
    fn send_queue(
        &self,
        sending: &mut Sending<H>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        if sending.queue.is_empty() {
            return Ok(0);
        }
        let (first, second) = sending.queue.queued();
        let buffers = [IoSlice::new(first), IoSlice::new(second), IoSlice::new(bytes)];
        let flags = (flags & DELAYED) | SendFlags::DONTWAIT;
        let result = match self.host().send(&self.fd, &buffers, flags, None) {
            Ok(count) => sending.queue.sent(bytes.len(), count).map_err(|_| Errno::CONNRESET),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        };
        match result {
            Ok(_) if !sending.queue.is_empty() => sending.queue.postpone(self.host().now() + FULL),
            Ok(_) => {}
            Err(_) => drop(sending.queue.fail()),
        }
        result
    }

    /// Waits until the host has room for bytes.
    fn wait_for_room(&self) -> Result<(), Errno> {
        self.shared.before_wait();
        let timeout = self.host().send_timeout(&self.fd)?;
        let entry = Entry { fd: &self.fd, wanted: Events::OUT, ready: Events::NONE };
        match self.host().wait(&mut [entry], timeout)? {
            0 => Err(Errno::AGAIN),
            _ => Ok(()),
        }
    }
}

impl<H: Host> Delayed for Open<H> {
    fn send_due(&self, now: Option<Duration>) -> Option<Duration> {
        let mut sending = self.sending();
        let due = sending.queue.due();
        if due.is_some_and(|due| now.is_none_or(|now| due <= now))
            && let Err(errno) = self.send_queue(&mut sending, &[], SendFlags::NOSIGNAL)
        {
            self.set_error(errno);
        }
        if sending.queue.take_shutdown() {
            // It reports what the program cannot be told any more.
            let _ = self.host().shutdown(&self.fd, Shutdown::Write);
        }
        let due = sending.queue.due();
        sending.is_listed = due.is_some();
        due
    }
}

/// Returns `plan`, unless `flags` are for the host to see.
fn as_flags_say<H: Host>(plan: WritePlan, sending: &Sending<H>, flags: SendFlags) -> WritePlan {
    match plan {
        WritePlan::Queue if DELAYED.contains(flags) => plan,
        WritePlan::Queue if sending.queue.is_empty() => WritePlan::Direct,
        WritePlan::Queue => WritePlan::Flush,
        plan => plan,
    }
}

/// Returns the bytes that may go behind delayed ones in the same call: none if `flags` hold for them only.
fn behind(bytes: &[u8], flags: SendFlags) -> &[u8] {
    if DELAYED.contains(flags) { bytes } else { &[] }
}
