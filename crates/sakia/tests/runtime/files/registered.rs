//! Registered memory.

use std::path::Path;

use sakia::Runtime;
use sakia::fs::File;
use sakia::io::{BufResultExt, FixedBuf, IoBuf, IoBufMut, register_buffers};
use sakia_driver::Policy;

use super::TempDir;

const EFAULT: Option<i32> = Some(14);
const EBUSY: Option<i32> = Some(16);

/// Returns a runtime on each backend with real files.
fn runtimes() -> impl Iterator<Item = Runtime> {
    [Policy::Uring, Policy::Poll].into_iter().filter_map(|policy| {
        Runtime::builder()
            .backend(policy)
            .build()
            .inspect_err(|error| {
                let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                assert!(!denied, "skips are denied, and {policy:?} must: {error}");
                eprintln!("SKIP {policy:?}: {error}");
            })
            .ok()
    })
}

async fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(true).open(path).await.unwrap()
}

/// The same program everywhere.
async fn transfers(path: &Path) {
    let file = open(path).await;
    let arena = register_buffers(2, 4096).unwrap();
    let again = register_buffers(1, 4096).unwrap_err();
    assert_eq!(again.raw_os_error(), EBUSY);
    let (mut one, other) = (arena.block().unwrap(), arena.block().unwrap());
    assert!(arena.block().is_none());
    let len = one.len();
    assert_eq!(len, arena.block_bytes());

    // Writes a whole block, and a part of it behind that.
    one.fill(b'x');
    let (count, mut one) = file.write_fixed_at(one, 0).await.both().unwrap();
    assert_eq!(count, len);
    one[10..15].copy_from_slice(b"hello");
    let (count, part) = file.write_fixed_at(one.slice(10..15), len as u64).await.both().unwrap();
    assert_eq!(count, 5);
    drop(part);
    assert!(arena.block().is_some(), "it was not given back");

    let (count, other) = file.read_fixed_at(other, len as u64 - 2).await.both().unwrap();
    assert_eq!(&other[..count], b"xxhello");
    let (count, part) = file.read_fixed_at(other.slice(4..7), len as u64).await.both().unwrap();
    assert_eq!((count, &part.buffer()[..7]), (3, &b"xxhehel"[..]));
    // Reads at the end of the file, and into a block as ordinary memory.
    let (count, mut block) =
        file.read_fixed_at(part.into_inner(), len as u64 + 5).await.both().unwrap();
    assert_eq!(count, 0);
    block.fill(0);
    let block = file.read_exact_at(block.room(5), len as u64).await.buffer().unwrap();
    assert_eq!(&block.into_inner()[..5], b"hello");

    let reader = File::open(path).await.unwrap();
    let (result, block) = reader.write_fixed_at(arena.block().unwrap(), 0).await;
    assert_eq!(result.unwrap_err().raw_os_error(), Some(9), "EBADF");
    assert_eq!(block.len(), len, "it comes back");
}

#[test]
fn blocks_and_parts_of_them_are_read_and_written() {
    let folder = TempDir::new();
    for runtime in runtimes() {
        runtime.block_on(transfers(&folder.0.join("file")));
    }
}

#[test]
#[cfg(feature = "sim")]
fn so_they_are_on_the_simulated_kernel() {
    for seed in 0..20 {
        let sim = sakia_driver::sim::Sim::builder(seed).build();
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        runtime.block_on(transfers(Path::new("file")));
    }
}

#[test]
fn a_block_of_another_runtime_is_refused() {
    let folder = TempDir::new();
    for runtime in runtimes() {
        let block: FixedBuf =
            runtime.block_on(async { register_buffers(1, 4096).unwrap().block().unwrap() });
        let other = Runtime::new().unwrap();
        let block = other.block_on(async {
            let file = open(&folder.0.join("other")).await;
            let (result, block) = file.write_fixed_at(block, 0).await;
            assert_eq!(result.unwrap_err().raw_os_error(), EFAULT);
            let (result, block) = file.read_fixed_at(block, 0).await;
            assert_eq!(result.unwrap_err().raw_os_error(), EFAULT);
            block
        });
        // The block can still be used as ordinary memory.
        other.block_on(async {
            let file = open(&folder.0.join("other")).await;
            let len = block.len();
            assert_eq!(file.write_all_at(block, 0).await.buffer().unwrap().len(), len);
        });
    }
}
