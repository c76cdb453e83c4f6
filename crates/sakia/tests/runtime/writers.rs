//! Writers compared with a model: the accepted bytes.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::Config;
use sakia::io::{
    AsyncWrite, BufResult, IoBuf, Level, Writer, pipe, stdout, unreported_write_errors,
};
use sakia::{Runtime, block_on, spawn, yield_now};

use super::mocks::{EIO, Mock, Syncing, Turn, at_most, pause, run, turns, with_runtime};
use super::pipes::unread_pipe;

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// One call of a writer.
#[derive(Clone, Debug)]
enum Call {
    Write(usize),
    All(usize),
    Flush(Level),
    Yield,
}

fn steps() -> impl Strategy<Value = Vec<(Call, usize)>> {
    let call = prop_oneof![
        4 => (0usize..60).prop_map(Call::Write),
        4 => (0usize..200).prop_map(Call::All),
        1 => Just(Call::Flush(Level::Accepted)),
        1 => Just(Call::Flush(Level::Durable)),
        2 => Just(Call::Yield),
    ];
    prop::collection::vec((call, 0usize..4), 0..40)
}

/// Performs all calls, each of them dropped once after some polls. Returns the accepted bytes and the
/// reported errors.
async fn perform<W>(
    writer: &mut Writer<W>,
    steps: &[(Call, usize)],
    bound: usize,
) -> (Vec<u8>, Vec<i32>) {
    let mut expected = Vec::new();
    let mut errors = Vec::new();
    let mut next = 0_u8;
    for (call, polls) in steps {
        for polls in [*polls, usize::MAX] {
            let before = writer.accepted() as usize;
            assert_eq!(before, expected.len());
            let len = match *call {
                Call::Write(len) | Call::All(len) => len,
                _ => 0,
            };
            let bytes: Vec<u8> = (0..len).map(|at| next.wrapping_add(at as u8)).collect();
            let result = match *call {
                Call::Write(_) => {
                    let result = at_most(polls, writer.write(&bytes)).await;
                    if let Some(Ok(count)) = result {
                        assert!(count > 0 || len == 0);
                        assert_eq!(writer.accepted() as usize, before + count);
                    } else {
                        assert_eq!(writer.accepted() as usize, before);
                    }
                    result.map(|result| result.map(|_| ()))
                }
                Call::All(_) => {
                    let result = at_most(polls, writer.write_all(&bytes)).await;
                    if let Some(Ok(())) = result {
                        assert_eq!(writer.accepted() as usize, before + len);
                    }
                    result
                }
                Call::Flush(level) => at_most(polls, writer.flush(level)).await.map(|result| {
                    let reached = result?;
                    assert_eq!(reached, level);
                    assert_eq!(writer.written(), writer.accepted());
                    Ok(())
                }),
                Call::Yield => {
                    yield_now().await;
                    Some(Ok(()))
                }
            };
            let count = writer.accepted() as usize - before;
            expected.extend_from_slice(&bytes[..count]);
            next = next.wrapping_add(count as u8);
            assert!(writer.accepted() - writer.written() <= bound as u64 || !errors.is_empty());
            match result {
                None => {}
                Some(Ok(())) => break,
                Some(Err(error)) => {
                    errors.push(error.raw_os_error().unwrap());
                    break;
                }
            }
        }
    }
    (expected, errors)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn all_arrives_in_order(
        steps in steps(),
        turns in turns(),
        block_bytes in 1usize..50,
        bound in 1usize..150,
        offset in 0usize..20,
        is_dropped in any::<bool>(),
        is_at in any::<bool>(),
    ) {
        let mock = Mock::default();
        mock.turns.borrow_mut().extend(turns);
        let offset = if is_at { offset } else { 0 };
        let expected = run(async {
            macro_rules! perform {
                ($writer:expr) => {{
                    let mut writer = $writer.block_bytes(block_bytes).bound_bytes(bound);
                    let (expected, errors) = perform(&mut writer, &steps, bound).await;
                    assert_eq!(errors, []);
                    if !is_dropped {
                        writer.close().await.unwrap();
                        assert_eq!(writer.written() as usize, expected.len());
                    }
                    expected
                }};
            }
            if is_at {
                perform!(Writer::at(mock.clone(), offset as u64))
            } else {
                perform!(Writer::new(Syncing(mock.clone())))
            }
        });
        with_runtime(|runtime| {
            while runtime.live_tasks() > 0 {
                runtime.run_once(Duration::ZERO).unwrap();
            }
        });
        prop_assert!(mock.is_closed.get());
        let bytes = mock.bytes.borrow();
        prop_assert_eq!(bytes.get(offset..).unwrap_or(&[]), &expected[..]);
    }

    #[test]
    fn errors_stay(
        steps in steps(),
        turns in turns(),
        block_bytes in 1usize..50,
        bound in 1usize..150,
        fails_at in 0usize..400,
        is_at in any::<bool>(),
    ) {
        let mock = Mock::default();
        mock.turns.borrow_mut().extend(turns);
        mock.failures.borrow_mut().insert(fails_at, 1);
        run(async {
            macro_rules! perform {
                ($writer:expr) => {{
                    let mut writer = $writer.block_bytes(block_bytes).bound_bytes(bound);
                    let (expected, errors) = perform(&mut writer, &steps, bound).await;
                    assert!(errors.iter().all(|&error| error == EIO));
                    let written = writer.written() as usize;
                    let closed = writer.close().await;
                    assert_eq!(closed.is_ok(), expected.len() <= fails_at);
                    assert!(closed.is_ok() || writer.written() as usize == fails_at);
                    assert!(errors.is_empty() || written == fails_at);
                    // The error is reported again, and nothing is written.
                    assert_eq!(writer.close().await.is_ok(), closed.is_ok());
                    assert!(writer.write(b"x").await.is_err());
                    let bytes = mock.bytes.borrow();
                    assert_eq!(bytes[..], expected[..expected.len().min(fails_at)]);
                }};
            }
            if is_at {
                perform!(Writer::at(mock.clone(), 0));
            } else {
                perform!(Writer::new(Syncing(mock.clone())));
            }
        });
    }
}

