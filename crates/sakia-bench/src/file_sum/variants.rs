//! The ways to read the file.
//!
//! [`Stream`] stands for what a runtime's reader does: it is the one place to change when files are
//! read in another way.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use sakia_driver::{Auto, Driver, Fd, IoBuf, Op, OpKind, Policy, Read, Slice, Wait};
use sakia_ring::{Ring, SetupError};

use super::pool::Pool;
use super::sum;
use crate::cell::{Counters, Done};
use crate::measure::Meter;

/// Reads that a [`Stream`] has in flight.
pub(super) const DEPTH: usize = 4;
/// Blocks begin at a multiple of this.
const PAGE_BYTES: usize = 4096;
/// Bytes that the reading thread of `offload` hands over at a time; fewer with blocks smaller than a
/// page.
const CHUNK_BYTES: usize = 512 << 10;
/// Chunks there are: one that is being read, one that waits, and one that is being summed.
const CHUNKS: usize = 3;
/// Of these, those that may wait.
const CHUNKS_WAITING: usize = 1;
/// How long operations in flight may take to end when the driver does. None is.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// A way to read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The ring, as the driver decides by itself.
    Uring,
    /// The ring, and nothing done by plain calls.
    Ring,
    /// Epoll and threads.
    Poll,
    /// A thread pool, with a hop for each block.
    Pool,
    /// Plain reads.
    Blocking,
    /// As `Uring`, on a thread of its own that reads ahead.
    Offload,
}

impl Variant {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 6] =
        [Self::Uring, Self::Ring, Self::Poll, Self::Pool, Self::Blocking, Self::Offload];

    /// Those that are measured unless others are asked for.
    pub const DEFAULT: [Self; 5] =
        [Self::Uring, Self::Ring, Self::Poll, Self::Pool, Self::Blocking];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Ring => "ring",
            Self::Poll => "poll",
            Self::Pool => "pool",
            Self::Blocking => "blocking",
            Self::Offload => "offload",
        }
    }

    /// The variant of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }
}

/// Sums the file.
pub(super) fn work(
    variant: Variant,
    path: &Path,
    block_bytes: usize,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    let file = File::open(path)?;
    match variant {
        Variant::Uring => driven(Engine::DEFAULT, file, block_bytes, meter),
        Variant::Ring => driven(Engine::RING, file, block_bytes, meter),
        Variant::Poll => driven(Engine::POLL, file, block_bytes, meter),
        Variant::Pool => pooled(file, block_bytes, meter),
        Variant::Blocking => blocking(file, block_bytes, meter),
        Variant::Offload => offloaded(file, block_bytes, meter),
    }
}

/// Memory for a block, which begins at a page.
#[derive(Debug)]
pub(super) struct Block {
    memory: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl Block {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE_BYTES].into_boxed_slice();
        let begin = memory.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
        Self { memory, begin, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..][..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..self.len]
    }
}

