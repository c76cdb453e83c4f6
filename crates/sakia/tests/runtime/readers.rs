//! Readers compared with a model: the bytes, and the number of consumed ones.

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::Config;
use sakia::fs::File;
use sakia::io::{PipeReader, Reader, Source, pipe};
use sakia::{Runtime, block_on, spawn};

use super::mocks::{EIO, Mock, Turn, at_most, pause, run, turns};

/// One call of a reader.
#[derive(Clone, Debug)]
pub enum Call {
    Fill { consume: usize },
    Peek(usize),
    Read(usize),
    Exact(usize),
    Until(u8, usize),
    Line(usize),
    Skip(u64),
    Chunk(usize),
    End(usize),
}

/// A call, and the number of polls after which its future is dropped and made anew.
pub type Step = (Call, usize);

/// Returns few different letters and many ends of lines.
pub fn letters() -> impl Strategy<Value = u8> {
    prop_oneof![8 => b'a'..=b'd', 1 => Just(b'\n'), 1 => Just(b'\r')]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let call = prop_oneof![
        (0usize..40).prop_map(|consume| Call::Fill { consume }),
        (0usize..60).prop_map(Call::Peek),
        (0usize..40).prop_map(Call::Read),
        (0usize..60).prop_map(Call::Exact),
        (letters(), 0usize..50).prop_map(|(byte, limit)| Call::Until(byte, limit)),
        (0usize..50).prop_map(Call::Line),
        (0u64..60).prop_map(Call::Skip),
        (1usize..40).prop_map(Call::Chunk),
        (0usize..60).prop_map(Call::End),
    ];
    prop::collection::vec((call, 0usize..4), 0..40)
}

pub fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