#[test]
fn what_one_turn_writes_leaves_together() {
    block_on(async {
        let mock = Mock::default();
        let mut writer = Writer::new(mock.clone());
        for _ in 0..3 {
            for _ in 0..100 {
                writer.write_all(b"word ").await.unwrap();
            }
            yield_now().await;
            yield_now().await;
        }
        assert_eq!((mock.operations.get(), mock.bytes.borrow().len()), (3, 1500));
        assert_eq!(writer.written(), 1500);
    });
}

#[test]
fn files_are_written_by_blocks() {
    block_on(async {
        let mock = Mock::default();
        let mut writer = Writer::at(mock.clone(), 0).block_bytes(1000);
        for _ in 0..25 {
            writer.write_all(&[7; 100]).await.unwrap();
            yield_now().await;
            yield_now().await;
        }
        assert_eq!((mock.operations.get(), writer.written()), (2, 2000));
        assert_eq!(writer.flush(Level::Accepted).await.unwrap(), Level::Accepted);
        assert_eq!((writer.written(), mock.syncs.get()), (2500, 0));
        for syncs in 1..3 {
            assert_eq!(writer.flush(Level::Durable).await.unwrap(), Level::Durable);
            // The second flush has no new bytes, so it needs no sync.
            assert_eq!(mock.syncs.get(), 1, "{syncs}");
        }
        writer.write_all(b"x").await.unwrap();
        writer.flush(Level::Durable).await.unwrap();
        assert_eq!(mock.syncs.get(), 2);
        writer.close().await.unwrap();
        assert!(mock.is_closed.get());
    });
}

#[test]
fn several_blocks_leave_at_once() {
    block_on(async {
        let mock = Mock::default();
        let mut writer = Writer::at(mock.clone(), 0).block_bytes(10).bound_bytes(1000);
        let bytes: Vec<u8> = (0..100).collect();
        writer.write_all(&bytes).await.unwrap();
        mock.turns.borrow_mut().extend([Turn::Short(25), Turn::Interrupted, Turn::Short(5)]);
        writer.flush(Level::Accepted).await.unwrap();
        assert_eq!(*mock.bytes.borrow(), bytes);
        assert_eq!(mock.operations.get(), 4);
    });
}

