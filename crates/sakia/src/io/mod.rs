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
mod offload;
mod pipe;
mod reader;
mod readiness;
mod source;
mod stdio;
mod stream;
pub(crate) mod transfer;
mod writer;

pub use copy::{copy, copy_bidirectional};
pub use offload::Offloaded;
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use reader::{Chunks, Lines, Reader};
pub use readiness::Async;
pub(crate) use readiness::Readiness;
pub use sakia_driver::{AlignedBuf, BufResult, Converted, IoBuf, IoBufMut, Room, Slice};
pub use source::{
    AsyncRead, AsyncReadAt, AsyncWrite, AsyncWriteAt, Level, Positional, Source, Streamed,
};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub use writer::{Writer, unreported_write_errors};
