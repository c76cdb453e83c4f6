//! Readers and writers used by `tokio::io` and `futures_util::io`.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::StreamExt;
use proptest::prelude::*;
use sakia::compat::Compat;
use sakia::fs::File;
use sakia::io::{PipeReader, PipeWriter, Reader, Writer, pipe};
use sakia::{Runtime, block_on, join, spawn, yield_now};

use super::super::mocks::{EIO, Mock, Turn, at_most, pause, run, turns, with_runtime};
use super::super::pipes::unread_pipe;
use super::super::readers::config;
use super::numbered;

const EBADF: i32 = 9;
const EISDIR: i32 = 21;
const EPIPE: i32 = 32;
const ECANCELED: i32 = 125;

/// Far more bytes than pipes, blocks and limits hold.
const MUCH: usize = 3 << 20;

fn mock(bytes: &[u8], turns: Vec<Turn>, failures: &[usize]) -> Mock {
    let mock = Mock::new(bytes);
    *mock.turns.borrow_mut() = turns.into();
    *mock.failures.borrow_mut() = failures.iter().map(|&at| (at, 1)).collect::<BTreeMap<_, _>>();
    mock
}

/// Writes to a pipe without an adapter.
async fn feed(mut to: PipeWriter, bytes: Vec<u8>) -> Vec<u8> {
    let (result, bytes) = to.write_all(bytes).await;
    result.unwrap();
    to.close().await.unwrap();
    bytes
}

/// Reads all of a pipe without an adapter.
async fn drain(from: PipeReader) -> Vec<u8> {
    let mut bytes = Vec::new();
    Reader::new(from).read_to_end(&mut bytes, usize::MAX).await.unwrap();
    bytes
}

#[test]
fn tokio_copies_much_between_pipes() {
    block_on(async {
        let ((input, sender), (receiver, output)) = (pipe().unwrap(), pipe().unwrap());
        let feeding = spawn(feed(sender, numbered(MUCH)));
        let draining = spawn(drain(receiver));
        let mut reader = Compat::new(Reader::new(input));
        let mut writer = Compat::new(Writer::new(output));
        let count = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
        assert_eq!(count, MUCH as u64);
        assert!(feeding.await.unwrap() == draining.await.unwrap());
    });
}

#[test]
fn futures_copies_much_between_pipes() {
    block_on(async {
        let ((input, sender), (receiver, output)) = (pipe().unwrap(), pipe().unwrap());
        let feeding = spawn(feed(sender, numbered(MUCH)));
        let draining = spawn(drain(receiver));
        let mut reader = Compat::new(Reader::new(input));
        let mut writer = Compat::new(Writer::new(output));
        // The first half is copied by blocks, the second one by reads.
        let half = futures_util::AsyncReadExt::take(&mut reader, MUCH as u64 / 2);
        let first = futures_util::io::copy_buf(half, &mut writer).await.unwrap();
        let rest = futures_util::io::copy(&mut reader, &mut writer).await.unwrap();
        futures_util::AsyncWriteExt::close(&mut writer).await.unwrap();
        assert_eq!(first + rest, MUCH as u64);
        assert!(feeding.await.unwrap() == draining.await.unwrap());
    });
}

#[test]
fn lines_of_both() {
    block_on(async {
        let (reader, writer) = pipe().unwrap();
        let feeding = spawn(feed(writer, b"one\n\xc3\xa4 two\r\n\nthree".to_vec()));
        let reader = Compat::new(Reader::with_block_bytes(reader, 2));
        let mut lines = tokio::io::AsyncBufReadExt::lines(reader);
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("one"));
        // The second adapter gets the bytes that the first one left.
        let lines = futures_util::AsyncBufReadExt::lines(lines.into_inner());
        let lines: Vec<_> = lines.map(|line| line.unwrap()).collect().await;
        assert_eq!(lines, ["ä two", "", "three"]);
        feeding.await.unwrap();
    });
}

