//! Checksums of files under smol, which knows nothing of Sakia: an engine does the reading.
//!
//! `cargo run --release -p smol-sums -- FILE...` prints a line for each file, in the order of the arguments:
//! the checksum and the path. A file that cannot be read is named on standard error,
//! and the exit status is 1.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, io};

use anyhow::{Context, Result};
use futures_util::{StreamExt, stream};
use sakia::Engine;
use xxhash_rust::xxh3::Xxh3Default;

/// Files that are read at a time.
const FILES: usize = 32;
/// Bytes of a read.
const READ_BYTES: usize = 256 << 10;

fn main() -> Result<ExitCode> {
    let engine = Engine::new().context("no engine")?;
    let paths: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let mut status = ExitCode::SUCCESS;
    smol::block_on(async {
        // `buffered` keeps the order. A slow file holds up the lines behind it.
        let mut sums = stream::iter(paths)
            .map(|path| {
                let engine = engine.clone();
                // A task of its own, so that sums are computed on all of smol's threads.
                smol::spawn(async move { (sum(&engine, &path).await, path) })
            })
            .buffered(FILES);
        while let Some((sum, path)) = sums.next().await {
            match sum {
                Ok(sum) => println!("{sum:032x}  {}", path.display()),
                Err(error) => {
                    eprintln!("{}: {error}", path.display());
                    status = ExitCode::FAILURE;
                }
            }
        }
    });
    Ok(status)
}

/// Reads a file to its end, with one buffer, which goes to the engine and comes back.
async fn sum(engine: &Engine, path: &PathBuf) -> io::Result<u128> {
    let file = engine.open(path).await?;
    let mut sum = Xxh3Default::new();
    let mut buf = Vec::with_capacity(READ_BYTES);
    loop {
        buf.clear();
        let (result, filled) = file.read(buf).await;
        if result? == 0 {
            return Ok(sum.digest128());
        }
        sum.update(&filled);
        buf = filled;
    }
}
