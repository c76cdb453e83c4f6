//! Descriptors of any kind, and what is read and written.
//!
//! - [`Reader`] and [`Writer`] have buffers of their own, of which ordinary code borrows: bytes, lines,
//!   pieces, reading ahead, bounds. [`copy`] and [`copy_bidirectional`] connect them.
//! - Pipes and standard streams are read and written by the driver: buffers go in by value and come back
//!   with the result, on error too. So do [`AsyncRead`] and the other traits, which say what readers and
//!   writers can be made of.
//! - [`Async`] waits until a descriptor is ready and leaves the reading and writing to its owner.
//!
//! All of it belongs to the runtime thread on which it was made. When that runtime has ended,
//! operations end with `ECANCELED`.

mod copy;
pub(crate) mod file_range;
mod offload;
mod pipe;
mod reader;
mod readiness;
pub(crate) mod source;
mod stdio;
mod stream;
pub(crate) mod transfer;
mod writer;

use std::os::fd::OwnedFd;

pub use copy::{copy, copy_bidirectional};
pub use offload::Offloaded;
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use reader::{Chunks, Lines, Reader};
pub use readiness::Async;
pub use sakia_driver::{
    AlignedBuf, BufResult, BufResultExt, Converted, Fd, IoBuf, IoBufMut, Room, Slice,
};
pub use source::{
    AsyncRead, AsyncReadAt, AsyncWrite, AsyncWriteAt, Level, Positional, Source, Streamed,
};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub(crate) use stream::Stream;
pub use writer::{Writer, unreported_write_errors};

use crate::executor::current;

/// Gives a descriptor to the calling thread's runtime: to be sent to another process
/// ([`ControlMessages::descriptor`](crate::net::ControlMessages::descriptor)), or to become what it is of
/// (`TryFrom` of [`File`](crate::fs::File), [`TcpStream`](crate::net::TcpStream) and
/// [`UnixStream`](crate::net::UnixStream)). [`Fd::into_owned`] gives it back. It is closed when its last user is
/// gone.
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel.
pub fn adopt(fd: impl Into<OwnedFd>) -> Fd {
    current().driver.adopt(fd.into())
}
