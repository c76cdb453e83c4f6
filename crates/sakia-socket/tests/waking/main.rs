//! Readiness between threads and in memory: wake-ups, few places, full queues, closed sockets and sets.

mod host;
mod hostile;
mod many;
mod memory;
mod plain;
mod pump;
mod sleeping;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use sakia_socket::{Epoll, EpollEvent, Events, Layer, Options, Socket, When};

use self::host::{Doored, State};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn layer(read_ahead: When, gather: When) -> (Layer<Doored>, Arc<State>) {
    let mut options = Options::default();
    (options.read_ahead, options.gather) = (read_ahead, gather);
    layer_of(options)
}

fn layer_of(options: Options) -> (Layer<Doored>, Arc<State>) {
    let host = Doored::default();
    let state = Arc::clone(&host.state);
    (Layer::new(host, options), state)
}

fn tcp(layer: &Layer<Doored>) -> (Socket<Doored>, Socket<Doored>) {
    let make = || layer.socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP));
    let listener = make().expect("a socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(1).expect("a listener");
    let a = make().expect("a socket");
    a.connect(&listener.local_address().expect("an address")).expect("a connection");
    let b = listener.accept().expect("a connection").0;
    for end in [&a, &b] {
        set_tcp_nodelay(end.fd(), true).expect("an option");
        end.set_nonblocking(true).expect("a mode");
    }
    (a, b)
}

fn unix(layer: &Layer<Doored>) -> (Socket<Doored>, Socket<Doored>) {
    let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM).expect("a pair");
    for end in [&a, &b] {
        end.set_nonblocking(true).expect("a mode");
    }
    (a, b)
}

/// Sends `count` bytes from `a` to `b`, and returns when they have arrived.
fn send(a: &Socket<Doored>, b: &Socket<Doored>, count: usize) {
    let before = b.unread().expect("a socket");
    assert_eq!(a.send(&vec![1; count], SendFlags::NOSIGNAL), Ok(count));
    while b.unread().expect("a socket") < before + count as u64 {
        a.flush().expect("an open connection");
        thread::yield_now();
    }
}

/// Reads one byte of `socket`, which has more: these are in memory then.
fn read_ahead(socket: &Socket<Doored>) {
    assert_eq!(socket.recv(&mut [0], RecvFlags::DONTWAIT), Ok(1));
}

fn event(events: Events, data: u64) -> EpollEvent {
    EpollEvent { events, data }
}

/// Returns the events of a wait that does not sleep, in the order of their numbers.
fn ready(set: &Epoll<Doored>) -> Vec<(u64, Events)> {
    wait(set, 64, NOW)
}

fn wait(set: &Epoll<Doored>, max: usize, timeout: Option<Duration>) -> Vec<(u64, Events)> {
    let mut events = vec![EpollEvent::default(); max];
    let count = set.wait(&mut events, timeout).expect("no signal");
    let mut events: Vec<_> =
        events[..count].iter().map(|event| (event.data, event.events)).collect();
    events.sort_by_key(|&(data, _)| data);
    events
}
