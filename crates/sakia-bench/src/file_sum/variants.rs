//! The ways to read the file. Those of the runtime are as in users' programs: a file, and a reader.

use std::fs::File;
use std::io;
use std::path::Path;

use sakia::Runtime;
use sakia::io::{Reader, Source};
use sakia_driver::AlignedBuf;

use super::pool::Pool;
use crate::bytes::{sum, sum_plainly};
use crate::cell::{Counters, Done};
use crate::engine::{self, Engine, counters};
use crate::measure::Meter;
use crate::named::named;

/// The number of blocks in memory of a reader on the runtime's thread.
///
/// The reader begins to read ahead only when the first read has to wait, so the depth costs nothing if the
/// bytes are in the page cache: then two blocks are read on demand, by a plain call, and added while they are
/// in the processor's cache. Otherwise the device, or the threads of `poll`, work meanwhile. In `ring`
/// several reads share the cost of an enter; with more than a few of them blocks leave the processor's
/// nearest caches before they are added.
pub(super) const DEPTH: usize = 4;
/// Bytes of all blocks of `offload`: a reader's default.
const OFFLOAD_BYTES: usize = 1 << 20;
/// The fewest of these blocks, if they are large.
const OFFLOAD_BLOCKS_MIN: usize = 4;
/// The most of these blocks, if they are small.
const OFFLOAD_BLOCKS_MAX: usize = 256;

named! {
    /// A way to read the file.
    pub enum Variant {
        /// The ring, as the driver decides by itself.
        Uring = "uring",
        /// The ring, without plain calls.
        Ring = "ring",
        /// Epoll and threads.
        Poll = "poll",
        /// A thread pool, with a hop for each block.
        Pool = "pool",
        /// Plain reads.
        Blocking = "blocking",
        /// A reader's thread that reads ahead by plain calls, and the runtime's thread, which adds.
        Offload = "offload",
    }
}

impl Variant {
    /// Those measured by default.
    pub const DEFAULT: [Self; 5] =
        [Self::Uring, Self::Ring, Self::Poll, Self::Pool, Self::Blocking];
}

/// Sums the file.
pub(super) fn work(
    variant: Variant,
    path: &Path,
    block_bytes: usize,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    match variant {
        Variant::Uring => through_reader(Engine::URING, path, block_bytes, meter),
        Variant::Ring => through_reader(Engine::RING, path, block_bytes, meter),
        Variant::Poll => through_reader(Engine::POLL, path, block_bytes, meter),
        Variant::Pool => pooled(File::open(path)?, block_bytes, meter),
        Variant::Blocking => blocking(File::open(path)?, block_bytes, meter),
        Variant::Offload => offloaded(File::open(path)?, block_bytes, meter),
    }
}

/// Sums by plain reads, one after the other.
fn blocking(file: File, block_bytes: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let (sum, reads) = sum_plainly(file, block_bytes)?;
    meter.note_threads();
    Ok(Done { sum, counters: counters([("reads", reads)]) })
}

/// Sums blocks that threads of a pool read.
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
    Ok(Done { sum: total, counters: counters([("reads", reads), ("hops", reads)]) })
}

/// Sums through a reader on this thread.
fn through_reader(
    engine: Engine,
    path: &Path,
    block_bytes: usize,
    meter: &mut Meter,
) -> anyhow::Result<Done> {
    let runtime = engine.start()?;
    let total = runtime.block_on(async {
        let file = sakia::fs::File::open(path).await?;
        let mut reader = Reader::with_depth(&file, block_bytes, DEPTH);
        let (total, _) = sum_blocks(&mut reader, block_bytes).await?;
        drop(reader);
        file.close().await?;
        anyhow::Ok(total)
    })?;
    meter.note_threads();
    Ok(Done { sum: total, counters: counted(&runtime) })
}

/// Sums through a reader whose thread reads ahead of this one.
fn offloaded(file: File, block_bytes: usize, meter: &mut Meter) -> anyhow::Result<Done> {
    let runtime = Engine::URING.start()?;
    let blocks = (OFFLOAD_BYTES / block_bytes).clamp(OFFLOAD_BLOCKS_MIN, OFFLOAD_BLOCKS_MAX);
    let (total, reads) = runtime.block_on(async {
        let mut reader = Reader::offload_with(file, 0, block_bytes, blocks)?;
        let summed = sum_blocks(&mut reader, block_bytes).await;
        meter.note_threads(); // the reader's thread lives as long as the reader
        summed
    })?;
    let mut counters = counted(&runtime);
    // The reader's thread makes plain calls, which the driver does not count: one for each block, and one
    // that finds the end.
    counters.insert("reads".into(), reads);
    Ok(Done { sum: total, counters })
}

/// Adds the bytes of all blocks. Also returns the number of blocks, with the end.
async fn sum_blocks<S: Source>(
    reader: &mut Reader<S>,
    block_bytes: usize,
) -> io::Result<(u64, u64)> {
    let (mut total, mut blocks) = (0u64, 0);
    loop {
        blocks += 1;
        let bytes = reader.fill().await?;
        // A reader may return several blocks at once.
        let len = bytes.len().min(block_bytes);
        if len == 0 {
            return Ok((total, blocks));
        }
        total = total.wrapping_add(sum(&bytes[..len]));
        reader.consume(len);
    }
}

/// Returns the counters of a runtime's driver, and the number of reads begun.
fn counted(runtime: &Runtime) -> Counters {
    let mut counters = engine::counted(runtime);
    let count = |name| counters.get(name).copied().unwrap_or(0);
    let reads = count("read.submitted") + count("read.inline");
    counters.insert("reads".into(), reads);
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::Named;

    #[test]
    fn names_lead_back_to_variants() {
        for variant in Variant::ALL {
            assert_eq!(Variant::by_name(variant.name()), Some(variant));
        }
        assert_eq!(Variant::by_name("aio"), None);
    }
}
