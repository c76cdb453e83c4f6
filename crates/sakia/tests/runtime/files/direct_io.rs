//! Direct I/O: aligned, unaligned, and the unaligned end of a file.

use std::io::ErrorKind;

use sakia::fs::{self, AlignedBuf, DirectAlignment, File, Misaligned, OpenOptions};
use sakia::io::{IoBuf, IoBufMut};
use sakia_testkit::available;
use sakia_testkit::failing_writer::untold_error;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};

use super::{Random, TempDir, run};
use crate::refused::children::announce_skip;

/// Opens a file for direct I/O. Returns it with its alignment, or `None` after a skip if direct I/O is
/// unsupported.
async fn open_direct(dir: &TempDir, contents: &[u8]) -> Option<(File, DirectAlignment)> {
    let path = dir.join("file");
    std::fs::write(&path, contents).unwrap();
    let mut options = OpenOptions::new();
    match options.read(true).write(true).direct(true).open(&path).await {
        Ok(file) => {
            let alignment = file.direct_alignment().await.unwrap();
            let alignment = alignment.expect("what can be opened has an alignment");
            Some((file, alignment))
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(22));
            announce_skip("the file system has no direct I/O");
            None
        }
    }
}

#[test]
fn odd_lengths_are_written_and_read_whole() {
    let dir = TempDir::new();
    run(async || {
        let Some((file, alignment)) = open_direct(&dir, b"").await else { return };
        let block = alignment.offset as usize;
        let mut random = Random(11);
        for len in [0, 1, block - 1, block, block + 1, 10 * block + 7, 300_000] {
            file.set_len(0).await.unwrap();
            let bytes = random.bytes(len);
            let (result, buf) = file.write_all_at(AlignedBuf::from(&*bytes), 0).await;
            result.unwrap();
            assert_eq!(*buf, *bytes);
            assert_eq!(std::fs::read(dir.join("file")).unwrap(), bytes, "{len}");
            let (result, read) = file.read_exact_at(AlignedBuf::zeroed(len), 0).await;
            result.unwrap();
            assert_eq!(*read, *bytes, "{len}");
            // Reads to the end into a vector, whose memory is not aligned.
            let (result, read) = file.read_to_end_at(Vec::new(), 0).await;
            assert_eq!((result.unwrap(), read), (len, bytes.clone()));
            // Reads into a part of a buffer: whole blocks, then the unaligned rest.
            let (result, read) = file.read_exact_at(AlignedBuf::zeroed(len + 9).room(len), 0).await;
            result.unwrap();
            assert_eq!(read.into_inner()[..len], bytes);
            let past = AlignedBuf::zeroed(len + 1);
            let (result, past) = file.read_exact_at(past, 0).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(past[..len], bytes);
            let (result, _) = file.write_durable_at(AlignedBuf::from(&*bytes), 0).await;
            result.unwrap();
        }
    });
}

#[test]
fn the_position_of_a_direct_file_passes_odd_tails() {
    let dir = TempDir::new();
    run(async || {
        let Some((mut file, alignment)) = open_direct(&dir, b"").await else { return };
        let len = alignment.offset as usize + 100;
        let bytes = Random(12).bytes(len);
        file.write_all(AlignedBuf::from(&*bytes)).await.0.unwrap();
        assert_eq!(file.stream_position().await.unwrap(), len as u64);
        file.rewind().await.unwrap();
        let (result, read) = file.read_exact(AlignedBuf::zeroed(len)).await;
        result.unwrap();
        assert_eq!(*read, *bytes);
        assert_eq!(file.read(AlignedBuf::zeroed(4096)).await.0.unwrap(), 0);
        file.rewind().await.unwrap();
        assert_eq!(file.read_to_end(Vec::new()).await.1, bytes);
    });
}

#[test]
fn what_is_misaligned_is_told_with_what_is_needed() {
    let dir = TempDir::new();
    run(async || {
        let Some((mut file, alignment)) = open_direct(&dir, &[7; 20_000]).await else { return };
        let block = alignment.offset as usize;
        let mut errors = vec![
            file.write_all_at(AlignedBuf::zeroed(block), 1).await.0.unwrap_err(),
            file.read_exact_at(AlignedBuf::zeroed(block), 1).await.0.unwrap_err(),
            file.read_to_end_at(Vec::new(), 1).await.0.unwrap_err(),
        ];
        // The kernel has no such offset, aligned or not.
        let far = file.read_exact_at(AlignedBuf::zeroed(block), u64::MAX).await.0.unwrap_err();
        assert!((far.raw_os_error(), far.get_ref().is_none()) == (Some(22), true), "{far}");
        // The kernel decides about these, and some file systems fall back to the page cache.
        errors.extend(file.read_at(AlignedBuf::zeroed(block), 1).await.0.err());
        errors.extend(file.read_at(AlignedBuf::zeroed(block + 1), 0).await.0.err());
        errors.extend(file.write_at(AlignedBuf::zeroed(block + 1), 0).await.0.err());
        errors.extend(file.read(AlignedBuf::zeroed(block + 1)).await.0.err());
        let shifted = AlignedBuf::zeroed(2 * block).slice(1..=block);
        let (result, shifted) = file.read_at(shifted, 0).await;
        errors.extend(result.err());
        errors.extend(file.write_all_at(shifted, 0).await.0.err());
        for error in errors {
            assert_eq!((error.kind(), fs::os_error(&error)), (ErrorKind::InvalidInput, Some(22)));
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Misaligned>());
            let inner = inner.unwrap();
            assert_eq!(inner.alignment(), alignment);
            assert_eq!(untold_error(inner, 0..), None);
            let message = error.to_string();
            assert!(message.contains(&format!("multiples of {block}")), "{message}");
        }
    });
    let left = std::fs::read(dir.join("file")).unwrap();
    assert_eq!(left.len(), 20_000);
}

/// A call on a direct file that needs more than its own transfer: the alignment, the other descriptor.
async fn call(number: usize, file: &File) -> std::io::Result<()> {
    let odd = || AlignedBuf::zeroed(4096 + 100);
    match number {
        0 => file.direct_alignment().await.map(drop),
        1 => file.write_all_at(odd(), 0).await.0,
        2 => file.read_exact_at(odd(), 0).await.0,
        3 => file.read_to_end_at(Vec::new(), 4096).await.0.map(drop),
        _ => file.write_durable_at(odd(), 4096).await.0,
    }
}

/// Each request to a file server fails once: the call on a direct file that made it says so, and succeeds
/// when it is made again.
#[test]
fn each_request_that_fails_is_told_by_its_call() {
    let builder = Fuse::builder().file("file", pattern(10_000)).attributes_expire(true);
    let fuse = available!(builder.mount());
    const EIO: i32 = 5;
    run(async || {
        for (number, opcode) in (0..5).flat_map(|number| {
            [Opcode::GETATTR, Opcode::OPEN, Opcode::WRITE].map(|opcode| (number, opcode))
        }) {
            let mut hits = 0;
            loop {
                let options = OpenOptions::new().read(true).write(true).direct(true).clone();
                let file = options.open(fuse.join("file")).await.unwrap();
                let before = fuse.count(opcode);
                fuse.script(Rule::on(opcode).skip(hits).times(1).errno(EIO));
                let result = call(number, &file).await;
                let is_hit = fuse.count(opcode) - before > hits;
                fuse.release();
                if !is_hit {
                    result.unwrap();
                    break;
                }
                assert_eq!(result.unwrap_err().raw_os_error(), Some(EIO), "{number} {opcode:?}");
                call(number, &file).await.unwrap();
                hits += 1;
            }
        }
    });
}
