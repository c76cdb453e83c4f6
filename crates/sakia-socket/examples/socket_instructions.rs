//! The calls of the experiment `sockets`, for `cargo xtask instructions`: what the layer costs in user space.
//!
//! ```sh
//! cargo run --release -p sakia-socket --example socket_instructions -- CELL VARIANT COUNT
//! ```
//! One thread plays both ends. Those of the layer make their calls in [`measured`], where valgrind counts;
//! the other ones are plain sockets of the kernel. So the sequence of calls is the same in each run. It
//! prints the calls that left the toy enclave, for `COUNT` operations.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sakia_socket::{
    EpollEvent, Events, Kernel, Layer, Options, SelectEntry, Selection, Socket, ToyEnclave, When,
    sockopt,
};

type Sockets = Layer<ToyEnclave<Kernel>>;
type End = Socket<ToyEnclave<Kernel>>;

const MESSAGE: usize = 64;
const BLOCK: usize = 128 << 10;
/// The maximum number of bytes of a stream under way.
const UNDER_WAY: usize = 64 << 10;
const DATAGRAMS: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let [cell, variant, count] =
        env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "three arguments")?;
    let count: usize = count.parse()?;
    let mut options = Options::default();
    (options.read_ahead, options.gather) = match variant.as_str() {
        "plain" => (When::Never, When::Never),
        "default" => (options.read_ahead, options.gather),
        "gathered" => (options.read_ahead, When::OnEvidence),
        "ahead" => (When::Always, When::Never),
        "all" => (When::Always, When::Always),
        _ => return Err("no such variant".into()),
    };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let sockets = Layer::new(ToyEnclave::new(Kernel, std::time::Duration::ZERO), options);
    let (program, size) = cell.rsplit_once('-').ok_or("no size")?;
    let size: usize = size.parse()?;
    let before = sockets.host().counts();
    match program {
        "send" => send(&sockets, size, count)?,
        "receive" => receive(&sockets, size, count)?,
        "events" => events(&sockets, size, count)?,
        "threads" => threads(&sockets, size, count)?,
        "udp" => datagrams(&sockets, size, count)?,
        "iperf-receive" => select_receive(&sockets, size, count)?,
        "iperf-send" => select_send(&sockets, size, count)?,
        _ => return Err("no such cell".into()),
    }
    let counts = sockets.host().counts().since(&before);
    println!("{}", counts.exits());
    Ok(())
}

/// Runs `calls`; valgrind counts in this function only.
#[inline(never)]
fn measured<T>(calls: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    calls()
}

/// Returns connections, of which the first end is the layer's.
fn connections(sockets: &Sockets, count: usize) -> Result<Vec<(End, OwnedFd)>, Errno> {
    let listener = sockets.socket(AddressFamily::INET, SocketType::STREAM, None)?;
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    listener.listen(1024)?;
    let to = listener.local_address()?;
    let connect = |_| {
        let peer = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::connect(&peer, &to)?;
        let (end, _) = listener.accept()?;
        end.set_option(sockopt::TCP_NODELAY, true)?;
        rustix::net::sockopt::set_tcp_nodelay(&peer, true)?;
        Ok((end, peer))
    };
    (0..count).map(connect).collect()
}

fn only(mut connections: Vec<(End, OwnedFd)>) -> Result<(End, OwnedFd), Errno> {
    connections.pop().ok_or(Errno::NOTCONN)
}

/// Receives `bytes` bytes at the peer.
fn drain(peer: &OwnedFd, mut bytes: usize) -> Result<(), Errno> {
    let mut buffer = vec![0; UNDER_WAY];
    while bytes > 0 {
        let len = bytes.min(buffer.len());
        bytes -= rustix::net::recv(peer, &mut buffer[..len], RecvFlags::empty())?.1;
    }
    Ok(())
}

/// Sends all of `bytes` from the peer, and waits until they have arrived.
fn give(peer: &OwnedFd, end: &End, bytes: &[u8]) -> Result<(), Errno> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += rustix::net::send(peer, &bytes[sent..], SendFlags::NOSIGNAL)?;
    }
    while rustix::io::ioctl_fionread(end.fd())? < bytes.len() as u64 {
        std::thread::yield_now();
    }
    Ok(())
}

fn send(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let (end, peer) = only(connections(sockets, 1)?)?;
    let block = vec![1; size];
    let mut left = count;
    while left > 0 {
        let burst = left.min((UNDER_WAY / size).max(1));
        measured(|| {
            (0..burst).try_for_each(|_| end.send(&block, SendFlags::NOSIGNAL).map(drop))?;
            sockets.flush();
            Ok(())
        })?;
        drain(&peer, burst * size)?;
        left -= burst;
    }
    Ok(())
}

