//! A small HTTP/1.1 server of files, which the kernel sends by itself.
//!
//! `GET` sends a file below the folder, or a range of it, `HEAD` its size. It does its own framing:
//! `httparse` finds the end of a head, and a body is a call of `send_file`. It prints its address, serves
//! until SIGINT or SIGTERM, lets answers that were begun end, and prints what it did. Run it with
//! `cargo run --release -p sakia --example http_send_file -- FOLDER --port 8080`, and ask it with `curl`.

use std::error::Error;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use std::{io, str};

use clap::Parser;
use sakia::fs::{Dir, File};
use sakia::io::{BufResultExt, Reader, Streamed};
use sakia::net::{ListenOptions, OwnedReadHalf, OwnedWriteHalf, ServeOptions, TcpStream, serve};
use sakia::shutdown::{Shutdown, on_signals};
use sakia::signal::SignalKind;
use sakia::time::timeout;

/// Serves the files of a folder by HTTP/1.1.
#[derive(Debug, Parser)]
struct Arguments {
    /// The directory of the files
    folder: PathBuf,
    /// The port to listen on; with 0 the kernel chooses one
    #[arg(long, default_value_t = 0)]
    port: u16,
}

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a connection is kept for the next request.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A request: its method and path.
struct Request {
    /// `GET` or `HEAD`; of others nothing else is known.
    method: String,
    /// The path, as it was sent.
    path: String,
    range: Option<String>,
    /// Another request may follow.
    keeps: bool,
}

/// An answer: a status, headers of its own, and bytes of a file.
struct Answer {
    status: &'static str,
    headers: String,
    body: Option<(File, Range<u64>)>,
}

impl Answer {
    /// An answer without a body.
    fn bare(status: &'static str) -> Self {
        Self { status, headers: String::new(), body: None }
    }
}

#[sakia::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    // Lookups cannot leave it: the kernel refuses `..` and links that lead out.
    let folder = Rc::new(Dir::open(&arguments.folder).await?);
    let address = ("127.0.0.1", arguments.port);
    let listener = ListenOptions::new().nodelay(true).bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
    let stop = shutdown.clone();
    let options = ServeOptions::new()
        .max_connections(10_000)
        .stop(async move { stop.requested().await })
        .deadline(Duration::from_secs(5))
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| {
        answer_all(stream, Rc::clone(&folder), shutdown.clone())
    });
    println!("{:?}", served.await?);
    Ok(())
}

/// Answers the requests of a connection, one after the other.
async fn answer_all(stream: TcpStream, folder: Rc<Dir>, shutdown: Shutdown) -> io::Result<()> {
    let (input, mut output) = stream.into_split();
    let mut input = Reader::with_block_bytes(input, HEAD_BYTES_MAX);
    loop {
        // A connection on which nothing was begun ends with the server.
        let request = sakia::select! {
            request = timeout(IDLE_MAX, next_request(&mut input)) => request,
            () = shutdown.requested() => return Ok(()),
        };
        let Ok(request) = request else { return Ok(()) };
        let (answer, is_head, keeps) = match request? {
            Some(Ok(request)) => {
                let keeps = request.keeps && !shutdown.is_requested();
                (answer(&request, &folder).await, request.method == "HEAD", keeps)
            }
            // The beginning of the next request is unknown.
            Some(Err(status)) => (Answer::bare(status), false, false),
            None => return Ok(()),
        };
        send(&mut output, answer, is_head, keeps).await?;
        if !keeps {
            return output.shutdown().await;
        }
    }
}

/// Reads the head of the next request. `None` at the end of the connection, the status if it is none.
async fn next_request(
    input: &mut Reader<Streamed<OwnedReadHalf>>,
) -> io::Result<Option<Result<Request, &'static str>>> {
    loop {
        let held = input.buffered().len();
        match parse(input.buffered()) {
            Ok(Some((request, len))) => {
                input.consume(len);
                return Ok(Some(Ok(request)));
            }
            Ok(None) if held >= HEAD_BYTES_MAX => {
                return Ok(Some(Err("431 Request Header Fields Too Large")));
            }
            Ok(None) => {}
            Err(status) => return Ok(Some(Err(status))),
        }
        if input.peek(held + 1).await?.len() == held {
            return Ok(None); // a part of a head asks for nothing
        }
    }
}

