//! A small block store with a loop of its own, as in many storage programs: no executor, no futures.
//!
//! The loop owns a table of requests. Each iteration starts as many requests as the depth allows, gives the
//! driver a turn, and handles the completed ones. The program writes every block of a file in a scattered
//! order, makes them durable with one `fdatasync`, then reads them back and checks them.
//!
//! Usage: `cargo run --release -p sakia-driver --example block_store -- [FILE [BLOCKS]]`

use std::collections::HashMap;
use std::error::Error;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Instant;

use sakia_driver::{Driver, Fd, Op, Operation, Wait};

const BLOCK_BYTES: usize = 4096;
/// The maximum number of requests in flight.
const DEPTH: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let path = args.next().map_or_else(|| std::env::temp_dir().join("sakia-blocks"), PathBuf::from);
    let blocks: u64 = match args.next() {
        Some(text) => text.to_str().ok_or("BLOCKS is not a number")?.parse()?,
        None => 16_384,
    };
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.map_err(|error| format!("open {}: {error}", path.display()))?;

    // The driver belongs to this thread. From here on it owns the descriptor.
    let driver = Driver::uring()?;
    let file: Fd = driver.adopt(file.into());
    let begin = Instant::now();

    // Write: each request owns its buffer and returns it with the result.
    run(
        &driver,
        blocks,
        |block, mut buf| {
            fill(&mut buf, scatter(block, blocks));
            driver.write(&file, buf, scatter(block, blocks) * BLOCK_BYTES as u64)
        },
        |_, (result, buf)| expect_whole(result).map(|()| buf),
    )?;

    // Make the blocks durable, and wait for this operation alone.
    let mut sync = driver.fsync(&file, true);
    while sync.try_take().transpose()?.is_none() {
        driver.turn(Wait::Forever)?;
    }

    // Read the blocks back, with the same loop.
    run(
        &driver,
        blocks,
        |block, buf| driver.read(&file, buf, block * BLOCK_BYTES as u64),
        |block, (result, buf)| {
            expect_whole(result)?;
            let mut expected = vec![0; BLOCK_BYTES];
            fill(&mut expected, block);
            if buf == expected { Ok(buf) } else { Err(format!("block {block} differs").into()) }
        },
    )?;

    let counters = driver.counters();
    println!(
        "{blocks} blocks written, synced and read back in {:.0?}: {} operations, {} enters",
        begin.elapsed(),
        counters.finished,
        counters.enters,
    );
    Ok(())
}

/// Keeps `DEPTH` requests in flight until `count` are done.
fn run<O: Operation>(
    driver: &Driver,
    count: u64,
    start: impl Fn(u64, Vec<u8>) -> Op<O>,
    finish: impl Fn(u64, O::Output) -> Result<Vec<u8>, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut free: Vec<Vec<u8>> = vec![vec![0; BLOCK_BYTES]; DEPTH];
    let mut in_flight = HashMap::with_capacity(DEPTH);
    let mut next = 0;
    while next < count || !in_flight.is_empty() {
        // Start a request for each free buffer. The number of the request is its token.
        while next < count
            && let Some(buf) = free.pop()
        {
            let mut op = start(next, buf);
            op.set_token(next);
            in_flight.insert(next, op);
            next += 1;
        }
        // One turn submits all of them, and sleeps only if nothing is ready.
        driver.turn(Wait::Forever)?;
        // Handle the completed requests, in the order of their completion.
        while let Some(request) = driver.next_done() {
            let mut op = in_flight.remove(&request).ok_or("a request was done twice")?;
            let output = op.try_take().ok_or("a request was reported before it was done")?;
            free.push(finish(request, output)?);
        }
    }
    Ok(())
}

/// Returns an error if a request moved fewer bytes than a block: this program keeps whole blocks.
fn expect_whole(result: std::io::Result<usize>) -> Result<(), Box<dyn Error>> {
    match result? {
        BLOCK_BYTES => Ok(()),
        short => Err(format!("a transfer of {short} bytes of a block").into()),
    }
}

/// Returns the block that is written in step `block`: every block once, neighbors far apart.
fn scatter(block: u64, blocks: u64) -> u64 {
    // A prime: the order contains every block unless `blocks` is a multiple of it.
    let stride = 7919;
    if blocks.is_multiple_of(stride) { block } else { block * stride % blocks }
}

/// Fills `buf` with the contents of block number `block`.
fn fill(buf: &mut [u8], block: u64) {
    for (place, byte) in buf.iter_mut().enumerate() {
        *byte = (block.wrapping_mul(31) as u8).wrapping_add(place as u8);
    }
}
