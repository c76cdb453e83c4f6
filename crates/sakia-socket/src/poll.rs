//! Waiting for several sockets.

use std::time::Duration;

use rustix::io::Errno;

use crate::{Entry, Events, Host, Layer, Socket};

/// A socket of [`Layer::poll`].
#[derive(Debug)]
pub struct PollEntry<'a, H: Host> {
    socket: &'a Socket<H>,
    wanted: Events,
    ready: Events,
}

impl<'a, H: Host> PollEntry<'a, H> {
    /// Makes an entry that waits for `wanted`, errors and hang-ups.
    pub fn new(socket: &'a Socket<H>, wanted: Events) -> Self {
        Self { socket, wanted, ready: Events::NONE }
    }

    /// Returns the events that the last wait found.
    pub fn ready(&self) -> Events {
        self.ready
    }
}

impl<H: Host> Layer<H> {
    /// `poll(2)`: waits until one of `entries` is ready, at most for `timeout`, for ever with `None`.
    /// Returns the number of those that are; none after the timeout. Delayed bytes of all sockets are sent
    /// first.
    ///
    /// # Errors
    /// Those of the call, `EINTR` for one.
    pub fn poll(
        &self,
        entries: &mut [PollEntry<'_, H>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.flush();
        let always = Events::ERR | Events::HUP;
        for entry in &mut *entries {
            entry.ready = entry.socket.ready_in_memory() & (entry.wanted | always);
        }
        let is_ready = entries.iter().any(|entry| !entry.ready.is_empty());
        let mut waits: Vec<Entry<'_, H::Fd>> = entries
            .iter()
            .map(|entry| Entry { fd: entry.socket.fd(), wanted: entry.wanted, ready: Events::NONE })
            .collect();
        let timeout = if is_ready { Some(Duration::ZERO) } else { timeout };
        self.host().wait(&mut waits, timeout)?;
        let found: Vec<Events> = waits.iter().map(|wait| wait.ready).collect();
        for (entry, found) in entries.iter_mut().zip(found) {
            entry.ready |= found;
        }
        Ok(entries.iter().filter(|entry| !entry.ready.is_empty()).count())
    }
}
