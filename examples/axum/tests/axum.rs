//! Tests the program through its network interface.
#![expect(clippy::unwrap_used, reason = "the failure of a test is its report")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use examples_common::{Folder, Server, Sum, transfer_bytes};

fn serve(folder: &Folder) -> Server {
    Server::start(env!("CARGO_BIN_EXE_axum-on-sakia"), [folder.path()])
}

/// Returns the head and the body of the answer.
fn get(server: &Server, path: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let body = answer.split_off(end + 4);
    (String::from_utf8(answer).unwrap(), body)
}

#[test]
fn handlers_answer() {
    let folder = Folder::new("axum");
    fs::write(folder.path().join("small"), "0123456789").unwrap();
    let server = serve(&folder);
    assert_eq!(get(&server, "/hello/world").1, b"hello, world\n");
    let (head, body) = get(&server, "/files/small");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(body, b"0123456789");
    for (path, status) in [
        ("/files/missing", "404"),
        ("/nowhere", "404"),
        ("/files/..%2f..%2fetc%2fpasswd", "400"),
        ("/files/..", "400"),
        ("/files/%2fetc%2fpasswd", "400"),
        ("/files/%00", "400"),
    ] {
        let (head, _) = get(&server, path);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
    }
    assert_eq!(get(&server, "/statistics").1, br#"{"files":1,"bytes":10}"#);
    let ended = server.stop();
    assert!(ended.output.contains("failed: 0"), "{ended:?}");
    assert_eq!(ended.errors, "");
}

#[test]
fn files_are_sent_at_once() {
    let folder = Folder::new("axum-files");
    // The server holds each file in memory as a whole.
    let len = transfer_bytes().min(64 << 20);
    let sums =
        [("one", len), ("two", len / 2 + 1)].map(|(name, len)| (name, folder.fill(name, len, len)));
    let server = serve(&folder);
    // This client leaves before it has read the whole answer.
    let mut leaving = TcpStream::connect(server.address).unwrap();
    write!(leaving, "GET /files/one HTTP/1.1\r\nhost: example\r\n\r\n").unwrap();
    leaving.read_exact(&mut [0; 1000]).unwrap();
    thread::scope(|scope| {
        for (name, expected) in sums {
            let server = &server;
            scope.spawn(move || {
                let mut sum = Sum::default();
                sum.add(&get(server, &format!("/files/{name}")).1);
                assert_eq!(sum.value(), expected, "{name}");
            });
        }
    });
    drop(leaving);
    server.stop();
}
