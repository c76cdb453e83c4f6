//! Tests the program through its command line and network interface.
#![expect(clippy::unwrap_used, reason = "the failure of a test is its report")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use examples_common::{Folder, Server, Sum, transfer_bytes};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tls-echo");

fn serve(folder: &Folder) -> Server {
    let certificate = folder.path().join("certificate");
    Server::start(PROGRAM, ["serve".as_ref(), "--certificate".as_ref(), certificate.as_os_str()])
}

/// Starts the program as a client.
fn send(address: &str, folder: &Folder, input: impl Into<Stdio>) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(["send", address, "--certificate"]).arg(folder.path().join("certificate"));
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends a file and returns the checksum of the echoed bytes.
fn echoed(server: &Server, folder: &Folder, name: &str) -> u128 {
    let file = File::open(folder.path().join(name)).unwrap();
    let mut client = send(&server.address.to_string(), folder, file);
    let mut output = client.stdout.take().unwrap();
    let (mut sum, mut bytes) = (Sum::default(), vec![0; 1 << 20]);
    loop {
        let count = output.read(&mut bytes).unwrap();
        if count == 0 {
            break;
        }
        sum.add(&bytes[..count]);
    }
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    sum.value()
}

/// Connects a client whose socket the test controls.
fn connect(server: &Server, folder: &Folder) -> StreamOwned<ClientConnection, TcpStream> {
    let pem = std::fs::read(folder.path().join("certificate")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, TcpStream::connect(server.address).unwrap())
}

#[test]
fn what_was_sent_comes_back() {
    let folder = Folder::new("tls-echo");
    let len = transfer_bytes();
    let sums = [("one", len), ("two", len / 2 + 1), ("empty", 0)]
        .map(|(name, len)| (name, folder.fill(name, len, len)));
    let server = serve(&folder);
    // All files concurrently.
    thread::scope(|scope| {
        for (name, sum) in sums {
            let (server, folder) = (&server, &folder);
            scope.spawn(move || assert_eq!(echoed(server, folder, name), sum));
        }
    });
    let ended = server.stop();
    assert!(ended.output.contains("completed: 3, failed: 0"), "{ended:?}");
}

#[test]
fn clients_may_leave_in_the_middle() {
    let folder = Folder::new("tls-leave");
    let expected = folder.fill("file", transfer_bytes(), 1);
    let server = serve(&folder);
    let mut client = send(&server.address.to_string(), &folder, Stdio::piped());
    client.stdin.as_mut().unwrap().write_all(&[7; 1 << 16]).unwrap();
    // Some bytes have come back, and the rest is in transit.
    client.stdout.as_mut().unwrap().read_exact(&mut [0; 1000]).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(echoed(&server, &folder, "file"), expected);
    let ended = server.stop();
    assert!(ended.output.contains("completed: 1, failed: 1"), "{ended:?}");
}

#[test]
fn an_end_without_notice_is_told_by_the_server() {
    let folder = Folder::new("tls-client-ends");
    let server = serve(&folder);
    let mut client = connect(&server, &folder);
    client.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
    client.sock.shutdown(Shutdown::Write).unwrap();
    // The server closes the connection without a `close_notify` of its own.
    assert_eq!(client.read(&mut back).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let ended = server.stop();
    assert!(ended.output.contains("failed: 1"), "{ended:?}");
    assert!(ended.errors.contains("close_notify"), "{ended:?}");
}

#[test]
fn an_end_without_notice_is_told_by_the_client() {
    let folder = Folder::new("tls-server-ends");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.path().join("certificate"), made.cert.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![made.cert.into()], key.into()).unwrap());
    for is_announced in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = send(&address, &folder, Stdio::null());
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(connection, listener.accept().unwrap().0);
        stream.write_all(b"hel").unwrap();
        // The client sends no data.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        if is_announced {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
        drop(stream);
        let output = client.wait_with_output().unwrap();
        assert_eq!(output.status.success(), is_announced, "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.contains("close_notify"), !is_announced, "{errors}");
    }
}

#[test]
fn a_client_that_never_reads_costs_little() {
    let folder = Folder::new("tls-never");
    let expected = folder.fill("file", transfer_bytes(), 2);
    let server = serve(&folder);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = connect(&server, &folder);
            let socket = client.sock.try_clone().unwrap();
            let writing = thread::spawn(move || {
                // Far more than the buffers on the way hold, so the writes never complete.
                (0..256).all(|_| client.write_all(&[7; 1 << 20]).is_ok())
            });
            (socket, writing)
        })
        .collect();
    assert_eq!(echoed(&server, &folder, "file"), expected);
    let bytes = server.memory_bytes_max();
    assert!(bytes < 50 << 20, "{bytes} bytes");
    for (socket, writing) in clients {
        socket.shutdown(Shutdown::Both).unwrap();
        assert!(!writing.join().unwrap());
    }
    server.stop();
}

#[test]
fn what_is_no_tls_is_refused() {
    let folder = Folder::new("tls-none");
    let server = serve(&folder);
    let mut client = TcpStream::connect(server.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).ok();
    assert!(!answer.starts_with(b"GET"), "{answer:?}");
    let ended = server.stop();
    assert!(ended.output.contains("failed: 1"), "{ended:?}");
    assert!(ended.errors.contains("corrupt message"), "{ended:?}");
}
