//! Network connections: the names and the meaning of [`std::net`], and what an asynchronous program needs
//! besides.
//!
//! - [`TcpListener`] accepts connections, [`TcpStream`] is one.
//! - [`OwnedReadHalf`] and [`OwnedWriteHalf`] are its directions, for two tasks.
//!
//! Buffers go in by value and come back with the result, on error too: the kernel has them meanwhile, even
//! if the future is dropped. [`TcpStream::recv`] needs none: what it brings lies in memory of the runtime.
//!
//! All of it belongs to the runtime thread on which it was made, and never blocks that thread.

mod listener;
mod stream;

pub use listener::TcpListener;
pub use sakia_driver::RecvBuf;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
