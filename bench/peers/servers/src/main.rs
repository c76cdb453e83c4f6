//! Servers of HTTP and of the Redis protocol: the same code on Sakia and on tokio. Variants:
//!
//! - `sakia`: a runtime with its defaults. `poll`: on epoll.
//! - `tokio`: the current-thread runtime with its defaults. `servedir`: the same, and files by `ServeDir`
//!   of tower-http instead of a loop of reads of 64 KiB by `tokio::fs`.

mod on_sakia;
mod on_tokio;

use std::convert::Infallible;
use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{self, ExitCode};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use peers_common::{Cell, Job, fail, net};

/// The body that the HTTP server sends.
const TEXT: &[u8] = b"Hello, world!";
/// The size of the database: larger than the load's data.
const DATABASE_BYTES: usize = 64 << 20;

fn main() -> ExitCode {
    peers_common::main_with(|job| {
        let serve = match job.variant.as_str() {
            "sakia" | "poll" => on_sakia::run,
            "tokio" | "servedir" => on_tokio::run,
            other => fail("variant", other),
        };
        net::run(job, serve);
    })
}

/// The service of plain text.
async fn text<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(TEXT))))
}

/// Makes the folder with the file that is sent, whose bytes are then in the page cache.
fn folder(job: &Job) -> io::Result<PathBuf> {
    let folder = env::temp_dir().join("sakia-peers-servers");
    fs::create_dir_all(&folder)?;
    let bytes: Vec<u8> = (0..job.block).map(|place| (place % 251) as u8).collect();
    // A concurrent reader gets a whole file.
    let unfinished = folder.join(format!("unfinished-{}", process::id()));
    fs::write(&unfinished, bytes)?;
    fs::rename(unfinished, folder.join("file"))?;
    Ok(folder)
}

/// Returns the server of a job. Other jobs do not get here.
fn cell(job: &Job) -> Server {
    match job.cell {
        Cell::Http => Server::Text,
        Cell::Body => Server::Files(folder(job).unwrap_or_else(|error| fail("folder", error))),
        Cell::Redis => Server::Redis,
        other => fail("run", format_args!("no {} here", other.name())),
    }
}

/// A server.
enum Server {
    Text,
    Files(PathBuf),
    Redis,
}
