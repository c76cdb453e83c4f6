//! Descriptors of any kind: readiness, pipes, and the standard streams.
//!
//! [`Async`] waits until a descriptor is ready and leaves the reading and writing to its owner. Pipes
//! and standard streams are read and written by the driver: buffers go in by value and come back with
//! the result, on error too.
//!
//! All of it belongs to the runtime thread on which it was made. When that runtime has ended,
//! operations end with `ECANCELED`.

mod pipe;
mod readiness;
mod stdio;
mod stream;

pub use pipe::{PipeReader, PipeWriter, pipe};
pub use readiness::Async;
pub(crate) use readiness::Readiness;
pub use sakia_driver::{BufResult, IoBuf, IoBufMut, Slice};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
