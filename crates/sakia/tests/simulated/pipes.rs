//! Pipes, and readers and writers over them: every byte once and in order.

use std::io;
use std::time::Duration;

use sakia::fs::File;
use sakia::io::{Level, Reader, Writer, copy, pipe};
use sakia::sim::{FaultKind, Test};
use sakia::time::sleep;
use sakia::{join, spawn};

use super::awkward;

/// Returns a test with pipes that are full after a few bytes.
fn narrow() -> Test<'static> {
    awkward().kernel(|kernel| kernel.pipe_bytes(64))
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 % 251) as u8).collect()
}

#[test]
fn a_lot_goes_through_in_order() {
    let summary = narrow().run(async |_| {
        let (mut reader, mut writer) = pipe()?;
        let writing = spawn(async move {
            writer.write_all(bytes(3000)).await.0?;
            writer.close().await
        });
        let (result, read) = reader.read_to_end(Vec::new()).await;
        assert_eq!((result?, read), (3000, bytes(3000)));
        writing.await.unwrap()
    });
    for kind in [FaultKind::ShortTransfer, FaultKind::PartialSubmit, FaultKind::Duplicate] {
        assert!(summary.injected(kind) > 0, "{kind:?}");
    }
}

#[test]
fn lines_come_whole_whatever_pieces_they_come_in() {
    narrow().run(async |_| {
        let (reader, writer) = pipe()?;
        let writing = spawn(async move {
            let mut writer = Writer::new(writer);
            for number in 0..100 {
                writer.write_all(format!("line {number}\n").as_bytes()).await?;
                if number % 10 == 0 {
                    writer.flush(Level::Accepted).await?;
                }
            }
            writer.close().await
        });
        let mut reader = Reader::with_block_bytes(reader, 50);
        let mut lines = reader.lines(100);
        let mut number = 0;
        while let Some(line) = lines.next().await? {
            assert_eq!(line, format!("line {number}"));
            number += 1;
        }
        assert_eq!(number, 100);
        writing.await.unwrap()
    });
}

#[test]
fn a_chain_of_copies_changes_nothing() {
    let test = narrow().before(|kernel| kernel.create_file("in", bytes(2000)));
    test.after(|kernel| assert_eq!(kernel.contents("out").unwrap(), bytes(2000))).run(async |_| {
        let (first_reader, first_writer) = pipe()?;
        let (second_reader, second_writer) = pipe()?;
        let file = File::create("out").await?;
        let mut input = Reader::with_depth(File::open("in").await?, 100, 3);
        let relay = async |mut reader: Reader<_>, mut writer: Writer<_>| {
            copy(&mut reader, &mut writer).await?;
            writer.close().await
        };
        let out = async {
            let mut writer = Writer::at(file, 0);
            copy(&mut Reader::new(second_reader), &mut writer).await?;
            writer.close().await
        };
        let first = async {
            let mut writer = Writer::new(first_writer);
            copy(&mut input, &mut writer).await?;
            writer.close().await
        };
        let second = relay(Reader::new(first_reader), Writer::new(second_writer));
        let (first, second, out) = join!(first, second, out);
        first.and(second).and(out)
    });
}

#[test]
fn a_reader_that_goes_ends_the_writer() {
    narrow().run(async |kernel| {
        let (mut reader, mut writer) = pipe()?;
        let writing = spawn(async move { writer.write_all(bytes(5000)).await.0 });
        let mut read = 0;
        while read < kernel.seed() as usize {
            read += reader.read(vec![0; 30]).await.0?;
        }
        drop(reader);
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        io::Result::Ok(())
    });
}

#[test]
fn a_dropped_fill_loses_nothing() {
    narrow().run(async |_| {
        let (reader, mut writer) = pipe()?;
        let writing = spawn(async move {
            for chunk in bytes(600).chunks(11) {
                writer.write_all(chunk.to_vec()).await.0?;
                sleep(Duration::from_millis(1)).await;
            }
            writer.close().await
        });
        let mut reader = Reader::with_block_bytes(reader, 40);
        let mut read = Vec::new();
        loop {
            // Half of the fills are dropped after some time.
            sakia::select! {
                result = reader.fill() => {
                    let piece = result?;
                    if piece.is_empty() {
                        break;
                    }
                    let count = piece.len().min(9);
                    read.extend_from_slice(&piece[..count]);
                    reader.consume(count);
                },
                () = sleep(Duration::from_millis(1)) => {},
            }
        }
        assert_eq!(read, bytes(600));
        writing.await.unwrap()
    });
}

#[test]
fn without_descriptors_there_is_no_pipe() {
    let test = Test::new().seeds(0..100).kernel(|kernel| kernel.descriptors_max(3 + 3));
    test.run(async |_| {
        let (reader, writer) = pipe()?;
        assert_eq!(pipe().unwrap_err().raw_os_error(), Some(24));
        reader.close().await?;
        writer.close().await?;
        pipe().map(drop)
    });
}
