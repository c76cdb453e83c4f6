//! The simulated kernel's environment: clock, pipes, host names, random numbers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sakia_driver::sim::SimHandle;
use sakia_driver::{Driver, Fd};

use crate::environment::Environment;
use crate::random;

impl Environment for SimHandle {
    fn has_clock(&self) -> bool {
        true
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn seed(&self) -> Option<u64> {
        Some(SimHandle::seed(self))
    }

    /// The number is derived from the seed.
    fn unique_number(&self) -> u64 {
        random::next()
    }

    fn pipe(&self, driver: &Driver) -> io::Result<(Fd, Fd)> {
        let (reader, writer) = self.try_pipe()?;
        Ok((driver.adopt_simulated(reader), driver.adopt_simulated(writer)))
    }

    /// Host names of the machine that runs the test have no meaning in the simulated network.
    fn addresses(&self, host: &str, port: u16) -> Option<io::Result<Vec<SocketAddr>>> {
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        Some(match host {
            "localhost" => Ok(loopback.map(|ip| SocketAddr::new(ip, port)).into()),
            _ => {
                let message = "the simulated network knows no names but localhost";
                Err(io::Error::new(io::ErrorKind::NotFound, message))
            }
        })
    }
}
