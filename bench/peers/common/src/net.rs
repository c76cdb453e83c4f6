//! Experiments on connections: a server that sends back what it receives.
//!
//! The load is another program, the same for all, and starts the server. The server's side of what they
//! say to each other is here, on a thread that sleeps while it is measured; it is told in the header of
//! `sakia_bench::net`.

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

/// Memory that a connection receives into.
pub const BUFFER_BYTES: usize = 16 << 10;
/// Memory for a datagram: more than any load here sends.
pub const DATAGRAM_BYTES: usize = 2048;

/// A runtime that has TCP.
pub trait Net: Runtime {
    /// Accepts connections, and sends back what comes by each, until the process ends.
    ///
    /// # Errors
    /// Those of listening and accepting. A connection that fails is seen by the load.
    fn serve(job: Job, door: Door) -> impl Future<Output = io::Result<()>> + 'static;

    /// Sends each datagram back to its sender, until the process ends.
    ///
    /// # Errors
    /// Those of the socket.
    fn serve_datagrams(job: Job, door: Door) -> impl Future<Output = io::Result<()>> + 'static {
        let _ = (job, door);
        async { fail("run", "it has no datagrams here") }
    }
}

/// A server's listener.
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
        let listener = self.bind()?;
        let port = listener.local_addr()?.port();
        self.open(port);
        Ok(listener)
    }

    /// A socket for datagrams.
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
        // So that none of many connections waits a second to try again.
        listen(&listener, Backlog::MAXALLOWABLE)?;
        setsockopt(&listener, TcpNoDelay, &true)?;
        setsockopt(&listener, TcpCongestion, &OsString::from(&self.job.congestion))?;
        Ok(listener)
    }

    /// As [`listen`](Door::listen), where the server does by itself what otherwise a thread does, with the
    /// connection by which the load tells when to begin and when to end. Below valgrind no thread gets on
    /// while another one waits on a ring.
    ///
    /// # Errors
    /// As [`listen`](Door::listen); or the load has ended.
    pub fn listen_attended(mut self) -> io::Result<(TcpListener, TcpStream, Attendant)> {
        let listener = self.bind()?;
        self.control.write_all(&listener.local_addr()?.port().to_be_bytes())?;
        Ok((listener, self.control, Attendant::new(self.job)))
    }

    /// Lets the load in, by a socket of the runtime's own that listens on this port.
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

/// Measures while the load says so.
pub struct Attendant {
    job: Job,
    /// To begin when the load has said its first word, which is sent back then; to end when it has said its
    /// second word, which is sent back then.
    pub gate: Gate,
}

impl Attendant {
    fn new(job: Job) -> Self {
        Self { job, gate: Gate::new(1) }
    }

    /// Reports, and ends the process.
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
