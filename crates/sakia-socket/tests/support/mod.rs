//! Layers, connections and bytes for the tests.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use sakia_socket::{Host, Kernel, Layer, Options, Socket, When, sockopt};

pub mod watched;

/// All modes that read ahead or gather.
pub const MODES: [(When, When); 5] = [
    (When::OnEvidence, When::Never),
    (When::OnEvidence, When::OnEvidence),
    (When::Always, When::Never),
    (When::Never, When::Always),
    (When::Always, When::Always),
];

/// The plain mode.
pub const PLAIN: (When, When) = (When::Never, When::Never);

pub fn options((read_ahead, gather): (When, When)) -> Options {
    let mut options = Options::default();
    (options.read_ahead, options.gather) = (read_ahead, gather);
    options
}

/// Returns options with which bytes are delayed until a call sends them.
pub fn delayed() -> Options {
    let mut options = options((When::Always, When::Always));
    options.limits.delay = Duration::from_secs(3600);
    options
}

pub fn layer(options: Options) -> Layer<Kernel> {
    Layer::new(Kernel, options)
}

pub fn listener<H: Host>(layer: &Layer<H>) -> Socket<H> {
    let listener = layer
        .socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP))
        .expect("a socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(8).expect("a listener");
    listener
}

pub fn connect<H: Host>(layer: &Layer<H>, listener: &Socket<H>) -> Socket<H> {
    let socket = layer
        .socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP))
        .expect("a socket");
    socket.connect(&listener.local_address().expect("an address")).expect("a connection");
    socket
}

/// Returns both ends of a TCP connection.
pub fn tcp<H: Host>(layer: &Layer<H>) -> (Socket<H>, Socket<H>) {
    let listener = listener(layer);
    let a = connect(layer, &listener);
    let b = listener.accept().expect("a connection").0;
    for end in [&a, &b] {
        end.set_option(sockopt::TCP_NODELAY, true).expect("an option");
    }
    (a, b)
}

pub fn unix<H: Host>(layer: &Layer<H>) -> (Socket<H>, Socket<H>) {
    layer.pair(AddressFamily::UNIX, SocketType::STREAM).expect("a pair")
}

/// Calls `act` for each item, all at the same time, since most of the time passes in waits.
pub fn at_once<T: Send>(items: impl IntoIterator<Item = T>, act: impl Fn(T) + Sync) {
    let act = &act;
    thread::scope(|scope| {
        items.into_iter().for_each(|item| drop(scope.spawn(move || act(item))));
    });
}

pub fn byte(number: u64) -> u8 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn send<H: Host>(socket: &Socket<H>, bytes: &[u8]) {
    assert_eq!(socket.send(bytes, SendFlags::empty()), Ok(bytes.len()));
}

/// Receives up to 100 bytes.
pub fn recv<H: Host>(socket: &Socket<H>, flags: RecvFlags) -> Result<Vec<u8>, Errno> {
    let mut buffer = [0; 100];
    let count = socket.recv(&mut buffer, flags)?;
    Ok(buffer[..count].into())
}

/// Receives until the end or an error.
pub fn recv_all<H: Host>(socket: &Socket<H>) -> (Vec<u8>, Option<Errno>) {
    let mut all = Vec::new();
    let mut buffer = [0; 777];
    loop {
        match socket.recv(&mut buffer, RecvFlags::empty()) {
            Ok(0) => return (all, None),
            Ok(count) => all.extend(&buffer[..count]),
            Err(Errno::INTR) => {}
            Err(errno) => return (all, Some(errno)),
        }
    }
}

/// Receives one byte, so that those behind it wait in memory.
pub fn read_ahead<H: Host>(socket: &Socket<H>) -> u8 {
    let mut buffer = [0];
    assert_eq!(socket.recv(&mut buffer, RecvFlags::empty()), Ok(1));
    buffer[0]
}

/// Sends in non-blocking mode until there is no room; byte `number` is that of [`byte`]. Returns the number
/// of bytes taken.
pub fn fill<H: Host>(socket: &Socket<H>) -> u64 {
    let mut sent = 0;
    loop {
        let bytes: Vec<u8> = (sent..sent + 1000).map(byte).collect();
        match socket.send(&bytes, SendFlags::DONTWAIT) {
            Ok(count) => sent += count as u64,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return sent;
            }
        }
    }
}
