//! Copies of small files: the memory they touch, and the ways of their operations.

use std::fs;
use std::path::{Path, PathBuf};

use sakia::Runtime;
use sakia::fs::File;
use sakia::io::{BufResult, IoBuf, Reader, Writer, copy};
use sakia_driver::OpKind;

/// A directory, removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn below(parent: &Path, name: &str) -> std::io::Result<Self> {
        let path = parent.join(format!("sakia-small-files-{name}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the number of minor page faults of this thread.
fn page_faults() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_ascii_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Copies by a reader and a writer with blocks of this size.
async fn io_copy(from: &Path, to: &Path, block_bytes: usize) {
    let (from, to) = (File::open(from).await.unwrap(), File::create_new(to).await.unwrap());
    let mut reader = Reader::with_depth(from, block_bytes, 2);
    let mut writer = Writer::at(to, 0).block_bytes(block_bytes).bound_bytes(2 * block_bytes);
    copy(&mut reader, &mut writer).await.unwrap();
    writer.close().await.unwrap();
}

/// Copies by a read and a write.
async fn read_write(from: &Path, to: &Path) {
    let (from, to) = (File::open(from).await.unwrap(), File::create_new(to).await.unwrap());
    let (result, buf): BufResult<usize, _> = from.read_at(vec![0; 4096], 0).await;
    to.write_all_at(buf.slice(..result.unwrap()), 0).await.0.unwrap();
    assert_eq!(from.read_at(vec![0; 4096], 4096).await.0.unwrap(), 0);
}

/// A block size of 1 MiB does not cost a file of 4 KiB 1 MiB of memory: the first blocks are small, and are
/// reused.
#[test]
fn large_blocks_cost_small_files_no_page_faults() {
    const FILES: u64 = 200;
    let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), "faults").unwrap();
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::write(&from, [7; 4096]).unwrap();
    sakia::block_on(async {
        for block_bytes in [64 << 10, 1 << 20] {
            let mut before = 0;
            for number in 0..FILES + 20 {
                if number == 20 {
                    before = page_faults();
                }
                io_copy(&from, &to, block_bytes).await;
                fs::remove_file(&to).unwrap();
            }
            // With a zeroed block for each file, there were 8 to 90 faults a file.
            let faults = page_faults() - before;
            assert!(faults < FILES / 2, "{faults} faults with blocks of {block_bytes}");
        }
    });
}

/// On tmpfs all operations of a copy run on its own thread: none on a lane or a worker of the kernel.
#[test]
fn copies_in_memory_leave_nothing_to_others() {
    let Ok(folder) = Folder::below(Path::new("/dev/shm"), "ways") else {
        sakia_testkit::skip!("/dev/shm cannot be written to");
    };
    let source = folder.join("source");
    fs::create_dir(&source).unwrap();
    let contents: Vec<Vec<u8>> =
        (0..20).map(|number| vec![number; 200 * usize::from(number)]).collect();
    for (number, content) in contents.iter().enumerate() {
        fs::write(source.join(number.to_string()), content).unwrap();
    }
    for way in 0..4 {
        let runtime = Runtime::new().unwrap();
        let target = folder.join(way.to_string());
        runtime.block_on(async {
            sakia::fs::create_dir(&target).await.unwrap();
            let mut entries = sakia::fs::read_dir(&source).await.unwrap();
            while let Some(entry) = entries.next_entry().await.unwrap() {
                let (from, to) = (entry.path(), target.join(entry.file_name()));
                match way {
                    0 => read_write(&from, &to).await,
                    1 => drop(sakia::fs::copy(&from, &to).await.unwrap()),
                    2 => io_copy(&from, &to, 64 << 10).await,
                    _ => io_copy(&from, &to, 1 << 20).await,
                }
            }
        });
        for (number, content) in contents.iter().enumerate() {
            assert_eq!(fs::read(target.join(number.to_string())).unwrap(), *content);
        }
        let counters = runtime.counters();
        // In a full turn, cached lookups and small reads are submitted to the ring, which performs them at
        // once.
        for kind in OpKind::ALL {
            let of_kind = counters.of(*kind);
            let may_be_queued = matches!(kind, OpKind::Open | OpKind::Read);
            let submitted = if may_be_queued { 0 } else { of_kind.submitted };
            let name = kind.name();
            assert_eq!((submitted, of_kind.lane), (0, 0), "way {way}: {name} {of_kind:?}");
        }
        // All other opens are of files and directories that are read.
        assert!(counters.of(OpKind::Open).submitted <= 21, "way {way}: a file was made elsewhere");
        assert_eq!(counters.of(OpKind::Mkdir).inline, 1);
        // No operation checks whether a file ends at its reported length.
        let copies = if way == 1 { contents.len() as u64 } else { 0 };
        assert_eq!(counters.of(OpKind::Copy).inline, copies, "way {way}");
    }
}

/// Blocks grow from 16 KiB on, end at the same offsets as blocks of full size, and have all bytes.
#[test]
fn the_first_blocks_of_a_file_are_small() {
    let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), "grow").unwrap();
    let path = folder.join("file");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    sakia::block_on(async {
        for depth in [1, 2, 4] {
            let file = File::open(&path).await.unwrap();
            let mut reader = Reader::with_depth(&file, 1 << 20, depth);
            for at in [0, 100_000] {
                reader.seek(at as u64);
                let (mut ends, mut read) = (Vec::new(), Vec::new());
                loop {
                    let block = reader.fill().await.unwrap();
                    if block.is_empty() {
                        break;
                    }
                    read.extend_from_slice(block);
                    ends.push(read.len());
                    let count = block.len();
                    reader.consume(count);
                }
                assert!(read == bytes[at..]);
                assert_eq!(ends[..5], [16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20]);
            }
            let mut reader = Reader::with_depth(&file, 10_000, depth);
            let first = reader.fill().await.unwrap().len();
            assert!(first == 10_000, "smaller blocks are as they are");
        }
    });
}
