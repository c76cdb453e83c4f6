//! Copies a tree and prints the counts: `copy_tree [-a] FROM TO`.

use std::process::ExitCode;
use std::sync::Arc;

use sakia_copy::{Options, Progress, copy_tree};

fn main() -> std::io::Result<ExitCode> {
    let mut paths: Vec<_> = std::env::args_os().skip(1).collect();
    let archive = paths.first().is_some_and(|argument| argument == "-a");
    if archive {
        paths.remove(0);
    }
    let [from, to] = &paths[..] else {
        eprintln!("usage: copy_tree [-a] FROM TO");
        return Ok(ExitCode::from(2));
    };
    let options = if archive { Options::archive() } else { Options::new() };
    let progress = Arc::new(Progress::new().on_failure(|failure| eprintln!("{failure}")));
    let threads = std::thread::available_parallelism()?.get();
    let runtime = sakia::Runtime::builder().threads(threads).build()?;
    let report = runtime.block_on(copy_tree(from, to, &options, &progress))?;
    println!("{:?}\n{:?}", report.counts, report.counters);
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
