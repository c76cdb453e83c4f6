//! The common part of all transfers: retries, and loops until all bytes are transferred.
//!
//! `EINTR` restarts an operation. `EAGAIN` comes from descriptors that other code made non-blocking, such as
//! a shared terminal: then the code waits for readiness before it retries.

use std::future::Future;
use std::io;

use sakia_driver::{BufResult, Fd, Handle, IoBuf, IoBufMut, PollEvents, Room, Slice};

/// The fewest bytes asked of a read beyond the expected end.
const CHUNK_BYTES: usize = 8 << 10;
/// The most bytes asked of one read when reading to the end.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Bytes to read at the expected end of the file.
const PROBE_BYTES: usize = 32;

/// `?` that gives the buffer back with the error: returns the value, or exits with `(Err(error), buf)`.
macro_rules! buf_try {
    ($result:expr, $buf:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return (Err(error), $buf),
        }
    };
}

pub(crate) use buf_try;

/// Returns whether to retry after `error`, having waited for `events` if need be.
pub(crate) async fn may_retry(
    driver: &Handle,
    fd: &Fd,
    error: &io::Error,
    events: PollEvents,
) -> bool {
    match error.kind() {
        io::ErrorKind::Interrupted => true,
        io::ErrorKind::WouldBlock => driver.poll(fd, events).await.is_ok(),
        _ => false,
    }
}

/// Restarts an operation as long as a signal interrupts it. For operations without effect until they are
/// done: opening, queries, syncing.
pub(crate) async fn uninterrupted<T>(
    mut operation: impl AsyncFnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match operation().await {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Repeats a plain call as long as a signal interrupts it.
pub fn repeated<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Makes a transfer, and repeats it as long as its error allows a retry.
pub(crate) async fn retrying<R, B, F>(
    driver: &Handle,
    fd: &Fd,
    events: PollEvents,
    mut buf: B,
    transfer: impl Fn(B) -> F,
) -> BufResult<R, B>
where
    F: Future<Output = BufResult<R, B>>,
{
    loop {
        let (result, back) = transfer(buf).await;
        match result {
            Err(error) if may_retry(driver, fd, &error, events).await => buf = back,
            result => return (result, back),
        }
    }
}

/// Fills `buf` by as many reads as necessary.
pub(crate) async fn read_exact<T: IoBufMut>(
    buf: T,
    mut read: impl AsyncFnMut(Room<T>) -> BufResult<usize, Room<T>>,
) -> BufResult<(), T> {
    let mut rest = buf.room(usize::MAX);
    while rest.bytes_room() > 0 {
        let (result, back) = read(rest).await;
        rest = back;
        match result {
            Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), rest.into_inner()),
            Ok(count) => rest.advance(count),
            Err(error) => return (Err(error), rest.into_inner()),
        }
    }
    (Ok(()), rest.into_inner())
}

/// Reads to the end, and appends to `buf`; `expected` is the expected number of bytes. Each read gets room
/// and the number of bytes read before.
pub(crate) async fn read_to_end(
    mut buf: Vec<u8>,
    expected: usize,
    mut read: impl AsyncFnMut(Slice<Vec<u8>>, usize) -> BufResult<usize, Slice<Vec<u8>>>,
) -> BufResult<usize, Vec<u8>> {
    let begin = buf.len();
    let room = expected.saturating_add(PROBE_BYTES);
    buf_try!(buf.try_reserve(room).map_err(io::Error::from), buf);
    loop {
        let end = buf.len();
        let done = end - begin;
        // As much as is expected, and then a probe for the end; beyond that more and more.
        let chunk = match expected.checked_sub(done) {
            Some(0) if expected > 0 => PROBE_BYTES,
            Some(left) if left > 0 => left.min(CHUNK_BYTES_MAX),
            _ => done.clamp(CHUNK_BYTES, CHUNK_BYTES_MAX),
        };
        buf_try!(buf.try_reserve(chunk).map_err(io::Error::from), buf);
        buf.resize(end + chunk, 0);
        let (result, slice) = read(buf.slice(end..), done).await;
        buf = slice.into_inner();
        buf.truncate(end + result.as_ref().map_or(0, |&count| count));
        if buf_try!(result, buf) == 0 {
            return (Ok(done), buf);
        }
    }
}

/// Writes all of `buf` by as many writes as necessary. Each gets the rest, and the number of bytes written so
/// far.
pub(crate) async fn write_all<T, F>(
    buf: T,
    write: impl Fn(Slice<T>, usize) -> F,
) -> BufResult<(), T>
where
    T: IoBuf,
    F: Future<Output = BufResult<usize, Slice<T>>>,
{
    write_rest(buf, 0, write).await
}

/// As [`write_all`], when `done` bytes are written already.
pub(crate) async fn write_rest<T, F>(
    mut buf: T,
    mut done: usize,
    write: impl Fn(Slice<T>, usize) -> F,
) -> BufResult<(), T>
where
    T: IoBuf,
    F: Future<Output = BufResult<usize, Slice<T>>>,
{
    while done < buf.bytes_len() {
        let (result, slice) = write(buf.slice(done..), done).await;
        buf = slice.into_inner();
        match result {
            Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
            Ok(count) => done += count,
            Err(error) => return (Err(error), buf),
        }
    }
    (Ok(()), buf)
}
