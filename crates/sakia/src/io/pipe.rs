//! Pipes.

use std::io;
use std::os::fd::OwnedFd;

use sakia_driver::sim::SimHandle;
use sakia_driver::{Auto, BufResult, IoBuf, IoBufMut};

use super::stream::{Stream, closer, reader, writer};
use crate::executor::current;

/// Makes a pipe: what goes into the writer comes out of the reader. Neither end is inherited by other
/// programs.
///
/// # Errors
/// - `EMFILE`, `ENFILE`: no descriptors left.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::io::pipe;
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let (mut reader, mut writer) = pipe()?;
///     let (result, _) = writer.write_all("through the pipe").await;
///     result?;
///     writer.close().await?;
///     let (result, bytes) = reader.read_to_end(Vec::new()).await;
///     assert_eq!(result?, 16);
///     assert_eq!(bytes, b"through the pipe");
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias = "pipe2")]
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let local = current();
    if let Some(Some(kernel)) = local.driver.with_backend(simulated) {
        let (reader, writer) = kernel.try_pipe()?;
        return Ok((PipeReader::from_simulated(reader), PipeWriter::from_simulated(writer)));
    }
    let (reader, writer) = io::pipe()?;
    Ok((PipeReader::from_fd(reader.into()), PipeWriter::from_fd(writer.into())))
}

/// The simulated kernel, if that is the backend.
fn simulated(backend: &Auto) -> Option<SimHandle> {
    match backend {
        Auto::Sim(sim) => Some(sim.handle()),
        _ => None,
    }
}

/// The end of a pipe to read from. Dropping it closes it.
#[derive(Debug)]
pub struct PipeReader {
    stream: Stream,
}

/// The end of a pipe to write to. Dropping it closes it; the reader finds the end then.
#[derive(Debug)]
pub struct PipeWriter {
    stream: Stream,
}

impl PipeReader {
    /// Takes over the reading end of a pipe made elsewhere, or anything else that is read in order.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { stream: Stream::new(fd) }
    }

    /// Takes over the reading end of a pipe of the simulated kernel, by descriptor; see
    /// [`SimHandle::pipe`](crate::sim::SimHandle::pipe).
    ///
    /// # Panics
    /// Outside of a runtime, and on another backend.
    pub fn from_simulated(raw: i32) -> Self {
        Self { stream: Stream::simulated(raw) }
    }
}

impl PipeWriter {
    /// Takes over the writing end of a pipe made elsewhere, or anything else that is written in order.
    ///
    /// # Panics
    /// Outside of a runtime, and on a simulated kernel.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { stream: Stream::new(fd) }
    }

    /// Takes over the writing end of a pipe of the simulated kernel, by descriptor; see
    /// [`SimHandle::pipe`](crate::sim::SimHandle::pipe).
    ///
    /// # Panics
    /// Outside of a runtime, and on another backend.
    pub fn from_simulated(raw: i32) -> Self {
        Self { stream: Stream::simulated(raw) }
    }
}

reader!(PipeReader);
writer!(PipeWriter);
