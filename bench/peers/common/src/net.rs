//! Experiments on connections: a server that sends back the bytes it receives.
//!
//! The load is another program, the same for all, and starts the server. The server's side of their
//! protocol is here, on a thread that sleeps during the measurement; the header of `sakia_bench::net`
//! describes it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process;
use std::thread;

use nix::sys::socket::sockopt::{TcpCongestion, TcpNoDelay};
use nix::sys::socket::{Backlog, listen, setsockopt};

use crate::{Gate, Job, Runtime, Tally, fail};

/// The size of a connection's receive buffer.
pub const BUFFER_BYTES: usize = 16 << 10;
/// The size of a buffer for a datagram: more than any load here sends.
pub const DATAGRAM_BYTES: usize = 2048;

/// A runtime with TCP.
pub trait Net: Runtime {
    /// Accepts connections, and sends back their bytes, until the process ends.
    ///
    /// # Errors
    /// Errors of the listener and of accepts. The load notices a connection that fails.
    fn serve(job: Job, door: Door) -> impl Future<Output = io::Result<()>> + 'static;

    /// Sends each datagram back to its sender, until the process ends.
    ///
    /// # Errors
    /// Errors of the socket.
    fn serve_datagrams(job: Job, door: Door) -> impl Future<Output = io::Result<()>> + 'static {
        let _ = (job, door);
        async { fail("run", "it has no datagrams here") }
    }
}

/// The door of a server: it makes the listener and lets the load in.
pub struct Door {
    job: Job,
    control: TcpStream,
}

impl Door {
    /// Returns a listening socket. Accepted sockets inherit its options.
    ///
    /// # Errors
    /// As `bind(2)` and `setsockopt(2)`.
    pub fn listen(self) -> io::Result<TcpListener> {
        let listener = self.bind()?;
        let port = listener.local_addr()?.port();
        self.open(port);
        Ok(listener)
    }

    /// Returns a socket for datagrams.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn bind_datagrams(self) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = socket.local_addr()?.port();
        self.open(port);
        Ok(socket)
    }

    fn bind(&self) -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // With a long backlog, no connection has to wait a second for its next attempt.
        listen(&listener, Backlog::MAXALLOWABLE)?;
        setsockopt(&listener, TcpNoDelay, &true)?;
        setsockopt(&listener, TcpCongestion, &OsString::from(&self.job.congestion))?;
        Ok(listener)
    }

    /// As [`listen`](Door::listen), for a server that handles the connection to the load itself, which
    /// otherwise a thread does: it carries the messages that begin and end the measurement. Under valgrind
    /// no thread makes progress while another one waits on a ring.
    ///
    /// # Errors
    /// As [`listen`](Door::listen); or the load has ended.
    pub fn listen_attended(mut self) -> io::Result<(TcpListener, TcpStream, Attendant)> {
        let listener = self.bind()?;
        self.control.write_all(&listener.local_addr()?.port().to_be_bytes())?;
        Ok((listener, self.control, Attendant::new(self.job)))
    }

    /// Lets the load in, for a listener of the runtime on this port.
    pub fn open(self, port: u16) {
        thread::spawn(move || {
            let Err(error) = oversee(Attendant::new(self.job), self.control, port);
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

/// Measures between the two messages of the load.
pub struct Attendant {
    job: Job,
    /// Begins at the load's first message, and ends at its second one. Both messages are sent back then.
    pub gate: Gate,
}

impl Attendant {
    fn new(job: Job) -> Self {
        Self { job, gate: Gate::new(1) }
    }

    /// Reports the measurements, and ends the process.
    pub fn exit(self) -> ! {
        // The load checks the answers.
        self.gate.report(Tally { ops: self.job.ops, check: 0 });
        process::exit(0)
    }
}

fn oversee(attendant: Attendant, mut control: TcpStream, port: u16) -> io::Result<Infallible> {
    control.write_all(&port.to_be_bytes())?;
    let mut word = [0];
    control.read_exact(&mut word)?;
    attendant.gate.begin();
    control.write_all(&word)?;
    control.read_exact(&mut word)?;
    attendant.gate.end();
    control.write_all(&word)?;
    attendant.exit()
}
