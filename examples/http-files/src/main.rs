//! Files over HTTP: HTTP/1.1 and HTTP/2 on one port, with hyper on Sakia.
//!
//! It prints its address and serves the files below a folder until SIGINT or SIGTERM; then it completes the
//! requests in progress. Run it with `cargo run --release -p http-files -- FOLDER --listen 127.0.0.1:8080`,
//! and get a file with `curl http://127.0.0.1:8080/NAME`, or `curl --http2-prior-knowledge`.
#![forbid(unsafe_code)]

mod conditions;
mod site;

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use hyper::service::service_fn;
use hyper_util::server::conn::auto;
use sakia::compat::Compat;
use sakia::compat::hyper::{SakiaExecutor, SakiaTimer};
use sakia::net::{ListenOptions, ServeOptions, TcpStream, serve};
use sakia::shutdown::{Shutdown, on_signals};
use sakia::signal::SignalKind;

use self::site::Site;

/// Serves the files below a folder by HTTP.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder; nothing outside of it can be reached
    folder: PathBuf,
    /// The address to listen on; with port 0 the kernel chooses one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// Connections at a time, at most; others wait to be accepted
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Seconds that requests may go on after the signal
    #[arg(long, default_value_t = 10)]
    deadline: u64,
}

/// The time limit for a client to send a request, and for it to accept any part of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

#[sakia::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let site = Rc::new(Site::open(&arguments.folder).await?);
    let listener = ListenOptions::new().nodelay(true).bind(&arguments.listen).await?;
    println!("listening on {}", listener.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let asked = shutdown.clone();
    let options = ServeOptions::new()
        .max_connections(arguments.connections)
        .stop(async move { asked.requested().await })
        .deadline(Duration::from_secs(arguments.deadline))
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| {
        connection(stream, Rc::clone(&site), shutdown.clone())
    });
    println!("{:?}", served.await?);
    Ok(())
}

/// Answers the requests of one connection, until it ends or a shutdown is requested.
async fn connection(stream: TcpStream, site: Rc<Site>, shutdown: Shutdown) -> io::Result<()> {
    // The kernel aborts a connection whose peer acknowledges nothing for this long.
    stream.set_user_timeout(Some(PATIENCE))?;
    let service = service_fn(move |request| {
        let site = Rc::clone(&site);
        async move { Ok::<_, Infallible>(site.answer(&request).await) }
    });
    let mut builder = auto::Builder::new(SakiaExecutor::new());
    builder.http1().timer(SakiaTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(SakiaTimer::new()).keep_alive_interval(PATIENCE);
    // No buffer in between: hyper has its own, and passes the pieces of files through without copying them.
    let connection = builder.serve_connection(Compat::unbuffered(stream), service);
    let mut connection = pin!(connection);
    let result = sakia::select! {
        result = connection.as_mut() => result,
        () = shutdown.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        },
    };
    let error = match result.map_err(anyhow::Error::from_boxed) {
        Err(error) if !has_left(&error) => error,
        _ => return Ok(()),
    };
    // The text of hyper's error does not include the cause.
    Err(io::Error::other(format!("{error:#}")))
}

/// Returns whether the connection ended because the client left, which is no error.
fn has_left(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|error| error.downcast_ref::<io::Error>()).any(|error| {
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    })
}
