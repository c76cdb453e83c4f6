//! The servers on tokio.

use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use futures_util::stream::try_unfold;
use http_body_util::StreamBody;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use mini_redis::{Database, Limits, remove_expired};
use peers_common::{Door, Job};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tower_http::services::ServeDir;

use crate::{DATABASE_BYTES, Server, cell, text};

/// The maximum number of bytes of a file that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Serves until the process ends.
pub(crate) fn run(job: &Job, door: Door) -> io::Result<()> {
    let server = cell(job);
    let is_servedir = job.variant == "servedir";
    Builder::new_current_thread().enable_all().build()?.block_on(async move {
        let listener = door.listen()?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        match server {
            Server::Text => {
                each(&listener, |stream| {
                    tokio::spawn(serve_http(stream, service_fn(text)));
                })
                .await
            }
            Server::Files(folder) if is_servedir => {
                let service = ServeDir::new(folder);
                each(&listener, |stream| {
                    let service = TowerToHyperService::new(service.clone());
                    tokio::spawn(serve_http(stream, service));
                })
                .await
            }
            Server::Files(folder) => {
                let folder: Arc<Path> = folder.into();
                each(&listener, |stream| {
                    let folder = Arc::clone(&folder);
                    let service = service_fn(move |request: Request<Incoming>| {
                        file(folder.join(request.uri().path().trim_start_matches('/')))
                    });
                    tokio::spawn(serve_http(stream, service));
                })
                .await
            }
            Server::Redis => {
                let database = Arc::new(Database::new(DATABASE_BYTES));
                let sleep = |at: Instant| tokio::time::sleep_until(at.into());
                tokio::spawn(remove_expired(Arc::clone(&database), sleep));
                each(&listener, |stream| {
                    let database = Arc::clone(&database);
                    tokio::spawn(mini_redis::serve(stream, database, Limits::default(), pending()));
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
    // The load notices a connection that fails.
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

/// Returns a file in pieces.
async fn file(
    path: PathBuf,
) -> io::Result<Response<StreamBody<impl Stream<Item = io::Result<Frame<Bytes>>> + Send>>> {
    let file = File::open(path).await?;
    let size = file.metadata().await?.len();
    let response = Response::builder().header(CONTENT_LENGTH, size);
    Ok(response.body(StreamBody::new(pieces(file))).expect("the header is a number"))
}

fn pieces(file: File) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send {
    try_unfold(file, |mut file| async move {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        let count = file.read_buf(&mut piece).await?;
        Ok((count > 0).then(|| (Frame::data(piece.freeze()), file)))
    })
}
