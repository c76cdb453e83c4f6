//! Experiments on connections: a server that sends back what it receives.
//!
//! The load is another program, the same for all, and starts the server. The server's side of what they
//! say to each other is here, on a thread that sleeps while it is measured; it is told in the header of
//! `sakia_bench::net`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process;
use std::thread;

use nix::sys::socket::sockopt::{TcpCongestion, TcpNoDelay};
use nix::sys::socket::{Backlog, listen, setsockopt};

use crate::{Gate, Job, Tally, fail};

/// Memory that a connection receives into.
pub const BUFFER_BYTES: usize = 16 << 10;

/// A runtime that has TCP.
pub trait Net: Sized + 'static {
    /// Builds the runtime, accepts connections, and sends back what comes by each, until the process ends.
    ///
    /// # Errors
    /// Those of listening and accepting. A connection that fails is seen by the load.
    fn serve(job: &Job, door: Door) -> io::Result<()>;
}

/// Where connections come in.
pub struct Door {
    job: Job,
    control: TcpStream,
}

impl Door {
    /// A socket that listens. What it accepts has its options.
    ///
    /// # Errors
    /// As `bind(2)` and `setsockopt(2)`.
    pub fn listen(self) -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // So that none of many connections waits a second to try again.
        listen(&listener, Backlog::MAXALLOWABLE)?;
        setsockopt(&listener, TcpNoDelay, &true)?;
        setsockopt(&listener, TcpCongestion, &OsString::from(&self.job.congestion))?;
        let port = listener.local_addr()?.port();
        self.open(port);
        Ok(listener)
    }

    /// Lets the load in, by a socket of the runtime's own that listens on this port.
    pub fn open(self, port: u16) {
        thread::spawn(move || {
            let Err(error) = oversee(&self.job, self.control, port);
            fail("load", error)
        });
    }
}

/// Runs a server, which ends with its load.
pub fn run(job: Job, serve: impl FnOnce(&Job, Door) -> io::Result<()>) {
    let Some(address) = job.control else { fail("control", "to be run by its load") };
    let control = TcpStream::connect(address).unwrap_or_else(|error| fail("control", error));
    match serve(&job, Door { job: job.clone(), control }) {
        Ok(()) => fail("server", "it ended"),
        Err(error) => fail("server", error),
    }
}

fn oversee(job: &Job, mut control: TcpStream, port: u16) -> io::Result<std::convert::Infallible> {
    let gate = Gate::new(1);
    control.write_all(&port.to_be_bytes())?;
    let mut word = [0];
    control.read_exact(&mut word)?;
    gate.begin();
    control.write_all(&word)?;
    control.read_exact(&mut word)?;
    gate.end();
    control.write_all(&word)?;
    // What came back is the load's to check.
    gate.report(Tally { ops: job.ops, check: 0 });
    process::exit(0)
}
