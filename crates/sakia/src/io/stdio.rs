//! The process's standard streams.
//!
//! Each call makes a duplicate of the descriptor, so that closing it leaves the stream open for the rest of
//! the program. The streams are not buffered, and independent of the buffers and locks of `std`: flush those
//! first if both are used.

use std::io;
use std::os::fd::AsFd;

use sakia_driver::{BufResult, IoBuf, IoBufMut};

use super::stream::{Stream, closer, reader, writer};

/// Reads standard input: a terminal, a pipe, or a file at its position. See [`stdin`].
///
/// # Examples
/// See [`stdin()`](stdin()#examples).
#[derive(Debug)]
pub struct Stdin {
    stream: Stream,
}

/// Writes to standard output. See [`stdout`].
///
/// # Examples
/// See [`stdout()`](stdout()#examples).
#[derive(Debug)]
pub struct Stdout {
    stream: Stream,
}

/// Writes to standard error. See [`stderr`].
///
/// # Examples
/// See [`stderr()`](stderr()#examples).
#[derive(Debug)]
pub struct Stderr {
    stream: Stream,
}

/// Returns standard input, by a duplicate of descriptor 0. Bytes that `std` has buffered already are not seen
/// here. Closing it also cancels reads by way of other duplicates on the same thread.
///
/// # Errors
/// - `EBADF`: the process has no standard input. `EMFILE`: no descriptors left.
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
///
/// # Examples
/// ```no_run
/// use sakia::io::{BufResultExt, Reader};
///
/// # sakia::block_on(async {
/// let mut lines = Reader::new(sakia::io::stdin()?);
/// while let Some(line) = lines.line(1 << 20).await? {
///     sakia::io::stdout()?.write_all(format!("{line}!\n")).await.value()?;
/// }
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub fn stdin() -> io::Result<Stdin> {
    Ok(Stdin { stream: duplicate(&io::stdin())? })
}

/// Returns standard output, by a duplicate of descriptor 1.
///
/// # Errors
/// - `EBADF`: the process has no standard output. `EMFILE`: no descriptors left.
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let mut stdout = sakia::io::stdout()?;
///     let text = stdout.write_all("hello\n").await.buffer()?;
///     assert_eq!(text, "hello\n");
///     Ok(())
/// })
/// # }
/// ```
pub fn stdout() -> io::Result<Stdout> {
    Ok(Stdout { stream: duplicate(&io::stdout())? })
}

/// Returns standard error, by a duplicate of descriptor 2.
///
/// # Errors
/// - `EBADF`: the process has no standard error. `EMFILE`: no descriptors left.
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
///
/// # sakia::block_on(async {
/// sakia::io::stderr()?.write_all("a warning\n").await.value()?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub fn stderr() -> io::Result<Stderr> {
    Ok(Stderr { stream: duplicate(&io::stderr())? })
}

fn duplicate(stream: &impl AsFd) -> io::Result<Stream> {
    Ok(Stream::new(stream.as_fd().try_clone_to_owned()?))
}

reader!(Stdin);
writer!(Stdout);
writer!(Stderr);
