//! The ends of a socket: closing it, and its peer leaving by `connect(2)` with `AF_UNSPEC`.

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
    /// The program closed its last handle.
    ///
    /// Delayed bytes are sent, by the pump if the host has no room: the list of it keeps the socket open.
    /// With `SO_LINGER` this waits for room as long as that says, and the host waits again for what it has.
    /// Bytes are dropped where the kernel drops those that it has: with `SO_LINGER` of no time, and if
    /// received ones are left, since then the connection is reset.
    pub(crate) fn close(&self) {
        // Other sockets have no reset.
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
                // The pump closes it, which must not wait for this one.
                let _ = self.host_set(sockopt::SO_LINGER, None);
            }
        }
        self.shared.pump.send_all(self.host(), Occasion::Wait);
    }

    /// Sends delayed bytes, as far as there is room; there is no call to report an error. Returns how many
    /// are left.
    fn send_left(&self) -> usize {
        let mut sending = self.sending();
        let _ = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL);
        sending.queue.len()
    }

    /// Sends delayed bytes before a call that is none of sending, as far as there is room. Their error is
    /// for a later call.
    pub(crate) fn send_some(&self) {
        let mut sending = self.sending();
        if let Err(errno) = self.send_queue(&mut sending, &[], 0, SendFlags::NOSIGNAL)
            && sending.queue.is_empty()
        {
            self.set_error(errno);
        }
    }

    /// Takes the peer away. As in the kernel, bytes that were not sent or not read are dropped.
    pub(crate) fn disconnect(&self) -> Result<(), Errno> {
        let (mut receiving, mut sending) = (self.receiving(), self.sending());
        self.host().disconnect(&self.fd)?;
        receiving.stop();
        receiving.discard(usize::MAX);
        // One that is listed is not any more when the pump looks at it.
        sending.queue = WriteQueue::new(self.shared.options.limits);
        self.is_connected.store(false, Ordering::Relaxed);
        self.mend();
        Ok(())
    }
}
