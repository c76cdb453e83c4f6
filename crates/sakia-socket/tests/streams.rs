//! Streams of TCP between threads: what is sent arrives, once and in order.

use std::net::SocketAddr;
use std::thread;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_nodelay};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType, ipproto};
use sakia_socket::{Kernel, Layer, Options, Socket, When};

const MODES: [(When, When); 5] = [
    (When::OnEvidence, When::Never),
    (When::OnEvidence, When::OnEvidence),
    (When::Always, When::Never),
    (When::Never, When::Always),
    (When::Always, When::Always),
];

fn layer((read_ahead, gather): (When, When)) -> Layer<Kernel> {
    let mut options = Options::default();
    (options.read_ahead, options.gather) = (read_ahead, gather);
    Layer::new(Kernel, options)
}

fn tcp(layer: &Layer<Kernel>) -> (Socket<Kernel>, Socket<Kernel>) {
    let make = || layer.socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP));
    let listener = make().expect("a socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(1).expect("a listener");
    let a = make().expect("a socket");
    a.connect(&listener.local_address().expect("an address")).expect("a connection");
    let b = listener.accept().expect("a connection").0;
    for end in [&a, &b] {
        set_tcp_nodelay(end.fd(), true).expect("an option");
    }
    (a, b)
}

fn byte(number: usize) -> u8 {
    ((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send_all(socket: &Socket<Kernel>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = socket.send(bytes, SendFlags::NOSIGNAL).expect("an open connection");
        bytes = &bytes[count..];
    }
}

#[test]
fn bytes_of_any_sizes_arrive_in_order() {
    const BYTES: usize = 500_000;
    for mode in MODES {
        for (sends, reads) in [(100, 100), (100, 20_000), (20_000, 300), (3000, 3000)] {
            let layer = layer(mode);
            let (a, b) = tcp(&layer);
            set_socket_send_buffer_size(a.fd(), 20_000).expect("an option");
            let writer = thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(1);
                let mut sent = 0;
                while sent < BYTES {
                    let len = random.usize(1..=sends).min(BYTES - sent);
                    let bytes: Vec<u8> = (sent..sent + len).map(byte).collect();
                    send_all(&a, &bytes);
                    sent += len;
                }
                // Behind the last byte, delayed or not.
                a.shutdown(Shutdown::Write).expect("an open connection");
            });
            let mut random = fastrand::Rng::with_seed(2);
            let mut got = 0;
            loop {
                let mut buffer = vec![0; random.usize(1..=reads)];
                let flags = match random.u8(..8) {
                    0 => RecvFlags::WAITALL,
                    1 => RecvFlags::PEEK,
                    _ => RecvFlags::empty(),
                };
                let count = b.recv(&mut buffer, flags).expect("an open connection");
                let expected = (got..).map(byte).take(count);
                assert!(expected.eq(buffer[..count].iter().copied()), "at {got}, {mode:?}");
                if count == 0 {
                    break;
                }
                got += if flags.contains(RecvFlags::PEEK) { 0 } else { count };
            }
            assert_eq!(got, BYTES);
            writer.join().expect("no panic");
        }
    }
}

#[test]
fn questions_are_sent_before_answers_are_waited_for() {
    for mode in MODES {
        let layer = layer(mode);
        let (a, b) = tcp(&layer);
        let server = thread::spawn(move || {
            let mut buffer = [0; 4];
            while b.recv(&mut buffer, RecvFlags::WAITALL).expect("an open connection") == 4 {
                send_all(&b, &buffer);
            }
        });
        for number in 0..500_u32 {
            // By single bytes, which are gathered.
            for byte in number.to_be_bytes() {
                send_all(&a, &[byte]);
            }
            let mut answer = [0; 4];
            assert_eq!(a.recv(&mut answer, RecvFlags::WAITALL), Ok(4));
            assert_eq!(u32::from_be_bytes(answer), number);
        }
        drop(a);
        server.join().expect("no panic");
    }
}

#[test]
fn delayed_bytes_are_sent_while_the_program_computes() {
    let layer = layer((When::Never, When::Always));
    let (a, b) = tcp(&layer);
    let reader = thread::spawn(move || {
        let mut buffer = [0; 5];
        b.recv(&mut buffer, RecvFlags::WAITALL).map(|_| buffer)
    });
    send_all(&a, b"hello");
    // It waits for the thread only, which is no call of the library.
    assert_eq!(reader.join().expect("no panic"), Ok(*b"hello"));
}

#[test]
fn bytes_that_were_read_ahead_and_not_taken_reset_the_connection() {
    let layer = layer((When::Always, When::Never));
    let (a, b) = tcp(&layer);
    send_all(&a, b"unread");
    assert_eq!(b.recv(&mut [0], RecvFlags::empty()), Ok(1));
    drop(b);
    assert_eq!(a.recv(&mut [0], RecvFlags::empty()), Err(Errno::CONNRESET));
}

#[test]
fn a_look_sees_the_bytes_behind_those_in_memory() {
    let layer = layer((When::Always, When::Never));
    let (a, b) = tcp(&layer);
    send_all(&a, b"12");
    assert_eq!(b.recv(&mut [0], RecvFlags::empty()), Ok(1));
    send_all(&a, b"345");
    let mut seen = [0; 4];
    while b.recv(&mut seen, RecvFlags::PEEK) != Ok(4) {
        thread::yield_now();
    }
    assert_eq!(&seen, b"2345");
    assert_eq!(b.unread(), Ok(4));
    assert_eq!(b.hand_back().err(), Some(Errno::BUSY));
    let mut rest = [0; 4];
    assert_eq!(b.recv(&mut rest, RecvFlags::empty()), Ok(4));
    assert!(b.hand_back().is_ok());
}