fn is_injected(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// Performs one call with at most `polls` polls, and compares the result with the bytes. Returns whether it
/// ended without an injected error.
async fn perform<S: Source>(
    reader: &mut Reader<S>,
    bytes: &[u8],
    call: &Call,
    polls: usize,
) -> bool {
    let at = reader.consumed() as usize;
    let rest = &bytes[at..];
    let mut consumed = None;
    let result = match *call {
        Call::Fill { consume } => {
            let Some(result) = at_most(polls, reader.fill()).await else { return false };
            let mut count = 0;
            let result = result.map(|here| {
                assert!(rest.starts_with(here));
                assert_eq!(here.is_empty(), rest.is_empty());
                count = consume.min(here.len());
            });
            reader.consume(count);
            consumed = Some(count);
            result
        }
        Call::Peek(count) => {
            let Some(result) = at_most(polls, reader.peek(count)).await else { return false };
            consumed = Some(0);
            result.map(|here| assert_eq!(here, &rest[..count.min(rest.len())]))
        }
        Call::Read(len) => {
            let mut buf = vec![0; len];
            let Some(result) = at_most(polls, reader.read(&mut buf)).await else { return false };
            if len == 0 {
                // Neither the end nor an error of the source is reported here.
                assert_eq!(result.unwrap_err().raw_os_error(), Some(22));
                return true;
            }
            result.map(|count| {
                assert_eq!(count == 0, rest.is_empty());
                assert_eq!(buf[..count], rest[..count]);
                consumed = Some(count);
            })
        }
        Call::Exact(len) => {
            let mut buf = vec![0; len];
            let result = at_most(polls, reader.read_exact(&mut buf)).await;
            let done = reader.consumed() as usize - at;
            assert_eq!(buf[..done], rest[..done]);
            match result {
                None => return false,
                Some(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                    assert!(rest.len() < len && done == rest.len());
                    Ok(())
                }
                Some(result) => result.map(|()| assert_eq!(done, len)),
            }
        }
        Call::Until(byte, limit) => {
            let found = rest.iter().position(|&other| other == byte);
            let expected = found.map_or(rest, |at| &rest[..=at]);
            let is_long = found.unwrap_or(rest.len()) > limit;
            match at_most(polls, reader.read_until(byte, limit)).await {
                None => return false,
                Some(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                    assert!(is_long);
                    consumed = Some(0);
                    Ok(())
                }
                Some(result) => result.map(|here| {
                    assert!(!is_long);
                    assert_eq!(here, expected);
                    consumed = Some(expected.len());
                }),
            }
        }
        Call::Line(limit) => {
            let found = rest.iter().position(|&other| other == b'\n');
            let is_long = found.unwrap_or(rest.len()) > limit;
            let line = &rest[..found.unwrap_or(rest.len())];
            let line = line.strip_suffix(b"\r").filter(|_| found.is_some()).unwrap_or(line);
            match at_most(polls, reader.line(limit)).await {
                None => return false,
                Some(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                    assert!(is_long);
                    consumed = Some(0);
                    Ok(())
                }
                Some(result) => result.map(|here| {
                    assert!(!is_long);
                    assert_eq!(here.is_none(), rest.is_empty());
                    assert_eq!(here.unwrap_or("").as_bytes(), line);
                    consumed = Some(found.map_or(rest.len(), |at| at + 1));
                }),
            }
        }
        Call::Skip(count) => {
            let Some(result) = at_most(polls, reader.skip(count)).await else { return false };
            result.map(|skipped| {
                assert_eq!(skipped, count.min(rest.len() as u64));
                consumed = Some(skipped as usize);
            })
        }
        Call::Chunk(count) => {
            let mut chunks = reader.chunks(count);
            let Some(result) = at_most(polls, chunks.next()).await else { return false };
            result.map(|here| {
                assert_eq!(here.is_none(), rest.is_empty());
                assert_eq!(here.unwrap_or(&[]), &rest[..count.min(rest.len())]);
                consumed = Some(count.min(rest.len()));
            })
        }
        Call::End(limit) => {
            let mut buf = b"kept".to_vec();
            let result = at_most(polls, reader.read_to_end(&mut buf, limit)).await;
            let done = reader.consumed() as usize - at;
            assert!(buf.starts_with(b"kept") && buf[4..] == rest[..done] && done <= limit);
            match result {
                None => return false,
                Some(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                    assert!(rest.len() > limit && done == limit);
                    Ok(())
                }
                Some(result) => result.map(|count| assert_eq!((count, done), (done, rest.len()))),
            }
        }
    };
    if let Err(error) = &result {
        assert!(is_injected(error), "{call:?}: {error}");
        return false;
    }
    if let Some(consumed) = consumed {
        assert_eq!(reader.consumed() as usize - at, consumed, "{call:?}");
    }
    true
}

/// Performs all calls, and reads the rest.
pub async fn check<S: Source>(mut reader: Reader<S>, bytes: &[u8], steps: &[Step]) {
    for (call, polls) in steps {
        if perform(&mut reader, bytes, call, *polls).await {
            continue;
        }
        let mut tries = 0;
        while !perform(&mut reader, bytes, call, usize::MAX).await {
            tries += 1;
            assert!(tries < 100, "{call:?} does not end");
        }
    }
    while !perform(&mut reader, bytes, &Call::End(usize::MAX), usize::MAX).await {}
    assert_eq!(reader.consumed() as usize, bytes.len());
    assert_eq!(reader.fill().await.unwrap(), b"");
}

fn mock(bytes: &[u8], turns: Vec<Turn>, failures: &[usize]) -> Mock {
    let mock = Mock::new(bytes);
    mock.turns.borrow_mut().extend(turns);
    for at in failures {
        *mock.failures.borrow_mut().entry(*at).or_default() += 1;
    }
    mock
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn in_order(
        bytes in prop::collection::vec(letters(), 0..400),
        turns in turns(),
        failures in prop::collection::vec(0usize..400, 0..4),
        steps in steps(),
        block_bytes in 1usize..70,
    ) {
        let mock = mock(&bytes, turns, &failures);
        run(check(Reader::with_block_bytes(mock, block_bytes), &bytes, &steps));
    }

    #[test]
    fn ahead(
        bytes in prop::collection::vec(letters(), 0..400),
        turns in turns(),
        failures in prop::collection::vec(0usize..400, 0..4),
        steps in steps(),
        block_bytes in 1usize..70,
        depth in 1usize..6,
    ) {
        let mock = mock(&bytes, turns, &failures);
        run(check(Reader::with_depth(mock.clone(), block_bytes, depth), &bytes, &steps));
        prop_assert!(mock.in_flight_max.get() <= depth);
    }

    #[test]
    fn ahead_with_alignment(
        bytes in prop::collection::vec(letters(), 0..400),
        turns in turns(),
        steps in steps(),
        align in 1usize..20,
        blocks in 1usize..4,
        depth in 1usize..6,
    ) {
        let mock = mock(&bytes, turns, &[]);
        mock.aligned_to.set(align);
        run(async {
            let mut reader = Reader::with_depth(mock, align * blocks - 1, depth);
            reader.seek(bytes.len() as u64 / 2);
            check(reader, &bytes[bytes.len() / 2..], &steps).await;
        });
    }

    #[test]
    fn a_file_that_shrinks_ends_early(
        bytes in prop::collection::vec(letters(), 0..400),
        turns in turns(),
        before in 0u64..400,
        left in 0usize..400,
        block_bytes in 1usize..70,
        depth in 1usize..6,
    ) {
        let mock = mock(&bytes, turns, &[]);
        run(async {
            let mut reader = Reader::with_depth(mock.clone(), block_bytes, depth);
            let skipped = reader.skip(before).await.unwrap() as usize;
            mock.bytes.borrow_mut().truncate(left);
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest, 1000).await.unwrap();
            assert_eq!(rest, bytes[skipped..skipped + rest.len()]);
            assert!(skipped + rest.len() >= left.min(bytes.len()));
        });
    }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn offloaded(
        bytes in prop::collection::vec(letters(), 0..2000),
        steps in steps(),
        block_bytes in 1usize..70,
        blocks in 2usize..6,
        offset in 0usize..100,
    ) {
        let mut file = temporary("offloaded");
        file.write_all(&bytes).unwrap();
        let bytes = bytes.get(offset..).unwrap_or(&[]);
        run(async {
            let reader = Reader::offload_with(file, offset as u64, block_bytes, blocks).unwrap();
            check(reader, bytes, &steps).await;
        });
    }

    #[test]
    fn of_a_file_without_offsets(
        bytes in prop::collection::vec(letters(), 0..2000),
        pieces in prop::collection::vec((1usize..100, 0usize..4), 1..10),
        steps in steps(),
        block_bytes in 1usize..70,
        depth in 1usize..6,
    ) {
        let (source, mut sink) = std::io::pipe().unwrap();
        let source = std::fs::File::from(OwnedFd::from(source));
        run(async {
            let file = File::from_std(source).unwrap();
            let sent = bytes.clone();
            let writing = spawn(async move {
                let (mut sent, mut pieces) = (&sent[..], pieces.iter().cycle());
                while let Some((piece, polls)) = pieces.next().filter(|_| !sent.is_empty()) {
                    let now = sent.split_off(..(*piece).min(sent.len())).unwrap();
                    sink.write_all(now).unwrap(); // far fewer bytes than a pipe holds
                    pause(*polls).await;
                }
            });
            check(Reader::with_depth(file, block_bytes, depth), &bytes, &steps).await;
            writing.await.unwrap();
        });
    }
}