#[test]
fn the_end_is_told_again_and_again() {
    block_on(async {
        let (reader, writer) = pipe().unwrap();
        drop(writer);
        let mut reader = Compat::new(Reader::new(reader));
        let mut buf = [7; 4];
        for _ in 0..3 {
            let count = tokio::io::AsyncReadExt::read(&mut reader, &mut buf).await.unwrap();
            assert_eq!((count, buf), (0, [7; 4]));
            let count = futures_util::AsyncReadExt::read(&mut reader, &mut buf).await.unwrap();
            assert_eq!((count, buf), (0, [7; 4]));
            let bytes = futures_util::AsyncBufReadExt::fill_buf(&mut reader).await.unwrap();
            assert_eq!(bytes, b"");
        }
    });
}

#[test]
fn empty_buffers_do_not_wait() {
    block_on(async {
        let (input, output) = pipe().unwrap();
        let mut both = Compat::new((Reader::new(input), Writer::new(output)));
        assert_eq!(tokio::io::AsyncReadExt::read(&mut both, &mut []).await.unwrap(), 0);
        assert_eq!(futures_util::AsyncReadExt::read(&mut both, &mut []).await.unwrap(), 0);
        assert_eq!(tokio::io::AsyncWriteExt::write(&mut both, &[]).await.unwrap(), 0);
        assert_eq!(futures_util::AsyncWriteExt::write(&mut both, &[]).await.unwrap(), 0);
        let slices = [IoSlice::new(&[]), IoSlice::new(&[])];
        let count = tokio::io::AsyncWriteExt::write_vectored(&mut both, &slices).await.unwrap();
        assert_eq!(count, 0);
    });
}

/// A call on a reader by a foreign trait.
#[derive(Clone, Copy, Debug)]
enum Read {
    Tokio(usize),
    Futures(usize),
    Vectored(usize),
    Fill(usize),
}

fn reads() -> impl Strategy<Value = Vec<(Read, usize)>> {
    let read = prop_oneof![
        (1usize..40).prop_map(Read::Tokio),
        (1usize..40).prop_map(Read::Futures),
        (1usize..40).prop_map(Read::Vectored),
        (0usize..40).prop_map(Read::Fill),
    ];
    prop::collection::vec((read, 0usize..4), 1..60)
}

/// Performs a read with at most `polls` polls. Returns `None` if it was dropped.
async fn perform(
    reader: &mut Compat<Reader<impl sakia::io::Source>>,
    read: Read,
    polls: usize,
) -> Option<std::io::Result<Vec<u8>>> {
    let mut buf = [0; 40];
    let result = match read {
        Read::Tokio(len) => {
            at_most(polls, tokio::io::AsyncReadExt::read(reader, &mut buf[..len])).await?
        }
        Read::Futures(len) => {
            at_most(polls, futures_util::AsyncReadExt::read(reader, &mut buf[..len])).await?
        }
        Read::Vectored(len) => {
            let (front, back) = buf[..len].split_at_mut(len / 2);
            let mut slices = [std::io::IoSliceMut::new(front), std::io::IoSliceMut::new(back)];
            let future = futures_util::AsyncReadExt::read_vectored(reader, &mut slices);
            at_most(polls, future).await?
        }
        Read::Fill(len) => {
            let bytes = match at_most(polls, tokio::io::AsyncBufReadExt::fill_buf(reader)).await? {
                Ok(bytes) => bytes[..len.min(bytes.len())].to_vec(),
                Err(error) => return Some(Err(error)),
            };
            futures_util::AsyncBufReadExt::consume_unpin(reader, bytes.len());
            return Some(Ok(bytes));
        }
    };
    Some(result.map(|count| buf[..count].to_vec()))
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn reads_lose_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        turns in turns(),
        reads in reads(),
        failures in prop::collection::vec(0usize..400, 0..4),
        block_bytes in 1usize..80,
    ) {
        run(async {
            let mock = mock(&bytes, turns, &failures);
            let mut reader = Compat::new(Reader::with_block_bytes(mock.clone(), block_bytes));
            let mut all = Vec::new();
            let rest = std::iter::repeat((Read::Tokio(40), usize::MAX));
            for (read, polls) in reads.into_iter().chain(rest) {
                match perform(&mut reader, read, polls).await {
                    None => {}
                    Some(Ok(some)) => {
                        all.extend(&some);
                        assert!(bytes.starts_with(&all));
                        if some.is_empty() && !matches!(read, Read::Fill(0)) {
                            break;
                        }
                    }
                    // The error is reported at its position, and the next read continues there.
                    Some(Err(error)) => assert_eq!(error.raw_os_error(), Some(EIO)),
                }
            }
            assert_eq!(all, bytes);
            assert_eq!(reader.get_ref().consumed(), bytes.len() as u64);
        });
    }

    #[test]
    fn writes_lose_nothing(
        turns in turns(),
        writes in prop::collection::vec((0usize..3, 0usize..90, 0usize..4), 0..40),
        block_bytes in 1usize..50,
        bound_bytes in 1usize..120,
    ) {
        run(async {
            let mock = mock(b"", turns, &[]);
            let writer = Writer::new(mock.clone()).block_bytes(block_bytes);
            let mut writer = Compat::new(writer.bound_bytes(bound_bytes));
            let mut all = Vec::new();
            for (how, len, polls) in writes {
                let bytes: Vec<u8> = (all.len()..all.len() + len).map(|at| at as u8).collect();
                let count = match how {
                    0 => at_most(polls, tokio::io::AsyncWriteExt::write(&mut writer, &bytes)).await,
                    1 => {
                        let write = futures_util::AsyncWriteExt::write(&mut writer, &bytes);
                        at_most(polls, write).await
                    }
                    _ => {
                        let (front, back) = bytes.split_at(len / 3);
                        let slices = [IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(back)];
                        let write = tokio::io::AsyncWriteExt::write_vectored(&mut writer, &slices);
                        at_most(polls, write).await
                    }
                };
                let count = count.map_or(0, |result| result.unwrap());
                all.extend(&bytes[..count]);
                assert_eq!(writer.get_ref().accepted(), all.len() as u64);
                let waiting = writer.get_ref().accepted() - writer.get_ref().written();
                assert!(waiting <= bound_bytes as u64);
            }
            tokio::io::AsyncWriteExt::flush(&mut writer).await.unwrap();
            assert_eq!(*mock.bytes.borrow(), all);
            assert!(!mock.is_closed.get());
            futures_util::AsyncWriteExt::close(&mut writer).await.unwrap();
            assert!(mock.is_closed.get());
        });
    }
}

