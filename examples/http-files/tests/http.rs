//! Tests the program through its network interface, with both versions of HTTP.
#![expect(clippy::unwrap_used, reason = "the failure of a test is its report")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use examples_common::{Folder, Server, Sum, transfer_bytes};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    LAST_MODIFIED, RANGE,
};
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

fn serve(folder: &Folder) -> Server {
    serve_path(folder.path())
}

fn serve_path(path: &Path) -> Server {
    // Answers in progress may take long here.
    let arguments = ["--deadline".as_ref(), "600".as_ref(), path.as_os_str()];
    Server::start(env!("CARGO_BIN_EXE_http-files"), arguments)
}

/// A connection with one of the versions.
enum Client {
    One(http1::SendRequest<Empty<Bytes>>),
    Two(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    async fn one(server: &Server) -> Self {
        let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Self::One(sender)
    }

    async fn two(server: &Server) -> Self {
        let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Self::Two(sender)
    }

    async fn both(server: &Server) -> [Self; 2] {
        [Self::one(server).await, Self::two(server).await]
    }

    async fn send(&mut self, request: Builder) -> Response<Incoming> {
        let request = request.body(Empty::new()).unwrap();
        match self {
            Self::One(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::Two(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
        }
    }

    /// Returns a GET request in the form of the client's version.
    fn get(&self, path: &str) -> Builder {
        match self {
            Self::One(_) => Request::get(path).header("host", "example"),
            Self::Two(_) => Request::get(format!("http://example{path}")),
        }
    }

    async fn sum(&mut self, path: &str) -> u128 {
        let response = self.send(self.get(path)).await;
        assert_eq!(response.status(), StatusCode::OK);
        sum(response.into_body()).await.unwrap()
    }
}

async fn sum(mut body: Incoming) -> hyper::Result<u128> {
    let mut sum = Sum::default();
    while let Some(frame) = body.frame().await {
        sum.add(frame?.data_ref().unwrap());
    }
    Ok(sum.value())
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn header(response: &Response<Incoming>, name: impl hyper::header::AsHeaderName) -> &str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn contents_are_those_of_the_file() {
    let folder = Folder::new("contents");
    let len = transfer_bytes();
    let sums = [("one", len), ("two", len / 2 + 1), ("empty", 0), ("small", 4096)]
        .map(|(name, len)| folder.fill(name, len, len));
    let server = serve(&folder);
    // Two requests concurrently, on two connections.
    let [mut first, mut second] = Client::both(&server).await;
    let (one, two) = tokio::join!(first.sum("/one"), second.sum("/two"));
    assert_eq!((one, two), (sums[0], sums[1]));
    for mut client in Client::both(&server).await {
        // Several requests in sequence on one connection.
        assert_eq!(client.sum("/empty").await, sums[2]);
        assert_eq!(client.sum("/small").await, sums[3]);
    }
    // Two requests concurrently on one connection.
    let Client::Two(mut sender) = Client::two(&server).await else { unreachable!() };
    let mut get = async |name| {
        let request = Request::get(format!("http://example/{name}")).body(Empty::new()).unwrap();
        sender.send_request(request).await.unwrap().into_body()
    };
    let (one, two) = (get("one").await, get("two").await);
    let (one, two) = tokio::join!(sum(one), sum(two));
    assert_eq!((one.unwrap(), two.unwrap()), (sums[0], sums[1]));
    let ended = server.stop();
    assert!(ended.output.contains("failed: 0, "), "{ended:?}");
    assert_eq!(ended.errors, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn parts_and_heads_are_sent() {
    let folder = Folder::new("parts");
    std::fs::write(folder.path().join("a file.html"), "0123456789").unwrap();
    let server = serve(&folder);
    for mut client in Client::both(&server).await {
        let path = "/a%20file.html";
        let whole = client.send(client.get(path)).await;
        assert_eq!(header(&whole, ACCEPT_RANGES), "bytes");
        assert_eq!(header(&whole, CONTENT_LENGTH), "10");
        assert_eq!(header(&whole, CONTENT_TYPE), "text/html");
        assert!(header(&whole, LAST_MODIFIED).ends_with(" GMT"));
        let tag = header(&whole, ETAG).to_owned();
        assert_eq!(text(whole).await, "0123456789");

        let head = client.send(client.get(path).method("HEAD")).await;
        assert_eq!((head.status(), header(&head, CONTENT_LENGTH)), (StatusCode::OK, "10"));
        assert_eq!(text(head).await, "");

        for (range, part, bytes) in [
            ("bytes=2-4", "bytes 2-4/10", "234"),
            ("bytes=7-", "bytes 7-9/10", "789"),
            ("bytes=-1", "bytes 9-9/10", "9"),
        ] {
            let answer = client.send(client.get(path).header(RANGE, range)).await;
            assert_eq!(answer.status(), StatusCode::PARTIAL_CONTENT);
            assert_eq!(header(&answer, CONTENT_RANGE), part);
            assert_eq!(header(&answer, CONTENT_LENGTH), bytes.len().to_string());
            assert_eq!(text(answer).await, bytes);
        }
        let answer = client.send(client.get(path).header(RANGE, "bytes=10-")).await;
        assert_eq!(answer.status(), StatusCode::RANGE_NOT_SATISFIABLE);
        assert_eq!(header(&answer, CONTENT_RANGE), "bytes */10");
        text(answer).await;

        let answer = client.send(client.get(path).header(IF_NONE_MATCH, &tag)).await;
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(text(answer).await, "");
    }
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_files_below_the_folder_are_sent() {
    let folder = Folder::new("below");
    std::fs::create_dir_all(folder.path().join("served/folder")).unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    std::fs::write(folder.path().join("served/public"), "public").unwrap();
    symlink("../secret", folder.path().join("served/link")).unwrap();
    symlink("public", folder.path().join("served/inner")).unwrap();
    // The FIFO has no writer, and no request may wait for one.
    let made = Command::new("mkfifo").arg(folder.path().join("served/fifo")).status().unwrap();
    assert!(made.success());
    let _socket = UnixListener::bind(folder.path().join("served/socket")).unwrap();
    let server = serve_path(&folder.path().join("served"));
    for mut client in Client::both(&server).await {
        for (path, status) in [
            ("/public", StatusCode::OK),
            ("/inner", StatusCode::OK),
            ("/folder/../public", StatusCode::OK),
            ("/../secret", StatusCode::FORBIDDEN),
            ("/%2e%2e/secret", StatusCode::FORBIDDEN),
            ("/folder/..%2f../secret", StatusCode::FORBIDDEN),
            ("//etc/passwd", StatusCode::FORBIDDEN),
            ("/%2fetc/passwd", StatusCode::FORBIDDEN),
            ("/link", StatusCode::FORBIDDEN),
            ("/", StatusCode::NOT_FOUND),
            ("/folder", StatusCode::NOT_FOUND),
            ("/fifo", StatusCode::NOT_FOUND),
            ("/socket", StatusCode::NOT_FOUND),
            ("/missing", StatusCode::NOT_FOUND),
            ("/public/below", StatusCode::NOT_FOUND),
            ("/%00", StatusCode::BAD_REQUEST),
        ] {
            let answer = client.send(client.get(path)).await;
            assert_eq!(answer.status(), status, "{path}");
            assert!(!text(answer).await.contains("secret"), "{path}");
        }
        let answer = client.send(client.get("/public").method("POST")).await;
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(header(&answer, ALLOW), "GET, HEAD");
    }
    let ended = server.stop();
    assert_eq!(ended.errors, "");
}

/// Creates a sparse file, which takes no room on the disk.
fn sparse(folder: &Folder, name: &str, len: u64) {
    File::create(folder.path().join(name)).unwrap().set_len(len).unwrap();
}

/// More bytes than the socket buffers on the way hold.
const LONG: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn clients_may_leave_in_the_middle() {
    let folder = Folder::new("leave");
    sparse(&folder, "long", LONG);
    let expected = folder.fill("other", transfer_bytes(), 1);
    let server = serve(&folder);
    for other in Client::both(&server).await {
        for mut leaving in Client::both(&server).await {
            let mut body = leaving.send(leaving.get("/long")).await.into_body();
            body.frame().await.unwrap().unwrap();
            drop((body, leaving));
        }
        let mut other = other;
        assert_eq!(other.sum("/other").await, expected);
    }
    // With HTTP/2 the client cancels only the answer, not the connection.
    let mut client = Client::two(&server).await;
    let mut body = client.send(client.get("/long")).await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(client.sum("/other").await, expected);
    drop(client);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn clients_that_never_read_cost_little() {
    let folder = Folder::new("never");
    sparse(&folder, "long", LONG);
    let expected = folder.fill("other", transfer_bytes(), 2);
    let server = serve(&folder);
    let mut bodies = Vec::new();
    for _ in 0..16 {
        let [mut one, mut two] = Client::both(&server).await;
        let body = one.send(one.get("/long")).await.into_body();
        bodies.push((one, body));
        // Several streams on one connection, of which none is read.
        let Client::Two(sender) = &two else { unreachable!() };
        let more = Client::Two(sender.clone());
        let body = two.send(two.get("/long")).await.into_body();
        bodies.push((two, body));
        let mut more = more;
        let body = more.send(more.get("/long")).await.into_body();
        bodies.push((more, body));
    }
    for mut client in Client::both(&server).await {
        assert_eq!(client.sum("/other").await, expected);
    }
    // Per answer, of 48, one piece read and one being sent, plus memory for the program itself.
    let most = 100 << 20;
    assert!(server.memory_bytes_max() < most, "{} bytes", server.memory_bytes_max());
    drop(bodies);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_answer_under_way_is_finished() {
    let folder = Folder::new("finished");
    let expected = folder.fill("long", 20 << 20, 3);
    for version in 0..2 {
        let server = serve(&folder);
        let mut client = Client::both(&server).await.into_iter().nth(version).unwrap();
        let body = client.send(client.get("/long")).await.into_body();
        server.terminate();
        assert_eq!(sum(body).await.unwrap(), expected);
        drop(client);
        let ended = server.wait();
        assert!(ended.status.success() && ended.output.contains("canceled: 0"), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_that_shrinks_is_an_error() {
    let folder = Folder::new("shrinks");
    let server = serve(&folder);
    for mut client in Client::both(&server).await {
        sparse(&folder, "long", LONG);
        let body = client.send(client.get("/long")).await.into_body();
        OpenOptions::new()
            .write(true)
            .open(folder.path().join("long"))
            .unwrap()
            .set_len(1)
            .unwrap();
        assert!(sum(body).await.is_err());
    }
    let ended = server.stop();
    // The error ends the connection with HTTP/1.1, only the answer with HTTP/2.
    assert!(ended.output.contains("failed: 1,"), "{ended:?}");
    assert!(ended.errors.contains("user's Body stream: unexpected end of file"), "{ended:?}");
}

#[test]
fn a_missing_folder_is_an_error() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_http-files"));
    let output = command.arg("/nonexistent/folder").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("/nonexistent/folder") && errors.contains("No such file"), "{errors}");
}