/// Returns the path of a test's file.
fn path(test: &str) -> PathBuf {
    let name = format!("readers-{}-{test}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Creates an empty file without a name.
fn temporary(test: &str) -> std::fs::File {
    let path = path(test);
    let file = std::fs::File::create_new(&path).unwrap();
    drop(file);
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn a_pipe_in_pieces() {
    block_on(async {
        let (reader, mut writer) = pipe().unwrap();
        let writing = spawn(async move {
            for number in 0..1000 {
                let line = format!("line {number}\n");
                for piece in line.as_bytes().chunks(3) {
                    writer.write_all(piece.to_vec()).await.0.unwrap();
                }
            }
            writer.close().await.unwrap();
        });
        let mut reader = Reader::with_block_bytes(reader, 7);
        let mut number = 0;
        while let Some(line) = reader.line(9).await.unwrap() {
            assert_eq!(line, format!("line {number}"));
            number += 1;
        }
        assert_eq!(number, 1000);
        writing.await.unwrap();
    });
}

#[test]
fn a_short_read_of_a_fifo_is_followed_by_the_next_bytes() {
    block_on(async {
        let (source, mut sink) = std::io::pipe().unwrap();
        let source = std::fs::File::from(OwnedFd::from(source));
        let mut reader = Reader::with_depth(File::from_std(source).unwrap(), 4, 4);
        assert!(at_most(1, reader.fill()).await.is_none());
        sink.write_all(b"ab").unwrap();
        assert_eq!(reader.fill().await.unwrap(), b"ab");
        reader.consume(2);
        assert!(at_most(1, reader.fill()).await.is_none());
        sink.write_all(b"cdefgh").unwrap();
        drop(sink);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest, 100).await.unwrap();
        assert_eq!(rest, b"cdefgh");
    });
}

#[test]
fn a_dropped_fill_of_a_pipe_loses_nothing() {
    block_on(async {
        let (reader, mut writer) = pipe().unwrap();
        let mut reader = Reader::new(reader);
        assert!(at_most(1, reader.fill()).await.is_none());
        let mut reader = match reader.into_inner() {
            Err(reader) => reader,
            Ok(_) => panic!("a read is under way"),
        };
        // The read in flight receives these bytes.
        writer.write_all("kept").await.0.unwrap();
        assert_eq!(reader.fill().await.unwrap(), b"kept");
        reader.consume(4);
        let mut pipe: PipeReader = reader.into_inner().ok().unwrap();
        writer.write_all("after").await.0.unwrap();
        assert_eq!(pipe.read(vec![0; 5]).await.1, b"after");
    });
}

#[test]
fn a_reader_may_be_dropped_with_a_read_in_flight() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        for _ in 0..20 {
            let (reader, mut writer) = pipe().unwrap();
            let mut reader = Reader::new(reader);
            assert!(at_most(1, reader.fill()).await.is_none());
            drop(reader);
            // The write may succeed or fail, since the pipe's reader is closed at some time.
            drop(writer.write("nobody").await);
        }
    });
}