#[test]
fn errors_of_reading_keep_their_errno() {
    block_on(async {
        let mut reader = Compat::new(Reader::new(File::open("/").await.unwrap()));
        let error = tokio::io::AsyncReadExt::read_u8(&mut reader).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EISDIR));
        let mut buf = Vec::new();
        let read = futures_util::AsyncReadExt::read_to_end(&mut reader, &mut buf);
        assert_eq!(read.await.unwrap_err().raw_os_error(), Some(EISDIR));

        let (_reader, writer) = std::io::pipe().unwrap();
        let mut reader = Compat::new(Reader::new(PipeReader::from_fd(writer.into())));
        let error = tokio::io::AsyncBufReadExt::fill_buf(&mut reader).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EBADF));
    });
}

#[test]
fn errors_of_writing_are_told_by_what_comes_next() {
    block_on(async {
        for close in [false, true] {
            let mut writer = Compat::new(Writer::new(unread_pipe()));
            // The write is accepted, and its bytes are never read.
            tokio::io::AsyncWriteExt::write_all(&mut writer, b"unread").await.unwrap();
            if !close {
                let flushed = tokio::io::AsyncWriteExt::flush(&mut writer).await;
                assert_eq!(flushed.unwrap_err().raw_os_error(), Some(EPIPE));
                let flushed = futures_util::AsyncWriteExt::flush(&mut writer).await;
                assert_eq!(flushed.unwrap_err().raw_os_error(), Some(EPIPE));
            }
            let closed = futures_util::AsyncWriteExt::close(&mut writer).await;
            assert_eq!(closed.unwrap_err().raw_os_error(), Some(EPIPE));
            let closed = tokio::io::AsyncWriteExt::shutdown(&mut writer).await;
            assert_eq!(closed.unwrap_err().raw_os_error(), Some(EPIPE));
            let written = tokio::io::AsyncWriteExt::write(&mut writer, b"more").await;
            assert_eq!(written.unwrap_err().raw_os_error(), Some(EPIPE));
            assert_eq!(writer.into_inner().written(), 0);
        }
    });
}

