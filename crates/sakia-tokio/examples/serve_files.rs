//! A file service on tokio and axum, with the files of `sakia_tokio::fs`.
//!
//! `GET` sends a file while it is read, or a range of it; `PUT` creates one, or replaces it as a whole. It
//! prints its address, and serves until SIGINT or SIGTERM; requests in progress are finished then. Run it
//! with `cargo run --release -p sakia-tokio --example serve_files -- FOLDER [ADDRESS]`.

use std::error::Error;
use std::io::{self, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::TryStreamExt;
use sakia_tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::io::{ReaderStream, StreamReader};

/// Size of a read, and of a part sent, in bytes.
const PART_BYTES: usize = 64 << 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(folder) = arguments.next() else {
        return Err("usage: serve_files FOLDER [ADDRESS]".into());
    };
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let folder = fs::canonicalize(folder).await?;
    let listener = TcpListener::bind(address.to_string_lossy().as_ref()).await?;
    println!("listening on {}", listener.local_addr()?);

    let app = Router::new()
        .route("/{*path}", get(send).put(receive))
        .with_state(Arc::from(folder.as_path()));
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    println!("stopped");
    Ok(())
}

/// The reason why a request is refused.
enum Refusal {
    Io(io::Error),
    Status(StatusCode),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Status(status) => status.into_response(),
            Self::Io(error) => {
                let status = match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StatusCode::NOT_FOUND,
                    io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
                    io::ErrorKind::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                (status, format!("{error}\n")).into_response()
            }
        }
    }
}

/// Returns the path of the requested file, below the folder.
///
/// Paths that lead out of it are refused, by name or by links. A user who may change the folder meanwhile
/// can still put a link there.
async fn place(folder: &Path, uri: &Uri) -> Result<PathBuf, Refusal> {
    let name = percent_decoded(uri.path()).ok_or(Refusal::Status(StatusCode::BAD_REQUEST))?;
    let name = Path::new(name.trim_start_matches('/'));
    if !name.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(Refusal::Status(StatusCode::BAD_REQUEST));
    }
    let path = folder.join(name);
    let parent = path.parent().unwrap_or(folder);
    if !fs::canonicalize(parent).await?.starts_with(folder) {
        return Err(Refusal::Status(StatusCode::FORBIDDEN));
    }
    match fs::symlink_metadata(&path).await {
        Ok(metadata) if !metadata.is_file() => Err(Refusal::Status(StatusCode::FORBIDDEN)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(path),
    }
}

/// Decodes the `%` escapes of a path; `None` if the result is no text, or has a zero byte.
fn percent_decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

/// Sends a file, or the requested part of it.
async fn send(
    State(folder): State<Arc<Path>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let path = place(&folder, &uri).await?;
    let mut file = File::open(path).await?;
    let size = file.metadata().await?.len();
    let Ok(range) = range(&headers, size) else {
        let all = [(CONTENT_RANGE, format!("bytes */{size}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, all).into_response());
    };
    let (status, begin, end) = match range {
        Some((begin, end)) => (StatusCode::PARTIAL_CONTENT, begin, end),
        None => (StatusCode::OK, 0, size),
    };
    file.seek(SeekFrom::Start(begin)).await?;
    // Exactly the announced length, even if the file grows meanwhile.
    let body = Body::from_stream(ReaderStream::with_capacity(file.take(end - begin), PART_BYTES));
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, (end - begin).into());
    headers.insert(ACCEPT_RANGES, "bytes".parse().map_err(io::Error::other)?);
    if range.is_some() {
        let range = format!("bytes {begin}-{}/{size}", end - 1);
        headers.insert(CONTENT_RANGE, range.parse().map_err(io::Error::other)?);
    }
    Ok(response)
}

/// Returns the one requested range, from its first byte to after its last. Invalid ranges are ignored, and
/// so are several ranges; an empty one is an error.
fn range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let asked = headers.get(RANGE).and_then(|value| value.to_str().ok()?.strip_prefix("bytes="));
    let Some((first, last)) = asked.and_then(|asked| asked.split_once('-')) else {
        return Ok(None);
    };
    let (begin, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) => (first, last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.is_empty() => (first, size),
        (Err(_), Ok(count)) if first.is_empty() => (size.saturating_sub(count), size),
        _ => return Ok(None),
    };
    if begin < end { Ok(Some((begin, end))) } else { Err(()) }
}

/// Stores the request's body: under a temporary name until it is complete, so that readers never see a part.
async fn receive(
    State(folder): State<Arc<Path>>,
    uri: Uri,
    body: Body,
) -> Result<StatusCode, Refusal> {
    static NEXT: AtomicU64 = AtomicU64::new(0);

    let path = place(&folder, &uri).await?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!(".put-{}-{number}", std::process::id());
    let part = path.with_file_name(name);
    let was_there = fs::try_exists(&path).await?;
    match save(body, &part, &path).await {
        Ok(()) if was_there => Ok(StatusCode::NO_CONTENT),
        Ok(()) => Ok(StatusCode::CREATED),
        Err(error) => {
            // It may not exist yet.
            fs::remove_file(&part).await.ok();
            Err(error.into())
        }
    }
}

async fn save(body: Body, part: &Path, path: &Path) -> io::Result<()> {
    let mut file = File::create_new(part).await?;
    let mut body = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    tokio::io::copy_buf(&mut body, &mut file).await?;
    // The last write is in flight until here.
    file.flush().await?;
    file.sync_data().await?;
    fs::rename(part, path).await
}
