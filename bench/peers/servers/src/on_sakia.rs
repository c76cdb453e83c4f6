//! The servers on Sakia.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::try_unfold;
use http_body_util::StreamBody;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use mini_redis::{Database, Limits, remove_expired};
use peers_common::{Door, Job};
use sakia::compat::Compat;
use sakia::fs::{Dir, File};
use sakia::io::{BufResultExt, IoBufMut};
use sakia::net::{TcpListener, TcpStream};
use sakia_driver::Policy;

use crate::{DATABASE_BYTES, Server, cell, text};

/// The maximum number of bytes of a file that are read at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// Serves until the process ends.
pub(crate) fn run(job: &Job, door: Door) -> io::Result<()> {
    let mut builder = sakia::Runtime::builder();
    if job.variant == "poll" {
        builder = builder.backend(Policy::Poll);
    }
    let server = cell(job);
    builder.build()?.block_on(async move {
        let listener = TcpListener::from_std(door.listen()?)?;
        match server {
            Server::Text => {
                each(&listener, |stream| {
                    sakia::spawn(serve_http(stream, service_fn(text))).detach();
                })
                .await
            }
            Server::Files(folder) => {
                let folder = Rc::new(Dir::open(folder).await?);
                each(&listener, |stream| {
                    let folder = Rc::clone(&folder);
                    let service = service_fn(move |request| file(Rc::clone(&folder), request));
                    sakia::spawn(serve_http(stream, service)).detach();
                })
                .await
            }
            Server::Redis => {
                let database = Arc::new(Database::new(DATABASE_BYTES));
                let sleep =
                    |at: Instant| sakia::time::sleep(at.saturating_duration_since(Instant::now()));
                sakia::spawn(remove_expired(Arc::clone(&database), sleep)).detach();
                each(&listener, |stream| {
                    let stream = Compat::unbuffered(stream);
                    let database = Arc::clone(&database);
                    let served = mini_redis::serve(stream, database, Limits::default(), pending());
                    sakia::spawn(served).detach();
                })
                .await
            }
        }
    })
}

/// Calls `start` for each connection.
async fn each(listener: &TcpListener, start: impl Fn(TcpStream)) -> io::Result<()> {
    loop {
        start(listener.accept().await?.0);
    }
}

async fn serve_http<S, B>(stream: TcpStream, service: S)
where
    S: Service<
            Request<Incoming>,
            Response = Response<B>,
            Error: std::error::Error + Send + Sync + 'static,
        >,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + 'static,
{
    let stream = Compat::unbuffered(stream);
    // The load notices a connection that fails.
    http1::Builder::new().serve_connection(stream, service).await.ok();
}

/// Returns a file of the folder, in large pieces.
async fn file(
    folder: Rc<Dir>,
    request: Request<Incoming>,
) -> io::Result<Response<StreamBody<impl Stream<Item = io::Result<Frame<Bytes>>>>>> {
    let name = request.uri().path().trim_start_matches('/');
    let file = folder.open_file(Path::new(OsStr::new(name))).await?;
    let size = file.metadata().await?.len();
    let response = Response::builder().header(CONTENT_LENGTH, size);
    let body = StreamBody::new(pieces(file, 0..size));
    Ok(response.body(body).expect("the header is a number"))
}

fn pieces(file: File, range: Range<u64>) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    try_unfold((file, range), async |(file, range)| {
        let len = PIECE_BYTES.min(range.end - range.start);
        if len == 0 {
            return Ok(None);
        }
        let room = Vec::with_capacity(len as usize).room(len as usize);
        let piece = file.read_exact_at(room, range.start).await.buffer()?.into_inner();
        let rest = range.start + len..range.end;
        Ok(Some((Frame::data(Bytes::from(piece)), (file, rest))))
    })
}
