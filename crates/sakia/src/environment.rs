//! The needs of a runtime around its backend other than operations: a clock, pipes, names of hosts, chance.
//!
//! The runtime asks an [`Environment`] for these, and nowhere which backend it has. There are two:
//! [`Machine`], and with the feature `sim` the simulated kernel.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;

use sakia_driver::{Driver, Fd};

/// The differences between this machine, whose answers are the default ones, and a simulated kernel. Belongs
/// to a runtime thread.
pub(crate) trait Environment {
    /// Returns whether timers go by a clock of the backend's own. If not, they go by the system's.
    fn has_clock(&self) -> bool {
        false
    }

    /// Returns whether blocking code runs on other threads. If not, it runs as a task.
    fn has_threads(&self) -> bool {
        true
    }

    /// Returns the seed that all chance follows from, if there is one.
    fn seed(&self) -> Option<u64> {
        None
    }

    /// Returns a number that no other process has, as far as chance goes.
    fn unique_number(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    /// Makes a pipe and gives its ends to `driver`: the reading one first.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptors left.
    fn pipe(&self, driver: &Driver) -> io::Result<(Fd, Fd)> {
        let (reader, writer) = io::pipe()?;
        Ok((driver.adopt(reader.into()), driver.adopt(writer.into())))
    }

    /// The addresses of a host. `None` if the system is to be asked, which may wait for servers.
    fn addresses(&self, _host: &str, _port: u16) -> Option<io::Result<Vec<SocketAddr>>> {
        None
    }
}

/// The machine that the process runs on.
pub(crate) struct Machine;

impl Environment for Machine {}
