//! The load of a server: one thread on epoll, with as little work as possible. It does not know the server's
//! variant, and checks each byte that comes back.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, bail, ensure};
use fastrand::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sakia_bench_support::mix;
use sakia_bench_support::usage::Usage;
use serde::{Deserialize, Serialize};

use super::datagrams::DatagramLoad;
use super::streams::{self, Streams};
use super::{BEGIN, END, Place};
use crate::bytes::sum;
use crate::machine::keep_to;

/// The smallest message: the number that it begins with.
pub const MESSAGE_BYTES_MIN: usize = 8;
/// The largest message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes received at a time.
const RECEIVE_BYTES: usize = 256 << 10;
/// The length of a stream's pattern in bytes.
const SEND_BYTES: usize = 128 << 10;
/// Bytes of a stream, after which they come again.
const PATTERN_BYTES: usize = 1 << 20;
/// Fixes the bytes of messages and streams.
const SEED: u64 = 0x5aa1_a001;
/// Seconds within which a server must have begun.
const PATIENCE_S: i64 = 30;
/// Connections that are answered between two calls of `epoll_wait(2)`.
const EVENTS: usize = 256;

/// The task of a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The place for connections.
    pub place: Place,
    /// The work.
    pub work: Work,
    /// Set if the load polls for messages all the time, instead of sleeping until one comes.
    pub spin: bool,
}

/// The data that is sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Messages, each of which the server sends back.
    Messages(Messages),
    /// Datagrams of one socket, each of which the server sends back.
    Datagrams(Messages),
    /// A stream of this many bytes on one connection.
    Stream(u64),
    /// Messages on one connection, which the load requests by their number, twice: to warm up, and measured.
    Answers(Messages),
    /// Streams from the load to the server.
    Sources(Streams),
    /// Streams from the server, whose blocks the load requests by their number, twice.
    Sinks(Streams),
}

/// Messages that come back.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Messages {
    /// Connections, all of them busy all the time.
    pub connections: usize,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Messages of a connection in flight at a time.
    pub window: u64,
    /// Messages of a connection that warm up.
    pub warmup: u64,
    /// Messages of a connection that are measured.
    pub requests: u64,
}

impl Work {
    /// Returns the number of connections that the load makes.
    pub fn connections(&self) -> usize {
        match self {
            Self::Messages(messages) => messages.connections,
            Self::Sources(streams) | Self::Sinks(streams) => streams.connections,
            Self::Datagrams(_) | Self::Stream(_) | Self::Answers(_) => 1,
        }
    }

    /// Returns the sum that a run must compute: for streams to the server its own sum, otherwise the load's.
    pub fn expected(&self) -> u64 {
        match *self {
            Self::Messages(messages) | Self::Datagrams(messages) => {
                let Messages { connections, warmup, requests, .. } = messages;
                let all = |connection| (0..warmup + requests).map(move |n| mark(connection, n));
                (0..connections).flat_map(all).fold(0, u64::wrapping_add)
            }
            Self::Sources(streams) => streams.expected_of_sources(),
            Self::Sinks(streams) => streams.expected_of_sinks(),
            Self::Answers(messages) => {
                let one = Self::Stream(messages.message_bytes as u64).expected();
                one.wrapping_mul(messages.warmup + messages.requests)
            }
            Self::Stream(bytes) => {
                let pattern = pattern(PATTERN_BYTES);
                let whole = (bytes / PATTERN_BYTES as u64).wrapping_mul(sum(&pattern));
                let rest = (bytes % PATTERN_BYTES as u64) as usize;
                whole.wrapping_add(sum(&pattern[..rest]))
            }
        }
    }
}

/// Returns the number that a message begins with.
pub(super) fn mark(connection: usize, number: u64) -> u64 {
    mix(((connection as u64) << 40) ^ number)
}

/// Writes the bytes of a stream.
pub(crate) fn write_stream(mut to: impl Write, bytes: u64) -> io::Result<()> {
    let pattern = pattern(PATTERN_BYTES);
    let mut left = bytes;
    for part in pattern.chunks(SEND_BYTES).cycle() {
        let len = left.min(part.len() as u64);
        if len == 0 {
            break;
        }
        to.write_all(&part[..len as usize])?;
        left -= len;
    }
    Ok(())
}

/// Returns the bytes of messages after their number, and of streams.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    Rng::with_seed(SEED).fill(&mut pattern);
    pattern
}

/// The load's results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// The sum of the numbers of all messages that came back.
    pub sum: u64,
    /// Processor time that the load took while the server was measured.
    pub cpu_ns: u64,
}

