//! Readers and writers in steady operation allocate nothing. This is a program of its own, since a program
//! has only one allocator.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

#[path = "allocations/echo.rs"]
mod echo;
#[path = "allocations/idle.rs"]
mod idle;

use std::cell::Cell;
use std::future::{Ready, ready};
use std::io;
use std::path::Path;
use std::rc::Rc;

use sakia::io::{
    AsyncRead, AsyncReadAt, AsyncWrite, AsyncWriteAt, BufResult, IoBuf, IoBufMut, Level, Reader,
    Source, Writer, copy, pipe,
};
use sakia::{Runtime, block_on};
use sakia_driver::{MountTable, OpKind};
use sakia_testkit::alloc_count::{CountingAllocator, Counts, measure, measure_peak, thread_counts};
use sakia_testkit::fuse::{Fuse, Opcode};
use sakia_testkit::{available, skip};

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator::new();

const BLOCK_BYTES: usize = 4096;

/// A stream that gives and takes any number of bytes.
#[derive(Clone, Default)]
struct Endless {
    reads: Rc<Cell<u64>>,
}

impl AsyncRead for Endless {
    async fn read<T: IoBufMut>(&mut self, mut buf: T) -> BufResult<usize, T> {
        self.reads.set(self.reads.get() + 1);
        buf.as_bytes_mut()[0] = 1;
        (Ok(buf.bytes_len()), buf)
    }
}

impl AsyncReadAt for Endless {
    type ReadAt<T: IoBufMut> = Ready<BufResult<usize, T>>;

    fn start_read_at<T: IoBufMut>(&self, buf: T, _offset: u64) -> Self::ReadAt<T> {
        self.reads.set(self.reads.get() + 1);
        ready((Ok(buf.bytes_len()), buf))
    }
}