fn receive(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let (end, peer) = only(connections(sockets, 1)?)?;
    let (mut buffer, bytes) = (vec![0; size], vec![1; UNDER_WAY]);
    let mut left = count;
    while left > 0 {
        let burst = left.min((UNDER_WAY / size).max(1));
        give(&peer, &end, &bytes[..burst * size])?;
        measured(|| {
            (0..burst).try_for_each(|_| end.recv(&mut buffer, RecvFlags::empty()).map(drop))
        })?;
        left -= burst;
    }
    Ok(())
}

/// Makes a request of each connection ready, and answers all of them.
fn events(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let connections = connections(sockets, size)?;
    let set = sockets.epoll()?;
    for (index, (end, _)) in connections.iter().enumerate() {
        end.set_nonblocking(true)?;
        set.add(end, EpollEvent { events: Events::IN, data: index as u64 })?;
    }
    let mut buffer = vec![0; 16 << 10];
    let mut ready = [EpollEvent::default(); 128];
    for _ in 0..count / size {
        for (end, peer) in &connections {
            give(peer, end, &[1; MESSAGE])?;
        }
        measured(|| {
            let mut answered = 0;
            while answered < size {
                let found = set.wait(&mut ready, None)?;
                for event in &ready[..found] {
                    let (end, _) = &connections[event.data as usize];
                    let bytes = end.recv(&mut buffer, RecvFlags::empty())?;
                    end.send(&buffer[..bytes], SendFlags::NOSIGNAL)?;
                }
                answered += found;
            }
            sockets.flush();
            Ok(())
        })?;
        connections.iter().try_for_each(|(_, peer)| drain(peer, MESSAGE))?;
    }
    Ok(())
}

/// Makes the calls of one thread per connection, one after another.
fn threads(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let connections = connections(sockets, size)?;
    let mut buffer = [0; MESSAGE];
    for _ in 0..count / size {
        for (end, peer) in &connections {
            give(peer, end, &[1; MESSAGE])?;
            measured(|| {
                let bytes = end.recv(&mut buffer, RecvFlags::empty())?;
                end.send(&buffer[..bytes], SendFlags::NOSIGNAL)?;
                sockets.flush();
                Ok(())
            })?;
            drain(peer, MESSAGE)?;
        }
    }
    Ok(())
}

fn datagrams(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let end = sockets.socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    end.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    let peer = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    rustix::net::connect(&peer, &end.local_address()?)?;
    let (mut buffer, mut answer) = (vec![0; size], vec![0; size]);
    for _ in 0..count / DATAGRAMS {
        for _ in 0..DATAGRAMS {
            rustix::net::send(&peer, &vec![1; size], SendFlags::NOSIGNAL)?;
        }
        measured(|| {
            (0..DATAGRAMS).try_for_each(|_| {
                let received = end.recv_from(&mut buffer, RecvFlags::empty())?;
                let from = received.from.ok_or(Errno::DESTADDRREQ)?;
                end.send_to(&buffer[..received.bytes], SendFlags::NOSIGNAL, &from).map(drop)
            })
        })?;
        for _ in 0..DATAGRAMS {
            rustix::net::recv(&peer, &mut answer[..], RecvFlags::empty())?;
        }
    }
    Ok(())
}

/// Makes the calls of iperf3 if each read finds a part of its block.
fn select_receive(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let connections = connections(sockets, size)?;
    let (mut buffer, bytes) = (vec![0; BLOCK], vec![1; 32 << 10]);
    let readable = Selection { readable: true, ..Selection::default() };
    for (end, _) in &connections {
        end.set_nonblocking(true)?;
    }
    for _ in 0..count / size {
        for (end, peer) in &connections {
            give(peer, end, &bytes)?;
        }
        measured(|| {
            let mut entries: Vec<_> =
                connections.iter().map(|(end, _)| SelectEntry::new(end, readable)).collect();
            sockets.select(&mut entries, None)?;
            for (end, _) in &connections {
                end.recv(&mut buffer, RecvFlags::empty())?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Makes the same calls, with one write after each wait.
fn select_send(sockets: &Sockets, size: usize, count: usize) -> Result<(), Errno> {
    let connections = connections(sockets, size)?;
    let bytes = vec![1; 32 << 10];
    let writable = Selection { writable: true, ..Selection::default() };
    for (end, _) in &connections {
        end.set_nonblocking(true)?;
    }
    for _ in 0..count / size {
        measured(|| {
            let mut entries: Vec<_> =
                connections.iter().map(|(end, _)| SelectEntry::new(end, writable)).collect();
            sockets.select(&mut entries, None)?;
            for (end, _) in &connections {
                end.send(&bytes, SendFlags::NOSIGNAL)?;
            }
            Ok(())
        })?;
        connections.iter().try_for_each(|(_, peer)| drain(peer, bytes.len()))?;
    }
    Ok(())
}
