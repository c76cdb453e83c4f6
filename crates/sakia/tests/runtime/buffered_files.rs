//! Readers and writers on files.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;

use proptest::prelude::*;
use sakia::fs::File;
use sakia::io::{Level, Reader, Writer, copy};
use sakia::{Runtime, block_on};

use super::mocks::{at_most, pause, run};
use super::readers::{check, config, letters, steps};

/// The file of one test, removed with this value.
struct Temp(PathBuf);

impl Temp {
    fn new(test: &str, bytes: &[u8]) -> Self {
        let name = format!("buffered-{}-{test}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn ahead(
        bytes in prop::collection::vec(letters(), 0..2000),
        steps in steps(),
        block_bytes in 1usize..300,
        depth in 1usize..9,
    ) {
        let temp = Temp::new("ahead", &bytes);
        run(async {
            let file = File::open(&temp.0).await.unwrap();
            check(Reader::with_depth(&file, block_bytes, depth), &bytes, &steps).await;
            check(Reader::with_block_bytes(file, block_bytes), &bytes, &steps).await;
        });
    }
}

#[test]
fn blocks_larger_than_any_read_are_cut() {
    let temp = Temp::new("huge", b"abc");
    run(async {
        for block_bytes in [usize::MAX, usize::MAX - 1, 1 << 40] {
            let mut reader = Reader::with_depth(File::open(&temp.0).await.unwrap(), block_bytes, 1);
            let mut bytes = Vec::new();
            loop {
                let filled = reader.fill().await.unwrap();
                if filled.is_empty() {
                    break;
                }
                bytes.extend_from_slice(filled);
                let count = filled.len();
                reader.consume(count);
            }
            assert_eq!(bytes, b"abc");
        }
    });
}

#[test]
fn a_file_that_shrinks_ends_early() {
    let bytes = numbered(1 << 20);
    let temp = Temp::new("shrinks", &bytes);
    block_on(async {
        for (depth, left) in [(1, 300_000), (8, 300_000), (8, 40_000), (3, 0)] {
            std::fs::write(&temp.0, &bytes).unwrap();
            let file = File::open(&temp.0).await.unwrap();
            let mut reader = Reader::with_depth(file, 32 << 10, depth);
            let mut all = vec![0; 200_000];
            reader.read_exact(&mut all).await.unwrap();
            let other = std::fs::File::options().write(true).open(&temp.0).unwrap();
            other.set_len(left).unwrap();
            reader.read_to_end(&mut all, 1 << 20).await.unwrap();
            assert!(all.len() as u64 >= left && all.len() < bytes.len());
            assert!(bytes.starts_with(&all));
            assert_eq!(reader.fill().await.unwrap(), b"");
        }
    });
}

#[test]
fn a_reader_may_be_dropped_with_reads_in_flight() {
    let temp = Temp::new("dropped", &numbered(1 << 20));
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        for polls in [0, 1, 1, 1, 2] {
            let file = File::open(&temp.0).await.unwrap();
            let mut reader = Reader::with_depth(file, 4096, 16);
            for _ in 0..polls {
                at_most(1, reader.fill()).await;
            }
            drop(reader);
            pause(polls).await;
        }
    });
    drop(runtime);
}

#[test]
fn directories_cannot_be_read() {
    block_on(async {
        for depth in [1, 4] {
            let mut reader = Reader::with_depth(File::open("/").await.unwrap(), 4096, depth);
            for _ in 0..3 {
                let error = reader.fill().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::IsADirectory);
            }
        }
    });
}

#[test]
fn offsets_beyond_all_files() {
    let temp = Temp::new("beyond", b"abc");
    block_on(async {
        let file = File::open(&temp.0).await.unwrap();
        let mut reader = Reader::with_depth(&file, 10, 3);
        reader.seek(i64::MAX as u64 - 100);
        assert_eq!(reader.fill().await.unwrap(), b"");
        for offset in [u64::MAX, u64::MAX - 1, u64::MAX - 100, 1 << 63] {
            reader.seek(offset);
            assert_eq!(reader.fill().await.unwrap_err().raw_os_error(), Some(22));
        }
        reader.seek(1);
        assert_eq!(reader.fill().await.unwrap(), b"bc");
    });
}

