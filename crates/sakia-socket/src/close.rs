//! The end of a socket: closing it, and disconnecting it by `connect(2)` with `AF_UNSPEC`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use sakia_socket_core::WriteQueue;

use crate::Host;
use crate::open::{Kind, Open};
use crate::pump::Occasion;
use crate::settings::Patience;
use crate::sockopt;

impl<H: Host> Open<H> {
    /// Closes the socket, when the program has closed its last handle.
    ///
    /// Delayed bytes are sent. If the host has no room, the pump sends them, whose list keeps the socket
    /// open. With `SO_LINGER` this waits for room for that time, and the host's close waits again for the
    /// bytes that it has. Bytes are dropped where the kernel drops its own: with an `SO_LINGER` time of zero,
    /// and if received bytes were not read, since then the connection is reset.
    pub(crate) fn close(&self) {
        // Other sockets cannot be reset.
        let linger = self.settings.linger.get().filter(|_| self.kind == Kind::Internet);
        if linger == Some(Duration::ZERO) || self.unread() > 0 {
            self.sending().queue.fail();
        }
        let mut left = self.send_left();
        if left > 0 && linger.is_some() {
            let mut patience = Patience::new(linger);
            while left > 0 && self.wait_for_room(&mut patience).is_ok() {
                left = self.send_left();
            }
            if left > 0 {
                // The pump closes it, and must not wait for this socket.
                let _ = self.host_set(sockopt::SO_LINGER, None);
            }
        }
        self.shared.pump.send_all(self.host(), Occasion::Wait);
    }

    /// Sends delayed bytes, as far as there is room; no call is left to report an error. Returns the number
    /// of bytes left.
    fn send_left(&self) -> usize {
        let mut sending = self.sending();
        let _ = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL);
        sending.queue.len()
    }

    /// Sends delayed bytes before a call that does not send, as far as there is room. Their error is kept for
    /// a later call.
    pub(crate) fn send_some(&self) {
        let mut sending = self.sending();
        if let Err(errno) = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL)
            && sending.queue.is_empty()
        {
            self.set_error(errno);
        }
    }

    /// Disconnects the socket from its peer. As in the kernel, bytes that were not sent or not read are
    /// dropped.
    pub(crate) fn disconnect(&self) -> Result<(), Errno> {
        let (mut receiving, mut sending) = (self.receiving(), self.sending());
        self.host().disconnect(&self.fd)?;
        receiving.stop();
        receiving.discard(usize::MAX);
        // If the socket is on the pump's list, the pump removes it at its next turn.
        sending.queue = WriteQueue::new(self.shared.options.limits);
        self.is_connected.store(false, Ordering::Relaxed);
        self.mend();
        Ok(())
    }
}