#[test]
fn a_copy_ends_with_the_error_of_its_writer() {
    run(async {
        let from = mock(&numbered(100_000), Vec::new(), &[]);
        let to = mock(b"", Vec::new(), &[50_000]);
        let mut reader = Compat::new(Reader::with_block_bytes(from, 1000));
        let mut writer = Compat::new(Writer::new(to.clone()).bound_bytes(4000));
        let error = futures_util::io::copy(&mut reader, &mut writer).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EIO));
        assert_eq!(*to.bytes.borrow(), numbered(50_000));
        assert_eq!(writer.get_ref().written(), 50_000);
    });
}

#[test]
fn after_closing_nothing_is_written() {
    block_on(async {
        let (reader, writer) = pipe().unwrap();
        let mut writer = Compat::new(Writer::new(writer));
        tokio::io::AsyncWriteExt::write_all(&mut writer, b"all").await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
        futures_util::AsyncWriteExt::close(&mut writer).await.unwrap();
        let error = tokio::io::AsyncWriteExt::write(&mut writer, b"more").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        // Some libraries flush after a close.
        futures_util::AsyncWriteExt::flush(&mut writer).await.unwrap();
        assert_eq!(drain(reader).await, b"all");
    });
}

#[test]
fn a_full_writer_waits_for_its_sink() {
    block_on(async {
        let (reader, writer) = pipe().unwrap();
        let mut writer = Compat::new(Writer::new(writer).bound_bytes(10_000));
        // Writes until pipe and buffer are full.
        let mut sent = 0;
        loop {
            let write = tokio::io::AsyncWriteExt::write(&mut writer, &[1; 3000]);
            match at_most(20, async { poll_and_yield(pin!(write)).await }).await {
                Some(result) => sent += result.unwrap(),
                None => break,
            }
        }
        assert!(at_most(1, tokio::io::AsyncWriteExt::flush(&mut writer)).await.is_none());
        let draining = spawn(drain(reader));
        futures_util::AsyncWriteExt::write_all(&mut writer, &[1; 100_000]).await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
        assert_eq!(draining.await.unwrap().len(), sent + 100_000);
    });
}

/// Polls in a loop, with other tasks in between.
async fn poll_and_yield<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    loop {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        match polled {
            Poll::Ready(output) => return output,
            Poll::Pending => yield_now().await,
        }
    }
}

#[test]
fn dropping_leaves_the_rest_to_be_written() {
    block_on(async {
        let (reader, writer) = pipe().unwrap();
        let mut writer = Compat::new(Writer::new(writer).bound_bytes(MUCH));
        tokio::io::AsyncWriteExt::write_all(&mut writer, &numbered(MUCH)).await.unwrap();
        assert!(at_most(1, tokio::io::AsyncWriteExt::flush(&mut writer)).await.is_none());
        drop(writer);
        assert!(drain(reader).await == numbered(MUCH));
    });
}

#[test]
fn a_dropped_copy_goes_on_where_it_was() {
    block_on(async {
        let ((input, sender), (receiver, output)) = (pipe().unwrap(), pipe().unwrap());
        let feeding = spawn(feed(sender, numbered(MUCH)));
        let draining = spawn(drain(receiver));
        let mut reader = Compat::new(Reader::with_block_bytes(input, 1000));
        let mut writer = Compat::new(Writer::new(output).bound_bytes(10_000));
        // A dropped `copy` of tokio loses its buffer; `copy_buf` has no buffer of its own.
        let mut polls = 0;
        while at_most(polls, tokio::io::copy_buf(&mut reader, &mut writer)).await.is_none() {
            polls = polls % 7 + 1;
            pause(1).await;
        }
        assert_eq!(writer.get_ref().accepted(), MUCH as u64);
        tokio::io::AsyncWriteExt::shutdown(&mut writer).await.unwrap();
        assert!(feeding.await.unwrap() == draining.await.unwrap());
    });
}

