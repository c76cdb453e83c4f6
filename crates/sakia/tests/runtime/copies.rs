//! Copying between readers and writers.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::test_runner::Config;
use sakia::io::{Reader, Writer, copy, copy_bidirectional, pipe};
use sakia::{block_on, spawn};

use super::mocks::{EIO, Mock, Turn, at_most, run};
use super::pipes::unread_pipe;

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        3 => (1usize..9).prop_map(Turn::Short),
        3 => (9usize..80).prop_map(Turn::Short),
        1 => Just(Turn::Interrupted),
        2 => (1usize..4).prop_map(Turn::Wait),
    ];
    prop::collection::vec(turn, 0..60)
}

proptest! {
    #![proptest_config(Config { cases: 300, failure_persistence: None, ..Config::default() })]

    #[test]
    fn all_is_copied(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        (reads, writes) in (turns(), turns()),
        (block_bytes, depth) in (1usize..70, 1usize..5),
        (writer_block, bound) in (1usize..70, 1usize..200),
        peeked in 0usize..50,
        is_failing in any::<bool>(),
        drops in prop::collection::vec(0usize..5, 0..6),
    ) {
        let (from, to) = (Mock::new(bytes.clone()), Mock::default());
        from.turns.borrow_mut().extend(reads);
        to.turns.borrow_mut().extend(writes);
        if is_failing {
            from.failures.borrow_mut().insert(bytes.len() / 2, 1);
        }
        run(async {
            let mut reader = Reader::with_depth(from, block_bytes, depth);
            let mut writer = Writer::at(to.clone(), 0);
            writer = writer.block_bytes(writer_block).bound_bytes(bound);
            for polls in drops {
                at_most(polls, copy(&mut reader, &mut writer)).await;
                drop(reader.peek(peeked).await);
                assert_eq!(reader.consumed(), writer.accepted());
            }
            let before = reader.consumed();
            let copied = match copy(&mut reader, &mut writer).await {
                Ok(copied) => copied,
                Err(error) => {
                    assert!(is_failing && error.raw_os_error() == Some(EIO));
                    assert_eq!(reader.consumed() as usize, bytes.len() / 2);
                    reader.consumed() - before + copy(&mut reader, &mut writer).await.unwrap()
                }
            };
            assert_eq!((before + copied) as usize, bytes.len());
            // The writer is flushed but not closed.
            assert_eq!(*to.bytes.borrow(), bytes);
            assert!(!to.is_closed.get());
            writer.close().await.unwrap();
        });
    }
}

#[test]
fn a_file_to_a_pipe() {
    const BYTES: usize = 3 << 20;
    let name = format!("copies-{}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    block_on(async {
        let (mut receiver, output) = pipe().unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let copying = spawn(async move {
            let mut reader = Reader::offload(file).unwrap();
            let mut writer = Writer::new(output);
            let copied = copy(&mut reader, &mut writer).await.unwrap();
            writer.close().await.unwrap();
            copied
        });
        let (result, received) = receiver.read_to_end(Vec::new()).await;
        assert_eq!(result.unwrap(), BYTES);
        assert!(received == bytes);
        assert_eq!(copying.await.unwrap() as usize, BYTES);
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_reader_that_is_gone() {
    block_on(async {
        let mut reader = Reader::new(Mock::new([1; 100_000]));
        let mut writer = Writer::new(unread_pipe());
        let error = copy(&mut reader, &mut writer).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        assert_eq!(writer.written(), 0);
    });
}

#[test]
fn one_side_ends_first() {
    block_on(async {
        let ((a_input, mut a_sends), (b_input, mut b_sends)) = (pipe().unwrap(), pipe().unwrap());
        let ((mut a_gets, a_output), (mut b_gets, b_output)) = (pipe().unwrap(), pipe().unwrap());
        let copying = spawn(async move {
            let a = (&mut Reader::new(a_input), &mut Writer::new(a_output));
            let b = (&mut Reader::new(b_input), &mut Writer::new(b_output));
            copy_bidirectional(a, b).await
        });
        a_sends.write_all("question").await.0.unwrap();
        a_sends.close().await.unwrap();
        // B reads the end of A's bytes, and answers only then.
        assert_eq!(b_gets.read_to_end(Vec::new()).await.1, b"question");
        assert!(!copying.is_finished());
        let answering = spawn(async move {
            b_sends.write_all(vec![7; 1 << 20]).await.0.unwrap();
            b_sends.close().await.unwrap();
        });
        assert!(a_gets.read_to_end(Vec::new()).await.1 == vec![7; 1 << 20]);
        answering.await.unwrap();
        assert_eq!(copying.await.unwrap().unwrap(), (8, 1 << 20));
    });
}

#[test]
fn an_error_of_one_way_ends_both() {
    block_on(async {
        let (input, sends) = pipe().unwrap();
        let failing = Mock::new("abc");
        failing.failures.borrow_mut().insert(2, 1);
        let (mut a, mut b) = (Reader::new(input), Reader::new(failing));
        let (a_gets, b_gets) = (Mock::default(), Mock::default());
        let (mut to_a, mut to_b) = (Writer::new(a_gets.clone()), Writer::new(b_gets));
        let result = copy_bidirectional((&mut a, &mut to_a), (&mut b, &mut to_b)).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(EIO));
        to_a.close().await.unwrap();
        assert_eq!(*a_gets.bytes.borrow(), b"ab");
        drop(sends);
    });
}
