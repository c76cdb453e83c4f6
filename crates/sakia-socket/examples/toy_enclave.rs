//! Sockets inside a toy enclave: a library operating system in small.
//!
//! A program writes lines by a socket, and reads them back by another one, a few bytes at a time. It runs
//! twice on a host that burns 4 microseconds before each call which leaves: once each of its calls is one of
//! the host, and once small writes are gathered and small reads made ahead. The counts say what that saves.
//!
//! ```sh
//! cargo run --release -p sakia-socket --example toy_enclave -- 4
//! ```
//! The argument is the time of an exit in microseconds.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType, ipproto};
use sakia_socket::{HostCounts, Kernel, Layer, Options, Socket, ToyEnclave, When};

/// The sockets of a library operating system, instead of the kernel's.
type Sockets = Layer<ToyEnclave<Kernel>>;

const LINES: usize = 20_000;
const LINE: &[u8; 64] = b"a line of sixty-four bytes, as a program logs them one by one.\r\n";

fn main() -> Result<(), Box<dyn Error>> {
    let micros = env::args().nth(1).map_or(Ok(4), |text| text.parse())?;
    let exit = Duration::from_micros(micros);

    // 1. Plain: each call of the program leaves the enclave.
    let mut options = Options::default();
    options.read_ahead = When::Never;
    let plain = run("plain", exit, options)?;

    // 2. Gathered and read ahead. Writes are gathered only if the library operating system requests it:
    //    bytes that wait are lost if it is killed.
    let mut options = Options::default();
    options.gather = When::OnEvidence;
    let gathered = run("gathered, ahead", exit, options)?;

    let (plain, gathered) = (plain.exits(), gathered.exits());
    println!("{gathered} exits instead of {plain}");
    if gathered >= plain { Err("nothing was saved".into()) } else { Ok(()) }
}

/// Runs the program on sockets with `options`. Returns the counts of host calls.
fn run(name: &str, exit: Duration, options: Options) -> Result<HostCounts, Box<dyn Error>> {
    let sockets = Layer::new(ToyEnclave::new(Kernel, exit), options);
    let (client, server) = connection(&sockets)?;
    let (counts, begin) = (sockets.host().counts(), Instant::now());
    let writer = thread::spawn(move || {
        for _ in 0..LINES {
            // A blocking socket without a signal sends all.
            client.send(LINE, SendFlags::empty())?;
        }
        client.shutdown(Shutdown::Write)
    });
    let mut line = [0; LINE.len()];
    for number in 0..LINES {
        let count = server.recv(&mut line, RecvFlags::WAITALL)?;
        if line[..count] != LINE[..] {
            return Err(format!("line {number} has {count} bytes").into());
        }
    }
    writer.join().map_err(|_| "the writer panicked")??;
    let (counts, elapsed) = (sockets.host().counts().since(&counts), begin.elapsed());
    println!("{name}: {LINES} lines in {elapsed:.1?}, {} exits", counts.exits());
    for (call, count) in counts.iter() {
        println!("  {:<16} {count}", call.name());
    }
    Ok(counts)
}

/// Returns a TCP connection, both ends of which are inside.
fn connection(sockets: &Sockets) -> rustix::io::Result<(Socket<ToyEnclave>, Socket<ToyEnclave>)> {
    let make = || sockets.socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP));
    let (listener, client) = (make()?, make()?);
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    listener.listen(1)?;
    client.connect(&listener.local_address()?)?;
    let (server, _peer) = listener.accept()?;
    Ok((client, server))
}
