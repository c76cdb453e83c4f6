//! axum's router as the service of hyper, on Sakia's own runtime.
//!
//! It prints its address and serves until SIGINT or SIGTERM; then it completes the requests in progress. Run
//! it with `cargo run --release -p axum-on-sakia -- FOLDER`, and query it with `curl
//! http://ADDRESS/files/NAME`, `/hello/NAME` and `/statistics`.
//!
//! axum requires handlers whose futures are `Send`. Those of `sakia::fs` are not: they belong to their thread
//! and its ring. So the handlers read files through the [`Engine`], which any thread may use: cached files
//! are read on the thread that awaits them, others by the engine's own threads.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};
use std::path::{Component, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use clap::Parser;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use sakia::Engine;
use sakia::compat::Compat;
use sakia::compat::hyper::{SakiaExecutor, SakiaTimer};
use sakia::net::{ListenOptions, ServeOptions, TcpStream, serve};
use sakia::shutdown::{Shutdown, on_signals};
use sakia::signal::SignalKind;
use serde::Serialize;

/// Serves a few routes, and the files of a folder.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder whose files are sent
    folder: PathBuf,
    /// The address to listen on; with port 0 the kernel chooses one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

/// The time limit for a client to send a request, and for it to accept any part of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that requests in progress have after the signal.
const DEADLINE: Duration = Duration::from_secs(10);

/// State shared by the handlers.
struct Site {
    folder: PathBuf,
    files: AtomicU64,
    bytes: AtomicU64,
}

#[sakia::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let folder = sakia::fs::canonicalize(&arguments.folder).await?;
    let site = Site { folder, files: AtomicU64::new(0), bytes: AtomicU64::new(0) };
    let app = Router::new()
        .route("/hello/{name}", get(hello))
        .route("/files/{name}", get(file))
        .route("/statistics", get(statistics))
        .with_state(Arc::new(site));

    let listener = ListenOptions::new().nodelay(true).bind(&arguments.listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let asked = shutdown.clone();
    let options = ServeOptions::new()
        .max_connections(10_000)
        .stop(async move { asked.requested().await })
        .deadline(DEADLINE)
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| {
        connection(stream, app.clone(), shutdown.clone())
    });
    println!("{:?}", served.await?);
    Ok(())
}

/// Passes the requests of a connection to the router, until the connection ends or a shutdown is requested.
async fn connection(stream: TcpStream, app: Router, shutdown: Shutdown) -> io::Result<()> {
    stream.set_user_timeout(Some(PATIENCE))?;
    let mut builder = auto::Builder::new(SakiaExecutor::new());
    builder.http1().timer(SakiaTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(SakiaTimer::new()).keep_alive_interval(PATIENCE);
    // Only the handlers are `Send`. The connection that drives them is not, and stays on its thread.
    let service = TowerToHyperService::new(app);
    let mut connection = pin!(builder.serve_connection(Compat::unbuffered(stream), service));
    let result = sakia::select! {
        result = connection.as_mut() => result,
        () = shutdown.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        },
    };
    result.map_err(io::Error::other)
}

async fn hello(Path(name): Path<String>) -> String {
    format!("hello, {name}\n")
}

/// Sends a whole file of the folder from memory, so several such files must fit in it.
async fn file(State(site): State<Arc<Site>>, Path(name): Path<String>) -> Result<Vec<u8>, Refusal> {
    // Accepts a single file name, never a path to another folder.
    let mut parts = std::path::Path::new(&name).components();
    let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else {
        return Err(Refusal(ErrorKind::InvalidInput.into()));
    };
    let bytes = Engine::global()?.read(site.folder.join(name)).await?;
    site.files.fetch_add(1, Ordering::Relaxed);
    site.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    Ok(bytes)
}

/// Totals of the files sent so far.
#[derive(Serialize)]
struct Statistics {
    files: u64,
    bytes: u64,
}

async fn statistics(State(site): State<Arc<Site>>) -> Json<Statistics> {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Json(Statistics { files: read(&site.files), bytes: read(&site.bytes) })
}

/// An error, as an HTTP response.
struct Refusal(io::Error);

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidFilename => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
            _ => {
                eprintln!("{}", self.0);
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        (status, format!("{status}\n")).into_response()
    }
}
