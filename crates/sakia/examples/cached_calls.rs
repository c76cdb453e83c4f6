//! The cost of reads and overwrites that find everything in the page cache, one after the other.
//!
//! Run it with `cargo run --release -p sakia --example cached_calls -- DIRECTORY`. It prints a line for each
//! size: the nanoseconds of a call of `std`, and the time of each other way in parts of it, medians of rounds
//! in which all alternate.
//! - `try`: `engine::File::try_read_at` and `try_write_at`, which may refuse a write;
//! - `wait`: `engine::File::read_at(…).wait()`, and `write_at` likewise;
//! - `engine`: the same requests, awaited on a current-thread runtime of tokio;
//! - `runtime`: `fs::File::read_at` and `write_at`, awaited.

use std::error::Error;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use sakia::fs::OpenOptions;
use sakia::{Engine, engine, fs};

const ROUNDS: usize = 101;
/// Calls of one way in a round.
const CALLS: u64 = 2000;
/// The file's pages, which the calls visit one after the other.
const PAGES: u64 = 64;
const PAGE: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: cached_calls DIRECTORY")?;
    let path = Path::new(&directory).join(format!("cached-calls-{}", std::process::id()));
    std::fs::write(&path, vec![7; (PAGES * PAGE) as usize + 16_384])?;
    let std = std::fs::OpenOptions::new().read(true).write(true).open(&path)?;
    let options = OpenOptions::new().read(true).write(true).clone();
    let engine = Engine::global()?.open_with(&path, &options).wait()?;
    let runtime = sakia::Runtime::new()?;
    let own = runtime.block_on(options.open(&path))?;
    let tokio = tokio::runtime::Builder::new_current_thread().build()?;
    for (name, is_write, len) in [
        ("read 1000", false, 1000),
        ("read 10000", false, 10_000),
        ("write 1000", true, 1000),
        ("write 4096", true, 4096),
    ] {
        let mut times: [Vec<f64>; 5] = Default::default();
        let mut buf = vec![7; len];
        for _ in 0..ROUNDS {
            let mut ways: [&mut dyn FnMut(Vec<u8>) -> io::Result<Vec<u8>>; 5] = [
                &mut |buf| plainly(&std, is_write, buf),
                &mut |buf| tried(&engine, is_write, buf),
                &mut |buf| waited(&engine, is_write, buf),
                &mut |buf| tokio.block_on(awaited(&engine, is_write, buf)),
                &mut |buf| runtime.block_on(on_runtime(&own, is_write, buf)),
            ];
            for (way, times) in ways.iter_mut().zip(&mut times) {
                let begin = Instant::now();
                buf = way(std::mem::take(&mut buf))?;
                times.push(begin.elapsed().as_nanos() as f64 / CALLS as f64);
            }
        }
        let [_, tried, waited, awaited, on_runtime] =
            times.each_ref().map(|its| ratio_of(its, &times[0]));
        let plain = median(times[0].clone());
        print!("{name:10} {plain:6.0} ns, try {tried:.3}, wait {waited:.3}, ");
        println!("engine {awaited:.3}, runtime {on_runtime:.3}");
    }
    println!("{:?}", Engine::global()?.statistics());
    std::fs::remove_file(&path)?;
    Ok(())
}

/// The offsets of the calls.
fn places() -> impl Iterator<Item = u64> {
    (0..CALLS).map(|number| number % PAGES * PAGE)
}

fn plainly(file: &std::fs::File, is_write: bool, mut buf: Vec<u8>) -> io::Result<Vec<u8>> {
    for at in places() {
        let buf = black_box(&mut buf);
        if is_write {
            file.write_at(buf, at)?
        } else {
            file.read_at(buf, at)?
        };
    }
    Ok(buf)
}

fn tried(file: &engine::File, is_write: bool, mut buf: Vec<u8>) -> io::Result<Vec<u8>> {
    for at in places() {
        let buf = black_box(&mut buf);
        if is_write { file.try_write_at(buf, at) } else { file.try_read_at(buf, at) }
            .transpose()?;
    }
    Ok(buf)
}

fn waited(file: &engine::File, is_write: bool, mut buf: Vec<u8>) -> io::Result<Vec<u8>> {
    for at in places() {
        let (result, back) = match is_write {
            true => file.write_at(black_box(buf), at).wait(),
            false => file.read_at(black_box(buf), at).wait(),
        };
        result?;
        buf = back;
    }
    Ok(buf)
}

/// Makes calls of a file whose methods return futures of a result and the buffer.
macro_rules! awaited {
    ($file:expr, $is_write:expr, $buf:expr) => {{
        let mut buf: Vec<u8> = $buf;
        for at in places() {
            let (result, back) = match $is_write {
                true => $file.write_at(black_box(buf), at).await,
                false => $file.read_at(black_box(buf), at).await,
            };
            result?;
            buf = back;
        }
        Ok(buf)
    }};
}

async fn awaited(file: &engine::File, is_write: bool, buf: Vec<u8>) -> io::Result<Vec<u8>> {
    awaited!(file, is_write, buf)
}

async fn on_runtime(file: &fs::File, is_write: bool, buf: Vec<u8>) -> io::Result<Vec<u8>> {
    awaited!(file, is_write, buf)
}

/// Returns the median of the ratios of each round.
fn ratio_of(times: &[f64], plain: &[f64]) -> f64 {
    median(times.iter().zip(plain).map(|(time, plain)| time / plain).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