/// Plain reads, one after the other.
fn blocking(mut file: File, block_bytes: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let mut block = Block::new(block_bytes);
    let (mut total, mut reads) = (0u64, 0);
    loop {
        reads += 1;
        match file.read(block.bytes_mut()) {
            Ok(0) => break,
            Ok(len) => total = total.wrapping_add(sum(&block.bytes()[..len])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    meter.note_threads();
    Ok(Done::Worked { sum: total, counters: counters([("reads", reads)]) })
}

/// Each block by a thread of a pool.
fn pooled(file: File, block_bytes: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let pool = Pool::start(file)?;
    let mut block = Block::new(block_bytes);
    let (mut total, mut offset, mut reads) = (0u64, 0, 0);
    loop {
        reads += 1;
        let (result, read) = pool.read(block, offset);
        block = read;
        match result? {
            0 => break,
            len => {
                total = total.wrapping_add(sum(&block.bytes()[..len]));
                offset += len as u64;
            }
        }
    }
    meter.note_threads();
    Ok(Done::Worked { sum: total, counters: counters([("reads", reads), ("hops", reads)]) })
}

/// Through a driver on this thread.
fn driven(
    engine: Engine,
    file: File,
    block_bytes: usize,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    let driver = match engine.start()? {
        Ok(driver) => driver,
        Err(reason) => return Ok(Done::Unavailable(reason)),
    };
    let mut stream = Stream::new(&driver, file);
    (0..DEPTH).for_each(|_| stream.give(Block::new(block_bytes)));
    let mut total = 0u64;
    while let Some((block, len)) = stream.next()? {
        total = total.wrapping_add(sum(&block.bytes()[..len]));
        stream.give(block);
    }
    let counters = stream.end();
    meter.note_threads();
    let _ = driver.shutdown(DRAIN_LIMIT);
    Ok(Done::Worked { sum: total, counters })
}

/// Through a driver on another thread, which reads ahead of the one that sums.
fn offloaded(file: File, block_bytes: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let (full, chunks) = mpsc::sync_channel(CHUNKS_WAITING);
    let (back, empty) = mpsc::channel();
    let reader = thread::spawn(move || read_ahead(file, block_bytes, &full, &empty));
    let (mut total, mut has_noted) = (0u64, false);
    for chunk in &chunks {
        if !has_noted {
            has_noted = true;
            meter.note_threads();
        }
        for (block, len) in &chunk {
            total = total.wrapping_add(sum(&block.bytes()[..*len]));
        }
        back.send(chunk).ok(); // the reader may have come to the end
    }
    match reader.join().map_err(|_| anyhow!("the reading thread panicked"))?? {
        Ok(counters) => Ok(Done::Worked { sum: total, counters }),
        Err(reason) => Ok(Done::Unavailable(reason)),
    }
}

/// Only a panic ends the summing thread before the reading one.
const GONE: &str = "the summing thread is gone";

/// Blocks with how much of each was read.
type Chunk = Vec<(Block, usize)>;

/// Reads the file into chunks, which come back empty.
fn read_ahead(
    file: File,
    block_bytes: usize,
    full: &SyncSender<Chunk>,
    empty: &Receiver<Chunk>,
) -> anyhow::Result<Result<Counters, String>> {
    let driver = match Engine::DEFAULT.start()? {
        Ok(driver) => driver,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut stream = Stream::new(&driver, file);
    let chunk_blocks = CHUNK_BYTES.div_ceil(block_bytes.max(PAGE_BYTES));
    (0..CHUNKS * chunk_blocks + DEPTH).for_each(|_| stream.give(Block::new(block_bytes)));
    let mut chunk = Vec::with_capacity(chunk_blocks);
    while let Some(read) = stream.next()? {
        chunk.push(read);
        if chunk.len() == chunk_blocks {
            let next = Vec::with_capacity(chunk_blocks);
            full.send(std::mem::replace(&mut chunk, next)).context(GONE)?;
            // When all chunks are out, one of them has been summed and comes back.
            while stream.blocks() < chunk_blocks {
                let used = empty.recv().context(GONE)?;
                used.into_iter().for_each(|(block, _)| stream.give(block));
            }
        }
    }
    full.send(chunk).ok();
    let counters = stream.end();
    let _ = driver.shutdown(DRAIN_LIMIT);
    Ok(Ok(counters))
}

/// Which driver reads.
#[derive(Clone, Copy, Debug)]
struct Engine {
    policy: Policy,
    /// Whether reads may be done as plain calls where that is faster. The driver has no such way:
    /// with and without it, every read goes to the backend.
    #[expect(dead_code, reason = "says which variant is meant to do so")]
    bypass: bool,
}

impl Engine {
    const DEFAULT: Self = Self { policy: Policy::Uring, bypass: true };
    const RING: Self = Self { policy: Policy::Uring, bypass: false };
    const POLL: Self = Self { policy: Policy::Poll, bypass: true };

    /// The driver; or why this machine cannot have it.
    fn start(self) -> io::Result<Result<Driver<Auto>, String>> {
        match Auto::new(self.policy, Ring::builder()) {
            Ok((backend, _)) => Ok(Ok(Driver::new(backend))),
            Err(error) => {
                let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<SetupError>());
                match refusal {
                    Some(refusal) if refusal.is_refusal() => Ok(Err(refusal.to_string())),
                    _ => Err(error),
                }
            }
        }
    }
}

/// A file's blocks in order, several being read ahead.
struct Stream<'d> {
    driver: &'d Driver<Auto>,
    fd: Fd,
    /// Where the next block begins.
    offset: u64,
    /// Memory for blocks.
    free: Vec<Block>,
    /// Reads that were started, in order.
    in_flight: VecDeque<Reading>,
    /// A read found the end.
    has_ended: bool,
    /// How many reads were started.
    reads: u64,
}

/// A block that is being read.
struct Reading {
    op: Op<Read<Slice<Box<[u8]>>>, Auto>,
    begin: usize,
    len: usize,
    offset: u64,
    filled: usize,
}

impl<'d> Stream<'d> {
    fn new(driver: &'d Driver<Auto>, file: File) -> Self {
        let (free, in_flight) = (Vec::new(), VecDeque::new());
        let fd = driver.adopt(file.into());
        Self { driver, fd, offset: 0, free, in_flight, has_ended: false, reads: 0 }
    }

    /// Gives memory for a block.
    fn give(&mut self, block: Block) {
        self.free.push(block);
    }

    /// Blocks that are free or being read.
    fn blocks(&self) -> usize {
        self.free.len() + self.in_flight.len()
    }

    /// The next block, and how much of it was read; less than all only at the end of the file.
    fn next(&mut self) -> io::Result<Option<(Block, usize)>> {
        while !self.has_ended
            && self.in_flight.len() < DEPTH
            && let Some(block) = self.free.pop()
        {
            let offset = self.offset;
            self.offset += block.len as u64;
            let reading = self.start(block, offset, 0);
            self.in_flight.push_back(reading);
        }
        while let Some(mut reading) = self.in_flight.pop_front() {
            let (result, slice) = loop {
                if let Some(output) = reading.op.try_take() {
                    break output;
                }
                self.driver.turn(Wait::Forever)?;
            };
            let Reading { begin, len, offset, mut filled, .. } = reading;
            let block = Block { memory: slice.into_inner(), begin, len };
            match result {
                Ok(0) => {
                    self.has_ended = true;
                    if filled > 0 {
                        return Ok(Some((block, filled)));
                    }
                    continue; // so do all that are ahead
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if filled == len {
                return Ok(Some((block, len)));
            }
            let reading = self.start(block, offset, filled);
            self.in_flight.push_front(reading);
        }
        Ok(None)
    }

    /// Starts to read what is missing of a block.
    fn start(&mut self, block: Block, offset: u64, filled: usize) -> Reading {
        let Block { memory, begin, len } = block;
        let missing = memory.slice(begin + filled..begin + len);
        self.reads += 1;
        let op = self.driver.read(&self.fd, missing, offset + filled as u64);
        Reading { op, begin, len, offset, filled }
    }

    /// What was counted.
    fn end(self) -> Counters {
        let totals = self.driver.counters();
        let mut counters = counters(totals.iter().chain([("reads", self.reads)]));
        for &kind in OpKind::ALL {
            let ways = totals.of(kind);
            let ways = ways.iter().filter(|&(_, count)| count > 0);
            counters.extend(ways.map(|(way, count)| (format!("{}.{way}", kind.name()), count)));
        }
        counters
    }
}

/// Counters with these names.
fn counters(pairs: impl IntoIterator<Item = (&'static str, u64)>) -> Counters {
    pairs.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_at_a_page() {
        for len in [1, 4096, 32 << 10, 100_000] {
            let mut block = Block::new(len);
            assert_eq!(block.bytes().as_ptr().addr() % PAGE_BYTES, 0);
            assert_eq!((block.bytes().len(), block.bytes_mut().len()), (len, len));
        }
    }

    #[test]
    fn names_lead_back_to_variants() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
        assert_eq!(Variant::by_name("aio"), None);
    }
}