/// Does the work. `announce` gets the address for the control connection before anyone waits for it.
///
/// # Errors
/// The server ended early, or sent back wrong data.
pub fn run(
    order: &Order,
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    let session = Session::begin(&order.place, announce)?;
    let server = session.server;
    match order.work {
        Work::Messages(messages) => {
            let mut load = MessageLoad::connect(messages, server, order)?;
            load.exchange(messages.warmup)?;
            let ((), cpu_ns) = session.measured(|| load.exchange(messages.requests))?;
            Ok(Report { sum: load.sum, cpu_ns })
        }
        Work::Datagrams(messages) => {
            let mut load = DatagramLoad::new(messages, server)?;
            load.exchange(messages.warmup)?;
            let ((), cpu_ns) = session.measured(|| load.exchange(messages.requests))?;
            Ok(Report { sum: load.sum, cpu_ns })
        }
        Work::Sources(streams) => streams::send(&session, streams, order),
        Work::Sinks(streams) => streams::receive(&session, streams, order),
        Work::Answers(Messages { message_bytes, warmup, requests, .. }) => {
            let stream = connect(server, &order.place)?;
            let mut buffer = vec![0; RECEIVE_BYTES];
            let mut fetch = |count| fetch(&stream, count, message_bytes, &mut buffer);
            let warm = fetch(warmup).context("answers")?;
            let (sum, cpu_ns) = session.measured(|| fetch(requests).context("answers"))?;
            Ok(Report { sum: warm.wrapping_add(sum), cpu_ns })
        }
        Work::Stream(bytes) => {
            let stream = connect(server, &order.place)?;
            let ((), cpu_ns) =
                session.measured(|| send_stream(&stream, bytes).context("stream"))?;
            Ok(Report { sum: 0, cpu_ns })
        }
    }
}

/// A server that waits for its load.
#[derive(Debug)]
pub struct Session {
    control: TcpStream,
    /// The address on which the server listens.
    pub server: SocketAddr,
}

impl Session {
    /// Moves this process to the load's processor, and waits for a server. `announce` gets the address for
    /// the control connection before anyone waits for it.
    ///
    /// # Errors
    /// No server came.
    pub fn begin(
        place: &Place,
        announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        if let Some([_, processor]) = place.processors {
            keep_to(&[processor])?;
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("control")?;
        announce(listener.local_addr().context("control")?)?;
        // A server that cannot even begin never connects.
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        let mut waited = [PollFd::new(&listener, PollFlags::IN)];
        let ready = poll(&mut waited, Some(&patience)).context("control")?;
        ensure!(ready > 0, "the server has not come within {PATIENCE_S} s");
        let (control, _) = listener.accept().context("control")?;
        let mut port = [0; 2];
        (&control).read_exact(&mut port).context("the server ended early")?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_be_bytes(port)));
        Ok(Self { control, server })
    }

    /// Has the server measure while the load works. Returns the load's result, and the processor time that
    /// this process and its children took for it.
    ///
    /// # Errors
    /// Those of the load; or the server ended early.
    pub fn measured<T>(
        &self,
        load: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, u64)> {
        self.say(BEGIN)?;
        let begin = (Usage::of_process()?, Usage::of_children()?);
        let result = load()?;
        let cpu_ns = Usage::of_process()?.since(begin.0).cpu_ns;
        let children_ns = Usage::of_children()?.since(begin.1).cpu_ns;
        self.say(END)?;
        Ok((result, cpu_ns + children_ns))
    }

    /// Sends a word to the server, and waits for the same from it.
    fn say(&self, word: u8) -> anyhow::Result<()> {
        let (mut control, mut answer) = (&self.control, [0]);
        let said = control.write_all(&[word]).and_then(|()| control.read_exact(&mut answer));
        said.context("the server ended early")?;
        ensure!(answer == [word], "the server answered {answer:?}");
        Ok(())
    }
}

pub(super) fn connect(server: SocketAddr, place: &Place) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(server).context("connect")?;
    place.tell(&stream)?;
    Ok(stream)
}

fn send_stream(stream: &TcpStream, bytes: u64) -> io::Result<()> {
    write_stream(stream, bytes)?;
    stream.shutdown(Shutdown::Write)
}

/// Requests `count` answers. Returns the sum of their bytes.
fn fetch(mut stream: &TcpStream, count: u64, bytes: usize, buffer: &mut [u8]) -> io::Result<u64> {
    stream.write_all(&count.to_be_bytes())?;
    let (mut total, mut left) = (0u64, count * bytes as u64);
    while left > 0 {
        let room = left.min(buffer.len() as u64) as usize;
        match stream.read(&mut buffer[..room])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                total = total.wrapping_add(sum(&buffer[..count]));
                left -= count as u64;
            }
        }
    }
    Ok(total)
}

