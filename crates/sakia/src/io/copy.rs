//! Copying from readers to writers.
//!
//! Blocks that a reader has filled are handed to the writer without copying, and the writer's empty ones come
//! back in exchange. Bytes that fill less than half a block are copied: handing the block over would keep
//! more memory than it has bytes.
//!
//! If the reader reads a file that the kernel can send to the writer's stream, its bytes never come to the
//! process: the writer gets ranges of the file.

use std::future::poll_fn;
use std::io;

use super::file_range::FileRange;
use super::reader::Reader;
use super::source::{Level, Source};
use super::writer::Writer;

/// Writes the remaining bytes of `reader` to `writer`, until the end, and flushes it to [`Level::Accepted`].
/// Resolves to the number of bytes copied.
///
/// Reading and writing overlap, as far as the reader reads ahead and the writer's bound allows. The writer
/// is not closed. If many bytes of a file are to be copied to a stream, the kernel sends them, as
/// [`send_file`](crate::net::TcpStream::send_file) does: it sends the bytes that the file has at that time.
/// If the file becomes shorter between being read and being sent, writing fails with
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
///
/// # Cancel safety
/// Dropping the future loses nothing: bytes taken from the reader are the writer's, which
/// [counts](Writer::accepted) them, and another copy goes on from there.
///
/// # Errors
/// As for reading or writing. After an error of reading, the bytes read before it have been given to the
/// writer.
///
/// # Examples
/// ```
/// use sakia::io::{BufResultExt, Reader, Writer, copy, pipe};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (input, mut sender) = pipe()?;
///     let (mut receiver, output) = pipe()?;
///     sender.write_all("all of it").await.value()?;
///     sender.close().await?;
///
///     let (mut reader, mut writer) = (Reader::new(input), Writer::new(output));
///     assert_eq!(copy(&mut reader, &mut writer).await?, 9);
///     writer.close().await?;
///     assert_eq!(receiver.read_to_end(Vec::new()).await.1, b"all of it");
///     Ok(())
/// })
/// # }
/// ```
pub async fn copy<S: Source, W>(reader: &mut Reader<S>, writer: &mut Writer<W>) -> io::Result<u64> {
    let before = reader.consumed();
    let mut may_send = writer.file_bytes_max() > 0;
    loop {
        if may_send && reader.buffered().is_empty() {
            may_send = false;
            send_file(reader, writer).await?;
        }
        let bytes = reader.fill().await?;
        if bytes.is_empty() {
            break;
        }
        let count = bytes.len();
        if reader.has_block() {
            poll_fn(|cx| writer.poll_room(cx, count)).await?;
            let spare = writer.spare_block(reader.size_of_block());
            let (block, range) = reader.exchange(spare);
            writer.put_block(block, range);
        } else {
            let count = writer.write(reader.buffered()).await?;
            reader.consume(count);
        }
    }
    writer.flush(Level::Accepted).await?;
    Ok(reader.consumed() - before)
}

/// Has the writer send the remaining bytes of `reader`, if these are many bytes of a file: as many as it has
/// now.
async fn send_file<S: Source, W>(reader: &mut Reader<S>, writer: &mut Writer<W>) -> io::Result<()> {
    /// Fewer bytes are read and written as those of any other source.
    const BYTES_MIN: u64 = 64 << 10;
    let Some(mut rest) = reader.file().filter(|file| !file.is_stream()) else { return Ok(()) };
    rest.end = rest.file_size().await?.unwrap_or(0);
    if rest.len() < BYTES_MIN {
        return Ok(());
    }
    while rest.len() > 0 {
        let len = rest.len().min(writer.file_bytes_max() as u64);
        poll_fn(|cx| writer.poll_room(cx, len as usize)).await?;
        let part = FileRange { end: rest.at + len, ..rest.clone() };
        reader.consume_file(&part);
        rest.at = part.end;
        writer.put_file(part);
    }
    Ok(())
}

/// Copies both ways between two peers, each a reader and a writer, until both have ended. Resolves to the
/// bytes copied from `a` to `b`, and from `b` to `a`.
///
/// When one peer has reached its end, the writer to the other is [closed](Writer::close): that peer sees the
/// end, and may still answer. Both writers are closed at the end.
///
/// # Cancel safety
/// As [`copy`]: dropping the future loses no bytes. A writer whose end had come by then is closed all the
/// same.
///
/// # Errors
/// The first error of either direction, which ends both: the writers are not closed then. No bytes are lost,
/// as for [`copy`].
///
/// # Examples
/// ```
/// use sakia::io::{BufResultExt, Reader, Writer, copy_bidirectional, pipe};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     // What a sends, b gets, and the other way around.
///     let ((a_input, mut a_sends), (b_input, mut b_sends)) = (pipe()?, pipe()?);
///     let ((mut a_gets, a_output), (mut b_gets, b_output)) = (pipe()?, pipe()?);
///     let a = (&mut Reader::new(a_input), &mut Writer::new(a_output));
///     let b = (&mut Reader::new(b_input), &mut Writer::new(b_output));
///     a_sends.write_all("question").await.value()?;
///     b_sends.write_all("answer").await.value()?;
///     a_sends.close().await?;
///     b_sends.close().await?;
///     assert_eq!(copy_bidirectional(a, b).await?, (8, 6));
///     assert_eq!(b_gets.read_to_end(Vec::new()).await.1, b"question");
///     assert_eq!(a_gets.read_to_end(Vec::new()).await.1, b"answer");
///     Ok(())
/// })
/// # }
/// ```
pub async fn copy_bidirectional<A: Source, B: Source, V, W>(
    a: (&mut Reader<A>, &mut Writer<V>),
    b: (&mut Reader<B>, &mut Writer<W>),
) -> io::Result<(u64, u64)> {
    let (a_reader, a_writer) = a;
    let (b_reader, b_writer) = b;
    crate::try_join!(copy_and_close(a_reader, b_writer), copy_and_close(b_reader, a_writer))
}

async fn copy_and_close<S: Source, W>(
    reader: &mut Reader<S>,
    writer: &mut Writer<W>,
) -> io::Result<u64> {
    let count = copy(reader, writer).await?;
    writer.close().await?;
    Ok(count)
}
