//! Cached reads allocate nothing, and use no other thread. A process has one allocator, hence a separate
//! program.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

use std::path::PathBuf;

use sakia_testkit::alloc_count::{CountingAllocator, measure};
use sakia_tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator::new();

const BLOCK_BYTES: usize = 4096;

/// Runs a future that never waits.
fn run<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(tokio::task::unconstrained(future));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

fn file(place: &str, test: &str) -> (PathBuf, std::fs::File) {
    let path = PathBuf::from(place).join(format!("allocations-{}-{test}", std::process::id()));
    std::fs::write(&path, [7; 16 * BLOCK_BYTES]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    (path, file)
}

#[test]
fn reads_and_seeks() {
    let (path, file) = file(env!("CARGO_TARGET_TMPDIR"), "reads");
    let mut file = File::from_std(file);
    let mut block = [0; BLOCK_BYTES];
    // The first read determines the file's support.
    run(file.read_exact(&mut block)).unwrap();
    let counts = measure(|| {
        for _ in 0..100 {
            run(file.rewind()).unwrap();
            for _ in 0..16 {
                run(file.read_exact(&mut block)).unwrap();
            }
            assert_eq!(run(file.read(&mut block)).unwrap(), 0);
        }
    });
    assert_eq!(counts.allocations, 0, "{counts:?}");
    assert_eq!(block, [7; BLOCK_BYTES]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn writes_in_memory() {
    if !std::path::Path::new("/dev/shm").is_dir() {
        let reason = "no file system in memory";
        return sakia_testkit::place::announce_skip("allocations::writes_in_memory", reason);
    }
    let (path, file) = file("/dev/shm", "writes");
    let mut file = File::from_std(file);
    run(file.write_all(&[8; BLOCK_BYTES])).unwrap();
    let counts = measure(|| {
        for _ in 0..100 {
            run(file.rewind()).unwrap();
            for _ in 0..16 {
                run(file.write_all(&[9; BLOCK_BYTES])).unwrap();
            }
            run(file.flush()).unwrap();
        }
    });
    assert_eq!(counts.allocations, 0, "{counts:?}");
    assert_eq!(std::fs::read(&path).unwrap(), [9; 16 * BLOCK_BYTES]);
    std::fs::remove_file(path).unwrap();
}
