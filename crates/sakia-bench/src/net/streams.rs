//! Streams by one connection or several, to a server or from one. One in 64 of their bytes is added up, so
//! that the check takes little of the measured time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use anyhow::{Context, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::load::{Report, Session, connect, pattern, write_stream};
use super::{Order, Place};

/// The first of each group of this many bytes is added up.
pub(crate) const SAMPLE_BYTES: usize = 64;
/// Bytes received at a time.
const RECEIVE_BYTES: usize = 256 << 10;
/// The length of the pattern of [`write_stream`] in bytes.
const PATTERN_BYTES: u64 = 1 << 20;

/// Streams of the same length.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Streams {
    /// Connections, with a stream each.
    pub connections: usize,
    /// Bytes of a call of the server: a multiple of 64 bytes.
    pub block_bytes: usize,
    /// Blocks of a connection that warm up; none for streams to a server.
    pub warmup: u64,
    /// Blocks of a connection that are measured.
    pub blocks: u64,
}

impl Streams {
    /// Returns the sum of streams to a server.
    pub fn expected_of_sources(&self) -> u64 {
        let (bytes, pattern) = (self.blocks * self.block_bytes as u64, pattern(1 << 20));
        let sampled = |bytes: &[u8]| Sampled::default().with(bytes).sum;
        let whole = (bytes / PATTERN_BYTES).wrapping_mul(sampled(&pattern));
        let rest = sampled(&pattern[..(bytes % PATTERN_BYTES) as usize]);
        let one = whole.wrapping_add(rest).wrapping_add(bytes);
        one.wrapping_mul(self.connections as u64)
    }

    /// Returns the sum of streams from a server.
    pub fn expected_of_sinks(&self) -> u64 {
        let block = Sampled::default().with(&pattern(self.block_bytes)).total();
        let blocks = (self.warmup + self.blocks) * self.connections as u64;
        block.wrapping_mul(blocks)
    }
}

/// The sum of some bytes of a stream, and their number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampled {
    position: u64,
    sum: u64,
}

impl Sampled {
    /// Adds the next bytes of the stream.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let skipped = self.position.wrapping_neg() as usize % SAMPLE_BYTES;
        let samples = bytes.iter().skip(skipped).step_by(SAMPLE_BYTES);
        self.sum = samples.fold(self.sum, |sum, &byte| sum.wrapping_add(byte.into()));
        self.position += bytes.len() as u64;
    }

    fn with(mut self, bytes: &[u8]) -> Self {
        self.add(bytes);
        self
    }

    /// Returns the result, which combines both.
    pub(crate) fn total(&self) -> u64 {
        self.sum.wrapping_add(self.position)
    }
}

/// Sends on all connections at once.
pub(super) fn send(session: &Session, streams: Streams, order: &Order) -> anyhow::Result<Report> {
    let connections = connect_all(session.server, streams, &order.place)?;
    let bytes = streams.blocks * streams.block_bytes as u64;
    let send = |stream: &mut TcpStream| {
        write_stream(&*stream, bytes)?;
        stream.shutdown(Shutdown::Write)
    };
    let mut connections: Vec<_> = connections.into_iter().collect();
    let ((), cpu_ns) = session.measured(|| of_each(&mut connections, send))?;
    Ok(Report { sum: 0, cpu_ns })
}

/// Requests blocks on all connections at once.
pub(super) fn receive(
    session: &Session,
    streams: Streams,
    order: &Order,
) -> anyhow::Result<Report> {
    ensure!(
        streams.block_bytes.is_multiple_of(SAMPLE_BYTES),
        "a block size that is no multiple of 64"
    );
    let connections = connect_all(session.server, streams, &order.place)?;
    let sink = |stream| (stream, Sampled::default(), vec![0; RECEIVE_BYTES]);
    let mut connections: Vec<_> = connections.into_iter().map(sink).collect();
    let mut receive = |blocks: u64| {
        let bytes = blocks * streams.block_bytes as u64;
        of_each(&mut connections, |(stream, sampled, buffer)| {
            stream.write_all(&blocks.to_be_bytes())?;
            receive_bytes(stream, bytes, sampled, buffer)
        })
    };
    receive(streams.warmup)?;
    let ((), cpu_ns) = session.measured(|| receive(streams.blocks))?;
    let totals = connections.iter().map(|(_, sampled, _)| sampled.total());
    Ok(Report { sum: totals.fold(0, u64::wrapping_add), cpu_ns })
}

fn connect_all(
    server: SocketAddr,
    streams: Streams,
    place: &Place,
) -> anyhow::Result<Vec<TcpStream>> {
    (0..streams.connections).map(|_| connect(server, place)).collect()
}

/// Calls `work` for each item, on a thread for each.
fn of_each<T: Send>(
    all: &mut [T],
    work: impl Fn(&mut T) -> io::Result<()> + Sync,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter_mut().map(|one| scope.spawn(|| work(one))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?.context("stream")
        })
    })
}

fn receive_bytes(
    stream: &mut TcpStream,
    mut left: u64,
    sampled: &mut Sampled,
    buffer: &mut [u8],
) -> io::Result<()> {
    while left > 0 {
        let room = left.min(buffer.len() as u64) as usize;
        match stream.read(&mut buffer[..room])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                sampled.add(&buffer[..count]);
                left -= count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_do_not_depend_on_the_pieces() {
        let bytes = pattern(10_000);
        let whole = Sampled::default().with(&bytes);
        for piece in [1, 63, 64, 65, 1000] {
            let pieces = bytes.chunks(piece).fold(Sampled::default(), Sampled::with);
            assert_eq!(pieces.total(), whole.total(), "{piece}");
        }
        let plain: u64 = bytes.iter().step_by(SAMPLE_BYTES).map(|&byte| u64::from(byte)).sum();
        assert_eq!(whole.total(), plain + bytes.len() as u64);
    }
}
