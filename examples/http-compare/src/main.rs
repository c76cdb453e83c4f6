//! Files over HTTP/1.1, from `http-files` and from servers on tokio: requests per second of processor time.
//!
//! `cargo build --release --workspace && target/release/http-compare` starts each server once per round, in
//! alternating order, and sends it the same requests. The servers on tokio have one thread, and tokio's
//! blocking threads for files.
#![forbid(unsafe_code)]

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use examples_common::{Folder, Server};
use futures_util::Stream;
use futures_util::stream::try_unfold;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use nix::sys::resource::{UsageWho, getrusage};
use tokio::io::AsyncReadExt;
use tower_http::services::ServeDir;

/// Compares servers of files.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Rounds of each server
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Requests in a round
    #[arg(long, default_value_t = 4096)]
    requests: usize,
    /// Connections that send them, one after the other each
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Bytes of the file
    #[arg(long, default_value_t = 200_000)]
    bytes: u64,
}

#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Serves a folder by tower-http's `ServeDir`
    ServeDir { folder: PathBuf },
    /// Serves a folder by a loop of `tokio::fs` reads of 64 KiB
    Loop { folder: PathBuf },
}

/// The servers; each ratio compares the first with one of them.
const SERVERS: [&str; 3] = ["http-files", "serve-dir", "loop"];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.role {
        None => compare(&arguments),
        Some(role) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(serve(role.clone()))
        }
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    let folder = Folder::new("http-compare");
    folder.fill("file", arguments.bytes, 1);
    let mut rates = SERVERS.map(|_| Vec::new());
    for round in 0..arguments.rounds {
        for index in (0..SERVERS.len()).map(|index| (index + round) % SERVERS.len()) {
            rates[index].push(rate(SERVERS[index], folder.path(), arguments)?);
        }
    }
    let Arguments { rounds, connections, bytes, .. } = arguments;
    println!("{bytes} bytes, {connections} connections, medians of {rounds} rounds");
    for (name, rates_of) in SERVERS.iter().zip(&rates) {
        let ratios = rates[0].iter().zip(rates_of).map(|(first, of)| first / of);
        let (rate, ratio) = (median(rates_of.clone()), median(ratios.collect()));
        println!("{name:<12} {rate:>8.0} requests per CPU second, http-files has {ratio:.2} of it");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the requests per second of processor time that a server answers, from its start to its end.
fn rate(name: &str, folder: &Path, arguments: &Arguments) -> Result<f64> {
    let before = children_seconds()?;
    let server = match name {
        "http-files" => Server::start(program(name)?, [folder]),
        role => Server::start(env::current_exe()?, [Path::new(role), folder]),
    };
    let each = arguments.requests / arguments.connections;
    let address = server.address;
    let clients: Vec<_> =
        (0..arguments.connections).map(|_| thread::spawn(move || request(address, each))).collect();
    for client in clients {
        client.join().expect("a client does not panic")?;
    }
    server.terminate();
    server.wait();
    Ok((each * arguments.connections) as f64 / (children_seconds()? - before))
}

/// Returns the path of another program of this workspace.
fn program(name: &str) -> Result<PathBuf> {
    let path = env::current_exe()?.with_file_name(name);
    if !path.exists() {
        bail!("{} is not built; build the workspace", path.display());
    }
    Ok(path)
}

/// Returns the processor time of the servers that have ended.
fn children_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = [usage.user_time(), usage.system_time()];
    Ok(times.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum())
}

/// Sends `count` requests and reads the answers.
fn request(address: SocketAddr, count: usize) -> Result<()> {
    let mut stream = BufReader::with_capacity(256 << 10, TcpStream::connect(address)?);
    let (mut line, mut body) = (String::new(), Vec::new());
    for _ in 0..count {
        stream.get_mut().write_all(b"GET /file HTTP/1.1\r\nhost: example\r\n\r\n")?;
        let mut len = None;
        loop {
            line.clear();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else {
                if line.starts_with("HTTP/1.1 200 ") {
                    continue;
                }
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                len = Some(value.trim().parse()?);
            }
        }
        body.resize(len.context("no length, or no file")?, 0);
        stream.read_exact(&mut body)?;
    }
    Ok(())
}

/// Serves on tokio until a signal kills the process.
async fn serve(role: Role) -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (stream, server) = (TokioIo::new(stream), http1::Builder::new());
        match role.clone() {
            Role::ServeDir { folder } => {
                let service = TowerToHyperService::new(ServeDir::new(folder));
                tokio::spawn(server.serve_connection(stream, service));
            }
            Role::Loop { folder } => {
                let service = service_fn(move |request| file(folder.clone(), request));
                tokio::spawn(server.serve_connection(stream, service));
            }
        }
    }
}

/// Answers with a file as most hand-written programs do.
async fn file(
    folder: PathBuf,
    request: Request<Incoming>,
) -> Result<Response<StreamBody<impl Stream<Item = io::Result<Frame<Bytes>>>>>> {
    let file = tokio::fs::File::open(folder.join(&request.uri().path()[1..])).await?;
    let len = file.metadata().await?.len();
    let pieces = try_unfold(file, async |mut file| {
        let mut piece = Vec::with_capacity(64 << 10);
        let count = file.read_buf(&mut piece).await?;
        Ok((count > 0).then(|| (Frame::data(Bytes::from(piece)), file)))
    });
    Ok(Response::builder().header(CONTENT_LENGTH, len).body(StreamBody::new(pieces))?)
}