/// Takes a head apart, and tells how long it is. `None` if it is not whole.
fn parse(head: &[u8]) -> Result<Option<(Request, usize)>, &'static str> {
    const BAD: &str = "400 Bad Request";
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let len = match parsed.parse(head) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("431 Request Header Fields Too Large"),
        Err(_) => return Err(BAD),
    };
    let all = |name: &'static str| {
        let named =
            parsed.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| str::from_utf8(header.value).unwrap_or("").trim())
    };
    let is_new = parsed.version == Some(1);
    if is_new && all("host").count() != 1 {
        return Err(BAD);
    }
    // No method here has a body: one that comes all the same is not looked for.
    let has_body = all("transfer-encoding").next().is_some()
        || all("content-length").any(|length| length != "0");
    let mut options = all("connection").flat_map(|options| options.split(','));
    let closes = options.any(|option| option.trim().eq_ignore_ascii_case("close"));
    let whole = all("if-range").next().is_some(); // no validators are sent
    let request = Request {
        method: parsed.method.unwrap_or("").to_owned(),
        path: parsed.path.unwrap_or("").to_owned(),
        range: all("range").next().filter(|_| !whole).map(str::to_owned),
        keeps: is_new && !closes && !has_body,
    };
    Ok(Some((request, len)))
}

/// Finds the file, and what of it is to be sent.
async fn answer(request: &Request, folder: &Dir) -> Answer {
    if !["GET", "HEAD"].contains(&request.method.as_str()) {
        let headers = "allow: GET, HEAD\r\n".to_owned();
        return Answer { headers, ..Answer::bare("405 Method Not Allowed") };
    }
    let Some(path) = decoded(&request.path) else { return Answer::bare("400 Bad Request") };
    let file = match folder.open_file(path).await {
        Ok(file) => file,
        Err(error) => {
            // Paths that lead out of the folder are not told from those that lead nowhere.
            const OUT_OF_RESOURCES: [Option<i32>; 3] = [Some(12), Some(23), Some(24)];
            let is_busy = OUT_OF_RESOURCES.contains(&sakia::os_error(&error.into()));
            return Answer::bare(if is_busy { "503 Service Unavailable" } else { "404 Not Found" });
        }
    };
    let size = match file.metadata().await {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => return Answer::bare("404 Not Found"),
    };
    let range = request.range.as_deref().and_then(|range| range_of(range, size));
    let (status, headers, range) = match range {
        None => ("200 OK", String::new(), 0..size),
        Some(range) if range.is_empty() => {
            let headers = format!("content-range: bytes */{size}\r\n");
            return Answer { headers, ..Answer::bare("416 Range Not Satisfiable") };
        }
        Some(range) => {
            let (first, last) = (range.start, range.end - 1);
            let headers = format!("content-range: bytes {first}-{last}/{size}\r\n");
            ("206 Partial Content", headers, range)
        }
    };
    let headers = headers + "accept-ranges: bytes\r\n";
    Answer { status, headers, body: Some((file, range)) }
}

/// Sends an answer.
async fn send(
    output: &mut OwnedWriteHalf,
    answer: Answer,
    is_head: bool,
    keeps: bool,
) -> io::Result<()> {
    let Answer { status, headers, body } = answer;
    let range = body.as_ref().map_or(0..0, |(_, range)| range.clone());
    let len = range.end - range.start;
    let closing = if keeps { "" } else { "connection: close\r\n" };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\n{headers}{closing}\r\n");
    output.write_all(head).await.value()?;
    if let Some((file, _)) = body.filter(|_| !is_head) {
        let (result, sent) = output.send_file(&file, range).await;
        result?;
        if sent < len {
            // The peer waits for more, and can only be told by the end of the connection.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// The path of a target, relative to the folder. `None` if it is none.
fn decoded(target: &str) -> Option<String> {
    let path = target.split('?').next()?.strip_prefix('/')?;
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

/// The bytes that a header asks for, none if the file has none of them. `None` if that is not a single range:
/// all of the file is sent then.
fn range_of(header: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        return Some(size.saturating_sub(count)..size);
    }
    let first: u64 = first.parse().ok()?;
    let end = match last {
        "" => size,
        last => last.parse::<u64>().ok().filter(|&last| first <= last)?.saturating_add(1).min(size),
    };
    Some(first.min(end)..end)
}