impl AsyncWrite for Endless {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        (Ok(buf.bytes_len()), buf)
    }

    async fn close(self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncWriteAt for Endless {
    async fn write_at<T: IoBuf>(&self, buf: T, _offset: u64) -> BufResult<usize, T> {
        (Ok(buf.bytes_len()), buf)
    }

    async fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    async fn close(self) -> io::Result<()> {
        Ok(())
    }
}

const NOTHING: Counts = Counts {
    allocations: 0,
    deallocations: 0,
    reallocations: 0,
    bytes_allocated: 0,
    bytes_deallocated: 0,
};

/// Returns the allocations of 1,000 rounds, after a hundred of warm-up.
async fn steady(mut round: impl AsyncFnMut()) -> Counts {
    // Panics if allocations are not counted.
    measure(|| ());
    for _ in 0..100 {
        round().await;
    }
    let before = thread_counts();
    for _ in 0..1000 {
        round().await;
    }
    thread_counts().since(before)
}

async fn fill<S: Source>(reader: &mut Reader<S>) {
    let count = reader.fill().await.unwrap().len();
    reader.consume(count);
}

#[test]
fn filling() {
    block_on(async {
        let source = Endless::default();
        let mut reader = Reader::with_block_bytes(source.clone(), BLOCK_BYTES);
        assert_eq!(steady(async || fill(&mut reader).await).await, NOTHING);
        assert_eq!(source.reads.get(), 1100);
        for depth in [1, 8] {
            let source = Endless::default();
            let mut reader = Reader::with_depth(source.clone(), BLOCK_BYTES, depth);
            assert_eq!(steady(async || fill(&mut reader).await).await, NOTHING);
            assert_eq!(source.reads.get(), 1100); // done at once: none is ahead
        }
    });
}

#[test]
fn files() {
    let name = format!("allocations-{}-files", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, vec![7; 1200 * BLOCK_BYTES]).unwrap();
    block_on(async {
        let file = sakia::fs::File::options().read(true).write(true).open(&path).await.unwrap();
        for depth in [1, 8] {
            let mut reader = Reader::with_depth(&file, BLOCK_BYTES, depth);
            let a_block = async || {
                let count = reader.fill().await.unwrap().len();
                reader.consume(count.min(BLOCK_BYTES));
            };
            assert_eq!(steady(a_block).await, NOTHING);
            assert_eq!(reader.consumed() as usize, 1100 * BLOCK_BYTES);
        }
        let mut writer = Writer::at(file, 0);
        writer = writer.block_bytes(BLOCK_BYTES).bound_bytes(BLOCK_BYTES);
        let counts = steady(async || writer.write_all(&[1; 1000]).await.unwrap());
        assert_eq!(counts.await, NOTHING);
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn pieces_across_blocks() {
    block_on(async {
        let mut reader = Reader::with_depth(Endless::default(), BLOCK_BYTES, 2);
        let counts = steady(async || {
            assert_eq!(reader.chunks(1000).next().await.unwrap().unwrap().len(), 1000);
            assert_eq!(reader.peek(5000).await.unwrap().len(), 5000);
        });
        assert_eq!(counts.await, NOTHING);
    });
}

#[test]
fn offloaded() {
    let name = format!("allocations-{}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, vec![7; 1200 * BLOCK_BYTES]).unwrap();
    block_on(async {
        let file = std::fs::File::open(&path).unwrap();
        let mut reader = Reader::offload_with(file, 0, BLOCK_BYTES, 4).unwrap();
        // These are the reader's allocations; the blocks of the other thread are the same.
        assert_eq!(steady(async || fill(&mut reader).await).await, NOTHING);
        assert_eq!(reader.consumed() as usize, 1100 * BLOCK_BYTES);
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn writing() {
    block_on(async {
        let mut writer = Writer::at(Endless::default(), 0);
        writer = writer.block_bytes(BLOCK_BYTES).bound_bytes(BLOCK_BYTES);
        let counts = steady(async || writer.write_all(&[1; 1000]).await.unwrap());
        assert_eq!(counts.await, NOTHING);
        let counts = steady(async || {
            writer.write_all(&[1; 100]).await.unwrap();
            writer.flush(Level::Durable).await.unwrap();
        });
        assert_eq!(counts.await, NOTHING);
    });
}

#[test]
fn copying() {
    block_on(async {
        let source = Endless::default();
        let mut reader = Reader::with_depth(source.clone(), BLOCK_BYTES, 2);
        let mut writer = Writer::at(Endless::default(), 0).bound_bytes(BLOCK_BYTES);
        {
            // The copy never ends; it is dropped after this number of blocks.
            let mut copying = std::pin::pin!(copy(&mut reader, &mut writer));
            let mut until = async |blocks| {
                std::future::poll_fn(|cx| {
                    if source.reads.get() >= blocks {
                        return std::task::Poll::Ready(());
                    }
                    let polled = copying.as_mut().poll(cx);
                    polled.map(|_| panic!("an endless copy ended"))
                })
                .await;
            };
            until(100).await;
            let before = thread_counts();
            until(1100).await;
            assert_eq!(thread_counts().since(before), NOTHING);
        }
    });
}

#[test]
fn a_pipe() {
    block_on(async {
        let (reader, writer) = pipe().unwrap();
        let mut reader = Reader::with_block_bytes(reader, BLOCK_BYTES);
        let mut writer = Writer::new(writer).block_bytes(BLOCK_BYTES);
        let counts = steady(async || {
            writer.write_all(&[1; 1000]).await.unwrap();
            reader.read_exact(&mut [0; 1000]).await.unwrap();
        });
        assert_eq!(counts.await, NOTHING);
    });
}

// ---- directories -------------------------------------------------------------------------------

/// The numbers of files, directories, links and other entries.
type Kinds = [u64; 4];

/// Reads a directory with the kinds of its entries. Returns the number of each kind and the maximum number
/// of bytes that were allocated at a time. No entry needs a `statx`.
fn read_directory(runtime: &Runtime, path: &Path) -> (Kinds, u64) {
    let statx = || runtime.counters().of(OpKind::Statx);
    let before = statx();
    let read = async || {
        let mut kinds = Kinds::default();
        let mut entries = sakia::fs::read_dir(path).await.unwrap();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            assert!(!entry.file_name().is_empty());
            let kind = match entry.file_type().await.unwrap() {
                kind if kind.is_file() => 0,
                kind if kind.is_dir() => 1,
                kind if kind.is_symlink() => 2,
                _ => 3,
            };
            kinds[kind] += 1;
        }
        kinds
    };
    // The first read learns the properties of the mount, and a FUSE mount starts threads: neither is
    // counted.
    runtime.block_on(async {
        sakia::fs::read_dir(path).await.unwrap().next_entry().await.unwrap().unwrap();
    });
    let measured = measure_peak(|| runtime.block_on(async { read().await }));
    assert_eq!(statx(), before);
    measured
}

/// The entries of several batches, so that a peak is that of one batch.
const FEW: u64 = 10_000;
/// Returns the maximum number of bytes that a directory of any size may take at a time: those of a batch, the
/// memory of one entry, and what a read of the table of mounts takes on this machine, which an open makes
/// when the table has changed.
fn directory_bytes() -> u64 {
    let (table, bytes) = measure_peak(MountTable::read);
    table.unwrap();
    (64 << 10) + bytes
}

#[test]
fn a_million_entries_that_a_server_tells_take_as_much_memory_as_a_few() {
    const MANY: u64 = 1_000_000;
    let runtime = Runtime::new().unwrap();
    for count in [FEW, MANY] {
        let fuse = available!(Fuse::builder().invented(count).mount());
        let (kinds, peak) = read_directory(&runtime, fuse.path());
        let of_each = |first: u64| (count - first).div_ceil(3);
        assert_eq!(kinds, [of_each(0), of_each(1), of_each(2), 0]);
        assert!(peak < directory_bytes(), "{count} entries: {peak} bytes");
        // Each open may request the attributes of the directory itself.
        assert_eq!(fuse.count(Opcode::LOOKUP), 0);
        assert!(fuse.count(Opcode::GETATTR) <= 2, "{}", fuse.count(Opcode::GETATTR));
    }
}

/// The variable with the number of entries in the longer tier, since making a million takes long.
const ENTRIES: &str = "SAKIA_TEST_ENTRIES";

#[test]
fn many_entries_of_a_local_directory_take_as_much_memory_as_a_few() {
    let path = Path::new("/dev/shm").join(format!("sakia-entries-{}", std::process::id()));
    if std::fs::create_dir(&path).is_err() {
        skip!("/dev/shm cannot be written to");
    }
    let folder = Removed(&path);
    let many = sakia_testkit::settings::number(ENTRIES, 100_000);
    let runtime = Runtime::new().unwrap();
    let first = path.join("0");
    std::fs::write(&first, "").unwrap();
    let mut made = 1;
    for count in [FEW, many] {
        // A further hard link is cheaper than a further file.
        (made..count)
            .for_each(|name| std::fs::hard_link(&first, path.join(name.to_string())).unwrap());
        made = count;
        let (kinds, peak) = read_directory(&runtime, &path);
        assert_eq!(kinds, [count, 0, 0, 0]);
        assert!(peak < directory_bytes(), "{count} entries: {peak} bytes");
    }
    drop(folder);
}

/// Removes the directory when it is dropped.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.0).ok();
    }
}