#[test]
fn a_full_writer_waits_for_room() {
    block_on(async {
        let (mut reader, writer) = pipe().unwrap();
        let mut writer = Writer::new(writer).bound_bytes(1000);
        assert_eq!(writer.write(&[1; 5000]).await.unwrap(), 1000);
        assert!(at_most(1, writer.write(&[1; 5000])).await.is_none());
        let writing = spawn(async move {
            writer.write_all(&[1; 1 << 20]).await.unwrap();
            writer.close().await.unwrap();
            writer.written()
        });
        let (result, bytes) = reader.read_to_end(Vec::new()).await;
        assert_eq!(result.unwrap(), 1000 + (1 << 20));
        assert!(bytes.iter().all(|&byte| byte == 1));
        assert_eq!(writing.await.unwrap() as usize, bytes.len());
    });
}

#[test]
fn pipes_reach_no_more_than_accepted() {
    block_on(async {
        let (mut reader, writer) = pipe().unwrap();
        let mut writer = Writer::new(writer);
        writer.write_all(b"abc").await.unwrap();
        assert_eq!(writer.flush(Level::Durable).await.unwrap(), Level::Accepted);
        assert_eq!(reader.read(vec![0; 9]).await.0.unwrap(), 3);
        let mut inner = writer.into_inner().await.unwrap();
        inner.write_all("directly").await.0.unwrap();
        inner.close().await.unwrap();
        assert_eq!(reader.read_to_end(Vec::new()).await.1, b"directly");
    });
}

#[test]
fn nobody_reads() {
    block_on(async {
        let mut writer = Writer::new(unread_pipe());
        writer.write_all(b"unread").await.unwrap();
        for _ in 0..3 {
            let error = writer.flush(Level::Accepted).await.unwrap_err();
            assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::BrokenPipe, Some(32)));
        }
        assert_eq!((writer.written(), writer.accepted()), (0, 6));
        assert_eq!(writer.close().await.unwrap_err().raw_os_error(), Some(32));
        assert_eq!(writer.into_inner().await.unwrap_err().raw_os_error(), Some(32));
    });
}

#[test]
fn standard_output_by_a_writer() {
    block_on(async {
        let mut writer = Writer::new(stdout().unwrap());
        writer.write_all(b"").await.unwrap();
        assert_eq!(writer.flush(Level::Accepted).await.unwrap(), Level::Accepted);
        writer.close().await.unwrap();
    });
}

/// A sink that fails, accepts no bytes, or panics.
struct Bad(Rc<Cell<u8>>);

impl AsyncWrite for Bad {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        pause(1).await;
        match self.0.get() {
            0 => (Ok(0), buf),
            1 => (Err(ErrorKind::QuotaExceeded.into()), buf),
            2 => panic!("a bad sink"),
            _ => (Ok(buf.bytes_len() + 5), buf),
        }
    }

    async fn close(self) -> std::io::Result<()> {
        Err(ErrorKind::StorageFull.into())
    }
}

