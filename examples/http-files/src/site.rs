//! Answers requests with the files of a folder.
//!
//! A request opens its file, gets size and time with one call, and reads the content in large pieces, each
//! when hyper has room for it. So a connection has one piece in memory, whatever the size of the file, and a
//! small file takes a single read.

use std::error::Error;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::try_unfold;
use http_body_util::{Either, Full, StreamBody};
use hyper::body::{Body, Frame};
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue,
    LAST_MODIFIED,
};
use hyper::http::response::Builder;
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use sakia::fs::{Dir, File, OpenOptions};
use sakia::io::{BufResultExt, IoBufMut};

use crate::conditions::{Asked, Version};

/// The size of a piece read and passed to hyper. Cached data of this size is read without a wait and is still
/// in the processor's cache when it is sent. Pieces of 256 KiB cost more: each takes fresh memory from the
/// kernel, and a wait.
const PIECE_BYTES: u64 = 64 << 10;

type BoxError = Box<dyn Error + Send + Sync>;

/// A folder whose files are sent.
pub struct Site {
    folder: Dir,
    /// The options to open its files with.
    options: OpenOptions,
}

impl Site {
    /// Opens the folder.
    pub async fn open(folder: &Path) -> sakia::Result<Self> {
        // Opening a FIFO would wait for a writer, and FIFOs are not served.
        let options = OpenOptions::new().read(true).nonblocking(true).clone();
        Ok(Self { folder: Dir::open(folder).await?, options })
    }

    /// Answers a request; errors become answers as well.
    pub async fn answer<B>(
        &self,
        request: &Request<B>,
    ) -> Response<impl Body<Data = Bytes, Error = BoxError> + use<B>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(
                Response::builder().header(ALLOW, "GET, HEAD"),
                StatusCode::METHOD_NOT_ALLOWED,
            );
        }
        self.file(request).await.unwrap_or_else(|error| {
            let status = status_of(&error);
            if status.is_server_error() {
                eprintln!("{} {}: {error}", request.method(), request.uri().path());
            }
            text(Response::builder(), status)
        })
    }

    /// Answers with a file or the requested part of it.
    async fn file<B>(
        &self,
        request: &Request<B>,
    ) -> io::Result<Response<FileBody<impl Pieces + use<B>>>> {
        let path = request.uri().path();
        let name: Vec<u8> = percent_decode_str(path.strip_prefix('/').unwrap_or(path)).collect();
        // The kernel refuses paths that lead out of the folder, through `..` or symbolic links.
        let path = OsStr::from_bytes(&name);
        let (file, metadata) = self.folder.open_with_metadata(path, &self.options).await?;
        if !metadata.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let size = metadata.len();
        let version = Version::new(size, metadata.modified()?);
        let mut head = Response::builder()
            .header(ACCEPT_RANGES, "bytes")
            .header(ETAG, &version.tag)
            .header(LAST_MODIFIED, httpdate::fmt_http_date(version.modified));
        let range = match version.asked(request.headers(), size) {
            Asked::All => 0..size,
            Asked::Part(range) => {
                let part = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                head = head.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, part);
                range
            }
            Asked::Nothing => {
                let head = head.header(CONTENT_RANGE, format!("bytes */{size}"));
                return Ok(text(head, StatusCode::RANGE_NOT_SATISFIABLE));
            }
            Asked::Unchanged => {
                return Ok(finish(head.status(StatusCode::NOT_MODIFIED), Full::default()));
            }
        };
        let kind = mime_guess::from_path(Path::new(path)).first_raw();
        if let Some(kind) = kind {
            head = head.header(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        head = head.header(CONTENT_LENGTH, range.end - range.start);
        if request.method() == Method::HEAD {
            return Ok(finish(head, Full::default()));
        }
        let body = Either::Right(StreamBody::new(pieces(file, range)));
        Ok(head.body(body).expect("all headers are made here"))
    }
}

/// The body of an answer: a few bytes in memory, or a part of a file.
type FileBody<S> = Either<Full<Bytes>, StreamBody<S>>;

/// A stream of pieces, in the form hyper expects.
trait Pieces: Stream<Item = io::Result<Frame<Bytes>>> {}

impl<S: Stream<Item = io::Result<Frame<Bytes>>>> Pieces for S {}

/// Returns the bytes of a range, in pieces. The headers have announced their number, so a file that ends
/// early is an error, which aborts the connection or the stream: the client learns that data is missing.
fn pieces(file: File, range: Range<u64>) -> impl Pieces {
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

/// Returns an answer without a file; its body is the status in words.
fn text<S>(head: Builder, status: StatusCode) -> Response<FileBody<S>> {
    finish(head.status(status), Full::from(format!("{status}\n")))
}

fn finish<S>(head: Builder, body: Full<Bytes>) -> Response<FileBody<S>> {
    head.body(Either::Left(body)).expect("all headers are made here")
}

/// Returns the status for an error.
fn status_of(error: &io::Error) -> StatusCode {
    /// `ENXIO`: the path names a socket.
    const NO_DEVICE: i32 = 6;
    match error.kind() {
        _ if errno(error) == Some(NO_DEVICE) => StatusCode::NOT_FOUND,
        ErrorKind::NotFound | ErrorKind::NotADirectory => StatusCode::NOT_FOUND,
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => StatusCode::BAD_REQUEST,
        // `EXDEV`: the path leads out of the folder.
        ErrorKind::PermissionDenied | ErrorKind::CrossesDevices => StatusCode::FORBIDDEN,
        ErrorKind::ResourceBusy => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the errno of an error, which may be wrapped in one that names operation and path.
fn errno(error: &io::Error) -> Option<i32> {
    let within = || error.get_ref()?.downcast_ref::<sakia::fs::Error>()?.raw_os_error();
    error.raw_os_error().or_else(within)
}
