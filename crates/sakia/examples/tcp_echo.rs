//! A TCP server that sends back what it gets.
//!
//! It prints its address, serves until SIGINT or SIGTERM, lets those who are connected finish for a moment,
//! and prints what it did. Run it with `cargo run --release -p sakia --example tcp_echo -- --port 7777`, and
//! talk to it with `nc 127.0.0.1 7777`.

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::Parser;
use sakia::Runtime;
use sakia::io::BufResultExt;
use sakia::net::{ListenOptions, ServeOptions, TcpStream, serve};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;
use sakia_ring::Ring;

/// Sends back what it gets by TCP.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// The port to listen on; with 0 the kernel chooses one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Entries of the ring's submission queue
    #[arg(long, default_value_t = 256)]
    queue_depth: u32,
    /// Connections that may wait to be accepted
    #[arg(long, default_value_t = 1024)]
    backlog: u32,
    /// Bytes that are received at a time, at most, and sent back as one
    #[arg(long, default_value_t = 16 << 10, value_parser = clap::value_parser!(u32).range(1..))]
    max_message_len: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    // Without a ring the same runs on epoll, and the depth has no effect.
    let ring = Ring::builder().sq_entries(arguments.queue_depth);
    let runtime = Runtime::builder().ring(ring).build()?;
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let listener = ListenOptions::new()
        .backlog(arguments.backlog)
        .nodelay(true)
        .bind(("127.0.0.1", arguments.port))
        .await?;
    println!("listening on {}", listener.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let options = ServeOptions::new()
        .stop(async move { shutdown.requested().await })
        .deadline(Duration::from_secs(5))
        .on_error(|error| eprintln!("{error}"));
    let len = arguments.max_message_len as usize;
    let served = serve(listener, options, move |stream, _| echo(stream, len)).await?;
    println!("{served:?}");
    Ok(())
}

/// Sends everything back, until the peer has no more to say.
async fn echo(mut stream: TcpStream, len: usize) -> io::Result<()> {
    // One buffer for the whole connection: it goes to the kernel, and comes back.
    let mut buf = vec![0; len];
    loop {
        let (result, filled) = stream.read(buf).await;
        let count = result?;
        if count == 0 {
            return stream.close().await;
        }
        // The rest of a short send goes with the next one, so nothing is lost.
        let message = sakia::io::IoBuf::slice(filled, ..count);
        let message = stream.write_all(message).await.buffer()?;
        buf = message.into_inner();
    }
}