#[test]
fn written_at_an_offset_and_durable() {
    let temp = Temp::new("durable", b"kept overwritten");
    block_on(async {
        let file = Rc::new(File::options().write(true).open(&temp.0).await.unwrap());
        let mut writer = Writer::at(Rc::clone(&file), 5);
        let bytes = numbered(1 << 20);
        writer.write_all(&bytes[..100_000]).await.unwrap();
        assert_eq!(writer.flush(Level::Durable).await.unwrap(), Level::Durable);
        assert_eq!(writer.written(), 100_000);
        assert_eq!(temp.bytes(), [b"kept ", &bytes[..100_000]].concat());
        writer.write_all(&bytes[100_000..]).await.unwrap();
        writer.close().await.unwrap();
        assert_eq!(temp.bytes(), [b"kept ", &bytes[..]].concat());
        // The file is still open elsewhere.
        file.write_at("K", 0).await.0.unwrap();
    });
}

#[test]
fn written_in_order() {
    let temp = Temp::new("order", b"kept ");
    block_on(async {
        let file = File::options().append(true).open(&temp.0).await.unwrap();
        let mut writer = Writer::new(file);
        writer.write_all(b"appended").await.unwrap();
        assert_eq!(writer.flush(Level::Durable).await.unwrap(), Level::Durable);
        let file = writer.into_inner().await.unwrap();
        // A pipe ignores offsets.
        let mut writer = Writer::at(file, 0);
        writer.write_all(b"x").await.unwrap();
        assert_eq!(writer.close().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(temp.bytes(), b"kept appended");
    });
}

#[test]
fn no_room() {
    block_on(async {
        let full = File::options().write(true).open("/dev/full").await.unwrap();
        let mut writer = Writer::new(full);
        writer.write_all(b"bytes").await.unwrap();
        let error = writer.flush(Level::Accepted).await.unwrap_err();
        assert_eq!((error.kind(), writer.written()), (ErrorKind::StorageFull, 0));
        assert_eq!(writer.close().await.unwrap_err().raw_os_error(), Some(28));
    });
}

#[test]
fn files_are_copied() {
    for len in [0, 1, 100_000, 3 << 20] {
        let bytes = numbered(len);
        let (from, to) = (Temp::new("from", &bytes), Temp::new("to", b""));
        block_on(async {
            let mut reader = Reader::with_depth(File::open(&from.0).await.unwrap(), 64 << 10, 4);
            let mut writer = Writer::at(File::create(&to.0).await.unwrap(), 0);
            assert_eq!(copy(&mut reader, &mut writer).await.unwrap() as usize, len);
            writer.close().await.unwrap();
        });
        assert!(to.bytes() == bytes);
    }
}

#[test]
fn direct_files_of_odd_sizes() {
    let bytes = numbered(300_001);
    let (from, to) = (Temp::new("direct-from", &bytes), Temp::new("direct-to", b""));
    block_on(async {
        let open = File::options().read(true).direct(true).open(&from.0).await;
        let Ok(file) = open else {
            assert!(std::env::var_os("SAKIA_DENY_SKIPS").is_none(), "no direct I/O here");
            eprintln!("SKIP direct_files_of_odd_sizes: no direct I/O here");
            return;
        };
        for depth in [1, 4] {
            let mut reader = Reader::with_depth(&file, 30_000, depth);
            let mut all = Vec::new();
            reader.read_to_end(&mut all, 1 << 20).await.unwrap();
            assert!(all == bytes);
            reader.seek(5_001);
            all.clear();
            reader.read_to_end(&mut all, 1 << 20).await.unwrap();
            assert!(all == bytes[5_001..]);
        }
        let output = File::options().write(true).direct(true).open(&to.0).await.unwrap();
        let mut reader = Reader::with_depth(&file, 64 << 10, 4);
        let mut writer = Writer::at(output, 0);
        copy(&mut reader, &mut writer).await.unwrap();
        writer.close().await.unwrap();
        assert!(to.bytes() == bytes);
    });
}
