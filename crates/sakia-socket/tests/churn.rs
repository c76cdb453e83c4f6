//! Connections that open and close through the layer: they leave no descriptor and no memory.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fs, thread};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType, ipproto};
use sakia_socket::{HostCall, HostCounts, Kernel, Layer, Options, Socket, ToyEnclave, When};
use sakia_testkit::alloc_count::{CountingAllocator, process_counts};
use sakia_testkit::settings;

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator::new();

type Sockets = Layer<ToyEnclave<Kernel>>;

/// Addresses of clients. Each has some 28,000 ports, and a port waits for a minute after its connection.
const ADDRESSES: u64 = 250;
/// The number of connections between two checks.
const BATCH: u64 = 500;
/// The limit of bytes held after any batch beyond those after the first one: lists may have grown. A
/// connection that leaves its memory leaves 64 KiB.
const HELD_MAX: i64 = 32 << 10;

/// Opens and closes connections; `SAKIA_TEST_CONNECTIONS` is their number, 2,000 by default.
#[test]
fn connections_that_are_gone_leave_nothing() {
    let count = settings::number("SAKIA_TEST_CONNECTIONS", 2000);
    for (read_ahead, gather) in [(When::OnEvidence, When::OnEvidence), (When::Always, When::Always)]
    {
        let mut options = Options::default();
        (options.read_ahead, options.gather) = (read_ahead, gather);
        let sockets = Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), options);
        let listener = tcp(&sockets);
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        listener.listen(16).expect("a listener");
        let server: SocketAddr = address_of(&listener);
        let mut held = Vec::new();
        let mut descriptors = None;
        for begin in (0..count / 2).step_by(BATCH as usize) {
            for number in begin..begin + BATCH {
                connection(&sockets, &listener, server, number);
            }
            wait_for_closes(&sockets);
            // By now the thread that sends delayed bytes exists, if it will exist at all.
            let open = fs::read_dir("/proc/self/fd").expect("descriptors").count();
            assert_eq!(*descriptors.get_or_insert(open), open, "after {begin}");
            let counts = process_counts();
            held.push(counts.bytes_allocated.wrapping_sub(counts.bytes_deallocated) as i64);
        }
        let grown = held.iter().max().zip(held.first()).map_or(0, |(max, first)| max - first);
        let counts = sockets.host().counts();
        let life = [HostCall::Send, HostCall::Receive, HostCall::Close].map(|call| counts.of(call));
        eprintln!("{grown} bytes more were held, {life:?} calls to send, receive and close");
        assert!(grown < HELD_MAX, "{grown} bytes are held");
        drop(listener);
        wait_for_closes(&sockets);
        let counts = sockets.host().counts();
        assert_eq!(opened(&counts), counts.of(HostCall::Close));
    }
}

fn tcp(sockets: &Sockets) -> Socket<ToyEnclave> {
    let made = sockets.socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP));
    made.expect("a socket")
}

fn address_of(socket: &Socket<ToyEnclave>) -> SocketAddr {
    socket.local_address().expect("an address").try_into().expect("an address of IP")
}

/// Runs the life of a connection; the bytes that are unsent and unread at its end differ.
fn connection(sockets: &Sockets, listener: &Socket<ToyEnclave>, server: SocketAddr, number: u64) {
    let client = tcp(sockets);
    let address = [127, 0, 1, (number % ADDRESSES + 1) as u8];
    client.bind(&SocketAddr::from((address, 0)).into()).expect("a port");
    client.connect(&server.into()).expect("a connection");
    let served = listener.accept().expect("a connection").0;
    let send = |count| {
        for _ in 0..count {
            assert_eq!(client.send(b"a message", SendFlags::NOSIGNAL), Ok(9));
        }
    };
    let read = |bytes: usize| served.recv(&mut vec![0; bytes], RecvFlags::WAITALL);
    match number % 6 {
        // Neither side sends.
        0 => {}
        // The last handle is dropped with delayed bytes, and all are read.
        1 => {
            send(12);
            drop(client);
            assert_eq!(read(200), Ok(12 * 9));
        }
        // Bytes were read ahead and never taken: the client gets a reset.
        2 => {
            send(40);
            client.flush().expect("an open connection");
            assert_eq!(read(1), Ok(1));
            drop(served);
            assert_eq!(client.recv(&mut [0; 9], RecvFlags::empty()), Err(Errno::CONNRESET));
        }
        // A backlog of small reads, and an orderly end.
        3 => {
            send(80);
            client.shutdown(Shutdown::Write).expect("an open connection");
            let mut got = 0;
            loop {
                match served.recv(&mut [0; 9], RecvFlags::empty()).expect("an open connection") {
                    0 => break,
                    more => got += more,
                }
            }
            assert_eq!(got, 80 * 9);
        }
        // An answer through a clone.
        4 => {
            let clone = served.clone();
            drop(served);
            send(1);
            client.flush().expect("an open connection");
            assert_eq!(clone.recv(&mut [0; 20], RecvFlags::empty()), Ok(9));
            assert_eq!(clone.send(b"answer", SendFlags::NOSIGNAL), Ok(6));
            clone.flush().expect("an open connection");
            assert_eq!(client.recv(&mut [0; 20], RecvFlags::empty()), Ok(6));
        }
        // The server closes first, with delayed bytes of its own.
        _ => {
            for _ in 0..20 {
                served.send(b"bye", SendFlags::NOSIGNAL).expect("an open connection");
            }
            drop(served);
            assert_eq!(client.recv(&mut [0; 100], RecvFlags::WAITALL), Ok(60));
        }
    }
}

/// Returns the number of sockets made and connections accepted.
fn opened(counts: &HostCounts) -> u64 {
    counts.of(HostCall::Socket) + counts.of(HostCall::Accept)
}

/// Waits until all sockets except the listener are closed: the thread that sends delayed bytes may close
/// the last one.
fn wait_for_closes(sockets: &Sockets) {
    for _ in 0..60_000 {
        let counts = sockets.host().counts();
        if opened(&counts) - counts.of(HostCall::Close) <= 1 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("sockets are open: {:?}", sockets.host().counts());
}
