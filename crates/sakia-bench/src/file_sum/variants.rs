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
use sakia_driver::{
    AlignedBuf, Auto, BufResult, Bypass, Driver, Fd, IoBuf, Op, OpKind, Policy, Read, Rules, Slice,
    Wait,
};
use sakia_ring::{Ring, SetupError};

use super::pool::Pool;
use super::sum;
use crate::cell::{Counters, Done};
use crate::measure::Meter;

/// Reads that a [`Stream`] has in flight.
pub(super) const DEPTH: usize = 4;
/// Bytes that the reading thread of `offload` hands over at a time; fewer with small blocks.
const CHUNK_BYTES: usize = 512 << 10;
/// The most blocks of a chunk.
const CHUNK_BLOCKS_MAX: usize = 128;
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

/// Plain reads, one after the other.
fn blocking(mut file: File, block_bytes: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let mut block = AlignedBuf::zeroed(block_bytes);
    let (mut total, mut reads) = (0u64, 0);
    loop {
        reads += 1;
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(len) => total = total.wrapping_add(sum(&block[..len])),
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
    let mut block = AlignedBuf::zeroed(block_bytes);
    let (mut total, mut offset, mut reads) = (0u64, 0, 0);
    loop {
        reads += 1;
        let (result, read) = pool.read(block, offset);
        block = read;
        match result? {
            0 => break,
            len => {
                total = total.wrapping_add(sum(&block[..len]));
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
    (0..DEPTH).for_each(|_| stream.give(AlignedBuf::zeroed(block_bytes)));
    let mut total = 0u64;
    while let Some((block, len)) = stream.next()? {
        total = total.wrapping_add(sum(&block[..len]));
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
            total = total.wrapping_add(sum(&block[..*len]));
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
type Chunk = Vec<(AlignedBuf, usize)>;

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
    let chunk_blocks = CHUNK_BYTES.div_ceil(block_bytes).min(CHUNK_BLOCKS_MAX);
    (0..CHUNKS * chunk_blocks + DEPTH).for_each(|_| stream.give(AlignedBuf::zeroed(block_bytes)));
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
    /// Whether reads are done as plain calls where that is the cheaper way.
    bypass: bool,
}

impl Engine {
    const DEFAULT: Self = Self { policy: Policy::Uring, bypass: true };
    const RING: Self = Self { policy: Policy::Uring, bypass: false };
    const POLL: Self = Self { policy: Policy::Poll, bypass: true };

    /// The driver; or why this machine cannot have it.
    fn start(self) -> io::Result<Result<Driver<Auto>, String>> {
        match Auto::new(self.policy, Ring::builder()) {
            Ok((backend, _)) => {
                let driver = Driver::new(backend);
                if self.bypass {
                    driver.set_bypass(Bypass::Rules(Rules::default()));
                }
                Ok(Ok(driver))
            }
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
    free: Vec<AlignedBuf>,
    /// Reads that were started, in order.
    in_flight: VecDeque<Reading>,
    /// A read found the end.
    has_ended: bool,
    /// How many reads were started.
    reads: u64,
}

/// A block that is being read.
struct Reading {
    op: Op<Read<Slice<AlignedBuf>>, Auto>,
    /// What it came to, where it was done at once.
    output: Option<BufResult<usize, Slice<AlignedBuf>>>,
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
    fn give(&mut self, block: AlignedBuf) {
        self.free.push(block);
    }

    /// Blocks that are free or being read.
    fn blocks(&self) -> usize {
        self.free.len() + self.in_flight.len()
    }

    /// The next block, and how much of it was read; less than all only at the end of the file.
    fn next(&mut self) -> io::Result<Option<(AlignedBuf, usize)>> {
        // Ahead is read only while reads have to wait: what is done at once is best used at once, while
        // the bytes are in the processor's cache.
        while !self.has_ended
            && self.in_flight.len() < DEPTH
            && self.in_flight.front().is_none_or(|reading| reading.output.is_none())
            && let Some(block) = self.free.pop()
        {
            let offset = self.offset;
            self.offset += block.len() as u64;
            let reading = self.start(block, offset, 0);
            self.in_flight.push_back(reading);
        }
        while let Some(mut reading) = self.in_flight.pop_front() {
            let (result, slice) = loop {
                if let Some(output) = reading.output.take().or_else(|| reading.op.try_take()) {
                    break output;
                }
                self.driver.turn(Wait::Forever)?;
            };
            let Reading { offset, mut filled, .. } = reading;
            let block = slice.into_inner();
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
            if filled == block.len() {
                return Ok(Some((block, filled)));
            }
            let reading = self.start(block, offset, filled);
            self.in_flight.push_front(reading);
        }
        Ok(None)
    }

    /// Starts to read what is missing of a block.
    fn start(&mut self, block: AlignedBuf, offset: u64, filled: usize) -> Reading {
        let len = block.len();
        self.reads += 1;
        let mut op = self.driver.read(&self.fd, block.slice(filled..len), offset + filled as u64);
        let output = op.try_take();
        Reading { op, output, offset, filled }
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
    fn names_lead_back_to_variants() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
        assert_eq!(Variant::by_name("aio"), None);
    }
}
