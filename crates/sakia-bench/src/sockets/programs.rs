//! The programs, written against sockets as if these were the kernel's.

use std::thread;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sakia_socket::{EpollEvent, Events, Kernel, Layer, SelectEntry, Selection, ToyEnclave};

use super::Program;
use crate::net::Sampled;
use crate::net::load::pattern;

pub(super) type Sockets = Layer<ToyEnclave<Kernel>>;
pub(super) type Socket = sakia_socket::Socket<ToyEnclave<Kernel>>;

/// Events of one wait of an event loop.
const EVENTS: usize = 128;
/// Bytes of memory that an event loop receives into.
const EVENT_BYTES: usize = 16 << 10;
/// The sets of `select` for a read.
const READABLE: Selection = Selection { readable: true, writable: false, exceptional: false };
/// The sets of `select` for a write.
const WRITABLE: Selection = Selection { readable: false, writable: true, exceptional: false };
/// Writes of iperf3 after a wait.
const WRITES: usize = 10;

/// Serves `connections` until all have ended; datagrams, until an empty one comes. Returns the sum of the
/// bytes received on streams.
pub(super) fn serve(
    program: Program,
    sockets: &Sockets,
    connections: Vec<Socket>,
    block_bytes: usize,
) -> Result<u64, Errno> {
    match program {
        Program::Send => in_turn(connections, |socket| send(socket, block_bytes)),
        Program::Receive => in_turn(connections, |socket| receive(socket, block_bytes)),
        Program::Events => events(sockets, &connections),
        Program::Threads => threads(connections, block_bytes),
        Program::Datagrams => in_turn(connections, |socket| datagrams(socket, block_bytes)),
        Program::SelectReceive => select_receive(sockets, &connections, block_bytes),
        Program::SelectSend => select_send(sockets, &connections, block_bytes),
    }
}

fn in_turn(
    connections: Vec<Socket>,
    serve: impl Fn(&Socket) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    connections.iter().try_fold(0, |sum: u64, socket| Ok(sum.wrapping_add(serve(socket)?)))
}

/// Returns the number of blocks that the load requests next; 0 at the end.
fn asked(socket: &Socket) -> Result<u64, Errno> {
    let mut number = [0; 8];
    let count = socket.recv(&mut number, RecvFlags::WAITALL)?;
    Ok(if count == number.len() { u64::from_be_bytes(number) } else { 0 })
}

fn send_all(socket: &Socket, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let count = socket.send(bytes, SendFlags::NOSIGNAL)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

fn send(socket: &Socket, block_bytes: usize) -> Result<u64, Errno> {
    let block = pattern(block_bytes);
    loop {
        let count = asked(socket)?;
        for _ in 0..count {
            send_all(socket, &block)?;
        }
        if count == 0 {
            return Ok(0);
        }
    }
}

fn receive(socket: &Socket, block_bytes: usize) -> Result<u64, Errno> {
    let (mut buffer, mut sampled) = (vec![0; block_bytes], Sampled::default());
    loop {
        match socket.recv(&mut buffer, RecvFlags::empty())? {
            0 => return Ok(sampled.total()),
            count => sampled.add(&buffer[..count]),
        }
    }
}

fn threads(connections: Vec<Socket>, block_bytes: usize) -> Result<u64, Errno> {
    let serve = |socket: Socket| {
        let mut buffer = vec![0; block_bytes];
        loop {
            match socket.recv(&mut buffer, RecvFlags::empty())? {
                0 => return Ok(()),
                count => send_all(&socket, &buffer[..count])?,
            }
        }
    };
    thread::scope(|scope| {
        let start = |socket| scope.spawn(move || serve(socket));
        let threads: Vec<_> = connections.into_iter().map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Errno::CANCELED)));
        ended.collect::<Result<(), Errno>>()
    })?;
    Ok(0)
}

fn datagrams(socket: &Socket, block_bytes: usize) -> Result<u64, Errno> {
    let mut buffer = vec![0; block_bytes];
    loop {
        let received = socket.recv_from(&mut buffer, RecvFlags::empty())?;
        let Some(peer) = received.from.filter(|_| received.bytes > 0) else { return Ok(0) };
        socket.send_to(&buffer[..received.bytes], SendFlags::NOSIGNAL, &peer)?;
    }
}

/// A wait for several sockets by `select`.
struct Waiter<'a> {
    sockets: &'a Sockets,
    entries: Vec<SelectEntry<'a, ToyEnclave<Kernel>>>,
    /// The connection of each entry.
    indexes: Vec<usize>,
}

