//! What a runtime needs of its backend's surroundings and that is no operation: a clock, pipes, names of
//! hosts, chance.
//!
//! The runtime asks an [`Environment`] for these, and nowhere which backend it has. There are two:
//! [`Machine`], and with the feature `sim` the simulated kernel.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;

use sakia_driver::{Auto, Driver, Fd};

use crate::blocking::spawn_blocking;

/// Resolves to the addresses of a host.
pub(crate) type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// What differs between this machine and a simulated kernel. Belongs to a runtime thread.
pub(crate) trait Environment {
    /// Returns whether timers go by a clock of the backend's own. If not, they go by the system's.
    fn has_clock(&self) -> bool;

    /// Returns whether blocking code runs on other threads. If not, it runs as a task.
    fn has_threads(&self) -> bool;

    /// Returns the seed that all chance follows from, if there is one.
    fn seed(&self) -> Option<u64>;

    /// Returns a number that no other process has, as far as chance goes.
    fn unique_number(&self) -> u64;

    /// Makes a pipe and gives its ends to `driver`: the reading one first.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptors left.
    fn pipe(&self, driver: &Driver<Auto>) -> io::Result<(Fd, Fd)>;

    /// Looks up a host by name.
    fn look_up(&self, host: &str, port: u16) -> Lookup;
}

/// The machine that the process runs on.
pub(crate) struct Machine;

impl Environment for Machine {
    fn has_clock(&self) -> bool {
        false
    }

    fn has_threads(&self) -> bool {
        true
    }

    fn seed(&self) -> Option<u64> {
        None
    }

    fn unique_number(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    fn pipe(&self, driver: &Driver<Auto>) -> io::Result<(Fd, Fd)> {
        let (reader, writer) = io::pipe()?;
        Ok((driver.adopt(reader.into()), driver.adopt(writer.into())))
    }

    fn look_up(&self, host: &str, port: u16) -> Lookup {
        let host = host.to_owned();
        let lookup = spawn_blocking(move || Ok((host.as_str(), port).to_socket_addrs()?.collect()));
        // An error of the pool: no thread, or it ended.
        Box::pin(async move { lookup.await.unwrap_or_else(|error| Err(io::Error::other(error))) })
    }
}
