//! Descriptors of any kind, and their readers and writers.
//!
//! - [`Reader`] and [`Writer`] have buffers of their own, from which ordinary code borrows: bytes, lines,
//!   pieces, reading ahead, bounds. [`copy`] and [`copy_bidirectional`] connect them.
//! - The driver reads and writes pipes and standard streams: buffers go in by value and come back with the
//!   result, on error too. [`AsyncRead`] and the other traits work in this way, too; readers and writers can
//!   be made of the types that implement them.
//! - [`Async`] waits until a descriptor is ready and leaves the reading and writing to its owner.
//!
//! All of it belongs to the runtime thread on which it was made. When that runtime has ended,
//! operations end with `ECANCELED`.

pub(crate) mod blocks;
mod copy;
pub(crate) mod file_range;
mod in_order;
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
    AlignedBuf, Arena, BufResult, BufResultExt, Converted, Fd, FixedBuf, IoBuf, IoBufMut,
    RegisteredBuf, Room, Slice,
};
pub use source::{
    AsyncRead, AsyncReadAt, AsyncWrite, AsyncWriteAt, Level, Positional, Source, Streamed,
};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub(crate) use stream::Stream;
pub use writer::{Writer, unreported_write_errors};

use crate::executor::current;

/// Gives a descriptor to the calling thread's runtime: to send it to another process
/// ([`ControlMessages::descriptor`](crate::net::ControlMessages::descriptor)), or to convert it to a
/// [`File`](crate::fs::File), a [`TcpStream`](crate::net::TcpStream) or a
/// [`UnixStream`](crate::net::UnixStream) by `TryFrom`. [`Fd::into_owned`] gives it back. It is closed with
/// its last user.
///
/// # Panics
/// Outside of a runtime, and on a simulated kernel. When the runtime has a descriptor with this number, which
/// safe code cannot bring about.
///
/// # Examples
/// ```
/// use std::os::fd::OwnedFd;
///
/// use sakia::fs::File;
/// use sakia::io::{BufResultExt, adopt};
///
/// # sakia::block_on(async {
/// let fd = OwnedFd::from(std::fs::File::open(std::env::current_exe()?)?);
/// let program = File::try_from(adopt(fd))?;
/// assert_eq!(program.read_exact_at(vec![0; 3], 1).await.buffer()?, b"ELF");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub fn adopt(fd: impl Into<OwnedFd>) -> Fd {
    current().driver.adopt(fd.into())
}

/// Registers memory with the calling thread's runtime: `blocks` blocks of `block_bytes` bytes each, rounded
/// up to whole pages. The kernel pins it once, instead of with each operation, which speeds up direct I/O and
/// many small transfers: see [`File::read_fixed_at`](crate::fs::File::read_fixed_at). A thread has one arena
/// at most, which counts against the limit on locked memory (`RLIMIT_MEMLOCK`).
///
/// Without a ring there is nothing to register, and the blocks are aligned memory like any other.
///
/// # Errors
/// - `ENOMEM`: no memory, or the limit on locked memory is reached.
/// - `EBUSY`: the thread has an arena already. `EINVAL`: no blocks, or more than 1 GiB in all.
/// - `ECANCELED`: the runtime has ended.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use sakia::fs::File;
/// use sakia::io::{self, BufResultExt, IoBuf};
///
/// # let path = std::env::temp_dir().join(format!("sakia-arena-{}", std::process::id()));
/// sakia::block_on(async {
///     let arena = io::register_buffers(8, 4096)?;
///     let file = File::options().read(true).write(true).create(true).open(&path).await?;
///
///     let mut block = arena.block().expect("no other one is in use");
///     block[..5].copy_from_slice(b"hello");
///     // A part of a block, which comes back, as buffers do.
///     let (count, part) = file.write_fixed_at(block.slice(..5), 0).await.both()?;
///     assert_eq!(count, 5);
///
///     let mut block = part.into_inner();
///     block.fill(0);
///     let (count, block) = file.read_fixed_at(block, 0).await.both()?;
///     assert_eq!(&block[..count], b"hello");
///     // Dropping it gives the block back.
/// #   std::fs::remove_file(&path)?;
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
#[doc(alias = "io_uring_register_buffers")]
pub fn register_buffers(blocks: u32, block_bytes: usize) -> std::io::Result<Arena> {
    current().driver.register_arena(blocks, block_bytes)
}
