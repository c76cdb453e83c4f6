//! A UDP server that sends datagrams back to their sender.
//!
//! It prints its address, serves until SIGINT or SIGTERM, and prints how many datagrams it sent back. Run it
//! with `cargo run --release -p sakia --example udp_echo -- --port 7777`, and talk to it with
//! `nc -u 127.0.0.1 7777`.

use std::error::Error;
use std::io;

use clap::Parser;
use sakia::net::{UdpOptions, UdpSocket};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;

/// Sends datagrams back to their sender.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// The port to receive on; with 0 the kernel chooses one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Datagrams that are received and sent at a time, at most
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
}

/// The longest datagram that version 4 carries.
const DATAGRAM_BYTES_MAX: usize = 65_507;

#[sakia::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    // Room for bursts: a datagram that finds none is lost.
    let options = UdpOptions::new().recv_buffer_size(1 << 20);
    let socket = options.bind(("127.0.0.1", arguments.port)).await?;
    println!("listening on {}", socket.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let mut echoed = 0;
    // Whichever is first. A receive that is given up loses nothing.
    sakia::select! {
        result = echo(&socket, arguments.batch.into(), &mut echoed) => result?,
        _ = shutdown.requested() => {},
    }
    println!("datagrams: {echoed}");
    Ok(())
}

async fn echo(socket: &UdpSocket, batch: usize, echoed: &mut u64) -> io::Result<()> {
    // Empty ones: each has as many bytes as were received.
    let mut bufs: Vec<_> = (0..batch).map(|_| Vec::with_capacity(DATAGRAM_BYTES_MAX)).collect();
    loop {
        // One datagram at least, and what else is there.
        let (result, mut filled) = socket.recv_batch(bufs).await;
        let received = match result {
            Ok(received) => received,
            // An error of an earlier datagram, perhaps: the socket goes on.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                bufs = filled;
                continue;
            }
            Err(error) => return Err(error),
        };
        let unused = filled.split_off(received.len());
        let answers = filled.into_iter().zip(received.iter().map(|received| received.from));
        bufs = unused;
        for (result, mut buf) in socket.send_batch(answers.collect()).await {
            // Of one that cannot be sent the sender will ask again.
            *echoed += u64::from(result.is_ok());
            buf.clear();
            bufs.push(buf);
        }
    }
}