#[test]
fn pairs_are_copied_both_ways() {
    block_on(async {
        let ((a_input, a_sends), (b_input, b_sends)) = (pipe().unwrap(), pipe().unwrap());
        let ((a_gets, a_output), (b_gets, b_output)) = (pipe().unwrap(), pipe().unwrap());
        let mut a = Compat::new((Reader::new(a_input), Writer::new(a_output)));
        let mut b = Compat::new((Reader::new(b_input), Writer::new(b_output)));
        let sending =
            spawn(
                async move { join!(feed(a_sends, numbered(MUCH)), feed(b_sends, numbered(1000))) },
            );
        let getting = spawn(async move { join!(drain(b_gets), drain(a_gets)) });
        let counts = tokio::io::copy_bidirectional(&mut a, &mut b).await.unwrap();
        assert_eq!(counts, (MUCH as u64, 1000));
        drop((a, b));
        assert!(sending.await.unwrap() == getting.await.unwrap());
    });
}

#[test]
fn halves_work_in_tasks_of_their_own() {
    block_on(async {
        let (input, output) = pipe().unwrap();
        // The reader gets the bytes of the writer beside it.
        let both = Compat::new((Reader::new(input), Writer::new(output)));
        let (mut reading, mut writing) = tokio::io::split(both);
        let hearing = spawn(async move {
            let mut all = vec![0; MUCH];
            tokio::io::AsyncReadExt::read_exact(&mut reading, &mut all).await.unwrap();
            all
        });
        tokio::io::AsyncWriteExt::write_all(&mut writing, &numbered(MUCH)).await.unwrap();
        tokio::io::AsyncWriteExt::flush(&mut writing).await.unwrap();
        assert!(hearing.await.unwrap() == numbered(MUCH));
    });
}

#[test]
fn a_reader_can_be_lent() {
    block_on(async {
        let (input, sender) = pipe().unwrap();
        feed(sender, b"head 12345 tail".to_vec()).await;
        let mut reader = Reader::new(input);
        assert_eq!(reader.read_until(b' ', 10).await.unwrap(), b"head ");
        let mut digits = [0; 5];
        let mut lent = Compat::new(&mut reader);
        tokio::io::AsyncReadExt::read_exact(&mut lent, &mut digits).await.unwrap();
        assert_eq!(&digits, b"12345");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest, 100).await.unwrap();
        assert_eq!(rest, b" tail");
        assert_eq!(reader.consumed(), 15);
    });
}

#[test]
fn readers_of_files_of_every_kind() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("compat-kinds-{}", std::process::id()));
    std::fs::write(&path, numbered(MUCH)).unwrap();
    block_on(async {
        let file = File::open(&path).await.unwrap();
        let mut all = Vec::new();
        let mut reader = Compat::new(Reader::with_depth(&file, 10_000, 4));
        tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut all).await.unwrap();
        assert!(all == numbered(MUCH));

        all.clear();
        let offloaded = Reader::offload(std::fs::File::open(&path).unwrap()).unwrap();
        let mut reader = Compat::new(offloaded);
        futures_util::AsyncReadExt::read_to_end(&mut reader, &mut all).await.unwrap();
        assert!(all == numbered(MUCH));

        let mut writer = Compat::new(Writer::at(File::create(&path).await.unwrap(), 3));
        tokio::io::copy_buf(&mut &all[3..], &mut writer).await.unwrap();
        futures_util::AsyncWriteExt::close(&mut writer).await.unwrap();
    });
    let written = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(written[3..] == numbered(MUCH)[3..] && written.len() == MUCH);
}

#[test]
fn after_the_runtime_they_tell() {
    let runtime = Runtime::new().unwrap();
    let (mut reader, mut writer, mut used) = runtime.block_on(async {
        let ((input, output), (_, other)) = (pipe().unwrap(), pipe().unwrap());
        let mut used = Compat::new(Writer::new(output));
        tokio::io::AsyncWriteExt::write_all(&mut used, b"read").await.unwrap();
        tokio::io::AsyncWriteExt::flush(&mut used).await.unwrap();
        (Compat::new(Reader::new(input)), Compat::new(Writer::new(other)), used)
    });
    drop(runtime);
    with_runtime(|runtime| {
        runtime.block_on(async {
            let error = tokio::io::AsyncReadExt::read_u8(&mut reader).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(ECANCELED));
            // A writer that has never written, and one that has.
            for writer in [&mut writer, &mut used] {
                let error = futures_util::AsyncWriteExt::flush(writer).await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(ECANCELED));
                let error = futures_util::AsyncWriteExt::close(writer).await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(ECANCELED));
            }
        });
    });
}
