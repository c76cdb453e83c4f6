//! The needs of a runtime besides operations: a clock, pipes, host names, random numbers.
//!
//! The runtime asks an [`Environment`] for these, and does not otherwise depend on its backend. There are
//! two: [`Machine`], and with the feature `sim` the simulated kernel.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;

use sakia_driver::{Driver, Fd};

/// The differences between this machine, whose answers are the default methods, and a simulated kernel. An
/// environment belongs to one runtime thread.
pub(crate) trait Environment {
    /// Returns whether timers use a clock of the backend. Otherwise they use the system's.
    fn has_clock(&self) -> bool {
        false
    }

    /// Returns whether blocking code runs on other threads. If not, it runs as a task.
    fn has_threads(&self) -> bool {
        true
    }

    /// Returns the seed of all random numbers, if there is one.
    fn seed(&self) -> Option<u64> {
        None
    }

    /// Returns a random number, which is very likely unique among all processes.
    fn unique_number(&self) -> u64 {
        // A forked child has its parent's random keys.
        RandomState::new().hash_one(std::process::id())
    }

    /// Makes a pipe and gives its ends to `driver`: the reading one first.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptors left.
    fn pipe(&self, driver: &Driver) -> io::Result<(Fd, Fd)> {
        let (reader, writer) = io::pipe()?;
        Ok((driver.adopt(reader.into()), driver.adopt(writer.into())))
    }

    /// Returns the addresses of a host. `None` if the system's resolver must be asked, which may wait for
    /// servers.
    fn addresses(&self, _host: &str, _port: u16) -> Option<io::Result<Vec<SocketAddr>>> {
        None
    }
}

/// The machine that the process runs on.
pub(crate) struct Machine;

impl Environment for Machine {}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use sakia_testkit::forked;

    use super::*;

    #[test]
    fn a_forked_child_has_other_numbers_than_its_parent() {
        let _ = Machine.unique_number(); // the thread has its keys
        let (mut reader, mut writer) = io::pipe().expect("two descriptors");
        let tell = || writer.write_all(&Machine.unique_number().to_ne_bytes()).expect("room");
        assert_eq!(forked::run(tell), Ok(()));
        let mut told = [0; 8];
        reader.read_exact(&mut told).expect("the child has told it");
        assert_ne!(u64::from_ne_bytes(told), Machine.unique_number());
    }
}