#[test]
fn bad_sinks() {
    block_on(async {
        for (kind, expected) in
            [(0, Some(ErrorKind::WriteZero)), (1, Some(ErrorKind::QuotaExceeded)), (2, None)]
        {
            let mut writer = Writer::new(Bad(Rc::new(Cell::new(kind))));
            writer.write_all(b"bytes").await.unwrap();
            let first = writer.flush(Level::Accepted).await.unwrap_err();
            let again = writer.flush(Level::Accepted).await.unwrap_err();
            assert_eq!(first.kind(), again.kind());
            match expected {
                Some(expected) => assert_eq!(first.kind(), expected),
                None => assert_eq!(first.raw_os_error(), Some(125)),
            }
        }
        // A count beyond the buffer's length counts as this length.
        let mut writer = Writer::new(Bad(Rc::new(Cell::new(3))));
        writer.write_all(b"bytes").await.unwrap();
        writer.flush(Level::Accepted).await.unwrap();
        assert_eq!(writer.written(), 5);
        assert_eq!(writer.close().await.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(writer.close().await.unwrap_err().kind(), ErrorKind::StorageFull);
    });
}

#[test]
fn a_closed_writer_takes_nothing() {
    block_on(async {
        let mut writer = Writer::new(Mock::default());
        writer.close().await.unwrap();
        writer.close().await.unwrap();
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let flushed = writer.flush(Level::Accepted).await;
        assert_eq!(flushed.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn losses_that_nobody_was_told_of_are_counted() {
    // The counter belongs to the process, and only this test loses bytes.
    let before = unreported_write_errors();
    let drive = |runtime: &Runtime| {
        while runtime.live_tasks() > 0 {
            runtime.run_once(Duration::ZERO).unwrap();
        }
    };

    let runtime = Runtime::new().unwrap();
    let failing = |at| {
        let mock = Mock::default();
        mock.failures.borrow_mut().insert(at, 1);
        mock
    };
    // The write fails after the drop.
    runtime.block_on(async {
        Writer::new(failing(3)).write_all(b"bytes").await.unwrap();
    });
    drive(&runtime);
    assert_eq!(unreported_write_errors(), before + 1);
    // The write failed before the drop.
    runtime.block_on(async {
        let mut writer = Writer::new(failing(3));
        writer.write_all(b"bytes").await.unwrap();
        pause(5).await;
    });
    drive(&runtime);
    assert_eq!(unreported_write_errors(), before + 2);
    // The error was reported.
    runtime.block_on(async {
        let mut writer = Writer::new(failing(3));
        writer.write_all(b"bytes").await.unwrap();
        writer.flush(Level::Accepted).await.unwrap_err();
    });
    drive(&runtime);
    assert_eq!(unreported_write_errors(), before + 2);
    // No bytes were lost.
    let idle = runtime.block_on(async { Writer::new(Mock::default()) });
    // The runtime ends with bytes in transit, of a dropped writer and of one that is kept.
    let (_reader, held) = runtime.block_on(async {
        let (_, mut stuck) = (Mock::default(), Writer::at(Mock::default(), 0));
        stuck.write_all(b"bytes").await.unwrap();
        let (reader, writer) = pipe().unwrap();
        let mut dropped = Writer::new(writer);
        dropped.write_all(&[0; 1 << 17]).await.unwrap();
        pause(5).await;
        (reader, stuck)
    });
    drop(runtime);
    assert_eq!(unreported_write_errors(), before + 3);
    drop(idle);
    assert_eq!(unreported_write_errors(), before + 3);
    let mut held = held;
    assert_eq!(block_on(held.write(b"x")).unwrap_err().raw_os_error(), Some(125));
    drop(held);
    assert_eq!(unreported_write_errors(), before + 3);
    // The runtime ends before the first poll of the pump.
    let runtime = Runtime::new().unwrap();
    let mut unused = runtime.block_on(async {
        Writer::new(Mock::default()).write_all(b"bytes").await.unwrap();
        Writer::new(Mock::default())
    });
    assert_eq!(unreported_write_errors(), before + 3);
    drop(runtime);
    assert_eq!(unreported_write_errors(), before + 4);
    assert_eq!(block_on(unused.close()).unwrap_err().raw_os_error(), Some(125));
    assert_eq!(block_on(unused.write(b"x")).unwrap_err().raw_os_error(), Some(125));
    drop(unused);
    assert_eq!(unreported_write_errors(), before + 4);
}

#[test]
fn a_dropped_writer_still_writes() {
    let name = format!("writers-{}-dropped", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = Writer::new(sakia::io::PipeWriter::from_fd(file.into()));
        writer.write_all(b"all of it").await.unwrap();
    });
    while runtime.live_tasks() > 0 {
        runtime.run_once(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
    std::fs::remove_file(path).unwrap();
}