/// A connection with messages.
struct Connection {
    stream: TcpStream,
    /// Bytes sent, of all messages.
    sent: u64,
    /// Bytes that came back.
    received: u64,
    /// Set while the connection waits until more can be sent.
    is_full: bool,
}

/// All connections.
struct MessageLoad {
    messages: Messages,
    epoll: rustix::fd::OwnedFd,
    /// The time to wait for events; `None`: for ever; zero: not at all.
    timeout: Option<Timespec>,
    connections: Vec<Connection>,
    /// Bytes to send on each connection, of all messages so far.
    goal: u64,
    /// Connections that have not received all of these.
    busy: usize,
    /// A message, whose first bytes are set before it is sent.
    message: Vec<u8>,
    /// The data received last.
    buffer: Vec<u8>,
    /// The sum of the numbers of the messages that came back.
    sum: u64,
}

impl MessageLoad {
    fn connect(messages: Messages, server: SocketAddr, order: &Order) -> anyhow::Result<Self> {
        let sizes = MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX;
        ensure!(sizes.contains(&messages.message_bytes), "a message size out of range");
        ensure!(messages.window > 0, "a window of 0 messages");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut connections = Vec::with_capacity(messages.connections);
        for index in 0..messages.connections {
            let stream = connect(server, &order.place)?;
            stream.set_nonblocking(true).context("connect")?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).context("epoll")?;
            connections.push(Connection { stream, sent: 0, received: 0, is_full: false });
        }
        let message = pattern(messages.message_bytes);
        let buffer = vec![0; RECEIVE_BYTES];
        let timeout = order.spin.then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
        let (goal, busy, sum) = (0, 0, 0);
        Ok(Self { messages, epoll, timeout, connections, goal, busy, message, buffer, sum })
    }

    /// Sends `count` messages on each connection, and waits for all of them.
    fn exchange(&mut self, count: u64) -> anyhow::Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.goal += count * self.messages.message_bytes as u64;
        self.busy = self.connections.len();
        (0..self.connections.len()).try_for_each(|index| self.send(index))?;
        let mut events = Vec::with_capacity(EVENTS);
        while self.busy > 0 {
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, self.timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll"),
            }
            for event in events.drain(..) {
                let index = event.data.u64() as usize;
                let flags = event.flags;
                if flags.intersects(!epoll::EventFlags::OUT) {
                    self.receive(index)?;
                }
                self.send(index)?;
            }
        }
        Ok(())
    }

    /// Sends as much as may be in flight.
    fn send(&mut self, index: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[index];
        let size = self.messages.message_bytes as u64;
        let window = self.messages.window * size;
        // Whole messages only: the next one when one has come back.
        let allowed = (connection.received / size * size + window).min(self.goal);
        let was_full = connection.is_full;
        connection.is_full = false;
        while connection.sent < allowed {
            let (number, part) = (connection.sent / size, (connection.sent % size) as usize);
            self.message[..8].copy_from_slice(&mark(index, number).to_le_bytes());
            match send(&connection.stream, &self.message[part..], SendFlags::NOSIGNAL) {
                Ok(count) => connection.sent += count as u64,
                Err(rustix::io::Errno::AGAIN) => {
                    connection.is_full = true;
                    break;
                }
                Err(error) => return Err(error).context("send"),
            }
        }
        if connection.is_full != was_full {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, connection.is_full);
            let data = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &connection.stream, data, flags).context("epoll")?;
        }
        Ok(())
    }

    /// Receives once, and compares.
    fn receive(&mut self, index: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[index];
        let received = recv(&connection.stream, &mut self.buffer[..], RecvFlags::empty());
        let count = match received {
            Ok((0, _)) => bail!("the server closed a connection"),
            Ok((count, _)) => count,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error).context("receive"),
        };
        let mut bytes = &self.buffer[..count];
        let size = self.messages.message_bytes;
        while !bytes.is_empty() {
            let number = connection.received / size as u64;
            let begin = (connection.received % size as u64) as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(size - begin));
            let (mark, end) = (mark(index, number), begin + part.len());
            let of_mark = part.len().min(8usize.saturating_sub(begin));
            let is_right = part[..of_mark] == mark.to_le_bytes()[begin.min(8)..][..of_mark]
                && part[of_mark..] == self.message[begin + of_mark..end];
            ensure!(is_right, "message {number} of connection {index} came back as another");
            connection.received += part.len() as u64;
            if end == size {
                self.sum = self.sum.wrapping_add(mark);
            }
            bytes = rest;
        }
        ensure!(connection.received <= connection.sent, "more came back than was sent");
        if connection.received == self.goal {
            self.busy -= 1;
        }
        Ok(())
    }
}
