//! A small block store on a loop of its own, as many storage programs have one: no executor, no futures.
//!
//! The loop owns a table of requests. Each turn it starts as many as the depth allows, gives the driver a
//! turn, and handles what is done. It writes every block of a file in a scattered order, makes them
//! durable with one `fdatasync`, then reads them back and checks them.
//!
//! Usage: `cargo run --release -p sakia-driver --example block_store -- [FILE [BLOCKS]]`

use std::collections::HashMap;
use std::error::Error;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Instant;

use sakia_driver::{Driver, Fd, Op, Operation, Wait};

const BLOCK_BYTES: usize = 4096;
/// Requests in flight at a time.
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

    // Write: each request takes a buffer along and brings it back.
    run(
        &driver,
        blocks,
        |block, mut buf| {
            fill(&mut buf, scatter(block, blocks));
            driver.write(&file, buf, scatter(block, blocks) * BLOCK_BYTES as u64)
        },
        |_, (result, buf)| expect_whole(result).map(|()| buf),
    )?;

    // Make it durable, and wait for that alone.
    let mut sync = driver.fsync(&file, true);
    while sync.try_take().transpose()?.is_none() {
        driver.turn(Wait::Forever)?;
    }

    // Read it back, with the same loop.
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

/// The loop: keeps `DEPTH` requests in flight until `count` are done.
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
        // Start what there is room for. The number of the request is its token.
        while next < count
            && let Some(buf) = free.pop()
        {
            let mut op = start(next, buf);
            op.set_token(next);
            in_flight.insert(next, op);
            next += 1;
        }
        // One turn submits all of it, and sleeps only if nothing is ready.
        driver.turn(Wait::Forever)?;
        // Handle what is done, in the order in which it was.
        while let Some(request) = driver.next_done() {
            let mut op = in_flight.remove(&request).ok_or("a request was done twice")?;
            let output = op.try_take().ok_or("a request was reported before it was done")?;
            free.push(finish(request, output)?);
        }
    }
    Ok(())
}

/// A request that moved fewer bytes than a block is an error in this program: it keeps whole blocks.
fn expect_whole(result: std::io::Result<usize>) -> Result<(), Box<dyn Error>> {
    match result? {
        BLOCK_BYTES => Ok(()),
        short => Err(format!("a transfer of {short} bytes of a block").into()),
    }
}

/// The order in which blocks are written: every block once, neighbors far apart.
fn scatter(block: u64, blocks: u64) -> u64 {
    // Odd and larger than any common factor of small sizes, so that it visits every block.
    let stride = 7919;
    if blocks.is_multiple_of(stride) { block } else { block * stride % blocks }
}

/// Fills `buf` with the contents of block number `block`.
fn fill(buf: &mut [u8], block: u64) {
    for (place, byte) in buf.iter_mut().enumerate() {
        *byte = (block.wrapping_mul(31) as u8).wrapping_add(place as u8);
    }
}
