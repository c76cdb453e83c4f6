//! A TCP proxy: what comes to one address goes to another, and back.
//!
//! Each direction ends by itself: a client that has no more to say still gets its answer. When one side
//! reads slowly, the other is read slowly, too. It prints its address, and serves until SIGINT or SIGTERM.
//! Run it with `cargo run --release -p sakia --example tcp_proxy -- --to example.org:80`.

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::Parser;
use sakia::io::{Reader, Writer, copy_bidirectional};
use sakia::net::{ConnectOptions, ServeOptions, TcpListener, TcpStream, serve};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;

/// Passes on what comes by TCP, and what comes back.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// The address to listen on; with port 0 the kernel chooses one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// The target: host and port
    #[arg(long)]
    to: String,
    /// How many connections are passed on at a time; others wait
    #[arg(long, default_value_t = 1000)]
    max_connections: usize,
}

#[sakia::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { listen, to, max_connections } = Arguments::parse();
    let listener = TcpListener::bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let options = ServeOptions::new()
        .max_connections(max_connections)
        .stop(async move { shutdown.requested().await })
        .deadline(Duration::from_secs(5))
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |client, _| pass_on(client, to.clone())).await?;
    println!("{served:?}");
    Ok(())
}

/// Connects a client to where it wants to go.
async fn pass_on(client: TcpStream, to: String) -> io::Result<()> {
    // The name is looked up each time: where it leads may change.
    let connect = ConnectOptions::new().nodelay(true).timeout(Duration::from_secs(10));
    let server = connect.connect(to).await?;
    client.set_nodelay(true)?;

    let ((client_reader, client_writer), (server_reader, server_writer)) =
        (client.into_split(), server.into_split());
    let client = (&mut Reader::new(client_reader), &mut Writer::new(client_writer));
    let server = (&mut Reader::new(server_reader), &mut Writer::new(server_writer));
    copy_bidirectional(client, server).await?;
    Ok(())
}