#[test]
fn after_the_runtime_reading_fails() {
    let runtime = Runtime::new().unwrap();
    let (mut reader, _writer) = runtime.block_on(async {
        let (reader, writer) = pipe().unwrap();
        let mut reader = Reader::new(reader);
        assert!(at_most(1, reader.fill()).await.is_none());
        (reader, writer)
    });
    drop(runtime);
    assert_eq!(block_on(reader.fill()).unwrap_err().raw_os_error(), Some(125));
    assert_eq!(block_on(reader.fill()).unwrap_err().raw_os_error(), Some(125));
}

#[test]
fn long_lines_stay() {
    block_on(async {
        let mut reader = Reader::with_block_bytes(Mock::new("0123456789\nnext\n"), 4);
        assert_eq!(reader.line(9).await.unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(reader.consumed(), 0);
        assert_eq!(reader.line(10).await.unwrap(), Some("0123456789"));
        assert_eq!(reader.line(10).await.unwrap(), Some("next"));
        assert_eq!(reader.line(10).await.unwrap(), None);
    });
}

#[test]
fn lines_that_are_no_text_stay() {
    block_on(async {
        let mut reader = Reader::new(Mock::new(b"\xff\xfe\nfine\n"));
        assert_eq!(reader.line(9).await.unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(reader.read_until(b'\n', 9).await.unwrap(), b"\xff\xfe\n");
        assert_eq!(reader.line(9).await.unwrap(), Some("fine"));
    });
}

#[test]
fn bounds_at_their_limits() {
    block_on(async {
        let mut reader = Reader::new(Mock::new("abc"));
        let mut all = Vec::new();
        assert_eq!(reader.peek(usize::MAX).await.unwrap(), b"abc");
        assert_eq!(reader.read_until(b'\n', usize::MAX).await.unwrap(), b"abc");
        assert_eq!(reader.read_until(b'\n', 0).await.unwrap(), b"");
        assert_eq!(reader.read_to_end(&mut all, 0).await.unwrap(), 0);
        assert_eq!(reader.skip(u64::MAX).await.unwrap(), 0);
    });
}

#[test]
fn reads_ahead_are_in_flight_while_the_caller_works() {
    block_on(async {
        let bytes: Vec<u8> = (0..100).collect();
        let waits = (0..10).flat_map(|_| [Turn::Wait(2), Turn::Short(10)]).collect();
        let mock = mock(&bytes, waits, &[]);
        let mut reader = Reader::with_depth(mock.clone(), 10, 4);
        assert_eq!(mock.operations.get(), 0);
        assert_eq!(reader.fill().await.unwrap().len(), 10);
        assert_eq!(mock.operations.get(), 4);
        reader.consume(10);
        assert_eq!(mock.operations.get(), 4);
        assert_eq!(reader.fill().await.unwrap()[0], 10);
        assert_eq!(mock.operations.get(), 5);
        // Reads that complete at once are not read ahead; after a read that waited, two blocks are.
        let turns = vec![Turn::Short(10), Turn::Wait(2), Turn::Short(20), Turn::Short(10)];
        let mock = self::mock(&bytes, turns, &[]);
        let mut reader = Reader::with_depth(mock.clone(), 10, 4);
        let (mut seen, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let len = reader.fill().await.unwrap().len();
            assert_eq!(reader.buffered(), &bytes[at..at + len]);
            seen.push((len, mock.operations.get()));
            reader.consume(len);
            at += len;
        }
        // The second read waits, so the third one begins with it, and completes at once.
        assert_eq!(seen, [(10, 1), (20, 3), (10, 3), (20, 4), (20, 5), (20, 6)]);
        // Half of the blocks are read at once, but at most 64 KiB.
        for (block, depth, run) in
            [(10, 2, 10), (10, 9, 40), (30_000, 8, 60_000), (70_000, 8, 70_000)]
        {
            let mut reader = Reader::with_depth(Mock::new(vec![7; 500_000]), block, depth);
            // A large first block arrives in parts.
            let mut read = 0;
            while read < block {
                let count = reader.fill().await.unwrap().len();
                assert!(count == block || count <= 48 << 10);
                reader.consume(count);
                read += count;
            }
            assert_eq!(read, block);
            assert_eq!(reader.fill().await.unwrap().len(), run, "{block} {depth}");
        }
        // With a depth of 1 only the requested read is in flight.
        let mock = Mock::new([7; 30]);
        let mut reader = Reader::with_depth(mock.clone(), 10, 1);
        for done in 1..=3 {
            assert_eq!(reader.fill().await.unwrap().len(), 10);
            assert_eq!(mock.operations.get(), done);
            reader.consume(10);
        }
    });
}

#[test]
fn errors_come_in_order_and_reading_goes_on() {
    block_on(async {
        let bytes: Vec<u8> = (0..100).collect();
        for depth in [1, 4] {
            let mock = mock(&bytes, vec![], &[25, 25, 60]);
            let mut reader = Reader::with_depth(mock, 10, depth);
            let mut all = Vec::new();
            let mut errors = Vec::new();
            loop {
                match reader.read_to_end(&mut all, 1000).await {
                    Ok(_) => break,
                    Err(error) => errors.push((error.raw_os_error(), all.len())),
                }
            }
            assert_eq!(all, bytes);
            assert_eq!(errors, [(Some(EIO), 25), (Some(EIO), 25), (Some(EIO), 60)]);
        }
    });
}

#[test]
fn what_is_appended_after_the_end_is_seen() {
    block_on(async {
        for depth in [1, 4] {
            let mock = Mock::new([1; 25]);
            let mut reader = Reader::with_depth(mock.clone(), 10, depth);
            assert_eq!(reader.skip(100).await.unwrap(), 25);
            assert_eq!(reader.fill().await.unwrap(), b"");
            mock.bytes.borrow_mut().extend([2; 100]);
            let mut rest = Vec::new();
            assert_eq!(reader.read_to_end(&mut rest, 1000).await.unwrap(), 100);
            assert_eq!(rest, [2; 100]);
        }
    });
}

#[test]
fn seeking_goes_anywhere() {
    block_on(async {
        let bytes: Vec<u8> = (0..200).collect();
        let mock = Mock::new(bytes);
        let mut reader = Reader::with_depth(&mock, 10, 3);
        assert_eq!(reader.peek(25).await.unwrap()[24], 24);
        for at in [150, 3, 199, 20] {
            reader.seek(at);
            assert!(reader.buffered().is_empty());
            assert_eq!(u64::from(reader.fill().await.unwrap()[0]), at);
        }
        reader.seek(200);
        assert_eq!(reader.fill().await.unwrap(), b"");
        reader.seek(0);
        assert_eq!(reader.peek(200).await.unwrap().len(), 200);
        assert_eq!(reader.get_ref().bytes.borrow().len(), 200);
    });
}

#[test]
fn offloaded_files_grow_and_fail() {
    block_on(async {
        let mut file = temporary("grows");
        file.write_all(&[1; 100]).unwrap();
        let mut reader = Reader::offload_with(file.try_clone().unwrap(), 0, 16, 4).unwrap();
        assert_eq!(reader.skip(1000).await.unwrap(), 100);
        for _ in 0..3 {
            assert_eq!(reader.fill().await.unwrap(), b"");
        }
        file.write_all(&[2; 100]).unwrap();
        assert_eq!(reader.skip(1000).await.unwrap(), 100);

        let directory = std::fs::File::open("/").unwrap();
        let mut reader = Reader::offload(directory).unwrap();
        for _ in 0..3 {
            assert_eq!(reader.fill().await.unwrap_err().kind(), ErrorKind::IsADirectory);
        }
    });
}

#[test]
fn offloaded_readers_let_others_run() {
    block_on(async {
        let mut file = temporary("fair");
        file.write_all(&[1; 1 << 16]).unwrap();
        let mut reader = Reader::offload_with(file, 0, 16, 64).unwrap();
        let reading = spawn(async move { reader.skip(1 << 20).await.unwrap() });
        // The task gets its turns even if the reading thread is always faster.
        for _ in 0..20 {
            sakia::yield_now().await;
        }
        assert_eq!(reading.await.unwrap(), 1 << 16);
    });
}

#[test]
fn dropping_ends_the_reading_thread() {
    let path = path("dropped");
    std::fs::write(&path, [1; 1000]).unwrap();
    let other = std::fs::File::open(&path).unwrap();
    block_on(async {
        // The thread is asleep without work, has reached the end, or is reading.
        for consumed in [0, 16, 48, 1000] {
            let file = std::fs::File::open(&path).unwrap();
            file.lock().unwrap();
            let mut reader = Reader::offload_with(file, 0, 16, 4).unwrap();
            assert_eq!(reader.skip(consumed).await.unwrap(), consumed);
            if consumed == 1000 {
                assert_eq!(reader.fill().await.unwrap(), b"");
            }
            drop(reader);
            // Waits until the thread has closed the file.
            other.lock().unwrap();
            other.unlock().unwrap();
        }
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_waker_that_panics_ends_the_reading_thread_only() {
    struct Panics(std::sync::mpsc::Sender<()>);
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
            panic!("a bad waker");
        }
    }
    block_on(async {
        let mut reader = Reader::offload_with(temporary("panics"), 0, 16, 4).unwrap();
        assert_eq!(reader.fill().await.unwrap(), b"");
        // The thread sleeps until it is asked again, so this call waits for the thread.
        let (sender, woken) = std::sync::mpsc::channel();
        let waker = std::task::Waker::from(Arc::new(Panics(sender)));
        let mut context = std::task::Context::from_waker(&waker);
        assert!(reader.poll_fill(&mut context).is_pending());
        woken.recv().unwrap();
        // The end of the file, which the thread found before the panic, comes first, then the error.
        assert_eq!(reader.fill().await.unwrap(), b"");
        let error = reader.fill().await.unwrap_err();
        assert_eq!(error.to_string(), "the reading thread panicked");
        assert!(reader.fill().await.is_err());
    });
}