impl<'a> Waiter<'a> {
    fn new(sockets: &'a Sockets, connections: &'a [Socket], sets: Selection) -> Self {
        let entries = connections.iter().map(|socket| SelectEntry::new(socket, sets)).collect();
        Self { sockets, entries, indexes: (0..connections.len()).collect() }
    }

    /// Waits for ever, and puts the ready connections into `ready`.
    fn wait(&mut self, ready: &mut Vec<usize>) -> Result<(), Errno> {
        ready.clear();
        self.sockets.select(&mut self.entries, None)?;
        let entries = self.entries.iter().zip(&self.indexes);
        ready.extend(
            entries
                .filter(|(entry, _)| entry.ready() != Selection::default())
                .map(|(_, &index)| index),
        );
        Ok(())
    }

    fn remove(&mut self, connection: usize) {
        if let Some(place) = self.indexes.iter().position(|&index| index == connection) {
            self.indexes.swap_remove(place);
            self.entries.swap_remove(place);
        }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn set_nonblocking(connections: &[Socket], is_nonblocking: bool) -> Result<(), Errno> {
    connections.iter().try_for_each(|socket| socket.set_nonblocking(is_nonblocking))
}

fn events(sockets: &Sockets, connections: &[Socket]) -> Result<u64, Errno> {
    set_nonblocking(connections, true)?;
    let set = sockets.epoll()?;
    for (index, socket) in connections.iter().enumerate() {
        set.add(socket, EpollEvent { events: Events::IN, data: index as u64 })?;
    }
    let (mut buffer, mut left) = (vec![0; EVENT_BYTES], connections.len());
    let mut ready = [EpollEvent::default(); EVENTS];
    while left > 0 {
        let count = set.wait(&mut ready, None)?;
        for event in &ready[..count] {
            let socket = &connections[event.data as usize];
            match socket.recv(&mut buffer, RecvFlags::empty()) {
                Ok(0) => {
                    set.remove(socket)?;
                    left -= 1;
                }
                Ok(count) => send_all(socket, &buffer[..count])?,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(0)
}

fn select_receive(
    sockets: &Sockets,
    connections: &[Socket],
    block_bytes: usize,
) -> Result<u64, Errno> {
    set_nonblocking(connections, true)?;
    let (mut buffer, mut ready) = (vec![0; block_bytes], Vec::new());
    let mut sampled = vec![Sampled::default(); connections.len()];
    let mut waiter = Waiter::new(sockets, connections, READABLE);
    while !waiter.is_empty() {
        waiter.wait(&mut ready)?;
        for &index in &ready {
            match connections[index].recv(&mut buffer, RecvFlags::empty()) {
                Ok(0) => waiter.remove(index),
                Ok(count) => sampled[index].add(&buffer[..count]),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(sampled.iter().map(Sampled::total).fold(0, u64::wrapping_add))
}

fn select_send(
    sockets: &Sockets,
    connections: &[Socket],
    block_bytes: usize,
) -> Result<u64, Errno> {
    let (block, mut ready) = (pattern(block_bytes), Vec::new());
    loop {
        let blocks = connections.iter().map(asked).collect::<Result<Vec<u64>, Errno>>()?;
        if blocks.iter().all(|&blocks| blocks == 0) {
            return Ok(0);
        }
        let mut left: Vec<u64> = blocks.iter().map(|&blocks| blocks * block_bytes as u64).collect();
        set_nonblocking(connections, true)?;
        let mut waiter = Waiter::new(sockets, connections, WRITABLE);
        while !waiter.is_empty() {
            waiter.wait(&mut ready)?;
            for &index in &ready {
                write_blocks(&connections[index], &block, &mut left[index])?;
                if left[index] == 0 {
                    waiter.remove(index);
                }
            }
        }
        sockets.flush();
        set_nonblocking(connections, false)?;
    }
}

/// Writes up to 10 times, as long as there is room, `left` bytes in all.
fn write_blocks(socket: &Socket, block: &[u8], left: &mut u64) -> Result<(), Errno> {
    for _ in 0..WRITES {
        // After a write of a part of a block, the next write begins with the rest.
        let rest = match *left % block.len() as u64 {
            0 => block.len(),
            rest => rest as usize,
        };
        match socket.send(&block[block.len() - rest..], SendFlags::NOSIGNAL) {
            Ok(count) => *left -= count as u64,
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        if *left == 0 {
            break;
        }
    }
    Ok(())
}
